"""The server's clock, as a client knows it from replies.

Events are dated before they are sent. Every reply says what time it was on the server while it was
under way. When a reply is here, it is at least that late there: that is what is counted from. The
shorter a reply was on its way back, the closer.

So an event is never dated ahead of the server. What is due at its date, as input is, is due for
whoever asks the server once it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from limpet.store.clock import steady_ns

STEP_US: Final = 1_000_000  # set back by less, a clock stands still until it is as late again


class ServerClock:
    """Counts from a clock of this machine that only runs forward: nobody sets that one."""

    __slots__ = ("_last_us", "_offset_us", "_steady")

    def __init__(self, steady: Callable[[], int] = steady_ns) -> None:
        self._steady = steady
        self._offset_us: int | None = None
        self._last_us = 0

    @property
    def known(self) -> bool:
        """Whether there was a reply yet."""
        return self._offset_us is not None

    def local_us(self) -> int:
        """Now by this machine, to be passed to `learn`."""
        return self._steady() // 1_000

    def now_us(self) -> int:
        """The time that it is at least on the server now.

        A server's clock that was corrected a little does not take time back. One that was set back
        does.
        """
        assert self._offset_us is not None, "nothing was learnt yet"
        now_us = self.local_us() + self._offset_us
        if now_us < self._last_us < now_us + STEP_US:
            return self._last_us
        self._last_us = now_us
        return now_us

    def learn(self, asked_us: int, server_us: int) -> None:
        """It was `server_us` on the server at some time since `asked_us` here.

        What is known gives way to a reply that came back sooner, and to one that contradicts it:
        the server's clock was set.
        """
        least, most = server_us - self.local_us(), server_us - asked_us
        if self._offset_us is None or not least <= self._offset_us <= most:
            self._offset_us = least
