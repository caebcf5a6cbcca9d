"""Scope limits: how many app: and user: names there may be, and how many bytes in them.

Every session of an app loads the names that all the others wrote. So the names of each app, and of
each user in it, are limited; a commit that exceeds a limit is refused before anything is written.
The stored names are counted only when a commit adds a name or writes a large value: small values of
no more names than are allowed always fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from limpet.errors import ScopeFull
from limpet.model import ScopeKey, ScopeValue
from limpet.model.limits import (
    SCOPE_BYTES_MAX,
    SCOPE_NAMES_EVER_MAX,
    SCOPE_NAMES_MAX,
    SCOPE_SMALL_BYTES,
)
from limpet.store.protocol import Owner

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
        """How many names the store has of an owner that was counted; 0 if it was not."""
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
