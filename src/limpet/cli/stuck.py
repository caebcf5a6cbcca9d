"""The sessions that cannot be migrated, for the command's output: a page of each kind, or all."""

from __future__ import annotations

from limpet.model import Key
from limpet.session.typing.migrate import Fate


class Stuck:
    """Receives every such session; keeps at most `limit` of each fate, after the first `skip`."""

    def __init__(self, skip: int = 0, limit: int | None = None) -> None:
        self._skip, self._limit = skip, limit
        self._counts: dict[Fate, int] = {}
        self._kept: dict[Fate, list[tuple[Key, str]]] = {}

    def add(self, key: Key, fate: Fate, reason: str) -> None:
        """Add one more session. They arrive in order of creation."""
        count = self._counts[fate] = self._counts.get(fate, 0) + 1
        if self._skip < count and (self._limit is None or count <= self._skip + self._limit):
            self._kept.setdefault(fate, []).append((key, reason))

    def of(self, fate: Fate) -> list[tuple[Key, str]]:
        """The page of one fate: sessions with their reasons."""
        return self._kept.get(fate, [])

    def more(self, fate: Fate) -> str:
        """How many follow after the page, and how to see them; empty if none do."""
        end = self._skip + len(self.of(fate))
        left = self._counts.get(fate, 0) - end
        if left <= 0 or self._limit is None:
            return ""
        return f"and {left:,} more: --skip {self._skip + self._limit} continues, --json has all"
