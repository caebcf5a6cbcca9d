"""Sharing: two instances on one store, as in two processes."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import ScopeFull, SessionConflict, SessionDeleted, SessionExists
from limpet.model import Commit
from limpet.model.limits import SCOPE_NAMES_MAX
from limpet.store.protocol import Query, Store, scope_fields
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, picture
from limpet.testing.laws.log.scope_limits import setting

A, B = key("a"), key("b")


class SharedLaws:
    """For stores that several processes may open. `other` is another instance on the same store."""

    async def test_both_are_the_same_store(self, store: Store, other: Store) -> None:
        """Its identity is the store's, not that of who opened it."""
        assert await store.identity() == await other.identity()

    async def test_each_sees_what_the_other_recorded(self, store: Store, other: Store) -> None:
        """Every later read, in any instance, returns an acknowledged commit."""
        await create(store, A, {"n": 1})
        assert (await load(other, A)).fields == {"n": 1}
        await add(other, A, draft(inc={"n": 1, "app:n": 1}))
        assert (await load(store, A)).fields == {"n": 2}
        assert await picture(store) == await picture(other)
        assert await log(store, A) == await log(other, A)

    async def test_writers_take_turns_without_a_stale_state(
        self, store: Store, other: Store
    ) -> None:
        """Each commit applies to what the other instance left, not to what was cached."""
        await create(store, A, {"n": 0, "app:n": 0})
        for turn in range(1, 11):
            writer = store if turn % 2 else other
            made = await add(writer, A, draft(inc={"n": 1, "app:n": 1}))
            assert (made.fields["n"], made.scopes["app:n"].value) == (turn, turn)
            assert made.head.version == turn + 1

    async def test_conditions_see_the_other_instance(self, store: Store, other: Store) -> None:
        """Expect, guards and creation are compared with what the other wrote."""
        await create(store, A, {"app:n": 0})
        await add(other, A, draft(inc={"app:n": 1}))
        with pytest.raises(SessionConflict):
            await add(store, A, expect=1)
        with pytest.raises(SessionConflict):
            await add(store, A, guards={"app:n": 1})
        with pytest.raises(SessionExists):
            await other.commit([creation(A)])

    async def test_a_look_sees_the_other_instance(self, store: Store, other: Store) -> None:
        """A session that is only looked at has to be at its version, by what the other wrote."""
        made = await create(store, A)
        await create(store, B)
        await add(other, A)
        with pytest.raises(SessionConflict):
            await store.commit([addition(B), Commit(A, (), 1, uid=made.head.uid)])
        assert (await load(other, B)).head.version == 1
        await store.commit([addition(B), Commit(A, (), 2, uid=made.head.uid)])
        assert (await load(other, B)).head.version == 2

    async def test_a_retry_elsewhere_is_a_repeat(self, store: Store, other: Store) -> None:
        """A draft sent to both instances is recorded once."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(each, A, draft(id="x", inc={"n": 1})) for each in (store, other) * 5)
        )
        assert len({answer.events for answer in answers}) == 1
        assert (await load(other, A)).fields == {"n": 1}

    async def test_an_end_here_is_an_end_there(self, store: Store, other: Store) -> None:
        """A session deleted by one instance is deleted for the other, cached or not."""
        await create(store, A)
        await add(other, A)
        await store.delete(A)
        with pytest.raises(SessionDeleted):
            await add(other, A)
        with pytest.raises(SessionDeleted):
            await load(other, A)

    async def test_no_update_is_lost_between_instances(self, store: Store, other: Store) -> None:
        """Racing increments of one session and of one shared name all count."""
        await create(store, A)
        await create(store, B)
        await asyncio.gather(
            *(
                add(each, of, draft(inc={"n": 1, "app:n": 1}))
                for _ in range(10)
                for each in (store, other)
                for of in (A, B)
            )
        )
        one, two = await load(store, A), await load(other, B)
        assert one.fields == two.fields == {"n": 20}
        assert one.scopes["app:n"].value == two.scopes["app:n"].value == 40
        for report in (await store.verify(None), await other.verify(None)):
            assert report.findings == ()
            assert report.events == 42

    async def test_racing_instances_do_not_pass_the_bound_of_names(
        self, store: Store, other: Store
    ) -> None:
        """Names that both add are counted together: as many succeed as there is room for."""
        keys = [key(str(number)) for number in range(12)]
        for of in keys:
            await create(store, of)
        await add(store, keys[0], setting(range(SCOPE_NAMES_MAX - 3)))
        outcomes = await asyncio.gather(
            *(
                add((store, other)[place % 2], of, setting((5_000 + place,)))
                for place, of in enumerate(keys)
            ),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes if isinstance(each, Exception)] == [ScopeFull] * 9
        for each in (store, other):
            assert len(scope_fields((await load(each, keys[0])).scopes)) == SCOPE_NAMES_MAX

    async def test_sessions_of_both_are_listed_in_order(self, store: Store, other: Store) -> None:
        """Both list all of them in one order, the newest first by the times of their creation.

        These are as exact as each instance knows the store's clock.
        """
        for n in range(6):
            await create(store if n % 2 else other, key(f"s{n}"))
        one, two = [await each.heads(Query(), cursor=None, limit=9) for each in (store, other)]
        assert one.items == two.items
        assert {head.key.id for head in one.items} == {f"s{n}" for n in range(6)}
        times = [head.created_us for head in one.items]
        assert times == sorted(times, reverse=True)

    async def test_the_pulse_tells_of_the_others_commits(self, store: Store, other: Store) -> None:
        """It changes after every commit of the other instance."""
        await create(store, A)
        for _ in range(5):
            before = store.pulse()
            await add(other, A)
            assert store.pulse() != before
        before = store.pulse()
        await other.delete(A)
        assert store.pulse() != before
