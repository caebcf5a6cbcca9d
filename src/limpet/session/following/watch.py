"""Watching the feed: every event of a store, of an app or of one session, from a position on.

The feed is the log of all sessions in an order in which nothing is ever inserted behind a
position already handed out. A watcher that remembers the position of the last entry it has dealt
with, and begins there again, misses nothing and meets nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from limpet.errors import InvalidQuery
from limpet.model import Key
from limpet.session.following.follow import Hub
from limpet.store.protocol import Feed, FeedEntry, Store

_PAGE: Final = 200


def feed_of(store: Store) -> Feed:
    """The store's feed. Raises InvalidQuery if it has none."""
    if not isinstance(store, Feed):
        raise InvalidQuery("this store has no feed to watch")
    return store


async def entries(
    hub: Hub, feed: Feed, *, app: str | None, key: Key | None, after: str | None
) -> AsyncGenerator[FeedEntry, None]:
    """Entries beyond a position, in order, as they are recorded. Never ends by itself."""
    position = after
    with hub.waiting(app=app, key=key) as bell:
        while True:
            bell.clear()
            hub.check_open()
            entries, position = await feed.changes(position, app=app, key=key, limit=_PAGE)
            for entry in entries:
                yield entry
            if not entries:  # a page may be short, and more follow
                await bell.wait()
            await asyncio.sleep(0)  # a store may answer without a pause: let others run
