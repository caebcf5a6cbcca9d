"""Due: when a session next needs attention, computed from its head alone."""

from __future__ import annotations

from datetime import datetime

from limpet.model.events import to_time
from limpet.model.facts.timers import TimerKind
from limpet.model.head import Head


def runnable_us(head: Head) -> int | None:
    """When the session is runnable, in microseconds: since its input, or at its wake timer.

    While it is leased, this is the end of the lease, so a session whose worker died becomes due
    like any other. While it is held back, this is the time of the retry.
    """
    if head.lease_us is not None:
        return head.lease_us
    return _earliest(head.pending_us, first_us(head, "wake"))


def deadline_us(head: Head) -> int | None:
    """When the session should end, in microseconds, or None."""
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
