"""Turns: what is done under one name is done one after another, in the order of arrival."""

from __future__ import annotations

import asyncio


class Turns:
    """A lock for each name that somebody has or waits for; no other is kept.

    `async with turns.of(name):`
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, _Turn] = {}

    def of(self, name: str) -> _Turn:
        """The turn of this name, to be entered at once."""
        turn = self._held.get(name)
        if turn is None:
            turn = self._held[name] = _Turn(self._held, name)
        return turn

    def __contains__(self, name: str) -> bool:
        return name in self._held


class _Turn:
    __slots__ = ("_held", "_lock", "_name", "_users")

    def __init__(self, held: dict[str, _Turn], name: str) -> None:
        self._held, self._name = held, name
        self._lock, self._users = asyncio.Lock(), 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            del self._held[self._name]
