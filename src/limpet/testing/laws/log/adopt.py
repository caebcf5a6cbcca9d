"""Adopting: events that another store has recorded are taken just as they are, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet.errors import SessionConflict, SessionDeleted, SessionNotFound
from limpet.model import Commit, Origin, Prepared
from limpet.model.adopt import adopted
from limpet.store.memory import MemoryStore
from limpet.store.protocol import ChainedEvent, Query
from limpet.testing.commits import (
    ALL,
    add,
    addition,
    create,
    creation,
    draft,
    key,
    load,
    log,
    refused,
)
from limpet.testing.histories import RecordStore, adoption, fork, opened, plain, recorded
from limpet.testing.laws.log.facts import processed, timer

A, B = key("a"), key("b")
SPLITS = pytest.mark.parametrize("size", [1, 2, 3, 7])


async def elsewhere() -> MemoryStore:
    """Another store with a session of seven events, of which some write shared names."""
    source = MemoryStore()
    begun = {"n": 0, "app:n": 1, "user:lang": "en"}
    await source.commit([creation(A, begun, {"plan": "gold"})])
    await add(source, A, draft("user.said", {"text": "hi"}, id="x", inc={"n": 1, "app:n": 1}))
    await add(source, A, draft("tool.asked", {"what": "leave?"}, input=True))
    await add(source, A, processed(2))
    await add(source, A, timer("t", 5), draft(add={"list": ["é", 2**63 - 1, 0.5]}))
    await add(source, A, draft("agent.said", wake_id="w", cause="x", correlation_id="c"))
    return source


class AdoptLaws:
    @SPLITS
    async def test_a_log_is_adopted_as_it_is(self, store: RecordStore, size: int) -> None:
        """In pieces of any size: events, times, links, state and facts are the other store's."""
        source = await elsewhere()
        records = await recorded(source, A)
        for begin in range(0, len(records), size):
            await store.commit([adoption(A, records[begin : begin + size])])
        was, now = await load(source, A), await load(store, A)
        assert (now.head, now.fields, now.versions) == (was.head, was.fields, was.versions)
        assert now.events == was.events
        assert await recorded(store, A) == records
        assert await store.pending_inputs(A, limit=9) == await source.pending_inputs(A, limit=9)
        assert (await store.verify(None)).findings == ()

    async def test_a_log_is_adopted_without_being_decoded(self, store: RecordStore) -> None:
        """Its events are whole for whoever reads them, and for a retry beside it."""
        source = await elsewhere()
        await add(source, A, draft("note.long", {"text": "long " * 999}), draft(data={"short": 1}))
        records = await source.records(A, after=0, limit=99)
        drafts = [adopted(r.event, r.raw or b"", r.salt, r.compressed) for r in records]
        assert None in [made.data for made in drafts]
        again = addition(A, *[draft(id=made.id) for made in drafts])
        _, repeat = await store.commit([Commit(A, tuple(drafts)), again])
        assert repeat.repeated == len(drafts)
        assert plain(repeat.events) == plain(await log(source, A))
        for tail in (1, ALL):
            assert (await load(store, A, tail)).events == (await load(source, A, tail)).events
        assert await log(store, A) == await log(source, A)
        assert (await store.verify(None)).findings == ()

    async def test_what_comes_right_after_was_not_adopted(self, store: RecordStore) -> None:
        """Whose own operations on shared names count, also within one call."""
        piece = adoption(A, await recorded(await elsewhere(), A))
        own = addition(A, draft(inc={"app:mine": 1}))
        await store.commit([piece, own])
        assert (await load(store, A)).scopes["app:mine"].value == 1
        assert (await store.verify(None)).findings == ()

    async def test_what_was_adopted_can_be_adopted_from(self, store: RecordStore) -> None:
        """A log that went through three stores is the same in each."""
        records = await recorded(await elsewhere(), A)
        await store.commit([adoption(A, records)])
        third = MemoryStore()
        await third.commit([adoption(A, await recorded(store, A))])
        assert plain(await log(third, A)) == plain(await log(store, A))
        assert (await third.verify(None)).findings == ()

    async def test_adopting_again_is_harmless(self, store: RecordStore) -> None:
        """The same pieces, overlapping ones, and ones that go on from what is there."""
        records = await recorded(await elsewhere(), A)
        await store.commit([adoption(A, records[:4])])
        for piece, repeated in ((records[:4], 4), (records[2:4], 2), (records[1:6], 3)):
            (made,) = await store.commit([adoption(A, piece)])
            assert made.repeated == repeated
            assert plain(made.events) == plain([record.event for record in piece])
        (made,) = await store.commit([adoption(A, records)])
        assert (made.repeated, made.head.version) == (6, 7)
        assert await recorded(store, A) == records
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("place", [0, 3, 6])
    @pytest.mark.parametrize(
        "change",
        [
            {"link": b"x" * 32},
            {"salt": b"x" * 16},
            {"at_us": 1},
            {"at_us": 2**50},
            {"seq": 2},
            {"seq": 9},
        ],
        ids=str,
    )
    async def test_a_changed_record_is_refused(
        self, store: RecordStore, place: int, change: dict[str, Any]
    ) -> None:
        """Another link, salt, time or seq: all of the commit, also what stands before it."""
        records = await recorded(await elsewhere(), A)
        good = adoption(A, records)
        drafts = list(good.drafts)
        drafts[place] = _said(drafts[place], **change)
        async with refused(store, SessionConflict):
            await store.commit([msgspec.structs.replace(good, drafts=tuple(drafts))])
        await store.commit([adoption(A, records[:place])] if place else [creation(B)])
        async with refused(store, SessionConflict):
            await store.commit([msgspec.structs.replace(good, drafts=tuple(drafts[place:]))])

    @pytest.mark.parametrize(
        "change",
        [
            {"type": "agent.shouted"},
            {"actor": "you"},
            {"id": "another"},
            {"cause": None},
            {"wake_id": "v"},
            {"data": {"text": "changed"}},
            {"input": True},
        ],
        ids=str,
    )
    async def test_a_changed_event_is_refused(
        self, store: RecordStore, change: dict[str, Any]
    ) -> None:
        """A change to anything that the chain covers is detected."""
        records = await recorded(await elsewhere(), A)
        last = records[-1].event
        names: dict[str, Any] = {"cause": last.cause, "correlation_id": "c", "wake_id": "w"}
        said = draft(**{"type": last.type, "actor": last.actor, "id": last.id, **names, **change})
        origin = Origin(last.seq, last.at_us, records[-1].salt, last.link)
        await store.commit([adoption(A, records[:-1])])
        async with refused(store, SessionConflict):
            await store.commit([addition(A, msgspec.structs.replace(said, origin=origin))])

    async def test_order_is_kept_or_refused(self, store: RecordStore) -> None:
        """Reversed, with a hole, or without the beginning."""
        records = await recorded(await elsewhere(), A)
        async with refused(store, SessionNotFound):
            await store.commit([adoption(A, records[1:])])
        async with refused(store, SessionNotFound):
            await store.commit([adoption(A, records[::-1])])
        for wrong in ((records[0], *records[2:]), (records[0], records[2], records[1])):
            async with refused(store, SessionConflict):
                await store.commit([adoption(A, wrong)])
        await store.commit([adoption(A, records[:3])])
        async with refused(store, SessionConflict):
            await store.commit([adoption(A, records[4:])])

    async def test_another_log_under_the_key_is_not_mixed_with(self, store: RecordStore) -> None:
        """One that began here, and one that was adopted and went on here."""
        records = await recorded(await elsewhere(), A)
        await create(store, A)
        async with refused(store, SessionConflict):
            await store.commit([adoption(A, records)])
        async with refused(store, SessionConflict):
            await store.commit([adoption(A, records[1:])])
        other = await recorded(await elsewhere(), A)
        third = MemoryStore()
        await third.commit([adoption(A, records[:3])])
        await add(third, A, draft(id="x2"))
        async with refused(third, SessionConflict):
            await third.commit([adoption(A, records)])
        async with refused(third, SessionConflict):
            await third.commit([adoption(A, other[:3])])

    async def test_the_same_id_with_another_link_is_another_log(self, store: RecordStore) -> None:
        """It is not taken for a repeat."""
        one, other = await recorded(await elsewhere(), A), await recorded(await elsewhere(), A)
        await store.commit([adoption(A, one)])
        async with refused(store, SessionConflict):
            await store.commit([adoption(A, [_with_id(other[1], one[1].event.id)])])

    async def test_shared_names_are_not_the_adopted_logs_to_write(self, store: RecordStore) -> None:
        """They stay as they are here; later events of the session write them as any others do."""
        await create(store, B, {"app:n": 40})
        await store.commit([adoption(A, await recorded(await elsewhere(), A))])
        loaded = await load(store, A)
        assert {name: each.value for name, each in loaded.scopes.items()} == {"app:n": 40}
        assert (await store.verify(None)).findings == ()
        await add(store, A, draft(inc={"app:n": 2}))
        assert (await load(store, B)).scopes["app:n"].value == 42
        assert (await store.verify(None)).findings == ()

    async def test_an_adopted_session_goes_on(self, store: RecordStore) -> None:
        """New events follow, are dated by this store, and a retry of an old id is a repeat."""
        records = await recorded(await elsewhere(), A)
        await store.commit([adoption(A, records)])
        again = await add(store, A, draft(id="x", inc={"n": 1}))
        assert (again.repeated, again.events[0].seq) == (1, 2)
        made = await add(store, A, processed(3), draft(inc={"n": 1}), expect=7)
        assert (made.head.version, made.fields["n"], made.head.pending) == (9, 2, 0)
        assert made.events[0].at_us >= records[-1].event.at_us
        assert (await store.verify(None)).findings == ()

    async def test_an_adopted_session_is_found(self, store: RecordStore) -> None:
        """By label, by the time it was created elsewhere, and in the feed of this store."""
        source = await elsewhere()
        await store.commit([adoption(A, await recorded(source, A))])
        head = (await load(source, A)).head
        query = Query(app="shop", labels=head.labels)
        for each in (query, Query(created_after_us=head.created_us - 1), Query(app="shop")):
            assert (await store.heads(each, cursor=None, limit=9)).items == (head,)

    async def test_a_deleted_key_is_not_adopted_over(self, store: RecordStore) -> None:
        """Unless the caller says that the key may be used again."""
        records = await recorded(await elsewhere(), A)
        await create(store, A)
        await store.delete(A)
        async with refused(store, SessionDeleted):
            await store.commit([adoption(A, records)])
        await store.commit([msgspec.structs.replace(adoption(A, records), reuse=True)])
        assert plain(await log(store, A)) == plain([record.event for record in records])
        assert (await store.verify(None)).findings == ()

    @pytest.mark.parametrize("whole", [True, False])
    async def test_a_fork_is_adopted_with_its_parent_or_without(
        self, store: RecordStore, *, whole: bool
    ) -> None:
        """With it, it reads through; without, it has its state and the places of what is below."""
        source = await elsewhere()
        await fork(source, B, A, 4, draft(inc={"n": 5}))
        if whole:
            await store.commit([adoption(A, await recorded(source, A))])
        base, records = await source.base(B), await recorded(source, B)
        await store.commit([adoption(B, records[:1], base)])
        await store.commit([adoption(B, records[1:])])
        assert (await store.commit([adoption(B, records, base)]))[0].repeated == 2
        was, now = await load(source, B), await load(store, B)
        assert (now.head, now.fields, now.versions) == (was.head, was.fields, was.versions)
        assert await store.base(B) == base
        assert await store.forks(A) == ((B,) if whole else ())
        events = await log(store, B)
        assert [event.removed for event in events] == [not whole] * 4 + [False] * 2
        if whole:
            assert events == await log(source, B)
        assert (await store.verify(None)).findings == ()

    async def test_records_are_read_in_pages_from_any_seq(self, store: RecordStore) -> None:
        """A session's own events with what the chain needs of them; none of its parent."""
        await store.commit([adoption(A, await recorded(await elsewhere(), A))])
        whole = await recorded(store, A)
        assert [record.event.seq for record in whole] == [1, 2, 3, 4, 5, 6, 7]
        page = await store.records(A, after=2, limit=3)
        assert tuple([opened(record) for record in page]) == whole[2:5]
        assert [(record.event.data, record.event.ops) for record in page] == [(None, ())] * 3
        assert await store.records(A, after=7, limit=3) == ()
        assert tuple([record.event for record in whole]) == await log(store, A)
        await fork(store, B, A, 4, draft())
        assert [r.event.seq for r in await store.records(B, after=0, limit=9)] == [5, 6]
        with pytest.raises(SessionNotFound):
            await store.records(key("never"), after=0, limit=1)


def _said(made: Prepared, **change: Any) -> Prepared:
    assert made.origin is not None
    return msgspec.structs.replace(made, origin=msgspec.structs.replace(made.origin, **change))


def _with_id(record: ChainedEvent, id: str) -> ChainedEvent:
    event = msgspec.structs.replace(record.event, id=id)
    return msgspec.structs.replace(record, event=event)
