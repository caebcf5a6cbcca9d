"""Effects whose record cannot be read for a moment: nothing is performed a second time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from tests.acceptance.test_unreadable import Moody

pytestmark = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
ADA = "user:ada"


@pytest.fixture
def seal() -> Moody:
    return Moody()


@pytest.fixture
async def lp(url: str, seal: Moody) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url, seal=seal) as opened:
        yield opened


async def sent(lp: limpet.Limpet, text: str) -> limpet.Session[Any]:
    s = await lp.find("support", "ada", "s") or await lp.create("support", "ada", "s")
    await s.append("user.message", {"text": text}, actor=ADA)
    return s


@pytest.mark.parametrize("kind", ["effect.intended", "effect.succeeded"])
async def test_an_effect_under_a_key_waits_until_its_record_can_be_read(
    lp: limpet.Limpet, seal: Moody, kind: str
) -> None:
    """In another turn: that fails and is tried again, and then has the recorded result."""
    paid: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"), key="order-7")

    s = await sent(lp, "pay")
    assert (await lp.wake(s.key, harness)).reason == "end_turn"
    ids = {event.id for event in await s.read(types=["effect.*"]) if event.type == kind}
    await sent(lp, "again")
    seal.refuses = lambda place: place.id in ids
    woken = await lp.wake(s.key, harness)
    assert (woken.reason, paid) == ("rescheduling", ["paid"])
    assert isinstance(woken.error, limpet.errors.SessionCorrupt)
    seal.recover()
    assert (await lp.wake(s.key, harness)).reason == "end_turn"
    assert paid == ["paid"]


@pytest.mark.parametrize("kind", ["effect.intended", "effect.succeeded", "step.recorded"])
async def test_a_turn_waits_until_the_records_of_its_calls_can_be_read(
    lp: limpet.Limpet, seal: Moody, kind: str
) -> None:
    """A run that cannot see what an earlier one did does not begin."""
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("think", lambda: done.append("thought"))
        await turn.effect("pay", lambda: done.append("paid"))
        await turn.ask("news", {})

    s = await sent(lp, "pay")
    assert (await lp.wake(s.key, harness)).reason == "requires_action"
    ids = {event.id for event in await s.read(types=[kind])}
    await s.refresh()
    await s.answer(s.blocked_on[0].id, "none")
    seal.refuses = lambda place: place.id in ids
    woken = await lp.wake(s.key, harness)
    assert isinstance(woken.error, limpet.errors.SessionCorrupt)
    assert (woken.ran, woken.reason, done) == (False, "failed", ["thought", "paid"])
    seal.recover()
    assert (await lp.wake(s.key, harness)).reason == "end_turn"
    assert done == ["thought", "paid"]


@pytest.mark.parametrize("kind", ["effect.intended", "effect.compensated"])
async def test_nothing_is_undone_twice_or_forgotten_while_a_record_cannot_be_read(
    lp: limpet.Limpet, seal: Moody, kind: str
) -> None:
    """Compensating waits, and goes on when the log can be read whole."""
    undone: list[str] = []
    fails = [True]

    def undo(session: Any, effect: limpet.PastEffect) -> None:
        if effect.name == "a" and fails:
            fails.clear()
            raise ConnectionError("reset")
        undone.append(effect.name)

    lp.policies.lifecycle("support", compensations={"undo": undo})

    async def harness(turn: limpet.Turn) -> None:
        for name in ("a", "b"):
            await turn.effect(name, lambda: "done", compensate="undo")

    s = await sent(lp, "go")
    await lp.wake(s.key, harness)
    await s.terminate("enough")
    await lp.wake(s.key, harness)  # the newest is undone, the other failed
    assert undone == ["b"]
    ids = {event.id for event in await s.read(types=[kind])}
    seal.refuses = lambda place: place.id in ids
    await lp.wake(s.key, harness)
    assert undone == ["b"]
    seal.recover()
    await lp.wake(s.key, harness)
    assert undone == ["b", "a"]
