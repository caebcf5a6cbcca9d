"""langgraph's side of the graph workloads: the same three nodes, used as its documentation shows.

Its SqliteSaver commits with WAL and synchronous=FULL, as we do, and each step is durable before the
next begins (durability="sync").
"""

from __future__ import annotations

import operator
import sqlite3
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class Conversation(TypedDict):
    """A list that grows, and a number."""

    messages: Annotated[list[str], operator.add]
    turn: int


def _graph(saver: Any = None, *, waiting: bool = True) -> Any:
    """Three nodes in a row. SqliteSaver has no coroutines, so its nodes are plain functions."""

    async def say(state: Conversation) -> dict[str, Any]:
        return {"messages": ["hello"], "turn": state["turn"] + 1}

    def say_plain(state: Conversation) -> dict[str, Any]:
        return {"messages": ["hello"], "turn": state["turn"] + 1}

    builder = StateGraph(Conversation)
    for name in "abc":
        builder.add_node(name, say if waiting else say_plain)
    for source, target in ((START, "a"), ("a", "b"), ("b", "c"), ("c", END)):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=saver)


async def graph_plain(path: str, runs: int) -> dict[str, float]:
    """Nothing is kept."""
    graph = _graph()
    await graph.ainvoke({"messages": ["hi"], "turn": 0})
    begin = time.perf_counter()
    for _ in range(runs):
        await graph.ainvoke({"messages": ["hi"], "turn": 0})
    return {"node": (time.perf_counter() - begin) / runs / 3 * 1e3}


async def graph_kept(path: str, runs: int) -> dict[str, float]:
    """A checkpoint after every step, in a file."""
    conn = sqlite3.connect(Path(path) / "peer.db", check_same_thread=False)
    saver = SqliteSaver(conn)
    saver.setup()
    conn.execute("PRAGMA synchronous = FULL")
    graph = _graph(saver, waiting=False)

    def one(number: int) -> None:
        where = {"configurable": {"thread_id": str(number)}}
        graph.invoke({"messages": ["hi"], "turn": 0}, where, durability="sync")

    one(0)
    begin = time.perf_counter()
    for number in range(1, runs + 1):
        one(number)
    seconds = time.perf_counter() - begin
    conn.close()
    return {"node": seconds / runs / 3 * 1e3}
