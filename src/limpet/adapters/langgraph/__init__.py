"""LangGraph on Limpet: a checkpoint saver, a store, and a graph in a worker.

    async with LimpetSaver.from_url("sqlite:///chat.db") as saver:
        graph = builder.compile(checkpointer=saver)

`values` turns what a graph holds into plain data and back, `lists` keeps growing lists, `thread`
folds the log of one thread into a tree of checkpoints, `opened` holds it, `saver` and `store` are
what LangGraph calls. Needs the extra: pip install 'limpet[langgraph]'.
"""

from __future__ import annotations

from limpet.errors import ExtraMissing

try:
    import langgraph.checkpoint.base  # noqa: F401  # to say which extra is missing
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith(("langgraph", "langchain")):
        raise
    raise ExtraMissing("langgraph-checkpoint", "langgraph") from error

from limpet.adapters.langgraph.harness import as_harness
from limpet.adapters.langgraph.saver import LimpetSaver
from limpet.adapters.langgraph.store import LimpetStore
from limpet.adapters.langgraph.values import ValueCodec

__all__ = ["LimpetSaver", "LimpetStore", "ValueCodec", "as_harness"]
