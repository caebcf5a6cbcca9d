"""Fan-outs and parallel branches: order, failure, and resume exactly once for each instance."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

import limpet
from limpet.graph import (
    END,
    Branch,
    FailureIsolationMiddleware,
    GraphBuilder,
    InMemoryCheckpointer,
    InMemorySessionStore,
    LimpetCheckpointer,
    RetryMiddleware,
    State,
    append,
    concat_flatten,
    current_invocation_id,
    current_session_id,
    merge,
    save_session,
)
from tests.support.graphs import CheckedCheckpointer, Heard, PlainCheckpointer, gives, line


class One(State):
    x: int = 0
    factor: int = 1
    y: int = 0
    trail: list[str] = []


class Many(State):
    xs: list[int] = []
    factor: int = 10
    ys: list[int] = []
    trails: Annotated[list[str], concat_flatten] = []
    failed: list[dict[str, Any]] = []
    total: int = -1


async def multiply(s: One) -> dict[str, Any]:
    return {"y": s.x * s.factor, "trail": [f"{s.x}"]}


def fan_out(subgraph: Any = None, **how: Any) -> GraphBuilder[Many]:
    given = {
        "subgraph": subgraph or line(One, multiply=multiply).compile(),
        "collect_field": "y",
        "target_field": "ys",
        "inputs": {"factor": "factor"},
        "items_field": "xs",
        "item_field": "x",
        "count_field": "total",
    } | how
    made = GraphBuilder(Many).add_fan_out_node("each", **given)
    return made.add_edge("each", END).set_entry("each")


@pytest.fixture(params=["changes", "whole"])
def checkpointer(request: pytest.FixtureRequest) -> Any:
    """One that takes changes and checks each, and one that knows whole records only."""
    return CheckedCheckpointer() if request.param == "changes" else PlainCheckpointer()


# --- fan-out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2, None, lambda s: 3])
async def test_results_stand_in_the_order_of_the_items(concurrency: Any) -> None:
    """However the instances overtake each other."""

    async def slow_first(s: One) -> dict[str, Any]:
        for _ in range(10 - s.x):
            await asyncio.sleep(0)
        return {"y": s.x * s.factor, "trail": [str(s.x)]}

    graph = fan_out(
        line(One, a=slow_first).compile(),
        concurrency=concurrency,
        extra_outputs={"trails": "trail"},
    ).compile()
    final = await graph.invoke(Many(xs=[3, 1, 2]))
    assert final.ys == [30, 10, 20]
    assert final.trails == ["3", "1", "2"]
    assert final.total == 3


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (10, 6), (None, 6)])
async def test_no_more_instances_run_at_a_time_than_allowed(concurrency: Any, most: int) -> None:
    """The bound is reached and never passed."""
    now, peak = 0, 0

    async def busy(s: One) -> dict[str, Any]:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        now -= 1
        return {}

    await (
        fan_out(line(One, a=busy).compile(), concurrency=concurrency)
        .compile()
        .invoke(Many(xs=list(range(6))))
    )
    assert peak == most


@pytest.mark.parametrize("count", [4, lambda s: s.factor - 6])
async def test_a_count_runs_as_many_instances(count: Any) -> None:
    """Without items each instance starts alike."""
    graph = fan_out(items_field=None, item_field=None, count=count).compile()
    final = await graph.invoke(Many())
    assert final.ys == [0, 0, 0, 0]
    assert final.total == 4


@pytest.mark.parametrize(
    "how",
    [
        {"items_field": None, "item_field": None, "count": lambda s: -1},
        {"items_field": None, "item_field": None, "count": lambda s: "2"},
        {"concurrency": lambda s: 0},
    ],
)
async def test_a_function_that_gives_a_wrong_number_is_an_error_of_the_node(how: Any) -> None:
    """It is found when the node runs."""
    with pytest.raises(limpet.errors.NodeException, match="number from"):
        await fan_out(**how).compile().invoke(Many(xs=[1]))


async def test_nothing_to_run_raises_or_does_nothing_as_asked() -> None:
    """The default is to raise."""
    with pytest.raises(limpet.errors.FanOutEmpty) as info:
        await fan_out().compile().invoke(Many())
    assert info.value.category == "fan_out_empty"
    assert await fan_out(on_empty="noop").compile().invoke(Many()) == Many(ys=[], total=0)


async def _fails_at_two(s: One) -> dict[str, Any]:
    if s.x == 2:
        raise ValueError("two")
    return {"y": s.x}


async def test_fail_fast_cancels_the_others_and_keeps_the_entry_state() -> None:
    """The error is the node's; its cause is the instance's."""
    cancelled = 0

    async def node(s: One) -> dict[str, Any]:
        nonlocal cancelled
        if s.x != 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
        return await _fails_at_two(s)

    start = Many(xs=[1, 2, 3])
    with pytest.raises(limpet.errors.NodeException, match="two") as info:
        await fan_out(line(One, a=node).compile()).compile().invoke(start)
    assert info.value.node == "each"
    assert info.value.recoverable_state.xs == [1, 2, 3]
    assert isinstance(info.value.__cause__, limpet.errors.NodeException)
    assert cancelled == 2


async def test_collect_keeps_the_results_and_records_the_failures() -> None:
    """Each failure has its index and category."""
    graph = fan_out(
        line(One, a=_fails_at_two).compile(), error_policy="collect", errors_field="failed"
    ).compile()
    final = await graph.invoke(Many(xs=[1, 2, 3]))
    assert final.ys == [1, 3]
    assert final.total == 3
    (failure,) = final.failed
    assert (failure["fan_out_index"], failure["category"]) == (1, "node_exception")
    assert failure["cause_type"] == "ValueError"


async def test_instance_middleware_stands_around_each_instance() -> None:
    """A failed instance can be tried again or replaced, alone."""

    async def sleep(seconds: float) -> None:
        pass

    tries: list[int] = []

    async def node(s: One) -> dict[str, Any]:
        tries.append(s.x)
        return await _fails_at_two(s)

    graph = fan_out(
        line(One, a=node).compile(),
        instance_middleware=[
            FailureIsolationMiddleware(degraded_update={"y": -1}),
            RetryMiddleware(max_attempts=2, sleep=sleep),
        ],
    ).compile()
    final = await graph.invoke(Many(xs=[1, 2, 3]))
    assert final.ys == [1, -1, 3]
    assert sorted(tries) == [1, 2, 2, 3]


@pytest.mark.parametrize("kind", ["changes", "whole", "store"])
async def test_steps_inside_a_fan_out_may_be_saved_some_at_a_time(kind: str) -> None:
    """What was held back when the run stopped runs again, and counts once; all else is saved."""
    runs: list[int] = []
    broken = True

    async def node(s: One) -> dict[str, Any]:
        runs.append(s.x)
        if broken and s.x == 7:
            raise RuntimeError("down")
        return {"y": s.x}

    async with limpet.open("memory://") as lp:
        checkpointer: Any = CheckedCheckpointer() if kind == "changes" else PlainCheckpointer()
        if kind == "store":
            checkpointer = LimpetCheckpointer(lp, "jobs", flush_every=5)
        checkpointer.flush_every = 5
        builder = fan_out(line(One, node=node).compile(), concurrency=1)
        graph = builder.with_checkpointer(checkpointer).compile()
        with pytest.raises(limpet.errors.NodeException):
            await graph.invoke(Many(xs=list(range(10))), invocation_id="i")
        record = await checkpointer.load("i")
        done = [key for key, slot in record.fan_out_progress.slots.items() if slot.done]
        assert sorted(done) == ["0", "1", "2", "3", "4"]
        broken = False
        runs.clear()
        final = await graph.invoke(resume_invocation="i", correlation_id="c")
        assert (final.ys, runs) == (list(range(10)), [5, 6, 7, 8, 9])
        (last,) = [item for item in await checkpointer.list() if item.status == "completed"]
        assert (await checkpointer.load(last.invocation_id)).state["ys"] == final.ys


@pytest.mark.arguments
@pytest.mark.parametrize("wrong", [0, -1, True, "5", None])
def test_a_commit_has_a_number_of_steps(wrong: Any) -> None:
    """Anything else is refused when the checkpointer is made."""
    with pytest.raises(limpet.InvalidInput, match="flush_every"):
        InMemoryCheckpointer(flush_every=wrong)


class Noted(State):
    x: int = 0
    out: str = ""
    note: str = ""


class Notes(State):
    xs: list[int] = []
    outs: Annotated[list[str | None], append] = []
    notes: Annotated[list[Any], append] = []
    flat: Annotated[list[Any], concat_flatten] = []
    after: int = 0


def degrading(degraded: Any, node: Any = None, **how: Any) -> GraphBuilder[Notes]:
    """A fan-out over instances that fail at 2, and give this update then."""

    async def work(s: Noted) -> dict[str, Any]:
        if s.x == 2:
            raise ConnectionError("down")
        return {"out": f"out {s.x}", "note": f"note {s.x}"}

    given: dict[str, Any] = {
        "subgraph": line(Noted, work=work).compile(),
        "items_field": "xs",
        "item_field": "x",
        "collect_field": "out",
        "target_field": "outs",
        "extra_outputs": {"notes": "note"},
        "concurrency": 1,
        "instance_middleware": [FailureIsolationMiddleware(degraded_update=degraded)],
    }
    builder = GraphBuilder(Notes).add_fan_out_node("each", **given | how)
    builder.add_node("last", node or gives(after=1)).add_edge("last", END)
    return builder.add_edge("each", "last").set_entry("each")


@pytest.mark.parametrize(
    ("degraded", "outs", "notes"),
    [
        ({"out": "degraded"}, ["out 1", "degraded", "out 3"], ["note 1", None, "note 3"]),
        (lambda s: {"note": "why"}, ["out 1", None, "out 3"], ["note 1", "why", "note 3"]),
        (lambda s: {"x": 7, "other": 1}, ["out 1", None, "out 3"], ["note 1", None, "note 3"]),
    ],
)
async def test_a_field_that_a_degraded_instance_lacks_is_null_at_its_place(
    checkpointer: Any, degraded: Any, outs: Any, notes: Any
) -> None:
    """Also after the run has been resumed, from a record that has the degraded instance."""
    broken = True

    async def last(s: Notes) -> dict[str, Any]:
        if broken:
            raise RuntimeError("down")
        return {}

    final = await degrading(degraded).compile().invoke(Notes(xs=[1, 2, 3]))
    assert (final.outs, final.notes) == (outs, notes)

    async def work(s: Noted) -> dict[str, Any]:
        if s.x == 2:
            raise ConnectionError("down")
        if s.x == 3 and broken:
            raise asyncio.CancelledError
        return {"out": f"out {s.x}", "note": f"note {s.x}"}

    subgraph = line(Noted, work=work).compile()
    graph = degrading(degraded, subgraph=subgraph).with_checkpointer(checkpointer).compile()
    with pytest.raises(asyncio.CancelledError):
        await graph.invoke(Notes(xs=[1, 2, 3]), invocation_id="i")
    record = await checkpointer.load("i")
    assert record.fan_out_progress.slots["1"].done
    broken = False
    final = await graph.invoke(resume_invocation="i")
    assert (final.outs, final.notes) == (outs, notes)


async def test_a_null_of_a_degraded_instance_is_refused_by_a_reducer_that_takes_lists() -> None:
    """The isolation covers the instance, not what is made of its result."""
    how = {"target_field": "flat", "extra_outputs": {}}
    with pytest.raises(limpet.errors.ReducerError, match="concat_flatten") as info:
        await degrading(lambda s: {"note": "why"}, **how).compile().invoke(Notes(xs=[2]))
    assert (info.value.node, info.value.field) == ("each", "flat")


async def test_a_degraded_branch_leaves_what_it_does_not_have_as_it_was() -> None:
    """Its update has fields of the inner state, and goes through the branch's outputs."""

    class Board(State):
        alpha: str = "before"
        beta: str = "before"

    async def fails(s: Noted) -> dict[str, Any]:
        raise ConnectionError("down")

    branch = Branch(
        subgraph=line(Noted, work=fails).compile(),
        outputs={"alpha": "out", "beta": "note"},
        middleware=(FailureIsolationMiddleware(degraded_update={"note": "degraded"}),),
    )
    builder = GraphBuilder(Board).add_parallel_branches_node("one", branches={"only": branch})
    final = await builder.add_edge("one", END).set_entry("one").compile().invoke()
    assert (final.alpha, final.beta) == ("before", "degraded")


@pytest.mark.parametrize("how", ["continue", "restart"])
async def test_an_instance_that_had_begun_goes_on_or_starts_again_as_asked(
    checkpointer: Any, how: Any
) -> None:
    """One that was done is not run again in either case."""
    runs: list[tuple[int, str]] = []
    broken = True

    def step(name: str) -> Any:
        async def node(s: One) -> dict[str, Any]:
            runs.append((s.x, name))
            if broken and (s.x, name) == (2, "b"):
                raise RuntimeError("down")
            return {"y": s.y + s.x}

        return node

    inner = line(One, a=step("a"), b=step("b")).compile()
    builder = fan_out(inner, concurrency=1, resume_instances=how)
    graph = builder.with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Many(xs=[1, 2, 3]), invocation_id="i")
    broken = False
    runs.clear()
    assert (await graph.invoke(resume_invocation="i")).ys == [2, 4, 6]
    again = [(2, "a")] if how == "restart" else []
    assert runs == [*again, (2, "b"), (3, "a"), (3, "b")]


async def test_events_of_instances_have_their_index() -> None:
    """An observer can tell them apart."""
    heard = Heard()
    graph = fan_out().compile()
    await graph.invoke(Many(xs=[5, 6]), observers=[heard])
    await graph.drain()
    inner = [e for e in heard.events if e.node_name == "multiply" and e.phase == "completed"]
    assert sorted((e.fan_out_index, e.post_state.y) for e in inner) == [(0, 50), (1, 60)]
    assert {e.namespace for e in inner} == {("each", "multiply")}


@pytest.mark.parametrize("kind", ["instance", "branch", "node"])
async def test_inner_nodes_say_which_attempt_of_what_is_around_them_they_are_in(kind: str) -> None:
    """Unless they are retried themselves: the innermost retry counts."""
    tries = 0

    async def flaky(s: One) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("not yet")
        return {}

    async def sleep(seconds: float) -> None:
        pass

    def retry(times: int) -> RetryMiddleware:
        return RetryMiddleware(max_attempts=times, sleep=sleep)

    inner = (
        GraphBuilder(One)
        .add_node("plain", gives())
        .add_node("retried", gives(), middleware=[retry(2)])
        .add_node("flaky", flaky)
        .add_edge("plain", "retried")
        .add_edge("retried", "flaky")
        .add_edge("flaky", END)
        .set_entry("plain")
        .compile()
    )
    if kind == "branch":
        branch = Branch(subgraph=inner, outputs={"total": "x"}, middleware=(retry(3),))
        builder: Any = GraphBuilder(Many).add_parallel_branches_node("b", branches={"x": branch})
        builder.add_edge("b", END).set_entry("b")
    elif kind == "instance":
        builder = fan_out(inner, instance_middleware=[retry(3)])
    else:
        builder = GraphBuilder(Many).add_subgraph_node(
            "s", inner, outputs={"total": "x"}, middleware=[retry(3)]
        )
        builder.add_edge("s", END).set_entry("s")
    heard = Heard()
    graph = builder.compile()
    await graph.invoke(Many(xs=[1]), observers=[heard])
    await graph.drain()
    found: dict[str, list[int]] = {}
    for event in [event for event in heard.events if event.phase == "started"]:
        found.setdefault(event.node_name, []).append(event.attempt_index)
    assert (found["plain"], found["retried"], found["flaky"]) == ([0, 1, 2], [0] * 3, [0, 1, 2])


async def test_events_inside_fan_outs_and_branches_have_their_whole_lineage() -> None:
    """An index alone would be the same in each of the outer instances."""

    class Mid(State):
        xs: list[int] = []
        ys: list[int] = []

    leaf = line(One, leaf=multiply).compile()
    deep = (
        GraphBuilder(One)
        .add_parallel_branches_node("fork", branches={"left": Branch(subgraph=leaf, outputs={})})
        .add_edge("fork", END)
        .set_entry("fork")
        .compile()
    )
    mid = (
        GraphBuilder(Mid)
        .add_fan_out_node(
            "inner",
            subgraph=deep,
            items_field="xs",
            item_field="x",
            collect_field="y",
            target_field="ys",
        )
        .add_edge("inner", END)
        .set_entry("inner")
        .compile()
    )

    class Top(State):
        lists: list[list[int]] = []
        all: list[list[int]] = []

    graph = (
        GraphBuilder(Top)
        .add_fan_out_node(
            "outer",
            subgraph=mid,
            items_field="lists",
            item_field="xs",
            collect_field="ys",
            target_field="all",
        )
        .add_edge("outer", END)
        .set_entry("outer")
        .compile()
    )
    heard = Heard()
    await graph.invoke(Top(lists=[[1, 2], [3, 4]]), observers=[heard])
    await graph.drain()
    chains: dict[str, set[Any]] = {}
    for event in heard.events:
        lineage = (event.fan_out_index_chain, event.branch_name_chain, event.fan_out_index)
        chains.setdefault(event.node_name, set()).add(lineage)
    pairs = [(a, b) for a in (0, 1) for b in (0, 1)]
    assert chains["outer"] == {((), (), None)}
    assert chains["inner"] == {((at,), (None,), at) for at in (0, 1)}
    assert chains["fork"] == {(pair, (None, None), pair[1]) for pair in pairs}
    assert chains["leaf"] == {((*pair, None), (None, None, "left"), pair[1]) for pair in pairs}


async def test_a_drain_for_one_invocation_covers_its_instances_and_branches() -> None:
    """Whoever emits: everything before the call is delivered when it returns."""
    heard: list[tuple[str, str]] = []

    async def observer(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append((event.node_name, event.phase))

    async def waits(s: Many) -> dict[str, Any]:
        drained = await graph.drain_events_for(current_invocation_id() or "")
        assert drained.undelivered_count == 0
        assert sorted(set(heard)) == [
            ("each", "completed"),
            ("each", "started"),
            ("multiply", "completed"),
            ("multiply", "started"),
            ("waits", "started"),
        ]
        return {}

    builder = GraphBuilder(Many).add_fan_out_node(
        "each",
        subgraph=line(One, multiply=multiply).compile(),
        items_field="xs",
        item_field="x",
        collect_field="y",
        target_field="ys",
    )
    builder.add_node("waits", waits).add_edge("each", "waits").add_edge("waits", END)
    graph: Any = builder.set_entry("each").compile()
    graph.attach_observer(observer)
    await graph.invoke(Many(xs=[1, 2, 3]))
    await graph.drain()
    assert len(heard) == 10


async def test_cancelling_a_fan_out_ends_every_instance() -> None:
    """No instance outlives its invocation."""
    running = 0
    all_in = asyncio.Event()

    async def wait(s: One) -> dict[str, Any]:
        nonlocal running
        running += 1
        if running == 3:
            all_in.set()
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1
        return {}

    graph = fan_out(line(One, a=wait).compile()).compile()
    task = asyncio.ensure_future(graph.invoke(Many(xs=[1, 2, 3])))
    await all_in.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running == 0


# --- resume ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_a_resumed_fan_out_repeats_no_instance_that_was_done(
    checkpointer: Any, concurrency: int
) -> None:
    """Instances that were under way continue at their own node."""
    runs: list[tuple[int, str]] = []
    broken = True

    def step(name: str) -> Any:
        async def node(s: One) -> dict[str, Any]:
            runs.append((s.x, name))
            if broken and (s.x, name) == (2, "b"):
                for _ in range(20):  # let the others come as far as they can
                    await asyncio.sleep(0)
                raise RuntimeError("down")
            return {"y": s.y + s.x}

        return node

    inner = line(One, a=step("a"), b=step("b")).compile()
    graph = fan_out(inner, concurrency=concurrency).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Many(xs=[0, 1, 2, 3]), invocation_id="i")
    record = await checkpointer.load("i")
    done = {key for key, slot in record.fan_out_progress.slots.items() if slot.done}
    assert {"0", "1"} <= done
    assert record.fan_out_progress.slots["2"].frames[0].node == "b"
    broken = False
    final = await graph.invoke(resume_invocation="i")
    assert final.ys == [0, 2, 4, 6]
    assert sorted(runs) == sorted([(x, n) for x in range(4) for n in "ab"] + [(2, "b")])


async def test_a_failure_that_was_collected_is_not_tried_again(checkpointer: Any) -> None:
    """Its entry is kept with the checkpoint."""
    tries: list[int] = []
    broken = True

    async def node(s: One) -> dict[str, Any]:
        tries.append(s.x)
        if broken and s.x == 3:
            raise asyncio.CancelledError
        return await _fails_at_two(s)

    graph = (
        fan_out(
            line(One, a=node).compile(),
            error_policy="collect",
            errors_field="failed",
            concurrency=1,
        )
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(asyncio.CancelledError):
        await graph.invoke(Many(xs=[1, 2, 3]), invocation_id="i")
    broken = False
    final = await graph.invoke(resume_invocation="i")
    assert final.ys == [1, 3]
    assert [failure["fan_out_index"] for failure in final.failed] == [1]
    assert tries == [1, 2, 3, 3]


async def test_another_number_of_items_cannot_be_resumed(checkpointer: Any) -> None:
    """Indexes would no longer mean the same instances."""
    size = 2

    async def node(s: One) -> dict[str, Any]:
        if s.factor == 10:
            raise RuntimeError("down")
        return {}

    graph = (
        fan_out(
            line(One, a=gives(y=1), b=node).compile(),
            items_field=None,
            item_field=None,
            count=lambda s: size,
        )
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    size = 3
    with pytest.raises(
        limpet.errors.CheckpointRecordInvalid, match="had 2 instances and now has 3"
    ):
        await graph.invoke(resume_invocation="i")


async def test_a_fan_out_inside_a_fan_out_is_resumed_exactly_once(checkpointer: Any) -> None:
    """Progress is kept at every level."""

    class Mid(State):
        x: int = 0
        parts: list[int] = []
        halves: list[int] = []
        y: int = 0

    runs: list[tuple[int, int]] = []
    broken = True

    async def split(s: Mid) -> dict[str, Any]:
        return {"parts": [s.x * 10, s.x * 10 + 1]}

    async def leaf(s: One) -> dict[str, Any]:
        runs.append((s.factor, s.x))
        if broken and s.x == 21:
            raise RuntimeError("down")
        return {"y": s.x}

    async def total(s: Mid) -> dict[str, Any]:
        return {"y": sum(s.halves)}

    mid = (
        GraphBuilder(Mid)
        .add_node("split", split)
        .add_fan_out_node(
            "parts",
            subgraph=line(One, leaf=leaf).compile(),
            collect_field="y",
            target_field="halves",
            items_field="parts",
            item_field="x",
            concurrency=1,
        )
        .add_node("total", total)
        .add_edge("split", "parts")
        .add_edge("parts", "total")
        .add_edge("total", END)
        .set_entry("split")
        .compile()
    )
    graph = fan_out(mid, concurrency=1, inputs={}).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Many(xs=[1, 2, 3]), invocation_id="i")
    broken = False
    final = await graph.invoke(resume_invocation="i")
    assert final.ys == [21, 41, 61]
    assert [x for _, x in runs] == [10, 11, 20, 21, 21, 30, 31]


@pytest.mark.parametrize("kind", ["instance", "branch"])
async def test_an_instance_or_branch_that_is_retried_is_checkpointed_right(
    checkpointer: Any, kind: str
) -> None:
    """What its first attempt had done is replaced by the second."""

    async def sleep(seconds: float) -> None:
        pass

    tries: list[str] = []

    class Trail(State):
        x: int = 0
        factor: int = 0
        trail: Annotated[list[str], append] = []

    def noting(name: str) -> Any:
        async def node(s: Trail) -> dict[str, Any]:
            tries.append(name)
            if tries.count("b") == 1 and name == "b":
                raise ConnectionError("not yet")
            return {"trail": [f"{name}{len(tries)}"]}

        return node

    inner = line(Trail, a=noting("a"), b=noting("b"), c=noting("c")).compile()
    retry = [RetryMiddleware(sleep=sleep)]
    if kind == "instance":
        builder: Any = fan_out(
            inner, collect_field="trail", target_field="trails", instance_middleware=retry
        )
    else:
        builder = (
            GraphBuilder(Many)
            .add_parallel_branches_node(
                "one",
                branches={
                    "sub": Branch(subgraph=inner, outputs={"total": "x"}, middleware=tuple(retry))
                },
            )
            .add_edge("one", END)
            .set_entry("one")
        )
    final = await builder.with_checkpointer(checkpointer).compile().invoke(Many(xs=[1]))
    assert tries == ["a", "b", "a", "b", "c"]
    assert final.trails == (["a3", "b4", "c5"] if kind == "instance" else [])


async def test_a_save_that_was_cancelled_is_made_up_for_by_the_next() -> None:
    """Nobody knows whether it was stored: the next save is of the whole record."""
    saving = asyncio.Event()

    class Slow(InMemoryCheckpointer):
        async def save_changes(self, invocation_id: str, ops: Any, whole: Any, /) -> None:
            if not saving.is_set():
                saving.set()
                await asyncio.Event().wait()  # cancelled before anything was stored
            await super().save_changes(invocation_id, ops, whole)

    async def first(s: One) -> dict[str, Any]:
        if s.x == 1:
            await saving.wait()
            raise RuntimeError("down")
        return {}

    checkpointer = Slow()
    graph = (
        GraphBuilder(Many)
        .add_node("before", gives())
        .add_fan_out_node(
            "each",
            subgraph=line(One, first=first, second=gives()).compile(),
            collect_field="y",
            target_field="ys",
            items_field="xs",
            item_field="x",
            middleware=[FailureIsolationMiddleware(degraded_update={})],
        )
        .add_node("after", gives(total=7))
        .add_edge("before", "each")
        .add_edge("each", "after")
        .add_edge("after", END)
        .set_entry("before")
        .with_checkpointer(checkpointer)
        .compile()
    )
    await graph.invoke(Many(xs=[0, 1]), correlation_id="c")
    record = await checkpointer.latest("c")
    assert record is not None
    assert record.state["total"] == 7
    done = [position.node for position in record.completed_positions]
    assert done == ["before", "first", "each", "after"]


async def test_a_node_whose_save_was_cancelled_does_not_run_twice() -> None:
    """A run that fails saves what its cancelled instances had completed."""
    saving = asyncio.Event()
    broken = True

    class Slow(InMemoryCheckpointer):
        async def save_changes(self, invocation_id: str, ops: Any, whole: Any, /) -> None:
            if not saving.is_set():
                saving.set()
                await asyncio.Event().wait()  # cancelled before anything was stored
            await super().save_changes(invocation_id, ops, whole)

    runs: list[int] = []

    async def first(s: One) -> dict[str, Any]:
        runs.append(s.x)
        if s.x == 1 and broken:
            await saving.wait()
            raise RuntimeError("down")
        return {"y": s.x}

    each, checkpointer = fan_out(line(One, first=first, second=gives()).compile()), Slow()
    outer = (
        each.add_node("before", gives())
        .add_edge("before", "each")
        .set_entry("before")
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await outer.invoke(Many(xs=[0, 1]), correlation_id="c")
    broken, record = False, await checkpointer.latest("c")
    assert record is not None
    final = await outer.invoke(resume_invocation=record.invocation_id)
    assert final.ys == [0, 1]
    assert runs == [0, 1, 1]


# --- branches -------------------------------------------------------------------------------------


class Desk(State):
    text: str = "hi"
    notes: Annotated[list[str], append] = []
    facts: Annotated[dict[str, int], merge] = {}
    raw: bytes = b""
    failed: list[dict[str, Any]] = []


class Side(State):
    text: str = ""
    notes: list[str] = []


async def side(s: Side) -> dict[str, Any]:
    return {"notes": [f"side {s.text}"]}


def both(branches: Any, **how: Any) -> GraphBuilder[Desk]:
    made = GraphBuilder(Desk).add_parallel_branches_node("both", branches=branches, **how)
    return made.add_edge("both", END).set_entry("both")


async def test_branches_are_merged_in_the_order_of_their_declaration() -> None:
    """Whichever ends first; updates of one field go through its reducer one after another."""

    async def slow(s: Desk) -> dict[str, Any]:
        for _ in range(5):
            await asyncio.sleep(0)
        return {"notes": ["slow"], "text": "slow"}

    graph = both(
        {
            "slow": slow,
            "sub": Branch(
                subgraph=line(Side, side=side).compile(),
                inputs={"text": "text"},
                outputs={"notes": "notes"},
            ),
            "skipped": Branch(call=gives(notes=["never"]), when=lambda s: s.text == "other"),
            "quick": gives(notes=["quick"], text="quick", facts={"a": 1}),
        }
    ).compile()
    final = await graph.invoke()
    assert final.notes == ["slow", "side hi", "quick"]
    assert (final.text, final.facts) == ("quick", {"a": 1})


async def test_a_failed_branch_ends_the_others() -> None:
    """The error names the branch and keeps the entry state."""
    ended = asyncio.Event()

    async def waits(s: Desk) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    async def fails(s: Desk) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise ValueError("no")

    start = Desk(notes=["start"])
    with pytest.raises(limpet.errors.ParallelBranchesBranchFailed, match="no") as info:
        await both({"waits": waits, "fails": fails}).compile().invoke(start)
    assert (info.value.branch_name, info.value.node) == ("fails", "both")
    assert info.value.category == "parallel_branches_branch_failed"
    assert info.value.recoverable_state == start
    assert ended.is_set()


@pytest.mark.parametrize(
    "bad", [gives(what=1), gives(notes="x"), Branch(call=gives(), when=lambda s: s.nothing)]
)
async def test_failures_of_branches_are_collected(bad: Any) -> None:
    """Also an update that does not fit, or a condition that raises; the others count."""
    graph = both(
        {"bad": bad, "good": gives(notes=["good"])}, error_policy="collect", errors_field="failed"
    ).compile()
    final = await graph.invoke()
    assert final.notes == ["good"]
    assert [failure["branch_name"] for failure in final.failed] == ["bad"]


async def test_a_resumed_run_repeats_no_branch_that_was_done(checkpointer: Any) -> None:
    """Updates of branches that were done are kept with the checkpoint, of any type."""
    runs: list[str] = []
    broken = True

    def call(name: str, **update: Any) -> Any:
        async def branch(s: Desk) -> dict[str, Any]:
            runs.append(name)
            return update

        return branch

    async def fails(s: Desk) -> dict[str, Any]:
        runs.append("fails")
        for _ in range(20):
            await asyncio.sleep(0)
        if broken:
            raise RuntimeError("down")
        return {"notes": ["late"]}

    async def inner_fails(s: Side) -> dict[str, Any]:
        runs.append("inner")
        if broken:
            await asyncio.Event().wait()
        return {"notes": [*s.notes, "inner"]}

    sub = line(Side, side=side, inner=inner_fails).compile()
    graph = (
        both(
            {
                "done": call("done", notes=["done"], raw=b"\xff", facts={"a": 1}),
                "sub": Branch(subgraph=sub, inputs={"text": "text"}, outputs={"notes": "notes"}),
                "fails": fails,
            }
        )
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.ParallelBranchesBranchFailed):
        await graph.invoke(invocation_id="i")
    record = await checkpointer.load("i")
    assert record.fan_out_progress.slots["done"].done
    assert record.fan_out_progress.slots["sub"].frames[0].node == "inner"
    broken = False
    final = await graph.invoke(resume_invocation="i")
    assert final == Desk(notes=["done", "side hi", "inner", "late"], raw=b"\xff", facts={"a": 1})
    assert sorted(runs) == ["done", "fails", "fails", "inner", "inner"]


async def test_events_of_branches_have_their_name() -> None:
    """An observer can tell them apart."""
    heard = Heard()
    graph = both({"sub": Branch(subgraph=line(Side, side=side).compile())}).compile()
    await graph.invoke(observers=[heard])
    await graph.drain()
    inner = [event for event in heard.events if event.node_name == "side"]
    assert {event.branch_name for event in inner} == {"sub"}


# --- no session inside ----------------------------------------------------------------------------


async def test_inner_graphs_do_not_save_the_session() -> None:
    """In a subgraph, an instance or a branch it is a misuse; without a session it does nothing."""

    async def saves(s: Any) -> dict[str, Any]:
        assert current_session_id() in (None, "s")
        await save_session()
        return {}

    store = InMemorySessionStore()
    graphs = [
        fan_out(line(One, a=saves).compile()),
        both({"call": saves}),
        both({"sub": line(Side, a=saves).compile()}),
        GraphBuilder(Desk)
        .add_subgraph_node("sub", line(Side, a=saves).compile())
        .add_edge("sub", END)
        .set_entry("sub"),
    ]
    for builder in graphs:
        kind = Many if builder is graphs[0] else Desk
        graph: Any = builder.with_session_store(store, session_state=kind).compile()
        initial = {"xs": [1]} if graph.plan.name == "Many" else None
        with pytest.raises(limpet.errors.GraphRunError) as info:
            await graph.invoke(initial, session_id="s")
        error: BaseException | None = info.value
        while error is not None and not isinstance(error, limpet.errors.GraphMisused):
            error = error.__cause__
        assert error is not None
        assert "outermost" in str(error)
        await graph.invoke(initial)
    assert len(await store.list()) == 0
