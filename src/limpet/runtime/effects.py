"""Effects: actions on the world. Intent, act, result; each of the three is known or is asked.

The intent is durable before anything is done. A result that is recorded is returned. An intent
without an outcome means that nobody knows: it is tried again under the same idempotency key, or a
person is asked, as the caller has decided; it is never silently done twice.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from itertools import count
from typing import Any, Final

import msgspec

from limpet.errors import (
    EffectFailed,
    EffectUnknown,
    Interrupted,
    InvalidInput,
    ToolDenied,
    TurnMismatch,
    TurnMisused,
)
from limpet.model import EMPTY, Draft, Event, settle, unfit
from limpet.model.events import to_time
from limpet.model.facts.running import budgets, runs
from limpet.model.facts.running.budgets import Amount
from limpet.model.facts.running.runs import span_completed, span_started, stored_error
from limpet.model.limits import NAME_CHARS_MAX
from limpet.runtime.requests import SHOWN_BYTES_MAX, decision_in, queue_result, request, show_value
from limpet.runtime.run import TurnRun
from limpet.runtime.tool import KEY, ApprovalNeeded, parameters_of
from limpet.runtime.turn_log import (
    EffectRecord,
    TurnRecords,
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
        self._tries = 0
        self._acts = False  # performed in this run, so that its span and reservation are open
        self._maybe = False  # a try of this run has no outcome: it may have been performed

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

    async def _run(self) -> Any:
        effect, turn = self._effect, self._turn
        record = turn.records.reach_effect(effect.place, effect.occurrence)
        if record is None and effect.key is not None:
            record = await self._elsewhere()
        self._key = effect.key or identity(turn.id, "effect", effect.place, effect.occurrence)
        if record is None:
            return await self._perform()
        hashes = (record.args_hash, effect.args_hash)
        values = (record.args, dict(effect.args)) if effect.record_args else (None, None)
        turn.check_same("the effect", effect.name, effect.occurrence, hashes, values)
        self._key, self._tries = record.key, record.tries
        effect = self._effect
        if record.state == "succeeded":
            return record.result
        if record.state == "failed":
            if record.error:
                raise self._turn.records.failure(effect.name, effect.occurrence, record.error)
            return await self._perform()  # its failure ended a run, which is tried again
        same = record.args_hash == effect.args_hash  # else another action may have been performed
        if effect.on_unknown == "retry" and same:
            return await self._perform()
        return await self._asked(record)

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
        records, last = TurnRecords(events).effects, events[-1].data  # of whichever turn
        record = records[last["name"], last["occurrence"]]
        record.tries = max([each.tries for each in records.values()])
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

    async def _asked(self, record: EffectRecord) -> Any:
        """Ask a person whether the effect was performed, or what to do."""
        turn, effect = self._turn, self._effect
        id = identity(turn.id, "unknown", effect.place, effect.occurrence, self._tries)
        id, data = await request(
            turn,
            id,
            "unknown_effect",
            effect.name,
            self._shown(record),
            hashed=effect.args_hash,
            occurrence=effect.occurrence,
        )
        queue_result(turn, id, data)
        decision = decision_in(data)
        if decision == "happened":
            await self._record(runs.effect_succeeded, "succeeded", data.get("output"))
            return data.get("output")
        if decision == "run_again":
            return await self._perform()
        raise EffectUnknown(effect.name, effect.occurrence, data.get("note"))

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
        await self._use.check(name)
        if not self._use.is_exclusive(name):
            return await self._tried()
        locks = ToolLocks(turn.session)
        async with turn.pauses.one_by_one(("tool", name)), locks.held(name) as held:
            return await self._tried(held)

    async def _tried(self, held: HeldTool | None = None) -> Any:
        effect, turn = self._effect, self._turn
        self._tries += 1
        self._acts = True
        drafts: list[Draft] = [span_started(self._span, "tool", effect.name, parent=turn.wake_id)]
        if effect.reserve is not None:
            drafts.append(budgets.reserved(self._span, effect.reserve))
        undo = self._compensation()
        args = plain(dict(effect.args)) if effect.record_args else EMPTY
        given = (self._of(), self._tries, self._span, undo, args)
        drafts.append(runs.effect_intended(self._id("intended"), *given))
        *_, intent = await turn.log.write(*drafts)
        turn.records.add(intent)
        # By the head that the intent's own commit returned.
        why = self._use.denial(effect.tool_name)
        if why is not None:
            raise await self._failed(ToolDenied(effect.tool_name, why))
        with turn.acting():
            return await self._acted(held)

    async def _acted(self, held: HeldTool | None) -> Any:
        """Call the function, as often as it may be tried, and record the outcome."""
        effect, turn = self._effect, self._turn
        for left in reversed(range(effect.retries + 1)):
            # The commit of the intent has proven the lease; before another try the store is asked.
            await turn.lease_guard.check(turn.driver, ask=left < effect.retries)
            try:
                if held is not None:
                    await held.check()
                result = await self._act()
            except (EffectUnknown, TimeoutError) as error:
                self._maybe = True
                if effect.on_unknown == "ask" or not left:
                    return await self._unknown(error)
            except Interrupted:
                raise  # nobody knows how far it came: the closing commit says so
            except ApprovalNeeded:
                # No error: it is performed again once a person allows it.
                await self._record(runs.effect_failed, "failed", "", is_answer=False)
                raise
            except Exception as error:
                if not left and self._maybe:
                    return await self._unknown(error, "an earlier try has no outcome; the last: ")
                if not left:
                    raise await self._failed(error) from error
            else:
                with result_of(f"the effect {effect.name!r}"):
                    return await self._record(runs.effect_succeeded, "succeeded", result)
            await asyncio.sleep(retry_pause(effect.retries - left))
        raise AssertionError("the last try returns or raises")

    async def _act(self) -> Any:
        effect = self._effect
        args = dict(effect.args)
        if KEY in parameters_of(effect.fn):
            args[KEY] = self._key
        inside = self._turn.pauses.inside(f"the effect {effect.name!r}")
        traced = self._turn.traced("effect", effect.name, call=effect.call)
        with traced, keyed(self._key), inside:
            try:
                async with asyncio.timeout(effect.seconds):
                    return await call(effect.fn, **args)
            except asyncio.CancelledError as error:
                if not cancelled_itself():
                    raise
                why = "it was cancelled from inside"
                raise EffectUnknown(effect.name, effect.occurrence, why) from error

    async def _unknown(self, error: Exception, before: str = "") -> Any:
        why = f"{before}{stored_error(error)}"
        why = "it took too long" if why == type(error).__name__ else why
        await self._record(runs.effect_unknown, "unknown", why, failed=why)
        if self._effect.on_unknown == "ask":
            place = self._effect.place, self._effect.occurrence
            return await self._asked(self._turn.records.effects[place])
        unknown = EffectUnknown(self._effect.name, self._effect.occurrence, why)
        unknown.tried_later = True
        raise unknown from error

    async def _failed(self, error: Exception) -> EffectFailed:
        why = stored_error(error)
        await self._record(runs.effect_failed, "failed", why, failed=why)
        return self._turn.records.failure(self._effect.name, self._effect.occurrence, why)

    def _of(self) -> runs.EffectOf:
        effect = self._effect
        of = (effect.name, effect.occurrence, effect.args_hash, self._key)
        return runs.EffectOf(*of, effect.call)

    async def _record(
        self,
        fact: Callable[[str, runs.EffectOf, Any], Draft],
        outcome: str,
        value: Any,
        *,
        failed: str | None = None,
        is_answer: bool = True,
    ) -> Any:
        """The outcome, the end of its span and of its reservation, in one commit; with what it is
        to a model, if it is the answer to its call."""
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
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


def retry_pause(tried: int) -> float:
    """Full jitter: anything from nothing to the bound, which doubles."""
    most = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2**tried)
    return random.uniform(0, most)  # nosec B311  # spreads retries
