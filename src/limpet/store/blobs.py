"""Blobs: large contents beside the log of a session, addressed by their SHA-256.

A blob is written in chunks under an upload of its own, which nobody sees. Its last chunk and its
row, which makes it visible, are written in one transaction: a blob is whole or not there. What a
SQL store keeps of it, and how that is checked, is here too, whichever database it is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from hashlib import sha256
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import msgspec

from limpet.errors import SessionCorrupt, SessionEnded
from limpet.model import Head, Key
from limpet.model.facts.phases import TERMINAL
from limpet.model.limits import BLOB_CHUNK_BYTES
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.protocol import Place


class Blob(msgspec.Struct, frozen=True):
    """The metadata of a blob."""

    hash: str  # SHA-256 of the content, in hex
    size: int
    media_type: str
    chunks: int  # 1 or more, each of BLOB_CHUNK_BYTES but the last
    version: int = 0  # of the session when it was put: only later events name it


class Blobs(Protocol):
    """The blobs of a store's sessions.

    Every coroutine raises StoreClosed and StoreError as Store does, and SessionNotFound,
    SessionDeleted or SessionErased if there is no such session now. A blob belongs to one session:
    it is deleted and erased with it, and copied by a backup.
    """

    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        """Add the next chunk to an upload; number 0 begins it. Durable when it returns.

        `upload` is an id that the caller made. No more than BLOB_CHUNK_BYTES. Nobody sees it before
        `finish`. An upload that gets no chunk for BLOB_UPLOAD_SECONDS_MAX, by the store's clock, is
        cleaned up sooner or later: UploadLost then, and for a number that is not the next.
        """
        ...

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
        """Add the last chunk and make the blob visible, in one transaction; durable.

        If the session itself has this content already, that blob is returned and the upload is
        dropped. `fence` as in a commit: SessionFenced. `at` is the version it was put at, if that
        was in another store; without it a session that has ended or departed takes none
        (SessionEnded, SessionMoved), so that a file of its log has all of its blobs, and so has the
        store that it went to. The caller vouches for hash and size.
        """
        ...

    async def drop(self, key: Key, upload: str) -> None:
        """Forget an upload that will not be finished.

        Nothing happens if there is none, or if the session is gone.
        """
        ...

    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        """The blob with this content, or None; with `own`, only one of this very session.

        A fork also sees blobs of its parents that were put before the event it goes on from; after
        a delete of the parent too, and no longer once the parent is erased.
        """
        ...

    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        """One chunk of a blob that `find` sees; None if there is none.

        Raises SessionCorrupt if it is not what was stored.
        """
        ...

    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        """At most `limit` own blobs of the session, in the order of their hashes, beyond `after`.

        Raises SessionCorrupt if one of them cannot be read.
        """
        ...

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        """At most `limit` living sessions that have blobs of their own, in the order of their keys,
        beyond `after`: of one app or of all, reserved ones too."""
        ...


@runtime_checkable
class KeepsBlobs(Protocol):
    """A store that keeps blobs, as all of ours do."""

    @property
    def blobs(self) -> Blobs: ...


def check_open(head: Head) -> None:
    """Raise SessionEnded or SessionMoved if a session takes no more blobs."""
    head.check_here()
    if head.phase in TERMINAL:
        raise SessionEnded(head.key, head.phase)


class BlobFacts(msgspec.Struct, frozen=True):
    """The body of a blob's row. Sealed like other bodies: what a blob is, is nobody's business.

    It names the upload, in whose place the chunks are: those of another blob do not open here.
    """

    size: int
    media_type: str
    chunks: int
    version: int
    upload: str


class BlobRow(msgspec.Struct, frozen=True):
    """The row of a blob, as it is stored."""

    hash: bytes
    version: int
    chunks: int
    upload: str
    flags: int
    body: bytes
    crc: int


Packed = tuple[int, bytes, int]  # flags, stored bytes, checksum


def chunk_place(uid: str, upload: str, number: int) -> Place:
    return Place("blob", uid, f"{upload}/{number}")


def blob_place(uid: str, hash: str) -> Place:
    return Place("blob", uid, hash)


def pack_chunk(codec: Codec, uid: str, upload: str, number: int, data: bytes) -> Packed:
    assert len(data) <= BLOB_CHUNK_BYTES, "a chunk has its bound"
    return codec.pack(data, chunk_place(uid, upload, number), bound=True)


def unpack_chunk(codec: Codec, uid: str, upload: str, number: int, packed: Packed) -> bytes:
    """Return the content of a chunk. Raises Damaged if it is another."""
    return codec.unpack(*packed, lambda: chunk_place(uid, upload, number), bound=True)


def pack_blob(codec: Codec, uid: str, upload: str, blob: Blob) -> Packed:
    facts = BlobFacts(blob.size, blob.media_type, blob.chunks, blob.version, upload)
    return codec.pack(msgspec.json.encode(facts), blob_place(uid, blob.hash), bound=True)


def read_blob(codec: Codec, key: Key, uid: str, row: BlobRow) -> Blob:
    """The blob of a session in a row. Raises SessionCorrupt."""
    try:
        return unpack_blob(codec, uid, row)
    except (Damaged, msgspec.MsgspecError) as error:
        raise SessionCorrupt(key, f"blob {row.hash.hex()} {error}") from error


def unpack_blob(codec: Codec, uid: str, row: BlobRow) -> Blob:
    """Return the blob of a row. Raises Damaged if it is not what was stored."""
    hash = row.hash.hex()
    place = blob_place(uid, hash)
    raw = codec.unpack(row.flags, row.body, row.crc, lambda: place, bound=True)
    facts = msgspec.json.decode(raw, type=BlobFacts)
    if (facts.version, facts.chunks, facts.upload) != (row.version, row.chunks, row.upload):
        raise Damaged("has a row that differs from what was put")
    return Blob(hash, facts.size, facts.media_type, facts.chunks, facts.version)


class BlobVerifier:
    """One stored blob, read chunk by chunk and compared with what its row says."""

    def __init__(self, codec: Codec, uid: str, row: BlobRow) -> None:
        self._codec, self._uid, self._row = codec, uid, row
        self._content, self._size = sha256(), 0
        self.number = 0  # of the chunk to read next
        self._problem = ""
        try:
            self._blob = unpack_blob(codec, uid, row)
        except (Damaged, msgspec.MsgspecError) as error:
            self._problem = str(error)

    def add(self, packed: Packed) -> None:
        """The next chunk. After the first problem nothing more is looked at."""
        if self._problem:
            return
        try:
            data = unpack_chunk(self._codec, self._uid, self._row.upload, self.number, packed)
        except Damaged as error:
            self._problem = str(error)
            return
        self._content.update(data)
        self._size += len(data)
        self.number += 1

    @property
    def reads_on(self) -> bool:
        return not self._problem

    def problem(self) -> str | None:
        """Return the problem of the blob, once all its chunks were added; None if there is none."""
        problem = self._problem
        if not problem and self.number != self._blob.chunks:
            problem = f"has {self.number} chunks of {self._blob.chunks}"
        elif not problem:
            same = self._size == self._blob.size and self._content.digest() == self._row.hash
            problem = "" if same else "has another content than its hash says"
        return f"{self._row.hash.hex()[:16]}… {problem}" if problem else None


class _Opens(Protocol):
    """Reads and writes bodies that may be sealed."""

    @property
    def codec(self) -> Codec: ...


B = TypeVar("B", bound=_Opens)
P = ParamSpec("P")
T = TypeVar("T")


def opening(
    call: Callable[Concatenate[B, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[B, P], Coroutine[Any, Any, T]]:
    """Make a call of a store's blobs again once the keys are there, if it met a session without."""

    @wraps(call)
    async def opened(blobs: B, /, *args: P.args, **named: P.kwargs) -> T:
        return await blobs.codec.sealer.opening(lambda: call(blobs, *args, **named))

    return opened
