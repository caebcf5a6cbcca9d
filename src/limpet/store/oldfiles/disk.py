"""The disk under a log store: every call to the operating system, and the lock of the directory.

A log store touches files through a `LogDisk` and in no other way, so that tests can fail any call
or cut the power between two of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from limpet.errors import StoreBusy

LOCK: Final = "lock"
_HELD: Final = (errno.EAGAIN, errno.EACCES)


class LogDisk:
    """The calls of the operating system. Each raises OSError."""

    def open(self, path: Path, *, write: bool, create: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def read(self, handle: int, size: int, at: int) -> bytes:
        return os.pread(handle, size, at)

    def write(self, handle: int, data: bytes, at: int) -> None:
        """Write all of it: a short write is continued."""
        while data:
            done = os.pwrite(handle, data, at)
            data, at = data[done:], at + done

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make names durable: without it a power cut may take a new file away."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    # --- made of these -------------------------------------------------------------------------

    def read_file(self, path: Path) -> bytes:
        handle = self.open(path, write=False)
        try:
            return self.read_all(handle)
        finally:
            self.close(handle)

    def read_all(self, handle: int, at: int = 0) -> bytes:
        parts = []
        while part := self.read(handle, 1 << 22, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def put_file(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        """Write a file that appears whole or not at all, also after a power cut."""
        part = path.with_name(f"{path.name}.part")
        handle = self.open(part, write=True, create=True)
        try:
            self.truncate(handle, 0)
            self.write(handle, content, 0)
            self.sync(handle)  # before the rename: else the name may outlive the content
        finally:
            self.close(handle)
        self.rename(part, path)
        if durable:
            self.sync_directory(path.parent)


class DirectoryLock:
    """The right to write a directory, held by one process.

    It is a POSIX record lock: the system ends it with the process, and a forked child does not
    have it. The same rules let two opens of one process share it, and any close of the file end
    it, so the directories that this process writes are listed here too.
    """

    _mine: Final[dict[tuple[int, int], int]] = {}  # device and inode: the process that has it

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(FileNotFoundError):
            self._refuse_mine(path.stat())  # to open and close it would end the lock that we have
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._id = self._refuse_mine(os.fstat(self._handle))  # another thread was faster
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._handle, 32, 0).decode(errors="replace").strip()
            os.close(self._handle)
            if error.errno not in _HELD:
                raise
            raise self._refused(f"process {holder}" if holder else "another process") from error
        self._mine[self._id] = os.getpid()
        os.pwrite(self._handle, f"{os.getpid():<31}\n".encode(), 0)

    def release(self) -> None:
        """End it. In a forked child this closes the child's copy only."""
        if self._mine.get(self._id) == os.getpid():
            del self._mine[self._id]
        with suppress(OSError):
            os.close(self._handle)

    def _refuse_mine(self, status: os.stat_result) -> tuple[int, int]:
        """Identify the file. Raises StoreBusy if this process has the lock already."""
        identity = (status.st_dev, status.st_ino)
        if self._mine.get(identity) == os.getpid():
            raise self._refused("this process")
        return identity

    def _refused(self, holder: str) -> StoreBusy:
        reason = f"{holder} has it open, and one process at a time writes a files:// store"
        advice = "end that process, or open it with ?mode=ro to read beside it"
        return StoreBusy(str(self._path.parent), reason, advice)
