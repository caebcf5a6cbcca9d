"""Effects: intent, act, result; and what happens when nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import limpet
from limpet.model.facts.running import runs
from limpet.runtime import effects, wake
from tests.support.agents import APP, Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def refunding(bank: Bank, **how: Any) -> Any:
    async def harness(turn: limpet.Turn) -> None:
        try:
            paid = await turn.effect("refund", bank.refund, order=7, **how)
        except limpet.EffectUnknown as error:
            await turn.say(f"unknown: {error.note}")
        else:
            await turn.say(f"paid {paid['number']}")

    return harness


async def killed_in_mid_refund(world: World, bank: Bank, **how: Any) -> limpet.Session[Any]:
    """The money is sent, and the worker dies before it can write that down."""
    session = await world.begin("hi")
    assert await world.die(refunding(bank, **how), 2, recorded=False)
    assert len(bank.done) == 1
    world.later()
    await world.work(refunding(bank, **how))
    return session


async def test_an_unknown_effect_is_asked_about_and_not_repeated(world: World) -> None:
    """The session waits for a person; nothing is done a second time meanwhile."""
    bank = Bank()
    session = await killed_in_mid_refund(world, bank)
    assert len(bank.done) == 1
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("unknown_effect", "refund")
    assert request.input["idempotency_key"] == bank.done[0]
    assert request.input["args"] == {"order": 7}
    assert "effect.unknown" in await world.types()


async def test_an_unknown_effect_with_large_arguments_is_asked_about(world: World) -> None:
    """It shows how they begin: nobody is left without a way to say what came of it."""

    async def slow(letter: str) -> None:
        raise TimeoutError

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("send", slow, letter="\\" * 20_000))

    session = await world.begin("hi")
    await world.work(harness)
    (request,) = session.blocked_on
    assert request.input["args"].startswith('{"letter":"')
    assert request.input["args"].endswith(" bytes)")
    await session.resolve(request.id, happened="sent")
    await world.work(harness)
    assert await world.said() == ["sent"]


async def test_confirmed_it_runs_again_under_the_same_key(world: World) -> None:
    """The other side can tell that it is the same action."""
    bank = Bank()
    session = await killed_in_mid_refund(world, bank)
    await session.resolve(session.blocked_on[0].id, run_again=True)
    await world.work(refunding(bank))
    assert len(bank.done) == 2
    assert len(set(bank.done)) == 1
    assert await world.said() == ["paid 2"]


async def test_refused_it_raises_in_the_turn(world: World) -> None:
    """EffectUnknown, with the note of whoever decided."""
    bank = Bank()
    session = await killed_in_mid_refund(world, bank)
    await session.resolve(session.blocked_on[0].id, give_up=True, note="the bank says no")
    await world.work(refunding(bank))
    assert await world.said() == ["unknown: the bank says no"]
    assert len(bank.done) == 1


async def test_answered_the_answer_is_its_result(world: World) -> None:
    """Somebody looked: what they found is recorded as if the effect had returned it."""
    bank = Bank()
    session = await killed_in_mid_refund(world, bank)
    await session.resolve(session.blocked_on[0].id, happened={"number": 77})
    await world.work(refunding(bank))
    assert await world.said() == ["paid 77"]
    assert len(bank.done) == 1
    types = await world.types()
    assert types.count("span.started") == types.count("span.completed")


async def test_with_retry_it_runs_again_at_once_under_the_same_key(world: World) -> None:
    """on_unknown="retry" is for actions that the other side makes idempotent."""
    bank = Bank()
    session = await killed_in_mid_refund(world, bank, on_unknown="retry")
    assert session.stop_reason == "end_turn"
    assert len(bank.done) == 2
    assert len(set(bank.done)) == 1


async def test_a_failure_is_recorded_and_raised_the_same_way_again(world: World) -> None:
    """A run that handled it takes the same way when it runs again."""
    tried = []

    async def fails() -> None:
        tried.append(limpet.idempotency_key())
        raise RuntimeError("closed")

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.effect("call", fails, retries=2)
        except limpet.EffectFailed as error:
            await turn.say(error.error)
        await turn.approve("go on", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    assert await world.said() == ["RuntimeError: closed"]
    assert len(tried) == 3
    assert len(set(tried)) == 1


async def test_a_failure_that_ends_the_run_is_tried_again(world: World) -> None:
    """Under the same key, with the next attempt of the turn."""
    tried: list[str] = []

    async def fails_once() -> str:
        tried.append(limpet.idempotency_key())
        if len(tried) == 1:
            raise RuntimeError("closed")
        return "done"

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("call", fails_once))

    session = await world.begin("hi")
    await world.work(harness)
    assert session.stop_reason == "rescheduling"
    world.later(60)
    await world.work(harness)
    assert await world.said() == ["done"]
    assert len(set(tried)) == 1


async def test_what_takes_too_long_is_unknown(world: World) -> None:
    """A timeout says nothing about whether it was done: somebody is asked."""

    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("call", slow, timeout=0.001)

    session = await world.begin("hi")
    await world.work(harness)
    assert [r.kind for r in session.blocked_on] == ["unknown_effect"]


async def test_a_key_of_the_caller_is_performed_once_in_a_session(world: World) -> None:
    """Also by another turn; and an unknown of another turn is asked about in this one."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        paid = await turn.effect("refund", bank.refund, order=7, key="order-7")
        await turn.say(f"paid {paid['number']}")

    session = await world.begin("hi")
    await world.work(harness)
    await world.send("again")
    await world.work(harness)
    assert await world.said() == ["paid 1", "paid 1"]
    assert bank.done == ["order-7"]
    other = await world.begin("another session")
    assert await world.die(harness, 2, recorded=False)
    await other.interrupt()
    world.later()
    await world.work(harness)
    await world.send("again")
    await world.work(harness)
    assert [r.kind for r in other.blocked_on] == ["unknown_effect"]
    assert bank.done == ["order-7", "order-7"]
    assert session.key != other.key


async def test_calls_at_once_under_one_key_perform_it_once(world: World) -> None:
    """With one intent; every call returns the result, and so does a call of a later turn."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        calls = [turn.effect("refund", bank.refund, order=7, key="order-7") for _ in range(8)]
        paid = await asyncio.gather(*calls)
        await turn.say(" ".join([str(each["number"]) for each in paid]))

    await world.begin("hi")
    await world.work(harness)
    await world.send("again")
    await world.work(harness)
    assert await world.said() == ["1 1 1 1 1 1 1 1"] * 2
    assert bank.done == ["order-7"]
    types = await world.types()
    assert (types.count("effect.intended"), types.count("effect.succeeded")) == (1, 1)
    assert types.count("span.started") == types.count("span.completed")


async def test_calls_at_once_under_one_key_try_again_one_by_one(world: World) -> None:
    """A failure was not performed: the next call makes another attempt, with its own intent."""
    under_way: list[int] = []
    tried: list[int] = []

    async def fails_twice() -> int:
        assert not under_way, "another call performs it"
        under_way.append(1)
        tried.append(len(tried))
        await asyncio.sleep(0)
        under_way.clear()
        if len(tried) <= 2:
            raise ConnectionError("reset")
        return len(tried)

    async def harness(turn: limpet.Turn) -> None:
        calls = [turn.effect("pay", fails_twice, key="order-7") for _ in range(5)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        await turn.say(" ".join([type(each).__name__ for each in found]))

    await world.begin("hi")
    await world.work(harness)
    assert await world.said() == ["EffectFailed EffectFailed int int int"]
    assert len(tried) == 3


async def test_calls_at_once_under_one_key_pause_together(world: World) -> None:
    """The first has no outcome and a person is asked, once; then all of them have the answer."""

    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    async def harness(turn: limpet.Turn) -> None:
        calls = [turn.effect("pay", slow, timeout=0.001, key="order-7") for _ in range(8)]
        paid = await asyncio.gather(*calls)
        await turn.say(" ".join(paid))

    session = await world.begin("hi")
    await world.work(harness)
    assert session.stop_reason == "requires_action"
    (request,) = session.blocked_on
    await session.resolve(request.id, happened="paid")
    await world.work(harness)
    assert await world.said() == [" ".join(["paid"] * 8)]
    types = await world.types()
    assert (types.count("effect.intended"), types.count("effect.succeeded")) == (1, 1)


async def test_a_key_of_the_caller_is_performed_once_however_often_it_failed_before(
    world: World,
) -> None:
    """A success is found behind more failures than one look at the log covers."""
    tried: list[int] = []

    async def fails_long() -> int:
        tried.append(len(tried))
        if len(tried) <= 2 * effects.TRIES_PAGE:
            raise ConnectionError("an outage")
        return len(tried)

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(f"paid {await turn.effect('pay', fails_long, key='order-7')}")

    session = await world.begin("hi")
    while session.stop_reason != "end_turn":
        world.later(400)
        await world.work(harness, retries=100)
    await world.send("again")
    await world.work(harness)
    assert len(tried) == 2 * effects.TRIES_PAGE + 1
    assert await world.said() == [f"paid {len(tried)}"] * 2


async def test_the_newest_record_under_a_key_of_the_caller_counts(world: World) -> None:
    """Whichever turn made it, and as whichever call of that turn."""
    tried: list[int] = []

    async def pay() -> str:
        tried.append(len(tried))
        if len(tried) < 3:
            raise ConnectionError("an outage")
        return "paid"

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "as the second":
            await turn.effect("pay", lambda: "something else")
        with suppress(limpet.EffectFailed):
            await turn.say(await turn.effect("pay", pay, key="order-7"))

    await world.begin("hi")
    await world.work(harness)
    for text in ("as the second", "as the first", "as the first"):
        await world.send(text)
        await world.work(harness)
    assert len(tried) == 3
    assert await world.said() == ["paid", "paid"]


async def test_a_key_of_the_caller_belongs_to_one_effect(world: World) -> None:
    """Another effect does not get its result: it is refused, and both are named."""
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: done.append("pay"), key="order-7")
        await turn.effect("ship", lambda: done.append("ship"), key="order-7")

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMisused)
    assert "'ship'" in str(woken.error)
    assert "'pay'" in str(woken.error)
    assert done == ["pay"]


async def test_permissions_are_asked_for_inside_the_effect(world: World) -> None:
    """always_ask runs what was approved, deny runs nothing, and one approval is for one call."""
    orders: list[int] = []

    async def refund(order: int) -> int:
        orders.append(order)
        return order

    async def harness(turn: limpet.Turn) -> None:
        for order in (1, 2):
            try:
                await turn.effect("refund", refund, order=order)
            except limpet.ToolDenied as error:
                await turn.say(f"no: {error.note}")
        with pytest.raises(limpet.ToolDenied):
            await turn.effect("wipe", refund, order=9)

    session = await world.begin("hi")
    how: dict[str, Any] = {"permissions": {"refund": "always_ask", "wipe": "deny"}}
    await world.work(harness, **how)
    assert not orders
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness, **how)
    assert orders == [1]
    await session.confirm(session.blocked_on[0].id, allow=False, note="enough")
    await world.work(harness, **how)
    assert orders == [1]
    assert await world.said() == ["no: enough"]


def test_there_is_no_key_outside_of_an_effect() -> None:
    """The key belongs to one call."""
    with pytest.raises(limpet.errors.TurnMisused):
        limpet.idempotency_key()


def test_back_off_between_tries_is_bounded() -> None:
    """Full jitter, never more than its bound."""
    waits = [effects.retry_pause(tried) for tried in range(100)]
    assert max(waits) <= effects.BACKOFF_SECONDS_MAX


def fails() -> None:
    raise RuntimeError("closed")


async def failed_elsewhere(world: World, name: str) -> Exception:
    """The error of another session's effect, as lp.wake hands it to whoever woke it."""
    other = await world.lp.create("elsewhere", "ada", actor="user:ada")
    await other.append("user.message", {"text": "hi"}, actor="user:ada")

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect(name, fails)

    woken = await world.lp.wake(other.key, harness)
    assert isinstance(woken.error, limpet.EffectFailed)
    return woken.error


@pytest.mark.parametrize("name", ["pay", "mail"])
async def test_the_failed_effect_of_another_session_is_a_failure_like_any_other(
    world: World, name: str
) -> None:
    """The turn is tried again, and what it has paid itself, under whichever name, stays paid."""
    paid: list[str] = []
    error = await failed_elsewhere(world, name)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))
        if turn.attempt < 3:
            raise error
        await turn.say("done")

    session = await world.begin("hi")
    for _ in range(3):
        (woken,) = await world.work(harness)
        world.later(60)
    assert (woken.reason, await world.said(), paid) == ("end_turn", ["done"], ["paid"])
    assert session.head.worker is None


async def test_a_failed_effect_that_ended_a_run_is_found_behind_other_errors(world: World) -> None:
    """As the cause of another error, or in a group of a task group: it is tried again."""
    tried: list[str] = []

    def fails_twice() -> str:
        tried.append(limpet.idempotency_key())
        if len(tried) <= 2:
            raise RuntimeError("closed")
        return "paid"

    async def harness(turn: limpet.Turn) -> None:
        if turn.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(turn.effect("pay", fails_twice))
        try:
            await turn.say(await turn.effect("pay", fails_twice))
        except limpet.EffectFailed as error:
            raise ValueError("no money") from error

    await world.begin("hi")
    for _ in range(3):
        await world.work(harness)
        world.later(60)
    assert await world.said() == ["paid"]
    assert len(tried) == 3


@pytest.mark.parametrize("named", [["gone", 1], ["pay", 1], ["pay", 2]])
async def test_a_log_that_names_an_effect_which_did_not_fail_does_not_lock_its_session(
    world: World, named: list[Any]
) -> None:
    """As an earlier release recorded it: what was performed is not performed again."""
    paid: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))
        if turn.attempt == 1:
            fact = runs.failed("effect.failed", "of another session", 1, effects=[named])
            await turn.run.log.write(fact)
            raise RuntimeError("closed")
        await turn.say("done")

    await world.begin("hi")
    for _ in range(2):
        await world.work(harness)
        world.later(60)
    assert (await world.said(), paid) == (["done"], ["paid"])


async def test_an_interrupt_of_another_session_is_a_failure_like_any_other(world: World) -> None:
    """Raised in a harness, it does not end this turn as if somebody had interrupted it."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.attempt == 1:
            raise limpet.Interrupted(limpet.Key("elsewhere", "ada", "s"), "stop")
        await turn.say("done")

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.reason == "rescheduling"
    world.later(60)
    await world.work(harness)
    assert await world.said() == ["done"]


async def test_a_wake_that_breaks_gives_its_lease_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours keeps nobody else from the session, and does not go round and round."""

    async def breaks(*_: Any) -> None:
        raise KeyError("a mistake")

    session = await world.begin("hi")
    monkeypatch.setattr(wake, "open_wake", breaks)
    with pytest.raises(KeyError):
        await world.work(refunding(Bank()))
    await session.refresh()
    assert session.head.worker is None
    assert await world.lp.work.claim("w", app=APP) == ()
    world.later(31)
    assert await world.lp.work.claim("w", app=APP)
