"""Resuming: from a stored record to where a run starts, and the lease of the run that has it.

An unfinished invocation continues at its cursor. A completed one begins a new turn: its final state
is the base, and the new input is folded in. A suspended one continues with the signal's payload in
place of what its state had.

Of several callers that resume an invocation, one runs it: it holds a lease on the record that it
writes, if the checkpointer gives leases. An unfinished invocation that is resumed under a new id
points to the one that goes on in its place, so that resuming it again finds what that one did.
First runs hold no lease: it would cost them a commit, and nobody resumes what never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from json import JSONDecodeError
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel

from limpet.errors import (
    CheckpointInUse,
    CheckpointLoadFailed,
    CheckpointNotFound,
    CheckpointRecordInvalid,
    CheckpointSuperseded,
    GraphMisused,
    SessionCorrupt,
    StateValidationError,
    SuspensionRecordInvalid,
    SuspensionResumePayloadInvalid,
    error_text,
)
from limpet.graph.checkpoint import (
    Checkpointer,
    CheckpointRecord,
    Frame,
    LeasingCheckpointer,
    Progress,
    ProgressSlot,
)
from limpet.graph.context import GraphPlan
from limpet.graph.engine.checkpoint_writer import CheckpointWriter, own_version
from limpet.graph.state import StatePlan
from limpet.model import described

# Errors of a checkpointer that has a record and cannot read it, not of one that is down.
_UNREADABLE: Final = (msgspec.MsgspecError, JSONDecodeError, UnicodeDecodeError, SessionCorrupt)


class Start(NamedTuple):
    """The start of a run: the outermost state and node, and what is inside that node."""

    state: Any
    node: str | None
    inside: tuple[tuple[Frame, ...], Progress | None] = ((), None)


class ResumeLease:
    """The lease of one run on one record; nothing if the checkpointer gives none."""

    def __init__(
        self, checkpointer: Checkpointer | None, leases: LeasingCheckpointer | None
    ) -> None:
        self._all, self._leases = checkpointer, leases
        self._id: str | None = None

    async def resume(self, invocation_id: str, *, signal: bool) -> CheckpointRecord:
        """The record to go on from, which nobody else runs.

        Raises CheckpointInUse, CheckpointSuperseded, or what `load_record` raises. A completed one
        is not held: any number of turns may begin from it.
        """
        record = await load_record(self._all, invocation_id, signal=signal)
        while self._leases is not None and record.status != "completed":
            await self._take(record)
            seen, record = record, await load_record(self._all, record.invocation_id, signal=signal)
            if record.revision != seen.revision:  # another had it until now, and has run it
                if seen.status == "suspended":  # what it waits for now is not what it waited for
                    raise _already_resumed(record.invocation_id)
                raise CheckpointInUse(record.invocation_id)
            if record.resumed_as is None:
                return record
            later = await self._leases.load(record.resumed_as)
            now = "deleted" if later is None else later.status
            if later is None or now not in ("running", "resumed"):
                raise CheckpointSuperseded(record.invocation_id, record.resumed_as, now)
            record = later
        return record

    async def pass_on(
        self, record: CheckpointRecord, writer: CheckpointWriter, new_id: str
    ) -> None:
        """Let the run of `new_id` go on in place of the record that is held.

        The record points to the new one, which is saved with it: there is always one to resume.
        """
        if self._leases is None:
            writer.begin_soon()
            return
        pointer = msgspec.structs.replace(record, status="resumed", resumed_as=new_id)
        if not await writer.pass_on(self._leases, pointer):
            await check_unused(self._leases, new_id)
            raise CheckpointInUse(record.invocation_id)  # it is still being written
        if not await self._leases.hold(new_id):
            raise CheckpointInUse(new_id)
        held, self._id = record.invocation_id, new_id
        await self._leases.release(held)

    async def release(self) -> None:
        """Release the lease when the run is over. One that cannot be released expires."""
        if self._leases is not None and self._id is not None:
            held, self._id = self._id, None
            with suppress(Exception):
                await self._leases.release(held)

    async def _take(self, record: CheckpointRecord) -> None:
        assert self._leases is not None
        await self.release()
        try:
            taken = await self._leases.hold(record.invocation_id)
        except Exception as error:
            raise CheckpointLoadFailed(record.invocation_id, error_text(error)) from error
        if taken:
            self._id = record.invocation_id
        elif record.status == "suspended":
            raise _already_resumed(record.invocation_id)
        else:
            raise CheckpointInUse(record.invocation_id)


def _already_resumed(invocation_id: str) -> SuspensionRecordInvalid:
    return SuspensionRecordInvalid(invocation_id, "it has been resumed already")


async def load_record(
    checkpointer: Checkpointer | None, invocation_id: str, *, signal: bool
) -> CheckpointRecord:
    """The record to resume. Raises CheckpointNotFound, or for a signal SuspensionRecordInvalid."""
    record = None if checkpointer is None else await _load(checkpointer, invocation_id)
    if record is None:
        if signal:
            raise SuspensionRecordInvalid(invocation_id, "no such invocation is stored")
        if checkpointer is None:
            raise CheckpointNotFound(invocation_id, "Build the graph with with_checkpointer(…)")
        raise CheckpointNotFound(invocation_id)
    if not isinstance(record, CheckpointRecord):
        reason = f"the checkpointer returned {described(record)}"
        raise CheckpointRecordInvalid(invocation_id, reason)
    if signal and record.status != "suspended":
        running = "it has been resumed already, or was never suspended; if its process has died, "
        running += "resume it without a signal_payload"
        reason = "it has completed" if record.status == "completed" else running
        raise SuspensionRecordInvalid(invocation_id, reason)
    return record


async def check_unused(checkpointer: Checkpointer, invocation_id: str) -> None:
    """Refuse an id that an invocation has already."""
    if await _load(checkpointer, invocation_id) is not None:
        raise id_taken(invocation_id)


def id_taken(invocation_id: str) -> GraphMisused:
    """The error of a run that would begin under the id of another."""
    return GraphMisused(
        f"there is an invocation {invocation_id!r} already. Resume it with resume_invocation, or "
        "choose another id."
    )


def check_signal(
    record: CheckpointRecord, signal_id: str | None, initial: Any, *, signal: bool
) -> None:
    """Refuse a resume whose signal was taken already: its caller came late, or tries again.

    A suspended invocation keeps its id. So a caller that found it in use and tries again may find
    that it has completed since, or that it waits for its next signal. Nothing is run for it: a new
    turn needs something new, and a next signal is answered by a caller who knows of it.
    """
    if record.status == "completed" and record.signals and not _sets_anything(initial):
        reason = (
            "it has taken its signal and has completed; to begin a new turn from it, pass an "
            "initial state that sets a field"
        )
        raise SuspensionRecordInvalid(record.invocation_id, reason)
    if record.status != "suspended":
        return
    awaited = ((record.suspension or {}).get("descriptor") or {}).get("signal_id")
    if signal_id is not None and signal_id != awaited:
        reason = f"it waits for {awaited!r}, not for {signal_id!r}"
        raise SuspensionRecordInvalid(record.invocation_id, reason)
    if record.signals and not signal:
        reason = (
            f"it has taken a signal already, and waits for its next one, {awaited!r}; to deliver "
            "that one, pass signal_payload, {} if it carries nothing"
        )
        raise SuspensionRecordInvalid(record.invocation_id, reason)


def _sets_anything(initial: Any) -> bool:
    """True if an initial state has a field that its caller set."""
    given = initial.model_fields_set if isinstance(initial, BaseModel) else initial
    return bool(given)


def check_session(record: CheckpointRecord, session_id: str | None, *, signal: bool) -> None:
    """Refuse to resume an invocation of one session in another, whose state it would replace."""
    if session_id is not None and record.session_id not in (None, session_id):
        raise _refusal(record, "it belongs to another session", signal=signal)


def check_no_session(record: CheckpointRecord, *, signal: bool) -> None:
    """Refuse to resume an invocation without a session in one that has a state: it is not in it."""
    if record.session_id is None:
        reason = "it belongs to no session, and this session has a state already"
        raise _refusal(record, reason, signal=signal)


def start_of(graph: GraphPlan[Any], record: CheckpointRecord, initial: Any, payload: Any) -> Start:
    """Return the start of a run of this graph that resumes the record. Raises, and nothing has
    run."""
    if record.graph and record.graph != graph.name:
        reason = f"it belongs to the graph {record.graph!r}, and this is {graph.name!r}"
        raise CheckpointRecordInvalid(record.invocation_id, reason)
    record = _Upgrade(graph, record).record()
    frames = _cursor(graph, record)
    if record.status == "completed":
        base = _read(graph.plan, frames[0].state, record.invocation_id)
        if initial is not None:
            base = graph.plan.fold_in(base, graph.plan.validate(initial, "the initial state"))
        return Start(base, graph.entry)
    _check(graph, frames, record.invocation_id)
    if record.status == "suspended":
        frames = _deliver_payload(graph, frames, record, payload)
    root = frames[0]
    state = _read(graph.plan, root.state, record.invocation_id)
    return Start(state, root.node, (frames[1:], root.progress))


def _refusal(record: CheckpointRecord, reason: str, *, signal: bool) -> Exception:
    kind = SuspensionRecordInvalid if signal else CheckpointRecordInvalid
    return kind(record.invocation_id, reason)


async def _load(checkpointer: Checkpointer, invocation_id: str) -> Any:
    try:
        return await checkpointer.load(invocation_id)
    except CheckpointRecordInvalid:
        raise
    except _UNREADABLE as error:
        reason = f"what is stored cannot be read ({error_text(error)})"
        raise CheckpointRecordInvalid(invocation_id, reason) from error
    except Exception as error:
        raise CheckpointLoadFailed(invocation_id, error_text(error)) from error


# --- states of another version --------------------------------------------------------------------
class _Upgrade:
    """Brings every state of a record to the version of the graph that it is a state of."""

    def __init__(self, root: GraphPlan[Any], record: CheckpointRecord) -> None:
        self._root, self._record = root, record

    def record(self) -> CheckpointRecord:
        """The record, before anything else reads it. Raises MigrationError, and for a state that
        does not fit its class CheckpointRecordInvalid."""
        root, record = self._root, self._record
        if record.cursor:
            return replace(record, cursor=self._frames(root, record.cursor))
        states, at = [], _graphs(root, record)
        for state in (*record.parent_states, record.state):
            graph = next(at, None)
            states.append(state if graph is None else self._state(graph, state, None))
        return replace(record, parent_states=tuple(states[:-1]), state=states[-1])

    def _frames(self, graph: GraphPlan[Any] | None, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        made = []
        for frame in frames:
            if graph is None:  # this graph does not have it, as is checked later
                made.append(frame)
                continue
            state = self._state(graph, frame.state, frame.schema_version)
            version = own_version(graph.plan, self._root.plan)
            progress = self._progress(graph, frame)
            made.append(replace(frame, state=state, schema_version=version, progress=progress))
            graph = graph.inside(frame.node or "")
        return tuple(made)

    def _progress(self, graph: GraphPlan[Any], frame: Frame) -> Progress | None:
        """The instances and branches that had begun; what those that are done gave is a result."""
        if frame.progress is None or frame.node not in graph.steps:
            return frame.progress
        slots = dict(frame.progress.slots)
        for key, slot in slots.items():
            if slot.frames:
                inner = graph.branch_graph(frame.node, key)
                slots[key] = replace(slot, frames=self._frames(inner, slot.frames))
        return replace(frame.progress, slots=slots)

    def _state(
        self, graph: GraphPlan[Any], state: dict[str, Any], version: str | None
    ) -> dict[str, Any]:
        """The state in the version of this graph. `version` is its own, if not the record's.

        A graph inside another is migrated by its own migrations, if they lead there, and else
        with the graphs around it, if it shares their version.
        """
        root, wanted = self._root, graph.plan.version
        stored = self._record.schema_version if version is None else version
        if stored != wanted:
            registry = root.migrations
            if graph is not root and graph.migrations.reaches(stored, wanted):
                registry = graph.migrations
            elif graph is not root and version is None and wanted != root.plan.version:
                return state  # its class has versions of its own, and did not change
            state = registry.migrate(dict(state), stored, wanted)
        _read(graph.plan, state, self._record.invocation_id)
        return state


def _graphs(root: GraphPlan[Any], record: CheckpointRecord) -> Iterator[GraphPlan[Any] | None]:
    """The graphs of a record without a cursor, the outermost first."""
    at: GraphPlan[Any] | None = root
    yield at
    for name in record.completed_positions[-1].parents if record.completed_positions else ():
        at = None if at is None else at.inside(name)
        yield at


def _read(plan: StatePlan[Any], state: Mapping[str, Any], invocation_id: str) -> Any:
    """The state of a record. Raises CheckpointRecordInvalid if it does not fit its class."""
    try:
        return plan.load(state, f"the state of invocation {invocation_id!r}")
    except StateValidationError as error:
        fields = ", ".join(error.invalid_fields) or "as a whole"
        reason = f"its state does not fit {plan.name} ({fields}): {error.reason}"
        raise CheckpointRecordInvalid(invocation_id, reason) from error


# --- where it stood -------------------------------------------------------------------------------
def _cursor(graph: GraphPlan[Any], record: CheckpointRecord) -> tuple[Frame, ...]:
    """The frames of the record; without a cursor, those after its last completed position."""
    if record.cursor:
        return record.cursor
    states = (*record.parent_states, record.state)
    if not record.completed_positions:
        return (Frame(node=graph.entry, state=states[0]),)
    last = record.completed_positions[-1]
    frames: list[Frame] = []
    at: GraphPlan[Any] | None = graph
    for name, state in zip(last.parents, states, strict=False):
        frames.append(Frame(node=name, state=state))
        at = at.inside(name) if at is not None else None
        if at is None:  # a fan-out or branches: they begin again
            return tuple(frames)
    if at is None or last.node not in at.steps:
        raise CheckpointRecordInvalid(record.invocation_id, f"this graph has no node {last.node!r}")
    state = _read(at.plan, states[len(frames)], record.invocation_id)
    frames.append(Frame(node=at.steps[last.node].next(state), state=states[len(frames)]))
    return tuple(frames)


def _check(graph: GraphPlan[Any], frames: tuple[Frame, ...], invocation_id: str) -> None:
    """Refuse a cursor that this graph does not have."""
    at: GraphPlan[Any] | None = graph
    for frame in frames:
        if at is None:
            raise CheckpointRecordInvalid(invocation_id, "its cursor is inside a plain node")
        if frame.node is None:
            return
        if frame.node not in at.steps:
            raise CheckpointRecordInvalid(
                invocation_id, f"this graph has no node {frame.node!r}, where it stopped"
            )
        at = at.inside(frame.node)


# --- signals --------------------------------------------------------------------------------------
def _deliver_payload(
    graph: GraphPlan[Any], frames: tuple[Frame, ...], record: CheckpointRecord, payload: Any
) -> tuple[Frame, ...]:
    """The frames with the payload in the state of the graph that suspended."""
    values = {} if payload is None else payload
    if not isinstance(values, Mapping):
        reason = f"it is {described(payload)}, not a dict of fields"
        raise SuspensionResumePayloadInvalid(record.invocation_id, reason)
    known = record.suspension or {}
    try:
        return _into(
            graph, frames, list(known.get("slots", ())), values, completed=bool(known["completed"])
        )
    except StateValidationError as error:
        reason = f"{', '.join(error.invalid_fields) or 'as a whole'}: {error.reason}"
        raise SuspensionResumePayloadInvalid(record.invocation_id, reason) from error
    except (KeyError, IndexError, AttributeError) as error:
        reason = f"its record of the suspension is not complete ({error})"
        raise SuspensionRecordInvalid(record.invocation_id, reason) from error


def _into(
    graph: GraphPlan[Any],
    frames: tuple[Frame, ...],
    slots: list[str],
    values: Mapping[str, Any],
    *,
    completed: bool,
) -> tuple[Frame, ...]:
    for frame in frames[:-1]:
        inner = graph.inside(frame.node or "")
        assert inner is not None  # as checked
        graph = inner
    last = frames[-1]
    name = last.node or ""
    if slots:
        progress = last.progress or Progress(total=len(graph.branches_of(name)))
        inner = graph.branch_graph(name, slots[0])
        slot = progress.slots.get(slots[0], ProgressSlot())
        if inner is None:  # a call: it has no state of its own
            last = _overlay(graph, last, values, next=last.node)
            slot = ProgressSlot(done=True, result={}) if completed else ProgressSlot()
        else:
            slot = ProgressSlot(
                frames=_into(inner, slot.frames, slots[1:], values, completed=completed)
            )
        held = {**progress.slots, slots[0]: slot}
        progress = replace(progress, slots=held)
        return (*frames[:-1], replace(last, progress=progress))
    return (*frames[:-1], _overlay(graph, last, values, next=None if completed else last.node))


def _overlay(
    graph: GraphPlan[Any], frame: Frame, values: Mapping[str, Any], *, next: str | None
) -> Frame:
    """The frame with these values; without `next`, the edge of its node says what follows."""
    plan = graph.plan
    state = plan.load(frame.state, "the suspended state")
    state = plan.overlay(state, values, "the signal payload") if values else state
    target = next if next is not None else graph.steps[frame.node or ""].next(state)
    return replace(frame, state=plan.dump(state), node=target)
