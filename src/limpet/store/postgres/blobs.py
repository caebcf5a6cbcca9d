"""Blobs in the database: rows of chunks, and a row for each blob that makes it visible.

Chunks are compressed and sealed in a thread, then written by one call each, which locks the row of
the session so that it does not end meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import (
    LimpetError,
    SessionCorrupt,
    SessionDeleted,
    SessionEnded,
    SessionFenced,
    UploadLost,
)
from limpet.model import Key
from limpet.model.facts.phases import TERMINAL
from limpet.model.limits import BLOB_UPLOAD_SECONDS_MAX, BLOB_UPLOADS_SWEPT, INT_MAX
from limpet.store.blobs import (
    Blob,
    BlobRow,
    BlobVerifier,
    Packed,
    opening,
    pack_blob,
    pack_chunk,
    read_blob,
    unpack_chunk,
)
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.rows import key_names
from limpet.store.postgres.server.pool import Pools
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.system import in_thread

_SWEEP: Final = (BLOB_UPLOAD_SECONDS_MAX * 1_000_000, BLOB_UPLOADS_SWEPT)


class PostgresBlobs:
    def __init__(self, pools: Pools, reader: PostgresReader) -> None:
        self._pools, self._reader, self.codec = pools, reader, reader.codec

    @opening
    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        uid, _ = await self._owner(key)
        packed = await in_thread(lambda: pack_chunk(self.codec, uid, upload, number, data))
        asked = (*key_names(key), uid, upload, number, *packed, *_SWEEP)
        await self._change(key, "put_chunk", asked)

    @opening
    async def finish(
        self,
        key: Key,
        upload: str,
        blob: Blob,
        last: bytes,
        *,
        fence: int | None = None,
        at: int | None = None,
    ) -> Blob:
        uid, version = await self._owner(key)
        # As of now: if others write meanwhile, a fork may see it that could also have been later.
        made = msgspec.structs.replace(blob, version=version if at is None else at)

        def pack() -> tuple[Packed, Packed]:
            chunk = pack_chunk(self.codec, uid, upload, blob.chunks - 1, last)
            return chunk, pack_blob(self.codec, uid, upload, made)

        chunk, row = await in_thread(pack)
        of = (bytes.fromhex(blob.hash), made.version, blob.chunks, fence)
        closed = list(TERMINAL) if at is None else []
        asked = (*key_names(key), uid, upload, *of, *chunk, *row, *_SWEEP, closed)
        if await self._change(key, "finish_blob", asked, fence) == "done":
            return made
        stored = await self.find(key, blob.hash, own=True)
        if stored is None:
            raise SessionDeleted(key)  # a moment after it was there
        return stored

    async def drop(self, key: Key, upload: str) -> None:
        await self._pools.run(lambda conn: conn.execute(SQL["drop_upload"], upload), asked="change")

    @opening
    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        row = await self._seen(key, hash, -1, own=own)
        return None if row is None else read_blob(self.codec, key, row["blob_uid"], _row(row))

    @opening
    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        row = await self._seen(key, hash, number, own=False)
        if row is None:
            return None
        uid, upload, body = row["blob_uid"], row["upload"], row["chunk_body"]
        if body is None:
            if 0 <= number < row["chunks"]:
                raise SessionCorrupt(key, f"chunk {number} of blob {hash} is missing")
            return None
        packed = (row["chunk_flags"], body, row["chunk_crc"])
        try:
            return await in_thread(lambda: unpack_chunk(self.codec, uid, upload, number, packed))
        except Damaged as error:
            raise SessionCorrupt(key, f"chunk {number} of blob {hash} {error}") from error

    @opening
    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        rows = await self._rows(key, SQL["blobs_after"], bytes.fromhex(after), limit)
        there = [row for row in rows if row["hash"] is not None]
        return tuple([read_blob(self.codec, key, row["blob_uid"], _row(row)) for row in there])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        low = (app or "", "", "") if after is None else key_names(after)
        asked = (*low, app, limit)
        rows = await self._pools.run(lambda conn: conn.fetch(SQL["keys_with_blobs"], *asked))
        return tuple([Key(*row) for row in rows])

    async def _owner(self, key: Key) -> tuple[str, int]:
        """uid and version of a living session."""
        (row,) = await self._rows(key, SQL["blob_owner"])
        return row["uid"], row["version"]

    async def _seen(self, key: Key, hash: str, number: int, *, own: bool) -> Any:
        (row,) = await self._rows(key, SQL["blob"], bytes.fromhex(hash), own, number)
        return None if row["bid"] is None else row

    async def _rows(self, key: Key, sql: str, *args: Any) -> list[Any]:
        """The rows of a statement that begins at the session's head; raises if there is none."""

        async def run(conn: Connection) -> list[Any]:
            rows: list[Any] = await conn.fetch(sql, *key_names(key), *args)
            if not rows:
                raise await self._reader.absent(conn, key)
            return rows

        return await self._pools.run(run)

    async def _change(
        self, key: Key, name: str, asked: tuple[Any, ...], fence: int | None = None
    ) -> str:
        """'done' or 'there', or an error. Not repeated: a chunk that is there is not the next."""

        async def run(conn: Connection) -> str:
            outcome: str = await conn.fetchval(SQL[name], *asked)
            if outcome == "gone":
                raise await self._gone(conn, key)
            if outcome in TERMINAL:
                raise SessionEnded(key, outcome)
            if outcome == "departed":
                (await self._reader.load(conn, key)).live.fold.head.check_here()
                raise UploadLost(key)  # it is back by now
            if outcome == "lost":
                raise UploadLost(key)
            if outcome == "fenced":
                now = await conn.fetchval(SQL["fence_of"], *key_names(key))
                raise SessionFenced(key, fence or 0, now or 0)
            return outcome

        return await self._pools.run(run, asked="change", repeatable=False)

    async def _gone(self, conn: Connection, key: Key) -> LimpetError:
        """There is none, or another session has the key that the chunk was not sealed for."""
        row = await conn.fetchrow(SQL["blob_owner"], *key_names(key))
        return SessionDeleted(key) if row is not None else await self._reader.gone(conn, key)


async def problems(
    conn: Connection, codec: Codec, sid: int, uid: str, below: int = INT_MAX
) -> list[str]:
    """Find problems of a session's blobs that were put below this version."""
    after, problems = b"", []
    while (row := await conn.fetchrow(SQL["verify_blob"], sid, after, below)) is not None:
        after = row["hash"]
        reading = BlobVerifier(codec, uid, _row(row))
        while reading.reads_on:
            chunk = await conn.fetchrow(SQL["verify_chunk"], row["bid"], reading.number)
            if chunk is None:
                break
            reading.add((chunk["flags"], chunk["body"], chunk["crc"]))
        if (problem := reading.problem()) is not None:
            problems.append(problem)
    return problems


def _row(row: Any) -> BlobRow:
    return BlobRow(*[row[name] for name in BlobRow.__struct_fields__])
