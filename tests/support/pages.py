"""Where things lie in a SQLite file: enough of its format to say what a byte belongs to.

Follows https://sqlite.org/fileformat2.html: pages, b-tree cells, overflow chains, the freelist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

INTERIOR_INDEX, INTERIOR_TABLE, LEAF_INDEX, LEAF_TABLE = 2, 5, 10, 13
_INTERIOR: Final = frozenset((INTERIOR_INDEX, INTERIOR_TABLE))
_TABLES: Final = frozenset((INTERIOR_TABLE, LEAF_TABLE))
_HEADER_BYTES: Final = {INTERIOR_INDEX: 12, INTERIOR_TABLE: 12, LEAF_INDEX: 8, LEAF_TABLE: 8}


@dataclass(frozen=True)
class Cell:
    """One row: its rowid (0 in a table without) and where in the file its record lies."""

    rowid: int
    offsets: tuple[int, ...]


class Pages:
    """The bytes of a cleanly closed database file and the map of them."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.size = int.from_bytes(self.content[16:18], "big")
        assert self.size > 1
        conn = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self.roots: dict[str, int] = dict(
            conn.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage")
        )
        conn.close()
        self.roots["sqlite_schema"] = 1
        self.owner: dict[int, str] = {}  # page → the table, index or list it belongs to
        for name, root in self.roots.items():
            self._claim(name, root)
        self._claim_freelist()

    def __len__(self) -> int:
        return len(self.content) // self.size

    def page(self, number: int) -> bytes:
        return self.content[(number - 1) * self.size : number * self.size]

    def offsets(self, number: int) -> range:
        return range((number - 1) * self.size, number * self.size)

    def rows(self, table: str) -> Iterator[Cell]:
        """Every row of a table or index, with the place of every byte of its record."""
        yield from self._rows(self.roots[table])

    def _rows(self, number: int) -> Iterator[Cell]:
        page, start = self.page(number), self._start(number)
        kind = page[start]
        table, interior = kind in _TABLES, kind in _INTERIOR
        for at in self._cells(number):
            if interior:
                yield from self._rows(int.from_bytes(page[at : at + 4], "big"))
                at += 4
            if kind != INTERIOR_TABLE:
                length, at = _varint(page, at)
                rowid, at = _varint(page, at) if table else (0, at)
                yield Cell(rowid, tuple(self._payload(number, at, length, table=table)))
        if interior:
            yield from self._rows(int.from_bytes(page[start + 8 : start + 12], "big"))

    def _claim(self, name: str, number: int) -> None:
        """Note the pages of one b-tree, its overflow pages among them."""
        self.owner[number] = name
        page, start = self.page(number), self._start(number)
        kind = page[start]
        for at in self._cells(number):
            if kind in _INTERIOR:
                self._claim(name, int.from_bytes(page[at : at + 4], "big"))
                at += 4
            if kind == INTERIOR_TABLE:
                continue
            length, at = _varint(page, at)
            if kind == LEAF_TABLE:
                _, at = _varint(page, at)
            for offset in self._payload(number, at, length, table=kind == LEAF_TABLE):
                self.owner.setdefault(offset // self.size + 1, f"{name} overflow")
        if kind in _INTERIOR:
            self._claim(name, int.from_bytes(page[start + 8 : start + 12], "big"))

    def _claim_freelist(self) -> None:
        trunk = int.from_bytes(self.content[32:36], "big")
        while trunk:
            self.owner[trunk] = "freelist trunk"
            page = self.page(trunk)
            for place in range(int.from_bytes(page[4:8], "big")):
                leaf = int.from_bytes(page[8 + 4 * place : 12 + 4 * place], "big")
                self.owner[leaf] = "freelist leaf"
            trunk = int.from_bytes(page[:4], "big")

    def _start(self, number: int) -> int:
        return 100 if number == 1 else 0

    def _cells(self, number: int) -> list[int]:
        page, start = self.page(number), self._start(number)
        first = start + _HEADER_BYTES[page[start]]
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        return [
            int.from_bytes(page[first + 2 * n : first + 2 * n + 2], "big") for n in range(count)
        ]

    def _payload(self, number: int, at: int, length: int, *, table: bool) -> Iterator[int]:
        """The offsets in the file of a record's bytes, over its overflow pages."""
        most = self.size - 35 if table else (self.size - 12) * 64 // 255 - 23
        least = (self.size - 12) * 32 // 255 - 23
        here = length
        if length > most:
            here = least + (length - least) % (self.size - 4)
            here = here if here <= most else least
        base = (number - 1) * self.size
        yield from range(base + at, base + at + here)
        left, link = length - here, base + at + here
        while left:
            page = int.from_bytes(self.content[link : link + 4], "big")
            link = (page - 1) * self.size
            part = min(left, self.size - 4)
            yield from range(link + 4, link + 4 + part)
            left -= part


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(9):
        byte = page[at + place]
        if place == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, at + place + 1
    raise AssertionError("unreachable")
