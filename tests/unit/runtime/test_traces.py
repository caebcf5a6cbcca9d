"""Traces and activations: every wake can be read again, and says why it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.runtime import wake
from tests.support.agents import Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def echo(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.say(str(message.data.get("text")))


async def whys(world: World) -> list[str]:
    return [woken.why for woken in reversed(await world.session.runs.activations())]


async def test_an_activation_names_input_worker_fence_and_time(world: World) -> None:
    """The seqs that woke it, and when it was claimed, by the store's clock."""
    session = await world.begin("one", "two")
    claimed_us = world.clock.now_us
    (done,) = await world.work(echo)
    (woken,) = await session.runs.activations()
    assert (woken.wake_id, woken.why, woken.inputs) == (done.wake_id, "input", (2, 3))
    assert (woken.worker, woken.fence, woken.attempt) == ("w", 1, 1)
    assert (woken.claimed_us, woken.result) == (claimed_us, "success")
    assert (await session.runs.trace(woken.wake_id)).activation == woken


async def test_a_timer_wakes_by_its_name(world: World) -> None:
    """A revisit is one."""

    async def later(turn: limpet.Turn) -> None:
        if turn.inputs:
            turn.revisit(timedelta(minutes=1), "look", "delivery")

    session = await world.begin("hi")
    await world.work(later)
    world.later(61)
    await world.work(later)
    newest, _ = await session.runs.activations()
    assert (newest.why, newest.timers) == ("timer", ("revisit:delivery",))


async def test_answers_and_deadlines_are_told_apart(world: World) -> None:
    """Somebody answered, or the time did."""

    async def twice(turn: limpet.Turn) -> None:
        await turn.approve("one", {})
        await turn.approve("two", {}, timedelta(minutes=1))

    session = await world.begin("hi")
    await world.work(twice)
    event = await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(twice)
    assert (await session.runs.activations())[0].answers == (event.seq,)
    world.later(61)
    await world.work(twice)
    assert await whys(world) == ["input", "answer", "deadline"]


async def test_failures_requeues_and_deaths_are_told_apart(world: World) -> None:
    """Tried again by itself, by a person, or because its worker died."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    async def steps(turn: limpet.Turn) -> None:
        await turn.step("one", lambda: 1)
        await turn.step("two", lambda: 2)

    session = await world.begin("hi")
    await world.work(broken, retries=1)
    world.later(10)
    await world.work(broken, retries=1)
    await world.lp.work.requeue(session.key)
    assert await world.die(steps, 2, recorded=False)
    world.later()
    await world.work(steps)
    assert await whys(world) == ["input", "retry", "requeue", "died"]
    results = [woken.result for woken in await session.runs.activations()]
    assert results == ["success", "error", "error", "error"]


async def test_a_child_wakes_its_parent_as_a_child(world: World) -> None:
    """Its end in a paused turn, or as the only input of a new one."""

    async def parent(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await (await turn.delegate("research", "x")).result()

    session = await world.begin("hi")
    await world.work(parent)
    (key,) = await session.runs.children()
    await world.lp.wake(key, echo)
    await world.work(parent)
    assert await whys(world) == ["input", "child"]


async def test_interrupts_and_ends_leave_a_trace(world: World) -> None:
    """A wake that runs no harness can be read again too."""

    async def asks(turn: limpet.Turn) -> None:
        await turn.approve("x", {})

    session = await world.begin("hi")
    await world.work(asks)
    await session.interrupt()
    (settled,) = await world.work(asks)
    assert not settled.ran
    trace = await session.runs.trace(str(settled.wake_id))
    assert (trace.span.name, trace.activation.why) == ("settle", "interrupt")
    await world.send("again")
    assert await world.die(asks, 2, recorded=False)
    await session.terminate()
    world.later()
    (finished,) = await world.work(asks)
    trace = await session.runs.trace(str(finished.wake_id))
    assert (trace.span.name, trace.activation.why, trace.span.result) == (
        "finish",
        "ended",
        "success",
    )


async def test_the_trace_of_a_wake_that_died_is_whole(world: World) -> None:
    """The next one closes its spans under its id."""
    bank = Bank()

    async def refunds(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=7)

    session = await world.begin("hi")
    assert await world.die(refunds, 2, recorded=False)
    world.later()
    await world.work(refunds)
    _, dead = await session.runs.activations()
    trace = await session.runs.trace(dead.wake_id)
    assert [(span.kind, span.result) for span in trace.spans] == [
        ("wake", "error"),
        ("tool", "error"),
    ]
    assert "effect.unknown" in [event.type for event in trace.events]


async def test_activations_are_listed_newest_first_and_bounded(world: World) -> None:
    """As many as are asked for, also of a long log."""
    session = await world.begin()
    for number in range(5):
        await world.send(str(number))
        await world.work(echo)
    found = await session.runs.activations(limit=3)
    assert len(found) == 3
    assert [woken.started_us for woken in found] == sorted(
        [woken.started_us for woken in found], reverse=True
    )


async def test_a_trace_names_what_took_how_long_with_tokens_and_cost(world: World) -> None:
    """The time of the model is the model's, that of a step the step's; the wake begins at its
    claim, and what was waited before it is nobody's."""

    @limpet.tool(pure=True)
    def look(order: int) -> str:
        world.later(2)
        return "found"

    @limpet.tool
    def act(order: int) -> str:
        world.later(3)
        return "done"

    async def model(request: limpet.ModelRequest) -> limpet.Reply:
        world.later(5)
        if request.messages[-1]["role"] != "user":
            return limpet.Reply("ok")
        calls = (
            limpet.ToolCall("1", "look", {"order": 7}),
            limpet.ToolCall("2", "act", {"order": 7}),
        )
        return limpet.Reply("", calls, {"input": 9, "output": 4, "cost": 0.25})

    async def pieces() -> AsyncIterator[str]:
        yield "a"
        world.later(6)
        yield "b"

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("think", model, tools=[look, act])
        for call in reply.tool_calls:
            await turn.tool(call)
        await turn.step("price", lambda: world.later(4))
        await turn.stream("tell", pieces())

    session = await world.begin("hi")
    world.later(60)
    claimed_us = world.clock.now_us
    (done,) = await world.work(harness)
    trace = await session.runs.trace(str(done.wake_id))
    shown = [
        (s.kind, s.name, (s.started_us - claimed_us) // 1_000_000, s.took.total_seconds())
        for s in trace.spans
        if s.took is not None
    ]
    assert shown == [
        ("wake", "wake", 0, 20.0),
        ("model", "think", 0, 5.0),
        ("tool", "look", 5, 2.0),
        ("tool", "act", 7, 3.0),
        ("step", "price", 10, 4.0),
        ("model", "tell", 14, 6.0),
    ]
    think = trace.spans[1]
    assert (think.usage, think.cost) == ({"input": 9, "output": 4}, 0.25)
    assert {span.parent for span in trace.spans[1:]} == {done.wake_id}
    assert trace.span.started_us == trace.activation.claimed_us


async def test_a_model_that_failed_first_has_a_span_for_each_attempt(world: World) -> None:
    """Tokens and cost are those of the call that answered."""
    asked = []

    def model(request: limpet.ModelRequest) -> limpet.Reply:
        asked.append(request.attempt)
        if len(asked) == 1:
            raise ConnectionError("gone")
        return limpet.Reply("ok", usage={"input": 1, "output": 1})

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("think", model)

    session = await world.begin("hi")
    await world.work(harness)
    world.later(60)
    await world.work(harness)
    newest, oldest = await session.runs.activations()
    (_, failed), (_, done) = [
        (await session.runs.trace(each.wake_id)).spans for each in (oldest, newest)
    ]
    assert (failed.result, failed.usage) == ("error", None)
    assert str(failed.error).startswith("ConnectionError: gone")
    assert (done.result, done.usage) == ("success", {"input": 1, "output": 1})


async def test_followers_see_a_model_call_from_the_start(world: World) -> None:
    """Before the model says anything, the log says that the session runs, and what it does."""
    seen: list[tuple[str, Any]] = []

    async def model(request: limpet.ModelRequest) -> str:
        log = await world.log()
        seen.extend([(e.type, e.data.get("to") or e.data.get("kind")) for e in log[2:]])
        return "hello"

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("think", model)

    await world.begin("hi")
    await world.work(harness)
    assert seen == [
        ("span.started", "wake"),
        ("session.status_changed", "running"),
        ("span.started", "model"),
    ]
    changes = [e.data["to"] for e in await world.log() if e.type == "session.status_changed"]
    assert changes == ["running", "idle"]


async def test_a_turn_that_takes_long_records_its_opening(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it records nothing itself: whoever follows sees that it runs."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", 0.0)

    async def harness(turn: limpet.Turn) -> None:
        async for event in turn.session.follow(after=2):
            if event.type == "session.status_changed":
                return

    session = await world.begin("hi")
    async with asyncio.timeout(30):
        (done,) = await world.work(harness)
    assert (await world.types())[2:4] == ["span.started", "session.status_changed"]
    changes = [e.data["to"] for e in await world.log() if e.type == "session.status_changed"]
    assert changes == ["running", "idle"]
    assert (await session.runs.trace(str(done.wake_id))).span.result == "success"


async def test_a_short_turn_costs_one_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening is recorded with its end, and nobody is told that it ran."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", 3_600.0)

    async def harness(turn: limpet.Turn) -> None:
        pass

    await world.begin("hi")
    before = world.store.commits
    await world.work(harness)
    assert world.store.commits - before == 1
    assert "session.status_changed" not in await world.types()
