"""Seconds of wakes: counted as they end, and a limit like cost and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import limpet
from limpet.errors import BudgetReached
from tests.support.agents import LEASE_SECONDS, Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_each_wake_counts_from_its_claim_to_its_end(world: World) -> None:
    """Without a commit of its own; one that raises counts like any other, and a pause does not."""

    async def harness(turn: limpet.Turn) -> None:
        world.later(2.5)
        if turn.attempt == 1:
            raise ValueError
        await turn.approve("ship", {})

    session = await world.begin("hi")
    await world.work(harness)
    assert session.runs.usage == limpet.Usage(compute_seconds=2.5)
    world.later(10)
    await world.work(harness)
    assert session.status == "idle"
    assert session.runs.usage.compute_seconds == 5
    world.later(1_000)
    await session.confirm(session.blocked_on[0].id, allow=True)
    commits = world.store.commits
    await world.work(lambda turn: harness(turn))
    assert session.runs.usage.compute_seconds == 7.5
    assert world.store.commits <= commits + 3


async def test_a_wake_that_died_counts_as_long_as_its_lease(world: World) -> None:
    """Nobody knows when it died: the session was held until then."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("one", lambda: 1)
        await turn.step("two", lambda: 2)

    session = await world.begin("hi")
    assert await world.die(harness, 2, recorded=False)
    world.later(100)
    await world.work(harness)
    assert session.stop_reason == "end_turn"
    assert session.runs.usage.compute_seconds == LEASE_SECONDS


async def test_a_call_beyond_the_limit_is_not_made(world: World) -> None:
    """The turn waits, as for cost and tokens, and goes on when more is granted."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        for order in (1, 2):
            await turn.effect("refund", bank.refund, order=order)
            if turn.attempt == 1:
                world.later(6)

    session = await world.begin("hi")
    await session.runs.grant(limpet.Budget(compute_seconds=5), actor="user:ada")
    (woken,) = await world.work(harness)
    assert woken.reason == "budget_reached"
    assert isinstance(woken.error, BudgetReached)
    assert woken.error.name == "compute_seconds"
    assert len(bank.done) == 1
    assert (session.status, session.stop_reason) == ("idle", "budget_reached")
    assert not await world.work(harness)
    await session.runs.grant(limpet.Budget(compute_seconds=5), actor="user:ada")
    await world.work(harness)
    assert session.stop_reason == "end_turn"
    assert len(bank.done) == 2
    budget = session.runs.budget
    assert budget is not None
    assert (budget.limit.compute_seconds, budget.spent.compute_seconds) == (10, 6)
