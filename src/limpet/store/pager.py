"""The pager: everything that a query selects, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, TypeVar

from limpet.model import Head
from limpet.model.limits import PAGE_MAX
from limpet.store.protocol import Page, Query, Store


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


async def each_head(store: Store, query: Query) -> AsyncGenerator[Head, None]:
    """Yield every head that the query selects, in its order.

    One page is held at a time. A session that is written to meanwhile may be met twice or not at
    all if the query orders by what the write changes.
    """
    async for page in head_pages(store, query):
        for head in page.items:
            yield head
