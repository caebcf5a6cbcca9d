"""When a turn has to wait for the outside, and nothing else is left to do in it.

A call that needs an answer blocks. As soon as every call of the turn is blocked, the run is over:
what others of them did in the meantime is recorded, and all that was asked is asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final, NoReturn

from limpet.errors import TurnMisused

# How often the event loop goes round before a turn counts as blocked: a call that has just ended
# is given the time to make the next one.
_ROUNDS: Final = 8
# Whose step, stream or effect runs this code, and its name.
_inside: ContextVar[tuple[Pauses, str] | None] = ContextVar("limpet_call", default=None)


class Pauses:
    """Which calls of a turn are under way, and which are blocked, on what."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._working = 0
        self._changes = 0
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
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

    @asynccontextmanager
    async def one_by_one(self, key: tuple[str, str]) -> AsyncIterator[None]:
        """Within a call: those under one key come in the order they were made.

        Whoever waits for its turn is not at work: if the call before it blocks, so does the run.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._working -= 1
        self._look()
        try:
            await lock.acquire()
        finally:
            self._working += 1
            self._changes += 1
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """The function of this call runs."""
        token = _inside.set((self, what))
        try:
            yield
        finally:
            _inside.reset(token)

    def check_outside(self, verb: str) -> None:
        """Raise TurnMisused inside a call: it would never pause, and once it has a record, another
        run would not come by what was done inside."""
        found = _inside.get()
        if found is not None and found[0] is self:
            raise TurnMisused(
                f"turn.{verb} was called inside {found[1]}. Call it in the harness itself, and "
                "pass what it returns."
            )

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
