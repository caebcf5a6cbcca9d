"""Reading a database file's own bytes, and finding out who has it open.

POSIX takes all locks that a process has on a file away when the process closes any descriptor of
it. So whoever opens and closes a database file beside SQLite unlocks it for other processes, and a
restore there would then replace it while it is in use. SQLite knows this and keeps such
descriptors until its last lock is gone: bytes of a database are read through its file layer, here,
and no other module opens a database file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from limpet.store.system import out_of_descriptors

# The byte of the -shm file on which SQLite holds a shared lock in every process that has the
# database open. It is another file than the database: what unlocks the one leaves the other.
_OPEN_BYTE: Final = 128


def first_bytes(path: Path, count: int) -> bytes:
    """The beginning of a file that may be a database; fewer bytes if it is shorter.

    Leaves the locks of this process as they are. Raises OSError.
    """
    with _file(path, apsw.SQLITE_OPEN_READONLY) as file:
        try:
            return bytes(file.xRead(count, 0))
        except apsw.IOError as error:
            raise _os_error(errno.EIO, path) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock out every other connection, of this process too, from a file that SQLite cannot read.

    Raises apsw.BusyError if there is one.
    """
    with _file(path, apsw.SQLITE_OPEN_READWRITE) as file:
        file.xLock(apsw.SQLITE_LOCK_SHARED)
        try:
            file.xLock(apsw.SQLITE_LOCK_EXCLUSIVE)
            refuse_open(path)
            yield
        finally:
            file.xUnlock(apsw.SQLITE_LOCK_NONE)


def refuse_open(path: Path) -> None:
    """Raise apsw.BusyError if another process has the database open, even without its locks.

    Only for whoever holds the exclusive lock: in this process nobody else has it open then, and
    closing the -shm file takes nobody's lock away.
    """
    try:
        handle = os.open(f"{path}-shm", os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OPEN_BYTE)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise apsw.BusyError(f"{path} is open in another process") from error
    finally:
        os.close(handle)


def part_beside(target: Path) -> Path:
    """A name of our own in the target's directory. What dead processes left there is cleared."""
    for left in _parts(target):
        if not _lives(left, target):
            left.unlink(missing_ok=True)
    return target.with_name(f"{target.name}.{os.getpid()}-{os.urandom(4).hex()}.part")


def being_restored(target: Path) -> bool:
    """True if some process writes a file that is to take this place."""
    with suppress(OSError):
        return any(_lives(part, target) for part in _parts(target))
    return False


def _parts(target: Path) -> list[Path]:
    start = re.compile(re.escape(target.name) + r"\.\d+-[0-9a-f]+\.part")
    return [each for each in target.parent.iterdir() if start.match(each.name)]


def _lives(part: Path, target: Path) -> bool:
    """True if the process that a part is named for runs, as far as can be known."""
    pid = part.name.removeprefix(f"{target.name}.").partition("-")[0]
    return Path(f"/proc/{pid}").exists() or not Path("/proc/self").exists()


@contextmanager
def _file(path: Path, mode: int) -> Iterator[apsw.VFSFile]:
    # SQLite does not say why a file cannot be opened.
    if stat.S_ISDIR(path.stat().st_mode):
        raise _os_error(errno.EISDIR, path)
    try:
        name, flags = str(path.absolute()), [apsw.SQLITE_OPEN_MAIN_DB | mode, 0]
        file = apsw.VFSFile("", name, flags)
    except apsw.CantOpenError as error:
        short = out_of_descriptors(str(path)) is not None
        raise _os_error(errno.EMFILE if short else errno.EACCES, path) from error
    try:
        yield file
    finally:
        file.xClose()


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
