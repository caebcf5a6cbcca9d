"""Resumption: restore, rehydrate, rebind, reconstruct, verify; then one commit.

Each phase reads and reports. Nothing is recorded before all of them have passed: a session that
cannot be resumed stays suspended. A fallback to an older checkpoint is shown to the phases as the
state that it will be; the same commit rewinds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from limpet.errors import (
    CheckpointIntegrity,
    InsufficientTokenBudget,
    InvalidInput,
    NoCheckpoint,
    NoFullCheckpoint,
    SessionCorrupt,
    SessionIntegrity,
)
from limpet.model import PAGE_MAX, Fact, checksum, described
from limpet.model.facts import RESUMED, PhaseEvent, degraded_in, tools_in
from limpet.model.facts.phases import rule
from limpet.model.facts.running.budgets import remaining, spent
from limpet.model.facts.view import Facts
from limpet.session.documents import Put, commit_puts
from limpet.session.history.checkpoint_log import Checkpoint
from limpet.session.history.checkpoints import TrustedCheckpoint, trusted, unread_states, verified
from limpet.session.history.point_in_time import fields_of, head_now
from limpet.session.history.rewind import rewind
from limpet.session.life.briefing import ENTRIES_MAX, Briefing
from limpet.session.life.integrity import Restored, failures
from limpet.session.life.memory import LAYERS, Remembered, summary
from limpet.session.life.mover import Mover, load_to_move
from limpet.session.life.report import Resumption, Step, StepName
from limpet.session.life.retrieval import Evidence, Retrieval, Retrieve
from limpet.session.life.tools import Bound, ToolRegistry, bind, wanted_in
from limpet.session.logs import SESSION
from limpet.store.answers import plural

if TYPE_CHECKING:
    from limpet.session.session import Session

Plan: TypeAlias = Callable[..., Any]
Role: TypeAlias = str | Callable[..., Any]  # the role policy: a text, or a function of the session
QUERIES: Final = "retrieval_queries"  # the name in state, unless they are given
FRESH_SECONDS: Final = 3_600.0
DEADLINE_SECONDS: Final = 10.0
CACHE_SECONDS: Final = 604_800.0
CHECKS: Final = 6
ACTOR: Final = "system:lifecycle"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumption is asked to do."""

    tools: ToolRegistry | None = None
    retrieve: Retrieve | None = None
    memory: Sequence[str] | None = None  # layers to reconstruct; None: all
    queries: Sequence[Any] | None = None
    fresh_seconds: float = FRESH_SECONDS
    deadline_seconds: float = DEADLINE_SECONDS
    cache_seconds: float = CACHE_SECONDS
    tokens: int | None = None
    tokens_min: int = 1
    plan: Plan | None = None
    fallback: bool = False
    activate: bool = True
    role: Role | None = None


class Resuming:
    """One resumption under way."""

    def __init__(self, session: Session[Any], settings: Settings, actor: str | None) -> None:
        self._session, self._of = session, settings
        self._actor = actor or session.actor or ACTOR
        self._steps: list[Step] = []
        self._warnings: list[str] = []
        self._checkpoint: Checkpoint | None = None
        self._evidence: dict[str, Evidence] = {}
        self._tokens: int | None = None
        self._bound = Bound({}, {}, {})
        self._memory: dict[str, int] = {}
        self._remembered: dict[str, tuple[Remembered, ...]] = {}
        self._role: str | None = None
        self._back: TrustedCheckpoint | None = None  # the checkpoint that stands in for the newest
        self._puts: tuple[Put, ...] = ()
        self._checksum: str | None = None  # of the state that is shown for it

    async def run(self) -> Resumption:
        """All five phases, then the transition. Raises what the phase that fails raises."""
        await load_to_move(self._session.writer, "resume")
        phase = self._session.phase
        if phase != RESUMED:
            rule(phase, "resume")  # raises InvalidTransition before any work is done
        await self._step("restore", self._restore)
        await self._step("rehydrate", self._rehydrate)
        await self._step("rebind", self._rebind)
        await self._step("reconstruct", self._reconstruct)
        await self._step("verify", self._verify)
        report = self._report()
        await self._record(report)
        return report

    async def _step(self, name: StepName, phase: Callable[[], Any]) -> None:
        began = time.perf_counter()
        found = await phase()
        self._steps.append(Step(name, time.perf_counter() - began, found))

    # --- 1: the state --------------------------------------------------------------------------

    async def _restore(self) -> str:
        session = self._session
        kept = (await session.history.checkpoints(limit=PAGE_MAX)).items
        if not kept:
            raise NoCheckpoint(session.key)
        if not any(each.full for each in kept):
            raise NoFullCheckpoint(session.key, kept[0].number)
        self._checkpoint = kept[0]
        try:
            await self._check_restored(kept[0])
        except CheckpointIntegrity as error:
            SESSION.warning(
                "checkpoint integrity failure: session=%s checkpoint=%d reason=%s",
                *(session.key, error.number, error.reason),
            )
            if not self._of.fallback:
                raise
            return await self._fall_back(kept, error.reason)
        instead = await self._note_unread(kept, kept[0])
        return f"checkpoint {kept[0].number} ({kept[0].kind}) verified{instead}"

    async def _note_unread(self, kept: tuple[Checkpoint, ...], at: Checkpoint) -> str:
        """Name kept states that cannot be read, and what gave the state instead."""
        unread, since = await unread_states(self._session.writer, kept, at)
        if not unread:
            return ""
        which = "the first event" if not since else f"event {since + 1}"
        used = f"the log from {which} on was used instead"
        for each in unread:
            self._warnings.append(f"the kept state of checkpoint {each.number} is damaged; {used}")
            text = "checkpoint state unreadable: session=%s checkpoint=%d used=%s"
            SESSION.warning(text, self._session.key, each.number, used)
        return f" by the log from {which} on: {plural(len(unread), 'kept state')} cannot be read"

    async def _check_restored(self, kept: Checkpoint) -> None:
        """The log gives the state that the newest checkpoint names, and all of it can be read."""
        writer = self._session.writer
        await verified(writer, kept)
        try:
            writer.known.check_whole()
        except SessionCorrupt as error:
            key, number = self._session.key, kept.number
            raise CheckpointIntegrity(key, number, error.summary) from error

    async def _fall_back(self, kept: tuple[Checkpoint, ...], why: str) -> str:
        """Go on from the newest checkpoint that can be trusted; the commit rewinds to it."""
        writer, failed = self._session.writer, kept[0]
        self._back = back = await trusted(writer, failed.ref, fallback=True)
        self._checkpoint = way = back.checkpoint
        fields = fields_of(writer.typed, back.fold)
        writer.known.preview(fields)
        self._checksum = checksum(fields).hex()
        which = f"checkpoint {way.number}" + (f" of {way.tier}" if back.by_tier else "")
        self._warnings += back.passed or (f"checkpoint {failed.number} cannot be trusted: {why}",)
        self._warnings.append(f"checkpoint {failed.number} failed; {which} was restored")
        instead = "" if back.by_tier else await self._note_unread(kept, way)
        return f"{which} ({way.kind}) verified in place of {failed.number}{instead}"

    # --- 2: the context ------------------------------------------------------------------------

    async def _rehydrate(self) -> str:
        session, of = self._session, self._of
        queries = session.writer.known.fields.get(QUERIES, ()) if of.queries is None else of.queries
        how = {"fresh_seconds": of.fresh_seconds, "deadline_seconds": of.deadline_seconds}
        how["cache_seconds"] = of.cache_seconds
        retrieval = Retrieval(session.writer.journal, session.key, of.retrieve, **how)
        self._evidence = await retrieval.all(list(queries))
        self._warnings += retrieval.warnings
        self._tokens = tokens_left(session.head.facts, of.tokens)
        if self._tokens is not None and self._tokens < of.tokens_min:
            raise InsufficientTokenBudget(session.key, self._tokens, of.tokens_min)
        left = "" if self._tokens is None else f", {self._tokens:,} tokens left"
        return f"{len(self._evidence)} of {len(queries)} queries{left}"

    # --- 3: the tools --------------------------------------------------------------------------

    async def _rebind(self) -> str:
        facts, registry = self._session.head.facts, self._registry
        if registry is None:
            now = tools_in(facts)
            self._bound.tools = {name: dict(kept) for name, kept in now.items()}
            self._bound.degraded = {name: dict(kept) for name, kept in degraded_in(facts).items()}
            return f"{len(now)} kept as they were"
        self._bound = await bind(registry, wanted_in(facts), self._session)
        for name, other in self._bound.substituted.items():
            SESSION.warning(
                "tool substituted: session=%s tool=%s by=%s", self._session.key, name, other
            )
            self._warnings.append(f"tool substituted: {name} by {other}")
        self._warnings += [f"tool not available: {name}" for name in self._bound.degraded]
        return f"{len(self._bound.tools)} bound, {len(self._bound.degraded)} degraded"

    @property
    def _registry(self) -> ToolRegistry | None:
        """The tools that were given, or else those of the app."""
        policy = self._session.writer.journal.lifecycle(self._session.app)
        found: ToolRegistry | None = self._of.tools or policy.tools
        return found

    # --- 4: the memory -------------------------------------------------------------------------

    async def _reconstruct(self) -> str:
        memory = self._session.memory
        memory.working.reset()
        if self._back is not None:  # session memory is what it was at the checkpoint
            assert self._checkpoint is not None
            self._puts = await memory.session.back_to(self._checkpoint)
        for name in LAYERS if self._of.memory is None else self._of.memory:
            if name not in LAYERS:
                raise InvalidInput(f"there is no layer {name!r}. Name some of {', '.join(LAYERS)}.")
            found = await memory.layer(name).list()
            self._memory[name] = len(found)
            self._remembered[name] = found[:ENTRIES_MAX]
        self._role = await role_of(self._of.role, self._session)
        return summary(self._memory)

    # --- 5: everything together ----------------------------------------------------------------

    async def _verify(self) -> str:
        """On the newest head: others may have written since the first phase."""
        session, of = self._session, self._of
        head = await head_now(session.writer)
        restored = Restored(
            tools=self._bound.tools,
            tokens=tokens_left(head.facts, of.tokens),
            tokens_min=of.tokens_min,
            checksum=self._checksum,
            plan=of.plan,
        )
        if found := await failures(session, head, restored):
            raise SessionIntegrity(session.key, found)
        return f"{CHECKS} checks passed"

    # --- the record ----------------------------------------------------------------------------

    def _report(self) -> Resumption:
        assert self._checkpoint is not None
        return Resumption(
            self._session.key,
            tuple(self._steps),
            self._checkpoint.number,
            self._session.version,
            tuple(sorted(self._bound.tools)),
            tuple(self._bound.degraded),
            self._bound.substituted,
            self._evidence,
            self._tokens,
            self._memory,
            tuple(self._warnings),
            self._back is not None,
            self._context(),
        )

    def _context(self) -> Briefing:
        known = (self._session.writer.known.fields, self._evidence, self._remembered)
        return Briefing(self._role, *known, self._tokens)

    async def _record(self, report: Resumption) -> None:
        session, bound = self._session, self._bound
        resumed = session.phase == RESUMED
        events: tuple[PhaseEvent, ...] = () if resumed else ("resume",)
        events += ("reactivate",) if self._of.activate else ()
        fact = () if bound.is_in(session.head.facts) else (bound.fact,)
        back = None if self._back is None else (self._back.fold, self._back.data)
        if events:
            how: dict[str, Any] = {
                "actor": self._actor,
                "more": report.figures,
                "between": fact,
                "rewinds": back,
            }
            how |= {"damaged": back is not None, "verified": True, "puts": self._puts}
            await Mover(session, events, **how).move()
        else:  # it is resumed already, and shall stay so
            await self._record_in_place(fact)

    async def _record_in_place(self, facts: tuple[Fact, ...]) -> None:
        """What has changed, where there is no transition to record it with."""
        writer, back = self._session.writer, self._back
        if back is not None:
            how: dict[str, Any] = {"actor": self._actor, "data": back.data, "damaged": True}
            await rewind(writer, back.fold, **how)
            if self._puts:
                await commit_puts(writer.journal, (), self._puts)
        if facts:
            await self._session.record(*facts, actor=self._actor)


async def role_of(role: Role | None, session: Session[Any]) -> str | None:
    """The text of a role policy. Raises InvalidInput if it is none."""
    found: Any = role
    if callable(role):
        found = role(session)
        found = await found if isawaitable(found) else found
    if found is not None and not isinstance(found, str):
        raise InvalidInput(
            f"role is a text or a function that returns one, not {described(found)}."
        )
    return found


def tokens_left(facts: Facts, tokens: int | None) -> int | None:
    """What is left of so many tokens, or else of the session's own budget; None: no limit."""
    return remaining(facts)[1] if tokens is None else tokens - spent(facts).tokens
