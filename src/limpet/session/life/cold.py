"""The cold file of a session: its log in an archive, put there, fetched and proved.

A file counts once it was read back and is what was sent. One that is not the file that was put
there is never read.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.errors import ArchiveFailed, InvalidInput
from limpet.model import Head, Key
from limpet.model.facts import archive as facts
from limpet.session.journal import Journal
from limpet.session.life.archives import Archive, home_of, name_of
from limpet.session.move.files import export_session, proved
from limpet.store.protocol import Standing
from limpet.store.threads import in_thread

_NO_ARCHIVE: Final = (
    "the session is in an archive and none is open. Open the store with "
    "limpet.open(url, archive='file:///directory')."
)


class ColdFile(NamedTuple):
    """The file of a session, proved, and where its full checkpoints stand."""

    path: Path
    pins: Mapping[int, int]


async def stored(journal: Journal, archive: Archive, key: Key, at: Standing) -> dict[str, Any]:
    """Put the session's file into the archive, read it back and prove it; where it is."""
    name = name_of(key, at)
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        made, back = Path(folder) / "made", Path(folder) / "back"
        await export_session(journal, key, made)
        await archive.put(name, made)
        await archive.fetch(name, back)
        await _check_same(archive, made, back)
        size, digest = await in_thread(lambda: _digest_of(back))
    return {"place": name, "uid": at.uid, "bytes": size, "sha256": digest}


@asynccontextmanager
async def fetched(journal: Journal, place: Any) -> AsyncIterator[ColdFile]:
    """The file of an archived session, for as long as the block lasts, proved. Raises."""
    archive = archive_of(journal)
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        path = Path(folder) / "session.limpet"
        await archive.fetch(place["place"], path)
        found = await in_thread(lambda: _digest_of(path))
        if found != (place["bytes"], place["sha256"]):
            raise ArchiveFailed(archive.url, "read", "the file is not the one that was put there")
        yield ColdFile(path, (await proved(path)).pins)


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


async def _check_same(archive: Archive, made: Path, back: Path) -> None:
    """What came back is what was sent, and proves itself."""
    one, other = await in_thread(lambda: (_digest_of(made), _digest_of(back)))
    if one != other:
        raise ArchiveFailed(archive.url, "verified", "the file that came back differs")
    await proved(back)


def _digest_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, file_digest(file, "sha256").hexdigest()
