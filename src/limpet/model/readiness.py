"""Readiness: what a session needs next, computed from its head alone.

Stores compute the same in their own words, to count sessions without reading their heads.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from limpet.model.due import runnable_us
from limpet.model.facts.running.endings import has_ended, is_held
from limpet.model.facts.running.runs import is_dead, run_in
from limpet.model.head import Head
from limpet.model.lease import is_leased

# leased: to a worker. due: it can be claimed now. blocked: a person, a tool or a child has to
# answer, or more is to be granted. dead: kept until somebody requeues it. held: retried later.
Readiness: TypeAlias = Literal["leased", "due", "blocked", "dead", "held", "idle"]


def readiness(head: Head, now_us: int) -> Readiness:
    """Return what a session needs next at this time."""
    if is_leased(head, now_us):
        return "leased"
    at_us = runnable_us(head)
    if at_us is not None and at_us <= now_us:
        return "due"
    run = run_in(head.facts)
    if is_held(head.facts):
        return "dead"
    if not has_ended(head.facts):  # nobody can answer or requeue one that has
        if is_dead(head.facts):
            return "dead"
        if "paused" in run or "needs" in run:  # it would be due if enough were left
            return "blocked"
    if at_us is None or (head.lease_us is None and run.get("stop") != "rescheduling"):
        return "idle"
    return "held"
