"""Checkpoints of a graph that runs in a turn: they are recorded in the session, as its steps.

A run of a node has a name that is the same however often the harness runs: the nodes around it, how
often each was visited, the instance or branch, and the attempt. Calls of the turn are recorded
under that name. A completed node is one `step.recorded` event, which holds what the checkpoint of
the run changed, in one commit. The next run of the turn folds these events, starts at the last
completed node, and counts the calls of completed nodes as reached.

    pay            the first run of the node `pay`
    pay#2          its second visit, in a loop
    pay~2          its second attempt, by middleware that retries it
    each[3]/pay    in the fourth instance of the fan-out `each`; a branch has its name there
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from limpet.errors import TurnMismatch, error_text
from limpet.graph.checkpoint import CheckpointRecord, InMemoryCheckpointer
from limpet.model import Draft, PlainOp, freeze, thaw
from limpet.model.facts.running.runs import node_recorded, span_completed, span_started
from limpet.model.ops import apply
from limpet.runtime.requests import approval_id
from limpet.runtime.turn import Turn
from limpet.runtime.turn_log import EffectRecord, identity
from limpet.session.life.tools import Tool

INITIAL: Final = "@initial"  # the part of a harness before its graph; no node has this name
PART_CHARS_MAX: Final = 160  # of the name of a node's run; the rest is for the name of the call
# Characters that separate the parts of a name, and those that no name may have.
_SPECIAL: Final = re.compile(r"[%/#~\[\]\x00-\x1f\x7f\ud800-\udfff]|^[\s@]|\s$")
_COMPONENT: Final = re.compile(r"(.*/)?([^/~\[]+)(~\d+)?(\[[^\]]*\])?(~\d+)?")
_ATTEMPT: Final = re.compile(r"~\d+")
# Members in which two documents of one run differ although they mean the same.
_COUNTED: Final = ("revision", "last_saved_at")


class NodeRun:
    """One run of a node: its name, without the attempt and with it, and its span."""

    __slots__ = ("base", "effects", "number", "offered", "part", "span", "started_us", "visit")

    def __init__(self, base: str, number: int, span: str, started_us: int) -> None:
        self.base, self.number = base, number
        self.visit = self.part = base if number == 1 else f"{base}#{number}"
        self.span, self.started_us = span, started_us
        self.effects: Counter[str] = Counter()  # of this attempt, by name
        self.offered: dict[str, Tool] | None = None  # to the last model that this attempt called

    def begin_attempt(self, part: str) -> None:
        """Begin an attempt under this name."""
        self.part, self.effects, self.offered = part, Counter(), None


class TurnCheckpoints(InMemoryCheckpointer):
    """The checkpoint record of the graph of one turn, and which of its nodes have run.

    A save returns when it is recorded. The first record, that of a suspension and that of the end
    are recorded with the next event of the turn: its first call, the request, or the reply.
    """

    def __init__(self, turn: Turn, graph: str, drawing: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.turn, self.run, self._graph = turn, turn.run, graph
        self._drawing = drawing  # recorded once, with the first record of the turn
        self._names: Counter[str] = Counter()  # of recorded checkpoints
        self._visits: dict[str, int] = {}  # of completed nodes, by name
        self._attempts: Counter[str] = Counter()  # that failed, by visit
        self._over: set[str] = set()  # parts of the graph that no run enters again
        self._tools: dict[str, str] = {}  # calls of tools, by id: the part that made them
        self._tools_over: set[str] = set()
        self._changes: list[list[Any]] = []  # nodes that ended since the last save
        self._spans: list[Draft] = []
        self._begun = 0
        self._lock = asyncio.Lock()
        self.signals: Counter[str] = Counter()  # that the run has waited for, by id
        self._restore()
        self.run.approved_before = self._approved_before

    # --- runs of nodes -------------------------------------------------------------------------

    def enter(
        self, path: str, node: str, before: int | None, *, resumed: bool, parent: str | None
    ) -> NodeRun:
        """Begin a visit of a node of the graph that runs as `path`, after `before` others. The
        first of a resumed graph follows those that are recorded."""
        base = _fit(f"{path}/{_escape(node)}" if path else _escape(node))
        if before is None:
            before = self._visits.get(base, 0) if resumed else 0
        return self._enter(base, before + 1, parent)

    def enter_slot(self, path: str, parent: str | None) -> NodeRun:
        """Begin a branch that is a call, not a graph."""
        return self._enter(path, 1, parent)

    def _enter(self, base: str, number: int, parent: str | None) -> NodeRun:
        turn = self.run
        self._begun += 1
        span = identity(turn.wake_id, "node", base, number, self._begun)
        run = NodeRun(base, number, span, turn.now_us)
        begun = span_started(span, "step", run.visit, parent=parent or turn.wake_id)
        turn.log.queue(msgspec.structs.replace(begun, id=f"{span}/started"))
        return run

    def slot(self, part: str, key: str) -> str:
        """The path of an instance or a branch of the node that runs as `part`."""
        return _fit(f"{part}[{_escape(key)}]")

    def attempt(self, visit: str, *, again: bool) -> str:
        """The name of this attempt of a visit. One that follows another in this run is a new one;
        the first goes on with the last that is recorded."""
        if again:  # recorded with the first call of this attempt, which belongs to it
            failed = self._attempt_name(visit)
            change = ["failed", visit, failed, self._take_calls(failed)]
            self._learn(change)
            self.run.records.pass_over(self.is_over)
            self.run.log.queue(self._draft(f"{visit}~{self._attempts[visit]}", {"nodes": [change]}))
        return self._attempt_name(visit)

    def complete(self, run: NodeRun, parent: str | None) -> None:
        """Note that a visit is done, to be recorded with the checkpoint. Raises TurnMismatch if
        it ended without an effect that an earlier run of it has recorded."""
        self._check_reached(f"{run.visit}$")
        self._spans.append(self._span_end(run, parent, None))
        self._note("done", run.base, run.number, run.visit, self._take_calls(f"{run.visit}$"))

    def leave_slot(self, run: NodeRun, parent: str | None) -> None:
        """Note that the call of a branch has returned; `complete_slot` follows."""
        self._spans.append(self._span_end(run, parent, None))

    def fail(self, run: NodeRun, parent: str | None, error: Exception) -> None:
        """Note that a visit has failed, to be recorded with the next event."""
        self.run.log.queue(self._span_end(run, parent, error_text(error)))

    def complete_slot(self, path: str) -> None:
        """Note that an instance or a branch is done: with a result, or with an error that its node
        collects. Raises TurnMismatch, as `complete`."""
        self._check_reached(f"{path}$")
        self._note("slot", path, self._take_calls(f"{path}$"))

    def calls(self, part: str) -> AbstractContextManager[None]:
        """Name the calls of the turn that are made inside after this part of the graph."""
        return self.run.part(part)

    def use_tool(self, part: str, call_id: str) -> None:
        """Note which part of the graph runs the call of a tool."""
        self._tools[call_id] = part

    def earlier(self, part: str, name: str, occurrence: int) -> Iterator[tuple[str, EffectRecord]]:
        """The records of an effect in earlier attempts of this visit, or of what is around it."""
        visit = _ATTEMPT.sub("", part)
        for (other, number), record in self.run.records.effects.items():
            before = other.removesuffix(f"/{name}")
            same = number == occurrence and before not in (other, part)
            if same and _ATTEMPT.sub("", before) == visit:
                yield before, record

    def _approved_before(self, name: str, occurrence: int, hashed: str) -> str | None:
        """The request that an earlier attempt has made for the same approval, answered or not."""
        part, records = self.run.part_name or "", self.run.records
        own = name.removeprefix(part)  # with the slash before it
        if "~" not in part or own == name:
            return None
        approval = None
        for event in records.asked.values():
            asked: str = event.data["name"]
            before = asked.removesuffix(own)
            if before in (asked, part) or _ATTEMPT.sub("", before) != _ATTEMPT.sub("", part):
                continue
            id = approval_id(self.run.id, asked, occurrence)
            last = records.asked.get(records.newest.get(id, id))
            if last is not None and last.data["input_hash"] == hashed:
                approval = id
        return approval

    def count_effect(self, part: str, name: str, occurrence: int) -> None:
        """Let the next call of this effect in a part of the graph be the one with this number, also
        if the run has made that call in an earlier attempt, or has passed by those before it."""
        with self.run.part(part):
            self.run.records.count_from("effect", self.run.named(name), occurrence)

    def is_over(self, name: str) -> bool:
        """True if a call with this name, or of a tool with this id, was made by a part of the graph
        that no run enters again."""
        return name in self._tools_over or not self._over.isdisjoint(_parts_of(name))

    def _check_reached(self, part: str) -> None:
        """Check that earlier effects were reached: once the node is recorded as done, nobody
        would miss them."""
        left = self.run.records.effects_left(lambda name: part in _parts_of(name))
        if left and not self.run.accepts:
            (occurrence, record), *_ = left
            why = "was recorded, and its node ended without it"
            raise TurnMismatch("the effect", record.name, occurrence, why, record.args)

    def _span_end(self, run: NodeRun, parent: str | None, error: str | None) -> Draft:
        turn = self.run
        end = span_completed(
            run.span,
            "step",
            run.visit,
            "success" if error is None else "error",
            parent=parent or turn.wake_id,
            error=error,
            took_us=max(0, turn.now_us - run.started_us),
        )
        return msgspec.structs.replace(end, id=f"{run.span}/completed")

    def _attempt_name(self, visit: str) -> str:
        failed = self._attempts[visit]
        return visit if not failed else f"{visit}~{failed + 1}"

    def _take_calls(self, part: str) -> list[str]:
        """The calls of tools that this part has made, to be noted with its end."""
        ids = [id for id, of in self._tools.items() if part in _parts_of(f"{of}/")]
        for id in ids:
            del self._tools[id]
        return ids

    def _note(self, *change: Any) -> None:
        self._changes.append(list(change))
        self._learn(list(change))

    def _learn(self, change: list[Any]) -> None:
        kind, *values = change
        if kind == "done":
            base, number, visit, tools = values
            self._visits[base] = max(number, self._visits.get(base, 0))
            self._over.add(f"{visit}$")
        elif kind == "failed":
            visit, part, tools = values
            self._attempts[visit] += 1
            self._over.add(part)
        else:
            path, tools = values
            self._over.add(f"{path}$")
        self._tools_over.update(tools)

    # --- the record ----------------------------------------------------------------------------

    async def save(self, record: CheckpointRecord, /) -> None:
        """Record the whole record; with the next event, if the run is suspended."""
        await super().save(record)
        await self._write({"record": self._document()}, soon=record.status == "suspended")
        self._count_signal(record.suspension)

    async def save_changes(
        self,
        invocation_id: str,
        ops: tuple[PlainOp, ...],
        whole: Callable[[], CheckpointRecord],
        /,
    ) -> None:
        """Record the operations of one step, in order; those of the last with the next event."""
        await super().save_changes(invocation_id, ops, whole)
        ended = self._kept[invocation_id].document["status"] == "completed"
        await self._write({"ops": msgspec.to_builtins(ops)}, soon=ended)

    async def claim(self, record: CheckpointRecord, revision: int, /) -> bool:
        """Record where the run starts with the next event, if the log does not say it already."""
        stored, before = self._kept.get(record.invocation_id), self._document()
        if revision != (0 if stored is None else stored.revision):
            return False
        await super().save(record)
        if self._document() != before:
            await self._write({"record": self._document()}, soon=True)
        return True

    async def _write(self, saved: dict[str, Any], *, soon: bool) -> None:
        turn, done = self.run, [each for each in self._changes if each[0] == "done"]
        if self._changes:
            saved["nodes"] = self._changes
        if self._drawing is not None and not self._names:
            saved["drawing"] = self._drawing
        spans, self._spans, self._changes = self._spans, [], []
        draft = self._draft(done[-1][3] if done else f"@{self._graph}"[:PART_CHARS_MAX], saved)
        if soon:
            for each in (*spans, draft):
                turn.log.queue(each)
            return
        with turn.working():
            async with self._lock:  # of instances that end at the same time, in this order
                await turn.log.write(*spans, draft)

    def _draft(self, name: str, saved: dict[str, Any]) -> Draft:
        self._names[name] += 1
        id = identity(self.run.id, "checkpoint", sum(self._names.values()))
        return node_recorded(id, name, self._names[name], saved, graph=self._graph)

    def _document(self) -> dict[str, Any]:
        stored = self._kept.get(self.run.id)
        if stored is None:
            return {}
        document = CheckpointRecord.from_document(thaw(stored.document)).to_document()
        return {name: value for name, value in document.items() if name not in _COUNTED}

    def _restore(self) -> None:
        """Fold what earlier runs of the turn have recorded."""
        events = [each for each in self.run.records.steps.values() if "graph" in each.data]
        for event in sorted(events, key=lambda each: each.seq):
            saved, name = thaw(event.data["result"]), event.data["name"]
            self._names[name] = max(self._names[name], event.data["occurrence"])
            if "record" in saved:
                self._put(self.run.id, freeze(saved["record"]))
                self._count_signal(saved["record"].get("suspension"))
            elif "ops" in saved:
                ops = msgspec.convert(saved["ops"], tuple[PlainOp, ...])
                self._put(self.run.id, apply(self._kept[self.run.id].document, ops))
            for change in saved.get("nodes", ()):
                self._learn(change)
        if events:
            self._over.add(f"{INITIAL}$")
            self.run.records.pass_over(self.is_over)

    def _count_signal(self, suspension: dict[str, Any] | None) -> None:
        if suspension is not None:
            self.signals[suspension["descriptor"]["signal_id"]] += 1


def _escape(name: str) -> str:
    """A name of a node or a branch as a part of another name."""
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", name)


def _fit(name: str) -> str:
    return name if len(name) <= PART_CHARS_MAX else f"…{identity(name)}"


def _parts_of(name: str) -> set[str]:
    """The parts of a graph that a call with this name is in: each attempt by its name, each visit
    and each instance or branch by its name and `$`."""
    parts: set[str] = set()
    at = name.find("/")
    while at >= 0:
        if match := _COMPONENT.fullmatch(name[:at]):
            above, node, attempt, slot, _ = [each or "" for each in match.groups()]
            parts |= {name[:at], f"{above}{node}{attempt}", f"{above}{node}$"}
            if slot:
                parts.add(f"{above}{node}{attempt}{slot}$")
        at = name.find("/", at + 1)
    return parts
