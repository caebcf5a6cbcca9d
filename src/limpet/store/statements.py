"""Statements: the named blocks of a store's `.sql` files.

A file holds its statements one after the other, each below a line `-- name: …`. Both databases keep
their SQL so. What varies in a statement is its own store's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def statements(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The statements of these files by their names, of which none comes twice."""
    found: dict[str, str] = {}
    for name in names:
        text = (folder / f"{name}.sql").read_text()
        blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
        for block, body in zip(blocks[::2], blocks[1::2], strict=True):
            assert block not in found, f"two statements are called {block}"
            found[block] = body.strip()
    return found
