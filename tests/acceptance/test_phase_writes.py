"""What each phase accepts: every kind of write in every phase, as one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import limpet
from tests.acceptance.test_life import WAYS

DAY = timedelta(days=1)
Write = Callable[[limpet.Session], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "input": lambda s: s.append("user.message", {"text": "hi"}),
    "input of another type": lambda s: s.append("shop.order", {"n": 1}, input=True),
    "label": lambda s: s.label({"plan": "gold"}),
    "timer": lambda s: s.lifecycle.set_timer("t", DAY),
    "timeouts": lambda s: s.lifecycle.set_timeouts(limpet.Timeouts(idle=DAY)),
    "retention": lambda s: s.history.retention(events=50),
    "checkpoint": lambda s: s.checkpoint(),
    "tools": lambda s: s.tools.bind(limpet.ToolRegistry([limpet.Tool("search")])),
    "rewind": lambda s: s.rewind(1),  # its state has changed since
    "agent": lambda s: s.append("agent.message", {"text": "hi"}),
    "state": lambda s: s.update(lambda state: {"n": 3}),
    "processed": lambda s: s.mark_processed([2]),
    "memory": lambda s: s.memory.session.put("fact", 1),
}
KEPT = {"timeouts", "retention", "checkpoint"}
WAITING = KEPT | {"input", "input of another type", "label", "timer"}
ACCEPTED = {
    "init": set(WRITES),
    "active": set(WRITES),
    "suspended": WAITING,
    "resumed": WAITING | {"tools", "rewind"},
    "completed": KEPT,
    "terminated": KEPT,
    "archived": KEPT,
}


async def led_to(lp: limpet.Limpet, phase: str) -> limpet.Session:
    """A session in this phase, with input that waits and state that has changed."""
    how: dict[str, Any] = {"phase": "init", "state": {"n": 1}, "actor": "user:ada"}
    s = await lp.create("support", "ada", **how)
    await s.append("user.message", {"text": "hi"}, set={"n": 2})
    ways = ("complete", "archive") if phase == "archived" else WAYS[phase][1:]
    for step in ("activate", *ways) if phase != "init" else ():
        await (s.resume(activate=False) if step == "resume_only" else getattr(s, step)())
    assert s.phase == phase
    return s


@pytest.mark.parametrize("phase", ACCEPTED)
async def test_a_phase_accepts_these_writes_and_no_others(lp: limpet.Limpet, phase: str) -> None:
    """Anything else is SessionSuspended or SessionEnded, and changes nothing."""
    waits = phase in ("suspended", "resumed")
    refused = limpet.errors.SessionSuspended if waits else limpet.SessionEnded
    s = await led_to(lp, phase)
    for name, write in WRITES.items():
        if name in ACCEPTED[phase]:
            await write(s)
            continue
        version = s.version
        with pytest.raises(refused):
            await write(s)
        assert (s.phase, s.version) == (phase, version), name
    assert (await lp.maintenance.verify()).ok


async def test_a_suspended_session_takes_answers(lp: limpet.Limpet) -> None:
    """A person may confirm or answer meanwhile; the turn goes on once the session is resumed."""

    async def asks(turn: limpet.Turn) -> None:
        if await turn.approve("refund", {"n": 1}):
            await turn.say(f"sent to {await turn.ask('address', {})}")

    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    for verb, value in (("confirm", {"allow": True}), ("answer", {"output": "Oslo"})):
        assert (await lp.wake(s.key, asks)).reason == "requires_action"
        (request,) = (await s.refresh()).blocked_on
        await s.suspend()
        given = value.values() if verb == "answer" else ()
        await getattr(s, verb)(request.id, *given, **({} if verb == "answer" else value))
        assert not (await lp.wake(s.key, asks)).ran
        await s.resume()
    assert (await lp.wake(s.key, asks)).reason == "end_turn"
    (said,) = await s.read(types=["agent.message"])
    assert said.data["text"] == "sent to Oslo"
