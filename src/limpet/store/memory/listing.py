"""Pages of heads in memory: everything is sorted, then cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from limpet.model import Head, Key, is_reserved
from limpet.store.paging import cursor as cursors
from limpet.store.paging import walk
from limpet.store.protocol import Query

Row: TypeAlias = tuple[int, Head]  # the number of its row
_Place: TypeAlias = tuple[int, int, Head]  # time and row by which it is ordered


def page(
    rows: Iterable[Row], query: Query, cursor: str | None, limit: int
) -> tuple[tuple[Head, ...], str | None]:
    """The heads of one page, and where the next begins."""
    by_key = query.order == "key" or query.deleted
    found = _by_key(rows, query, cursor) if by_key else _by_time(rows, query, cursor)
    met, last = walk(found, lambda place: _passes(place[2], query), limit)
    heads = tuple([head for _, _, head in met])
    if last is None:
        return heads, None
    more = cursors.write_key(query, last[2].key, last[1]) if by_key else None
    return heads, more or cursors.write(query, *last[:2])


def _by_time(rows: Iterable[Row], query: Query, cursor: str | None) -> list[_Place]:
    """The range of the order's index that a page begins in."""
    found = sorted((_mark(head, query), row, head) for row, head in rows if _ranges(head, query))
    if query.reverse:
        found.reverse()
    if cursor is not None:
        at = cursors.read(cursor, query)
        found = [f for f in found if (f[:2] < at if query.reverse else f[:2] > at)]
    return found


def _by_key(rows: Iterable[Row], query: Query, cursor: str | None) -> list[_Place]:
    """In the order of their keys; those deleted under one key in the order of their rows."""
    owned = [(head.key, row, head) for row, head in rows if _owned(head, query)]
    found = sorted(owned, reverse=query.reverse, key=lambda place: place[:2])
    if cursor is not None:
        at: tuple[Key, int] = cursors.read_key(cursor, query)
        found = [f for f in found if (f[:2] < at if query.reverse else f[:2] > at)]
    return [(0, row, head) for _, row, head in found]


def _owned(head: Head, query: Query) -> bool:
    key = head.key
    if query.app is None and is_reserved(key.app) and not query.reserved:
        return False
    owned = query.app in (None, key.app) and query.user in (None, key.user)
    return owned and key.id.startswith(query.prefix)


def _ranges(head: Head, query: Query) -> bool:
    """Whether the range that is read has it. What else is asked for is looked at on the way."""
    own_us = query.updated_after_us if query.order == "updated" else query.created_after_us
    labeled = query.labels.items() <= head.indexed_labels.items()
    return _owned(head, query) and labeled and (own_us is None or _mark(head, query) > own_us)


def _passes(head: Head, query: Query) -> bool:
    return cursors.passes(query, head.created_us, head.updated_us, head.schema_version)


def _mark(head: Head, query: Query) -> int:
    return head.updated_us if query.order == "updated" else head.created_us
