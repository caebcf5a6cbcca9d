"""Compensations: the effects of a terminated session are undone, the newest first.

Each is recorded like an effect: an intent that is durable before anything is done, and an outcome.
A run that dies in the middle is followed by one that goes on behind the last outcome. What nobody
knows is tried again under the same idempotency key, or held for a person, as the effect has
decided. One that fails keeps none of the others from being undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.model import PAGE_MAX, Event
from limpet.model.facts.running import INTENDED, OUTCOMES, REQUEUED, endings, readable
from limpet.runtime.driving import Driver
from limpet.runtime.effects import OnUnknown, keyed
from limpet.runtime.hold import Hold
from limpet.runtime.log import TurnLog
from limpet.runtime.records import check_readable, identity, plain
from limpet.session.life.policy import NOTHING, Lifecycle, call_function
from limpet.session.logs import SESSION
from limpet.session.session import Session

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
Undone: TypeAlias = Literal["not_yet", "begun", "done", "failed", "unknown"]
_STATES: Final[Mapping[str, Undone]] = {
    endings.COMPENSATING: "begun",
    endings.COMPENSATED: "done",
    endings.NOT_COMPENSATED: "failed",
    endings.MAYBE_COMPENSATED: "unknown",
}


class PastEffect(msgspec.Struct):
    """An effect that is to be undone, as its compensation sees it.

    `outcome` is "succeeded", or "unknown": then nobody knows whether it was performed, and the
    compensation has to find out (by `key`, under which it was performed) or be harmless.
    """

    name: str
    args: Mapping[str, Any]
    key: str
    outcome: Literal["succeeded", "unknown", "failed"] = "unknown"
    result: Any = None
    idempotency_key: str = ""  # of the compensation, the same however often it is tried


class _Undo(msgspec.Struct):
    """One compensation, and how far it has come."""

    effect: PastEffect
    name: str
    on_unknown: OnUnknown
    seq: int
    state: Undone = "not_yet"
    tries: int = 0


class Compensations:
    """All compensations of one session, under the lease of one wake."""

    def __init__(self, log: TurnLog, driver: Driver, hold: Hold) -> None:
        self._log, self._driver, self._hold = log, driver, hold
        self._session: Session[Any] = log.session
        found: Lifecycle = log.session.writer.journal.lifecycles.get(log.session.app, NOTHING)
        self._policy = found
        self._all: list[_Undo] | None = None  # None: not read yet

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
        """Whether some of those left failed, and may work later."""
        return any(undo.state == "failed" for undo in self._all or ())

    async def run(self) -> None:
        """Undo what is not undone, one after the other, each in its own time."""
        self._all = await self._undos()
        for undo in self._all:
            if undo.state == "begun" and undo.on_unknown == "ask":
                why = "the worker stopped before the end of the compensation"
                await self._record(undo, endings.maybe_compensated, "unknown", why)
            elif undo.state in ("not_yet", "begun", "failed"):
                await self._perform(undo)

    async def _undos(self) -> list[_Undo]:
        """What is to be undone, the newest first."""
        events = await _read(self._session)
        check_readable(self._session.key, events)
        found = undos_of(events)
        return sorted(found, key=lambda undo: undo.seq, reverse=True)

    async def _perform(self, undo: _Undo) -> None:
        effect = undo.effect
        undo.tries += 1
        of = (effect.key, undo.name, effect.idempotency_key)
        await self._log.write(
            endings.compensating(self._id("begun", undo), *of, undo.tries),
        )
        undo.state = "begun"
        try:
            result = await self._call(undo)
        except TimeoutError:
            why = f"it took longer than {self._policy.cleanup_seconds:g} seconds"
            if undo.on_unknown == "ask":
                await self._record(undo, endings.maybe_compensated, "unknown", why)
            else:
                await self._record(undo, endings.not_compensated, "failed", why)
        except Exception as error:
            why = readable(f"{type(error).__name__}: {error}")
            SESSION.warning("compensation failed: session=%s of=%s", self._session.key, effect.name)
            await self._record(undo, endings.not_compensated, "failed", why)
        except asyncio.CancelledError:
            if self._driver.stopped is not None:
                raise
            _go_on()
            why = "it cancelled itself. Let it return or raise."
            await self._record(undo, endings.not_compensated, "failed", why)
        else:
            await self._succeeded(undo, result)

    async def _succeeded(self, undo: _Undo, result: Any) -> None:
        """It is undone, also if what it returned cannot be recorded."""
        try:
            await self._record(undo, endings.compensated, "done", plain(result))
        except (ValueError, RecursionError) as error:  # InvalidInput is a ValueError
            note = readable(f"its result is not recorded: {error}")
            await self._record(undo, endings.compensated, "done", None, note)

    async def _call(self, undo: _Undo) -> Any:
        function = self._policy.compensations.get(undo.name)
        if function is None:
            raise LookupError(
                f"this process has no compensation named {undo.name!r}. Declare it with "
                "lp.policies.lifecycle(app, compensations={name: function}) and requeue the session"
            )
        await self._hold.check(self._driver)  # the intent is durable: is it still ours to act on?
        with keyed(undo.effect.idempotency_key):
            async with asyncio.timeout(self._policy.cleanup_seconds):
                return await call_function(function, self._session, undo.effect)

    async def _record(self, undo: _Undo, fact: Any, state: Undone, *said: Any) -> None:
        effect = undo.effect
        of = (effect.key, undo.name, effect.idempotency_key)
        await self._log.write(fact(self._id(state, undo), *of, *said))
        undo.state = state

    def _id(self, what: str, undo: _Undo) -> str:
        """Of the record of one try: a lost answer is asked for again, not recorded twice.

        Of this wake alone: under an id that the next worker has recorded, a worker whose lease is
        lost would be told that its intent is there, and would act.
        """
        of = (self._session.head.uid, "undo", what, undo.effect.key, undo.tries)
        return identity(*of, self._log.wake_id)


def undos_of(events: Iterable[Event]) -> list[_Undo]:
    """The effects that can be undone and may have been performed."""
    found: dict[str, _Undo] = {}
    tried = _Tries()
    for event in events:
        data, type = event.data, event.type
        if data is None:
            continue
        if type == REQUEUED:  # a person has looked: what was unknown may be tried again
            for undo in found.values():
                undo.state = "failed" if undo.state == "unknown" else undo.state
        elif type == INTENDED:
            tried.begin(data["key"])
            if "compensate" in data:
                found[data["key"]] = _undo(event)
        elif type in OUTCOMES:
            outcome = tried.end(data["key"], OUTCOMES[type])
            if (of := found.get(data["key"])) is not None:
                of.effect.outcome = outcome  # type: ignore[assignment]  # one of them
                of.effect.result = data.get("result")
        elif (of := found.get(data["of"])) is not None:
            of.state, of.tries = _STATES[type], data.get("tries", of.tries)
    return [undo for undo in found.values() if undo.effect.outcome != "failed"]


class _Tries:
    """What the tries of each effect say together: one that fails says nothing of those before."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}  # of the last try, by key
        self._maybe: set[str] = set()  # effects that a try before the last may have performed

    def begin(self, key: str) -> None:
        if self._outcomes.get(key, "failed") != "failed":
            self._maybe.add(key)
        self._outcomes[key] = "unknown"

    def end(self, key: str, outcome: str) -> str:
        """The outcome of the effect, now that its last try has this one."""
        if outcome == "failed" and key in self._maybe:
            outcome = "unknown"
        self._outcomes[key] = outcome
        return outcome


def _undo(event: Event) -> _Undo:
    data, how = event.data, event.data["compensate"]
    key = identity(data["key"], "compensation")
    effect = PastEffect(data["name"], how["args"], data["key"], idempotency_key=key)
    return _Undo(effect, how["name"], how["on_unknown"], event.seq)


def _go_on() -> None:
    """The task that runs this was cancelled by what it called, not by who stops it."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def _read(session: Session[Any]) -> list[Event]:
    """The events of effects, from the first own event of the session on."""
    found: list[Event] = []
    after = session.head.floor
    while page := await session.read(after=after, limit=PAGE_MAX, types=list(_TYPES)):
        found += page
        after = page[-1].seq
    return found
