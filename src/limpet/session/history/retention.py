"""Retention: how much of each session's history stays hot, and moving the rest to cold segments.

Nothing is lost by it: cold events are compressed together, and read, verified and exported like all
others. The limits of an app are a document of the collection `retention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput, InvalidQuery, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import PAGE_MAX, Head, Key, described
from limpet.session.documents import Documents
from limpet.session.history.at import event_at
from limpet.session.journal import Journal
from limpet.store.protocol import Compacts, Progress, Query, Store

COLLECTION: Final = "retention"
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)


class CompactReport(msgspec.Struct, frozen=True):
    """What a compaction moved, and about what it took before and takes now."""

    sessions: int = 0  # of which events were moved
    events: int = 0
    rows_bytes: int = 0
    segment_bytes: int = 0


def checked(events: int | None, age: timedelta | None) -> dict[str, Any]:
    """The limits as the value of a document. Raises InvalidInput."""
    if events is not None and (type(events) is not int or events < 1):
        raise InvalidInput(f"events is {described(events)}. Pass how many stay hot, from 1 on.")
    if age is not None and not (isinstance(age, timedelta) and age >= timedelta(0)):
        raise InvalidInput(f"age is {described(age)}. Pass a timedelta.")
    return {"events": events, "age": None if age is None else age.total_seconds()}


async def compact(journal: Journal, key: Key | None, progress: Progress | None) -> CompactReport:
    """Move what is beyond the limits of its app, of one session or of all."""
    store = journal.store
    if not isinstance(store, Compacts):
        raise InvalidQuery("this store does not support compaction")
    documents = Documents(journal, COLLECTION)
    if key is not None:
        limits = await documents.find(key.app)
        if limits is None:
            raise InvalidInput(
                f"the app {key.app} has no limits. Set them with lp.retention({key.app!r}, …)."
            )
        head = (await store.load(key, tail=0, scopes=False)).head
        return await _one(journal, head, limits.value)
    total, done = CompactReport(), 0
    limits_of = await _all_limits(documents)
    for app, value in limits_of.items():
        cursor: str | None = None
        while True:
            query = Query(app=app, reverse=False)
            page = await store.heads(query, cursor=cursor, limit=PAGE_MAX)
            for head in page.items:
                total = _plus(total, await _of(journal, head, value))
                done += 1
                if progress is not None:
                    progress(done, done + len(page.items))
            cursor = page.cursor
            if cursor is None:
                break
    return total


async def _all_limits(documents: Documents) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cursor: str | None = None
    while True:
        page = await documents.list(cursor=cursor, limit=PAGE_MAX)
        found |= {document.name: document.value for document in page.items}
        cursor = page.cursor
        if cursor is None:
            return found


async def _of(journal: Journal, head: Head, limits: Mapping[str, Any]) -> CompactReport:
    try:
        return await _one(journal, head, limits)
    except _GONE:  # it ended meanwhile
        return CompactReport()


async def _one(journal: Journal, head: Head, limits: Mapping[str, Any]) -> CompactReport:
    store: Any = journal.store
    upto = await _upto(store, head, limits, journal.now_us())
    found = CompactReport()
    while upto > head.floor and (step := await store.compact(head.key, upto=upto)).events:
        found = CompactReport(
            1,
            found.events + step.events,
            found.rows_bytes + step.rows_bytes,
            found.segment_bytes + step.segment_bytes,
        )
    return found


async def _upto(store: Store, head: Head, limits: Mapping[str, Any], now_us: int) -> int:
    """The last event that does not stay hot: too many come after it, or it is too old."""
    events, age = limits["events"], limits["age"]
    upto = 0 if events is None else head.version - events
    if age is None:
        return upto
    before_us = now_us - int(age * 1_000_000)
    low, high = max(0, upto, head.floor), head.version
    while low < high:  # times never decrease in a log: halves are ruled out one by one
        middle = (low + high + 1) // 2
        event = await event_at(store, head.key, middle)
        if event is not None and event.at_us < before_us:
            low = middle
        else:
            high = middle - 1
    return low


def _plus(one: CompactReport, other: CompactReport) -> CompactReport:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return CompactReport(*[a + b for a, b in pairs])
