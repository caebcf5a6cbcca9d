"""An agent on every store: turns, pauses, effects, children, interrupts, workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import limpet
from limpet import Limpet


async def begun(lp: Limpet, app: str = "support") -> limpet.Session[Any]:
    session = await lp.create(app, "ada", actor="user:ada")
    await session.append("user.message", {"text": "hi"})
    return session


async def said(session: limpet.Session[Any]) -> list[str]:
    return [e.data["text"] for e in await session.read(types=["agent.message"])]


async def test_a_turn_from_the_first_message_to_the_last_answer(lp: Limpet) -> None:
    """Streamed, planned, refunded, approved, asked and said; once each, in three wakes."""
    refunds: list[str] = []

    async def refund(order: int, idempotency_key: str) -> int:
        refunds.append(idempotency_key)
        return order

    async def support(turn: limpet.Turn) -> None:
        for _ in turn.inputs:
            answer = await turn.stream("answer", iter(["so", "on"]))
            plan = await turn.step("plan", str.upper, answer)
            order = await turn.effect("refund", refund, order=7)
            approval = await turn.approve("wire", {"eur": 900}, timedelta(hours=1), "deny")
            rate = await turn.ask("fx", {"pair": "EURUSD"})
            await turn.say(f"{plan} {order} {bool(approval)} {rate}", cost=0.5)
        turn.revisit(timedelta(hours=1), "check", "delivery", "high")

    session = await begun(lp)
    assert (await lp.wake(session.key, support)).reason == "requires_action"
    assert not await lp.work.claim("w")
    await session.refresh()
    await session.confirm(session.blocked_on[0].id, allow=True)
    assert (await lp.wake(session.key, support)).reason == "requires_action"
    await session.refresh()
    await session.answer(session.blocked_on[0].id, 1.25)
    assert (await lp.wake(session.key, support)).reason == "end_turn"
    await session.refresh()
    assert await said(session) == ["soon", "SOON 7 True 1.25"]
    assert len(refunds) == 1
    assert (session.status, session.stop_reason, session.head.pending) == ("idle", "end_turn", 0)
    assert session.runs.usage.cost == 0.5
    assert session.head.timers["revisit:delivery"]
    assert (await lp.maintenance.verify()).ok


async def test_an_effect_under_a_key_is_performed_once_in_the_life_of_a_session(
    lp: Limpet,
) -> None:
    """By eight calls at once, in this turn and in the next, under one intent."""
    paid: list[str] = []

    async def pay(idempotency_key: str) -> int:
        paid.append(idempotency_key)
        await asyncio.sleep(0)
        return len(paid)

    async def support(turn: limpet.Turn) -> None:
        calls = [turn.effect("pay", pay, key="invoice-7") for _ in range(8)]
        assert await asyncio.gather(*calls) == [1] * 8

    session = await begun(lp)
    for _ in range(2):
        woken = await lp.wake(session.key, support)
        assert (woken.reason, woken.error) == ("end_turn", None)
        await session.append("user.message", {"text": "again"}, actor="user:ada")
    assert paid == ["invoice-7"]
    assert len(await session.read(types=["effect.intended"])) == 1


async def test_a_worker_answers_everything_that_is_due(lp: Limpet) -> None:
    """Each input once, and then nothing is due."""

    async def echo(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await turn.say(message.data["text"])

    sessions = [await begun(lp) for _ in range(5)]
    async with asyncio.timeout(60):
        rates = await limpet.Worker(lp, echo, app="support", idle_exit=True).run()
    assert rates.turns == 5
    for session in sessions:
        assert await said(session) == ["hi"]
    assert (await lp.maintenance.verify()).ok


async def test_a_failed_turn_is_due_at_its_time_and_not_before(lp: Limpet) -> None:
    """The store's own index says so."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    session = await begun(lp)
    woken = await lp.wake(session.key, broken)
    assert woken.reason == "rescheduling"
    assert not await lp.work.claim("w")
    await session.refresh()
    due = limpet.runnable_at(session.head)
    assert due is not None
    assert due > session.head.updated_at + timedelta(seconds=1)


async def test_dead_letters_are_listed_and_requeued(lp: Limpet) -> None:
    """By app, and then run again."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    async def fine(turn: limpet.Turn) -> None:
        await turn.say("ok")

    session = await begun(lp)
    await lp.wake(session.key, broken, retries=0)
    assert [h.key for h in (await lp.work.dead_letters(app="support")).items] == [session.key]
    assert not await lp.work.claim("w")
    await lp.work.requeue(session.key)
    async with asyncio.timeout(60):
        await limpet.Worker(lp, fine, app="support", idle_exit=True).run()
    assert await said(session) == ["ok"]


async def test_an_interrupted_session_goes_first(lp: Limpet) -> None:
    """An interrupt jumps the queue, and a running harness hears of it from elsewhere."""
    began = asyncio.Event()

    async def waits(turn: limpet.Turn) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    first, second = await begun(lp), await begun(lp)
    waking = asyncio.ensure_future(lp.wake(first.key, waits))
    await began.wait()
    await first.interrupt()
    async with asyncio.timeout(60):
        assert (await waking).reason == "interrupted"
    third = await begun(lp)
    await third.interrupt()
    leases = await lp.work.claim("w", limit=3)
    assert [lease.key for lease in leases] == [third.key, second.key]


async def test_an_interrupt_with_a_note_begins_a_turn_on_every_store(lp: Limpet) -> None:
    """Before everything else that waits, and once; a paused turn and a running one alike."""
    began, notes = asyncio.Event(), []

    async def harness(turn: limpet.Turn) -> None:
        if turn.note is not None:
            notes.append((turn.note, len(turn.inputs)))
        elif turn.session.key == paused.key:
            await turn.approve("wire", {})
        else:
            began.set()
            await asyncio.get_running_loop().create_future()

    paused, running = await begun(lp), await begun(lp)
    await lp.wake(paused.key, harness)
    await paused.interrupt("differently", actor="user:ada")
    waking = asyncio.ensure_future(lp.wake(running.key, harness))
    async with asyncio.timeout(60):
        await began.wait()
        await running.interrupt("never mind", actor="user:ada")
        assert (await waking).reason == "interrupted"
        rates = await limpet.Worker(lp, harness, app="support", idle_exit=True).run()
    assert rates.turns == 2
    assert sorted(notes) == [("differently", 0), ("never mind", 0)]
    for session in (paused, running):
        await session.refresh()
        assert (session.head.pending, session.stop_reason) == (0, "end_turn")
    assert (await lp.maintenance.verify()).ok


async def test_a_child_wakes_its_parent(lp: Limpet) -> None:
    """One commit over two sessions, on every store."""

    async def parent(turn: limpet.Turn) -> None:
        child = await turn.delegate("research", "find it", budget=0.2)
        await turn.say((await child.result())["output"])

    async def child(turn: limpet.Turn) -> None:
        await turn.say("found", cost=0.05)

    session = await begun(lp)
    await session.runs.grant(1.0)
    await lp.wake(session.key, parent)
    (key,) = await session.runs.children()
    assert not await lp.work.claim("w", app="support")
    await lp.wake(key, child)
    assert len(await lp.work.claim("w", app="support", lease_seconds=0.01)) == 1
    async with asyncio.timeout(60):
        while (woken := await lp.wake(session.key, parent)).reason == "locked":  # noqa: ASYNC110  # the lease ends by itself
            await asyncio.sleep(0.01)
    assert woken.reason == "end_turn"
    await session.refresh()
    assert await said(session) == ["found"]
    assert session.runs.budget is not None
    assert session.runs.budget.remaining.cost == 0.95
    assert (await lp.maintenance.verify()).ok
