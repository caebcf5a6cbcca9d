"""Keys that are used again: only if asked, by another session, and not by writers to the first."""

from __future__ import annotations

import msgspec
import pytest

from limpet.errors import SessionDeleted, SessionErased, SessionExists, SessionNotFound
from limpet.model import Commit, FrozenDict, Head, Key, checkpoints_of
from limpet.model.adopt import adopted
from limpet.store.protocol import Committed, Exchange, Query, Standing, Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, refused

A, B = key("a"), key("b")


def reusing(of: Key = A, n: int = 0, **labels: str) -> Commit:
    """The commit that creates a session also under a key that was used."""
    return msgspec.structs.replace(creation(of, {"n": n}, labels), reuse=True)


def to(uid: str, *commits: Commit) -> list[Commit]:
    """The same commits, meant for the session with this uid."""
    return [msgspec.structs.replace(commit, uid=uid) for commit in commits]


async def used_again(store: Store) -> tuple[Committed, Committed]:
    """A session that was deleted, and the one that has its key now."""
    (first,) = await store.commit([creation(A, {"n": 7, "old": 1}, {"plan": "old"})])
    await add(store, A, draft("user.said", id="mine"), draft())
    await store.delete(A)
    (second,) = await store.commit([reusing(A, 1, plan="new")])
    return first, second


class ReuseLaws:
    async def test_a_deleted_key_is_used_again_only_if_asked(self, store: Store) -> None:
        """Without it a creation is refused, whatever else it says."""
        await create(store, A)
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit([creation(A)])
        (made,) = await store.commit([reusing()])
        assert (made.head.version, made.fields) == (1, {"n": 0})
        async with refused(store, SessionExists):
            await store.commit([reusing()])
        await store.commit([reusing(B)])  # a key that never was used
        await store.erase(B)
        async with refused(store, SessionErased):
            await store.commit([reusing(B)])

    async def test_another_session_has_the_key_now(self, store: Store) -> None:
        """Nothing of the first is in it: not its events, state, labels, inputs or ids."""
        first, second = await used_again(store)
        assert first.head.uid != second.head.uid
        loaded = await load(store, A)
        assert (loaded.head, loaded.fields) == (second.head, {"n": 1})
        assert [event.seq for event in await log(store, A)] == [1]
        assert await store.pending_inputs(A, limit=9) == ()
        assert await store.read_ids(A, ["mine"]) == ()
        for label, heads in (("old", ()), ("new", (second.head,))):
            query = Query(app="shop", labels=FrozenDict({"plan": label}))
            assert (await store.heads(query, cursor=None, limit=9)).items == heads
        made = await add(store, A, draft(id="mine", inc={"n": 1}))
        assert (made.repeated, made.events[0].seq, made.fields["n"]) == (0, 2, 2)
        assert (await store.verify(None)).findings == ()

    async def test_who_means_the_first_does_not_write_to_the_second(self, store: Store) -> None:
        """By its uid: neither new events, nor conditions, nor retries."""
        first, second = await used_again(store)
        late = (addition(A), addition(A, draft(id="mine")), addition(A, expect=1))
        for commit in to(first.head.uid, *late):
            async with refused(store, SessionDeleted):
                await store.commit([commit])
        async with refused(store, SessionDeleted):
            await store.commit([creation(B), *to(first.head.uid, addition(A))])
        (made,) = await store.commit(to(second.head.uid, addition(A)))
        assert made.head.version == 2

    async def test_a_retried_creation_does_not_bring_a_deleted_session_back(
        self, store: Store
    ) -> None:
        """Under its own event id it would have the uid of the first: SessionDeleted, also later."""
        again = msgspec.structs.replace(creation(A, id="mine"), reuse=True)
        (first,) = await store.commit([again])
        assert (await store.commit([again]))[0].repeated == 1
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit([again])
        (second,) = await store.commit([reusing()])
        assert second.head.uid != first.head.uid
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit([again])

    async def test_a_uid_is_compared_before_it_is_used_again_too(self, store: Store) -> None:
        """The right one is let through; a wrong one, or one of no session, is told so."""
        first = await create(store, A)
        await store.commit(to(first.head.uid, addition(A)))
        async with refused(store, SessionDeleted):
            await store.commit(to("another", addition(A)))
        async with refused(store, SessionNotFound):
            await store.commit(to(first.head.uid, addition(B)))
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit(to(first.head.uid, addition(A)))

    async def test_every_end_of_a_key_is_kept(self, store: Store) -> None:
        """A tombstone for each, in the order of their ends, paged one by one."""
        first, second = await used_again(store)
        await store.delete(A, ending="moved")
        third = (await store.commit([reusing(A, 2)]))[0]
        await create(store, B)
        await store.delete(B)
        heads: list[Head] = []
        cursor = None
        while True:
            query = Query(app="shop", deleted=True, reverse=False)
            page = await store.heads(query, cursor=cursor, limit=1)
            heads += page.items
            cursor = page.cursor
            if cursor is None:
                break
        assert [(head.key, head.ending) for head in heads] == [
            (A, "deleted"),
            (A, "moved"),
            (B, "deleted"),
        ]
        assert [head.uid for head in heads[:2]] == [first.head.uid, second.head.uid]
        assert (await load(store, A)).head.uid == third.head.uid
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("living", [True, False])
    async def test_erasing_a_key_erases_all_that_had_it(
        self, store: Store, *, living: bool
    ) -> None:
        """The certificate is of the last of them, and the key is not used again."""
        _, second = await used_again(store)
        if not living:
            await store.delete(A)
        certificate = await store.erase(A)
        assert certificate is not None
        assert (certificate.version, certificate.link) == (1, second.head.link)
        page = await store.heads(Query(app="shop", deleted=True), cursor=None, limit=9)
        assert page.items == ()
        async with refused(store, SessionErased):
            await store.commit([reusing()])
        assert (await store.verify(None)).findings == ()

    async def test_what_went_on_is_not_removed_at_an_older_place(self, store: Store) -> None:
        """Nor are its checkpoints, nor another session: nothing is lost that was recorded since."""
        first = (await create(store, A)).head
        await add(store, A)
        other = msgspec.structs.replace(creation(checkpoints_of(A)), reuse=True)
        await store.commit([other])
        wrong = [Standing(first.uid, 1), Standing(first.uid, 2, 0), Standing(first.uid, 2, 2)]
        for place in (*wrong, Standing(other.drafts[0].id, 2)):
            assert await store.delete(A, ending="moved", at=place) is False
        assert await store.delete(B, at=Standing(first.uid, 2)) is False
        assert (await load(store, A)).head.version == 2
        assert await store.delete(A, ending="moved", at=Standing(first.uid, 2, 1)) is True
        assert await store.delete(A, ending="moved", at=Standing(first.uid, 2)) is False
        for each in (A, checkpoints_of(A)):
            async with refused(store, SessionDeleted):
                await add(store, each)
        await store.commit([reusing()])
        assert (await store.verify(None)).findings == ()

    async def test_a_session_takes_the_key_of_another_in_one_step(self, store: Store) -> None:
        """With its log and its labels, which are listed under the key; the first has ended, with
        the log of its checkpoints, and what was given under its own key is not there any more."""
        first = (await create(store, A)).head
        await store.commit([creation(checkpoints_of(A))])
        (second,) = await store.commit([creation(B, {"n": 2}, {"plan": "gold"})])
        await add(store, B)
        other = key("checkpoints")
        (third,) = await store.commit([creation(other)])
        swaps = [
            Exchange(A, Standing(first.uid, 1, 1), B),
            Exchange(checkpoints_of(A), None, other),
        ]
        assert await store.exchange(swaps) is True
        taken = await load(store, A)
        assert (taken.head.uid, taken.head.version) == (second.head.uid, 2)
        assert taken.fields["n"] == 2
        assert (await load(store, checkpoints_of(A))).head.uid == third.head.uid
        for gone in (B, other):
            async with refused(store, SessionNotFound):
                await load(store, gone)
        labels = FrozenDict({"plan": "gold"})
        page = await store.heads(Query(app=A.app, labels=labels), cursor=None, limit=9)
        assert [head.key for head in page.items] == [A]
        await add(store, A)
        assert [event.seq for event in await log(store, A)] == [1, 2, 3]
        async with refused(store, SessionDeleted):
            await store.commit(to(first.uid, addition(A)))
        dead = await store.heads(Query(app=A.app, deleted=True), cursor=None, limit=9)
        assert [(head.key, head.uid, head.ending) for head in dead.items] == [
            (A, first.uid, "moved")
        ]

    async def test_an_exchange_is_all_or_nothing(self, store: Store) -> None:
        """One session that does not stand where it should, one that is not there, or a key that is
        taken or erased, and nothing has changed."""
        first, second = (await create(store, A)).head, (await create(store, B)).head
        free, erased, missing = key("free"), key("erased"), key("missing")
        await create(store, erased)
        await store.erase(erased)
        good = Exchange(A, Standing(first.uid, 1), None)
        for wrong in (
            Exchange(B, Standing(second.uid, 2), None),
            Exchange(B, Standing(first.uid, 1), None),
            Exchange(B, Standing(second.uid, 1, 1), None),
            Exchange(B, None, None),
            Exchange(free, None, missing),
            Exchange(missing, Standing(first.uid, None), None),
            Exchange(erased, None, B),
            Exchange(free, None, A),  # it has ended by then
            Exchange(free, None, B, Standing(second.uid, 2)),  # it does not stand there
            Exchange(free, None, B, Standing(first.uid, 1)),
        ):
            assert await store.exchange([good, wrong]) is False, wrong
            for each, head in ((A, first), (B, second)):
                assert (await load(store, each)).head == head
                await store.commit(to(head.uid, Commit(each, (), head.version)))
        taken = Exchange(free, None, B, Standing(second.uid, 1))
        assert await store.exchange([good, taken]) is True
        assert (await load(store, free)).head.uid == second.uid
        async with refused(store, SessionDeleted):
            await load(store, A)
        assert (await store.verify(free)).ok is False  # its first event names another key

    async def test_a_session_that_came_back_is_not_its_rows_from_before(self, store: Store) -> None:
        """The same head may be that of other rows: whoever knew them writes to those there now."""
        first = (await create(store, A)).head
        await add(store, A)
        records = await store.records(A, after=0, limit=9)  # type: ignore[attr-defined]  # Records
        for _ in range(2):
            drafts = tuple([adopted(each.event, each.raw, each.salt) for each in records])
            await store.commit([Commit(B, drafts, reuse=True)])
            assert await store.exchange([Exchange(A, Standing(first.uid, None), B)]) is True
            (made,) = await store.commit(to(first.uid, addition(A)))
            assert made.events[0].seq == 3
            assert [event.seq for event in await log(store, A)] == [1, 2, 3]
            assert (await store.verify(None)).findings == ()

    async def test_what_moved_away_is_deleted_here(self, store: Store) -> None:
        """It is refused as any deleted session is, and says how it ended in its tombstone."""
        await create(store, A)
        assert await store.delete(A, ending="moved") is True
        async with refused(store, SessionDeleted):
            await add(store, A)
        page = await store.heads(Query(app="shop", deleted=True), cursor=None, limit=9)
        assert [(head.key, head.ending) for head in page.items] == [(A, "moved")]
