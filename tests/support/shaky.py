"""A machine that is slow at the wrong moments, for `make shaky`: tests must pass on it too.

As a plugin of pytest it makes event loops and the writers' threads of SQLite and of log stores
stand still now and then, and lets each store on PostgreSQL know its server's clock a little late,
as slow replies do. What a test expects within a time, or before another thread or process had its
turn, fails here.
"""

from __future__ import annotations

import random
import time
from asyncio import base_events
from collections.abc import Callable
from typing import Any, Final

from limpet.store.clock import steady_ns
from limpet.store.files.writer import FilesWriter
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.sqlite.writer import SQLiteWriter

LATE_US_MAX: Final = 20_000
_STALL_SECONDS: Final = (0.001, 0.003, 0.01, 0.05, 0.3)  # the last is longer than a short turn
_WEIGHTS: Final = (60, 25, 10, 4, 1)
_chance = random.Random()  # on purpose: the operating system does not repeat itself either


def _stalling(work: Callable[..., Any], share: float) -> Callable[..., Any]:
    """`work`, which now and then begins later."""

    def stalled(*args: Any) -> Any:
        if _chance.random() < share:
            time.sleep(_chance.choices(_STALL_SECONDS, _WEIGHTS)[0])
        return work(*args)

    return stalled


def _late(now_us: Callable[[ServerClock], int]) -> Callable[[ServerClock], int]:
    """The clock of a server, known late by another time in each instance, always the same."""

    def late_us(clock: ServerClock) -> int:
        if clock._steady is not steady_ns:  # a test of the clock itself
            return now_us(clock)
        return now_us(clock) - id(clock) // 16 % LATE_US_MAX

    return late_us


def pytest_configure() -> None:
    loop: Any = base_events.BaseEventLoop
    loop._run_once = _stalling(loop._run_once, 0.02)
    for writer in (SQLiteWriter, FilesWriter):
        for name in ("_work", "_rest"):
            setattr(writer, name, _stalling(getattr(writer, name), 0.1))
    ServerClock.now_us = _late(ServerClock.now_us)  # type: ignore[method-assign]
