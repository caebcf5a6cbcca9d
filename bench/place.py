"""Where the databases of a run live: on a real disk, and gone afterwards.

A memory file system has no fsync worth the name, so a run there would measure nothing. The path
itself is never printed or recorded, only the kind of file system.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from limpet.store.sqlite.file.filesystems import file_system

ROOT: Final = Path(__file__).resolve().parent.parent
_MEMORY: Final = ("tmpfs", "ramfs")


class Place:
    """A scratch directory; every measurement gets an empty one inside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = file_system(path) or "unknown"

    @contextmanager
    def empty(self) -> Iterator[Path]:
        """A new directory, removed at the end so that a long run does not fill the disk."""
        path = Path(tempfile.mkdtemp(dir=self.path))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch(wanted: Path | None) -> Iterator[Place]:
    """The directory asked for, else the system's temporary one, else the repository's build/."""
    parent = wanted or Path(tempfile.gettempdir())
    if wanted is None and file_system(parent) in _MEMORY:
        parent = ROOT / "build"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="limpet-bench-", dir=parent) as path:
        yield Place(Path(path))


def bytes_of(database: Path) -> int:
    """A database file and what SQLite keeps beside it (-wal, -shm)."""
    return sum(path.stat().st_size for path in database.parent.glob(database.name + "*"))
