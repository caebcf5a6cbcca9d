"""Work: claims, leases and their fences."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec import structs

from limpet.errors import (
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionLocked,
    SessionNotFound,
    StoreClosed,
)
from limpet.model import Lease, runnable_us
from limpet.model.lease import alone, is_alone
from limpet.store.leases import LeaseStore
from limpet.store.protocol import Query
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, draft, key, load, picture, refused
from limpet.testing.laws.log.facts import processed, timer
from limpet.testing.leases import FAR_US, Age, claim, claimed, due, ids, prioritized, renew

A, B, C = key("a"), key("b"), key("c")


class ClaimLaws:
    """Laws of claims: which session, by whom and for how long. A part of WorkLaws."""

    @pytest.fixture
    def age(self, clock: FakeClock) -> Age:
        """Lets this many seconds pass for every lease."""

        async def age(seconds: float) -> None:
            clock.advance(timedelta(seconds=seconds))

        return age

    # --- what is claimed -----------------------------------------------------------------------

    async def test_what_is_due_is_claimed_and_nothing_else(self, store: LeaseStore) -> None:
        """Pending input and past timers are due; future timers and idle sessions are not."""
        await create(store, A)
        await add(store, A, draft("user.said"))
        await due(store, B)
        await due(store, C, FAR_US)
        await create(store, key("d"))
        await create(store, key("e"))
        await add(store, key("e"), timer("end", 5, "deadline"))
        assert sorted(ids(await claim(store))) == ["a", "b"]
        assert await claim(store) == ()

    async def test_a_lease_tells_whose_it_is_and_until_when(self, store: LeaseStore) -> None:
        """The answer and the head agree, and the runnable time is the lease's end."""
        await due(store, A)
        before = (await load(store, A)).head
        (lease,) = await store.claim("w", limit=1, lease_seconds=60, app=None)
        head = (await load(store, A)).head
        assert (lease.key, lease.worker, lease.fence) == (A, "w", 1)
        assert (head.fence, head.lease_us, head.worker) == (1, lease.until_us, "w")
        assert runnable_us(head) == lease.until_us
        assert lease.lease_seconds == 60
        assert lease.until_us >= before.updated_us + 60_000_000
        (listed,) = (await store.heads(Query(), cursor=None, limit=9)).items
        assert listed == head

    async def test_the_longest_due_come_first(self, store: LeaseStore) -> None:
        """Independent of the order of creation."""
        for id, at_us in zip("abcde", (700, 300, 900, 100, 500), strict=True):
            await due(store, key(id), at_us)
        assert ids(await claim(store)) == "dbeac"

    async def test_priority_goes_before_time(self, store: LeaseStore) -> None:
        """From the highest to the lowest, and by time within one."""
        for id, at_us, priority in (
            ("a", 100, -5),
            ("b", 900, 1_000),
            ("c", 500, 0),
            ("d", 300, 7),
            ("e", 200, 7),
            ("f", 400, -1_000),
            ("g", 600, 0),
        ):
            await due(store, key(id), at_us, prioritized(priority))
        assert ids(await claim(store)) == "bedcgaf"

    async def test_a_priority_may_change(self, store: LeaseStore) -> None:
        """The latest one counts, in the head and in the order."""
        await due(store, A, 100, prioritized(9))
        await due(store, B, 200)
        made = await add(store, A, prioritized(-1))
        assert made.head.priority == (await load(store, A)).head.priority == -1
        assert ids(await claim(store)) == "ba"
        assert (await store.verify(None)).ok

    async def test_an_urgent_session_that_is_not_due_hides_no_other(
        self, store: LeaseStore
    ) -> None:
        """Each priority is searched for due sessions."""
        await due(store, A, FAR_US, prioritized(5))
        await due(store, B, 100, prioritized(-5))
        assert ids(await claim(store)) == "b"

    @pytest.mark.parametrize("limit", [1, 2, 5, 6])
    async def test_a_claim_takes_no_more_than_asked(self, store: LeaseStore, limit: int) -> None:
        """Also across priorities, and the next claim continues from there."""
        for place, id in enumerate("abcdef"):
            await due(store, key(id), 100 + place, prioritized(-(place // 2)))
        first = await claim(store, limit)
        assert ids(first) == "abcdef"[:limit]
        assert ids(await claim(store)) == "abcdef"[limit:]

    async def test_a_claim_may_be_of_one_app(self, store: LeaseStore) -> None:
        """Sessions of other apps are left alone; the order is the same."""
        for app, id, at_us in (("x", "1", 3), ("y", "2", 2), ("x", "3", 1)):
            await due(store, key(id, app=app), at_us)
        assert await claim(store, app="z") == ()
        assert ids(await claim(store, app="x")) == "31"
        assert ids(await claim(store)) == "2"

    async def test_what_was_deleted_or_erased_is_never_claimed(self, store: LeaseStore) -> None:
        """Neither while it was due nor while it was leased."""
        for id in "abcd":
            await due(store, key(id))
        leases = {lease.key: lease for lease in await claim(store, 2)}
        for of in [*leases, C, key("d")]:
            await (store.delete(of) if of.id in "ac" else store.erase(of))
        assert await claim(store) == ()
        for of, lease in leases.items():
            assert await store.release(lease) is False
            with pytest.raises(SessionDeleted if of.id in "ac" else SessionErased):
                await renew(store, lease, 60)

    async def test_a_claim_is_no_event(self, store: LeaseStore) -> None:
        """Leases come and go; versions, logs and state stay the same."""
        await due(store, A)
        before = await load(store, A)
        (lease,) = await claim(store)
        lease = await renew(store, lease, 90)
        during = await load(store, A)
        assert (await store.verify(None)).ok
        assert await store.release(lease)
        after = await load(store, A)
        for each in (during, after):
            assert (each.head.version, each.events, each.fields) == (2, before.events, {})
        assert (await store.verify(None)).ok

    # --- one holder at a time ------------------------------------------------------------------

    async def test_no_session_is_given_twice(self, store: LeaseStore) -> None:
        """Many claim at once: every due session is leased exactly once."""
        for n in range(30):
            await due(store, key(f"s{n}"), 100 + n % 7, prioritized(n % 3))
        leases: list[Lease] = []

        async def work(name: str) -> None:
            while got := await store.claim(name, limit=3, lease_seconds=60):
                assert {lease.worker for lease in got} == {name}
                leases.extend(got)

        await asyncio.gather(*(work(f"w{n}") for n in range(8)))
        while got := await claim(store):  # left by those who met a row being locked
            leases.extend(got)
        assert sorted(lease.key.id for lease in leases) == sorted(f"s{n}" for n in range(30))
        assert {lease.fence for lease in leases} == {1}

    async def test_an_expired_lease_is_due_again(self, store: LeaseStore, age: Age) -> None:
        """Not before its end; then with the next fence, for any worker."""
        first = await claimed(store)
        await age(40)
        assert await claim(store) == ()
        await age(20)
        (second,) = await claim(store, worker="other")
        assert (second.fence, second.worker) == (first.fence + 1, "other")

    async def test_an_expired_lease_is_as_due_as_its_end_is_past(
        self, store: LeaseStore, age: Age
    ) -> None:
        """Sessions that have waited longer come before it."""
        lease = await claimed(store)
        await due(store, B, 50)
        await age(61)
        assert lease.key == A
        assert ids(await claim(store)) == "ba"

    async def test_a_fence_only_grows(self, store: LeaseStore, age: Age) -> None:
        """Across claims, releases, locks, renewals and expiry, with commits in between."""
        lease = await claimed(store)
        fences = [lease.fence]
        assert await store.release(lease)
        fences.append((await load(store, A)).head.fence)
        lease = await store.acquire(A, "v", 10)
        fences.append((await renew(store, lease, 20)).fence)
        await age(21)
        fences.append((await add(store, A, prioritized(3))).head.fence)
        (lease,) = await claim(store)
        fences.append((await add(store, A, fence=lease.fence)).head.fence)
        assert fences == [1, 1, 2, 2, 3]
        assert (await store.verify(None)).ok

    # --- commits under a lease -----------------------------------------------------------------

    async def test_the_holder_writes_and_the_zombie_does_not(
        self, store: LeaseStore, age: Age
    ) -> None:
        """A commit with the fence of an old lease is refused; the current one is recorded."""
        old = await claimed(store)
        assert (await add(store, A, draft(set={"by": "old"}), fence=old.fence)).head.version == 3
        await age(61)
        (new,) = await claim(store, worker="new")
        async with refused(store, SessionFenced) as info:
            await add(store, A, draft(set={"by": "old"}), fence=old.fence)
        assert (info.value.fence, info.value.current) == (1, 2)  # type: ignore[attr-defined]
        made = await add(store, A, draft(set={"by": "new"}), fence=new.fence)
        assert made.fields == {"by": "new"}

    async def test_an_expired_holder_does_not_write(self, store: LeaseStore, age: Age) -> None:
        """Even if nobody else has claimed the session, and even if it was cached."""
        lease = await claimed(store)
        await add(store, A, fence=lease.fence)
        await age(60)
        async with refused(store, SessionFenced):
            await add(store, A, fence=lease.fence)
        assert (await add(store, A)).head.version == 4

    async def test_a_released_lease_does_not_write(self, store: LeaseStore) -> None:
        """After its release a lease can no longer write."""
        lease = await claimed(store)
        await store.release(lease)
        async with refused(store, SessionFenced):
            await add(store, A, fence=lease.fence)

    async def test_a_fence_that_was_never_given_is_refused(self, store: LeaseStore) -> None:
        """Neither the next number nor 0 belongs to a lease."""
        lease = await claimed(store)
        for fence in (lease.fence + 1, 0):
            async with refused(store, SessionFenced):
                await add(store, A, fence=fence)

    async def test_a_repeat_needs_no_lease(self, store: LeaseStore, age: Age) -> None:
        """A retry of a recorded write is answered even after the lease has ended."""
        lease = await claimed(store)
        made = await add(store, A, draft(id="once"), fence=lease.fence)
        await age(61)
        again = await add(store, A, draft(id="once"), fence=lease.fence)
        assert again.events == made.events

    async def test_others_may_write_to_a_leased_session(self, store: LeaseStore) -> None:
        """Input arrives while it runs; the runnable time stays the lease's end until it is given
        back, and then is the input's."""
        lease = await claimed(store)
        await add(store, A, draft("session.timer_cleared", {"name": "t"}))
        made = await add(store, A, draft("user.said"), prioritized(4))
        assert runnable_us(made.head) == lease.until_us
        assert (await load(store, A)).head == made.head
        assert (await store.verify(None)).ok
        await store.release(lease)
        assert runnable_us((await load(store, A)).head) == made.events[0].at_us
        assert ids(await claim(store)) == "a"

    async def test_work_done_and_released_is_not_due(self, store: LeaseStore) -> None:
        """The round of a worker: claim, process, release, and nothing is left to claim."""
        await create(store, A)
        await add(store, A, draft("user.said"))
        (lease,) = await claim(store)
        await add(store, A, draft("agent.said"), processed(2), fence=lease.fence)
        assert await store.release(lease)
        head = (await load(store, A)).head
        assert (head.lease_us, head.worker, runnable_us(head)) == (None, None, None)
        assert await claim(store) == ()

    # --- renewing and releasing ----------------------------------------------------------------

    async def test_a_renewed_lease_lasts_from_now(self, store: LeaseStore, age: Age) -> None:
        """Same fence and worker; nobody else gets the session for that long."""
        first = await claimed(store)
        await age(50)
        lease = await renew(store, first, 60)
        assert (lease.key, lease.worker, lease.fence) == (A, "w", first.fence)
        assert (await renew(store, lease, 5)).lease_seconds == 5
        assert (await renew(store, lease, 60)).lease_seconds == 60
        await age(50)
        assert await claim(store) == ()
        assert (await add(store, A, fence=first.fence)).head.lease_us is not None
        await age(10)
        assert ids(await claim(store)) == "a"

    async def test_only_a_held_lease_is_renewed(self, store: LeaseStore, age: Age) -> None:
        """Not one that ended, was released or replaced, and not one of a missing session."""
        lease = await claimed(store)
        await age(60)
        async with refused(store, SessionFenced):
            await renew(store, lease, 60)
        (new,) = await claim(store)
        async with refused(store, SessionFenced):
            await renew(store, lease, 60)
        assert await store.release(new)
        async with refused(store, SessionFenced):
            await renew(store, new, 60)
        with pytest.raises(SessionNotFound):
            await renew(store, Lease(B, "w", 1, 1), 60)

    async def test_only_a_held_lease_is_released(self, store: LeaseStore, age: Age) -> None:
        """A late release does not affect the next holder."""
        old = await claimed(store)
        await age(61)
        assert await store.release(old) is False
        (new,) = await claim(store)
        before = await picture(store)
        assert await store.release(old) is False
        assert await picture(store) == before
        assert await store.release(new) is True
        assert await store.release(new) is False
        assert await store.release(Lease(B, "w", 1, 1)) is False

    async def test_a_lease_tells_of_one_that_ran_out_before_it(
        self, store: LeaseStore, age: Age
    ) -> None:
        """By whom it was held; nothing of one that was released. A lock tells the same."""
        old = await claimed(store)
        assert old.expired is None
        await age(61)
        (new,) = await store.claim("next", limit=1, lease_seconds=60, app=None)
        assert new.expired is not None
        assert new.expired.worker == old.worker
        assert new.expired.until_us - new.expired.leased_us == 60_000_000
        assert await store.release(new, 0)
        await age(1)
        (again,) = await store.claim("last", limit=1, lease_seconds=60, app=None)
        assert again.expired is None
        await age(61)
        lock = await store.acquire(A, "me", 60)
        assert lock.expired is not None
        assert lock.expired.worker == "last"
        assert (await store.acquire(A, "me", 60)).expired is None, "it is held"

    async def test_a_renewal_says_if_the_holder_runs_nothing_else(
        self, store: LeaseStore, age: Age
    ) -> None:
        """By its name, which the next lease tells; nobody else's name is taken."""
        lease = await claimed(store)
        lonely = await renew(store, alone(lease), 60)
        assert is_alone(lonely.worker)
        assert (await load(store, A)).head.worker == f"{lease.worker}/alone"
        await renew(store, structs.replace(lonely, worker="somebody"), 60)
        assert (await load(store, A)).head.worker == f"{lease.worker}/alone"
        await renew(store, lease, 60)
        assert (await load(store, A)).head.worker == lease.worker
        await renew(store, lonely, 60)
        await age(61)
        (new,) = await store.claim("next", limit=1, lease_seconds=60, app=None)
        assert new.expired is not None
        assert is_alone(new.expired.worker)

    async def test_a_holder_that_comes_back_too_late_but_first_is_excused(
        self, store: LeaseStore, age: Age
    ) -> None:
        """Its release changes nothing, but the next lease tells that it lives."""
        lease = await claimed(store)
        await age(61)
        assert await store.release(lease) is False
        (new,) = await store.claim("next", limit=1, lease_seconds=60, app=None)
        assert new.expired is not None
        assert new.expired.excused
        await age(61)
        (last,) = await store.claim("last", limit=1, lease_seconds=60, app=None)
        assert await store.release(new) is False
        assert (await renew(store, last, 60)).fence == last.fence

    async def test_a_closed_store_gives_no_leases(self, store: LeaseStore) -> None:
        """Every call after close raises StoreClosed."""
        lease = await claimed(store)
        await store.close()
        for call in (
            lambda: claim(store),
            lambda: renew(store, lease, 60),
            lambda: store.release(lease),
            lambda: store.acquire(A, "me", 60),
        ):
            with pytest.raises(StoreClosed):
                await call()


class SharedWorkLaws:
    """For stores that several processes may open, beside WorkLaws."""

    async def test_two_instances_share_the_work(self, store: LeaseStore, other: LeaseStore) -> None:
        """A session leased by one is not leased by the other, however they race."""
        for n in range(20):
            await due(store, key(f"s{n}"))
        leases: list[Lease] = []

        async def work(at: LeaseStore, name: str) -> None:
            while got := await at.claim(name, limit=2, lease_seconds=60):
                leases.extend(got)

        await asyncio.gather(*(work(at, f"w{n}") for n in range(3) for at in (store, other)))
        while got := await claim(other):
            leases.extend(got)
        assert sorted(lease.key.id for lease in leases) == sorted(f"s{n}" for n in range(20))

    async def test_a_lease_of_the_other_is_seen(self, store: LeaseStore, other: LeaseStore) -> None:
        """By commits with a fence, by commits without one, and by locks."""
        await due(store, A)
        await add(store, A, draft(set={"n": 1}))
        (lease,) = await claim(other)
        made = await add(store, A, draft("user.said"))
        assert made.head == (await load(other, A)).head
        assert runnable_us(made.head) == lease.until_us
        with pytest.raises(SessionLocked):
            await store.acquire(A, "me", 60)
        with pytest.raises(SessionFenced):
            await add(store, A, fence=0)
        assert (await add(store, A, fence=lease.fence)).head.fence == lease.fence
        assert await store.release(lease)
        with pytest.raises(SessionFenced):
            await add(other, A, fence=lease.fence)
        assert (await add(other, A)).head == (await load(store, A)).head
        assert (await store.verify(None)).ok

    async def test_the_other_sees_what_is_held_back(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        """An instance that knew the lease learns that nobody holds it any more."""
        await due(store, A)
        (lease,) = await claim(store)
        await add(store, A, fence=lease.fence)
        assert await other.release(lease, 60)
        assert await claim(store) == ()
        async with refused(store, SessionFenced):
            await add(store, A, fence=lease.fence)
        made = await add(store, A)
        assert (made.head.worker, made.head) == (None, (await load(other, A)).head)
        assert (await store.acquire(A, "me", 60)).fence == lease.fence + 1

    async def test_a_zombie_elsewhere_is_refused(
        self, store: LeaseStore, other: LeaseStore, age: Age
    ) -> None:
        """The instance that granted the old lease learns of the new one in time."""
        await due(store, A)
        (old,) = await claim(store)
        await add(store, A, fence=old.fence)
        await age(61)
        (new,) = await claim(other)
        async with refused(store, SessionFenced):
            await add(store, A, fence=old.fence)
        assert (await add(store, A, fence=new.fence)).head.fence == new.fence
