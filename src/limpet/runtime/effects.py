"""Effects: actions on the world. Intent, act, result; each of the three is known or is asked.

The intent is durable before anything is done. A result that is recorded is returned. An intent
without an outcome means that nobody knows: it is tried again under the same idempotency key, or a
person is asked, as the caller has decided; it is never silently done twice. What is unknown stays
so until a try returns, its function raises NotDone, or a person decides: see `outcome_of`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Final, Literal

import msgspec

from limpet.errors import (
    EffectFailed,
    EffectUnknown,
    Interrupted,
    InvalidInput,
    NotDone,
    RequiredToolUnavailable,
    ToolDenied,
    ToolLocked,
    TurnMismatch,
    TurnMisused,
)
from limpet.model import EMPTY, Draft, Event, settle, unfit
from limpet.model.events import to_time
from limpet.model.facts.running import budgets, runs
from limpet.model.facts.running.budgets import Amount
from limpet.model.facts.running.requests import Decision
from limpet.model.facts.running.runs import readable, span_completed, span_started, stored_error
from limpet.model.limits import NAME_CHARS_MAX
from limpet.runtime.requests import SHOWN_BYTES_MAX, decision_in, queue_result, request, show_value
from limpet.runtime.run import TurnRun
from limpet.runtime.tool import KEY, ApprovalNeeded, parameters_of
from limpet.runtime.turn_log import (
    EffectRecord,
    args_hash,
    check_readable,
    identity,
    plain,
    result_of,
)
from limpet.session.life.tools import HeldTool, OnUnknown, ToolLocks, ToolUse
from limpet.session.writer import writer_of

BACKOFF_SECONDS: Final = 0.5
BACKOFF_SECONDS_MAX: Final = 30.0
TRIES_PAGE: Final = 16  # of an effect with a key of the caller's, looked for at once
_key: ContextVar[str | None] = ContextVar("limpet_idempotency_key", default=None)


def idempotency_key() -> str:
    """The key of the effect that this code is called by. Raises TurnMisused outside of one."""
    key = _key.get()
    if key is None:
        raise TurnMisused("there is no effect here. Call it inside the function of turn.effect.")
    return key


@contextmanager
def keyed(key: str) -> Iterator[None]:
    """Code inside is called by the effect, or the compensation, with this key."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class Effect(msgspec.Struct):
    """One call of turn.effect."""

    name: str
    fn: Callable[..., Any]
    args: Mapping[str, Any]
    on_unknown: OnUnknown
    key: str | None
    timeout: float | timedelta | None
    retries: int
    reserve: Amount | None
    compensate: str | None
    call: str | None = None  # the id of the model's call that it is for: then its identity
    outcome: Callable[..., Draft] | None = None  # of (output, is_error): recorded with the result
    record_args: bool = True  # else the log has their hash only
    tool: str = ""  # the name that permissions and bound tools know it by, if that is another
    refusal: Exception | None = None  # raised instead of a first try
    occurrence: int = 0  # the first is 1
    args_hash: str = ""

    def __post_init__(self) -> None:
        if self.on_unknown not in ("ask", "retry"):
            raise InvalidInput(f"on_unknown is 'ask' or 'retry', not {self.on_unknown!r}.")
        if not callable(self.fn) or type(self.retries) is not int or self.retries < 0:
            raise InvalidInput("an effect takes a function, and retries is a number from 0.")
        if self.key is not None and (why := unfit(self.key, NAME_CHARS_MAX)):
            raise InvalidInput(f"the key of an effect {why}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise InvalidInput("the timeout of an effect is a number of seconds above 0.")
        if not isinstance(self.record_args, bool):
            raise InvalidInput("record_args is True or False.")
        if self.compensate is not None and not self.record_args:
            raise InvalidInput(
                "compensate needs the recorded arguments. Leave record_args as it is, or undo the "
                "effect yourself."
            )
        if not isinstance(self.compensate, (str, type(None))):
            raise InvalidInput("compensate is the name of a function, not the function itself.")

    @property
    def tool_name(self) -> str:
        """The name that permissions and bound tools know it by."""
        return self.tool or self.name

    @property
    def place(self) -> str:
        """The name by which, with the occurrence, the turn finds it again."""
        return self.call or self.name

    @property
    def seconds(self) -> float | None:
        given = self.timeout
        if isinstance(given, timedelta):
            return given.total_seconds()
        return given if given is None or type(given) in (int, float) else -1.0


class EffectCall:
    """One effect within a turn, from its intent to its outcome."""

    def __init__(self, turn: TurnRun, effect: Effect, use: ToolUse) -> None:
        self._turn, self._effect, self._use = turn, effect, use
        self._key = ""
        self._record: EffectRecord | None = None  # of earlier calls, then of this one
        self._tries = 0
        self._acts = False  # performed in this run, so that its span and reservation are open
        self._maybe = False  # a try before this one may have performed it
        self._raised = 0  # tries that have raised since then, or since a person said "run again"
        self._left = effect.retries  # tries that this run may make after its first
        self._cancels = 0  # of its task, before the function was called

    async def run(self) -> Any:
        """Its result: recorded, or performed now. Raises EffectFailed, EffectUnknown."""
        effect, turn = self._effect, self._turn
        name, session = self._effect.compensate, self._turn.session
        policy = writer_of(session).services.lifecycle(session.app)
        if name is not None and name not in policy.compensations:
            raise TurnMisused(
                f"there is no compensation named {name!r}. Declare it with "
                f"lp.policies.lifecycle({session.app!r}, compensations={{name: function}}) in "
                "every worker."
            )
        if effect.refusal is not None and not await self._is_begun():
            raise effect.refusal  # and it does not count among the calls of its name
        if effect.call is None:
            effect.occurrence = turn.records.occurrence("effect", effect.name)
        else:
            effect.occurrence = 1
        effect.args_hash = args_hash(dict(effect.args), effect.key)
        if effect.key is None:
            return await self._run()
        # Two calls at once would both find nothing recorded under the key, and both act.
        async with turn.pauses.one_by_one(("key", effect.key)):
            return await self._run()

    async def _is_begun(self) -> bool:
        """True if an earlier try of this call has an outcome, or may have performed it."""
        effect, records = self._effect, self._turn.records
        number = records.counted("effect", effect.name) + 1 if effect.call is None else 1
        record = records.effects.get((effect.place, number))
        if record is not None and record.has_outcome:
            return True
        if record is None and effect.key is not None:
            record = await self._elsewhere()
        return record is not None and record.is_unknown

    async def _run(self) -> Any:
        effect, turn = self._effect, self._turn
        record = turn.records.reach_effect(effect.place, effect.occurrence)
        if record is None and effect.key is not None:
            record = await self._elsewhere()
        self._key = effect.key or identity(turn.id, "effect", effect.place, effect.occurrence)
        if record is None:
            return await self._settle(asks=False)
        hashes = (record.args_hash, effect.args_hash)
        values = (record.args, dict(effect.args)) if effect.record_args else (None, None)
        turn.check_same("the effect", effect.name, effect.occurrence, hashes, values)
        self._record, self._key, self._tries = record, record.key, record.tries
        self._maybe, self._raised = record.is_unknown, record.raised
        if record.state == "succeeded":
            return record.result
        if record.state == "failed" and record.error:
            raise self._turn.records.failure(effect.name, effect.occurrence, record.error)
        # A failure that ended a run, or an approval that it waited for: it is performed again.
        return await self._settle(asks=record.state != "failed" and self._is_asked(record))

    def _is_asked(self, record: EffectRecord) -> bool:
        """True if a person has to decide what becomes of an unknown effect, or has been asked."""
        effect, records = self._effect, self._turn.records
        if records.newest.get(self._request_id, self._request_id) in records.asked:
            return True
        if effect.refusal is not None:
            return False  # it is recorded first, so that the person sees it
        same = record.args_hash == effect.args_hash  # else another action may have been performed
        return effect.on_unknown == "ask" or not same or self._raised > effect.retries

    async def _settle(self, *, asks: bool) -> Any:
        """Perform it, and ask a person wherever no further try may be made, until its outcome is
        known. Raises EffectFailed, EffectUnknown."""
        while True:
            if asks:
                decision, data = await self._asked()
                if decision == "happened":
                    await self._conclude(runs.effect_succeeded, "succeeded", data.get("output"))
                    return data.get("output")
                if decision != "run_again":
                    raise EffectUnknown(
                        self._effect.name, self._effect.occurrence, data.get("note")
                    )
                self._raised = 0
            try:
                return await self._perform()
            except _PersonNeeded:
                asks = True

    def _compensation(self) -> dict[str, Any] | None:
        """Return what is recorded so that any process can undo it."""
        effect = self._effect
        if effect.compensate is None:
            return None
        args = settle(dict(effect.args), "an argument of an effect that can be undone")
        return {"name": effect.compensate, "args": args, "on_unknown": effect.on_unknown}

    async def _elsewhere(self) -> EffectRecord | None:
        """Return the record of another call in this session under the caller's key."""
        events = await self._recorded()
        if not events:
            return None
        check_readable(self._turn.session.key, events)
        self._check_name(events)
        record = EffectRecord(events[-1].data["key"], events[-1].data["args_hash"])
        for event in events:  # of whichever turn
            record.take(event)
        if record.state == "failed":
            record.error = ""  # it ended there; here it is another attempt
        return record

    def _check_name(self, events: Iterable[Event]) -> None:
        """The result of another effect would be taken for that of this one."""
        effect = self._effect
        own = (effect.name, effect.tool_name)
        for other in {event.data["name"] for event in events}.difference(own):
            if other.endswith(f"/{effect.tool_name}"):  # in another part of the harness
                continue
            raise TurnMisused(
                f"the effect {effect.name!r} has the key {effect.key!r}, under which this session "
                f"has recorded the effect {other!r}. Give each effect a key of its own."
            )

    async def _recorded(self) -> list[Event]:
        """The events of every try under the caller's key. Tries are counted without a gap."""
        kinds = ("intended", *runs.OUTCOMES.values())
        events: list[Event] = []
        for first in count(1, TRIES_PAGE):
            tries = range(first, first + TRIES_PAGE)
            ids = [self._id(kind, each) for kind in kinds for each in tries]
            page = await self._turn.session.read_ids(ids)
            events += page
            if len(page) < TRIES_PAGE:
                break
        return sorted(events, key=lambda event: event.seq)

    @property
    def _request_id(self) -> str:
        effect = self._effect
        of = (effect.place, effect.occurrence, self._tries)
        return identity(self._turn.id, "unknown", *of)

    async def _asked(self) -> tuple[Decision, Mapping[str, Any]]:
        """Ask a person whether the effect was performed, or what to do; return the decision."""
        turn, effect = self._turn, self._effect
        record = turn.records.effects.get((effect.place, effect.occurrence)) or self._record
        assert record is not None, "only what was tried is asked about"
        id, data = await request(
            turn,
            self._request_id,
            "unknown_effect",
            effect.name,
            self._shown(record),
            hashed=effect.args_hash,
            occurrence=effect.occurrence,
        )
        queue_result(turn, id, data)
        return decision_in(data), data

    def _shown(self, record: EffectRecord) -> dict[str, Any]:
        """Return what a person needs to look it up: what was intended, under which key, when, by
        whom."""
        effect = self._effect
        shown: dict[str, Any] = {
            "effect": effect.name,
            "idempotency_key": self._key,
            "args_hash": record.args_hash,
            "since": to_time(record.since_us).isoformat(),
            "worker": record.worker,
            "wake_id": record.wake,
            "tries": record.tries,
            "why": record.error,
        }
        if effect.record_args:
            shown["args"] = show_value(dict(effect.args), 2 * SHOWN_BYTES_MAX)
            if record.args is not None and record.args_hash != effect.args_hash:
                shown["recorded_args"] = show_value(record.args)
        return shown

    async def _perform(self) -> Any:
        """Perform it as a use of the tool of its name. Raises ToolDenied, ToolLocked; TurnMismatch,
        before anything is done, if an effect of an earlier run is not reached again: this one may
        be the same under another name."""
        name, turn = self._effect.tool_name, self._turn
        if (left := await turn.effects_reached()) is not None:
            occurrence, record = left
            why = f"was recorded, and this run makes the effect {name!r} without it"
            now = dict(self._effect.args) if self._effect.record_args else None
            raise TurnMismatch("the effect", record.name, occurrence, why, record.args, now)
        if (refused := self._effect.refusal) is not None:
            raise await self._refused(refused) from refused
        try:
            async with self._allowed(name) as held:
                return await self._tried(held)
        except ToolLocked:
            if not self._maybe:
                raise
            await self._turn.pause_for_retry(self._request_id, self._tries)
        except (ToolDenied, RequiredToolUnavailable) as refusal:
            if not self._maybe:
                raise
            raise await self._refused(refusal) from refusal

    async def _refused(self, refusal: Exception) -> _PersonNeeded:
        """Record that a try was refused: it has not acted, but one before it may have."""
        self._tries += 1
        await self._unknown(refusal, tries=self._tries)
        return _PersonNeeded()

    @asynccontextmanager
    async def _allowed(self, name: str) -> AsyncIterator[HeldTool | None]:
        """Use the tool inside; one that is exclusive is held meanwhile."""
        if self._effect.call is None:  # a call of a model has looked when it began
            await self._use.check_circuit(name)
        await self._use.check(name)
        if not self._use.is_exclusive(name):
            yield None
            return
        locks = ToolLocks(self._turn.session)
        async with self._turn.pauses.one_by_one(("tool", name)), locks.held(name) as held:
            yield held

    async def _tried(self, held: HeldTool | None) -> Any:
        """Try it until its outcome is known, or a person has to be asked: _PersonNeeded."""
        while True:
            await self._intend()
            with self._turn.acting():
                result, error = await self._acted(held)
                if error is None:
                    with result_of(f"the effect {self._effect.name!r}"):
                        return await self._conclude(runs.effect_succeeded, "succeeded", result)
                is_cut = self._is_cut
                if outcome_of(error, maybe=self._maybe, is_cut=is_cut) == "failed":
                    raise await self._failed(error) from error
                await self._unknown(error)
            self._turn.driver.check()
            if is_cut:  # by its caller, and the function has made another error of it
                raise asyncio.CancelledError from error
            if self._raised > self._effect.retries or not self._is_tried_again(error):
                raise _PersonNeeded from error
            if not self._left:
                await self._turn.pause_for_retry(self._request_id, self._tries)
            await self._back_off()

    @property
    def _is_cut(self) -> bool:
        """True if this call was cancelled while the function was at work, as an interrupt does."""
        return _cancels() > self._cancels

    def _is_tried_again(self, error: Exception) -> bool:
        """True if another try may be made although nobody knows what came of those before."""
        if isinstance(error, ToolDenied):
            return False
        return self._effect.on_unknown == "retry" or not may_have_acted(error)

    async def _intend(self) -> None:
        """Record the intent of the next try."""
        effect, turn = self._effect, self._turn
        turn.check_budget()
        self._tries += 1
        self._acts = True
        drafts: list[Draft] = [span_started(self._span, "tool", effect.name, parent=turn.wake_id)]
        if effect.reserve is not None:
            drafts.append(budgets.reserved(self._span, effect.reserve))
        undo = self._compensation()
        args = plain(dict(effect.args)) if effect.record_args else EMPTY
        given = (self._of(), self._tries, self._span, undo, args)
        intent = runs.effect_intended(
            self._id("intended"), *given, tool=self._tool, raised=self._raised
        )
        drafts.append(intent)
        *_, intended = await turn.log.write(*drafts)
        turn.records.add(intended)

    async def _acted(self, held: HeldTool | None) -> tuple[Any, Exception | None]:
        """Call the function, again while it raises and nothing was done by it. Return its result,
        or None and what the last try has raised."""
        effect, turn = self._effect, self._turn
        self._cancels = _cancels()
        # By the head that the intent's own commit returned.
        if (why := self._use.denial(effect.tool_name)) is not None:
            return None, ToolDenied(effect.tool_name, why)
        for tried in count():
            # The commit of the intent has proven the lease; before another try the store is asked.
            await turn.lease_guard.check(turn.driver, ask=tried > 0)
            try:
                if held is not None:
                    await held.check()
                return await self._act(), None
            except Interrupted:
                raise  # nobody knows how far it came: the closing commit says so
            except ApprovalNeeded:
                # No error: it is performed again once a person allows it.
                await self._conclude(runs.effect_failed, "failed", "", is_answer=False)
                raise
            except Exception as error:
                is_over = isinstance(error, NotDone) or may_have_acted(error) or self._is_cut
                if is_over or self._maybe or not self._left:
                    return None, error
            await self._back_off()
        raise AssertionError("the last try returns")

    async def _back_off(self) -> None:
        """Wait before another try of this run."""
        self._left -= 1
        await asyncio.sleep(retry_pause(self._effect.retries - self._left - 1))

    async def _act(self) -> Any:
        effect = self._effect
        args = dict(effect.args)
        if KEY in parameters_of(effect.fn):
            args[KEY] = self._key
        inside = self._turn.pauses.inside(f"the effect {effect.name!r}")
        traced = self._turn.traced("effect", effect.name, call=effect.call)
        bound = asyncio.timeout(effect.seconds)
        with traced, keyed(self._key), inside:
            try:
                async with bound:
                    return await call(effect.fn, **args)
            except asyncio.CancelledError as error:
                if not cancelled_itself():
                    raise
                why = "it was cancelled from inside"
                raise EffectUnknown(effect.name, effect.occurrence, why) from error
            except (EffectUnknown, NotDone, TimeoutError):
                raise
            except Exception as error:
                if not bound.expired():
                    raise
                why = stored_error(error)  # which the function made of its cancellation
                raise EffectUnknown(effect.name, effect.occurrence, why) from error

    async def _unknown(self, error: Exception, *, tries: int | None = None) -> None:
        """Record that nobody knows what came of it. A try that was refused before its intent is
        named by its number: `tries`."""
        why = stored_error(error)
        why = "it took too long" if why == type(error).__name__ else why
        if self._maybe:
            self._raised += 1
            why = f"an earlier try has no outcome; the last: {why}"
        self._maybe = True
        fact = partial(runs.effect_unknown, tries=tries, raised=self._raised)
        await self._conclude(fact, "unknown", why, failed=why)

    async def _failed(self, error: Exception) -> EffectFailed:
        not_done = isinstance(error, NotDone)
        # Never empty: a failure without words is one that is performed again.
        said = readable(str(error.reason)) if isinstance(error, NotDone) else ""
        why = said or stored_error(error)
        fact = partial(runs.effect_failed, not_done=not_done)
        await self._conclude(fact, "failed", why, failed=why)
        return self._turn.records.failure(self._effect.name, self._effect.occurrence, why)

    def _of(self) -> runs.EffectOf:
        effect = self._effect
        of = (effect.name, effect.occurrence, effect.args_hash, self._key)
        return runs.EffectOf(*of, effect.call)

    async def _conclude(
        self,
        fact: Callable[[str, runs.EffectOf, Any], Draft],
        outcome: str,
        value: Any,
        *,
        failed: str | None = None,
        is_answer: bool = True,
    ) -> Any:
        """Record the outcome, the end of its span and of its reservation, in one commit; with what
        it is to a model, if it is the answer to its call."""
        effect, turn = self._effect, self._turn
        drafts: list[Draft] = [fact(self._id(outcome), self._of(), value)]
        if effect.outcome is not None and outcome != "unknown" and is_answer:
            drafts.append(effect.outcome(value, is_error=outcome == "failed"))
        if self._acts:
            self._acts = False
            if effect.reserve is not None:
                drafts.append(budgets.settled(self._span, effect.reserve))
            result: Any = "success" if failed is None else "error"
            drafts.append(
                span_completed(
                    self._span, "tool", effect.name, result, parent=turn.wake_id, error=failed
                )
            )
        for event in (events := await turn.log.write_outcome(*drafts)):
            turn.records.add(event)
        return events[0].data.get("result")

    @property
    def _tool(self) -> str | None:
        """The bound tool that it is a use of; None of a model's call, which says so itself."""
        name = self._effect.tool_name
        return name if self._effect.call is None and self._use.is_bound(name) else None

    @property
    def _span(self) -> str:
        effect = self._effect
        of = (effect.place, effect.occurrence, self._tries)
        return identity(self._turn.id, "span", *of, self._turn.wake_id)

    def _id(self, outcome: str, tries: int | None = None) -> str:
        """The id of an event of this effect. With a key of the caller's, the same in any turn."""
        effect, turn = self._effect, self._turn
        tries = self._tries if tries is None else tries
        if effect.key is not None:
            return identity(turn.session.head.uid, f"effect.{outcome}", effect.key, tries)
        return identity(turn.id, f"effect.{outcome}", effect.place, effect.occurrence, tries)


class _PersonNeeded(Exception):
    """The effect is unknown, and no further try may be made before a person has decided."""


def outcome_of(error: Exception, *, maybe: bool, is_cut: bool) -> Literal["failed", "unknown"]:
    """Return the outcome of an effect, or of a compensation, whose last try has raised this.

    A try that raises was not performed, unless it was cut off. But it says nothing about the tries
    before it: if one of them `maybe` acted, the effect stays unknown. Only NotDone speaks for all
    of them. `is_cut` says that the run was stopped while the function was at work.
    """
    if isinstance(error, NotDone):
        return "failed"
    return "unknown" if maybe or is_cut or may_have_acted(error) else "failed"


def may_have_acted(error: BaseException) -> bool:
    """True if a try that raised this was cut off: it may have acted before. Clients raise timeouts
    of their own from TimeoutError, such as httpx.ReadTimeout."""
    if isinstance(error, BaseExceptionGroup):
        return any([may_have_acted(each) for each in error.exceptions])
    if isinstance(error, (EffectUnknown, TimeoutError)):
        return True
    return error.__cause__ is not None and may_have_acted(error.__cause__)


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, async or not, and return its result."""
    result = fn(*args, **kwargs)
    if inspect.isawaitable(result):
        awaitable: Awaitable[Any] = result
        return await awaitable
    return result


def cancelled_itself() -> bool:
    """True if nobody has cancelled the task that meets a CancelledError: what it called, such as a
    client whose own task was cancelled, has raised it like any other error."""
    return _cancels() == 0


def _cancels() -> int:
    """The cancellations of this task that nobody has taken back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def retry_pause(tried: int) -> float:
    """Full jitter: anything from nothing to the bound, which doubles."""
    most = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2**tried)
    return random.uniform(0, most)  # nosec B311  # spreads retries
