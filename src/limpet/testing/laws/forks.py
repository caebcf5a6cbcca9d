"""Logs that begin on a state: forks, what they read of their parents, and how parents end."""

from __future__ import annotations

import msgspec
import pytest

from limpet.errors import (
    InvalidEvent,
    LimpetError,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionHasForks,
    SessionMoved,
    SessionNotFound,
)
from limpet.model import Base, Event, FrozenDict, Key, checksum
from limpet.store.protocol import Forks, Query, Store
from limpet.testing.commits import add, create, creation, draft, key, load, log, picture, refused
from limpet.testing.histories import RecordStore, base_at, fork, forking, plain
from limpet.testing.laws.log.facts import processed, timer

A, B, C, D = key("a"), key("b"), key("c"), key("d")


async def parent(store: Store, of: Key = A) -> None:
    """Six events: its creation, two inputs of which one is processed, a note, and a timer."""
    await store.commit([creation(of, {"n": 1, "list": ["x"]}, {"plan": "gold"})])
    await add(store, of, draft("user.said", {"text": "one"}))
    await add(store, of, draft("user.said", {"text": "two"}, inc={"n": 1}))
    await add(store, of, processed(2))
    await add(store, of, draft(add={"list": ["y"]}))
    await add(store, of, timer("t", 5))


async def lineage(store: Store) -> None:
    """B is a fork of A after event 4, C of B after event 6."""
    await parent(store)
    await fork(store, B, A, 4, draft(inc={"n": 10}), draft(id="mine"))
    await fork(store, C, B, 6, draft(inc={"n": 100}))


class ForkLaws:
    # --- beginning -----------------------------------------------------------------------------

    async def test_a_fork_begins_on_its_parents_state(self, store: RecordStore) -> None:
        """State, versions and chain go on from the parent's event; the rest begins with the fork.

        Its labels are its own, its time of creation is that of its first event, and nothing that
        the parent had pending or set is pending or set in it.
        """
        await parent(store)
        base = await base_at(store, A, 5)
        (made,) = await store.commit([forking(B, base, draft(inc={"n": 1}), plan="tried")])
        head = made.head
        assert (head.floor, head.version, head.uid) == (5, 7, made.events[0].id)
        assert (head.created_us, head.labels) == (made.events[0].at_us, {"plan": "tried"})
        assert (head.pending, head.timers, head.fence) == (0, {}, 0)
        assert made.fields == {"n": 3, "list": ["x", "y"]}
        assert made.versions == {"n": 7, "list": 5}
        assert await store.base(B) == base
        assert await store.base(A) is None
        loaded = await load(store, B)
        assert (loaded.head, loaded.fields, loaded.versions) == (head, made.fields, made.versions)
        assert await store.forks(A) == (B,)
        assert (await store.verify(None)).findings == ()

    async def test_what_a_fork_is_refused_for_changes_nothing(self, store: Store) -> None:
        """Another state than its first event names, a link or an event that is not the parent's."""
        await parent(store)
        base = await base_at(store, A, 4)
        other = FrozenDict({"n": 7})
        bad: list[tuple[Base, type[LimpetError]]] = [
            (_but(base, fields=other), InvalidEvent),
            (_but(base, link=b"x" * 32), SessionConflict),
            (_but(base, floor=3), SessionConflict),
            (_but(base, floor=7), SessionConflict),
            (_but(base, floor=0), SessionConflict),
            (_but(base, uid="another"), SessionNotFound),
            (_but(base, parent=D), SessionNotFound),
        ]
        for wrong, error in bad:
            async with refused(store, error):
                await store.commit([forking(B, wrong)])
        unlike = msgspec.structs.replace(forking(B, base), base=_but(base, fields=other))
        sworn = _but(base, fields=other, checksum=checksum(other))
        for wrong_commit in (unlike, msgspec.structs.replace(forking(B, base), base=sworn)):
            async with refused(store, InvalidEvent):
                await store.commit([wrong_commit])
        assert await store.forks(A) == ()

    async def test_a_fork_needs_a_living_parent_and_a_free_key(self, store: Store) -> None:
        """A deleted or erased parent has no forks any more, and no key is taken twice."""
        await parent(store)
        base = await base_at(store, A, 4)
        await create(store, B)
        async with refused(store, SessionExists):
            await store.commit([forking(B, base)])
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit([forking(C, base)])
        await store.erase(A)
        async with refused(store, SessionErased):
            await store.commit([forking(C, base)])

    async def test_what_has_departed_is_not_forked(self, store: Store) -> None:
        """Also on a state from before: what it goes on from is in another store."""
        await parent(store)
        base = await base_at(store, A, 4)
        leaving = {"to": "there", "from": "here", "epoch": 1}
        await add(store, A, draft("session.departed", leaving))
        async with refused(store, SessionMoved):
            await store.commit([forking(B, base)])

    # --- reading through -----------------------------------------------------------------------

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_a_history_is_read_through_to_its_parents(
        self, store: Store, size: int, *, reverse: bool
    ) -> None:
        """Every event once in either direction, each from the session that recorded it."""
        await lineage(store)
        events = await _pages(store, C, size, reverse=reverse)
        ordered = events[::-1] if reverse else events
        assert [event.seq for event in ordered] == [1, 2, 3, 4, 5, 6, 7, 8]
        own = [*(await log(store, A))[:4], *(await log(store, B))[4:6], *ordered[6:]]
        assert plain(ordered) == plain(own)
        assert (await load(store, C)).events == tuple(ordered)
        assert (await load(store, C, 5)).events == tuple(ordered[3:])

    async def test_types_select_in_the_whole_history(self, store: Store) -> None:
        """A family or a type, also where only the parent has it."""
        await lineage(store)
        said = await store.read(C, after=0, limit=9, reverse=False, types=("user.*",))
        assert [event.seq for event in said] == [2, 3]
        begun = await store.read(C, after=0, limit=2, reverse=True, types=("session.*",))
        assert [(e.seq, e.type) for e in begun] == [(7, "session.forked"), (5, "session.forked")]

    async def test_an_inherited_input_is_not_pending(self, store: Store) -> None:
        """Inputs pending in the parent at the fork count as processed by the fork's first event."""
        await lineage(store)
        await add(store, A, processed(3))  # the parent's own business
        for of in (B, C):
            one, two = (await log(store, of))[1:3]
            assert (one.processed, two.processed) == (4, 5)
            began = (await log(store, of))[4]
            assert two.processed_us == began.at_us
            assert await store.pending_inputs(of, limit=9) == ()
        assert (await log(store, A))[2].processed == 7
        made = await add(store, C, draft("user.said"))
        assert await store.pending_inputs(C, limit=9) == made.events
        assert (await store.verify(None)).findings == ()

    async def test_ids_are_a_sessions_own(self, store: Store) -> None:
        """A fork does not know its parent's ids: the same id is another event there."""
        await lineage(store)
        first = (await log(store, A))[0]
        assert await store.read_ids(C, [first.id, "mine"]) == ()
        (mine,) = await store.read_ids(B, ["mine", first.id])
        assert (mine.seq, mine.id) == (7, "mine")
        again = await add(store, C, draft(id="mine", inc={"n": 1}))
        assert (again.repeated, again.events[0].seq) == (0, 9)
        assert (await add(store, C, draft(id="mine"))).events == again.events

    async def test_a_fork_and_its_parent_go_their_own_ways(self, store: Store) -> None:
        """Events of a fork and its parent stay apart; shared names stay shared."""
        await lineage(store)
        before = await load(store, A)
        await add(store, B, draft(set={"n": 0, "app:seen": 1}))
        await add(store, A, draft(inc={"n": 5}), expect=6)
        assert (await load(store, B)).fields["n"] == 0
        assert (await load(store, C)).fields["n"] == 112
        now = await load(store, A)
        assert (now.fields["n"], now.head.version) == (before.fields["n"] + 5, 7)
        assert now.scopes["app:seen"].value == 1
        async with refused(store, SessionConflict):
            await add(store, C, guards={"n": 3})
        await add(store, C, draft(inc={"n": 1}), guards={"n": 8, "list": 1})
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("ending", ["", "delete", "keep"])
    async def test_a_fork_may_begin_on_what_its_parent_inherited(
        self, store: Store, ending: str
    ) -> None:
        """After an event below the parent's own floor: it reads through both."""
        await lineage(store)
        made = await fork(store, D, B, 3, draft(inc={"n": 7}))
        assert (made.head.floor, made.fields["n"]) == (3, 9)
        if ending == "delete":
            for of in (B, A):
                await store.delete(of)
        elif ending == "keep":
            await store.erase(A, forks="keep")
        events = await log(store, D)
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert [event.removed for event in events[:3]] == [ending == "keep"] * 3
        if ending != "keep":
            assert [event.processed for event in events[:3]] == [None, 4, 4]
            assert plain(events[:3]) == plain((await log(store, C))[:3])
        assert (await load(store, D)).fields["n"] == 9
        assert (await store.verify(None)).findings == ()

    async def test_a_fork_is_listed_with_its_state(self, store: Store) -> None:
        """A page with states shows what a load does."""
        await lineage(store)
        page = await store.heads(
            Query(app="shop", reverse=False), cursor=None, limit=9, states=True
        )
        assert [head.key for head in page.items] == [A, B, C]
        for head in page.items:
            loaded = await load(store, head.key)
            assert (head, page.states[head.key]) == (loaded.head, loaded.fields)

    async def test_any_version_of_a_history_is_folded(self, store: Store) -> None:
        """Below its floor a fork was its parent."""
        await lineage(store)
        folds = [(await store.fold_at(C, seq)).fields["n"] for seq in range(1, 9)]
        assert folds == [1, 1, 2, 2, 2, 12, 12, 112]  # 5 and 7 are where forks begin
        assert (await store.fold_at(C, 4)).head.uid == (await load(store, A)).head.uid

    # --- ends ----------------------------------------------------------------------------------

    async def test_a_fork_outlives_the_deletion_of_its_parents(self, store: Store) -> None:
        """It reads on what it stands on, however far down and in whatever order they go."""
        await lineage(store)
        before = [(await load(store, of), await log(store, of)) for of in (B, C)]
        await store.delete(A)
        assert [(await load(store, of), await log(store, of)) for of in (B, C)] == before
        assert (await store.fold_at(C, 3)).fields["n"] == 2
        assert await store.forks(A) == (B,)
        await store.delete(B)
        assert (await load(store, C), await log(store, C)) == before[1]
        made = await add(store, C, draft(inc={"n": 1}))
        assert made.fields["n"] == 113
        assert (await store.verify(None)).findings == ()
        for gone in (A, B):
            with pytest.raises(SessionDeleted):
                await log(store, gone)

    async def test_when_the_last_fork_goes_so_does_what_it_stood_on(self, store: Store) -> None:
        """Verification finds nothing left of ended sessions."""
        await lineage(store)
        for of in (A, B, C):
            await store.delete(of)
        report = await store.verify(None)
        assert (report.findings, report.sessions, report.events) == ((), 0, 0)
        assert await store.forks(A) == await store.forks(B) == ()

    async def test_erase_refuses_to_take_the_ground_from_forks(self, store: Store) -> None:
        """Living or deleted, and also where the fork itself is deleted and its fork lives on."""
        await lineage(store)
        for of, forks in ((A, (B,)), (B, (C,))):
            async with refused(store, SessionHasForks) as info:
                await store.erase(of)
            assert info.value.forks == forks  # type: ignore[attr-defined]
        await store.delete(A)
        await store.delete(B)
        for of in (A, B):
            async with refused(store, SessionHasForks) as info:
                await store.erase(of)
            assert info.value.forks == (C,)  # type: ignore[attr-defined]
        assert len(await log(store, C)) == 8
        await store.erase(C)
        assert await store.erase(A) is not None
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("first", [None, A, B])
    async def test_erase_takes_forks_along(self, store: Store, first: Key | None) -> None:
        """With their own, also through one that was deleted; other sessions stay."""
        await lineage(store)
        await fork(store, D, A, 1)
        await create(store, key("e"))
        if first is not None:
            await store.delete(first)
        certificate = await store.erase(A, forks="erase")
        assert certificate is not None
        assert (certificate.version, certificate.forks_kept) == (6, 0)
        for gone in (A, C, D):
            with pytest.raises(SessionErased):
                await load(store, gone)
        with pytest.raises(SessionDeleted if first == B else SessionErased):
            await load(store, B)
        assert [loaded.head.key for loaded in await picture(store)] == [key("e")]
        assert (await store.verify(None)).findings == ()

    async def test_erase_lets_forks_keep_their_state(self, store: RecordStore) -> None:
        """They go on; below their floor is nothing but the place of each event."""
        await lineage(store)
        before = {of: await load(store, of) for of in (B, C)}
        certificate = await store.erase(A, forks="keep")
        assert certificate is not None
        assert certificate.forks_kept == 1
        for of, was in before.items():
            now = await load(store, of)
            assert (now.head, now.fields, now.versions) == (was.head, was.fields, was.versions)
            assert now.damaged == ()
            events = await log(store, of)
            assert [event.removed for event in events] == [seq <= 4 for seq in _seqs(events)]
            assert plain(events[4:]) == plain(was.events[4:])
            assert events[::-1] == tuple(await _pages(store, of, 3, reverse=True))
            with pytest.raises(SessionCorrupt):
                await store.fold_at(of, 3)
            assert (await store.fold_at(of, 6)).fields["n"] == 12
        assert (await store.read(C, after=0, limit=9, reverse=False, types=("user.*",))) == ()
        assert (await add(store, C, draft(inc={"n": 1}))).fields["n"] == 113
        base = await store.base(B)
        assert base is not None
        assert base.fields == {"n": 2, "list": ["x"]}
        assert (await store.verify(None)).findings == ()
        assert await store.erase(A) == certificate

    async def test_erasing_a_fork_leaves_its_parent(self, store: Store) -> None:
        """Only its own events are its own."""
        await lineage(store)
        before = await load(store, A)
        assert await store.erase(B, forks="keep") is not None
        assert await load(store, A) == before
        assert await store.forks(A) == ()
        assert [event.removed for event in await log(store, C)] == [True] * 6 + [False] * 2
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("forks", ["erase", "keep"])
    async def test_a_key_may_be_its_own_grandchild(self, store: Store, forks: Forks) -> None:
        """A fork of a fork under the key of the deleted first one: erasing the key comes to an
        end."""
        await parent(store)
        await fork(store, B, A, 4)
        await store.delete(A)
        again = msgspec.structs.replace(forking(A, await base_at(store, B, 5)), reuse=True)
        await store.commit([again])
        assert len(await log(store, A)) == 6
        with pytest.raises(SessionHasForks):
            await store.erase(A)
        assert await store.erase(A, forks=forks) is not None
        with pytest.raises(SessionErased):
            await load(store, A)
        if forks == "erase":
            with pytest.raises(SessionErased):
                await load(store, B)
        else:
            assert (await load(store, B)).fields["n"] == 2
        assert (await store.verify(None)).findings == ()

    async def test_a_key_does_not_stand_in_its_own_way(self, store: Store) -> None:
        """A fork of a key's deleted session that has the same key is erased with it."""
        await parent(store)
        await fork(store, B, A, 4)
        await store.delete(A)
        again = msgspec.structs.replace(forking(A, await base_at(store, B, 5)), reuse=True)
        await store.commit([again])
        await store.delete(B)
        assert await store.erase(A) is not None
        assert (await store.verify(None)).findings == ()


async def _pages(store: Store, of: Key, size: int, *, reverse: bool) -> list[Event]:
    """The whole history, page by page."""
    events: list[Event] = []
    after = 0
    while page := await store.read(of, after=after, limit=size, reverse=reverse, types=None):
        events += page
        after = page[-1].seq
        if reverse and after == 1:
            break
    return events


def _seqs(events: tuple[Event, ...]) -> list[int]:
    return [event.seq for event in events]


def _but(base: Base, **change: object) -> Base:
    return msgspec.structs.replace(base, **change)
