"""Retention: how much of each session's history stays hot; the rest moves to cold segments.

Nothing is lost: cold events are compressed together, and read, verified and exported like all
others. The limits of an app are a document of the internal collection `retention`; those of a
session are a fact of its head. After a commit the Compactor compacts sessions that have grown well
beyond their limits, one at a time, in a task that no caller waits for. A sweep goes through the
sessions that nobody writes to. If a process dies, what was not moved is moved next time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec

from limpet.errors import (
    DocumentConflict,
    InvalidCursor,
    InvalidInput,
    InvalidQuery,
    LimpetError,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import DefaultActor, Head, Key, described
from limpet.model.facts.retention import limits_data, retention_in
from limpet.model.limits import PAGE_MAX
from limpet.session.documents import Internal
from limpet.session.history.point_in_time import event_at
from limpet.session.journal import Journal
from limpet.session.loggers import SESSION
from limpet.session.performed import ask_server, server_of
from limpet.store.pages import head_pages
from limpet.store.protocol import Compacts, Progress, Query, Store, plural, size

COLLECTION: Final = "retention"
EVERY: Final = timedelta(hours=1)  # sweeps look at all sessions of an app that often
GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_MICROSECOND: Final = timedelta(microseconds=1)
PASSES: Final = "compaction"  # how far the sweeps of an app's sessions have come
SESSIONS_MAX: Final = 4_096  # of which it is remembered how far they are cold
SLACK_MIN: Final = 64  # events beyond a limit before they are moved: segments are not tiny
AGE_CHECK_MIN_US: Final = 1_000_000


class RetentionLimits(msgspec.Struct, frozen=True):
    """Limits on how much of a history stays hot: the newest `events`, nothing older than `age`.

    None means unlimited. `every` is how often a sweep looks at all sessions of an app.
    """

    events: Annotated[int, msgspec.Meta(ge=1)] | None = None
    age_us: Annotated[int, msgspec.Meta(ge=0)] | None = None
    every_us: Annotated[int, msgspec.Meta(ge=0)] = EVERY // _MICROSECOND

    @property
    def age(self) -> timedelta | None:
        """The age from which events are cold."""
        return None if self.age_us is None else self.age_us * _MICROSECOND

    @property
    def every(self) -> timedelta:
        """The time between two looks at all sessions of the app."""
        return self.every_us * _MICROSECOND

    def __bool__(self) -> bool:
        return self.events is not None or self.age_us is not None


class CompactReport(msgspec.Struct, frozen=True):
    """The counts of a compaction, and the approximate size in bytes before and after."""

    sessions: int = 0  # of which events were moved
    events: int = 0
    rows_bytes: int = 0
    segment_bytes: int = 0
    # Of a files:// store: bytes of the log that were compacted, and what they became.
    log_bytes: int = 0
    compacted_bytes: int = 0

    def __str__(self) -> str:
        moved = f"{plural(self.events, 'event')} of {plural(self.sessions, 'session')} moved"
        if self.events:
            moved += f": {size(self.rows_bytes)} became {size(self.segment_bytes)}"
        if self.log_bytes:
            moved += f"; the log: {size(self.log_bytes)} became {size(self.compacted_bytes)}"
        return moved


def limits_document(events: int | None, age: timedelta | None, every: timedelta) -> dict[str, Any]:
    """The limits as the value of a document. Raises InvalidInput."""
    if not (isinstance(every, timedelta) and every >= timedelta(0)):
        raise InvalidInput(f"every is {described(every)}. Pass a timedelta.")
    off = {"events": None, "age_us": None}
    return {**off, **limits_data(events, age), "every_us": every // _MICROSECOND}


async def limits_of(journal: Journal, app: str) -> RetentionLimits | None:
    """The limits of an app; None if it has none, or none that can be read."""
    documents = Internal(journal, COLLECTION)
    document = await documents.find(app)
    return None if document is None else documents.decoded(document, RetentionLimits)


def own_limits(head: Head) -> RetentionLimits | None:
    """The limits of a session; None if those of its app apply."""
    own = retention_in(head.facts)
    return None if own is None else RetentionLimits(own.get("events"), own.get("age_us"))


def limits_for(head: Head, app_limits: RetentionLimits | None) -> RetentionLimits:
    """The limits of a session: its own, or else those of its app."""
    return own_limits(head) or app_limits or RetentionLimits()


async def watch_app(journal: Journal, app: str) -> None:
    """Let every process look at the sessions of an app: one of them has limits of its own."""
    documents = Internal(journal, COLLECTION, actor=DefaultActor("system:policies"))
    if await documents.find(app) is None:
        with suppress(DocumentConflict):  # another was faster
            await documents.put(app, limits_document(None, None, EVERY), expect=0)


async def compact(journal: Journal, key: Key | None, progress: Progress | None) -> CompactReport:
    """Move what is beyond the limits, of one session or of all."""
    store = journal.store
    if not isinstance(store, Compacts):
        raise InvalidQuery("this store does not support compaction")
    if (server := server_of(journal)) is not None:
        compacted: CompactReport = await ask_server(server, "compact", key)
        return compacted
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
        async for page in head_pages(store, Query(app=app, reverse=False)):
            for head in page.items:
                total = add_reports(total, await _compact_head(journal, head, limits))
                done += 1
                if progress is not None:
                    progress(done, done + len(page.items))
    return total


async def _all_limits(journal: Journal) -> dict[str, RetentionLimits]:
    documents = Internal(journal, COLLECTION)
    read = {each.name: documents.decoded(each, RetentionLimits) async for each in documents.each()}
    return {app: limits for app, limits in read.items() if limits is not None}


async def _compact_head(journal: Journal, head: Head, app_limits: RetentionLimits) -> CompactReport:
    limits = limits_for(head, app_limits)
    if not limits:
        return CompactReport()
    try:
        return (await compact_one(journal, head, limits, journal.now_us()))[1]
    except GONE:  # it ended meanwhile
        return CompactReport()


async def compact_one(
    journal: Journal, head: Head, limits: RetentionLimits, now_us: int
) -> tuple[int, CompactReport]:
    """Move what is beyond the limits of one session: up to which event, and what was moved."""
    store: Any = journal.store
    upto = await _upto(store, head, limits, now_us)
    report = CompactReport()
    while upto > head.floor and (step := await store.compact(head.key, upto=upto)).events:
        report = CompactReport(
            1,
            report.events + step.events,
            report.rows_bytes + step.rows_bytes,
            report.segment_bytes + step.segment_bytes,
        )
    return max(upto, head.floor), report


async def _upto(store: Store, head: Head, limits: RetentionLimits, now_us: int) -> int:
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


def add_reports(one: CompactReport, other: CompactReport) -> CompactReport:
    """Return the sum of two reports."""
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return CompactReport(*[a + b for a, b in pairs])


# --- after commits -------------------------------------------------------------------------------


class _CompactedUpTo(msgspec.Struct):
    """The last event of a session that is compacted, and when that was checked."""

    uid: str
    seq: int
    checked_us: int = 0


class Compactor:
    """The limits of a store's histories, as one process applies them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tops: dict[Key, _CompactedUpTo] = {}
        # As they were last noted, in the order in which they were first met.
        self._waiting: dict[Key, tuple[Head, RetentionLimits]] = {}
        self._task: asyncio.Task[None] | None = None

    async def limits(self, app: str) -> RetentionLimits | None:
        """The limits of an app; None if neither it nor any of its sessions has some."""
        if not isinstance(self._journal.store, Compacts):
            return None
        return await limits_of(self._journal, app)

    def noted(self, head: Head, app_limits: RetentionLimits) -> None:
        """Have a session compacted if it has grown well beyond its limits. Quick."""
        limits = limits_for(head, app_limits)
        if limits:
            self._note(head, limits)

    def _note(self, head: Head, limits: RetentionLimits) -> None:
        if head.key in self._waiting or self._is_due(head, limits):
            self._waiting[head.key] = (head, limits)
            if self._task is None:
                self._task = asyncio.create_task(self._work())

    def _is_due(self, head: Head, limits: RetentionLimits) -> bool:
        top = self._tops.get(head.key)
        if top is None or top.uid != head.uid:
            if len(self._tops) >= SESSIONS_MAX:
                self._tops.clear()
            top = self._tops[head.key] = _CompactedUpTo(head.uid, head.floor)
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

    async def _one(self, key: Key, limits: RetentionLimits) -> None:
        try:
            head = (await self._journal.store.load(key, tail=0, scopes=False)).head
            now_us = self._journal.now_us()
            seq, _ = await compact_one(self._journal, head, limits, now_us)
            self._tops[key] = _CompactedUpTo(head.uid, seq, now_us)
        except GONE:
            pass  # it ended meanwhile
        except Exception as error:  # nobody waits for it, and one must not stop the others
            _log_failure(key, error)

    async def settled(self) -> None:
        """Return when nothing waits to be compacted."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop. The next write or sweep moves what is left."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])


class _SweepPass(msgspec.Struct, frozen=True):
    """The progress of the sweeps of an app: where they go on, and when the pass began."""

    cursor: str | None
    began_us: int


# --- by the sweep ---------------------------------------------------------------------------------


async def evict(journal: Journal, limit: int) -> tuple[CompactReport, bool]:
    """Go on through the sessions of apps with limits whose turn has come, at most `limit` of them;
    what was moved, and whether there is more to do."""
    total = CompactReport()
    if not isinstance(journal.store, Compacts):
        return total, False
    for app, limits in (await _all_limits(journal)).items() if limit > 0 else ():
        report, looked, more = await _pass(journal, app, limits, limit)
        total, limit = add_reports(total, report), limit - looked
        if more or limit <= 0:
            return total, True
    return total, limit <= 0


async def _pass(
    journal: Journal, app: str, limits: RetentionLimits, limit: int
) -> tuple[CompactReport, int, bool]:
    """One page of an app's sessions, if its pass is under way or due.

    What was moved, how many sessions were looked at, and whether more are left of the pass. Several
    sweeps may be at the same page: moving twice moves nothing more, and one of them goes on.
    """
    passes, now_us = Internal(journal, PASSES, actor=DefaultActor("system:sweep")), journal.now_us()
    state = await passes.find(app)
    last = None if state is None else passes.decoded(state, _SweepPass)
    cursor = None if last is None else last.cursor
    began_us = now_us if cursor is None or last is None else last.began_us
    if last is not None and cursor is None and now_us < last.began_us + limits.every_us:
        return CompactReport(), 0, False
    heads, after = await _page(journal, app, cursor, limit)
    total = CompactReport()
    for head in heads:
        total = add_reports(total, await _evict_one(journal, head, limits, now_us))
    with suppress(DocumentConflict):  # another sweep was faster
        value = msgspec.to_builtins(_SweepPass(after, began_us))
        await passes.put(app, value, expect=0 if state is None else state.version)
    return total, len(heads), after is not None


async def _evict_one(
    journal: Journal, head: Head, limits: RetentionLimits, now_us: int
) -> CompactReport:
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
