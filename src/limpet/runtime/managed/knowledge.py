"""Tools about what an agent knows and aims at: its buffers, learnings and outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Literal

import msgspec

from limpet.errors import InvalidInput, NotPending
from limpet.model import Trace
from limpet.model.facts.outcomes import outcome_defined
from limpet.runtime.managed.asking import LIMIT, Caller, Tool, check_limit, event_shown
from limpet.session.runs.buffers import Buffer, Note
from limpet.session.wire import time_form

Target = Literal["session_state", "working_buffer"]
Readable = Literal["checkpoint", "shell_state", "session_state", "working_buffer"]


class MemoryList(Tool, frozen=True):
    """List what this session keeps for itself, with versions, and what may be written."""

    name: ClassVar[str] = "memory_list"

    async def run(self, caller: Caller) -> Any:
        infos = await caller.session.memory.buffers()
        return {"stores": [msgspec.to_builtins(each) for each in infos]}


class MemoryRead(Tool, frozen=True):
    """Read one of them: the newest version, or an older one."""

    name: ClassVar[str] = "memory_read"
    target: Readable
    version: int | None = None

    async def run(self, caller: Caller) -> Any:
        if self.target == "checkpoint":
            return await _checkpoint(caller, self.version)
        note = await getattr(caller.session.memory, self.target).read(self.version)
        return {"target": self.target, "version": 0} if note is None else _shown(note)


class MemoryWrite(Tool, frozen=True):
    """Write session_state or working_buffer: replace it, or append a text or a list. With
    expect_version only if it is at that version; else read it again and decide again."""

    name: ClassVar[str] = "memory_write"
    target: Target
    value: Any
    mode: Literal["replace", "append"] = "replace"
    expect_version: int | None = None

    async def run(self, caller: Caller) -> Any:
        buffer: Buffer = getattr(caller.session.memory, self.target)
        if not caller.turn.log.is_begun:  # what a run writes comes after its beginning
            await caller.turn.log.flush()
        id, trace = caller.id, Trace(wake_id=caller.turn.wake_id)
        if self.mode == "replace":
            expect = self.expect_version
            return _shown(await buffer.write(self.value, expect=expect, id=id, trace=trace))
        if self.expect_version is not None:
            raise InvalidInput("append needs no expect_version: it adds to the newest version.")
        return _shown(await buffer.append(self.value, id=id, trace=trace))


class MemoryListVersions(Tool, frozen=True):
    """List the newest versions of shell_state, session_state or working_buffer."""

    name: ClassVar[str] = "memory_list_versions"
    target: Literal["shell_state", "session_state", "working_buffer"]
    limit: int = LIMIT

    async def run(self, caller: Caller) -> Any:
        buffer: Buffer = getattr(caller.session.memory, self.target)
        notes = await buffer.history(limit=check_limit(self.limit))
        return {"versions": [_shown(note) for note in notes]}


class LearningList(Tool, frozen=True):
    """List what sessions of this agent have learned, and the memory curated from it."""

    name: ClassVar[str] = "learning_list"

    async def run(self, caller: Caller) -> Any:
        if caller.lp is None:
            raise InvalidInput("this harness gave its tools no Limpet: ManagedTools(turn, lp).")
        agent = caller.turn.agent_name
        found = [msgspec.to_builtins(each) for each in await caller.lp.learnings(agent)]
        return {"learnings": found, "memory": await caller.lp.memory_of(agent)}


class MemoryPromoteNote(Tool, frozen=True):
    """Promote a learning of this session into the agent's memory, if the gates of the app hold."""

    name: ClassVar[str] = "memory_promote_note"
    learning: str  # its id, as learning_list has it

    async def run(self, caller: Caller) -> Any:
        if caller.lp is None:
            raise InvalidInput("this harness gave its tools no Limpet: ManagedTools(turn, lp).")
        agent, own = caller.turn.agent_name, caller.session
        found = [each for each in await caller.lp.learnings(agent) if each.id == self.learning]
        if not found:
            raise InvalidInput(f"there is no learning {self.learning!r}. See learning_list.")
        document = await caller.lp.promote(agent, found[0], session=own.key, actor=own.actor)
        return {"agent": agent, "version": document.version}


class OutcomeRead(Tool, frozen=True):
    """Show what this session is to achieve, how far it is, and the last verdict."""

    name: ClassVar[str] = "outcome_read"

    async def run(self, caller: Caller) -> Any:
        grade, outcome = await caller.session.outcome.grade(), caller.session.outcome.current
        return {
            "grade": grade,
            "outcome": None if outcome is None else msgspec.to_builtins(outcome),
        }


class OutcomeDefine(Tool, frozen=True):
    """Say what this session is to achieve, and by which criteria that is judged."""

    name: ClassVar[str] = "outcome_define"
    records: ClassVar[bool] = True
    title: str
    detail: str | None = None
    criteria: tuple[str, ...] = ()

    async def run(self, caller: Caller) -> Any:
        data = outcome_defined(self.title, self.detail, self.criteria).data
        event = await caller.turn.append("user.define_outcome", data)
        with suppress(NotPending):  # the turn that defines it has seen it
            await caller.session.mark_processed([event.seq], actor=caller.session.actor)
        return {"title": self.title, "seq": event.seq}


class OutcomeHistory(Tool, frozen=True):
    """List definitions of the outcome and verdicts on it, the newest first."""

    name: ClassVar[str] = "outcome_history"
    limit: int = LIMIT

    async def run(self, caller: Caller) -> Any:
        events = await caller.session.outcome.history(limit=check_limit(self.limit))
        return {"events": [event_shown(event) for event in events]}


async def _checkpoint(caller: Caller, number: int | None) -> Any:
    page = await caller.session.history.checkpoints(limit=1_000)
    found = [c for c in page.items if number is None or c.number == number]
    if not found:
        return {"target": "checkpoint", "version": 0}
    newest = found[0]
    value = await caller.session.history.at(newest.ref)
    return {"target": "checkpoint", "version": newest.number, "value": value}


def _shown(note: Note) -> dict[str, Any]:
    at = time_form(round(note.at.timestamp() * 1_000_000))
    return {"target": note.name, "version": note.version, "value": note.value, "at": at}


TOOLS = (
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
