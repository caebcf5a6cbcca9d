"""LimpetHistoryProvider and LimpetThreadSnapshotStore: Microsoft's agent-framework on a Limpet.

The history of an AgentSession is one session of ours: what a run adds is one commit. A thread
snapshot of its AG-UI endpoint is the state of a session, written as the difference to the one
before, so that a growing conversation is stored once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from limpet import Key, Limpet, diff
from limpet.adapters.shared_store import release_store, store_for
from limpet.adapters.transcript import (
    RESULT,
    USE,
    Statement,
    Transcript,
    TranscriptRecord,
    statements_of,
)
from limpet.errors import ExtraMissing, InvalidInput, SessionConflict, SessionExists
from limpet.model import thaw
from limpet.session.journal import Tries

if TYPE_CHECKING:
    from agent_framework_ag_ui import AGUIThreadSnapshot

try:
    from agent_framework import HistoryProvider, Message
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "agent_framework":
        raise
    raise ExtraMissing("agent-framework", "agent-framework") from error

_MEMBER: Final = "agent_framework"
_MESSAGE: Final = "agent_framework.message"  # says nothing that our vocabulary has a word for
_SNAPSHOT: Final = "agent_framework.snapshot"
_TYPES: Final = {
    "user": "user.message",
    "system": "system.message",
    "developer": "system.message",
    "assistant": "agent.message",
}
_ACTOR: Final = "agent:agent-framework"
_OPS_MAX: Final = 500  # beyond, the whole is written


class LimpetHistoryProvider(HistoryProvider):  # type: ignore[misc]  # without the package its base is Any
    """A HistoryProvider of agent-framework.

    `store` is a URL, opened at the first use and shared with all objects of that URL in this
    process; or an open Limpet. The history of a session is `Key(app, user, session_id)`. The other
    arguments are those of HistoryProvider.
    """

    def __init__(
        self,
        store: str | Limpet,
        *,
        app: str = "agent-framework",
        user: str = "default",
        source_id: str = "limpet",
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
    ) -> None:
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self._app, self._user = app, user
        self._store = store_for(self, store)

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the messages of a session, the oldest first. One that is damaged is left out."""
        return await self._store.run(lambda lp: self._messages(lp, session_id))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the messages in one commit, durable when it returns."""
        records = [
            TranscriptRecord(message.to_dict(), list(_statements(message.to_dict())))
            for message in messages
        ]
        if records:
            await self._store.run(
                lambda lp: self._transcript(lp, session_id).append(records, type=_MESSAGE)
            )

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    def _transcript(self, lp: Limpet, session_id: str | None) -> Transcript:
        if not session_id:
            raise InvalidInput("there is no session id to store under. Run with session=….")
        return Transcript(lp, Key(self._app, self._user, session_id), member=_MEMBER)

    async def _messages(self, lp: Limpet, session_id: str | None) -> list[Message]:
        records = self._transcript(lp, session_id).records()
        return [Message.from_dict(value) async for _, value in records]


class LimpetThreadSnapshotStore:
    """An AGUIThreadSnapshotStore of agent-framework: the thread is `Key(app, scope, thread_id)`."""

    def __init__(self, store: str | Limpet, *, app: str = "agent-framework-threads") -> None:
        self._app = app
        self._store = store_for(self, store)

    async def save(self, *, scope: str, thread_id: str, snapshot: AGUIThreadSnapshot) -> None:
        """Store the latest snapshot of a thread: one commit of what has changed."""
        fields = {name: _value(getattr(snapshot, name)) for name in _FIELDS}
        key = self._key(scope, thread_id)
        await self._store.run(lambda lp: _save(lp, key, fields))

    async def get(self, *, scope: str, thread_id: str) -> AGUIThreadSnapshot | None:
        """Return the latest snapshot of a thread, or None."""
        from agent_framework_ag_ui import AGUIThreadSnapshot

        key = self._key(scope, thread_id)
        session = await self._store.run(lambda lp: lp.find(key, tail=0))
        if session is None:
            return None
        fields = {name: thaw(session.state.get(name)) for name in _FIELDS}
        return AGUIThreadSnapshot(**{**fields, "messages": fields["messages"] or []})

    async def delete(self, *, scope: str, thread_id: str) -> bool:
        """Delete a thread's snapshot and its history. False if there was none."""
        key = self._key(scope, thread_id)
        return await self._store.run(lambda lp: lp.delete(key))

    async def clear(self, *, scope: str | None = None) -> None:
        """Delete the snapshots of a scope, or all of them."""
        await self._store.run(lambda lp: self._clear(lp, scope))

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    def _key(self, scope: str, thread_id: str) -> Key:
        return Key(self._app, scope, thread_id)

    async def _clear(self, lp: Limpet, scope: str | None) -> None:
        keys = [head.key async for head in lp.each(app=self._app, user=scope)]
        for key in keys:
            await lp.delete(key)


_FIELDS: Final = ("messages", "state", "interrupt", "session_state")


async def _save(lp: Limpet, key: Key, fields: Mapping[str, Any]) -> None:
    async for left in Tries():
        session = await lp.find(key, tail=0)
        try:
            if session is None:
                await lp.create(
                    key.app, key.user, key.id, state=fields, reuse_deleted=True, actor=_ACTOR
                )
                return
            ops = diff(dict(session.state), {**session.state, **fields}).ops()
            if len(ops) > _OPS_MAX:
                await session.append(_SNAPSHOT, actor=_ACTOR, set=fields, expect=session.version)
            elif ops:
                await session.append(_SNAPSHOT, actor=_ACTOR, ops=ops, expect=session.version)
            return
        except (SessionConflict, SessionExists):  # the last save wins, on what is there then
            if not left:
                raise


def _value(value: Any) -> Any:
    """A copy of JSON values alone: a snapshot's parts may be mappings of any kind. A text that was
    cut in the middle of a character has a question mark there."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


# --- messages -----------------------------------------------------------------------------------


def _statements(message: Mapping[str, Any]) -> Iterator[Statement]:
    type = _TYPES.get(str(message.get("role")))
    contents = [each for content in message.get("contents", ()) for each in _contents(content)]
    if type is None:  # of a tool: its results
        contents = [content for content in contents if isinstance(content, tuple)]
    return statements_of(type or RESULT, contents)


def _contents(content: Mapping[str, Any]) -> Iterator[Statement | Mapping[str, Any]]:
    id = content.get("call_id")
    if not isinstance(id, str):
        yield from _parts(content)
    elif content.get("type") == "function_call":
        yield USE, {"request_id": id, "name": str(content.get("name")), "input": _input(content)}
    elif content.get("type") == "function_result":
        failed = content.get("exception")
        result = {"request_id": id, "output": failed or content.get("result")}
        yield RESULT, {**result, **({"is_error": True} if failed else {})}


def _input(content: Mapping[str, Any]) -> Any:
    """The arguments of a call: a mapping, or the text that a model wrote, not always JSON."""
    given = content.get("arguments")
    if not isinstance(given, str):
        return given or {}
    try:
        parsed = json.loads(given)
    except ValueError:
        return {"input": given}
    return parsed if isinstance(parsed, dict) else {"input": parsed}


def _parts(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if content.get("type") == "text" and content.get("text"):
        return [{"type": "text", "text": content["text"]}]
    if content.get("type") in ("uri", "data"):
        image = str(content.get("media_type", "")).startswith("image/")
        return [{"type": "image" if image else "file", "url": content.get("uri")}]
    return []  # reasoning, approvals, usage: of the framework alone
