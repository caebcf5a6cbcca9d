"""What is kept of a graph's runs cannot be saved, loaded or resumed.

Checkpoints, suspensions and the sessions of a graph. Every class has a `category`, as in `graph`.
"""

from __future__ import annotations

from typing import Any

from limpet.errors.graph import GraphError
from limpet.errors.session import SessionError

# --- checkpoints ----------------------------------------------------------------------------------


class CheckpointError(GraphError):
    """A checkpoint cannot be saved, loaded or resumed."""

    code = "checkpoint.error"
    category = "checkpoint_error"


class CheckpointNotFound(CheckpointError, LookupError):
    code, category = "checkpoint.not_found", "checkpoint_not_found"
    status = 404
    exit_code = 3

    def __init__(
        self,
        invocation_id: str,
        advice: str = "Pass the id of an invocation that ran with this checkpointer and was not "
        "deleted",
    ) -> None:
        self.invocation_id, self.advice = invocation_id, advice
        super().__init__(f"no checkpoint of invocation {invocation_id!r} is stored. {advice}.")


class CheckpointRecordInvalid(CheckpointError):
    code, category = "checkpoint.record_invalid", "checkpoint_record_invalid"
    status = 409
    exit_code = 3

    def __init__(self, invocation_id: str, reason: str) -> None:
        self.invocation_id, self.reason = invocation_id, reason
        super().__init__(
            f"the checkpoint of invocation {invocation_id!r} cannot be resumed: {reason}. Resume "
            "it with the graph that wrote it, or start a new invocation."
        )


class CheckpointInUse(CheckpointError):
    code, category = "checkpoint.in_use", "checkpoint_in_use"
    status = 409
    exit_code = 3
    retryable = True

    def __init__(self, invocation_id: str) -> None:
        self.invocation_id = invocation_id
        super().__init__(
            f"invocation {invocation_id!r} is being run by another caller, so nothing ran here. "
            "Wait for that run; if its process has died, resume the invocation when its lease has "
            "ended, after 30 seconds unless the checkpointer says otherwise."
        )


class CheckpointSuperseded(CheckpointError):
    code, category = "checkpoint.superseded", "checkpoint_superseded"
    status = 409
    exit_code = 3

    def __init__(self, invocation_id: str, resumed_as: str, now: str) -> None:
        self.invocation_id, self.resumed_as, self.now = invocation_id, resumed_as, now
        advice = f"Resume {resumed_as!r} to go on from there."
        super().__init__(
            f"invocation {invocation_id!r} was resumed already, as {resumed_as!r}, which is {now}. "
            f"{'Start a new invocation.' if now == 'deleted' else advice}"
        )


class CheckpointSaveFailed(CheckpointError):
    code, category = "checkpoint.save_failed", "checkpoint_save_failed"

    def __init__(self, invocation_id: str, reason: str, result: Any = None) -> None:
        self.invocation_id, self.reason, self.result = invocation_id, reason, result
        super().__init__(
            f"the checkpointer could not save invocation {invocation_id!r}: {reason}. The run "
            "stopped; resume it from its last checkpoint when the checkpointer works again."
        )


class CheckpointLoadFailed(CheckpointError):
    code, category = "checkpoint.load_failed", "checkpoint_load_failed"

    def __init__(self, invocation_id: str, reason: str) -> None:
        self.invocation_id, self.reason = invocation_id, reason
        super().__init__(
            f"the checkpointer could not load invocation {invocation_id!r}: {reason}. Nothing "
            "ran; resume it again when the checkpointer works."
        )


# --- suspension -----------------------------------------------------------------------------------


class SuspensionError(GraphError):
    """A run cannot be suspended, or a suspended one cannot be resumed."""

    code = "suspension.error"
    category = "suspension_error"


class SuspensionPersistenceFailed(SuspensionError):
    code, category = "suspension.persistence_failed", "suspension_persistence_failed"

    def __init__(
        self,
        invocation_id: str,
        reason: str,
        advice: str = "Resume it from its last checkpoint when its stores work",
    ) -> None:
        self.invocation_id, self.reason, self.advice = invocation_id, reason, advice
        super().__init__(
            f"invocation {invocation_id!r} could not be suspended: {reason}. {advice}."
        )


class SuspensionRecordInvalid(SuspensionError):
    code, category = "suspension.record_invalid", "suspension_record_invalid"
    status = 409
    exit_code = 3

    def __init__(self, invocation_id: str, reason: str) -> None:
        self.invocation_id, self.reason = invocation_id, reason
        super().__init__(
            f"invocation {invocation_id!r} was not resumed, because {reason}. Send each signal "
            "once, to an invocation that is suspended."
        )


class SuspensionResumePayloadInvalid(SuspensionError):
    code, category = "suspension.payload_invalid", "suspension_resume_payload_invalid"
    status = 422
    exit_code = 2

    def __init__(self, invocation_id: str, reason: str) -> None:
        self.invocation_id, self.reason = invocation_id, reason
        super().__init__(
            f"the signal payload of invocation {invocation_id!r} does not fit its state: {reason}. "
            "The invocation is still suspended; send a dict of fields with valid values."
        )


class SuspensionInUnsupportedContext(SuspensionError):
    code, category = "suspension.unsupported_context", "suspension_in_unsupported_context"

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(
            f"node {node!r} cannot suspend here: {reason}. Suspend in the body of a node, outside "
            'fan-outs and branches with error_policy="collect".'
        )


# --- sessions of a graph --------------------------------------------------------------------------


class SessionStoreError(GraphError, SessionError):
    """The session of an invocation could not be loaded or saved."""

    code = "session.store_error"
    category = "session_store_error"
    status = 500


class SessionLoadFailed(SessionStoreError):
    code, category = "session.load_failed", "session_load_failed"

    def __init__(self, session_id: str, reason: str) -> None:
        self.session_id, self.reason = session_id, reason
        super().__init__(
            f"session {session_id!r} could not be loaded: {reason}. Nothing ran; invoke again "
            "when the session store works."
        )


class SessionSaveFailed(SessionStoreError):
    code, category = "session.save_failed", "session_save_failed"

    def __init__(self, session_id: str, reason: str, result: Any = None) -> None:
        self.session_id, self.reason, self.result = session_id, reason, result
        super().__init__(
            f"session {session_id!r} was not saved: {reason}. The final state is in `result`; the "
            "store has the session as it was before."
        )


class SessionWriteConflict(SessionStoreError):
    code, category = "session.write_conflict", "session_write_conflict"
    status = 409

    def __init__(
        self, session_id: str, expected_version: Any, actual_version: Any, result: Any = None
    ) -> None:
        self.session_id, self.result = session_id, result
        self.expected_version, self.actual_version = expected_version, actual_version
        super().__init__(
            f"session {session_id!r} is at version {actual_version}, not {expected_version}: "
            "another invocation saved it first. Nothing was overwritten; load it and decide again."
        )
