"""A process that runs one graph to its end, or kills itself on the way.

    python -m tests.support.graph_runner FILE LOG DIE_AT [SESSION]

It goes on with the run of the file, if there is one. Every node writes its name to LOG when it
runs; at the node number DIE_AT of this process it kills itself (0: never). At the end it prints the
final state as JSON. With SESSION the run is a turn of that session, in the same file, and every
save of the session is printed too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import limpet
from limpet.graph import (
    END,
    ExplicitMapping,
    GraphBuilder,
    LimpetCheckpointer,
    LimpetSessionStore,
    State,
    append,
)
from limpet.store.clock import Clock
from limpet.store.sqlite.store import SQLiteStore

ran, before = 0, 0
log, die_at = Path(), 0


def tick(name: str) -> None:
    """Say that a node runs, and die there if this is the place."""
    global ran
    ran += 1
    with log.open("a") as file:
        file.write(f"{name}\n")
    if ran == die_at:
        os.kill(os.getpid(), signal.SIGKILL)


class Part(State):
    item: str = ""
    trail: Annotated[list[str], append] = []


class Work(State):
    rounds: int = 0
    items: list[str] = ["a", "b", "c"]
    trail: Annotated[list[str], append] = []
    parts: Annotated[list[Any], append] = []


def stepper(name: str) -> Any:
    async def node(state: Part) -> dict[str, Any]:
        tick(f"{name} {state.item}".rstrip())
        return {"trail": [f"{name} {state.item}".rstrip()]}

    return node


async def count(state: Work) -> dict[str, Any]:
    tick(f"count {state.rounds}")
    return {"rounds": state.rounds + 1, "trail": [f"count {state.rounds}"]}


async def finish(state: Work) -> dict[str, Any]:
    tick("finish")
    return {"trail": ["finish"], "rounds": 0}


def inner(*names: str) -> Any:
    """A subgraph of these nodes, one after the other."""
    builder = GraphBuilder(Part).set_entry(names[0])
    for name, following in zip(names, [*names[1:], END], strict=True):
        builder.add_node(name, stepper(name)).add_edge(name, following)
    return builder.compile()


def graph_of(checkpointer: Any, store: Any) -> Any:
    """A cycle, a subgraph and a fan-out, one after the other.

    The edge of the cycle looks at a field that the last node changes: to evaluate it again on the
    final state would go round once more.
    """
    builder = GraphBuilder(Work).add_node("count", count).set_entry("count")
    builder.add_conditional_edge("count", lambda state: "count" if state.rounds < 4 else "sub")
    builder.add_subgraph_node(
        "sub", inner("one", "two"), ExplicitMapping(outputs={"trail": "trail"})
    ).add_edge("sub", "each")
    builder.add_fan_out_node(
        "each",
        subgraph=inner("left", "right"),
        items_field="items",
        item_field="item",
        collect_field="trail",
        target_field="parts",
        concurrency=1,
    ).add_edge("each", "finish")
    builder.add_node("finish", finish).add_edge("finish", END)
    builder.with_session_store(store, session_state=Work)  # not touched without a session id
    return builder.with_checkpointer(checkpointer).compile()


def later() -> int:
    """A minute for every node that ran before this process: the leases of dead ones are over."""
    return time.time_ns() + before * 60 * 1_000_000_000


async def main(path: str, session_id: str | None) -> None:
    opened = await SQLiteStore.open(Path(path), clock=Clock(later, time.monotonic_ns))
    async with limpet.Limpet("sqlite://", store=opened) as lp:
        checkpointer = LimpetCheckpointer(lp, "graph")
        store = LimpetSessionStore(lp, "graph", "sessions")
        graph = graph_of(checkpointer, store)
        latest = await checkpointer.latest("job")
        if latest is None:
            final = await graph.invoke(Work(), correlation_id="job", session_id=session_id)
        else:
            resumed = latest.invocation_id
            final = await graph.invoke(Work(), resume_invocation=resumed, session_id=session_id)
        print(final.model_dump_json())
        session = await store.session(session_id) if session_id else None
        for event in (
            await session.read(types=["session.created", "graph.saved"]) if session else ()
        ):
            print(event.type, session.values["rounds"], len(session.values["parts"]))


if __name__ == "__main__":
    log, die_at = Path(sys.argv[2]), int(sys.argv[3])
    before = len(log.read_text().splitlines()) if log.exists() else 0
    asyncio.run(main(sys.argv[1], sys.argv[4] if len(sys.argv) > 4 else None))
