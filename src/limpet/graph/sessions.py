"""Session stores: the protocol by which a graph's session state is kept between invocations.

The engine needs `load` and `save`; it calls `save(session_id, record)` without keywords unless the
graph was bound with conflicts="raise". `delete` and `list` are for applications. Locks are a second
protocol. A store of your own needs no base class: four coroutines with these names are enough.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from limpet.errors import InvalidCursor, SessionWriteConflict

T = TypeVar("T")


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a store keeps it. `state` is plain JSON data, in the shape of `schema_version`.

    The store sets the times and `version`, a number that grows with every save; the engine leaves
    them None.
    """

    session_id: str
    state: dict[str, Any]
    schema_version: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    version: int | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a listing, without its state."""

    session_id: str
    schema_version: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    version: int | None = None


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list: those that match every field that is given. Times are exclusive.

    With `limit` a listing has at most that many; pass its `cursor` to get the next ones.
    """

    updated_after: datetime | None = None
    created_after: datetime | None = None
    schema_version: str | None = None
    limit: int | None = None
    cursor: str | None = None


class Listing(tuple[T, ...], Generic[T]):
    """What a store lists: a tuple, and the `cursor` of the next page, or None at the end."""

    cursor: str | None = None

    @classmethod
    def of(cls, items: Any, cursor: str | None = None) -> Listing[T]:
        """A listing of these items."""
        made = cls(items)
        made.cursor = cursor
        return made


@runtime_checkable
class SessionStore(Protocol):
    """Keeps one record for each session id."""

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record; None if there is none. A record of any schema version is returned."""
        ...

    async def save(self, session_id: str, record: SessionRecord, /) -> object:
        """Replace the session's record, all or nothing, durable on return. The last save wins.

        A store may also accept `expected_version=`: the `version` of the record that the caller
        loaded, 0 if there was none. It then raises SessionWriteConflict, and changes nothing, if
        the stored version is another one. It may return the new version. A save after a delete
        starts a new session.
        """
        ...

    async def delete(self, session_id: str, /) -> None:
        """Remove the session. Does nothing if there is none."""
        ...

    async def list(self, filter: SessionFilter | None = None, /) -> Listing[SessionSummary]:
        """Summaries of the sessions that match the filter; of all sessions without one."""
        ...


@runtime_checkable
class SessionLocks(Protocol):
    """Locks that applications may take around invocations. The engine takes none."""

    async def acquire_lock(self, session_id: str, /) -> object:
        """Wait for the session's lock and take it. The session need not exist."""
        ...

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock that this store object holds. Does nothing if it holds none."""
        ...


class InMemorySessionStore:
    """A session store for tests and experiments: everything ends with the process."""

    def __init__(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._locks: dict[str, Any] = {}

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record, as a copy."""
        return copy.deepcopy(self._records.get(session_id))

    async def save(
        self, session_id: str, record: SessionRecord, /, *, expected_version: int | None = None
    ) -> int:
        """Replace the record. Returns its version."""
        old = self._records.get(session_id)
        found = 0 if old is None or old.version is None else old.version
        if expected_version is not None and expected_version != found:
            raise SessionWriteConflict(session_id, expected_version, found)
        now = datetime.now(UTC)
        self._records[session_id] = msgspec.structs.replace(
            copy.deepcopy(record),
            session_id=session_id,
            created_at=now if old is None else old.created_at,
            updated_at=now,
            version=found + 1,
        )
        return found + 1

    async def delete(self, session_id: str, /) -> None:
        """Remove the session, if there is one."""
        self._records.pop(session_id, None)

    async def list(self, filter: SessionFilter | None = None, /) -> Listing[SessionSummary]:
        """Summaries in the order of their ids."""
        wanted = filter or SessionFilter()
        found = [_summary(self._records[name]) for name in sorted(self._records)]
        found = [item for item in found if _matches(item, wanted)]
        return page_of(found, [item.session_id for item in found], wanted.limit, wanted.cursor)

    async def acquire_lock(self, session_id: str, /) -> None:
        """Wait for the session's lock and take it."""
        import asyncio

        await self._locks.setdefault(session_id, asyncio.Lock()).acquire()

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock, if it is held."""
        lock = self._locks.get(session_id)
        if lock is not None and lock.locked():
            lock.release()


def page_of(items: list[T], ids: list[str], limit: int | None, cursor: str | None) -> Listing[T]:
    """The page of sorted items that begins after the id in `cursor`."""
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidCursor
    start = sum(1 for name in ids if name <= cursor) if cursor is not None else 0
    stop = len(items) if limit is None else min(len(items), start + max(1, limit))
    after = ids[stop - 1] if start < stop < len(items) else None
    return Listing.of(items[start:stop], after)


def _summary(record: SessionRecord) -> SessionSummary:
    return SessionSummary(
        session_id=record.session_id,
        schema_version=record.schema_version,
        created_at=record.created_at,
        updated_at=record.updated_at,
        version=record.version,
    )


def _matches(item: SessionSummary, wanted: SessionFilter) -> bool:
    times = (
        (item.updated_at, wanted.updated_after),
        (item.created_at, wanted.created_after),
    )
    if any(after is not None and (at is None or at <= after) for at, after in times):
        return False
    return wanted.schema_version is None or item.schema_version == wanted.schema_version
