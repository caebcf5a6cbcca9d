"""Disks of a log store that fail, or whose power is cut.

`FaultyDisk` counts calls and fails the nth. `PowerDisk` writes to real files and keeps beside them
what a disk would have: `left` puts the remains into another directory, the synced contents and of
the rest an arbitrary choice of sectors; names are kept by syncs of their directory.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Final

from limpet.store.files.disk import LogDisk
from tests.support.power import Image

KINDS: Final = frozenset(("open", "read", "write", "sync", "truncate", "rename", "unlink", "names"))
WRITING: Final = frozenset(("write", "truncate"))


class DiskFaults:
    """Which call fails: the `at`th of the kinds counted, and if `lasting` all after it."""

    def __init__(
        self,
        at: int | None = None,
        *,
        kinds: frozenset[str] = KINDS,
        full: bool = False,
        lasting: bool = False,
    ) -> None:
        self.at, self.kinds, self.full, self.lasting = at, kinds, full, lasting
        self.calls = 0
        self.struck: list[str] = []

    def meet(self, kind: str) -> None:
        """Count a call, and fail it if its turn has come."""
        if kind not in self.kinds:
            return
        self.calls += 1
        if self.at is None or self.calls < self.at or (self.calls > self.at and not self.lasting):
            return
        self.struck.append(kind)
        raise OSError(errno.ENOSPC if self.full else errno.EIO, f"injected: {kind}")


class FaultyDisk(LogDisk):
    """The operating system's files, with faults. A failing write leaves half of its data."""

    def __init__(self, faults: DiskFaults) -> None:
        self.faults = faults

    def open(self, path: Path, *, write: bool, create: bool = False) -> int:
        self.faults.meet("open")
        return super().open(path, write=write, create=create)

    def read(self, handle: int, size: int, at: int) -> bytes:
        self.faults.meet("read")
        return super().read(handle, size, at)

    def write(self, handle: int, data: bytes, at: int) -> None:
        try:
            self.faults.meet("write")
        except OSError:
            super().write(handle, data[: len(data) // 2], at)
            raise
        super().write(handle, data, at)

    def sync(self, handle: int) -> None:
        self.faults.meet("sync")  # nobody cuts the power here: a real sync is not needed

    def truncate(self, handle: int, size: int) -> None:
        self.faults.meet("truncate")
        super().truncate(handle, size)

    def rename(self, source: Path, target: Path) -> None:
        self.faults.meet("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.faults.meet("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.faults.meet("names")


class PowerDisk(LogDisk):
    """A disk whose power is cut at a call that changes something. Names of files are kept by syncs
    of their directory; those of directories at once."""

    def __init__(self, root: Path, cut_at: int | None = None) -> None:
        self.root, self.cut_at = root.resolve(), cut_at
        self.calls = 0
        self.off = False
        there = [path for path in self.root.rglob("*") if path.is_file()]
        self.files = {path: Image(path.read_bytes()) for path in there}
        self.safe_names = dict(self.files)
        self._opened: dict[int, Path] = {}

    def _meet(self) -> None:
        self.calls += 1
        if self.off or self.calls == self.cut_at:
            self.off = True
            raise OSError(errno.EIO, "the power is cut")

    def open(self, path: Path, *, write: bool, create: bool = False) -> int:
        if create:
            self._meet()
        handle = super().open(path, write=write, create=create)
        self._opened[handle] = path.resolve()
        self.files.setdefault(path.resolve(), Image(b""))
        return handle

    def write(self, handle: int, data: bytes, at: int) -> None:
        self._meet()
        super().write(handle, data, at)
        self._image(handle).since.append((at, bytes(data)))

    def truncate(self, handle: int, size: int) -> None:
        self._meet()
        super().truncate(handle, size)
        self._image(handle).since.append((size, None))

    def sync(self, handle: int) -> None:
        self._meet()
        self._image(handle).sync()

    def rename(self, source: Path, target: Path) -> None:
        self._meet()
        super().rename(source, target)
        self.files[target.resolve()] = self.files.pop(source.resolve())

    def unlink(self, path: Path) -> None:
        self._meet()
        super().unlink(path)
        self.files.pop(path.resolve(), None)

    def sync_directory(self, path: Path) -> None:
        self._meet()
        of = path.resolve()
        kept = {each: image for each, image in self.safe_names.items() if each.parent != of}
        self.safe_names = kept | {e: image for e, image in self.files.items() if e.parent == of}

    def _image(self, handle: int) -> Image:
        return self.files.get(self._opened[handle]) or Image(b"")

    def left(self, into: Path, chance: random.Random) -> None:
        """Write what is left of the files into an empty directory."""
        into.mkdir()
        for path in sorted({*self.files, *self.safe_names}):
            now, safe = self.files.get(path), self.safe_names.get(path)
            kept = now if now is safe else chance.choice((now, safe))
            if kept is not None:
                target = into / path.relative_to(self.root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(kept.remains(chance))


def holds(directory: Path, text: str) -> list[Path]:
    """The files under a directory in which a text can be found, in plain or compressed."""
    from limpet.store.coding.codec import zstd

    found = []
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "lock":
            content = path.read_bytes()
            if path.suffix == ".zst":
                tool = zstd().ZstdFile(path)
                with tool:
                    content += tool.read()
            if text.encode() in content:
                found.append(path)
    return found


def handles() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # of the process, not a directory
