"""The end of a session on every store: due in its index, undone, and told."""

from __future__ import annotations

import asyncio
from typing import Any

import limpet
from limpet import Limpet


async def work(lp: Limpet, app: str, harness: Any, **how: Any) -> Any:
    async with asyncio.timeout(60):
        return await limpet.Worker(lp, harness, app=app, idle_exit=True, **how).run()


async def waits(turn: limpet.Turn) -> None:
    await turn.approve("go on", {})


async def test_a_termination_undoes_and_cascades(lp: Limpet) -> None:
    """Workers find what is left by the store's own index, and then nothing is due."""
    undone: list[str] = []

    async def unbook(session: limpet.Session[Any], effect: limpet.PastEffect) -> None:
        undone.append(f"{effect.args['seat']} {effect.result}")

    async def book(seat: str) -> str:
        return f"ticket {seat}"

    async def trip(turn: limpet.Turn) -> None:
        for seat in ("1a", "1b"):
            await turn.effect("book", book, seat=seat, compensate="unbook")
        await (await turn.delegate("hotel", "a room", budget=0.5)).result()

    lp.policies.lifecycle("trip", compensations={"unbook": unbook})
    session = await lp.create("trip", "ada", actor="user:ada")
    await session.runs.grant(1.0)
    await session.append("user.message", {"text": "go"}, actor="user:ada")
    await work(lp, "trip", trip)
    await work(lp, "hotel", waits)
    (key,) = await session.runs.children()
    await session.terminate("rain", actor="user:ada")
    await work(lp, "trip", trip)
    assert undone == ["1b ticket 1b", "1a ticket 1a"]
    await work(lp, "hotel", waits)
    child = await lp.get(key)
    await session.refresh()
    assert child.phase == "terminated"
    assert not await session.runs.children()
    assert session.runs.budget is not None
    assert session.runs.budget.remaining.cost == 1.0
    assert not await lp.work.claim("w", limit=10)
    assert (await lp.maintenance.verify()).ok


async def test_a_compensation_that_cannot_be_done_is_a_dead_letter(lp: Limpet) -> None:
    """It is listed, requeued and done."""
    breaks = [True]

    async def unbook(session: limpet.Session[Any], effect: limpet.PastEffect) -> None:
        if breaks:
            raise ConnectionError(breaks.pop())

    async def trip(turn: limpet.Turn) -> None:
        await turn.effect("book", lambda seat: seat, seat="1a", compensate="unbook")

    lp.policies.lifecycle("trip", compensations={"unbook": unbook})
    session = await lp.create("trip", "ada", actor="user:ada")
    await session.append("user.message", {"text": "go"}, actor="user:ada")
    await work(lp, "trip", trip)
    await session.terminate(actor="user:ada")
    await work(lp, "trip", trip, retries=0)
    assert [head.key for head in (await lp.work.dead_letters(app="trip")).items] == [session.key]
    await lp.work.requeue(session.key)
    await work(lp, "trip", trip, retries=0)
    assert not (await lp.work.dead_letters(app="trip")).items
    kinds = [e.type for e in await session.read() if e.type.startswith("effect.comp")]
    assert kinds == [
        "effect.compensating",
        "effect.compensation_failed",
        "effect.compensating",
        "effect.compensated",
    ]
