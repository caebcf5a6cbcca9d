"""Repeats: a session records a draft id once, however often it is sent."""

from __future__ import annotations

import asyncio

from limpet.errors import SessionConflict
from limpet.store.protocol import Store
from limpet.testing.commits import (
    add,
    addition,
    create,
    creation,
    draft,
    key,
    load,
    log,
    picture,
    refused,
)

A, B = key("a"), key("b")


class RepeatLaws:
    async def test_a_repeated_id_returns_the_first_record(self, store: Store) -> None:
        """The first record stays, even if the second draft differs."""
        await create(store, A)
        first = await add(store, A, draft("note.made", {"n": 1}, id="x", inc={"n": 1}))
        again = await add(store, A, draft("note.other", {"n": 2}, id="x", inc={"n": 1}))
        assert again.events == first.events
        assert (first.repeated, again.repeated) == (0, 1)
        assert (again.head, again.fields) == (first.head, {"n": 1})
        assert await log(store, A) == (*(await log(store, A))[:1], *first.events)

    async def test_ids_that_look_alike_are_different_ids(self, store: Store) -> None:
        """Also those that are nearly a UUID, which a store may keep in fewer bytes."""
        uuid = "01890a5d-ac96-774b-bcce-b302099a80ab"
        dashes = [f"--{uuid[2:]}", f"{uuid[2:8]}--{uuid[8:]}", f"-{uuid[2:8]}-{uuid[8:]}"]
        spaces = [f"{uuid[:2]} {uuid[4:8]} {uuid[8:]}"[:36], f"{uuid[:30]}é{uuid[31:]}"]
        ids = [uuid, uuid.upper(), uuid.replace("-", ""), f"{uuid[:-1]}g", *dashes, *spaces]
        await create(store, A)
        answer = await add(store, A, *[draft(id=id, cause=id) for id in ids])
        assert answer.repeated == 0
        assert [(e.id, e.cause) for e in (await log(store, A))[1:]] == [(id, id) for id in ids]

    async def test_a_whole_batch_may_be_repeated(self, store: Store) -> None:
        """A retried batch returns the same answer and changes nothing."""
        await create(store, A)
        batch = [draft(id=id, inc={"n": 1, "app:n": 1}) for id in "xyz"]
        first = await add(store, A, *batch)
        before = await picture(store)
        again = await add(store, A, *batch)
        assert again.events == first.events
        assert again.repeated == 3
        assert await picture(store) == before

    async def test_repeats_succeed_whatever_they_expect(self, store: Store) -> None:
        """A retry of a strict commit does not conflict with itself."""
        await create(store, A)
        first = await add(store, A, draft(id="x", set={"app:a": 1}), expect=1)
        await add(store, A)
        for stale in ({"expect": 1}, {"expect": 9}, {"fence": 9}, {"guards": {"app:a": 0}}):
            again = await add(store, A, draft(id="x"), **stale)
            assert again.events == first.events
            assert again.head.version == 3

    async def test_a_creation_may_be_repeated(self, store: Store) -> None:
        """A retried creation with its own id finds its first record instead of SessionExists."""
        (first,) = await store.commit([creation(A, {"n": 1}, id="birth")])
        (again,) = await store.commit([creation(A, {"n": 1}, id="birth")])
        assert again.events == first.events
        assert again.head == first.head

    async def test_only_the_new_part_of_a_batch_is_recorded(self, store: Store) -> None:
        """Answers are in the order of the drafts, old and new records mixed."""
        await create(store, A)
        await add(store, A, draft(id="x"), draft(id="y"))
        mixed = await add(store, A, draft(id="new"), draft(id="y"), draft(id="z"), draft(id="x"))
        assert [event.id for event in mixed.events] == ["new", "y", "z", "x"]
        assert [event.seq for event in mixed.events] == [4, 3, 5, 2]
        assert (mixed.repeated, mixed.head.version) == (2, 5)

    async def test_a_batch_with_something_new_is_held_to_its_conditions(self, store: Store) -> None:
        """One new draft among repeats makes the expected version matter again."""
        await create(store, A)
        await add(store, A, draft(id="x"))
        async with refused(store, SessionConflict):
            await add(store, A, draft(id="x"), draft(id="new"), expect=1)

    async def test_one_id_twice_in_a_batch_is_one_event(self, store: Store) -> None:
        """Both places get the same record."""
        await create(store, A)
        made = await add(store, A, draft(id="x", inc={"n": 1}), draft(id="x", inc={"n": 1}))
        assert made.events[0] == made.events[1]
        assert (made.repeated, made.head.version, made.fields) == (1, 2, {"n": 1})

    async def test_one_id_in_two_commits_of_a_call_is_one_event(self, store: Store) -> None:
        """The second commit of the same session repeats what the first has just planned."""
        await create(store, A)
        first, second = await store.commit([addition(A, draft(id="x")), addition(A, draft(id="x"))])
        assert first.events == second.events
        assert second.head.version == 2

    async def test_an_id_belongs_to_its_session(self, store: Store) -> None:
        """Two sessions may use one id; each records its own event."""
        await create(store, A)
        await create(store, B)
        one = await add(store, A, draft(data={"of": "a"}, id="x"))
        two = await add(store, B, draft(data={"of": "b"}, id="x"))
        assert (one.events[0].data, two.events[0].data) == ({"of": "a"}, {"of": "b"})

    async def test_an_id_the_store_did_not_choose_is_known_too(self, store: Store) -> None:
        """No matter who made an event's id, sending it again returns that event."""
        made = await create(store, A)
        plain = await add(store, A, draft())
        for event in (*made.events, *plain.events):
            again = await add(store, A, draft(id=event.id))
            assert again.events == (event,)

    async def test_a_repeat_shows_what_became_of_the_record(self, store: Store) -> None:
        """A repeat returns the record as a reader sees it, including its processed time."""
        await create(store, A)
        await add(store, A, draft("user.message", {"text": "hi"}, id="x"))
        await add(store, A, draft("session.processed", {"seqs": [2]}))
        again = await add(store, A, draft("user.message", {"text": "hi"}, id="x"))
        assert again.events[0] == (await log(store, A))[1]
        assert again.events[0].processed_us is not None

    async def test_a_repeat_behind_its_processing_shows_it(self, store: Store) -> None:
        """Sent at once, an input, its processing and its retry are answered in their order."""
        await create(store, A)
        _, done, again = await asyncio.gather(
            add(store, A, draft("user.message", {"text": "hi"}, id="x")),
            add(store, A, draft("session.processed", {"seqs": [2]})),
            add(store, A, draft("user.message", {"text": "hi"}, id="x")),
        )
        assert again.events[0].processed_us == done.events[0].at_us

    async def test_racing_retries_record_one_event(self, store: Store) -> None:
        """Twenty callers with the same id get the same record."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(store, A, draft(id="x", inc={"n": 1})) for _ in range(20))
        )
        assert len({answer.events for answer in answers}) == 1
        assert sorted(answer.repeated for answer in answers) == [0] + [1] * 19
        assert (await load(store, A)).fields == {"n": 1}

    async def test_racing_batches_that_overlap_record_each_id_once(self, store: Store) -> None:
        """Batches that share some ids end with every id recorded exactly once."""
        await create(store, A)
        batches = [[f"id{n}" for n in range(first, first + 5)] for first in range(10)]
        answers = await asyncio.gather(
            *(add(store, A, *(draft(id=id, inc={"n": 1}) for id in ids)) for ids in batches)
        )
        for ids, answer in zip(batches, answers, strict=True):
            assert [event.id for event in answer.events] == ids
        recorded = [event.id for event in await log(store, A)][1:]
        assert sorted(recorded) == sorted({id for ids in batches for id in ids})
        assert (await load(store, A)).fields == {"n": 14}

    async def test_a_repeat_is_marked_and_nothing_else_is(self, store: Store) -> None:
        """Each event of an answer says whether it was recorded before; a reader sees no mark."""
        await create(store, A)
        made = await add(store, A, draft(id="x"), draft(id="y"), draft(id="x"))
        assert [event.repeated for event in made.events] == [False, False, True]
        again = await add(store, A, draft(id="new"), draft("user.said", id="y"))
        assert [event.repeated for event in again.events] == [False, True]
        assert not any(event.repeated for event in await log(store, A))
        assert not any(event.repeated for event in (await load(store, A)).events)

    async def test_a_repeated_creation_is_marked(self, store: Store) -> None:
        """Like every other event."""
        (first,) = await store.commit([creation(A, id="birth")])
        (again,) = await store.commit([creation(A, id="birth")])
        assert (first.events[0].repeated, again.events[0].repeated) == (False, True)

    async def test_of_racing_retries_one_is_not_marked(self, store: Store) -> None:
        """Exactly one of twenty callers with one id recorded it."""
        await create(store, A)
        answers = await asyncio.gather(*(add(store, A, draft(id="x")) for _ in range(20)))
        assert sorted(answer.events[0].repeated for answer in answers) == [False] + [True] * 19
