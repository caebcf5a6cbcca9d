"""The tables of an analytics file, and how a file of an earlier format gets them.

A file is brought to this format by whoever opens it first, in one transaction: what was measured of
deleted sessions is nowhere else, so nothing is folded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import Any, Final

import apsw
import msgspec

from limpet.analytics import ranking
from limpet.analytics.histogram import Histogram
from limpet.analytics.metrics import SessionFold
from limpet.analytics.rollup import CellTally, pack
from limpet.errors import InvalidURL, StoreForeign, StoreNewer
from limpet.store.sqlite.file.schema import APPLICATION_ID

FORMAT: Final = 4
_APPLICATION: Final = 0x4C504E41  # "LPNA"
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
"""
_RECORDS_SCHEMA: Final = """
-- Sessions that have ended, and whose records are not emitted yet.
CREATE TABLE records (uid BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
"""
_CELLS_SCHEMA: Final = """
-- Apps, and the groups of each dimension; a group has one id in all apps.
CREATE TABLE names (
    id   INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, -- app, or a dimension
    name TEXT NOT NULL,
    UNIQUE (kind, name)
) STRICT;
CREATE TABLE cells (
    group_id INTEGER NOT NULL,
    app_id   INTEGER NOT NULL,
    grain    INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    tally    BLOB NOT NULL,
    PRIMARY KEY (group_id, app_id, grain, start)
) STRICT, WITHOUT ROWID;
-- By part of the ids of groups, as `ranking` packs them. Windows are one group, and have none.
CREATE TABLE weights (
    app_id    INTEGER NOT NULL,
    dimension TEXT NOT NULL,
    grain     INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    part      INTEGER NOT NULL,
    weights   BLOB NOT NULL,
    PRIMARY KEY (app_id, dimension, grain, start, part)
) STRICT, WITHOUT ROWID;
"""
_TOGETHER: Final = 1_000  # rows


def check(conn: apsw.Connection, where: str) -> int:
    """Return the format of a file, 0 if it is empty; reads only. Raises InvalidURL for a store,
    StoreForeign, StoreNewer."""
    application = conn.execute("PRAGMA application_id").get
    format_ = int(conn.execute("PRAGMA user_version").get)
    if application == APPLICATION_ID:
        raise InvalidURL(where, "it is a store", "Analytics are kept in a file of their own")
    if application != _APPLICATION:
        is_empty = not conn.execute("SELECT count(*) FROM sqlite_schema").get
        if application or format_ or not is_empty:
            raise StoreForeign(where)
    if format_ > FORMAT:
        raise StoreNewer(where, format_, FORMAT)
    return format_


def prepare(conn: apsw.Connection, where: str) -> None:
    """Create the tables, or bring them to this format. Raises as `check` does."""
    before = check(conn, where)
    if before == 0:
        conn.execute(_SCHEMA + _CELLS_SCHEMA + _RECORDS_SCHEMA)
        conn.execute(f"PRAGMA application_id = {_APPLICATION}")
    if 0 < before < 2:
        _give_sessions_their_app(conn)
    if 0 < before < 3:
        _put_groups_side_by_side(conn)
    if 0 < before < 4:  # the records of those that have ended were emitted when they were folded
        conn.execute(_RECORDS_SCHEMA)
    if before != FORMAT:  # a write that changes nothing would still send others back to the file
        conn.execute(f"PRAGMA user_version = {FORMAT}")


def _give_sessions_their_app(conn: apsw.Connection) -> None:
    """Format 2: sessions have their app, and an index by it."""
    decoder = msgspec.msgpack.Decoder(SessionFold)
    conn.execute("ALTER TABLE sessions ADD COLUMN app TEXT NOT NULL DEFAULT ''")
    rows: list[Any] = conn.execute("SELECT fold, uid FROM sessions").fetchall()
    apps = [(decoder.decode(fold).app, uid) for fold, uid in rows]
    conn.executemany("UPDATE sessions SET app = ? WHERE uid = ?", apps)
    conn.execute("CREATE INDEX sessions_app ON sessions (app, seen)")


# --- format 3: the cells of a group side by side, and weights by window ---------------------------


class _SparseTally(msgspec.Struct, array_like=True):
    """A tally as format 2 had it: without sums that are zero and histograms that are empty."""

    sums: dict[int, int]
    histograms: dict[int, Histogram]


def _put_groups_side_by_side(conn: apsw.Connection) -> None:
    conn.execute("ALTER TABLE cells RENAME TO old_cells")
    conn.execute(_CELLS_SCHEMA)
    conn.execute("""INSERT INTO names (kind, name)
        SELECT DISTINCT 'app', app FROM old_cells UNION ALL
        SELECT DISTINCT dimension, value FROM old_cells""")
    named = conn.execute("SELECT kind, name, id FROM names")
    ids = {(kind, name): id for kind, name, id in named}
    rows = _packed_again(conn, ids)
    while some := list(islice(rows, _TOGETHER)):
        conn.executemany("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", some)
    conn.execute("DROP TABLE old_cells")


def _packed_again(
    conn: apsw.Connection, ids: dict[tuple[str, str], int]
) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield every cell as it is stored from now on, and write the weights of each window."""
    decoder = msgspec.msgpack.Decoder(_SparseTally)
    sql = """SELECT app, dimension, grain, start, value, tally FROM old_cells
        ORDER BY app, dimension, grain, start, value"""
    for window, cells in groupby(conn.execute(sql), lambda row: row[:4]):
        app, dimension, grain, start = window
        app_id, parts = ids["app", app], dict[int, dict[int, int]]()
        for *_, value, raw in cells:
            tally, sparse = CellTally.empty(), decoder.decode(raw)
            for index, total in sparse.sums.items():
                tally.sums[index] = total
            for index, histogram in sparse.histograms.items():
                tally.histograms[index] = histogram
            group = ids[dimension, value]
            part, offset = ranking.part_of(group)
            parts.setdefault(part, {})[offset] = tally.weight(dimension)
            yield group, app_id, grain, start, pack(tally)
        if dimension != "window":
            place = (app_id, dimension, grain, start)
            rows = [(*place, part, ranking.changed(None, each)) for part, each in parts.items()]
            conn.executemany("INSERT INTO weights VALUES (?, ?, ?, ?, ?, ?)", rows)
