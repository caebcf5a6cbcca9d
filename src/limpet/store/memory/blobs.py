"""Blobs in memory: chunks in lists, uploads beside the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from limpet.errors import SessionError, SessionFenced, UploadLost
from limpet.model import Key
from limpet.model.lease import admits
from limpet.model.limits import BLOB_UPLOAD_SECONDS_MAX
from limpet.store.blobs import Blob, check_open
from limpet.store.memory.tables import MemoryLog

_PAUSE_US = BLOB_UPLOAD_SECONDS_MAX * 1_000_000


class _Upload(NamedTuple):
    log: MemoryLog
    chunks: list[bytes]
    touched_us: int


class MemoryBlobs:
    """`living` gives the log of a session, or raises what a load would; `all` gives all of them."""

    def __init__(
        self,
        living: Callable[[Key], MemoryLog],
        present: Callable[[Key], MemoryLog],
        all: Callable[[], list[MemoryLog]],
        clock: Callable[[], int],
    ) -> None:
        self._living, self._present, self._all, self._clock = living, present, all, clock
        self._uploads: dict[str, _Upload] = {}

    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        log = self._living(key)
        self._sweep()
        chunks = self._chunks(key, log, upload, number)
        self._uploads[upload] = _Upload(log, [*chunks, bytes(data)], self._clock())

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
        log = self._living(key)
        head = log.fold.head
        if at is None:
            check_open(head)
        if fence is not None and not admits(head, fence, self._clock()):
            raise SessionFenced(key, fence, head.fence)
        self._sweep()
        if blob.hash in log.blobs:
            self._uploads.pop(upload, None)
            return log.blobs[blob.hash][0]
        chunks = self._chunks(key, log, upload, blob.chunks - 1)
        self._uploads.pop(upload, None)
        made = msgspec.structs.replace(blob, version=head.version if at is None else at)
        log.blobs[blob.hash] = (made, [*chunks, bytes(last)])
        return made

    async def drop(self, key: Key, upload: str) -> None:
        with suppress(SessionError):
            self._living(key)
        self._uploads.pop(upload, None)

    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        if own:
            found = self._present(key).blobs.get(hash)
            return None if found is None else found[0]
        return next((blob for blob, _ in self._seen(key, hash)), None)

    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        chunks = next((chunks for _, chunks in self._seen(key, hash)), [])
        return chunks[number] if 0 <= number < len(chunks) else None

    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        own = self._living(key).blobs
        return tuple([own[hash][0] for hash in sorted(own) if hash > after][:limit])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        found = sorted([log.fold.head.key for log in self._all() if log.blobs])
        wanted = [key for key in found if app in (None, key.app) and (after is None or key > after)]
        return tuple(wanted[:limit])

    def _seen(self, key: Key, hash: str) -> Iterator[tuple[Blob, list[bytes]]]:
        """What the session, then its parents up to where it goes on from, have of it."""
        log: MemoryLog | None = self._present(key)
        ceiling: int | None = None
        while log is not None:
            found = log.blobs.get(hash)
            if found is not None and (ceiling is None or found[0].version < ceiling):
                yield found
            ceiling = log.floor if ceiling is None else min(ceiling, log.floor)
            log = log.parent

    def _chunks(self, key: Key, log: MemoryLog, upload: str, number: int) -> list[bytes]:
        """The chunks before this one."""
        begun = self._uploads.get(upload)
        chunks = [] if begun is None else begun.chunks
        if len(chunks) != number or (begun is not None and begun.log is not log):
            raise UploadLost(key)
        return chunks

    def _sweep(self) -> None:
        before_us = self._clock() - _PAUSE_US
        for upload, begun in list(self._uploads.items()):
            if begun.touched_us < before_us:
                del self._uploads[upload]
