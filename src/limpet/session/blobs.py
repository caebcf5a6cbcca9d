"""Putting and reading the blobs of one session, a chunk at a time.

What is given is cut into chunks and hashed on the way; no more than two chunks are in memory,
whatever the size. The blob is durable before its Ref is returned, so an event that names it never
names something that is not there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from limpet.errors import (
    BlobNotFound,
    BlobTooLarge,
    InvalidInput,
    InvalidQuery,
    LimpetError,
    SessionCorrupt,
)
from limpet.model import Key, Lease, described, limits, unfit
from limpet.model.limits import BLOB_CHUNK_BYTES, MEDIA_TYPE_CHARS_MAX
from limpet.session.journal import Journal
from limpet.session.writer import Writer
from limpet.store.blobs import Blob, Blobs, KeepsBlobs
from limpet.store.system import in_thread

if TYPE_CHECKING:
    from limpet.model.state.types import Ref

ANY_MEDIA: Final = "application/octet-stream"
_HEX: Final = frozenset("0123456789abcdef")


class Readable(Protocol):
    """A file: read(n) gives up to n bytes, b"" at the end; it may be a coroutine."""

    def read(self, size: int, /) -> Any: ...


Content: TypeAlias = (
    bytes | bytearray | memoryview | Readable | Iterable[bytes] | AsyncIterable[bytes]
)
AnyRef: TypeAlias = "Ref[Any] | Mapping[str, Any] | str"
CitedBlob: TypeAlias = Callable[[Writer, str], AsyncGenerator[bytes, None]]


async def put_blob(
    journal: Journal, key: Key, content: Content, media_type: str, lease: Lease | None
) -> Ref[Any]:
    """Store the content beside the session's log; durable when it returns."""
    from limpet.model.state.types import Ref

    if reason := unfit(media_type, MEDIA_TYPE_CHARS_MAX):
        raise InvalidInput(f"the media type {reason}. Name it, as in 'image/png'.")
    blobs = _blobs(journal)
    fence = None if lease is None else lease.fence
    if isinstance(content, (bytes, bytearray, memoryview)):
        raw = bytes(content)
        blob = await blobs.find(key, sha256(raw).hexdigest(), own=True)
        if blob is None:
            blob = await _upload(blobs, key, journal.new_id(), _sliced(raw), media_type, fence)
    else:
        chunks = _cut(_pieces(content))
        blob = await _upload(blobs, key, journal.new_id(), chunks, media_type, fence)
    return Ref.blob(blob.hash, blob.size, media_type)


async def get_blob(journal: Journal, key: Key, ref: AnyRef) -> bytes:
    """All of a blob. Raises BlobNotFound, and SessionCorrupt if it is not what was put."""
    return b"".join([chunk async for chunk in stream_blob(journal, key, ref)])


def stream_blob(journal: Journal, key: Key, ref: AnyRef) -> AsyncGenerator[bytes, None]:
    """A blob chunk by chunk; SessionCorrupt instead of a chunk that is not what was put."""
    return _chunks(_blobs(journal), key, hash_of(ref))


async def kept_blob(journal: Journal, key: Key, hash: str) -> Ref[Any] | None:
    """The Ref of a blob that the session has; None if it has none of this hash."""
    from limpet.model.state.types import Ref

    blob = await _blobs(journal).find(key, hash)
    return None if blob is None else Ref.blob(blob.hash, blob.size, blob.media_type)


async def read_blob_chunk(journal: Journal, key: Key, hash: str, number: int) -> tuple[bytes, int]:
    """One chunk of a blob, and how many it has. Raises BlobNotFound."""
    blobs = _blobs(journal)
    blob = await blobs.find(key, hash)
    chunk = None if blob is None else await blobs.chunk(key, hash, number)
    if blob is None or chunk is None:
        raise BlobNotFound(key, hash)
    return chunk, blob.chunks


async def _chunks(blobs: Blobs, key: Key, hash: str) -> AsyncGenerator[bytes, None]:
    blob = await blobs.find(key, hash)
    if blob is None:
        raise BlobNotFound(key, hash)
    content = sha256()
    for number in range(blob.chunks):
        chunk = await blobs.chunk(key, hash, number)
        if chunk is None:  # its parent was erased meanwhile
            raise BlobNotFound(key, hash)
        content.update(chunk)
        if number == blob.chunks - 1 and content.hexdigest() != hash:
            raise SessionCorrupt(key, f"blob {hash} has another content than its hash says")
        yield chunk


def hash_of(ref: AnyRef) -> str:
    """The hash of the content that a Ref, its data or a hash itself names."""
    digest = ref if isinstance(ref, str) else getattr(ref, "sha256", None)
    if isinstance(ref, Mapping):
        digest = ref.get("sha256")
    if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
        raise InvalidInput(
            f"{described(ref)} names no blob. Pass the Ref that s.blobs.put returned, its data, or "
            "the SHA-256 of the content in hex."
        )
    return digest


async def _upload(
    blobs: Blobs,
    key: Key,
    upload: str,
    chunks: AsyncIterator[bytes],
    media_type: str,
    fence: int | None,
) -> Blob:
    """Chunk after chunk; the last one makes the blob visible. If it fails, nothing is left."""
    content, size, number, last = sha256(), 0, 0, b""
    try:
        async for chunk in chunks:
            if last:
                await blobs.put_chunk(key, upload, number, last)
                number += 1
            last = chunk
            content.update(chunk)
            size += len(chunk)
            if size > limits.BLOB_BYTES_MAX:
                raise BlobTooLarge(limits.BLOB_BYTES_MAX)
        blob = Blob(content.hexdigest(), size, media_type, number + 1)
        return await blobs.finish(key, upload, blob, last, fence=fence)
    except BaseException:
        with suppress(LimpetError):  # else a later cleanup removes it
            await blobs.drop(key, upload)
        raise


async def _sliced(raw: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(raw), BLOB_CHUNK_BYTES):
        yield raw[start : start + BLOB_CHUNK_BYTES]


async def _cut(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes in chunks of the stored size."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) >= BLOB_CHUNK_BYTES:
            yield bytes(held[:BLOB_CHUNK_BYTES])
            del held[:BLOB_CHUNK_BYTES]
    if held:
        yield bytes(held)


async def _pieces(content: Any) -> AsyncIterator[bytes]:
    """Return what a file, an async iterator or an iterator gives, one after the other."""
    if hasattr(content, "read"):
        while piece := _checked(await _read(content)):
            yield piece
    elif isinstance(content, AsyncIterable):
        async for piece in content:
            yield _checked(piece)
    elif isinstance(content, Iterable) and not isinstance(content, (str, Mapping)):
        for piece in content:
            yield _checked(piece)
            await asyncio.sleep(0)  # let others run
    else:
        raise InvalidInput(
            f"{described(content)} is not the content of a blob. Pass bytes, a file opened in "
            "binary mode, or an iterator of bytes."
        )


async def _read(file: Readable) -> Any:
    """The next bytes of a file, in a thread: a disk may be slow."""
    chunk = await in_thread(lambda: file.read(BLOB_CHUNK_BYTES))
    return await chunk if inspect.isawaitable(chunk) else chunk


def _checked(piece: Any) -> bytes:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise InvalidInput(
            f"a blob is made of bytes, not of {described(piece)}. Encode texts, and open files in "
            "binary mode."
        )
    return bytes(piece)


def _blobs(journal: Journal) -> Blobs:
    store = journal.store
    if not isinstance(store, KeepsBlobs):
        raise InvalidQuery("this store does not keep blobs")
    return store.blobs


class SessionBlobs:
    """The blobs of one session: `s.blobs`."""

    __slots__ = ("_cited", "_writer")

    def __init__(self, writer: Writer, cited: CitedBlob) -> None:
        self._writer, self._cited = writer, cited

    async def put(self, content: Content, media_type: str = ANY_MEDIA) -> Ref[Any]:
        """Store large content beside the log and return its Ref: bytes, a binary file, or an
        iterator of bytes.

        Durable when it returns, so record its Ref in an event afterwards: `ref.data` is plain JSON,
        and a field of typed state may be a Ref. Streamed in chunks; the same content is stored once
        in a session. It is deleted, erased and backed up with the session. Raises BlobTooLarge;
        SessionEnded, since a session that has ended could not name it; SessionNotFound.
        """
        journal, lease = self._writer.journal, self._writer.lease
        return await put_blob(journal, self._writer.known.key, content, media_type, lease)

    async def get(self, ref: AnyRef) -> bytes:
        """Return the content that a Ref (or its data, or its hash) names, all of it in memory: a
        blob of this session, or one of another that it cites.

        Use `stream` for large content. Raises BlobNotFound, and SessionCorrupt if it is not what
        was put; CrossSessionAccessDenied if it may not be read of the other session any more.
        """
        return b"".join([chunk async for chunk in self.stream(ref)])

    def stream(self, ref: AnyRef) -> AsyncGenerator[bytes, None]:
        """Yield the content that a Ref names, chunk by chunk: `async for chunk in
        s.blobs.stream(ref)`.

        Raises as `get` does.
        """
        return self._own_or_cited(hash_of(ref))

    async def _own_or_cited(self, hash: str) -> AsyncGenerator[bytes, None]:
        writer = self._writer
        blobs, key = _blobs(writer.journal), writer.known.key
        own = await blobs.find(key, hash) is not None
        async with aclosing(
            _chunks(blobs, key, hash) if own else self._cited(writer, hash)
        ) as chunks:
            async for chunk in chunks:
                yield chunk
