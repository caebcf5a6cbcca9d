"""Due: when a session next needs attention, computed from its head alone.

The rule is here and nowhere else: a store keeps `due_us` and `deadline_us` as columns, and takes
the end of a lease, if there is one, before `due_us`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from limpet.model.events import to_time
from limpet.model.facts.inputs import pending, pending_us
from limpet.model.facts.moves import KEPT_US
from limpet.model.facts.phases import ACTIVE, ARCHIVED, SUSPENDED, TERMINAL, Phase, roused_us
from limpet.model.facts.running import endings
from limpet.model.facts.running.deaths import deaths_in
from limpet.model.facts.running.runs import is_open, is_retried, next_us
from limpet.model.facts.timers import first_us, timers_in
from limpet.model.facts.view import Facts
from limpet.model.head import Head
from limpet.model.values import EMPTY

# The work of a sweep. `input`: it came to a session that was suspended for idleness.
# `moved`: the rows that a session has left behind here are to be removed.
Deadline: TypeAlias = Literal[
    "deadline", "absolute", "idle", "grace", "input", "archive", "expiry", "moved"
]
# Members of the facts that never say when: many sessions have no others, and logs of checkpoints.
_TIMELESS: Final = frozenset(
    ("checkpoint", "field_policies", "isolation", "labels", "moves", "schema_version")
)
# Members without which there is no deadline.
_DEADLINED: Final = frozenset(("departed", "phase", "timeouts", "timers"))
_STEPS: Final = 16  # an idle time is rounded up by at most one part in so many


def due_us(facts: Facts) -> int | None:
    """Return when the session is runnable if nobody has it: since its input, or at its wake timer.

    Only an active session runs; one that was suspended for idleness is due for input that nobody
    has looked at, which resumes it. If it waits for an answer, it is due when that comes, or at the
    request's deadline; after a failure, at the time of the next attempt. One that has ended is due
    for what its end leaves to be done. One that has departed is due elsewhere.
    """
    if facts.keys() <= _TIMELESS:
        return None
    if "departed" in facts:
        return None
    if "phase" in facts:
        if "resumes" in facts:
            return next_us(facts, pending_us(facts))
        return endings.due_us(facts)
    return next_us(facts, _earliest(pending_us(facts), first_us(facts, "wake")))


def runnable_us(head: Head) -> int | None:
    """Return when the session is runnable, in microseconds.

    While it is leased, this is the end of the lease, so a session whose worker died becomes due
    like any other. While it is held back, this is the time of the retry.
    """
    return due_us(head.facts) if head.lease_us is None else head.lease_us


def deadline_us(head: Head) -> int | None:
    """Return when a sweep has something to do here, in microseconds, or None: see `deadlines`."""
    if _DEADLINED.isdisjoint(head.facts):
        return None
    return min([at_us for _, at_us in deadlines(head)], default=None)


def deadlines(head: Head) -> list[tuple[Deadline, int]]:
    """Every time at which a timeout moves the session on, and why."""
    facts = head.facts
    if "departed" in facts:
        return [("moved", facts["departed"]["at_us"] + KEPT_US)]
    phase: Phase = facts.get("phase", ACTIVE)
    spans, spent = facts.get("timeouts", EMPTY), facts.get("durations", EMPTY)
    times: list[tuple[Deadline, int]] = []
    since_us = spent.get("since_us", head.created_us)
    if phase in TERMINAL:
        return _after_end(facts, phase, spans, spent.get("ended_us", since_us))
    if (timer_us := first_us(facts, "deadline")) is not None:
        times.append(("deadline", timer_us))
    if "absolute_us" in spans:
        times.append(("absolute", head.created_us + spans["absolute_us"]))
    if phase == ACTIVE and "idle_us" in spans:
        # Time in which it was not active does not count as idle.
        times.append(("idle", quantized(max(head.active_us, since_us), spans["idle_us"])))
    if phase == SUSPENDED:
        if "grace_us" in spans:
            times.append(("grace", since_us + spans["grace_us"]))
        if (input_us := roused_us(facts)) is not None:
            times.append(("input", input_us))
    return times


def _after_end(
    facts: Facts, phase: Phase, spans: Facts, ended_us: int
) -> list[tuple[Deadline, int]]:
    """Return when a session that has ended is archived, and deleted."""
    if endings.is_owed(facts):  # what is to be undone, or told, first keeps it
        return []
    times: list[tuple[Deadline, int]] = []
    if "archive_us" in spans and phase != ARCHIVED:
        times.append(("archive", ended_us + spans["archive_us"]))
    if "expiry_us" in spans:
        times.append(("expiry", ended_us + spans["expiry_us"]))
    return times


def moves_with_activity(facts: Facts) -> bool:
    """True if the deadline depends on when the session was last active."""
    return "timeouts" in facts


def activity_moves(before: Head, after: Head) -> bool:
    """True if activity between two heads with the same facts moved the deadline.

    Most appends do not: this is all that a timeout costs them.
    """
    facts = after.facts
    spans = facts.get("timeouts")
    if (
        spans is None
        or "phase" in facts
        or "departed" in facts
        or (idle_us := spans.get("idle_us")) is None
    ):
        return False
    since_us = facts.get("durations", EMPTY).get("since_us", after.created_us)
    was_us, is_us = max(before.active_us, since_us), max(after.active_us, since_us)
    return was_us != is_us and quantized(was_us, idle_us) != quantized(is_us, idle_us)


def quantized(since_us: int, span_us: int) -> int:
    """`span_us` after `since_us`, rounded up by at most a sixteenth of the span.

    Never early. Most appends then leave the deadline, and its place in an index, where it is.
    """
    step = max(1, span_us // _STEPS)
    return -(-(since_us + span_us) // step) * step


def runnable_at(head: Head) -> datetime | None:
    """Return when a worker can claim the session; None while nothing is due there."""
    at_us = runnable_us(head)
    return None if at_us is None else to_time(at_us)


def deadline_at(head: Head) -> datetime | None:
    """Return when a sweep has something to do there, such as a timeout; None if it never has."""
    at_us = deadline_us(head)
    return None if at_us is None else to_time(at_us)


def _earliest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


class Reasons(msgspec.Struct, frozen=True, gc=False):
    """The reasons why a session was due: its due wake timers (name and time), and its pending
    inputs."""

    timers: tuple[tuple[str, int], ...] = ()  # the longest due first
    pending: int = 0
    pending_us: int | None = None
    deaths: int = 0  # since it last ended a wake by itself; above 0 it is run alone
    is_open: bool = False  # a run was begun that nobody has closed
    fence: int = 0  # of the lease of the last run that was closed


NO_REASONS: Final = Reasons()


def due_for(facts: Facts, now_us: int) -> Reasons:
    """The reasons to run now, from a head's timers and inputs."""
    timers = timers_in(facts).items()
    due = [(t.at_us, n) for n, t in timers if t.kind == "wake" and t.at_us <= now_us]
    by_time = tuple([(name, at_us) for at_us, name in sorted(due)])
    waits = (by_time, pending(facts), pending_us(facts))
    if (run := facts.get("run")) is None:
        return Reasons(*waits)
    return Reasons(*waits, deaths_in(facts).total, is_open(facts), run.get("fence", 0))


def reasons_at(head: Head, now_us: int) -> Reasons:
    """The reasons to run a session now, regardless of its lease."""
    return due_for(head.facts, now_us)


def is_unchanged(given: Reasons, head: Head, now_us: int) -> bool:
    """True if every reason why the session is due now was already a reason of the lease.

    Inputs count as changed if one arrived and also if one was processed, so a worker that handles
    one input per lease does not wait in between.
    """
    due = due_us(head.facts)
    if due is None or due > now_us or is_retried(head.facts):
        return False  # it is not due, or its next attempt has a time of its own
    now = reasons_at(head, now_us)
    waits = now.pending_us is not None and now.pending_us <= now_us
    if not waits and not now.timers:
        return False  # it is due for the turn of a worker that died
    inputs = (now.pending, now.pending_us)
    same = not now.pending or inputs == (given.pending, given.pending_us)
    return same and set(now.timers) <= set(given.timers)
