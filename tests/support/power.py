"""A disk whose power can be cut: what was synced is there afterwards, of the rest any part.

Writes pass to real files, so that SQLite reads what it wrote; beside them stands what a disk would
have kept. `left` puts the remains into another directory: the synced contents, and of what was
not synced an arbitrary choice of 512-byte sectors. Names are kept by syncs of the directory, which
SQLite asks for with the first sync of a new journal or log and with most deletions. Shared memory
(-shm) is never kept.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

SECTOR: Final = 512
_JOURNALS: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_numbers: Final = itertools.count()


class Image:
    """One file: what is safe, and what was asked for since, in order."""

    def __init__(self, content: bytes) -> None:
        self.safe = bytearray(content)
        self.since: list[tuple[int, bytes | None]] = []  # None: truncated to this size

    def sync(self) -> None:
        for change in self.since:
            _apply(self.safe, *change)
        self.since.clear()

    def remains(self, chance: random.Random) -> bytes:
        """What is found after the cut."""
        found = bytearray(self.safe)
        likely = chance.choice((0.0, 0.3, 0.7, 1.0))
        for at, data in self.since:
            if data is None:
                if chance.random() < likely:
                    _apply(found, at, None)
                continue
            for start, piece in _sectors(at, data):
                if chance.random() < likely:
                    _apply(found, start, piece)
        return bytes(found)


class Power:
    """The directory of a disk. `cut_at` is the call that never returns, nor any after it."""

    def __init__(self, directory: Path, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.calls = 0
        self.off = False
        there = directory.resolve().iterdir()
        self.files = {str(path): Image(path.read_bytes()) for path in there}
        self.safe_names = dict(self.files)

    def meet(self) -> None:
        """Count a call that changes something; after the cut there is nobody to answer."""
        self.calls += 1
        if self.off or self.calls == self.cut_at:
            self.off = True
            raise _gone()

    def check(self) -> None:
        if self.off:
            raise _gone()

    def found(self, path: str) -> Image:
        """The image of a file that is being opened, or made."""
        return self.files.setdefault(path, Image(b""))

    def deleted(self, path: str, *, safely: bool) -> None:
        self.files.pop(path, None)
        if safely:
            self.sync_names()

    def sync_names(self) -> None:
        self.safe_names = dict(self.files)

    def left(self, into: Path, chance: random.Random) -> None:
        """Write what is left of the files into an empty directory."""
        into.mkdir()
        for path in sorted({*self.files, *self.safe_names}):
            now, safe = self.files.get(path), self.safe_names.get(path)
            kept = now if now is safe else chance.choice((now, safe))
            if kept is not None:
                (into / Path(path).name).write_bytes(kept.remains(chance))


class _Disk(apsw.VFS):
    def __init__(self, name: str, power: Power) -> None:
        self.power = power
        super().__init__(name, "")

    def excepthook(self, *_: Any) -> bool:
        return True

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.power.meet()
        if name is None:
            return apsw.VFSFile("", name, flags)
        return _File(name, flags, self.power)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        self.power.meet()
        super().xDelete(name, sync)
        self.power.deleted(name, safely=bool(sync))


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], power: Power) -> None:
        path = name if isinstance(name, str) else name.filename()
        self.power, self.image = power, power.found(path)
        self.journal = bool(flags[0] & _JOURNALS)
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self.power.check()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.power.meet()
        super().xWrite(data, offset)
        self.image.since.append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.power.meet()
        super().xTruncate(size)
        self.image.since.append((size, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.power.meet()
        self.image.sync()
        if self.journal:
            self.power.sync_names()


@contextmanager
def powered(power: Power) -> Iterator[str]:
    """The name of a registered file system on this disk."""
    name = f"limpet-power-{next(_numbers)}"
    disk = _Disk(name, power)
    try:
        yield name
    finally:
        disk.unregister()


def _gone() -> apsw.Error:
    return apsw.IOError("the power is cut")


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        content.extend(bytes(at - len(content)))
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _sectors(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """A write in the pieces that a disk writes whole."""
    start = at
    while start < at + len(data):
        end = min(at + len(data), (start // SECTOR + 1) * SECTOR)
        yield start, data[start - at : end - at]
        start = end
