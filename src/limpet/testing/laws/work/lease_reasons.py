"""Lease reasons: what a session was due for, and sessions that are released unchanged."""

from __future__ import annotations

import msgspec

from limpet.model import Key, Lease, Reasons, runnable_us, to_time
from limpet.model.lease import LEFT_US
from limpet.store.leases import LeaseStore
from limpet.testing.commits import add, create, draft, key, load
from limpet.testing.laws.log.facts import processed, timer
from limpet.testing.leases import FAR_US, Age, claim, claimed, due, ids, is_held_back, renew

A, B = key("a"), key("b")
LEFT_SECONDS = LEFT_US / 1_000_000
SAID = "user.said"


async def _said(store: LeaseStore, times: int = 1) -> Lease:
    """A session with this many inputs from seq 2, claimed for them."""
    await create(store, A)
    await add(store, A, *(draft(SAID) for _ in range(times)))
    (lease,) = await claim(store)
    return lease


async def _is_due(store: LeaseStore, of: Key = A) -> bool:
    """True if a claim returns it at once, according to its inputs and timers."""
    return (await load(store, of)).head.lease_us is None and bool(await claim(store))


async def _cleared(store: LeaseStore, name: str) -> None:
    await add(store, A, draft("session.timer_cleared", {"name": name}))


class LeaseReasonLaws:
    """For stores with leases."""

    # --- what a lease tells of its claim -------------------------------------------------------

    async def test_a_lease_tells_when_it_was_claimed_and_for_which_timers(
        self, store: LeaseStore
    ) -> None:
        """By the store's clock; only due wake timers, the longest due first."""
        await due(store, A, 3_000, timer("b", 1_000), timer("later", FAR_US))
        await add(store, A, timer("end", 500, "deadline"))
        for lease in (*await claim(store), await store.acquire(A, "w", 60)):
            assert lease.timers == ("b", "t")
            assert lease.claimed_us == lease.until_us - 60_000_000
            assert lease.claimed_at == to_time(lease.claimed_us)
        assert lease.lock

    async def test_a_lease_without_a_due_timer_names_none(self, store: LeaseStore) -> None:
        """A claim for input, and a lock without work, have no timers."""
        lease = await _said(store)
        await create(store, B)
        assert (lease.timers, lease.lock) == ((), False)
        assert (await store.acquire(B, "me", 60)).timers == ()

    async def test_a_renewed_lease_keeps_its_claim(self, store: LeaseStore, age: Age) -> None:
        """Renewing and later events do not change when and why it was granted."""
        lease = await claimed(store)
        await age(5)
        await add(store, A, timer("new", 2_000))
        renewed = await renew(store, lease, 90)
        assert (renewed.claimed_us, renewed.timers) == (lease.claimed_us, ("t",))
        assert await store.release(renewed)
        assert await _is_due(store)

    # --- held back -----------------------------------------------------------------------------

    async def test_a_timer_that_was_left_is_held_back_for_a_moment(
        self, store: LeaseStore, age: Age
    ) -> None:
        """Nobody gets it before that moment, and then somebody does."""
        lease = await claimed(store)
        await add(store, A, draft("agent.said"), fence=lease.fence)
        assert await store.release(lease)
        assert await is_held_back(store, A)
        assert (await store.verify(None)).ok
        await age(LEFT_SECONDS)
        assert ids(await claim(store)) == "a"

    async def test_inputs_that_were_left_are_held_back_for_a_moment(
        self, store: LeaseStore, age: Age
    ) -> None:
        """Unprocessed inputs without anything new would only be claimed again."""
        lease = await _said(store, 2)
        assert await store.release(lease)
        assert await is_held_back(store, A)
        await age(LEFT_SECONDS)
        assert ids(await claim(store)) == "a"

    async def test_a_left_timer_is_held_back_though_inputs_were_processed(
        self, store: LeaseStore
    ) -> None:
        """The one remaining reason already existed at the claim."""
        await due(store, A, 1_000, draft(SAID))
        (lease,) = await claim(store)
        await add(store, A, processed(3), fence=lease.fence)
        assert await store.release(lease)
        assert await is_held_back(store, A)

    async def test_the_same_timer_set_again_is_the_same_timer(self, store: LeaseStore) -> None:
        """Setting it to the same time is not a new reason."""
        lease = await claimed(store)
        await add(store, A, timer("t", 1_000), fence=lease.fence)
        assert await store.release(lease)
        assert await is_held_back(store, A)

    async def test_a_timer_left_twice_is_held_back_twice(self, store: LeaseStore, age: Age) -> None:
        """Each round of such a worker takes at least that moment."""
        lease = await claimed(store)
        for _ in range(3):
            assert await store.release(lease)
            assert await is_held_back(store, A)
            await age(LEFT_SECONDS)
            (lease,) = await claim(store)
        assert lease.fence == 4

    # --- due at once ---------------------------------------------------------------------------

    async def test_input_that_came_meanwhile_is_due_at_once(self, store: LeaseStore) -> None:
        """Even if a timer or another input was left."""
        for lease in (await claimed(store), await _other(store)):
            await add(store, lease.key, draft(SAID))
            assert await store.release(lease)
            assert await _is_due(store, lease.key)

    async def test_inputs_done_one_at_a_time_are_due_at_once(self, store: LeaseStore) -> None:
        """A worker that processed one of several continues with the next without a pause."""
        lease = await _said(store, 3)
        for seq in (2, 3):
            await add(store, A, draft("agent.said"), processed(seq), fence=lease.fence)
            assert await store.release(lease)
            (lease,) = await claim(store)
        assert await store.release(lease)
        assert await is_held_back(store, A)

    async def test_a_new_timer_is_due_at_once(self, store: LeaseStore) -> None:
        """Another name, or the same name at another time, even in the past."""
        for name, at_us in (("u", 1_000), ("t", 999)):
            lease = await claimed(store, key(name))
            await add(store, lease.key, timer(name, at_us), fence=lease.fence)
            assert await store.release(lease)
            assert await _is_due(store, lease.key)

    async def test_a_timer_that_fell_due_meanwhile_is_due_at_once(self, store: LeaseStore) -> None:
        """It is not among the reasons of the lease."""
        await due(store, A, 1_000, timer("soon", 2_000))
        (lease,) = await claim(store)
        assert lease.timers == ("t", "soon")
        before = msgspec.structs.replace(lease, reasons=Reasons((("t", 1_000),)))
        assert await store.release(before)
        assert await _is_due(store)

    async def test_what_was_done_is_not_held_back(self, store: LeaseStore) -> None:
        """A session that is not due now keeps the time at which it will be."""
        lease = await claimed(store)
        await add(store, A, timer("later", FAR_US))
        await _cleared(store, "t")
        assert await store.release(lease)
        assert runnable_us((await load(store, A)).head) == FAR_US

    async def test_a_time_to_retry_goes_before(self, store: LeaseStore, age: Age) -> None:
        """An explicit retry time is used, even if it is at once."""
        lease = await claimed(store)
        assert await store.release(lease, 0)
        (lease,) = await claim(store)
        assert await store.release(lease, 60)
        await age(LEFT_SECONDS)
        assert await claim(store) == ()

    async def test_a_lock_leaves_a_session_as_due_as_it_was(self, store: LeaseStore) -> None:
        """The holder of a lock was not asked to do the session's work."""
        await due(store, A)
        lock = await store.acquire(A, "me", 60)
        assert await store.release(lock)
        assert runnable_us((await load(store, A)).head) == 1_000


async def _other(store: LeaseStore) -> Lease:
    await create(store, B)
    await add(store, B, draft(SAID))
    (lease,) = await claim(store)
    return lease
