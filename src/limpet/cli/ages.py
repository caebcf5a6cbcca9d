"""Times for people: the timestamp, and how long ago or how far ahead it is."""

from __future__ import annotations

from typing import Final

from limpet.model import to_time

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def timed(at_us: int, now_us: int) -> str:
    """For example `2026-05-01T10:00:00Z (3 h ago)`."""
    return f"{moment(at_us)} ({age(at_us, now_us)})"


def moment(at_us: int) -> str:
    """For example `2026-05-01T10:00:00Z`."""
    return to_time(at_us).isoformat(timespec="seconds").replace("+00:00", "Z")


def instant(at_us: int) -> str:
    """For example `2026-05-01T10:00:00.000001Z`: exact, so that it names one place in a history.

    Nothing is known of a removed event, not even its time.
    """
    if not at_us:
        return "-"
    return to_time(at_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age(at_us: int, now_us: int) -> str:
    """In the largest unit that fits, rounded down: `3 h ago`, `in 5 min`, `now`."""
    seconds = abs(now_us - at_us) // 1_000_000
    for unit, length in _UNITS:
        if seconds >= length:
            span = f"{seconds // length:,} {unit}"
            return f"{span} ago" if at_us < now_us else f"in {span}"
    return "now"
