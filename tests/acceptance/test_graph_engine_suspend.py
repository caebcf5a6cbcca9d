"""Suspension: a run that waits for a signal is an outcome, is saved whole, and goes on once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import pytest

import limpet
from limpet.graph import (
    END,
    Branch,
    CheckpointRecord,
    FailureIsolationMiddleware,
    GraphBuilder,
    InMemoryCheckpointer,
    InMemorySessionStore,
    RetryMiddleware,
    SessionRecord,
    State,
    Suspended,
    SuspensionDescriptor,
    append,
    concat_flatten,
    current_invocation_id,
    suspend,
)
from tests.support.graphs import CheckedCheckpointer, Heard, PlainCheckpointer, gives, line


class Order(State):
    item: str = "book"
    approved: bool | None = None
    log: Annotated[list[str], append] = []


def logs(name: str) -> Any:
    async def node(s: Any) -> dict[str, Any]:
        return {"log": [name]}

    return node


async def ask(s: Order) -> dict[str, Any]:
    await suspend(SuspensionDescriptor("approval", {"item": s.item}))


async def ask_until_known(s: Order) -> dict[str, Any]:
    if s.approved is None:
        await suspend("approval", mark_node_completed=False)
    return {"log": [f"asked: {s.approved}"]}


@pytest.fixture(params=["changes", "whole"])
def checkpointer(request: pytest.FixtureRequest) -> Any:
    """One that takes changes and checks each, and one that knows whole records only."""
    return CheckedCheckpointer() if request.param == "changes" else PlainCheckpointer()


def shop(checkpointer: Any, asks: Any = ask) -> GraphBuilder[Order]:
    return (
        GraphBuilder(Order)
        .add_node("pick", logs("pick"))
        .add_node("ask", asks)
        .add_node("ship", logs("ship"))
        .add_node("cancel", logs("cancel"))
        .add_edge("pick", "ask")
        .add_conditional_edge("ask", lambda s: "ship" if s.approved else "cancel")
        .add_edge("ship", END)
        .add_edge("cancel", END)
        .set_entry("pick")
        .with_checkpointer(checkpointer)
    )


async def test_a_suspended_run_says_what_it_waits_for(checkpointer: Any) -> None:
    """The outcome has the ids, the state, the descriptor and the node."""
    outcome = await shop(checkpointer).compile().invoke(invocation_id="i", correlation_id="c")
    assert outcome == Suspended(
        invocation_id="i",
        correlation_id="c",
        descriptor=SuspensionDescriptor("approval", {"item": "book"}),
        state=Order(log=["pick"]),
        node_name="ask",
        namespace=("ask",),
    )
    record = await checkpointer.load("i")
    assert record.status == "suspended"
    assert [position.node for position in record.completed_positions] == ["pick", "ask"]


@pytest.mark.parametrize(("approved", "last"), [(True, "ship"), (False, "cancel")])
async def test_a_signal_continues_after_the_node_with_its_payload(
    checkpointer: Any, approved: bool, last: str
) -> None:
    """The same invocation goes on; the edge after the node sees the payload."""
    ids: list[str | None] = []

    async def note(s: Any) -> dict[str, Any]:
        ids.append(current_invocation_id())
        return {"log": [last]}

    builder = shop(checkpointer)
    graph = builder.compile()
    await graph.invoke(invocation_id="i")
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": approved})
    assert final == Order(approved=approved, log=["pick", last])
    record = await checkpointer.load("i")
    assert record.status == "completed"
    assert record.suspension is None
    assert [position.node for position in record.completed_positions] == ["pick", "ask", last]


async def test_a_payload_replaces_values_without_reducers(checkpointer: Any) -> None:
    """A list in the payload is the new list."""
    graph = shop(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    final = await graph.invoke(resume_invocation="i", signal_payload={"log": ["from outside"]})
    assert final.log == ["from outside", "cancel"]


async def test_a_node_that_was_not_completed_runs_again(checkpointer: Any) -> None:
    """With the payload in its state, as the same attempt."""
    graph = shop(checkpointer, ask_until_known).compile()
    await graph.invoke(invocation_id="i")
    heard = Heard()
    final = await graph.invoke(
        resume_invocation="i", signal_payload={"approved": True}, observers=[heard]
    )
    await graph.drain()
    assert final.log == ["pick", "asked: True", "ship"]
    assert heard.events[0].attempt_index == 0


async def test_a_run_may_be_suspended_again(checkpointer: Any) -> None:
    """Each signal continues it under the same id until it ends."""
    graph = shop(checkpointer, ask_until_known).compile()
    await graph.invoke(invocation_id="i")
    for _ in range(3):
        outcome = await graph.invoke(resume_invocation="i", signal_payload={"item": "pen"})
        assert isinstance(outcome, Suspended)
        assert outcome.invocation_id == "i"
        assert outcome.state.item == "pen"
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final.log == ["pick", "asked: True", "ship"]


async def test_a_suspended_run_is_resumed_without_a_payload_too(checkpointer: Any) -> None:
    """A signal need not carry anything."""
    graph = shop(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    assert (await graph.invoke(resume_invocation="i")).log == ["pick", "cancel"]


async def test_observers_hear_suspended_instead_of_completed() -> None:
    """Once, with the descriptor; the subgraph around it has no events of its own."""
    graph = (
        GraphBuilder(Order)
        .add_subgraph_node("sub", line(Order, ask=ask).compile())
        .add_edge("sub", END)
        .set_entry("sub")
        .with_checkpointer(InMemoryCheckpointer())
        .compile()
    )
    heard = Heard()
    await graph.invoke(observers=[heard])
    await graph.drain()
    assert heard.phases == [("ask", "started"), ("ask", "suspended")]
    wanted = SuspensionDescriptor("approval", {"item": "book"})
    assert [event.descriptor for event in heard.events] == [None, wanted]


async def test_neither_except_nor_middleware_catches_a_suspension() -> None:
    """Code that handles every Exception lets it pass."""

    async def careful(s: Order) -> dict[str, Any]:
        try:
            return await ask(s)
        except Exception:
            return {"log": ["caught"]}

    graph = (
        line(Order, careful=careful)
        .add_middleware(FailureIsolationMiddleware(degraded_update={}))
        .add_middleware(RetryMiddleware())
        .with_checkpointer(InMemoryCheckpointer())
        .compile()
    )
    assert isinstance(await graph.invoke(), Suspended)


# --- inside other nodes ---------------------------------------------------------------------------


async def test_a_suspension_in_a_subgraph_continues_there(checkpointer: Any) -> None:
    """The payload goes into the state of the graph that suspended."""

    class Inner(State):
        answer: str = ""
        log: list[str] = []

    runs: list[str] = []

    async def first(s: Inner) -> dict[str, Any]:
        runs.append("first")
        return {}

    async def waits(s: Inner) -> dict[str, Any]:
        await suspend("question")

    async def after(s: Inner) -> dict[str, Any]:
        return {"log": [s.answer]}

    graph = (
        GraphBuilder(Order)
        .add_node("pick", logs("pick"))
        .add_subgraph_node("sub", line(Inner, first=first, waits=waits, after=after).compile())
        .add_edge("pick", "sub")
        .add_edge("sub", END)
        .set_entry("pick")
        .with_checkpointer(checkpointer)
        .compile()
    )
    outcome = await graph.invoke(invocation_id="i")
    assert (outcome.node_name, outcome.namespace) == ("sub", ("sub", "waits"))
    assert outcome.state == Order(log=["pick"])
    final = await graph.invoke(resume_invocation="i", signal_payload={"answer": "42"})
    assert final.log == ["pick", "42"]
    assert runs == ["first"]


class Item(State):
    x: int = 0
    ok: bool | None = None
    out: list[str] = []


class Batch(State):
    xs: list[int] = []
    outs: Annotated[list[str], concat_flatten] = []


async def test_a_suspension_in_a_fan_out_suspends_the_whole_node(checkpointer: Any) -> None:
    """Instances that were done stay done, the others continue, and the payload finds its own."""
    runs: list[tuple[str, int]] = []

    async def a(s: Item) -> dict[str, Any]:
        runs.append(("a", s.x))
        return {}

    async def b(s: Item) -> dict[str, Any]:
        if s.x == 1 and s.ok is None:
            for _ in range(20):
                await asyncio.sleep(0)
            wanted = SuspensionDescriptor("ok?", {"kind": "review"})
            await suspend(wanted, mark_node_completed=False)
        if s.x == 2 and runs.count(("a", 2)) == 1 and ("again", 0) not in runs:
            await asyncio.Event().wait()  # cancelled with the others
        return {"out": [f"{s.x} {s.ok}"]}

    graph = (
        GraphBuilder(Batch)
        .add_fan_out_node(
            "each",
            subgraph=line(Item, a=a, b=b).compile(),
            collect_field="out",
            target_field="outs",
            items_field="xs",
            item_field="x",
        )
        .add_edge("each", END)
        .set_entry("each")
        .with_checkpointer(checkpointer)
        .compile()
    )
    heard = Heard()
    outcome = await graph.invoke(Batch(xs=[0, 1, 2]), invocation_id="i", observers=[heard])
    assert isinstance(outcome, Suspended)
    assert (outcome.node_name, outcome.namespace) == ("each", ("each", "b"))
    assert outcome.descriptor == SuspensionDescriptor("ok?", {"fan_out_index": 1, "kind": "review"})
    await graph.drain()
    outer = [event for event in heard.events if event.node_name == "each"]
    assert [event.phase for event in outer] == ["started", "suspended"]
    assert outer[1].descriptor == outcome.descriptor
    runs.append(("again", 0))
    final = await graph.invoke(resume_invocation="i", signal_payload={"ok": True})
    assert final.outs == ["0 None", "1 True", "2 None"]
    assert [run for run in runs if run[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.parametrize("completed", [True, False])
async def test_a_suspension_in_a_branch_suspends_the_whole_node(
    checkpointer: Any, completed: bool
) -> None:
    """Also in a branch that is a call; branches that were done do not run again."""
    runs: list[str] = []

    async def done(s: Order) -> dict[str, Any]:
        runs.append("done")
        return {"log": ["done"]}

    async def asks(s: Order) -> dict[str, Any]:
        runs.append("asks")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if s.approved is None:
            await suspend("ok?", mark_node_completed=completed)
        return {"log": ["asked"]}

    graph = (
        GraphBuilder(Order)
        .add_parallel_branches_node("both", branches={"done": done, "asks": asks})
        .add_edge("both", END)
        .set_entry("both")
        .with_checkpointer(checkpointer)
        .compile()
    )
    outcome = await graph.invoke(invocation_id="i")
    assert isinstance(outcome, Suspended)
    assert outcome.node_name == "both"
    assert outcome.descriptor == SuspensionDescriptor("ok?", {"branch_name": "asks"})
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final == Order(approved=True, log=["done"] + ([] if completed else ["asked"]))
    assert runs == ["done", "asks"] + ([] if completed else ["asks"])


async def test_a_suspension_in_a_branch_that_is_a_subgraph_continues_there(
    checkpointer: Any,
) -> None:
    """Its inner node is not repeated."""
    sub = line(Order, first=logs("first"), ask=ask, last=logs("last")).compile()
    graph = (
        GraphBuilder(Order)
        .add_parallel_branches_node(
            "one", branches={"sub": Branch(subgraph=sub, outputs={"log": "log"})}
        )
        .add_edge("one", END)
        .set_entry("one")
        .with_checkpointer(checkpointer)
        .compile()
    )
    assert isinstance(await graph.invoke(invocation_id="i"), Suspended)
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final.log == ["first", "last"]


class Level(State):
    """The state of every graph below: what goes in, the signal, and what comes out."""

    x: int = 0
    ok: bool | None = None
    told: Annotated[list[str], append] = []
    gathered: Annotated[list[str], concat_flatten] = []


async def hand_on(s: Level) -> dict[str, Any]:
    return {"told": s.gathered}


def around(kind: str, inner: Any) -> Any:
    """A graph that has `inner` as its first node, of this kind."""
    builder = GraphBuilder(Level).add_node("hand_on", hand_on)
    if kind == "subgraph":
        builder.add_subgraph_node("in", inner, inputs={"x": "x"}, outputs={"told": "told"})
    elif kind == "branch":
        branch = Branch(subgraph=inner, inputs={"x": "x"}, outputs={"told": "told"})
        builder.add_parallel_branches_node("in", branches={"only": branch})
    else:
        builder.add_fan_out_node(
            "in",
            subgraph=inner,
            count=1,
            inputs={"x": "x"},
            collect_field="told",
            target_field="gathered",
        )
    return builder.add_edge("in", "hand_on").add_edge("hand_on", END).set_entry("in")


KINDS = ["subgraph", "branch", "fan_out"]


@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
async def test_a_first_node_that_suspends_keeps_what_went_in(
    checkpointer: Any, inner: str, outer: str, completed: bool
) -> None:
    """Two graphs deep, and nothing was completed in either: the run goes on in there all the same,
    on the state that was projected into it. It does so twice."""

    async def ask(s: Level) -> dict[str, Any]:
        if s.ok is None:
            await suspend("ok?", mark_node_completed=completed)
        return {}

    async def tell(s: Level) -> dict[str, Any]:
        return {"told": [f"{s.x} {s.ok}"]}

    asks = line(Level, ask=ask, tell=tell).compile()
    graph = around(outer, around(inner, asks).compile()).with_checkpointer(checkpointer).compile()
    outcome = await graph.invoke(Level(x=7), invocation_id="i")
    assert (outcome.namespace, outcome.state) == (("in", "in", "ask"), Level(x=7))
    if not completed:
        outcome = await graph.invoke(resume_invocation="i", signal_payload={"x": 8})
        assert isinstance(outcome, Suspended)
    final = await graph.invoke(resume_invocation="i", signal_payload={"ok": True})
    assert final.told == ["7 True" if completed else "8 True"]


# --- where it cannot ------------------------------------------------------------------------------


async def _suspends_outside() -> Any:
    await suspend("x")


async def _in_middleware() -> Any:
    async def layer(state: Any, next: Any) -> Any:
        await suspend("x")

    graph = line(Order, a=gives()).add_middleware(layer).with_checkpointer(PlainCheckpointer())
    return await graph.compile().invoke()


async def _in_instance_middleware() -> Any:
    async def layer(state: Any, next: Any) -> Any:
        await suspend("x")

    return await _fan_out(line(Item, a=gives()).compile(), instance_middleware=[layer])


async def _in_collecting_fan_out() -> Any:
    return await _fan_out(line(Order, ask=ask).compile(), error_policy="collect")


async def _deep_in_collecting_branches() -> Any:
    inner = (
        GraphBuilder(Order)
        .add_subgraph_node("sub", line(Order, ask=ask).compile())
        .add_edge("sub", END)
        .set_entry("sub")
        .compile()
    )
    graph = (
        GraphBuilder(Order)
        .add_parallel_branches_node("b", branches={"l": inner}, error_policy="collect")
        .add_edge("b", END)
        .set_entry("b")
        .with_checkpointer(PlainCheckpointer())
    )
    return await graph.compile().invoke()


async def _fan_out(subgraph: Any, **how: Any) -> Any:
    graph = (
        GraphBuilder(Batch)
        .add_fan_out_node(
            "each",
            subgraph=subgraph,
            collect_field="log" if subgraph.plan.name == "Order" else "out",
            target_field="outs",
            count=2,
            **how,
        )
        .add_edge("each", END)
        .set_entry("each")
        .with_checkpointer(PlainCheckpointer())
    )
    return await graph.compile().invoke()


@pytest.mark.parametrize(
    "where",
    [
        _suspends_outside,
        _in_middleware,
        _in_instance_middleware,
        _in_collecting_fan_out,
        _deep_in_collecting_branches,
    ],
)
async def test_suspending_where_it_cannot_be_kept_is_an_error(where: Any) -> None:
    """It reaches the caller with its category and is not collected as a failure."""
    with pytest.raises(limpet.errors.SuspensionInUnsupportedContext) as info:
        await where()
    assert info.value.category == "suspension_in_unsupported_context"


async def test_an_instance_that_is_tried_again_may_suspend() -> None:
    """What the attempt before left behind does not pass for middleware that suspends."""
    tries: list[int] = []

    async def asks(s: Any) -> dict[str, Any]:
        if tries:
            await suspend("x")
        return {}

    async def breaks(s: Any) -> dict[str, Any]:
        tries.append(1)
        raise RuntimeError("down")

    async def layer(state: Any, next: Any) -> Any:
        return await next(state)

    async def twice(state: Any, next: Any) -> Any:
        with suppress(limpet.errors.NodeException):
            return await next(state)
        return await next(state)

    inner = GraphBuilder(Item).add_node("a", asks).add_edge("a", "b").set_entry("a")
    inner = inner.add_node("b", breaks, middleware=[layer]).add_edge("b", END)
    assert isinstance(await _fan_out(inner.compile(), instance_middleware=[twice]), Suspended)


@pytest.mark.parametrize(
    "descriptor",
    [
        SuspensionDescriptor(3),
        SuspensionDescriptor("x", [1]),
        "",
        None,
        3,
        SuspensionDescriptor(""),
    ],
)
async def test_a_descriptor_has_a_signal_id(descriptor: Any) -> None:
    """Anything else is a misuse, in the node that did it."""

    async def node(s: Order) -> dict[str, Any]:
        await suspend(descriptor)

    with pytest.raises(limpet.errors.NodeException) as info:
        await line(Order, a=node).with_checkpointer(PlainCheckpointer()).compile().invoke()
    assert isinstance(info.value.__cause__, limpet.errors.GraphMisused)


async def test_metadata_that_could_not_be_stored_is_refused_in_its_node() -> None:
    """Not when the run ends, where nobody could tell which node it was."""

    async def node(s: Order) -> dict[str, Any]:
        await suspend(SuspensionDescriptor("x", {"at": object()}))

    with pytest.raises(limpet.errors.NodeException, match="metadata") as info:
        await line(Order, a=node).with_checkpointer(PlainCheckpointer()).compile().invoke()
    assert info.value.node == "a"


async def test_a_task_of_a_node_may_suspend_it(checkpointer: Any) -> None:
    """In a task group or beside others in gather. One that fails makes the node fail."""

    async def fails() -> None:
        raise ValueError("down")

    async def grouped(s: Order) -> dict[str, Any]:
        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as inner:
            inner.create_task(suspend("in a group"))
            if s.item == "broken":
                tasks.create_task(fails())
        return {}

    async def gathered(s: Order) -> dict[str, Any]:
        await asyncio.gather(suspend("in gather"), asyncio.sleep(0))
        return {}

    graph = line(Order, a=grouped, b=gathered).with_checkpointer(checkpointer).compile()
    outcome = await graph.invoke(invocation_id="i")
    assert (outcome.descriptor.signal_id, outcome.node_name) == ("in a group", "a")
    outcome = await graph.invoke(resume_invocation="i", signal_payload={})
    assert (outcome.descriptor.signal_id, outcome.node_name) == ("in gather", "b")
    assert isinstance(await graph.invoke(resume_invocation="i", signal_payload={}), Order)
    with pytest.raises(limpet.errors.NodeException) as info:
        await graph.invoke(Order(item="broken"))
    assert isinstance(info.value.__cause__, ExceptionGroup)


async def in_group(call: Any) -> Any:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(call)
    return task.result()


async def ask_in_group(s: Order) -> dict[str, Any]:
    return await in_group(ask_until_known(s))


async def run_in_group(state: Any, call: Any) -> Any:
    return await in_group(call(state))


async def test_a_call_may_suspend_its_branch_in_a_task_group(checkpointer: Any) -> None:
    """The record knows which branch it was, so the others run as well."""
    branches = {"ask": Branch(call=ask_in_group), "pack": Branch(call=logs("pack"))}
    builder = GraphBuilder(Order).add_parallel_branches_node("both", branches=branches)
    builder = builder.add_edge("both", END).set_entry("both").with_checkpointer(checkpointer)
    graph = builder.compile()
    assert isinstance(await graph.invoke(invocation_id="i"), Suspended)
    assert (await checkpointer.load("i")).suspension["slots"] == ["ask"]
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final.log == ["asked: True", "pack"]


@pytest.mark.parametrize("around", ["node", "branch", "instance"])
async def test_middleware_may_run_what_suspends_in_a_task_group(
    checkpointer: Any, around: str
) -> None:
    """As one does that watches the time: the signal still finds the state it belongs to."""
    how: Any = {"middleware": (run_in_group,)}
    inner = line(Order, ask=ask_until_known).compile()
    builder = GraphBuilder(Order)
    if around == "node":
        builder = builder.add_node("n", ask_until_known, **how)
    elif around == "branch":
        one = Branch(subgraph=inner, inputs={}, outputs={"log": "log"}, **how)
        builder = builder.add_parallel_branches_node("n", branches={"one": one})
    else:
        builder = builder.add_fan_out_node(
            "n",
            subgraph=inner,
            count=1,
            collect_field="item",
            target_field="log",
            instance_middleware=(run_in_group,),
        )
    builder = builder.add_edge("n", END).set_entry("n").with_checkpointer(checkpointer)
    graph = builder.compile()
    assert isinstance(await graph.invoke(invocation_id="i"), Suspended)
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final.log == (["book"] if around == "instance" else ["asked: True"])


@pytest.mark.parametrize("kept", [True, False])
async def test_a_group_of_errors_keeps_its_cause(kept: bool) -> None:
    """A node may have raised one of its own, which says nothing of a suspension."""

    async def node(s: Order) -> dict[str, Any]:
        raise ExceptionGroup("mine", [ValueError("down")]) from KeyError("cause")

    builder = line(Order, node=node)
    graph = (builder.with_checkpointer(PlainCheckpointer()) if kept else builder).compile()
    with pytest.raises(limpet.errors.NodeException) as info:
        await graph.invoke()
    assert isinstance(info.value.__cause__, ExceptionGroup)
    assert isinstance(info.value.__cause__.__cause__, KeyError)


@pytest.mark.parametrize("asks", [ask, ask_in_group])
async def test_without_a_checkpointer_nothing_can_be_suspended(asks: Any) -> None:
    """The caller learns that nothing would resume it."""
    with pytest.raises(limpet.errors.SuspensionPersistenceFailed, match="no checkpointer"):
        await line(Order, ask=asks).compile().invoke()


async def test_a_suspended_record_that_cannot_be_claimed_is_an_error_of_ours() -> None:
    """The store was down: nothing ran, and the record is as it was."""

    class Down(InMemoryCheckpointer):
        async def claim(self, record: CheckpointRecord, revision: int, /) -> bool:
            raise OSError("down")

    checkpointer = Down()
    graph = shop(checkpointer).compile()
    id = (await graph.invoke()).invocation_id
    before = await checkpointer.load(id)
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="down"):
        await graph.invoke(resume_invocation=id, signal_payload={})
    assert await checkpointer.load(id) == before


# --- signals that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize("payload", [{"approved": "perhaps"}, {"nothing": 1}, [1], "yes"])
async def test_a_wrong_payload_leaves_the_run_suspended(checkpointer: Any, payload: Any) -> None:
    """A right one continues it afterwards."""
    graph = shop(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    before = await checkpointer.load("i")
    with pytest.raises(limpet.errors.SuspensionResumePayloadInvalid) as info:
        await graph.invoke(resume_invocation="i", signal_payload=payload)
    assert info.value.category == "suspension_resume_payload_invalid"
    assert await checkpointer.load("i") == before
    final = await graph.invoke(resume_invocation="i", signal_payload={"approved": True})
    assert final.log == ["pick", "ship"]


async def test_a_signal_for_nothing_that_waits_is_refused(checkpointer: Any) -> None:
    """An unknown invocation, a completed one, and one that failed."""
    graph = shop(checkpointer).compile()
    await graph.invoke(invocation_id="done")
    await graph.invoke(resume_invocation="done", signal_payload={})

    async def fails(s: Order) -> dict[str, Any]:
        raise RuntimeError("down")

    broken = line(Order, a=fails).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await broken.invoke(invocation_id="failed")
    for known in ("never", "done", "failed"):
        with pytest.raises(limpet.errors.SuspensionRecordInvalid) as info:
            await graph.invoke(resume_invocation=known, signal_payload={})
        assert info.value.category == "suspension_record_invalid"
    with pytest.raises(limpet.errors.GraphMisused, match="resume_invocation"):
        await graph.invoke(signal_payload={})


async def test_a_signal_in_the_name_of_another_session_is_refused(checkpointer: Any) -> None:
    """The run would read one customer's state and replace another's."""
    store = InMemorySessionStore()
    graph = shop(checkpointer).with_session_store(store, session_state=Order).compile()
    await store.save("bob", SessionRecord(session_id="bob", state={"item": "his own"}))
    await graph.invoke(Order(item="secret"), session_id="ada", invocation_id="i")
    before = await checkpointer.load("i")
    with pytest.raises(limpet.errors.SuspensionRecordInvalid, match="another session") as info:
        await graph.invoke(resume_invocation="i", signal_payload={}, session_id="bob")
    assert "ada" not in str(info.value)
    assert await checkpointer.load("i") == before
    bob = await store.load("bob")
    assert bob is not None
    assert bob.state == {"item": "his own"}
    payload = {"approved": True}
    final = await graph.invoke(resume_invocation="i", signal_payload=payload, session_id="ada")
    assert final.item == "secret"


async def test_a_refusal_says_how_to_go_on() -> None:
    """Without a checkpointer, with a wrong field, and after a process died with the signal."""
    built = line(Order, ask=ask, after=gives(log=["after"]))
    with pytest.raises(limpet.LimpetError, match=r"Build the graph with with_checkpointer"):
        await built.compile().invoke(Order())
    with pytest.raises(limpet.LimpetError, match=r"Build the graph with with_checkpointer"):
        await built.compile().invoke(resume_invocation="x")
    checkpointer = InMemoryCheckpointer()
    graph = built.with_checkpointer(checkpointer).compile()
    waiting = await graph.invoke(Order())
    assert isinstance(waiting, Suspended)
    signal: dict[str, Any] = {"resume_invocation": waiting.invocation_id}
    with pytest.raises(limpet.LimpetError, match=r"state: aproved: Extra .* permitted\. The invoc"):
        await graph.invoke(**signal, signal_payload={"aproved": True})
    record = await checkpointer.load(waiting.invocation_id)
    assert record is not None
    await checkpointer.save(msgspec.structs.replace(record, status="running"))
    with pytest.raises(limpet.LimpetError, match=r"resume it without a signal_payload"):
        await graph.invoke(**signal, signal_payload={"approved": True})


async def test_of_two_signals_one_continues_the_run() -> None:
    """The other one finds it resumed, and its node does not run."""
    checkpointer = CheckedCheckpointer()
    started, go = asyncio.Event(), asyncio.Event()
    ships = 0

    async def ship(s: Order) -> dict[str, Any]:
        nonlocal ships
        ships += 1
        started.set()
        await go.wait()
        return {"log": ["ship"]}

    graph = line(Order, ask=ask, ship=ship).with_checkpointer(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    tasks = [
        asyncio.ensure_future(graph.invoke(resume_invocation="i", signal_payload={}))
        for _ in range(2)
    ]
    await started.wait()
    go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == [
        "Order",
        "SuspensionRecordInvalid",
    ]
    assert ships == 1


async def test_of_two_signals_that_found_it_suspended_one_continues_the_run() -> None:
    """The claim decides, not what each of them had read."""
    both = asyncio.Barrier(2)

    class Racing(CheckedCheckpointer):
        racing = False

        async def load(self, invocation_id: str, /) -> CheckpointRecord | None:
            found = await super().load(invocation_id)
            if self.racing:
                await both.wait()
                self.racing = False
            return found

    checkpointer, ships = Racing(), 0

    async def ship(s: Order) -> dict[str, Any]:
        nonlocal ships
        ships += 1
        return {"log": ["ship"]}

    graph = line(Order, ask=ask, ship=ship).with_checkpointer(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    checkpointer.racing = True
    results = await asyncio.gather(
        *[graph.invoke(resume_invocation="i", signal_payload={}) for _ in range(2)],
        return_exceptions=True,
    )
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["Order", "SuspensionRecordInvalid"]
    assert ships == 1


# --- together with a session ----------------------------------------------------------------------


async def test_the_session_is_saved_with_the_suspended_run() -> None:
    """A worker that resumes it elsewhere sees both; at the end the session is saved again."""
    store, checkpointer = InMemorySessionStore(), CheckedCheckpointer()
    graph = shop(checkpointer).with_session_store(store, session_state=Order).compile()
    await graph.invoke(invocation_id="i", session_id="s")
    saved = await store.load("s")
    assert saved is not None
    assert saved.state["log"] == ["pick"]
    final = await graph.invoke(
        resume_invocation="i", signal_payload={"approved": True}, session_id="s"
    )
    saved = await store.load("s")
    assert saved is not None
    assert saved.state["log"] == final.log == ["pick", "ship"]


async def test_without_auto_save_the_suspension_saves_no_session() -> None:
    """Only explicit saves reach the store."""
    store = InMemorySessionStore()
    graph = (
        shop(InMemoryCheckpointer())
        .with_session_store(store, session_state=Order, auto_save=False)
        .compile()
    )
    await graph.invoke(invocation_id="i", session_id="s")
    assert await store.load("s") is None


class Joint(InMemoryCheckpointer):
    """Saves a record and a session together, or neither."""

    def __init__(self, store: InMemorySessionStore) -> None:
        super().__init__()
        self.store, self.joint, self.fails = store, 0, False

    def joins(self, store: Any, /) -> bool:
        return store is self.store

    async def save_with_session(
        self,
        record: CheckpointRecord,
        store: Any,
        session: SessionRecord,
        /,
        *,
        expected_version: int | None = None,
    ) -> int:
        if self.fails:
            raise OSError("disk")
        self.joint += 1
        version = await store.save(session.session_id, session, expected_version=expected_version)
        await self.save(record)
        return int(version)


async def test_where_both_live_together_they_are_saved_in_one_commit() -> None:
    """The checkpointer gets the record and the session in one call."""
    store = InMemorySessionStore()
    checkpointer = Joint(store)
    graph = (
        shop(checkpointer)
        .with_session_store(store, session_state=Order, conflicts="raise")
        .compile()
    )
    await graph.invoke(invocation_id="i", session_id="s")
    assert checkpointer.joint == 1
    final = await graph.invoke(
        resume_invocation="i", signal_payload={"approved": True}, session_id="s"
    )
    assert final.log == ["pick", "ship"]
    elsewhere = (
        shop(Joint(InMemorySessionStore())).with_session_store(store, session_state=Order).compile()
    )
    await elsewhere.invoke(session_id="t")
    assert elsewhere.checkpointer.joint == 0  # type: ignore[union-attr]


async def test_a_suspension_that_cannot_be_saved_leaves_a_run_to_resume() -> None:
    """The session is as it was; the invocation continues at its node when the stores work."""
    store = InMemorySessionStore()
    checkpointer = Joint(store)
    checkpointer.fails = True
    graph = shop(checkpointer).with_session_store(store, session_state=Order).compile()
    with pytest.raises(limpet.errors.SuspensionPersistenceFailed) as info:
        await graph.invoke(invocation_id="i", session_id="s")
    assert info.value.category == "suspension_persistence_failed"
    assert await store.load("s") is None
    checkpointer.fails = False
    outcome = await graph.invoke(resume_invocation="i", session_id="s")
    assert isinstance(outcome, Suspended)
    assert outcome.state.log == ["pick"]


async def test_a_session_store_that_fails_at_the_suspension_keeps_the_run() -> None:
    """The record is put back to running: a signal finds nothing that waits."""

    class Broken(InMemorySessionStore):
        async def save(self, *args: Any, **how: Any) -> int:
            raise OSError("disk")

    checkpointer = InMemoryCheckpointer()
    graph = shop(checkpointer).with_session_store(Broken(), session_state=Order).compile()
    with pytest.raises(limpet.errors.SuspensionPersistenceFailed):
        await graph.invoke(invocation_id="i", session_id="s")
    record = await checkpointer.load("i")
    assert record is not None
    assert (record.status, record.suspension) == ("running", None)
