"""Fold: recording and replaying amount to the same, for random histories too."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from limpet import ops
from limpet.errors import LimpetError, OpPathUnknown, OpTypeMismatch, SessionCorrupt
from limpet.model.events import Event, Fact, Origin, Prepared, prepare
from limpet.model.fold import (
    Fold,
    Recorded,
    ScopeValue,
    ScopeWrite,
    record,
    replay,
    replay_all,
    replay_any,
    scope_next,
    scope_ops,
)
from limpet.model.head import blank
from limpet.model.keys import Key
from limpet.model.values import FrozenDict, canonical
from tests.support.examples import examples

KEY = Key("shop", "ada", "1")
START = Fold(blank(KEY, "uid", 1_000))
SALT = b"s" * 16
SCOPE = ("shop", "", "app:n")


def draft(type: str = "note.made", **more: Any) -> Prepared:
    return prepare(Fact(type=type, **more), id="id", actor="me")


def recorded(*drafts: Prepared, now_us: int = 2_000) -> tuple[Fold, list[Event]]:
    fold, events = START, []
    for each in drafts:
        fold, rec = record(fold, each, now_us, SALT)
        events.append(rec.event)
    return fold, events


def test_a_record_is_the_next_event() -> None:
    """Seq, time and link come from the fold and the clock, the rest from the draft."""
    fold, events = recorded(draft(data={"a": 1}), draft())
    assert [event.seq for event in events] == [1, 2]
    assert fold.head.version == 2
    assert fold.head.link == events[-1].link
    assert (events[0].data, events[0].actor, events[0].at_us) == ({"a": 1}, "me", 2_000)


def test_time_never_runs_backwards() -> None:
    """An event is never dated before the one it follows."""
    fold, _ = recorded(draft(), now_us=5_000)
    fold, rec = record(fold, draft(), 4_000, SALT)
    assert rec.event.at_us == fold.head.updated_us == 5_000


def test_versions_say_who_last_changed_a_field() -> None:
    """By top-level name; a deleted field has no version."""
    fold, _ = recorded(
        draft(set={"a": 1, "b": {"x": 1}, "c": 1}),
        draft(ops=[ops.Set(("b", "x"), 2)]),
        draft(inc={"a": 1}, delete=["c"]),
        draft(),
    )
    assert fold.versions == {"a": 3, "b": 2}


def test_scope_names_do_not_touch_the_fold() -> None:
    """app: and user: ops are somebody else's; temp: ops are not stored at all."""
    fold, events = recorded(draft(set={"app:a": 1, "user:u": 2, "temp:t": 3, "own": 4}))
    assert (fold.fields, fold.versions) == ({"own": 4}, {"own": 1})
    assert replay(START, events[0]).fields == {"own": 4}


def test_a_refused_draft_leaves_the_fold_alone() -> None:
    """The fold given to record is a value and stays what it was."""
    fold, _ = recorded(draft(set={"n": 1}))
    with pytest.raises(OpTypeMismatch):
        record(fold, draft(inc={"m": 1}, add={"n": [1]}), 3_000, SALT)
    assert fold.fields == {"n": 1}
    assert fold.head.version == 1


def test_a_damaged_event_moves_the_head_and_not_the_state() -> None:
    """Replay goes on past an event whose body could not be read."""
    fold, events = recorded(draft(set={"n": 1}))
    lost = Event(
        seq=2,
        id="x",
        type="user.said",
        actor="me",
        at_us=9_000,
        data=None,
        processed=0,
        link=b"l",
        damage="rot",
    )
    after = replay(replay(START, events[0]), lost)
    assert (after.fields, after.head.version, after.head.pending) == ({"n": 1}, 2, 1)
    assert fold.fields == after.fields


@pytest.mark.parametrize("type", ["session.processed", "session.timer_set", "session.labeled"])
def test_a_damaged_fact_can_be_replayed(type: str) -> None:
    """The fold is total: a reserved event without its body still has a next head."""
    lost = Event(
        seq=1, id="x", type=type, actor="me", at_us=9_000, data=None, link=b"l", damage="rot"
    )
    assert replay(START, lost).head.version == 1


# --- scopes --------------------------------------------------------------------------------------


def test_scope_ops_are_named_in_full() -> None:
    """app: names belong to the app, user: names to the user."""
    found = scope_ops(draft(set={"app:a": 1, "own": 2}, inc={"user:u": 3}), "shop", "ada")
    assert found == [
        (("shop", "", "app:a"), ops.Set(("app:a",), 1)),
        (("shop", "ada", "user:u"), ops.Inc(("user:u",), 3)),
    ]
    assert scope_ops(draft(set={"own": 1}), "shop", "ada") == []


def test_a_scope_name_counts_its_versions() -> None:
    """From 1, over changes and deletions."""
    value = None
    for op, expected in (
        (ops.Inc(("app:n",), 5), ScopeValue(1, 5)),
        (ops.Inc(("app:n",), 1), ScopeValue(2, 6)),
        (ops.Delete(("app:n",)), ScopeValue(3, None, True)),
        (ops.Add(("app:n",), [1]), ScopeValue(4, [1])),
        (ops.Set(("app:n",), None), ScopeValue(5, None)),
    ):
        value = scope_next(SCOPE, value, op)
        assert value == expected


@pytest.mark.parametrize("before", [None, ScopeValue(3, None, True)])
def test_what_is_not_there_cannot_be_deleted(before: ScopeValue | None) -> None:
    """Neither a name never written nor one already deleted."""
    with pytest.raises(OpPathUnknown):
        scope_next(SCOPE, before, ops.Delete(("app:n",)))


def test_a_damaged_scope_name_can_only_be_set_whole() -> None:
    """Anything else would build on a value that cannot be read."""
    before = ScopeValue(3, None, damage="cannot be read")
    assert scope_next(SCOPE, before, ops.Set(("app:n",), 5)) == ScopeValue(4, 5)
    for op in (ops.Set(("app:n", "x"), 5), ops.Inc(("app:n",), 1), ops.Delete(("app:n",))):
        with pytest.raises(SessionCorrupt):
            scope_next(SCOPE, before, op)


# --- equality ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "app:c", "temp:d"])
VALUES = (
    st.none() | st.integers(-3, 3) | st.lists(st.integers(0, 3), max_size=2) | st.just({"x": 1})
)
DRAFTS = st.one_of(
    st.builds(
        lambda type, set, inc, add, delete: {
            "type": type,
            "set": set,
            "inc": inc,
            "add": add,
            "delete": delete,
        },
        st.sampled_from(["user.said", "agent.said", "note.made"]),
        st.dictionaries(NAMES, VALUES, max_size=2),
        st.dictionaries(NAMES, st.integers(-3, 3), max_size=1),
        st.dictionaries(NAMES, st.lists(st.integers(), max_size=2), max_size=1),
        st.lists(NAMES, max_size=1),
    ),
    st.builds(
        lambda name, value: {"type": "session.labeled", "data": {"labels": {name: value}}},
        st.sampled_from("pq"),
        st.none() | st.sampled_from("xy"),
    ),
    st.builds(
        lambda name, at: {
            "type": "session.timer_set",
            "data": {"name": name, "at_us": at, "kind": "wake"},
        },
        st.sampled_from("pq"),
        st.integers(0, 99),
    ),
    st.builds(
        lambda name: {"type": "session.timer_cleared", "data": {"name": name}},
        st.sampled_from("pq"),
    ),
)


def waiting_since(fold: Fold, since_us: int | None) -> Fold:
    """The fold, with inputs that wait since then."""
    head = fold.head
    if head.pending:
        inputs = FrozenDict({"pending": head.pending, "since_us": since_us})
        head = msgspec.structs.replace(head, facts=FrozenDict({**head.facts, "inputs": inputs}))
    return msgspec.structs.replace(fold, head=head)


@examples(100)
@given(st.lists(DRAFTS, max_size=20), st.lists(st.integers(0, 10_000), min_size=20, max_size=20))
def test_replaying_what_was_recorded_gives_the_same_fold(
    drafts: list[dict[str, Any]], times: list[int]
) -> None:
    """Live and replayed head, fields and versions are equal after every event, but for the time
    since which input waits: by the clock, and the log's time is never before it."""
    live, events = START, []
    for given_draft, now_us in zip(drafts, times, strict=False):
        try:
            live, rec = record(live, draft(**given_draft), now_us, SALT)
        except LimpetError:
            continue
        events.append(rec.event)
        replayed = replay_all(START, events)
        since_us = live.head.pending_us
        assert (since_us is None) == (replayed.head.pending_us is None)
        assert since_us is None or since_us <= (replayed.head.pending_us or 0)
        assert waiting_since(replayed, since_us) == live
        assert canonical(replayed.fields) == canonical(live.fields)
    assert [event.at_us for event in events] == sorted(event.at_us for event in events)


def test_a_removed_body_is_missing_from_the_state() -> None:
    """It was removed on purpose, so it is not damage; a state that needs it is not whole."""
    fold, events = recorded(draft(set={"n": 1}), draft(inc={"n": 1}))
    gone = msgspec.structs.replace(events[1], data=None, ops=(), removed=True)
    after, whole = replay_any(replay(START, events[0]), gone)
    assert (after.fields, after.head.version, whole) == ({"n": 1}, 2, False)
    assert replay_any(replay(START, events[0]), events[1]) == (fold, True)


@pytest.mark.parametrize("kind", [Fold, Recorded, ScopeValue, ScopeWrite])
def test_what_is_folded_cannot_be_changed_in_place(kind: type[msgspec.Struct]) -> None:
    """Stores hand out the folds that they keep: a caller who changed one would change them."""
    assert kind.__struct_config__.frozen


def test_an_event_that_does_not_fit_moves_the_head_alone() -> None:
    """It is told apart from a sound one, and what follows can still be read."""
    start = Fold(blank(KEY, "uid", 100))
    fold, kept = record(start, prepare(Fact(type="a.b", inc={"n": 1}), id="1", actor="x"), 1, b"s")
    assert replay_any(start, kept.event) == (fold, True)
    bad = msgspec.structs.replace(kept.event, ops=(ops.Inc(("n", "deep"), 1),))
    after, sound = replay_any(start, bad)
    assert (after.head.version, after.fields, sound) == (1, {}, False)
    damaged = msgspec.structs.replace(kept.event, data=None, ops=(), damage="rotted")
    after, sound = replay_any(start, damaged)
    assert (after.head.version, after.fields, sound) == (1, {}, False)


def test_an_adopted_event_keeps_its_time_and_salt() -> None:
    """A plain one too: it is dated and salted where it was first recorded, not here."""
    fold, _ = recorded(draft("session.created", data={"app": "shop", "user": "ada", "id": "1"}))
    origin = Origin(2, 5_000, b"o" * 16, b"")
    adopted = msgspec.structs.replace(draft(), origin=origin, caller_chose_id=True)
    _, rec = record(fold, adopted, 9_000, SALT)
    assert (rec.event.at_us, rec.salt) == (5_000, b"o" * 16)
