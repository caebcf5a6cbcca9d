"""Deadlines: finding the sessions whose time has come, and what a phase lets a commit record."""

from __future__ import annotations

from datetime import timedelta

import pytest

from limpet.errors import InvalidTransition, SessionEnded, SessionSuspended
from limpet.model import Key
from limpet.model.facts.documents import document_created
from limpet.model.facts.phases import transition
from limpet.model.facts.timeouts import Timeouts, timeouts_set
from limpet.store.leases import LeaseStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, addition, create, draft, key, load, ready

A, B, C = key("a"), key("b"), key("c")
OVER, SECOND, DAY = timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=1)


def limits(absolute: timedelta) -> Timeouts:
    return Timeouts(absolute=absolute)


class DeadlineLaws:
    """For stores with leases."""

    async def test_expired_finds_what_is_past_its_deadline(
        self, store: LeaseStore, clock: FakeClock
    ) -> None:
        """The earliest first; what has no deadline, or one to come, is not found."""
        for of in (A, B, C):
            await create(store, of)
        assert await store.expired(limit=10) == ((), None)
        await add(store, B, ready(timeouts_set(limits(OVER))))
        await add(store, A, ready(timeouts_set(limits(2 * OVER))))
        await add(store, C, ready(timeouts_set(limits(DAY))))
        clock.advance(SECOND)
        keys, more = await store.expired(limit=10)
        assert (set(keys), more) == ({A, B}, None)

    async def test_expired_goes_on_from_where_it_ended(
        self, store: LeaseStore, clock: FakeClock
    ) -> None:
        """Page by page each session is met once."""
        made = [key(f"s{n}") for n in range(7)]
        for of in made:
            await create(store, of)
            await add(store, of, ready(timeouts_set(limits(OVER))))
        clock.advance(SECOND)
        met: list[Key] = []
        after = None
        while True:
            keys, after = await store.expired(limit=3, after=after)
            met += keys
            if after is None:
                break
        assert sorted(met) == sorted(made)

    async def test_expired_passes_over_what_is_held(
        self, store: LeaseStore, clock: FakeClock
    ) -> None:
        """A session that a worker holds is found again when it was released."""
        await create(store, A)
        await add(store, A, ready(timeouts_set(limits(OVER))))
        clock.advance(SECOND)
        lease = await store.acquire(A, "w", 60)
        assert await store.expired(limit=10) == ((), None)
        await store.release(lease)
        assert (await store.expired(limit=10))[0] == (A,)

    async def test_expired_leaves_reserved_apps_alone(self, store: LeaseStore) -> None:
        """Documents have no life."""
        of = Key("$agents", "*", "x")
        fact = document_created(of, 1, actor="user:ada")
        await store.commit((addition(of, ready(fact), expect=0),))
        assert await store.expired(limit=10) == ((), None)

    async def test_a_deadline_follows_activity_and_phase(
        self, store: LeaseStore, clock: FakeClock
    ) -> None:
        """The deadline index matches the head after every event."""
        await create(store, A)
        spans = Timeouts(idle=OVER, grace=DAY, expiry=OVER)
        await add(store, A, ready(timeouts_set(spans)))
        clock.advance(SECOND)
        assert (await store.expired(limit=10))[0] == (A,)
        await add(store, A, ready(transition("active", "suspend")))
        assert (await store.expired(limit=10))[0] == ()
        await add(store, A, ready(transition("suspended", "terminate")))
        clock.advance(SECOND)
        assert (await store.expired(limit=10))[0] == (A,)
        assert (await store.verify(None)).ok

    async def test_a_phase_is_judged_on_the_newest_state(self, store: LeaseStore) -> None:
        """A commit that the phase refuses records nothing, whatever its writer knew."""
        await create(store, A)
        await add(store, A, ready(transition("active", "suspend")))
        with pytest.raises(SessionSuspended):
            await add(store, A, draft())
        with pytest.raises(InvalidTransition):
            await add(store, A, ready(transition("active", "suspend")))
        await add(store, A, draft("user.message", {"text": "hi"}))
        await add(store, A, ready(transition("suspended", "terminate")))
        with pytest.raises(SessionEnded):
            await add(store, A, draft("user.message", {"text": "hi"}))
        assert (await load(store, A)).head.version == 4
        assert (await store.verify(None)).ok

    async def test_a_session_that_is_not_active_is_not_claimed(self, store: LeaseStore) -> None:
        """Input waits, and is due again when the session is active."""
        await create(store, A)
        await add(store, A, draft("user.message", {"text": "hi"}))
        await add(store, A, ready(transition("active", "suspend")))
        assert await store.claim("w", limit=1, lease_seconds=60) == ()
        await add(store, A, ready(transition("suspended", "resume")))
        await add(store, A, ready(transition("resumed", "reactivate")))
        assert len(await store.claim("w", limit=1, lease_seconds=60)) == 1
