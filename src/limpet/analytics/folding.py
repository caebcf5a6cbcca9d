"""Folding: the feed of a store into an analytics file, each event exactly once.

A page of the feed is folded in memory, and then its results and the position behind it are written
in one commit. A session counts by its uid and the last seq that was folded: an event that comes
again is passed over, and one that does not follow is no reason to guess: what lies between is read
from the log, for cold events leave the feed. Nothing is awaited between the decision to count an
event and counting it.

One batch is under way at a time: folding, training and forgetting take turns within a process. What
another process has written to the file meanwhile is noticed by its version, and then everything is
read again from the file before it counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

import msgspec

from limpet.analytics.file import AnalyticsFile, FileCommit, FoldedElsewhere, hashed, packed
from limpet.analytics.metrics import (
    HOUR_US,
    SessionFold,
    begin,
    begins,
    fold_checkpoint,
    fold_event,
    is_stub,
)
from limpet.analytics.rollup import (
    CellKey,
    CellTally,
    Horizons,
    change_of,
    day_start,
    marked,
    month_start,
)
from limpet.errors import (
    PositionUnknown,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import Event, Head, Key, ops as op
from limpet.model.facts.checkpoints import OF, RECORDED
from limpet.model.facts.phases import archive_place
from limpet.model.facts.scores import SCORED
from limpet.model.keys import CHECKPOINTS, owned_by
from limpet.session.follow import feed_of
from limpet.store.protocol import Query, Store

PAGE: Final = 4_000  # entries that are folded and committed together
_READ: Final = 1_000
_FOLDS_MAX: Final = 50_000  # in memory
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionArchived)
_YIELD_EVERY: Final = 500  # events after which other tasks may run
FEEDS: Final = ("position", "checkpoints")  # names in `meta`: of sessions, and of checkpoint logs
PREDICTING: Final = "predicting"  # in `meta`: the uid up to which sessions have a new prediction
Predict = Callable[[SessionFold, int], int]  # millionths


class Batch(msgspec.Struct):
    """The changes of one page: new folds, and what the old ones had added."""

    before: dict[str, SessionFold | None] = {}  # by uid; None: it began in this page
    folds: dict[str, SessionFold] = {}
    logs: dict[Key, tuple[str, int]] = {}
    scores: list[tuple[Any, ...]] = []
    removed: list[SessionFold] = []
    live: set[str] = set()  # the uids of those that had not ended
    events: int = 0


class FeedFold:
    """The way from one store into one file."""

    def __init__(
        self,
        store: Store,
        file: AnalyticsFile,
        *,
        hours_kept: int,
        days_kept: int,
        predict: Predict | None = None,
    ) -> None:
        self._store, self._feed, self._file = store, feed_of(store), file
        self._hours_kept, self._days_kept = hours_kept, days_kept
        self.predict, self.model = predict, 0
        self._folds: dict[Key, SessionFold] = {}
        self._batch = Batch()
        self._turn = asyncio.Lock()  # held from the first read of a batch to its commit
        self.events = 0  # folded so far
        # Of sessions that have ended and whose records are complete: as of the last step, all their
        # checkpoints were folded.
        self.complete: list[bytes] = []

    async def step(self) -> list[SessionFold] | None:
        """Fold one page of the feed, and near its end one of the checkpoints; None if there is
        nothing new. Returns the folds that changed."""
        async with self._turn:
            self.complete = []
            try:
                return await self._step()
            except FoldedElsewhere:  # another process was faster: begin where it stopped
                self._reset()
                return []
            except PositionUnknown:  # the store was put back to an earlier time
                await self._reconcile()
                self._file.set_meta("position", None)
                self._file.set_meta("checkpoints", None)
                return []
            except BaseException:  # what was folded of this page is not in the file
                self._reset()
                raise

    async def _step(self) -> list[SessionFold] | None:
        if self._file.changed_elsewhere():
            self._reset()
        begin, marks = self._file.meta("position"), self._file.meta("checkpoints")
        ended = self._file.unemitted(_READ)
        entries, position = await self._feed.changes(begin, app=None, key=None, limit=PAGE)
        for number, entry in enumerate(entries, 1):
            if not self._take(entry.key, entry.event):
                await self._catch_up(entry.key)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        # Sessions come before their checkpoints, which do not wait until nothing happens any more.
        if len(entries) < PAGE:
            made, marks = await self._feed.changes(marks, app=CHECKPOINTS, key=None, limit=PAGE)
            for entry in made:
                await self._take_checkpoint(entry.key, entry.event)
            if not made:  # a session's checkpoints are recorded before its end
                self.complete = ended
            if not made and not entries and begin is not None:
                return None
        return self._commit({"position": position, "checkpoints": marks})

    # --- one event -------------------------------------------------------------------------------

    def _take(self, key: Key, event: Event) -> bool:
        """Count an event. False if it does not follow what was counted of its session."""
        if begins(event):
            if not is_stub(event) and self._known(event.id, key) is None:
                self._begin(key, event)
            return True
        fold = self._folds.get(key) or self._newest(key)
        if fold is None:
            return False
        if event.seq <= fold.seq:
            # It comes again; or a deleted session's key is in use again, and the feed has lost its
            # first events: within one log no event is younger than a later one.
            return event.at_us <= fold.updated_us
        if event.seq != fold.seq + 1:
            return False
        self._fold(fold, event)
        return True

    def _begin(self, key: Key, event: Event) -> None:
        fold = begin(key, event)
        self._folds[key] = fold
        batch = self._batch
        batch.before[fold.uid], batch.folds[fold.uid] = None, fold
        batch.live.add(fold.uid)
        batch.events += 1

    def _fold(self, fold: SessionFold, event: Event) -> None:
        batch = self._batch
        if fold.uid not in batch.folds:
            self._touch(fold)
        fold_event(fold, event)
        batch.events += 1
        if event.type == SCORED and event.data:
            data = event.data
            row = (packed(fold.uid), event.seq, data.get("name"), data.get("value"))
            batch.scores.append((*row, data.get("turn"), data.get("call")))

    def _touch(self, fold: SessionFold) -> None:
        """Note what a session has added so far, before it changes."""
        self._batch.folds[fold.uid] = fold
        self._batch.before[fold.uid] = marked(fold)
        if not fold.ended_us:
            self._batch.live.add(fold.uid)

    def _known(self, uid: str, key: Key) -> SessionFold | None:
        """The fold of a session, in memory or in the file."""
        fold = self._folds.get(key)
        if fold is None or fold.uid != uid:
            fold = self._batch.folds.get(uid) or self._file.fold(uid)
            if fold is not None:
                self._folds[key] = fold
        return fold

    def _newest(self, key: Key) -> SessionFold | None:
        folds = self._file.folds_of(key)
        if folds:
            self._folds[key] = folds[-1]
        return folds[-1] if folds else None

    async def _catch_up(self, key: Key) -> SessionFold | None:
        """Fold what the log has beyond the fold; all of it, if nothing was folded yet."""
        fold = self._folds.get(key) or self._newest(key)
        try:
            after = fold.seq if fold is not None and await is_in_log(self._store, fold) else 0
        except _GONE:
            return fold
        while True:
            try:
                events = await self._store.read(
                    key, after=after, limit=_READ, reverse=False, types=None
                )
            except _GONE:
                return fold
            if not events:
                return self._folds.get(key)
            for event in events:
                after = event.seq
                if begins(event) and not _is_of(event, key):
                    continue  # of the session that it was forked from
                if not self._take(key, event):
                    continue  # likewise, or a hole in the log
            await asyncio.sleep(0)

    async def _take_checkpoint(self, key: Key, event: Event) -> None:
        uid, seq = self._batch.logs.get(key) or self._file.log(key)
        if event.seq <= seq:
            return
        if event.seq == seq + 1:
            await self._count_checkpoint(key, event, uid)
            return
        while events := await self._read_log(key, seq):
            for each in events:
                await self._count_checkpoint(key, each, uid)
                uid, seq = self._batch.logs[key]

    async def _read_log(self, key: Key, after: int) -> tuple[Event, ...]:
        try:
            return await self._store.read(key, after=after, limit=_READ, reverse=False, types=None)
        except _GONE:
            return ()

    async def _count_checkpoint(self, key: Key, event: Event, uid: str) -> None:
        uid = checkpoints_owner(event, uid)
        self._batch.logs[key] = (uid, event.seq)
        if event.type != RECORDED or event.data is None:
            return
        fold = self._batch.folds.get(uid) or self._file.fold(uid)
        owner = owned_by(key.user)
        if fold is None and owner is not None:  # it was created a moment ago
            fold = await self._catch_up(Key(*owner, key.id))
        if fold is None or fold.uid != uid:
            return
        fold = self._known(uid, fold.key) or fold
        if uid not in self._batch.folds:
            self._touch(fold)
        fold_checkpoint(fold, event.data.get("size"))

    # --- commits ---------------------------------------------------------------------------------

    def _commit(self, meta: dict[str, Any]) -> list[SessionFold]:
        """Write what was folded and the positions behind it; if that fails, the batch is given up,
        and folded again. Raises FoldedElsewhere, StoreError."""
        try:
            return self._write(meta)
        except BaseException:
            self._reset()
            raise

    def _write(self, meta: dict[str, Any]) -> list[SessionFold]:
        batch, now_us = self._batch, self._store.now_us()
        changed = list(batch.folds.values())
        if self.predict is not None:
            for fold in changed:
                # As of its newest event: what is stored follows from the log and the model alone.
                fold.satisfaction = self.predict(fold, fold.updated_us)
                fold.model = self.model
        changes = _changes(batch)
        for fold in changed:
            fold.was = None
        with self._file.commit() as c:
            for name, value in meta.items():
                c.set_meta(name, value)
            if changed:
                last = changed[-1]
                c.set_meta("last", msgspec.json.encode([*_place(last), last.seq, last.link]))
            c.put_folds(changed)
            c.put_records(
                [fold.uid for fold in changed if fold.ended_us and fold.uid in batch.live]
            )
            c.put_logs(batch.logs)
            c.put_scores(batch.scores)
            for key, tally in changes.items():
                c.add(key, tally)
            for fold in batch.removed:
                c.forget(fold.uid)
            self._roll(c, now_us)
        self.events += batch.events
        self._batch = Batch()
        if len(self._folds) > _FOLDS_MAX:
            self._folds.clear()
        return changed

    def _roll(self, c: FileCommit, now_us: int) -> None:
        """Move windows on once they are older than they are kept."""
        hour, kept = now_us // HOUR_US, self._file.horizons
        day = max(kept.day, day_start(hour - self._hours_kept))
        month = max(kept.month, month_start(hour - 24 * self._days_kept))
        if (day, month) != (kept.day, kept.month):
            c.roll(Horizons(day, month))

    def _reset(self) -> None:
        self._batch = Batch()
        self._folds.clear()

    async def predict_all(self, until: float = inf) -> bool:
        """Write the satisfaction that the model predicts for every session, page by page, until
        this monotonic time. Stopped anywhere, it goes on where it was when it is called again.
        Return True if none are left."""
        while self._file.meta(PREDICTING) is not None:
            if time.monotonic() >= until:
                return False
            async with self._turn:
                self._predict_page(self._file.meta(PREDICTING))
            await asyncio.sleep(0)
        return True

    def _predict_page(self, after: bytes) -> None:
        self._file.changed_elsewhere()
        self._reset()
        folds = list(self._file.folds(after=after, limit=_READ))
        for fold in folds:
            self._touch(fold)
        with suppress(FoldedElsewhere):
            self._commit({PREDICTING: packed(folds[-1].uid) if folds else None})

    # --- what is gone ----------------------------------------------------------------------------

    async def honour_endings(self) -> int:
        """Remove the sessions that were erased since the last time; their number.

        Deleted sessions stay: what was measured of them is no secret. Looks at every session, and
        only if the store says that one has ended; folding goes on meanwhile.
        """
        gone = await self._erased()
        if gone is None:
            return 0
        async with self._turn:
            return self._remove_at(*gone)

    async def _erased(self) -> tuple[list[bytes], str] | None:
        """The sessions that are no longer in the store, as of which of its marks; None if none has
        ended since the last time."""
        ended = await self._endings()
        if ended == self._file.meta("ended"):
            return None
        known = self._file.names()  # first: what begins meanwhile is not looked for
        uids, names = await self._there()
        return [uid for uid, name in known if uid not in uids and name not in names], ended

    async def _endings(self) -> str:
        """The mark of the store that moves with every end of a session."""
        if (position := self._file.meta("position")) is not None:
            with suppress(PositionUnknown):  # of a store that was put back by hand
                return (await self._feed.touched(position)).ended
        return (await self._feed.touched(await self._feed.position())).ended

    def _remove_at(self, uids: list[bytes], ended: str) -> int:
        return self._remove(lambda: self._file.folds_at(uids), {"ended": ended})

    async def forget(self, app: str, user: str) -> int:
        """Remove the sessions of a user; their number."""

        def theirs() -> list[SessionFold]:
            return [fold for fold in self._file.folds() if (fold.app, fold.user) == (app, user)]

        async with self._turn:
            return self._remove(theirs)

    def _remove(
        self, chosen: Callable[[], list[SessionFold]], meta: dict[str, Any] | None = None
    ) -> int:
        """Take sessions out of the file and of every cell that they added to; their number."""
        while True:
            self._file.changed_elsewhere()
            self._reset()
            folds = chosen()
            for fold in folds:
                self._batch.before[fold.uid] = fold
                self._batch.removed.append(fold)
            try:
                self._commit(meta or {})
            except FoldedElsewhere:
                continue
            self._folds.clear()
            if folds:
                self._file.shred()
            return len(folds)

    async def _there(self) -> tuple[set[bytes], set[int]]:
        """The uids of all sessions, also of those in the archive, and the hashes of their keys and
        of those of deleted sessions. As they are stored: there may be millions."""
        uids, names = set(), set()
        async for head in self._heads(Query(order="created", reverse=False)):
            place = archive_place(head.facts)
            uids.add(packed(head.uid if place is None else str(place["uid"])))
            names.add(hashed(head.key))
        async for head in self._heads(Query(deleted=True)):
            names.add(hashed(head.key))
        return uids, names

    async def _heads(self, query: Query) -> Any:
        cursor: str | None = None
        while True:
            page = await self._store.heads(query, cursor=cursor, limit=_READ)
            for head in page.items:
                yield head
            if (cursor := page.cursor) is None:
                return
            await asyncio.sleep(0)

    # --- a store that was put back ---------------------------------------------------------------

    async def is_same(self) -> bool:
        """True if the last event that was folded is still the one in the log, as far as that can
        be told."""
        raw = self._file.meta("last")
        if raw is None:
            return True
        app, user, id, uid, seq, link = msgspec.json.decode(
            raw, type=tuple[str, str, str, str, int, bytes]
        )
        if (fold := self._file.fold(uid)) is None or fold.seq < seq:
            return True
        try:
            events = await self._store.read(
                Key(app, user, id), after=seq - 1, limit=1, reverse=False, types=None
            )
        except SessionNotFound:  # it was there, and neither deleted nor erased
            return False
        except _GONE:
            return True
        return bool(events) and (events[0].removed or events[0].link[:8] == link)

    async def reconcile(self) -> None:
        """Compare every session with its log: what was folded of events that are not there any
        more is taken out, and folded again from the log."""
        async with self._turn:
            await self._reconcile()

    async def _reconcile(self) -> None:
        async for head in self._heads(Query(order="created", reverse=False)):
            if archive_place(head.facts) is None:
                await self._compare(head)
        self._file.set_meta("ended", None)
        if (gone := await self._erased()) is not None:
            self._remove_at(*gone)

    async def _compare(self, head: Head) -> None:
        fold = self._file.fold(head.uid)
        if fold is not None and not await self._agrees(head, fold):
            self._remove(lambda: self._file.folds_at([packed(head.uid)]))
        while True:
            self._file.changed_elsewhere()
            self._reset()
            await self._catch_up(head.key)
            with suppress(FoldedElsewhere):
                if self._batch.folds:
                    self._commit({})
                return

    async def _agrees(self, head: Head, fold: SessionFold) -> bool:
        if head.version <= fold.seq:
            return head.version == fold.seq and head.link[:8] == fold.link
        return await is_in_log(self._store, fold)


async def is_in_log(store: Store, fold: SessionFold) -> bool:
    """True if the last event that was folded is in the log of its key: it is the same session, and
    the store was not put back to an earlier time."""
    events = await store.read(fold.key, after=fold.seq - 1, limit=1, reverse=False, types=None)
    return bool(events) and (events[0].removed or events[0].link[:8] == fold.link)


def _place(fold: SessionFold) -> tuple[str, str, str, str]:
    return fold.app, fold.user, fold.id, fold.uid


def checkpoints_owner(event: Event, before: str) -> str:
    """Return the uid of the session whose checkpoints a log has after this event of it."""
    for each in event.ops:
        if isinstance(each, op.Set) and each.path == (OF,):
            return str(each.value)
    return before


def _is_of(event: Event, key: Key) -> bool:
    data = event.data or {}
    return (data.get("app"), data.get("user"), data.get("id")) == (key.app, key.user, key.id)


def _changes(batch: Batch) -> dict[CellKey, CellTally]:
    """Return what the cells change by: one tally for all sessions that share a cell."""
    changes: dict[CellKey, CellTally] = {}
    for uid, before in batch.before.items():
        for tallies, times in change_of(before, batch.folds.get(uid)):
            for key, tally in tallies.items():
                to = changes.get(key)
                if to is None:
                    to = changes[key] = CellTally.empty()
                to.plus(tally, times)
    return {key: tally for key, tally in changes.items() if not tally.is_empty}
