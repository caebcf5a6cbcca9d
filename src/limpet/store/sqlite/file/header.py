"""What a file is that cannot be opened as ours: another program's, or ours with a damaged header.

A database says whose it is in its first hundred bytes. When those are damaged, the pages after them
still show it: by the tables that they define, or by looking like pages of SQLite at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from limpet.store.sqlite.file.locks import first_bytes

APPLICATION_ID: Final = 0x4C4D5054  # "LMPT"
DatabaseKind: TypeAlias = Literal["ours", "damaged", "foreign"]

_MAGIC: Final = b"SQLite format 3\x00"
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_DUMP_MAGIC: Final = b"PGDMP"
_LOOKED_AT_BYTES: Final = 2**20
_PAGE_BYTES: Final = 4_096
_PAGES_MIN: Final = 2  # that look like pages of SQLite: one may be chance
# Definitions that every schema of ours has had, as the migrations spell them.
_TABLES: Final = (
    b"CREATE TABLE erased (\n    key_hash  BLOB PRIMARY KEY",
    b"CREATE TABLE purges (\n    sid INTEGER PRIMARY KEY",
    b"CREATE TABLE scopes (\n    pos     INTEGER PRIMARY KEY",
)


def kind_of(path: Path) -> DatabaseKind:
    """Whose file this is, by its bytes: ours as its header says, ours (most likely) with a damaged
    header, or somebody else's. Raises OSError."""
    content = first_bytes(path, _LOOKED_AT_BYTES)
    known = content.startswith(_MAGIC)
    schema, application = content[60:64], content[68:72]
    if known and any(schema) and application == APPLICATION_ID.to_bytes(4, "big"):
        return "ours"
    if any(table in content for table in _TABLES):
        return "damaged"
    if known:  # a sound header, without our mark, before tables that are not ours
        return "foreign"
    return "damaged" if _has_pages(content) or _has_log(path) else "foreign"


def is_dump(path: Path) -> bool:
    """Whether the file was written by pg_dump -Fc. Raises OSError."""
    return first_bytes(path, len(_DUMP_MAGIC)) == _DUMP_MAGIC


def _has_pages(content: bytes) -> bool:
    """Whether what follows the first page looks like trees of SQLite."""
    starts = range(_PAGE_BYTES, len(content) - _PAGE_BYTES + 1, _PAGE_BYTES)
    return sum(_is_tree(content[start : start + _PAGE_BYTES]) for start in starts) >= _PAGES_MIN


def _is_tree(page: bytes) -> bool:
    """A page of a table or an index: its kind, then numbers that fit each other."""
    if page[0] not in (2, 5, 10, 13):
        return False
    cells, content = int.from_bytes(page[3:5], "big"), int.from_bytes(page[5:7], "big")
    pointers_end = (8 if page[0] in (10, 13) else 12) + 2 * cells
    return pointers_end <= content <= _PAGE_BYTES


def _has_log(path: Path) -> bool:
    """Whether SQLite's log lies beside it. The log has no locks that reading it could drop."""
    try:
        with path.with_name(f"{path.name}-wal").open("rb") as log:
            return log.read(4) in _LOG_MAGIC
    except OSError:
        return False
