"""A wake: one bounded run of a harness on one session, under a lease."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from limpet.errors import (
    BudgetReached,
    EffectUnknown,
    Interrupted,
    InvalidInput,
    LimpetError,
    MigrationError,
    RequestAnswered,
    SessionConflict,
    SessionEnded,
    SessionFenced,
    SessionLocked,
    ToolDenied,
    TurnMismatch,
)
from limpet.model import PAGE_MAX, Draft, Key, Lease, described
from limpet.model.facts import degraded_in, processed
from limpet.model.facts.running import asked, budgets, endings, runs
from limpet.runtime.children import Ending, interrupt_all
from limpet.runtime.closing import Close, close_wake, commit_last
from limpet.runtime.driving import Driver, harness_of
from limpet.runtime.finishing import Finishing
from limpet.runtime.hold import Hold
from limpet.runtime.later import Later
from limpet.runtime.log import TurnLog
from limpet.runtime.opening import CONTROL, TAIL, Opening, interrupted_by, open_wake
from limpet.runtime.records import identity
from limpet.runtime.requests import shown_of
from limpet.runtime.turn import Turn
from limpet.session.life.tools import returned
from limpet.session.limpet import Limpet
from limpet.session.logs import SESSION
from limpet.session.runs.setup import Permission, check_permissions, permissions_for
from limpet.session.runs.waking import RETRIES, Harness, OnMismatch, WakeOptions, Woken
from limpet.session.session import Session
from limpet.store.clock import steady_ns
from limpet.store.protocol import Loaded

BACKOFF_SECONDS: Final = 2.0
BACKOFF_SECONDS_MAX: Final = 300.0
UNREADABLE_SECONDS: Final = 5.0  # a session of newer code is left to others for so long
LISTEN_AFTER_SECONDS: Final = 0.25  # a shorter run hears of interrupts when it records something


class Manner(msgspec.Struct, frozen=True):
    """How wakes are run, whichever session they are of."""

    harness: Callable[[Turn], Awaitable[Any]]
    retries: int = RETRIES
    on_mismatch: OnMismatch = "ask"
    permissions: Mapping[str, Permission] = {}
    agent: str | None = None
    state_type: type[Any] | None = None
    migrations: Any = None


def manner_of(harness: Any, **how: Any) -> Manner:
    """Checked. Raises InvalidInput."""
    manner = Manner(harness_of(harness), **how)
    if type(manner.retries) is not int or manner.retries < 0:
        raise InvalidInput(f"retries is a number from 0, not {described(manner.retries)}.")
    if manner.on_mismatch not in ("ask", "accept"):
        raise InvalidInput(
            f"on_mismatch is 'ask' or 'accept', not {described(manner.on_mismatch)}."
        )
    permissions = check_permissions(manner.permissions)
    return msgspec.structs.replace(manner, permissions=permissions)


def worker_name(prefix: str) -> str:
    """A name that no other worker has."""
    return f"{prefix}-{os.getpid()}-{os.urandom(6).hex()}"


async def wake(
    lp: Limpet, key: Key, harness: Harness, options: WakeOptions, *, lease_seconds: float
) -> Woken:
    """Run one bounded turn of this session, due or not; never raises the harness's error."""
    manner = manner_of(harness, **msgspec.structs.asdict(options))
    since_ns = steady_ns()
    try:
        lease = await lp.work.lock(key, worker=worker_name("wake"), lease_seconds=lease_seconds)
    except SessionLocked as error:
        return Woken(ran=False, reason="locked", error=error)
    later = listen_later()
    one = Wake(lp, lease, manner, since_ns=since_ns, later=later)
    beating = asyncio.ensure_future(_heartbeat(lp, one))
    try:
        return await one.run()
    finally:
        later.close()
        beating.cancel()
        await asyncio.wait([beating])


class Wake:
    """One wake on its way. Whoever holds the lease keeps it renewed and calls `stop`."""

    def __init__(
        self,
        lp: Limpet,
        lease: Lease,
        manner: Manner,
        *,
        since_ns: int | None = None,
        later: Later | None = None,
        driven: Callable[[Wake], None] | None = None,
    ) -> None:
        """`since_ns` is `steady_ns` before the lease was asked for."""
        self._lp, self.lease, self._manner = lp, lease, manner
        self.hold = Hold(lp, lease, steady_ns() if since_ns is None else since_ns)
        self._later = listen_later() if later is None else later
        self._when_driven = driven  # called when the harness has ended
        self._listening: asyncio.Task[None] | None = None
        how: dict[str, Any] = {"state_type": manner.state_type, "migrations": manner.migrations}
        agent = manner.agent or f"agent:{lease.key.app}"
        self._agent, self._worker = agent[:320], f"worker:{lease.worker}"[:320]
        self.session: Session[Any] = lp.session(lease.key, actor=self._agent, lease=lease, **how)
        self._driver = Driver(lease.key)
        self._wake_id = self.session.writer.journal.new_id()
        self._loaded: Loaded | None = None

    def stop(self, *, lost: bool) -> None:
        """End it early: its lease is lost, or its worker stops."""
        self._driver.stop("lost" if lost else "stopped")

    async def run(self) -> Woken:
        """All of it. Afterwards the lease is given back, or lost."""
        try:
            while True:
                opening = await open_wake(self.session, self.lease, self._loaded)
                if isinstance(opening, str) and endings.is_left(self.session.head.facts):
                    return await self._finished(ran=False)
                if isinstance(opening, str):
                    await self._lp.work.release(self.lease)
                    return Woken(ran=False, reason=opening)
                try:
                    return await self._run(opening)
                except RequestAnswered as error:  # before the deadline could: look again
                    if error.key != self.lease.key or not opening.by_default:
                        raise
                    self._loaded = None
        except SessionFenced as error:
            return Woken(ran=True, reason="lease_lost", wake_id=self._wake_id, error=error)
        except LimpetError as error:  # it cannot be read, or not be written to: others' turn
            SESSION.warning("wake failed: session=%s code=%s", self.lease.key, error.code)
            later = isinstance(error, MigrationError)  # newer code than this may take it
            seconds = UNREADABLE_SECONDS if later else BACKOFF_SECONDS_MAX / 10
            with suppress(LimpetError):
                await self._lp.work.release(self.lease, retry_seconds=seconds)
            return Woken(ran=False, reason="failed", wake_id=self._wake_id, error=error)
        except asyncio.CancelledError:
            with suppress(LimpetError):
                await self._lp.work.release(self.lease)
            raise
        except Exception:  # a mistake of ours: it must not keep the session from everybody
            with suppress(LimpetError):
                await self._lp.work.release(self.lease, retry_seconds=BACKOFF_SECONDS_MAX / 10)
            raise

    async def _run(self, opening: Opening) -> Woken:
        try:
            return await self._turn(opening)
        except SessionEnded as error:  # somebody has ended it meanwhile
            if error.key != self.lease.key or self._driver.stopped == "lost":
                raise
        await self.session.refresh()
        if self._driver.stopped != "stopped":
            self._driver = Driver(self.lease.key)
        return await self._finished(ran=True)

    async def _finished(self, *, ran: bool) -> Woken:
        """The session has ended: do what that leaves to be done."""
        new_id, phase = self.session.writer.journal.new_id, self.session.head.phase
        if not endings.is_left(self.session.head.facts):
            await self._lp.work.release(self.lease)
            return Woken(ran=ran, reason=phase, wake_id=self._wake_id)
        wake_id = new_id()
        log = self._log(wake_id, wake_id)
        how: Any = {"retries": self._manner.retries, "backoff_us": _backoff_us}
        await Finishing(log, self.lease, self._driver, self.hold, **how).run()
        return Woken(ran=ran, reason=phase, wake_id=self._wake_id if ran else wake_id)

    def _log(self, turn_id: str, wake_id: str) -> TurnLog:
        who = {"agent": self._agent, "worker": self._worker}
        return TurnLog(self.session, turn_id=turn_id, wake_id=wake_id, **who)

    async def _turn(self, opening: Opening) -> Woken:
        await self._bind_again()
        # Before anything is recorded: without its permissions it must not begin.
        permissions = await permissions_for(self.session.writer, self._manner.permissions)
        log = self._log(opening.turn_id, self._wake_id)
        log.begin(*opening.drafts)
        log.begin(self._started(opening))
        if opening.has_turn:
            before = runs.waiting_status(self.session.head.facts)
            log.begin(runs.status_changed(before, "running", opening.why))
        if not opening.has_turn:
            return await self._settled(log, opening)
        if (dead := self._dead(opening)) is not None:
            return await self._closed(log, opening, dead)
        if (unpaid := self._unpaid(opening)) is not None:
            return await self._closed(log, opening, self._short(opening, unpaid), unpaid)
        if opening.is_eager:
            written = await log.flush()
            new = [event.seq for event in written if event.processed == 0]
            opening.control = (*opening.control, *new)
        accepts = self._manner.on_mismatch == "accept" or opening.records.accepted is True
        how: dict[str, Any] = {"accepts": accepts, "permissions": permissions}
        how["worker_permissions"] = self._manner.permissions
        turn = Turn(log, opening, self._driver, self.hold, **how)
        log.heard = self._hear
        error = await self._driven(turn)
        return await self._closed(log, opening, await self._how(turn, opening, error), error)

    async def _bind_again(self) -> None:
        """Optional tools that the session lacks are bound once they are there."""
        if not degraded_in(self.session.head.facts):
            return
        registry = self.session.writer.journal.lifecycle(self.session.app).tools
        try:
            fact = await returned(registry, self.session)
        except Exception as error:  # of the function that authorizes: the session goes on without
            name = type(error).__name__  # its text may quote state
            SESSION.warning("tools not bound: session=%s error=%s", self.lease.key, name)
        else:
            if fact is not None:
                writer = self.session.writer
                prepared = writer.journal.prepare(fact, self._worker)
                try:
                    await writer.commit((prepared,), self.session.version)
                except SessionConflict:  # somebody else may have bound tools meanwhile
                    await writer.load(tail=TAIL)

    async def _settled(self, log: TurnLog, opening: Opening) -> Woken:
        """Nothing to run: an interrupt, or an answer that nobody waits for."""
        done: list[Draft] = [processed(opening.control)] if opening.control else []
        how: Any = {"fence": self.lease.fence, "name": "settle"}
        done.append(runs.wake_completed(self._wake_id, opening.turn_id, "success", **how))
        ending = Ending.of(self.session, "interrupted", None)
        await commit_last(log, log.closing(*done), ending, self.lease)
        return Woken(ran=False, reason="settled", wake_id=self._wake_id)

    def _started(self, opening: Opening) -> Draft:
        """The record of the wake: what it is about, why it was woken, and by whom."""
        lease = self.lease
        return runs.wake_started(
            self._wake_id,
            opening.turn_id,
            attempt=opening.attempt,
            inputs=[event.seq for event in opening.inputs],
            timers=opening.timers,
            worker=lease.worker,
            why=opening.why,
            claimed_us=lease.claimed_us,
            fence=lease.fence,
            answers=opening.control,
            redirect=None if opening.redirect is None else opening.redirect.seq,
            name="wake" if opening.has_turn else "settle",
        )

    async def _driven(self, turn: Turn) -> Exception | None:
        """Run the harness, and stop it if an interrupt comes."""
        self._later.add(self._begin_listening)
        try:
            error = await self._driver.run(self._manner.harness, turn)
        finally:
            self._later.discard(self._begin_listening)
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.wait([self._listening])
        if self._when_driven is not None:
            self._when_driven(self)
        if error is None and self._driver.stopped is None and not turn.accepts:
            error = _passed_by(turn)
        return error

    def _hear(self) -> None:
        """Something was recorded, and the head that came back may know of an interrupt."""
        facts = self.session.head.facts
        if runs.is_interrupted(facts):
            self._driver.stop("interrupted")
        elif endings.has_ended(facts):
            self._driver.stop("ended")

    def _begin_listening(self) -> None:
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        """Look at the head now, and when somebody else has recorded something; not too often."""
        loop, hub = asyncio.get_running_loop(), self.session.writer.journal.hub
        with suppress(LimpetError):
            async with hub.listening(self.lease.key) as bell:
                while not await self._is_stopped():
                    looked = loop.time()
                    await bell.beyond(lambda: self.session.version)
                    await asyncio.sleep(max(0, looked + LISTEN_AFTER_SECONDS - loop.time()))

    async def _is_stopped(self) -> bool:
        """Whether somebody has interrupted or ended the session; the harness then stops."""
        store = self.session.writer.journal.store
        facts = (await store.load(self.lease.key, tail=0, scopes=False)).head.facts
        if runs.is_interrupted(facts):
            seq = runs.run_in(facts)["interrupt"]
            (event,) = await self.session.read(after=seq - 1, limit=1)
            note = None if event.data is None else event.data.get("note")
            self._driver.stop("interrupted", note)
        elif endings.has_ended(facts):
            self._driver.stop("ended")
        return self._driver.stopped is not None

    # --- how it ends -----------------------------------------------------------------------------

    async def _how(self, turn: Turn, opening: Opening, error: Exception | None) -> Close | None:
        """How the wake is closed; None if it must not write any more."""
        stopped, own = self._driver.stopped, self.lease.key  # errors of other sessions: failures
        if stopped == "lost" or (isinstance(error, SessionFenced) and error.key == own):
            return None
        if stopped == "ended" or (isinstance(error, SessionEnded) and error.key == own):
            raise SessionEnded(self.lease.key, self.session.head.phase)
        if stopped == "stopped":
            return self._given_back(opening)
        if stopped == "interrupted" or (isinstance(error, Interrupted) and error.key == own):
            redirect = await self._take_interrupts(opening)
            released = await interrupt_all(self.session, self._driver.note)
            how = Close("interrupted", "blocked", error=self._driver.note, drafts=released)
            how.redirect = redirect
            return how
        if stopped == "paused":
            return Close("requires_action", "blocked", blocked_on=tuple(turn.pauses.blocked_on))
        if error is None:
            return Close("end_turn", "success", drafts=list(turn.asked_for))
        if isinstance(error, TurnMismatch):
            return self._mismatched(opening, error)
        if isinstance(error, BudgetReached):
            return self._short(opening, error)
        if (refusal := _refusal(error)) is not None:
            return _refused(opening, refusal.code, str(refusal))
        return self._failed(opening, error)

    def _unpaid(self, opening: Opening) -> BudgetReached | None:
        """Why a turn does not begin: nothing is left of the budget. One that was begun goes on, and
        its calls are refused."""
        try:
            if opening.attempt == 1:
                budgets.check_left(self.session.head.facts)
        except BudgetReached as error:
            return error
        return None

    def _short(self, opening: Opening, error: BudgetReached) -> Close:
        """The turn is held until enough is granted. That of a child ends: its parent has the rest
        of the budget back, and decides. What was refused elsewhere is a failure like any other."""
        failed = runs.failed(error.code, str(error), opening.attempt, counts=False)
        how = Close("budget_reached", "error", str(error), drafts=[failed])
        if Ending.of(self.session, how.stop_reason, None) is None:
            facts, asked = self.session.head.facts, error.amount
            lacking = budgets.lacking(facts)
            how.needs = lacking if asked is None else budgets.needed(error.name, asked)
            if budgets.is_enough(facts, how.needs):
                return self._failed(opening, error)
        return how

    def _given_back(self, opening: Opening) -> Close:
        """The worker stops: the next one goes on at once, and nothing counts as failed."""
        now_us, why = self.session.writer.journal.now_us(), "the worker was stopped"
        how: dict[str, Any] = {"retry_us": now_us, "counts": False}
        fact = runs.failed("worker.stopped", why, opening.attempt, **how)
        return Close("rescheduling", "error", why, drafts=[fact])

    async def _take_interrupts(self, opening: Opening) -> int | None:
        """The turn ends with all interrupts and answers that have come, up to the last interrupt
        that is known. If that one begins the next turn, its seq."""
        await self.session.refresh()
        pending = await self.session.pending(limit=PAGE_MAX)
        redirect = await interrupted_by(self.session, pending)
        last = runs.run_in(self.session.head.facts).get("interrupt", self.session.version)
        last -= redirect is not None
        control = [event.seq for event in pending if event.type in CONTROL and event.seq <= last]
        opening.control = tuple({*opening.control, *control})
        return None if redirect is None else redirect.seq

    def _mismatched(self, opening: Opening, error: TurnMismatch) -> Close:
        """A person is asked whether it goes on with what is recorded, and sees both values."""
        id = identity(opening.turn_id, "mismatch", opening.attempt)
        shown = {"what": error.what, "occurrence": error.occurrence, "why": error.why}
        shown |= {"recorded": shown_of(error.recorded), "now": shown_of(error.now)}
        question = asked(id, "mismatch", error.name, shown, input_hash="")
        failed = runs.failed(error.code, str(error), opening.attempt, counts=False)
        drafts: list[Draft] = [failed, question]
        return Close("requires_action", "error", str(error), blocked_on=(id,), drafts=drafts)

    def _failed(self, opening: Opening, error: Exception) -> Close:
        """Tried again later, or held as a dead letter."""
        code = error.code if isinstance(error, LimpetError) else "turn.failed"
        message = f"{type(error).__name__}: {error}"
        effects = [list(of) for of in opening.records.raised(error)]
        fails = opening.fails + 1
        SESSION.warning("turn failed: session=%s fails=%d code=%s", self.lease.key, fails, code)
        how: dict[str, Any] = {"effects": effects}
        if fails > self._manner.retries:
            fact = runs.failed(code, message, opening.attempt, **how)
            return Close("retries_exhausted", "error", message, drafts=[fact], summary=message)
        retry_us = self.session.writer.journal.now_us() + _backoff_us(fails)
        fact = runs.failed(code, message, opening.attempt, retry_us=retry_us, **how)
        return Close("rescheduling", "error", message, drafts=[fact], summary=message)

    def _dead(self, opening: Opening) -> Close | None:
        """If it must not run again: its runs died too often, or a person said no."""
        if opening.records.accepted is False:
            return _refused(opening, TurnMismatch.code, "the mismatch was not accepted")
        if opening.died and opening.fails > self._manner.retries:
            why = f"{opening.fails} runs of the turn ended with their worker"
            return Close("retries_exhausted", "error", why, summary=why)
        return None

    async def _closed(
        self, log: TurnLog, opening: Opening, how: Close | None, error: Exception | None = None
    ) -> Woken:
        if how is None:
            return Woken(ran=True, reason="lease_lost", wake_id=self._wake_id, error=error)
        try:
            await close_wake(log, opening, how, self.lease)
        except InvalidInput as refused:  # what is asked for cannot be recorded
            if how.stop_reason not in ("end_turn", "requires_action"):
                raise
            how, error = self._failed(opening, refused), refused
            await close_wake(log, opening, how, self.lease)
        return Woken(ran=True, reason=how.stop_reason, wake_id=self._wake_id, error=error)


def listen_later() -> Later:
    """For wakes: when they begin to listen for interrupts."""
    return Later(LISTEN_AFTER_SECONDS)


async def load_all(wakes: Sequence[Wake]) -> None:
    """Read what was claimed together: many sessions cost little more than one. Where that is
    refused, each wake reads its own, and only the one it is about fails."""
    if len(wakes) > 1:
        store = wakes[0].session.writer.journal.store
        with suppress(LimpetError):
            found = await store.load_many([wake.lease.key for wake in wakes], tail=TAIL)
            for wake, loaded in zip(wakes, found, strict=True):
                wake._loaded = loaded


async def _heartbeat(lp: Limpet, one: Wake) -> None:
    """Keep the lease of a single wake."""
    lease = one.lease
    while True:
        await asyncio.sleep(lease.lease_seconds / 3)
        with suppress(LimpetError):
            since_ns = steady_ns()
            (renewed,) = await lp.work.renew([lease])
            if renewed is None:
                one.stop(lost=True)
                return
            one.hold.renewed(since_ns)


def _passed_by(turn: Turn) -> TurnMismatch | None:
    """A recorded effect that this run did not come to."""
    left = turn.records.not_reached()
    if left is None:
        return None
    return TurnMismatch("the effect", *left, "was recorded, and this run ended without it")


def _refusal(error: BaseException) -> ToolDenied | EffectUnknown | None:
    """What a person, or a rule, has decided: the next run of the turn would meet it again."""
    if isinstance(error, BaseExceptionGroup):  # of a harness that does several things at a time
        found = [_refusal(each) for each in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, ToolDenied):
        return error
    return error if isinstance(error, EffectUnknown) and not error.tried_later else None


def _refused(opening: Opening, code: str, why: str) -> Close:
    """A no is an answer: the turn is over, and its inputs are processed."""
    failed = runs.failed(code, why, opening.attempt, counts=False)
    return Close("end_turn", "error", why, drafts=[failed], summary=why)


def _backoff_us(fails: int) -> int:
    """Doubling from two seconds to five minutes, and up to a quarter more."""
    seconds = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** (fails - 1))
    return round(seconds * random.uniform(1, 1.25) * 1_000_000)
