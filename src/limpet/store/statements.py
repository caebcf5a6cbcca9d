"""Statements: the named blocks of a store's `.sql` files.

A file holds its statements one after the other, each below a line `-- name: …`; a file without such
lines is a script, which is run as a whole. Both databases keep their SQL so, and read all of it at
once: opening a store needs no more files. What varies in a statement is its own store's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NAMED: Final = "\n-- name: "


def read_sql(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The statements in the files of a folder, of which none comes twice, and its scripts; both by
    name."""
    statements: dict[str, str] = {}
    scripts: dict[str, str] = {}
    for file in sorted(folder.glob("*.sql")):
        text = file.read_text()
        blocks = f"\n{text}".split(_NAMED)[1:]
        if not blocks:
            scripts[file.stem] = text
        for block in blocks:
            name, _, body = block.partition("\n")
            assert name not in statements, f"two statements are called {name}"
            statements[name] = body.strip()
    return statements, scripts
