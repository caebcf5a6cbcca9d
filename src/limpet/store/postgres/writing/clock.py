"""The server's clock, as a client knows it from replies.

Events are dated before they are sent. Every reply says what time it was on the server while it was
under way. When a reply is here, it is at least that late there: that is what is counted from. The
shorter a reply was on its way back, the closer. Two clocks part, so what is known is worth a little
less as it ages; a newer reply takes its place as soon as it says as much.

So an event is never dated ahead of the server. What is due at its date, as input is, is due for
whoever asks the server once it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from limpet.store.clock import steady_ns

STEP_US: Final = 1_000_000  # set back by less, a clock stands still until it is as late again
DRIFT: Final = 10_000  # two clocks part by one microsecond in so many, at most


class ServerClock:
    """Counts from a clock of this machine that only runs forward: nobody sets that one."""

    __slots__ = ("_last_us", "_learnt_us", "_offset_us", "_steady")

    def __init__(self, steady: Callable[[], int] = steady_ns) -> None:
        self._steady = steady
        self._offset_us: int | None = None
        self._last_us = self._learnt_us = 0

    def local_us(self) -> int:
        """Now by this machine, to be passed to `learn`."""
        return self._steady() // 1_000

    def now_us(self) -> int:
        """The time that it is at least on the server now.

        A server's clock that was corrected a little does not take time back. One that was set back
        does.
        """
        assert self._offset_us is not None, "nothing was learnt yet"
        local_us = self.local_us()
        now_us = local_us + self._offset_us - self._aged_us(local_us)
        if now_us < self._last_us < now_us + STEP_US:
            return self._last_us
        self._last_us = now_us
        return now_us

    def learn(self, asked_us: int, server_us: int) -> None:
        """Learn that it was `server_us` on the server at some time since `asked_us` here.

        What is known gives way to a reply that says more than is left of it, and to one that
        contradicts it: the server's clock was set.
        """
        local_us = self.local_us()
        least, most = server_us - local_us, server_us - asked_us
        known = self._offset_us
        if known is None or known > most or known - self._aged_us(local_us) <= least:
            self._offset_us, self._learnt_us = least, local_us

    def _aged_us(self, local_us: int) -> int:
        """Return by how much the server's clock may have fallen behind since. Those that part by
        more than a step are not left alone."""
        return min((local_us - self._learnt_us) // DRIFT, STEP_US)
