"""Retention: how much of each session's history stays hot, and moving the rest to cold segments.

Nothing is lost by it: cold events are compressed together, and read, verified and exported like all
others. The limits of an app are a document of the internal collection `retention`; those of a
session are a fact of its head. `bounds` applies them by itself.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec

from limpet.errors import (
    DocumentConflict,
    InvalidInput,
    InvalidQuery,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import PAGE_MAX, Head, Key, described
from limpet.model.facts.retention import limits_data, retention_in
from limpet.session.documents import Internal
from limpet.session.history.at import event_at
from limpet.session.journal import Journal
from limpet.store.answers import Progress, Query, plural, size
from limpet.store.protocol import Compacts, Store

COLLECTION: Final = "retention"
EVERY: Final = timedelta(hours=1)  # sweeps look at all sessions of an app that often
GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_MICROSECOND: Final = timedelta(microseconds=1)


class Limits(msgspec.Struct, frozen=True):
    """How much of a history stays hot. None: no such limit."""

    events: Annotated[int, msgspec.Meta(ge=1)] | None = None
    age_us: Annotated[int, msgspec.Meta(ge=0)] | None = None
    every_us: Annotated[int, msgspec.Meta(ge=0)] = EVERY // _MICROSECOND

    def __bool__(self) -> bool:
        return self.events is not None or self.age_us is not None


class CompactReport(msgspec.Struct, frozen=True):
    """What a compaction moved, and about what it took before and takes now."""

    sessions: int = 0  # of which events were moved
    events: int = 0
    rows_bytes: int = 0
    segment_bytes: int = 0

    def __str__(self) -> str:
        moved = f"{plural(self.events, 'event')} of {plural(self.sessions, 'session')} moved"
        sizes = f": {size(self.rows_bytes)} became {size(self.segment_bytes)}"
        return moved + (sizes if self.events else "")


def checked(events: int | None, age: timedelta | None, every: timedelta) -> dict[str, Any]:
    """The limits as the value of a document. Raises InvalidInput."""
    if not (isinstance(every, timedelta) and every >= timedelta(0)):
        raise InvalidInput(f"every is {described(every)}. Pass a timedelta.")
    off = {"events": None, "age_us": None}
    return {**off, **limits_data(events, age), "every_us": every // _MICROSECOND}


async def limits_of(journal: Journal, app: str) -> Limits | None:
    """The limits of an app; None if it has none, or none that can be read."""
    documents = Internal(journal, COLLECTION)
    found = await documents.find(app)
    return None if found is None else documents.decoded(found, Limits)


def limits_for(head: Head, app_limits: Limits | None) -> Limits:
    """The limits of a session: its own, or else those of its app."""
    own = retention_in(head.facts)
    if own is not None:
        return Limits(own.get("events"), own.get("age_us"))
    return app_limits or Limits()


async def watch_app(journal: Journal, app: str) -> None:
    """Let every process look at the sessions of an app: one of them has limits of its own."""
    documents = Internal(journal, COLLECTION, actor="system:policies")
    if await documents.find(app) is None:
        with suppress(DocumentConflict):  # another was faster
            await documents.put(app, checked(None, None, EVERY), expect=0)


async def compact(journal: Journal, key: Key | None, progress: Progress | None) -> CompactReport:
    """Move what is beyond the limits, of one session or of all."""
    store = journal.store
    if not isinstance(store, Compacts):
        raise InvalidQuery("this store does not support compaction")
    if key is not None:
        app_limits = await limits_of(journal, key.app)
        head = (await store.load(key, tail=0, scopes=False)).head
        limits = limits_for(head, app_limits)
        if not limits:
            raise InvalidInput(
                f"session {key} has no limits, and its app has none. Set them with "
                f"lp.policies.retention({key.app!r}, …) or s.history.retention(…)."
            )
        return (await compact_one(journal, head, limits, journal.now_us()))[1]
    total, done = CompactReport(), 0
    for app, limits in (await _all_limits(journal)).items():
        cursor: str | None = None
        while True:
            query = Query(app=app, reverse=False)
            page = await store.heads(query, cursor=cursor, limit=PAGE_MAX)
            for head in page.items:
                total = merged(total, await _of(journal, head, limits))
                done += 1
                if progress is not None:
                    progress(done, done + len(page.items))
            cursor = page.cursor
            if cursor is None:
                break
    return total


async def _all_limits(journal: Journal) -> dict[str, Limits]:
    documents, found = Internal(journal, COLLECTION), dict[str, Limits]()
    cursor: str | None = None
    while True:
        page = await documents.list(cursor=cursor, limit=PAGE_MAX)
        read = {each.name: documents.decoded(each, Limits) for each in page.items}
        found |= {app: limits for app, limits in read.items() if limits is not None}
        cursor = page.cursor
        if cursor is None:
            return found


async def _of(journal: Journal, head: Head, app_limits: Limits) -> CompactReport:
    limits = limits_for(head, app_limits)
    if not limits:
        return CompactReport()
    try:
        return (await compact_one(journal, head, limits, journal.now_us()))[1]
    except GONE:  # it ended meanwhile
        return CompactReport()


async def compact_one(
    journal: Journal, head: Head, limits: Limits, now_us: int
) -> tuple[int, CompactReport]:
    """Move what is beyond the limits of one session: up to which event, and what was moved."""
    store: Any = journal.store
    upto = await _upto(store, head, limits, now_us)
    found = CompactReport()
    while upto > head.floor and (step := await store.compact(head.key, upto=upto)).events:
        found = CompactReport(
            1,
            found.events + step.events,
            found.rows_bytes + step.rows_bytes,
            found.segment_bytes + step.segment_bytes,
        )
    return max(upto, head.floor), found


async def _upto(store: Store, head: Head, limits: Limits, now_us: int) -> int:
    """The last event that does not stay hot: too many come after it, or it is too old."""
    upto = 0 if limits.events is None else head.version - limits.events
    if limits.age_us is None:
        return upto
    before_us = now_us - limits.age_us
    low, high = max(0, upto, head.floor), head.version
    while low < high:  # times never decrease in a log: halves are ruled out one by one
        middle = (low + high + 1) // 2
        event = await event_at(store, head.key, middle)
        if event is not None and event.at_us < before_us:
            low = middle
        else:
            high = middle - 1
    return low


def merged(one: CompactReport, other: CompactReport) -> CompactReport:
    """What two compactions moved together."""
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return CompactReport(*[a + b for a, b in pairs])
