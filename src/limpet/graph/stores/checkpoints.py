"""Checkpointers over Limpet: every invocation of a graph is a session, every step one commit.

A step is written as the operations that the engine made for it, so its cost is what it changed. The
newest record is the session's state; its log shows every step. A checkpointer and a session store
of one Limpet, or of one file or database, save a suspended invocation and its session in one
commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Self, TypeGuard

import msgspec

from limpet.errors import (
    CheckpointRecordInvalid,
    InvalidInput,
    InvalidKey,
    LimpetError,
    SessionDeleted,
    SessionErased,
    SessionLocked,
    SessionNotFound,
    SessionWriteConflict,
)
from limpet.graph.checkpoint import (
    CheckpointFilter,
    CheckpointRecord,
    CheckpointSummary,
    Document,
    check_flush_every,
    check_keep,
    invocation_key,
    is_over,
    matches,
    warn_missing,
)
from limpet.graph.sessions import (
    KeyedLocks,
    RecordListing,
    SessionRecord,
    SessionStore,
    filter_of,
    label_text,
)
from limpet.graph.stores.documents import (
    RACES,
    Handle,
    Labels,
    LimpetSource,
    OpenLimpet,
    RecordDocuments,
    VersionMismatch,
    own_fields,
    postgres_url,
    shared,
    sqlite_url,
)
from limpet.graph.stores.sessions import LEASE_SECONDS, HeldLeases, StoredSessions, document_of
from limpet.model import Head, PlainOp, Set, thaw
from limpet.model.limits import OPS_PER_EVENT_MAX
from limpet.session.journal import retrying
from limpet.session.limpet import Limpet
from limpet.store.pages import each_page
from limpet.store.protocol import Page

CORRELATION: Final = "graph.correlation"
SESSION: Final = "graph.session"
STATUS: Final = "graph.status"
STEPPED: Final = "graph.stepped"
_STATUS: Final = ("status",)
_AFTER_FIRST: Final = "first"  # where a listing goes on after the first run of a correlation
_PAGE: Final = 100  # records that one page of a listing reads


class StoredCheckpoints:
    """A checkpointer whose records are sessions of one app and user of a Limpet."""

    def __init__(
        self,
        source: LimpetSource,
        app: str,
        user: str,
        keep: int | None,
        lease_seconds: float,
        flush_every: int,
    ) -> None:
        self.flush_every = check_flush_every(flush_every)
        self.documents = RecordDocuments(source, app, user)
        self._leases = HeldLeases(lease_seconds=lease_seconds)
        self._retention = Retention(self.documents, keep)
        # Whole saves of one invocation take effect in the order of their calls. A step that comes
        # meanwhile is saved whole too, behind them.
        self._whole = KeyedLocks()

    # --- writing -------------------------------------------------------------------------------

    async def save(self, record: CheckpointRecord, /) -> None:
        """Replace the record of its invocation, in one commit."""
        id = invocation_key(record.invocation_id)
        async with self._whole.of(id):
            await self.documents.replace(id, fields_of(record), labels_of(record))
        if record.status != "running":
            await self._settle(id, record.status)

    async def save_changes(
        self,
        invocation_id: str,
        ops: tuple[PlainOp, ...],
        whole: Callable[[], CheckpointRecord],
        /,
    ) -> None:
        """Apply the operations of one step, in one commit. Overlapping calls keep their order."""
        session = self.documents.remembered_here(invocation_id)
        status = "running"
        for op in ops:
            if op.path == _STATUS and type(op) is Set:
                status = op.value
        whole_now = status == "suspended" or invocation_id in self._whole  # which has a label
        if session is None or whole_now or len(ops) > OPS_PER_EVENT_MAX:
            return await self.save(whole())
        try:
            await session.append(STEPPED, ops=ops)
        except (SessionNotFound, SessionDeleted):
            warn_missing(invocation_id)
            raise  # another process deleted it: the run stops
        if status != "running":
            await self._settle(invocation_id, status)
        return None

    async def claim(self, record: CheckpointRecord, revision: int, /) -> bool:
        """Save the record if the stored one has this revision; of several callers one succeeds."""
        id, fields = invocation_key(record.invocation_id), fields_of(record)
        try:
            await self.documents.replace(id, fields, labels_of(record), expected=revision)
        except VersionMismatch:
            return False
        return True

    async def hold(self, invocation_id: str, /) -> bool:
        """Take the lease on a stored invocation, renewed until its release.

        A process that dies loses its leases when `lease_seconds` are over. Saves of a run whose
        lease was lost are refused.
        """
        lp, key = await self.documents.limpet(), self.documents.key(invocation_id)
        if self.documents.leased(invocation_id) is not None:  # also if it has lapsed: it still runs
            return False
        try:
            lease = await self._leases.take(lp, key)
        except SessionLocked:
            return False
        try:
            await self.documents.lease(lease)
        except BaseException as error:
            with suppress(LimpetError):
                await self._leases.release(key)
            if not isinstance(error, (SessionNotFound, SessionDeleted, SessionErased)):
                raise  # of those three a load will tell
        return True

    async def pass_on(self, pointer: CheckpointRecord, record: CheckpointRecord, /) -> bool:
        """Save both records in one commit, or neither."""
        old, new = pointer.invocation_id, invocation_key(record.invocation_id)
        try:
            held = await self.documents.at(old, self.documents.leased(old), pointer.revision)
            lp = await self.documents.limpet()
            async with lp.commit() as c:
                self.documents.put(c, old, held, fields_of(pointer), labels_of(pointer))
                made = self.documents.put(c, new, None, fields_of(record), labels_of(record))
        except (VersionMismatch, *RACES):
            return False
        self.documents.remember(new, made)
        return True

    async def release(self, invocation_id: str, /) -> None:
        """Give the lease back that this object holds on the invocation, if it does."""
        self.documents.unlease(invocation_id)
        await self._leases.release(self.documents.key(invocation_id))

    async def delete(self, invocation_id: str, /) -> None:
        """Delete the record with its log. Idempotent."""
        await self.documents.delete(invocation_id)

    # --- together with a session ---------------------------------------------------------------

    def joins(self, store: SessionStore, /) -> TypeGuard[StoredSessions]:
        """True if the store keeps its sessions where this keeps its records."""
        if not isinstance(store, StoredSessions):
            return False
        return store.documents.source == self.documents.source

    async def save_with_session(
        self,
        record: CheckpointRecord,
        store: SessionStore,
        session: SessionRecord,
        /,
        *,
        expected_version: int | None = None,
    ) -> int:
        """Save the record and the session in one commit. Returns the session's version.

        Raises SessionWriteConflict if `expected_version` is given and is not the stored one.
        """
        if not self.joins(store):
            raise InvalidInput("this store keeps its sessions elsewhere. Save them one by one.")
        sessions = store.documents
        try:
            return await retrying(
                lambda: self._join(record, sessions, session, expected_version), *RACES
            )
        except VersionMismatch as moved:
            id, actual = session.session_id, moved.actual
            raise SessionWriteConflict(id, expected_version, actual) from None

    async def _join(
        self,
        record: CheckpointRecord,
        sessions: RecordDocuments,
        session: SessionRecord,
        expected: int | None,
    ) -> int:
        fields, labels = document_of(session)
        id, session_id = record.invocation_id, session.session_id
        ours = await self.documents.at(id, self.documents.leased(id), None)
        theirs = await sessions.at(session_id, None, expected)
        lp = await self.documents.limpet()
        async with lp.commit() as c:
            self.documents.put(c, id, ours, fields_of(record), labels_of(record))
            theirs = sessions.put(c, session_id, theirs, fields, labels)
        self.documents.forget(id)
        sessions.remember(session_id, theirs)
        return theirs.version

    # --- reading -------------------------------------------------------------------------------

    async def load(self, invocation_id: str, /) -> CheckpointRecord | None:
        """The newest record of the invocation; None if there is none."""
        session = await self.documents.find(invocation_id)
        return None if session is None else record_of(session.head, session.values)

    async def latest(
        self, correlation_id: str | None = None, /, *, session_id: str | None = None
    ) -> CheckpointRecord | None:
        """The record that was saved last under this correlation id, or in this session.

        None if there is none. Usually it is among the invocations that were saved last; if not, all
        of this correlation id or session are looked at.
        """
        asked = CheckpointFilter(correlation_id=correlation_id, session_id=session_id)
        labels = query_labels(asked) or {}
        newest = await self.documents.newest(_PAGE)
        heads = [head for head in newest if has_labels(head, labels)][:1]
        if not heads:
            heads = await self.documents.heads(labels)
            first = await self._first(correlation_id)
            heads += [first.head] if first is not None and has_labels(first.head, labels) else []
        for head in sorted(heads, key=lambda head: head.updated_us)[-1:]:
            return await self.load(head.key.id)
        return None

    async def _first(self, correlation_id: str | None) -> Handle | None:
        """The session that has a correlation's id for its own: its first run, or a stranger."""
        with suppress(InvalidKey):  # a correlation may be any text
            return await self.documents.find(correlation_id) if correlation_id else None
        return None

    async def list(
        self, filter: CheckpointFilter | None = None, /
    ) -> RecordListing[CheckpointSummary]:
        """Summaries in the order in which the invocations began."""
        wanted = filter_of(filter, CheckpointFilter)
        items: list[CheckpointSummary] = []
        cursor, limit = wanted.cursor, wanted.limit
        if cursor is None and (first := await self._first(wanted.correlation_id)) is not None:
            items = [record_of(first.head, first.values).summary()]
            items = [item for item in items if matches(item, wanted)]
            if len(items) == limit:
                return RecordListing.of(items, _AFTER_FIRST)
        cursor = None if cursor == _AFTER_FIRST else cursor
        while True:
            left = _PAGE if limit is None else min(_PAGE, limit - len(items))
            labels = query_labels(wanted)
            page = await self.documents.page(labels=labels, limit=left, cursor=cursor, state=True)
            items += [item for item in summaries(page) if matches(item, wanted)]
            cursor = page.cursor
            if cursor is None or (limit is not None and len(items) >= limit):
                return RecordListing.of(items, cursor)

    async def session(self, invocation_id: str, /) -> Handle | None:
        """The session of an invocation, whose log has every step; None if there is none."""
        return await self.documents.find(invocation_id)

    async def close(self) -> None:
        """Release its leases and its database. A later call opens the database again."""
        await self._leases.release_all()
        await self.documents.source.close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _settle(self, invocation_id: str, status: str) -> None:
        """Forget a run after its last save; old ones may go."""
        self.documents.forget(invocation_id)
        if status == "completed":
            await self._retention.completed(invocation_id)


class LimpetCheckpointer(StoredCheckpoints):
    """Records in a Limpet that you opened: `lp.get(app, user, invocation_id)`."""

    def __init__(
        self,
        lp: Limpet,
        app: str,
        user: str = "invocations",
        *,
        keep: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        flush_every: int = 1,
    ) -> None:
        super().__init__(OpenLimpet(lp), app, user, keep, lease_seconds, flush_every)


class SQLiteCheckpointer(StoredCheckpoints):
    """Records in a SQLite file, which is made and opened at the first use.

    With `keep` only so many completed invocations stay; by default all do. A resumed run that dies
    can be resumed again after `lease_seconds`. With `flush_every` a commit has so many steps inside
    the instances of a fan-out: fewer commits, and after a crash what was not saved runs again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        app: str = "graph",
        user: str = "invocations",
        keep: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        flush_every: int = 1,
    ) -> None:
        super().__init__(
            shared(sqlite_url(path), self), app, user, keep, lease_seconds, flush_every
        )


class PostgresCheckpointer(StoredCheckpoints):
    """Records in a PostgreSQL database: postgresql://user@host/database. Settings as for SQLite."""

    def __init__(
        self,
        dsn: str,
        *,
        app: str = "graph",
        user: str = "invocations",
        keep: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        flush_every: int = 1,
    ) -> None:
        super().__init__(
            shared(postgres_url(dsn), self), app, user, keep, lease_seconds, flush_every
        )


def labels_of(record: CheckpointRecord) -> Labels:
    """The labels by which a record is found.

    Labels are few, because each costs a run as much as a step. A record that is running or
    completed has no label for its status, and the first run of a correlation is found by its id.
    """
    first = record.correlation_id == record.invocation_id
    return {
        CORRELATION: None if first else label_text(record.correlation_id),
        SESSION: None if record.session_id is None else label_text(record.session_id),
        STATUS: record.status if record.status == "suspended" else None,
    }


def has_labels(head: Head, asked: Mapping[str, str]) -> bool:
    """True if a record has these labels. The first of a correlation has its id instead of one."""
    labels: Mapping[str, Any] = head.labels
    if CORRELATION not in labels:
        labels = {**labels, CORRELATION: label_text(head.key.id)}
    return asked.items() <= labels.items()


def query_labels(wanted: CheckpointFilter) -> dict[str, str] | None:
    """Labels that every record has which a filter asks for, but the first of a correlation.

    `matches` decides about the rest.
    """
    asked = {
        CORRELATION: wanted.correlation_id,
        SESSION: wanted.session_id,
        STATUS: wanted.status if wanted.status == "suspended" else None,
    }
    return {name: label_text(text) for name, text in asked.items() if text is not None} or None


def fields_of(record: CheckpointRecord) -> Document:
    """The stored fields of a record, without those that its session has: every name costs a run.

    The id is that of the session's key, the revision its version, and the time that of its last
    event, by the store's clock.
    """
    made = record.to_document()
    del made["invocation_id"], made["revision"], made["last_saved_at"]
    if record.status == "running":
        del made["status"]
    return made


def record_of(head: Head, values: Mapping[str, Any]) -> CheckpointRecord:
    """The record that a session keeps. Raises CheckpointRecordInvalid."""
    fields = thaw(own_fields(values))
    fields["invocation_id"], fields["revision"] = head.key.id, head.version
    fields["last_saved_at"] = head.updated_at
    try:
        return CheckpointRecord.from_document(fields)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        reason = f"what is stored is not a record ({type(error).__name__})"
        raise CheckpointRecordInvalid(head.key.id, reason) from error


def summaries(page: Page[Head]) -> list[CheckpointSummary]:
    """The records of a page that was read with its states."""
    listed = []
    for head in page.items:
        if head.key in page.states:
            listed.append(record_of(head, page.states[head.key]).summary())
    return listed


class Retention:
    """Deletes the completed invocations that were saved longest ago, beyond the newest `keep`.

    Those that were resumed as one that has completed count too. Invocations that run or are
    suspended are never deleted. What other processes complete, and what was resumed, is seen when
    the list is read again, after `keep` invocations of this one.
    """

    def __init__(self, documents: RecordDocuments, keep: int | None) -> None:
        self._documents, self._keep = documents, check_keep(keep)
        self._kept: list[str] | None = None  # the one that was completed first is first
        self._since_read = 0

    async def completed(self, invocation_id: str) -> None:
        """One more invocation is complete: delete what is too many."""
        if self._keep is None:
            return
        if self._kept is None or self._since_read >= self._keep:
            self._kept, self._since_read = await self._read(), 0
        elif invocation_id not in self._kept:
            self._kept.append(invocation_id)
        self._since_read += 1
        while len(self._kept) > self._keep:
            await self._documents.delete(self._kept.pop(0))

    async def _read(self) -> list[str]:
        saved: list[tuple[int, str]] = []
        documents: dict[str, Mapping[str, Any]] = {}
        read = self._documents.page
        async for page in each_page(lambda at: read(limit=_PAGE, cursor=at, state=True)):
            saved += [(head.updated_us, head.key.id) for head in page.items]
            documents |= {head.key.id: page.states.get(head.key, {}) for head in page.items}
        return [id for _, id in sorted(saved) if is_over(id, documents)]
