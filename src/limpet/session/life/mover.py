"""Moving a session through its phases: guards, hooks, the commit, and what follows it.

A transition is decided on the newest state and recorded on that very version. If another writer was
faster, it is decided again: guards run again, hooks and compensations do not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from limpet.errors import GuardFailed, LimpetError, SchemaViolation, SessionConflict
from limpet.model.facts.phases import (
    TYPES,
    Phase,
    PhaseEvent,
    hook_failed,
    rule,
    transition,
)
from limpet.model.lease import Lease
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.session.life.ending import Ending
from limpet.session.life.policy import NOTHING, Lifecycle, Transition, call, named, refusal
from limpet.session.logs import SESSION

if TYPE_CHECKING:
    from limpet.session.session import Session

_TAIL: Final = 20
_PAUSE_SECONDS_MAX: Final = 0.002
_ENDS: Final = ("terminate", "expire")
# Before the drafts are made: what goes into the data of the last event.
Prepare = Callable[[], Awaitable[dict[str, Any]]]


class Mover:
    """One transition (or two in one commit) of one session, on its way."""

    def __init__(
        self,
        session: Session[Any],
        events: tuple[PhaseEvent, ...],
        *,
        reason: str | None = None,
        actor: str | None = None,
        more: dict[str, Any] | None = None,
        release: Lease | None = None,
    ) -> None:
        self._session, self._events, self._reason, self._actor = session, events, reason, actor
        self._more, self._release = more or {}, release
        self._policy: Lifecycle = session.writer.journal.lifecycles.get(session.app, NOTHING)
        self._hooked: set[tuple[Phase, Phase]] = set()
        self._ending: Ending | None = None

    async def move(self) -> tuple[Transition, ...]:
        """Decide and record, until no other writer was faster. Raises InvalidTransition,
        GuardFailed, and what a hook before the transition raises: nothing is recorded then."""
        writer = self._session.writer
        for left in reversed(range(UPDATE_TRIES_MAX)):
            await writer.load(tail=_TAIL)
            try:
                done = await self._try()
            except SessionConflict as error:
                if error.on != "session" or not left:
                    raise
                await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))
                continue
            for each in done:
                await self._after(each)
            return done
        raise AssertionError("the last try returns or raises")

    async def _try(self) -> tuple[Transition, ...]:
        writer = self._session.writer
        version = writer.known.version
        steps = self._steps(writer.known.head.phase)
        for step in steps:
            await self._guard(step)
        for step in steps:
            await self._before(step)
        drafts = []
        for step in steps:
            last = step is steps[-1]
            more = {**(self._more if last else {}), **(self._ending.data if self._ending else {})}
            gone = self._ending.scrubbed if self._ending is not None else ()
            fact = transition(step.before, step.name, reason=step.reason, more=more, delete=gone)
            drafts.append(writer.journal.prepare(fact, self._actor))
        events = await writer.commit(tuple(drafts), version, release=self._release)
        performed = self._ending.effects if self._ending is not None else ()
        return tuple(
            structs.replace(
                step, event=event, side_effects=(*step.side_effects, *performed, TYPES[step.name])
            )
            for step, event in zip(steps, events, strict=True)
        )

    def _steps(self, phase: Phase) -> list[Transition]:
        """The proposed transitions, each from where the one before leads. Raises."""
        steps = []
        for name in self._events:
            row = rule(phase, name)
            effects = () if name in _ENDS else row.effects
            steps.append(Transition(row.to, effects, None, phase, name, self._reason))
            phase = row.to
        return steps

    async def _guard(self, step: Transition) -> None:
        session, known = self._session, self._session.writer.known
        reason = _unreadable(session, step) or open_children(known.head.facts, step)
        if reason is None and (guard := self._policy.guards.get((step.before, step.name))):
            reason = await refusal(guard, session, step)
        if step.name == "complete":
            for criterion in self._policy.exit_criteria if reason is None else ():
                reason = reason or await refusal(criterion, session, step)
        if reason is not None:
            raise GuardFailed(step.before, step.name, reason)

    async def _before(self, step: Transition) -> None:
        """Hooks, and what a termination does first. Once, also if it is decided again."""
        at = (step.before, step.phase)
        if at in self._hooked:
            return
        if (hook := self._policy.before.get(at)) is not None:
            found = await call(hook, self._session, step)
            if found is False or (isinstance(found, str) and found):
                reason = found if isinstance(found, str) else f"{named(hook)} returned False"
                raise GuardFailed(step.before, step.name, reason)
        if step.name in _ENDS:
            self._ending = await Ending.run(self._policy, self._session, step)
        self._hooked.add(at)

    async def _after(self, step: Transition) -> None:
        """A hook that fails after the commit undoes nothing; that it failed is recorded."""
        hook = self._policy.after.get((step.before, step.phase))
        if hook is None:
            return
        try:
            await call(hook, self._session, step)
        except Exception as error:
            SESSION.warning("hook failed: session=%s hook=%s", self._session.key, named(hook))
            await self._record_failure(named(hook), error)

    async def _record_failure(self, name: str, error: Exception) -> None:
        fact = hook_failed(name, f"{type(error).__name__}: {error}")
        try:
            await self._session.record(fact, actor=self._actor)
        except LimpetError as failure:  # the transition stands all the same
            SESSION.warning("hook failure not recorded: %s (%s)", self._session.key, failure.code)


def open_children(facts: Any, step: Transition) -> str | None:
    """Why a parent cannot complete yet: children that have not ended."""
    children = facts.get("children") if step.name == "complete" else None
    if not children:
        return None
    names = ", ".join(list(children)[:5])
    return f"{len(children)} of its children have not ended: {names}"


def _unreadable(session: Session[Any], step: Transition) -> str | None:
    """Why its state cannot be relied on: an event is damaged, or it does not fit its class."""
    known, typed = session.writer.known, session.writer.typed
    if step.name in _ENDS or step.name == "archive":
        return None  # what is damaged may always be ended
    if known.damaged:
        return f"event {known.damaged[0]} cannot be read"
    if step.name == "activate" and typed is not None and known.head.schema_version is not None:
        try:
            typed.prove(known.head, known.fields)
        except SchemaViolation as error:
            return f"its state does not fit its schema ({error})"
    return None
