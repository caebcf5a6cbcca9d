"""A tracer of the user's own is asked for a span around each part of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from limpet.graph import END, GraphBuilder, GraphSpan, State, append
from tests.support.graphs import gives, line


class Inner(State):
    item: str = ""
    made: str = ""


class Outer(State):
    items: list[str] = ["a", "b"]
    made: Annotated[list[str], append] = []


class Recorder:
    """Keeps what it was asked for, with how many spans were open around it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, GraphSpan]] = []
        self._open = 0

    @contextmanager
    def span(self, span: GraphSpan, /) -> Iterator[None]:
        self.asked.append((self._open, span))
        self._open += 1
        yield
        self._open -= 1


async def test_every_part_of_a_run_has_its_span_inside_the_span_around_it() -> None:
    """Kind, name, path, place and ids are those of the part; the tracer is called in line."""
    inner = line(Inner, make=gives(made="x")).compile()
    recorder = Recorder()
    graph = (
        GraphBuilder(Outer, name="all")
        .add_node("plain", gives(made=["p"]))
        .add_subgraph_node("sub", inner, outputs={})
        .add_fan_out_node(
            "fan",
            subgraph=inner,
            collect_field="made",
            target_field="made",
            items_field="items",
            item_field="item",
            concurrency=1,
        )
        .add_parallel_branches_node("split", branches={"left": gives(made=["l"])})
        .add_edge("plain", "sub")
        .add_edge("sub", "fan")
        .add_edge("fan", "split")
        .add_edge("split", END)
        .set_entry("plain")
        .with_tracer(recorder)
        .compile()
    )
    await graph.invoke(invocation_id="i", correlation_id="c", session_id="s")
    shown = [
        (depth, one.kind, one.name, one.namespace, one.fan_out_index, one.branch_name)
        for depth, one in recorder.asked
    ]
    assert shown == [
        (0, "invocation", "all", (), None, None),
        (1, "node", "plain", ("plain",), None, None),
        (1, "node", "sub", ("sub",), None, None),
        (2, "subgraph", "sub", ("sub",), None, None),
        (3, "node", "make", ("sub", "make"), None, None),
        (1, "node", "fan", ("fan",), None, None),
        (2, "fan_out_instance", "fan", ("fan",), 0, None),
        (3, "node", "make", ("fan", "make"), 0, None),
        (2, "fan_out_instance", "fan", ("fan",), 1, None),
        (3, "node", "make", ("fan", "make"), 1, None),
        (1, "node", "split", ("split",), None, None),
        (2, "branch", "left", ("split",), None, "left"),
    ]
    ids = {(one.invocation_id, one.correlation_id, one.session_id) for _, one in recorder.asked}
    assert ids == {("i", "c", "s")}
