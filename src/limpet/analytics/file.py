"""The analytics file: SQLite, one writer, results and positions in one commit.

`sessions` has the fold of every session by its uid, `records` the uids of those whose records are
still to be emitted, `logs` how far the logs of checkpoints were read, and `meta` the positions in
the feed, the horizons of the windows and a copy of the model. The roll-ups are in `cells`, a
group's cells side by side; `weights` says which groups of a window are the largest, and `names`
what groups and apps are called. A commit checks that nobody else has written since what it counts
was read: a second process on the same file finds its batch refused and reads again, and nothing
counts twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from limpet.analytics import ranking
from limpet.analytics.metrics import SessionFold
from limpet.analytics.rollup import (
    ALL,
    DAY,
    HOUR,
    MONTH,
    CellKey,
    CellTally,
    Horizons,
    add_rolled,
    day_start,
    month_start,
    pack,
    rolled,
    unpack,
    without_seconds,
)
from limpet.analytics.schema import check, prepare
from limpet.analytics.tables import Cells
from limpet.errors import InvalidURL, StoreCorrupt, StoreError, StoreForeign
from limpet.model import Key
from limpet.store.open import sqlite_path
from limpet.store.sqlite.failures import translate

_BUSY_MS: Final = 10_000
_FLAGS: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_URI: Final = _FLAGS | apsw.SQLITE_OPEN_URI
_MADE_AGAIN: Final = "Remove it: analytics are made again from the store, but for deleted sessions"
_MEMORY: Final = "file:/limpet-analytics-{}?vfs=memdb"  # connections of one name share it
_CELLS_MAX: Final = 20_000  # in memory
_ROLLED_TOGETHER: Final = 5_000
_PUT_SESSION: Final = """
INSERT OR REPLACE INTO sessions (uid, name, app, rated, ended, seen, fold)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_LISTED: Final = "(SELECT value FROM json_each({}))"  # of what `_listed` binds
# Of the cells that are looked for: for each grain the first start, and the start behind the last.
_RANGES: Final = """(SELECT value ->> 0 AS of_grain, value ->> 1 AS first, value ->> 2 AS behind
    FROM json_each({}))"""
_ALL_TIME: Final = ((ALL, 0, 1),)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SessionFold)
Cell = tuple[str, str, int, int, str]  # app, dimension, grain, start, value
Name = tuple[str, str]  # kind and name


class FoldedElsewhere(Exception):
    """Another process has written meanwhile: what was read here is not to be counted."""


class FileCursor(apsw.Cursor):
    """A cursor that raises SQLite's errors as ours, but where its rows are looped over."""

    def execute(self, *args: Any, **options: Any) -> apsw.Cursor:
        """As of every cursor."""
        with self._errors_as_ours():
            return super().execute(*args, **options)

    def executemany(self, *args: Any, **options: Any) -> apsw.Cursor:
        """As of every cursor."""
        with self._errors_as_ours():
            return super().executemany(*args, **options)

    def fetchall(self) -> list[Any]:
        """As of every cursor."""
        with self._errors_as_ours():
            return super().fetchall()

    @contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise as_ours(error, self.connection.filename) from error


def as_ours(error: apsw.Error, where: str) -> StoreError:
    """Return an error of SQLite as ours: nothing of the file is lost that the store does not have,
    but the metrics of deleted sessions."""
    match error:
        case apsw.NotADBError():
            return StoreForeign(where)
        case apsw.CorruptError():
            return StoreCorrupt(where, str(error), _MADE_AGAIN)
    return translate(error, where, "write")


class AnalyticsFile:
    """An open file."""

    def __init__(self, path: Path | None, *, memory: str | None = None) -> None:
        """Open the file, or for None memory: that of this name, or new. Raises InvalidURL for a
        store, StoreForeign, StoreNewer, StoreUnopened."""
        self._path, self._memory = path, memory or uuid.uuid4().hex
        self.where = _MEMORY.format(self._memory) if path is None else str(path)
        try:
            self._conn = apsw.Connection(self.where, _URI if path is None else _FLAGS)
        except apsw.Error as error:
            raise as_ours(error, self.where) from error
        self._conn.cursor_factory = FileCursor
        self._prepare()
        self._cells: dict[Cell, CellTally] = {}
        self._ids: dict[Name, int] = {}
        self._unshredded = False  # the log of changes still has rows that were removed
        self._version = self._ids_version = self._data_version()

    def _prepare(self) -> None:
        conn = self._conn
        conn.set_busy_timeout(_BUSY_MS)
        check(conn, self.where)  # before anything of another program's file is changed
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = NORMAL")  # results and position are lost together
        conn.execute("PRAGMA secure_delete = ON")  # names of erased users leave the free pages too
        with self._transaction():
            prepare(conn, self.where)

    def another(self) -> AnalyticsFile:
        """Return another connection to it, for another thread: one is for a single thread."""
        return AnalyticsFile(self._path, memory=self._memory)

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        self._conn.close()

    def shred(self) -> None:
        """Write the log of changes into the file and empty it: it still has rows that were removed.
        If somebody else reads just now, it is not waited for: the next commits try again."""
        self._conn.set_busy_timeout(0)
        try:
            state: Any = self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._unshredded = bool(state[0])
        finally:
            self._conn.set_busy_timeout(_BUSY_MS)

    @property
    def size(self) -> int:
        """The bytes of the database, without what is free."""
        one = self._conn.execute
        pages = one("PRAGMA page_count").get - one("PRAGMA freelist_count").get
        return int(pages * one("PRAGMA page_size").get)

    # --- reading ---------------------------------------------------------------------------------

    def meta(self, name: str) -> Any:
        """Return a value, or None."""
        return self._conn.execute("SELECT value FROM meta WHERE name = ?", (name,)).get

    def set_meta(self, name: str, value: Any) -> None:
        """Set a value at once, outside of a commit."""
        self._conn.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def fold(self, uid: str) -> SessionFold | None:
        """Return the fold of a session."""
        row = self._conn.execute("SELECT fold FROM sessions WHERE uid = ?", (packed(uid),)).get
        return None if row is None else _decoder.decode(row)

    def names(self) -> list[tuple[bytes, int]]:
        """Return the uid of every session as it is stored, and the hash of its key."""
        rows: list[Any] = self._conn.execute("SELECT uid, name FROM sessions").fetchall()
        return rows

    def folds_at(self, uids: Iterable[bytes]) -> list[SessionFold]:
        """Return the folds of these sessions, uids as they are stored; without those that are not
        there."""
        sql = "SELECT fold FROM sessions WHERE uid = ?"
        rows = [self._conn.execute(sql, (uid,)).get for uid in uids]
        return [_decoder.decode(raw) for raw in rows if raw is not None]

    def folds_of(self, key: Key) -> list[SessionFold]:
        """Return the folds of all sessions that had this key, the newest last."""
        sql = "SELECT fold FROM sessions WHERE name = ?"
        rows: list[Any] = self._conn.execute(sql, (hashed(key),)).fetchall()
        folds = [fold for (raw,) in rows if (fold := _decoder.decode(raw)).key == key]
        return sorted(folds, key=lambda fold: fold.created_us)

    def folds(
        self, *, rated: bool = False, live: bool = False, after: bytes = b"", limit: int = -1
    ) -> Iterator[SessionFold]:
        """Yield folds in the order of their uids: all, or those with feedback, or under way."""
        also = "AND rated IS NOT NULL" if rated else "AND ended IS NULL" if live else ""
        sql = f"SELECT fold FROM sessions WHERE uid > ? {also} ORDER BY uid LIMIT ?"  # nosec B608  # no input in it
        rows = self._conn.execute(sql, (after, limit))
        try:
            for (raw,) in rows:
                yield _decoder.decode(raw)
        except apsw.Error as error:
            raise as_ours(error, self.where) from error

    def recent(self, app: str | None, limit: int) -> list[SessionFold]:
        """Return the sessions of an app that were seen last, the oldest of them first."""
        where, given = ("", ()) if app is None else ("WHERE app = ?", (app,))
        sql = f"SELECT fold FROM sessions {where} ORDER BY seen DESC LIMIT ?"  # nosec B608  # fixed text
        rows: list[Any] = self._conn.execute(sql, (*given, limit)).fetchall()
        folds = [_decoder.decode(raw) for (raw,) in rows]
        return folds[::-1]

    def unemitted(self, limit: int) -> list[bytes]:
        """Return the uids of sessions that have ended, as they are stored, and whose records are
        still to be emitted."""
        rows: list[Any] = self._conn.execute("SELECT uid FROM records LIMIT ?", (limit,)).fetchall()
        return [uid for (uid,) in rows]

    def take_record(self, uid: bytes) -> SessionFold | None:
        """Return the fold of a session whose record is to be emitted now; None if another process
        has taken it, or the session was erased. Nobody is handed it again."""
        sql = "DELETE FROM records WHERE uid = ? RETURNING uid"
        if self._conn.execute(sql, (uid,)).get is None:
            return None
        (fold,) = self.folds_at([uid]) or (None,)
        return fold

    def rated(self) -> int:
        """Return how many sessions have feedback."""
        return int(self._conn.execute("SELECT count(*) FROM sessions WHERE rated IS NOT NULL").get)

    def log(self, key: Key) -> tuple[str, int]:
        """Return whose checkpoints a log has, and the last seq that was counted."""
        row = self._conn.execute("SELECT uid, seq FROM logs WHERE key = ?", (str(key),)).fetchone()
        return ("", 0) if row is None else row

    def scores(self, uid: str) -> list[tuple[Any, ...]]:
        """Return seq, name, value, turn and call of each score of a session."""
        sql = "SELECT seq, name, value, turn, call FROM scores WHERE uid = ? ORDER BY seq"
        return self._conn.execute(sql, (packed(uid),)).fetchall()

    def totals(self, app: str | None, dimension: str, limit: int) -> Cells:
        """Return the largest groups over all time, the largest first."""
        return self._largest(app, dimension, _ALL_TIME, limit)

    def ranged(self, app: str | None, dimension: str, since: int, until: int, limit: int) -> Cells:
        """Return the windows that have a part in [since, until), of the largest groups there."""
        firsts = dict.fromkeys((HOUR, DAY, MONTH), since)
        firsts |= [self.horizons.place(dimension, since)]  # the window that it is in
        ranges = [(grain, first, until) for grain, first in firsts.items()]
        return self._largest(app, dimension, ranges, limit)

    def totals_of(self, app: str | None, dimension: str, names: Iterable[str]) -> Cells:
        """Return these groups over all time, without those that are not there."""
        kinds = [(dimension, name) for name in dict.fromkeys(names)]
        ids = [id for kind in kinds if (id := self._find(kind)) is not None]
        return self._cells_of(self._app_ids(app), ids, _ALL_TIME)

    def _largest(
        self,
        app: str | None,
        dimension: str,
        ranges: Sequence[tuple[int, int, int]],
        limit: int,
    ) -> Cells:
        apps = self._app_ids(app)
        if dimension == "window":
            id = self._find((dimension, ""))
            return self._cells_of(apps, [] if id is None else [id], ranges)
        # Each app and each grain by itself: then the key leads to the first window of the range.
        sql = f"""SELECT part, weights FROM {_RANGES.format("?1")} CROSS JOIN weights
            WHERE app_id IN {_LISTED.format("?2")} AND dimension = ?3
            AND grain = of_grain AND start >= first AND start < behind"""  # nosec B608  # fixed text
        given = (_listed(ranges), _listed(apps), dimension)
        rows: list[Any] = self._conn.execute(sql, given).fetchall()
        parts, raws = zip(*rows, strict=True) if rows else ((), ())
        return self._cells_of(apps, ranking.largest(parts, raws, limit), ranges)

    def _cells_of(
        self, apps: list[int], ids: list[int], ranges: Sequence[tuple[int, int, int]]
    ) -> Cells:
        """Return the cells of these groups, which keep their order."""
        sql = f"SELECT id, name FROM names WHERE id IN {_LISTED.format('?1')}"  # nosec B608  # fixed text
        named: list[Any] = self._conn.execute(sql, (_listed(ids),)).fetchall()
        names = dict(named)
        known = {id: place for place, id in enumerate([id for id in ids if id in names])}
        sql = f"""SELECT group_id, grain, start, tally FROM {_RANGES.format("?1")} CROSS JOIN cells
            WHERE group_id IN {_LISTED.format("?2")} AND app_id IN {_LISTED.format("?3")}
            AND grain = of_grain AND start >= first AND start < behind"""  # nosec B608  # fixed text
        given = (_listed(ranges), _listed(known), _listed(apps))
        rows: list[Any] = self._conn.execute(sql, given).fetchall()
        values = [names[id] for id in known]
        if not rows:
            return Cells([])
        of, *others = zip(*rows, strict=True)
        return Cells(values, tuple([known[id] for id in of]), *others)

    def first_windows(self, app: str | None, dimension: str) -> list[tuple[str, int]]:
        """Return each group, and the start of its first window."""
        sql = f"""SELECT name, min(start) FROM names JOIN cells ON group_id = id
            WHERE kind = ?2 AND app_id IN {_LISTED.format("?1")} AND grain IN (1, 2, 3)
            GROUP BY id"""  # nosec B608  # fixed text
        given = (_listed(self._app_ids(app)), dimension)
        rows: list[Any] = self._conn.execute(sql, given).fetchall()
        return rows

    def apps(self) -> list[str]:
        """Return the apps in order."""
        sql = "SELECT name FROM names WHERE kind = 'app' ORDER BY name"
        rows: list[Any] = self._conn.execute(sql).fetchall()
        return [name for (name,) in rows]

    def _app_ids(self, app: str | None) -> list[int]:
        if app is not None:
            id = self._find(("app", app))
            return [] if id is None else [id]
        rows: list[Any] = self._conn.execute("SELECT id FROM names WHERE kind = 'app'").fetchall()
        return [id for (id,) in rows]

    def _find(self, name: Name) -> int | None:
        if (version := self._data_version()) != self._ids_version:
            self._ids.clear()  # another process may have removed a name, and given its id away
            self._ids_version = version
        return find(self._conn, self._ids, name)

    def counts(self) -> tuple[int, int]:
        """Return how many sessions and cells there are."""
        one = self._conn.execute
        return one("SELECT count(*) FROM sessions").get, one("SELECT count(*) FROM cells").get

    # --- writing ---------------------------------------------------------------------------------

    @property
    def horizons(self) -> Horizons:
        return Horizons(self.meta("day") or 0, self.meta("month") or 0)

    def changed_elsewhere(self) -> bool:
        """True if another process has written since this was last asked; then nothing that was
        read before may be counted on."""
        if (version := self._data_version()) == self._version:
            return False
        self._clear()
        self._version = version
        return True

    @contextmanager
    def commit(self) -> Iterator[FileCommit]:
        """Write everything inside or nothing, if no other process has written since
        `changed_elsewhere` was last asked. Raises FoldedElsewhere."""
        with self._transaction():
            if self.changed_elsewhere():
                raise FoldedElsewhere
            made = FileCommit(self._conn, self._cells, self._ids, self.horizons)
            try:
                yield made
                made.write()
            except BaseException:
                self._clear()  # they may hold what is rolled back
                raise
        if max(len(self._cells), len(self._ids)) > _CELLS_MAX:
            self._clear()
        if self._unshredded:
            self.shred()

    def _clear(self) -> None:
        """Read cells and ids again from the file when they are needed."""
        self._cells.clear()
        self._ids.clear()

    def _data_version(self) -> int:
        return int(self._conn.execute("PRAGMA data_version").get)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._conn.execute("BEGIN IMMEDIATE")  # no other process decides on what is read here
        try:
            yield
            self._conn.execute("COMMIT")
        except BaseException:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            raise


class FileCommit:
    """The rows that one commit of the file writes."""

    def __init__(
        self,
        conn: apsw.Connection,
        cells: dict[Cell, CellTally],
        ids: dict[Name, int],
        at: Horizons,
    ) -> None:
        self._conn, self._cells, self._ids, self._at = conn, cells, ids, at
        self._changed: set[Cell] = set()

    def set_meta(self, name: str, value: Any) -> None:
        self._conn.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def put_folds(self, folds: Iterable[SessionFold]) -> None:
        rows = [
            (
                packed(fold.uid),
                hashed(fold.key),
                fold.app,
                fold.rated_us or None,
                fold.ended_us or None,
                fold.seen_us or fold.updated_us,
                _encoder.encode(fold),
            )
            for fold in folds
        ]
        self._conn.executemany(_PUT_SESSION, rows)

    def put_records(self, uids: Iterable[str]) -> None:
        """Note that the records of these sessions are to be emitted."""
        rows = [(packed(uid),) for uid in uids]
        self._conn.executemany("INSERT OR IGNORE INTO records VALUES (?)", rows)

    def put_logs(self, logs: Mapping[Key, tuple[str, int]]) -> None:
        rows = [(str(key), uid, seq) for key, (uid, seq) in logs.items()]
        self._conn.executemany("INSERT OR REPLACE INTO logs VALUES (?, ?, ?)", rows)

    def put_scores(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._conn.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget(self, uid: str) -> None:
        """Remove the rows of a session. What it added to cells is the caller's to take out."""
        self._conn.execute("DELETE FROM sessions WHERE uid = ?", (packed(uid),))
        self._conn.execute("DELETE FROM scores WHERE uid = ?", (packed(uid),))
        self._conn.execute("DELETE FROM records WHERE uid = ?", (packed(uid),))
        self._conn.execute("DELETE FROM logs WHERE uid = ?", (uid,))
        last = self._conn.execute("SELECT value FROM meta WHERE name = 'last'").get
        if last is not None and uid in msgspec.json.decode(last):
            self.set_meta("last", None)

    def add(self, key: CellKey, tally: CellTally, times: int = 1) -> None:
        """Add a share to the cells of its group: that of all time, and that of its window."""
        app, dimension, value, hour = key
        grain, start = self._at.place(dimension, hour)
        window: Cell = (app, dimension, grain, start, value)
        self._cell(window).plus(tally if grain == HOUR else without_seconds(tally), times)
        if dimension != "window":
            self._cell((app, dimension, ALL, 0, value)).plus(tally, times)

    def roll(self, to: Horizons) -> Horizons:
        """Move windows that are older than the horizons into coarser ones: of days only the oldest,
        since one day of a fleet is as much as a commit should take. Return how far it came."""
        oldest = self._oldest_day(to.month)
        to = Horizons(to.day, to.month if oldest is None else min(to.month, oldest + 24))
        for grain, before, into in ((HOUR, to.day, DAY), (DAY, to.month, MONTH)):
            for app, dimension, start, value in self._older(grain, before):
                cell = (app, dimension, grain, start, value)
                begin = day_start(start) if into == DAY else month_start(start)
                add_rolled(
                    self._cell((app, dimension, into, begin, value)), rolled(self._cell(cell))
                )
                self._cells[cell] = CellTally.empty()
                if len(self._changed) > _ROLLED_TOGETHER:
                    self.write()
                    self._cells.clear()
            self.write()
        self._at = to
        self.set_meta("day", to.day)
        self.set_meta("month", to.month)
        return to

    def _oldest_day(self, before: int) -> int | None:
        """Return the start of the oldest day before this hour that is not part of a month yet."""
        sql = """SELECT min(start) FROM (
            SELECT start FROM weights WHERE grain = ?1 AND start < ?2
            UNION ALL SELECT start FROM cells WHERE group_id = ?3 AND grain = ?1 AND start < ?2)"""
        windows = self._find(("window", ""))
        oldest: int | None = self._conn.execute(sql, (DAY, before, windows)).get
        return oldest

    def _older(self, grain: int, before: int) -> Iterator[tuple[str, str, int, str]]:
        """Yield app, dimension, start and group of the cells before an hour."""
        sql = """SELECT name, dimension, start, part, weights FROM weights
            JOIN names ON id = app_id WHERE grain = ? AND start < ?"""
        parts: list[Any] = self._conn.execute(sql, (grain, before)).fetchall()
        for app, dimension, start, part, raw in parts:
            ids = _listed(ranking.groups_in(part, raw))
            sql = f"SELECT name FROM names WHERE id IN {_LISTED.format('?')}"  # nosec B608  # fixed text
            values: list[Any] = self._conn.execute(sql, (ids,)).fetchall()
            for (value,) in values:
                yield app, dimension, start, value
        sql = """SELECT name, start FROM cells JOIN names ON id = app_id
            WHERE group_id = ? AND grain = ? AND start < ?"""
        of = (self._find(("window", "")), grain, before)
        windows: list[Any] = self._conn.execute(sql, of).fetchall()
        for app, start in windows:
            yield app, "window", start, ""

    def write(self) -> None:
        """Write the cells that have changed, and the weights of their groups; cells with nothing
        left go, and names that no cell is of any more."""
        rows, gone = [], []
        weights: dict[tuple[Any, ...], dict[int, int]] = {}
        for cell in sorted(self._changed):  # so that ids follow the names, in every run alike
            app, dimension, grain, start, value = cell
            tally, group, app_id = (
                self._cells[cell],
                self._id(dimension, value),
                self._id("app", app),
            )
            if tally.is_empty:
                gone.append((group, app_id, grain, start))
                del self._cells[cell]
            else:
                rows.append((group, app_id, grain, start, pack(tally)))
            if dimension != "window":
                part, offset = ranking.part_of(group)
                place = (app_id, dimension, grain, start, part)
                weights.setdefault(place, {})[offset] = tally.weight(dimension)
        self._conn.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?)", rows)
        self._conn.executemany(f"DELETE FROM cells WHERE {_AT_CELL}", gone)  # nosec B608  # fixed text
        self._weigh(weights)
        self._changed.clear()
        self._forget_names({cell[0] for cell in gone}, {cell[1] for cell in gone})

    def _weigh(self, weights: Mapping[tuple[Any, ...], Mapping[int, int]]) -> None:
        for place, changes in weights.items():
            sql = f"SELECT weights FROM weights WHERE {_AT_PART}"  # nosec B608  # fixed text
            if raw := ranking.changed(self._conn.execute(sql, place).get, changes):
                sql = "INSERT OR REPLACE INTO weights VALUES (?, ?, ?, ?, ?, ?)"
                self._conn.execute(sql, (*place, raw))
            else:
                self._conn.execute(f"DELETE FROM weights WHERE {_AT_PART}", place)  # nosec B608  # fixed text

    def _forget_names(self, groups: Iterable[int], apps: Iterable[int]) -> None:
        """Remove the names of groups and apps without a cell: users may have been erased."""
        one = self._conn.execute
        left = [id for id in groups if not one("SELECT 1 FROM cells WHERE group_id = ?", (id,)).get]
        windows = self._find(("window", ""))
        for id in apps:
            sql = """SELECT EXISTS (SELECT 1 FROM weights WHERE app_id = ?1)
                OR EXISTS (SELECT 1 FROM cells WHERE group_id = ?2 AND app_id = ?1)"""
            if not one(sql, (id, windows)).get:
                left.append(id)
        if left:
            self._conn.executemany("DELETE FROM names WHERE id = ?", [(id,) for id in left])
            self._ids.clear()

    def _cell(self, cell: Cell) -> CellTally:
        tally = self._cells.get(cell)
        if tally is None:
            app, dimension, grain, start, value = cell
            place = (self._find((dimension, value)), self._find(("app", app)), grain, start)
            raw = self._conn.execute(f"SELECT tally FROM cells WHERE {_AT_CELL}", place).get  # nosec B608  # fixed text
            tally = self._cells[cell] = CellTally.empty() if raw is None else unpack(raw)
        self._changed.add(cell)
        return tally

    def _find(self, name: Name) -> int | None:
        return find(self._conn, self._ids, name)

    def _id(self, kind: str, name: str) -> int:
        """Return the id of an app or a group, which gets one if it has none."""
        if (id := self._find((kind, name))) is None:
            sql = "INSERT INTO names (kind, name) VALUES (?, ?) RETURNING id"
            id = self._ids[kind, name] = int(self._conn.execute(sql, (kind, name)).get)
        return id


_AT_CELL: Final = "(group_id, app_id, grain, start) = (?, ?, ?, ?)"
_AT_PART: Final = "(app_id, dimension, grain, start, part) = (?, ?, ?, ?, ?)"


def find(conn: apsw.Connection, ids: dict[Name, int], name: Name) -> int | None:
    """Return the id of an app or a group, known or read; None if nothing was counted of it."""
    if (id := ids.get(name)) is None:
        id = conn.execute("SELECT id FROM names WHERE kind = ? AND name = ?", name).get
        if id is not None:
            ids[name] = id
    return id


def _listed(values: Iterable[Any]) -> str:
    """Return ids as one parameter, for `_LISTED`, or ranges, for `_RANGES`."""
    return msgspec.json.encode(list(values)).decode()


def packed(uid: str) -> bytes:
    """Return a uid as it is stored: most are UUIDs, and take 16 bytes."""
    if len(uid) == 36:
        try:
            parsed = uuid.UUID(uid)
        except ValueError:
            pass
        else:
            if str(parsed) == uid:
                return parsed.bytes
    return b"\0" + uid.encode()


def hashed(key: Key) -> int:
    """Return a hash of a key that fits into a column."""
    return int.from_bytes(blake2b(str(key).encode(), digest_size=8).digest(), "big", signed=True)


def path_of(url: str) -> Path | None:
    """Return the file that a URL names, or None for memory. Raises InvalidURL."""
    if url == "memory://":
        return None
    if not isinstance(url, str) or not url.startswith("sqlite:"):
        raise InvalidURL(
            str(url), "analytics are kept in a SQLite file", "Use sqlite:///analytics.db"
        )
    return sqlite_path(url)
