"""The verbs of the queue: append_soon on a session, flush on Limpet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.session.door import Door

NONE_GIVEN: Final[Mapping[str, Any]] = {}  # what an append sets, merges, … if it names nothing
_EMPTY: Final = ()  # the only one there is


class Flushes(Door):
    """The store whose sessions queue events."""

    async def flush(self) -> None:
        """Record everything that append_soon has queued, durably, each session in its order.

        One commit serves many events. If the events of a session are refused, the others are
        recorded all the same, and FlushFailed names what was not: `error.unrecorded` has key,
        drafts and reason for each session. What it names has left the queue; sent again with
        append_many, no event is recorded twice. A cancelled flush leaves what was not recorded in
        the queue. What others queue meanwhile may wait for the next flush.
        """
        await self._journal.queue.flush()
