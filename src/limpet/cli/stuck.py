"""The sessions that cannot be migrated, as a command lists them: a page of each kind, or all."""

from __future__ import annotations

from limpet.model.keys import Key
from limpet.session.migrate import Fate


class Stuck:
    """Told of every one of them; keeps those from `skip` on, no more than `limit` of each fate."""

    def __init__(self, skip: int = 0, limit: int | None = None) -> None:
        self._skip, self._limit = skip, limit
        self._counts: dict[Fate, int] = {}
        self._kept: dict[Fate, list[tuple[Key, str]]] = {}

    def add(self, key: Key, fate: Fate, reason: str) -> None:
        """Take one more, in the order in which the sessions were created."""
        count = self._counts[fate] = self._counts.get(fate, 0) + 1
        if self._skip < count and (self._limit is None or count <= self._skip + self._limit):
            self._kept.setdefault(fate, []).append((key, reason))

    def of(self, fate: Fate) -> list[tuple[Key, str]]:
        """The page of one fate: sessions with their reasons."""
        return self._kept.get(fate, [])

    def more(self, fate: Fate) -> str:
        """How many come behind the page, and how they are seen; empty if none do."""
        end = self._skip + len(self.of(fate))
        left = self._counts.get(fate, 0) - end
        if left <= 0 or self._limit is None:
            return ""
        return f"and {left:,} more: --skip {self._skip + self._limit} goes on, --json has all"
