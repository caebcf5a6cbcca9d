"""Verification of a database: every session against its log, and the file against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import apsw

from limpet.errors import LimpetError, SessionDeleted, SessionErased, SessionNotFound
from limpet.model.chain import SALT_BYTES
from limpet.model.due import deadline_us, runnable_us
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.ops import scope_of
from limpet.store import bodies
from limpet.store.codec import SEALED, Codec, Damaged
from limpet.store.ledger import compare
from limpet.store.pages import Room, bare, within
from limpet.store.protocol import Erasure, Finding, Place, Progress, Report
from limpet.store.seal import Awaited
from limpet.store.sqlite import ledger, rows
from limpet.store.sqlite.feed import last_position
from limpet.store.sqlite.file.schema import SCHEMA, migrate
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL
from limpet.store.verify import Names, ScopeRow, Snapshot, Stored, verify_session

_META: Final = {"secret", "secret_crc", "overwrite", ledger.NAME}


class Verification:
    """One reading of the database on a connection of its own. Changes nothing."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self._conn, self._codec = conn, codec
        self._reader = Reader(conn, codec)
        self._sessions = self._events = self._scoped = self._unread = 0
        self._misplaced: list[int] = []  # seqs of the session that is being read

    def run(self, key: Key | None, progress: Progress | None) -> Report:
        with self._reader.instant():
            return self.read(key, progress)

    def read(self, key: Key | None, progress: Progress | None) -> Report:
        """The same within the caller's transaction."""
        if key is None:
            findings = tuple(self._guarded(self._everything(progress), "file"))
        else:
            findings = tuple(self._guarded(self._one_session(key), "session", key))
        return Report(self._sessions, self._events, findings)

    def _guarded(
        self, findings: Iterator[Finding], where: str, key: Key | None = None
    ) -> Iterator[Finding]:
        """Damage that stops the reading is itself a finding."""
        try:
            yield from findings
        except (SessionNotFound, SessionDeleted, SessionErased):
            raise
        except (MemoryError, apsw.NoMemError, Awaited):
            raise  # says nothing about what is stored
        except Exception as error:
            yield Finding(where, f"cannot be read: {error!r}", key)

    def _one_session(self, key: Key) -> Iterator[Finding]:
        yield from self._session(self._row(key))

    def _row(self, key: Key) -> tuple[Any, ...]:
        row = self._conn.execute(
            SQL["head"],
            (key.app, key.user, key.id),
        ).fetchone()
        if row is None or row[-1] is not None:
            self._reader.living(key)  # raises what load would
            raise SessionNotFound(key)
        return tuple(row)

    def _everything(self, progress: Progress | None) -> Iterator[Finding]:
        yield from self._guarded(self._structure(), "file")
        total = self._all(SQL["count_sessions"])[0][0]
        sid = 0
        while (row := self._conn.execute(SQL["next_session"], (sid,)).fetchone()) is not None:
            if row[0] <= sid:
                yield Finding("file", "has its sessions out of order")
                break
            sid = row[0]
            yield from self._guarded(self._session(row), "session", _key_of(row))
            if progress is not None:
                progress(self._sessions, total)
        yield from self._guarded(self._scopes(), "scope")
        yield from self._guarded(self._ends(), "tombstone")
        for what, count in self._all(SQL["orphans"]):
            if count:
                yield Finding(what, f"rows without a session: {count}")

    def _structure(self) -> Iterator[Finding]:
        for (line,) in self._all("PRAGMA integrity_check(100)"):
            if line != "ok":
                yield Finding("file", line)
        found, expected = set(self._all(SQL["definitions"])), _definitions()
        for _, name, *_ in sorted(found ^ expected):
            yield Finding("file", f"has another definition of {name} than this release makes")

    def _session(self, row: tuple[Any, ...]) -> Iterator[Finding]:
        self._sessions += 1
        sid, head = row[0], rows.head_from(row)
        self._misplaced = []
        found = self._reader.found(sid, head)
        yield from verify_session(
            found.fold, self._stored(sid, head.uid), self._snapshot(sid, head)
        )
        for seq in self._misplaced:
            what = "stands in the feed before the event it follows"
            yield Finding("event", what, head.key, seq)
        yield from self._columns(sid, head)

    def _stored(self, sid: int, uid: str) -> Iterator[Stored]:
        after = place = 0
        while page := self._page(sid, after):
            if page[-1][0] <= after:
                raise Damaged("has its events out of order")
            for *row, pos in page:
                after = row[0]
                self._events += 1
                if pos <= place:
                    self._misplaced.append(after)
                place = pos
                yield self._one(tuple(row), uid)

    def _page(self, sid: int, after: int) -> list[tuple[Any, ...]]:
        """The next rows of a log, as many as fit a page."""
        with closing(self._conn.execute(SQL["stored_events"], (sid, after))) as found:
            return list(bare(within(Room(), ((row, _stored_bytes(row)) for row in found))))

    def _all(self, sql: str, args: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, args).fetchall()

    def _one(self, row: tuple[Any, ...], uid: str) -> Stored:
        *plain, salt, digest = row
        event = rows.event_from(tuple(plain), uid, self._codec)
        self._scoped += sum(scope_of(str(op.path[0])) in ("app", "user") for op in event.ops)
        self._unread += event.damage is not None
        raw = None
        if event.damage is None:
            flags, body, crc = plain[9:12]
            place = Place("event", uid, event.id, event.type)
            raw = self._codec.unpack(flags, body, crc, lambda: place)
            if flags & SEALED:
                salt, raw = raw[:SALT_BYTES], raw[SALT_BYTES:]
        return event, raw, salt, digest

    def _snapshot(self, sid: int, head: Head) -> Snapshot | None:
        row = self._conn.execute(SQL["snapshot_seq"], (sid,)).fetchone()
        if row is None:
            return None
        fold, size = self._reader.snapshot(sid, head)
        return (row[0], fold) if size else (row[0], None)

    def _columns(self, sid: int, head: Head) -> Iterator[Finding]:
        due = self._conn.execute(SQL["due_times"], (sid,)).fetchone()
        if due != (runnable_us(head), deadline_us(head)):
            yield Finding("head", "has other due times than its log says", head.key)
        listed = self._conn.execute(
            SQL["labels_of"],
            (head.key.app, head.created_us, sid),
        ).fetchall()
        if sorted(listed) != sorted(rows.label_rows(head, sid)):
            yield Finding("label", "is not listed as the head has it", head.key)

    def _ends(self) -> Iterator[Finding]:
        """What deleted and erased sessions left, and the secret by which erased keys are known."""
        for dead_row in self._all(SQL["tombstones"]):
            head, crc = dead_row[:-1], dead_row[-1]
            kept = bodies.tomb_crc(rows.head_from(head), head[-1]) == crc
            if not kept or head[9:13] != (None, 0, None, None):  # labels, pending, timers: gone
                yield Finding("tombstone", "does not match its checksum", _key_of(head))
        for row in self._all(SQL["all_erased"]):
            if rows.erased_row(Erasure(*row[:-1])) != row:
                yield Finding("erasure", "does not match its checksum")
        secret = dict(self._all(SQL["all_meta"]))
        if crc32(secret.get("secret", b"")) != secret.get("secret_crc"):
            yield Finding("meta", "has another secret than it was made with")
        for name in secret.keys() - _META:  # a bit of a name is enough to lose what it names
            yield Finding("meta", f"has {name!r}, which this release does not know")
        yield from self._ledger()
        # What an event that cannot be read did to shared names is not known.
        if not self._unread and self._all(SQL["count_scope_rows"])[0][0] != self._scoped:
            yield Finding("scope", "rows are missing or too many: the logs speak of another number")

    def _ledger(self) -> Iterator[Finding]:
        """Tombstones and certificates that are gone, positions that the feed never handed out."""
        try:
            kept = ledger.read(self._conn)
        except ledger.UNREADABLE:
            yield Finding("meta", "has a ledger of ended sessions that cannot be read")
            return
        if kept is not None:  # none: a file from before, opened by nobody since
            yield from compare(kept, ledger.counted(self._conn))
        last = self._all(SQL["last_position"])[0][0]
        if last > last_position(self._conn):
            yield Finding("event", f"stands in the feed at {last:,}, which was never given")

    def _scopes(self) -> Iterator[Finding]:
        names = Names(self._codec)
        for stored in self._conn.execute(SQL["all_scopes"]):
            app, user, name, version, base, form, flags, body, crc, uid, seq = stored
            row = ScopeRow(version, base, form, flags, body, crc, rows.unpack_id(uid), seq)
            yield from names.add((app, user, name), row)


def verify_copy(conn: apsw.Connection, progress: Progress | None) -> Report:
    """Verify a copy that nobody else has open, of any schema, and leave it as it is.

    An older one is read as this release would: migrated in a transaction that is rolled back.
    """
    conn.execute("BEGIN IMMEDIATE")
    try:
        for number in range(int(conn.pragma("user_version")) + 1, SCHEMA + 1):
            migrate(conn, number)
        return Verification(conn, Codec(None)).read(None, progress)
    except apsw.NoMemError:
        raise  # says nothing about what is stored
    except apsw.Error as error:
        return Report(0, 0, (Finding("file", f"cannot be read: {error!r}"),))
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


@lru_cache(maxsize=1)
def _definitions() -> frozenset[tuple[Any, ...]]:
    """Tables and indexes as the migrations make them."""
    conn = apsw.Connection(":memory:")
    for number in range(1, SCHEMA + 1):
        migrate(conn, number)
    return frozenset(conn.execute(SQL["definitions"]).fetchall())


def _stored_bytes(row: tuple[Any, ...]) -> int:
    """The size of a body as it is stored; none, if something else is in its place."""
    body = row[10]
    return len(body) if isinstance(body, (bytes, str)) else 0


def _key_of(row: tuple[Any, ...]) -> Key | None:
    try:
        return Key(*row[1:4])
    except LimpetError:
        return None
