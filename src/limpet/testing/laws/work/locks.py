"""Locks: a lease on one named session, due or not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet.errors import (
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionLocked,
    SessionNotFound,
)
from limpet.model import Lease, runnable_us
from limpet.store.leases import LeaseStore
from limpet.testing.commits import add, create, key, load, refused
from limpet.testing.leases import Age, claim, claimed, due, renew

A, B, C = key("a"), key("b"), key("c")


class LockLaws:
    """For stores with leases."""

    async def test_a_lock_is_a_lease_on_any_session(self, store: LeaseStore) -> None:
        """Due or not; no claim returns it until it is released, and then it is as before."""
        await create(store, A)
        await due(store, B)
        for of in (A, B):
            lock = await store.acquire(of, "me", 60)
            assert (lock.key, lock.worker, lock.fence) == (of, "me", 1)
            assert lock.lease_seconds == 60
            assert (await load(store, of)).head.lease_us == lock.until_us
        assert await claim(store) == ()
        assert (await add(store, A, fence=1)).head.version == 2
        assert await store.release(await renew(store, Lease(A, "me", 1, 0), 60))
        assert runnable_us((await load(store, A)).head) is None

    async def test_a_lock_keeps_others_out_until_it_ends(self, store: LeaseStore, age: Age) -> None:
        """They learn who holds it and until when; a claim's lease counts as a lock too."""
        held = await claimed(store)
        async with refused(store, SessionLocked) as info:
            await store.acquire(A, "you", 60)
        error: Any = info.value
        assert (error.key, error.worker, error.until) == (A, "w", held.until)
        await age(60)
        assert (await store.acquire(A, "you", 60)).fence == held.fence + 1

    async def test_the_holder_may_take_its_lock_anew(self, store: LeaseStore) -> None:
        """It gets a new fence, and its old lease can no longer write."""
        await create(store, A)
        old = await store.acquire(A, "me", 60)
        new = await store.acquire(A, "me", 60)
        assert new.fence == old.fence + 1
        async with refused(store, SessionFenced):
            await add(store, A, fence=old.fence)

    async def test_of_racing_lockers_one_wins(self, store: LeaseStore) -> None:
        """The others get SessionLocked."""
        await create(store, A)
        answers = await asyncio.gather(
            *(store.acquire(A, f"w{n}", 60) for n in range(10)), return_exceptions=True
        )
        won = [answer for answer in answers if isinstance(answer, Lease)]
        assert len(won) == 1
        assert sum(type(answer) is SessionLocked for answer in answers) == 9
        assert (await load(store, A)).head.worker == won[0].worker

    async def test_what_is_not_there_cannot_be_locked(self, store: LeaseStore) -> None:
        """Missing, deleted and erased sessions raise the usual errors."""
        for of in (A, B):
            await create(store, of)
        await store.delete(A)
        await store.erase(B)
        for of, error in ((A, SessionDeleted), (B, SessionErased), (C, SessionNotFound)):
            with pytest.raises(error):
                await store.acquire(of, "me", 60)
