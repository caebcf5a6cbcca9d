"""A request is answered once, whoever answers: a person, a deadline, an interrupt, an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet import Limpet
from limpet.model.lease import Lease
from limpet.runtime.wake import Wake, harness_options, load_all
from tests.support.examples import tries

SOON = timedelta(microseconds=1)


async def wires(turn: limpet.Turn) -> None:
    approval = await turn.approve("wire", {"eur": 900}, deadline=SOON, otherwise="allow")
    await turn.say(f"{bool(approval)} {approval.note}")


@pytest.fixture
async def person(lp: Limpet, url: str) -> AsyncIterator[Limpet]:
    """Another Limpet on the same store, where the store can be opened twice."""
    if url == "memory://":
        yield lp
        return
    async with limpet.open(url) as other:
        yield other


async def asked(lp: Limpet, number: int) -> list[limpet.Session[Any]]:
    """Sessions that wait for an approval whose deadline is over."""
    sessions = []
    for _ in range(number):
        session = await lp.create("support", "ada", actor="user:ada")
        await session.append("user.message", {"text": "hi"})
        await lp.wake(session.key, wires)
        sessions.append(session)
    return sessions


async def claimed(lp: Limpet, number: int) -> list[Lease]:
    """Their leases, as soon as the store's clock says that they are due."""
    found: list[Lease] = []
    async with asyncio.timeout(60):
        while len(found) < number:
            found += await lp.work.claim("w", app="support", limit=number)
    return found


async def read_by_worker(lp: Limpet, number: int = 2) -> list[Wake]:
    """Wakes that have read their sessions, and found the deadline passed."""
    wakes = [Wake(lp, lease, harness_options(wires)) for lease in await claimed(lp, number)]
    await load_all(wakes)
    return wakes


async def answers(session: limpet.Session[Any]) -> list[Any]:
    types = ["user.tool_confirmation", "user.custom_tool_result"]
    return [event.data["allow"] for event in await session.read(types=types)]


async def said(session: limpet.Session[Any]) -> list[str]:
    return [e.data["text"] for e in await session.read(types=["agent.message"])]


async def test_a_deadline_does_not_answer_after_a_person(lp: Limpet, person: Limpet) -> None:
    """The worker read the session before the person said no: the harness sees the no."""
    sessions = await asked(lp, 2)
    wakes = await read_by_worker(lp)
    other = await person.get(sessions[0].key)
    await other.confirm(other.blocked_on[0].id, allow=False, note="too much", actor="user:eve")
    found = [await wake.run() for wake in wakes]
    assert [woken.reason for woken in found] == ["end_turn", "end_turn"]
    assert await answers(sessions[0]) == [False]
    assert await said(sessions[0]) == ["False too much"]
    assert await answers(sessions[1]) == [True]
    assert await said(sessions[1]) == ["True the deadline passed"]
    assert (await lp.maintenance.verify()).ok


async def test_a_person_does_not_answer_after_a_deadline(lp: Limpet, person: Limpet) -> None:
    """The answer of the deadline stands, also when its turn is over."""
    (session,) = await asked(lp, 1)
    other = await person.get(session.key)
    (request,) = other.blocked_on
    (lease,) = await claimed(lp, 1)
    await Wake(lp, lease, harness_options(wires)).run()
    with pytest.raises(limpet.errors.RequestAnswered):
        await other.confirm(request.id, allow=False, actor="user:eve")
    assert await answers(session) == [True]
    with pytest.raises(limpet.errors.RequestNotFound):
        await other.confirm("x" * 256, allow=False, actor="user:eve")


async def test_a_deadline_does_not_answer_after_an_interrupt(lp: Limpet, person: Limpet) -> None:
    """What was interrupted is not allowed any more."""
    sessions = await asked(lp, 2)
    wakes = await read_by_worker(lp)
    other = await person.get(sessions[0].key)
    (request,) = other.blocked_on
    await other.interrupt(actor="user:eve")
    with pytest.raises(limpet.errors.RequestAnswered):
        await other.confirm(request.id, allow=True, actor="user:eve")
    raw = {"request_id": request.id, "allow": True}
    with pytest.raises(limpet.errors.RequestAnswered):
        await other.append("user.tool_confirmation", raw, actor="user:eve")
    for wake in wakes:
        await wake.run()
    assert await answers(sessions[0]) == []
    assert await said(sessions[0]) == []


async def test_a_deadline_does_not_answer_after_the_end(lp: Limpet, person: Limpet) -> None:
    """A terminated session waits for nothing, and its harness is not called."""
    sessions = await asked(lp, 2)
    wakes = await read_by_worker(lp)
    other = await person.get(sessions[0].key)
    (request,) = other.blocked_on
    await other.terminate("fraud", actor="user:eve")
    assert other.blocked_on == ()
    with pytest.raises(limpet.errors.RequestAnswered):
        await other.confirm(request.id, allow=True, actor="user:eve")
    for wake in wakes:
        await wake.run()
    assert await answers(sessions[0]) == []
    assert await said(sessions[0]) == []


async def test_an_answer_of_the_wrong_kind_is_refused_in_its_commit(lp: Limpet) -> None:
    """However it is written: an approval takes a confirmation, and only one."""
    (session,) = await asked(lp, 1)
    await session.refresh()
    (request,) = session.blocked_on
    raw = {"request_id": request.id, "output": "yes"}
    with pytest.raises(limpet.errors.RequestMismatch, match="confirm"):
        await session.append("user.custom_tool_result", raw)
    assert session.blocked_on == (request,)
    given = {"request_id": request.id, "allow": False}
    await session.append("user.tool_confirmation", given)
    with pytest.raises(limpet.errors.RequestAnswered):
        await session.append("user.tool_confirmation", {**given, "allow": True})
    again = {"request_id": request.id, "awaits": "approval", "name": "wire", "input": {}}
    with pytest.raises(limpet.errors.InvalidEvent, match="asked already"):
        await session.append("agent.tool_use", again, actor="agent:support")
    assert await answers(session) == [False]
    assert session.blocked_on == ()


async def test_a_person_and_a_deadline_that_race_agree(lp: Limpet, person: Limpet) -> None:
    """One answer is recorded, the harness acts on that one, and who was second is refused."""

    async def says_no(key: limpet.Key) -> bool:
        other = person.session(key)
        request = (await person.get(key)).blocked_on
        try:
            await other.confirm(request[0].id if request else "x", allow=False, actor="user:eve")
        except (limpet.errors.RequestAnswered, limpet.errors.RequestNotFound):
            return False
        return True

    number = tries(12, 200)
    sessions = await asked(lp, number)
    worker = limpet.Worker(lp, wires, app="support", idle_exit=True)
    refusing = [says_no(session.key) for session in sessions]
    async with asyncio.timeout(60):
        _, *refused = await asyncio.gather(worker.run(), *refusing)
        await worker.run()
    for session, first in zip(sessions, refused, strict=True):
        assert await answers(session) == [not first]
        heard = await said(session)
        assert heard == (["False None"] if first else ["True the deadline passed"])
    assert (await lp.maintenance.verify()).ok
