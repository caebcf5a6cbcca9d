"""A wake: one bounded run of a harness on one session, under a lease.

`wake` runs one; a Worker runs many. A wake begins with what was left (`open_wake`): the turn, what
is recorded of it, and what a dead run left open. It runs the harness on a Turn, and ends in one
commit (`close_wake`): the last outputs, the processed inputs, the status, the end of the span and
of the lease. Until that is recorded, the inputs stay pending.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from limpet.errors import (
    BudgetReached,
    EffectUnknown,
    Interrupted,
    InvalidInput,
    LimpetError,
    MigrationError,
    ModelInvalid,
    NotPending,
    RequestAnswered,
    SessionConflict,
    SessionEnded,
    SessionFenced,
    SessionLocked,
    SessionSuspended,
    ToolDenied,
    TurnMismatch,
)
from limpet.model import (
    CHILD_ENDED,
    EMPTY,
    Commit,
    DefaultActor,
    Draft,
    Event,
    Facts,
    FrozenDict,
    Key,
    Lease,
    Texts,
    described,
    due_for,
    unfit,
)
from limpet.model.facts.inputs import processed
from limpet.model.facts.phases import RESUMED, SUSPENDED
from limpet.model.facts.running import budgets, endings, requests, runs
from limpet.model.facts.running.deaths import (
    DIED as DEATH,
    Death,
    Deaths,
    deaths_in,
    delay_us,
    is_killer,
)
from limpet.model.facts.running.requests import ANSWERS, CUSTOM_TOOL_USE, TOOL_USE, asked
from limpet.model.facts.running.runs import FAILED, STEP, SUCCEEDED
from limpet.model.facts.running.setup import degraded_in
from limpet.model.facts.timers import Revisit, revisits_of, timers_taken
from limpet.model.lease import alone, is_alone
from limpet.model.limits import NAME_CHARS_MAX, PAGE_MAX, TURN_INPUTS_MAX
from limpet.runtime.agent import Agent
from limpet.runtime.children import ChildEnd, commit_last, interrupt_all
from limpet.runtime.compensation import EndedWake
from limpet.runtime.requests import DEADLINE_PASSED, decision_in, show_value
from limpet.runtime.run import (
    QUIET_SECONDS,
    Driver,
    LeaseGuard,
    TurnRun,
    harness_of,
    traceback_of,
)
from limpet.runtime.turn import CONTROL, Turn
from limpet.runtime.turn_log import (
    DIED,
    TurnLog,
    TurnRecords,
    check_readable,
    events_since,
    identity,
)
from limpet.session.arguments import typed_of
from limpet.session.life.tools import returned
from limpet.session.limpet import Limpet
from limpet.session.loggers import SESSION
from limpet.session.runs.runs import HARNESS, Harness, WakeOptions, Woken
from limpet.session.runs.setup import check_permissions, permissions_for
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.clock import steady_ns
from limpet.store.protocol import Loaded

BACKOFF_SECONDS: Final = 2.0
BACKOFF_SECONDS_MAX: Final = 300.0
UNREADABLE_SECONDS: Final = 5.0  # a session of newer code is left to others for so long
LISTEN_AFTER_SECONDS: Final = 0.25  # a shorter run hears of interrupts when it records something
_DEFAULT: Final = WakeOptions()
TAIL: Final = 8  # it mostly has the pending inputs, which then need not be read
# A run that died after one of these was not in vain: it does not count as failed.
_PROGRESS: Final = frozenset((STEP, SUCCEEDED, FAILED, "agent.message", TOOL_USE, CUSTOM_TOOL_USE))
_HELD: Final = (SUSPENDED, RESUMED)  # the phases in which a turn that was begun waits
_CLOSE_TRIES: Final = 8


class HarnessOptions(WakeOptions, frozen=True, kw_only=True):
    """The options of wakes, checked, with the function that runs their turns."""

    harness: Callable[[Turn], Awaitable[Any]]
    quiet_seconds: float = QUIET_SECONDS


def harness_options(
    harness: Harness, options: WakeOptions = _DEFAULT, *, quiet_seconds: float = QUIET_SECONDS
) -> HarnessOptions:
    """Check a harness and how it is run. Raises InvalidInput."""
    function = harness_of(harness)
    if type(options.retries) is not int or options.retries < 0:
        raise InvalidInput(f"retries is a number from 0, not {described(options.retries)}.")
    if options.on_mismatch not in ("ask", "accept"):
        raise InvalidInput(
            f"on_mismatch is 'ask' or 'accept', not {described(options.on_mismatch)}."
        )
    typed_of(options.state_type, options.migrations, untyped=False)
    if options.version is not None and (why := unfit(options.version, NAME_CHARS_MAX)):
        raise InvalidInput(f"the version of a worker {why}.")
    return HarnessOptions(
        harness=function,
        quiet_seconds=quiet_seconds,
        version=options.version,
        retries=options.retries,
        on_mismatch=options.on_mismatch,
        permissions=check_permissions(options.permissions),
        agent=options.agent or _agent_of(harness),
        state_type=options.state_type,
        migrations=options.migrations,
    )


def _agent_of(harness: Harness) -> str | None:
    """The actor of what a named limpet.Agent writes."""
    name = harness.name if isinstance(harness, Agent) else None
    return None if name is None else f"agent:{name}"


def worker_name(prefix: str) -> str:
    """A name that no other worker has."""
    return f"{prefix}-{os.getpid()}-{os.urandom(6).hex()}"


async def wake(
    lp: Limpet, key: Key, harness: Harness, options: WakeOptions, *, lease_seconds: float
) -> Woken:
    """Run one bounded turn of this session, due or not; never raises the harness's error."""
    checked = harness_options(harness, options)
    by_hand = partial(_wake_by_hand, lp, key, checked, lease_seconds)
    if HARNESS.get(None) is not None:  # within a turn: waiting for that one to end would not end
        woken = await by_hand(lambda: False, seconds=None)
        assert woken is not None, "it runs beside that turn in any case"
        return woken
    together = _BY_HAND.setdefault(asyncio.get_running_loop(), ByHand())
    async with together.beside():
        woken = await by_hand(together.take_alone, seconds=0)
    if woken is None:
        async with together.alone(lease_seconds) as is_alone:
            woken = await by_hand(lambda: is_alone, seconds=None)
            assert woken is not None, "it runs now"
    return woken


async def _wake_by_hand(
    lp: Limpet,
    key: Key,
    options: HarnessOptions,
    lease_seconds: float,
    take_alone: Callable[[], bool],
    *,
    seconds: float | None,
) -> Woken | None:
    """Run one wake. With `seconds`, a suspect that cannot run alone is put off: None."""
    since_ns = steady_ns()
    try:
        lease = await lp.work.lock(key, worker=worker_name("wake"), lease_seconds=lease_seconds)
    except SessionLocked as error:
        return Woken(ran=False, reason="locked", error=error)
    listeners = DelayedCalls(LISTEN_AFTER_SECONDS)
    is_alone = is_suspect(lease) and take_alone()
    one = Wake(
        lp, lease, options, since_ns=since_ns, listeners=listeners, alone=is_alone, waits=False
    )
    if one.is_suspect and not is_alone and seconds is not None:
        return await one.put_off(seconds)
    heartbeat = asyncio.ensure_future(_heartbeat(lp, one))
    try:
        return await one.run()
    finally:
        listeners.close()
        heartbeat.cancel()
        await asyncio.wait([heartbeat])


class ByHand:
    """The wakes that a process runs by hand: a suspect runs alone among them."""

    def __init__(self) -> None:
        self._running, self._is_alone = 0, False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Run beside others, once no suspect runs."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_alone)
            self._running += 1
        try:
            yield
        finally:
            await self._left()

    def take_alone(self) -> bool:
        """True if nothing else runs: then nothing begins before this one has ended."""
        self._is_alone = self._running == 1
        return self._is_alone

    @asynccontextmanager
    async def alone(self, seconds: float) -> AsyncIterator[bool]:
        """Wait until nothing else runs; after so long, run beside others. Yields if it is alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: not self._running)
        self._running += 1
        try:
            yield self._running == 1 and self.take_alone()
        finally:
            await self._left()

    async def _left(self) -> None:
        self._running -= 1
        self._is_alone = self._is_alone and self._running > 0
        async with self._changed:
            self._changed.notify_all()


_BY_HAND: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, ByHand]] = WeakKeyDictionary()


class Wake:
    """One wake. The holder of the lease renews it and calls `stop`."""

    def __init__(
        self,
        lp: Limpet,
        lease: Lease,
        options: HarnessOptions,
        *,
        since_ns: int | None = None,
        listeners: DelayedCalls | None = None,
        on_harness_end: Callable[[Wake], None] | None = None,
        alone: bool = True,
        waits: bool = True,
    ) -> None:
        """`since_ns` is `steady_ns` before the lease was requested. `alone`: if its session is a
        suspect, whoever runs this runs nothing beside it. `waits`: after a death, for its time."""
        self._lp, self.lease, self._options = lp, lease, options
        self.lease_guard = LeaseGuard(lp, lease, steady_ns() if since_ns is None else since_ns)
        self._listeners = DelayedCalls(LISTEN_AFTER_SECONDS) if listeners is None else listeners
        self._on_harness_end = on_harness_end
        self._is_alone, self._waits = alone, waits
        self._listening: asyncio.Task[None] | None = None
        agent = options.agent or f"agent:{lease.key.app}"
        self._agent = agent[:320] if options.agent else DefaultActor(agent[:320])
        self._worker = DefaultActor(f"worker:{lease.worker}"[:320])
        state_type: Any = options.state_type  # None makes it untyped
        self.session: Session[Any] = lp.session(
            lease.key,
            actor=self._agent,
            lease=lease,
            state_type=state_type,
            migrations=options.migrations,
        )
        self._driver = Driver(lease.key)
        self._turn_run: TurnRun | None = None  # while a harness runs
        self._journal = writer_of(self.session).journal
        self._wake_id = self._journal.new_id()
        self._loaded: Loaded | None = None

    def stop(self, *, lost: bool) -> None:
        """End it early: its lease is lost, or its worker stops."""
        self._driver.stop("lost" if lost else "stopped")

    @property
    def is_suspect(self) -> bool:
        """True if its session was in flight when a worker died: it is run alone."""
        return is_suspect(self.lease)

    async def put_off(self, seconds: float) -> Woken | None:
        """Leave a suspect for later: count its death, if one was found, and give the lease back.
        None if it may be run as soon as nothing else is."""
        try:
            woken = await self._record_death() if _has_died(self.lease) else None
            if woken is None:
                await self._lp.work.release(self.lease, retry_seconds=seconds)
        except LimpetError as error:
            return await self._not_run(error)
        except asyncio.CancelledError:
            await self._give_back()
            raise
        return woken

    async def _name_alone(self) -> None:
        """Say in the lease that nothing runs beside it. Raises SessionFenced."""
        since_ns = steady_ns()
        lease = await self._lp.work.renew(alone(self.lease))
        self.lease = self.lease_guard.lease = lease
        self.lease_guard.renewed(since_ns)

    async def _record_death(self) -> Woken | None:
        """Count the death of the worker that had the session, before anything of the session is
        read: that may be what kills. Return the end of the wake if it is not to be run now."""
        lease, retries = self.lease, self._options.retries
        self.lease = self.lease_guard.lease = msgspec.structs.replace(lease, expired=None)
        try:
            facts = await self._commit_blindly(_death_of(lease, lease.reasons.deaths))
        except (SessionSuspended, SessionEnded):  # it is not run in any case
            return None
        deaths = deaths_in(facts)
        if endings.has_ended(facts):  # the next wake finishes it, or holds what is left
            return None
        # A run that is open may have got on: it is read first, unless that was tried before.
        surely = not runs.is_open(facts) or deaths.alone > max(1, retries)
        if surely and is_killer(deaths, retries):
            why = _why_dead(deaths)
            end = runs.status_idle("retries_exhausted", summary=why)
            await self._commit_blindly(end, release=True)
            return Woken(ran=False, reason="retries_exhausted", wake_id=self._wake_id)
        if runs.is_retried(facts) and self._waits and not runs.is_interrupted(facts):
            await self._lp.work.release(self.lease)
            return Woken(ran=False, reason="rescheduling", wake_id=self._wake_id)
        self._loaded = None
        return None

    async def _commit_blindly(self, fact: Draft, *, release: bool = False) -> Facts:
        """Record a fact under the lease, at whichever version the session is by now."""
        lease = self.lease
        prepared = self._journal.prepare(fact, self._worker)
        commit = Commit(
            lease.key,
            (prepared,),
            None,
            lease.fence,
            uid=lease.uid or None,
            release=lease if release else None,
        )
        (left,) = await self._journal.commit((commit,))
        return left.head.facts

    async def run(self) -> Woken:
        """Run the wake from its claim to its last commit. Afterwards the lease is given back, or
        lost."""
        try:
            if self.is_suspect and self._is_alone:
                await self._name_alone()
            if _has_died(self.lease) and not _is_read_first(self.lease):
                woken = await self._record_death()
                if woken is not None:
                    return woken
            while True:
                start = await open_wake(self.session, self.lease, self._loaded)
                if isinstance(start, str) and endings.is_left(self.session.head.facts):
                    return await self._finish_session(ran=False)
                if isinstance(start, str):
                    await self._lp.work.release(self.lease)
                    return Woken(ran=False, reason=start)
                try:
                    return await self._run(start)
                except RequestAnswered as error:  # before the deadline could: look again
                    if error.key != self.lease.key or not start.by_default:
                        raise
                    self._loaded = None
        except SessionFenced as error:
            await self._give_back()
            return Woken(ran=True, reason="lease_lost", wake_id=self._wake_id, error=error)
        except LimpetError as error:  # it cannot be read, or not be written to: others' turn
            return await self._not_run(error)
        except asyncio.CancelledError:
            await self._give_back()
            raise
        except Exception:  # a mistake of ours: it must not keep the session from everybody
            await self._give_back(retry_seconds=BACKOFF_SECONDS_MAX / 10)
            raise

    async def _not_run(self, error: LimpetError) -> Woken:
        """Leave the session to others, after a while."""
        SESSION.warning("wake failed: session=%s code=%s", self.lease.key, error.code)
        later = isinstance(error, MigrationError)  # newer code than this may take it
        await self._give_back(UNREADABLE_SECONDS if later else BACKOFF_SECONDS_MAX / 10)
        return Woken(ran=False, reason="failed", wake_id=self._wake_id, error=error)

    async def _give_back(self, retry_seconds: float | None = None) -> None:
        """Give the lease back. One that ran out while this worker lived is withdrawn: that is no
        death, if nobody came yet."""
        with suppress(LimpetError):
            await self._lp.work.release(self.lease, retry_seconds=retry_seconds)

    async def _run(self, start: WakeStart) -> Woken:
        try:
            return await self._turn(start)
        except SessionEnded as error:  # somebody has ended it meanwhile
            if error.key != self.lease.key or self._driver.stopped == "lost":
                raise
        await self.session.refresh()
        if self._driver.stopped != "stopped":
            self._driver = Driver(self.lease.key)
        return await self._finish_session(ran=True)

    async def _finish_session(self, *, ran: bool) -> Woken:
        """Do what is left to do for a session that has ended."""
        phase = self.session.head.phase
        if not endings.is_left(self.session.head.facts):
            await self._lp.work.release(self.lease)
            return Woken(ran=ran, reason=phase, wake_id=self._wake_id)
        wake_id = self._journal.new_id()
        deaths, death = deaths_in(self.session.head.facts), None
        if _has_died(self.lease) and not ran:
            death = _death_of(self.lease, deaths.total)
            deaths = deaths.after(_kind_of(self.lease), got_on=False)
        await EndedWake(
            self._log(wake_id, wake_id),
            self.lease,
            self._driver,
            self.lease_guard,
            retries=self._options.retries,
            retry_delay_us=retry_delay_us,
            death=death,
            kills=is_killer(deaths, self._options.retries),
        ).run()
        return Woken(ran=ran, reason=phase, wake_id=self._wake_id if ran else wake_id)

    def _log(self, turn_id: str, wake_id: str) -> TurnLog:
        return TurnLog(
            self.session,
            turn_id=turn_id,
            wake_id=wake_id,
            agent=self._agent,
            worker=self._worker,
        )

    async def _turn(self, start: WakeStart) -> Woken:
        await self._rebind_tools()
        # Before anything is recorded: without its permissions it must not begin.
        permissions = await permissions_for(writer_of(self.session), self._options.permissions)
        log = self._log(start.turn_id, self._wake_id)
        if self._is_early():
            await self._lp.work.release(self.lease)
            return Woken(ran=False, reason="rescheduling", wake_id=self._wake_id)
        if start.is_held and self._waits and not is_killer(start.deaths, self._options.retries):
            log.begin(*start.drafts)
            await commit_last(log, log.closing(), None, self.lease)
            return Woken(ran=False, reason="rescheduling", wake_id=self._wake_id)
        log.begin(*start.drafts, self._started(start))
        if not start.has_turn:
            return await self._settle(log, start)
        before = runs.waiting_status(self.session.head.facts)
        log.begin(runs.status_changed(before, "running", start.why))
        if (dead := self._dead(start)) is not None:
            return await self._close(log, start, dead)
        if (unpaid := self._unpaid(start)) is not None:
            return await self._close(log, start, self._short(start, unpaid), unpaid)
        if start.is_eager:
            written = await log.flush()
            new = [event.seq for event in written if event.processed == 0]
            start.control = (*start.control, *new)
        run = TurnRun(
            log,
            start.records,
            self._driver,
            self.lease_guard,
            attempt=start.attempt,
            accepts=self._options.on_mismatch == "accept",
            permissions=permissions,
            worker_permissions=self._options.permissions,
            version=start.version if start.attempt > 1 else self._options.version,
            quiet_seconds=self._options.quiet_seconds,
        )
        said = None if start.redirect is None else start.redirect.data
        note = None if said is None else said["note"]
        turn = Turn(
            run,
            inputs=start.inputs,
            revisits=start.revisits,
            note=note,
            redirect=None if start.redirect is None else start.redirect.seq,
        )
        self._turn_run = run
        log.on_commit, log.on_suspended = self._check_interrupts, run.suspend
        error = await self._drive(turn)
        return await self._close(log, start, await self._end_of(turn, start, error), error)

    async def _rebind_tools(self) -> None:
        """Bind optional tools that the session lacks, once they are available."""
        if not degraded_in(self.session.head.facts):
            return
        registry = writer_of(self.session).services.lifecycle(self.session.app).tools
        try:
            fact = await returned(registry, self.session)
        except Exception as error:  # of the function that authorizes: the session goes on without
            name = type(error).__name__  # its text may quote state
            SESSION.warning("tools not bound: session=%s error=%s", self.lease.key, name)
        else:
            if fact is not None:
                writer = writer_of(self.session)
                prepared = writer.journal.prepare(fact, self._worker)
                try:
                    await writer.commit((prepared,), self.session.version)
                except SessionConflict:  # somebody else may have bound tools meanwhile
                    await writer.load(tail=TAIL)

    async def _settle(self, log: TurnLog, start: WakeStart) -> Woken:
        """Record an interrupt, feedback, or an answer that nothing waits for, or that a suspect has
        nothing to do any more: there is no turn to run."""
        facts = self.session.head.facts
        done: list[Draft] = [processed(start.control)] if start.control else []
        done.append(
            runs.wake_completed(
                self._wake_id,
                start.turn_id,
                "success",
                fence=self.lease.fence,
                name="settle",
                compute_us=held_us(self.session, self.lease),
            )
        )
        interrupted = start.why == "interrupt"
        stop = "interrupted" if interrupted else runs.settled_stop(facts)
        end = ChildEnd.of(self.session, stop, None)
        await commit_last(log, log.closing(*done), end, self.lease)
        return Woken(ran=False, reason="settled", wake_id=self._wake_id)

    def _started(self, start: WakeStart) -> Draft:
        """The record of the wake: what it is about, why it was woken, and by whom."""
        lease = self.lease
        return runs.wake_started(
            self._wake_id,
            start.turn_id,
            attempt=start.attempt,
            inputs=[event.seq for event in start.inputs],
            timers=start.timers,
            worker=lease.worker,
            why=start.why,
            claimed_us=lease.claimed_us,
            fence=lease.fence,
            answers=start.control,
            redirect=None if start.redirect is None else start.redirect.seq,
            version=self._options.version,
            name="wake" if start.has_turn else "settle",
        )

    async def _drive(self, turn: Turn) -> Exception | None:
        """Run the harness, and stop it if an interrupt comes."""
        listen = partial(self._begin_listening, turn.run.log)
        self._listeners.add(listen)
        try:
            with turn.run.traced("wake", self._agent) as notes:
                error = await self._driver.run(self._options.harness, turn)
                notes.outcome = self._driver.stopped or "ended"
                if error is not None and self._driver.stopped is None:
                    notes.error = type(error).__name__
        finally:
            self._listeners.discard(listen)
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.wait([self._listening])
            await turn.run.effects_ended()
        if self._on_harness_end is not None:
            self._on_harness_end(self)
        if error is None and self._driver.stopped is None and not turn.run.accepts:
            error = _skipped_effect(turn)
        return error

    def _check_interrupts(self) -> None:
        """Something was recorded, and the head that came back may know of an interrupt."""
        facts = self.session.head.facts
        if runs.is_interrupted(facts):
            self._driver.stop("interrupted")
        elif endings.has_ended(facts):
            self._driver.stop("ended")
        elif facts.get("phase") in _HELD and self._turn_run is not None:
            self._turn_run.suspend()

    def _begin_listening(self, log: TurnLog) -> None:
        self._listening = asyncio.ensure_future(self._listen(log))

    async def _listen(self, log: TurnLog) -> None:
        """Record the beginning of a wake that takes long, so that followers see it run. Look at the
        head now, and when somebody else has recorded something; not too often."""
        loop, hub = asyncio.get_running_loop(), self._journal.hub
        with suppress(LimpetError):  # if the lease is lost, the next write of the harness says so
            await log.flush()
            async with hub.listening(self.lease.key) as bell:
                while not await self._is_stopped():
                    looked = loop.time()
                    await bell.beyond(lambda: self.session.version)
                    await asyncio.sleep(max(0, looked + LISTEN_AFTER_SECONDS - loop.time()))

    async def _is_stopped(self) -> bool:
        """Stop the harness if somebody has interrupted or ended the session; True if so."""
        store = self._journal.store
        facts = (await store.load(self.lease.key, tail=0, scopes=False)).head.facts
        if runs.is_interrupted(facts):
            seq = runs.run_in(facts)["interrupt"]
            (event,) = await self.session.read(after=seq - 1, limit=1)
            note = None if event.data is None else event.data.get("note")
            self._driver.stop("interrupted", note)
        elif endings.has_ended(facts):
            self._driver.stop("ended")
        elif facts.get("phase") in _HELD and self._turn_run is not None:
            self._turn_run.suspend()
        return self._driver.stopped is not None

    # --- how it ends -----------------------------------------------------------------------------

    async def _end_of(
        self, turn: Turn, start: WakeStart, error: Exception | None
    ) -> WakeEnd | None:
        """Decide how the wake is closed; None if it must not write any more."""
        stopped, own = self._driver.stopped, self.lease.key  # errors of other sessions: failures
        if stopped == "lost" or (isinstance(error, SessionFenced) and error.key == own):
            return None
        if stopped == "ended" or (isinstance(error, SessionEnded) and error.key == own):
            raise SessionEnded(self.lease.key, self.session.head.phase)
        if stopped == "stopped":
            return self._given_back(start)
        if turn.run.is_suspended or (isinstance(error, SessionSuspended) and error.key == own):
            return self._suspended(start)
        if stopped == "interrupted" or (isinstance(error, Interrupted) and error.key == own):
            redirect = await self._take_interrupts(start)
            released = await interrupt_all(self.session, self._driver.note)
            note = self._driver.note
            return WakeEnd("interrupted", "blocked", error=note, drafts=released, redirect=redirect)
        if stopped == "paused" and turn.run.retried:
            return self._paused_for_retry(start, turn.run.retried)
        if stopped == "paused":
            return WakeEnd(
                "requires_action", "blocked", blocked_on=tuple(turn.run.pauses.blocked_on)
            )
        if error is None:
            skipped = _skipped_calls(turn)
            return WakeEnd("end_turn", "success", drafts=[*skipped, *turn.revisits_set])
        if (mismatch := _mismatch_in(error)) is not None:
            return self._mismatched(start, mismatch)
        if isinstance(error, BudgetReached):
            return self._short(start, error)
        if (refusal := _refusal(error)) is not None:
            return _refused(start, refusal.code, str(refusal), traceback=traceback_of(error))
        return self._failed(start, error)

    def _is_early(self) -> bool:
        """True if a suspect that was locked by its key has to wait by what is known by now."""
        facts, lease = self.session.head.facts, self.lease
        if not (self._waits and lease.lock and lease.reasons.deaths and runs.is_retried(facts)):
            return False
        return bool(runs.run_in(facts)["retry_us"] > lease.claimed_us)

    def _unpaid(self, start: WakeStart) -> BudgetReached | None:
        """Return why a turn does not begin: nothing is left of the budget. One that was begun
        goes on, and its calls are refused."""
        try:
            if start.attempt == 1:
                budgets.check_left(self.session.head.facts)
        except BudgetReached as error:
            return error
        return None

    def _short(self, start: WakeStart, error: BudgetReached) -> WakeEnd:
        """The turn is held until enough is granted. That of a child ends: its parent has the rest
        of the budget back, and decides. What was refused elsewhere is a failure like any other."""
        failed = runs.failed(error.code, str(error), start.attempt, counts=False)
        end = WakeEnd("budget_reached", "error", str(error), drafts=[failed])
        if ChildEnd.of(self.session, end.stop_reason, None) is None:
            facts, asked = self.session.head.facts, error.amount
            if error.name == "compute_seconds":  # with this wake, which is counted as it ends
                end.needs = {budgets.COMPUTE: 1}
                return end
            lacking = budgets.lacking(facts)
            end.needs = lacking if asked is None else budgets.needed(error.name, asked)
            if budgets.is_enough(facts, end.needs):
                return self._failed(start, error)
        return end

    def _given_back(self, start: WakeStart) -> WakeEnd:
        """The worker stops: the next one goes on at once, and nothing counts as failed."""
        now_us, why = self._journal.now_us(), "the worker was stopped"
        fact = runs.failed(runs.STOPPED, why, start.attempt, retry_us=now_us, counts=False)
        return WakeEnd("rescheduling", "error", why, drafts=[fact])

    def _suspended(self, start: WakeStart) -> WakeEnd:
        """The session was suspended: the turn goes on after it is resumed. Nothing has failed."""
        now_us, why = self._journal.now_us(), "the session was suspended"
        fact = runs.failed(SessionSuspended.code, why, start.attempt, retry_us=now_us, counts=False)
        return WakeEnd("rescheduling", "blocked", why, drafts=[fact], is_suspended=True)

    def _paused_for_retry(self, start: WakeStart, tries: int) -> WakeEnd:
        """An effect is unknown and may be tried again: the turn goes on after a back-off, without
        its lease meanwhile. Such tries are counted by the effect, not as failures of the turn."""
        code, why = EffectUnknown.code, "an effect without an outcome is tried again"
        retry_us = self._journal.now_us() + retry_delay_us(tries)
        fact = runs.failed(code, why, start.attempt, retry_us=retry_us, counts=False)
        return WakeEnd("rescheduling", "error", why, drafts=[fact])

    async def _take_interrupts(self, start: WakeStart) -> int | None:
        """The turn ends with all interrupts and answers that have come, up to the last interrupt
        that is known. If that one begins the next turn, its seq."""
        await self.session.refresh()
        pending = await self.session.pending(limit=PAGE_MAX)
        redirect = await interrupted_by(self.session, pending)
        last = runs.run_in(self.session.head.facts).get("interrupt", self.session.version)
        last -= redirect is not None
        control = [event.seq for event in pending if event.type in CONTROL and event.seq <= last]
        start.control = tuple({*start.control, *control})
        return None if redirect is None else redirect.seq

    def _mismatched(self, start: WakeStart, error: TurnMismatch) -> WakeEnd:
        """A person decides whether it runs again or is given up, and sees both values."""
        id = identity(start.turn_id, "mismatch", start.attempt)
        shown = {"what": error.what, "occurrence": error.occurrence, "why": error.why}
        shown |= {"recorded": show_value(error.recorded), "now": show_value(error.now)}
        question = asked(id, "mismatch", error.name, shown, input_hash="")
        failed = runs.failed(error.code, str(error), start.attempt, counts=False)
        drafts: list[Draft] = [failed, question]
        return WakeEnd("requires_action", "error", str(error), blocked_on=(id,), drafts=drafts)

    def _failed(self, start: WakeStart, error: Exception) -> WakeEnd:
        """Tried again later, or held as a dead letter: at once, if no retry can cure it."""
        code = error.code if isinstance(error, LimpetError) else "turn.failed"
        message = runs.stored_error(error)
        effects = [list(of) for of in start.records.raised(error)]
        lines = traceback_of(error)
        fails = start.fails + 1
        SESSION.warning("turn failed: session=%s fails=%d code=%s", self.lease.key, fails, code)
        if fails > self._options.retries or self._driver.is_misfit or _is_model_invalid(error):
            fact = runs.failed(code, message, start.attempt, effects=effects, traceback=lines)
            return WakeEnd("retries_exhausted", "error", message, drafts=[fact], summary=message)
        retry_us = self._journal.now_us() + retry_delay_us(fails)
        fact = runs.failed(
            code, message, start.attempt, retry_us=retry_us, effects=effects, traceback=lines
        )
        return WakeEnd("rescheduling", "error", message, drafts=[fact], summary=message)

    def _dead(self, start: WakeStart) -> WakeEnd | None:
        """Return the end if it must not run again, because its runs died too often or a person
        gave it up."""
        given_up = [a for a in start.records.answers_of("mismatch") if decision_in(a) == "give_up"]
        if given_up:
            note = given_up[-1].get("note")
            why = "the turn was given up after a mismatch"
            return _refused(start, TurnMismatch.code, f"{why}: {note}" if note else why)
        if is_killer(start.deaths, self._options.retries):
            why = _why_dead(start.deaths)
            return WakeEnd("retries_exhausted", "error", why, summary=why)
        if start.died and start.fails > self._options.retries:
            why = f"{start.fails} runs of the turn ended with their worker"
            return WakeEnd("retries_exhausted", "error", why, summary=why)
        return None

    async def _close(
        self, log: TurnLog, start: WakeStart, end: WakeEnd | None, error: Exception | None = None
    ) -> Woken:
        if end is None:
            await self._give_back()
            return Woken(ran=True, reason="lease_lost", wake_id=self._wake_id, error=error)
        if end.is_suspended:
            return await self._close_suspended(log, start, end)
        try:
            await close_wake(log, start, end, self.lease)
        except SessionSuspended as refused:  # in this moment: its end is not recorded
            if refused.key != self.lease.key:
                raise
            return await self._close_suspended(log, start, self._suspended(start))
        except InvalidInput as refused:  # what is asked for cannot be recorded
            if end.stop_reason not in ("end_turn", "requires_action"):
                raise
            end, error = self._failed(start, refused), refused
            await close_wake(log, start, end, self.lease)
        return Woken(ran=True, reason=end.stop_reason, wake_id=self._wake_id, error=error)

    async def _close_suspended(self, log: TurnLog, start: WakeStart, end: WakeEnd) -> Woken:
        """Record the end of a wake of a suspended session, if its beginning is recorded."""
        if log.is_begun:
            log.forget_queued()
            await close_wake(log, start, end, self.lease)
        else:
            await self._lp.work.release(self.lease)
        return Woken(ran=True, reason="suspended", wake_id=self._wake_id)


async def load_all(wakes: Sequence[Wake]) -> None:
    """Read what was claimed together: many sessions cost little more than one. Where that is
    refused, each wake reads its own, and only the one it is about fails."""
    stores = {id(writer_of(wake.session).journal): wake for wake in wakes}
    if len(wakes) > 1 and len(stores) == 1:  # else each acts for a user of its own
        store = writer_of(wakes[0].session).journal.store
        with suppress(LimpetError):
            sessions = await store.load_many([wake.lease.key for wake in wakes], tail=TAIL)
            for wake, loaded in zip(wakes, sessions, strict=True):
                wake._loaded = loaded


# --- how it begins -------------------------------------------------------------------------------


class WakeStart(msgspec.Struct):
    """The start of a wake: its turn, and what of it is recorded."""

    turn_id: str
    attempt: int
    why: runs.Why = "input"
    inputs: tuple[Event, ...] = ()
    revisits: tuple[Revisit, ...] = ()
    timers: tuple[str, ...] = ()  # the names of what `revisits` shows
    control: tuple[int, ...] = ()  # seqs of answers, interrupts and feedback that are pending
    redirect: Event | None = None  # the interrupt that began the turn: its note is what it is about
    records: TurnRecords = msgspec.field(default_factory=TurnRecords)
    drafts: list[Draft] = msgspec.field(default_factory=list)  # to be recorded first
    fails: int = 0  # runs of this turn that failed or died
    died: bool = False  # the run before this one ended without its end, and had not got on
    deaths: Deaths = Deaths()  # with the one that this wake found
    is_held: bool = False  # after that death its time has not come
    is_eager: bool = False  # record the beginning before the harness runs
    has_turn: bool = True  # False: there was nothing but what is `control`
    version: str | None = None  # of the worker that began the turn
    by_default: bool = False  # requests are answered by their deadlines, if nobody was faster


async def open_wake(
    session: Session[Any], lease: Lease, loaded: Loaded | None = None
) -> WakeStart | str:
    """Return what a wake begins with, or why there is nothing to run. Reads only: what has to be
    recorded first are drafts, which go with the first commit of the wake, so that a dead run is
    settled and the new one begun in one step.

    `loaded` is the session as it was read after its claim, with TAIL events.
    """
    now_us = lease.claimed_us  # by the store's clock
    if loaded is None or not writer_of(session).take(loaded):
        await writer_of(session).load(tail=TAIL)
    if "resumes" in session.head.facts:  # it was suspended for idleness, and input waits
        await writer_of(session).rouse()
    facts = session.head.facts
    if session.head.phase != "active":
        return session.head.phase
    if runs.is_dead(facts):
        return "dead_letter"
    overdue = requests.overdue(facts, now_us)
    if runs.is_paused(facts) and not overdue:
        return "requires_action"
    if runs.is_short(facts):
        return "budget_reached"
    pending = await _pending(session)
    return await _start_wake(session, lease, pending, overdue)


async def _start_wake(
    session: Session[Any],
    lease: Lease,
    pending: tuple[Event, ...],
    overdue: dict[str, bool],
) -> WakeStart | str:
    facts = session.head.facts
    turn, new_id = runs.turn_in(facts), writer_of(session).journal.new_id
    control = tuple([event.seq for event in pending if event.type in CONTROL])
    settling: list[Draft] = []
    records, died = TurnRecords(), False
    deaths, is_held = deaths_in(facts), False
    if turn is not None:
        dead = await _settle_dead_run(session, turn, lease)
        settling, records, deaths = dead.drafts, dead.records, dead.deaths
        died = any([d.type == runs.ERROR and d.data["counts"] for d in settling])
        is_held = any([d.type == runs.ERROR and "retry_us" in d.data for d in settling])
    redirect = (
        None if turn is not None else await _event_at(session, pending, runs.redirect_in(facts))
    )
    if runs.is_interrupted(facts):
        redirect = await interrupted_by(session, pending)
        gone = _interrupted_inputs(facts, turn, pending)
        settling += _end_interrupted(facts, turn, records, {*gone, *control}, redirect)
        pending = tuple([e for e in pending if e.seq not in gone and e.type not in CONTROL])
        turn, records, died, is_held = None, TurnRecords(), False, False
        deaths = Deaths()
        control = tuple([seq for seq in control if redirect is not None and seq > redirect.seq])
        control = control if redirect is None else (redirect.seq, *control)
        settling[:0] = await interrupt_all(session, None)
    if turn is not None:
        start = await _continued_turn(session, turn, records, pending)
        start.fails = runs.run_in(facts).get("fails", 0) + died
        for id, allow in overdue.items():
            settling.append(answer := _deadline_answer(id, allow=allow))
            records.answers[id] = answer.data
        start.by_default = bool(overdue)
    else:
        texts = writer_of(session).known.texts
        start = _new_turn(new_id(), pending, facts, lease, records, texts, redirect)
        if not start.has_turn and not settling and not control and not deaths.total:
            return "nothing_pending"
    start.control, start.drafts, start.died = control, settling, died
    start.deaths, start.is_held = deaths, is_held
    answered = any([event.type in ANSWERS for event in pending])
    start.why = _wake_reason(
        facts, start, overdue=bool(overdue), crashed=bool(settling), answered=answered
    )
    fence = runs.run_in(facts).get("fence", 0)
    start.is_eager = bool(settling) or lease.fence > fence + 1
    return start


def _wake_reason(
    facts: Facts, start: WakeStart, *, overdue: bool, crashed: bool, answered: bool
) -> runs.Why:
    """Return why it was due: the first of the reasons, in the order in which they count."""
    run, turn = runs.run_in(facts), runs.turn_in(facts)
    if runs.is_interrupted(facts) or runs.redirect_in(facts) is not None:
        return "interrupt"
    if run.get("requeued"):
        return "requeue"
    if turn is None:
        if start.timers and not start.inputs:
            return "timer"
        return "child" if {event.type for event in start.inputs} == {CHILD_ENDED} else "input"
    if overdue:
        return "deadline"
    if crashed:
        return "died"
    if run.get("stop") in ("rescheduling", "budget_reached"):
        return "retry"
    ended = [event for event in start.records.ended.values() if event.processed == 0]
    return "answer" if answered else "child" if ended else "asked"


def _new_turn(
    turn_id: str,
    pending: tuple[Event, ...],
    facts: Facts,
    lease: Lease,
    records: TurnRecords,
    texts: Texts,
    redirect: Event | None,
) -> WakeStart:
    """A turn that begins: it fixes what it is about. One that an interrupt begins is about its
    note: inputs and timers wait for the next."""
    if redirect is not None:
        return WakeStart(turn_id, 1, records=records, redirect=redirect)
    inputs = tuple([e for e in pending if e.type not in CONTROL])[:TURN_INPUTS_MAX]
    timers: tuple[str, ...] = ()
    if "timers" in facts:
        timers = tuple([name for name, _ in due_for(facts, lease.claimed_us).timers])
    revisits = revisits_of(facts, timers, texts) if timers else ()
    return WakeStart(
        turn_id,
        1,
        inputs=inputs,
        revisits=revisits,
        timers=timers,
        records=records,
        has_turn=bool(inputs or timers),
    )


async def _continued_turn(
    session: Session[Any], turn: FrozenDict, records: TurnRecords, pending: tuple[Event, ...]
) -> WakeStart:
    """A turn that was begun: the same inputs, and what it has recorded."""
    by_seq = {event.seq: event for event in pending}
    inputs = []
    for seq in turn["inputs"]:
        # Somebody may have marked it as processed: it is the turn's all the same.
        event = by_seq.get(seq) or await _event_at(session, (), seq)
        assert event is not None, "a turn's inputs are in its log"
        inputs.append(event)
    timers = tuple(turn["timers"])
    revisits = revisits_of(session.head.facts, timers, writer_of(session).known.texts)
    redirect = await _event_at(session, pending, turn.get("redirect"))
    return WakeStart(
        turn["id"],
        turn["attempt"] + 1,
        inputs=tuple(inputs),
        revisits=revisits,
        timers=timers,
        redirect=redirect,
        records=records,
        version=turn.get("version"),
    )


class _DeadRun(msgspec.Struct):
    """A run that died: what has to be recorded of it, the records of its turn, and its deaths."""

    records: TurnRecords
    deaths: Deaths
    drafts: list[Draft] = msgspec.field(default_factory=list)


async def _settle_dead_run(session: Session[Any], turn: FrozenDict, lease: Lease) -> _DeadRun:
    deaths = deaths_in(session.head.facts)
    events = await events_since(session, turn["from"])
    check_readable(session.key, events)
    records = TurnRecords(events)
    if turn["span"] is None:
        return _DeadRun(records, deaths)
    drafts = records.unknown_effects(turn["id"], DIED)
    for _, record in records.dangling():
        record.state = "unknown"
    drafts += records.cut_reservations(session.head.facts)
    got_on = any([e.wake_id == turn["span"] and e.type in _PROGRESS for e in events])
    if _has_died(lease):
        drafts.append(_death_of(lease, deaths.total, turn["attempt"]))
        deaths = deaths.after(_kind_of(lease), got_on=got_on)
    elif got_on:
        deaths = msgspec.structs.replace(deaths, alone=0)
    if not _has_died(lease) and not _is_counted(events, turn["span"]):
        # Its worker lives, and came back too late; or gave it back without an end.
        counts = lease.expired is None and not got_on
        drafts.append(runs.failed(DEATH, DIED, turn["attempt"], counts=counts))
    end = runs.wake_completed(
        turn["span"],
        turn["id"],
        "error",
        fence=lease.fence - 1,
        error=DIED,
        got_on=got_on,
        compute_us=_died_after_us(events, turn["span"], lease),
    )
    return _DeadRun(records, deaths, [*drafts, end])


def is_suspect(lease: Lease) -> bool:
    """True if the session of this lease was in flight when a worker died: it is run alone."""
    return lease.reasons.deaths > 0 or _has_died(lease)


def _has_died(lease: Lease) -> bool:
    """True if whoever had the session before this lease died with it."""
    return lease.expired is not None and not lease.expired.excused


def _kind_of(lease: Lease) -> Death:
    assert lease.expired is not None
    return "alone" if is_alone(lease.expired.worker) else "shared"


def _death_of(lease: Lease, deaths: int, attempt: int = 1) -> Draft:
    """The record of a death, the next after so many. It waits since its worker was last heard."""
    assert lease.expired is not None
    at_us = lease.expired.leased_us + delay_us(deaths + 1)
    retry_us = at_us if at_us > lease.claimed_us else None
    return runs.failed(DEATH, DIED, attempt, retry_us=retry_us, counts=False, death=_kind_of(lease))


def _died_after_us(events: Sequence[Event], span: str, lease: Lease) -> int:
    """Return for how long a run that died had the session, as its lease shows."""
    if lease.expired is None:
        return 0
    for event in events:
        if event.type == runs.SPAN_STARTED and event.data and event.data.get("span_id") == span:
            until_us = lease.expired.until_us
            return max(0, until_us - int(event.data.get("claimed_us", until_us)))
    return 0


def _is_read_first(lease: Lease) -> bool:
    """True if a death is recorded with what is read of its run. If a claim before this one has
    recorded nothing, reading may be what kills; and without a run there may be nothing to read."""
    reasons = lease.reasons
    if reasons.is_open:
        return lease.fence <= reasons.fence + 2
    return not reasons.pending and not reasons.timers


def _is_counted(events: Sequence[Event], span: str) -> bool:
    """True if the death of this run was recorded when it was found."""
    for event in reversed(events):
        if event.type == runs.ERROR and event.data and "death" in event.data:
            return True
        if event.type == runs.SPAN_STARTED and event.data and event.data.get("span_id") == span:
            return False
    return False


def _why_dead(deaths: Deaths) -> str:
    return f"{deaths.alone} workers died while they ran nothing but this session"


def _interrupted_inputs(
    facts: Facts, turn: FrozenDict | None, pending: tuple[Event, ...]
) -> set[int]:
    """The inputs that an interrupt ends: those of the turn; of a child whose parent was
    interrupted, all that came before."""
    waiting = {event.seq for event in pending}
    if facts.get("delegation", EMPTY).get("quiet"):
        return {seq for seq in waiting if seq < runs.run_in(facts)["interrupt"]}
    return set() if turn is None else waiting & set(turn["inputs"])


def _end_interrupted(
    facts: Facts,
    turn: FrozenDict | None,
    records: TurnRecords,
    done: set[int],
    redirect: Event | None,
) -> list[Draft]:
    """The end of a turn that was interrupted while nobody ran it."""
    drafts = records.unanswered("interrupted") if turn is not None else []
    if turn is not None and turn["timers"]:
        drafts.append(timers_taken(turn["timers"]))
    done = {*done, runs.run_in(facts)["interrupt"]}
    if redirect is None:
        return [*drafts, runs.status_idle("interrupted", processed=done)]
    done = {seq for seq in done if seq < redirect.seq}
    idle = runs.status_idle("interrupted", processed=done, redirect=redirect.seq)
    return [*drafts, idle]


async def interrupted_by(session: Session[Any], pending: tuple[Event, ...]) -> Event | None:
    """The interrupt that was not dealt with, if its note begins a turn."""
    event = await _event_at(session, pending, runs.run_in(session.head.facts).get("interrupt"))
    return event if event is not None and runs.redirects(event.data) else None


async def _event_at(
    session: Session[Any], pending: tuple[Event, ...], seq: int | None
) -> Event | None:
    """The event with this seq, which mostly is a pending one."""
    if seq is None:
        return None
    for event in pending:
        if event.seq == seq:
            return event
    (event,) = await session.read(after=seq - 1, limit=1)
    return event


def _deadline_answer(id: str, *, allow: bool) -> Draft:
    """The answer of a deadline. If somebody was faster, its commit is refused: RequestAnswered."""
    data = {"request_id": id, "allow": allow, "note": DEADLINE_PASSED}
    by = DefaultActor("system:runtime")
    return Draft(type=requests.CONFIRMATION, data=data, id=f"{id}/default", actor=by)


async def _pending(session: Session[Any]) -> tuple[Event, ...]:
    """The inputs that are not processed: from the tail, if it has them all."""
    known = session.head.pending
    if not known:
        return ()
    events = tuple([event for event in session.events if event.processed == 0])
    return events if len(events) == known else await session.pending(limit=PAGE_MAX)


# --- how it ends ---------------------------------------------------------------------------------


class WakeEnd(msgspec.Struct):
    """The end of a wake, as it is recorded."""

    stop_reason: runs.StopReason
    result: runs.SpanResult
    error: str | None = None
    blocked_on: tuple[str, ...] = ()
    drafts: list[Draft] = msgspec.field(default_factory=list)  # of the harness, and errors
    summary: str | None = None
    needs: dict[str, int] | None = None  # so much of the budget, to go on
    redirect: int | None = None  # the interrupt that begins the next turn
    is_suspended: bool = False  # the session is, so that it accepts only the end of the wake

    @property
    def is_over(self) -> bool:
        """True if the turn is over, and not only this wake."""
        waits = self.stop_reason in ("requires_action", "rescheduling", "retries_exhausted")
        return not waits and self.needs is None


async def close_wake(log: TurnLog, start: WakeStart, end: WakeEnd, lease: Lease) -> None:
    """Record the end of a wake and of its lease. Raises SessionFenced if the lease is lost."""
    session, is_over = log.session, end.is_over
    done: Iterable[int] = _processed_seqs(start) if is_over else ()
    child_end = ChildEnd.of(session, end.stop_reason, end.summary) if is_over else None
    left = _left_open(log, start, end)
    for again in reversed(range(_CLOSE_TRIES)):
        drafts = log.closing(*_closing_drafts(log, start, end, left, done, lease))
        try:
            await commit_last(log, drafts, child_end, lease)
            return
        except NotPending:  # somebody else marked one of them
            if not again:
                raise
            waiting = {event.seq for event in await session.pending(limit=PAGE_MAX)}
            done = [seq for seq in done if seq in waiting]
        except SessionConflict:
            if not again:
                raise
            await session.refresh()


def held_us(session: Session[Any], lease: Lease) -> int:
    """Return for how long this wake has had the session by now."""
    return max(0, writer_of(session).journal.now_us() - lease.claimed_us)


def _processed_seqs(start: WakeStart) -> list[int]:
    """The seqs of the inputs, answers and ends of children that the turn has dealt with."""
    records, inputs = start.records, [event.seq for event in start.inputs]
    ended = [event.seq for event in records.ended.values() if event.processed == 0]
    return sorted({*inputs, *start.control, *ended})


def _closing_drafts(
    log: TurnLog,
    start: WakeStart,
    end: WakeEnd,
    left: Iterable[Draft],
    done: Iterable[int],
    lease: Lease,
) -> list[Draft]:
    drafts = [*left, *end.drafts]
    if end.is_over and start.timers:
        drafts.insert(0, timers_taken(start.timers))
    drafts.append(
        runs.wake_completed(
            log.wake_id,
            log.turn_id,
            end.result,
            fence=lease.fence,
            error=end.error,
            compute_us=held_us(log.session, lease),
        )
    )
    was = "running" if log.is_begun else runs.waiting_status(log.session.head.facts)
    now: runs.Status = "rescheduling" if end.stop_reason == "rescheduling" else "idle"
    if was != now:
        drafts.append(runs.status_changed(was, now, end.stop_reason))
    idle = runs.status_idle(
        end.stop_reason,
        processed=done,
        blocked_on=end.blocked_on,
        summary=end.summary,
        needs=end.needs,
        redirect=end.redirect,
    )
    return [*drafts, idle]


def _left_open(log: TurnLog, start: WakeStart, end: WakeEnd) -> list[Draft]:
    """An outcome for whatever the run has left open, unless it waits for an answer."""
    records, facts = start.records, log.session.head.facts
    # Most turns have nothing that could be open.
    has_begun_any = records.effects or records.asked or records.calls or "budget" in facts
    if not has_begun_any or end.stop_reason == "requires_action":
        return []
    why = end.error or "the turn ended"
    if end.is_over:
        why = "interrupted" if end.stop_reason == "interrupted" else "the turn ended"
    drafts = records.unknown_effects(start.turn_id, why)
    if end.is_over:
        drafts += records.unanswered(why)
    return [*drafts, *records.cut_reservations(facts)]


# --- helpers of a wake ---------------------------------------------------------------------------


async def _heartbeat(lp: Limpet, one: Wake) -> None:
    """Keep the lease of a single wake."""
    while True:
        await asyncio.sleep(one.lease.lease_seconds / 3)
        with suppress(LimpetError):
            since_ns = steady_ns()
            (renewed,) = await lp.work.renew([one.lease])
            if renewed is None:
                one.stop(lost=True)
                return
            one.lease_guard.renewed(since_ns)


def _skipped_effect(turn: Turn) -> TurnMismatch | None:
    """The error for a recorded effect that this run did not reach."""
    left = turn.run.records.effect_left()
    if left is None:
        return None
    occurrence, record = left
    why = "was recorded, and this run ended without it"
    return TurnMismatch("the effect", record.name, occurrence, why, record.args)


def _skipped_calls(turn: Turn) -> list[Draft]:
    """The report of steps and model calls that earlier runs recorded and this one did not make."""
    if not (left := turn.run.records.calls_left()):
        return []
    why = f"the turn ended without calls that it had recorded: {', '.join(left)}"
    return [runs.failed("turn.skipped", why, turn.attempt, counts=False)]


def _mismatch_in(error: BaseException) -> TurnMismatch | None:
    """A mismatch, also if one of several tasks met it."""
    if isinstance(error, BaseExceptionGroup):
        return next((m for each in error.exceptions if (m := _mismatch_in(each))), None)
    return error if isinstance(error, TurnMismatch) else None


def _refusal(error: BaseException) -> ToolDenied | EffectUnknown | None:
    """The decision of a person or a rule: the next run of the turn would meet it again."""
    if isinstance(error, BaseExceptionGroup):  # of a harness that does several things at a time
        refusals = [_refusal(each) for each in error.exceptions]
        return refusals[0] if all(refusals) else None
    return error if isinstance(error, (ToolDenied, EffectUnknown)) else None


def _is_model_invalid(error: BaseException) -> bool:
    """True if the function of a model cannot be used."""
    if isinstance(error, BaseExceptionGroup):
        return all([_is_model_invalid(each) for each in error.exceptions])
    return isinstance(error, ModelInvalid)


def _refused(start: WakeStart, code: str, why: str, *, traceback: str | None = None) -> WakeEnd:
    """A no is an answer: the turn is over, and its inputs are processed."""
    failed = runs.failed(code, why, start.attempt, counts=False, traceback=traceback)
    return WakeEnd("end_turn", "error", why, drafts=[failed], summary=why)


def retry_delay_us(fails: int) -> int:
    """Double the delay from two seconds to five minutes, and add up to a quarter at random."""
    seconds = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(fails - 1, 32))
    return round(seconds * random.uniform(1, 1.25) * 1_000_000)  # nosec B311  # spreads retries


class DelayedCalls:
    """Calls that come after the same delay, with one timer for all of them; each can be taken back.

    A worker runs thousands of turns a second and means to look after each that takes long. Most
    have ended by then, and a timer of the event loop for each of them is a tenth of what a short
    turn takes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[Callable[[], None], float] = {}  # and when: in this order
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Call it once, after the delay."""
        loop = asyncio.get_running_loop()
        at = self._calls[call] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(at, self._ring)

    def discard(self, call: Callable[[], None]) -> None:
        """Do not call it. Fine if it was called."""
        self._calls.pop(call, None)

    def close(self) -> None:
        """Call nothing more."""
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # a worker may run again

    def _ring(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for call in [call for call, at in self._calls.items() if at <= now]:
            del self._calls[call]
            call()
        for at in self._calls.values():
            self._timer = loop.call_at(at, self._ring)
            break
