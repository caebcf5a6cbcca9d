"""Analytics: what a program asks of it. The file is folded by `run`; everything else reads it.

Reads are of roll-ups, so their cost does not grow with the number of sessions; `anomalies`,
`regression` and `failing` look at the newest sessions only, and `train` at those with feedback.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from limpet.analytics import advice as advising, anomalies as finding, compare as comparing
from limpet.analytics.advice import ACTOR, Advice, AdvicePolicy
from limpet.analytics.anomalies import Anomalies
from limpet.analytics.compare import Comparison, Regression
from limpet.analytics.exposition import Observer, instrument, prometheus_text
from limpet.analytics.file import AnalyticsFile, packed, path_of
from limpet.analytics.folding import PREDICTING, FeedFold, checkpoints_owner, is_in_log
from limpet.analytics.metrics import (
    BEGINNINGS,
    SessionAnalytics,
    SessionFold,
    analytics_of,
    begin,
    begins,
    fold_checkpoint,
    fold_event,
)
from limpet.analytics.report import GROUPS as REPORT_GROUPS, WINDOWS, FleetReport, hourly
from limpet.analytics.rollup import (
    DIMENSIONS,
    FIRST_HOUR,
    GRAINS,
    HOUR,
    CellTally,
    Dimension,
    Grain,
    hours_in,
    hours_since,
    start_of,
    unpack,
    window_name,
)
from limpet.analytics.satisfaction import (
    MINIMUM,
    Sample,
    SatisfactionModel,
    sample_of,
    train,
)
from limpet.analytics.sets import FailingSet, failing_set
from limpet.analytics.tables import (
    Cells,
    Table,
    Tallies,
    group_columns,
    tool_columns,
    window_columns,
)
from limpet.errors import (
    AccessDenied,
    InvalidInput,
    LimpetError,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreError,
    TooLittleFeedback,
)
from limpet.model import Event, Key, described, to_us
from limpet.model.facts import phases
from limpet.model.facts.checkpoints import RECORDED
from limpet.model.facts.scores import SCORED, intervention_suggested, scored
from limpet.model.keys import checkpoints_of
from limpet.session.arguments import AnyKey, check_app, check_flag, key_of
from limpet.session.documents import Internal
from limpet.session.limpet import Limpet, journal_of
from limpet.session.loggers import SESSION
from limpet.session.writer import writer_of

COLLECTION: Final = "satisfaction"
MODEL: Final = "model"
INTERVENE_BELOW: Final = 0.3
HOURS_KEPT: Final = 48
DAYS_KEPT: Final = 62
GROUPS: Final = 100  # of a table, if not asked otherwise
RETRAIN: Final = timedelta(days=1)
BASELINE: Final = 200
_READ: Final = 1_000
_GROUPS_MAX: Final = 10_000
_HOUSE_SECONDS: Final = 1.0  # between two looks for erased sessions, and at advice and schedule
_PAUSE: Final = 10  # times as long as such a look took, if that is more
# A policy may make another checkpoint when the end is durable: what follows the store waits for it
# so long before it emits the record.
_SETTLE_SECONDS: Final = 1.0
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionArchived)
_DIGITS: Final = re.compile(r"(\d+)")
_Result = TypeVar("_Result")
OnIntervention = Callable[[SessionAnalytics], "Awaitable[None] | None"]


class Score(msgspec.Struct, frozen=True):
    """A score of a session, a turn or a tool call."""

    seq: int
    name: str
    value: float
    turn: str | None = None
    call: str | None = None


class Analytics:
    """The analytics of a store: `limpet.Analytics(lp, "sqlite:///analytics.db")`.

    `intervene_below` is the predicted satisfaction below which an intervention is suggested in a
    live session, once: an event, and a call of `on_intervention`. None: never. `policy` says which
    advice is applied by `run`. `retrain` is how often it trains a model again, if there is feedback
    of `minimum` sessions; with store_models=False a model is not stored as a document, but stays in
    this file until the store has one. Windows are hours for `hours_kept`, then days for
    `days_kept`, then months.
    """

    def __init__(
        self,
        lp: Limpet,
        url: str,
        *,
        policy: AdvicePolicy | None = None,
        intervene_below: float | None = INTERVENE_BELOW,
        on_intervention: OnIntervention | None = None,
        retrain: timedelta | None = RETRAIN,
        minimum: int = MINIMUM,
        store_models: bool = True,
        hours_kept: int = HOURS_KEPT,
        days_kept: int = DAYS_KEPT,
    ) -> None:
        if not isinstance(lp, Limpet):
            raise InvalidInput(
                "analytics need the Limpet of `async with limpet.open(url) as lp`, "
                f"not {described(lp)}."
            )
        for name, count in (("hours_kept", hours_kept), ("days_kept", days_kept)):
            _check_count(name, count)
        _check_count("minimum", minimum)
        check_flag("store_models", store_models)
        if intervene_below not in (None, 0, 1):
            _check_share("intervene_below", intervene_below)
        if retrain is not None and not isinstance(retrain, timedelta):
            raise InvalidInput(f"retrain is a timedelta or None, not {described(retrain)}.")
        _check_policy(policy)
        self._lp, self._path = lp, path_of(url)
        self._policy, self._retrain, self._minimum = policy, retrain, minimum
        self._below, self._on_intervention = intervene_below, on_intervention
        self._stores_models = self._replaces_models = store_models
        self._kept = (hours_kept, days_kept)
        self._opened: tuple[AnalyticsFile, FeedFold] | None = None
        self._model: SatisfactionModel | None = None
        self._stopping, self._bell = False, asyncio.Event()
        self._runners: set[asyncio.Task[Any] | None] = set()  # one may follow, another catch up
        self._ended = asyncio.Event()  # all of them have
        self._catching_up = asyncio.Lock()
        self._settling: dict[bytes, float] = {}  # ended sessions, by uid: the time they were met
        self._observers: list[Observer] = []

    async def __aenter__(self) -> Self:
        self._parts()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file, once `run` has folded the page it is at. The store stays open."""
        self.stop()
        if self._runners and asyncio.current_task() not in self._runners:
            await self._ended.wait()
        for observer in self._observers:
            observer.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _parts(self) -> tuple[AnalyticsFile, FeedFold]:
        """The file and the way into it, opened at the first use."""
        if self._opened is None:
            file = AnalyticsFile(self._path)
            hours, days = self._kept
            folding = FeedFold(journal_of(self._lp).store, file, hours_kept=hours, days_kept=days)
            self._opened = (file, folding)
            raw = file.meta(MODEL)
            if raw is not None:
                self._use(msgspec.json.decode(raw, type=SatisfactionModel))
        return self._opened

    @property
    def file(self) -> AnalyticsFile:
        """The open file."""
        return self._parts()[0]

    def _now_us(self) -> int:
        return journal_of(self._lp).now_us()

    # --- folding ---------------------------------------------------------------------------------

    async def run(self, *, once: bool = False) -> int:
        """Fold new events; with once=True return when they are folded, otherwise continue until
        `stop` or cancellation. Return the number of events folded.

        Raises StoreError; while it continues, only one that does not pass: what may succeed later
        is logged and tried again.
        """
        _, folding = self._parts()
        began, runner = folding.events, asyncio.current_task()
        if not self._runners:
            self._stopping = False
        self._runners.add(runner)
        self._ended.clear()
        try:
            if not await folding.is_same():
                await folding.reconcile()
            await self._adopt_model()
            await (self._fold_once() if once else self._follow())
        finally:
            self._runners.discard(runner)
            if not self._runners:
                self._ended.set()
        return folding.events - began

    async def _fold_once(self) -> None:
        await self._predict_all()
        while not self._stopping and await self._fold_page():  # noqa: ASYNC110  # pages of work
            await asyncio.sleep(0)
        if not self._stopping:
            await self._keep_house()

    async def _follow(self) -> None:
        """Fold until `stop`, and keep house beside: what that takes does not hold folding up."""
        house = asyncio.create_task(self._keep_house_regularly())
        try:
            with journal_of(self._lp).hub.waiting(app=None) as bell:
                self._bell = bell
                while not self._stopping:
                    bell.clear()
                    if house.done():
                        house.result()  # raises what it has raised
                    if await self._tried_again(self._fold_settled):
                        await asyncio.sleep(0)
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_HOUSE_SECONDS):
                            await bell.wait()
        finally:
            house.cancel()
            with suppress(asyncio.CancelledError):
                await house

    async def _keep_house_regularly(self) -> None:
        await self._tried_again(self._predict_all)
        while True:
            began = time.monotonic()
            await self._tried_again(self._keep_house_and_model)
            await asyncio.sleep(max(_HOUSE_SECONDS, _PAUSE * (time.monotonic() - began)))

    async def _keep_house_and_model(self) -> None:
        if await self._adopt_model() or self.file.meta(PREDICTING) is not None:
            await self._predict_all()
        await self._keep_house()

    async def _tried_again(self, work: Callable[[], Awaitable[_Result]]) -> _Result | None:
        """Do this; None if the store or the file fails for the moment: it is done again later."""
        try:
            return await work()
        except StoreError as error:
            if not error.retryable:
                raise
            SESSION.warning("analytics tried again: error=%s", error.code)
            await asyncio.sleep(_HOUSE_SECONDS)
            return None

    async def catch_up(self, seconds: float) -> bool:
        """Fold new events for about this many seconds. Return True if none are left. An alternative
        to `run` for processes that fold on demand: it applies no advice, and stores no model."""
        _, folding = self._parts()
        async with self._catching_up:
            if not await folding.is_same():
                await folding.reconcile()
            await self._adopt_model()
            until = time.monotonic() + seconds
            while await self._fold_page():
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(0)
            await folding.honour_endings()
            if not self._stores_models and self._is_due():
                await self._train_again()
            return await folding.predict_all(until)

    def stop(self) -> None:
        """Make `run` return after the page it is folding."""
        self._stopping = True
        self._bell.set()

    async def _fold_page(self, settle: float = 0.0) -> bool:
        """Fold what comes next, and emit the records that are complete, and have been for so many
        seconds. Return False if there was neither."""
        _, folding = self._parts()
        changed = await folding.step()
        emitted = self._emit(folding.complete, settle)
        await self._intervene(changed or ())
        return emitted or changed is not None

    async def _fold_settled(self) -> bool:
        return await self._fold_page(_SETTLE_SECONDS)

    def _emit(self, uids: list[bytes], settle: float) -> bool:
        """Emit the records of these sessions, each of them once: it is taken from the file before.
        A process that dies in between loses it, since a second one would be a second session to
        whoever counts them. Return False if none was due."""
        if not uids:
            return False
        metrics = writer_of(self._lp.session("any", "any", "any")).services.metrics
        now = time.monotonic()
        self._settling = {uid: self._settling.get(uid, now) for uid in uids}
        due = [uid for uid, since in self._settling.items() if now - since >= settle]
        for uid in due:
            if (fold := self.file.take_record(uid)) is not None:
                record = self._analytics_of(fold)
                metrics.record("session.analytics", session=fold.key, record=record.plain)
        return bool(due)

    def _analytics_of(self, fold: SessionFold) -> SessionAnalytics:
        """Return the metrics of a session as they are now, as the newest model sees it."""
        now_us = self._now_us()
        if self._model is not None:
            fold.satisfaction = self._model.predict_fold(fold, now_us)
        return analytics_of(fold, now_us)

    async def _keep_house(self) -> None:
        """Remove what was erased; train and apply as the schedule and the policy say."""
        _, folding = self._parts()
        await folding.honour_endings()
        if self._is_due():
            await self._train_again()
        if self._policy is not None:
            await self.apply(self._policy)

    def _is_due(self) -> bool:
        """True if it is time for another model, and other sessions have feedback than the last one
        was trained on. One that stays in this file is for a store that has none."""
        rated, of_store = self.file.rated(), self._model is not None and self._model.version > 0
        if self._retrain is None or rated < self._minimum or (of_store and not self._stores_models):
            return False
        if self._model is not None and self._replaces_models and not of_store:
            return True  # somebody who only looked has left theirs in the file
        since_us = self._now_us() - (self.file.meta("trained_us") or 0)
        is_time = since_us > self._retrain // timedelta(microseconds=1)
        return is_time and rated != self.file.meta("rated")

    async def _train_again(self) -> None:
        """Train on schedule. If that cannot be, it is tried when it is due again: another process
        was faster, or this one may not write to the store."""
        try:
            await self.train(minimum=self._minimum)
        except TooLittleFeedback:  # fewer than any `minimum` allows
            return
        except LimpetError as error:
            SESSION.info("model not trained: code=%s", error.code)
            self._replaces_models = False
            self.file.set_meta("trained_us", self._now_us())
            await self._adopt_model()
            await self._predict_all()

    # --- one session -----------------------------------------------------------------------------

    async def session(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None
    ) -> SessionAnalytics:
        """Return the current metrics of a session, including events that are not folded yet; for a
        deleted session, the last ones. Raises SessionNotFound."""
        one = key_of(key, user, id)
        fold = await self._current(one)
        if fold is None:
            raise SessionNotFound(one)
        await self._count_checkpoints(fold)
        if self._model is None:  # nothing was folded with one yet, but the store may have one
            await self._adopt_model()
        return self._analytics_of(fold)

    async def _current(self, key: Key) -> SessionFold | None:
        """The fold of a session with the rest of its log, which is counted in the file later."""
        file, _ = self._parts()
        folds = file.folds_of(key)
        fold, store = folds[-1] if folds else None, journal_of(self._lp).store
        after = 0
        if fold is not None:
            try:
                after = fold.seq if await is_in_log(store, fold) else 0
            except _GONE:
                return fold
            if not after:
                fold = None  # the key has another session now
        async for event in self._log(key, after):
            if begins(event):
                fold = begin(key, event)
            elif fold is not None:
                fold_event(fold, event)
        return fold

    async def _log(
        self, key: Key, after: int, *, types: tuple[str, ...] | None = None
    ) -> AsyncIterator[Event]:
        """Yield the events of a log, page by page; none of a session that is gone."""
        while True:
            try:
                events = await journal_of(self._lp).store.read(
                    key, after=after, limit=_READ, reverse=False, types=types
                )
            except _GONE:
                return
            if not events:
                return
            for event in events:
                yield event
            after = events[-1].seq

    async def _count_checkpoints(self, fold: SessionFold) -> None:
        """Count those that were made since the last fold."""
        log = checkpoints_of(fold.key)
        uid, after = self.file.log(log)
        async for event in self._log(log, after):
            uid = checkpoints_owner(event, uid)
            if event.type == RECORDED and event.data is not None and uid == fold.uid:
                fold_checkpoint(fold, event.data.get("size"))

    async def score(
        self,
        key: AnyKey,
        name: str,
        value: float,
        *,
        turn: str | None = None,
        call: str | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Record a score from 0 to 1 for a session, a turn or a tool call. It is an event of the
        session, which may have ended."""
        fact = scored(name, value, turn=turn, call=call, note=note, actor=actor or ACTOR)
        session = self._lp.session(key_of(key))
        return (await session.record(fact))[0]

    async def scores(self, key: AnyKey) -> tuple[Score, ...]:
        """Return the scores of a session, oldest first; those that are not folded yet too."""
        one = key_of(key)
        fold = await self._current(one)
        scores = [] if fold is None else [Score(*row) for row in self.file.scores(fold.uid)]
        after = scores[-1].seq if scores else 0
        async for event in self._log(one, after, types=(SCORED, *BEGINNINGS)):
            if begins(event):
                scores.clear()  # those of the session that it was forked from
            elif (data := event.data) is not None:
                named = (event.seq, data["name"], data["value"])
                scores.append(Score(*named, data.get("turn"), data.get("call")))
        return tuple(scores)

    # --- groups ----------------------------------------------------------------------------------

    async def by(
        self,
        dimension: Dimension,
        *,
        app: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        window: Grain | None = None,
        limit: int | None = None,
    ) -> Table:
        """Return the numbers for each user, task type, agent version, tool or window of an app.

        A session belongs to the window in which it was created; measurements belong to the window
        in which they were made. With a `window` ("hour", "day" or "month") there is a row for each
        group and window. `since` and `until` take every window that has a part between them, as
        fine as windows are still kept: hours, then days, then months; users have days. The largest
        groups come first, at most `limit` of them (100); of windows the newest, by default all.
        """
        file, _ = self._parts()
        if limit is None:
            limit = _GROUPS_MAX if dimension == "window" else GROUPS
        check_app(app)
        _check_query(dimension, window, limit)
        if dimension == "window":
            return self._windows(app, since, until, window or "hour", limit)
        if since is until is None and window is None:
            return file.totals(app, dimension, limit).table(dimension)
        cells = file.ranged(app, dimension, *_hours(since, until), limit)
        if window is None:
            return cells.table(dimension)
        places = list(zip(_placed(cells, window), cells.groups, strict=True))
        # The windows in their order, and within each the largest groups first.
        row_of = {place: row for row, place in enumerate(sorted(set(places), key=_by_start))}
        named = {place: window_name(*place) for place, _ in row_of}
        names = {
            dimension: [cells.values[group] for _, group in row_of],
            "window": [named[place] for place, _ in row_of],
        }
        tallies = Tallies(cells.tallies, [row_of[place] for place in places], len(row_of))
        columns = tool_columns if dimension == "tool" else group_columns
        return Table.of(dimension, names | columns(tallies))

    def _windows(
        self,
        app: str | None,
        since: datetime | None,
        until: datetime | None,
        window: Grain,
        limit: int,
    ) -> Table:
        file, _ = self._parts()
        cells = file.ranged(app, "window", *_hours(since, until), limit)
        places = _placed(cells, window)
        kept = sorted(set(places), key=lambda place: place[1])[-limit:]
        row_of = {place: row for row, place in enumerate(kept)}
        of = [at for at, place in enumerate(places) if place in row_of]
        tallies = Tallies(
            [cells.tallies[at] for at in of], [row_of[places[at]] for at in of], len(kept)
        )
        # Seconds of several apps add up within an hour; beyond it peaks are compared.
        moments = [cells.starts[at] if cells.grains[at] == HOUR else -at - 1 for at in of]
        hours = [hours_in(*place) for place in kept]
        names = {"window": [window_name(*place) for place in kept]}
        return Table.of("window", names | window_columns(tallies, moments, hours))

    # --- satisfaction ----------------------------------------------------------------------------

    async def train(self, *, minimum: int = MINIMUM) -> SatisfactionModel:
        """Learn satisfaction from the sessions with feedback, and predict it for all sessions.

        The model is stored as the next version of a document; with store_models=False it is
        version 0, and stays in this file. Raises TooLittleFeedback with fewer than `minimum` rated
        sessions, and always with fewer than 10.
        """
        _check_count("minimum", minimum)
        now_us = self._now_us()
        samples = await self._samples(now_us)
        documents = Internal(journal_of(self._lp), COLLECTION, actor=ACTOR)
        before = await documents.find(MODEL) if self._stores_models else None
        last = 0 if before is None else before.version
        version = last + 1 if self._stores_models else 0
        limits = {"minimum": minimum, "now_us": now_us, "version": version}
        model = await asyncio.to_thread(train, samples, **limits)
        if self._stores_models:
            await documents.put(MODEL, model.plain, expect=last)
        self._take(model)
        self._note_training(now_us, len(samples))
        await self._predict_all()
        return model

    async def _samples(self, now_us: int) -> list[Sample]:
        """Read what the rated sessions teach, page by page: there may be many."""
        samples: list[Sample] = []
        after: bytes | None = b""
        while after is not None:
            folds = list(self.file.folds(rated=True, after=after, limit=_READ))
            samples += [sample_of(fold, now_us) for fold in folds]
            after = packed(folds[-1].uid) if folds else None
            await asyncio.sleep(0)
        return samples

    async def model(self, version: int | None = None) -> SatisfactionModel | None:
        """Return a version of the model, by default the newest; None if it does not exist."""
        documents = Internal(journal_of(self._lp), COLLECTION)
        document = await documents.find(MODEL, version)
        return None if document is None else documents.decoded(document, SatisfactionModel)

    async def _adopt_model(self) -> bool:
        """Predict with the newest model of the store, which another process may have trained.
        Return False if there is no newer one."""
        try:
            newest = await self.model()
        except AccessDenied:  # the model is of all sessions: who may not read it has none
            return False
        if newest is None or (self._model is not None and self._model.version >= newest.version):
            return False
        self._take(newest)
        self._note_training(to_us(newest.trained_at), newest.sessions)
        return True

    def _note_training(self, at_us: int, rated: int) -> None:
        """Note when the newest model was trained, and on how many sessions: for the schedule."""
        self.file.set_meta("trained_us", at_us)
        self.file.set_meta("rated", rated)

    def _take(self, model: SatisfactionModel) -> None:
        """Predict with another model from now on: what was folded before is predicted again."""
        file, _ = self._parts()
        self._use(model)
        file.set_meta(PREDICTING, b"")
        file.set_meta(MODEL, msgspec.json.encode(model))

    async def _predict_all(self) -> None:
        _, folding = self._parts()
        await folding.predict_all()
        await self._intervene_in_live()

    def _use(self, model: SatisfactionModel) -> None:
        self._model = model
        if self._opened is not None:
            self._opened[1].predict, self._opened[1].model = model.predict_fold, model.version

    async def _intervene_in_live(self) -> None:
        """Look at all sessions that are under way, page by page: there may be many."""
        after: bytes | None = b""
        while after is not None and self._model is not None and self._below is not None:
            folds = list(self.file.folds(live=True, after=after, limit=_READ))
            await self._intervene(folds)
            after = packed(folds[-1].uid) if folds else None
            await asyncio.sleep(0)

    async def _intervene(self, folds: Iterable[SessionFold]) -> None:
        """Suggest an intervention in live sessions that are predicted to disappoint, once each."""
        if self._model is None or self._below is None:
            return
        for fold in folds:
            if _is_low(fold, self._below) and not fold.intervened:
                fold.intervened = await self._suggest(fold)

    async def _suggest(self, fold: SessionFold) -> bool:
        """False if nothing could be recorded: the session has just ended or moved, or this
        principal may not write. That is no reason to stop measuring the others."""
        model = self._model
        if model is None or self._below is None:
            return False
        of = (f"{fold.uid}/intervention", fold.satisfaction / 1_000_000, self._below)
        fact = intervention_suggested(*of, model.version, actor=ACTOR)
        try:
            (event,) = await self._lp.session(fold.key).record(fact)
        except LimpetError as error:
            SESSION.info("intervention not suggested: code=%s session=%s", error.code, fold.key)
            return False
        if event.repeated or self._on_intervention is None:
            return True  # another run has suggested it
        try:
            called = self._on_intervention(analytics_of(fold, self._now_us()))
            if inspect.isawaitable(called):
                await called
        except Exception as error:
            kind = type(error).__name__
            SESSION.warning("intervention hook failed: error=%s session=%s", kind, fold.key)
        return True

    # --- what is wrong ---------------------------------------------------------------------------

    async def anomalies(
        self,
        *,
        app: str | None = None,
        metrics: Iterable[str] = finding.METRICS,
        k: float = finding.K,
        robust: bool = False,
        warm_up: int = finding.WARM_UP,
        window: int = finding.WINDOW,
        false_alarm_rate: float | None = None,
        limit: int = finding.SESSIONS,
    ) -> Anomalies:
        """Return the values that lie more than k deviations from the sessions before, for each
        metric and for all metrics together. `robust` uses the median and the MAD. The first
        `warm_up` sessions are not judged. With a `false_alarm_rate` the bounds are set so that the
        chance of any false alert stays at that rate; without one, the result reports the rate that
        k implies."""
        if isinstance(metrics, str):
            raise InvalidInput("metrics are several names: pass a tuple, also of one.")
        names = tuple(metrics)
        if unknown := [name for name in names if name not in finding.METRICS]:
            known = ", ".join(finding.METRICS)
            raise InvalidInput(f"there is no metric {unknown[0]!r}. Use some of: {known}.")
        for name, count in (("warm_up", warm_up), ("window", window), ("limit", limit)):
            _check_count(name, count)
        if not 3 <= warm_up <= window:
            raise InvalidInput("warm_up is a number from 3 up to window.")
        if type(k) not in (int, float) or not 0 < k < inf:
            raise InvalidInput(f"k is a number above 0, not {described(k)}.")
        if false_alarm_rate is not None:
            _check_share("false_alarm_rate", false_alarm_rate)
        check_app(app)
        folds = self.file.recent(app, limit)
        return finding.anomalies_in(
            folds,
            metrics=names,
            k=k,
            robust=robust,
            warm_up=warm_up,
            window=window,
            rate=false_alarm_rate,
        )

    async def compare(
        self,
        a: str,
        b: str,
        *,
        app: str | None = None,
        dimension: Dimension = "agent_version",
        confidence: float = comparing.CONFIDENCE,
    ) -> Comparison:
        """Compare group b with group a: agent versions, task types or users. Each metric has the
        confidence interval of its difference."""
        if dimension not in ("agent_version", "task_type", "user"):
            raise InvalidInput(
                "compare takes groups of sessions: agent_version, task_type or user."
            )
        _check_share("confidence", confidence)
        check_app(app)
        cells = self.file.totals_of(app, dimension, (a, b))
        groups: dict[str, CellTally] = {}
        for group, raw in zip(cells.groups, cells.tallies, strict=True):
            groups.setdefault(cells.values[group], CellTally.empty()).plus(unpack(raw))
        for name in (a, b):
            if name not in groups:
                raise InvalidInput(f"there are no sessions of {dimension} {name!r}.")
        return comparing.compared(a, b, groups[a], groups[b], confidence)

    async def drift(self, app: str | None = None) -> tuple[Comparison, ...]:
        """Compare each agent version with the one before it, in the order of the windows of their
        first sessions, and within one window by name: helper@9 comes before helper@10."""
        first = dict(self.file.first_windows(check_app(app), "agent_version"))
        names = sorted(
            [name for name in first if name], key=lambda name: (first[name], _numbered(name))
        )
        return tuple([await self.compare(a, b, app=app) for a, b in pairwise(names)])

    async def regression(
        self,
        app: str | None = None,
        *,
        baseline: int = BASELINE,
        rate: float = comparing.FALSE_ALARM_RATE,
        limit: int = 4 * BASELINE,
    ) -> Regression:
        """Test whether the predicted satisfaction of the newest sessions has fallen. The test is
        sequential, against the oldest `baseline` sessions, so it may be repeated after every
        session. After `limit` sessions it begins again with the newest as its baseline; each such
        test raises false alarms at most at `rate`."""
        _check_count("baseline", baseline)
        _check_count("limit", limit)
        _check_share("rate", rate)
        check_app(app)
        if baseline >= limit:
            raise InvalidInput("baseline is a number from 1, and less than limit.")
        whole = self.file.totals(app, "task_type", _GROUPS_MAX).pooled
        sessions = int(whole["predicted"][0])
        tested = comparing.sessions_in_test(sessions, baseline=baseline, limit=limit)
        return comparing.regression_in(self.file.recent(app, tested), baseline=baseline, rate=rate)

    async def advice(
        self,
        app: str | None = None,
        *,
        since: datetime | None = None,
        policy: AdvicePolicy | None = None,
    ) -> tuple[Advice, ...]:
        """Return a response for each signal beyond its threshold, with the evidence. With `since`,
        from the sessions that were created since then, in whole windows as they are still
        kept."""
        _check_policy(policy)
        rules = policy or self._policy or AdvicePolicy()
        check_app(app)
        apps = self.file.apps() if app is None else [app]
        hours = _hours(since, None)

        def since_then(app: str, dimension: str) -> Cells:
            return self.file.ranged(app, dimension, *hours, _GROUPS_MAX)

        totals = self._totals if since is None else since_then
        return tuple([each for one in apps for each in advising.advice_for(one, totals, rules)])

    def _totals(self, app: str, dimension: str) -> Cells:
        return self.file.totals(app, dimension, _GROUPS_MAX)

    async def apply(
        self, policy: AdvicePolicy | None = None, *, app: str | None = None
    ) -> tuple[Advice, ...]:
        """Carry out the advice that the policy allows, and record it. Return what was done."""
        _check_policy(policy)
        rules = policy or self._policy or AdvicePolicy()

        def low(app: str) -> list[Key]:
            folds = [fold for fold in self.file.folds(live=True) if fold.app == app]
            return [fold.key for fold in folds if _is_low(fold, rules.satisfaction)]

        done = []
        for each in await self.advice(app, policy=rules):
            try:
                applied = await advising.apply(self._lp, each, rules, low, self._totals)
            except LimpetError as error:
                SESSION.warning("advice not applied: signal=%s code=%s", each.signal, error.code)
                continue
            if applied.applied is not None:
                done.append(applied)
        return tuple(done)

    async def applied(self) -> tuple[Advice, ...]:
        """Return the advice that was applied, with the last time for each."""
        documents = Internal(journal_of(self._lp), advising.COLLECTION)
        advices = [documents.decoded(each, Advice) async for each in documents.each()]
        return tuple([each for each in advices if each is not None])

    async def failing(self, app: str | None = None, *, limit: int = 100) -> FailingSet:
        """Return the newest sessions that failed, as a set that can be saved and replayed."""
        _check_count("limit", limit)
        check_app(app)
        return failing_set(self.file.recent(app, 10 * limit), limit=limit, now_us=self._now_us())

    # --- elsewhere -------------------------------------------------------------------------------

    async def export(self, path: str | Path, *, app: str | None = None) -> int:
        """Write one row per session to a Parquet file and return their number, in a thread: there
        may be many. Raises ExtraMissing, InvalidInput."""
        from limpet.analytics.export import write_parquet

        now_us, chosen = self._now_us(), check_app(app)
        if self._path is None:  # in memory, who reads for long keeps others from writing
            return write_parquet(self.file, Path(path), now_us, chosen)
        return await asyncio.to_thread(self._export, Path(path), now_us, chosen)

    def _export(self, path: Path, now_us: int, app: str | None) -> int:
        from limpet.analytics.export import write_parquet

        with closing(AnalyticsFile(self._path)) as file:
            return write_parquet(file, path, now_us, app)

    async def prometheus(self, *, app: str | None = None) -> str:
        """Return the totals of every app, or of one, in the text format of Prometheus."""
        return prometheus_text(self.file, check_app(app))

    def instrument(self, meter_provider: Any = None) -> None:
        """Register the same totals as OpenTelemetry instruments with a provider, by default the
        global one. They have values until these analytics are closed. Raises ExtraMissing."""
        self._observers.append(instrument(self.file, meter_provider))

    async def report(self, app: str | None = None) -> FleetReport:
        """Return an operator's overview: windows, groups, anomalies and advice."""
        whole = await self.by("task_type", app=app, limit=_GROUPS_MAX)
        groups = [name for name in DIMENSIONS if name != "window"]
        return FleetReport(
            app=app,
            at=self._lp.now(),
            sessions=sum(whole.column("sessions")),
            windows=hourly(
                await self.by("window", app=app, window="hour", limit=WINDOWS), self._lp.now()
            ),
            groups={name: await self.by(name, app=app, limit=REPORT_GROUPS) for name in groups},
            anomalies=await self.anomalies(app=app, false_alarm_rate=0.05),
            regression=await self.regression(app),
            drift=await self.drift(app),
            advice=await self.advice(app),
        )

    async def forget(self, app: str, user: str) -> int:
        """Remove a user's sessions now and return their number. `run` does this for users who were
        erased from the store."""
        _, folding = self._parts()
        return await folding.forget(app, user)


def _is_low(fold: SessionFold, below: float) -> bool:
    """True if a live session with a turn behind it is predicted to disappoint."""
    known = fold.satisfaction >= 0 and fold.turns > 0
    return known and fold.phase == phases.ACTIVE and fold.satisfaction < below * 1_000_000


def _numbered(name: str) -> list[tuple[int, str]]:
    """A name to sort by, with its numbers as numbers."""
    return [(int(part) if part.isdecimal() else -1, part) for part in _DIGITS.split(name)]


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or not 0 < value < 2**31:
        raise InvalidInput(f"{name} is a number from 1, not {described(value)}.")


def _check_share(name: str, value: float) -> None:
    if type(value) not in (int, float) or not 0 < value < 1:
        raise InvalidInput(f"{name} lies between 0 and 1, not {described(value)}.")


def _check_policy(policy: AdvicePolicy | None) -> None:
    if policy is not None and not isinstance(policy, AdvicePolicy):
        raise InvalidInput(f"a policy is a limpet.AdvicePolicy, not {described(policy)}.")


def _check_query(dimension: str, window: str | None, limit: int) -> None:
    if dimension not in DIMENSIONS:
        raise InvalidInput(f"by takes one of {', '.join(DIMENSIONS)}, not {described(dimension)}.")
    if window is not None and window not in GRAINS[1:]:
        raise InvalidInput(f"a window is hour, day or month, not {described(window)}.")
    if type(limit) is not int or not 0 < limit <= _GROUPS_MAX:
        raise InvalidInput(f"limit is a number from 1 to {_GROUPS_MAX:,}.")


def _hours(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    for at in (since, until):
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise InvalidInput("since and until are aware datetimes.")
    first = FIRST_HOUR if since is None else max(FIRST_HOUR, hours_since(since))
    last = 2**40 if until is None else hours_since(until - timedelta(microseconds=1)) + 1
    return first, last


def _placed(cells: Cells, window: Grain) -> list[tuple[int, int]]:
    """Return for each cell the window of the asked grain, or the coarser one that is left."""
    windows = list(zip(cells.grains, cells.starts, strict=True))
    places = {}
    for grain, start in set(windows):
        wanted = max(GRAINS.index(window), grain)
        places[grain, start] = (wanted, start_of(wanted, start))
    return [places[each] for each in windows]


def _by_start(place: tuple[tuple[int, int], int]) -> tuple[int, int, int]:
    (grain, start), group = place
    return start, grain, group
