"""The analytics file: SQLite, one writer, results and positions in one commit.

`sessions` has the fold of every session by its uid, `logs` how far the logs of checkpoints were
read, `cells` the roll-ups, and `meta` the positions in the feed, the horizons of the windows and a
copy of the model. A commit checks that nobody else has written since what it counts was read: a
second process on the same file finds its batch refused and reads again, and nothing counts twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

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
    month_start,
    pack,
    rolled,
    unpack,
    without_seconds,
)
from limpet.errors import InvalidURL, StoreForeign, StoreNewer
from limpet.model import Key
from limpet.store.open import sqlite_path
from limpet.store.sqlite.failures import translate

FORMAT: Final = 2
_APPLICATION: Final = 0x4C504E41  # "LPNA"
_BUSY_MS: Final = 10_000
_CELLS_MAX: Final = 20_000  # in memory
_PUT_SESSION: Final = """
INSERT OR REPLACE INTO sessions (uid, name, app, rated, ended, seen, fold)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
-- `name` is a hash of the key: several sessions may have had it, one after another.
CREATE TABLE sessions (
    uid   BLOB PRIMARY KEY,
    name  INTEGER NOT NULL,
    app   TEXT NOT NULL,
    rated INTEGER, -- when its last feedback came
    ended INTEGER, -- NULL while it is under way
    seen  INTEGER NOT NULL, -- when its last event was recorded that is not ours
    fold  BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_name ON sessions (name);
CREATE INDEX sessions_rated ON sessions (rated) WHERE rated IS NOT NULL;
CREATE INDEX sessions_live ON sessions (uid) WHERE ended IS NULL;
CREATE INDEX sessions_seen ON sessions (seen);
CREATE INDEX sessions_app ON sessions (app, seen);
CREATE TABLE logs (key TEXT PRIMARY KEY, uid TEXT NOT NULL, seq INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
CREATE TABLE scores (
    uid   BLOB NOT NULL,
    seq   INTEGER NOT NULL,
    name  TEXT NOT NULL,
    value REAL NOT NULL,
    turn  TEXT,
    call  TEXT,
    PRIMARY KEY (uid, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE cells (
    app       TEXT NOT NULL,
    dimension TEXT NOT NULL,
    grain     INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    value     TEXT NOT NULL,
    weight    INTEGER NOT NULL,
    tally     BLOB NOT NULL,
    PRIMARY KEY (app, dimension, grain, start, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX cells_weight ON cells (app, dimension, weight) WHERE grain = 0;
"""

_APPS: Final = """
WITH RECURSIVE apps (app) AS (
    SELECT min(app) FROM cells
    UNION ALL SELECT (SELECT min(app) FROM cells WHERE app > apps.app) FROM apps
    WHERE apps.app IS NOT NULL
)
SELECT app FROM apps WHERE app IS NOT NULL
"""
_LISTED: Final = "(SELECT value FROM json_each(?1))"  # of the texts that `_listed` binds

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SessionFold)
Cell = tuple[str, str, int, int, str]  # app, dimension, grain, start, value


class FoldedElsewhere(Exception):
    """Another process has written meanwhile: what was read here is not to be counted."""


class AnalyticsFile:
    """An open file."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, or memory for None. Raises StoreForeign, StoreNewer, StoreUnopened."""
        self.where = ":memory:" if path is None else str(path)
        try:
            self._conn = apsw.Connection(self.where)
            self._prepare()
        except apsw.Error as error:
            raise translate(error, self.where, "write") from error
        self._cells: dict[Cell, CellTally] = {}
        self._unshredded = False  # the log of changes still has rows that were removed
        self._version = self._data_version()

    def _prepare(self) -> None:
        conn = self._conn
        conn.set_busy_timeout(_BUSY_MS)
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = NORMAL")  # results and position are lost together
        conn.execute("PRAGMA secure_delete = ON")  # names of erased users leave the free pages too
        with self._transaction():
            marks = (
                conn.execute("PRAGMA application_id").get,
                conn.execute("PRAGMA user_version").get,
            )
            if marks == (0, 0):
                if conn.execute("SELECT count(*) FROM sqlite_schema").get:
                    raise StoreForeign(self.where)
                conn.execute(_SCHEMA)
                conn.execute(f"PRAGMA application_id = {_APPLICATION}")
                conn.execute(f"PRAGMA user_version = {FORMAT}")
            elif marks[0] != _APPLICATION:
                raise StoreForeign(self.where)
            elif marks[1] > FORMAT:
                raise StoreNewer(self.where, marks[1], FORMAT)
            elif marks[1] < FORMAT:
                self._upgrade()

    def _upgrade(self) -> None:
        """Bring a file of format 1 to this one: sessions get their app, and an index by it."""
        conn = self._conn
        conn.execute("ALTER TABLE sessions ADD COLUMN app TEXT NOT NULL DEFAULT ''")
        rows: list[Any] = conn.execute("SELECT fold, uid FROM sessions").fetchall()
        apps = [(_decoder.decode(fold).app, uid) for fold, uid in rows]
        conn.executemany("UPDATE sessions SET app = ? WHERE uid = ?", apps)
        conn.execute("CREATE INDEX sessions_app ON sessions (app, seen)")
        conn.execute(f"PRAGMA user_version = {FORMAT}")

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
        return list(self._conn.execute("SELECT uid, name FROM sessions"))

    def folds_at(self, uids: Iterable[bytes]) -> list[SessionFold]:
        """Return the folds of these sessions, uids as they are stored; without those that are not
        there."""
        sql = "SELECT fold FROM sessions WHERE uid = ?"
        rows = [self._conn.execute(sql, (uid,)).get for uid in uids]
        return [_decoder.decode(raw) for raw in rows if raw is not None]

    def folds_of(self, key: Key) -> list[SessionFold]:
        """Return the folds of all sessions that had this key, the newest last."""
        rows = self._conn.execute("SELECT fold FROM sessions WHERE name = ?", (hashed(key),))
        folds = [fold for (raw,) in rows if (fold := _decoder.decode(raw)).key == key]
        return sorted(folds, key=lambda fold: fold.created_us)

    def folds(
        self, *, rated: bool = False, live: bool = False, after: bytes = b"", limit: int = -1
    ) -> Iterator[SessionFold]:
        """Yield folds in the order of their uids: all, or those with feedback, or under way."""
        also = "AND rated IS NOT NULL" if rated else "AND ended IS NULL" if live else ""
        sql = f"SELECT fold FROM sessions WHERE uid > ? {also} ORDER BY uid LIMIT ?"  # nosec B608  # no input in it
        for (raw,) in self._conn.execute(sql, (after, limit)):
            yield _decoder.decode(raw)

    def recent(self, app: str | None, limit: int) -> list[SessionFold]:
        """Return the sessions of an app that were seen last, the oldest of them first."""
        where, given = ("", ()) if app is None else ("WHERE app = ?", (app,))
        sql = f"SELECT fold FROM sessions {where} ORDER BY seen DESC LIMIT ?"  # nosec B608  # fixed text
        folds = [_decoder.decode(raw) for (raw,) in self._conn.execute(sql, (*given, limit))]
        return folds[::-1]

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
        return list(self._conn.execute(sql, (packed(uid),)))

    def totals(self, app: str | None, dimension: str, limit: int) -> list[tuple[str, CellTally]]:
        """Return the largest groups over all time."""
        apps = self.apps() if app is None else [app]
        if len(apps) == 1:
            sql = """SELECT value, tally FROM cells WHERE app = ? AND dimension = ? AND grain = 0
                ORDER BY weight DESC LIMIT ?"""
            rows = self._conn.execute(sql, (apps[0], dimension, limit))
            return [(value, unpack(raw)) for value, raw in rows]
        where = f"app IN {_LISTED} AND dimension = ?2 AND grain = 0"
        sql = f"""SELECT value FROM cells WHERE {where}
            GROUP BY value ORDER BY sum(weight) DESC, value LIMIT ?3"""  # nosec B608  # fixed text
        values = [value for (value,) in self._conn.execute(sql, (_listed(apps), dimension, limit))]
        sql = f"SELECT value, tally FROM cells WHERE {where}"  # nosec B608  # fixed text
        whole = {value: CellTally.empty() for value in values}
        for value, raw in self._conn.execute(sql, (_listed(apps), dimension)):
            if value in whole:
                whole[value].plus(unpack(raw))
        return list(whole.items())

    def ranged(
        self, app: str | None, dimension: str, since: int, until: int, limit: int
    ) -> list[tuple[int, int, str, CellTally]]:
        """Return grain, start, group and tally of the windows that begin in [since, until), of the
        largest groups there."""
        # Each app and each grain by itself: then the index leads to the first window of the range.
        where = f"""app IN {_LISTED} AND dimension = ?2 AND grain IN (1, 2, 3)
            AND start >= ?3 AND start < ?4"""
        given = (_listed(self.apps() if app is None else [app]), dimension, since, until)
        sql = f"""SELECT value FROM cells WHERE {where}
            GROUP BY value ORDER BY sum(weight) DESC, value LIMIT {int(limit)}"""  # nosec B608  # fixed text
        sql = f"""SELECT grain, start, value, tally FROM cells
            WHERE {where} AND value IN ({sql}) ORDER BY start"""  # nosec B608  # fixed text
        rows = self._conn.execute(sql, given)
        return [(grain, start, value, unpack(raw)) for grain, start, value, raw in rows]

    def first_windows(self, app: str | None, dimension: str) -> list[tuple[str, int]]:
        """Return each group, and the start of its first window."""
        sql = f"""SELECT value, min(start) FROM cells
            WHERE app IN {_LISTED} AND dimension = ?2 AND grain IN (1, 2, 3) GROUP BY value"""  # nosec B608  # fixed text
        given = (_listed(self.apps() if app is None else [app]), dimension)
        return list(self._conn.execute(sql, given))

    def apps(self) -> list[str]:
        """Return the apps in order. Each is found from the one before: there may be many cells."""
        return [app for (app,) in self._conn.execute(_APPS)]

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
        self._cells.clear()
        self._version = version
        return True

    @contextmanager
    def commit(self) -> Iterator[FileCommit]:
        """Write everything inside or nothing, if no other process has written since
        `changed_elsewhere` was last asked. Raises FoldedElsewhere."""
        with self._transaction():
            if self.changed_elsewhere():
                raise FoldedElsewhere
            made = FileCommit(self._conn, self._cells, self.horizons)
            try:
                yield made
                made.write()
            except BaseException:
                self._cells.clear()  # they may hold what is rolled back
                raise
        if len(self._cells) > _CELLS_MAX:
            self._cells.clear()
        if self._unshredded:
            self.shred()

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

    def __init__(self, conn: apsw.Connection, cells: dict[Cell, CellTally], at: Horizons) -> None:
        self._conn, self._cells, self._at = conn, cells, at
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

    def put_logs(self, logs: Mapping[Key, tuple[str, int]]) -> None:
        rows = [(str(key), uid, seq) for key, (uid, seq) in logs.items()]
        self._conn.executemany("INSERT OR REPLACE INTO logs VALUES (?, ?, ?)", rows)

    def put_scores(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._conn.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget(self, uid: str) -> None:
        """Remove the rows of a session. What it added to cells is the caller's to take out."""
        self._conn.execute("DELETE FROM sessions WHERE uid = ?", (packed(uid),))
        self._conn.execute("DELETE FROM scores WHERE uid = ?", (packed(uid),))
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

    def roll(self, to: Horizons) -> None:
        """Move windows that are older than the horizons into coarser ones."""
        for grain, before, into in ((HOUR, to.day, DAY), (DAY, to.month, MONTH)):
            self.write()
            sql = """SELECT app, dimension, grain, start, value FROM cells
                WHERE grain = ? AND start < ?"""
            olds: list[Cell] = list(self._conn.execute(sql, (grain, before)))
            for cell in olds:
                app, dimension, _, start, value = cell
                begin = start - start % 24 if into == DAY else month_start(start)
                add_rolled(
                    self._cell((app, dimension, into, begin, value)), rolled(self._cell(cell))
                )
                self._cells[cell] = CellTally.empty()
                self._changed.add(cell)
        self._at = to
        self.set_meta("day", to.day)
        self.set_meta("month", to.month)
        self.write()

    def write(self) -> None:
        """Write the cells that have changed; those with nothing left go."""
        rows, gone = [], []
        for cell in self._changed:
            tally = self._cells[cell]
            if tally.is_empty:
                gone.append(cell)
                del self._cells[cell]
            else:
                rows.append((*cell, tally["sessions"], pack(tally)))
        sql = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._conn.executemany(sql, rows)
        sql = """DELETE FROM cells
            WHERE app = ? AND dimension = ? AND grain = ? AND start = ? AND value = ?"""
        self._conn.executemany(sql, gone)
        self._changed.clear()

    def _cell(self, cell: Cell) -> CellTally:
        tally = self._cells.get(cell)
        if tally is None:
            sql = """SELECT tally FROM cells
                WHERE app = ? AND dimension = ? AND grain = ? AND start = ? AND value = ?"""
            raw = self._conn.execute(sql, cell).get
            tally = self._cells[cell] = CellTally.empty() if raw is None else unpack(raw)
        self._changed.add(cell)
        return tally


def _listed(texts: Iterable[str]) -> str:
    """Return texts as one parameter, for `_LISTED`."""
    return msgspec.json.encode(list(texts)).decode()


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
