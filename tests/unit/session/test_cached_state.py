"""What an object knows: a commit that it absorbs the short way leaves what the usual way leaves."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
from hypothesis import example, given, strategies as st

from limpet.model import Draft, Event, Fold, FrozenDict, Head, Key, blank, record
from limpet.session.cached_state import CachedState
from limpet.store.protocol import Committed
from limpet.testing.commits import ready

KEY = Key("a", "u", "s")
steps = st.tuples(
    st.sampled_from(["a.b", "a.b", "user.said", "session.processed"]),
    st.integers(0, 3),  # events of other writers before it
    st.sampled_from([0, 0, 0, 1]),  # it is a repeat
    st.sampled_from([(), (), (1,)]),  # events that could not be read
)
Seen = list[tuple[Head, FrozenDict, tuple[Event, ...], tuple[int, ...], list[bool]]]


def answers(taken: list[tuple[str, int, int, tuple[int, ...]]]) -> list[Committed]:
    """The answers to an object that made these commits to a session."""
    fold, found = Fold(blank(KEY, "u", 1)), []
    for type_, others, repeated, damaged in taken:
        for _ in range(others):
            fold, _rec = record(fold, ready(Draft(type="o.o", set={"o": 1})), 5, b"s" * 16)
        before = fold
        fold, rec = record(fold, ready(Draft(type="a.b", set={"n": others})), 5, b"s" * 16)
        data = {"seqs": [1]} if type_ == "session.processed" else {}
        event = msgspec.structs.replace(rec.event, type=type_, data=FrozenDict(data))
        if repeated:
            event = msgspec.structs.replace(event, seq=max(1, before.head.version), repeated=True)
            fold = before
        state = (fold.head, fold.fields, fold.versions)
        found.append(Committed((event,), *state, {}, repeated, damaged))
    return found


def shown(of: list[Committed]) -> Seen:
    """What an object shows after each of these answers."""
    known, seen = CachedState(KEY), []
    for answer in of:
        known.absorb(answer, (None,))
        repeated = [event.repeated for event in known.tail]  # which equality ignores
        seen.append((known.head, known.fields, known.tail, known.damaged, repeated))
    return seen


@given(st.lists(steps, max_size=6))
@example([("a.b", 0, 0, ()), ("a.b", 1, 1, ())])  # another object has recorded it
@example([("a.b", 0, 0, ()), ("a.b", 0, 0, (1,)), ("a.b", 0, 0, ())])
@example([("user.said", 0, 0, ()), ("session.processed", 0, 0, ())])
def test_one_event_more_is_absorbed_as_any_answer(
    taken: list[tuple[str, int, int, tuple[int, ...]]],
) -> None:
    """Head, fields, tail and damage, whoever wrote in between, repeats included."""
    made = answers(taken)
    with patch.object(CachedState, "_absorb_next", lambda *_: False):
        usual = shown(made)
    assert shown(made) == usual


def test_a_repeat_is_not_taken_for_the_event_of_another() -> None:
    """Of five events an object knows three; a commit repeats the second and records the fifth."""
    made = answers([("a.b", 0, 0, ())] * 5)
    known = CachedState(KEY)
    for answer in made[:3]:
        known.absorb(answer, (None,))
    second = msgspec.structs.replace(made[1].events[0], repeated=True)
    both = (second, made[4].events[0])
    known.absorb(msgspec.structs.replace(made[4], events=both, repeated=1), (None, None))
    assert [event.seq for event in known.tail] == [5]
