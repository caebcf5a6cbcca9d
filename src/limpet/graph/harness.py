"""Harnesses: requests from outside become invocations of a graph, and chat messages become replies.

The mode of a `Harness` is fixed when it is made. A sessioned one dispatches by session id; a
stateless one runs each request alone. A request takes one of four paths: stateless, new session,
existing session, or signal, which resumes the invocation that the session waits with. A suspended
run is an outcome like any other: nothing ever waits for a signal.

A `ChatHarness` runs one send after another for each session. The graph's state has a list of
messages that grows. A send adds the user's message; the replies are the messages that the run added
after it, by index. While a session waits for a signal, `send` answers `suspended` without running
anything; `resume` delivers the signal.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
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
from limpet.graph.checkpoint import CheckpointFilter
from limpet.graph.context import Suspended
from limpet.graph.engine.compiled import CompiledGraph, InvokeArguments, RunReport, invoke
from limpet.graph.observers import SuspensionDescriptor, raised
from limpet.graph.sessions import KeyedLocks, SessionLocks
from limpet.graph.state import Message, State

S = TypeVar("S", bound=State)
_LOG: Final = logging.getLogger("limpet.graph")
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


class HarnessOutcome(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The outcome of a request: completed with a state, suspended, or errored."""

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
        """The signal that a suspended run waits for."""
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
    ) -> HarnessOutcome[S]:
        """Run one request. Errors of the run become outcomes; misuse of the harness is raised.

        With `resume_invocation` the request is a signal for that invocation; with `signal_id` it
        is refused if that waits for another signal.
        """
        self._check(session_id, resume_invocation, signal_payload, signal_id)
        signal = None
        if resume_invocation is not None:
            signal = {} if signal_payload is None else signal_payload
        ran, result, failed = RunReport(), None, None
        try:
            call = InvokeArguments(
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
        ran: RunReport,
        result: Any,
        error: Exception | None,
        session_id: str | None,
        *,
        resumed: bool,
    ) -> HarnessOutcome[S]:
        path: Path = "existing_session" if ran.found_session else "new_session"
        if session_id is None:
            path = "stateless"
        suspended = result if isinstance(result, Suspended) else None
        kind: Literal["completed", "suspended", "errored"] = "completed"
        if error is not None:
            kind, result = "errored", getattr(error, "result", None)
        elif suspended is not None:
            kind, result = "suspended", suspended.state
        return HarnessOutcome(
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
        """The bucket of an error: end the session, try again later, or ask the user."""
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


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a send.

    Completed has `replies`; errored `bucket`, `category` and a `reply` to show; suspended the
    `descriptor` of what it waits for, `pending`, the id of the invocation that waits, and the
    replies so far.
    """

    kind: Literal["completed", "errored", "suspended"]
    replies: tuple[Any, ...] = ()
    bucket: Bucket | None = None
    category: str | None = None
    reply: str | None = None
    descriptor: SuspensionDescriptor | None = None
    pending: str | None = None
    error: BaseException | None = None


_SORRY: Mapping[Bucket, str] = {
    "session_terminating": "This conversation cannot be continued. Please start a new one.",
    "retryable_transient": "Something went wrong. Please try again.",
    "user_correctable": "That message could not be understood. Please say it another way.",
}


class ChatHarness(Generic[S]):
    """A chat over a graph with sessions. `messages_field` is the list that the messages are in.

    `make_message(text)` makes the user's message, `error_replies` has the text to show for an error
    of each bucket. Sends of one session through this object wait for each other; with
    `across_processes` those of all processes do, by the locks of the session store.
    """

    def __init__(
        self,
        graph: CompiledGraph[S],
        *,
        messages_field: str = "messages",
        make_message: Callable[[str], Any] | None = None,
        error_replies: Mapping[Bucket, str] | None = None,
        buckets: Mapping[str, Bucket] | None = None,
        across_processes: bool = False,
    ) -> None:
        field = graph.plan.fields.get(messages_field)
        if field is None or not field.holds_list:
            raise GraphMisused(
                f"{graph.plan.name} has no list {messages_field!r}. Pass messages_field, the name "
                "of the field that has the messages."
            )
        self.harness = Harness(graph, buckets=buckets)
        session = graph.session
        if session is not None and session.on_load == "replace" and session.loads(messages_field):
            raise GraphMisused(
                f"sessions of this graph replace {messages_field!r} when they are loaded, so a "
                'message that is sent would be lost. Build the graph with on_load="merge".'
            )
        self._field, self._make = messages_field, make_message or _user_message
        self._sorry = {**_SORRY, **(error_replies or {})}
        self._turns, self._locks = KeyedLocks(), None
        if across_processes:
            self._locks = _locks_of(graph)

    async def send(self, session_id: str, message: Any) -> ChatReply:
        """Send a message and get the replies. Sends of one session wait for each other."""
        made = self._make(message) if isinstance(message, str) else message

        async def run() -> ChatReply:
            if (waiting := await self._pending(session_id)) is not None:
                return waiting
            outcome = await self.harness.handle({self._field: [made]}, session_id=session_id)
            return self._reply(outcome)

        return await self._alone(session_id, run)

    async def resume(
        self,
        session_id: str,
        pending: str,
        payload: Mapping[str, Any] | None = None,
        *,
        signal_id: str | None = None,
    ) -> ChatReply:
        """Deliver the signal that a suspended session waits for.

        With `signal_id` it is refused if the session waits for another one.
        """

        async def run() -> ChatReply:
            outcome = await self.harness.handle(
                session_id=session_id,
                resume_invocation=pending,
                signal_payload=payload or {},
                signal_id=signal_id,
            )
            return self._reply(outcome)

        return await self._alone(session_id, run)

    async def _alone(self, session_id: str, run: Callable[[], Awaitable[ChatReply]]) -> ChatReply:
        """Run while no other send or signal of the session does. What fails around the run is an
        outcome, too."""
        self.harness.check_id(session_id)
        async with self._turns.of(session_id):
            try:
                if self._locks is None:
                    return await run()
                await self._locks.acquire_lock(session_id)
                try:
                    return await run()
                finally:
                    await _release(self._locks, session_id)
            except GraphMisused:
                raise
            except Exception as error:
                return self._failure_reply(error)

    def _reply(self, outcome: HarnessOutcome[S]) -> ChatReply:
        if outcome.kind != "errored":
            before = len(getattr(outcome.entry_state, self._field))
            return ChatReply(
                kind=outcome.kind,
                replies=tuple(getattr(outcome.state, self._field)[before:]),
                descriptor=outcome.descriptor,
                pending=outcome.invocation_id if outcome.kind == "suspended" else None,
            )
        assert outcome.error is not None
        return self._failure_reply(outcome.error)

    def _failure_reply(self, error: BaseException) -> ChatReply:
        bucket = self.harness.bucket_of(error)
        return ChatReply(
            kind="errored",
            bucket=bucket,
            category=category_of(error),
            reply=self._sorry[bucket],
            error=error,
        )

    async def _pending(self, session_id: str) -> ChatReply | None:
        """A `suspended` reply, if the newest invocation of the session is suspended."""
        checkpointer = self.harness.graph.checkpointer
        if checkpointer is None:
            return None
        asked = CheckpointFilter(session_id=session_id, status="suspended", limit=1)
        for summary in await checkpointer.list(asked):
            record = await checkpointer.load(summary.invocation_id)
            if record is not None and record.suspension is not None:
                wanted = msgspec.convert(record.suspension["descriptor"], SuspensionDescriptor)
                return ChatReply(kind="suspended", descriptor=wanted, pending=record.invocation_id)
        return None


def _locks_of(graph: CompiledGraph[Any]) -> SessionLocks:
    """The locks of the graph's session store. Raises GraphMisused if it has none."""
    store = None if graph.session is None else graph.session.store
    if not isinstance(store, SessionLocks):
        raise GraphMisused(
            "across_processes needs a session store with acquire_lock and release_lock. Use one of "
            "ours, or leave it out."
        )
    return store


async def _release(locks: SessionLocks, session_id: str) -> None:
    """Release the lock. If that fails, it expires: the reply counts, not the lock."""
    try:
        await locks.release_lock(session_id)
    except Exception as error:
        _LOG.warning("lock not released: session=%s error=%s", session_id, raised(error))


def _user_message(text: str) -> Message:
    return Message(role="user", content=text)
