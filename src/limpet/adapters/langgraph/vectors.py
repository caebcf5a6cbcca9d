"""Indexes that rank the vectors of items: in this process, by sqlite-vec, or by pgvector.

The vectors themselves are documents beside the items, so an index holds nothing that cannot be
read from there again. `nearest` is exact in all three: no approximate index is used, so the same
items come in the same order wherever they are ranked.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from array import array
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import mul
from typing import Any, Final, Protocol, Self, TypeAlias

import apsw

Vector: TypeAlias = "array[float]"
Vectors: TypeAlias = Mapping[str, Sequence[Vector]]  # by the names of their items
_TYPE: Final = "f"  # 32 bits, as sqlite-vec and pgvector have them


def vector_of(numbers: Iterable[float]) -> Vector:
    """Return these numbers as a vector."""
    return array(_TYPE, map(float, numbers))


def packed(vector: Vector) -> str:
    """Return a vector as text, for a document."""
    return base64.b64encode(vector.tobytes()).decode()


def unpacked(text: str) -> Vector:
    """Return the vector of a document."""
    vector = array(_TYPE)
    vector.frombytes(base64.b64decode(text))
    return vector


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine similarity of two vectors; 0 if one of them has no direction."""
    lengths = math.sqrt(sum(map(mul, a, a)) * sum(map(mul, b, b)))
    return sum(map(mul, a, b)) / lengths if lengths else 0.0


class VectorChange(Protocol):
    """An index while nobody else changes it."""

    async def position(self) -> str | None:
        """Return how far the feed of the documents was read; None if the index has to be built."""
        ...

    async def rebuild(self, vectors: Vectors, position: str) -> None:
        """Replace everything."""
        ...

    async def update(self, vectors: Vectors, position: str | None = None) -> None:
        """Replace the vectors of these items; an item without vectors is removed."""
        ...


class VectorIndex(Protocol):
    """Vectors by the names of their items, and the position of the feed that they stand at."""

    def changing(self) -> AbstractAsyncContextManager[VectorChange]:
        """One change at a time, among all processes that share the index. All or nothing."""
        ...

    async def nearest(
        self, query: Vector, prefixes: Sequence[str], *, limit: int, offset: int
    ) -> list[str]:
        """The names that begin with one of the prefixes, by their nearest vector; ties by name."""
        ...

    async def close(self) -> None: ...


class ListedVectors:
    """Vectors in this process, compared one by one in Python."""

    def __init__(self) -> None:
        self._vectors: dict[str, Sequence[Vector]] = {}
        self._position: str | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[Self]:
        async with self._lock:
            yield self

    async def position(self) -> str | None:
        return self._position

    async def rebuild(self, vectors: Vectors, position: str) -> None:
        self._vectors.clear()
        await self.update(vectors, position)

    async def update(self, vectors: Vectors, position: str | None = None) -> None:
        self._vectors |= vectors
        for name, each in vectors.items():
            if not each:
                del self._vectors[name]
        self._position = position or self._position

    async def nearest(
        self, query: Vector, prefixes: Sequence[str], *, limit: int, offset: int
    ) -> list[str]:
        ranked = [
            (-max(cosine(query, vector) for vector in vectors), name)
            for name, vectors in self._vectors.items()
            if name.startswith(tuple(prefixes))
        ]
        return [name for _, name in sorted(ranked)[offset : offset + limit]]

    async def close(self) -> None:
        self._vectors.clear()


_SQLITE_TABLE: Final = """
    CREATE TABLE vectors (
        name TEXT, n INTEGER, vector BLOB NOT NULL, PRIMARY KEY (name, n)
    ) WITHOUT ROWID
"""
# A vector without a direction has no distance: it counts as one at a right angle.
_SQLITE_NEAREST: Final = """
    SELECT name FROM vectors
    WHERE EXISTS (SELECT 1 FROM json_each(?) p WHERE substr(name, 1, length(p.value)) = p.value)
    GROUP BY name ORDER BY min(coalesce(vec_distance_cosine(vector, ?), 1.0)), name
    LIMIT ? OFFSET ?
"""


class SqliteVectors:
    """Vectors in this process, compared by sqlite-vec. In memory: a file would outlive erasures."""

    def __init__(self, extension: str) -> None:
        """`extension` is the path of sqlite-vec. Raises apsw.Error if it cannot be loaded."""
        self._db = apsw.Connection(":memory:")
        self._db.enable_load_extension(True)
        self._db.load_extension(extension)
        self._db.enable_load_extension(False)
        self._db.execute(_SQLITE_TABLE)
        self._position: str | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[Self]:
        async with self._lock:
            yield self

    async def position(self) -> str | None:
        return self._position

    async def rebuild(self, vectors: Vectors, position: str) -> None:
        self._db.execute("DELETE FROM vectors")
        await self.update(vectors, position)

    async def update(self, vectors: Vectors, position: str | None = None) -> None:
        rows = [(n, i, v.tobytes()) for n, each in vectors.items() for i, v in enumerate(each)]
        with self._db:
            self._db.executemany("DELETE FROM vectors WHERE name = ?", [(n,) for n in vectors])
            self._db.executemany("INSERT INTO vectors VALUES (?, ?, ?)", rows)
        self._position = position or self._position

    async def nearest(
        self, query: Vector, prefixes: Sequence[str], *, limit: int, offset: int
    ) -> list[str]:
        given = (json.dumps(list(prefixes)), query.tobytes(), limit, offset)
        return [name for (name,) in self._db.execute(_SQLITE_NEAREST, given)]

    async def close(self) -> None:
        self._db.close()


_PG_INSTALLED: Final = """
    SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector'
"""
_PG_TABLES: Final = """
    CREATE SCHEMA IF NOT EXISTS limpet_langgraph;
    CREATE TABLE IF NOT EXISTS limpet_langgraph.positions (
        collection text PRIMARY KEY, position text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS limpet_langgraph.vectors (
        collection text, name text COLLATE "C", n integer, vector {schema}.vector NOT NULL,
        PRIMARY KEY (collection, name, n)
    );
"""
_PG_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('limpet_langgraph'), hashtext($1))"
_PG_POSITION: Final = "SELECT position FROM limpet_langgraph.positions WHERE collection = $1"
_PG_CLEAR: Final = "DELETE FROM limpet_langgraph.vectors WHERE collection = $1"
_PG_REMOVE: Final = _PG_CLEAR + " AND name = ANY ($2::text[])"
_PG_INSERT: Final = """
    INSERT INTO limpet_langgraph.vectors
    SELECT $1, name, n, vector::{schema}.vector
    FROM unnest($2::text[], $3::integer[], $4::text[]) AS rows (name, n, vector)
"""
_PG_ADVANCE: Final = """
    INSERT INTO limpet_langgraph.positions VALUES ($1, $2)
    ON CONFLICT (collection) DO UPDATE SET position = excluded.position
"""
_PG_NEAREST: Final = """
    SELECT name FROM limpet_langgraph.vectors
    WHERE collection = $1 AND EXISTS (SELECT FROM unnest($2::text[]) p WHERE starts_with(name, p))
    GROUP BY name
    ORDER BY min(coalesce(
        nullif(vector OPERATOR({schema}.<=>) $3::text::{schema}.vector, 'NaN'), 1
    )), name
    LIMIT $4 OFFSET $5
"""


class PostgresVectors:
    """On the server, compared by pgvector: one index for all processes, in tables of its own."""

    def __init__(self, pool: Any, collection: str, schema: str) -> None:
        self._pool, self._collection, self._schema = pool, collection, schema

    @classmethod
    async def open(cls, url: str, collection: str) -> PostgresVectors | None:
        """None if the database does not have the extension."""
        from limpet.store.postgres.server.pool import open_pool

        pool = await open_pool(url, size=2)
        async with pool.acquire() as conn, conn.transaction():
            schema = await conn.fetchval(_PG_INSTALLED)
            if schema is not None:
                # Two processes that create a schema at once would collide in the catalog.
                await conn.execute(_PG_LOCK.replace("$1", "''"))
                await conn.execute(_PG_TABLES.format(schema=schema))
        if schema is None:
            await pool.close()
            return None
        return cls(pool, collection, schema)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[_PostgresChange]:
        async with self._pool.acquire() as conn, conn.transaction():
            await conn.execute(_PG_LOCK, self._collection)
            yield _PostgresChange(conn, self._collection, self._schema)

    async def nearest(
        self, query: Vector, prefixes: Sequence[str], *, limit: int, offset: int
    ) -> list[str]:
        given = (self._collection, list(prefixes), _listed(query), limit, offset)
        rows = await self._pool.fetch(_PG_NEAREST.format(schema=self._schema), *given)
        return [row["name"] for row in rows]

    async def close(self) -> None:
        await self._pool.close()


class _PostgresChange:
    """A transaction that holds the lock of a collection's index."""

    def __init__(self, conn: Any, collection: str, schema: str) -> None:
        self._conn, self._collection, self._schema = conn, collection, schema

    async def position(self) -> str | None:
        position: str | None = await self._conn.fetchval(_PG_POSITION, self._collection)
        return position

    async def rebuild(self, vectors: Vectors, position: str) -> None:
        await self._conn.execute(_PG_CLEAR, self._collection)
        await self.update(vectors, position)

    async def update(self, vectors: Vectors, position: str | None = None) -> None:
        if vectors:
            await self._conn.execute(_PG_REMOVE, self._collection, list(vectors))
        rows = [(n, i, _listed(v)) for n, each in vectors.items() for i, v in enumerate(each)]
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            insert = _PG_INSERT.format(schema=self._schema)
            await self._conn.execute(insert, self._collection, *columns)
        if position is not None:
            await self._conn.execute(_PG_ADVANCE, self._collection, position)


def _listed(vector: Vector) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(map(repr, vector)) + "]"
