"""Disks that fail: SQLite file systems between the store and the operating system.

`Faulty` counts I/O calls and fails the nth. It hands everything else on, so what is left in the
directory is what a real disk would have been left with. Shared memory (-shm) is not on the way:
SQLite maps it directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import apsw

_numbers: Final = itertools.count()

READS: Final = frozenset(("read", "size", "access"))
WRITES: Final = frozenset(("write", "truncate"))
ALL: Final = READS | WRITES | {"open", "sync", "delete"}

_EXTENDED: Final = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "size": apsw.SQLITE_IOERR_FSTAT,
    "access": apsw.SQLITE_IOERR_ACCESS,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


class Faults:
    """Which call fails: the `at`th of the kinds counted, and if `lasting` all after it."""

    def __init__(
        self,
        at: int | None = None,
        *,
        kinds: frozenset[str] = ALL,
        full: bool = False,
        lasting: bool = False,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self.at, self.kinds, self.full, self.lasting = at, kinds, full, lasting
        self.calls = 0
        self.struck: list[str] = []

    def meet(self, kind: str, file: str = "") -> None:
        """Count a call, and fail it if its turn has come."""
        if kind not in self.kinds:
            return
        self.calls += 1
        if self.at is None or self.calls < self.at or (self.calls > self.at and not self.lasting):
            return
        self.struck.append(f"{kind} {file}")
        raise self._error(kind)

    def mend(self) -> None:
        """From now on nothing fails."""
        self.at = None

    def _error(self, kind: str) -> apsw.Error:
        if self.full:
            return apsw.FullError(f"injected: no space for {kind}")
        error: apsw.Error
        error = (
            apsw.CantOpenError(f"injected: {kind}")
            if kind == "open"
            else apsw.IOError(f"injected: {kind}")
        )
        error.extendedresult = _EXTENDED[kind]
        return error


class Faulty(apsw.VFS):
    """The operating system's files, with faults."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.faults = faults
        super().__init__(name, "")

    def excepthook(self, *_: Any) -> bool:
        return True  # an injected fault that SQLite itself swallows is no news

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.faults.meet("open", _short(name))
        if self.faults.read_only and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            flags[0] &= ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            flags[0] |= apsw.SQLITE_OPEN_READONLY
        return FaultyFile(name, flags, self.faults)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        self.faults.meet("delete", _short(name))
        super().xDelete(name, sync)

    def xAccess(self, name: str, flags: int) -> bool:  # noqa: N802
        self.faults.meet("access", _short(name))
        return super().xAccess(name, flags)


class FaultyFile(apsw.VFSFile):
    """One open file of a Faulty disk."""

    def __init__(self, name: Any, flags: list[int], faults: Faults) -> None:
        self.faults, self.name = faults, _short(name)
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self.faults.meet("read", self.name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.faults.meet("write", self.name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.faults.meet("sync", self.name)  # nobody cuts the power here: a real sync is not needed

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.faults.meet("truncate", self.name)
        super().xTruncate(size)

    def xFileSize(self) -> int:  # noqa: N802
        self.faults.meet("size", self.name)
        return super().xFileSize()


@contextmanager
def faulty(faults: Faults) -> Iterator[str]:
    """The name of a registered file system that fails as told."""
    name = f"limpet-faulty-{next(_numbers)}"
    disk = Faulty(name, faults)
    try:
        yield name
    finally:
        disk.unregister()


def _short(name: Any) -> str:
    text = name if isinstance(name, str) else name.filename() if name is not None else "(temporary)"
    return text.rsplit("/", 1)[-1]
