"""Reasons: why a session was due when its lease was granted, and whether they still hold.

A worker that releases a session unchanged would get it again at once, in a loop. At release a store
compares the reasons of the lease with the head, and holds such a session back briefly. Anything
new, a timer or an input, makes it due at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from limpet.model.due import due_us
from limpet.model.facts.inputs import pending, pending_us
from limpet.model.facts.running.runs import is_retried
from limpet.model.facts.timers import timers_in
from limpet.model.facts.view import Facts
from limpet.model.head import Head


class Reasons(msgspec.Struct, frozen=True, gc=False):
    """Why a session was due: its due wake timers (name and time), and its pending inputs."""

    timers: tuple[tuple[str, int], ...] = ()  # the longest due first
    pending: int = 0
    pending_us: int | None = None


NO_REASONS: Final = Reasons()


def due_for(facts: Facts, now_us: int) -> Reasons:
    """The reasons to run now, from a head's timers and inputs."""
    timers = timers_in(facts).items()
    due = [(t.at_us, n) for n, t in timers if t.kind == "wake" and t.at_us <= now_us]
    by_time = tuple([(name, at_us) for at_us, name in sorted(due)])
    return Reasons(by_time, pending(facts), pending_us(facts))


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
