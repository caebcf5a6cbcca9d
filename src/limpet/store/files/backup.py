"""Backup and restore of a log store: its files in one tar, taken while others write.

What a backup needs is appended to or replaced, never changed in place (but by an erasure), so it
is enough to open every file at one instant and copy each up to where the log ended then. A restore
unpacks beside the target, verifies, and renames: after a failure at any point the target is as it
was.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, TypeAlias

from limpet.errors import BackupDamaged, BackupRefused, StoreCorrupt, StoreForeign
from limpet.store.coding.codec import Codec
from limpet.store.doctor import damage
from limpet.store.files.disk import LOCK, DirectoryLock, LogDisk
from limpet.store.files.lines import FeedLine
from limpet.store.files.state import META, JournaledStore
from limpet.store.files.verify import FilesVerification
from limpet.store.logs import FILES
from limpet.store.protocol import Progress, Report, Restored
from limpet.store.sqlite.file.locks import part_beside
from limpet.store.system import in_thread

_EPOCH_BITS: Final = 20  # below the milliseconds of the clock: positions between two restores
_TAKEN: Final = "exists already; choose another name or remove it"
_EXISTS: Final = (
    "exists already; to overwrite it, ask for that (replace=True, or --replace on the command line)"
)
_NO_DIRECTORY: Final = "is in a directory that does not exist; create it first"
_NO_BACKUP: Final = "is not there; name the file of a backup"
_NOT_ONE: Final = "is not a backup of a files:// store; limpet backup files:///DIR makes one"
_ANOTHER: Final = "Restore another backup"


class CapturedStore:
    """The files of a store at one instant, held open: what is removed meanwhile is still copied."""

    def __init__(self, store: JournaledStore) -> None:
        self._opened = ExitStack()
        self._meta = store.disk.read_file(store.directory / META)
        self._files: list[tuple[str, BinaryIO, int]] = []
        journal, end = store.journal, store.journal.end
        for number in journal.segments():
            if store.base_segment <= number <= end.segment:
                path = journal.path(number)
                file = self._opened.enter_context(path.open("rb"))
                size = end.offset if number == end.segment else path.stat().st_size
                self._files.append((f"log/{path.name}", file, size))

    def write(self, target: Path, progress: Progress | None) -> None:
        """Put everything into a tar file."""
        total = 1 + len(self._files)
        with self._opened, tarfile.open(target, "w") as tar:
            _add(tar, META, io.BytesIO(self._meta), len(self._meta))
            for done, (name, file, size) in enumerate(self._files, 1):
                if progress is not None:
                    progress(done, total)
                _add(tar, name, file, size)
            if progress is not None:
                progress(total, total)

    def close(self) -> None:
        self._opened.close()


_Capture: TypeAlias = Callable[[], CapturedStore]


def captured_store(
    store: JournaledStore, read: Callable[[_Capture], CapturedStore]
) -> CapturedStore:
    """The files of a store that another process writes, which may compact it meanwhile: `read`
    runs a read again then."""
    captured: CapturedStore | None = None

    def capture() -> CapturedStore:
        nonlocal captured
        if captured is not None:
            captured.close()
        captured = CapturedStore(store)
        return captured

    return read(capture)


def back_up(captured: CapturedStore, source: Path, target: Path, progress: Progress | None) -> None:
    """Write a backup under its name: complete or not at all."""
    refuse_place(target)
    began, part = time.monotonic(), part_beside(target)
    try:
        captured.write(part, progress)
        part.chmod(0o600)
        _sync(part)
        part.replace(target)
        _sync(target.parent)
    finally:
        captured.close()
        part.unlink(missing_ok=True)
    FILES.info(
        "backup written: store=%s file=%s seconds=%.3f", source, target, time.monotonic() - began
    )


async def back_up_directory(
    path: Path,
    target: Path,
    *,
    verify: bool,
    progress: Progress | None,
    checking: Progress | None,
) -> Report | None:
    """Copy a store that is not open here; another process may be writing it."""

    def run() -> Report | None:
        refuse_place(target)
        with _opened(path.absolute(), write=False) as store:
            back_up(captured_store(store, store.look), path, target, progress)
        if not verify:
            return None
        with _unpacked(target, target) as place:
            return _verified(place, checking)

    return await in_thread(run)


def restore(
    backup: Path,
    target: Path,
    *,
    replace: bool,
    damaged: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Put a backup in the place of a store that no process has open."""
    if target.exists() and any(target.iterdir()):
        if not (target / META).is_file():
            raise StoreForeign(str(target), "Nothing was replaced: name another directory")
        if not replace:
            raise BackupRefused(str(target), _EXISTS)
    if not target.parent.is_dir():
        raise BackupRefused(str(target), _NO_DIRECTORY)
    if not backup.is_file():
        raise BackupRefused(str(backup), _NO_BACKUP)
    began = time.monotonic()
    with _unpacked(backup, target) as place:
        report = _verified(place, progress)
        findings = damage(report)
        if findings and not damaged:
            raise BackupDamaged(str(backup), tuple(map(str, findings)))
        issued = _issued(target)
        _lift(place, issued)
        _take_place(place, target)
    level = logging.WARNING if findings else logging.INFO
    text = "store restored: store=%s file=%s seconds=%.3f findings=%d"
    FILES.log(level, text, target, backup, time.monotonic() - began, len(findings))
    return Restored(report, None)


def refuse_place(target: Path) -> None:
    if target.exists():
        raise BackupRefused(str(target), _TAKEN)
    if not target.parent.is_dir():
        raise BackupRefused(str(target), _NO_DIRECTORY)


@contextmanager
def _unpacked(backup: Path, beside: Path) -> Iterator[Path]:
    """A backup as a directory of its own, removed when the block ends unless it was renamed."""
    place = part_beside(beside)
    place.mkdir(mode=0o700)
    try:
        try:
            with tarfile.open(backup, "r:") as tar:
                for member in tar:
                    _extract(tar, member, place)
        except tarfile.ReadError as error:
            raise BackupRefused(str(backup), _NOT_ONE) from error
        except (tarfile.TarError, EOFError) as error:
            raise StoreCorrupt(str(backup), str(error), _ANOTHER) from error
        if not (place / META).is_file():
            raise BackupRefused(str(backup), _NOT_ONE)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Write one plain file. Nothing leads out of the place, and nothing is a link."""
    parts = PurePosixPath(member.name).parts
    source = tar.extractfile(member) if member.isfile() else None
    if source is None or not parts or ".." in parts or parts[0].startswith("/") or len(parts) > 4:
        raise tarfile.TarError(f"it has an entry {member.name!r} that no backup has")
    path = place.joinpath(*parts)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened(place: Path, *, write: bool) -> Iterator[JournaledStore]:
    """A store without its lock and its writer."""
    store = JournaledStore(place, LogDisk(), Codec(None), None, write=write)
    try:
        store.open_directory()
        yield store
    finally:
        store.close_files()


def _verified(place: Path, progress: Progress | None) -> Report:
    with _opened(place, write=False) as store:
        return FilesVerification(store, store.codec).run(None, progress)


def _issued(target: Path) -> int:
    """The last position that the store in this place has handed out, if it can be read."""
    if not (target / META).is_file():
        return 0
    try:
        with _opened(target, write=False) as store:
            return store.feed_end(0)
    except Exception:  # it is being replaced, perhaps because of this
        return 0


def _lift(place: Path, issued: int) -> None:
    """Let positions in the feed begin above every one that was handed out since the backup: used
    again, they would hide what comes now from those who remember them."""
    with _opened(place, write=True) as store:
        last = max(issued, store.feed_end(0))
        epoch = max(time.time_ns() // 1_000_000, (last >> _EPOCH_BITS) + 1)
        store.journal.append([[FeedLine((epoch << _EPOCH_BITS) + 1)]])
        store.journal.trim()
        store.journal.note_closed()


def _take_place(place: Path, target: Path) -> None:
    """Rename: the old store is whole until the new one has its name."""
    if not target.exists():
        place.rename(target)
        _sync(target.parent)
        return
    lock = DirectoryLock(target / LOCK)  # raises StoreBusy if it is open
    aside = target.with_name(f"{target.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        target.rename(aside)
        place.rename(target)
        _sync(target.parent)
    finally:
        lock.release()
    shutil.rmtree(aside, ignore_errors=True)


def _add(tar: tarfile.TarFile, name: str, file: BinaryIO, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
