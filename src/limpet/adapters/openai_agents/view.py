"""The view: which items of a log the framework sees.

The log keeps every item. `view.popped` takes the newest item out of view, `view.cleared` all that
were recorded before it. What they do follows from their type and their place alone, so a writer
need not look before it pops, and damage to one body changes nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from limpet import Event, Session
from limpet.adapters.openai_agents.items import ITEMS, Item, item_of
from limpet.errors import SessionNotFound

POPPED: Final = "view.popped"
CLEARED: Final = "view.cleared"
_TYPES: Final = (*ITEMS, POPPED, CLEARED)
_PAGE: Final = 1_000


async def newest_items(session: Session[Any], most: int | None) -> list[Item]:
    """The newest items in view, the oldest first. One that cannot be read is left out."""
    found: list[Item] = []
    async with aclosing(_shown(session, page=most)) as events:
        async for event in events:
            if (item := item_of(event)) is not None:
                found.append(item)
                if len(found) == most:
                    break
    found.reverse()
    return found


async def newest_event(session: Session[Any], *, before: int | None = None) -> Event | None:
    """The event of the newest item in view, now or just before a seq; None: nothing is in view."""
    async with aclosing(_shown(session, before=before, page=1)) as events:
        return await anext(events, None)


async def _shown(
    session: Session[Any], *, before: int | None = None, page: int | None = None
) -> AsyncGenerator[Event, None]:
    """The events of items in view, the newest first.

    A log only grows, so the pages together are the view as it was at the first of them.
    """
    popped, limit = 0, min(page or _PAGE, _PAGE)
    while events := await _read(session, before, limit):
        for event in events:
            if event.type == CLEARED:
                return
            if event.type == POPPED:
                popped += 1
            elif popped:
                popped -= 1
            else:
                yield event
        before = events[-1].seq
        if before <= 2:  # the first event of a session is its creation
            return
        limit = min(2 * limit + 16, _PAGE)


async def _read(session: Session[Any], before: int | None, limit: int) -> tuple[Event, ...]:
    try:
        return await session.read(before=before, limit=limit, reverse=True, types=_TYPES)
    except SessionNotFound:  # nobody has written to it yet
        return ()
