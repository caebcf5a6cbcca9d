"""When a turn has to wait for the outside, and nothing else is left to do in it.

A call that needs an answer blocks. As soon as every call of the turn is blocked, the run is over:
what others of them did in the meantime is recorded, and all that was asked is asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

# How often the event loop goes round before a turn counts as blocked: a call that has just ended
# is given the time to make the next one.
_ROUNDS: Final = 8


class Pauses:
    """Which calls of a turn are under way, and which are blocked, on what."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._working = 0
        self._changes = 0
        self.blocked_on: dict[str, None] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """A call is under way."""
        self._working += 1
        self._changes += 1
        try:
            yield
        finally:
            self._working -= 1
            self._look()

    async def block(self, id: str) -> NoReturn:
        """Wait for this, within a call. Ends by the end of the run only."""
        self.blocked_on[id] = None
        self._working -= 1
        self._look()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._working += 1
        raise AssertionError("nobody sets the result")

    def _look(self, rounds: int = _ROUNDS, changes: int | None = None) -> None:
        if self._working or not self.blocked_on or changes not in (None, self._changes):
            return
        if not rounds:
            self._stop()
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._look, rounds - 1, self._changes)
