"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from limpet.model import to_us
from limpet.store.clock import Clock

START: Final = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """Both sources of a store's Clock: wall time, which can be set, and monotonic time."""

    def __init__(self, at: datetime = START) -> None:
        self._wall_ns = to_us(at) * 1_000
        self._steady_ns = 0

    def wall(self) -> int:
        """Nanoseconds since 1970, as `time.time_ns` gives them."""
        return self._wall_ns

    def steady(self) -> int:
        """Nanoseconds since some moment; never less than before."""
        return self._steady_ns

    def clock(self) -> Clock:
        """A store's clock that reads this one."""
        return Clock(self.wall, self.steady)

    @property
    def now_us(self) -> int:
        return self._wall_ns // 1_000

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        if by < timedelta(0):
            raise ValueError("monotonic time cannot go back; use leap to set the wall clock back")
        self._steady_ns += _nanoseconds(by)
        self.leap(by)

    def leap(self, by: timedelta) -> None:
        """Set the wall clock ahead or back, as an operator or NTP does; monotonic time stays."""
        self._wall_ns += _nanoseconds(by)


def _nanoseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1_000
