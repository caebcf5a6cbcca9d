"""Later: calls that come after the same delay, with one timer for all of them.

A worker runs thousands of turns a second and means to look after each that takes long. Most have
ended by then, and a timer of the event loop for each of them is a tenth of what a short turn takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Later:
    """Calls that can be taken back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[Callable[[], None], float] = {}  # and when: in this order
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Call it once, that much later."""
        loop = asyncio.get_running_loop()
        at = self._calls[call] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(at, self._ring)

    def discard(self, call: Callable[[], None]) -> None:
        """Do not call it. Fine if it was called."""
        self._calls.pop(call, None)

    def close(self) -> None:
        """Call nothing more."""
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # a worker may run again

    def _ring(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for call in [call for call, at in self._calls.items() if at <= now]:
            del self._calls[call]
            call()
        for at in self._calls.values():
            self._timer = loop.call_at(at, self._ring)
            break
