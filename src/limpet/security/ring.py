"""The ring: wrapped data keys and what is remembered of each owner, apart from the data.

One table of rows (kind, owner, part, value), on every backend. Destroying the rows of an owner is
forgetting: nothing that was sealed for it opens again, in any copy of the data. So a ring is never
part of a backup of the store, and a copy of a ring keeps alive what was forgotten since.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import apsw

from limpet.errors import InvalidURL
from limpet.store.open import files_path, scheme_of, sqlite_path
from limpet.store.system import in_thread

T = TypeVar("T")
# meta: of the ring itself. key: a wrapped key. plain: up to where bodies may be in plain text.
# anchor: where a session stood. receipt: what was signed when it was completed. certificate: what
# was signed when it was erased, under a keyed hash of its key.
RowKind: TypeAlias = Literal["meta", "key", "plain", "anchor", "receipt", "certificate"]
SUFFIX: Final = "-keys"
PAGE_ROWS: Final = 500
_APPLICATION_ID: Final = 0x4C4D4B52  # LMKR
_BUSY_MS: Final = 10_000
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS ring (kind TEXT NOT NULL, owner TEXT NOT NULL, part TEXT NOT NULL, "
    "value BLOB NOT NULL, PRIMARY KEY (kind, owner, part)) STRICT, WITHOUT ROWID"
)
_LOCK: Final = 7_310_215_402_118  # any number that nobody else locks


class RingRow(NamedTuple):
    """One row of a ring."""

    kind: RowKind
    owner: str
    part: str
    value: bytes


class Ring(Protocol):
    """Rows by kind, owner and part. Every change is durable when it returns, and atomic."""

    where: str  # for people: without a password
    path: Path | None  # if it is a file

    async def open(self, *, create: bool) -> bool:
        """False if there is no ring and none is to be created."""
        ...

    async def get(self, kind: RowKind, owners: Sequence[str]) -> list[RingRow]: ...

    async def add(self, rows: Sequence[RingRow]) -> None:
        """Add rows; those that are there already stay as they are."""
        ...

    async def put(self, rows: Sequence[RingRow]) -> None:
        """Add rows, or replace their values."""
        ...

    async def swap(self, changes: Sequence[tuple[RingRow, bytes]]) -> int:
        """Give rows another value if they still have theirs. Returns how many had."""
        ...

    async def page(
        self, kind: RowKind, after: tuple[str, str] | None, limit: int = PAGE_ROWS
    ) -> list[RingRow]:
        """Rows of a kind beyond an owner and a part, in their order."""
        ...

    async def drop(self, kind: RowKind, owners: Sequence[str]) -> None:
        """Remove the rows of a kind of these owners."""
        ...

    async def remove(self, owner: str) -> None:
        """Destroy every row of an owner, so that no file of the ring has a copy left."""
        ...

    async def close(self) -> None: ...


def ring_of(url: str, keyring: str | None) -> Ring:
    """The ring that `keyring=` names, or the usual one of the store. Raises InvalidURL."""
    scheme = scheme_of(keyring or url)
    if scheme == "memory":
        return MemoryRing()
    if scheme == "sqlite":
        path = sqlite_path(keyring or url)
        return FileRing(path if keyring else path.with_name(path.name + SUFFIX))
    if scheme == "files" and not keyring:  # beside the directory
        beside = files_path(url)
        return FileRing(beside.with_name(beside.name + SUFFIX))
    if scheme in ("postgresql", "postgres"):
        return ServerRing(keyring or url)
    raise InvalidURL(keyring or url, "a key ring is kept on sqlite:/// or postgresql://")


class MemoryRing:
    """A ring that ends with its process."""

    where = "memory"
    path: Path | None = None

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], bytes] = {}

    async def open(self, *, create: bool) -> bool:
        return create or bool(self._rows)

    async def get(self, kind: RowKind, owners: Sequence[str]) -> list[RingRow]:
        wanted = set(owners)
        return [row for row in self._all(kind) if row.owner in wanted]

    async def add(self, rows: Sequence[RingRow]) -> None:
        for row in rows:
            self._rows.setdefault(row[:3], row.value)

    async def put(self, rows: Sequence[RingRow]) -> None:
        self._rows |= {row[:3]: row.value for row in rows}

    async def swap(self, changes: Sequence[tuple[RingRow, bytes]]) -> int:
        fit = [(row, new) for row, new in changes if self._rows.get(row[:3]) == row.value]
        self._rows |= {row[:3]: new for row, new in fit}
        return len(fit)

    async def page(
        self, kind: RowKind, after: tuple[str, str] | None, limit: int = PAGE_ROWS
    ) -> list[RingRow]:
        rows = [row for row in self._all(kind) if after is None or row[1:3] > after]
        return sorted(rows)[:limit]

    async def drop(self, kind: RowKind, owners: Sequence[str]) -> None:
        gone = {(kind, owner) for owner in owners}
        self._rows = {at: value for at, value in self._rows.items() if at[:2] not in gone}

    async def remove(self, owner: str) -> None:
        self._rows = {at: value for at, value in self._rows.items() if at[1] != owner}

    async def close(self) -> None:
        """Do nothing: this ring holds no connection."""

    def _all(self, kind: RowKind) -> list[RingRow]:
        return [RingRow(kind, at[1], at[2], v) for at, v in self._rows.items() if at[0] == kind]


class FileRing:
    """A ring in a SQLite file of its own, which only its owner may read."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path.absolute()
        self._path = path.absolute()
        self.where = str(path)
        self._conn: apsw.Connection | None = None
        self._lock = threading.Lock()

    async def open(self, *, create: bool) -> bool:
        return await in_thread(lambda: self._open(create=create))

    def _open(self, *, create: bool) -> bool:
        if not create and (not self._path.exists() or not self._path.stat().st_size):
            return False
        if create:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        conn = apsw.Connection(str(self._path))
        conn.set_busy_timeout(_BUSY_MS)
        application_id = conn.pragma("application_id")
        if application_id not in (0, _APPLICATION_ID):
            conn.close()
            raise ValueError(f"{self._path} is not a key ring")
        conn.pragma("journal_mode", "wal")
        conn.pragma("synchronous", "full")  # a lost key is a lost session
        conn.pragma("secure_delete", "on")
        if not application_id:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute(_SCHEMA)
            conn.pragma("application_id", _APPLICATION_ID)
            conn.execute("COMMIT")
        self._conn = conn
        return True

    async def get(self, kind: RowKind, owners: Sequence[str]) -> list[RingRow]:
        sql = "SELECT * FROM ring WHERE kind = ? AND owner = ?"

        def get(conn: apsw.Connection) -> list[Any]:
            return [row for owner in owners for row in conn.execute(sql, (kind, owner))]

        return _rows(await self._run(get))

    async def add(self, rows: Sequence[RingRow]) -> None:
        await self._change("INSERT OR IGNORE INTO ring VALUES (?, ?, ?, ?)", rows)

    async def put(self, rows: Sequence[RingRow]) -> None:
        await self._change("INSERT OR REPLACE INTO ring VALUES (?, ?, ?, ?)", rows)

    async def swap(self, changes: Sequence[tuple[RingRow, bytes]]) -> int:
        sql = (
            "UPDATE ring SET value = ? WHERE kind = ? AND owner = ? AND part = ? AND value = ? "
            "RETURNING 1"
        )
        asked = [(new, *row) for row, new in changes]

        def swap(conn: apsw.Connection) -> int:
            return len([1 for each in asked for _ in conn.execute(sql, each)])

        return await self._run(lambda conn: _in_transaction(conn, swap))

    async def page(
        self, kind: RowKind, after: tuple[str, str] | None, limit: int = PAGE_ROWS
    ) -> list[RingRow]:
        sql = (
            "SELECT * FROM ring WHERE kind = ? AND (owner, part) > (?, ?) "
            "ORDER BY owner, part LIMIT ?"
        )
        asked = (kind, *(after or ("", "")), limit)
        return _rows(await self._run(lambda conn: list(conn.execute(sql, asked))))

    async def drop(self, kind: RowKind, owners: Sequence[str]) -> None:
        sql, gone = "DELETE FROM ring WHERE kind = ? AND owner = ?", [(kind, o) for o in owners]
        await self._run(lambda c: _in_transaction(c, lambda conn: conn.executemany(sql, gone)))

    async def remove(self, owner: str) -> None:
        def remove(conn: apsw.Connection) -> None:
            conn.execute("DELETE FROM ring WHERE owner = ?", (owner,))
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log has a copy

        await self._run(remove)

    async def close(self) -> None:
        if self._conn is not None:
            conn, self._conn = self._conn, None
            await in_thread(conn.close)

    async def _change(self, sql: str, rows: Iterable[RingRow]) -> None:
        asked = [tuple(row) for row in rows]
        await self._run(lambda c: _in_transaction(c, lambda conn: conn.executemany(sql, asked)))

    async def _run(self, run: Callable[[apsw.Connection], T]) -> T:
        conn = self._conn
        if conn is None:
            raise OSError("the key ring is closed")

        def locked() -> T:
            with self._lock:
                return run(conn)

        return await in_thread(locked)


def _in_transaction(conn: apsw.Connection, change: Callable[[apsw.Connection], T]) -> T:
    conn.execute("BEGIN IMMEDIATE")
    try:
        result = change(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return result


def _rows(rows: Iterable[Sequence[Any]]) -> list[RingRow]:
    return [RingRow(kind, owner, part, bytes(value)) for kind, owner, part, value in rows]


_SERVER_SCHEMA: Final = (
    "CREATE SCHEMA IF NOT EXISTS limpet_keys; CREATE TABLE IF NOT EXISTS limpet_keys.ring (kind "
    'text COLLATE "C" NOT NULL, owner text COLLATE "C" NOT NULL, part text COLLATE "C" NOT NULL, '
    "value bytea NOT NULL, PRIMARY KEY (kind, owner, part))"
)
_INSERT: Final = (
    "INSERT INTO limpet_keys.ring "
    "SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])"
)


class ServerRing:
    """A ring in the schema `limpet_keys` of a PostgreSQL database. One connection, made again when
    it broke."""

    path: Path | None = None

    def __init__(self, url: str) -> None:
        from limpet.store.postgres.server.settings import check_url, where

        check_url(url)
        self._url, self.where = url, f"{where(url)} (schema limpet_keys)"
        self._conn: Any = None
        self._lock = asyncio.Lock()

    async def open(self, *, create: bool) -> bool:
        async def prepare(conn: Any) -> bool:
            if await conn.fetchval("SELECT to_regclass('limpet_keys.ring') IS NOT NULL"):
                return True
            if create:
                async with conn.transaction():
                    await conn.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
                    await conn.execute(_SERVER_SCHEMA)
            return create

        exists: bool = await self._run(prepare)
        if not exists:
            await self.close()
        return exists

    async def get(self, kind: RowKind, owners: Sequence[str]) -> list[RingRow]:
        sql = "SELECT * FROM limpet_keys.ring WHERE kind = $1 AND owner = ANY ($2::text[])"
        return _rows(await self._run(lambda conn: conn.fetch(sql, kind, list(owners))))

    async def add(self, rows: Sequence[RingRow]) -> None:
        await self._change(f"{_INSERT} ON CONFLICT DO NOTHING", rows)

    async def put(self, rows: Sequence[RingRow]) -> None:
        replaced = "ON CONFLICT (kind, owner, part) DO UPDATE SET value = excluded.value"
        await self._change(f"{_INSERT} {replaced}", rows)

    async def swap(self, changes: Sequence[tuple[RingRow, bytes]]) -> int:
        sql = (
            "UPDATE limpet_keys.ring SET value = $5 "
            "WHERE kind = $1 AND owner = $2 AND part = $3 AND value = $4"
        )

        async def swap(conn: Any) -> int:
            async with conn.transaction():
                done = [await conn.execute(sql, *row, new) for row, new in changes]
            return sum([each == "UPDATE 1" for each in done])

        swapped: int = await self._run(swap)
        return swapped

    async def page(
        self, kind: RowKind, after: tuple[str, str] | None, limit: int = PAGE_ROWS
    ) -> list[RingRow]:
        sql = (
            "SELECT * FROM limpet_keys.ring WHERE kind = $1 AND (owner, part) > ($2, $3) "
            "ORDER BY owner, part LIMIT $4"
        )
        asked = (kind, *(after or ("", "")), limit)
        return _rows(await self._run(lambda conn: conn.fetch(sql, *asked)))

    async def drop(self, kind: RowKind, owners: Sequence[str]) -> None:
        sql = "DELETE FROM limpet_keys.ring WHERE kind = $1 AND owner = ANY ($2::text[])"
        await self._run(lambda conn: conn.execute(sql, kind, list(owners)))

    async def remove(self, owner: str) -> None:
        sql = "DELETE FROM limpet_keys.ring WHERE owner = $1"
        await self._run(lambda conn: conn.execute(sql, owner))

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()

    async def _change(self, sql: str, rows: Sequence[RingRow]) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)]
        if columns:
            await self._run(lambda conn: conn.execute(sql, *columns))

    async def _run(self, run: Callable[[Any], Any]) -> Any:
        async with self._lock:
            if self._conn is None or self._conn.is_closed():
                from limpet.store.postgres.server import pooler, settings

                wanted = settings.connection_settings(settings.LANE_LOCK_SECONDS_MAX)
                self._conn = await pooler.connect_alone(self._url, wanted)
            return await run(self._conn)
