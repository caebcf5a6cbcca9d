"""The step limit: a graph that does not reach END stops, and what it did is kept."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

import limpet
from limpet.graph import (
    END,
    ExplicitMapping,
    GraphBuilder,
    Harness,
    InMemoryCheckpointer,
    InMemorySessionStore,
    RetryMiddleware,
    State,
    append,
)
from tests.support import graph_stores
from tests.support.graphs import PlainCheckpointer, line


class Rounds(State):
    n: int = 0
    until: int = 0
    log: Annotated[list[int], append] = []


async def go(s: Rounds) -> dict[str, Any]:
    return {"n": s.n + 1, "log": [s.n]}


def loop() -> GraphBuilder[Rounds]:
    """One node that follows itself until its number is reached; with 0, without an end."""
    builder = GraphBuilder(Rounds).add_node("go", go).set_entry("go")
    return builder.add_conditional_edge("go", lambda s: END if s.n == s.until else "go")


@pytest.fixture(params=graph_stores.KINDS)
def place(request: pytest.FixtureRequest) -> graph_stores.Place:
    return graph_stores.place(request)


async def test_a_graph_that_never_ends_stops_at_ten_thousand_nodes() -> None:
    """Without any setting: the error names the node that was next and has the state so far."""
    with pytest.raises(limpet.errors.StepLimitReached, match=r"'go'.*10,000 nodes.*END") as info:
        await loop().compile().invoke()
    error = info.value
    assert (error.code, error.category) == ("graph.step_limit", "step_limit_reached")
    assert (error.node, error.steps_max, error.retryable) == ("go", 10_000, False)
    assert error.recoverable_state.n == 10_000


@pytest.mark.parametrize("watched", [False, True])
async def test_a_graph_may_run_exactly_as_many_nodes_as_its_limit(watched: bool) -> None:
    """The node that reaches END is within the limit; one more is not."""
    graph = loop().compile(steps_max=3)
    how: Any = {"observers": [lambda event: None]} if watched else {}
    assert (await graph.invoke(Rounds(until=3), **how)).n == 3
    with pytest.raises(limpet.errors.StepLimitReached):
        await graph.invoke(Rounds(until=4), **how)
    assert (await graph.invoke(Rounds(until=4), steps_max=4, **how)).n == 4
    with pytest.raises(limpet.errors.StepLimitReached):
        await graph.invoke(Rounds(until=2), steps_max=1, **how)
    await graph.drain()


async def test_a_stopped_run_is_resumed_with_a_higher_limit(place: graph_stores.Place) -> None:
    """Every node before the limit is saved, and none of them runs again."""
    async with graph_stores.checkpointer(place) as checkpointer:
        graph = loop().with_checkpointer(checkpointer).compile(steps_max=3)
        with pytest.raises(limpet.errors.StepLimitReached):
            await graph.invoke(Rounds(until=8), invocation_id="i")
        record = await checkpointer.load("i")
        assert (record.status, record.state["log"]) == ("running", [0, 1, 2])
        assert record.cursor[0].node == "go"
        final = await graph.invoke(resume_invocation="i", steps_max=5)
        assert final.log == list(range(8))


async def test_each_call_counts_from_zero() -> None:
    """A run that is resumed under the same limit gets as many nodes again."""
    checkpointer = PlainCheckpointer()
    graph = loop().with_checkpointer(checkpointer).compile(steps_max=3)
    with pytest.raises(limpet.errors.StepLimitReached):
        await graph.invoke(Rounds(until=6), invocation_id="i")
    assert (await graph.invoke(resume_invocation="i")).log == list(range(6))


class Outer(State):
    until: int = 0
    log: Annotated[list[int], append] = []
    logs: Annotated[list[list[int]], append] = []


def nested(inner: Any, *middleware: Any) -> GraphBuilder[Outer]:
    mapping = ExplicitMapping({"until": "until"}, {"log": "log"})
    builder = GraphBuilder(Outer).add_subgraph_node("sub", inner, mapping, middleware=middleware)
    return builder.add_edge("sub", END).set_entry("sub")


async def test_a_subgraph_has_a_limit_of_its_own() -> None:
    """It is resumed inside; middleware around it does not try an endless loop again."""
    checkpointer = InMemoryCheckpointer()
    tries: list[Any] = []
    retry = RetryMiddleware(on_retry=lambda *about: tries.append(about))
    built = nested(loop().compile(steps_max=4), retry).with_checkpointer(checkpointer)
    graph = built.compile(steps_max=1)
    with pytest.raises(limpet.errors.StepLimitReached) as info:
        await graph.invoke(Outer(until=9), invocation_id="i")
    assert (info.value.node, info.value.steps_max, tries) == ("go", 4, [])
    assert (await graph.invoke(resume_invocation="i", steps_max=5)).log == list(range(9))


async def test_instances_of_a_fan_out_count_for_themselves() -> None:
    """A wide fan-out is not a long run: each instance has the whole limit."""
    builder = GraphBuilder(Outer).add_fan_out_node(
        "each",
        subgraph=loop().compile(steps_max=3),
        count=5,
        inputs={"until": "until"},
        collect_field="log",
        target_field="logs",
    )
    graph = builder.add_edge("each", END).set_entry("each").compile(steps_max=1)
    assert (await graph.invoke(Outer(until=3))).logs == [[0, 1, 2]] * 5
    with pytest.raises(limpet.errors.NodeException) as info:
        await graph.invoke(Outer(until=4))
    assert isinstance(info.value.__cause__, limpet.errors.StepLimitReached)


async def test_a_harness_does_not_advise_to_try_again() -> None:
    """The next try would run as long, and cost as much."""
    graph = (
        loop().with_session_store(InMemorySessionStore(), session_state=Rounds).compile(steps_max=2)
    )
    outcome = await Harness(graph).handle({}, session_id="s")
    assert (outcome.kind, outcome.category) == ("errored", "step_limit_reached")
    assert outcome.bucket == "user_correctable"


@pytest.mark.arguments
@pytest.mark.parametrize("given", [0, -1, 1.5, "10", True])
async def test_a_limit_is_a_number_of_nodes(given: Any) -> None:
    """Anything else is refused, and nothing runs."""
    with pytest.raises(limpet.errors.GraphInvalid, match="steps_max"):
        loop().compile(steps_max=given)
    ran: list[int] = []

    async def runs(s: Rounds) -> dict[str, Any]:
        ran.append(1)
        return {}

    with pytest.raises(limpet.errors.GraphMisused, match="steps_max"):
        await line(Rounds, runs=runs).compile().invoke(steps_max=given)
    assert ran == []
