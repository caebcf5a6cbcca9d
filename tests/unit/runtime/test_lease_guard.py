"""The hold of a wake on its session: nobody acts on the world under a lease that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.errors import StoreBusy, StoreClosed
from limpet.model.commit import Commit
from limpet.model.lease import Lease
from limpet.runtime import effects, run as hold, wake, worker
from limpet.store.protocol import Committed
from limpet.testing.clock import FakeClock
from tests.support.agents import APP, LEASE_SECONDS, MortalStore, World

OUTAGE = StoreBusy("it blinked")
PAST_THE_LEASE = timedelta(seconds=LEASE_SECONDS + 1)


class StallingStore(MortalStore):
    """A store whose caller stands still, or meets a fault, at a moment that a test chooses."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.stalls_after: dict[str, Callable[[], Any]] = {}  # by type of the event, once each
        self.renewals: list[Exception | None] = []  # what the next ones meet
        self.renewed = 0

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        answers = await super().commit(commits)
        for event in [event for answer in answers for event in answer.events]:
            if (stall := self.stalls_after.pop(event.type, None)) is not None:
                await stall()
        return answers

    async def renew(self, leases: Sequence[Lease], lease_seconds: float | None) -> Any:
        self.renewed += 1
        if self.renewals and (fault := self.renewals.pop(0)) is not None:
            raise fault
        return await super().renew(leases, lease_seconds)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    clock = FakeClock()
    store = StallingStore(clock)
    for module in (hold, wake, worker):
        monkeypatch.setattr(module, "steady_ns", clock.steady)
    monkeypatch.setattr(effects, "BACKOFF_SECONDS", 0)
    async with limpet.Limpet("memory://", store=store) as lp:
        lp._journal.now_us = lambda: clock.now_us  # type: ignore[method-assign]
        yield World(lp, store, clock)


def stores(world: World) -> StallingStore:
    assert isinstance(world.store, StallingStore)
    return world.store


async def taken_over(world: World) -> None:
    """The process stands still until its lease is over and another worker has the session."""
    world.clock.advance(PAST_THE_LEASE)
    assert await world.lp.work.claim("another", app=APP)


def paying(paid: list[int], in_between: Callable[[], Any], **how: Any) -> Any:
    """A harness whose payment fails at first, after whatever happens in between."""

    async def pay() -> str:
        paid.append(len(paid) + 1)
        if len(paid) == 1:
            await in_between()
            raise ConnectionError("reset")
        return "paid"

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, retries=3, **how)

    return harness


@pytest.mark.parametrize("on_unknown", ["ask", "retry"])
async def test_no_try_is_made_after_another_worker_has_taken_over(
    world: World, on_unknown: str
) -> None:
    """Between two tries it stood still for longer than its lease: it pays no second time."""
    paid: list[int] = []
    await world.begin("hi")
    harness = paying(paid, lambda: taken_over(world), on_unknown=on_unknown)
    (woken,) = await world.work(harness)
    assert (woken.reason, paid) == ("lease_lost", [1])
    assert "effect.failed" not in await world.types()


async def test_the_store_is_asked_before_every_further_try(world: World) -> None:
    """Also if this process's clock has not moved: only the store knows who has the session."""
    paid: list[int] = []

    async def locked_out() -> None:
        """The store's wall is set ahead; nothing in this process says that time has passed."""
        world.clock.leap(PAST_THE_LEASE)
        assert await world.lp.work.claim("another", app=APP)

    await world.begin("hi")
    (woken,) = await world.work(paying(paid, locked_out))
    assert (woken.reason, paid) == ("lease_lost", [1])


async def test_a_try_goes_on_while_the_lease_is_held(world: World) -> None:
    """The store is asked once before each try but the first, which renews the lease."""
    paid: list[int] = []

    async def nearly() -> None:
        world.clock.advance(timedelta(seconds=LEASE_SECONDS * 0.75))

    async def pays_slowly() -> str:
        paid.append(len(paid))
        await nearly()
        if len(paid) < 3:
            raise ConnectionError("reset")
        return "paid"

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("pay", pays_slowly, retries=3))

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, await world.said(), stores(world).renewed) == ("end_turn", ["paid"], 2)


@pytest.mark.parametrize("hours", [-30, -1, 1])
async def test_a_wall_that_jumps_between_two_tries_never_lets_two_workers_act(
    world: World, hours: int
) -> None:
    """Set back, the lease is still held and the try is made; set ahead, it is over."""
    paid: list[int] = []

    async def jumps() -> None:
        world.clock.leap(timedelta(hours=hours))

    await world.begin("hi")
    woken, *_ = await world.work(paying(paid, jumps))
    expected = ("end_turn", [1, 2]) if hours < 0 else ("lease_lost", [1])
    assert (woken.reason, paid) == expected


async def test_the_first_try_is_not_made_by_who_stood_still_after_the_intent(
    world: World,
) -> None:
    """The intent is durable, the act not begun: this process's own clock says to ask first."""
    paid: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))

    stores(world).stalls_after["effect.intended"] = lambda: taken_over(world)
    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, paid) == ("lease_lost", [])


async def test_who_stood_still_goes_on_if_the_store_says_that_it_may(world: World) -> None:
    """The clocks of the process and the store differ: the store's decides."""
    paid: list[str] = []

    async def slept() -> None:
        world.clock.advance(PAST_THE_LEASE)
        world.clock.leap(-PAST_THE_LEASE)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))

    stores(world).stalls_after["effect.intended"] = slept
    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, paid, stores(world).renewed) == ("end_turn", ["paid"], 1)


async def test_a_first_try_costs_no_question_while_the_lease_lasts(world: World) -> None:
    """The commit of the intent has proven it."""

    async def harness(turn: limpet.Turn) -> None:
        for _ in range(3):
            await turn.effect("pay", lambda: "paid")

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, stores(world).renewed) == ("end_turn", 0)


async def test_a_lost_answer_of_the_store_is_asked_for_again(world: World) -> None:
    """One fault does not leave the payment unknown."""
    paid: list[int] = []

    async def nothing() -> None:
        stores(world).renewals = [OUTAGE]

    await world.begin("hi")
    (woken,) = await world.work(paying(paid, nothing))
    assert (woken.reason, paid) == ("end_turn", [1, 2])


async def test_no_try_is_made_while_the_store_does_not_answer(world: World) -> None:
    """Nobody knows whether the lease is held: the turn fails, and is tried again later."""
    paid: list[int] = []

    async def outage() -> None:
        stores(world).renewals = [OUTAGE] * 99

    await world.begin("hi")
    (woken,) = await world.work(paying(paid, outage))
    assert (woken.reason, paid) == ("rescheduling", [1])
    assert isinstance(woken.error, limpet.StoreError)
    assert "effect.unknown" in await world.types()


async def test_who_stands_still_again_while_it_asks_asks_again(world: World) -> None:
    """The answer that the lease is held was old when it came."""
    paid: list[str] = []
    store = stores(world)
    renew = store.renew

    async def slowly(leases: Sequence[Lease], lease_seconds: float | None) -> Any:
        answer = await renew(leases, lease_seconds)
        if store.renewed == 1:
            await taken_over(world)
        return answer

    store.renew = slowly  # type: ignore[method-assign]

    async def slept() -> None:
        world.clock.advance(PAST_THE_LEASE)
        world.clock.leap(-PAST_THE_LEASE)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))

    store.stalls_after["effect.intended"] = slept
    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, paid) == ("lease_lost", [])


async def test_no_compensation_is_made_by_who_stood_still_after_its_intent(world: World) -> None:
    """Undoing is an act like any other: who takes over knows of the intent, and decides."""
    undone: list[str] = []
    undo = {"undo": lambda session, effect: undone.append(effect.name)}
    world.lp.policies.lifecycle(APP, compensations=undo)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: "paid", compensate="undo")

    session = await world.begin("hi")
    await world.work(harness)
    await session.terminate("enough")
    stores(world).stalls_after["effect.compensating"] = lambda: taken_over(world)
    await world.work(harness)
    assert undone == []
    assert "effect.compensated" not in await world.types()


async def test_a_fault_that_no_retry_helps_is_met_once(world: World) -> None:
    """The store is closed: nothing is asked again, and nothing is done."""
    paid: list[int] = []

    async def closed() -> None:
        stores(world).renewals = [StoreClosed()] * 99

    await world.begin("hi")
    (woken,) = await world.work(paying(paid, closed))
    assert (woken.reason, paid, stores(world).renewed) == ("rescheduling", [1], 1)


@pytest.mark.parametrize(("seconds", "asked"), [(LEASE_SECONDS, 1), (LEASE_SECONDS - 1, 0)])
async def test_a_lease_is_over_at_its_end(world: World, seconds: float, asked: int) -> None:
    """At that very moment, as the store sees it too."""
    paid: list[str] = []

    async def slept() -> None:
        world.clock.advance(timedelta(seconds=seconds))
        world.clock.leap(timedelta(seconds=-seconds))

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: paid.append("paid"))

    stores(world).stalls_after["effect.intended"] = slept
    await world.begin("hi")
    await world.work(harness)
    assert (paid, stores(world).renewed) == (["paid"], asked)


@pytest.mark.parametrize("by", ["wake", "worker"])
async def test_a_heartbeat_moves_the_end_of_the_hold(world: World, by: str) -> None:
    """While the lease is renewed, no first try of a long turn has to ask the store."""
    paid: list[str] = []
    beaten = asyncio.Event()
    store, seconds = stores(world), 0.03  # the beat is by real time, the end by the fake clock
    renew = store.renew

    async def once(leases: Sequence[Lease], lease_seconds: float | None) -> Any:
        if beaten.is_set():
            raise OUTAGE  # whoever asks now gets no answer
        answer = await renew(leases, lease_seconds)
        asyncio.get_running_loop().call_soon(beaten.set)
        return answer

    store.renew = once  # type: ignore[method-assign]

    async def harness(turn: limpet.Turn) -> None:
        world.clock.advance(timedelta(seconds=seconds * 0.9))
        await beaten.wait()
        world.clock.advance(timedelta(seconds=seconds * 0.5))  # beyond the first end
        await turn.effect("pay", lambda: paid.append("paid"))

    session = await world.begin("hi")
    if by == "wake":
        woken = await world.lp.wake(session.key, harness, lease_seconds=seconds)
        assert woken.reason == "end_turn"
    else:
        how: Any = {"lease_seconds": seconds, "max_turns": 1}
        assert (await limpet.Worker(world.lp, harness, app=APP, **how).run()).turns == 1
    assert paid == ["paid"]
