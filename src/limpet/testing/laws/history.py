"""History: which events name a field, who changed a shared name, pinned states, and cold events."""

from __future__ import annotations

import msgspec
import pytest

from limpet.errors import InvalidEvent, NotPending, SessionConflict, SessionDeleted, SessionNotFound
from limpet.model import NO_CHECKPOINT, Commit, Event, Fact, Key, checkpoints_of
from limpet.model.facts.checkpoints import checkpoints_created, recorded
from limpet.store.protocol import Compacts, NameSince, Records, Store
from limpet.testing.commits import add, create, creation, draft, key, load, log, ready
from limpet.testing.histories import fork
from limpet.testing.laws.log.facts import processed

A, B, C = key("a"), key("b"), key("c")


def begin(of: Key) -> Fact:
    return checkpoints_created(checkpoints_of(of), "uid")


class HistoryLaws:
    async def test_events_that_name_a_field_are_all_found(self, store: Store) -> None:
        """Newest first, between two seqs, through to the parent's; others may be among them."""
        await create(store, A)
        for number in range(6):
            name = "x" if number % 2 else "y"
            await add(store, A, draft("a.b", {"text": "z" * 2_000}, set={name: number}))
        await fork(store, B, A, 5, draft(set={"x": 9}))
        events = await store.naming(B, "x", before=100, after=0, limit=10)
        named = [e.seq for e in events if any(op.path[0] == "x" for op in e.ops)]
        assert named == [7, 5, 3]
        events = await store.naming(B, "x", before=7, after=3, limit=10)
        assert [e.seq for e in events if any(op.path[0] == "x" for op in e.ops)] == [5]
        with pytest.raises(SessionNotFound):
            await store.naming(C, "x", before=9, after=0, limit=1)

    async def test_a_kept_state_is_at_or_before_an_event(self, store: Store) -> None:
        """And is the state that the log gives there."""
        await create(store, A)
        for number in range(4):
            await add(store, A, draft(set={"n": number}))
        for seq in range(1, 6):
            rung = await store.rung(A, seq)
            at = rung.head.version
            assert 0 <= at <= seq
            if at:
                fold = await store.fold_at(A, at)
                assert (rung.fields, rung.versions) == (fold.fields, fold.versions)

    async def test_who_changed_a_shared_name_since_is_known(self, store: Store) -> None:
        """The answer has the value before the session's change, and if another changed it."""
        await create(store, A)
        await create(store, B)
        await add(store, B, draft(set={"app:old": 1}))
        await add(store, A, draft(set={"app:old": 2}))
        at = (await load(store, A)).head.version
        await add(store, A, draft(set={"app:old": 3, "app:new": 1, "user:both": 1}))
        await add(store, A, draft(set={"app:old": 4}))
        await add(store, B, draft(set={"user:both": 2, "app:theirs": 1}))
        names = ["app:old", "app:new", "user:both", "app:theirs", "app:never"]
        changers = dict(await store.names_since(A, at, names))
        old = changers.pop("app:old")
        assert old.before is not None
        assert (old.before.value, old.version, old.others) == (2, 4, False)
        assert changers == {
            "app:new": NameSince(None, 1, others=False),
            "user:both": NameSince(None, 2, others=True),
        }

    async def test_a_commit_without_events_looks_or_pins(self, store: Store) -> None:
        """Refused if the session is not there, is another, or moved on; it records nothing."""
        await create(store, A)
        head = (await load(store, A)).head
        await store.commit([Commit(A, (), head.version, uid=head.uid, pin=1)])
        assert (await load(store, A)).head == head
        for refused, error in (
            (Commit(A, ()), InvalidEvent),
            (Commit(B, (), uid="x"), SessionNotFound),
            (Commit(A, (), uid="x"), SessionDeleted),
            (Commit(A, (), 7, uid=head.uid), SessionConflict),
        ):
            with pytest.raises(error):
                await store.commit([refused, Commit(A, (draft(),))])
        assert (await load(store, A)).head == head
        await store.unpin(A, [head.version])
        await store.unpin(A, [head.version])
        assert (await store.verify(None)).findings == ()

    async def test_a_load_brings_the_newest_checkpoint(self, store: Store) -> None:
        """As the head of their log has it; none is known of where shared names are not, either."""
        row = {"number": 3, "at_us": 7, "seq": 1, "full": True}
        await create(store, A)
        await create(store, B)
        await store.commit([Commit(checkpoints_of(A), (ready(begin(A)), ready(recorded(row))), 0)])
        (one, two) = await store.load_many([B, A], tail=0)
        assert (one and one.checkpoint, two and two.checkpoint) == (NO_CHECKPOINT, (3, 7))
        assert (await load(store, A)).checkpoint == (3, 7)
        assert (await store.load(A, tail=0, scopes=False)).checkpoint is None
        await store.delete(A)
        await store.commit([msgspec.structs.replace(creation(A), reuse=True)])
        assert (await load(store, A)).checkpoint == NO_CHECKPOINT

    async def test_the_log_of_checkpoints_ends_with_its_session(self, store: Store) -> None:
        """Deleted and erased with it, in the same transaction."""
        for of in (A, B):
            await create(store, of)
            await create(store, checkpoints_of(of))
        await store.delete(A)
        with pytest.raises(SessionDeleted):
            await load(store, checkpoints_of(A))
        await store.erase(B)
        assert await store.erase(checkpoints_of(B)) is not None
        assert (await store.verify(None)).findings == ()

    async def test_what_is_pending_does_not_hold_back_what_follows(self, store: Store) -> None:
        """It stays where it can be processed; everything around it is moved, and reads the same."""
        assert isinstance(store, Compacts)
        await create(store, A)
        await add(store, A, draft("user.said", {"n": "first"}, id="one"))
        for number in range(300):
            type = "user.said" if number % 3 == 0 else "agent.said"
            await add(store, A, draft(type, {"n": number}, set={"n": number}))
        waiting = await store.pending_inputs(A, limit=1_000)
        before = await log(store, A)
        assert (len(waiting), await moved(store, 250)) == (101, 250 - 84)
        assert await moved(store, 250) == 0
        assert await log(store, A) == before
        assert await store.pending_inputs(A, limit=1_000) == waiting
        await _reads_like(store, before)
        await fork(store, B, A, 100)
        done = await add(store, A, processed(2, 3, 6, 249))
        with pytest.raises(NotPending):
            await add(store, A, processed(3))
        marked = await log(store, A)
        assert [(e.seq, e.processed_us) for e in marked if e.processed] == [
            (seq, done.events[0].at_us) for seq in (2, 3, 6, 249)
        ]
        await _reads_like(store, marked)
        assert await moved(store, 300) == 4 + 33
        assert await log(store, A) == marked
        await _reads_like(store, marked)
        rest = [event.seq for event in waiting if event.seq not in (2, 3, 6, 249)]
        await add(store, A, processed(*rest))
        assert await moved(store, 302) == len(rest) + 2
        whole = await log(store, A)
        await _reads_like(store, whole)
        assert [event.processed for event in whole if event.seq in rest] == [304] * len(rest)
        assert (await store.pending_inputs(A, limit=9), (await load(store, A)).head.pending) == (
            (),
            0,
        )
        assert (await store.verify(None)).findings == ()

    async def test_cold_events_are_read_like_all_others(self, store: Store) -> None:
        """All but what is pending at the end, and the newest; twice moves nothing."""
        assert isinstance(store, Compacts)
        await create(store, A)
        for number in range(20):
            await add(store, A, draft("user.said", {"n": number}, id=f"i{number}"))
        await add(store, A, processed(*range(2, 15)))
        before = await log(store, A)
        moved = 0
        while step := (await store.compact(A, upto=100)).events:
            moved += step
        assert moved == 14
        assert await log(store, A) == before
        assert (await store.read_ids(A, ["i3"]))[0] == before[4]
        again = await add(store, A, draft("user.said", {"n": 3}, id="i3"))
        assert again.repeated == 1
        assert (await store.verify(None)).findings == ()
        with pytest.raises(SessionNotFound):
            await store.compact(B, upto=5)


async def moved(store: Store, upto: int) -> int:
    """The number of A's events that compaction moves, up to a seq."""
    assert isinstance(store, Compacts)
    total = 0
    while step := (await store.compact(A, upto=upto)).events:
        total += step
    return total


async def _reads_like(store: Store, events: tuple[Event, ...]) -> None:
    """In pages of either direction, by type, by id, in a tail, and with what the chain needs."""
    page = await store.read(A, after=1, limit=7, reverse=False, types=None)
    assert page == events[1:8]
    back = await store.read(A, after=0, limit=1_000, reverse=True, types=None)
    assert back == events[::-1]
    back = await store.read(A, after=60, limit=9, reverse=True, types=None)
    assert back == events[58:49:-1]
    for reverse in (False, True):
        said = await store.read(A, after=0, limit=999, reverse=reverse, types=("user.said",))
        wanted = [event for event in events if event.type == "user.said"]
        assert list(said) == (wanted[::-1] if reverse else wanted)
    assert (await store.read_ids(A, ["one"]))[0] == events[1]
    assert (await load(store, A, tail=200)).events == events[-200:]
    named = await store.naming(A, "n", before=400, after=0, limit=1_000)
    seqs = [event.seq for event in named]
    assert seqs == sorted(set(seqs), reverse=True)
    assert isinstance(store, Records)
    paged: list[Event] = []
    while page := tuple([r.event for r in await store.records(A, after=len(paged), limit=50)]):
        paged += page
    assert [(e.seq, e.link, e.processed) for e in paged] == [
        (e.seq, e.link, e.processed) for e in events
    ]
