"""The blobs of a session on their way: each is in the target before an event that names it.

A blob needs its session, and only later events than the first can name it. So the first event goes
ahead, then the blobs, then the rest of the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Final

import msgspec

from limpet.errors import SessionCorrupt
from limpet.model import Key
from limpet.session.journal import Journal
from limpet.session.move.adopter import Adopter
from limpet.store.blobs import Blob, Blobs, KeepsBlobs

_PAGE: Final = 100


class Chunk(msgspec.Struct, frozen=True):
    """A part of a blob, and the blob it is of."""

    blob: Blob
    number: int
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.number == self.blob.chunks - 1


def blobs_in(journal: Journal) -> Blobs | None:
    """The blobs of a store; None if it keeps none."""
    store = journal.store
    return store.blobs if isinstance(store, KeepsBlobs) else None


async def blobs_of(source: Blobs, key: Key) -> AsyncIterator[Blob]:
    """Every own blob of a session."""
    after = ""
    while page := await source.page(key, after=after, limit=_PAGE):
        for blob in page:
            yield blob
        after = page[-1].hash


async def chunks_of(source: Blobs, key: Key, blob: Blob) -> AsyncIterator[Chunk]:
    """A blob in parts. Raises SessionCorrupt instead of a last part, if it is not what was put."""
    content = sha256()
    for number in range(blob.chunks):
        data = await source.chunk(key, blob.hash, number)
        if data is None:
            raise SessionCorrupt(key, f"chunk {number} of blob {blob.hash} is missing")
        content.update(data)
        if number == blob.chunks - 1 and content.hexdigest() != blob.hash:
            raise SessionCorrupt(key, f"blob {blob.hash} has another content than its hash says")
        yield Chunk(blob, number, data)


async def copy_blobs(source: Blobs, target: Adopter, key: Key) -> int:
    """Send the blobs that the target does not have of this session; how many."""
    sent = 0
    async for blob in blobs_of(source, key):
        if await target.has_blob(key, blob.hash):
            continue
        upload = ""
        async for chunk in chunks_of(source, key, blob):
            upload = await target.put_chunk(key, upload, chunk.blob, chunk.number, chunk.data)
        sent += 1
    return sent
