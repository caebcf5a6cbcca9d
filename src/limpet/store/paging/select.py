"""Selecting events by type: exact names, or a family written as `user.*`."""

from __future__ import annotations

from limpet.model import Event


def wanted(type: str, types: tuple[str, ...] | None) -> bool:
    """Whether an event of this type is selected; None selects all."""
    if types is None:
        return True
    return any(type.startswith(t[:-1]) if t.endswith(".*") else type == t for t in types)


def newest_since(events: tuple[Event, ...], since_us: int | None) -> tuple[Event, ...]:
    """The last of these events, from the first at or after a time on: no gap is left among them.

    Time never runs backwards within a session. A row that cannot be read at all has no time, and
    counts as it is placed: with those before it and after it, or with neither.
    """
    if since_us is None:
        return events
    start = len(events)
    for place in reversed(range(len(events))):
        at_us = events[place].at_us
        if at_us >= since_us:
            start = place
        elif at_us:
            break
    return events[start:]
