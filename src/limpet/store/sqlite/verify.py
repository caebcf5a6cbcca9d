"""Verification of a database: every session against its log, and the file against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import apsw

from limpet.errors import LimpetError, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import Base, Fold, Head, Key, is_reserved
from limpet.model.limits import INT_MAX
from limpet.store.coding.bodies import ScopeRow, tomb_crc
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Awaited
from limpet.store.cold import SegmentDamaged, mark
from limpet.store.ledger import compare
from limpet.store.pages import PageBytes, bare, within
from limpet.store.protocol import Erasure, Finding, Progress, Report
from limpet.store.sqlite import blobs, ledger, rows
from limpet.store.sqlite.file.schema import SCHEMA, migrate
from limpet.store.sqlite.reading import lineage
from limpet.store.sqlite.reading.feed import last_position, noted_crc
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL
from limpet.store.verify import NameVerifier, ScopeCounter, Stored, verify_session

_META: Final = {"secret", "secret_crc", "overwrite", "feed", "feed_crc", "ring", ledger.NAME}
_PAGE: Final = 200


class SQLiteVerification:
    """One reading of the database on a connection of its own. Changes nothing."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self._conn, self._codec = conn, codec
        self._reader = SQLiteReader(conn, codec)
        self._sessions = self._internal = self._events = 0
        self._scope_counter = ScopeCounter()
        self._misplaced: list[int] = []  # seqs of the session that is being read

    def run(self, key: Key | None, progress: Progress | None) -> Report:
        with self._reader.instant():
            return self.read(key, progress)

    def read(self, key: Key | None, progress: Progress | None) -> Report:
        """Verify within the caller's transaction."""
        if key is None:
            findings = tuple(self._guard(self._everything(progress), "file"))
        else:
            findings = tuple(self._guard(self._one_session(key), "session", key))
        sessions = self._sessions - self._internal
        return Report(sessions, self._events, findings, self._internal)

    def _guard(
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
        if row is None:
            self._reader.living(key)  # raises what load would
            raise SessionNotFound(key)
        return tuple(row)

    def _everything(self, progress: Progress | None) -> Iterator[Finding]:
        yield from self._guard(self._structure(), "file")
        total = self._all(SQL["count_sessions"])[0][0]
        sid = 0
        while (row := self._conn.execute(SQL["next_session"], (sid,)).fetchone()) is not None:
            if row[0] <= sid:
                yield Finding("file", "has its sessions out of order")
                break
            sid = row[0]
            yield from self._guard(self._session(row), "session", _key_of(row))
            if progress is not None:
                progress(self._sessions, total)
        yield from self._guard(self._scopes(), "scope")
        yield from self._guard(self._ends(), "tombstone")
        for what, count in self._all(SQL["orphans"]):
            if count:
                yield Finding(what, f"rows without a session: {count}")

    def _structure(self) -> Iterator[Finding]:
        for (line,) in self._all("PRAGMA integrity_check(100)"):
            if line != "ok":
                yield Finding("file", line)
        definitions, expected = set(self._all(SQL["definitions"])), _definitions()
        for _, name, *_ in sorted(definitions ^ expected):
            yield Finding("file", f"has another definition of {name} than this release makes")

    def _session(self, row: tuple[Any, ...]) -> Iterator[Finding]:
        self._sessions += 1
        sid, head = row[0], rows.head_from(row)
        self._internal += is_reserved(head.key.app)
        self._misplaced = []
        loaded = self._reader.load_fold(sid, head)
        base = None
        if not head.floor and self._conn.execute(SQL["parent"], (sid,)).get is not None:
            yield Finding("head", "has a parent and begins on nothing", head.key)
        if head.floor:
            try:
                base = self._reader.base(sid, head)
            except Damaged as error:
                yield Finding("base", str(error), head.key)
            else:
                yield from self._parent(sid, head, base)
        stored = self._read_log(sid, head)
        yield from verify_session(loaded.fold, stored, self._snapshots(sid, head), base)
        for seq in self._misplaced:
            what = "stands in the feed before the event it follows"
            yield Finding("event", what, head.key, seq)
        if not self._reader.holds(sid, head):
            yield Finding("head", UNHELD, head.key, head.version)
        yield from self._segments(sid, head)
        yield from self._columns(sid, head)
        yield from self._blobs(sid, head, INT_MAX)

    def _read_log(self, sid: int, head: Head) -> Iterator[Stored]:
        after = place = 0
        uid = head.uid
        for first, last, *_ in self._all(SQL["segments_of"], (sid,)):
            with suppress(Damaged):  # reported by _segments; what is missing shows in the chain
                for cold in self._reader.cold.segment(sid, uid, first, last):
                    self._events += 1
                    yield self._scope_counter.add(uid, cold.record, adopted=cold.adopted)
            after = last
        while page := self._page(sid, after):
            if page[-1][1] <= after:
                raise Damaged("has its events out of order")
            for row in page:
                pos, after = row[:2]
                self._events += 1
                if pos <= place:
                    self._misplaced.append(after)
                place = pos
                yield self._one(row, uid)

    def _page(self, sid: int, after: int) -> list[tuple[Any, ...]]:
        """The next rows of a log, as many as fit a page."""
        with closing(self._conn.execute(SQL["stored_events"], (sid, after, _PAGE))) as cursor:
            return list(bare(within(PageBytes(), ((row, _stored_bytes(row)) for row in cursor))))

    def _all(self, sql: str, args: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, args).fetchall()

    def _one(self, row: tuple[Any, ...], uid: str) -> Stored:
        record = lineage.sized_record(self._reader, row, uid)[0]
        return self._scope_counter.add(uid, record, adopted=rows.is_adopted(row[10]))

    def _snapshots(self, sid: int, head: Head) -> dict[int, Fold | None]:
        """Every rung of the ladder, None where it cannot be read."""
        snapshots: dict[int, Fold | None] = {}
        for (seq,) in self._all(SQL["snapshot_seqs"], (sid,)):
            row = self._conn.execute(SQL["snapshot"], (sid, seq)).fetchone()
            link = self._reader.link_at(sid, head.uid, seq)
            made = None if row is None else self._reader.snapshot_in((*row, link), head)
            snapshots[seq] = None if made is None else made[0]
        return snapshots

    def _parent(self, sid: int, head: Head, base: Base) -> Iterator[Finding]:
        """The chain of a fork goes on from its parent's, if that is still there."""
        part = lineage.segment_with(self._reader, sid, head, head.floor)
        if part.sid is None:
            if self._conn.execute(SQL["parent_lost"], (sid,)).get is not None:
                yield Finding("head", "has a parent that is not there", head.key)
            return
        link = self._reader.link_at(part.sid, part.head.uid, head.floor)
        if link != base.link:
            yield Finding("base", "stands on an event that its parent does not have", head.key)

    def _segments(self, sid: int, head: Head) -> Iterator[Finding]:
        """Each can be read, ends where it says, and its ids are found."""
        for first, last, _, _, last_us in self._all(SQL["segments_of"], (sid,)):
            try:
                segment = self._reader.cold.segment(sid, head.uid, first, last)
            except SegmentDamaged as error:
                yield Finding("segment", error.problem, head.key, first)
                continue
            marks = [(mark(c.record.event.id), c.record.event.seq) for c in segment]
            listed = self._all(SQL["segment_ids_of"], (sid, first, last))
            if listed != marks or segment[-1].record.event.at_us != last_us:
                what = "has other ids or times beside it than in it"
                yield Finding("segment", what, head.key, first)

    def _blobs(self, sid: int, head: Head, below: int) -> Iterator[Finding]:
        for problem in blobs.problems(self._conn, self._codec, sid, head.uid, below):
            yield Finding("blob", problem, head.key)

    def _columns(self, sid: int, head: Head) -> Iterator[Finding]:
        row = self._conn.execute(SQL["derived"], (sid,)).fetchone()
        if row != (rows.slot(head), *rows.due_columns(head)):
            yield Finding("head", "has other due times than its log says", head.key)
        listed = self._conn.execute(
            SQL["labels_of"],
            (head.key.app, head.created_us, sid),
        ).fetchall()
        if sorted(listed) != sorted(rows.label_rows(head, sid)):
            yield Finding("label", "is not listed as the head has it", head.key)

    def _ends(self) -> Iterator[Finding]:
        """Check tombstones, certificates, and the secret that recognises erased keys."""
        for dead_row in self._all(SQL["tombstones"]):
            head, crc = dead_row[:-1], dead_row[-1]
            if tomb_crc(rows.tombstone_from(head)) != crc:
                yield Finding("tombstone", "does not match its checksum", _key_of(head))
            kept = self._all(SQL["kept_below"], (head[0],))[0][0]
            yield from self._blobs(head[0], rows.tombstone_from(head), kept)
        for (names,) in self._all(SQL["lost_parents"]):
            yield Finding("tombstone", f"of {names} has a parent that is not there")
        for row in self._all(SQL["all_erased"]):
            if rows.erased_row(Erasure(*row[:-1])) != row:
                yield Finding("erasure", "does not match its checksum")
        secret = dict(self._all(SQL["all_meta"]))
        if crc32(secret.get("secret", b"")) != secret.get("secret_crc"):
            yield Finding("meta", "has another secret than it was made with")
        noted = "feed" in secret or "feed_crc" in secret
        if noted and noted_crc(secret.get("feed")) != secret.get("feed_crc"):
            yield Finding("meta", "has another last position of the feed than was noted")
        for name in secret.keys() - _META:  # a bit of a name is enough to lose what it names
            yield Finding("meta", f"has {name!r}, which this release does not know")
        yield from self._ledger()
        made_by, adopted = (
            self._conn.execute(SQL["scope_rows_made_by"]),
            self._scope_counter.adopted,
        )
        made = sum((rows.unpack_id(uid), seq) not in adopted for uid, seq in made_by)
        yield from self._scope_counter.compare(made)

    def _ledger(self) -> Iterator[Finding]:
        """Tombstones and certificates that are gone, positions that the feed never handed out."""
        try:
            kept = ledger.read(self._conn)
        except ledger.UNREADABLE:
            yield Finding("meta", "has a ledger of ended sessions that cannot be read")
            return
        if kept is not None:  # none: a file from before, opened by nobody since
            yield from compare(kept, ledger.count(self._conn))
        last = self._all(SQL["last_position"])[0][0]
        if last > last_position(self._conn):
            yield Finding("event", f"stands in the feed at {last:,}, which was never given")

    def _scopes(self) -> Iterator[Finding]:
        names = NameVerifier(self._codec)
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
        return SQLiteVerification(conn, Codec(None)).read(None, progress)
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
    body = row[11]
    return len(body) if isinstance(body, (bytes, str)) else 0


def _key_of(row: tuple[Any, ...]) -> Key | None:
    try:
        return Key(*row[1:4])
    except LimpetError:
        return None
