"""Managed tools: what a model may do with its own session, as tools that a harness hands to it.

`ManagedTools` describes them for a model and runs any of them. Each is a struct of its input, with
the function that runs it. A call is recorded in the turn and returned when the turn runs again,
like a step, and has a span in the trace of its wake. A refusal is a result too, so that the model
reads why: nothing that a model sends ends the turn. A tool sees the session of its turn, those
delegated from it, and the user's other sessions of the same app and agent, or that let in others
(`sibling_denial`), also where nothing else is checked. It returns plain JSON.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import structs

from limpet.errors import (
    AccessDenied,
    BudgetReached,
    InvalidInput,
    LimpetError,
    NotPending,
    SessionFenced,
    StoreError,
    TurnError,
)
from limpet.model import EMPTY, NO_TEXTS, Event, Head, Key, Texts, Trace, described, settle
from limpet.model.facts.outcomes import outcome_defined, outcome_in
from limpet.model.facts.running.children import CHILD_CREATED, created_id, delegation, works_for
from limpet.model.facts.running.requests import open_requests
from limpet.model.facts.running.runs import readable, run_in, span_completed, span_started
from limpet.model.limits import EVENT_BYTES_MAX
from limpet.runtime.children import open_child
from limpet.runtime.managed_results import (
    BuffersShown,
    ChangesShown,
    ChildrenShown,
    ChildRunShown,
    DefinedShown,
    DelegatedShown,
    DocumentShown,
    EndedShown,
    EnvironmentShown,
    EventShown,
    EventsShown,
    GradeShown,
    LearningsShown,
    NoteShown,
    NotesShown,
    PermissionShown,
    PermissionsShown,
    PromotedShown,
    ResourcesShown,
    SessionShown,
    SessionsShown,
    SetupShown,
    SnapshotShown,
    SpanShown,
    TraceShown,
    VaultsShown,
)
from limpet.runtime.turn import Turn
from limpet.runtime.turn_log import identity
from limpet.security.access import Resource
from limpet.security.isolation import SIBLINGS, sibling_denial
from limpet.session.documents import Document
from limpet.session.json_forms import time_form
from limpet.session.limpet import Limpet
from limpet.session.loggers import SESSION
from limpet.session.runs.buffers import Buffer, Note
from limpet.session.runs.delegation import Kin, kin_of
from limpet.session.runs.learnings import agent_of
from limpet.session.runs.outcomes import MANAGED
from limpet.session.session import Session
from limpet.session.writer import acting_agent, writer_of
from limpet.store.pages import without_departed
from limpet.store.protocol import Query

LIMIT: Final = 20
LIMIT_MAX: Final = 200
CYCLES: Final = 3
CYCLES_MAX: Final = 10
MemoryTarget: TypeAlias = Literal["session_state", "working_buffer"]
ReadableTarget: TypeAlias = Literal["checkpoint", "shell_state", "session_state", "working_buffer"]
_NONE: Final[Mapping[str, Any]] = {}
_RESULT_BYTES_MAX: Final = EVENT_BYTES_MAX // 2  # encoded: it is recorded, and goes to a model


class ManagedTools:
    """The tools of one turn: pass `specs` to a model, and each call it makes to `call`.

    `lp` is needed for learnings and for running children; `harnesses` maps their apps to harnesses.
    `only` limits the tools; by default all are available.
    """

    def __init__(
        self,
        turn: Turn,
        lp: Limpet | None = None,
        *,
        harnesses: Mapping[str, Any] = _NONE,
        only: Iterable[str] | None = None,
    ) -> None:
        names = list(BY_NAME if only is None else only)
        if unknown := [name for name in names if name not in BY_NAME]:
            raise InvalidInput(f"there is no managed tool {unknown[0]!r}. See ManagedTools.names.")
        self._turn, self._lp, self._harnesses = turn, lp, harnesses
        self.names = tuple(names)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The name, the description and the JSON schema of the input of each tool, for a model."""
        return [tool_spec(BY_NAME[name]) for name in self.names]

    async def call(self, name: str, input: Mapping[str, Any] = _NONE) -> Any:
        """Run a tool as a recorded call of the turn, and return plain JSON.

        A refusal by the tool is returned as {"error": {"code", "message"}}. A tool that needs
        approval pauses the turn. Raises ToolDenied, and anything that ends the turn.
        """
        if name not in self.names:
            return refused(InvalidInput(f"there is no tool {described(name)} here."))
        if not isinstance(input, Mapping):
            wrong = type(input).__name__
            wanted = f"the input of {name} is an object with its arguments, not {wrong}."
            return refused(InvalidInput(wanted))
        turn = self._turn
        try:  # it is hashed, may be shown to a person, and is recorded: it has to be plain JSON
            given = settle(dict(input), f"the input of {name}")
            asked = await turn.permitted(name, given)
        except TurnError:
            raise
        except InvalidInput as error:
            return refused(error)
        number = turn.run.records.occurrence("managed", name)
        id = identity(turn.id, "managed", name, number)
        caller = ToolCaller(turn.session, self._lp, id, turn, self._harnesses)
        if BY_NAME[name].records:
            return await _traced(name, asked, caller)
        return await turn.step(MANAGED + name, lambda given: _traced(name, given, caller), asked)


class ToolCaller(msgspec.Struct, frozen=True):
    """The caller of a tool: a session, in a turn of its own or, from a door, outside of any.

    `id` is the same whenever the same call of the turn is made.
    """

    session: Session[Any]
    lp: Limpet | None
    id: str
    turn: Turn | None = None
    harnesses: Mapping[str, Any] = _NONE

    @property
    def in_turn(self) -> Turn:
        """Return the turn. Raises InvalidInput if there is none."""
        if self.turn is None:
            raise InvalidInput("this tool is for a session's own turn. A harness offers it.")
        return self.turn

    @property
    def agent(self) -> str:
        """Return the name under which the session learns."""
        return agent_of(self.session.head)

    async def other(self, id: str | None) -> Session[Any]:
        """The session of the turn, one of any app that was delegated from it, or another one of its
        user and app. Raises SessionNotFound if a child's key is another session's, AccessDenied if
        the agent of the turn may not enter the other one."""
        own = self.session
        if id is None or id == own.id:
            return own
        for made in await own.read_ids([created_id(id)]):
            if made.type == CHILD_CREATED and made.data is not None:
                return await open_child(own, Key(made.data["app"], made.data["user"], id))
        other: Session[Any] = Session(writer_of(own).services, Key(own.app, own.user, id))
        if self.turn is not None:
            await other.refresh(tail=0)
            agent = acting_agent(writer_of(own))
            denial = sibling_denial(own.head, "read", other.head, agent)
            if denial is not None:
                raise AccessDenied(denial, "read", str(Resource.of(other.key)), policy=SIBLINGS)
        return other

    def lists(self, head: Head) -> bool:
        """True if the agent of the turn may know of this session."""
        own = self.session
        agent = acting_agent(writer_of(own))
        return self.turn is None or sibling_denial(own.head, "inspect", head, agent) is None


class ManagedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool: its fields are its input, its docstring is what the model reads."""

    name: ClassVar[str] = ""
    records: ClassVar[bool] = False  # it records its own call in the turn
    needs_turn: ClassVar[bool] = False

    async def run(self, caller: ToolCaller) -> Any:
        raise NotImplementedError  # every tool has its own


# --- sessions ------------------------------------------------------------------------------------


class SessionList(ManagedTool, frozen=True):
    """List the user's sessions of this agent, the newest first: status, outcome, what waits.

    lineage "children" lists only those delegated from this session that are still at work.
    """

    name: ClassVar[str] = "session_list"
    limit: int = LIMIT
    cursor: str | None = None
    lineage: Literal["all", "children"] = "all"

    async def run(self, caller: ToolCaller) -> SessionsShown:
        if self.lineage == "children":
            return {"children": (await SessionListChildren().run(caller))["children"]}
        own = caller.session
        query = Query(app=own.app, user=own.user)
        store = writer_of(own).journal.store
        page = await store.heads(query, cursor=self.cursor, limit=check_limit(self.limit))
        heads = [head for head in without_departed(page).items if caller.lists(head)]
        named = [head.key for head in heads if "outcome" in head.facts]
        sessions = await store.load_many(named, tail=0) if named else ()
        texts = {each.head.key: each.texts for each in sessions if each is not None}
        shown = [head_shown(head, texts.get(head.key, NO_TEXTS)) for head in heads]
        return {"sessions": shown, "cursor": page.cursor}


class SessionGetSnapshot(ManagedTool, frozen=True):
    """Show where a session stands: status, state, outcome, budget, setup. Default: this one."""

    name: ClassVar[str] = "session_get_snapshot"
    id: str | None = None

    async def run(self, caller: ToolCaller) -> SnapshotShown:
        asked = await caller.other(self.id)
        session: Session[Any] = Session(writer_of(asked).services, asked.key)
        await session.refresh(tail=0)
        used, left, parent = session.runs.usage, session.runs.budget, session.runs.parent
        return {
            **head_shown(session.head, writer_of(session).known.texts),
            "status": session.status,
            "state": {n: v for n, v in session.values.items() if not n.startswith("temp:")},
            "usage": {"turns": used.turns, "tokens": used.tokens, "cost": used.cost},
            "remaining": None if left is None else left.remaining.cost,
            "parent": None if parent is None else {"id": parent.id, "app": parent.app},
            "agent": session.setup.current.agent,
            "environment": session.setup.current.environment,
            "fingerprint": session.setup.current.fingerprint,
        }


class SessionGetEvents(ManagedTool, frozen=True):
    """Read events of a session in order: after a seq, before a seq, or around one; the newest if
    nothing is said. `types` are exact ("agent.message") or families ("user.*")."""

    name: ClassVar[str] = "session_get_events"
    id: str | None = None
    after: int | None = None
    before: int | None = None
    around: int | None = None
    types: list[str] | None = None
    limit: int = LIMIT

    async def run(self, caller: ToolCaller) -> EventsShown:
        if sum(each is not None for each in (self.after, self.before, self.around)) > 1:
            raise InvalidInput("pass one of after, before and around.")
        session, limit = await caller.other(self.id), check_limit(self.limit)
        types = self.types
        if self.around is not None:
            half = limit // 2
            older = await session.read(
                before=self.around, limit=max(1, half), reverse=True, types=types
            )
            newer = await session.read(after=self.around - 1, limit=limit - half, types=types)
            events = [*older[::-1], *newer]
        elif self.after is not None:
            events = list(await session.read(after=self.after, limit=limit, types=types))
        else:
            newest = await session.read(before=self.before, limit=limit, reverse=True, types=types)
            events = list(newest[::-1])
        return {"events": [event_shown(event) for event in events]}


class SessionGetTrace(ManagedTool, frozen=True):
    """Read one wake of a session again, with its spans and all of its events. Default: the newest
    wake that has ended. A limit cuts the events, the oldest first."""

    name: ClassVar[str] = "session_get_trace"
    wake_id: str | None = None
    id: str | None = None
    limit: int | None = None

    async def run(self, caller: ToolCaller) -> TraceShown:
        session = await caller.other(self.id)
        if self.limit is not None and self.limit < 1:
            raise InvalidInput(f"limit is a number from 1, not {self.limit}.")
        wakes = () if self.wake_id is not None else await session.runs.wakes(limit=2)
        ended = [
            str(w.wake_id) for w in wakes if caller.turn is None or w.wake_id != caller.turn.wake_id
        ]
        if self.wake_id is None and not ended:
            raise InvalidInput(f"session {session.key} has no wakes that have ended.")
        trace = await session.runs.trace(ended[0] if self.wake_id is None else self.wake_id)
        events = trace.events if self.limit is None else trace.events[: self.limit]
        spans: list[SpanShown] = [
            {"id": s.id, "parent": s.parent, "kind": s.kind, "name": s.name, "result": s.result}
            for s in trace.spans
        ]
        shown = [event_shown(event) for event in events]
        return {"wake_id": trace.wake_id, "spans": spans, "events": shown}


class SessionListChildren(ManagedTool, frozen=True):
    """List the sessions that were delegated from this one and are still at work; with ended also
    the newest that have ended, with their outputs."""

    name: ClassVar[str] = "session_list_children"
    ended: bool = False

    async def run(self, caller: ToolCaller) -> ChildrenShown:
        own = caller.session
        journal = writer_of(own).journal
        sessions = await journal.store.load_many(list(await own.runs.children()), tail=0)
        of = (own.key, own.head.uid)
        at_work = [each for each in sessions if each and works_for(each.head.facts, *of)]
        shown: ChildrenShown = {"children": [head_shown(s.head, s.texts) for s in at_work]}
        if not self.ended:
            return shown
        kin = await kin_of(journal, own.key, 1)
        over = [_ended(child) for child in kin.children if child.stop_reason is not None]
        return {**shown, "ended": over[-LIMIT_MAX:]}


class SessionDelegate(ManagedTool, frozen=True):
    """Create a child session of an app that works on a message. Its end wakes this session."""

    name: ClassVar[str] = "session_delegate"
    needs_turn: ClassVar[bool] = True
    records: ClassVar[bool] = True
    app: str
    message: str
    title: str | None = None
    budget: float | None = None
    tools: list[str] | None = None

    async def run(self, caller: ToolCaller) -> DelegatedShown:
        child = await caller.in_turn.delegate(
            self.app, self.message, title=self.title, budget=self.budget, tools=self.tools
        )
        return {"id": child.key.id, "app": child.key.app}


class SessionRunChild(ManagedTool, frozen=True):
    """Run one direct child of this session for a few turns, until nothing is left to do."""

    name: ClassVar[str] = "session_run_child"
    needs_turn: ClassVar[bool] = True
    id: str
    cycles: int = CYCLES

    async def run(self, caller: ToolCaller) -> ChildRunShown:
        if not 1 <= self.cycles <= CYCLES_MAX:
            raise InvalidInput(f"cycles is a number from 1 to {CYCLES_MAX}, not {self.cycles}.")
        keys = [key for key in await caller.session.runs.children() if key.id == self.id]
        if not keys:
            raise InvalidInput(f"{self.id!r} is not a child of this session that is at work.")
        key = (await open_child(caller.session, keys[0])).key
        if caller.lp is None or key.app not in caller.harnesses:
            raise InvalidInput(f"no harness for {key.app!r} was given here. A worker runs it.")
        permissions = caller.in_turn.run.permissions  # of the worker, too: a child may not do more
        reasons: list[str] = []
        while len(reasons) < self.cycles:
            harness = caller.harnesses[key.app]
            woken = await caller.lp.wake(key, harness, permissions=permissions)
            if not woken.ran:
                break
            reasons.append(woken.reason)
        child: Session[Any] = Session(writer_of(caller.session).services, key)
        await child.refresh(tail=0)
        shown = head_shown(child.head, writer_of(child).known.texts)
        ended = bool((delegation(child.head.facts) or EMPTY).get("ended"))
        return {**shown, "cycles": len(reasons), "runs": reasons, "ended": ended}


# --- setup ---------------------------------------------------------------------------------------


class EnvironmentDescribe(ManagedTool, frozen=True):
    """Describe the environment that this session runs in."""

    name: ClassVar[str] = "environment_describe"

    async def run(self, caller: ToolCaller) -> EnvironmentShown:
        document = await caller.session.setup.environment()
        return {"environment": None if document is None else _show_document(document)}


class VaultList(ManagedTool, frozen=True):
    """List the names of the secrets that this session may use; never where they are kept."""

    name: ClassVar[str] = "vault_list"

    async def run(self, caller: ToolCaller) -> VaultsShown:
        vaults = await caller.session.setup.vaults()
        return {"vaults": {name: list(names) for name, names in vaults.items()}}


class PermissionsDescribe(ManagedTool, frozen=True):
    """Show which tools may be used: always_allow, always_ask or deny; * is every other tool."""

    name: ClassVar[str] = "permissions_describe"
    needs_turn: ClassVar[bool] = True

    async def run(self, caller: ToolCaller) -> PermissionsShown:
        return {"tools": dict(caller.in_turn.permissions)}


class PermissionsCheck(ManagedTool, frozen=True):
    """Say whether one tool may be used: always_allow, always_ask or deny."""

    name: ClassVar[str] = "permissions_check"
    needs_turn: ClassVar[bool] = True
    tool: str

    async def run(self, caller: ToolCaller) -> PermissionShown:
        return {"tool": self.tool, "permission": caller.in_turn.permission(self.tool)}


class ResourcesList(ManagedTool, frozen=True):
    """List what this session works on."""

    name: ClassVar[str] = "resources_list"

    async def run(self, caller: ToolCaller) -> ResourcesShown:
        return {
            "resources": [_show_document(each) for each in await caller.session.setup.resources()]
        }


class AgentDescribeSetup(ManagedTool, frozen=True):
    """Show what this session was set up with, by version, and its fingerprint."""

    name: ClassVar[str] = "agent_describe_setup"

    async def run(self, caller: ToolCaller) -> SetupShown:
        setup = caller.session.setup.current
        return {
            "agent": setup.agent,
            "environment": setup.environment,
            "permissions": setup.permissions,
            "tools": msgspec.to_builtins(setup.tools),
            "resources": list(setup.resources),
            "vaults": list(setup.vaults),
            "limits": dict(setup.limits),
            "fingerprint": setup.fingerprint,
        }


class AgentCompareSetup(ManagedTool, frozen=True):
    """Show what differs from another session's setup, or from the newest versions."""

    name: ClassVar[str] = "agent_compare_setup"
    id: str | None = None

    async def run(self, caller: ToolCaller) -> ChangesShown:
        other = None
        if self.id is not None:
            other = (await (await caller.other(self.id)).refresh(tail=0)).setup.current
        changes = await caller.session.setup.compare(other)
        return {"changes": [str(change) for change in changes]}


# --- memory, learnings and the outcome -----------------------------------------------------------


class MemoryList(ManagedTool, frozen=True):
    """List what this session keeps for itself, with versions, and what may be written."""

    name: ClassVar[str] = "memory_list"

    async def run(self, caller: ToolCaller) -> BuffersShown:
        infos = await caller.session.memory.buffers()
        return {"stores": [msgspec.to_builtins(each) for each in infos]}


class MemoryRead(ManagedTool, frozen=True):
    """Read one of them: the newest version, or an older one."""

    name: ClassVar[str] = "memory_read"
    target: ReadableTarget
    version: int | None = None

    async def run(self, caller: ToolCaller) -> NoteShown:
        if self.target == "checkpoint":
            return await _checkpoint(caller, self.version)
        note = await getattr(caller.session.memory, self.target).read(self.version)
        return {"target": self.target, "version": 0} if note is None else _show_note(note)


class MemoryWrite(ManagedTool, frozen=True):
    """Write session_state or working_buffer: replace it, or append a text or a list. With
    expect_version only if it is at that version; else read it again and decide again."""

    name: ClassVar[str] = "memory_write"
    target: MemoryTarget
    value: Any
    mode: Literal["replace", "append"] = "replace"
    expect_version: int | None = None

    async def run(self, caller: ToolCaller) -> NoteShown:
        buffer: Buffer = getattr(caller.session.memory, self.target)
        turn = caller.turn
        if turn is not None and not turn.run.log.is_begun:  # what a run writes comes after it began
            await turn.run.log.flush()
        id, trace = caller.id, None if turn is None else Trace(wake_id=turn.wake_id)
        if self.mode == "replace":
            expect = self.expect_version
            return _show_note(await buffer.write(self.value, expect=expect, id=id, trace=trace))
        if self.expect_version is not None:
            raise InvalidInput("append needs no expect_version: it adds to the newest version.")
        return _show_note(await buffer.append(self.value, id=id, trace=trace))


class MemoryListVersions(ManagedTool, frozen=True):
    """List the newest versions of shell_state, session_state or working_buffer."""

    name: ClassVar[str] = "memory_list_versions"
    target: Literal["shell_state", "session_state", "working_buffer"]
    limit: int = LIMIT

    async def run(self, caller: ToolCaller) -> NotesShown:
        buffer: Buffer = getattr(caller.session.memory, self.target)
        notes = await buffer.history(limit=check_limit(self.limit))
        return {"versions": [_show_note(note) for note in notes]}


class LearningList(ManagedTool, frozen=True):
    """List what sessions of this agent have learned, and the memory curated from it."""

    name: ClassVar[str] = "learning_list"

    async def run(self, caller: ToolCaller) -> LearningsShown:
        if caller.lp is None:
            raise InvalidInput("this harness gave its tools no Limpet: ManagedTools(turn, lp).")
        agent = caller.agent
        learnings = [msgspec.to_builtins(each) for each in await caller.lp.learnings(agent)]
        return {"learnings": learnings, "memory": await caller.lp.memory_of(agent)}


class MemoryPromoteNote(ManagedTool, frozen=True):
    """Promote a learning of this session into the agent's memory, if the gates of the app hold."""

    name: ClassVar[str] = "memory_promote_note"
    learning: str  # its id, as learning_list has it

    async def run(self, caller: ToolCaller) -> PromotedShown:
        if caller.lp is None:
            raise InvalidInput("this harness gave its tools no Limpet: ManagedTools(turn, lp).")
        agent, own = caller.agent, caller.session
        same = [each for each in await caller.lp.learnings(agent) if each.id == self.learning]
        if not same:
            raise InvalidInput(f"there is no learning {self.learning!r}. See learning_list.")
        document = await caller.lp.promote(agent, same[0], session=own.key, actor=own.actor)
        return {"agent": agent, "version": document.version}


class OutcomeRead(ManagedTool, frozen=True):
    """Show what this session is to achieve, how far it is, and the last verdict."""

    name: ClassVar[str] = "outcome_read"

    async def run(self, caller: ToolCaller) -> GradeShown:
        grade, outcome = await caller.session.outcome.grade(), caller.session.outcome.current
        return {
            "grade": grade,
            "outcome": None if outcome is None else msgspec.to_builtins(outcome),
        }


class OutcomeDefine(ManagedTool, frozen=True):
    """Say what this session is to achieve, and by which criteria that is judged."""

    name: ClassVar[str] = "outcome_define"
    records: ClassVar[bool] = True
    title: str
    detail: str | None = None
    criteria: tuple[str, ...] = ()

    async def run(self, caller: ToolCaller) -> DefinedShown:
        data = outcome_defined(self.title, self.detail, self.criteria).data
        if caller.turn is None:
            event = await caller.session.outcome.define(self.title, self.detail, self.criteria)
            return {"title": self.title, "seq": event.seq}
        event = await caller.turn.append("user.define_outcome", data)
        with suppress(NotPending):  # the turn that defines it has seen it
            await caller.session.mark_processed([event.seq], actor=caller.session.actor)
        return {"title": self.title, "seq": event.seq}


class OutcomeHistory(ManagedTool, frozen=True):
    """List definitions of the outcome and verdicts on it, the newest first."""

    name: ClassVar[str] = "outcome_history"
    limit: int = LIMIT

    async def run(self, caller: ToolCaller) -> EventsShown:
        events = await caller.session.outcome.history(limit=check_limit(self.limit))
        return {"events": [event_shown(event) for event in events]}


_ALL: Final[tuple[type[ManagedTool], ...]] = (
    SessionList,
    SessionGetSnapshot,
    SessionGetEvents,
    SessionGetTrace,
    SessionListChildren,
    SessionDelegate,
    SessionRunChild,
    EnvironmentDescribe,
    VaultList,
    PermissionsDescribe,
    PermissionsCheck,
    ResourcesList,
    AgentDescribeSetup,
    AgentCompareSetup,
    MemoryList,
    MemoryRead,
    MemoryWrite,
    MemoryListVersions,
    LearningList,
    MemoryPromoteNote,
    OutcomeRead,
    OutcomeDefine,
    OutcomeHistory,
)
BY_NAME: Final[Mapping[str, type[ManagedTool]]] = {tool.name: tool for tool in _ALL}


# --- running one ---------------------------------------------------------------------------------


async def _traced(name: str, input: Mapping[str, Any], caller: ToolCaller) -> Any:
    """Run a tool. Its span is recorded with whatever is recorded next: with its result, if that is
    a step; no call takes another commit for it."""
    turn, began = caller.in_turn, time.perf_counter_ns()
    result, refusal = await run_tool(name, input, caller)
    span = identity(caller.id, "span")
    if f"{span}/completed" not in turn.run.records.events:  # an earlier run has made this very call
        took_us = (time.perf_counter_ns() - began) // 1_000
        ended: Any = "success" if refusal is None else "error"
        begin = span_started(span, "tool", name, parent=turn.wake_id)
        end = span_completed(
            span, "tool", name, ended, parent=turn.wake_id, error=refusal, took_us=took_us
        )
        turn.run.log.queue(structs.replace(begin, id=f"{span}/started"))
        turn.run.log.queue(structs.replace(end, id=f"{span}/completed"))
    return result


async def run_tool(
    name: str, input: Mapping[str, Any], caller: ToolCaller
) -> tuple[Any, str | None]:
    """Run a tool. Return its result, and why it refused, if it did.

    Raises what is not the model's to know: TurnError, StoreError, SessionFenced.
    """
    try:
        tool = msgspec.convert(dict(input), BY_NAME[name])
        result = msgspec.to_builtins(await tool.run(caller))
        if (size := len(msgspec.json.encode(result))) > _RESULT_BYTES_MAX:
            raise InvalidInput(
                f"the result has {size:,} bytes, more than {_RESULT_BYTES_MAX:,}. Ask for less."
            )
    except msgspec.ValidationError as error:
        refusal: LimpetError = InvalidInput(f"the input does not fit {name}: {error}.")
    except BudgetReached as error:  # a budget that the model asks for, not one that the turn needs
        refusal = error
    except (TurnError, StoreError, SessionFenced):  # not the model's to know
        raise
    except LimpetError as error:
        refusal = error
    except Exception as error:  # our mistake: the model may go on without this tool
        what = (caller.session.key, name, type(error).__name__)
        SESSION.error("managed tool broke: session=%s tool=%s error=%s", *what)
        refusal = InvalidInput(f"{name} cannot be run with this input ({type(error).__name__}).")
    else:
        return result, None
    shown = refused(refusal)
    return shown, shown["error"]["message"]


def refused(error: LimpetError) -> dict[str, Any]:
    """Return a refusal as a result that a model reads."""
    return {"error": {"code": error.code, "message": readable(str(error))}}


def tool_spec(tool: type[ManagedTool]) -> dict[str, Any]:
    schema = msgspec.json.schema(tool)
    body = dict(schema["$defs"][tool.__name__])
    for name in ("title", "description"):
        body.pop(name, None)
    return {"name": tool.name, "description": tool_words(tool), "input_schema": body}


def tool_words(tool: type[ManagedTool]) -> str:
    """Return what a model reads about a tool."""
    return " ".join((tool.__doc__ or "").split())


def result_type(tool: type[ManagedTool]) -> Any:
    """Return the type of what a tool returns."""
    return get_type_hints(tool.run)["return"]


# --- forms ---------------------------------------------------------------------------------------


def check_limit(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput(f"limit is a number from 1 to {LIMIT_MAX}, not {limit}.")
    return limit


def event_shown(event: Event) -> EventShown:
    """Return an event as a model reads it."""
    shown: EventShown = {
        "seq": event.seq,
        "id": event.id,
        "type": event.type,
        "actor": event.actor,
        "at": time_form(event.at_us),
        "data": event.data,
    }
    if event.wake_id is not None:
        shown["wake_id"] = event.wake_id
    if event.processed is not None:
        shown["processed"] = event.processed != 0
    return shown


def head_shown(head: Head, texts: Texts = NO_TEXTS) -> SessionShown:
    """Return where a session stands, in a line."""
    facts = head.facts
    shown: SessionShown = {
        "id": head.key.id,
        "app": head.key.app,
        "phase": head.phase,
        "version": head.version,
        "pending": head.pending,
        "stop_reason": run_in(facts).get("stop"),
        "labels": dict(head.labels),
        "blocked_on": [request.id for request in open_requests(facts)],
        "updated_at": time_form(head.updated_us),
    }
    if (outcome := outcome_in(facts, texts)) is not None:
        shown["outcome"] = {"title": outcome.title, "verdict": outcome.verdict}
    return shown


def _ended(kin: Kin) -> EndedShown:
    return {
        "id": kin.key.id,
        "app": kin.key.app,
        "title": kin.title,
        "stop_reason": kin.stop_reason,
        "summary": kin.summary,
        "output": kin.output,
    }


def _show_document(document: Document) -> DocumentShown:
    return {"name": document.name, "version": document.version, "value": document.value}


async def _checkpoint(caller: ToolCaller, number: int | None) -> NoteShown:
    page = await caller.session.history.checkpoints(limit=1_000)
    checkpoints = [c for c in page.items if number is None or c.number == number]
    if not checkpoints:
        return {"target": "checkpoint", "version": 0}
    newest = checkpoints[0]
    value = await caller.session.history.at(newest.ref)
    return {"target": "checkpoint", "version": newest.number, "value": value}


def _show_note(note: Note) -> NoteShown:
    at = time_form(round(note.at.timestamp() * 1_000_000))
    return {"target": note.name, "version": note.version, "value": note.value, "at": at}
