"""Selecting events by type: exact names, or a family written as `user.*`."""

from __future__ import annotations

from limpet.errors import InvalidQuery
from limpet.model.events import Event
from limpet.model.keys import unfit
from limpet.model.limits import INT_MAX, PAGE_MAX, QUERY_TYPES_MAX, TYPE_CHARS_MAX
from limpet.model.values import described


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


def check_types(types: object) -> tuple[str, ...] | None:
    """The selection as a tuple, each entry a type or a family."""
    if types is None:
        return None
    if isinstance(types, str) or not hasattr(types, "__iter__"):
        raise InvalidQuery("types takes a list, as in types=['user.message', 'agent.*']")
    found = tuple(types)
    if len(found) > QUERY_TYPES_MAX:
        raise InvalidQuery(f"{len(found)} types at once, more than {QUERY_TYPES_MAX}")
    for each in found:
        if reason := unfit(each, TYPE_CHARS_MAX):
            raise InvalidQuery(f"the type {described(each)} {reason}")
    return found


def check_limit(limit: object) -> int:
    """A page size within bounds."""
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        found = described(limit)
        raise InvalidQuery(f"a page holds 1 to {PAGE_MAX:,}, not {found}; read on by page")
    return limit


def check_tail(tail: object) -> int:
    """How many of the last events are loaded."""
    if type(tail) is not int or not 0 <= tail <= PAGE_MAX:
        found = described(tail)
        raise InvalidQuery(f"tail is 0 to {PAGE_MAX:,} events, not {found}; read others by page")
    return tail


def check_before(before: object) -> int | None:
    """A seq to end before, or none."""
    if before is not None and (type(before) is not int or not 1 <= before <= INT_MAX):
        raise InvalidQuery(f"before is a seq, 1 or more, not {described(before)}")
    return before


def check_seq(after: object) -> int:
    """A seq to begin from."""
    if type(after) is not int or not 0 <= after <= INT_MAX:
        raise InvalidQuery(f"after is a seq, 0 or more, not {described(after)}")
    return after
