"""A run of a harness: the task that can be stopped, the lease it acts under, what it waits for.

A `Driver` runs the harness's coroutine. Whoever stops it says why: a pause, a lost lease and the
end of the worker cancel it; an interrupt is raised in it as Interrupted, at its next await. A
`LeaseGuard` says whether the lease is surely held at this moment. `Pauses` says when every call of
the turn waits for the outside. A `TurnRun` is all of it together with the turn's log and records,
for the calls that a turn makes.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import gc
import inspect
import math
import sys
import traceback
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

from limpet.errors import Interrupted, InvalidInput, StoreError, TurnMismatch, TurnMisused
from limpet.model import Draft, Lease, described, unfit
from limpet.model.facts.running import budgets
from limpet.model.facts.running.budgets import Amount
from limpet.model.limits import NAME_CHARS_MAX
from limpet.runtime.turn_log import EffectRecord, TurnLog, TurnRecords, identity
from limpet.session.limpet import Limpet
from limpet.session.loggers import SESSION
from limpet.session.runs.runs import HARNESS
from limpet.session.runs.setup import Permission
from limpet.session.runs.tracing import UNTRACED, PartKind, PartNotes, TracedPart
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.clock import steady_ns

Stopped: TypeAlias = Literal["paused", "interrupted", "lost", "stopped", "suspended", "ended"]
GRACE_SECONDS: Final = 10.0  # for a harness that was stopped to come to its end
_PACKAGE: Final = Path(__file__).parents[1]
_BELOW: Final = tuple([str(_PACKAGE / room) for room in ("session", "store")])
QUIET_SECONDS: Final = 2.0  # without a call of a turn, after which its harness has no other to make
_RENEW_TRIES: Final = 4
_RENEW_PAUSE_SECONDS: Final = 0.05
# Rounds of the event loop before a turn counts as blocked: a call that has just ended
# is given the time to make the next one.
_ROUNDS: Final = 8
# Whose step, stream or effect runs this code, and its name.
_inside: ContextVar[tuple[Pauses, str] | None] = ContextVar("limpet_call", default=None)
# Whose part of a harness runs this code, such as a node of a graph, and its name.
_part: ContextVar[tuple[TurnRun, str] | None] = ContextVar("limpet_part", default=None)


def harness_of(given: Any) -> Callable[[Any], Awaitable[Any]]:
    """Return the function that runs a turn. Raises InvalidInput."""
    run = getattr(given, "run", given)
    if not callable(run) or inspect.isclass(given):
        raise InvalidInput(
            f"{described(given)} is not a harness. Pass an async function of a turn, or an object "
            "with an async run(turn)."
        )
    if _is_surely_plain(run):
        raise InvalidInput(
            f"the harness {described(given)} is not async. Define it with `async def`."
        )
    function: Callable[[Any], Awaitable[Any]] = run
    return function


def takes(function: Callable[..., Any], argument: Any) -> bool:
    """True if a function may be called with this argument alone; one that does not say so may."""
    try:
        inspect.signature(function).bind(argument)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True


class Driver:
    """One run of a harness."""

    def __init__(self, key: object) -> None:
        self._key = key
        self._task: asyncio.Task[Any] | None = None
        self._running: Awaitable[Any] | None = None
        self._over: asyncio.Future[None] | None = None  # for whoever waits for the end
        self._gave_up = False  # a run that was stopped takes too long
        self._is_over = False  # the harness returned or raised
        self._mark = object()  # in the context of its tasks
        self.stopped: Stopped | None = None
        self.note: str | None = None
        self.is_misfit = False  # the harness cannot run any turn: it takes none, or is not async

    def stop(self, why: Stopped, note: str | None = None) -> None:
        """End the run. The first reason counts, but for a lost lease, after which nothing does."""
        if self.stopped is None or why == "lost":
            self.stopped, self.note = why, note
            if self._task is not None:
                self._cancel(self._task)

    def check(self) -> None:
        """Raise if the run has been stopped: what it does now would come too late."""
        if self.stopped == "interrupted":
            raise Interrupted(self._key, self.note)
        if self.stopped is not None:
            raise asyncio.CancelledError(self.stopped)
        if self._is_over:
            raise TurnMisused("the turn is over. In the harness, await everything that it starts.")

    def has_other_tasks(self) -> bool:
        """True if the harness has tasks beside the one that calls this. What a session or a store
        began for it makes no call of the turn."""
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        mine = [task for task in tasks if _value_in(task, HARNESS) is self._mark]
        return not all([_is_below(task) for task in mine])

    async def run(self, harness: Callable[[Any], Awaitable[Any]], turn: Any) -> Exception | None:
        """Run it to its end, or until it is stopped; the error it raised, if any."""
        try:
            running = harness(turn)
        except Exception as mistake:  # it takes no turn, or is not async and raised
            self.is_misfit = isinstance(mistake, TypeError) and not takes(harness, turn)
            return mistake
        if not inspect.isawaitable(running):
            self.is_misfit = True
            return TurnMisused("a harness is an async function. Define it with `async def`.")
        self._running = running
        task = self._task = asyncio.get_running_loop().create_task(self._main(running))
        task.add_done_callback(self._never_began)
        if self.stopped is not None:
            self._cancel(task)
        try:
            await self._ended(task)
        except asyncio.CancelledError:  # whoever runs the wake is cancelled: so is the harness
            self.stop("stopped")
            await self._ended(task)
            raise
        self._is_over = True
        if not task.done() or task.cancelled():
            if self.stopped is None:
                return TurnMisused("the harness cancelled itself. Let it return or raise.")
            return None
        error = task.exception()
        if error is None or isinstance(error, Exception):
            return error
        raise error

    async def _ended(self, task: asyncio.Task[Any]) -> None:
        """Wait for the end; of one that was stopped, not for long."""
        if not task.done() and not self._gave_up:
            self._over = asyncio.get_running_loop().create_future()
            await self._over
        if not task.done():
            SESSION.warning("harness does not end: session=%s why=%s", self._key, self.stopped)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up)
        task.add_done_callback(lambda _: timer.cancel())

    def _give_up(self) -> None:
        self._gave_up = True
        self._end()

    def _never_began(self, task: asyncio.Task[Any]) -> None:
        """End a harness that was cancelled before its first step: nothing of it has run."""
        _let_go(self._running)
        self._end()

    def _end(self) -> None:
        """Wake all waiters."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _main(self, running: Awaitable[Any]) -> Any:
        HARNESS.set(self._mark)  # tasks that it begins inherit this context
        # From here on it wakes who waits by itself: a callback would take a turn of the loop more.
        if (task := asyncio.current_task()) is not None:
            task.remove_done_callback(self._never_began)
        try:
            result = await self._driven(running)
        except GeneratorExit:  # the loop is gone, and so is whoever waited
            raise
        except BaseException:
            self._end()
            raise
        self._end()
        return result

    @types.coroutine
    def _driven(self, running: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """The harness, with a cancellation by an interrupt turned into Interrupted."""
        steps = running.__await__()
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    waits_for = next(steps) if thrown is None else steps.throw(thrown)
                except StopIteration as end:
                    return end.value
                thrown = None
                try:
                    yield waits_for
                except GeneratorExit:
                    raise
                except BaseException as error:  # what it waits for failed: the harness may catch it
                    cancelled = isinstance(error, asyncio.CancelledError)
                    interrupted = cancelled and self.stopped == "interrupted"
                    thrown = Interrupted(self._key, self.note) if interrupted else error
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()


class LeaseGuard:
    """The lease of one wake, as its process knows it.

    A process may stand still for longer than its lease lasts: it was stopped, the machine slept, or
    a harness kept the event loop busy. Nothing in its memory says so when it goes on. So before it
    acts on the world it looks at a clock that runs on meanwhile, and where that says that the lease
    may be over, it asks the store. Only the store's clock decides; this one says when to ask.

    `since_ns` is this process's steady clock before the lease was requested, so that it is over
    here before it is over at the store.
    """

    def __init__(self, lp: Limpet, lease: Lease, since_ns: int) -> None:
        self._lp, self.lease = lp, lease
        self._until_ns = 0
        self.renewed(since_ns)

    def renewed(self, since_ns: int) -> None:
        """The store has renewed the lease, and was asked to at this time of `steady_ns`."""
        self._until_ns = max(self._until_ns, since_ns + round(self.lease.lease_seconds * 1e9))

    async def check(self, driver: Driver, *, ask: bool = False) -> None:
        """Return only while the run goes on and its lease is held; else stop it and raise.

        The store is asked, which renews the lease, if the lease may be over by this process's
        clock, and in any case with `ask`. Raises StoreError if it gives no answer.
        """
        driver.check()
        while ask or steady_ns() >= self._until_ns:  # again: it may have stood still meanwhile
            ask = False
            if not await self._renew():
                driver.stop("lost")
            driver.check()

    async def _renew(self) -> bool:
        for left in reversed(range(_RENEW_TRIES)):
            since_ns = steady_ns()
            try:
                (lease,) = await self._lp.work.renew([self.lease])
            except StoreError as error:
                if not error.retryable or not left:
                    raise
            else:
                if lease is not None:
                    self.renewed(since_ns)
                return lease is not None
            await asyncio.sleep(_RENEW_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")


class Pauses:
    """The calls of a turn that are working, and those that are blocked, on what.

    A call that needs an answer blocks. As soon as every call of the turn is blocked, the run is
    over: what the others did in the meantime is recorded, and all requests are made at once.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._working = 0
        self._changes = 0
        self._waiting = 0  # calls that wait for others to be made
        self._watchers: list[asyncio.Future[None]] = []
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self.blocked_on: dict[str, None] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a call as working."""
        self._working += 1
        self._changed()
        try:
            yield
        finally:
            self._working -= 1
            self._changed()
            self._stop_if_blocked()

    async def another_call(self, seconds: float) -> bool:
        """Within a call: wait until another one begins, ends or blocks. False if that does not
        happen for so many seconds, in which no other call is at work."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        self._waiting += 1
        try:
            is_quiet = self._working <= self._waiting and seconds < math.inf
            async with asyncio.timeout(seconds if is_quiet else None):
                await watcher
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True

    @asynccontextmanager
    async def one_by_one(self, key: tuple[str, str]) -> AsyncIterator[None]:
        """Run calls under one key in the order in which they were made.

        A call that waits for its turn is idle: if the call before it blocks, so does the run.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._working -= 1
        self._stop_if_blocked()
        try:
            await lock.acquire()
        finally:
            self._working += 1
            self._changed()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """Mark what runs here as the function of this call."""
        token = _inside.set((self, what))
        try:
            yield
        finally:
            _inside.reset(token)

    def check_outside(self, verb: str) -> None:
        """Raise TurnMisused inside a call: it would never pause, and once it has a record, another
        run would not come by what was done inside."""
        call = _inside.get()
        if call is not None and call[0] is self:
            raise TurnMisused(
                f"turn.{verb} was called inside {call[1]}. Call it in the harness itself, and "
                "pass what it returns."
            )

    async def block(self, id: str) -> NoReturn:
        """Wait for this, within a call. Ends by the end of the run only."""
        self.blocked_on[id] = None
        self._working -= 1
        self._changed()
        self._stop_if_blocked()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._working += 1
        raise AssertionError("nobody sets the result")

    def _changed(self) -> None:
        """A call has begun, ended or blocked."""
        self._changes += 1
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _stop_if_blocked(self, rounds: int = _ROUNDS, changes: int | None = None) -> None:
        if self._working or not self.blocked_on or changes not in (None, self._changes):
            return
        if not rounds:
            self._stop()
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._stop_if_blocked, rounds - 1, self._changes)


class TurnRun:
    """One run of a turn, as its calls see it: what they record with, and what stops them."""

    def __init__(
        self,
        log: TurnLog,
        records: TurnRecords,
        driver: Driver,
        lease_guard: LeaseGuard,
        *,
        attempt: int,
        accepts: bool,
        permissions: Mapping[str, Permission],
        worker_permissions: Mapping[str, Permission],
        version: str | None = None,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self.log, self.records, self.driver, self.lease_guard = log, records, driver, lease_guard
        self.pauses = Pauses(lambda: driver.stop("paused"))
        self.id, self.wake_id, self.attempt = log.turn_id, log.wake_id, attempt
        self.session: Session[Any] = log.session
        self.accepts = accepts  # goes on although it takes another way than before
        self.permissions = permissions  # by tool, apart from what is bound
        self.worker_permissions = worker_permissions  # children keep to them, whoever runs them
        self.version = version  # of the code that began the turn
        self._quiet_seconds = quiet_seconds
        self._acting: set[asyncio.Task[Any] | None] = set()  # tasks that perform an effect now
        self.is_suspended = False  # the session was, while the harness ran
        self.retried = 0  # tries of an effect that the next run of the turn makes again
        # Of (name, occurrence, hash of the input): the id of the request that an earlier attempt of
        # a part of the harness has made for this approval. None: there are no such parts.
        self.approved_before: Callable[[str, int, str], str | None] | None = None

    def traced(
        self, kind: PartKind, name: str, *, call: str | None = None
    ) -> AbstractContextManager[PartNotes]:
        """Report a part of the turn to the tracer, if there is one."""
        tracing = writer_of(self.session).journal.tracing
        if tracing is None:
            return UNTRACED
        of = (self.session.key, self.id, self.wake_id, self.attempt)
        return tracing.span(TracedPart(kind, name, *of, call))

    @property
    def now_us(self) -> int:
        return writer_of(self.session).journal.now_us()

    def check_budget(self) -> None:
        """Raise BudgetReached if more was spent than a limit allows, or if the session has been run
        for as long as it may."""
        facts, running_us = self.session.head.facts, 0
        if budgets.has_compute_limit(facts):
            running_us = self.now_us - self.lease_guard.lease.claimed_us
        budgets.check_overdrawn(facts, running_us)

    def working(self, outside: str | None = None) -> AbstractContextManager[None]:
        """Begin a call of the turn. Raises if the run was stopped, and TurnMisused for a verb that
        must be called `outside` of other calls."""
        self.driver.check()
        if outside is not None:
            self.pauses.check_outside(outside)
        return self.pauses.working()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Name the calls made here after a part of the harness. Each part counts its own calls:
        it may run beside others, and a later run of the turn may leave it out."""
        token = _part.set((self, name))
        try:
            yield
        finally:
            _part.reset(token)

    @property
    def part_name(self) -> str | None:
        """The name of the part of the harness that runs this code."""
        part = _part.get()
        return None if part is None or part[0] is not self else part[1]

    def named(self, name: str) -> str:
        """The name under which a call is recorded: in a part of the harness, with its name."""
        part = _part.get()
        if part is None or part[0] is not self or unfit(name, NAME_CHARS_MAX):
            return name  # one that is unfit is refused later, as it was given
        whole = f"{part[1]}/{name}"
        if len(whole) <= NAME_CHARS_MAX:
            return whole
        digest = identity(name)
        return f"{whole[: NAME_CHARS_MAX - len(digest) - 1]}…{digest}"

    def suspend(self) -> None:
        """The session was suspended: stop the harness, as soon as what it performs is recorded."""
        self.is_suspended = True
        if not self._acting:
            self.driver.stop("suspended")

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Perform an effect inside, and record its outcome."""
        task = asyncio.current_task()
        self._acting.add(task)
        try:
            yield
        finally:
            self._acting.discard(task)
            if self.is_suspended and not self._acting:
                self.driver.stop("suspended")

    async def pause_for_retry(self, id: str, tries: int) -> NoReturn:
        """Wait within a call, as for an answer, but for the next run of the turn: it comes after a
        back-off that grows with `tries`."""
        self.retried = max(tries, self.retried)
        await self.pauses.block(id)

    async def effects_ended(self) -> None:
        """Wait until nothing is performed any more, after the harness has ended. An effect that it
        did not wait for must not go on beside the next run of the turn: it is given the time to
        record its outcome, unless the run was stopped, and then cancelled."""
        left = {task for task in self._acting if task is not None and not task.done()}
        if left and self.driver.stopped is None:
            _, left = await asyncio.wait(left, timeout=GRACE_SECONDS)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE_SECONDS)

    async def effects_reached(self) -> tuple[int, EffectRecord] | None:
        """Wait until this run has reached every effect that earlier runs of the turn recorded.

        Returns one that it has not reached if the harness can do nothing else: it has no other
        task, or for a while none of its tasks has made a call.
        """
        while not self.accepts and (left := self.records.effect_left()) is not None:
            if not self.driver.has_other_tasks():
                return left
            if not await self.pauses.another_call(self._quiet_seconds):
                return left
            self.driver.check()
        return None

    def check_same(
        self,
        what: str,
        name: str,
        occurrence: int,
        hashes: tuple[str, str],
        values: tuple[Any, Any],
    ) -> None:
        """Raise TurnMismatch if a call has other arguments than its record, unless that is
        accepted. Of hashes and values, the record's come first."""
        recorded, now = hashes
        if recorded != now and not self.accepts:
            why = f"was recorded with other arguments (hash {recorded[:8]}, now {now[:8]})"
            raise TurnMismatch(what, name, occurrence, why, *values)


def _is_below(task: asyncio.Task[Any]) -> bool:
    """True if it runs code of the layers below the runtime."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_BELOW)


def _value_in(task: asyncio.Task[Any], variable: ContextVar[Any]) -> Any:
    """The value of a variable in the context of another task."""
    if sys.version_info >= (3, 12):
        context: Context | None = task.get_context()
    else:  # the first context that a task refers to is its own; there is no other way to ask
        contexts = [each for each in gc.get_referents(task) if isinstance(each, Context)]
        context = contexts[0] if contexts else None
    return None if context is None else context.get(variable)


def traceback_of(error: BaseException) -> str:
    """The traceback of a harness's error, as text."""
    return "".join(traceback.format_exception(type(error), error, harness_lines(error)))


def harness_lines(error: BaseException) -> types.TracebackType | None:
    """The traceback from the first line that is not ours; all of it if every line is."""
    lines = error.__traceback__
    while lines is not None and _is_ours(lines):
        lines = lines.tb_next
    return lines or error.__traceback__


def _is_ours(lines: types.TracebackType) -> bool:
    return Path(lines.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE)


def _let_go(running: Awaitable[Any] | None) -> None:
    """Close the coroutine of a harness that was stopped before its first step; nobody else does."""
    close = getattr(running, "close", None)
    if close is not None:
        close()


def _is_surely_plain(run: Any) -> bool:
    """True if no call of it can give something to await: it is a generator, or only ever returns
    constants. What returns the result of a call is left alone, as the function of a decorator."""
    while isinstance(run, functools.partial):
        run = run.func
    if not inspect.isroutine(run):
        run = getattr(run, "__call__", None)  # noqa: B004  # that of an object, for its code
    code = getattr(run, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
        return False
    return bool(code.co_flags & inspect.CO_GENERATOR) or _returns_constants(code)


def _returns_constants(code: types.CodeType) -> bool:
    """True if every return is of a constant, such as the None at the end of a function."""
    before = ""
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_VALUE" and (before != "LOAD_CONST" or step.is_jump_target):
            return False  # what it jumps there with may be anything
        before = step.opname
    return True


# --- budgets -------------------------------------------------------------------------------------


class Reservation:
    """The budget that one call may use. It ends settled: at what was used, or at all of it."""

    def __init__(self, turn: TurnRun, of: Amount | None, id: str) -> None:
        self._turn, self._of, self._id = turn, of, id
        self._used = of
        self._is_open = False

    def settle(self, *, cost: float | None = None, tokens: int | None = None) -> None:
        """Say what was used; recorded when the block ends."""
        self._used = budgets.amount(cost, tokens)

    def settle_at(self, cost: float | None, tokens: int | None) -> None:
        """Settle at what was used, where that is known; else all of it counts as used."""
        if self._of is not None:
            used = budgets.amount(cost, tokens)
            most = self._of
            self._used = Amount(
                most.cost if cost is None else used.cost,
                most.tokens if tokens is None else used.tokens,
            )

    def settling(self) -> list[Draft]:
        """The record of its end, to be written with the result of its call."""
        if not self._is_open:
            return []
        assert self._used is not None
        self._is_open = False
        return [budgets.settled(self._id, self._used)]

    async def __aenter__(self) -> Reservation:
        if self._of is not None:
            await self._turn.log.write(budgets.reserved(self._id, self._of))
            self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        # If the run was stopped, the closing commit settles the rest.
        if self._is_open and self._turn.driver.stopped is None:
            await self._turn.log.write(*self.settling())


class ReservedBlock(Reservation):
    """A part of a harness within which so much may be used, by whatever it calls.

    Like any call of a turn it is done once: a later run finds it settled, or, if the turn paused
    inside, still open.
    """

    def __init__(self, turn: TurnRun, of: Amount | None) -> None:
        super().__init__(turn, of, "")

    async def __aenter__(self) -> Reservation:
        if self._of is None:
            return self
        turn, number = self._turn, self._turn.records.occurrence("reserve", "block")
        tries = 0
        self._id = identity(turn.id, "reserve", number, tries)
        while (before := turn.records.reserved.get(self._id)) == "cut":  # made again, paid again
            tries += 1
            self._id = identity(turn.id, "reserve", number, tries)
        if before is None:
            return await super().__aenter__()
        self._is_open = before == "open"
        return self
