"""The parameters of the SQL function limpet.commit: rows that become columns, one array each."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any, Final

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
    "h": ((4, 12),),
    "n": ((4, 6),),
    "v": ((2, 3), (7, 11), (11, 12), (12, 13), (13, 14)),
    "e": ((14, 18), (18, 19), (19, 20)),
    "s": ((10, 12),),
}


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

    def columns(self) -> list[Any]:
        """Empty ones for what is not to be sent."""
        if not self.rows:
            return [()] * _WIDTHS[self._name]
        columns: list[Any] = list(zip(*self.rows, strict=True))
        for start, stop in _OPTIONAL.get(self._name, ()):
            if all([column.count(None) == len(column) for column in columns[start:stop]]):
                columns[start:stop] = [()] * (stop - start)
        return columns


def tables() -> dict[str, Table]:
    """An empty table of each kind, in the order in which they are sent."""
    return {name: Table(name) for name in _WIDTHS}


@lru_cache(maxsize=64)
def statement(sent: tuple[bool, ...]) -> str:
    """The statement with a parameter for each column that is sent. Few forms occur."""
    numbers = count(1)
    return "SELECT * FROM limpet.commit({})".format(
        ", ".join(f"${next(numbers)}" if here else "'{}'" for here in sent)
    )
