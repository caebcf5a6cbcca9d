"""The pager: all heads that a query selects, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from limpet.model import Head
from limpet.model.limits import PAGE_MAX
from limpet.store.protocol import Query, Store


async def each_head(store: Store, query: Query) -> AsyncIterator[Head]:
    """Yield every head that the query selects, in its order.

    One page is held at a time. A session that is written to meanwhile may be met twice or not at
    all if the query orders by what the write changes.
    """
    cursor: str | None = None
    while True:
        page = await store.heads(query, cursor=cursor, limit=PAGE_MAX)
        for head in page.items:
            yield head
        cursor = page.cursor
        if cursor is None:
            return
