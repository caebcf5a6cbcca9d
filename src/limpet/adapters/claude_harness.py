"""A client of the Claude Agent SDK in a worker: a turn is one query of a resumed conversation.

The SDK's program has the loop, the model and the tools, so the turn records none of their calls: a
conversation goes on from its transcript. What it says and does is said in the session, and each
permission that it asks for is an approval of the turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
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
        chosen = replace(options, can_use_tool=can_use_tool, **named)
        text = _CONTINUE if length > begun else await _prompt(turn, is_new=not length)
        client = ClaudeSDKClient(chosen, None if transport is None else transport(chosen))
        async with client:
            await client.query(text)
            await _say_all(turn, client)

    return harness


async def _prompt(turn: Turn, *, is_new: bool) -> str:
    """What the user says; before it what others said, if the transcript is new."""
    before = await earlier_messages(turn) if is_new else []
    lines = [f"{message.role}: {message.text}" for message in before if message.text]
    said = prompt_of(turn)
    return "\n".join(["The conversation so far:", *lines, "", said]) if lines else said


async def _say_all(turn: Turn, client: ClaudeSDKClient) -> None:
    counted: set[str] = set()  # an answer may come as several messages with one usage
    async for message in client.receive_response():
        if isinstance(message, ResultMessage):
            if message.is_error:
                raise RuntimeError(f"the query failed: {message.result or message.subtype}")
        elif isinstance(message, AssistantMessage | UserMessage):
            blocks = message.content if isinstance(message.content, list) else []
            for index, block in enumerate(blocks):
                said = _statement(block)
                if said is None:
                    continue
                type, data = said
                if isinstance(message, AssistantMessage) and type == "agent.message":
                    data |= {"model": message.model}
                await turn.append(type, data, id=f"{turn.id}/{message.uuid}/{index}")
            used = message.usage if isinstance(message, AssistantMessage) else None
            key = getattr(message, "message_id", None) or str(message.uuid)
            if used and key not in counted:
                counted.add(key)
                names = {"input": "input_tokens", "output": "output_tokens"}
                counts = {ours: used.get(theirs, 0) for ours, theirs in names.items()}
                id = f"{turn.id}/{key}/usage"
                await turn.append("agent.message", {"text": "", "usage": counts}, id=id)


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
