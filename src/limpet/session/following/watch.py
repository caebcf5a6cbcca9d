"""Watching the feed: every event of a store, of an app or of one session, from a position on.

The feed is the log of all sessions in an order in which nothing is ever inserted behind a
position already handed out. A watcher that remembers the position of the last entry it has dealt
with, and begins there again, misses nothing and meets nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from limpet.errors import InvalidInput, InvalidQuery
from limpet.model import Key
from limpet.session.arguments import AnyKey, check_sessions, key_of
from limpet.session.door import Door
from limpet.session.following.follow import Hub
from limpet.store.paging.cursor import check_position
from limpet.store.protocol import Feed, FeedEntry, Store

_PAGE: Final = 200


def feed_of(store: Store) -> Feed:
    """The store's feed. Raises InvalidQuery if it has none."""
    if not isinstance(store, Feed):
        raise InvalidQuery("this store has no feed to watch")
    return store


async def _entries(
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


class Watching(Door):
    """The feed of a store: every event of it, of an app or of one session."""

    def watch(
        self, *, app: str | None = None, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Every event of the store, of an app or of one session, as it is recorded.

        Each entry has a `position`: begin again with after=position and nothing is missed and
        nothing comes twice. Without `after`, from the first event; `after=await lp.position()`
        begins from now. What is deleted leaves the feed without an entry. Ends with StoreError
        if the store fails for longer than it waits: watch again from the last position.
        """
        feed = feed_of(self._journal.store)
        one, app = None if key is None else key_of(key), check_sessions(app)
        if one is not None and app not in (None, one.app):
            raise InvalidInput(
                f"the session {one} does not belong to the app {app!r}. Pass its own app, "
                "or the key alone."
            )
        return _entries(self._journal.hub, feed, app=app, key=one, after=check_position(after))

    async def position(self) -> str:
        """The end of the feed now: lp.watch(after=…) gives all that is recorded from here on.

        On PostgreSQL, what was recorded while an older transaction was open may come as well.
        """
        return await feed_of(self._journal.store).position()
