"""The cold file of a session: its log in an archive, put there, fetched and proved.

A file counts once it was read back and is what was sent. One that is not the file that was put
there is never read. With a seal it is sealed as it is written and opened as it is read: its plain
text is on no disk, not even for a moment.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.errors import (
    ArchiveDamaged,
    ArchiveFailed,
    BundleRefused,
    InvalidInput,
    SessionArchived,
    SessionCorrupt,
    StoreFull,
)
from limpet.model import Key
from limpet.session.journal import Journal
from limpet.session.life.archives import Archive, name_of
from limpet.session.move.files import export_session, proved
from limpet.session.runs.delegation import head_of
from limpet.store.coding.files import FileSeal, SealedPath, file_seal, is_sealed
from limpet.store.protocol import Standing
from limpet.store.threads import in_thread

_NO_ARCHIVE: Final = (
    "the session is in an archive and none is open. Open the store with "
    "limpet.open(url, archive='file:///directory'), or pass --archive to the command."
)


class ColdFile(NamedTuple):
    """The file of a session, proved, and where its full checkpoints stand."""

    path: SealedPath
    pins: Mapping[int, int]


class Stored:
    """The file of a session on its way into an archive, under a name that no other file has."""

    def __init__(
        self, archive: Archive, made: Path, seal: FileSeal, size: int, sha256: str
    ) -> None:
        self._archive, self._made, self._seal = archive, made, seal
        self.name, self.size, self.sha256 = seal.name, size, sha256

    async def put(self) -> None:
        """Put it there, read it back and prove it. Raises ArchiveFailed."""
        await self._archive.put(self.name, self._made)
        back = self._made.with_name("back")
        await self._archive.fetch(self.name, back)
        if await _digest_of(back) != (self.size, self.sha256):
            url = self._archive.url
            raise ArchiveFailed(url, "verified", "the file that came back differs")
        try:
            await proved(self._seal.at(back))
        except ArchiveDamaged as error:
            raise ArchiveFailed(self._archive.url, "verified", error.reason) from error


@asynccontextmanager
async def stored(
    journal: Journal, archive: Archive, key: Key, at: Standing
) -> AsyncIterator[Stored | None]:
    """The file of a session that stands there, for as long as the block lasts; None if the session
    went on. Raises ArchiveFailed, also if there is no space for the file."""
    name = name_of(key, journal.new_id())
    seal = file_seal(journal.store, "archive", at.uid, name)
    await seal.ready()
    async with _folder(archive, "written") as folder:
        made = folder / "made"
        if await _is_exported(journal, archive, key, at, made, seal):
            yield Stored(archive, made, seal, *await _digest_of(made))
        else:
            yield None


async def _is_exported(
    journal: Journal, archive: Archive, key: Key, at: Standing, made: Path, seal: FileSeal
) -> bool:
    """Write the session to a file. False if it does not stand there any more."""
    try:
        head = await export_session(journal, key, made, seal if seal.seals else None)
    except StoreFull as error:
        raise ArchiveFailed(archive.url, "written", os.strerror(errno.ENOSPC)) from error
    except BundleRefused as error:
        raise ArchiveFailed(archive.url, "written", error.reason) from error
    except SessionArchived:
        return False
    except SessionCorrupt:  # or its rows went while they were read
        here = await head_of(journal, key)
        if here is not None and (here.uid, here.version) == at[:2]:
            raise
        return False
    return (head.uid, head.version) == at[:2]


@asynccontextmanager
async def fetched(journal: Journal, place: Any) -> AsyncIterator[ColdFile]:
    """The file of an archived session, for as long as the block lasts, proved. Raises."""
    archive = archive_of(journal)
    async with _folder(archive, "read") as folder:
        path = folder / "session.limpet"
        await archive.fetch(place["place"], path)
        seal = file_seal(journal.store, "archive", place["uid"], place["place"])
        await seal.ready()
        if not await _is_the_one(path, place):
            raise ArchiveFailed(archive.url, "read", "the file is not the one that was put there")
        yield ColdFile(seal.at(path), (await proved(seal.at(path))).pins)


def archive_of(journal: Journal) -> Archive:
    """The archive that is open. Raises InvalidInput if none is."""
    found: Archive | None = journal.archive
    if found is None:
        raise InvalidInput(_NO_ARCHIVE)
    return found


async def _is_the_one(path: Path, place: Any) -> bool:
    """True if this is the file that was put there. A sealed one proves that as it is opened: its
    blocks are bound to its name, which stands for one log and no other."""
    if await in_thread(lambda: is_sealed(path)):
        return True
    return await _digest_of(path) == (place["bytes"], place["sha256"])


async def _digest_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""

    def read() -> tuple[int, str]:
        with path.open("rb") as file:
            return path.stat().st_size, file_digest(file, "sha256").hexdigest()

    return await in_thread(read)


@asynccontextmanager
async def _folder(archive: Archive, doing: str) -> AsyncIterator[Path]:
    """A temporary folder. What the disk refuses in it is an ArchiveFailed."""
    try:
        with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
            yield Path(folder)
    except TimeoutError:  # not of the disk
        raise
    except OSError as error:
        raise ArchiveFailed(archive.url, doing, error.strerror or str(error)) from error
