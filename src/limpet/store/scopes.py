"""app: and user: names as a load brings them: the version of each, its value when somebody asks.

Most names that a session sees are never looked at. So a store hands over their rows as they lie in
its table, and unpacks and decodes those of a name when its value is read for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from limpet.model import ScopeValue


class UnreadScope(msgspec.Struct, frozen=True):
    """A name whose value nobody has asked for yet. `read` sets `damage` and raises nothing."""

    version: int
    read: Callable[[], ScopeValue]


Kept: TypeAlias = ScopeValue | UnreadScope


class Scopes(Mapping[str, ScopeValue]):
    """The newest versions of names. Equal to a dict of the same values."""

    __slots__ = ("_kept",)

    def __init__(self, kept: Mapping[str, Kept] | None = None) -> None:
        self._kept: dict[str, Kept] = {} if kept is None else dict(kept)

    def __getitem__(self, name: str) -> ScopeValue:
        kept = self._kept[name]
        if isinstance(kept, UnreadScope):
            kept = self._kept[name] = kept.read()
        return kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __repr__(self) -> str:
        return f"Scopes({dict(self)!r})"

    def version(self, name: str) -> int:
        """The version of a name, without reading its value; 0 if it never was."""
        kept = self._kept.get(name)
        return 0 if kept is None else kept.version

    def damage(self, name: str) -> str | None:
        """Why the value of a name could not be read, if somebody has tried."""
        kept = self._kept.get(name)
        return kept.damage if isinstance(kept, ScopeValue) else None

    def unread(self) -> Mapping[str, Kept]:
        """Every name, its value as it is known: reading none."""
        return self._kept

    def copy(self) -> Scopes:
        return Scopes(self._kept)

    def learn(self, newer: Mapping[str, ScopeValue]) -> bool:
        """Take over what is newer there, values unread. False if nothing is.

        What could not be read is taken over again: perhaps it can be read now.
        """
        kept = newer.unread() if isinstance(newer, Scopes) else newer
        found = {
            name: value
            for name, value in kept.items()
            if value.version > self.version(name) - (self.damage(name) is not None)
        }
        self._kept |= found
        return bool(found)
