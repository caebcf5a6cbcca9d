"""Tracking: the checkpoint record of a running invocation, kept up to date step by step.

The record is a tree of live frames: one for each graph under way, and inside a fan-out or branches
one stack for each instance. A completed node changes its frame and is saved in one commit. A
checkpointer that takes changes gets the operations of the step; frames that were begun since the
last save are part of them. Any other gets the whole record, one save at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from limpet.errors import CheckpointSaveFailed, error_text
from limpet.graph.checkpoint import (
    Checkpointer,
    CheckpointRecord,
    Frame,
    LeasingCheckpointer,
    Position,
    Progress,
    ProgressSlot,
    Status,
    document_of,
    flush_every_of,
)
from limpet.graph.state import StatePlan
from limpet.model import Path, PlainOp
from limpet.model.ops import Add, Cut, Delete, Set

# The last step is saved with the end of the run; or the run ends after its session is saved,
# which is saved after the last step, or in one commit with it.
Ending: TypeAlias = Literal["alone", "after session", "with session"]


_POSITIONS: Final[Path] = ("completed_positions",)
_NOTHING: Final = ((), None)  # is left of what a resumed run found inside a node


class RunIds:
    """The ids of one invocation."""

    __slots__ = ("correlation_id", "invocation_id", "session_id")

    def __init__(self, invocation_id: str, correlation_id: str, session_id: str | None) -> None:
        self.invocation_id, self.correlation_id = invocation_id, correlation_id
        self.session_id = session_id


class FrameStack:
    """A stack of frames: the invocation's own, or that of one instance or branch."""

    __slots__ = ("batched", "frames", "key", "owner", "path", "stored")

    def __init__(
        self, owner: LiveFrame | None = None, key: str = "", *, stored: bool, batched: bool = False
    ) -> None:
        self.owner, self.key, self.stored = owner, key, stored
        # Inside an instance of a fan-out: the checkpointer may want several steps in one commit.
        self.batched: bool = batched or (owner is not None and owner.stack.batched)
        self.frames: list[LiveFrame] = []
        self.path: Path = ("cursor",)
        if owner is not None:
            self.path = (*owner.path, "progress", "slots", key, "frames")


class LiveProgress:
    """The progress of a fan-out or branches node; a running slot is the stack of its frames."""

    __slots__ = ("slots", "stored", "total")

    def __init__(
        self, total: int, slots: dict[str, ProgressSlot | FrameStack], *, stored: bool
    ) -> None:
        self.total, self.slots, self.stored = total, slots, stored


class LiveFrame:
    """A graph under way: its state and its next node, where they stand in the document."""

    __slots__ = (
        "at",
        "node",
        "path",
        "plan",
        "progress",
        "rest",
        "stack",
        "state",
        "stored",
        "version",
    )

    def __init__(
        self,
        stack: FrameStack,
        plan: StatePlan[Any],
        state: Any,
        node: str | None,
        *,
        stored: bool,
        version: str | None = None,
    ) -> None:
        self.stack, self.plan, self.state, self.node, self.stored = stack, plan, state, node, stored
        self.version = version  # of the state, if it is not that of the record
        self.at = len(stack.frames)
        self.path: Path = (*stack.path, self.at)
        self.progress: LiveProgress | None = None
        # The part that a resumed run has not entered yet: frames inside this one, or instances.
        self.rest: tuple[tuple[Frame, ...], Progress | None] = ((), None)
        stack.frames.append(self)

    def to_frame(self) -> Frame:
        """The frame as a record has it."""
        progress = self.rest[1]
        if self.progress is not None and self.progress.stored:
            progress = _progress(self.progress)
        state = self.plan.dump(self.state)
        return Frame(node=self.node, state=state, progress=progress, schema_version=self.version)


class CheckpointWriter:
    """Saves one invocation as it goes."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        leasing: LeasingCheckpointer | None,
        run: RunIds,
        graph: str,
        plan: StatePlan[Any],
    ) -> None:
        self.checkpointer, self._run, self._graph, self._plan = checkpointer, run, graph, plan
        self._leasing = leasing  # the same object, if it takes changes and gives leases
        self.stack = FrameStack(stored=True)
        self.positions: list[Position] = []
        self.revision, self.status = 0, "running"
        self.suspension: dict[str, Any] | None = None
        self.signals = 0  # that the invocation has taken
        self._inside, self._flush_every = 0, flush_every_of(checkpointer)
        self._ops: list[PlainOp] = []
        self._whole = True  # the next save is of the whole record
        self._failed: Exception | None = None
        self._lock, self._saving = asyncio.Lock(), 0  # whole saves that are under way or wait
        self._start: asyncio.Task[None] | None = None
        self.ending: Ending = "alone"

    @property
    def _takes_ops(self) -> bool:
        """True if the next save is of changes. Otherwise operations are not worth computing."""
        return self._leasing is not None and not self._whole

    # --- entering -------------------------------------------------------------------------------

    def push(
        self,
        outer: LiveFrame,
        plan: StatePlan[Any],
        state: Any,
        node: str | None,
        rest: tuple[tuple[Frame, ...], Progress | None] | None = None,
    ) -> LiveFrame:
        """Enter a subgraph. `rest` is what a resumed run found inside it."""
        if rest is None:
            self._drop(outer)
        outer.rest = ((), None)
        version = own_version(plan, self._plan)
        frame = LiveFrame(outer.stack, plan, state, node, stored=rest is not None, version=version)
        frame.rest = rest or ((), None)
        return frame

    def begin(self, frame: LiveFrame, total: int, resumed: Progress | None) -> None:
        """Begin a fan-out or branches; `resumed` is the progress that a resumed run found."""
        slots: dict[str, ProgressSlot | FrameStack] = {} if resumed is None else dict(resumed.slots)
        if resumed is None and frame.progress is not None and frame.progress.stored:
            self._ops.append(Set((*frame.path, "progress"), None))  # of an attempt that failed
        frame.progress = LiveProgress(total, slots, stored=resumed is not None)
        frame.rest = ((), None)

    def enter_slot(
        self,
        owner: LiveFrame,
        key: str,
        plan: StatePlan[Any],
        state: Any,
        node: str | None,
        rest: tuple[tuple[Frame, ...], Progress | None] | None = None,
        *,
        batched: bool = False,
    ) -> LiveFrame:
        """Begin one instance or branch, with a stack of its own."""
        assert owner.progress is not None
        before = owner.progress.slots.get(key)
        if (
            rest is None
            and before is not None
            and (isinstance(before, ProgressSlot) or before.stored)
        ):
            self._ops.append(Delete((*owner.path, "progress", "slots", key)))
        stack = FrameStack(owner, key, stored=rest is not None, batched=batched)
        owner.progress.slots[key] = stack
        version = own_version(plan, self._plan)
        frame = LiveFrame(stack, plan, state, node, stored=rest is not None, version=version)
        frame.rest = rest or ((), None)
        return frame

    # --- completing -----------------------------------------------------------------------------

    def complete_node(
        self, frame: LiveFrame, new: Any, update: Any, target: str | None, position: Position
    ) -> bool:
        """A node has completed and its edge leads to `target`. True if that is to be saved now.

        The end of a graph inside another is saved with the node that contains it.
        """
        old, fresh, path = frame.state, not frame.stored, frame.path
        if len(frame.stack.frames) > frame.at + 1 or frame.rest[0]:
            self._drop(frame)
        self.positions.append(position)
        if self._leasing is not None and not self._whole:
            ops = self._ops
            ops.append(Add(_POSITIONS, [document_of(position)]))
            if frame.rest[1] is not None or (frame.progress and frame.progress.stored):
                ops.append(Set((*path, "progress"), None))
            if not fresh:
                ops += frame.plan.changes(old, new, update, (*path, "state"))
                if target != frame.node:
                    ops.append(Set((*path, "node"), target))
        frame.progress, frame.state, frame.node, frame.rest = None, new, target, _NOTHING
        last = target is None and frame.stack.owner is None and frame.at == 0
        if last and self.ending == "alone":
            self._end()
        if target is None and not last:
            return False
        self._store(frame.stack)
        if frame.stack.batched and self._held_back():
            return False
        return not last or self.ending != "with session"

    async def complete_slot(
        self, owner: LiveFrame, key: str, slot: ProgressSlot, *, batched: bool = False
    ) -> None:
        """An instance or branch is done."""
        assert owner.progress is not None
        owner.progress.slots[key] = slot
        self._store(owner.stack)
        self._store_progress(owner)
        path = (*owner.path, "progress", "slots", key)
        self._ops.append(Set(path, document_of(slot)))
        if not (batched or owner.stack.batched) or not self._held_back():
            await self.save()

    def _held_back(self) -> bool:
        """True for a step inside a fan-out that is saved with a later one, as its checkpointer
        asks. If the run stops before, that step runs again."""
        self._inside += 1
        return self._inside % self._flush_every != 0

    # --- beginning and ending -------------------------------------------------------------------

    def begin_soon(self) -> None:
        """Save where the run starts while its first node waits for something.

        A process that dies in there leaves a record to resume from. A first node that does not wait
        is completed before this gets its turn, and is saved together with the start.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(self._begin_now, loop)  # a task only if it is needed

    def _begin_now(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.revision:
            self._start = loop.create_task(self._begin())

    async def _begin(self) -> None:
        if not self.revision:
            with suppress(CheckpointSaveFailed):  # raised by the save of the first step
                await self.save()

    async def save_start(self) -> None:
        """Save, after a run that failed, where it started and every step.

        A step whose save was cancelled may not be stored: the node would run twice.
        """
        if not self.revision or self._whole:
            await self.save()
        await self.wait_saved()
        if self._failed is not None:
            raise self._save_error(self._failed) from self._failed

    async def wait_saved(self) -> None:
        """Wait until no whole save is under way."""
        async with self._lock:
            pass

    async def end(self) -> None:
        """Save the invocation as a completed one, if its last step did not."""
        if self.status != "completed":
            self._end()
            await self.save()

    def _end(self) -> None:
        self.status = "completed"
        self._ops.append(Set(("status",), "completed"))

    def completed_record(self) -> CheckpointRecord:
        """The record of the invocation, completed. The caller saves it, with the session."""
        self.status, self._whole = "completed", True
        self.revision += 1
        return self.whole()

    async def save_last_step(self) -> None:
        """Save the last step of an invocation whose session could not be saved."""
        self.status = "running"
        await self.save()

    def suspended_record(
        self, document: dict[str, Any], frame: LiveFrame | None
    ) -> CheckpointRecord:
        """The record of the invocation, suspended in a node of `frame`. The caller saves it.

        The frames around that node are kept even if nothing was completed in them: the signal
        belongs to their state, and the node may not begin again.
        """
        self.status, self.suspension = "suspended", document
        if frame is not None:
            self._store(frame.stack)
        self.revision += 1
        self._whole = True
        return self.whole()

    async def save_unsuspended(self) -> None:
        """Save the invocation as one that is still running."""
        self.status, self.suspension = "running", None
        await self.save()

    async def claim(self, revision: int) -> bool:
        """Save a resumed invocation in place of the suspended one; False if another was first."""
        self.revision = revision + 1
        record, self._whole = self.whole(), False
        try:
            if self._leasing is not None:
                return await self._leasing.claim(record, revision)
            await self.checkpointer.save(record)
        except Exception as error:
            raise self._save_error(error) from error
        return True

    async def pass_on(self, leases: LeasingCheckpointer, pointer: CheckpointRecord) -> bool:
        """Save where a run starts with the pointer of the one that it goes on from, or neither."""
        self.revision = 1
        record, self._whole = self.whole(), False
        try:
            return await leases.pass_on(pointer, record)
        except Exception as error:
            raise self._save_error(error) from error

    # --- saving ---------------------------------------------------------------------------------

    async def save(self, result: Any = None) -> None:
        """Save what has changed, in one commit. Raises CheckpointSaveFailed with the result."""
        if self._saving and self._takes_ops:
            await self.wait_saved()  # the first, whole save is still under way
        if self._failed is not None:
            raise self._save_error(self._failed, result) from self._failed
        self.revision += 1
        try:
            if self._leasing is None or self._whole:
                self._saving += 1
                try:
                    async with self._lock:
                        if self._failed is not None:  # while this one waited
                            raise self._failed
                        record, self._whole, self._ops = self.whole(), False, []
                        await self.checkpointer.save(record)
                finally:
                    self._saving -= 1
            else:
                ops, self._ops = tuple(self._ops), []
                await self._leasing.save_changes(self._run.invocation_id, ops, self.whole)
        except Exception as error:
            self._failed = error
            raise self._save_error(error, result) from error
        except BaseException:
            self._whole = True  # cancelled: nobody knows whether it was saved
            raise

    def whole(self) -> CheckpointRecord:
        """The record as it stands."""
        cursor = _frames(self.stack)
        status: Status = self.status  # type: ignore[assignment]  # one of them
        return CheckpointRecord(
            invocation_id=self._run.invocation_id,
            correlation_id=self._run.correlation_id,
            session_id=self._run.session_id,
            state=cursor[-1].state,
            parent_states=tuple([frame.state for frame in cursor[:-1]]),
            cursor=cursor,
            completed_positions=tuple(self.positions),
            last_saved_at=datetime.now(UTC),  # for a checkpointer without a clock of its own
            schema_version=self._plan.version,
            status=status,
            graph=self._graph,
            revision=self.revision,
            suspension=self.suspension,
            signals=self.signals,
        )

    def _save_error(self, error: Exception, result: Any = None) -> CheckpointSaveFailed:
        return CheckpointSaveFailed(self._run.invocation_id, error_text(error), result)

    def _drop(self, frame: LiveFrame) -> None:
        """Forget the frames inside this one: they ended, or another attempt begins."""
        stack, inside = frame.stack, frame.at + 1
        inner = stack.frames[inside:]
        last = inner[-1] if inner else frame
        stored = sum(1 for one in inner if one.stored) + len(last.rest[0])
        if stored:
            self._ops.append(Cut(stack.path, inside, inside + stored))
        del stack.frames[inside:]

    def _store(self, stack: FrameStack) -> None:
        """Make the frames up to this box part of the record: a node in them is completed."""
        if stack.owner is not None:
            self._store(stack.owner.stack)
            self._store_progress(stack.owner)
            if not stack.stored:
                path = (*stack.owner.path, "progress", "slots", stack.key)
                self._ops.append(Set(path, document_of(ProgressSlot())))
                stack.stored = True
        for frame in stack.frames:
            if not frame.stored:
                frame.stored = True
                if self._takes_ops:
                    state = frame.plan.dump(frame.state)
                    bare = Frame(node=frame.node, state=state, schema_version=frame.version)
                    self._ops.append(Add(stack.path, [document_of(bare)]))

    def _store_progress(self, owner: LiveFrame) -> None:
        progress = owner.progress
        if progress is not None and not progress.stored:
            empty = {"total": progress.total, "slots": {}}
            self._ops.append(Set((*owner.path, "progress"), empty))
            progress.stored = True


def own_version(plan: StatePlan[Any], root: StatePlan[Any]) -> str | None:
    """The version of the states of a graph, if it is not that of the graph that was invoked."""
    return None if plan.version == root.version else plan.version


def _progress(live: LiveProgress) -> Progress:
    slots = {}
    for key, slot in live.slots.items():
        if isinstance(slot, ProgressSlot):
            slots[key] = slot
        elif slot.stored:
            slots[key] = ProgressSlot(frames=_frames(slot))
    return Progress(total=live.total, slots=slots)


def _frames(stack: FrameStack) -> tuple[Frame, ...]:
    """The frames that are part of the record: where nothing was completed, nothing is kept."""
    frames = [frame for frame in stack.frames if frame.stored]
    return (*[frame.to_frame() for frame in frames], *(frames[-1].rest[0] if frames else ()))
