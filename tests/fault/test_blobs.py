"""Blobs in a file: damage is found, a crash leaves nothing to see, and what is left is cleaned."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from limpet import Limpet
from limpet.errors import BlobNotFound, SessionCorrupt, SessionDeleted, UploadLost
from limpet.model.commit import Commit
from limpet.model.limits import BLOB_CHUNK_BYTES, BLOB_CHUNKS_PURGED, BLOB_UPLOAD_SECONDS_MAX
from limpet.store.protocol import Place
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import create, creation, key
from limpet.testing.laws.resources.blobs import LARGE, SMALL, hash_of, put
from tests.support.seal import FixedKeySeal, KeylessSeal

A = key("a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def opened(path: Path, clock: FakeClock, *, sealed: bool = False) -> SQLiteStore:
    seal = FixedKeySeal() if sealed else None
    return await SQLiteStore.open(path, sync="normal", clock=clock.clock(), seal=seal)


def execute(path: Path, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    conn = apsw.Connection(str(path))
    try:
        return conn.execute(sql, args).fetchall()
    finally:
        conn.close()


DAMAGE = {
    "a byte of a chunk": "UPDATE blob_chunks SET body = CAST(x'00' || substr(body, 2) AS BLOB) "
    "WHERE number = 1",
    "a lost chunk": "DELETE FROM blob_chunks WHERE number = 1",
    "the last chunk lost": "DELETE FROM blob_chunks WHERE number = 2",
    "swapped chunks": "UPDATE blob_chunks SET number = CASE number WHEN 1 THEN -1 WHEN 2 THEN -2 "
    "ELSE 0 END; UPDATE blob_chunks SET number = 3 + number WHERE number < 0",
    "another hash": "UPDATE blobs SET hash = zeroblob(32)",
    "another number of chunks": "UPDATE blobs SET chunks = 2",
    "another version": "UPDATE blobs SET version = 0",
    "another row": "UPDATE blobs SET body = x'7b7d'",
    "a chunk too many": "INSERT INTO blob_chunks SELECT bid, 3, flags, body, crc FROM blob_chunks "
    "WHERE number = 2",
}


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_to_a_blob_is_found(path: Path, damage: str, *, sealed: bool) -> None:
    """By verification, with the session's key; and what is read is the content or an error."""
    clock = FakeClock()
    store = await opened(path, clock, sealed=sealed)
    await create(store, A)
    blob = await put(store, A, LARGE)
    await store.close()
    execute(path, DAMAGE[damage])
    store = await opened(path, clock, sealed=sealed)
    try:
        (finding,) = (await store.verify(None)).findings
        assert (finding.where, finding.key) == ("blob", A)
        assert not (await store.verify(A)).ok
        async with Limpet(f"sqlite:///{path}", store=store) as lp:
            with suppress(SessionCorrupt, BlobNotFound):
                assert await lp.session(A).blobs.get(blob.hash) == LARGE
    finally:
        await store.close()


async def test_rows_without_an_owner_are_found(path: Path) -> None:
    """Chunks without a blob, and a blob without a session."""
    clock = FakeClock()
    store = await opened(path, clock)
    await create(store, A)
    await put(store, A, SMALL)
    await store.close()
    execute(path, "INSERT INTO blob_chunks SELECT 99, number, flags, body, crc FROM blob_chunks")
    execute(
        path,
        "INSERT INTO blobs (sid, upload, hash, version, chunks, touched_us) "
        "VALUES (77, 'u', zeroblob(32), 1, 1, 1)",
    )
    store = await opened(path, clock)
    assert {f.where for f in (await store.verify(None)).findings} == {"blob", "chunk"}
    await store.close()


async def test_an_upload_that_a_crash_ended_is_cleaned_up(path: Path) -> None:
    """By a later process, once it is old enough, however many chunks it has."""
    clock = FakeClock()
    store = await opened(path, clock)
    await create(store, A)
    for number in range(BLOB_CHUNKS_PURGED + 3):
        await store.blobs.put_chunk(A, "dead", number, SMALL)
    await store.close()  # of an upload a close knows no more than a kill does
    assert execute(path, "SELECT count(*) FROM blob_chunks") == [(BLOB_CHUNKS_PURGED + 3,)]
    clock.advance(timedelta(seconds=BLOB_UPLOAD_SECONDS_MAX + 1))
    store = await opened(path, clock)
    await put(store, A, LARGE, "other")
    with pytest.raises(UploadLost):
        await store.blobs.put_chunk(A, "dead", BLOB_CHUNKS_PURGED + 3, SMALL)
    assert (await store.verify(None)).ok
    await store.close()
    assert execute(path, "SELECT count(*) FROM blob_chunks") == [(3,)]
    assert execute(path, "SELECT count(*) FROM blobs") == [(1,)]


@pytest.mark.parametrize("ending", ["delete", "erase"])
async def test_nothing_is_left_of_the_blobs_of_an_ended_session(path: Path, ending: str) -> None:
    """Neither of whole ones nor of uploads, when the store has had time."""
    store = await opened(path, FakeClock())
    await create(store, A)
    await put(store, A, LARGE, "u1")
    for n in range(BLOB_CHUNKS_PURGED + 3):
        await put(store, A, bytes([n]), f"s{n}")
    await store.blobs.put_chunk(A, "begun", 0, b"x" * BLOB_CHUNK_BYTES)
    await (store.delete(A) if ending == "delete" else store.erase(A))
    assert (await store.verify(None)).ok
    await store.close()
    assert execute(path, "SELECT (SELECT count(*) FROM blobs) + count(*) FROM blob_chunks") == [
        (0,)
    ]


async def test_a_dropped_upload_leaves_nothing(path: Path) -> None:
    """Nor does one whose content was there already."""
    store = await opened(path, FakeClock())
    await create(store, A)
    await put(store, A, LARGE, "u1")
    await put(store, A, LARGE, "u2")
    await store.blobs.put_chunk(A, "u3", 0, SMALL)
    await store.blobs.drop(A, "u3")
    await store.close()
    assert execute(path, "SELECT count(*) FROM blobs") == [(1,)]
    assert execute(path, "SELECT count(*) FROM blob_chunks") == [(3,)]
    assert hash_of(LARGE) == execute(path, "SELECT lower(hex(hash)) FROM blobs")[0][0]


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import create, key
from limpet.testing.laws.resources.blobs import LARGE, put

async def main():
    store = await SQLiteStore.open(Path(sys.argv[1]))
    await create(store, key("a"))
    await put(store, key("a"), LARGE, "whole")
    await store.blobs.put_chunk(key("a"), "dead", 0, LARGE[:1000])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_process_leaves_whole_blobs_only(path: Path) -> None:
    """What was answered is there; an upload in the middle is invisible, and cleaned up later."""
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, str(path))
    assert await died.wait() == -signal.SIGKILL
    clock = FakeClock(datetime.now(UTC) + timedelta(seconds=BLOB_UPLOAD_SECONDS_MAX + 60))
    store = await opened(path, clock)
    (blob,) = await store.blobs.page(A, after="", limit=9)
    async with Limpet(f"sqlite:///{path}", store=store) as lp:
        assert await lp.session(A).blobs.get(blob.hash) == LARGE
        assert (await lp.maintenance.verify()).ok
        await lp.session(A).blobs.put(b"another", "text/plain")  # a writer has something to do
    assert execute(path, "SELECT count(*) FROM blobs WHERE hash IS NULL") == [(0,)]
    assert execute(path, "SELECT count(*) FROM blob_chunks") == [(4,)]


async def test_a_stream_that_fails_leaves_no_row(path: Path) -> None:
    """Its upload is dropped at once, not when it is old."""

    def failing() -> Iterator[bytes]:
        yield LARGE
        raise OSError("the line is dead")

    async with Limpet(f"sqlite:///{path}", store=await opened(path, FakeClock())) as lp:
        s = await lp.create("shop", "ada", id="a")
        with pytest.raises(OSError, match="dead"):
            await s.blobs.put(failing(), "text/plain")
    assert execute(path, "SELECT (SELECT count(*) FROM blobs) + count(*) FROM blob_chunks") == [
        (0,)
    ]


class PausingSeal(KeylessSeal):
    """Stops in the thread that seals a chunk until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def seal(self, plain: bytes, place: Place) -> bytes:
        if place.kind == "blob":
            self.reached.set()
            assert self.go_on.wait(60)
        return plain


async def test_a_chunk_of_an_ended_session_is_not_given_to_the_next(path: Path) -> None:
    """If its session ends while it is sealed, and another takes the key, it is refused."""
    seal = PausingSeal()
    store = await SQLiteStore.open(path, sync="normal", seal=seal)
    try:
        await create(store, A)
        upload = asyncio.ensure_future(store.blobs.put_chunk(A, "u", 0, SMALL))
        await asyncio.to_thread(seal.reached.wait, 30)
        await store.delete(A)
        await store.commit([Commit(A, creation(A).drafts, 0, reuse=True)])
        seal.go_on.set()
        with pytest.raises(SessionDeleted):
            await upload
    finally:
        seal.go_on.set()
        await store.close()
    assert execute(path, "SELECT count(*) FROM blobs") == [(0,)]
