"""Pages: of events, bounded by bytes as well as by count; and of what passes a filter.

A page of a thousand events of 8 MiB would be 8 GiB. So a page ends early, once the encoded bodies
in it reach READ_PAGE_BYTES_MAX, before the next body is read; its first event always fits. A page
that is shorter than asked for therefore says nothing: only an empty one is the end.

What is put into pages comes as pairs: an event, or an entry of the feed, and the bytes of its body.

`walk` is for stores that read heads row by row: a page of what passes a filter, from a range that
is read in order and with a bound. PostgreSQL does the same in SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from limpet.model import Event, Head, limits
from limpet.model.facts.moves import departure
from limpet.model.limits import PAGE_MAX, READ_PAGE_BYTES_MAX
from limpet.store.protocol import Page, Query, Store

T = TypeVar("T")


class PageBytes:
    """The bytes that a page has used."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0

    @property
    def full(self) -> bool:
        return self.used >= READ_PAGE_BYTES_MAX


def within(room: PageBytes, sized: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
    """Return those that fit. Asks for none that does not."""
    page: list[tuple[T, int]] = []
    used = room.used
    for pair in sized:
        page.append(pair)
        used += pair[1]
        if used >= READ_PAGE_BYTES_MAX:
            break
    room.used = used
    return page


def newest(sized: Sequence[tuple[T, int]], tail: int) -> list[tuple[T, int]]:
    """The last ones, at most `tail` and without a gap, as many as fit; in the order given."""
    last = sized[len(sized) - min(tail, len(sized)) :]
    return within(PageBytes(), reversed(last))[::-1]


def bare(sized: Iterable[tuple[T, int]]) -> tuple[T, ...]:
    """Return the items without their sizes."""
    return tuple([each for each, _ in sized])


def page(sized: Iterable[tuple[T, int]]) -> tuple[T, ...]:
    """One page of what comes."""
    return bare(within(PageBytes(), sized))


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


def wanted(type: str, types: tuple[str, ...] | None) -> bool:
    """True if an event of this type is selected; None selects all."""
    if types is None:
        return True
    return any(type.startswith(t[:-1]) if t.endswith(".*") else type == t for t in types)


def newest_since(events: tuple[Event, ...], since_us: int | None) -> tuple[Event, ...]:
    """The last of these events, from the first at or after a time on: no gap is left among them.

    Time never runs backwards within a session. A row that cannot be read at all has no time, and
    counts as it is placed: with those before it and after it, or with neither.
    """
    if since_us is None:
        return events
    start = len(events)
    for place in reversed(range(len(events))):
        at_us = events[place].at_us
        if at_us >= since_us:
            start = place
        elif at_us:
            break
    return events[start:]


# --- pages by cursor -----------------------------------------------------------------------------


class Paged(Protocol):
    """A page of anything: it names the next one."""

    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=Paged)


async def each_page(read: Callable[[str | None], Awaitable[P]]) -> AsyncGenerator[P, None]:
    """Yield the pages that `read(cursor)` returns, from the first (None) to the last."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return
        await asyncio.sleep(0)  # a store in a file answers at once: let others run


def head_pages(
    store: Store, query: Query, *, states: bool = False
) -> AsyncGenerator[Page[Head], None]:
    """Yield the pages of heads that the query selects; with `states`, what they have read too."""
    return each_page(
        lambda cursor: store.heads(query, cursor=cursor, limit=PAGE_MAX, states=states)
    )


def without_departed(page: Page[Head]) -> Page[Head]:
    """Return a page without the sessions that are at other nodes, or on their way here."""
    away = {head.key for head in page.items if departure(head.facts) is not None}
    if not away:
        return page
    items = tuple([head for head in page.items if head.key not in away])
    states = {key: state for key, state in page.states.items() if key not in away}
    damaged = tuple([key for key in page.damaged if key not in away])
    return Page(items, page.cursor, states, damaged)


async def each_head(store: Store, query: Query) -> AsyncGenerator[Head, None]:
    """Yield every head that the query selects, in its order.

    One page is held at a time. A session that is written to meanwhile may be met twice or not at
    all if the query orders by what the write changes.
    """
    async for page in head_pages(store, query):
        for head in page.items:
            yield head
