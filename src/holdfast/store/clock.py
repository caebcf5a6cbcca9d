"""The store's clock: wall time that a wrong wall cannot throw far.

Time is read from the wall and checked against a clock that only runs forward (and runs on while
the machine sleeps). A wall that leaps ahead by more than a day beyond what has really passed is
not believed: one bad reading would otherwise date every later event of a session into the future,
since time never runs backwards within one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

JUMP_SECONDS_MAX: Final = 86_400
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ns() -> int:
    return time.time_ns()


def steady_ns() -> int:
    return time.clock_gettime_ns(_BOOT)


class Clock:
    """Microseconds since 1970 in UTC. Single-threaded, like the writer that owns it."""

    __slots__ = ("_last_steady", "_last_wall", "_steady", "_wall")

    def __init__(
        self, wall: Callable[[], int] = wall_ns, steady: Callable[[], int] = steady_ns
    ) -> None:
        self._wall, self._steady = wall, steady
        self._last_wall, self._last_steady = wall(), steady()

    def __call__(self) -> int:
        wall, steady = self._wall(), self._steady()
        explained = self._last_wall + (steady - self._last_steady)
        if wall - explained > JUMP_SECONDS_MAX * 1_000_000_000:
            wall = explained
        self._last_wall, self._last_steady = wall, steady
        return wall // 1_000
