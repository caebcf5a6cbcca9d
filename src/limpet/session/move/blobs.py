"""Copying the blobs of sessions, after their events.

A blob belongs to a session that is there, so it comes after the log. A copy that was stopped in
between is finished by the next: what the target has of a session is looked at again each time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from limpet.errors import SessionDeleted
from limpet.model.keys import Key
from limpet.model.limits import PAGE_MAX
from limpet.session.journal import Journal
from limpet.store.blobs import Blob, Blobs, KeepsBlobs


def blobs_in(journal: Journal) -> Blobs | None:
    """The blobs of a journal's store, if it keeps any."""
    store = journal.store
    return store.blobs if isinstance(store, KeepsBlobs) else None


async def keys_with_blobs(source: Blobs, app: str | None) -> AsyncIterator[Key]:
    """The sessions of an app, or all, that have blobs of their own."""
    after = None
    while keys := await source.keys(app, after=after, limit=PAGE_MAX):
        for after in keys:
            yield after


async def copy_blobs(source: Blobs, target: Journal, key: Key) -> int:
    """Copy the blobs of one session that the target has the log of; how many it did not have."""
    there, count, after = blobs_in(target), 0, ""
    if there is None:
        return 0
    while page := await source.page(key, after=after, limit=PAGE_MAX):
        for blob in page:
            after = blob.hash
            if await there.find(key, blob.hash, own=True) is None:
                await _copy(source, there, key, blob, target.new_id())
                count += 1
    return count


async def _copy(source: Blobs, target: Blobs, key: Key, blob: Blob, upload: str) -> None:
    for number in range(blob.chunks):
        chunk = await source.chunk(key, blob.hash, number)
        if chunk is None:
            raise SessionDeleted(key)
        if number < blob.chunks - 1:
            await target.put_chunk(key, upload, number, chunk)
        else:
            await target.finish(key, upload, blob, chunk, at=blob.version)
