"""Archives: where the files of archived sessions are kept. One file each, in the export format."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from limpet.errors import ArchiveFailed, InvalidURL
from limpet.model import Key, canonical
from limpet.store.coding.files import check_inside
from limpet.store.sqlite.file.locks import part_beside
from limpet.store.system import in_thread

T = TypeVar("T")
_SUFFIX: Final = ".limpet"
_PART: Final = re.compile(r"\.\d+-[0-9a-f]+\.part$")  # as `part_beside` names it


class Archive(Protocol):
    """Cold storage for files. Names are relative paths with `/`.

    A file that was put is durable and whole when `put` returns; a name has the old file or the new
    one, never a part. Removing what is not there is fine. Raises ArchiveFailed.
    """

    @property
    def url(self) -> str: ...

    async def put(self, name: str, path: Path) -> None:
        """Store a copy of this file."""
        ...

    async def fetch(self, name: str, path: Path) -> None:
        """Write the stored file to this path, which does not exist yet."""
        ...

    async def remove(self, name: str) -> None: ...

    async def remove_all(self, folder: str) -> None:
        """Remove every file whose name begins with `folder/`."""
        ...

    async def names(self, folder: str) -> list[str]:
        """The names of all files that begin with `folder/`."""
        ...


class DirectoryArchive:
    """A directory of files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    async def put(self, name: str, path: Path) -> None:
        await self._run("written", lambda: _put(self._at(name, "written"), path))

    async def fetch(self, name: str, path: Path) -> None:
        await self._run("read", lambda: shutil.copyfile(self._at(name, "read"), path))

    async def remove(self, name: str) -> None:
        await self._run("removed", lambda: _remove(self._at(name, "removed")))

    async def remove_all(self, folder: str) -> None:
        await self._run("removed", lambda: _remove_all(self._at(folder, "removed")))

    async def names(self, folder: str) -> list[str]:
        return await self._run("listed", lambda: self._names(folder))

    def _names(self, folder: str) -> list[str]:
        files = [each for each in self._at(folder, "listed").rglob("*") if each.is_file()]
        names = [file.relative_to(self._root).as_posix() for file in files]
        return sorted({_PART.sub("", name) for name in names})

    def _at(self, name: str, doing: str) -> Path:
        """The path of a file. Raises ArchiveFailed if the name leads out of the directory."""
        check_inside(self.url, name, doing)
        return self._root / name

    async def _run(self, doing: str, work: Callable[[], T]) -> T:
        try:
            return await in_thread(work)
        except OSError as error:
            raise ArchiveFailed(self.url, doing, error.strerror or str(error)) from error


def open_archive(url: str | None) -> Archive | None:
    """The archive that a URL names: file:///directory or s3://bucket/prefix. Raises InvalidURL."""
    if url is None:
        return None
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
        return DirectoryArchive(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        from limpet.session.life.s3 import BucketArchive

        return BucketArchive(parts.netloc, parts.path.strip("/"))
    advice = "Write file:///directory or s3://bucket/prefix"
    raise InvalidURL(str(url), "it does not name an archive", advice)


async def put_bytes(archive: Archive, name: str, raw: bytes) -> None:
    """Store a small file with these bytes. Raises ArchiveFailed."""
    try:
        with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
            made = Path(folder) / "made"
            await in_thread(lambda: made.write_bytes(raw))
            await archive.put(name, made)
    except OSError as error:  # of the temporary file
        raise ArchiveFailed(archive.url, "written", error.strerror or str(error)) from error


async def fetch_bytes(archive: Archive, name: str) -> bytes:
    """The bytes of a small file. Raises ArchiveFailed."""
    try:
        with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
            path = Path(folder) / "found"
            await archive.fetch(name, path)
            return await in_thread(path.read_bytes)
    except OSError as error:
        raise ArchiveFailed(archive.url, "read", error.strerror or str(error)) from error


def folder_of(app: str, user: str) -> str:
    """Return the folder of all files of one user, so that they can be erased together."""
    return sha256(canonical([app, user])).hexdigest()[:32]


def name_of(key: Key, attempt: str) -> str:
    """The name of one file of a session. It says nothing about the user.

    Each attempt to archive a session has a file of its own: whoever still writes or removes one
    does not touch another.
    """
    return f"{home_of(key)}/{attempt}{_SUFFIX}"


def home_of(key: Key) -> str:
    """Return the folder of all files of one key, also those of attempts that came to nothing."""
    return f"{folder_of(key.app, key.user)}/{sha256(canonical(key.id)).hexdigest()[:32]}"


def _put(target: Path, path: Path) -> None:
    """Copy, sync, then rename: a crash leaves the old file or the new one."""
    made = _make(target.parent)
    part = part_beside(target)
    try:
        with path.open("rb") as source, part.open("xb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())  # or the name could survive a power cut without the bytes
        part.replace(target)
        for folder in (target.parent, *made):
            _sync(folder)
    finally:
        part.unlink(missing_ok=True)


def _make(folder: Path) -> list[Path]:
    """Make a folder; those that hold a new name, which must survive a power cut as the file does.

    Another process may have made it a moment ago and not be done yet, so those above always do.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return [folder.parent, folder.parent.parent, *[each.parent for each in missing[2:]]]


def _remove(target: Path) -> None:
    """Remove a file, and what a process that died in the middle of writing it has left."""
    target.unlink(missing_ok=True)
    if target.parent.is_dir():
        for each in target.parent.iterdir():
            if _PART.sub("", each.name) == target.name:
                each.unlink(missing_ok=True)


def _remove_all(folder: Path) -> None:
    """Remove a directory. What another removes meanwhile is gone, too; what stays is an error."""
    while True:
        try:
            return shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return


def _sync(folder: Path) -> None:
    """The rename itself must survive a power cut, too: the hot rows go next."""
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
