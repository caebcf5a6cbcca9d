"""The store's clock: wall-clock time, guarded against forward jumps.

Time is read from the wall and checked against a clock that only runs forward (and runs on while
the machine sleeps). A wall that is more than a day ahead of what has passed since the store was
opened is not believed: since time never runs backwards within a session, one bad reading would
date all its later events into the future.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

JUMP_SECONDS_MAX: Final = 86_400
_JUMP_NS_MAX: Final = JUMP_SECONDS_MAX * 1_000_000_000
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
wall_ns: Final[Callable[[], int]] = time.time_ns
steady_ns: Final[Callable[[], int]] = partial(time.clock_gettime_ns, _BOOT)


class Clock:
    """Microseconds since 1970 in UTC. Single-threaded, like the writer that owns it."""

    __slots__ = ("_believed", "_steady", "_wall", "_zero")

    def __init__(
        self,
        wall: Callable[[], int] = wall_ns,
        steady: Callable[[], int] = steady_ns,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._zero = wall() - steady()  # what the wall said when the steady clock began
        self._believed = 0  # up to here the wall is right, as far as the steady clock has run

    def __call__(self) -> int:
        now = self._wall()
        if now > self._believed:
            explained = self._zero + self._steady()
            self._believed = explained + _JUMP_NS_MAX
            if now > self._believed:
                now = explained
        return now // 1_000
