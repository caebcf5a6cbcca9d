"""G1 to G4: what a graph costs beyond the work of its nodes.

The nodes do nothing, so that all that is measured is the engine and what it keeps.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, at_most, ratio, row
from limpet.graph import END, GraphBuilder, SQLiteCheckpointer, State, append

_WINDOW: Final = 100  # steps at either end of a long run


class Conversation(State):
    """A list that grows, and a number."""

    messages: Annotated[list[str], append] = []
    turn: int = 0


async def say(state: Conversation) -> dict[str, Any]:
    return {"messages": ["hello"], "turn": state.turn + 1}


def _three(checkpointer: Any = None) -> Any:
    builder = GraphBuilder(Conversation).set_entry("a")
    for name, target in (("a", "b"), ("b", "c"), ("c", END)):
        builder.add_node(name, say).add_edge(name, target)
    return (builder if checkpointer is None else builder.with_checkpointer(checkpointer)).compile()


def plain(run: Run) -> list[Row]:
    """G1: three nodes, nothing kept."""
    runs = run.size(1_000, 200)
    contestants: dict[str, Contestant] = {"ours": lambda path: asyncio.run(_plain(runs))}
    run.with_peer(contestants, "graph_plain", runs=runs)
    readings = run.alternate(contestants)
    found = row("G1", "a node, nothing kept", "ms", readings, "node")
    target = at_least(15, "× peer", found.against(found.peer))
    return [row("G1", found.what, found.unit, readings, "node", target)]


async def _plain(runs: int) -> Numbers:
    graph = _three()
    begin = time.perf_counter()
    for _ in range(runs):
        await graph.invoke(Conversation(messages=["hi"]))
    return {"node": (time.perf_counter() - begin) / runs / 3 * 1e3}


def kept(run: Run) -> list[Row]:
    """G2: three nodes, each step durable in a file before the next begins."""
    runs = run.size(200, 50)
    contestants: dict[str, Contestant] = {"ours": lambda path: asyncio.run(_kept(path, runs))}
    run.with_peer(contestants, "graph_kept", runs=runs)
    readings = run.alternate(contestants)
    found = row("G2", "a node, checkpointed in SQLite", "ms", readings, "node")
    target = at_least(4, "× peer", found.against(found.peer))
    return [row("G2", found.what, found.unit, readings, "node", target)]


async def _kept(path: Path, runs: int) -> Numbers:
    async with SQLiteCheckpointer(path / "ours.db") as checkpointer:
        graph = _three(checkpointer)
        await graph.invoke(Conversation(messages=["hi"]))
        begin = time.perf_counter()
        for _ in range(runs):
            await graph.invoke(Conversation(messages=["hi"]))
        return {"node": (time.perf_counter() - begin) / runs / 3 * 1e3}


def long(run: Run) -> list[Row]:
    """G3: one run of many steps, whose message list grows."""
    steps = run.size(1_000, 400)
    readings = run.alternate({"ours": lambda path: asyncio.run(_long(path, steps))})
    first, last = readings.median("ours", "first"), readings.median("ours", "last")
    flat = at_most(1.3, "last / first", ratio(last, first))
    half, whole = readings.median("ours", "half bytes"), readings.median("ours", "bytes")
    even = at_most(1.2, "bytes a step, 2nd half / 1st", _growth(half, whole))
    return [
        row("G3", f"step 1–{_WINDOW} of {steps:,}", "ms", readings, "first"),
        row("G3", f"the last {_WINDOW} steps", "ms", readings, "last", flat),
        row("G3", "on disk", "bytes", readings, "bytes", even),
    ]


def _growth(half: float | None, whole: float | None) -> float | None:
    return None if half is None or whole is None else (whole - half) / half


async def _long(path: Path, steps: int) -> Numbers:
    times: list[float] = []
    half = 0

    async def node(state: Conversation) -> dict[str, Any]:
        nonlocal half
        times.append(time.perf_counter())
        if len(times) == steps // 2:
            half = _size(path)
        return {"messages": ["a message of some length " * 8], "turn": state.turn + 1}

    async with SQLiteCheckpointer(path / "ours.db") as checkpointer:
        builder = GraphBuilder(Conversation).add_node("node", node).set_entry("node")
        builder.add_conditional_edge("node", lambda s: "node" if s.turn < steps else END)
        await builder.with_checkpointer(checkpointer).compile().invoke(Conversation())
        whole = _size(path)
    spans = [(b - a) * 1e3 for a, b in pairwise(times)]
    ends = {"first": median(spans[:_WINDOW]), "last": median(spans[-_WINDOW:])}
    return {**ends, "half bytes": float(half), "bytes": float(whole)}


def _size(path: Path) -> int:
    """What was written so far: the log of the database before it is folded into the file."""
    return sum(file.stat().st_size for file in path.glob("ours.db*"))


class Item(State):
    """One instance of a fan-out."""

    item: int = 0
    result: int = 0


class Items(State):
    """What a fan-out goes over, and what it gathers."""

    items: list[int] = []
    results: Annotated[list[int], append] = []


async def double(state: Item) -> dict[str, Any]:
    return {"result": state.item * 2}


def wide(run: Run) -> list[Row]:
    """G4: a fan-out over many items."""
    count = run.size(10_000, 2_000)
    readings = run.alternate({"ours": lambda path: asyncio.run(_wide(count))})
    found = row("G4", f"an instance of {count:,}", "ms", readings, "instance")
    target = at_most(0.040, "ms an instance", found.ours)
    return [row("G4", found.what, found.unit, readings, "instance", target)]


async def _wide(count: int) -> Numbers:
    inner = GraphBuilder(Item).add_node("double", double).add_edge("double", END)
    builder = GraphBuilder(Items).add_fan_out_node(
        "each",
        subgraph=inner.set_entry("double").compile(),
        items_field="items",
        item_field="item",
        collect_field="result",
        target_field="results",
    )
    graph = builder.add_edge("each", END).set_entry("each").compile()
    begin = time.perf_counter()
    final = await graph.invoke(Items(items=list(range(count))))
    seconds = time.perf_counter() - begin
    assert len(final.results) == count
    return {"instance": seconds / count * 1e3}
