"""Statements: the named blocks of a store's `.sql` files.

A file holds its statements one after the other, each below a line `-- name: …`. Both databases keep
their SQL so. What varies in a statement is its own store's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path


def scripts(folder: Path, names: Collection[str]) -> dict[str, str]:
    """The other files of a folder, which are run as a whole, by their names."""
    found = [file for file in sorted(folder.glob("*.sql")) if file.stem not in names]
    return {file.stem: file.read_text() for file in found}


def statements(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The statements of these files by their names, of which none comes twice."""
    found: dict[str, str] = {}
    for name in names:
        text = (folder / f"{name}.sql").read_text()
        for block in f"\n{text}".split("\n-- name: ")[1:]:
            called, _, body = block.partition("\n")
            assert called not in found, f"two statements are called {called}"
            found[called] = body.strip()
    return found
