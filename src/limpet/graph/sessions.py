"""Session stores: the protocol by which a graph's session state is kept between invocations.

The engine needs `load` and `save`; it calls `save(session_id, record)` without keywords unless the
graph was bound with conflicts="raise". `delete` and `list` are for applications. Locks are a second
protocol. A store of your own needs no base class: four coroutines with these names are enough.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from limpet.errors import InvalidCursor, InvalidInput, SessionWriteConflict
from limpet.graph.arguments import exact, filter_of, own_name, session_key
from limpet.graph.stores.labels import schema_label
from limpet.model import described

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
        the stored version is another one, and returns the new version. A save after a delete
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
    """A session store for tests and experiments: everything ends with the process.

    It refuses what the other stores refuse. A version is never used twice for one id, also if the
    session is deleted in between.
    """

    def __init__(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._versions: dict[str, int] = {}  # the last one of each id, deleted or not
        self._locks: dict[str, asyncio.Lock] = {}

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record, as a copy."""
        found = self._records.get(session_key(session_id))
        return None if found is None else _copied(found)

    async def save(
        self, session_id: str, record: SessionRecord, /, *, expected_version: int | None = None
    ) -> int:
        """Replace the record. Returns its version."""
        old = self._records.get(session_key(session_id))
        found = 0 if old is None else self._versions[session_id]
        made = _copied(checked_record(record))
        if expected_version is not None and expected_version != found:
            raise SessionWriteConflict(session_id, expected_version, found)
        now, version = datetime.now(UTC), self._versions.get(session_id, 0) + 1
        self._versions[session_id] = version
        self._records[session_id] = msgspec.structs.replace(
            made,
            session_id=session_id,
            created_at=now if old is None else old.created_at,
            updated_at=now,
            version=version,
        )
        return version

    async def delete(self, session_id: str, /) -> None:
        """Remove the session, if there is one."""
        self._records.pop(session_key(session_id), None)

    async def list(self, filter: SessionFilter | None = None, /) -> Listing[SessionSummary]:
        """Summaries in the order of their ids."""
        wanted = filter_of(filter, SessionFilter)
        found = [_summary(self._records[name]) for name in sorted(self._records)]
        found = [item for item in found if _matches(item, wanted)]
        return page_of(found, [item.session_id for item in found], wanted.limit, wanted.cursor)

    async def acquire_lock(self, session_id: str, /) -> None:
        """Wait for the session's lock and take it."""
        await self._locks.setdefault(session_key(session_id), asyncio.Lock()).acquire()

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock, if it is held."""
        lock = self._locks.get(session_key(session_id))
        if lock is not None and lock.locked():
            lock.release()


def checked_record(record: Any) -> SessionRecord:
    """The record, if a store can keep one like it. Raises InvalidInput, or what is wrong in it."""
    if not isinstance(record, SessionRecord):
        raise InvalidInput(f"{described(record)} is not a SessionRecord. Pass one.")
    if not isinstance(record.state, dict) or not isinstance(record.schema_version, str):
        raise InvalidInput("a session record has a dict as its state and a text as schema_version.")
    for name in record.state:
        own_name(name)
    schema_label(record.schema_version)
    return record


def page_of(items: list[T], ids: list[str], limit: int | None, cursor: str | None) -> Listing[T]:
    """The page of sorted items that begins after the id in `cursor`."""
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidCursor
    start = sum(1 for name in ids if name <= cursor) if cursor is not None else 0
    stop = len(items) if limit is None else min(len(items), start + limit)
    after = ids[stop - 1] if start < stop < len(items) else None
    return Listing.of(items[start:stop], after)


def _copied(record: SessionRecord) -> SessionRecord:
    return msgspec.structs.replace(record, state=exact(record.state, "the state"))


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
