"""LimpetSessionManager: agents of Strands whose sessions are in a Limpet.

A session of Strands is one of ours. Every message is an event when Strands adds it; what else it
keeps of an agent (its state, that of its conversation manager) is in the session's state. Several
agents may share a session: their messages are told apart by `correlation_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from limpet import Key, Limpet, Session, ops
from limpet.adapters.shared_store import release_store, store_for
from limpet.adapters.transcript import (
    RESULT,
    USE,
    Statement,
    Transcript,
    TranscriptRecord,
    record_in,
    statements_of,
)
from limpet.errors import ExtraMissing
from limpet.model import thaw
from limpet.model.limits import PAGE_MAX
from limpet.session.conversation.timeline import POPPED

try:
    from strands.session.repository_session_manager import RepositorySessionManager
    from strands.session.session_repository import SessionRepository
    from strands.types.exceptions import SessionException
    from strands.types.session import Session as StrandsSession, SessionAgent, SessionMessage
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "strands":
        raise
    raise ExtraMissing("strands-agents", "strands") from error

if TYPE_CHECKING:
    from strands.multiagent.base import MultiAgentBase

T = TypeVar("T")
_MEMBER: Final = "strands"
_CHANGED: Final = "strands.changed"  # says nothing that our vocabulary has a word for
_SESSION: Final = "session"  # names in state
_AGENTS: Final = "agents"
_MULTI_AGENTS: Final = "multi_agents"


class LimpetSessionManager(RepositorySessionManager, SessionRepository):  # type: ignore[misc]  # without the package its base is Any
    """A SessionManager of Strands.

    `store` is a URL, opened at the first use and shared with all objects of that URL in this
    process. The session is `Key(app, user, session_id)`. Strands calls its managers without await,
    so an open Limpet cannot be passed; each call blocks until its commit is durable.

    A redacted message is replaced in what Strands and `session.messages()` read; the log keeps the
    first one until the session is erased.
    """

    def __init__(
        self, session_id: str, store: str, *, app: str = "strands", user: str = "default"
    ) -> None:
        self._app, self._user = app, user
        self._store = store_for(self, store)
        try:
            super().__init__(session_id=session_id, session_repository=self)
        except SessionException:  # another process created it after this one had looked
            super().__init__(session_id=session_id, session_repository=self)

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    # --- sessions and agents --------------------------------------------------------------------

    def create_session(self, session: StrandsSession, **kwargs: Any) -> StrandsSession:
        """Record a new session. Raises SessionException if it is there."""
        value = {**session.to_dict(), "session_type": session.session_type.value}

        def change(state: Mapping[str, Any], _: object) -> Sequence[ops.PlainOp]:
            if _SESSION in state:
                raise SessionException(f"Session {session.session_id} already exists")
            return (ops.Set((_SESSION,), value),)

        self._run(lambda lp: self._transcript(lp).append([], change=change, type=_CHANGED))
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> StrandsSession | None:
        """Return the session, or None."""
        value = self._state(session_id).get(_SESSION)
        return None if value is None else StrandsSession.from_dict(thaw(value))

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Record an agent of the session."""
        self._set(_AGENTS, session_agent.agent_id, session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Return an agent of the session, or None."""
        value = self._state(session_id).get(_AGENTS, {}).get(agent_id)
        return None if value is None else SessionAgent.from_dict(thaw(value))

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Record an agent as it is now. Raises SessionException if it is not in the session."""
        before = self.read_agent(session_id, session_agent.agent_id)
        if before is None:
            raise SessionException(f"Agent {session_agent.agent_id} is not in {session_id}")
        value = {**session_agent.to_dict(), "created_at": before.created_at}
        self._set(_AGENTS, session_agent.agent_id, value)

    # --- messages -------------------------------------------------------------------------------

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Record a message of an agent: one commit, durable when it returns."""
        record = _record_of(session_message)
        self._run(lambda lp: self._transcript(lp, agent_id).append([record], type=_CHANGED))

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        """Return a message by its number, or None."""
        messages = self._run(lambda lp: self._messages(lp, agent_id))
        return messages.get(message_id)

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Record another text of a message: the first one goes out of view."""
        before = self.read_message(session_id, agent_id, session_message.message_id)
        if before is None:
            raise SessionException(f"Message {session_message.message_id} is not in {session_id}")
        session_message.created_at = before.created_at
        record = _record_of(session_message)
        seqs = self._run(lambda lp: self._seqs(lp, agent_id, session_message.message_id))
        said: list[Statement] = [(POPPED, {"seqs": seqs}), *record.statements]
        record = record._replace(statements=said)
        self._run(lambda lp: self._transcript(lp, agent_id).append([record], type=_CHANGED))

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Return the messages of an agent in their order, from `offset` on."""
        messages = self._run(lambda lp: self._messages(lp, agent_id))
        listed = [messages[number] for number in sorted(messages)][offset:]
        return listed if limit is None else listed[:limit]

    # --- graphs and swarms ----------------------------------------------------------------------

    def create_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Record the state of a graph or swarm."""
        self._set(_MULTI_AGENTS, multi_agent.id, multi_agent.serialize_state())

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **kwargs: Any
    ) -> dict[str, Any] | None:
        """Return the state of a graph or swarm, or None."""
        value = self._state(session_id).get(_MULTI_AGENTS, {}).get(multi_agent_id)
        return None if value is None else dict(thaw(value))

    def update_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Record the state of a graph or swarm as it is now."""
        self._set(_MULTI_AGENTS, multi_agent.id, multi_agent.serialize_state())

    # --- private --------------------------------------------------------------------------------

    def _run(self, work: Callable[[Limpet], Awaitable[T]]) -> T:
        return self._store.call(work)

    def _key(self, session_id: str) -> Key:
        return Key(self._app, self._user, session_id)

    def _transcript(self, lp: Limpet, agent_id: str | None = None) -> Transcript:
        key = self._key(self.session_id)
        return Transcript(lp, key, member=_MEMBER, correlation_id=agent_id)

    def _state(self, session_id: str) -> Mapping[str, Any]:
        key = self._key(session_id)
        session: Session[Any] | None = self._run(lambda lp: lp.find(key, tail=0))
        return {} if session is None else session.state

    def _set(self, name: str, id: str, value: Mapping[str, Any]) -> None:
        def change(state: Mapping[str, Any], _: object) -> Sequence[ops.PlainOp]:
            return (ops.Merge((name,), {id: value}),)

        self._run(lambda lp: self._transcript(lp).append([], change=change, type=_CHANGED))

    async def _messages(self, lp: Limpet, agent_id: str) -> dict[int, SessionMessage]:
        """The messages of an agent by number; the last record of a number counts."""
        messages: dict[int, SessionMessage] = {}
        async for event, value in self._transcript(lp).records():
            if event.correlation_id == agent_id:
                message = SessionMessage.from_dict(value)
                messages[message.message_id] = message
        return messages

    async def _seqs(self, lp: Limpet, agent_id: str, message_id: int) -> list[int]:
        """The events of a message as it is now: those that its last record came with."""
        session = lp.session(self._key(self.session_id))
        seqs: list[int] = []
        is_its, after = False, 0
        while page := await session.read(after=after, limit=PAGE_MAX):
            for event in page:
                if event.correlation_id != agent_id or event.data is None:
                    continue
                if _MEMBER in event.data:
                    value = await record_in(session, event, _MEMBER)
                    is_its = value is not None and value["message_id"] == message_id
                    seqs = [] if is_its else seqs
                seqs += [event.seq] if is_its else []
            after = page[-1].seq
        return seqs


def _record_of(message: SessionMessage) -> TranscriptRecord:
    return TranscriptRecord(message.to_dict(), list(_statements(message.to_message())))


def _statements(message: Mapping[str, Any]) -> Iterator[Statement]:
    type = "agent.message" if message.get("role") == "assistant" else "user.message"
    return statements_of(type, [each for b in message.get("content", ()) for each in _contents(b)])


def _contents(block: Mapping[str, Any]) -> Iterator[Statement | Mapping[str, Any]]:
    use, result = block.get("toolUse"), block.get("toolResult")
    if use is not None:
        call = {"request_id": use["toolUseId"], "name": use["name"]}
        yield USE, {**call, "input": use.get("input") or {}}
    elif result is not None:
        output = {"request_id": result["toolUseId"], "output": _output(result)}
        failed = result.get("status") == "error"
        yield RESULT, {**output, **({"is_error": True} if failed else {})}
    elif isinstance(block.get("text"), str) and block["text"]:
        yield {"type": "text", "text": block["text"]}


def _output(result: Mapping[str, Any]) -> Any:
    contents = [block.get("text", block.get("json")) for block in result.get("content", ())]
    return contents[0] if len(contents) == 1 else contents
