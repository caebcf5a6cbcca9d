"""One plan for several callers: who is refused leaves nothing behind, and takes nothing away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet import errors, ops as op
from limpet.model.commit import Commit
from limpet.model.facts.inputs import processed
from limpet.model.fold import Fold
from limpet.model.keys import Key
from limpet.store.memory import MemoryStore
from limpet.store.plan import Plan
from limpet.testing.commits import add, addition, create, creation, draft, key, ready
from limpet.testing.histories import adoption, fork, recorded

A, B, NEW = key("a"), key("b"), key("new")


@pytest.fixture
async def plan() -> Plan:
    """A plan over a store of two sessions; the first has an input that waits, of seq 2."""
    store = MemoryStore()
    for each in (A, B):
        await create(store, each, {"n": 0, "text": "x", "app:n": 0})
    await add(store, A, draft("user.said"))
    return Plan(store, 2**50, lambda: b"s" * 16)


def planned(plan: Plan) -> tuple[Any, ...]:
    """All that a store would write."""
    room = {owner: dict(sizes) for owner, sizes in plan.scope_limits.planned.items()}
    parts = (plan.folds, plan.by_chosen_id, plan.scopes)
    return (list(plan.records), list(plan.writes), *map(dict, parts), room)


def chosen(commit: Commit) -> Commit:
    """The same commit, sent by a caller who chose the ids: a retry."""
    drafts = tuple([msgspec.structs.replace(d, caller_chose_id=True) for d in commit.drafts])
    return msgspec.structs.replace(commit, drafts=drafts)


def refusal() -> tuple[Commit, ...]:
    """Three commits that touch everything; the last does not fit."""
    return (
        creation(NEW, {"app:made": 1}),
        addition(A, draft(id="mine", inc={"n": 1, "app:n": 1}, set={"user:new": 1})),
        addition(B, draft(inc={"text": 1})),
    )


def test_who_is_refused_leaves_the_plan_as_it_was(plan: Plan) -> None:
    """Records, scopes, given ids, new sessions and room, whether or not others came before."""
    for _ in range(2):
        before = planned(plan)
        for _ in range(2):
            with pytest.raises(errors.OpTypeMismatch):
                plan.add(refusal())
            assert planned(plan) == before
        (made,) = plan.add([addition(A, draft(id="yours", inc={"n": 1, "app:n": 1}))])
    assert (made.head.version, made.repeated) == (3, 1)
    assert made.fields["n"] == 1


def test_names_of_who_was_refused_take_no_room(plan: Plan) -> None:
    """The next caller's names are counted alone."""
    with pytest.raises(errors.OpTypeMismatch):
        plan.add(refusal())
    plan.add([addition(A, draft(set={"app:other": 1}))])
    assert {owner: set(sizes) for owner, sizes in plan.scope_limits.planned.items()} == {
        ("shop", ""): {"app:other"}
    }


def test_a_plain_event_among_conditional_ones_is_planned_on_them(plan: Plan) -> None:
    """Each caller sees what those before it were granted."""
    plan.add([addition(A, draft(inc={"n": 1}), expect=2)])
    plan.add([addition(A, draft(inc={"n": 1}))])
    (made,) = plan.add([addition(A, draft(inc={"n": 1}), expect=4)])
    assert (made.head.version, made.fields["n"]) == (5, 3)
    with pytest.raises(errors.SessionConflict):
        plan.add([addition(A, draft(), expect=4)])


def test_an_input_of_who_was_refused_is_not_pending(plan: Plan) -> None:
    """It was brought and processed in a commit that never was."""
    brought = (addition(A, draft("user.said"), ready(processed([3]))), addition(B, expect=9))
    with pytest.raises(errors.SessionConflict):
        plan.add(brought)
    plan.add([addition(A, draft())])
    with pytest.raises(errors.NotPending):
        plan.add([addition(A, ready(processed([3])))])


def test_an_input_that_a_refused_caller_processed_still_waits(plan: Plan) -> None:
    """And once an accepted one has processed it, it is done with, whoever is refused later."""
    mine = addition(A, ready(processed([2])))
    with pytest.raises(errors.NotPending):  # twice in one commit: refused after the first
        plan.add([mine, addition(A, ready(processed([2])))])
    (made,) = plan.add([mine])
    assert made.head.pending == 0
    for _ in range(2):
        with pytest.raises(errors.NotPending):
            plan.add([addition(A, draft("user.said"), ready(processed([2])))])
    with pytest.raises(errors.SessionConflict):
        plan.add([addition(A, draft("user.said"), ready(processed([4]))), addition(B, expect=9)])
    with pytest.raises(errors.NotPending):
        plan.add([mine])


def test_a_condition_on_the_schema_alone_is_a_condition(plan: Plan) -> None:
    """The short way for a plain event is not taken."""
    with pytest.raises(errors.SessionConflict):
        plan.add([Commit(A, (draft(),), schema="1.0.0")])
    (made,) = plan.add([Commit(A, (draft(),), schema=None)])
    assert made.head.version == 3


def test_a_plain_event_with_a_snapshot_to_keep_keeps_it(plan: Plan) -> None:
    """The short way for a plain event is not taken: the state after it is what is kept."""
    (made,) = plan.add([Commit(A, (draft(inc={"n": 1}),), pin=7)])
    ((of, number, kept),) = plan.pins
    assert (of, number, kept.head, kept.fields["n"]) == (A, 7, made.head, 1)


def test_a_commit_without_events_keeps_a_snapshot_or_looks_for_a_session(plan: Plan) -> None:
    """On the version it expects, of the session it names; with neither it is a mistake."""
    (found,) = plan.add([Commit(A, (), pin=7)])
    plan.add([Commit(A, (), pin=8, expect=2, uid=found.head.uid)])
    plan.add([Commit(A, (), uid=found.head.uid)])
    assert [(of, number) for of, number, _ in plan.pins] == [(A, 7), (A, 8)]
    refused: list[tuple[type[Exception], Commit]] = [
        (errors.InvalidEvent, Commit(A, ())),
        (errors.SessionNotFound, Commit(NEW, (), pin=7)),
        (errors.SessionDeleted, Commit(A, (), pin=7, uid="another")),
        (errors.SessionConflict, Commit(A, (), pin=7, expect=1)),
    ]
    for error, commit in refused:
        with pytest.raises(error):
            plan.add([commit])
    assert len(plan.pins) == 2


def test_a_snapshot_is_of_what_was_planned_before_it(plan: Plan) -> None:
    """Not of what the store has: an event of another caller in this plan is in it."""
    plan.add([addition(A, draft(inc={"n": 1}), expect=2)])
    plan.add([Commit(A, (), pin=7, expect=3)])
    ((_, _, kept),) = plan.pins
    assert (kept.head.version, kept.fields["n"]) == (3, 1)


async def test_a_deleted_session_may_come_back_by_its_log_but_not_by_a_retry() -> None:
    """From the archive its log is adopted under its old uid; a creation sent again is refused."""
    store, made = MemoryStore(), creation(A)
    await store.commit([made])
    records = await recorded(store, A)
    await store.delete(A)
    plan = Plan(store, 2**50, lambda: b"s" * 16)
    with pytest.raises(errors.SessionDeleted):
        plan.add([msgspec.structs.replace(chosen(made), reuse=True)])
    (back,) = plan.add([msgspec.structs.replace(adoption(A, records), reuse=True)])
    assert (back.head.uid, back.head.version) == (made.drafts[0].id, 1)


async def test_an_event_that_a_log_has_twice_is_refused_though_its_beginning_is_here() -> None:
    """It is not taken for a repeat: two events of one log never share an id."""
    source, store = MemoryStore(), MemoryStore()
    await create(source, A)
    await add(source, A, draft())
    first, second = await recorded(source, A)
    await store.commit([adoption(A, [first])])
    with pytest.raises(errors.SessionConflict) as info:
        Plan(store, 2**50, lambda: b"s" * 16).add([adoption(A, [first, second, second])])
    assert info.value.on == "log"


def test_a_session_begins_only_where_the_commit_expects_none(plan: Plan) -> None:
    """A first event alone is not enough: expect=0 says that there is no session yet."""
    made = creation(NEW)
    for expect in (None, 1):
        with pytest.raises(errors.SessionNotFound):
            plan.add([msgspec.structs.replace(made, expect=expect)])
    assert plan.add([made])[0].head.version == 1


async def test_a_log_on_a_state_begins_with_the_event_that_names_it(plan: Plan) -> None:
    """Another event of that log is refused, though its data is not decoded."""
    source = MemoryStore()
    await create(source, A, {"n": 0})
    await fork(source, B, A, 1, draft(data={"text": "x"}))
    base, (first, second) = await source.base(B), await recorded(source, B)
    later = [msgspec.structs.replace(d, data=None) for d in adoption(NEW, [second]).drafts]
    with pytest.raises(errors.InvalidEvent):
        plan.add([Commit(NEW, tuple(later), base=base)])
    assert plan.add([adoption(NEW, [first, second], base)])[0].head.version == 3


async def test_a_fork_is_not_adopted_beside_a_parent_that_is_not_stored_yet() -> None:
    """The event it begins on cannot be looked up: a copy sends the parent first."""
    source, store = MemoryStore(), MemoryStore()
    await create(source, A, {"n": 0})
    await fork(source, B, A, 1, draft())
    parent = adoption(A, await recorded(source, A))
    child = adoption(B, await recorded(source, B), await source.base(B))
    with pytest.raises(errors.SessionConflict):
        Plan(store, 2**50, lambda: b"s" * 16).add([parent, child])
    await store.commit([parent])
    assert Plan(store, 2**50, lambda: b"s" * 16).add([child])[0].head.version == 3


async def test_an_adopted_event_writes_no_shared_names_though_its_beginning_is_here() -> None:
    """They are copied by themselves: a log that comes later must not set them back."""
    source, store = MemoryStore(), MemoryStore()
    await create(source, A)
    await add(source, A, draft(set={"app:n": 1}))
    records = await recorded(source, A)
    await store.commit([adoption(A, records[:1])])
    plan = Plan(store, 2**50, lambda: b"s" * 16)
    (made,) = plan.add([adoption(A, records)])
    assert (made.head.version, plan.writes, plan.scopes) == (2, [], {})


def test_a_shared_name_that_is_deleted_takes_no_bytes(plan: Plan) -> None:
    """Nothing is stored in its place."""
    plan.add([addition(A, draft(ops=[op.Delete(("app:n",))]))])
    ((_, write),) = plan.writes
    assert (write.at.deleted, write.whole) == (True, b"")


class Lax(MemoryStore):
    """Believes that every input waits, and that every id is new."""

    def pending(self, key: Key, seq: int) -> bool:
        return True

    def recorded(self, key: Key, id: str) -> None:
        return None


async def test_a_log_that_processes_what_it_does_not_have_is_not_adopted(plan: Plan) -> None:
    """Though its chain holds: another program may have made it."""
    source = Lax()
    await create(source, NEW)
    await add(source, NEW, ready(processed([9])))
    with pytest.raises(errors.NotPending):
        plan.add([adoption(NEW, await recorded(source, NEW))])


async def test_a_log_that_has_an_id_twice_is_not_adopted(plan: Plan) -> None:
    """Though its chain holds: a retry with this id would have two answers."""
    source = Lax()
    await create(source, NEW)
    for _ in range(2):
        await add(source, NEW, draft(id="mine"))
    with pytest.raises(errors.SessionConflict) as info:
        plan.add([adoption(NEW, await recorded(source, NEW))])
    assert (info.value.on, info.value.expected, info.value.actual) == ("log", 2, 2)


async def test_a_log_that_diverges_is_refused_with_the_version_it_is_at(plan: Plan) -> None:
    """The first event fits; the second was changed on its way."""
    source = MemoryStore()
    await create(source, NEW)
    await add(source, NEW, draft())
    first, second = adoption(NEW, await recorded(source, NEW)).drafts
    assert second.origin is not None
    changed = msgspec.structs.replace(second.origin, link=b"?" * 32)
    drafts = (first, msgspec.structs.replace(second, origin=changed))
    with pytest.raises(errors.SessionConflict) as info:
        plan.add([Commit(NEW, drafts)])
    assert (info.value.on, info.value.expected, info.value.actual) == ("log", 1, 1)


def test_a_new_session_finds_the_shared_names_that_were_planned_for_its_owner(plan: Plan) -> None:
    """Those of its app and of its user, and no others'."""
    app, user = NEW.app, NEW.user
    for others in (Key("x", user, "1"), Key(app, "x", "1")):
        plan.add([creation(others, {"app:" + others.app: 1, "user:" + others.user: 1})])
    plan.add([addition(A, draft(set={"user:lang": "en"}))])
    (made,) = plan.add([creation(NEW)])
    names = ("app:n", f"app:{app}", "user:lang", "app:x", f"user:{user}", "user:x")
    assert [name in made.scopes for name in names] == [True] * 3 + [False] * 3


class Damaged(MemoryStore):
    """Its sessions have an event that could not be read."""

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        found = super().fold(key, reuse=reuse)
        return found and msgspec.structs.replace(found, damaged=(1,))


async def test_a_plain_event_says_what_is_missing_below_it() -> None:
    """It is recorded, and its answer names the damage."""
    store = Damaged()
    await create(store, A)
    await create(store, B)
    plan = Plan(store, 2**50, lambda: b"s" * 16)
    (made,) = plan.add([addition(A, draft())])
    assert (made.head.version, made.damaged) == (2, (1,))
    for drafts in ((), (draft(),)):
        with pytest.raises(errors.SessionCorrupt):  # a snapshot would hide the damage
            plan.add([Commit(B, drafts, pin=7)])
    assert plan.pins == []


def test_a_repeat_in_the_same_plan_is_answered_whatever_it_expects(plan: Plan) -> None:
    """The first was recorded on the version that both expect; the second is told so."""
    twice = addition(A, draft(id="mine", inc={"n": 1}), expect=2)
    (first,) = plan.add([twice])
    (again,) = plan.add([twice])
    assert (again.repeated, again.events[0].seq, again.head) == (1, 3, first.head)
    assert (first.events[0].repeated, again.events[0].repeated) == (False, True)


def test_a_repeat_tells_that_its_input_was_processed_in_the_same_plan(plan: Plan) -> None:
    """With the time of the event that processed it."""
    said = addition(A, draft("user.said", id="mine"))
    plan.add([said])
    (before,) = plan.add([said])
    assert before.events[0].processed_us is None
    (done,) = plan.add([addition(A, ready(processed([3])))])
    (after,) = plan.add([said])
    assert after.events[0].processed_us == done.events[0].at_us
