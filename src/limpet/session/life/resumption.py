"""Resumption: restore, rehydrate, rebind, reconstruct, verify; then one commit.

Each phase reads and reports. Nothing is recorded before all of them have passed: a session that
cannot be resumed stays suspended. Only a fallback to an older checkpoint is recorded first, because
the state has to be rewound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from limpet.model import PAGE_MAX, Event, checksum, described
from limpet.model.facts import RESUMED, PhaseEvent, tools_bound, tools_in
from limpet.model.facts.phases import rule
from limpet.session.history.kept import Checkpoint
from limpet.session.life.briefing import ENTRIES_MAX, Briefing
from limpet.session.life.memory import LAYERS, Remembered, summary
from limpet.session.life.mover import Mover
from limpet.session.life.policy import refusal
from limpet.session.life.report import Resumption, Step, StepName
from limpet.session.life.retrieval import Evidence, Retrieval, Retrieve
from limpet.session.life.tools import Bound, ToolRegistry, bind
from limpet.session.logs import SESSION

if TYPE_CHECKING:
    from limpet.session.session import Session

Plan: TypeAlias = Callable[..., Any]
Role: TypeAlias = str | Callable[..., Any]  # the role policy: a text, or a function of the session
QUERIES: Final = "retrieval_queries"  # the name in state, unless they are given
FRESH_SECONDS: Final = 3_600.0
DEADLINE_SECONDS: Final = 10.0
ACTOR: Final = "system:lifecycle"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumption is asked to do."""

    tools: ToolRegistry | None = None
    retrieve: Retrieve | None = None
    memory: Sequence[str] | None = None  # layers to reconstruct; None: all
    queries: Sequence[Any] | None = None
    fresh_seconds: float = FRESH_SECONDS
    deadline_seconds: float = DEADLINE_SECONDS
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
        self._bound = Bound({}, [], {})
        self._memory: dict[str, int] = {}
        self._remembered: dict[str, tuple[Remembered, ...]] = {}
        self._role: str | None = None
        self._fell_back = False

    async def run(self) -> Resumption:
        """All five phases, then the transition. Raises what the phase that fails raises."""
        await self._session.writer.load(tail=20)
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
        kept = (await session.checkpoints(limit=PAGE_MAX)).items
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
            await self._fall_back(kept[0])
        return f"checkpoint {self._checkpoint.number} ({self._checkpoint.kind}) verified"

    async def _check_restored(self, kept: Checkpoint) -> None:
        """The log gives the state that the newest checkpoint names, and all of it can be read."""
        session = self._session
        try:
            fold = await session.writer.journal.store.fold_at(session.key, kept.seq)
            session.writer.known.check_whole()
        except (SessionCorrupt, InvalidInput) as error:
            reason = str(error).partition(". ")[0]
            raise CheckpointIntegrity(session.key, kept.number, reason) from error
        if checksum(fold.fields).hex() != kept.ref.checksum:
            raise CheckpointIntegrity(session.key, kept.number, "the log gives another state")

    async def _fall_back(self, kept: Checkpoint) -> None:
        """Rewind to the newest checkpoint that can be trusted; the session is resumed for it."""
        session = self._session
        if session.phase != RESUMED:
            await Mover(
                session, ("resume",), reason="fallback", actor=self._actor, damaged=True
            ).move()
        await session.restore(kept.ref, fallback=True, actor=self._actor)
        await session.writer.load(tail=20)
        self._fell_back = True
        self._warnings.append(f"checkpoint {kept.number} failed; an older one was restored")

    # --- 2: the context ------------------------------------------------------------------------

    async def _rehydrate(self) -> str:
        session, of = self._session, self._of
        queries = session.writer.known.fields.get(QUERIES, ()) if of.queries is None else of.queries
        how = {"fresh_seconds": of.fresh_seconds, "deadline_seconds": of.deadline_seconds}
        retrieval = Retrieval(session.writer.journal, session.key, of.retrieve, **how)
        self._evidence = await retrieval.all(list(queries))
        self._warnings += retrieval.warnings
        if of.tokens is not None:
            self._tokens = of.tokens - await tokens_used(session)
            if self._tokens < of.tokens_min:
                raise InsufficientTokenBudget(session.key, self._tokens, of.tokens_min)
        left = "" if self._tokens is None else f", {self._tokens:,} tokens left"
        return f"{len(self._evidence)} of {len(queries)} queries{left}"

    # --- 3: the tools --------------------------------------------------------------------------

    async def _rebind(self) -> str:
        wanted = tools_in(self._session.head.facts)
        if self._of.tools is None:
            self._bound.tools = {name: dict(kept) for name, kept in wanted.items()}
            return f"{len(wanted)} kept as they were"
        self._bound = await bind(self._of.tools, wanted, self._session)
        for name, other in self._bound.substituted.items():
            SESSION.warning(
                "tool substituted: session=%s tool=%s by=%s", self._session.key, name, other
            )
            self._warnings.append(f"tool substituted: {name} by {other}")
        self._warnings += [f"tool not available: {name}" for name in self._bound.degraded]
        return f"{len(self._bound.tools)} bound, {len(self._bound.degraded)} degraded"

    # --- 4: the memory -------------------------------------------------------------------------

    async def _reconstruct(self) -> str:
        memory = self._session.memory
        memory.working.reset()
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
        checks = (self._whole, self._schema, self._tools, self._budget, self._plan, self._children)
        failures = [reason for check in checks if (reason := await check()) is not None]
        if failures:
            raise SessionIntegrity(self._session.key, tuple(failures))
        return f"{len(checks)} checks passed"

    async def _whole(self) -> str | None:
        damaged = self._session.damaged
        lacks = bool(damaged) and not self._fell_back
        return f"checksum: event {damaged[0]} cannot be read" if lacks else None

    async def _schema(self) -> str | None:
        writer = self._session.writer
        if writer.typed is None or writer.known.head.schema_version is None:
            return None
        ways = writer.typed.way(writer.known.head.schema_version)
        return "schema: its state needs a migration" if ways else None

    async def _tools(self) -> str | None:
        wanted = tools_in(self._session.head.facts)
        lacking = [
            n
            for n, kept in wanted.items()
            if kept.get("required", True) and n not in self._bound.tools
        ]
        return f"tools: {', '.join(lacking)} not bound" if lacking else None

    async def _budget(self) -> str | None:
        low = self._tokens is not None and self._tokens < self._of.tokens_min
        return f"budget: {self._tokens} tokens left" if low else None

    async def _plan(self) -> str | None:
        if self._of.plan is None:
            return None
        reason = await refusal(self._of.plan, self._session)
        return None if reason is None else f"plan: {reason}"

    async def _children(self) -> str | None:
        session = self._session
        children = session.head.facts.get("children")
        if not isinstance(children, Mapping):
            return None
        keys = [_child_key(session, id, child) for id, child in children.items()]
        found = await session.writer.journal.store.load_many(keys, tail=0)
        lost = [key.id for key, each in zip(keys, found, strict=True) if each is None]
        return f"children: {', '.join(lost)} not found" if lost else None

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
            self._fell_back,
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
        how: dict[str, Any] = {"degraded": bound.degraded, "substituted": bound.substituted}
        changed = bound.tools != tools_in(session.head.facts)
        fact = (tools_bound(bound.tools, **how),) if changed else ()
        if resumed and fact:  # bound while it is resumed, then reactivated
            await session.record(*fact, actor=self._actor)
            fact = ()
        if events:
            moving: dict[str, Any] = {"actor": self._actor, "more": report.figures, "between": fact}
            await Mover(session, events, damaged=self._fell_back, **moving).move()


async def role_of(role: Role | None, session: Session[Any]) -> str | None:
    """The text of a role policy. Raises InvalidInput if it is none."""
    found: Any = role
    if callable(role):
        found = role(session)
        found = await found if isawaitable(found) else found
    if found is not None and not isinstance(found, str):
        raise InvalidInput(f"role is a text or a function that returns one, not {described(found)}")
    return found


async def tokens_used(session: Session[Any]) -> int:
    """The tokens that the agent's messages say they took."""
    used, after = 0, 0
    while page := await session.read(after=after, limit=PAGE_MAX, types=["agent.message"]):
        used += sum(map(_usage, page))
        after = page[-1].seq
    return used


def _usage(event: Event) -> int:
    usage = event.data.get("usage") if isinstance(event.data, Mapping) else None
    counts = usage.values() if isinstance(usage, Mapping) else ()
    return sum(n for n in counts if type(n) is int and n > 0)


def _child_key(session: Session[Any], id: str, child: Any) -> Any:
    app = child.get("app", session.app) if isinstance(child, Mapping) else session.app
    return type(session.key)(app, session.user, id)
