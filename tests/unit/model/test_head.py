"""The head: folded event by event, and due when its facts say so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from limpet.errors import InvalidEvent
from limpet.model.chain import genesis
from limpet.model.due import (
    deadline_at,
    deadline_us,
    due_us,
    moves_with_activity,
    quantized,
    runnable_at,
    runnable_us,
)
from limpet.model.events import is_input
from limpet.model.facts.creation import created
from limpet.model.facts.inputs import processed
from limpet.model.facts.labels import labeled
from limpet.model.facts.timers import Timer, timer_set
from limpet.model.head import Head, advance, blank, buried, check_facts
from limpet.model.keys import Key
from limpet.model.limits import LABEL_VALUE_CHARS_MAX, LABELS_MAX, TIMERS_MAX
from limpet.model.values import EMPTY, freeze

KEY = Key("shop", "ada", "1")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def after(*events: tuple[str, dict[str, Any]]) -> Head:
    """The head after these events, the n-th of which is recorded at n × 10 µs."""
    head = blank(KEY, "uid", 0)
    for n, (type, data) in enumerate(events, 1):
        head = advance(head, type, data, n * 10, b"link-%d" % n, input=is_input(type))
    return head


def test_a_head_begins_before_the_first_event() -> None:
    """Version 0, the chain's genesis, nothing pending."""
    head = blank(KEY, "uid", 7)
    assert (head.version, head.link) == (0, genesis("uid"))
    assert (head.created_us, head.updated_us, head.pending, head.fence) == (7, 7, 0, 0)
    assert head.created_at == datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)


def test_every_event_is_one_version() -> None:
    """Version, link and update time are those of the last event, whatever its type."""
    head = after(("any.thing", {}), ("session.unknown", {}), ("agent.said", {}))
    assert (head.version, head.link, head.updated_us, head.created_us) == (3, b"link-3", 30, 0)


def test_inputs_are_counted_and_dated() -> None:
    """user.* events pend since the first of them; username.* and agent.* do not."""
    head = after(("username.x", {}), ("user.said", {}), ("agent.said", {}), ("user.said", {}))
    assert (head.pending, head.pending_us) == (2, 20)


def test_processed_inputs_are_subtracted() -> None:
    """When none is left nothing is pending."""
    inputs = [("user.said", {})] * 3
    assert after(*inputs, ("session.processed", {"seqs": [1, 3]})).pending == 1
    done = after(*inputs, ("session.processed", {"seqs": [1, 2, 3]}))
    assert (done.pending, done.pending_us) == (0, None)


def test_labels_are_merged_and_taken_off() -> None:
    """A later label replaces, None removes, and other events leave them alone."""
    head = after(
        ("session.created", {"labels": {"a": "1", "b": "2"}}),
        ("session.labeled", {"labels": {"a": None, "b": "3", "c": "4", "never": None}}),
        ("user.said", {"labels": {"b": "x"}}),
    )
    assert head.labels == {"b": "3", "c": "4"}


def test_timers_are_set_replaced_and_cleared() -> None:
    """One per name; clearing what is not set changes nothing."""
    head = after(
        ("session.timer_set", {"name": "t", "at_us": 5, "kind": "wake"}),
        ("session.timer_set", {"name": "t", "at_us": 6, "kind": "deadline"}),
        ("session.timer_set", {"name": "u", "at_us": 7, "kind": "wake"}),
        ("session.timer_cleared", {"name": "u"}),
        ("session.timer_cleared", {"name": "never"}),
    )
    assert head.timers == {"t": Timer(6, "deadline", 2)}


def test_a_timer_names_the_event_that_set_it() -> None:
    """A later event of the same name takes its place, so its seq tells which setting fired."""
    setting = {"name": "t", "at_us": 5, "kind": "wake"}
    head = after(("any.thing", {}), ("session.timer_set", setting))
    assert head.timers["t"].seq == 2
    again = after(("any.thing", {}), ("session.timer_set", setting), ("session.timer_set", setting))
    assert again.timers["t"].seq == 3


def test_a_plain_session_has_no_facts() -> None:
    """The document is empty until something is in it, and again when all of it has gone."""
    assert after(("agent.said", {})).facts == EMPTY
    gone = after(
        ("session.created", {"labels": {"a": "1"}}),
        ("session.timer_set", {"name": "t", "at_us": 5, "kind": "wake"}),
        ("session.prioritized", {"priority": 3}),
        ("user.said", {}),
        ("session.labeled", {"labels": {"a": None}}),
        ("session.timer_cleared", {"name": "t"}),
        ("session.prioritized", {"priority": 0}),
        ("session.processed", {"seqs": [4]}),
    )
    assert gone.facts == EMPTY


def test_an_event_that_changes_no_fact_leaves_the_very_document() -> None:
    """A message that says nothing of its cost, say: a store would write the document again."""
    head = after(("session.labeled", {"labels": {"plan": "gold"}}))
    told = advance(head, "agent.message", {"text": "hello"}, at_us=9, link=b"", input=False)
    assert told.facts is head.facts


def test_only_some_events_count_as_activity() -> None:
    """What users, agents, steps and effects do, and the beginning; labels and timers do not."""
    begun = ("session.created", {"app": "shop"})
    head = after(begun, ("session.labeled", {"labels": {"a": "1"}}), ("my.note", {}))
    assert (head.active_us, head.updated_us) == (10, 30)
    for type in ("user.said", "agent.said", "step.ended", "effect.done"):
        assert after(begun, (type, {}), ("my.note", {})).active_us == 20
    assert after(begun, ("username.x", {})).active_us == 10


def test_a_tombstone_keeps_no_facts() -> None:
    """Who it was, how far it got, when and how it ended; not what it was about."""
    head = after(("session.created", {"labels": {"a": "1"}}), ("user.said", {}))
    tomb = buried(head, 99, "moved")
    assert (tomb.uid, tomb.version, tomb.link) == (head.uid, head.version, head.link)
    assert (tomb.deleted_us, tomb.ending, tomb.facts) == (99, "moved", EMPTY)


# --- due -----------------------------------------------------------------------------------------


def with_facts(**facts: Any) -> Head:
    return Head(KEY, "uid", 1, b"", 0, 0, 0, freeze(facts))


def timed(**timers: Timer) -> Head:
    return with_facts(timers=_timers(timers))


def _timers(timers: dict[str, Timer]) -> dict[str, Any]:
    return {name: {"at_us": t.at_us, "kind": t.kind, "seq": t.seq} for name, t in timers.items()}


def test_nothing_to_do_is_never_due() -> None:
    """A head without inputs and timers has no times at all."""
    head = after(("agent.said", {}))
    assert runnable_us(head) is deadline_us(head) is None
    assert runnable_at(head) is deadline_at(head) is None


def test_the_earliest_of_its_kind_decides() -> None:
    """Wakes make runnable, deadlines end, and neither counts for the other."""
    head = timed(a=Timer(500), b=Timer(300), c=Timer(400, "deadline"), d=Timer(200, "deadline"))
    assert (runnable_us(head), deadline_us(head)) == (300, 200)
    assert deadline_at(timed(a=Timer(1_000_000, "deadline"))) == datetime(
        1970, 1, 1, 0, 0, 1, tzinfo=UTC
    )


@pytest.mark.parametrize(("pending_us", "wake_us"), [(100, 300), (300, 100), (300, None)])
def test_pending_input_and_wakes_are_one_queue(pending_us: int, wake_us: int | None) -> None:
    """A session is runnable from whichever comes first."""
    timers = _timers({} if wake_us is None else {"t": Timer(wake_us)})
    head = with_facts(inputs={"pending": 1, "since_us": pending_us}, timers=timers)
    assert runnable_us(head) == due_us(head.facts) == min(pending_us, wake_us or pending_us)


def test_an_idle_time_ends_a_session_and_activity_moves_it() -> None:
    """It counts from the last activity; without one only deadlines end a session."""
    idle = with_facts(timeouts={"idle_us": 1_600})
    assert moves_with_activity(idle.facts)
    assert deadline_us(idle) == 1_600
    assert deadline_us(replace(idle, active_us=1_000)) == 2_600
    both = with_facts(timeouts={"idle_us": 1_600}, timers=_timers({"d": Timer(700, "deadline")}))
    assert deadline_us(both) == 700
    assert not moves_with_activity(EMPTY)


@pytest.mark.parametrize("span_us", [1, 15, 16, 160, 3_600_000_000])
def test_a_rounded_deadline_is_never_early_and_hardly_late(span_us: int) -> None:
    """At most a sixteenth of the span late, and the same for most times within one step."""
    step = max(1, span_us // 16)
    for since_us in (0, 1, step - 1, step, 7 * step + 3):
        at_us = quantized(since_us, span_us)
        assert 0 <= at_us - (since_us + span_us) < step
    seen = {quantized(since_us, span_us) for since_us in range(0, 4 * step, max(1, step // 8))}
    assert len(seen) <= 5 if step > 1 else seen


# --- the data of the reserved events -------------------------------------------------------------


def test_a_creation_says_whose_it_is() -> None:
    """The key is in the first event; labels only if there are any."""
    assert created(KEY).data == {"app": "shop", "user": "ada", "id": "1"}
    assert created(KEY, labels={"a": "b"}).data["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"a": ""},
        {"a": " x"},
        {"a": 5},
        {5: "a"},
        {"a": "x" * (LABEL_VALUE_CHARS_MAX + 1)},
        {"a\x00": "x"},
        {f"l{n}": "x" for n in range(LABELS_MAX + 1)},
    ],
    ids=lambda labels: repr(labels)[:40],
)
def test_unfit_labels_are_refused(labels: Any) -> None:
    """Names and values are short texts, and not too many."""
    with pytest.raises(InvalidEvent):
        labeled(labels)


@pytest.mark.parametrize("seqs", [[], [0], [-1], [True], ["1"], [1.0], [2, None]], ids=repr)
def test_processed_takes_seqs(seqs: Any) -> None:
    """Anything but one or more positive integers is refused."""
    with pytest.raises(InvalidEvent):
        processed(seqs)


def test_processed_seqs_are_a_sorted_set() -> None:
    """The same input named twice is processed once."""
    assert processed(iter([3, 1, 3])).data == {"seqs": [1, 3]}


@pytest.mark.parametrize(
    ("name", "at", "kind"),
    [
        ("", AT, "wake"),
        ("t", AT, "sometime"),
        ("t", AT.replace(tzinfo=None), "wake"),
        ("t", 5, "wake"),
        ("t", "2030-01-01", "wake"),
        (5, AT, "wake"),
    ],
    ids=repr,
)
def test_unfit_timers_are_refused(name: Any, at: Any, kind: Any) -> None:
    """A timer has a name, an aware time and a known kind."""
    with pytest.raises(InvalidEvent):
        timer_set(name, at, kind=kind)


def test_a_timer_is_stored_in_microseconds() -> None:
    """The data of the event is what the fold reads."""
    assert timer_set("t", AT).data == {
        "name": "t",
        "at_us": 1_893_456_000_000_000,
        "kind": "wake",
    }
    assert Timer(1_893_456_000_000_000).at == AT


def test_a_head_stays_a_row() -> None:
    """Too many labels or timers are refused, the bound itself is not."""
    labels = {f"l{n}": "x" for n in range(LABELS_MAX)}
    check_facts(EMPTY, freeze({"labels": labels}), "session.labeled", {})
    for type in ("session.created", "session.forked", "session.labeled"):
        with pytest.raises(InvalidEvent):
            check_facts(EMPTY, freeze({"labels": {**labels, "more": "x"}}), type, {})
    timers = {f"t{n}": Timer(n) for n in range(TIMERS_MAX + 1)}
    with pytest.raises(InvalidEvent):
        check_facts(EMPTY, timed(**timers).facts, "session.timer_set", {})
