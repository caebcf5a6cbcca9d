"""Resumption: restore, rehydrate, rebind, reconstruct, verify; then one commit.

Each phase reads and reports. Nothing is recorded before all of them have passed: a session that
cannot be resumed stays suspended. A fallback to an older checkpoint is shown to the phases as the
state that it will be; the same commit rewinds to it. Evidence is served from a cache by its age or
retrieved again. The six checks of the last phase look at what is about to be recorded; each failure
is a reason of its own. The briefing is what the agent begins with: its messages are in `s.context`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import (
    CheckpointIntegrity,
    InsufficientTokenBudget,
    InvalidInput,
    LimpetError,
    MigrationError,
    NoCheckpoint,
    NoFullCheckpoint,
    SessionCorrupt,
    SessionIntegrity,
)
from limpet.model import EMPTY, DefaultActor, Fact, Head, Key, canonical, checksum, described
from limpet.model.facts.phases import RESUMED, PhaseEvent, rule
from limpet.model.facts.running.budgets import remaining, spent
from limpet.model.facts.running.setup import degraded_in, tools_in
from limpet.model.facts.view import Facts
from limpet.model.limits import PAGE_MAX
from limpet.session.documents import Internal, Put, commit_puts
from limpet.session.history.checkpoint_log import Checkpoint
from limpet.session.history.checkpoints import (
    TrustedCheckpoint,
    find_trusted,
    unread_states,
    verify_checkpoint,
)
from limpet.session.history.point_in_time import fields_of, head_now
from limpet.session.history.rewind import rewind
from limpet.session.journal import Journal
from limpet.session.life.lifecycle_policy import Function, call_function, refusal
from limpet.session.life.memory import LAYERS, Remembered, summary
from limpet.session.life.tools import Bound, ToolRegistry, bind, wanted_in
from limpet.session.life.transitions import PhaseChange, load_to_move
from limpet.session.loggers import SESSION
from limpet.session.runs.switches import switches_of
from limpet.session.writer import Handle, writer_of
from limpet.store.protocol import plural

if TYPE_CHECKING:
    from limpet.session.session import Session

Plan: TypeAlias = Callable[..., Any]
Role: TypeAlias = str | Callable[..., Any]  # the role policy: a text, or a function of the session
QUERIES: Final = "retrieval_queries"  # the name in state, unless they are given
FRESH_SECONDS: Final = 3_600.0
DEADLINE_SECONDS: Final = 10.0
CACHE_SECONDS: Final = 604_800.0
CHECKS: Final = 6
ACTOR: Final = DefaultActor("system:lifecycle")
Retrieve: TypeAlias = Callable[[Any], "Any | Awaitable[Any]"]
COLLECTION: Final = "retrieval"
_ACTOR: Final = DefaultActor("system:retrieval")
_AT_ONCE: Final = 8
ENTRIES_MAX: Final = 20  # of each layer: the summary of it
_CHARS_PER_TOKEN: Final = 4
StepName: TypeAlias = Literal["restore", "rehydrate", "rebind", "reconstruct", "verify"]


class Evidence(msgspec.Struct, frozen=True):
    """The answer to a query: fresh, from the cache, or stale because it could not be retrieved."""

    query: Any
    value: Any
    source: str  # retrieved | cached | stale


class ResumptionStep(msgspec.Struct, frozen=True):
    """One phase of the protocol."""

    name: StepName
    seconds: float
    found: str


class Briefing(msgspec.Struct, frozen=True):
    """The briefing of a resumed session. `str(briefing)` is the text for a system prompt."""

    role: str | None = None
    state: Mapping[str, Any] = EMPTY
    evidence: Mapping[str, Evidence] = EMPTY
    memory: Mapping[str, tuple[Remembered, ...]] = EMPTY  # by layer, in the order of its list
    tokens: int | None = None  # what the text may take

    def text(self, tokens: int | None = None, count: Callable[[str], int] | None = None) -> str:
        """Return the parts in order, as many whole lines as fit; `count` returns the tokens of a
        text.

        The role is always included; then come the state, the evidence and the memory.
        """
        most, count = self.tokens if tokens is None else tokens, count or _estimate
        lines = [] if self.role is None else [self.role]
        used, left_out = sum(map(count, lines)), 0
        for line in self._lines():
            used += count(line)
            if most is not None and used > most:
                left_out += 1
            else:
                lines.append(line)
        if left_out:
            lines.append(f"({left_out} lines were left out: the token budget is used up.)")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _lines(self) -> list[str]:
        lines = ["State:"] if self.state else []
        lines += [f"- {name}: {_shown(value)}" for name, value in self.state.items()]
        lines += ["Evidence:"] if self.evidence else []
        for each in self.evidence.values():
            lines.append(f"- {_shown(each.query)}: {_shown(each.value)} ({each.source})")
        for layer, entries in self.memory.items():
            lines += [f"Memory, {layer}:"] if entries else []
            lines += [f"- {entry.name}: {_shown(entry.value)}" for entry in entries]
        return lines


class Resumption(msgspec.Struct, frozen=True):
    """The report of a resumption. `print(report)` shows it."""

    key: Key
    steps: tuple[ResumptionStep, ...]
    checkpoint: int
    version: int
    tools: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()  # optional tools that are not there any more
    substituted: Mapping[str, str] = EMPTY
    evidence: Mapping[str, Evidence] = EMPTY
    tokens_left: int | None = None
    memory: Mapping[str, int] = EMPTY
    warnings: tuple[str, ...] = ()
    fell_back: bool = False  # to an older full checkpoint, or to the file in a tier
    context: Briefing = Briefing()  # role, state, evidence and memory, for the agent

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures that the event of the resumption records."""
        figures: dict[str, Any] = {"checkpoint": self.checkpoint, "state_version": self.version}
        figures |= {"tools_bound": len(self.tools), "tools_degraded": len(self.degraded)}
        figures["evidence"] = len(self.evidence)
        if self.tokens_left is not None:
            figures["tokens_left"] = self.tokens_left
        return figures

    def __str__(self) -> str:
        lines = [f"resumed {self.key} from checkpoint {self.checkpoint}, version {self.version}"]
        lines += [f"  {s.name:<12}{s.seconds * 1_000:>8.1f} ms  {s.found}" for s in self.steps]
        lines += [f"  warning     {each}" for each in self.warnings]
        return "\n".join(lines)


class ResumptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a resumption: see `Limpet.resume`."""

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


class ResumptionRun:
    """One resumption under way."""

    def __init__(
        self, session: Session[Any], settings: ResumptionSettings, actor: str | None
    ) -> None:
        self._session, self._of = session, settings
        self._actor = actor or session.actor or ACTOR
        self._steps: list[ResumptionStep] = []
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
        await load_to_move(writer_of(self._session), "resume")
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
        report = await phase()
        self._steps.append(ResumptionStep(name, time.perf_counter() - began, report))

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
        unread, since = await unread_states(writer_of(self._session), kept, at)
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
        writer = writer_of(self._session)
        await verify_checkpoint(writer, kept)
        try:
            writer.known.check_whole()
        except SessionCorrupt as error:
            key, number = self._session.key, kept.number
            raise CheckpointIntegrity(key, number, error.summary) from error

    async def _fall_back(self, kept: tuple[Checkpoint, ...], why: str) -> str:
        """Go on from the newest checkpoint that can be trusted; the commit rewinds to it."""
        writer, failed = writer_of(self._session), kept[0]
        self._back = back = await find_trusted(writer, failed.ref, fallback=True)
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
        queries = (
            writer_of(session).known.fields.get(QUERIES, ()) if of.queries is None else of.queries
        )
        journal = writer_of(session).journal
        switches = await switches_of(journal, session.app)
        retrieval = Retrieval(
            journal,
            session.key,
            of.retrieve,
            fresh_seconds=max(of.fresh_seconds, switches.fresh_seconds),
            deadline_seconds=of.deadline_seconds,
            cache_seconds=of.cache_seconds,
        )
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
        policy = writer_of(self._session).services.lifecycle(self._session.app)
        registry: ToolRegistry | None = self._of.tools or policy.tools
        return registry

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
            entries = await memory.layer(name).list()
            self._memory[name] = len(entries)
            self._remembered[name] = entries[:ENTRIES_MAX]
        self._role = await role_of(self._of.role, self._session)
        return summary(self._memory)

    # --- 5: everything together ----------------------------------------------------------------

    async def _verify(self) -> str:
        """Check the newest head: others may have written since the first phase."""
        session, of = self._session, self._of
        head = await head_now(writer_of(session))
        restored = ToVerify(
            tools=self._bound.tools,
            tokens=tokens_left(head.facts, of.tokens),
            tokens_min=of.tokens_min,
            checksum=self._checksum,
            plan=of.plan,
        )
        if reasons := await failures(session, head, restored):
            raise SessionIntegrity(session.key, reasons)
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
        known = (writer_of(self._session).known.fields, self._evidence, self._remembered)
        return Briefing(self._role, *known, self._tokens)

    async def _record(self, report: Resumption) -> None:
        session, bound = self._session, self._bound
        resumed = session.phase == RESUMED
        events: tuple[PhaseEvent, ...] = () if resumed else ("resume",)
        events += ("reactivate",) if self._of.activate else ()
        fact = () if bound.is_in(session.head.facts) else (bound.fact,)
        back = None if self._back is None else (self._back.fold, self._back.data)
        if events:
            await PhaseChange(
                session,
                events,
                actor=self._actor,
                more=report.figures,
                between=fact,
                rewinds=back,
                damaged=back is not None,
                verified=True,
                puts=self._puts,
            ).run()
        else:  # it is resumed already, and shall stay so
            await self._record_in_place(fact)

    async def _record_in_place(self, facts: tuple[Fact, ...]) -> None:
        """Record what has changed where there is no transition to record it with."""
        writer, back = writer_of(self._session), self._back
        if back is not None:
            await rewind(
                writer,
                back.fold,
                actor=self._actor,
                data=back.data,
                messages=False,
                damaged=True,
                repairs=True,
            )
            if self._puts:
                await commit_puts(writer.journal, (), self._puts)
        if facts:
            await self._session.record(*facts, actor=self._actor)


async def role_of(role: Role | None, session: Session[Any]) -> str | None:
    """The text of a role policy. Raises InvalidInput if it is none."""
    text: Any = role
    if callable(role):
        text = role(session)
        text = await text if isawaitable(text) else text
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"role is a text or a function that returns one, not {described(text)}.")
    return text


def tokens_left(facts: Facts, tokens: int | None) -> int | None:
    """Return the rest of these tokens, or of the session's own budget; None without a limit."""
    return remaining(facts)[1] if tokens is None else tokens - spent(facts).tokens


# --- evidence ------------------------------------------------------------------------------------


class _Cached(msgspec.Struct, frozen=True):
    """The cached answer to a query, and until when it is kept."""

    query: Any
    value: Any
    at_us: int
    until_us: float = math.inf


class Retrieval:
    """The queries of one session."""

    def __init__(
        self,
        journal: Journal,
        key: Key,
        retrieve: Retrieve | None,
        *,
        fresh_seconds: float,
        deadline_seconds: float,
        cache_seconds: float,
    ) -> None:
        self._journal, self._retrieve = journal, retrieve
        self._cache = Internal(journal, COLLECTION, owner=(key.app, key.user))
        self._fresh_us = round(fresh_seconds * 1_000_000)
        self._cache_us = round(cache_seconds * 1_000_000)
        self._deadline_seconds = deadline_seconds
        self.warnings: list[str] = []

    async def all(self, queries: Sequence[Any]) -> dict[str, Evidence]:
        """Return the evidence of every query, by its id. A query without an answer is a warning."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(query: Any) -> Evidence | None:
            async with room:
                return await self._one(query)

        entries = await asyncio.gather(*[one(query) for query in queries])
        return {id_of(e.query): e for e in entries if e is not None}

    async def _one(self, query: Any) -> Evidence | None:
        name = sha256(canonical(query)).hexdigest()
        cached = await self._cached(name)
        if cached is not None and self._journal.now_us() - cached.at_us < self._fresh_us:
            return Evidence(query, cached.value, "cached")
        if self._retrieve is not None:
            try:
                async with asyncio.timeout(self._deadline_seconds):
                    value = await call_function(self._retrieve, query)
                await self._cache.put(name, self._kept(query, value), actor=_ACTOR)
            except LimpetError:
                raise
            except Exception as error:
                self.warnings.append(f"retrieval failed: {id_of(query)} ({_reason(error)})")
            else:
                return Evidence(query, value, "retrieved")
        if cached is None:
            self.warnings.append(f"no evidence: {id_of(query)}")
            return None
        self.warnings.append(f"stale evidence: {id_of(query)}")
        return Evidence(query, cached.value, "stale")

    async def _cached(self, name: str) -> _Cached | None:
        """Return the cached answer to a query. It is removed once its time is over."""
        document = await self._cache.find(name)
        read = None if document is None else self._cache.decoded(document, _Cached)
        if read is not None and self._journal.now_us() >= read.until_us:
            await self._cache.purge(name)
            return None
        return read

    def _kept(self, query: Any, value: Any) -> dict[str, Any]:
        now_us = self._journal.now_us()
        kept = {"query": query, "value": value, "at_us": now_us}
        return {**kept, "until_us": now_us + self._cache_us}


def id_of(query: Any) -> str:
    """Return the name of a query: its own id, or its text."""
    if isinstance(query, Mapping):
        return str(
            query.get("id") or query.get("query") or sha256(canonical(query)).hexdigest()[:12]
        )
    return str(query)


def _reason(error: Exception) -> str:
    return "too slow" if isinstance(error, TimeoutError) else type(error).__name__


# --- the six checks ------------------------------------------------------------------------------


class ToVerify(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the first four phases, to be verified."""

    tools: Mapping[str, Any]
    tokens: int | None
    tokens_min: int
    checksum: str | None = None  # what the state has to have; None: as the log gives it
    plan: Function | None = None


async def failures(session: Handle, head: Head, restored: ToVerify) -> tuple[str, ...]:
    """Return why the session must not go on; each reason begins with the name of its check."""
    reasons = (
        _checksum(session, restored.checksum),
        _schema(session, head),
        _tools(head, restored.tools),
        _budget(restored),
        await _plan(session, restored.plan),
        await _children(session, head),
    )
    return tuple([reason for reason in reasons if reason is not None])


def _checksum(session: Handle, wanted: str | None) -> str | None:
    known = writer_of(session).known
    if known.damaged:
        return f"checksum: event {known.damaged[0]} cannot be read"
    if wanted is not None and checksum(known.fields).hex() != wanted:
        return "checksum: its state is not the one of the checkpoint"
    return None


def _schema(session: Handle, head: Head) -> str | None:
    """Its state has the version that this code is for, or one that it reads as its own."""
    typed, version = writer_of(session).typed, head.schema_version
    if typed is None or version is None:
        return None
    try:
        needs = bool(typed.way(version))
    except MigrationError as error:
        return f"schema: {error.summary}"
    return f"schema: its state is {version} and needs a migration" if needs else None


def _tools(head: Head, bound: Mapping[str, Any]) -> str | None:
    wanted = tools_in(head.facts).items()
    required = [name for name, kept in wanted if kept.get("required", True)]
    lacking = sorted(set(required) - set(bound))
    return f"tools: {', '.join(lacking)} not bound" if lacking else None


def _budget(restored: ToVerify) -> str | None:
    low = restored.tokens is not None and restored.tokens < restored.tokens_min
    return f"budget: {restored.tokens} tokens left" if low else None


async def _plan(session: Handle, plan: Function | None) -> str | None:
    reason = None if plan is None else await refusal(plan, session)
    return None if reason is None else f"plan: {reason}"


async def _children(session: Handle, head: Head) -> str | None:
    """A child that it waits for and that is not there would never end."""
    children = head.facts.get("children")
    if not isinstance(children, Mapping):
        return None
    keys = [_child_key(head.key, id, child) for id, child in children.items()]
    loaded = await writer_of(session).journal.store.load_many(keys, tail=0)
    lost = [key.id for key, each in zip(keys, loaded, strict=True) if each is None]
    return f"children: {', '.join(lost)} not found" if lost else None


def _child_key(parent: Key, id: str, child: Any) -> Key:
    app = child.get("app", parent.app) if isinstance(child, Mapping) else parent.app
    return Key(app, parent.user, id)


# --- private -------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)
