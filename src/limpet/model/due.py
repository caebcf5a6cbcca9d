"""Due: when a session next wants attention. Folds of the head, so no scheduler can disagree."""

from __future__ import annotations

from datetime import datetime

from limpet.model.events import to_time
from limpet.model.facts.timers import TimerKind
from limpet.model.head import Head


def runnable_us(head: Head) -> int | None:
    """Since or at which microsecond there is something to run: pending input, or a wake timer.

    While it is leased: the lease's end, so that a session whose worker died is due like any other.
    While it is held back: when it is to be tried again.
    """
    if head.lease_us is not None:
        return head.lease_us
    return _earliest(head.pending_us, first_us(head, "wake"))


def deadline_us(head: Head) -> int | None:
    """At which microsecond the session is to be ended, if ever."""
    return first_us(head, "deadline")


def runnable_at(head: Head) -> datetime | None:
    at_us = runnable_us(head)
    return None if at_us is None else to_time(at_us)


def deadline_at(head: Head) -> datetime | None:
    at_us = deadline_us(head)
    return None if at_us is None else to_time(at_us)


def first_us(head: Head, kind: TimerKind) -> int | None:
    """When the first timer of this kind is due."""
    if not head.timers:
        return None
    return min((timer.at_us for timer in head.timers.values() if timer.kind == kind), default=None)


def _earliest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
