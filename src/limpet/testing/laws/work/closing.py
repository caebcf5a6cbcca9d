"""Closing a turn: the last event and the end of the lease are one commit; many leases are renewed
at once."""

from __future__ import annotations

import msgspec
import pytest

from limpet.errors import (
    LimpetError,
    NotPending,
    SessionConflict,
    SessionDeleted,
    SessionFenced,
    SessionNotFound,
)
from limpet.model import Commit, Key, Lease, Prepared
from limpet.store.leases import LeaseStore
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, refused
from limpet.testing.laws.log.facts import processed, timer
from limpet.testing.leases import Age, claim, claimed, due, ids, is_held_back, renew

A, B, C = key("a"), key("b"), key("c")


def closing(lease: Lease, *drafts: Prepared, **conditions: int) -> Commit:
    """The commit that ends a turn and its lease."""
    made = addition(lease.key, *drafts, **conditions)  # type: ignore[arg-type]  # only numbers
    return msgspec.structs.replace(made, release=lease)


async def asked(store: LeaseStore, of: Key = A) -> Lease:
    """The lease on a session with one input, at seq 2."""
    await create(store, of)
    await add(store, of, draft("user.said"))
    (lease,) = await claim(store)
    return lease


class CloseLaws:
    """For stores with leases, beside WorkLaws, whose `age` they use."""

    async def test_a_turn_is_closed_by_its_last_commit(self, store: LeaseStore) -> None:
        """The events are there, nobody holds the session, and nothing is left to do."""
        lease = await asked(store)
        (made,) = await store.commit([closing(lease, processed(2), draft("agent.said"))])
        assert [event.seq for event in made.events] == [3, 4]
        head = made.head
        assert (head.worker, head.lease_us, head.leased_us) == (None, None, None)
        assert (head.fence, head.pending) == (1, 0)
        assert (await load(store, A)).head == head
        assert await store.release(lease) is False
        assert await claim(store) == ()
        async with refused(store, SessionFenced):
            await add(store, A, fence=lease.fence)
        assert (await store.verify(None)).findings == ()

    async def test_what_is_left_to_do_is_held_back_as_by_a_release(
        self, store: LeaseStore, age: Age
    ) -> None:
        """An input that was not processed is due again after a moment; a new one is due at once."""
        lease = await asked(store)
        await store.commit([closing(lease, draft("agent.said"))])
        assert await is_held_back(store, A)
        await age(2)
        (lease,) = await claim(store)
        assert lease.fence == 2
        await store.commit([closing(lease, draft("user.said"))])
        assert [lease.fence for lease in await claim(store)] == [3]

    async def test_a_refused_commit_ends_no_lease(self, store: LeaseStore) -> None:
        """Event and end are one: what is refused leaves both as they were."""
        lease = await asked(store)
        await create(store, B)
        bad: list[tuple[list[Commit], type[LimpetError]]] = [
            ([closing(lease, processed(9))], NotPending),
            ([closing(lease, expect=1)], SessionConflict),
            ([closing(lease), addition(B, expect=7)], SessionConflict),
            ([closing(lease), addition(key("never"))], SessionNotFound),
            ([closing(msgspec.structs.replace(lease, fence=2))], SessionFenced),
        ]
        for commits, error in bad:
            async with refused(store, error):
                await store.commit(commits)
        await add(store, A, fence=lease.fence)
        assert await store.release(lease) is True

    async def test_only_a_held_lease_closes(self, store: LeaseStore, age: Age) -> None:
        """One that ended, was given back or was taken over writes nothing."""
        lease = await asked(store)
        await age(61)
        async with refused(store, SessionFenced):
            await store.commit([closing(lease)])
        (other,) = await claim(store, worker="other")
        async with refused(store, SessionFenced):
            await store.commit([closing(lease)])
        await store.commit([closing(other, processed(2))])
        async with refused(store, SessionFenced):
            await store.commit([closing(other)])

    async def test_a_retry_of_a_closing_commit_is_a_repeat(self, store: LeaseStore) -> None:
        """Its answer was lost: it is answered again, and ends no later lease."""
        lease = await asked(store)
        commit = closing(lease, draft(id="last"))
        (first,) = await store.commit([commit])
        again = await store.acquire(A, "other", 60)
        (repeat,) = await store.commit([commit])
        assert (repeat.repeated, repeat.events) == (1, first.events)
        assert (await load(store, A)).head.worker == "other"
        assert await store.release(again) is True

    async def test_a_lock_is_ended_by_a_commit_too(self, store: LeaseStore) -> None:
        """It leaves the session as due as it was."""
        await due(store, A)
        lock = await store.acquire(A, "w", 60)
        await store.commit([closing(lock)])
        assert ids(await claim(store)) == "a"

    async def test_many_turns_close_in_one_call(self, store: LeaseStore) -> None:
        """All of them, or none if one is refused."""
        for of in (A, B, C):
            await due(store, of)
        leases = await claim(store)
        stale = msgspec.structs.replace(leases[1], fence=9)
        async with refused(store, SessionFenced):
            await store.commit([closing(leases[0]), closing(stale), closing(leases[2])])
        await store.commit([closing(lease) for lease in leases])
        for of in (A, B, C):
            assert (await load(store, of)).head.worker is None
            assert len(await log(store, of)) == 3

    # --- renewing many -------------------------------------------------------------------------

    async def test_many_leases_are_renewed_at_once(self, store: LeaseStore, age: Age) -> None:
        """Each for its own length, or all for the one that is given."""
        for of in (A, B):
            await create(store, of)
        one, two = await store.acquire(A, "w", 10), await store.acquire(B, "w", 60)
        await age(5)
        first, second = await store.renew([one, two], None)
        assert isinstance(first, Lease)
        assert isinstance(second, Lease)
        assert (first.fence, second.fence) == (one.fence, two.fence)
        assert one.until_us < first.until_us < two.until_us < second.until_us
        assert (await load(store, A)).head.lease_us == first.until_us
        assert (first.lease_seconds, second.lease_seconds) == (10, 60)
        both = await store.renew([first, second], 1_000)
        assert [lease.lease_seconds for lease in both if isinstance(lease, Lease)] == [1_000] * 2
        heads = [(await load(store, of)).head for of in (A, B)]
        assert [h.lease_us for h in heads] == [x.until_us for x in both if isinstance(x, Lease)]
        assert await store.renew([], None) == ()

    async def test_a_lost_lease_keeps_no_other_from_being_renewed(self, store: LeaseStore) -> None:
        """In its place stands why, and the others are held for longer."""
        held = await claimed(store, A)
        for of in (B, C):
            await create(store, of)
        given_back, gone = await store.acquire(B, "w", 60), await store.acquire(C, "w", 60)
        await store.release(given_back)
        await store.delete(C)
        never = msgspec.structs.replace(held, key=key("never"))
        answers = await store.renew([given_back, held, gone, never], 500)
        kinds = [type(answer) for answer in answers]
        assert kinds == [SessionFenced, Lease, SessionDeleted, SessionNotFound]
        renewed = answers[1]
        assert isinstance(renewed, Lease)
        assert renewed.until_us > held.until_us
        assert (await load(store, A)).head.lease_us == renewed.until_us

    async def test_a_lease_is_of_one_session_not_of_its_key(self, store: LeaseStore) -> None:
        """After the session was deleted and its key used again, its old lease moves nothing."""
        old = await claimed(store, A)
        await store.delete(A)
        await store.commit([msgspec.structs.replace(creation(A), reuse=True)])
        await add(store, A, timer("t", 1_000))
        (new,) = await claim(store)
        assert new.fence == old.fence
        with pytest.raises(SessionFenced):
            await renew(store, old, 60)
        assert await store.release(old) is False
        late = msgspec.structs.replace(addition(A, draft()), release=old)
        async with refused(store, SessionFenced):
            await store.commit([late])
        assert (await renew(store, new, 60)).uid == new.uid
