"""The wake of a session that has ended: its run is closed, and its effects are compensated.

The run that was going on is closed, children are terminated with it, its effects are undone, the
newest first, and its parent is notified. Each step is recorded as it is done and the session stays
due until the last of them, so a worker that dies in between is followed by one that goes on.

A compensation is recorded like an effect: an intent that is durable before anything is done, and an
outcome. If the outcome is unknown it is tried again under the same idempotency key, or held for a
person, as the effect has decided. One that fails keeps none of the others from being undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import (
    EffectUnknown,
    InvalidTransition,
    NotDone,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionNotFound,
    StoreError,
)
from limpet.model import DefaultActor, Draft, Event, Key, Lease
from limpet.model.facts.running import budgets, children, endings, runs
from limpet.model.facts.running.runs import INTENDED, OUTCOMES, REQUEUED, readable, stored_error
from limpet.model.facts.running.spawned import spawned_in
from limpet.model.limits import PAGE_MAX
from limpet.runtime.children import ChildEnd, commit_last, open_child
from limpet.runtime.effects import keyed, outcome_of
from limpet.runtime.run import Driver, LeaseGuard
from limpet.runtime.turn_log import (
    DIED,
    EffectRecord,
    TurnLog,
    TurnRecords,
    check_readable,
    events_since,
    identity,
    plain,
)
from limpet.session.life.lifecycle_policy import call_function
from limpet.session.life.tools import OnUnknown
from limpet.session.loggers import SESSION
from limpet.session.runs.delegation import children_of
from limpet.session.session import Session
from limpet.session.writer import writer_of

_TYPES: Final = (
    INTENDED,
    *OUTCOMES,
    endings.COMPENSATING,
    endings.COMPENSATED,
    endings.NOT_COMPENSATED,
    endings.MAYBE_COMPENSATED,
    REQUEUED,
)
_UNREAD: Final = "effects that could not be read"
CompensationState: TypeAlias = Literal["not_yet", "begun", "done", "failed", "unknown"]
_STATES: Final[Mapping[str, CompensationState]] = {
    endings.COMPENSATING: "begun",
    endings.COMPENSATED: "done",
    endings.NOT_COMPENSATED: "failed",
    endings.MAYBE_COMPENSATED: "unknown",
}
_CLOSE_TRIES: Final = 8
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_WHY: Final = "the session ended"


class PastEffect(msgspec.Struct):
    """An effect to be undone, as its compensation sees it.

    `outcome` is "succeeded" or "unknown". If unknown, the compensation must find out whether the
    effect was performed (by `key`, its idempotency key) or be harmless.
    """

    name: str
    args: Mapping[str, Any]
    key: str
    outcome: Literal["succeeded", "unknown", "failed"] = "unknown"
    result: Any = None
    idempotency_key: str = ""  # of the compensation, the same however often it is tried


class EndedWake:
    """One wake of a session that was completed or terminated."""

    def __init__(
        self,
        log: TurnLog,
        lease: Lease,
        driver: Driver,
        lease_guard: LeaseGuard,
        *,
        retries: int,
        retry_delay_us: Callable[[int], int],
        death: Draft | None = None,
        kills: bool = False,
    ) -> None:
        """`death` is that of a worker that had it before; `kills`: it died so often that nothing is
        undone any more until a person has looked."""
        self._log, self._lease, self._driver = log, lease, driver
        self._session: Session[Any] = log.session
        self._retries, self._retry_delay_us = retries, retry_delay_us
        self._compensations = Compensations(log, driver, lease_guard)
        self._last: list[Draft] = []  # for the closing commit
        self._death, self._kills = death, kills

    async def run(self) -> None:
        """All of it, under the lease, which the last commit gives back."""
        log, lease = self._log, self._lease
        if self._death is not None:
            log.begin(self._death)
        log.begin(
            runs.wake_started(
                log.wake_id,
                log.turn_id,
                attempt=endings.ending_in(self._session.head.facts).get("fails", 0) + 1,
                inputs=(),
                timers=(),
                worker=lease.worker,
                why="ended",
                claimed_us=lease.claimed_us,
                fence=lease.fence,
                name="finish",
            )
        )
        await self._close_run()
        await self._terminate_children()
        error = await self._driver.run(self._hold if self._kills else self._compensate, None)
        if isinstance(error, (SessionFenced, StoreError)):
            raise error
        stopped = self._driver.stopped
        if error is not None and stopped is None:  # it counts, so that it comes to an end
            what = (self._session.key, type(error).__name__)
            SESSION.warning("not compensated: session=%s error=%s", *what)
            self._last = [self._tried(again=True)]
        if stopped != "lost":
            await self._close(error)

    async def _close_run(self) -> None:
        """The run that was under way when it ended: every effect and reservation has an outcome."""
        facts = self._session.head.facts
        drafts: list[Draft] = []
        turn = runs.turn_in(facts)
        if turn is not None:
            records = TurnRecords(await events_since(self._session, turn["from"]))
            drafts += records.unknown_effects(turn["id"], _WHY)
        drafts += [budgets.settled(id, of) for id, of in budgets.reservations(facts).items()]
        if turn is not None and turn["span"] is not None:
            drafts.append(
                runs.wake_completed(
                    turn["span"], turn["id"], "blocked", fence=self._lease.fence, error=_WHY
                )
            )
        if (died := endings.ending_in(facts).get("span")) is not None:
            drafts.append(
                runs.wake_completed(
                    died, died, "error", fence=self._lease.fence - 1, error=DIED, name="finish"
                )
            )
        if drafts:
            await self._log.write(*drafts)

    async def _terminate_children(self) -> None:
        """Terminate the children that end with it, and let go of the others."""
        session = self._session
        if not endings.to_cascade(session.head.facts):
            return
        drafts: list[Draft] = []
        ended: list[str] = []
        for id, child in children.children_in(session.head.facts).items():
            key = Key(child["app"], child["user"], id)
            if child.get("cascade", True) and await self._terminate(key):
                ended.append(id)
            else:
                drafts.append(children.child_released(key))
        if spawned_in(session.head.facts):
            known = await children_of(writer_of(session).journal, session.head)
            own = children.children_in(session.head.facts)
            for each in known:
                if each["stop_reason"] is None and each["key"].id not in own:
                    await self._terminate(each["key"])  # which tells this session by itself
        await self._log.write(*drafts, endings.cascaded(ended))

    async def _terminate(self, key: Key) -> bool:
        """Terminate a child; True if its end has yet to come back."""
        try:
            child = await open_child(self._session, key)
            with suppress(InvalidTransition):  # it has ended, and will tell
                await child.terminate("its parent ended", actor=DefaultActor("system:runtime"))
        except _GONE:
            return False
        except StoreError:
            raise
        except Exception as error:  # a guard or a hook of the child's app keeps it alive
            SESSION.warning("child not terminated: session=%s error=%s", key, error)
            return False
        delegation = children.delegation(child.head.facts)
        return delegation is not None and not delegation.get("ended")

    async def _hold(self, _: Any) -> None:
        if endings.to_compensate(self._session.head.facts):
            await self._compensations.read()
            self._last = [endings.finished(self._compensations.done, self._compensations.left)]

    async def _compensate(self, _: Any) -> None:
        if endings.to_compensate(self._session.head.facts):
            await self._compensations.run()
            self._last = [self._tried(again=self._compensations.retryable)]

    def _tried(self, *, again: bool) -> Draft:
        """The result of the compensations, and when those left are tried again; else held."""
        compensations, retry_us = self._compensations, None
        fails = endings.ending_in(self._session.head.facts).get("fails", 0) + 1
        if again and fails <= self._retries:
            retry_us = writer_of(self._session).journal.now_us() + self._retry_delay_us(fails)
        return endings.finished(compensations.done, compensations.left, retry_us=retry_us)

    async def _close(self, error: Exception | None) -> None:
        log, session = self._log, self._session
        stop = "end_turn" if session.head.phase == "completed" else "terminated"
        why = None if error is None else stored_error(error)
        is_whole = error is None and self._driver.stopped is None
        result: runs.SpanResult = "success" if is_whole else "error"
        for left in reversed(range(_CLOSE_TRIES)):
            last = runs.wake_completed(
                log.wake_id,
                log.turn_id,
                result,
                fence=self._lease.fence,
                error=why,
                name="finish",
                compute_us=max(0, writer_of(session).journal.now_us() - self._lease.claimed_us),
            )
            drafts = log.closing(*self._last, last)
            try:
                await commit_last(log, drafts, ChildEnd.of(session, stop, None), self._lease)
                return
            except SessionConflict:
                if not left:
                    raise
                await session.refresh()


class Compensation(msgspec.Struct):
    """One compensation, and its state."""

    effect: PastEffect
    name: str
    on_unknown: OnUnknown
    seq: int
    state: CompensationState = "not_yet"
    tries: int = 0
    maybe: bool = False  # a try before the last may have undone it

    def take(self, state: CompensationState, data: Mapping[str, Any]) -> None:
        """Fold the next event of the compensation."""
        if state == "begun":
            self.maybe = self.maybe or self.state in ("begun", "unknown")
            self.tries = data.get("tries", self.tries)
        elif state == "unknown":
            self.maybe = True
        elif state == "done" or data.get("not_done"):
            self.maybe = False
        self.state = state


class Compensations:
    """All compensations of one session, under the lease of one wake."""

    def __init__(self, log: TurnLog, driver: Driver, lease_guard: LeaseGuard) -> None:
        self._log, self._driver, self._lease_guard = log, driver, lease_guard
        self._session: Session[Any] = log.session
        self._policy = writer_of(log.session).services.lifecycle(log.session.app)
        self._all: list[Compensation] | None = None  # None: not read yet

    @property
    def done(self) -> int:
        return sum(undo.state == "done" for undo in self._all or ())

    @property
    def left(self) -> list[str]:
        """The names of the effects that are not undone."""
        if self._all is None:
            return [_UNREAD]
        return [undo.effect.name for undo in self._all if undo.state != "done"]

    @property
    def retryable(self) -> bool:
        """True if some of those left may work later, and may be tried without asking a person."""
        return any(_is_tried(undo) for undo in self._all or ())

    async def run(self) -> None:
        """Undo what is not undone, one after the other, each in its own time."""
        for undo in await self.read():
            if undo.state == "begun" and undo.on_unknown == "ask":
                why = "the worker stopped before the end of the compensation"
                await self._record(undo, endings.maybe_compensated, "unknown", why)
            elif undo.state in ("not_yet", "begun") or _is_tried(undo):
                await self._perform(undo)

    async def read(self) -> list[Compensation]:
        """Read what there is to undo, the newest first."""
        events = await _read(self._session)
        check_readable(self._session.key, events)
        self._all = sorted(compensations_in(events), key=lambda undo: undo.seq, reverse=True)
        return self._all

    async def _perform(self, undo: Compensation) -> None:
        effect = undo.effect
        undo.tries += 1
        of = (effect.key, undo.name, effect.idempotency_key)
        await self._log.write(
            endings.compensating(self._id("begun", undo), *of, undo.tries),
        )
        undo.take("begun", {"tries": undo.tries})
        try:
            result = await self._call(undo)
        except Exception as error:
            SESSION.warning("compensation failed: session=%s of=%s", self._session.key, effect.name)
            await self._raised(undo, error)
        except asyncio.CancelledError:
            if self._driver.stopped is not None:
                raise
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            why = "it cancelled itself. Let it return or raise."
            await self._raised(undo, EffectUnknown(undo.name, note=why))
        else:
            await self._succeeded(undo, result)

    async def _raised(self, undo: Compensation, error: Exception) -> None:
        """Record the outcome of a try that raised: by the rule for effects."""
        why = stored_error(error)
        if isinstance(error, EffectUnknown):
            why = error.note or why
        elif isinstance(error, TimeoutError):
            why = f"it took longer than {self._policy.cleanup_seconds:g} seconds"
        is_cut = self._driver.stopped is not None
        if outcome_of(error, maybe=undo.maybe, is_cut=is_cut) == "unknown":
            await self._record(undo, endings.maybe_compensated, "unknown", why)
        else:
            fact = partial(endings.not_compensated, not_done=isinstance(error, NotDone))
            await self._record(undo, fact, "failed", why)

    async def _succeeded(self, undo: Compensation, result: Any) -> None:
        """Record that it is undone, also if what it returned cannot be recorded."""
        try:
            await self._record(undo, endings.compensated, "done", plain(result))
        except (ValueError, RecursionError) as error:  # InvalidInput is a ValueError
            note = readable(f"its result is not recorded: {error}")
            await self._record(undo, endings.compensated, "done", None, note)

    async def _call(self, undo: Compensation) -> Any:
        function = self._policy.compensations.get(undo.name)
        if function is None:
            raise LookupError(
                f"this process has no compensation named {undo.name!r}. Declare it with "
                "lp.policies.lifecycle(app, compensations={name: function}) and requeue the session"
            )
        await self._lease_guard.check(
            self._driver
        )  # the intent is durable: is it still ours to act on?
        with keyed(undo.effect.idempotency_key):
            async with asyncio.timeout(self._policy.cleanup_seconds):
                return await call_function(function, self._session, undo.effect)

    async def _record(
        self, undo: Compensation, fact: Any, state: CompensationState, *said: Any
    ) -> None:
        effect = undo.effect
        of = (effect.key, undo.name, effect.idempotency_key)
        await self._log.write(fact(self._id(state, undo), *of, *said))
        undo.state = state

    def _id(self, what: str, undo: Compensation) -> str:
        """Return the id of the record of one try: a lost answer is asked for again, not recorded
        twice.

        Of this wake alone: under an id that the next worker has recorded, a worker whose lease is
        lost would find its intent recorded, and would act.
        """
        of = (self._session.head.uid, "undo", what, undo.effect.key, undo.tries)
        return identity(*of, self._log.wake_id)


def compensations_in(events: Iterable[Event]) -> list[Compensation]:
    """The effects that can be undone and may have been performed."""
    by_key: dict[str, Compensation] = {}
    effects: dict[str, EffectRecord] = {}
    for event in events:
        data, type = event.data, event.type
        if data is None:
            continue
        if type == REQUEUED:  # a person has looked: what was unknown may be tried again
            for undo in by_key.values():
                undo.state = "failed" if undo.state == "unknown" else undo.state
        elif type == INTENDED or type in OUTCOMES:
            new = EffectRecord(data["key"], data["args_hash"])
            effects.setdefault(data["key"], new).take(event)
            if "compensate" in data:
                by_key[data["key"]] = _compensation(event)
        elif (of := by_key.get(data["of"])) is not None:
            of.take(_STATES[type], data)
    for key, undo in by_key.items():
        record = effects[key]
        undo.effect.outcome = "unknown" if record.is_unknown else record.state  # type: ignore[assignment]  # one of them
        undo.effect.result = record.result
    return [undo for undo in by_key.values() if undo.effect.outcome != "failed"]


def _is_tried(undo: Compensation) -> bool:
    """True if a compensation that is not done is tried again without asking a person."""
    return undo.state == "failed" or (undo.state == "unknown" and undo.on_unknown == "retry")


def _compensation(event: Event) -> Compensation:
    data, undo = event.data, event.data["compensate"]
    key = identity(data["key"], "compensation")
    effect = PastEffect(data["name"], undo["args"], data["key"], idempotency_key=key)
    return Compensation(effect, undo["name"], undo["on_unknown"], event.seq)


async def _read(session: Session[Any]) -> list[Event]:
    """The events of effects, from the first own event of the session on."""
    events: list[Event] = []
    after = session.head.floor
    while page := await session.read(after=after, limit=PAGE_MAX, types=list(_TYPES)):
        events += page
        after = page[-1].seq
    return events
