"""The harness: requests from outside become invocations of a graph.

Its mode is fixed when it is made. A sessioned harness dispatches by session id; a stateless one
runs every request by itself. A request takes one of four paths: stateless, new session, existing
session, or signal, which resumes the invocation that the session waits with. A suspended run is an
outcome like any other: nothing ever waits for a signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from limpet.errors import (
    CheckpointNotFound,
    CheckpointRecordInvalid,
    GraphMisused,
    MigrationError,
    StateValidationError,
    StepLimitReached,
    SuspensionRecordInvalid,
    SuspensionResumePayloadInvalid,
)
from limpet.graph.descriptor import SuspensionDescriptor
from limpet.graph.engine.compiled import CompiledGraph
from limpet.graph.engine.invoke import Call, Ran, invoke
from limpet.graph.state import State
from limpet.graph.suspend import Suspended

S = TypeVar("S", bound=State)
Mode: TypeAlias = Literal["sessioned", "stateless"]
Path: TypeAlias = Literal["stateless", "new_session", "existing_session", "signal_resume"]
Bucket: TypeAlias = Literal["session_terminating", "retryable_transient", "user_correctable"]

# An error of these ends the session: trying again gives the same.
_TERMINATING: Final = (MigrationError,)
_CORRECTABLE: Final = (
    CheckpointNotFound,
    CheckpointRecordInvalid,
    GraphMisused,
    StateValidationError,
    StepLimitReached,
    SuspensionRecordInvalid,
    SuspensionResumePayloadInvalid,
)


class Outcome(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What became of a request: completed with a state, suspended, or errored."""

    kind: Literal["completed", "suspended", "errored"]
    path: Path
    session_id: str | None = None
    invocation_id: str | None = None
    state: Any = None
    suspension: Suspended | None = None
    entry_state: Any = None  # what the run started with; None if nothing ran
    error: BaseException | None = None
    bucket: Bucket | None = None
    category: str | None = None

    @property
    def descriptor(self) -> SuspensionDescriptor | None:
        """What a suspended run waits for."""
        return None if self.suspension is None else self.suspension.descriptor


class Harness(Generic[S]):
    """Dispatches requests to one graph.

    A sessioned harness needs a graph with a session store, and for signals one with a checkpointer.
    `buckets` maps error categories of your own to buckets.
    """

    def __init__(
        self,
        graph: CompiledGraph[S],
        *,
        mode: Mode = "sessioned",
        buckets: Mapping[str, Bucket] | None = None,
    ) -> None:
        if mode not in ("sessioned", "stateless"):
            raise GraphMisused(f"mode is {mode!r}. Pass 'sessioned' or 'stateless'.")
        if mode == "sessioned" and graph.session is None:
            raise GraphMisused(
                "a sessioned harness needs a graph with a session store. Add with_session_store, "
                "or pass mode='stateless'."
            )
        self.graph, self.mode = graph, mode
        self._buckets = dict(buckets or {})

    async def handle(
        self,
        request: S | Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        resume_invocation: str | None = None,
        signal_payload: Mapping[str, Any] | None = None,
        signal_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Outcome[S]:
        """Run one request. Errors of the run become outcomes; misuse of the harness is raised.

        With `resume_invocation` the request is a signal for that invocation; with `signal_id` it
        is refused if that waits for another signal.
        """
        self._check(session_id, resume_invocation, signal_payload, signal_id)
        signal = None
        if resume_invocation is not None:
            signal = {} if signal_payload is None else signal_payload
        ran, result, failed = Ran(), None, None
        try:
            call = Call(
                initial=request,
                session_id=session_id,
                resume_invocation=resume_invocation,
                signal_payload=signal,
                signal_id=signal_id,
                metadata=metadata,
            )
            result = await invoke(self.graph, call, ran)
        except Exception as error:
            failed = error
        return self._outcome(ran, result, failed, session_id, resumed=signal is not None)

    def _outcome(
        self,
        ran: Ran,
        result: Any,
        error: Exception | None,
        session_id: str | None,
        *,
        resumed: bool,
    ) -> Outcome[S]:
        path: Path = "existing_session" if ran.found_session else "new_session"
        if session_id is None:
            path = "stateless"
        suspended = result if isinstance(result, Suspended) else None
        kind: Literal["completed", "suspended", "errored"] = "completed"
        if error is not None:
            kind, result = "errored", getattr(error, "result", None)
        elif suspended is not None:
            kind, result = "suspended", suspended.state
        return Outcome(
            kind=kind,
            path="signal_resume" if resumed else path,
            session_id=session_id,
            invocation_id=ran.invocation_id or None,
            state=result,
            suspension=suspended,
            entry_state=ran.entry_state,
            error=error,
            bucket=None if error is None else self.bucket_of(error),
            category=None if error is None else category_of(error),
        )

    def bucket_of(self, error: BaseException) -> Bucket:
        """What to do about an error: end the session, try again later, or ask the user."""
        category = getattr(error, "category", "")
        if category in self._buckets:
            return self._buckets[category]
        if isinstance(error, _TERMINATING):
            return "session_terminating"
        if isinstance(error, _CORRECTABLE):
            return "user_correctable"
        return "retryable_transient"

    def check_id(self, session_id: object) -> None:
        """Refuse a request to a sessioned harness that names no session."""
        if self.mode == "sessioned" and (not isinstance(session_id, str) or not session_id.strip()):
            raise GraphMisused("a sessioned harness needs a session id. Pass a text.")

    def _check(
        self, session_id: object, resume_invocation: object, payload: object, signal_id: object
    ) -> None:
        if self.mode == "stateless" and session_id is not None:
            raise GraphMisused(
                "a stateless harness was given a session id. Leave it out, or make the harness "
                "sessioned."
            )
        self.check_id(session_id)
        signal = payload is not None or signal_id is not None
        if signal and resume_invocation is None:
            raise GraphMisused(
                "a signal was given without the invocation that waits for it. Pass "
                "resume_invocation."
            )


def category_of(error: BaseException) -> str:
    """The category of an error of ours; the code or the type of another one."""
    return str(getattr(error, "category", getattr(error, "code", type(error).__name__)))
