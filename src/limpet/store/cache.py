"""The cache of a writer between transactions: folds of recent sessions, newest scope values.

True as long as nobody else commits. When another process has, everything is doubted at once and
each entry is compared with its head before it is used again. Readers may borrow a fold: it is
immutable, and they compare its version with the head they read themselves.
"""

from __future__ import annotations

from typing import Final

import msgspec

from limpet.model import (
    PROCESSING,
    Event,
    Fold,
    Head,
    Key,
    Recorded,
    ScopeKey,
    ScopeValue,
    processed_by,
)
from limpet.model.lease import with_lease
from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.protocol import Owner
from limpet.store.scopes import Sizes

SESSIONS_MAX: Final = 4_096
SCOPES_MAX: Final = 4_096
OWNERS_MAX: Final = 64  # of whom all names are known
BYTES_MAX: Final = 64 * 2**20
TAIL_MAX: Final = 32
_TAIL_MOST: Final = TAIL_MAX + TAIL_MAX // 2  # cut off some at a time
TAIL_BYTES_MAX: Final = 4_096  # of one event in the tail
_ENTRY_BYTES: Final = 1_024


class CachedSession(msgspec.Struct):
    """A session in memory. `delta_bytes` is the size of its log since the snapshot."""

    sid: int
    fold: Fold
    snapshot_bytes: int
    delta_bytes: int
    era: int
    # The newest events, without a gap, up to the fold's version. It grows while others read: they
    # take a copy first.
    tail: list[Event] = msgspec.field(default_factory=list)
    kept_bytes: int = 0  # as which it counts in the cache

    def add(self, rec: Recorded) -> None:
        """Note an event that was committed. The fold is replaced by the caller."""
        event, size, tail = rec.event, len(rec.draft.raw), self.tail
        self.delta_bytes += size + EVENT_OVERHEAD_BYTES
        if size > TAIL_BYTES_MAX or event.data is None:
            self.tail = []  # too large to keep, or not decoded: it is read when asked for
            return
        if event.type in PROCESSING and (done := processed_by(event.type, event.data)):
            # With the event, at once: readers in other threads must not see marks without it.
            marked = [_mark_processed(e, event) if e.seq in done else e for e in tail]
            tail = self.tail = [*marked, event]
        else:
            tail.append(event)
        if len(tail) > _TAIL_MOST:
            del tail[:-TAIL_MAX]

    def lease(
        self, fence: int, lease_us: int | None, worker: str | None, leased_us: int | None
    ) -> Head:
        """Take over a lease, which no event records; the head under it."""
        head, lease = self.fold.head, (fence, lease_us, worker, leased_us)
        if (head.fence, head.lease_us, head.worker, head.leased_us) != lease:
            head = with_lease(head, *lease)
            self.fold = msgspec.structs.replace(self.fold, head=head)
        return head


def _mark_processed(event: Event, by: Event) -> Event:
    """An input as it is when a later event has processed it."""
    return msgspec.structs.replace(event, processed=by.seq, processed_us=by.at_us)


class CachedScope(msgspec.Struct):
    """A scope name in memory, with the version of its last whole value and the ops since."""

    value: ScopeValue
    base: int
    since_base: int
    era: int
    size: int = 0  # the value's bytes, encoded, or about so many
    made_by: tuple[str, int] = ("", 0)  # uid and seq of the event, where others may write too


class Cache:
    """Bounded, oldest use first out."""

    def __init__(self) -> None:
        self.era = 0
        self.issued: int | None = None  # the last position of the feed, if it is known
        self._data_version: int | None = None
        self._sessions: dict[Key, CachedSession] = {}
        # An entry that may be out of date. Readers in other threads compare versions, writers eras.
        self.peek = self._sessions.get
        self._scopes: dict[ScopeKey, CachedScope] = {}
        self._names: dict[Owner, tuple[int, dict[str, int]]] = {}  # the era, and their sizes
        self._bytes = 0

    def note_version(self, data_version: int | None) -> None:
        """The database's data_version as a transaction finds it: another one than the last left
        means that another process has committed. None if it is unknown."""
        if data_version != self._data_version or data_version is None:
            self._data_version = data_version
            self.era += 1
            self.issued = None

    def leave_version(self, data_version: int) -> None:
        """The database's data_version as our own commit left it."""
        self._data_version = data_version

    def keep(self, key: Key, live: CachedSession) -> None:
        """Put an entry in, or note that it has grown. It is the one that was used last.

        What could not be read may be readable in a moment, so a fold without it is not kept.
        """
        sessions = self._sessions
        if live.fold.damaged:
            self.forget(key)
            return
        before = sessions.pop(key, None)
        if before is not live:
            self._bytes -= 0 if before is None else before.kept_bytes
            live.kept_bytes = 0
        sessions[key] = live
        size = live.snapshot_bytes + live.delta_bytes + _ENTRY_BYTES + 1_024 * len(live.tail)
        self._bytes += size - live.kept_bytes
        live.kept_bytes = size
        while self._bytes > BYTES_MAX or len(sessions) > SESSIONS_MAX:
            oldest = next(iter(sessions))
            if oldest == key:
                break
            self.forget(oldest)

    def forget(self, key: Key) -> None:
        live = self._sessions.pop(key, None)
        if live is not None:
            self._bytes -= live.kept_bytes

    def doubt(self, key: Key) -> None:
        """Compare a session with its head before it is used again."""
        live = self._sessions.get(key)
        if live is not None:
            live.era = -1

    def rename(self, by: Key, key: Key) -> None:
        """The session `by` has taken a key. Its fold is doubted: it is used if the head under the
        key is the same, and the log need not be read again."""
        live = self._sessions.get(by)
        self.forget(by)
        self.forget(key)
        if live is not None:
            head = msgspec.structs.replace(live.fold.head, key=key)
            fold = msgspec.structs.replace(live.fold, head=head)
            self.keep(key, msgspec.structs.replace(live, fold=fold, era=-1, tail=[], kept_bytes=0))

    def scope(self, key: ScopeKey) -> CachedScope | None:
        live = self._scopes.get(key)
        return live if live is not None and live.era == self.era else None

    def keep_scope(self, key: ScopeKey, live: CachedScope) -> None:
        """Remember a name, unless its value could not be read: it is read again then."""
        if live.value.damage is not None:
            self.forget_scope(key)
            return
        if len(self._scopes) >= SCOPES_MAX:
            self._scopes.clear()
        self._scopes[key] = live

    def forget_scope(self, key: ScopeKey) -> None:
        self._scopes.pop(key, None)

    def names(self, owner: Owner) -> dict[str, int] | None:
        """Every name of an owner with its size, if that is known."""
        era, sizes = self._names.get(owner, (-1, None))
        return sizes if era == self.era else None

    def keep_names(self, owner: Owner, sizes: dict[str, int]) -> None:
        if len(self._names) >= OWNERS_MAX:
            self._names.clear()
        self._names[owner] = (self.era, sizes)

    def add_names(self, owner: Owner, sizes: Sizes) -> None:
        """Note what was written, for owners whose names are known."""
        known = self.names(owner)
        if known is not None:
            known.update(sizes)

    def clear(self) -> None:
        """Forget everything: a transaction failed and what is true must be read again."""
        self._sessions.clear()
        self._scopes.clear()
        self._names.clear()
        self._bytes = 0
        self.issued = None

    def sessions(self) -> list[tuple[Key, CachedSession]]:
        return list(self._sessions.items())
