"""The table of phases: every pair of a phase and an event, and what each phase accepts."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from limpet.errors import InvalidEvent, InvalidTransition, SessionEnded, SessionSuspended
from limpet.model.due import activity_moves, deadline_us, deadlines, due_us
from limpet.model.facts.phases import EVENTS, PHASES, TABLE, TERMINAL, rule, transition
from limpet.model.facts.timeouts import Timeouts, timeouts_data, timeouts_in, unusual
from limpet.model.facts.writes import check_write
from limpet.model.head import Head, advance, blank, check_facts
from limpet.model.keys import Key
from limpet.model.values import EMPTY, freeze

KEY = Key("support", "ada", "1")
SECOND = 1_000_000
# Written from the issue and seed 002, not from the code's own table.
EXPECTED = {
    ("init", "activate"): "active",
    ("init", "terminate"): "terminated",
    ("active", "suspend"): "suspended",
    ("active", "timeout"): "suspended",
    ("active", "complete"): "completed",
    ("active", "terminate"): "terminated",
    ("suspended", "resume"): "resumed",
    ("suspended", "terminate"): "terminated",
    ("suspended", "expire"): "terminated",
    ("resumed", "reactivate"): "active",
    ("resumed", "terminate"): "terminated",
    ("completed", "archive"): "archived",
    ("terminated", "archive"): "archived",
    ("archived", "unarchive"): "completed",
}


def facts_of(phase: str) -> Any:
    more = {"archived_from": "completed"} if phase == "archived" else {}
    return EMPTY if phase == "active" else freeze({"phase": phase, **more})


@pytest.mark.parametrize(("phase", "event"), list(product(PHASES, EVENTS)))
def test_every_pair_leads_where_the_table_says_or_is_refused(phase: Any, event: Any) -> None:
    """Of the full product of phases and events, exactly the table's pairs are transitions."""
    wanted = EXPECTED.get((phase, event))
    if wanted is None:
        with pytest.raises(InvalidTransition) as caught:
            rule(phase, event)
        assert (caught.value.phase, caught.value.event) == (phase, event)
        data = {"from": phase, "to": "active", "event": event}
        with pytest.raises(InvalidTransition):
            check_facts(facts_of(phase), EMPTY, "session.activated", data)
        return
    fact = transition(phase, event)
    head = advanced(with_facts(facts_of(phase)), fact)
    assert head.phase == wanted
    check_facts(facts_of(phase), head.facts, fact.type, fact.data)


def with_facts(facts: Any) -> Head:
    return structs.replace(blank(KEY, "u", 0), facts=facts)


def advanced(head: Head, fact: Any, at_us: int = 5 * SECOND) -> Head:
    return advance(head, fact.type, freeze(dict(fact.data)), at_us, b"l")


@pytest.mark.parametrize("phase", PHASES)
def test_a_transition_from_another_phase_than_the_newest_is_refused(phase: Any) -> None:
    """What was decided on an older phase is not recorded on a newer one."""
    for (of, event), row in TABLE.items():
        if of != phase:
            data = {"from": of, "to": row.to, "event": event}
            with pytest.raises(InvalidTransition):
                check_facts(facts_of(phase), EMPTY, "session.suspended", data)


@pytest.mark.parametrize("phase", [p for p in PHASES if p != "active"])
def test_only_an_active_session_is_due(phase: Any) -> None:
    """Pending input makes no session run that is not active."""
    waits = {"inputs": {"pending": 1, "since_us": 3}}
    assert due_us(freeze(waits)) == 3
    assert due_us(freeze({**waits, "phase": phase})) is None


ACCEPTED = {
    "init": {"user.message", "agent.message", "session.labeled", "session.tools_bound"},
    "suspended": {
        "user.message",
        "session.labeled",
        "session.timer_set",
        "session.timeouts_set",
        "session.retention_set",
    },
    "resumed": {"user.message", "session.labeled", "session.tools_bound", "session.rewound"},
    "completed": {"session.timeouts_set", "session.retention_set", "session.archived"},
    "terminated": {"session.timeouts_set", "session.retention_set", "session.archived"},
    "archived": {"session.timeouts_set", "session.retention_set", "session.unarchived"},
}
TRIED = ("user.message", "agent.message", "session.labeled", "session.tools_bound")
TRIED += ("state.updated", "session.processed", "session.timeouts_set", "session.renewed")
TRIED += ("session.retention_set",)
ALSO = ("session.renewed", "session.retention_set")


@pytest.mark.parametrize(("phase", "type"), list(product(ACCEPTED, TRIED)))
def test_a_phase_accepts_its_own_events_and_no_others(phase: Any, type: str) -> None:
    """Suspended sessions take inputs and facts about themselves, ended ones only retention."""
    wanted = type in ACCEPTED[phase] or phase == "init"
    wanted = wanted or (phase in ("suspended", "resumed") and type.startswith("session.time"))
    wanted = wanted or (phase in ("suspended", "resumed") and type in ALSO)
    if wanted:
        check_write(KEY, phase, type, input=type.startswith("user."))
        return
    expected = SessionEnded if phase in TERMINAL else SessionSuspended
    with pytest.raises(expected):
        check_write(KEY, phase, type, input=type.startswith("user."))


def test_durations_add_up_to_the_life() -> None:
    """The time in each phase is counted once, and the clock stops at the end."""
    head = with_facts(freeze({"phase": "init", "durations": {"since_us": 0}}))
    for second, (phase, event) in enumerate(
        [
            ("init", "activate"),
            ("active", "suspend"),
            ("suspended", "resume"),
            ("resumed", "reactivate"),
            ("active", "complete"),
            ("completed", "archive"),
        ],
        1,
    ):
        head = advanced(head, transition(phase, event), second * second * SECOND)  # type: ignore[arg-type]
    from limpet.session.life.transitions import durations

    spent = durations(head, 1_000 * SECOND)
    assert (spent.init, spent.active, spent.suspended, spent.resumed) == (1, 3 + 9, 5, 7)
    assert spent.total == 25
    assert spent.suspensions == 1
    assert spent.active_ratio == (12 + 7) / 25
    assert spent.suspension_frequency == 1 / 25


def test_deadlines_follow_the_phase() -> None:
    """Idle counts while active, grace while suspended, expiry after the end, absolute before."""
    spans = {"idle_us": 16, "absolute_us": 100, "grace_us": 30, "expiry_us": 50}
    head = with_facts(freeze({"timeouts": spans}))
    assert dict(deadlines(head)) == {"idle": 16, "absolute": 100}
    head = advanced(head, transition("active", "timeout", more={"resumes": True}), 20)
    assert dict(deadlines(head)) == {"grace": 50, "absolute": 100}
    head = advance(head, "user.message", EMPTY, 25, b"", input=True)
    assert deadline_us(head) == 25  # input ends the suspension
    head = advanced(head, transition("suspended", "terminate"), 60)
    assert deadlines(head) == [("expiry", 110)]
    head = advanced(head, transition("terminated", "archive"), 90)
    assert deadlines(head) == [("expiry", 110)]  # counted from the end, not from the archiving


def test_time_that_it_was_not_active_does_not_count_as_idle() -> None:
    """A session that was resumed is not idle for the time it was suspended."""
    head = with_facts(freeze({"timeouts": {"idle_us": 16}}))
    head = advanced(head, transition("active", "suspend"), 1_000)
    head = advanced(head, transition("suspended", "resume"), 2_000)
    head = advanced(head, transition("resumed", "reactivate"), 3_000)
    assert deadline_us(head) == 3_016


@pytest.mark.parametrize(
    ("type", "background", "counts"),
    [
        ("user.message", False, True),
        ("agent.message", False, True),
        ("step.recorded", False, True),
        ("effect.intended", False, True),
        ("system.message", False, False),
        ("system.message", True, True),
        ("session.labeled", True, False),
        ("span.started", True, False),
    ],
)
def test_activity_is_what_people_and_agents_do(type: str, background: bool, counts: bool) -> None:
    """Background events keep a session from being idle only where that was asked for."""
    spans: dict[str, Any] = {"idle_us": 16, "background": True} if background else {"idle_us": 16}
    head = with_facts(freeze({"timeouts": spans}))
    head = advance(head, "session.created", EMPTY, 1, b"")
    assert (advance(head, type, EMPTY, 7, b"").active_us == 7) is counts


def test_renewing_adds_up_to_the_most() -> None:
    """Idle becomes min(idle + delta, idle_max)."""
    from limpet.model.facts.timeouts import renewed

    head = with_facts(freeze({"timeouts": {"idle_us": 10, "idle_max_us": 25}}))
    more = renewed(timedelta(microseconds=10))
    for wanted in (20, 25, 25):
        head = advanced(head, more)
        assert head.facts["timeouts"]["idle_us"] == wanted


def test_renewing_needs_an_idle_timeout() -> None:
    """There is nothing to renew in a session that may be idle for as long as it likes."""
    with pytest.raises(InvalidEvent, match="no idle timeout"):
        check_facts(EMPTY, EMPTY, "session.renewed", {"idle_us": 1})


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(-1), 5, "1h"])
def test_a_timeout_is_a_positive_timedelta(wrong: Any) -> None:
    """What is not a time to wait is refused when the timeouts are made."""
    with pytest.raises(InvalidEvent):
        Timeouts(idle=wrong)


def test_timeouts_are_read_back_as_they_were_set() -> None:
    """The head gives the Timeouts that were recorded."""
    given = Timeouts(idle=timedelta(minutes=5), expiry=timedelta(days=30), background=True)
    assert timeouts_in(freeze({"timeouts": timeouts_data(given)})) == given


def test_unusual_timeouts_are_named() -> None:
    """What lies outside of the usual ranges is pointed out."""
    given = Timeouts(
        idle=timedelta(seconds=5), absolute=timedelta(days=31), grace=timedelta(days=1)
    )
    assert unusual(freeze({"timeouts": timeouts_data(given)})) == ("idle", "absolute")


@given(st.integers(0, 2_000), st.integers(0, 2_000), st.integers(1, 400), st.booleans())
def test_activity_moves_a_deadline_just_when_the_deadline_differs(
    was_us: int, more_us: int, idle_us: int, timed: bool
) -> None:
    """The shortcut that appends take says what the whole computation says."""
    spans = {"idle_us": idle_us, "absolute_us": 9_000} if timed else {"absolute_us": 9_000}
    for facts in ({"timeouts": spans}, {"timeouts": spans, "durations": {"since_us": 900}}, {}):
        before = structs.replace(with_facts(freeze(facts)), active_us=was_us)
        after = structs.replace(before, active_us=was_us + more_us)
        assert activity_moves(before, after) == (deadlines(before) != deadlines(after))
