"""The cold file of a session: its log in an archive, put there, fetched and proved.

A file counts once it was read back and is what was sent. One that is not the file that was put
there is never read. With a seal it is sealed as it is written and opened as it is read: its plain
text is on no disk, not even for a moment.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.errors import ArchiveDamaged, ArchiveFailed, InvalidInput
from limpet.model import Head, Key
from limpet.model.facts import archive as facts
from limpet.session.journal import Journal
from limpet.session.life.archives import Archive, home_of, name_of
from limpet.session.move.files import export_session, proved
from limpet.store.coding.files import FileSeal, SealedPath, file_seal, has_seal, is_sealed
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


async def stored(
    journal: Journal, archive: Archive, key: Key, at: Standing
) -> dict[str, Any] | None:
    """Put the session's file into the archive, read it back and prove it; where it is.

    None, and nothing was put there, if the session does not stand there any more.
    """
    name = name_of(key, at, sealed=has_seal(journal.store))
    seal = file_seal(journal.store, "archive", at.uid, name)
    await seal.ready()
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        made, back = Path(folder) / "made", Path(folder) / "back"
        head = await export_session(journal, key, made, seal if seal.seals else None)
        if (head.uid, head.version) != at[:2]:  # a name stands for one log and no other
            return None
        await archive.put(name, made)
        await archive.fetch(name, back)
        await _check_same(archive, made, back, seal)
        size, digest = await in_thread(lambda: _digest_of(back))
    return {"place": name, "uid": at.uid, "bytes": size, "sha256": digest}


@asynccontextmanager
async def fetched(journal: Journal, place: Any) -> AsyncIterator[ColdFile]:
    """The file of an archived session, for as long as the block lasts, proved. Raises."""
    archive = archive_of(journal)
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        path = Path(folder) / "session.limpet"
        await archive.fetch(place["place"], path)
        seal = file_seal(journal.store, "archive", place["uid"], place["place"])
        await seal.ready()
        if not await in_thread(lambda: _is_the_one(path, place)):
            raise ArchiveFailed(archive.url, "read", "the file is not the one that was put there")
        yield ColdFile(seal.at(path), (await proved(seal.at(path))).pins)


async def remove_archived(journal: Journal, head: Head, *, erasing: bool = False) -> None:
    """Remove the files of an archived session. Raises if the archive is not open.

    If it is erased, also a file that a race has left behind of one that is not archived.
    """
    if facts.place(head.facts) is not None or (erasing and journal.archive is not None):
        await archive_of(journal).remove_all(home_of(head.key))


def archive_of(journal: Journal) -> Archive:
    """The archive that is open. Raises InvalidInput if none is."""
    found: Archive | None = journal.archive
    if found is None:
        raise InvalidInput(_NO_ARCHIVE)
    return found


async def _check_same(archive: Archive, made: Path, back: Path, seal: FileSeal) -> None:
    """What came back is what was sent, and proves itself.

    The bytes of sealed files are not compared: another process that archives the session at the
    same time writes the same log under this name, and seals it otherwise.
    """
    if not seal.seals:
        one, other = await in_thread(lambda: (_digest_of(made), _digest_of(back)))
        if one != other:
            raise ArchiveFailed(archive.url, "verified", "the file that came back differs")
    try:
        await proved(seal.at(back))
    except ArchiveDamaged as error:
        raise ArchiveFailed(archive.url, "verified", error.reason) from error


def _is_the_one(path: Path, place: Any) -> bool:
    """Whether this is the file that was put there. A sealed one proves that as it is opened: its
    blocks are bound to its name, which stands for one log and no other."""
    return is_sealed(path) or _digest_of(path) == (place["bytes"], place["sha256"])


def _digest_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, file_digest(file, "sha256").hexdigest()
