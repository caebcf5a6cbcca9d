"""Session stores over Limpet: a graph's sessions in a file, on a server, or beside your own.

Each session of a graph is a session of Limpet. A save records what changed, as one event in one
commit, so a saved session has a log, diffs and everything else that sessions have:
`await store.session(session_id)` gives it.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

from limpet.errors import LimpetError, SessionLocked, SessionWriteConflict, StoreError
from limpet.graph.sessions import (
    RecordListing,
    SessionFilter,
    SessionRecord,
    SessionSummary,
    check_record,
    filter_of,
    label_text,
    schema_label,
    schema_of,
    session_key,
)
from limpet.graph.stores.documents import (
    Handle,
    LimpetSource,
    OpenLimpet,
    RecordDocuments,
    VersionMismatch,
    own,
    postgres_url,
    shared,
    sqlite_url,
)
from limpet.model import DefaultActor, Head, Key, Lease, thaw
from limpet.model.limits import PAGE_MAX
from limpet.session.arguments import check_lease_seconds
from limpet.session.limpet import Limpet

SCHEMA: Final = "graph.schema"


class StoredSessions:
    """A session store whose sessions are those of one app and user of a Limpet."""

    def __init__(self, source: LimpetSource, app: str, user: str) -> None:
        self.documents = RecordDocuments(source, app, user)
        self._locks = LeaseLocks(source, app, user)

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record; None if there is none."""
        session = await self.documents.find(session_key(session_id))
        if session is None:
            return None
        head = session.head
        return SessionRecord(
            session_id=session_id,
            state=thaw(own(session)),
            schema_version=_schema(head),
            created_at=head.created_at,
            updated_at=head.updated_at,
            version=head.version,
        )

    async def save(
        self, session_id: str, record: SessionRecord, /, *, expected_version: int | None = None
    ) -> int:
        """Replace the record. Returns its version.

        The last save wins. With `expected_version`, the version of the record that was loaded, or
        0 if there was none, it raises SessionWriteConflict if the session has moved on.
        """
        documents, id = self.documents, session_key(session_id)
        fields, labels = document_of(record)
        try:
            return await documents.replace(id, fields, labels, expected=expected_version)
        except VersionMismatch as moved:
            raise SessionWriteConflict(session_id, expected_version, moved.actual) from None

    async def delete(self, session_id: str, /) -> None:
        """Delete the session with its log. A later save begins a new one. Idempotent."""
        await self.documents.delete(session_key(session_id))

    async def list(self, filter: SessionFilter | None = None, /) -> RecordListing[SessionSummary]:
        """Summaries in the order in which the sessions were created."""
        wanted = filter_of(filter, SessionFilter)
        summaries: list[SessionSummary] = []
        cursor, limit = wanted.cursor, wanted.limit
        # The version "" is also that of a session without the label.
        version = wanted.schema_version
        labels = {SCHEMA: label_text(version)} if version else None
        while True:
            left = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(summaries))
            page = await self.documents.page(
                labels=labels,
                created_after=wanted.created_after,
                updated_after=wanted.updated_after,
                limit=left,
                cursor=cursor,
            )
            summaries += [_summary(head) for head in page.items if _passes(head, wanted)]
            cursor = page.cursor
            if cursor is None or (limit is not None and len(summaries) >= limit):
                return RecordListing.of(summaries, cursor)

    async def acquire_lock(self, session_id: str, /) -> None:
        """Wait for the session's lock and take it, whichever process holds it.

        A process that dies loses its locks within 30 seconds. Saves do not ask for the lock.
        """
        await self._locks.acquire(session_key(session_id))

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock that this object holds. Does nothing if it holds none."""
        await self._locks.release(session_key(session_id))

    async def session(self, session_id: str, /) -> Handle | None:
        """The session itself, with its log; None if there is none."""
        return await self.documents.find(session_key(session_id))

    async def close(self) -> None:
        """Release its locks and its database. A later call opens the database again."""
        await self._locks.release_all()
        await self.documents.source.close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LimpetSessionStore(StoredSessions):
    """Sessions of one app and user in a Limpet that you opened: `lp.get(app, user, session_id)`."""

    def __init__(self, lp: Limpet, app: str, user: str) -> None:
        super().__init__(OpenLimpet(lp), app, user)


class SQLiteSessionStore(StoredSessions):
    """Sessions in a SQLite file, which is made and opened at the first use."""

    def __init__(
        self, path: str | os.PathLike[str], *, app: str = "graph", user: str = "sessions"
    ) -> None:
        super().__init__(shared(sqlite_url(path), self), app, user)


class PostgresSessionStore(StoredSessions):
    """Sessions in a PostgreSQL database: postgresql://user@host/database."""

    def __init__(self, dsn: str, *, app: str = "graph", user: str = "sessions") -> None:
        super().__init__(shared(postgres_url(dsn), self), app, user)


def document_of(record: SessionRecord) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The fields and labels of a record's document."""
    check_record(record)
    return record.state, {SCHEMA: schema_label(record.schema_version)}


def _schema(head: Head) -> str:
    return schema_of(head.labels.get(SCHEMA, head.schema_version or '""'))


def _passes(head: Head, wanted: SessionFilter) -> bool:
    return wanted.schema_version in (None, _schema(head))


def _summary(head: Head) -> SessionSummary:
    return SessionSummary(
        session_id=head.key.id,
        schema_version=_schema(head),
        created_at=head.created_at,
        updated_at=head.updated_at,
        version=head.version,
    )


# --- locks ---------------------------------------------------------------------------------------


LEASE_SECONDS: Final = 30
_PAUSE_SECONDS: Final = 0.05  # between two looks at a lock that another holds
_ACTOR: Final = DefaultActor("system:graph")


class _HeldLease(NamedTuple):
    lp: Limpet
    lease: Lease
    renewing: asyncio.Task[None]
    task: asyncio.Task[Any] | None  # that took it


class HeldLeases:
    """The leases that one object holds, by the keys of their sessions."""

    def __init__(
        self, *, lease_seconds: float = LEASE_SECONDS, renew_seconds: float | None = None
    ) -> None:
        self.lease_seconds = check_lease_seconds(lease_seconds)
        self._renew_seconds = lease_seconds / 3 if renew_seconds is None else renew_seconds
        # The newest last. Those before it have lapsed, and their tasks do not know it yet.
        self._held: dict[Key, list[_HeldLease]] = {}

    async def take(self, lp: Limpet, key: Key, worker: str | None = None) -> Lease:
        """A lease on this session, renewed from now on. Raises SessionLocked if it is leased.

        Without a worker's name it gets one of its own: a second caller in this process is refused
        as well.
        """
        lease = await self._take(lp, key, worker or f"graph:{uuid4().hex}")
        renewing = asyncio.get_running_loop().create_task(self._renew(lp, lease))
        held = _HeldLease(lp, lease, renewing, asyncio.current_task())
        self._held.setdefault(key, []).append(held)
        return lease

    async def release(self, key: Key) -> None:
        """Release the lease on this session, if this object holds one.

        A task whose lease has lapsed releases that one, not the lease of the task that has it now.
        """
        if key not in self._held:
            return
        every, task = self._held[key], asyncio.current_task()
        held = next((one for one in every if one.task is task), every[0])
        every.remove(held)
        if not every:
            del self._held[key]
        held.renewing.cancel()
        await asyncio.wait([held.renewing])  # which hides no cancellation of the caller's
        await held.lp.work.release(held.lease)

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        while self._held:
            await self.release(next(iter(self._held)))

    async def _take(self, lp: Limpet, key: Key, worker: str) -> Lease:
        """The lease. Raises SessionLocked.

        If the caller is cancelled it is given back: it may be granted all the same, and everybody
        would wait until it ends.
        """
        asked = lp.work.lock(key, worker=worker, lease_seconds=self.lease_seconds)
        taking = asyncio.ensure_future(asked)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(LimpetError):
                await lp.work.release(await taking)
            raise

    async def _renew(self, lp: Limpet, lease: Lease) -> None:
        """Keep the lease from ending. An outage that is shorter than the lease does not end it."""
        with suppress(LimpetError):  # it is lost, or the session was deleted
            while True:
                await asyncio.sleep(self._renew_seconds)
                with suppress(StoreError):
                    await lp.work.renew(lease)


class LeaseLocks:
    """The locks that one store object holds."""

    def __init__(
        self, source: LimpetSource, app: str, user: str, *, renew_seconds: float | None = None
    ) -> None:
        self._source, self._app, self._user = source, app, user
        self._leases = HeldLeases(renew_seconds=renew_seconds)

    async def acquire(self, id: str) -> None:
        """Wait for the lock of this id and take it."""
        lp, key = await self._source.limpet(), self._key(id)
        await lp.get_or_create(key.app, key.user, key.id, actor=_ACTOR, tail=0)
        worker = f"graph:{uuid4().hex}"  # a name of its own: a second caller here waits as well
        while True:
            with suppress(SessionLocked):
                await self._leases.take(lp, key, worker)
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def release(self, id: str) -> None:
        """Release the lock of this id, if this object holds it."""
        await self._leases.release(self._key(id))

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        await self._leases.release_all()

    def _key(self, id: str) -> Key:
        return Key(f"{self._app}.locks", self._user, id)
