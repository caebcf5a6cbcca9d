"""What an analytics file holds, in a form that two files can be compared by."""

from __future__ import annotations

from typing import Any

from limpet.analytics import ranking
from limpet.analytics.file import AnalyticsFile
from limpet.analytics.rollup import CellTally, unpack

Cell = tuple[str, str, int, int, str]  # app, dimension, grain, start, group


def cells_of(file: AnalyticsFile) -> dict[Cell, CellTally]:
    """Every cell by its names, whatever ids they have; with a check of what is kept beside them."""
    names = {id: (kind, name) for id, kind, name in _rows(file, "SELECT * FROM names")}
    found: dict[Cell, CellTally] = {}
    weights: dict[tuple[Any, ...], int] = {}
    for group, app, grain, start, raw in _rows(file, "SELECT * FROM cells"):
        dimension, value = names[group]
        tally = found[names[app][1], dimension, grain, start, value] = unpack(raw)
        if dimension != "window":
            weights[app, dimension, grain, start, group] = tally.weight(dimension)
    assert weights == _weights(file)
    used = {(cell[1], cell[4]) for cell in found} | {("app", cell[0]) for cell in found}
    assert used == set(names.values())  # no name is left of what was erased
    return dict(sorted(found.items()))


def _weights(file: AnalyticsFile) -> dict[tuple[Any, ...], int]:
    found = {}
    for *window, part, raw in _rows(file, "SELECT * FROM weights"):
        for offset, weight in _entries(raw):
            found[(*window, part * ranking.PART + offset)] = weight
    return found


def _entries(raw: bytes) -> list[tuple[int, int]]:
    """Offset and weight, read a second time: two bytes and four."""
    return [
        (int.from_bytes(raw[at : at + 2], "little"), int.from_bytes(raw[at + 2 : at + 6], "little"))
        for at in range(0, len(raw), 6)
    ]


def _rows(file: AnalyticsFile, sql: str) -> list[Any]:
    return list(file._conn.execute(sql))
