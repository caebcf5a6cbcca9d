"""Retries: failed sessions are held back, and the others go first."""

from __future__ import annotations

from limpet.errors import SessionFenced
from limpet.model import runnable_us
from limpet.store.leases import LeaseStore
from limpet.testing.commits import add, draft, key, load, picture, refused
from limpet.testing.laws.log.facts import timer
from limpet.testing.leases import Age, claim, claimed, due, ids, prioritized, renew

A, B, C = key("a"), key("b"), key("c")


class RetryLaws:
    """For stores with leases."""

    async def test_what_failed_lets_the_others_go_first(self, store: LeaseStore, age: Age) -> None:
        """A session released for a retry is claimed at that time and not before."""
        await due(store, A, 1_000)
        await due(store, B, 2_000)
        (lease,) = await claim(store, 1)
        assert await store.release(lease, 60)
        held = (await load(store, A)).head
        assert (held.fence, held.worker) == (lease.fence, None)
        assert runnable_us(held) == held.lease_us
        assert (await store.verify(None)).ok
        (next_,) = await claim(store)
        assert (lease.key, next_.key) == (A, B)
        assert await store.release(next_, 3_600)
        await age(59)
        assert await claim(store) == ()
        await age(1)
        (again,) = await claim(store)
        assert (again.key, again.fence) == (A, lease.fence + 1)
        await add(store, A, timer("new", 2_000))
        assert await store.release(again)
        assert runnable_us((await load(store, A)).head) == 1_000

    async def test_retried_at_once_it_stands_at_the_end(self, store: LeaseStore, age: Age) -> None:
        """It is due at once, but after all sessions that were already due."""
        await due(store, A, 1_000)
        await due(store, B, 2_000)
        (lease,) = await claim(store, 1)
        assert await store.release(lease, 0)
        assert (lease.key, ids(await claim(store))) == (A, "ba")

    async def test_what_is_held_back_is_held_by_nobody(self, store: LeaseStore) -> None:
        """The lease is over: it cannot write, renew or release again."""
        lease = await claimed(store)
        await add(store, A, fence=lease.fence)
        assert await store.release(lease, 60)
        for fence in (lease.fence, lease.fence + 1, 0):
            async with refused(store, SessionFenced):
                await add(store, A, fence=fence)
        async with refused(store, SessionFenced):
            await renew(store, lease, 60)
        before = await picture(store)
        assert await store.release(lease) is False
        assert await store.release(lease, 5) is False
        assert await picture(store) == before

    async def test_input_does_not_end_the_holding_back(self, store: LeaseStore, age: Age) -> None:
        """Input is recorded, and is due when the retry time comes."""
        lease = await claimed(store)
        await store.release(lease, 60)
        held_us = (await load(store, A)).head.lease_us
        made = await add(store, A, draft("user.said"), prioritized(9))
        await add(store, A, draft("session.timer_cleared", {"name": "t"}))
        head = (await load(store, A)).head
        assert (made.head.lease_us, head.lease_us, runnable_us(head)) == (held_us,) * 3
        assert await claim(store) == ()
        assert (await store.verify(None)).ok
        await age(60)
        (lease,) = await claim(store)
        assert lease.reasons.pending_us == made.events[0].at_us

    async def test_a_lock_takes_what_is_held_back(self, store: LeaseStore) -> None:
        """A lock on this session succeeds at once, and afterwards it is due as usual."""
        lease = await claimed(store)
        await store.release(lease, 60)
        lock = await store.acquire(A, "me", 60)
        assert lock.fence == lease.fence + 1
        assert (await add(store, A, fence=lock.fence)).head.worker == "me"
        assert await store.release(lock)
        assert ids(await claim(store)) == "a"

    async def test_only_a_held_lease_holds_back(self, store: LeaseStore, age: Age) -> None:
        """A late worker cannot make its successor's session wait."""
        old = await claimed(store)
        await age(61)
        assert await store.release(old, 60) is False
        (new,) = await claim(store)
        assert await store.release(old, 60) is False
        assert (await add(store, A, fence=new.fence)).head.worker == "w"
