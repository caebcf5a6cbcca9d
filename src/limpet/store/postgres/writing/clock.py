"""The server's clock, as a client estimates it from replies.

Events are dated before they are sent. Every reply says what time it was on the server while it was
under way. That bounds by how much the two clocks differ: the shorter the way, the closer. The best
estimate is kept until it is old, or until a reply shows that it cannot be right, because the
server's clock was set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from limpet.store.clock import steady_ns

STEP_US: Final = 1_000_000  # an estimate that is earlier by less is a better one, not another time
DRIFT: Final = 10_000  # two clocks part by one microsecond in so many, at most


class ServerClock:
    """Counts from a clock of this machine that only runs forward: nobody sets that one."""

    __slots__ = ("_doubt_us", "_last_us", "_learnt_us", "_offset_us", "_steady")

    def __init__(self, steady: Callable[[], int] = steady_ns) -> None:
        self._steady = steady
        self._offset_us: int | None = None
        self._doubt_us = self._learnt_us = self._last_us = 0

    @property
    def known(self) -> bool:
        """Whether there was a reply yet."""
        return self._offset_us is not None

    def local_us(self) -> int:
        """Now by this machine, to be passed to `learn`."""
        return self._steady() // 1_000

    def now_us(self) -> int:
        """Now on the server, as far as it is known.

        A better estimate may be a little earlier: that does not take time back. A clock that was
        set back does.
        """
        assert self._offset_us is not None, "nothing was learnt yet"
        now_us = self.local_us() + self._offset_us
        if now_us < self._last_us < now_us + STEP_US:
            return self._last_us
        self._last_us = now_us
        return now_us

    def learn(self, asked_us: int, server_us: int) -> None:
        """It was `server_us` on the server at some time since `asked_us` here."""
        now_us = self.local_us()
        least, most = server_us - now_us, server_us - asked_us
        doubt_us = (most - least + 1) // 2
        kept, aged_us = self._offset_us, self._doubt_us + (now_us - self._learnt_us) // DRIFT
        if kept is None or not least <= kept <= most or doubt_us <= aged_us:
            self._offset_us = least + doubt_us
            self._doubt_us, self._learnt_us = doubt_us, now_us
