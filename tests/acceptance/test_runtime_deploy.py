"""Workers of two editions of the code, on every store."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

import limpet
from limpet import Limpet, State


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    answered: int = 0


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    answers: int = 0


async def answers(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.say(message.data["text"])


async def asked(lp: Limpet, id: str, state: State, priority: int = 0) -> limpet.Session[Any]:
    session = await lp.create("desk", "ada", id=id, state=state)
    if priority:
        await session.lifecycle.set_priority(priority, actor="user:ada")
    await session.append("user.message", {"text": id}, actor="user:ada")
    return session


@pytest.mark.parametrize("concurrency", [1, 6])
async def test_sessions_of_newer_code_are_put_back_and_starve_nobody(
    lp: Limpet, concurrency: int
) -> None:
    """Though they are the most urgent, taken one at a time or all at once; newer code serves
    them."""
    newer = [await asked(lp, f"new-{n}", New(), priority=9) for n in range(3)]
    older = [await asked(lp, f"old-{n}", Old()) for n in range(3)]
    how: Any = {"concurrency": concurrency, "state_type": Old, "max_turns": 6}
    old = limpet.Worker(lp, answers, app="desk", idle_exit=True, **how)
    async with asyncio.timeout(60):
        rates = await old.run()
    assert (rates.turns, rates.failed) == (3, 3)
    for session in older:
        await session.refresh()
        assert session.stop_reason == "end_turn"
    for session in newer:
        await session.refresh()
        assert (session.head.pending, session.head.worker) == (1, None)
        assert session.version == 3, "nothing was written to it"
        woken = await lp.wake(session.key, answers, state_type=New)
        assert woken.reason == "end_turn"
    assert (await lp.maintenance.verify()).ok


async def test_a_session_of_newer_code_is_due_again_soon(lp: Limpet) -> None:
    """It is held back for seconds, so that a worker of that code need not wait long."""
    session = await asked(lp, "new", New())
    (lease,) = await lp.work.claim("old", app="desk")
    await lp.work.release(lease, retry_seconds=0)
    worker = limpet.Worker(lp, answers, app="desk", idle_exit=True, state_type=Old)
    async with asyncio.timeout(60):
        await worker.run()
    await session.refresh()
    due = limpet.runnable_at(session.head)
    assert due is not None
    assert (due - session.head.updated_at).total_seconds() < 30
