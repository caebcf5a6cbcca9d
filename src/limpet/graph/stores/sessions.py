"""Session stores over Limpet: a graph's sessions in a file, on a server, or beside your own.

Each session of a graph is a session of Limpet. A save records what changed, as one event in one
commit, so a saved session has a log, diffs and everything else that sessions have:
`await store.session(session_id)` gives it.
"""

from __future__ import annotations

import os
from typing import Any, Final, Self

from limpet.errors import SessionWriteConflict
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
from limpet.graph.stores.leases import LeaseLocks
from limpet.model import Head, thaw
from limpet.model.limits import PAGE_MAX
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
