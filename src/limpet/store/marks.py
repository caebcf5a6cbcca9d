"""Marks: small facts of the store itself, each with an end. Nonces, revocations, counters.

A mark is not an event: it is in no log and no feed, and nothing is folded from it. It is known by
space and name; from its end on, by the store's clock, it counts as absent, and is removed sooner or
later. Marks have no public verbs; the rooms that need them call the store.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from limpet.model.limits import INT_MAX


class Mark(msgspec.Struct, frozen=True):
    """One mark that has not ended."""

    space: str
    name: str
    value: int
    until_us: int


class Marks(Protocol):
    """The marks of a store.

    Each call is atomic across tasks and processes, and durable when it returns. Each that writes
    also removes up to MARKS_SWEPT marks that have ended, so that a busy space does not grow. Raises
    StoreClosed and StoreError as Store does.
    """

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        """Set the mark if it is absent: True for exactly one caller until it ends.

        False if it is there, and for an end that has passed: what cannot be remembered is not
        granted.
        """
        ...

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        """Set the mark, replacing what is there. An end that has passed takes the mark back."""
        ...

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        """Add to the mark's value and return the new one.

        If it is absent it begins at 0 and ends at `until_us`; one that is there keeps its end. The
        value stops at the bounds of 64 bits.
        """
        ...

    async def get(self, space: str, name: str) -> Mark | None:
        """The mark, or None if it is absent or has ended."""
        ...

    async def sweep(self, limit: int) -> int:
        """Remove at most `limit` marks that have ended; return their number."""
        ...


@runtime_checkable
class KeepsMarks(Protocol):
    """A store that keeps marks, as all of ours do."""

    @property
    def marks(self) -> Marks: ...


def added(value: int, by: int) -> int:
    """The sum, or the bound that it would cross."""
    return max(-INT_MAX, min(INT_MAX, value + by))
