"""A turn: what a harness sees of its session, and the calls that are recorded.

A turn may span several runs of the harness. Each runs from the top; what was recorded before is
returned instead of done again. So a harness must take the same way every time: whatever is not
deterministic belongs into `step` or `stream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from limpet.errors import InvalidInput, ToolDenied, TurnMisused
from limpet.model import EMPTY, REVISITS_PER_TURN_MAX, Draft, Event, to_us
from limpet.model.facts.running import (
    ANSWERS,
    INTERRUPT,
    Budget,
    Revisit,
    RevisitPriority,
    Share,
    budgets,
    revisit_set,
    steps,
)
from limpet.model.facts.running.setup import usable_tools
from limpet.runtime import children, requests
from limpet.runtime.budget import Block, Reservation
from limpet.runtime.children import Child
from limpet.runtime.driving import Driver
from limpet.runtime.effects import Effect, OnUnknown, Performing, called
from limpet.runtime.hold import Hold
from limpet.runtime.log import TurnLog
from limpet.runtime.opening import Opening
from limpet.runtime.pauses import Pauses
from limpet.runtime.records import args_hash, check_same, identity, result_of
from limpet.runtime.requests import Approval, Otherwise
from limpet.runtime.streams import Stream
from limpet.session.life.tools import ToolUse
from limpet.session.runs.learnings import Learning, LearningKind, learn, learning_of
from limpet.session.runs.setup import (
    Permission,
    permission_for,
    permission_within,
    permissions_within,
)
from limpet.session.session import Session

T = TypeVar("T")
_NONE: Final[Mapping[str, Any]] = {}


class Turn:
    """One turn of an agent, in one of its runs."""

    def __init__(
        self,
        log: TurnLog,
        opening: Opening,
        driver: Driver,
        hold: Hold,
        *,
        accepts: bool = False,
        permissions: Mapping[str, Permission] = _NONE,
        worker_permissions: Mapping[str, Permission] = _NONE,
    ) -> None:
        self.log, self.driver, self.records = log, driver, opening.records
        self.hold = hold
        self.pauses = Pauses(lambda: driver.stop("paused"))
        self.accepts = accepts  # goes on although it takes another way than before
        self.id, self.wake_id = opening.turn_id, log.wake_id
        self.attempt = opening.attempt
        self.inputs: Sequence[Event] = opening.inputs
        self.revisits: Sequence[Revisit] = opening.revisits
        said = None if opening.redirect is None else opening.redirect.data
        # What a person said when they interrupted the turn before: then it has no inputs.
        self.note: str | None = None if said is None else said["note"]
        self.asked_for: list[Draft] = []  # revisits, for the closing commit
        self.limits = permissions  # by tool, apart from what is bound: a child keeps to them too
        self._use = ToolUse(
            log.session, log.session.writer.journal.lifecycle(log.session.app).tools
        )
        self.worker_permissions = worker_permissions  # a child keeps to them, whoever runs it

    def __repr__(self) -> str:
        return f"<limpet.Turn {self.session.key} attempt {self.attempt}>"

    @property
    def session(self) -> Session[Any]:
        """The session, under the lease of this run. What is written with it is not recorded as a
        call of the turn: use `append` for what must not be done twice."""
        return self.log.session

    @property
    def state(self) -> Any:
        return self.session.state

    @property
    def agent_name(self) -> str:
        """The agent whose learnings this session shares: that of its setup, or its app."""
        agent = self.session.head.facts.get("agent")  # with its version; an app may have an @ too
        return self.session.app if agent is None else str(agent).partition("@")[0]

    @property
    def permissions(self) -> Mapping[str, Permission]:
        """What the worker and the session's setup allow, by tool; `*` is every other one."""
        return permissions_within(self.limits, usable_tools(self.session.head.facts))

    def permission(self, tool: str) -> Permission:
        """always_allow, always_ask or deny. Where the session has tools bound, every other one is
        denied, apart from managed tools."""
        return permission_within(self.limits, usable_tools(self.session.head.facts), tool)

    @property
    def now_us(self) -> int:
        return self.session.writer.journal.now_us()

    # --- what is recorded ------------------------------------------------------------------------

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The result of fn(*args, **kwargs), computed once in a turn. fn may be async or not.

        The result is stored, so it is what JSON can hold. If fn raises, nothing is recorded.
        """
        self.driver.check()
        with self.pauses.working():
            occurrence, hashed = self.records.occurrence("step", name), args_hash(args, kwargs)
            before = self.records.steps.get((name, occurrence))
            if before is not None:
                hashes = (before.data["args_hash"], hashed)
                values = ({"result": before.data["result"]}, {"args": args, "kwargs": kwargs})
                self.check_same("the step", name, occurrence, hashes, values)
                return before.data["result"]
            id = identity(self.id, "step", name, occurrence)
            async with self._reserved(id, max_cost, max_tokens) as reservation:
                with self.pauses.inside(f"the step {name!r}"):
                    result = await called(fn, *args, **kwargs)
                self.driver.check()
                fact = steps.step_recorded(id, name, occurrence, hashed, result)
                with result_of(f"the step {name!r}"):
                    event, *_ = await self.log.write(fact, *reservation.settling())
            return event.data["result"]

    async def stream(
        self,
        name: str,
        pieces: AsyncIterable[Any] | Iterable[Any],
        *,
        say: bool = True,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        """The whole text of the pieces, recorded once; followers see each piece as it comes.

        A piece is a text, or a dict with `text`, `usage`, `cost` or `model`. The whole is one
        agent.message, with say=False only the result of a step.
        """
        self.driver.check()
        with self.pauses.working():
            stream = Stream(self, name, self.records.occurrence("stream", name), say=say)
            if (recorded := stream.recorded) is not None:
                await stream.drop(pieces)
                return recorded
            async with self._reserved(stream.id, max_cost, max_tokens) as reservation:
                return await stream.run(pieces, reservation)

    async def effect(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *,
        on_unknown: OnUnknown = "ask",
        key: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function, for each try
        retries: int = 0,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        compensate: str | None = None,
        **args: Any,
    ) -> Any:
        """The result of fn(**args), an action on the world: performed once, or asked about.

        Raises EffectFailed if fn raises, as often as it is tried; EffectUnknown if nobody knows
        whether it was done and a person decided to leave it; ToolDenied. A parameter of fn named
        `idempotency_key` receives the key, which is the same however often it is tried. With a
        `key` of your own it is performed once in the life of the session. `compensate` names the
        function of lp.policies.lifecycle(app, compensations=…) that undoes it if the session is
        terminated. Where the session has tools bound, `name` is one of them, and authorized now:
        else it raises ToolDenied, and ToolLocked while another session holds a tool that is
        exclusive. Of a tool that is bound with a cost, each use is charged to the session.
        """
        self._begin("effect")
        with self.pauses.working():
            if permission_for(self.limits, name) == "always_ask" and not self._has_asked(name):
                await self._use.check(name)  # nobody is asked about what cannot be used
            args = await self._permitted(name, args)
            if max_cost is max_tokens is None:  # what one use of a bound tool costs
                max_cost = self.session.tools.bound.get(name, EMPTY).get("cost") or None
            held = None if max_cost is max_tokens is None else budgets.amount(max_cost, max_tokens)
            effect = Effect(name, fn, args, on_unknown, key, timeout, retries, held, compensate)
            return await Performing(self, effect, self._use).run()

    async def say(
        self,
        text: str | None = None,
        *,
        content: Sequence[Any] | None = None,
        model: str | None = None,
        usage: Mapping[str, int] | None = None,
        cost: float | None = None,
    ) -> Event:
        """An agent.message: a text, or a list of parts. `usage` and `cost` are what it took; they
        count also beyond the budget, and the next call is refused then."""
        if (text is None) == (content is None):
            raise InvalidInput("say takes a text or a content.")
        data = {"text": text, "content": content, "model": model, "usage": usage, "cost": cost}
        return await self.append("agent.message", {n: v for n, v in data.items() if v is not None})

    async def append(self, type: str, data: Mapping[str, Any] = _NONE, **more: Any) -> Event:
        """An event of your own, recorded once in a turn. Takes what Session.append takes."""
        self.driver.check()
        with self.pauses.working():
            occurrence = self.records.occurrence("append", type)
            id = identity(self.id, "append", type, occurrence)
            before = self.records.events.get(id)
            if before is not None:
                hashes = (args_hash(before.data), args_hash(data))
                self.check_same("the event", type, occurrence, hashes, (before.data, data))
                return before
            (event,) = await self.log.write(Draft(type=type, data=data, id=id, **more))
            self.records.add(event)
            return event

    # --- what pauses it --------------------------------------------------------------------------

    async def approve(
        self,
        name: str,
        input: Any,
        deadline: timedelta | None = None,
        otherwise: Otherwise | None = None,
    ) -> Approval:
        """Ask a person whether `input` may be done. The turn pauses until s.confirm says so.

        The deadline counts from the first asking; `otherwise` ("allow" or "deny") is the answer
        when it has passed, "deny" if nothing is said.
        """
        self._begin("approve")
        with self.pauses.working():
            return await requests.approve(self, name, input, deadline, otherwise)

    async def ask(self, name: str, input: Any) -> Any:
        """Use a tool that runs elsewhere. The turn pauses until s.answer brings the output."""
        self._begin("ask")
        with self.pauses.working():
            return await requests.ask(self, name, input)

    async def delegate(
        self,
        app: str,
        message: str | Mapping[str, Any],
        *,
        title: str | None = None,
        budget: Budget | Share | float | None = None,
        tools: Iterable[str] | None = None,
        fields: Mapping[str, Any] | None = None,
        cascade: bool = True,
    ) -> Child:
        """A child session of this user that works on `message`; returns at once.

        `await child.result()` pauses the turn until it has ended. It gets `fields` and `tools`, and
        nothing else of this session. Its budget is taken from this one's; the rest comes back.
        Where this session has a limit and `budget` names none, it is a quarter of what is left. It
        is interrupted and terminated with this session, unless cascade=False.
        """
        self._begin("delegate")
        with self.pauses.working():
            how: dict[str, Any] = {"title": title, "budget": budget, "tools": tools}
            how |= {"fields": fields, "cascade": cascade}
            return await children.delegate(self, app, message, **how)

    # --- what comes later ------------------------------------------------------------------------

    def revisit(
        self,
        when: datetime | timedelta,
        reason: str,
        key: str | None = None,
        priority: RevisitPriority = "normal",
        *,
        replace: bool = False,
    ) -> None:
        """Be woken again then: recorded with the end of the turn. At most 16 a turn.

        Of those with one key, the first stands until it was delivered; with `replace` the newer.
        """
        if len(self.asked_for) >= REVISITS_PER_TURN_MAX:
            raise TurnMisused(f"a turn asks for at most {REVISITS_PER_TURN_MAX} revisits.")
        at_us = _moment_us(when, self.now_us)
        key = f"{self.id}.{len(self.asked_for)}" if key is None else key
        how: dict[str, Any] = {"priority": priority, "replace": replace}
        self.asked_for.append(revisit_set(key, at_us, reason, **how))

    async def news(self) -> tuple[Event, ...]:
        """Inputs that came since the turn began; they wait for the next one."""
        mine = {event.seq for event in self.inputs}
        pending = await self.session.pending()
        own = (INTERRUPT, *ANSWERS)
        return tuple([e for e in pending if e.seq not in mine and e.type not in own])

    async def learn(self, kind: LearningKind, text: str) -> Learning:
        """Keep a lesson, a correction or an error for all sessions of the agent; each once."""
        self.driver.check()
        with self.pauses.working():
            session, learning = self.session, learning_of(kind, text)
            agent = self.agent_name
            journal, by = session.writer.journal, session.actor or "system:runtime"
            await learn(journal, agent, learning, session.key, by)
            return learning

    async def context(self, **how: Any) -> Any:
        """The conversation so far, for a model: what Session.context returns."""
        return await _context(self.session, **how)

    def reserve(self, *, cost: float | None = None, tokens: int | None = None) -> Reservation:
        """Set a part of the budget aside: `async with turn.reserve(cost=0.1) as r: …; r.settle()`.

        Raises BudgetReached. What is not settled counts as used. A block that an earlier run of the
        turn has settled reserves nothing again.
        """
        of = None if cost is tokens is None else budgets.amount(cost, tokens)
        return Block(self, of)

    def _reserved(self, id: str, cost: float | None, tokens: int | None) -> Reservation:
        """For one call, which settles it with its record. Raises BudgetReached if the session has
        spent more than it may."""
        budgets.check_overdrawn(self.session.head.facts)
        of = None if cost is tokens is None else budgets.amount(cost, tokens)
        return Reservation(self, of, identity(id, "reserve", self.wake_id))

    # --- for the calls ---------------------------------------------------------------------------

    def _begin(self, verb: str) -> None:
        """Raise if the run was stopped, or if the harness does not make this call itself."""
        self.driver.check()
        self.pauses.check_outside(verb)

    def check_same(
        self,
        what: str,
        name: str,
        occurrence: int,
        hashes: tuple[str, str],
        values: tuple[Any, Any],
    ) -> None:
        """Stop the turn if a call has other arguments than its record, unless that is accepted."""
        if not self.accepts:
            check_same(what, name, occurrence, hashes, values)

    def _has_asked(self, name: str) -> bool:
        return any([asked.data["name"] == name for asked in self.records.asked.values()])

    async def permitted(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments that a tool may be used with; asks first if it must. Raises ToolDenied."""
        self.driver.check()
        with self.pauses.working():
            return await self._permitted(name, args)

    async def _permitted(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments that may be used: with always_ask, those that a person approved."""
        permission = permission_for(self.limits, name)
        if permission == "always_allow":
            return args
        if permission != "always_ask":
            raise ToolDenied(name)
        approval = await requests.approve(self, name, args, None, None)
        if not approval:
            raise ToolDenied(name, approval.note)
        return dict(approval.input)


async def _context(session: Session[Any], **how: Any) -> Any:
    """The one place that asks a session for its conversation."""
    context = getattr(session, "context", None)
    if context is None:
        raise TurnMisused("this session has no conversation to give.")
    return await called(context, **how)


def _moment_us(when: datetime | timedelta, now_us: int) -> int:
    if isinstance(when, timedelta):
        return now_us + when // timedelta(microseconds=1)
    if not isinstance(when, datetime):
        raise InvalidInput("a revisit is at an aware datetime, or after a timedelta.")
    return to_us(when)
