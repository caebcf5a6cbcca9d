"""The parameters of the SQL function limpet.commit: rows that become columns, one array each."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any, Final

SCALARS: Final = 3  # parameters before the columns
# In the order of the function's parameters. A name is the prefix of its columns there.
_WIDTHS: Final = {
    "h": 12,
    "b": 4,
    "n": 6,
    "v": 14,
    "w": 2,
    "e": 20,
    "p": 4,
    "s": 12,
    "k": 7,
}
# Columns that are NULL in most batches, by runs: a run of nothing but NULL is not sent.
_OPTIONAL: Final = {
    "h": ((1, 2), (4, 12)),
    "n": ((4, 6),),
    "v": ((2, 3), (6, 7), (7, 11), (11, 12), (12, 13), (13, 14)),
    "e": ((4, 5), (8, 9), (14, 18), (18, 19), (19, 20)),
    "s": ((10, 12),),
}
_NONE: Final = -1  # the form of a table without rows


class Table:
    """Rows of one kind."""

    __slots__ = ("_name", "rows")

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> int:
        """The place of the row, counted from one."""
        self.rows.append(row)
        return len(self.rows)

    def send(self, into: list[Any]) -> int:
        """Add the columns that are to be sent; which they are, as a number (see `statement`)."""
        if not self.rows:
            return _NONE
        columns: list[Any] = list(zip(*self.rows, strict=True))
        form, end = 0, 0
        for bit, (start, stop) in enumerate(_OPTIONAL.get(self._name, ())):
            into += columns[end:start]
            end = stop
            run = columns[start:stop]
            if any([column.count(None) != len(column) for column in run]):
                into += run
                form |= 1 << bit
        into += columns[end:]
        return form


def tables() -> dict[str, Table]:
    """An empty table of each kind, in the order in which they are sent."""
    return {name: Table(name) for name in _WIDTHS}


@lru_cache(maxsize=256)
def statement(forms: tuple[int, ...]) -> str:
    """The statement with a parameter for each column that is sent. Few forms occur.

    A form has a bit for each run of optional columns: whether the run is sent.
    """
    numbers = count(1)
    values = [f"${next(numbers)}" for _ in range(SCALARS)]
    for name, form in zip(_WIDTHS, forms, strict=True):
        here = [form != _NONE] * _WIDTHS[name]
        for bit, (start, stop) in enumerate(_OPTIONAL.get(name, ())):
            if not form >> bit & 1:
                here[start:stop] = [False] * (stop - start)
        values += [f"${next(numbers)}" if sent else "'{}'" for sent in here]
    return f"SELECT limpet.commit({', '.join(values)})"
