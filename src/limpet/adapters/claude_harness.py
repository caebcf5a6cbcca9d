"""A client of the Claude Agent SDK in a worker: a turn is one query of a resumed conversation.

The SDK's program has the loop, the model and the tools, so the turn records none of their calls: a
conversation goes on from its transcript. What it says and does is said in the session, and each
permission that it asks for is an approval of the turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from limpet import Turn
from limpet.adapters.turn_calls import earlier_messages, prompt_of
from limpet.errors import ExtraMissing, InvalidInput
from limpet.model import canonical

try:
    from claude_agent_sdk import (
        AssistantMessage,
        ClaudeAgentOptions,
        ClaudeSDKClient,
        PermissionResultAllow,
        PermissionResultDeny,
        ResultMessage,
        StreamEvent,
        TextBlock,
        ToolResultBlock,
        ToolUseBlock,
        Transport,
        UserMessage,
        project_key_for_directory,
    )
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "claude_agent_sdk":
        raise
    raise ExtraMissing("claude-agent-sdk", "claude-agent-sdk") from error

_CONTINUE: Final = "You were interrupted. Continue where you stopped."
_NAME_CHARS: Final = 8  # of the hash that keeps the approvals of one tool apart


def as_harness(
    options: ClaudeAgentOptions,
    *,
    transport: Callable[[ClaudeAgentOptions], Transport] | None = None,
) -> Callable[[Turn], Awaitable[None]]:
    """Return a harness that runs the Claude Agent SDK in a worker.

    `options` have a LimpetSessionStore as their session_store, and no can_use_tool: a tool that the
    SDK asks permission for pauses the turn until `session.confirm`. After a pause or a crash the
    conversation is resumed from its transcript and told to continue. `transport` makes another way
    to the SDK's program than a process of its own.
    """
    if options.session_store is None:
        raise InvalidInput("the options have no session_store. Pass a LimpetSessionStore.")
    if options.can_use_tool is not None:
        raise InvalidInput("the options have a can_use_tool: approvals of the turn take its place.")

    async def harness(turn: Turn) -> None:
        async def can_use_tool(name: str, input: dict[str, Any], _: Any) -> Any:
            # The program asks again after a pause, perhaps for something else: an answer is for
            # one tool with one input.
            digest = hashlib.sha256(canonical(input)).hexdigest()[:_NAME_CHARS]
            answer = await turn.approve(f"{name} {digest}", input)
            if answer.allow:
                return PermissionResultAllow()
            return PermissionResultDeny(message=answer.note or "The user did not allow this.")

        id = str(uuid5(NAMESPACE_URL, f"limpet:{turn.session.key}"))
        place: Any = {"project_key": project_key_for_directory(options.cwd), "session_id": id}
        length = len(await options.session_store.load(place) or ())
        begun = await turn.step("transcript", lambda: length)
        named = {"resume": id, "session_id": None} if length else {"session_id": id}
        chosen = replace(options, can_use_tool=can_use_tool, include_partial_messages=True, **named)
        text = _CONTINUE if length > begun else await _prompt(turn, is_new=not length)
        client = ClaudeSDKClient(chosen, None if transport is None else transport(chosen))
        async with client:
            await client.query(text)
            await _say_all(turn, client)

    return harness


async def _prompt(turn: Turn, *, is_new: bool) -> str:
    """Return the user's text, preceded by the earlier conversation if the transcript is new."""
    before = await earlier_messages(turn) if is_new else []
    lines = [f"{message.role}: {message.text}" for message in before if message.text]
    said = prompt_of(turn)
    return "\n".join(["The conversation so far:", *lines, "", said]) if lines else said


async def _say_all(turn: Turn, client: ClaudeSDKClient) -> None:
    """Say what the program says until the query is over: pieces as partials, then the whole."""
    texts, usage = _StreamedTexts(turn.id), _QueryUsage()
    async for message in client.receive_response():
        if isinstance(message, StreamEvent):
            if message.parent_tool_use_id is None and (piece := texts.piece(message)) is not None:
                id, data = piece
                await turn.session.append(
                    "agent.message", data, id=id, partial=True, attempt=turn.attempt
                )
        elif isinstance(message, ResultMessage):
            await _count(turn, usage.rest(message.usage or {}), str(message.uuid))
            if message.is_error:
                raise RuntimeError(f"the query failed: {message.result or message.subtype}")
        elif isinstance(message, AssistantMessage | UserMessage):
            blocks = message.content if isinstance(message.content, list) else []
            for index, block in enumerate(blocks):
                streamed = texts.id_of(message, block)
                said = _statement(block)
                if said is None:
                    continue
                type, data = said
                if isinstance(message, AssistantMessage) and type == "agent.message":
                    data |= {"model": message.model}
                await turn.append(type, data, id=streamed or f"{turn.id}/{message.uuid}/{index}")
            if isinstance(message, AssistantMessage):
                key = message.message_id or str(message.uuid)
                await _count(turn, usage.of(key, message.usage or {}), key)


async def _count(turn: Turn, counts: dict[str, int], key: str) -> None:
    """Put tokens on the budget."""
    if any(counts.values()):
        data = {"text": "", "usage": counts}
        await turn.append("agent.message", data, id=f"{turn.id}/{key}/usage")


class _QueryUsage:
    """The tokens of one query. A message comes in several parts, each with the same usage, which is
    that of its beginning; the result has the whole."""

    def __init__(self) -> None:
        self._messages: set[str] = set()
        self._counted = _tokens({})

    def of(self, key: str, used: Mapping[str, Any]) -> dict[str, int]:
        """Return what a message adds."""
        if key in self._messages:
            return {}
        self._messages.add(key)
        return self._add(_tokens(used))

    def rest(self, used: Mapping[str, Any]) -> dict[str, int]:
        """Return what the result adds to its messages."""
        whole = _tokens(used)
        return self._add({name: max(0, n - self._counted[name]) for name, n in whole.items()})

    def _add(self, counts: dict[str, int]) -> dict[str, int]:
        for name, count in counts.items():
            self._counted[name] += count
        return counts


def _tokens(used: Mapping[str, Any]) -> dict[str, int]:
    """Token counts of theirs in ours: what was written to a cache or read from it was input."""
    cached = used.get("cache_read_input_tokens") or 0
    given = (used.get("input_tokens") or 0) + (used.get("cache_creation_input_tokens") or 0)
    output = used.get("output_tokens") or 0
    return {"input": given + cached, "output": output, "cache_read": cached}


class _StreamedTexts:
    """The ids of texts that come in pieces. A piece has the id of the message that is recorded when
    its text is whole: the event that the stream of its message began with, and its number."""

    def __init__(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._message: str | None = None  # the model's id of the message that is streamed
        self._begun = ""
        self._texts: list[int] = []  # the blocks of its text, in order
        self._pieces: dict[int, int] = {}  # how many pieces each had
        self._whole = 0  # texts of which everything has come

    def piece(self, event: StreamEvent) -> tuple[str, dict[str, Any]] | None:
        """Return the id and the data of a piece of text; None if the event has none."""
        raw = event.event
        if raw.get("type") == "message_start":
            self._message, self._begun = raw.get("message", {}).get("id"), event.uuid
            self._texts, self._pieces, self._whole = [], {}, 0
        block, index = raw.get("content_block"), raw.get("index")
        if isinstance(block, Mapping) and block.get("type") == "text" and isinstance(index, int):
            self._texts.append(index)
        delta = raw.get("delta")
        if not isinstance(delta, Mapping) or delta.get("type") != "text_delta":
            return None
        if index not in self._texts or not delta.get("text"):
            return None
        number = self._pieces.get(index, 0)
        self._pieces[index] = number + 1
        return self._id(self._texts.index(index)), {"text": delta["text"], "index": number}

    def id_of(self, message: Any, block: Any) -> str | None:
        """Return the id of a text that came in pieces; None of anything else."""
        is_text = isinstance(message, AssistantMessage) and isinstance(block, TextBlock)
        if not is_text or message.message_id is None or message.message_id != self._message:
            return None
        self._whole += 1
        return self._id(self._whole - 1)

    def _id(self, text: int) -> str:
        return f"{self._turn_id}/{self._begun}/{text}"


def _statement(block: Any) -> tuple[str, dict[str, Any]] | None:
    """A block of theirs in our vocabulary; None if it says nothing there."""
    if isinstance(block, TextBlock) and block.text:
        return "agent.message", {"text": block.text}
    if isinstance(block, ToolUseBlock):
        data = {"request_id": block.id, "name": block.name, "input": block.input}
        return "agent.tool_use", data
    if isinstance(block, ToolResultBlock):
        failed = {"is_error": True} if block.is_error else {}
        return "agent.tool_result", {
            "request_id": block.tool_use_id,
            "output": block.content,
            **failed,
        }
    return None
