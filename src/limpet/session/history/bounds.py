"""Bounds: histories that grow beyond their limits are moved to cold segments by themselves.

After a commit the keeper asks whether the session has enough beyond its limits; then a task of this
process compacts it, one session at a time, and no caller waits for it. A sweep goes through the
sessions of every app with limits once in a while, for those that nobody writes to. If a process
dies, nothing is lost: what was not moved is moved next time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from limpet.errors import DocumentConflict, InvalidCursor, LimpetError
from limpet.model import PAGE_MAX, Head, Key
from limpet.session.documents import Internal
from limpet.session.history.retention import (
    COLLECTION,
    GONE,
    CompactReport,
    Limits,
    compact_one,
    limits_for,
    limits_of,
    merged,
)
from limpet.session.journal import Journal
from limpet.session.logs import SESSION
from limpet.store.protocol import Compacts, Query

PASSES: Final = "compaction"  # how far the sweeps of an app's sessions have come
SESSIONS_MAX: Final = 4_096  # of which it is remembered how far they are cold
SLACK_MIN: Final = 64  # events beyond a limit before they are moved: segments are not tiny
AGE_CHECK_MIN_US: Final = 1_000_000


class _Top(msgspec.Struct):
    """How far a session was compacted, and when that was looked at."""

    uid: str
    seq: int
    checked_us: int = 0


class _Pass(msgspec.Struct, frozen=True):
    """How far the sweeps have come with an app: where they go on, and when the pass began."""

    cursor: str | None
    began_us: int


class Bounds:
    """The limits of a store's histories, as one process applies them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tops: dict[Key, _Top] = {}
        # As they were last noted, in the order in which they were first met.
        self._waiting: dict[Key, tuple[Head, Limits]] = {}
        self._task: asyncio.Task[None] | None = None

    async def limits(self, app: str) -> Limits | None:
        """The limits of an app; None: neither it nor a session of it has any."""
        if not isinstance(self._journal.store, Compacts):
            return None
        return await limits_of(self._journal, app)

    def noted(self, head: Head, app_limits: Limits) -> None:
        """Have a session compacted if it has grown well beyond its limits. Quick."""
        limits = limits_for(head, app_limits)
        if limits:
            self._note(head, limits)

    def _note(self, head: Head, limits: Limits) -> None:
        if head.key in self._waiting or self._is_due(head, limits):
            self._waiting[head.key] = (head, limits)
            if self._task is None:
                self._task = asyncio.create_task(self._work())

    def _is_due(self, head: Head, limits: Limits) -> bool:
        top = self._tops.get(head.key)
        if top is None or top.uid != head.uid:
            if len(self._tops) >= SESSIONS_MAX:
                self._tops.clear()
            top = self._tops[head.key] = _Top(head.uid, head.floor)
        if limits.events is not None:
            slack = max(SLACK_MIN, limits.events // 4)
            if head.version - top.seq >= limits.events + slack:
                return True
        if limits.age_us is None:
            return False
        passed_us = self._journal.now_us() - top.checked_us
        return passed_us >= max(AGE_CHECK_MIN_US, limits.age_us // 4)

    async def _work(self) -> None:
        """Compact what waits, one session after the other."""
        try:
            while self._waiting:
                key, (head, limits) = next(iter(self._waiting.items()))
                await self._one(key, limits)
                newest, limits = self._waiting.pop(key)
                if newest is not head:  # it has grown meanwhile, and perhaps nobody writes again
                    self._note(newest, limits)
        finally:
            self._task = None

    async def _one(self, key: Key, limits: Limits) -> None:
        try:
            head = (await self._journal.store.load(key, tail=0, scopes=False)).head
            now_us = self._journal.now_us()
            seq, _ = await compact_one(self._journal, head, limits, now_us)
            self._tops[key] = _Top(head.uid, seq, now_us)
        except GONE:
            pass  # it ended meanwhile
        except Exception as error:  # nobody waits for it, and one must not stop the others
            _log_failure(key, error)

    async def settled(self) -> None:
        """Return when nothing waits to be compacted."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop. What was not moved is moved by whoever writes or sweeps next."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])


# --- by the sweep ---------------------------------------------------------------------------------


async def evict(journal: Journal, limit: int) -> tuple[CompactReport, bool]:
    """Go on through the sessions of apps with limits whose turn has come, at most `limit` of them;
    what was moved, and whether there is more to do."""
    total = CompactReport()
    if not isinstance(journal.store, Compacts):
        return total, False
    documents = Internal(journal, COLLECTION)
    cursor: str | None = None
    while limit > 0:
        page = await documents.list(cursor=cursor, limit=PAGE_MAX)
        for document in page.items:
            limits = documents.decoded(document, Limits)
            if limits is None:
                continue
            report, looked, more = await _pass(journal, document.name, limits, limit)
            total, limit = merged(total, report), limit - looked
            if more or limit <= 0:
                return total, True
        cursor = page.cursor
        if cursor is None:
            return total, False
    return total, True


async def _pass(
    journal: Journal, app: str, limits: Limits, limit: int
) -> tuple[CompactReport, int, bool]:
    """One page of an app's sessions, if its pass is under way or due.

    What was moved, how many sessions were looked at, and whether more are left of the pass. Several
    sweeps may be at the same page: moving twice moves nothing more, and one of them goes on.
    """
    passes, now_us = Internal(journal, PASSES, actor="system:sweep"), journal.now_us()
    state = await passes.find(app)
    last = None if state is None else passes.decoded(state, _Pass)
    cursor = None if last is None else last.cursor
    began_us = now_us if cursor is None or last is None else last.began_us
    if last is not None and cursor is None and now_us < last.began_us + limits.every_us:
        return CompactReport(), 0, False
    heads, after = await _page(journal, app, cursor, limit)
    total = CompactReport()
    for head in heads:
        total = merged(total, await _evicted(journal, head, limits, now_us))
    with suppress(DocumentConflict):  # another sweep was faster
        value = msgspec.to_builtins(_Pass(after, began_us))
        await passes.put(app, value, expect=0 if state is None else state.version)
    return total, len(heads), after is not None


async def _evicted(journal: Journal, head: Head, limits: Limits, now_us: int) -> CompactReport:
    own = limits_for(head, limits)
    if own:
        try:
            return (await compact_one(journal, head, own, now_us))[1]
        except GONE:
            pass  # it ended meanwhile
        except LimpetError as error:  # one session must not stop the others
            _log_failure(head.key, error)
    return CompactReport()


async def _page(
    journal: Journal, app: str, cursor: str | None, limit: int
) -> tuple[tuple[Head, ...], str | None]:
    query, size = Query(app=app, reverse=False), min(limit, PAGE_MAX)
    try:
        page = await journal.store.heads(query, cursor=cursor, limit=size)
    except InvalidCursor:  # of another release: the pass begins again
        page = await journal.store.heads(query, cursor=None, limit=size)
    return page.items, page.cursor


def _log_failure(key: Key, error: Exception) -> None:
    SESSION.warning("compaction failed: session=%s error=%s", key, type(error).__name__)
