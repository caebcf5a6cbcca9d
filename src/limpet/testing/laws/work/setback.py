"""A clock that is set back: the log keeps its time, due times follow the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeAlias

import pytest

from limpet.errors import SessionLocked
from limpet.model import runnable_us
from limpet.store.leases import LeaseStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, draft, key, load, log
from limpet.testing.laws.log.facts import processed
from limpet.testing.leases import claim, ids, renew

Leap: TypeAlias = Callable[[float], Awaitable[None]]
A, B = key("a"), key("b")
HOUR: Final = 3_600
_MINUTE_US: Final = 60_000_000


class SetBackLaws:
    """For stores with leases. A store without the suite's clock overrides `leap`."""

    @pytest.fixture
    def leap(self, clock: FakeClock) -> Leap:
        """Sets the store's clock ahead or back by this many seconds."""

        async def leap(seconds: float) -> None:
            clock.leap(timedelta(seconds=seconds))

        return leap

    async def test_new_input_is_due_now_though_the_log_is_ahead(
        self, store: LeaseStore, leap: Leap
    ) -> None:
        """Its event has the log's time, and a claim returns the session at once, and again."""
        await leap(HOUR)
        ahead = (await create(store, A)).events[0].at_us
        await leap(-HOUR)
        now_us = (await create(store, B)).events[0].at_us
        made = await add(store, A, draft("user.said"))
        assert made.events[0].at_us == ahead
        assert now_us <= (made.head.pending_us or 0) < ahead
        assert (await load(store, A)).head == made.head
        assert (await store.verify(None)).findings == ()
        (lease,) = await claim(store)
        assert await store.release(lease, 0)
        assert ids(await claim(store)) == "a"

    async def test_what_is_left_pending_is_due_now_too(self, store: LeaseStore, leap: Leap) -> None:
        """Input from before the clock was set back, once anything is recorded, and what remains
        when some of it was processed."""
        await leap(HOUR)
        await create(store, A)
        await add(store, A, draft("user.said"), draft("user.said"))
        await leap(-HOUR)
        now_us = (await create(store, B)).events[0].at_us
        assert await claim(store) == ()
        first = await add(store, A, draft("agent.said"))
        assert now_us <= (first.head.pending_us or 0) < now_us + _MINUTE_US
        second = await add(store, A, processed(2))
        assert now_us <= (second.head.pending_us or 0) < now_us + _MINUTE_US
        assert (await load(store, A)).head == second.head
        assert (await store.verify(None)).findings == ()
        assert ids(await claim(store)) == "a"
        times = [event.at_us for event in await log(store, A)]
        assert times == sorted(times)

    @pytest.mark.parametrize("way", ["claim", "acquire", "renew", "retry"])
    async def test_a_lease_of_a_clock_that_was_ahead_ends_in_its_time(
        self, store: LeaseStore, leap: Leap, way: str
    ) -> None:
        """Five seconds are five seconds for others, however far ahead the clock was."""
        await create(store, A)
        await add(store, A, draft("user.said"))
        await leap(HOUR)
        lease = await store.acquire(A, "dead", 5)
        if way == "claim":
            await store.release(lease, 0)
            (lease,) = await store.claim("dead", limit=1, lease_seconds=5)
        elif way == "renew":
            lease = await renew(store, lease, 5)
        elif way == "retry":
            await store.release(lease, 5)
        await leap(-HOUR)
        assert await claim(store) == ()  # measured again: it lasts from now
        if way != "retry":
            with pytest.raises(SessionLocked):
                await store.acquire(A, "other", 5)
        await leap(6)
        (again,) = await store.claim("other", limit=1, lease_seconds=5)
        assert (again.key, again.fence) == (A, lease.fence + 1)
        assert (await store.verify(None)).findings == ()

    async def test_a_lease_of_a_clock_that_was_ahead_is_measured_for_whoever_is_refused(
        self, store: LeaseStore, leap: Leap
    ) -> None:
        """From then on, and not by a lock of another session that is granted."""
        await create(store, A)
        await create(store, B)
        await leap(HOUR)
        lease = await store.acquire(A, "dead", 5)
        await leap(-HOUR)
        await store.acquire(B, "other", 60)
        assert (await load(store, A)).head.lease_us == lease.until_us
        with pytest.raises(SessionLocked):
            await store.acquire(A, "other", 5)
        until_us = (await load(store, A)).head.lease_us
        assert until_us is not None
        assert until_us < lease.until_us - 60_000_000
        await leap(6)
        assert (await store.acquire(A, "other", 5)).fence == lease.fence + 1

    async def test_a_lease_and_a_retry_last_as_long_as_they_say(
        self, store: LeaseStore, leap: Leap
    ) -> None:
        """They count from the clock, not from the session's log."""
        await leap(HOUR)
        await create(store, A)
        await leap(-HOUR)
        now_us = (await create(store, B)).events[0].at_us
        await add(store, A, draft("user.said"))
        (lease,) = await store.claim("w", limit=1, lease_seconds=5)
        assert 5_000_000 <= lease.until_us - now_us < _MINUTE_US
        lease = await store.acquire(A, "w", 5)
        assert 5_000_000 <= lease.until_us - now_us < _MINUTE_US
        lease = await renew(store, lease, 5)
        assert 5_000_000 <= lease.until_us - now_us < _MINUTE_US
        assert await store.release(lease, 5)
        held_us = runnable_us((await load(store, A)).head)
        assert held_us is not None
        assert 5_000_000 <= held_us - now_us < _MINUTE_US
        assert (await store.verify(None)).findings == ()
