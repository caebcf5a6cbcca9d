"""Commit: atomic, conditional, applied to the newest state."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from limpet.errors import (
    InvalidEvent,
    LimpetError,
    OpPathUnknown,
    OpTypeMismatch,
    SessionConflict,
    SessionExists,
    SessionFenced,
    SessionNotFound,
    SessionTyped,
    StoreFailed,
)
from limpet.model import Commit, FrozenDict, chain, ops, unfit
from limpet.model.facts.creation import created
from limpet.model.limits import ID_CHARS_MAX
from limpet.store.memory import MemoryStore
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
    ready,
    refused,
)

A, B, C = key("a"), key("b"), key("c")


class UnreadableData(FrozenDict):
    """Data that no planner can look into."""

    __slots__ = ()

    def get(self, name: Any, default: Any = None) -> Any:
        raise ZeroDivisionError(name)


class CommitLaws:
    async def test_a_store_is_told_apart_from_others(self, store: Store) -> None:
        """Its identity never changes, fits into an event, and is no other store's."""
        identity = await store.identity()
        await create(store, A)
        assert await store.identity() == identity
        assert not unfit(identity, ID_CHARS_MAX)
        assert identity != await MemoryStore().identity()

    async def test_a_commit_that_cannot_be_planned_fails_alone(self, store: Store) -> None:
        """Every failure becomes one of our errors, and no other commit of the same batch fails
        with it."""
        keys = [key(f"k{number}") for number in range(8)]
        for each in (A, *keys):
            await create(store, each)
        good = draft("agent.message", {"text": "hi", "cost": 1})
        bad = msgspec.structs.replace(good, id="bad", data=UnreadableData(good.data), plain=False)
        wrong = draft("agent.tool_use", {"awaits": "approval", "name": "wire"})
        given = [addition(A, bad), addition(A, wrong), *[addition(each) for each in keys]]
        made = [store.commit([commit]) for commit in given]
        failed, refused_, *others = await asyncio.gather(*made, return_exceptions=True)
        assert isinstance(failed, StoreFailed), failed
        assert isinstance(refused_, InvalidEvent), refused_
        assert [type(other) for other in others] == [tuple] * len(keys)
        for each in keys:
            assert (await load(store, each)).head.version == 2
        assert (await load(store, A)).head.version == 1
        await add(store, A)
        assert (await load(store, A)).head.version == 2

    async def test_a_classless_commit_leaves_the_fields_of_typed_state_alone(
        self, store: Store
    ) -> None:
        """A commit without a State class cannot change fields of typed state, only the rest."""
        change = draft(set={"n": 1})
        plain = [draft("note.made", set={"app:n": 1, "user:n": 1}), draft("note.made")]
        for each, of in ((A, None), (B, "1.0.0")):
            first = ready(created(each, schema_version=of, fields={"n": 0}))
            await store.commit([Commit(each, (first,), 0)])
        await store.commit([Commit(A, (change, *plain), classless=True)])
        await store.commit([Commit(B, tuple(plain), classless=True)])
        raised = draft("state.migrated", {"from": None, "to": "1.0.0", "steps": []})
        for commit in (
            Commit(B, (draft(set={"n": 1}),), classless=True),
            Commit(B, (plain[1], draft(inc={"n": 1})), classless=True),
            Commit(A, (raised, draft(set={"n": 1})), classless=True),
        ):
            async with refused(store, SessionTyped):
                await store.commit([commit])
        await store.commit([Commit(B, (draft(set={"n": 2}),))])
        assert (await load(store, B)).fields == {"n": 2}
        assert (await load(store, A)).head.schema_version is None

    async def test_expecting_nothing_there_creates_the_session(self, store: Store) -> None:
        """Version 0 means that the session does not exist, and its first event creates it."""
        (made,) = await store.commit([creation(A, {"step": 0}, {"plan": "gold"})])
        (event,) = made.events
        assert (event.seq, event.type, made.head.version) == (1, "session.created", 1)
        assert (made.head.key, made.head.uid) == (A, event.id)
        assert (made.fields, made.versions) == ({"step": 0}, {"step": 1})
        assert made.head.labels == {"plan": "gold"}
        assert made.head.created_us == made.head.updated_us == event.at_us

    async def test_a_session_is_created_once(self, store: Store) -> None:
        """Creating what exists is refused and leaves it alone."""
        await create(store, A, {"step": 0})
        async with refused(store, SessionExists):
            await create(store, A, {"step": 9})

    @pytest.mark.parametrize("expect", [None, 1, 7])
    async def test_only_expect_0_creates(self, store: Store, expect: int | None) -> None:
        """A commit to a session that never existed is an error, whichever version it expects."""
        async with refused(store, SessionNotFound):
            await add(store, A, expect=expect)

    async def test_events_come_back_as_they_were_recorded(self, store: Store) -> None:
        """Commit returns the same events that load and read return, in every field."""
        await create(store, A)
        full = draft(
            "agent.said",
            {"text": "héllo 🎉", "parts": [1, -0.5, None, True, {"deep": []}]},
            set={"last": "héllo"},
            inc={"n": 2},
            id="own-id",
            cause="c",
            invocation_id="i",
            correlation_id="r",
            wake_id="w",
        )
        made = await add(store, A, full, draft())
        first, second = made.events
        assert (first.seq, second.seq) == (2, 3)
        assert (first.id, first.actor, first.cause) == ("own-id", "test:contract", "c")
        assert (first.invocation_id, first.correlation_id, first.wake_id) == ("i", "r", "w")
        assert first.data == full.data
        assert first.ops == full.ops
        assert (await log(store, A))[1:] == made.events
        loaded = await load(store, A)
        assert loaded.events[1:] == made.events
        assert (loaded.head, loaded.fields, loaded.versions) == (
            made.head,
            made.fields,
            made.versions,
        )

    @pytest.mark.parametrize(
        "id",
        [
            "0190a6c2-7c1e-7000-8000-0123456789ab",
            "0190A6C2-7C1E-7000-8000-0123456789AB",
            "0190a6c27c1e700080000123456789ab",
            "{0190a6c2-7c1e-7000-8000-0123456789ab}",
            "00000000-0000-0000-0000-000000000000",
            "sixteen_letters_",
            "1",
            "1.0",
            "1e5",
            "0x10",
            "null",
            "ünïcode 🎉",
        ],
    )
    async def test_ids_are_kept_as_given(self, store: Store, id: str) -> None:
        """An id in any form is stored unchanged and recognized again."""
        await create(store, A)
        names: dict[str, Any] = dict.fromkeys(
            ("id", "cause", "invocation_id", "correlation_id", "wake_id"), id
        )
        made = await add(store, A, draft("a.b", **names))
        (event,) = (await log(store, A))[1:]
        assert event == made.events[0]
        assert {name: getattr(event, name) for name in names} == names
        assert (await add(store, A, draft("a.b", id=id))).events == (event,)
        for other in {id.upper(), id.lower(), id.strip("{}")} - {id}:
            assert (await add(store, A, draft("a.b", id=other))).repeated == 0

    async def test_the_head_ends_the_chain(self, store: Store) -> None:
        """Links differ event by event, and the head carries the last one."""
        made = await create(store, A)
        more = await add(store, A, draft(), draft())
        links = [chain.genesis(made.head.uid), *(event.link for event in await log(store, A))]
        assert len(set(links)) == len(links)
        assert more.head.link == links[-1]

    async def test_expect_admits_the_version_it_names(self, store: Store) -> None:
        """A commit that expects the present version is recorded."""
        await create(store, A)
        assert (await add(store, A, expect=1)).head.version == 2
        assert (await add(store, A, draft(), draft(), expect=2)).head.version == 4

    @pytest.mark.parametrize("expect", [1, 3])
    async def test_expect_refuses_any_other_version(self, store: Store, expect: int) -> None:
        """Versions that are too old or too new are conflicts, and the error has both versions."""
        await create(store, A)
        await add(store, A)
        async with refused(store, SessionConflict) as info:
            await add(store, A, expect=expect)
        assert isinstance(info.value, SessionConflict)
        assert (info.value.key, info.value.expected, info.value.actual) == (A, expect, 2)

    async def test_a_commit_without_expect_rebases(self, store: Store) -> None:
        """Ops of independent writers all apply, each to the newest state."""
        await create(store, A, {"n": 1})
        await add(store, A, draft(set={"n": 10}))
        made = await add(store, A, draft(inc={"n": 5}, add={"seen": [1]}))
        assert made.fields == {"n": 15, "seen": [1]}
        assert made.versions == {"n": 3, "seen": 3}

    async def test_ops_are_checked_on_the_newest_state(self, store: Store) -> None:
        """An op that was valid on an older state is refused if it is no longer valid."""
        await create(store, A, {"n": 1})
        await add(store, A, draft(set={"n": "text"}))
        async with refused(store, OpTypeMismatch):
            await add(store, A, draft(inc={"n": 1}))
        async with refused(store, OpPathUnknown):
            await add(store, A, draft(ops=[ops.Set(("plan", "step"), 1)]))

    async def test_drafts_see_the_ones_before_them(self, store: Store) -> None:
        """In one commit each draft applies to the state that the one before it left."""
        await create(store, A)
        made = await add(
            store,
            A,
            draft(set={"plan": {}}),
            draft(ops=[ops.Set(("plan", "step"), 1)]),
            draft(ops=[ops.Inc(("plan", "step"), 1)]),
        )
        assert made.fields == {"plan": {"step": 2}}

    async def test_a_draft_that_does_not_fit_takes_its_whole_commit_along(
        self, store: Store
    ) -> None:
        """The last of three drafts is invalid, so none is recorded."""
        await create(store, A, {"n": 1})
        async with refused(store, OpTypeMismatch):
            await add(store, A, draft(inc={"n": 1}), draft(set={"app:x": 1}), draft(add={"n": [1]}))

    async def test_several_sessions_are_committed_together(self, store: Store) -> None:
        """Answers are in the order of the commits, each with its own session."""
        await create(store, A)
        created, added = await store.commit([creation(B, {"b": 1}), addition(A, draft(), draft())])
        assert (created.head.key, created.head.version) == (B, 1)
        assert (added.head.key, added.head.version) == (A, 3)

    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            (addition(key("missing")), SessionNotFound),
            (addition(B, expect=9), SessionConflict),
            (addition(B, fence=9), SessionFenced),
            (addition(B, guards={"app:n": 9}), SessionConflict),
            (creation(B), SessionExists),
            (addition(B, draft(delete=["nothing"])), OpPathUnknown),
        ],
        ids=["missing", "expect", "fence", "guard", "exists", "op"],
    )
    async def test_one_refusal_refuses_all_sessions(
        self, store: Store, place: int, wrong: Commit, error: type[LimpetError]
    ) -> None:
        """Wherever the invalid commit is, the others record nothing, not even a shared name."""
        await create(store, A)
        await create(store, B)
        commits = [creation(C, {"user:u": 1}), addition(A, draft(inc={"app:n": 1}))]
        commits.insert(place, wrong)
        async with refused(store, error):
            await store.commit(commits)

    async def test_a_commit_without_events_is_refused(self, store: Store) -> None:
        """Even beside a commit with events: its conditions would not be recorded."""
        await create(store, A)
        await create(store, B)
        async with refused(store, InvalidEvent):
            await store.commit([addition(A), Commit(B, (), 7)])

    async def test_two_commits_of_one_session_follow_each_other(self, store: Store) -> None:
        """The second is compared with, and applied to, what the first leaves."""
        await create(store, A)
        first, second = await store.commit(
            [addition(A, draft(inc={"n": 1})), addition(A, draft(inc={"n": 1}), expect=2)]
        )
        assert (first.head.version, second.head.version) == (2, 3)
        assert (first.fields, second.fields) == ({"n": 1}, {"n": 2})

    async def test_a_session_may_be_created_and_added_to_at_once(self, store: Store) -> None:
        """One call may create a session and append to it."""
        _, second = await store.commit(
            [creation(A, {"n": 1}), addition(A, draft(inc={"n": 1}), draft(id="own-id"))]
        )
        assert (second.head.version, second.fields) == (3, {"n": 2})

    async def test_a_fence_admits_only_its_own_number(self, store: Store) -> None:
        """A commit with another fence than the session's is refused."""
        fence = (await create(store, A)).head.fence
        assert (await add(store, A, fence=fence)).head.version == 2
        async with refused(store, SessionFenced):
            await add(store, A, fence=fence + 1)

    async def test_a_guard_of_a_field_admits_the_version_it_names(self, store: Store) -> None:
        """A field's version is the seq that last changed it, or 0 if it does not exist."""
        await create(store, A, {"n": 1, "other": 1})
        await add(store, A, draft(inc={"other": 1}), guards={"n": 1, "absent": 0})
        await add(store, A, draft(delete=["n"]), guards={"n": 1, "other": 2})
        made = await add(store, A, draft(set={"n": 5}), guards={"n": 0})
        assert made.versions == {"n": 4, "other": 2}

    @pytest.mark.parametrize("guard", [{"n": 1}, {"n": 0}, {"n": 3}, {"absent": 1}])
    async def test_a_guard_of_a_field_refuses_any_other_version(
        self, store: Store, guard: dict[str, int]
    ) -> None:
        """A field that was changed since it was read is a conflict, named by the field."""
        await create(store, A, {"n": 1})
        await add(store, A, draft(inc={"n": 1}))
        async with refused(store, SessionConflict) as info:
            await add(store, A, draft(set={"n": 9}), guards=guard)
        assert isinstance(info.value, SessionConflict)
        assert info.value.name in guard

    async def test_expect_is_compared_before_ops_are_checked(self, store: Store) -> None:
        """A stale writer gets the conflict, not an error about its ops."""
        await create(store, A, {"n": "text"})
        async with refused(store, SessionConflict):
            await add(store, A, draft(inc={"n": 1}), expect=7)

    async def test_keys_are_compared_whole_and_exactly(self, store: Store) -> None:
        """Keys that differ in case or in how they are split are different sessions."""
        keys = [
            key("x", app="a", user="bc"),
            key("x", app="ab", user="c"),
            key("X", app="a", user="bc"),
            key("x", app="A", user="bc"),
            key("x", app="a", user="b_"),
            key("x", app="a", user="b%"),
            key("x", app="a/b", user="c"),
            key("b/x", app="a", user="c"),
            key("é", app="a", user="c"),
            key("e\u0301", app="a", user="c"),
        ]
        for place, each in enumerate(keys):
            await create(store, each, {"place": place})
        assert [(await load(store, each)).fields["place"] for each in keys] == list(
            range(len(keys))
        )
