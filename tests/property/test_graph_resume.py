"""Resume, against a run without a crash: the same state, and no completed node runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any

from hypothesis import given, settings, strategies as st

import limpet
from limpet.graph import (
    END,
    Branch,
    GraphBuilder,
    Replace,
    State,
    Suspended,
    append,
    concat_flatten,
    suspend,
)
from limpet.graph.engine.compiled import InvokeArguments, RunReport, invoke
from tests.support import seeds
from tests.support.graphs import CheckedCheckpointer

# A graph is a list of nodes: leaves, subgraphs, fan-outs over two items, and pairs of branches.
_leaf = st.sampled_from(["leaf", "waits"])
_node = st.recursive(
    _leaf,
    lambda inner: st.tuples(
        st.sampled_from(["sub", "fan", "both"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
_graphs = st.lists(_node, min_size=1, max_size=3)


class Work(State):
    items: list[int] = [0, 1]
    x: int = 0
    trail: str = ""
    log: Annotated[list[str], append] = []
    logs: Annotated[list[str], concat_flatten] = []


class World:
    """Where nodes run: it fails or suspends them at chosen moments, and counts what they did."""

    def __init__(self, failures: set[int], suspensions: set[int]) -> None:
        self.failures, self.suspensions = failures, suspensions
        self.started = 0
        self.completed: Counter[str] = Counter()

    async def run(self, name: str, *, waits: bool = False) -> None:
        """What every node does: it may fail or suspend, and is counted if it does not."""
        self.started += 1
        number = self.started
        for _ in range(number % 4 if waits else 0):
            await asyncio.sleep(0)
        if number in self.failures:
            raise RuntimeError(name)
        if number in self.suspensions:
            await suspend("go", mark_node_completed=False)
        self.completed[name] += 1

    def leaf(self, path: str, *, waits: bool) -> Any:
        async def node(s: Work) -> dict[str, Any]:
            name = f"{path}{s.trail}"
            await self.run(name, waits=waits)
            return {"log": [name]}

        return node

    def enter(self, path: str) -> Any:
        """The first node of a graph: it has nothing but what was projected into it."""

        async def node(s: Work) -> dict[str, Any]:
            await self.run(f"enter {path}{s.trail}/{s.x}")
            return {"trail": f"{s.trail}/{s.x}"}

        return node


async def _gather(s: Work) -> dict[str, Any]:
    return {"log": s.logs, "logs": Replace([])}


def built(world: World, spec: list[Any], path: str) -> GraphBuilder[Work]:
    """The graph of a list of nodes, between one that marks where it is and one that gathers."""
    builder = GraphBuilder(Work, name="g").add_node("enter", world.enter(path))
    builder.set_entry("enter")
    before = "enter"
    inputs = {"trail": "trail"}
    for at, node in enumerate(spec):
        name = f"{path}.{at}"
        if isinstance(node, str):
            builder.add_node(name, world.leaf(name, waits=node == "waits"))
        else:
            kind, inner = node
            graph = built(world, inner, name).compile()
            if kind == "sub":
                builder.add_subgraph_node(name, graph, inputs=inputs, outputs={"log": "log"})
            elif kind == "fan":
                builder.add_fan_out_node(
                    name,
                    subgraph=graph,
                    collect_field="log",
                    target_field="logs",
                    items_field="items",
                    item_field="x",
                    inputs=inputs,
                )
            else:
                _add_branches(builder, world, inner, name)
        builder.add_edge(before, name)
        before = name
    builder.add_node("gather", _gather).add_edge(before, "gather").add_edge("gather", END)
    return builder


def _add_branches(builder: GraphBuilder[Work], world: World, inner: list[Any], name: str) -> None:
    how: dict[str, Any] = {"inputs": {"trail": "trail"}, "outputs": {"log": "log"}}
    branches = {
        side: Branch(subgraph=built(world, inner, f"{name}{side}").compile(), **how)
        for side in ("l", "r")
    }
    builder.add_parallel_branches_node(name, branches=branches)


async def _without_crash(spec: list[Any]) -> Work:
    final: Work = await built(World(set(), set()), spec, "g").compile().invoke()
    return final


async def _with_crashes(world: World, spec: list[Any]) -> Work:
    graph = built(world, spec, "g").with_checkpointer(CheckedCheckpointer()).compile()
    resume: str | None = None
    signal: dict[str, Any] | None = None
    for turn in range(200):
        call = InvokeArguments(
            resume_invocation=resume, invocation_id=f"i{turn}", signal_payload=signal
        )
        note = RunReport()
        try:
            result = await invoke(graph, call, note)
        except limpet.errors.GraphRunError:
            resume, signal = note.invocation_id, None
            continue
        if not isinstance(result, Suspended):
            final: Work = result
            return final
        resume, signal = result.invocation_id, {}
    raise AssertionError("it never ended")


@settings(max_examples=1_000 if seeds.fresh() else 20)
@given(_graphs, st.sets(st.integers(1, 30), max_size=4), st.sets(st.integers(1, 30), max_size=3))
def test_a_run_that_is_resumed_ends_like_one_that_never_stopped(
    spec: list[Any], failures: set[int], suspensions: set[int]
) -> None:
    """Wherever nodes fail or suspend: every node is completed exactly once."""
    world = World(failures, suspensions)
    final = asyncio.run(_with_crashes(world, spec))
    expected = asyncio.run(_without_crash(spec))
    assert final == expected
    assert set(world.completed.values()) <= {1}
