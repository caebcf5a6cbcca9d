"""Arriving: the log of one session on its way from its file back into a store.

For what comes back to where it was, as from an archive: in few commits, and with the states that
its checkpoints had pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from limpet.model import COMMIT_BYTES_MAX, DRAFTS_PER_COMMIT_MAX, Commit, Key, checkpoints_of
from limpet.session.journal import Journal
from limpet.session.move.adopter import Adopter
from limpet.session.move.bundle import BundleReader, Entry, Opening, Source
from limpet.session.move.checkpoints import Checkpointed, log_piece_at, pinned
from limpet.session.move.contents import Chunk
from limpet.store.protocol import ChainedEvent
from limpet.store.threads import in_thread

_PIECE: Final = (1_000, 4 * 2**20)
_PINS_MAX: Final = 64  # states that come back pinned, the newest: they are in one commit


async def adopt(
    journal: Journal, source: Source, pins: Mapping[int, int], to: Key | None = None
) -> None:
    """Adopt the log in a proved file in few commits, then its blobs.

    Under another key, if one is given, whose checkpoints are under `{id}-checkpoints`: so no reader
    meets a part of it before it takes its own.
    """
    reader = await in_thread(lambda: BundleReader(source))
    adopter = Adopter(journal)
    key = reader.opening.key if to is None else to
    log = checkpoints_of(key) if to is None else Key(to.app, to.user, f"{to.id}-checkpoints")
    arriving = _Arriving(adopter, reader.opening, pins, key, log)
    try:
        while found := await in_thread(lambda: reader.read(*_PIECE)):
            await arriving.add(found)
        await arriving.end()
    finally:
        await in_thread(reader.close)
    if arriving.has_blobs:
        await _put_blobs(adopter, source, key)


async def _put_blobs(adopter: Adopter, source: Source, key: Key) -> None:
    """Go through the file once more: a blob may be larger than memory, and needs its session."""
    reader = await in_thread(lambda: BundleReader(source))
    upload = ""
    try:
        while found := await in_thread(lambda: reader.read(*_PIECE)):
            for chunk in [each for each in found if isinstance(each, Chunk)]:
                given = (chunk.blob, chunk.number, chunk.data)  # one that is there is dropped
                upload = await adopter.put_chunk(key, upload if chunk.number else "", *given)
    finally:
        await in_thread(reader.close)


class _Arriving:
    """A session on its way back from its file."""

    def __init__(
        self, adopter: Adopter, opening: Opening, pins: Mapping[int, int], key: Key, log: Key
    ) -> None:
        self._adopter, self._opening, self._key, self._log_key = adopter, opening, key, log
        self._pins = dict(sorted(pins.items())[-_PINS_MAX:])
        self._records: list[ChainedEvent] = []
        self._log: list[ChainedEvent] = []
        self._first = True
        self.has_blobs = False

    async def add(self, found: list[Entry]) -> None:
        self._records += [each for each in found if isinstance(each, ChainedEvent)]
        self._log += [each.record for each in found if isinstance(each, Checkpointed)]
        self.has_blobs |= any([isinstance(each, Chunk) for each in found])
        size = sum(len(each.raw or b"") for each in self._records)
        many = len(self._records) > DRAFTS_PER_COMMIT_MAX - 2 * _PIECE[0]
        if many or size > COMMIT_BYTES_MAX // 2:
            await self._adopter.commit(self._commits())

    async def end(self) -> None:
        """Record what is left, with the checkpoints; a log of many goes in commits of its own."""
        key, log, room = self._log_key, self._log, _PIECE[0]
        commits = self._commits()
        if log:
            commits.append(log_piece_at(key, log[:room]))
        if commits:
            await self._adopter.commit(commits)
        for at in range(room, len(log), room):
            await self._adopter.commit((log_piece_at(key, log[at : at + room]),))

    def _commits(self) -> list[Commit]:
        records, self._records = self._records, []
        base = self._opening.base if self._first else None
        made = pinned(self._key, records, self._pins, base)
        if self._first and made:
            made[0] = structs.replace(made[0], reuse=True)
            self._first = False
        return made
