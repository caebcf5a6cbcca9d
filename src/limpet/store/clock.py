"""The store's clock: wall-clock time, guarded against forward jumps.

Time is read from the wall and checked against a clock that only runs forward (and runs on while
the machine sleeps). A wall that is more than a day ahead of what has passed since the store was
opened is not believed: since time never runs backwards within a session, one bad reading would
date all its later events into the future.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

JUMP_SECONDS_MAX: Final = 86_400
_JUMP_NS_MAX: Final = JUMP_SECONDS_MAX * 1_000_000_000
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ns() -> int:
    return time.time_ns()


def steady_ns() -> int:
    return time.clock_gettime_ns(_BOOT)


class Clock:
    """Microseconds since 1970 in UTC. Single-threaded, like the writer that owns it."""

    __slots__ = ("_began_steady", "_began_wall", "_steady", "_wall")

    def __init__(
        self, wall: Callable[[], int] = wall_ns, steady: Callable[[], int] = steady_ns
    ) -> None:
        self._wall, self._steady = wall, steady
        self._began_wall, self._began_steady = wall(), steady()

    def __call__(self) -> int:
        explained = self._began_wall + self._steady() - self._began_steady
        wall = self._wall()
        return (explained if wall - explained > _JUMP_NS_MAX else wall) // 1_000
