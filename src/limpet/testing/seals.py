"""A seal under watch: another seal, and what was asked of it and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from limpet.store.protocol import KeyOwner, Place, Seal


async def _nothing(owners: Sequence[KeyOwner]) -> None:
    """Called before keys are fetched or destroyed; a test may replace it."""


class WatchedSeal:
    """`before_ready` and `before_forget` are awaited first, and may wait or raise."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._at_hand: set[KeyOwner] = set()
        self.asked: list[KeyOwner] = []  # made ready, in order
        self.early: list[Place] = []  # sealed or opened while their owner was not ready
        self.forgotten: list[KeyOwner] = []
        self.before_ready: Callable[[Sequence[KeyOwner]], Awaitable[None]] = _nothing
        self.before_forget: Callable[[Sequence[KeyOwner]], Awaitable[None]] = _nothing

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        await self.before_ready(owners)
        await self._seal.ready(owners)
        self.asked += owners
        self._at_hand.update(owners)

    def seal(self, plain: bytes, place: Place) -> bytes:
        self._look(place)
        return self._seal.seal(plain, place)

    def open(self, sealed: bytes, place: Place) -> bytes:
        self._look(place)
        return self._seal.open(sealed, place)

    async def forget(self, owner: KeyOwner) -> None:
        await self.before_forget([owner])
        await self._seal.forget(owner)
        self.forgotten.append(owner)
        self._at_hand.discard(owner)

    def __getattr__(self, name: str) -> Any:
        """Return what the other seal has beside the four methods: see MarkingSeal."""
        return getattr(self._seal, name)

    def _look(self, place: Place) -> None:
        if place.owner not in self._at_hand:
            self.early.append(place)
