"""LimpetConversationStore: conversations of pydantic-ai in a Limpet.

A conversation is one session. Each entry of its log is an event with the entry's id, and the record
is in the session's state, so that a save is one commit. A fork is a fork of the session: it reads
through to what it shares, and outlives the deletion of the conversation it came from.

`session.messages()` shows the history that the conversation continues: when it branches, what it
left goes out of view and stays in the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from limpet import Event, Key, Limpet, Message, Piece, Reply, Session, Turn, ops
from limpet.adapters.shared_store import release_store, store_for
from limpet.adapters.transcript import (
    RESULT,
    USE,
    Statement,
    Transcript,
    TranscriptRecord,
    label_of,
    record_in,
)
from limpet.adapters.turn_calls import TurnCalls, earlier_messages, ignoring_context, prompt_of
from limpet.errors import ExtraMissing, SessionDeleted, SessionExists, SessionNotFound
from limpet.model import thaw
from limpet.runtime.tool import ApprovalNeeded, is_allowed
from limpet.session.conversation.timeline import CLEARED

try:
    from pydantic import TypeAdapter
    from pydantic_ai import Agent, messages as theirs
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.exceptions import ApprovalRequired
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.toolsets import WrapperToolset
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("pydantic", "pydantic_ai"):
        raise
    raise ExtraMissing("pydantic-ai", "pydantic-ai") from error

_MEMBER: Final = "pydantic_ai"
_ENTRY: Final = "pydantic_ai.entry"  # says nothing that our vocabulary has a word for
_RECORD: Final = "record"  # the name in state: the ConversationRecord, as JSON text
_SCOPE: Final = "scope"  # the label
_PAGE: Final = 1_000
_KNOWN_MAX: Final = 10_000  # entries of which an object remembers the conversation
_SKEW: Final = timedelta(minutes=5)  # between the clock of an entry's id and that of the store
_records: Final = TypeAdapter(ConversationRecord)
_jsonable: Final = TypeAdapter(Any)


class LimpetConversationStore(ConversationStore):  # type: ignore[misc]  # without the package its base is Any
    """A ConversationStore of pydantic-ai.

    `store` is a URL, opened at the first use and shared with all objects of that URL in this
    process; or an open Limpet. A conversation is the session `Key(app, user, conversation_id)`.
    Deleting a conversation deletes its session; `Limpet.erase` removes it for good.
    """

    def __init__(
        self, store: str | Limpet, *, app: str = "pydantic-ai", user: str = "default"
    ) -> None:
        self._app, self._user = app, user
        self._store = store_for(self, store)
        self._known: OrderedDict[str, str] = OrderedDict()  # conversations by entry

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None."""
        record = await self._store.run(lambda lp: self._record(lp, conversation_id))
        if record is not None:
            self._remember(record)
        return record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, the last saved first."""
        return await self._store.run(lambda lp: self._list(lp, scope, limit))

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one commit, or raise ConversationConflict."""
        await self._store.run(
            lambda lp: self._write(lp, record, list(new_entries), expected_revision)
        )
        self._remember(record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation's session. Entries that a fork shares stay readable to it."""
        await self._store.run(lambda lp: self._delete(lp, conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry of any conversation. Raises KeyError if there is none."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, the oldest first, or the last `limit` of them."""
        if head_id is None or limit == 0:
            return []
        return await self._store.run(lambda lp: self._history(lp, head_id, limit))

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    # --- private --------------------------------------------------------------------------------

    def _key(self, conversation_id: str) -> Key:
        return Key(self._app, self._user, conversation_id)

    def _transcript(self, lp: Limpet, record: ConversationRecord) -> Transcript:
        labels = {_SCOPE: None if record.scope is None else label_of(record.scope)}
        key = self._key(record.conversation_id)
        return Transcript(lp, key, member=_MEMBER, labels=labels, reuse_deleted=True)

    def _remember(self, record: ConversationRecord) -> None:
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._known[entry_id] = record.conversation_id
                self._known.move_to_end(entry_id)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def _record(self, lp: Limpet, conversation_id: str) -> ConversationRecord | None:
        session = await lp.find(self._key(conversation_id), tail=0)
        return None if session is None else _record_in(session.state, conversation_id)

    async def _list(
        self, lp: Limpet, scope: str | None, limit: int | None
    ) -> list[ConversationRecord]:
        records: list[ConversationRecord] = []
        cursor: str | None = None
        while True:
            page = await lp.list(
                app=self._app,
                user=self._user,
                labels=None if scope is None else {_SCOPE: label_of(scope)},
                order="updated" if scope is None else "created",
                state=True,
                limit=500,
                cursor=cursor,
            )
            for head in page.items:
                record = _record_in(page.states.get(head.key, {}), head.key.id)
                if record is not None:
                    records.append(record)
            cursor = page.cursor
            enough = scope is None and limit is not None and len(records) >= limit
            if cursor is None or enough:
                break
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def _write(
        self,
        lp: Limpet,
        record: ConversationRecord,
        new: Sequence[ConversationEntry],
        expected_revision: str | None,
    ) -> None:
        start = new[0].parent_id if new else record.head_id
        if expected_revision is None and start is not None:
            await self._begin_fork(lp, record, start)
        before = await self._record(lp, record.conversation_id)
        try:
            changed = await self._changed_view(lp, before, start)
        except KeyError:  # somebody has deleted the entry that it would continue from
            raise ConversationConflict(record.conversation_id) from None
        records = [*changed, *(_record_of(entry) for entry in new)]

        def change(
            state: Mapping[str, Any], _: Sequence[TranscriptRecord]
        ) -> Sequence[ops.PlainOp]:
            stored = _record_in(state, record.conversation_id)
            if (None if stored is None else stored.revision) != expected_revision:
                raise ConversationConflict(record.conversation_id)
            return (ops.Set((_RECORD,), _records.dump_json(record).decode()),)

        await self._transcript(lp, record).append(records, change=change, type=_ENTRY)

    async def _begin_fork(self, lp: Limpet, record: ConversationRecord, start: str) -> None:
        """Fork the session of the entry at which the new conversation begins.

        Until its record is written, nobody sees a conversation there, so a crash in between leaves
        nothing that a second try would meet.
        """
        try:
            source, event = await self._find(lp, start)
        except KeyError:
            raise ConversationConflict(record.conversation_id) from None
        if source.key.id == record.conversation_id:
            raise ConversationConflict(record.conversation_id)
        labels = {} if record.scope is None else {_SCOPE: label_of(record.scope)}
        statements = len(list(_statements((await _entry_in(source, event)).message)))
        last = event.seq + max(1, statements) - 1
        try:
            await source.fork(last, id=record.conversation_id, labels=labels)
        except SessionExists:
            if await self._record(lp, record.conversation_id) is not None:
                raise ConversationConflict(record.conversation_id) from None
        except SessionDeleted:
            raise ConversationConflict(record.conversation_id) from None

    async def _changed_view(
        self,
        lp: Limpet,
        before: ConversationRecord | None,
        start: str | None,
    ) -> list[TranscriptRecord]:
        """Return records that hide the dropped history and repeat the part up to `start`."""
        if before is None or start == before.head_id:
            return []
        line = [] if start is None else await self._history(lp, start, None)
        said = [TranscriptRecord(None, list(_statements(entry.message))) for entry in line]
        return [
            TranscriptRecord(None, [(CLEARED, {})]),
            *(each for each in said if each.statements),
        ]

    async def _delete(self, lp: Limpet, conversation_id: str, expected_revision: str) -> None:
        def change(
            state: Mapping[str, Any], _: Sequence[TranscriptRecord]
        ) -> Sequence[ops.PlainOp]:
            stored = _record_in(state, conversation_id)
            if stored is None or stored.revision != expected_revision:
                raise ConversationConflict(conversation_id)
            return (ops.Set((_RECORD,), None),)

        key = self._key(conversation_id)
        await Transcript(lp, key, member=_MEMBER).append([], change=change, type=_ENTRY)
        await lp.delete(key)

    async def _history(
        self, lp: Limpet, head_id: str, limit: int | None
    ) -> list[ConversationEntry]:
        history: list[ConversationEntry] = []
        wanted: str | None = head_id
        while wanted is not None and len(history) != limit:
            # The next one is in another session if a conversation was moved onto its entries.
            session, event = await self._find(lp, wanted)
            async with aclosing(_entries_before(session, event.seq + 1)) as entries:
                async for entry in entries:
                    if entry.id == wanted:
                        history.append(entry)
                        wanted = entry.parent_id
                    if wanted is None or len(history) == limit:
                        break
        history.reverse()
        return history

    async def _find(self, lp: Limpet, entry_id: str) -> tuple[Session[Any], Event]:
        """Return the session that has an entry, and its event. Raises KeyError.

        The conversation is known if this object has read or written its record. Else those that
        were there when the entry was made are asked, first for their own entries, then for those
        that they share with one that was deleted.
        """
        known = self._known.get(entry_id)
        if known is not None and (event := await self._event(lp, known, entry_id)) is not None:
            return lp.session(self._key(known)), event
        created = _time_of(entry_id)
        forks: list[str] = []
        heads = lp.each(
            app=self._app,
            user=self._user,
            updated_after=None if created is None else created - _SKEW,
        )
        async for head in heads:
            session = lp.session(head.key)
            if own := await _own_events(session, entry_id):
                return session, own[0]
            if head.floor:
                forks.append(head.key.id)
        for fork in forks:
            if (event := await self._event(lp, fork, entry_id)) is not None:
                return lp.session(self._key(fork)), event
        raise KeyError(entry_id)

    async def _event(self, lp: Limpet, conversation_id: str, entry_id: str) -> Event | None:
        session = await lp.find(self._key(conversation_id), tail=0)
        if session is None:
            return None
        if own := await _own_events(session, entry_id):
            return own[0]
        before = session.head.floor + 1
        while before > 1 and (page := await session.read(before=before, limit=_PAGE)):
            for event in page:
                if event.id == entry_id:
                    return event
            before = page[-1].seq
        return None


# --- an agent in a worker -----------------------------------------------------------------------


def as_harness(agent: Agent[Any, Any], *, deps: Any = None) -> Callable[[Turn], Awaitable[None]]:
    """Return a harness that runs a pydantic-ai agent in a worker.

    Its model calls and tools are those of the turn: recorded once, streamed, counted against the
    budget. A tool with requires_approval pauses the turn until a person decides. After a crash the
    run begins again and repeats nothing that was recorded; thinking parts of recorded replies are
    not sent to the model again.
    """

    async def harness(turn: Turn) -> None:
        calls = TurnCalls(turn, _MEMBER)
        toolsets = [_TurnToolset(each, calls) for each in agent.toolsets]
        history = [_as_theirs(each) for each in await earlier_messages(turn)]
        with agent.override(model=_TurnModel(agent.model, calls), toolsets=toolsets, tools=[]):
            result = await agent.run(prompt_of(turn), message_history=history, deps=deps)
        await _say_output(turn, calls, result)

    return harness


async def _say_output(turn: Turn, calls: TurnCalls, result: Any) -> None:
    """Say what a run returned if its model said it by a call of an output tool, not as text."""
    last = result.all_messages()[-1]
    returns = [part for part in last.parts if isinstance(part, theirs.ToolReturnPart)]
    for part in returns:

        async def run(content: Any = part.content) -> Any:
            return _jsonable.dump_python(content, mode="json")

        await calls.tool(part.tool_call_id, part.tool_name, {}, run, asks=False)
    if returns:
        output = result.output
        text = output if isinstance(output, str) else _jsonable.dump_json(output).decode()
        await turn.say(text)


class _TurnModel(WrapperModel):  # type: ignore[misc]  # without the package its base is Any
    """The agent's model; each request is made once in the turn."""

    def __init__(self, wrapped: Any, calls: TurnCalls) -> None:
        super().__init__(wrapped)
        self._calls = calls

    async def request(self, messages: Any, model_settings: Any, parameters: Any) -> Any:
        """Return the recorded response, or ask the model, streaming where it can."""
        asked = (messages, model_settings, parameters)
        fresh: list[Any] = []

        async def pieces() -> AsyncIterator[Piece]:
            try:
                async with self.wrapped.request_stream(*asked) as stream:
                    async for event in stream:
                        if text := _text_in(event):
                            yield Piece(text=text)
                    fresh.append(stream.get())
            except NotImplementedError:  # it cannot stream
                fresh.append(await self.wrapped.request(*asked))
                for part in fresh[0].parts:
                    if isinstance(part, theirs.TextPart) and part.content:
                        yield Piece(text=part.content)
            response = fresh[0]
            calls = [part for part in response.parts if isinstance(part, theirs.ToolCallPart)]
            for index, part in enumerate(calls):
                named = {"index": index, "id": part.tool_call_id, "name": part.tool_name}
                yield Piece(tool={**named, "arguments": part.args_as_json_str()})
            used = response.usage
            counts = {"input": used.input_tokens, "output": used.output_tokens}
            yield Piece(usage={**counts, "cache_read": used.cache_read_tokens})

        reply = await self._calls.model(ignoring_context(pieces))
        return fresh[0] if fresh else _response_of(reply)


def _text_in(event: Any) -> str:
    part = getattr(event, "part", None) or getattr(event, "delta", None)
    text = getattr(part, "content", None) or getattr(part, "content_delta", None)
    is_text = isinstance(part, theirs.TextPart | theirs.TextPartDelta)
    is_end = isinstance(event, theirs.PartEndEvent)
    return text if is_text and not is_end and isinstance(text, str) else ""


def _response_of(reply: Reply) -> Any:
    """A recorded reply, as the agent got it."""
    parts: list[Any] = [theirs.TextPart(reply.text)] if reply.text else []
    parts += [
        theirs.ToolCallPart(call.name, thaw(call.input), call.provider_id or call.id)
        for call in reply.tool_calls
    ]
    return theirs.ModelResponse(parts=parts)


class _TurnToolset(WrapperToolset):  # type: ignore[misc]  # without the package its base is Any
    """Tools of the agent; each call is run once in the turn."""

    def __init__(self, wrapped: Any, calls: TurnCalls) -> None:
        super().__init__(wrapped)
        self._calls = calls
        self._asking: set[str] = set()
        self._external: set[str] = set()

    async def for_run(self, ctx: Any) -> Any:
        return _TurnToolset(await self.wrapped.for_run(ctx), self._calls)

    async def for_run_step(self, ctx: Any) -> Any:
        wrapped = await self.wrapped.for_run_step(ctx)
        return self if wrapped is self.wrapped else _TurnToolset(wrapped, self._calls)

    async def get_tools(self, ctx: Any) -> Any:
        """The tools; approval and clients are the turn's business, so none is deferred."""
        tools = await super().get_tools(ctx)
        kinds = {name: each.tool_def.kind for name, each in tools.items()}
        self._asking |= {name for name, kind in kinds.items() if kind == "unapproved"}
        self._external |= {name for name, kind in kinds.items() if kind == "external"}
        return {
            name: replace(each, tool_def=replace(each.tool_def, kind="function"))
            if name in self._asking | self._external
            else each
            for name, each in tools.items()
        }

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        id = ctx.tool_call_id
        if name in self._external and (answer := await self._calls.ask_client(id)) is not None:
            return thaw(answer.output)

        async def run() -> Any:
            given = replace(ctx, tool_call_approved=is_allowed())
            try:
                output = await self.wrapped.call_tool(name, tool_args, given, tool)
            except ApprovalRequired as error:
                raise ApprovalNeeded(f"{name} was allowed, and asks again") from error
            return _jsonable.dump_python(output, mode="json")

        asks = name in self._asking
        return thaw((await self._calls.tool(id, name, tool_args, run, asks=asks)).output)


def _as_theirs(message: Message) -> Any:
    """A message of ours in theirs."""
    part = message.parts[0] if message.parts else {}
    if part.get("type") == "tool_use":
        call = theirs.ToolCallPart(part["name"], thaw(part["input"]), part["request_id"])
        return theirs.ModelResponse(parts=[call])
    if part.get("type") == "tool_result":
        result = theirs.ToolReturnPart(part["name"], thaw(part["output"]), part["request_id"])
        return theirs.ModelRequest(parts=[result])
    if message.role == "assistant":
        return theirs.ModelResponse(parts=[theirs.TextPart(message.text)])
    if message.role == "system":
        return theirs.ModelRequest(parts=[theirs.SystemPromptPart(message.text)])
    return theirs.ModelRequest(parts=[theirs.UserPromptPart(message.text)])


# --- entries ------------------------------------------------------------------------------------


async def _own_events(session: Session[Any], entry_id: str) -> tuple[Event, ...]:
    try:
        return await session.read_ids([entry_id])
    except (SessionNotFound, SessionDeleted):
        return ()


async def _entries_before(
    session: Session[Any], seq: int
) -> AsyncGenerator[ConversationEntry, None]:
    """Yield the entries before a seq, the newest first."""
    while seq > 1 and (page := await session.read(before=seq, limit=_PAGE)):
        for event in page:
            if event.data is not None and _MEMBER in event.data:
                yield await _entry_in(session, event)
        seq = page[-1].seq


def _record_in(state: Mapping[str, Any], conversation_id: str) -> ConversationRecord | None:
    text = state.get(_RECORD)
    if not isinstance(text, str):
        return None
    record = _records.validate_json(text)
    # Before its own record is written, a fork has that of the conversation it came from.
    return record if record.conversation_id == conversation_id else None


def _record_of(entry: ConversationEntry) -> TranscriptRecord:
    (message,) = theirs.ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    value = {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind, "message": message}
    return TranscriptRecord(value, list(_statements(entry.message)), entry.id)


async def _entry_in(session: Session[Any], event: Event) -> ConversationEntry:
    value = await record_in(session, event, _MEMBER)
    if value is None:  # damaged: see `limpet verify`
        raise KeyError(event.id)
    (message,) = theirs.ModelMessagesTypeAdapter.validate_python([value["message"]])
    return ConversationEntry(id=value["id"], parent_id=value["parent_id"], message=message)


def _time_of(entry_id: str) -> datetime | None:
    """Return when an id was made, if it tells."""
    try:
        uuid = UUID(entry_id)
    except ValueError:
        return None
    if uuid.version != 7:
        return None
    return datetime.fromtimestamp((uuid.int >> 80) / 1_000, UTC)


def _statements(message: theirs.ModelMessage) -> Iterator[Statement]:
    counted = _counted(message)
    texts = [p for p in message.parts if isinstance(p, theirs.TextPart) and p.content]
    if counted and not texts:  # its answer is a call, and its tokens count all the same
        yield "agent.message", {"text": "", **_model(message), **counted}
    for part in message.parts:
        if isinstance(part, theirs.SystemPromptPart):
            yield "system.message", {"text": part.content}
        elif isinstance(part, theirs.UserPromptPart):
            yield "user.message", _content(part.content)
        elif isinstance(part, theirs.ToolReturnPart):
            output = part.model_response_str()
            yield RESULT, {"request_id": part.tool_call_id, "output": output}
        elif isinstance(part, theirs.RetryPromptPart) and part.tool_name is not None:
            output = part.model_response()
            yield RESULT, {"request_id": part.tool_call_id, "output": output, "is_error": True}
        elif isinstance(part, theirs.RetryPromptPart):
            yield "user.message", {"text": part.model_response()}
        elif isinstance(part, theirs.TextPart) and part.content:
            once = counted if part is texts[0] else {}
            yield "agent.message", {"text": part.content, **_model(message), **once}
        elif isinstance(part, theirs.ToolCallPart):
            call = {"request_id": part.tool_call_id, "name": part.tool_name}
            yield USE, {**call, "input": part.args_as_dict()}


def _counted(message: theirs.ModelMessage) -> dict[str, Any]:
    """The tokens of a response, to stand in one message of it; empty if there are none."""
    if not isinstance(message, theirs.ModelResponse):
        return {}
    used = message.usage
    usage = {"input": used.input_tokens, "output": used.output_tokens}
    usage["cache_read"] = used.cache_read_tokens
    known = {name: count for name, count in usage.items() if count}
    return {"usage": known} if known else {}


def _model(message: theirs.ModelMessage) -> dict[str, Any]:
    name = message.model_name if isinstance(message, theirs.ModelResponse) else None
    return {} if name is None else {"model": name}


def _content(content: str | Sequence[Any]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"text": content}
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "data", "data": {"kind": getattr(part, "kind", type(part).__name__)}}
        for part in content
    ]
    return {"content": parts}
