"""The end of a run: it completes, fails or is suspended, and its session and checkpoint agree.

A completed run saves its session and completes its record, in one commit where both live together.
Elsewhere the session is saved while the record still says that the run is at its end; a run that is
resumed there runs no node and saves the session again. So a session never misses the turn of a
completed invocation, wherever the process dies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from limpet.errors import (
    CheckpointSaveFailed,
    SessionSaveFailed,
    SessionWriteConflict,
    SuspensionPersistenceFailed,
)
from limpet.errors.graph import said
from limpet.graph.binding import Binding
from limpet.graph.checkpoint import (
    Checkpointer,
    CheckpointRecord,
    JointCheckpointer,
)
from limpet.graph.context import Invocation, Scope
from limpet.graph.engine.track import Ending, Tracker
from limpet.graph.suspend import Suspended, SuspendSignal


def ending_of(run: Invocation, checkpointer: Checkpointer) -> Ending:
    """How the last step of this run is saved."""
    binding = run.binding
    if binding is None or not binding.auto_save:
        return "alone"
    joint = isinstance(checkpointer, JointCheckpointer) and checkpointer.joins(binding.store)
    return "with session" if joint else "after session"


async def leave_record(run: Invocation, error: BaseException) -> None:
    """After a run that failed before anything was saved: save where it started.

    If that fails too, the run's own error says so: it is the one that the caller has to see.
    """
    if run.tracker is None or isinstance(error, CheckpointSaveFailed):
        return
    try:
        await run.tracker.begun()
    except CheckpointSaveFailed as unsaved:
        error.add_note(f"The run cannot be resumed: {unsaved}")


async def finish(run: Invocation, final: Any) -> None:
    """Save the session and the completed record. Raises SessionSaveFailed with the result."""
    await _close(run)
    binding, tracker = run.binding, run.tracker
    if binding is not None and binding.auto_save:
        if tracker is not None and tracker.ending == "with session":
            await _together(binding, tracker, final)
            return
        await binding.save(final, result=final)
    if tracker is not None:
        await tracker.end()


async def _close(run: Invocation) -> None:
    """Let nothing that a node left behind save the session after the end, or over it."""
    run.ended = True
    if run.binding is not None:
        await run.binding.settled()


async def _together(binding: Binding, tracker: Tracker, final: Any) -> None:
    """One commit. If it fails, the last step is saved without the session, which is as it was."""
    checkpointer: Any = tracker.checkpointer  # a JointCheckpointer, as `ending_of` found
    await tracker.settled()
    try:
        version = await checkpointer.save_with_session(
            tracker.ended(),
            binding.store,
            binding.record(final),
            expected_version=binding.expected,
        )
    except Exception as error:
        with suppress(Exception):
            await tracker.unended()
        if isinstance(error, SessionWriteConflict):
            error.result = final
            raise
        reason = said(error)
        raise SessionSaveFailed(binding.session_id, reason, final) from error
    binding.saved(version)


async def suspended(scope: Scope, signal: SuspendSignal) -> Suspended:
    """Save the suspended record with the session; what the caller gets."""
    run, tracker = scope.run, scope.run.tracker
    if tracker is None or scope.frame is None:
        reason = "the graph has no checkpointer, so nothing could resume it"
        advice = "Build the graph with with_checkpointer(…)"
        raise SuspensionPersistenceFailed(run.invocation_id, reason, advice)
    await _close(run)
    state = scope.frame.state
    if signal.completed:
        tracker.positions.append(signal.position)
    await tracker.settled()
    record = tracker.suspended(signal.document(), signal.frame)
    try:
        await _keep(run, tracker.checkpointer, record, state)
    except Exception as error:
        with suppress(Exception):  # what stays is an invocation that can be resumed
            await tracker.unsuspend()
        if isinstance(error, SessionWriteConflict):
            raise
        reason = said(error)
        raise SuspensionPersistenceFailed(run.invocation_id, reason) from error
    return Suspended(
        invocation_id=run.invocation_id,
        correlation_id=run.correlation_id,
        session_id=run.session_id,
        descriptor=signal.descriptor,
        state=state,
        node_name=signal.namespace[0],
        namespace=signal.namespace,
    )


async def _keep(
    run: Invocation, checkpointer: Checkpointer, record: CheckpointRecord, state: Any
) -> None:
    """Save a suspended record and its session: in one commit where both live together.

    Otherwise the record is saved first: a crash in between leaves a session that is older than the
    suspended run, and the run saves it when it ends.
    """
    binding = run.binding
    if binding is None or not binding.auto_save:
        await checkpointer.save(record)
    elif isinstance(checkpointer, JointCheckpointer) and checkpointer.joins(binding.store):
        version = await checkpointer.save_with_session(
            record, binding.store, binding.record(state), expected_version=binding.expected
        )
        binding.saved(version)
    else:
        await checkpointer.save(record)
        await binding.save(state)
