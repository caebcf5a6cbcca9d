"""Transitions: a session moves from one phase to the next.

A transition is decided on the newest state and recorded on that very version: guards, hooks before
it, one commit, hooks after it. If another writer was faster, it is decided again: guards run again,
hooks and compensations do not. Before a session ends it is compensated and cleaned up; each of
these steps is isolated and bounded in time, its result is recorded with the termination, and one
that fails does not keep the session alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from limpet.errors import (
    CheckpointIntegrity,
    GuardFailed,
    InvalidTransition,
    LimpetError,
    RequiredToolUnavailable,
    SchemaViolation,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionMoved,
    SessionNotFound,
    ToolAuthorizationFailed,
)
from limpet.model import EMPTY, Commit, Event, Fact, Fold, Head, Key, Lease, Prepared
from limpet.model.facts.phases import (
    ACTIVE,
    ARCHIVED,
    COMPLETED,
    COUNTED,
    INIT,
    RESUMED,
    SUSPENDED,
    TERMINAL,
    TYPES,
    Phase,
    PhaseEvent,
    allowed,
    hook_failed,
    rule,
    transition,
)
from limpet.model.facts.running import endings
from limpet.model.facts.running.children import children_in, works_for
from limpet.model.facts.running.runs import is_at_work, status_changed
from limpet.model.facts.running.spawned import children_open, is_spawned
from limpet.model.lease import status_at
from limpet.model.limits import FINISHED_PER_COMMIT_MAX
from limpet.session.documents import Put, commit_puts
from limpet.session.history.checkpoint_log import CheckpointRequest
from limpet.session.history.checkpoints import store_checkpoints, verify_checkpoint
from limpet.session.history.rewind import replacing
from limpet.session.journal import is_not_about_the_version, retrying
from limpet.session.life.lifecycle_policy import (
    CLEANUP,
    LIFECYCLE_ACTOR,
    Function,
    Lifecycle,
    Transition,
    call_function,
    function_name,
    refusal,
)
from limpet.session.life.memory import promotions
from limpet.session.life.tools import ToolLocks, binding
from limpet.session.loggers import SESSION
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.delegation import SpawnedEnd, children_of, head_of
from limpet.session.services import Services
from limpet.session.sharing import live_shares_given, notify_targets
from limpet.session.writer import Handle, Writer, writer_of

_TAIL: Final = 20
_ENDS: Final = ("terminate", "expire")
_LEAVES: Final = ("release_tools", "record_error")  # with whatever an app has declared for its end
DAY_SECONDS: Final = 86_400
_US: Final = 1_000_000
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
# The way of a finished child to completion, by its phase.
_TO_COMPLETE: Final[Mapping[Phase, tuple[PhaseEvent, ...]]] = {
    INIT: ("activate", "complete"),
    ACTIVE: ("complete",),
    SUSPENDED: ("resume", "reactivate", "complete"),
    RESUMED: ("reactivate", "complete"),
}
_WITH_PARENT: Final = "its parent was completed"
_DRAWN_TOGETHER: Final = 64  # checkpoints that are made at a time


class Durations(msgspec.Struct, frozen=True):
    """Seconds in each phase. The clock stops at the end of the session."""

    init: float
    active: float
    suspended: float
    resumed: float
    suspensions: int

    @property
    def total(self) -> float:
        """The seconds in all phases together."""
        return self.init + self.active + self.suspended + self.resumed

    @property
    def active_ratio(self) -> float:
        """The fraction of its life in which it could work (active or resumed); 1 if it has just
        begun."""
        return (self.active + self.resumed) / self.total if self.total else 1.0

    @property
    def suspension_frequency(self) -> float:
        """Suspensions per second of its life."""
        return self.suspensions / self.total if self.total else 0.0

    def exceeds(self, suspensions_per_day: float) -> bool:
        """True if it was suspended more often than this. A single suspension has no frequency."""
        a_day = self.suspension_frequency * DAY_SECONDS
        return self.suspensions > 1 and a_day > suspensions_per_day


def durations(head: Head, now_us: int) -> Durations:
    """Return the durations of a session up to this time, as its head has them."""
    spent = head.facts.get("durations", EMPTY)
    phase: str = head.facts.get("phase", ACTIVE)
    seconds = {name: spent.get(f"{name}_us", 0) for name in COUNTED}
    if phase in seconds:
        since_us = spent.get("since_us", head.created_us)
        seconds[phase] += max(0, now_us - since_us)
    return Durations(
        **{name: us / _US for name, us in seconds.items()}, suspensions=spent.get("suspensions", 0)
    )


class PhaseChange:
    """One transition (or two in one commit) of one session, on its way."""

    def __init__(
        self,
        session: Handle,
        events: tuple[PhaseEvent, ...],
        *,
        reason: str | None = None,
        actor: str | None = None,
        more: dict[str, Any] | None = None,
        between: tuple[Fact, ...] = (),
        release: Lease | None = None,
        damaged: bool = False,
        verified: bool = False,
        rewinds: tuple[Fold, Mapping[str, Any]] | None = None,
        to: Phase | None = None,
        puts: tuple[Put, ...] = (),
    ) -> None:
        """`more` goes into the data of the first event; `between` is recorded right after it.

        `damaged`: it may go on although an event cannot be read. `verified`: its checkpoint and its
        tools were looked at. `rewinds`: to this state, with this data, in the same commit. `to`:
        where unarchiving leads.
        `puts` are documents that the same commit records.
        """
        self._session, self._events, self._reason, self._actor = session, events, reason, actor
        self._more, self._between, self._release = more or {}, between, release
        self._policy = writer_of(session).services.lifecycle(session.app)
        self._rewinds = rewinds
        self._damaged, self._verified, self._to, self._puts = damaged, verified, to, puts
        self._bound: Fact | None = None
        self._hooked: set[tuple[Phase, Phase]] = set()
        self._ending: Cleanups | None = None
        self._children: tuple[_Child, ...] = ()  # that are completed with it
        self._hooked_below: dict[Key, set[tuple[Phase, Phase]]] = {}

    async def run(self) -> tuple[Transition, ...]:
        """Decide and record, until no other writer was faster. Raises InvalidTransition,
        GuardFailed, and what a hook before the transition raises: nothing is recorded then."""
        writer = writer_of(self._session)
        # Before guards, hooks and checkpoints: they are not for one whom the commit would refuse.
        self._actor = await writer.services.foreseen(
            "lifecycle", self._session.key, self._actor or LIFECYCLE_ACTOR
        )

        async def attempt() -> tuple[Transition, ...]:
            await load_to_move(writer, self._events[0])
            return await self._try()

        def stands(error: LimpetError) -> bool:
            """A child may go meanwhile; this session may not."""
            gone = isinstance(error, _GONE) and error.key == self._session.key
            return gone or is_not_about_the_version(error)

        done = await retrying(attempt, SessionConflict, *_GONE, unless=stands)
        for each in done:
            await self._after(each)
        return done

    async def complete_children(self) -> None:
        """Complete the finished children of this session, and nothing else."""
        await load_to_move(writer_of(self._session), "complete")
        self._children = await self._finished_children()
        await _commit_children(writer_of(self._session).services, await self._complete_children())

    async def _try(self) -> tuple[Transition, ...]:
        steps = await self._allowed()
        children = await self._complete_children()
        drawn = await self._draw(steps)
        before = [each.commit for each in children]
        puts = (*[put for each in children for put in each.drawn.puts], *drawn.puts)
        writer, release = writer_of(self._session), self._release
        if drawn.end is not None:
            events = await self._end_spawned(drawn.end, drawn, before, puts)
        elif self._rewinds is None:
            events = await writer.commit(
                drawn.drafts, drawn.version, release=release, puts=puts, before=before
            )
        else:  # its fields are those of its class, as the log has them
            events = await writer.commit(
                drawn.drafts,
                drawn.version,
                schema=writer.known.head.schema_version,
                classless=False,
                release=release,
                puts=puts,
            )
        for each in children:
            await each.leave()
        moved = [event for event, is_move in zip(events, drawn.moves, strict=False) if is_move]
        if release is not None:
            writer.lease = None  # it ended with the commit
        return tuple(
            structs.replace(step, event=event, side_effects=self._performed(step))
            for step, event in zip(steps, moved, strict=True)
        )

    async def _allowed(self) -> list[Transition]:
        """The proposed transitions. Raises if the table or a guard refuses one of them."""
        steps = self._steps(writer_of(self._session).known.head.phase)
        for step in steps:
            await self._guard(step)
        return steps

    async def _draw(self, steps: list[Transition]) -> _Drawn:
        """Draw up the record of these transitions, once all that comes before them is done."""
        writer = writer_of(self._session)
        version = writer.known.version
        for step in steps:
            await self._before(step)
        for step in steps:
            if "checkpoint" in step.side_effects:
                self._more |= await self._checkpoint(step)
        moves = [self._fact(step, first=step is steps[0]) for step in steps]
        facts = [moves[0], *self._recorded_between(), *moves[1:]]
        if (status := self._status_changed(steps[-1])) is not None:
            facts.insert(-1, status)
        puts = (*self._puts, *await self._promotions(steps[-1]))
        end = await self._spawned_end(steps[-1])
        facts += [] if end is None else end.own
        drafts = tuple([writer.journal.prepare(fact, self._actor) for fact in facts])
        is_move = tuple([any(fact is move for move in moves) for fact in facts])
        return _Drawn(drafts, is_move, version, puts, end)

    # --- finished children ----------------------------------------------------------------------

    async def _finished_children(self) -> tuple[_Child, ...]:
        """The children that have finished, and theirs, the lowest first: they are completed with
        this session. Raises GuardFailed if one is at work again, or may not be completed."""
        # They may work in tasks of their own: who may complete the parent completes them.
        writer, finished = writer_of(self._session), list[_Child]()
        journal = writer.services.system.journal
        server, is_asked = server_of(journal), False
        for of in await children_of(journal, writer.known.head):
            if server is not None and await head_of(journal, of["key"]) is None:
                is_asked = True  # one that is gone, or that this client may not enter
                continue
            child = await self._finished_child(of["key"])
            if child is not None:
                finished += [*child.change._children, child]
        if server is not None and is_asked:
            await ask_server(server, "complete_children", self._session.key, self._actor)
        return tuple(finished)

    async def _finished_child(self, key: Key) -> _Child | None:
        """A child to be completed; None if it has ended, is gone, or is at another node."""
        writer = writer_of(self._session)
        parent, system = writer.known.head, writer.services.system
        session = type(self._session)(system, key, untyped=True)
        try:
            await load_to_move(writer_of(session), "complete")
        except (*_GONE, SessionMoved, InvalidTransition):
            return None
        head = session.head
        if head.phase not in _TO_COMPLETE or not works_for(head.facts, parent.key, parent.uid):
            return None
        if is_at_work(head.facts):
            raise GuardFailed(ACTIVE, "complete", f"the child {key} has more to do")
        await writer.services.check_completion(head, recorded=False)
        change = PhaseChange(
            session, _TO_COMPLETE[head.phase], reason=_WITH_PARENT, actor=self._actor
        )
        change._hooked = self._hooked_below.setdefault(key, change._hooked)
        try:
            return _Child(change, await change._allowed())
        except GuardFailed as error:
            reason = f"the child {key} cannot be completed: {error.reason}"
            raise GuardFailed(ACTIVE, "complete", reason) from error

    async def _complete_children(self) -> list[_Completion]:
        """Complete the finished children, so many at a time, but the last of them: those go into
        the commit of this session."""
        services = writer_of(self._session).services
        last: list[_Completion] = []
        left = self._children
        while left:
            some, left = left[:_DRAWN_TOGETHER], left[_DRAWN_TOGETHER:]
            drawn = await asyncio.gather(*[each.change._draw(each.steps) for each in some])
            for child, of in zip(some, drawn, strict=True):
                if sum([each.logs for each in last], 1 + len(of.puts)) > FINISHED_PER_COMMIT_MAX:
                    await _commit_children(services, last)
                    last = []
                last.append(_Completion(child.change, child.steps, of))
        return last

    async def _spawned_end(self, step: Transition) -> SpawnedEnd | None:
        """Return what a spawned child tells its parent, in the commit in which it ends."""
        writer = writer_of(self._session)
        head = writer.known.head
        if step.phase not in endings.ENDED or not is_spawned(head.facts):
            return None
        if children_in(head.facts):
            return None  # a worker ends them first, and tells the parent then
        if step.phase == COMPLETED:
            end = {"stop_reason": "end_turn", "output": await self._output()}
        else:
            end = {"stop_reason": "terminated", "summary": step.reason or step.name}
        said = {name: value for name, value in end.items() if value is not None}
        return SpawnedEnd.of(writer.journal, head, said, self._actor or LIFECYCLE_ACTOR)

    async def _end_spawned(
        self, end: SpawnedEnd, drawn: _Drawn, before: list[Commit], puts: tuple[Put, ...]
    ) -> tuple[Event, ...]:
        """Record its end and notify the parent; only its end if the parent is gone."""
        writer = writer_of(self._session)
        drafts, version = drawn.drafts, drawn.version
        commit = partial(writer.commit, release=self._release, puts=puts, before=before)
        try:
            return await commit(drafts, version, beside=(end.beside,))
        except SessionError as error:
            if not end.is_refused_by_parent(error):
                raise
        return await commit(drafts[: len(drafts) - len(end.own) + len(end.own_alone)], version)

    async def _output(self) -> Any:
        """Return the output that it is completed with, else the last message of the agent."""
        if "output" in self._more:
            return self._more["output"]
        writer = writer_of(self._session)
        said = await writer.journal.store.read(
            self._session.key, after=0, limit=1, reverse=True, types=("agent.message",)
        )
        data = EMPTY if not said or said[0].data is None else said[0].data
        return data.get("text", data.get("content"))

    def _recorded_between(self) -> tuple[Fact, ...]:
        """Return what goes right after the first event: a rewind, then tools that were bound."""
        facts = list(self._between)
        if self._rewinds is not None:
            facts.insert(0, replacing(writer_of(self._session), *self._rewinds))
        return tuple(facts if self._bound is None else [*facts, self._bound])

    async def _checkpoint(self, step: Transition) -> dict[str, Any]:
        """A full checkpoint of what is known, durable before the transition is recorded."""
        writer = writer_of(self._session)
        known = writer.known
        asked = CheckpointRequest(step.name, True, self._actor)
        state = (known.head, known.fields) if writer.view is None else None
        keeping = store_checkpoints(writer.journal)
        made = await keeping.checkpoint(known.key, asked, uid=known.uid, state=state)
        return {"checkpoint": made.number, "state_version": made.seq}

    async def _promotions(self, step: Transition) -> tuple[Put, ...]:
        """A completed session's episodes become the user's, in the same commit."""
        if "promote_memory" not in step.side_effects:
            return ()
        return await promotions(writer_of(self._session), self._actor or LIFECYCLE_ACTOR)

    def _fact(self, step: Transition, *, first: bool) -> Fact:
        more = dict(self._more) if first else {}
        gone: tuple[str, ...] = ()
        if self._ending is not None and _is_cleaned(step):
            more, gone = {**more, **self._ending.data}, self._ending.scrubbed
        return transition(
            step.before, step.name, to=step.phase, reason=step.reason, more=more, delete=gone
        )

    def _status_changed(self, step: Transition) -> Fact | None:
        """A session that ends is terminated from now on, whatever it was doing."""
        if step.phase not in TERMINAL or step.before in TERMINAL:
            return None
        writer = writer_of(self._session)
        before = status_at(writer.known.head, writer.journal.now_us())
        return status_changed(before, "terminated", step.reason or step.name)

    def _performed(self, step: Transition) -> tuple[str, ...]:
        ran = self._ending.effects if self._ending is not None and _is_cleaned(step) else ()
        return (*ran, *step.side_effects, TYPES[step.name])

    def _steps(self, phase: Phase) -> list[Transition]:
        """The proposed transitions, each from where the one before leads. Raises."""
        steps = []
        for name in self._events:
            row = rule(phase, name)
            effects = _LEAVES if name in _ENDS else row.effects
            if self._policy.tools is None and not self._between:
                effects = tuple([each for each in effects if each != "bind_tools"])
            leads = self._to or row.to
            steps.append(Transition(leads, effects, None, phase, name, self._reason))
            phase = leads
        return steps

    async def _guard(self, step: Transition) -> None:
        session, known = self._session, writer_of(self._session).known
        reason = None if self._damaged else _unreadable(session, step)
        reason = reason or open_children(known.head.facts, step)
        reason = reason or unfinished_duty(known.head.facts, step)
        if not self._verified and step.name in ("activate", "resume"):
            reason = reason or await self._unprepared(step)
        if reason is None and (guard := self._policy.guards.get((step.before, step.name))):
            reason = await refusal(guard, session, step)
        if step.name == "complete":
            for criterion in self._policy.exit_criteria if reason is None else ():
                reason = reason or await refusal(criterion, session, step)
        if reason is not None:
            raise GuardFailed(step.before, step.name, reason)
        if step.name == "complete":
            self._children = await self._finished_children()

    async def _unprepared(self, step: Transition) -> str | None:
        """Return why it cannot begin or go on: it lacks a checkpoint, or tools."""
        writer = writer_of(self._session)
        if step.name == "resume":
            kept = store_checkpoints(writer.journal).kept(self._session.key)
            checkpoints = await kept.read(writer.known.head.uid)
            if not checkpoints:
                return "no checkpoint is kept; make one with s.checkpoint(full=True)"
            try:
                await verify_checkpoint(writer, checkpoints[-1])
            except CheckpointIntegrity as error:
                return (
                    f"checkpoint {error.number} cannot be trusted ({error.reason}); "
                    "lp.resume(key, fallback=True) goes on from one that can"
                )
        if self._policy.tools is None:
            return None
        try:
            self._bound = await binding(self._policy.tools, self._session)
        except (RequiredToolUnavailable, ToolAuthorizationFailed) as error:
            return error.summary
        return None

    async def _before(self, step: Transition) -> None:
        """Hooks, and what a termination does first. Once, also if it is decided again."""
        at = (step.before, step.phase)
        if at in self._hooked:
            return
        if (hook := self._policy.before.get(at)) is not None:
            result = await call_function(hook, self._session, step)
            if result is False or (isinstance(result, str) and result):
                reason = (
                    result if isinstance(result, str) else f"{function_name(hook)} returned False"
                )
                raise GuardFailed(step.before, step.name, reason)
        if _is_cleaned(step):
            self._ending = await Cleanups.run(self._policy, self._session, step)
        self._hooked.add(at)

    async def _after(self, step: Transition) -> None:
        """A hook that fails after the commit undoes nothing; that it failed is recorded."""
        if step.phase not in (INIT, ACTIVE, RESUMED):
            writer_of(self._session).working_memory = None
            await self._release_tools()
        if step.phase in TERMINAL and step.before not in TERMINAL:
            await self._end_live_shares()
        if step.phase == SUSPENDED:
            self._signal()
        if "initialize_memory" in step.side_effects:
            writer_of(self._session).working_memory = None
        hook = self._policy.after.get((step.before, step.phase))
        if hook is None:
            return
        try:
            await call_function(hook, self._session, step)
        except Exception as error:
            SESSION.warning(
                "hook failed: session=%s hook=%s", self._session.key, function_name(hook)
            )
            fact = hook_failed(function_name(hook), f"{type(error).__name__}: {error}")
            try:
                await self._session.record(fact, actor=self._actor)
            except LimpetError as failure:  # the transition stands all the same
                text = "hook failure not recorded: session=%s code=%s"
                SESSION.warning(text, self._session.key, failure.code)

    async def _end_live_shares(self) -> None:
        """Record with those who received a live share of it that it has ended."""
        writer = writer_of(self._session)
        journal = writer.services.system.journal  # targets may be sessions that it may not see
        with suppress(LimpetError):  # they are over, recorded or not
            given = await live_shares_given(journal.store, writer.known.head)
            await notify_targets(journal, given, self._actor or LIFECYCLE_ACTOR)

    async def _release_tools(self) -> None:
        """Release the exclusive tools of a session that stops working."""
        if "tools" in self._session.head.facts:
            await ToolLocks(self._session).release_all()

    def _signal(self) -> None:
        """Say so if it is suspended more often than is healthy: its timeouts deserve a look."""
        writer = writer_of(self._session)
        spent = durations(writer.known.head, writer.journal.now_us())
        if not spent.exceeds(self._policy.suspensions_per_day):
            return
        a_day = spent.suspension_frequency * DAY_SECONDS
        key = self._session.key
        SESSION.warning("suspended often: session=%s suspensions_per_day=%.1f", key, a_day)
        writer.services.metrics.record(
            "session.suspended_often",
            session=key,
            suspensions=spent.suspensions,
            suspensions_per_day=a_day,
            active_ratio=spent.active_ratio,
        )


class _Drawn(NamedTuple):
    """The record of a transition: its drafts, which of them are the transitions themselves, the
    version they are decided on, documents, and what a spawned child tells its parent."""

    drafts: tuple[Prepared, ...]
    moves: tuple[bool, ...]
    version: int
    puts: tuple[Put, ...]
    end: SpawnedEnd | None


class _Child(NamedTuple):
    """A finished child that may be completed, by these transitions."""

    change: PhaseChange
    steps: list[Transition]


class _Completion(NamedTuple):
    """The completion of a finished child, ready to be recorded."""

    change: PhaseChange
    steps: list[Transition]
    drawn: _Drawn

    @property
    def logs(self) -> int:
        return 1 + len(self.drawn.puts)

    @property
    def commit(self) -> Commit:
        session, drawn = self.change._session, self.drawn
        return Commit(session.key, drawn.drafts, drawn.version, uid=session.head.uid)

    async def leave(self) -> None:
        """Do all that comes after its completion."""
        writer = writer_of(self.change._session)
        with suppress(LimpetError):  # it may be gone by now
            await writer.load(tail=_TAIL)
        moved = {event.type: event for event in writer.known.events}
        for step in self.steps:
            done = structs.replace(step, event=moved.get(TYPES[step.name]))
            await self.change._after(done)


async def _commit_children(services: Services, done: list[_Completion]) -> None:
    """Complete finished children in a commit of their own."""
    for each in done:
        await services.check_completion(each.change._session.head, recorded=True)
    puts = [put for each in done for put in each.drawn.puts]
    await commit_puts(services.system.journal, [each.commit for each in done], puts)
    for each in done:
        await each.leave()


async def load_to_move(writer: Writer, event: PhaseEvent) -> None:
    """Read the newest head to decide on. Raises InvalidTransition if its log left for the archive:
    this object knows a session that is not in the store any more."""
    try:
        await writer.load(tail=_TAIL)
    except SessionArchived:
        raise InvalidTransition(ARCHIVED, event, allowed(ARCHIVED)) from None


async def resume_on_input(session: Handle) -> None:
    """Resume a session that was suspended for idleness, now that input has come.

    The input is recorded first, and waits. If resuming is refused, the session stays suspended; if
    the process that recorded the input dies before this, the next sweep resumes it.
    """
    change = PhaseChange(session, ("resume", "reactivate"), reason="input", actor=LIFECYCLE_ACTOR)
    try:
        await change.run()
    except (InvalidTransition, SessionConflict):
        pass  # another was faster
    except LimpetError as error:
        SESSION.warning("session not resumed by input: session=%s code=%s", session.key, error.code)
    except Exception as error:
        what = type(error).__name__
        SESSION.warning("hook refused resuming: session=%s error=%s", session.key, what)


def open_children(facts: Any, step: Transition) -> str | None:
    """Return why a parent cannot complete yet: children that have not ended."""
    number = children_open(facts) if step.name == "complete" else 0
    if not number:
        return None
    names = ", ".join(list(children_in(facts))[:5])
    have = "child has" if number == 1 else "children have"
    return f"{number} {have} not ended" + (f": {names}" if names else "")


def unfinished_duty(facts: Any, step: Transition) -> str | None:
    """Return why it cannot be archived yet: a worker has something to do for others first."""
    if step.name != "archive" or not endings.is_owed(facts):
        return None
    what = "terminate its children" if endings.to_cascade(facts) else "tell its parent"
    what = "compensate its effects" if endings.to_compensate(facts) else what
    return f"a worker has yet to {what}"


def _is_cleaned(step: Transition) -> bool:
    """True if cleanup hooks run before it: at every end, and before archiving a completed one."""
    return step.name in _ENDS or (step.name == "archive" and step.before == COMPLETED)


def _unreadable(session: Handle, step: Transition) -> str | None:
    """Return why its state cannot be relied on: a damaged event, or a class it does not fit."""
    known, typed = writer_of(session).known, writer_of(session).typed
    if step.name in (*_ENDS, "archive", "unarchive"):
        return None  # what is damaged may always be ended
    if known.damaged:
        return f"event {known.damaged[0]} cannot be read"
    begins = step.name in ("activate", "reactivate")
    if begins and typed is not None and known.head.schema_version is not None:
        try:
            typed.view(known.head, known.fields)  # the newest: an untyped handle may have written
        except SchemaViolation as error:
            return f"its state does not fit its schema ({error})"
    return None


# --- before the end ------------------------------------------------------------------------------


class Cleanups:
    """Compensations and cleanup hooks before an end, and what the record says of them."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.scrubbed: tuple[str, ...] = ()
        self.effects: tuple[str, ...] = ()

    @classmethod
    async def run(cls, policy: Lifecycle, session: Handle, step: Transition) -> Cleanups:
        """Compensate, if it is terminated; then clean up."""
        self = cls()
        done = []
        for function in () if step.name == "archive" else policy.compensate:
            done.append(await _guarded(function_name(function), function, policy, session, step))
        cleaned = []
        for name in CLEANUP:
            hook = policy.cleanup.get(name)
            if hook is not None:
                report = await _guarded(name, hook, policy, session, step)
                result = report.pop("result", None)
                if name == "scrub":
                    self.scrubbed = _names(session, result)
                cleaned.append(report)
        for report in done:
            report.pop("result", None)
        if done:
            self.data["compensated"] = done
        if cleaned:
            self.data["cleanup"] = cleaned
        ran = [*(f"compensate {each['name']}" for each in done)]
        ran += [f"cleanup {each['name']}" for each in cleaned]
        self.effects = tuple(ran)
        return self


async def _guarded(
    name: str, function: Function, policy: Lifecycle, session: Handle, step: Transition
) -> dict[str, Any]:
    """Call it, for so long and no longer; how it went."""
    try:
        async with asyncio.timeout(policy.cleanup_seconds):
            result = await call_function(function, session, step)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):
            what = f"took longer than {policy.cleanup_seconds:g} seconds"
        SESSION.warning("step before the end failed: session=%s step=%s", session.key, name)
        return {"name": name, "error": what}
    return {"name": name, "result": result}


def _names(session: Handle, result: Any) -> tuple[str, ...]:
    """The session's own fields, among the names that a scrubbing hook returned."""
    if isinstance(result, str) or not isinstance(result, Iterable):
        return ()
    own = writer_of(session).known.fields
    return tuple(dict.fromkeys(name for name in result if name in own))
