"""The chat harness: messages in, replies out, one send after another for each session.

The graph's state has a list of messages that grows. A send adds the user's message; the replies are
the messages that the run added after it, by index. While a session waits for a signal, `send`
answers `suspended` without running anything; `resume` delivers the signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from limpet.errors import GraphMisused
from limpet.graph.checkpoint import CheckpointFilter
from limpet.graph.engine.compiled import CompiledGraph
from limpet.graph.harness import Bucket, Harness, Outcome
from limpet.graph.state import Message, State
from limpet.graph.suspend import SuspensionDescriptor
from limpet.graph.turns import Turns

S = TypeVar("S", bound=State)


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a send.

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
    of each bucket.
    """

    def __init__(
        self,
        graph: CompiledGraph[S],
        *,
        messages_field: str = "messages",
        make_message: Callable[[str], Any] | None = None,
        error_replies: Mapping[Bucket, str] | None = None,
        buckets: Mapping[str, Bucket] | None = None,
    ) -> None:
        field = graph.plan.fields.get(messages_field)
        if field is None or not field.holds_list:
            raise GraphMisused(
                f"{graph.plan.name} has no list {messages_field!r}. Pass messages_field, the name "
                "of the field that has the messages."
            )
        self.harness = Harness(graph, buckets=buckets)
        self._field, self._make = messages_field, make_message or _user_message
        self._sorry = {**_SORRY, **(error_replies or {})}
        self._turns = Turns()

    async def send(self, session_id: str, message: Any) -> ChatReply:
        """Send a message and get the replies. Sends of one session wait for each other."""
        async with self._turns.of(session_id):
            if (waiting := await self._pending(session_id)) is not None:
                return waiting
            made = self._make(message) if isinstance(message, str) else message
            outcome = await self.harness.handle({self._field: [made]}, session_id=session_id)
            return self._reply(outcome)

    async def resume(
        self, session_id: str, pending: str, payload: Mapping[str, Any] | None = None
    ) -> ChatReply:
        """Deliver the signal that a suspended session waits for."""
        async with self._turns.of(session_id):
            outcome = await self.harness.handle(
                session_id=session_id, resume_invocation=pending, signal_payload=payload or {}
            )
            return self._reply(outcome)

    def _reply(self, outcome: Outcome[S]) -> ChatReply:
        if outcome.kind != "errored":
            before = len(getattr(outcome.entry_state, self._field))
            return ChatReply(
                kind=outcome.kind,
                replies=tuple(getattr(outcome.state, self._field)[before:]),
                descriptor=outcome.descriptor,
                pending=outcome.invocation_id if outcome.kind == "suspended" else None,
            )
        return ChatReply(
            kind="errored",
            bucket=outcome.bucket,
            category=outcome.category,
            reply=self._sorry[outcome.bucket or "retryable_transient"],
            error=outcome.error,
        )

    async def _pending(self, session_id: str) -> ChatReply | None:
        """What the session waits for, if its newest invocation is suspended."""
        checkpointer = self.harness.graph.checkpointer
        if checkpointer is None:
            return None
        asked = CheckpointFilter(session_id=session_id, status="suspended", limit=1)
        for found in await checkpointer.list(asked):
            record = await checkpointer.load(found.invocation_id)
            if record is not None and record.suspension is not None:
                wanted = msgspec.convert(record.suspension["descriptor"], SuspensionDescriptor)
                return ChatReply(kind="suspended", descriptor=wanted, pending=record.invocation_id)
        return None


def _user_message(text: str) -> Message:
    return Message(role="user", content=text)
