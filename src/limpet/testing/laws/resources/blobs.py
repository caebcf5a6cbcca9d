"""Blobs: whole or not there, of one session, gone with it."""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256
from typing import Protocol

import pytest

from limpet.errors import (
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionNotFound,
    StoreClosed,
    UploadLost,
)
from limpet.model import Base, Commit, Key, checksum
from limpet.model.facts.creation import forked
from limpet.model.limits import BLOB_CHUNK_BYTES, BLOB_UPLOAD_SECONDS_MAX
from limpet.store.blobs import Blob, KeepsBlobs
from limpet.store.leases import Leases
from limpet.store.protocol import Feed, Store
from limpet.testing.commits import add, create, creation, draft, key, load, ready
from limpet.testing.laws.durable import Reopen
from limpet.testing.laws.work.setback import Leap

A, B, C = key("a"), key("b"), key("c", user="bob")
SMALL = b"a photograph"
# Three chunks: one that compresses, one that does not, and the beginning of another.
LARGE = bytes(BLOB_CHUNK_BYTES) + random.Random(1).randbytes(BLOB_CHUNK_BYTES) + b"the rest"


class BlobStore(Store, Feed, Leases, KeepsBlobs, Protocol):
    """A store that keeps blobs."""


def hash_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def cut(content: bytes) -> list[bytes]:
    step = BLOB_CHUNK_BYTES
    return [content[at : at + step] for at in range(0, max(len(content), 1), step)]


def blob_of(content: bytes, media_type: str = "image/png") -> Blob:
    return Blob(hash_of(content), len(content), media_type, len(cut(content)))


async def put(store: BlobStore, of: Key, content: bytes, upload: str = "u1") -> Blob:
    *chunks, last = cut(content)
    for number, chunk in enumerate(chunks):
        await store.blobs.put_chunk(of, upload, number, chunk)
    return await store.blobs.finish(of, upload, blob_of(content), last)


async def content(store: BlobStore, of: Key, hash: str) -> bytes | None:
    """Return a session's reading of a blob: all of it, or None."""
    blob = await store.blobs.find(of, hash)
    if blob is None:
        assert await store.blobs.chunk(of, hash, 0) is None
        return None
    chunks = [await store.blobs.chunk(of, hash, number) for number in range(blob.chunks)]
    assert await store.blobs.chunk(of, hash, blob.chunks) is None
    joined = b"".join([chunk for chunk in chunks if chunk is not None])
    assert (hash_of(joined), len(joined)) == (blob.hash, blob.size)
    return joined


async def fork(store: Store, parent: Key, child: Key, at: int) -> None:
    """A session that goes on from another's event `at`."""
    fold, uid = await store.fold_at(parent, at), (await load(store, parent)).head.uid
    state = checksum(fold.fields)
    base = Base(parent, uid, at, fold.head.link, fold.fields, fold.versions, state)
    first = ready(forked(child, parent, uid=uid, floor=at, checksum=state))
    await store.commit([Commit(child, (first,), 0, base=base)])


class BlobLaws:
    """For stores that keep blobs and whose clock the suite can set (`leap`)."""

    @pytest.mark.parametrize("data", [b"", b"\x00", SMALL, LARGE], ids=len)
    async def test_what_was_put_is_read(self, store: BlobStore, data: bytes) -> None:
        """Of any size, chunk by chunk, with its size and media type; the store verifies."""
        await create(store, A)
        await add(store, A)
        blob = await put(store, A, data)
        assert (blob.hash, blob.size, blob.media_type) == (hash_of(data), len(data), "image/png")
        assert (blob.chunks, blob.version) == (len(cut(data)), 2)
        assert await store.blobs.find(A, blob.hash) == blob
        assert await content(store, A, blob.hash) == data
        report = await store.verify(None)
        assert (report.findings, report.events) == ((), 2)

    async def test_the_same_content_is_kept_once(self, store: BlobStore) -> None:
        """A second upload of it gives the first blob, and leaves nothing behind."""
        await create(store, A)
        first = await put(store, A, LARGE, "u1")
        await add(store, A)
        assert await put(store, A, LARGE, "u2") == first
        assert await store.blobs.page(A, after="", limit=10) == (first,)
        with pytest.raises(UploadLost):
            await store.blobs.put_chunk(A, "u2", 2, b"more")

    async def test_racing_uploads_of_one_content_make_one_blob(self, store: BlobStore) -> None:
        """Each of them is answered with it."""
        await create(store, A)
        made = await asyncio.gather(*(put(store, A, SMALL, f"u{n}") for n in range(5)))
        assert len(set(made)) == 1
        assert await store.blobs.page(A, after="", limit=10) == (made[0],)

    async def test_an_unfinished_upload_is_not_seen(self, store: BlobStore) -> None:
        """Neither by its hash nor in a list, and verification does not mind it."""
        await create(store, A)
        await store.blobs.put_chunk(A, "u", 0, SMALL)
        assert await store.blobs.find(A, hash_of(SMALL)) is None
        assert await store.blobs.page(A, after="", limit=10) == ()
        assert (await store.verify(None)).ok
        await store.blobs.drop(A, "u")
        await store.blobs.drop(A, "u")
        with pytest.raises(UploadLost):
            await store.blobs.put_chunk(A, "u", 1, SMALL)
        assert (await store.verify(None)).ok

    async def test_chunks_come_in_order(self, store: BlobStore) -> None:
        """A number that is not the next is refused, and so is an upload that was never begun."""
        await create(store, A)
        for number in (1, 2):
            with pytest.raises(UploadLost):
                await store.blobs.put_chunk(A, "u", number, SMALL)
        await store.blobs.put_chunk(A, "u", 0, SMALL)
        for number in (0, 2):
            with pytest.raises(UploadLost):
                await store.blobs.put_chunk(A, "u", number, SMALL)
        with pytest.raises(UploadLost):
            await store.blobs.finish(A, "u", blob_of(LARGE), b"")
        await create(store, B)
        with pytest.raises(UploadLost):
            await store.blobs.put_chunk(B, "u", 1, SMALL)

    async def test_an_upload_that_pauses_for_too_long_is_lost(
        self, store: BlobStore, leap: Leap
    ) -> None:
        """By the store's clock; one that goes on is not."""
        await create(store, A)
        await store.blobs.put_chunk(A, "slow", 0, SMALL)
        await leap(BLOB_UPLOAD_SECONDS_MAX / 2)
        await store.blobs.put_chunk(A, "slow", 1, SMALL)
        await store.blobs.put_chunk(A, "dead", 0, SMALL)
        await leap(BLOB_UPLOAD_SECONDS_MAX / 2 + 60)
        await store.blobs.put_chunk(A, "slow", 2, SMALL)
        await leap(BLOB_UPLOAD_SECONDS_MAX / 2 + 60)
        await put(store, A, LARGE, "other")
        with pytest.raises(UploadLost):
            await store.blobs.put_chunk(A, "dead", 1, SMALL)
        await store.blobs.put_chunk(A, "slow", 3, SMALL)
        with pytest.raises(UploadLost):
            await store.blobs.finish(A, "dead", blob_of(LARGE[1:-8]), SMALL)
        assert (await store.verify(None)).ok

    async def test_a_blob_belongs_to_one_session(self, store: BlobStore) -> None:
        """Another does not see it, and puts the same content by itself."""
        await create(store, A)
        await create(store, B)
        blob = await put(store, A, SMALL)
        assert await store.blobs.find(B, blob.hash) is None
        await put(store, B, SMALL, "u2")
        await store.delete(A)
        assert await content(store, B, blob.hash) == SMALL

    async def test_blobs_are_listed_by_hash(self, store: BlobStore) -> None:
        """Page by page, each once."""
        await create(store, A)
        made = {(await put(store, A, bytes([n]), f"u{n}")).hash for n in range(5)}
        met: list[str] = []
        while page := await store.blobs.page(A, after=met[-1] if met else "", limit=2):
            met += [blob.hash for blob in page]
        assert met == sorted(made)

    async def test_sessions_with_blobs_are_listed(self, store: BlobStore) -> None:
        """Living ones with blobs of their own, in the order of their keys; of one app or of all."""
        elsewhere = key("z", app="$agents")
        for of in (B, A, C, elsewhere, key("gone"), key("none")):
            await create(store, of)
        for number, of in enumerate((B, A, C, elsewhere, key("gone"))):
            await put(store, of, SMALL, f"u{number}")
        await store.blobs.put_chunk(key("none"), "begun", 0, SMALL)
        await store.delete(key("gone"))
        met: list[Key] = []
        while page := await store.blobs.keys(None, after=met[-1] if met else None, limit=3):
            met += page
        assert met == [elsewhere, A, B, C]
        assert await store.blobs.keys("shop", after=A, limit=9) == (B, C)
        assert await store.blobs.keys("shop", after=None, limit=9) == (A, B, C)
        assert await store.blobs.keys("shoq", after=None, limit=9) == ()

    @pytest.mark.parametrize(
        ("ending", "error"),
        [("never", SessionNotFound), ("delete", SessionDeleted), ("erase", SessionErased)],
    )
    async def test_without_its_session_there_is_no_blob(
        self, store: BlobStore, ending: str, error: type[Exception]
    ) -> None:
        """Neither to read nor to put, nor to go on with; what is left verifies."""
        if ending != "never":
            await create(store, A)
            await put(store, A, LARGE)
            await store.blobs.put_chunk(A, "begun", 0, SMALL)
            await (store.delete(A) if ending == "delete" else store.erase(A))
        hash = hash_of(LARGE)
        for call in (
            store.blobs.find(A, hash),
            store.blobs.chunk(A, hash, 0),
            store.blobs.page(A, after="", limit=1),
            store.blobs.put_chunk(A, "u", 0, SMALL),
            store.blobs.put_chunk(A, "begun", 1, SMALL),
            store.blobs.finish(A, "u", blob_of(SMALL), SMALL),
        ):
            with pytest.raises(error):
                await call
        await store.blobs.drop(A, "begun")
        assert (await store.verify(None)).ok

    async def test_a_new_session_of_a_key_has_none_of_the_old_blobs(self, store: BlobStore) -> None:
        """Nor does an upload of the old one go on in it."""
        await create(store, A)
        blob = await put(store, A, SMALL)
        await store.blobs.put_chunk(A, "begun", 0, SMALL)
        await store.delete(A)
        first = creation(A)
        await store.commit([Commit(A, first.drafts, 0, reuse=True)])
        assert await store.blobs.find(A, blob.hash) is None
        with pytest.raises(UploadLost):
            await store.blobs.put_chunk(A, "begun", 1, SMALL)
        assert (await put(store, A, SMALL, "u3")).version == 1
        assert await content(store, A, blob.hash) == SMALL

    async def test_a_lost_lease_finishes_no_blob(self, store: BlobStore) -> None:
        """The fence is compared as in a commit."""
        await create(store, A)
        lease = await store.acquire(A, "w", 60)
        blob = blob_of(SMALL)
        made = await store.blobs.finish(A, "u1", blob, SMALL, fence=lease.fence)
        assert made.hash == blob.hash
        await store.release(lease)
        with pytest.raises(SessionFenced):
            await store.blobs.finish(A, "u2", blob_of(b"x"), b"x", fence=lease.fence)
        assert await store.blobs.find(A, hash_of(b"x")) is None

    # --- forks ---------------------------------------------------------------------------------

    async def test_a_fork_sees_what_its_history_can_name(self, store: BlobStore) -> None:
        """Blobs put before the event it goes on from, not later ones; and its own."""
        await create(store, A)
        early = await put(store, A, LARGE, "u1")
        await add(store, A)
        late = await put(store, A, SMALL, "u2")
        await add(store, A)
        await fork(store, A, B, 2)
        await fork(store, B, C, 2)
        for of in (B, C):
            assert await content(store, of, early.hash) == LARGE
            assert await store.blobs.find(of, late.hash) is None
            assert await store.blobs.find(of, early.hash, own=True) is None
            assert await store.blobs.page(of, after="", limit=10) == ()
        own = await put(store, B, SMALL, "u3")
        assert await content(store, B, own.hash) == SMALL
        assert await store.blobs.find(C, own.hash) is None
        assert (await store.verify(None)).ok

    async def test_a_fork_reads_on_after_its_parent_was_deleted(self, store: BlobStore) -> None:
        """Until it goes too."""
        await create(store, A)
        early = await put(store, A, LARGE, "u1")
        await add(store, A)
        await put(store, A, SMALL, "u2")
        await fork(store, A, B, 2)
        await store.delete(A)
        assert await content(store, B, early.hash) == LARGE
        assert (await store.verify(None)).ok
        await store.delete(B)
        assert (await store.verify(None)).ok

    async def test_a_fork_loses_the_blobs_of_an_erased_parent(self, store: BlobStore) -> None:
        """Erased is erased; what the fork put by itself stays."""
        await create(store, A)
        early = await put(store, A, LARGE, "u1")
        await add(store, A)
        await fork(store, A, B, 2)
        own = await put(store, B, SMALL, "u2")
        await store.erase(A, forks="keep")
        assert await content(store, B, early.hash) is None
        assert await content(store, B, own.hash) == SMALL
        await put(store, B, LARGE, "u3")
        assert await content(store, B, early.hash) == LARGE
        assert (await store.verify(None)).ok

    async def test_a_user_is_erased_with_the_blobs(self, store: BlobStore) -> None:
        """Those of sessions that were deleted before, too; forks of others lose them."""
        await create(store, A)
        blob = await put(store, A, LARGE)
        await add(store, A, draft())
        await fork(store, A, C, 2)
        await store.delete(A)
        await store.erase_user(A.app, A.user)
        assert await content(store, C, blob.hash) is None
        assert (await store.verify(None)).ok

    async def test_a_closed_store_has_no_blobs(self, store: BlobStore) -> None:
        """Every call raises StoreClosed."""
        await create(store, A)
        await store.close()
        for call in (
            store.blobs.find(A, hash_of(SMALL)),
            store.blobs.chunk(A, hash_of(SMALL), 0),
            store.blobs.page(A, after="", limit=1),
            store.blobs.put_chunk(A, "u", 0, SMALL),
            store.blobs.finish(A, "u", blob_of(SMALL), SMALL),
            store.blobs.drop(A, "u"),
        ):
            with pytest.raises(StoreClosed):
                await call


class DurableBlobLaws:
    """For stores that outlive their process, beside BlobLaws."""

    async def test_blobs_are_there_after_reopening(self, store: BlobStore, reopen: Reopen) -> None:
        """Whole ones are read, and an upload that was not finished is not."""
        await create(store, A)
        blob = await put(store, A, LARGE, "u1")
        await store.blobs.put_chunk(A, "u2", 0, SMALL)
        again = await reopen()
        assert isinstance(again, KeepsBlobs)
        assert await content(again, A, blob.hash) == LARGE  # type: ignore[arg-type]  # it is one
        assert await again.blobs.find(A, hash_of(SMALL)) is None
        assert (await again.verify(None)).ok

    async def test_a_fork_reads_what_was_left_of_its_parent(
        self, store: BlobStore, reopen: Reopen
    ) -> None:
        """After the rest of the parent was removed, and of two forks as far as one still reads."""
        await create(store, A)
        early = await put(store, A, LARGE, "u1")
        await add(store, A)
        late = await put(store, A, SMALL, "u2")
        await add(store, A)
        await fork(store, A, B, 2)
        await fork(store, A, C, 3)
        await store.delete(A)
        await store.delete(C)
        again = await reopen()
        assert isinstance(again, KeepsBlobs)
        assert await content(again, B, early.hash) == LARGE  # type: ignore[arg-type]  # it is one
        assert await again.blobs.find(B, late.hash) is None
        assert (await again.verify(None)).ok


class SharedBlobLaws:
    """For stores that several processes may open, beside BlobLaws."""

    async def test_one_reads_what_the_other_put(self, store: BlobStore, other: BlobStore) -> None:
        """Put by either of them, and once if both put it."""
        await create(store, A)
        blob = await put(store, A, LARGE, "u1")
        assert await content(other, A, blob.hash) == LARGE
        assert await put(other, A, LARGE, "u2") == blob
        made = await asyncio.gather(put(store, A, SMALL, "u3"), put(other, A, SMALL, "u4"))
        assert made[0] == made[1]
        assert len(await store.blobs.page(A, after="", limit=10)) == 2
