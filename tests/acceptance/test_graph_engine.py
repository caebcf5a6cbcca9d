"""The graph engine: routing, errors, subgraphs, context, observers, middleware."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from uuid import UUID

import pytest

import limpet
from limpet.graph import (
    END,
    DeclaredSameName,
    ExplicitMapping,
    FailureIsolationMiddleware,
    GraphBuilder,
    Message,
    RetryMiddleware,
    State,
    Timing,
    TimingMiddleware,
    append,
    current_correlation_id,
    current_invocation_id,
    current_metadata,
    current_node,
    current_session_id,
    full_jitter,
    suspend,
)
from tests.support.graphs import Heard, gives, line


class Count(State):
    n: int = 0
    seen: Annotated[list[str], append] = []


async def up(s: Count) -> dict[str, Any]:
    return {"n": s.n + 1, "seen": [f"up {s.n}"]}


def loop(until: int) -> GraphBuilder[Count]:
    return (
        GraphBuilder(Count)
        .add_node("up", up)
        .add_conditional_edge("up", lambda s: "up" if s.n < until else END)
        .set_entry("up")
    )


# --- running --------------------------------------------------------------------------------------


async def test_nodes_run_in_order_and_their_updates_are_folded_in() -> None:
    """The final state has what every node returned, through the reducers."""
    graph = line(Count, a=gives(n=1, seen=["a"]), b=gives(seen=["b"]), c=gives(n=3)).compile()
    final = await graph.invoke(Count(seen=["start"]))
    assert final == Count(n=3, seen=["start", "a", "b"])


async def test_a_conditional_edge_sees_the_merged_state_and_may_lead_back() -> None:
    """A cycle runs until its edge ends it."""
    final = await loop(1_000).compile().invoke()
    assert final.n == len(final.seen) == 1_000


@pytest.mark.parametrize("initial", [None, {"n": 2}, Count(n=2)])
async def test_the_initial_state_is_a_state_a_dict_or_the_defaults(initial: Any) -> None:
    """All three are validated alike."""
    final = await line(Count, up=up).compile().invoke(initial)
    assert final.n == (1 if initial is None else 3)


class Other(State):
    n: int = 0


@pytest.mark.parametrize(
    "initial", [{"n": "x"}, {"what": 1}, 5, Other(), Count.model_construct(n="x", seen=[])]
)
async def test_an_invalid_initial_state_runs_nothing(initial: Any) -> None:
    """It is refused with its category before the first node."""
    ran: list[int] = []

    async def node(s: Any) -> dict[str, Any]:
        ran.append(1)
        return {}

    with pytest.raises(limpet.errors.StateValidationError) as info:
        await line(Count, node=node).compile().invoke(initial)
    assert info.value.category == "state_validation_error"
    assert ran == []


async def test_an_invocation_in_a_node_has_ids_of_its_own() -> None:
    """A graph that a node invokes leaves the ids of the outer one as they were."""
    ids: list[str | None] = []

    async def note(s: Count) -> dict[str, Any]:
        ids.append(current_invocation_id())
        return {}

    inner = line(Count, note=note).compile()

    async def outer(s: Count) -> dict[str, Any]:
        ids.append(current_invocation_id())
        await inner.invoke(invocation_id="inner")
        ids.append(current_invocation_id())
        return {}

    await line(Count, outer=outer).compile().invoke(invocation_id="outer")
    assert ids == ["outer", "inner", "outer"]
    assert current_invocation_id() is None


async def test_the_ids_and_metadata_are_there_in_nodes_and_gone_afterwards() -> None:
    """Code in a node knows its invocation; code outside has none."""
    found: list[Any] = []

    async def node(s: Count) -> dict[str, Any]:
        found.append((current_session_id(), current_correlation_id(), current_node()))
        found.append(dict(current_metadata()))
        return {}

    graph = line(Count, node=node).compile()
    await graph.invoke(session_id="s", correlation_id="c", metadata={"tenant": "t"})
    await graph.invoke()
    assert found[:2] == [("s", "c", "node"), {"tenant": "t"}]
    assert found[2][0] is None
    assert found[2][1] is not None
    assert found[3] == {}
    assert (current_session_id(), current_correlation_id(), current_node()) == (None, None, None)
    assert current_metadata() == {}


async def test_ids_that_the_caller_leaves_out_are_made_except_for_the_session() -> None:
    """One random UUID names the invocation and its correlation; no session is ever made up."""
    found: list[Any] = []

    async def node(s: Count) -> dict[str, Any]:
        found.append((current_invocation_id(), current_correlation_id(), current_session_id()))
        return {}

    graph = line(Count, node=node).compile()
    for _ in range(2):
        await graph.invoke()
    await graph.invoke(invocation_id="mine", correlation_id="job", session_id="s")
    await graph.invoke(invocation_id="mine")
    await graph.invoke(correlation_id="job")
    made = [UUID(id) for id in (found[0][0], found[1][0], found[3][1], found[4][0])]
    assert [id.version for id in made] == [4] * 4
    assert len(set(made)) == 4
    assert [ids[1:] for ids in found[:2]] == [(ids[0], None) for ids in found[:2]]
    assert found[2] == ("mine", "job", "s")
    assert (found[3][0], found[4][1]) == ("mine", "job")


@pytest.mark.parametrize("name", ["session_id", "correlation_id", "invocation_id"])
@pytest.mark.parametrize("value", ["", "  ", 3, b"x"])
async def test_an_id_is_a_text_that_is_not_empty(name: str, value: Any) -> None:
    """Anything else is refused before anything is loaded."""
    with pytest.raises(limpet.errors.GraphMisused, match=name):
        await line(Count, up=up).compile().invoke(**{name: value})


@pytest.mark.parametrize(
    "wrong", [{"metadata": [1]}, {"observers": 3}, {"observers": [3]}, {"observers": ["text"]}]
)
async def test_metadata_is_a_dict_and_observers_can_be_called(wrong: dict[str, Any]) -> None:
    """Refused before anything runs: an observer that is none would only be a line in the log."""
    with pytest.raises(limpet.errors.GraphMisused, match=r"metadata|observer"):
        await line(Count, up=up).compile().invoke(**wrong)


# --- errors ---------------------------------------------------------------------------------------


async def test_a_node_that_raises_is_a_node_exception_with_cause_and_state() -> None:
    """The error has the state before the node, to go on from."""

    async def bad(s: Count) -> dict[str, Any]:
        raise RuntimeError("down")

    with pytest.raises(limpet.errors.NodeException, match="down") as info:
        await line(Count, up=up, bad=bad).compile().invoke()
    assert info.value.category == "node_exception"
    assert info.value.node == "bad"
    assert info.value.recoverable_state == Count(n=1, seen=["up 0"])
    assert isinstance(info.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("update", "category"),
    [
        (None, "state_validation_error"),
        ([1], "state_validation_error"),
        ({"what": 1}, "state_validation_error"),
        ({"n": "x"}, "state_validation_error"),
        ({"seen": "x"}, "reducer_error"),
    ],
)
async def test_a_node_that_returns_nonsense_stops_the_run(update: Any, category: str) -> None:
    """Each has its category, and the state before the node."""

    async def bad(s: Count) -> Any:
        return update

    with pytest.raises(limpet.errors.GraphRunError) as info:
        await line(Count, up=up, bad=bad).compile().invoke()
    assert info.value.category == category
    assert info.value.recoverable_state == Count(n=1, seen=["up 0"])


@pytest.mark.parametrize("target", ["nowhere", None, 3, ""])
async def test_an_edge_to_nowhere_is_a_routing_error(target: Any) -> None:
    """It names the target and has the merged state."""
    graph = (
        GraphBuilder(Count)
        .add_node("up", up)
        .add_conditional_edge("up", lambda s: target)
        .set_entry("up")
        .compile()
    )
    with pytest.raises(limpet.errors.RoutingError) as info:
        await graph.invoke()
    assert info.value.category == "routing_error"
    assert info.value.recoverable_state.n == 1


@pytest.mark.parametrize(("target", "declared"), [(END, ["other"]), ("other", ["up", END])])
async def test_an_edge_leads_to_its_declared_targets_only(target: Any, declared: list[Any]) -> None:
    """Drawings and the search for unreachable nodes rely on them. END is one if it is listed."""
    graph = (
        GraphBuilder(Count)
        .add_node("start", up)
        .add_node("up", up)
        .add_node("other", up)
        .add_conditional_edge("start", lambda s: "up", targets=["up", "other"])
        .add_conditional_edge("up", lambda s: target, targets=declared)
        .add_edge("other", END)
        .set_entry("start")
        .compile()
    )
    with pytest.raises(limpet.errors.RoutingError, match="declared") as info:
        await graph.invoke()
    assert info.value.target == repr(target)
    assert info.value.recoverable_state.n == 2


async def test_an_edge_that_raises_is_an_edge_exception() -> None:
    """Its cause is kept."""
    graph = (
        GraphBuilder(Count)
        .add_node("up", up)
        .add_conditional_edge("up", lambda s: {}["x"])
        .set_entry("up")
        .compile()
    )
    with pytest.raises(limpet.errors.EdgeException) as info:
        await graph.invoke()
    assert info.value.category == "edge_exception"
    assert isinstance(info.value.__cause__, KeyError)


async def test_a_cancelled_run_is_cancelled() -> None:
    """Cancellation passes through retry and isolation and is not turned into an error."""
    inside = asyncio.Event()

    async def wait(s: Count) -> dict[str, Any]:
        inside.set()
        await asyncio.Event().wait()
        return {}

    graph = (
        line(Count, wait=wait)
        .add_middleware(FailureIsolationMiddleware(degraded_update={}))
        .add_middleware(RetryMiddleware())
        .compile()
    )
    heard = Heard()
    task = asyncio.ensure_future(graph.invoke(observers=[heard]))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await graph.drain()
    assert heard.phases == [("wait", "started"), ("wait", "completed")]
    assert isinstance(heard.events[1].error, asyncio.CancelledError)
    assert current_invocation_id() is None


async def test_a_run_without_waiting_can_be_cancelled() -> None:
    """A cycle of nodes that never wait lets others on the event loop have their turn."""
    task = asyncio.ensure_future(loop(10**9).compile().invoke())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- subgraphs ------------------------------------------------------------------------------------


class Inner(State):
    text: str = "default"
    messages: list[Message] = []
    own: int = 0


class Outer(State):
    text: str = ""
    topic: str = ""
    messages: Annotated[list[Message], append] = []


async def shout(s: Inner) -> dict[str, Any]:
    return {"text": s.text.upper(), "messages": [Message(role="a", content=s.text)], "own": 1}


def around(*projection: Any, **how: Any) -> GraphBuilder[Outer]:
    inner = line(Inner, shout=shout).compile()
    return (
        GraphBuilder(Outer)
        .add_subgraph_node("sub", inner, *projection, **how)
        .add_edge("sub", END)
        .set_entry("sub")
    )


@pytest.mark.parametrize(
    ("how", "text", "topic", "messages"),
    [
        ({}, "DEFAULT", "t", ["old", "default"]),
        ({"inputs": {"text": "topic"}}, "T", "t", ["old", "t"]),
        ({"outputs": {"topic": "text"}}, "given", "DEFAULT", ["old"]),
        ({"inputs": {"text": "topic"}, "outputs": {"topic": "text"}}, "given", "T", ["old"]),
        ({"outputs": {}}, "given", "t", ["old"]),
        ({"projection": ExplicitMapping(inputs={"text": "topic"})}, "T", "t", ["old", "t"]),
        (
            {"projection": DeclaredSameName(in_fields=["text"], out_fields=["text"])},
            "GIVEN",
            "t",
            ["old"],
        ),
        ({"projection": DeclaredSameName()}, "given", "t", ["old"]),
    ],
)
async def test_fields_cross_into_a_subgraph_as_declared(
    how: dict[str, Any], text: str, topic: str, messages: list[str]
) -> None:
    """By default nothing goes in and fields of the same name come out, through the reducers."""
    start = Outer(text="given", topic="t", messages=[Message(role="u", content="old")])
    final = await around(**how).compile().invoke(start)
    assert (final.text, final.topic) == (text, topic)
    assert [message.content for message in final.messages] == messages


async def test_an_error_in_a_subgraph_names_its_node() -> None:
    """The caller learns which inner node failed, and why."""

    async def bad(s: Inner) -> dict[str, Any]:
        raise RuntimeError("inside")

    inner = line(Inner, bad=bad).compile()
    graph = (
        GraphBuilder(Outer)
        .add_subgraph_node("sub", inner)
        .add_edge("sub", END)
        .set_entry("sub")
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException, match="inside") as info:
        await graph.invoke()
    assert info.value.node == "bad"


async def test_middleware_of_a_graph_does_not_reach_into_subgraphs() -> None:
    """It stands around the subgraph's node only; the inner graph has its own."""
    seen: list[tuple[str, str | None]] = []

    def noting(name: str) -> Any:
        async def layer(state: Any, next: Any) -> Any:
            seen.append((name, current_node()))
            return await next(state)

        return layer

    inner = line(Inner, shout=shout).add_middleware(noting("inner")).compile()
    graph = (
        GraphBuilder(Outer)
        .add_subgraph_node("sub", inner, middleware=[noting("node")])
        .add_edge("sub", END)
        .set_entry("sub")
        .add_middleware(noting("graph"))
        .compile()
    )
    await graph.invoke()
    assert seen == [("graph", "sub"), ("node", "sub"), ("inner", "shout")]


# --- middleware -----------------------------------------------------------------------------------


class Flaky:
    """A node that fails a number of times before it succeeds."""

    def __init__(self, times: int, error: type[Exception] = ConnectionError) -> None:
        self.left, self.error = times, error

    async def __call__(self, s: Count) -> dict[str, Any]:
        if self.left:
            self.left -= 1
            raise self.error("not yet")
        return {"n": 7}


async def test_a_retry_runs_the_node_until_it_succeeds() -> None:
    """Each wait is asked for with the number of the attempt before it."""
    waits: list[float] = []
    retried: list[int] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    retry = RetryMiddleware(
        max_attempts=4,
        backoff=float,
        sleep=sleep,
        on_retry=lambda error, attempt: retried.append(attempt),
    )
    graph = line(Count, flaky=Flaky(3)).add_middleware(retry).compile()
    heard = Heard()
    final = await graph.invoke(observers=[heard])
    await graph.drain()
    assert final.n == 7
    assert waits == [0.0, 1.0, 2.0]
    assert retried == [0, 1, 2]
    ends = [event for event in heard.events if event.phase == "completed"]
    assert [event.attempt_index for event in ends] == [0, 1, 2, 3]
    assert [event.error is None for event in ends] == [False, False, False, True]
    assert len({event.step for event in heard.events}) == 1


async def test_a_retry_gives_up_after_its_attempts_or_when_told_so() -> None:
    """The last error is the node's."""

    async def sleep(seconds: float) -> None:
        pass

    node = Flaky(5)
    graph = line(Count, node=node).add_middleware(RetryMiddleware(sleep=sleep)).compile()
    with pytest.raises(limpet.errors.NodeException, match="not yet"):
        await graph.invoke()
    assert node.left == 2
    node = Flaky(5, ValueError)
    picky = RetryMiddleware(sleep=sleep, classifier=lambda e, s: not isinstance(e, ValueError))
    with pytest.raises(limpet.errors.NodeException):
        await line(Count, node=node).add_middleware(picky).compile().invoke()
    assert node.left == 4


def test_jitter_is_full_and_bounded() -> None:
    """Waits are spread between nothing and a bound that doubles up to the cap."""
    backoff = full_jitter(base=1.0, cap=4.0)
    for attempt, bound in ((0, 1.0), (1, 2.0), (2, 4.0), (9, 4.0)):
        waits = [backoff(attempt) for _ in range(200)]
        assert all(0.0 <= wait <= bound for wait in waits)
        assert max(waits) - min(waits) > bound / 2


async def test_timing_measures_success_and_failure() -> None:
    """Every call is reported with its outcome, by the clock it was given."""
    ticks = iter([1.0, 1.5, 2.0, 4.0])
    said: list[Timing] = []
    timing = TimingMiddleware(on_complete=said.append, clock=lambda: next(ticks))
    graph = line(Count, flaky=Flaky(1)).add_middleware(timing).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke()
    await graph.invoke()
    assert [(t.node_name, t.duration_ms, t.outcome) for t in said] == [
        ("flaky", 500.0, "exception"),
        ("flaky", 2000.0, "success"),
    ]


async def test_isolation_gives_a_degraded_update() -> None:
    """The run goes on with what was declared, if the error is one to be caught."""
    caught: list[Exception] = []
    isolated = FailureIsolationMiddleware(
        degraded_update=lambda s: {"n": -1}, on_caught=caught.append
    )
    graph = line(Count, bad=Flaky(1), up=up).add_middleware(isolated).compile()
    assert (await graph.invoke()).n == 0
    assert len(caught) == 1
    picky = FailureIsolationMiddleware(
        degraded_update={"n": -1}, predicate=lambda error: isinstance(error, ValueError)
    )
    with pytest.raises(limpet.errors.NodeException):
        await line(Count, bad=Flaky(1)).add_middleware(picky).compile().invoke()
    named = FailureIsolationMiddleware(degraded_update={"n": -1}, catch=["other"])
    with pytest.raises(limpet.errors.NodeException):
        await line(Count, bad=Flaky(1)).add_middleware(named).compile().invoke()


async def test_middleware_that_raises_is_an_error_of_its_node() -> None:
    """Nothing of the node is applied, even if the node itself had succeeded."""

    async def broken(state: Any, next: Any) -> Any:
        await next(state)
        raise RuntimeError("in middleware")

    with pytest.raises(limpet.errors.NodeException, match="in middleware") as info:
        await line(Count, up=up).add_middleware(broken).compile().invoke()
    assert info.value.recoverable_state == Count()


# --- observers ------------------------------------------------------------------------------------


async def test_each_attempt_is_announced_and_ended_once_in_order() -> None:
    """Completed comes after the edge, with the states before and after."""
    graph = line(Count, a=up, b=up).compile()
    heard, attached = Heard(), Heard()
    order: list[str] = []
    graph.attach_observer(lambda event: order.append("graph"))
    graph.attach_observer(attached)
    final = await graph.invoke(observers=[heard, lambda event: order.append("invocation")])
    drained = await graph.drain()
    assert (drained.undelivered_count, drained.timeout_reached) == (0, False)
    assert heard.phases == [(name, phase) for name in "ab" for phase in ("started", "completed")]
    assert order == ["graph", "invocation"] * 4
    assert attached.phases == heard.phases
    first, last = heard.events[1], heard.events[-1]
    assert (first.pre_state, first.post_state.n, first.error) == (Count(), 1, None)
    assert last.post_state == final
    assert [event.step for event in heard.events] == [0, 0, 1, 1]


async def test_an_edge_that_fails_ends_the_attempt_with_its_error() -> None:
    """The completed event of the node has the edge's error and no state after."""
    graph = (
        GraphBuilder(Count)
        .add_node("up", up)
        .add_conditional_edge("up", lambda s: "nowhere")
        .set_entry("up")
        .compile()
    )
    heard = Heard()
    with pytest.raises(limpet.errors.RoutingError):
        await graph.invoke(observers=[heard])
    await graph.drain()
    assert heard.phases == [("up", "started"), ("up", "completed")]
    assert isinstance(heard.events[1].error, limpet.errors.RoutingError)
    assert heard.events[1].post_state is None


async def test_events_of_a_subgraph_have_their_namespace_and_parents() -> None:
    """Observers of the outer graph hear of inner nodes, before those of the inner graph.

    The node that is a subgraph has no events and no number of its own."""
    inner = line(Inner, shout=shout).compile()
    graph = (
        GraphBuilder(Outer)
        .add_node("before", gives())
        .add_subgraph_node("sub", inner, inputs={"text": "topic"})
        .add_node("after", gives())
        .add_edge("before", "sub")
        .add_edge("sub", "after")
        .add_edge("after", END)
        .set_entry("before")
        .compile()
    )
    order: list[tuple[str, str]] = []
    graph.attach_observer(lambda event: order.append(("outer", event.node_name)))
    inner.attach_observer(lambda event: order.append(("inner", event.node_name)))
    heard = Heard()
    start = Outer(topic="t")
    await graph.invoke(start, observers=[heard])
    await graph.drain()
    assert order == [
        *[("outer", "before")] * 2,
        *[("outer", "shout"), ("inner", "shout")] * 2,
        *[("outer", "after")] * 2,
    ]
    assert [event.step for event in heard.events] == [0, 0, 1, 1, 2, 2]
    inside = heard.events[2]
    assert inside.namespace == ("sub", "shout")
    assert inside.parent_states == (start,)
    assert inside.pre_state == Inner(text="t")


async def test_an_observer_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The run and the other observers go on; what is logged says where, and quotes nothing."""

    def broken(event: Any) -> None:
        raise RuntimeError(f"secret {event.pre_state}")

    heard = Heard()
    graph = line(Count, up=up).compile()
    final = await graph.invoke(observers=[broken, heard])
    await graph.drain()
    assert final.n == 1
    assert len(heard.events) == 2
    place = "error=RuntimeError at=test_graph_engine.py:"
    assert f"observer failed: node=up phase=started {place}" in caplog.text
    assert "secret" not in caplog.text


async def test_an_observer_whose_own_task_was_cancelled_harms_nobody() -> None:
    """It waited for something that was cancelled; the delivery was not."""

    async def broken(event: Any) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    heard = Heard()
    graph = line(Count, up=up).compile()
    await graph.invoke(observers=[broken, heard])
    drained = await graph.drain()
    assert (drained.undelivered_count, len(heard.events)) == (0, 2)


async def test_an_observer_that_tries_to_suspend_harms_nobody() -> None:
    """It is not a node: the run goes on, and whoever comes after it is told everything."""

    told = asyncio.Event()

    async def suspends(event: Any) -> None:
        told.set()
        await suspend("o")

    async def node(s: Count) -> dict[str, Any]:
        await told.wait()  # it is in its body when the observer runs
        return {}

    heard = Heard()
    graph = line(Count, node=node).compile()
    await graph.invoke(observers=[suspends, heard])
    await graph.drain()
    assert heard.phases == [("node", "started"), ("node", "completed")]


async def test_the_run_does_not_wait_for_observers_and_drain_has_a_bound() -> None:
    """A slow observer delays nothing; drain says what it left."""
    go = asyncio.Event()

    async def slow(event: Any) -> None:
        await go.wait()

    graph = line(Count, a=up, b=up).compile()
    assert (await graph.invoke(observers=[slow])).n == 2
    drained = await graph.drain(timeout=0.0)
    assert drained.timeout_reached
    assert drained.undelivered_count == 4
    go.set()
    assert not (await graph.drain()).timeout_reached


async def test_observers_know_the_session_of_the_invocation() -> None:
    """The ids are readable where events are delivered, and differ between invocations."""
    found: list[tuple[str | None, str | None]] = []
    graph = line(Count, up=up).compile()
    graph.attach_observer(
        lambda event: found.append((current_session_id(), current_invocation_id()))
    )
    await asyncio.gather(
        graph.invoke(session_id="s1", invocation_id="i1"),
        graph.invoke(session_id="s2", invocation_id="i2"),
    )
    await graph.drain()
    assert sorted(found, key=str) == [("s1", "i1")] * 2 + [("s2", "i2")] * 2


async def test_an_event_names_the_session_of_its_invocation() -> None:
    """Also where it is read later, outside of the invocation; None without a session."""
    heard = Heard()
    graph = line(Count, up=up).compile()
    graph.attach_observer(heard)
    await graph.invoke(session_id="s1")
    await graph.invoke()
    await graph.drain()
    assert [event.session_id for event in heard.events] == ["s1", "s1", None, None]


async def test_an_event_of_a_failure_has_the_error_that_is_raised() -> None:
    """With its category, of each attempt, and no state after."""

    async def fails(s: Count) -> dict[str, Any]:
        raise ConnectionError("down")

    heard = Heard()
    retry = RetryMiddleware(max_attempts=2, backoff=lambda attempt: 0)
    graph = line(Count, fails=fails).add_middleware(retry).compile()
    with pytest.raises(limpet.errors.NodeException) as info:
        await graph.invoke(Count(n=1), observers=[heard])
    assert (info.value.node_name, info.value.recoverable_state) == ("fails", Count(n=1))
    await graph.drain()
    ends = [event for event in heard.events if event.phase == "completed"]
    found: list[Any] = [event.error for event in ends]
    assert [error.category for error in found] == ["node_exception"] * 2
    assert all(isinstance(error.__cause__, ConnectionError) for error in found)
    assert found[1] is info.value
    assert [(event.attempt_index, event.post_state) for event in ends] == [(0, None), (1, None)]


async def test_an_observer_gets_the_phases_that_it_asked_for() -> None:
    """All of them by default; a wrong set is refused when it is attached."""
    graph = line(Count, a=up, b=up).compile()
    heard = {name: Heard() for name in ("all", "started", "completed", "suspended")}
    graph.attach_observer(heard["all"])
    for phase in ("started", "completed", "suspended"):
        graph.attach_observer(heard[phase], phases={phase})  # type: ignore[arg-type]
    await graph.invoke()
    await graph.drain()
    assert len(heard["all"].events) == 4
    assert heard["started"].phases == [("a", "started"), ("b", "started")]
    assert heard["completed"].phases == [("a", "completed"), ("b", "completed")]
    assert heard["suspended"].phases == []
    for wrong in (set(), {"started", "ended"}, "started", 3):
        with pytest.raises(limpet.errors.GraphMisused, match="'started', 'completed'"):
            graph.attach_observer(Heard(), phases=wrong)  # type: ignore[arg-type]
    graph.detach_observer(heard["started"])
    await graph.invoke()
    await graph.drain()
    assert (len(heard["all"].events), len(heard["started"].events)) == (8, 2)


async def test_what_a_drain_left_is_not_delivered_later() -> None:
    """The next invocation hears its own events only, and drains cleanly."""
    slow, found = True, []

    async def observer(event: Any) -> None:
        if slow:
            await asyncio.Event().wait()
        found.append((current_invocation_id(), event.node_name, event.phase))

    graph = line(Count, a=up, b=up).compile()
    graph.attach_observer(observer)
    await graph.invoke(invocation_id="first")
    left = await graph.drain(timeout=0.0)
    assert (left.timeout_reached, left.undelivered_count) == (True, 4)
    slow = False
    await graph.invoke(invocation_id="second")
    drained = await graph.drain(timeout=60)
    assert (drained.timeout_reached, drained.undelivered_count) == (False, 0)
    phases = [(name, phase) for name in "ab" for phase in ("started", "completed")]
    assert found == [("second", *one) for one in phases]


async def test_events_that_come_after_a_drain_was_given_up_are_delivered() -> None:
    """A run that goes on has lost what was queued, not its observers."""
    stuck, heard = asyncio.Event(), Heard()

    async def busy(event: Any) -> None:
        if event.node_name == "a":
            stuck.set()
            await asyncio.Event().wait()

    async def gives_up(s: Count) -> dict[str, Any]:
        await stuck.wait()
        assert (await graph.drain(timeout=0.0)).undelivered_count == 3
        return {}

    graph = line(Count, a=up, b=gives_up).compile()
    await graph.invoke(observers=[busy, heard])
    assert not (await graph.drain()).timeout_reached
    assert heard.phases == [("b", "completed")]


async def test_a_node_waits_for_the_events_of_its_invocation_up_to_then() -> None:
    """Its own end is not among them, and events of another invocation do not hold it up."""
    gate, found = asyncio.Event(), []
    counts: dict[str, list[tuple[str, str]]] = {}

    async def observer(event: Any) -> None:
        if current_invocation_id() == "other":
            await gate.wait()
        else:
            await asyncio.sleep(0)
        found.append((current_invocation_id(), event.node_name, event.phase))

    async def waits(s: Count) -> dict[str, Any]:
        id = current_invocation_id() or ""
        if id != "other":
            drained = await graph.drain_events_for(id, timeout=60)
            assert (drained.timeout_reached, drained.undelivered_count) == (False, 0)
        counts[id] = [(name, phase) for by, name, phase in found if by == id]
        return {}

    graph = line(Count, a=up, b=waits).compile()
    graph.attach_observer(observer)
    await graph.invoke(invocation_id="other")
    await graph.invoke(invocation_id="one")
    assert counts["one"] == [("a", "started"), ("a", "completed"), ("b", "started")]
    late = await graph.drain_events_for("other", timeout=0.0)
    assert (late.timeout_reached, late.undelivered_count) == (True, 4)
    gate.set()
    assert not (await graph.drain()).timeout_reached  # nothing was cancelled: all is delivered
    assert len(found) == 8
    again = await graph.drain_events_for("other")
    assert (again.timeout_reached, again.undelivered_count) == (False, 0)


async def test_an_observer_does_not_wait_for_itself() -> None:
    """It would never end; it is refused, and logged as any failure of an observer is."""
    refused: list[BaseException] = []

    async def observer(event: Any) -> None:
        for call in (graph.drain(), graph.drain_events_for("i")):
            try:
                await call
            except limpet.errors.GraphMisused as error:
                refused.append(error)

    graph = line(Count, a=up).compile()
    await graph.invoke(observers=[observer], invocation_id="i")
    assert not (await graph.drain()).timeout_reached
    assert len(refused) == 4


async def test_a_waiting_node_learns_what_a_drain_dropped() -> None:
    """The drain of all gave up; who waits for one invocation gets the count."""
    stuck = asyncio.Event()

    async def busy(event: Any) -> None:
        stuck.set()
        await asyncio.Event().wait()

    graph = line(Count, a=up).compile()
    await graph.invoke(observers=[busy], invocation_id="i")
    waiting = asyncio.ensure_future(graph.drain_events_for("i"))
    await stuck.wait()
    await graph.drain(timeout=0.0)
    drained = await waiting
    assert (drained.timeout_reached, drained.undelivered_count) == (False, 2)


async def test_a_detached_observer_hears_nothing_more() -> None:
    """Attached observers can be taken away again."""
    heard = Heard()
    graph = line(Count, up=up).compile()
    graph.attach_observer(heard)
    graph.detach_observer(heard)
    await graph.invoke()
    await graph.drain()
    assert heard.events == []
    with pytest.raises(limpet.errors.GraphMisused):
        graph.attach_observer(3)  # type: ignore[arg-type]


# --- drawing --------------------------------------------------------------------------------------


def test_a_graph_is_drawn_as_mermaid() -> None:
    """Every node, its kind and its edges; a choice is dotted."""
    inner = line(Inner, shout=shout).compile()
    graph = (
        GraphBuilder(Outer)
        .add_node("plan", gives())
        .add_subgraph_node('say "it"', inner)
        .add_parallel_branches_node("both", branches={"l": gives(), "r": gives()})
        .add_conditional_edge("plan", lambda s: END, targets=['say "it"', "both", END])
        .add_edge('say "it"', "both")
        .add_edge("both", END)
        .set_entry("plan")
        .compile()
    )
    assert graph.draw().splitlines() == [
        "flowchart TD",
        "    start([start])",
        "    finish([END])",
        '    n0["plan"]',
        '    n1[["say &quot;it&quot;"]]',
        '    n2{{"both: l, r"}}',
        "    start --> n0",
        "    n0 -.-> n1",
        "    n0 -.-> n2",
        "    n0 -.-> finish",
        "    n1 --> n2",
        "    n2 --> finish",
    ]
