"""The worker: many sessions at once in one process, and as many processes as you like.

It claims what is due, runs a wake for each, renews all leases in one call, and stops what has lost
its lease. Told to end, it finishes what it can and gives the rest back.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import AccessDenied, InvalidInput, LimpetError, StoreError
from limpet.model import FrozenDict, Key, Lease, described
from limpet.model.facts.running.deaths import SUSPECT, deaths_in, held_until_us
from limpet.model.lease import Expired, is_holder
from limpet.runtime.turn import Turn
from limpet.runtime.wake import (
    LISTEN_AFTER_SECONDS,
    DelayedCalls,
    Wake,
    harness_options,
    load_all,
    worker_name,
)
from limpet.session.arguments import check_lease_seconds, check_sessions
from limpet.session.limpet import Limpet, at_work, journal_of
from limpet.session.loggers import SESSION
from limpet.session.runs.runs import RETRIES, HarnessObject, OnMismatch, WakeOptions, Woken
from limpet.session.runs.setup import Permission
from limpet.store.clock import steady_ns
from limpet.store.protocol import Query

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry

POLL_SECONDS: Final = 0.5  # how long nothing is due before it is asked for again
GRACE_SECONDS: Final = 20.0  # for turns to end when the worker is told to
_CONCURRENCY_MAX: Final = 1_000
_OUTAGE_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.002  # much is recorded at once: one claim for all of it
# A wake whose harness has ended waits for its last commit, and meanwhile others run. At most so
# many times `concurrency` sessions are leased: a slow store gets no more commits to make.
_LEASED_MAX: Final = 2
# While more is due than it may run, a worker claims again when this part of it is free, or after
# this time: a claim is a transaction, and one for many sessions costs hardly more than for one.
_CAPACITY: Final = 0.5
_CAPACITY_SECONDS: Final = 0.05
# More turns at once than this are turns that wait, mostly for a model. They are claimed in groups:
# all at once they would wait together and then ask for their commits together.
_TOGETHER: Final = 64
_GROUP: Final = 32
# A suspect that a worker cannot run now is left to others after so long, and as long again for each
# so many that wait: else they would be claimed and given back without end.
_PUT_OFF_SECONDS: Final = 1.0
_PUT_OFF_TOGETHER: Final = 20
_SUSPECTS_MAX: Final = 1_000  # that one worker remembers
_SUSPECTS_LOOKED_AT: Final = 50  # to see if more than one session dies alone
_OUTAGES_MAX: Final = 8
_FAILED: Final = frozenset(("rescheduling", "failed", "budget_reached", "retries_exhausted"))


class Rates(msgspec.Struct):
    """Counts of what a worker has done so far."""

    claimed: int = 0
    turns: int = 0
    paused: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    running: int = 0
    seconds: float = 0.0


class Outages:
    """The times at which a worker could not reach its store, by the store's clock. Others may not
    have reached it either: leases that ran out meanwhile say nothing about their holders."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._reached_us: int | None = None  # the last time that it answered
        self._since_us: int | None = None  # of the outage that lasts
        self._past: deque[tuple[int, int]] = deque(maxlen=_OUTAGES_MAX)

    def began(self) -> None:
        """The store did not answer."""
        if self._since_us is None:
            self._since_us = self._now_us() if self._reached_us is None else self._reached_us

    def reached(self) -> None:
        """The store answered."""
        self._reached_us = self._now_us()
        if self._since_us is not None:
            self._past.append((self._since_us, self._reached_us))
            self._since_us = None

    def spoiled(self, expired: Expired) -> bool:
        """True if its holder may not have been able to renew this lease."""
        return any(
            [expired.leased_us < end and begin < expired.until_us for begin, end in self._past]
        )


class Worker:
    """Runs the turns of an app's sessions: `await worker.run()`, until `stop` or a signal.

    `harness` is an async function of a turn, or an object with an async `run(turn)`. `app` is the
    app whose sessions it runs; None means those of every app. The options:

    - `concurrency`: how many harnesses run at the same time.
    - `lease_seconds`: how long a dead worker holds its sessions.
    - `idle_exit`: return when nothing is due.
    - `max_turns`: return after this many turns.
    - `retries`: how often a turn that fails is tried again before it is a dead letter.
    - `on_mismatch`: a run that takes another way than the one before is asked about ("ask"), or
      the record counts where it fits ("accept").
    - `version`: the version of your code, recorded with each turn.
    - `permissions`: always_allow, always_ask or deny, by the name of the tool or effect.
    - `agent`: the actor of what the harness records; else the agent's own, the principal's id, or
      `agent:<app>`.
    - `state_type`: the class of `turn.state`; None leaves it untyped.
    - `migrations`: the registry that brings older state to `state_type`.
    - `poll_seconds`: how long nothing is due before the store is asked again.
    - `grace_seconds`: how long turns may go on after `stop` or a signal.
    - `progress`: called with the Rates so far whenever they change.
    - `failure`: called with the key and the error of each turn that fails.
    - `signals`: SIGTERM and SIGINT stop it; False leaves them to the program.
    """

    def __init__(
        self,
        lp: Limpet,
        harness: Callable[[Turn], Awaitable[Any]] | HarnessObject,
        *,
        app: str | None,
        concurrency: int = 64,
        lease_seconds: float = 30,
        idle_exit: bool = False,
        max_turns: int | None = None,
        retries: int = RETRIES,
        on_mismatch: OnMismatch = "ask",
        version: str | None = None,
        permissions: Mapping[str, Permission] | None = None,
        agent: str | None = None,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
        poll_seconds: float = POLL_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        progress: Callable[[Rates], None] | None = None,
        failure: Callable[[Key, BaseException], None] | None = None,
        signals: bool = True,
    ) -> None:
        if not isinstance(lp, Limpet):
            raise InvalidInput(
                f"a worker needs the Limpet of `async with limpet.open(url) as lp`, "
                f"not {described(lp)}. Without async, lp.wake(key, harness) runs one turn."
            )
        if type(concurrency) is not int or not 0 < concurrency <= _CONCURRENCY_MAX:
            raise InvalidInput(f"concurrency is a number from 1 to {_CONCURRENCY_MAX:,}.")
        self._lp, self._app = lp, check_sessions(app)
        self._concurrency, self._seconds = concurrency, check_lease_seconds(lease_seconds)
        self._group = concurrency if concurrency <= _TOGETHER else _GROUP  # in one claim
        self._idle_exit, self._max_turns = idle_exit, max_turns
        self._poll, self._grace = poll_seconds, grace_seconds
        self._progress, self._failure, self._takes_signals = progress, failure, signals
        options = WakeOptions(
            retries=retries,
            on_mismatch=on_mismatch,
            version=version,
            permissions={} if permissions is None else permissions,
            agent=agent,
            state_type=state_type,
            migrations=migrations,
        )
        self._options = harness_options(harness, options)
        self.name = worker_name("worker")
        self.rates = Rates()
        self._wakes: dict[asyncio.Task[Woken], Wake] = {}
        self._driving: set[Wake] = set()  # those whose harness has not ended
        self._recording: set[Wake] = set()  # those whose end was not recorded at the last renewal
        self._listeners = DelayedCalls(LISTEN_AFTER_SECONDS)
        self._bell = asyncio.Event()  # something may be due
        self._freed = asyncio.Event()  # a harness has ended
        self._stopping = False
        self._backlog = False  # the last claim got all it asked for: there may be more
        self._suspects: dict[Key, None] = {}  # that wait until nothing else runs here
        self._lone: Wake | None = None  # a suspect that runs: nothing else does
        self._empties = False  # it claims nothing until what runs has ended
        self._patience = float(self._seconds)  # for so long; then others have their turn again
        self._turns_at = 0.0  # when that ends, by the loop's clock
        self._outages = Outages(lambda: journal_of(self._lp).now_us())

    @property
    def lp(self) -> Limpet:
        """The store that it works on."""
        return self._lp

    def stop(self) -> None:
        """Claim nothing more; `run` returns when its turns have ended or were released. Raises
        nothing."""
        self._stopping = True
        self._bell.set()
        self._freed.set()

    async def run(self) -> Rates:
        """Run turns until `stop`, SIGTERM or SIGINT; with idle_exit, until nothing is due. Return
        its counts.

        Raises StoreError if the store fails for longer than it waits. The error of a harness is
        recorded, never raised.
        """
        began = time.monotonic()
        beating = asyncio.ensure_future(self._beat())
        with self._signals(), journal_of(self._lp).hub.waiting(app=self._app) as self._bell:
            try:
                await self._loop()
            finally:
                await self._end()
                self._listeners.close()
                beating.cancel()
                await asyncio.wait([beating])
                self.rates.seconds = time.monotonic() - began
        return self.rates

    # --- private ---------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while not self._stopping and not self._is_done():
            self._freed.clear()
            if not self._backlog:  # else there is more in any case: nobody needs to say so
                self._bell.clear()
            claimed = await self._claim()
            if claimed:
                continue  # something more urgent may have come meanwhile
            if self._is_idle() and not self._bell.is_set():
                return
            await self._wait()

    def _is_idle(self) -> bool:
        return self._idle_exit and not self._wakes and not self._suspects

    def _is_done(self) -> bool:
        return self._max_turns is not None and self.rates.claimed >= self._max_turns

    async def _claim(self) -> int:
        free = min(self._free, self._group)
        if self._max_turns is not None:
            free = min(free, self._max_turns - self.rates.claimed)
        if free <= 0 or self._lone is not None:
            return 0
        if self._is_emptying():
            return 0
        if self._empties and (started := await self._run_suspect()):
            return started
        claimed = await self._claim_due(free)
        if self._suspects and not self._wakes:
            return claimed + await self._run_suspect()
        if self._suspects and not self._empties:
            now = asyncio.get_running_loop().time()
            self._empties = now >= self._turns_at
            self._turns_at = now + self._patience if self._empties else self._turns_at
        return claimed

    async def _claim_due(self, free: int) -> int:
        try:
            since_ns = steady_ns()
            leases = await self._lp.work.claim(
                self.name, limit=free, lease_seconds=self._seconds, app=self._app
            )
        except StoreError as error:
            if not error.retryable:
                raise
            SESSION.warning("claim failed, tried again: worker=%s code=%s", self.name, error.code)
            self._outages.began()
            await asyncio.sleep(_OUTAGE_SECONDS)
            return 0
        self._outages.reached()
        wakes = [
            wake for lease in leases if (wake := await self._wake_of(lease, since_ns)) is not None
        ]
        others = [wake for wake in wakes if not wake.is_suspect]
        try:
            await self._put_off([wake for wake in wakes if wake.is_suspect])
            await load_all(others)
        finally:  # what was claimed is run, also if the worker is cancelled: nobody else can
            self._start(others)
        self._backlog = len(leases) == free
        self._show()
        return len(leases)

    async def _wake_of(self, lease: Lease, since_ns: int) -> Wake | None:
        if (lp := await self._at_work(lease)) is None:
            return None
        return Wake(
            lp,
            self._judged(lease),
            self._options,
            since_ns=since_ns,
            listeners=self._listeners,
            on_harness_end=self._harness_ended,
        )

    # --- suspects: each runs alone, between groups of others -------------------------------------

    def _judged(self, lease: Lease) -> Lease:
        """The lease; if the one before it ended by no death of its holder, it says so."""
        expired = lease.expired
        if expired is None or expired.excused:
            return lease
        if not is_holder(expired.worker, self.name) and not self._outages.spoiled(expired):
            return lease
        return msgspec.structs.replace(
            lease, expired=msgspec.structs.replace(expired, excused=True)
        )

    async def _put_off(self, suspects: list[Wake]) -> None:
        """Count their deaths, and give them back until nothing else runs here."""
        seconds = _PUT_OFF_SECONDS * (1 + len(self._suspects) // _PUT_OFF_TOGETHER)
        ends = await asyncio.gather(*[wake.put_off(seconds) for wake in suspects])
        for wake, woken in zip(suspects, ends, strict=True):
            if woken is not None:
                self._count(woken)
            elif len(self._suspects) < _SUSPECTS_MAX:
                self._suspects[wake.lease.key] = None

    def _is_emptying(self) -> bool:
        """True while it claims nothing because a suspect waits for what runs to end. That may take
        long: then others have their turn for as long, and it is tried again with more patience."""
        if not self._empties or not self._wakes:
            return False
        now = asyncio.get_running_loop().time()
        if now < self._turns_at:
            return True
        self._empties, self._turns_at = False, now + self._patience
        self._patience *= 2
        return False

    async def _run_suspect(self) -> int:
        """Run the next suspect that can be had, alone. Return 1, or 0 if there is none."""
        self._empties, self._patience, self._turns_at = False, float(self._seconds), 0.0
        while self._suspects and not self._stopping:
            key = next(iter(self._suspects))
            del self._suspects[key]
            if (wake := await self._lock(key)) is not None:
                self._lone = wake
                self._start([wake])
                return 1
        return 0

    async def _lock(self, key: Key) -> Wake | None:
        """The wake of a suspect; None if another worker has it, or if it has to wait."""
        try:
            since_ns = steady_ns()
            held_us = await self._held_us(key)
            lease = await self._lp.work.lock(key, worker=self.name, lease_seconds=self._seconds)
            wake = await self._wake_of(lease, since_ns)
            if wake is None or held_us <= 0:
                return wake
            await wake.put_off(held_us / 1_000_000)
        except LimpetError as error:
            SESSION.info("suspect left: session=%s code=%s", key, error.code)
        return None

    async def _held_us(self, key: Key) -> int:
        """Return for how long no suspect of the app is run, because several died alone."""
        journal = journal_of(self._lp)
        query = Query(app=key.app, labels=FrozenDict({SUSPECT: "yes"}))
        try:
            page = await journal.store.heads(query, cursor=None, limit=_SUSPECTS_LOOKED_AT)
        except AccessDenied:  # it may claim, and list nothing
            return 0
        others = [deaths_in(head.facts) for head in page.items if head.key != key]
        return held_until_us(others) - journal.now_us()

    async def _at_work(self, lease: Lease) -> Limpet | None:
        """The Limpet of one wake: a worker that acts as an agent acts for the user of the session,
        and for nobody else. None if the session is gone, or is refused by now."""
        try:
            return await at_work(self._lp, lease.key)
        except LimpetError as error:
            SESSION.warning("wake failed: session=%s code=%s", lease.key, error.code)
            with suppress(LimpetError):
                await self._lp.work.release(lease)
            return None

    def _start(self, wakes: Iterable[Wake]) -> None:
        loop = asyncio.get_running_loop()
        for wake in wakes:
            task = loop.create_task(wake.run())
            self._wakes[task] = wake
            self._driving.add(wake)
            task.add_done_callback(self._ended)
            self.rates.claimed += 1

    @property
    def _free(self) -> int:
        """The number of sessions that it may lease now."""
        leased = self._concurrency * _LEASED_MAX - len(self._wakes)
        return min(self._concurrency - len(self._driving), leased)

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll):
                await (self._freed if self._backlog else self._bell).wait()
        if self._backlog:
            least = min(int(self._concurrency * _CAPACITY), self._group)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CAPACITY_SECONDS):
                    while self._free < least and not self._stopping:
                        self._freed.clear()
                        await self._freed.wait()
        else:
            await asyncio.sleep(_GATHER_SECONDS)

    def _harness_ended(self, wake: Wake) -> None:
        """Its harness has ended: another may run while the end is recorded."""
        self._driving.discard(wake)
        self._freed.set()

    def _ended(self, task: asyncio.Task[Woken]) -> None:
        wake = self._wakes.pop(task)
        self._lone = None if wake is self._lone else self._lone
        self._harness_ended(wake)
        self._bell.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            SESSION.error("wake broke: worker=%s error=%r", self.name, error)
            self.rates.failed += 1
        else:
            woken = task.result()
            self._count(woken)
            error = woken.error if woken.reason in _FAILED else None
        self._show()
        if error is not None and self._failure is not None:
            self._failure(wake.lease.key, error)

    def _count(self, woken: Woken) -> None:
        rates = self.rates
        if woken.reason == "end_turn":  # as most do
            rates.turns += 1
            return
        rates.turns += woken.ran and woken.reason == "interrupted"
        rates.paused += woken.reason == "requires_action"
        dead = woken.reason == "retries_exhausted"
        rates.failed += woken.reason in _FAILED and not dead
        rates.dead += dead
        rates.lost += woken.reason == "lease_lost"

    async def _beat(self) -> None:
        """Renew every lease in one call, and stop the wakes that have lost theirs."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            if not (wakes := self._to_renew()):
                continue
            since_ns = steady_ns()
            try:
                renewed = await self._lp.work.renew([wake.lease for wake in wakes])
            except LimpetError as error:  # the fence decides: a lost lease cannot write
                SESSION.warning("renewal failed: worker=%s code=%s", self.name, error.code)
                self._outages.began()
                continue
            self._outages.reached()
            for wake, lease in zip(wakes, renewed, strict=True):
                if lease is None:
                    wake.stop(lost=True)
                else:
                    wake.lease_guard.renewed(since_ns)

    def _to_renew(self) -> list[Wake]:
        """Return the wakes whose harness runs, and those whose end takes long to record. Any
        other gives its lease back in a moment: renewed too late, it would count as lost."""
        slow, wakes = self._recording, list(self._wakes.values())
        self._recording = {*wakes} - self._driving
        return [wake for wake in wakes if wake in self._driving or wake in slow]

    async def _end(self) -> None:
        """Let what runs come to its end; what takes too long is given back."""
        if self._wakes:
            await asyncio.wait(list(self._wakes), timeout=self._grace if self._stopping else None)
        for wake in list(self._wakes.values()):
            wake.stop(lost=False)
        if self._wakes:
            await asyncio.wait(list(self._wakes))

    def _show(self) -> None:
        self.rates.running = len(self._wakes)
        if self._progress is not None:
            self._progress(self.rates)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end it, where this is the main thread of a program."""
        loop, heard = asyncio.get_running_loop(), []
        for number in (signal.SIGTERM, signal.SIGINT) if self._takes_signals else ():
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop)
                heard.append(number)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)
