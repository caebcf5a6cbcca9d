"""The parameters of the SQL function limpet.commit: rows that become columns, one value each.

asyncpg looks at every element of an array for three times as long as it takes to write it. So a
column of numbers or texts is sent as one text, the literal of its array, and a column of bytes is
joined where the function takes it so. Which column is sent how is read from the function itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, count
from typing import Any, Final, TypeAlias

import msgspec

from limpet.store.postgres.sql import script

Column: TypeAlias = Sequence[Any]
ColumnWriter: TypeAlias = Callable[[Column, list[Any]], None]
_encode: Final = msgspec.json.Encoder().encode

# Columns that are NULL in most batches, by runs: a run of nothing but NULL is not sent.
_OPTIONAL: Final = {
    "h": ("uid", "app owner id hash created floor parent reuse"),
    "n": ("uid seq",),
    "v": ("fence", "active", "facts due priority relabel", "deadline", "release", "adopted"),
    "e": ("given", "flags", "cause invocation correlation wake", "processed", "adopted", "active"),
    "s": ("more first",),
}
_ALIKE: Final = {"e_type", "e_actor", "e_at"}  # one value stands for all, if they are the same
_NONE: Final = -1  # the form of a table without rows


def literal(column: Column) -> str:
    """Numbers, booleans, texts and None as PostgreSQL writes an array.

    JSON writes them the same way, but for the characters that it escapes.
    """
    text = _encode(column).decode()
    if "\\" in text:
        text = f"[{','.join([_element(value) for value in column])}]"
    return f"{{{text[1:-1]}}}"


def _element(value: Any) -> str:
    if not isinstance(value, str):
        return _encode(value).decode()
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


# --- how columns are sent ----------------------------------------------------------------------


def _put_literal(column: Column, into: list[Any]) -> None:
    into.append(literal(column))


def _put_alike(column: Column, into: list[Any]) -> None:
    same = column.count(column[0]) == len(column)
    into.append(literal(column[:1] if same else column))


def _put_array(column: Column, into: list[Any]) -> None:
    into.append(column)


def _put_joined(column: Column, into: list[Any]) -> None:
    into.append(b"".join(column))


def _put_ended(column: Column, into: list[Any]) -> None:
    into.append(b"".join(column))
    into.append(literal(tuple(accumulate(map(len, column)))))


def _put(column: str) -> ColumnWriter:
    if _TYPES[column] == "bytea":
        return _put_ended if f"{column}_end" in _TYPES else _put_joined
    if column in _ALIKE:
        return _put_alike
    return _put_array if _TYPES[column] == "bytea[]" else _put_literal


def _parameters() -> dict[str, str]:
    """The names and types of the function's parameters, in order."""
    found = re.search(r"FUNCTION limpet\.commit\(([^)]*)\)", script("functions"))
    assert found is not None
    return dict([part.split() for part in found[1].split(",")])


_TYPES: Final = _parameters()


class _Kind:
    """The columns of one kind of rows. Its letter begins the names of their parameters."""

    def __init__(self, letter: str) -> None:
        names = [n for n in _TYPES if n.startswith(f"{letter}_") and not n.endswith("_end")]
        self._puts = [_put(name) for name in names]
        self._parameters = [[n for n in (name, f"{name}_end") if n in _TYPES] for name in names]
        runs = [run.split() for run in _OPTIONAL.get(letter, ())]
        self.runs = [[names.index(f"{letter}_{column}") for column in run] for run in runs]
        self._sent: dict[int, list[tuple[int, ColumnWriter]]] = {}

    def sent(self, form: int) -> list[tuple[int, ColumnWriter]]:
        """The places of the columns that a form sends, and how each is sent."""
        if form not in self._sent:
            absent = self._absent(form)
            puts = [(place, put) for place, put in enumerate(self._puts) if place not in absent]
            self._sent[form] = puts
        return self._sent[form]

    def values(self, form: int, numbers: Iterator[int]) -> Iterator[str]:
        """The arguments of the function for such rows."""
        absent = self._absent(form)
        for place, parameters in enumerate(self._parameters):
            for parameter in parameters:
                type = _TYPES[parameter]
                if place in absent:
                    yield "''" if type == "bytea" else "'{}'"
                else:
                    cast = "" if type.startswith("bytea") else f"::text::{type}"
                    yield f"${next(numbers)}{cast}"

    def _absent(self, form: int) -> set[int]:
        if form == _NONE:
            return set(range(len(self._puts)))
        return {place for bit, run in enumerate(self.runs) if not form >> bit & 1 for place in run}


_LETTERS: Final = [name[0] for name in _TYPES if name[1] == "_"]
_KINDS: Final = {letter: _Kind(letter) for letter in dict.fromkeys(_LETTERS)}
_SCALARS: Final = len(_TYPES) - len(_LETTERS)  # parameters before the columns


class BatchTable:
    """Rows of one kind."""

    __slots__ = ("_kind", "rows")

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> int:
        """The place of the row, counted from one."""
        self.rows.append(row)
        return len(self.rows)

    def send(self, into: list[Any]) -> int:
        """Add the columns that are to be sent; which they are, as a number (see `statement`)."""
        if not self.rows:
            return _NONE
        columns = list(zip(*self.rows, strict=True))
        form, rows = 0, len(self.rows)
        for bit, run in enumerate(self._kind.runs):
            if any([columns[place].count(None) != rows for place in run]):
                form |= 1 << bit
        for place, put in self._kind.sent(form):
            put(columns[place], into)
        return form


class BatchTables(dict[str, BatchTable]):
    """The tables of a batch by their letters, each made when it is first asked for."""

    def __missing__(self, letter: str) -> BatchTable:
        table = self[letter] = BatchTable(_KINDS[letter])
        return table

    def send(self, into: list[Any]) -> str:
        """Add the columns of all tables; the statement that takes them."""
        return statement(tuple([self[k].send(into) if k in self else _NONE for k in _KINDS]))


@lru_cache(maxsize=256)
def statement(forms: tuple[int, ...]) -> str:
    """The statement with a parameter for each column that is sent. Few forms occur.

    A form has a bit for each run of optional columns: whether the run is sent.
    """
    numbers = count(1)
    values = [f"${next(numbers)}" for _ in range(_SCALARS)]
    for kind, form in zip(_KINDS.values(), forms, strict=True):
        values += kind.values(form, numbers)
    return f"SELECT limpet.commit({', '.join(values)})"
