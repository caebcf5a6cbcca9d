"""app: and user: names as a load brings them: the version of each, its value when somebody asks.

Most names that a session sees are never looked at. So a store hands over their rows as they lie in
its table, and unpacks and decodes those of a name when its value is read for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

import msgspec

from limpet.errors import ScopeFull
from limpet.model import ScopeKey, ScopeValue
from limpet.model.limits import (
    SCOPE_BYTES_MAX,
    SCOPE_NAMES_EVER_MAX,
    SCOPE_NAMES_MAX,
    SCOPE_SMALL_BYTES,
)
from limpet.store.protocol import Owner


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
        """Return why the value of a name could not be read, if somebody has tried."""
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
        learned = {
            name: value
            for name, value in kept.items()
            if value.version > self.version(name) - (self.damage(name) is not None)
        }
        self._kept |= learned
        return bool(learned)


Sizes: TypeAlias = Mapping[str, int]  # the stored bytes of each name; DELETED: it was deleted
DELETED = -1


class StoredNames(Protocol):
    """A store's record of the names it has."""

    def names(self, app: str, user: str) -> Sizes | None:
        """Every name of one owner, deleted ones too. None: it was not looked up."""
        ...


class ScopeLimits:
    """The names of a plan's commits, and whether they fit among those that are stored."""

    __slots__ = ("_asking", "_held", "_new", "_stored", "planned")

    def __init__(self, stored: StoredNames) -> None:
        self._stored = stored
        self.planned: dict[Owner, dict[str, int]] = {}  # by commits that were accepted
        self._held: dict[Owner, _OwnerNames] = {}
        self._new: dict[Owner, dict[str, int]] = {}  # by the commits that are being planned
        self._asking: set[Owner] = set()

    def begin(self) -> None:
        """The next caller's commits."""
        self._new.clear()
        self._asking.clear()

    def put(self, key: ScopeKey, before: ScopeValue | None, after: ScopeValue, size: int) -> None:
        """One more version of a name, of so many bytes if written whole."""
        owner = key[:2]
        self._new.setdefault(owner, {})[key[2]] = DELETED if after.deleted else size
        grows = not after.deleted and (before is None or before.deleted)
        if grows or size > SCOPE_SMALL_BYTES:
            self._asking.add(owner)

    def settle(self) -> None:
        """The commits are planned: they fit, or ScopeFull is raised and they never were."""
        for owner in self._asking:
            held = self._holding(owner)
            if held is not None:
                held.check(owner, self._new[owner])
        for owner, sizes in self._new.items():
            self.planned.setdefault(owner, {}).update(sizes)
            if owner in self._held:
                self._held[owner].put(sizes)

    def live(self, owner: Owner) -> int:
        """Return how many names the store has of an owner that was counted; 0 if it was not."""
        stored = self._stored.names(*owner)
        return 0 if stored is None else sum(size != DELETED for size in stored.values())

    def _holding(self, owner: Owner) -> _OwnerNames | None:
        if owner not in self._held:
            stored = self._stored.names(*owner)
            if stored is None:
                return None
            self._held[owner] = _OwnerNames({**stored, **self.planned.get(owner, {})})
        return self._held[owner]


class _OwnerNames:
    """The names of one owner, with their sums."""

    __slots__ = ("_sizes", "bytes", "live")

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self.live = sum(size != DELETED for size in sizes.values())
        self.bytes = sum(size for size in sizes.values() if size != DELETED)

    def check(self, owner: Owner, new: Mapping[str, int]) -> None:
        """Raise ScopeFull if the owner has no room for these. What is over already may shrink."""
        live, size = self._with(new)
        ever = len(self._sizes) + sum(name not in self._sizes for name in new)
        if live > max(SCOPE_NAMES_MAX, self.live):
            raise ScopeFull(*owner, "names", live, SCOPE_NAMES_MAX)
        if ever > max(SCOPE_NAMES_EVER_MAX, len(self._sizes)):
            raise ScopeFull(*owner, "names that were ever used", ever, SCOPE_NAMES_EVER_MAX)
        large = any(each > SCOPE_SMALL_BYTES for each in new.values())
        if large and size > max(SCOPE_BYTES_MAX, self.bytes):
            raise ScopeFull(*owner, "bytes in names", size, SCOPE_BYTES_MAX)

    def put(self, new: Mapping[str, int]) -> None:
        self.live, self.bytes = self._with(new)
        self._sizes.update(new)

    def _with(self, new: Mapping[str, int]) -> tuple[int, int]:
        """The sums once these are written."""
        live, size = self.live, self.bytes
        for name, after in new.items():
            before = self._sizes.get(name, DELETED)
            live += (after != DELETED) - (before != DELETED)
            size += max(after, 0) - max(before, 0)
        return live, size
