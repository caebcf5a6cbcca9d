"""Reasons: what made a session due when its lease was given, and whether it is still just that.

A worker that gives a session back as it found it would be given it again at once, and again. A
store compares the reasons it gave with the head at the release, and holds such a session back for
a moment. Whatever is new, a timer or an input, makes it due at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from limpet.model.facts.timers import Timer
from limpet.model.head import Head


class Reasons(msgspec.Struct, frozen=True, gc=False):
    """Why a session was due: its due wake timers (name and time), and its pending inputs."""

    timers: tuple[tuple[str, int], ...] = ()  # the longest due first
    pending: int = 0
    pending_us: int | None = None


NONE: Final = Reasons()


def due_for(
    timers: Mapping[str, Timer], pending: int, pending_us: int | None, now_us: int
) -> Reasons:
    """What there is to do at this moment, by what a head says of timers and inputs."""
    due = [(t.at_us, n) for n, t in timers.items() if t.kind == "wake" and t.at_us <= now_us]
    return Reasons(tuple([(name, at_us) for at_us, name in sorted(due)]), pending, pending_us)


def reasons_at(head: Head, now_us: int) -> Reasons:
    """What there is to do in a session at this moment, whoever holds its lease."""
    return due_for(head.timers, head.pending, head.pending_us, now_us)


def is_unchanged(given: Reasons, head: Head, now_us: int) -> bool:
    """Whether the session is due now for nothing but reasons that were given with the lease.

    Inputs count as changed if one came and also if one was processed: who does them one at a time
    is not to wait in between.
    """
    now = reasons_at(head, now_us)
    waits = now.pending_us is not None and now.pending_us <= now_us
    if not waits and not now.timers:
        return False  # it is not due
    inputs = (now.pending, now.pending_us)
    same = not now.pending or inputs == (given.pending, given.pending_us)
    return same and set(now.timers) <= set(given.timers)
