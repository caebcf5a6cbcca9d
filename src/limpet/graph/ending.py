"""The end of a run: its session is saved and its checkpoint is completed, whatever dies between.

Where both live together it is one commit. Elsewhere the session is saved while the record still
says that the run is at its end; a run that is resumed there runs no node and saves the session
again. So a session never misses the turn of a completed invocation.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from limpet.errors import CheckpointSaveFailed, SessionSaveFailed, SessionWriteConflict
from limpet.graph.binding import Binding
from limpet.graph.checkpoint import Checkpointer, JointCheckpointer
from limpet.graph.context import Invocation
from limpet.graph.track import Ending, Tracker


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
    if run.tracker is None:
        return
    try:
        await run.tracker.begun()
    except CheckpointSaveFailed as unsaved:
        error.add_note(f"The run cannot be resumed: {unsaved}")


async def finish(run: Invocation, final: Any) -> None:
    """Save the session and the completed record. Raises SessionSaveFailed with the result."""
    binding, tracker = run.binding, run.tracker
    if binding is not None and binding.auto_save:
        if tracker is not None and tracker.ending == "with session":
            await _together(binding, tracker, final)
            return
        await binding.save(final, result=final)
    if tracker is not None:
        await tracker.end()


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
        reason = f"{type(error).__name__}: {error}"[:500]
        raise SessionSaveFailed(binding.session_id, reason, final) from error
    binding.saved(version)
