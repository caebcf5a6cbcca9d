"""Walking: a page of what passes a filter, from a range that is read in order and with a bound.

Shared by the stores that read row by row. A store that asks a server does the same in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from limpet.model import limits

T = TypeVar("T")


def walk(rows: Iterable[T], passes: Callable[[T], bool], limit: int) -> tuple[list[T], T | None]:
    """The first `limit` rows that pass, and the row to go on from; None if the end was reached.

    No more than WALK_MAX rows are looked at: then fewer, or none, may have been met.
    """
    met: list[T] = []
    last: T | None = None
    for number, row in enumerate(rows, 1):
        if passes(row):
            if len(met) == limit:
                return met, last
            met.append(row)
        last = row
        if number == limits.WALK_MAX:
            return met, last
    return met, None
