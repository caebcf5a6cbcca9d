"""Blobs in the database: rows of chunks, and a row for each blob that makes it visible.

Chunks are compressed and sealed in a thread, then written by the writer, each in a transaction of
its own, so that a large blob keeps nobody waiting. `purge` and `sweep` remove what is left of ended
sessions and of uploads that were never finished, a little at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import apsw
import msgspec

from limpet.errors import SessionCorrupt, SessionDeleted, SessionFenced, UploadLost
from limpet.model import Head, Key, admits
from limpet.model.limits import BLOB_CHUNKS_PURGED, BLOB_UPLOAD_SECONDS_MAX, INT_MAX, MARKS_SWEPT
from limpet.store.blobs import (
    Blob,
    BlobRow,
    BlobVerifier,
    Packed,
    check_open,
    opening,
    pack_blob,
    pack_chunk,
    read_blob,
    unpack_chunk,
)
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.marks import Mark, added
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection
from limpet.store.system import in_thread

T = TypeVar("T")
_LAST: Final = chr(0x10FFFF)  # beyond every app
_PAUSE_US: Final = BLOB_UPLOAD_SECONDS_MAX * 1_000_000


class RunRead(Protocol):
    """Runs a query, with the driver's errors translated."""

    def __call__(self, query: Callable[[], T], /) -> T: ...


class RunWrite(Protocol):
    """Runs a function on the writer's thread."""

    def __call__(self, run: Callable[[SQLiteWriteConnection], T], /) -> Awaitable[T]: ...


class SQLiteBlobs:
    def __init__(
        self, reader: SQLiteReader, clock: Callable[[], int], read: RunRead, write: RunWrite
    ) -> None:
        self._reader, self._clock, self._read, self._write = reader, clock, read, write
        self.codec = reader.codec

    @opening
    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        uid = self._read(lambda: self._living(key)).uid
        packed = await in_thread(lambda: pack_chunk(self.codec, uid, upload, number, data))
        await self._write(
            lambda writes: _put_chunk(writes, key, uid, upload, number, packed, self._clock())
        )

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
        uid = self._read(lambda: self._living(key)).uid
        number = blob.chunks - 1
        packed = await in_thread(lambda: pack_chunk(self.codec, uid, upload, number, last))

        def run(writes: SQLiteWriteConnection) -> Blob:
            now_us = self._clock()
            with writes.transaction():
                sid, head = _same(writes, key, uid)
                if at is None:
                    check_open(head)
                if fence is not None and not admits(head, fence, now_us):
                    raise SessionFenced(key, fence, head.fence)
                version = head.version if at is None else at
                made = msgspec.structs.replace(blob, version=version)
                done = _finish(writes, sid, head, upload, made, packed, now_us)
            writes.sweeping = True
            return done

        return await self._write(run)

    async def drop(self, key: Key, upload: str) -> None:
        await self._write(lambda writes: _drop(writes, upload))

    @opening
    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        seen = self._read(lambda: self._seen(key, hash, own=own))
        return None if seen is None else read_blob(self.codec, key, seen[0], seen[2])

    @opening
    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        events = self._read(lambda: self._chunk(key, hash, number))
        if events is None:
            return None
        uid, upload, packed = events
        try:
            return await in_thread(lambda: unpack_chunk(self.codec, uid, upload, number, packed))
        except Damaged as error:
            raise SessionCorrupt(key, f"chunk {number} of blob {hash} {error}") from error

    @opening
    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        uid, rows = self._read(lambda: self._page(key, after, limit))
        return tuple([read_blob(self.codec, key, uid, row) for row in rows])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        low = (app or "", "", "") if after is None else (after.app, after.user, after.id)
        asked = (*low, _LAST if app is None else app, limit)
        rows: Any = self._read(
            lambda: self._reader.conn.execute(SQL["keys_with_blobs"], asked).fetchall()
        )
        return tuple([Key(*row) for row in rows])

    def _living(self, key: Key) -> Head:
        return self._reader.living(key)[1]

    def _seen(self, key: Key, hash: str, *, own: bool) -> tuple[str, int, BlobRow] | None:
        with self._reader.instant():
            return self._find_row(key, hash, own=own)

    def _find_row(self, key: Key, hash: str, *, own: bool) -> tuple[str, int, BlobRow] | None:
        """uid of the owner, bid and row of a blob that the session can see."""
        from limpet.store.sqlite.reading import lineage

        reader = self._reader
        sid, head = reader.present(key)
        for part in lineage.segments(reader, sid, head):
            if part.sid is None or (own and part.sid != sid):
                break
            below = INT_MAX if part.sid == sid else part.ceiling
            asked = (part.sid, _digest(hash), below)
            row: Any = reader.conn.execute(SQL["blob"], asked).fetchone()
            if row is not None:
                return part.head.uid, row[0], BlobRow(*row[1:])
        return None

    def _chunk(self, key: Key, hash: str, number: int) -> tuple[str, str, Packed] | None:
        with self._reader.instant():
            seen = self._find_row(key, hash, own=False)
            if seen is None:
                return None
            uid, bid, row = seen
            fetched: Any = self._reader.conn.execute(SQL["chunk"], (bid, number)).fetchone()
        if fetched is None and 0 <= number < row.chunks:
            raise SessionCorrupt(key, f"chunk {number} of blob {hash} is missing")
        return None if fetched is None else (uid, row.upload, fetched)

    def _page(self, key: Key, after: str, limit: int) -> tuple[str, list[BlobRow]]:
        with self._reader.instant():
            sid, head = self._reader.living(key)
            asked = (sid, _digest(after), limit)
            rows: Any = self._reader.conn.execute(SQL["blobs_after"], asked).fetchall()
        return head.uid, [BlobRow(*row[1:]) for row in rows]


# --- on the writer's thread ----------------------------------------------------------------------


def _put_chunk(
    writes: SQLiteWriteConnection,
    key: Key,
    uid: str,
    upload: str,
    number: int,
    packed: Packed,
    now_us: int,
) -> None:
    with writes.transaction():
        sid, _ = _same(writes, key, uid)
        bid = _upload(writes, key, sid, upload, number, now_us)
        writes.conn.execute(SQL["add_chunk"], (bid, number, *packed))
        writes.conn.execute(SQL["touch_upload"], (number + 1, now_us, bid))
    writes.sweeping = writes.sweeping or number == 0


def _finish(
    writes: SQLiteWriteConnection,
    sid: int,
    head: Head,
    upload: str,
    blob: Blob,
    last: Packed,
    now_us: int,
) -> Blob:
    conn, number = writes.conn, blob.chunks - 1
    before: Any = conn.execute(SQL["blob"], (sid, _digest(blob.hash), INT_MAX)).fetchone()
    if before is not None:  # the same content: its chunks are there, these are not needed
        conn.execute(SQL["drop_upload"], (upload,))
        return read_blob(writes.codec, head.key, head.uid, BlobRow(*before[1:]))
    bid = _upload(writes, head.key, sid, upload, number, now_us)
    conn.execute(SQL["add_chunk"], (bid, number, *last))
    body = pack_blob(writes.codec, head.uid, upload, blob)
    row = (_digest(blob.hash), blob.version, blob.chunks, *body, bid)
    conn.execute(SQL["finish_upload"], row)
    return blob


def _upload(
    writes: SQLiteWriteConnection, key: Key, sid: int, upload: str, number: int, now_us: int
) -> int:
    """The bid of an upload whose next chunk this is."""
    row: Any = writes.conn.execute(SQL["upload"], (upload, sid, now_us - _PAUSE_US)).fetchone()
    if row is None and number == 0:
        writes.conn.execute(SQL["add_upload"], (sid, upload, now_us))
        return writes.conn.last_insert_rowid()
    if row is None or row[1] != number:
        raise UploadLost(key)
    bid: int = row[0]
    return bid


def _same(writes: SQLiteWriteConnection, key: Key, uid: str) -> tuple[int, Head]:
    """The session that a chunk was sealed for, not another that has its key by now."""
    sid, head = writes.reader.living(key)
    if head.uid != uid:
        raise SessionDeleted(key)
    return sid, head


def _drop(writes: SQLiteWriteConnection, upload: str) -> None:
    with writes.transaction():
        writes.conn.execute(SQL["drop_upload"], (upload,))
    writes.sweeping = True


def purge(conn: apsw.Connection, sid: int, keep: int) -> bool:
    """Remove some blobs of an ended session that no fork sees. False if none is left."""
    return _remove(conn, lambda: conn.execute(SQL["next_dropped"], (sid, keep)).get)


def sweep(writes: SQLiteWriteConnection, now_us: int) -> bool:
    """Remove some of the uploads that nobody goes on with. False if none is left."""
    conn, asked = writes.conn, (now_us - _PAUSE_US,)
    if conn.execute(SQL["stale_upload"], asked).get is None:
        return False
    with writes.transaction():
        return _remove(conn, lambda: conn.execute(SQL["stale_upload"], asked).get)


def _remove(conn: apsw.Connection, next_one: Callable[[], Any]) -> bool:
    """Chunks first, as many as one transaction may: a blob goes when it has none."""
    left = BLOB_CHUNKS_PURGED
    while (bid := next_one()) is not None:
        if left <= 0:
            return True
        conn.execute(SQL["drop_chunks"], (bid, left))
        gone = conn.changes()
        if gone < left:
            conn.execute(SQL["drop_blob"], (bid,))
        left -= max(gone, 1)
    return False


# --- verification --------------------------------------------------------------------------------


def problems(conn: apsw.Connection, codec: Codec, sid: int, uid: str, below: int) -> Iterator[str]:
    """Find problems of a session's blobs that were put below this version."""
    after = b""
    while True:
        row: Any = conn.execute(SQL["kept_blobs"], (sid, after, below)).fetchone()
        if row is None:
            return
        blob = BlobRow(*row[1:])
        if not isinstance(blob.hash, bytes) or blob.hash <= after:
            yield "blobs are out of order"
            return
        after = blob.hash
        reading = BlobVerifier(codec, uid, blob)
        chunk: Any
        while reading.reads_on:
            chunk = conn.execute(SQL["chunk"], (row[0], reading.number)).fetchone()
            if chunk is None:
                break
            reading.add(chunk)
        if (problem := reading.problem()) is not None:
            yield problem


def _digest(hash: str) -> bytes:
    return bytes.fromhex(hash)


# --- marks ---------------------------------------------------------------------------------------


class SQLiteMarks:
    def __init__(
        self, reader: SQLiteReader, clock: Callable[[], int], read: RunRead, write: RunWrite
    ) -> None:
        self._reader, self._clock, self._read, self._write = reader, clock, read, write

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        def run(writes: SQLiteWriteConnection) -> bool:
            with writes.transaction():
                now_us = self._begin(writes)
                row = writes.conn.execute(SQL["mark"], (space, name, now_us)).fetchone()
                if until_us <= now_us or row is not None:
                    return False
                writes.conn.execute(SQL["put_mark"], (space, name, until_us, value))
                return True

        return await self._write(run)

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        def run(writes: SQLiteWriteConnection) -> None:
            with writes.transaction():
                self._begin(writes)
                writes.conn.execute(SQL["put_mark"], (space, name, until_us, value))

        await self._write(run)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        def run(writes: SQLiteWriteConnection) -> int:
            with writes.transaction():
                asked = (space, name, self._begin(writes))
                row: Any = writes.conn.execute(SQL["mark"], asked).fetchone()
                value, until = (0, until_us) if row is None else row
                value = added(value, by)
                writes.conn.execute(SQL["put_mark"], (space, name, until, value))
                return int(value)

        return await self._write(run)

    async def get(self, space: str, name: str) -> Mark | None:
        asked = (space, name, self._clock())
        events: Any = self._read(lambda: self._reader.conn.execute(SQL["mark"], asked).fetchone())
        return None if events is None else Mark(space, name, *events)

    async def sweep(self, limit: int) -> int:
        def run(writes: SQLiteWriteConnection) -> int:
            with writes.transaction():
                writes.conn.execute(SQL["sweep_marks"], (self._clock(), limit))
                return writes.conn.changes()

        return await self._write(run)

    def _begin(self, writes: SQLiteWriteConnection) -> int:
        """The time by the store's clock, read under the write lock; and some ended marks go."""
        now_us = self._clock()
        writes.conn.execute(SQL["sweep_marks"], (now_us, MARKS_SWEPT))
        return now_us
