"""System: errors of the operating system as errors of ours, each with its true cause.

A process that runs out of file descriptors gets EMFILE from every call that opens something, and
libraries in between report that as a file that cannot be opened or a server that does not answer.
So whoever cannot open something asks here first whether that is the reason.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from limpet.errors import Asked, StoreBusy, StoreError, StoreFailed, StoreFull, StoreReadOnly

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NEEDED: Final = 6  # as many as a store opens at once
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

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0
        os.register_at_fork(after_in_child=self._on_fork)

    def _on_fork(self) -> None:
        self.forks += 1


PROCESS: Final = Process()


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
