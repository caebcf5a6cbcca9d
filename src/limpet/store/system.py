"""System: errors of the operating system as errors of ours, each with its true cause.

A process that runs out of file descriptors gets EMFILE from every call that opens something, and
libraries in between report that as a file that cannot be opened or a server that does not answer.
So whoever cannot open something asks here first whether that is the reason.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakSet

from limpet.errors import Asked, StoreBusy, StoreError, StoreFailed, StoreFull, StoreReadOnly

if TYPE_CHECKING:
    from _thread import LockType, RLock

    ForkLock: TypeAlias = LockType | RLock

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NEEDED: Final = 6  # as many as a store opens at once
FORK_WAIT_SECONDS: Final = 5.0  # a writer that waits for another process keeps its lock for long
_FEWER: Final = "raise the limit of the process (ulimit -n), or have it keep fewer files open"


def of_system(error: OSError, where: str, asked: Asked) -> StoreError:
    """An error of the operating system, as ours. Only where nothing can have been written yet."""
    said = error.strerror or str(error)
    if is_out_of_descriptors(error):
        return StoreBusy(where, reported(error), _FEWER)
    if error.errno in _FULL:
        return StoreFull(where)
    if error.errno in _FORBIDDEN:
        named = f" ({error.filename})" if error.filename not in (None, where) else ""
        reason = f"the operating system refuses it: {said}{named}. Check the permissions of the"
        return StoreReadOnly(where, f"{reason} file, of its directory and of the file system")
    return StoreFailed(where, reported(error), asked)


def is_full_disk(error: OSError) -> bool:
    """True if no space is left."""
    return error.errno in _FULL


def reported(error: OSError) -> str:
    """Return the message of the operating system, in plain words."""
    said = error.strerror or str(error)
    if is_out_of_descriptors(error):
        return f"no file descriptor is free ({said})"
    return f"the operating system reports: {said}"


def fourth_slash(scheme: str, path: Path) -> str:
    """Return a hint for an error about a path that exists from the root only, or nothing."""
    if path.is_absolute() or path.parent.exists() or not Path("/", path).parent.exists():
        return ""
    return f". An absolute path has four slashes: {scheme}:////{path}"


def is_out_of_descriptors(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS


def out_of_descriptors(where: str) -> StoreError | None:
    """The error to raise if this process, or the system, has hardly a file descriptor left.

    For what could not be opened for a reason that nobody told. Opens none but the null device:
    closing a database's file would drop the locks that this process has on it.
    """
    held: list[int] = []
    try:
        for _ in range(_NEEDED):
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return of_system(error, where, "read") if is_out_of_descriptors(error) else None
    finally:
        for each in held:
            os.close(each)
    return None


T = TypeVar("T")


class Process:
    """This process. `forks` says how often it was forked off another; whoever remembers it knows
    later whether it was forked since. Every append asks, and `os.getpid` is a system call."""

    __slots__ = ("_forking", "_held", "_locks", "forks")

    def __init__(self) -> None:
        self.forks = 0
        self._locks: WeakSet[ForkLock] = WeakSet()
        self._forking = threading.RLock()
        self._held: list[ForkLock] = []
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._let_go,
            after_in_child=self._on_fork,
        )

    def fork_waits_for(self, lock: ForkLock) -> None:
        """A fork waits until nobody has this lock, under which a thread is inside a C library.

        SQLite has locks of its own. A child would get one that is held as it is, without the
        thread that lets go of it, and wait for it for ever when it opens a file of its own.
        """
        self._locks.add(lock)

    def _before_fork(self) -> None:
        self._forking.acquire()
        until = monotonic() + FORK_WAIT_SECONDS
        for lock in list(self._locks):
            if lock.acquire(timeout=max(0.0, until - monotonic())):
                self._held.append(lock)

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().release()
        self._forking.release()

    def _on_fork(self) -> None:
        self.forks += 1
        self._let_go()


PROCESS: Final = Process()


def join(thread: threading.Thread) -> None:
    """Wait until a thread is gone, for the operating system too.

    Python's own `join` returns a moment earlier, while libraries still clear up behind the thread:
    OpenSSL with its lock held, and a process forked then could never hash in a new thread.
    """
    thread.join()
    task = f"/proc/self/task/{thread.native_id}"
    until = monotonic() + FORK_WAIT_SECONDS
    while os.path.exists(task) and monotonic() < until:  # noqa: PTH110  # quicker, and asked often
        sleep(0.0001)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancelled caller gets CancelledError when it is over, not
    before."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
        raise
