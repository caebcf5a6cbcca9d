"""Inputs: events that are pending until a later event marks them as processed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import EMPTY, FrozenDict

PROCESSED: Final = "session.processed"
STATUS_IDLE: Final = "session.status_idle"  # of a turn that is over: it has processed its inputs
PROCESSING: Final = frozenset((PROCESSED, STATUS_IDLE))


def processed(seqs: Iterable[int], *, actor: str | None = None) -> Fact:
    """Return the fact that these inputs were processed. Raises InvalidEvent; the commit may
    raise NotPending."""
    given = list(seqs) if isinstance(seqs, Iterable) else []
    if not given or any(type(seq) is not int or seq < 1 for seq in given):
        raise InvalidEvent("processed takes the seqs of one or more pending events")
    return Fact(type=PROCESSED, data={"seqs": sorted(set(given))}, actor=actor)


def processed_by(type: str, data: Mapping[str, Any] | None) -> Sequence[int]:
    """The inputs that an event marks as processed; most events mark none."""
    if type not in PROCESSING or data is None:
        return ()
    seqs = data.get("seqs" if type == PROCESSED else "processed")
    return seqs if isinstance(seqs, list) else ()  # of another shape: its commit is refused


def pending(facts: Facts) -> int:
    """Return how many inputs no later event has processed."""
    return int(facts.get("inputs", EMPTY).get("pending", 0))


def pending_us(facts: Facts) -> int | None:
    """Since when inputs wait: the first came, or others were processed."""
    since_us: int | None = facts.get("inputs", EMPTY).get("since_us")
    return since_us


def fold_input(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return one_more(facts, at.now_us)


def one_more(facts: Facts, now_us: int) -> Changes:
    """One more input is pending, since now if it is the first."""
    before = facts.get("inputs")
    if before is None:
        return _waiting(1, now_us)
    return _waiting(before["pending"] + 1, min(before["since_us"], now_us))


def is_one_more(before: Facts, after: Facts) -> bool:
    """True if an input came where others waited, and nothing else changed: what is due, and when,
    is the same."""
    waited, waits = before.get("inputs"), after.get("inputs")
    if waited is None or waits is None or len(before) != len(after):
        return False
    if waited["since_us"] != waits["since_us"]:
        return False
    for name, value in after.items():
        if name != "inputs" and before.get(name) is not value:
            return False
    return True


def fold_processed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return _waiting(pending(facts) - len(data["seqs"]), at.now_us)


def hasten(facts: Facts, now_us: int) -> Changes:
    """If the clock was set back: inputs wait since now, or they would be due only when the clock
    has caught up."""
    since_us = pending_us(facts)
    return {} if since_us is None or since_us <= now_us else _waiting(pending(facts), now_us)


def _waiting(number: int, since_us: int) -> Changes:
    if number <= 0:
        return {"inputs": None}
    return {"inputs": FrozenDict({"pending": number, "since_us": since_us})}
