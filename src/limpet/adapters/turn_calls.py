"""A framework's agent inside a turn: its model calls and tool calls are the turn's.

The framework keeps its loop, its prompts and its schemas; each call of its model is a `turn.model`
and each call of a tool a `turn.tool`. So they are recorded once, streamed to followers, counted
against the budget and approved by people; after a crash the framework runs again from the top, and
what was recorded is returned instead of repeated.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from keyword import iskeyword
from typing import Any, Final

from limpet import EffectUnknown, Message, ModelRequest, Reply, Tool, ToolCall, ToolResult, Turn
from limpet.runtime.model_call import Call
from limpet.runtime.tool import ApprovalNeeded, allowing
from limpet.session.conversation.messages import UNKNOWN

ASK: Final = "always_ask"
ALLOW: Final = "always_allow"
_ANY: Final = {"type": "object"}


class TurnCalls:
    """The calls that a framework makes in one turn. `name` is that of its model calls."""

    def __init__(self, turn: Turn, name: str) -> None:
        self.turn, self._name = turn, name
        self._calls: dict[str, ToolCall] = {}  # by the id that the framework knows

    async def model(self, call: Call) -> Reply:
        """Return the reply of a model call, made once; `call` is as for `turn.model`."""
        reply = await self.turn.model(self._name, call)
        for each in reply.tool_calls:
            id = each.provider_id or each.id
            self._calls.pop(id, None)  # a model may use an id twice: the newest comes last
            self._calls[id] = each
        return reply

    def last_call(self, name: str) -> str | None:
        """Return the framework's id of the newest call of a tool, where it does not tell."""
        ids = [id for id, each in self._calls.items() if each.name == name]
        return ids[-1] if ids else None

    async def tool(
        self, id: str, name: str, input: Any, run: Callable[[], Awaitable[Any]], *, asks: bool
    ) -> ToolResult:
        """Return the result of a tool call, run once; a person is asked first if it `asks`, or if
        `run` raises ApprovalNeeded: then it runs again, once they allow it.

        A call that no model made, as a framework's own planner does, is an effect by its name.
        """
        call = self._calls.get(id)

        async def perform(**_: Any) -> Any:
            return await run()

        if call is None:
            return await self._effect(name, input, run, asks=asks)
        # The framework has checked the input by its own schema; its names are those of the effect.
        names = [each for each in call.input if each.isidentifier() and not iskeyword(each)]
        given = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in names]
        perform.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        tool = Tool(call.name, schema=_ANY, function=perform)
        return await self.turn.tool(call, tool, permission=ASK if asks else ALLOW)

    async def ask_client(self, id: str) -> ToolResult | None:
        """Return the client's answer to a call of a tool that has no function here, or None if no
        model made the call."""
        call = self._calls.get(id)
        return None if call is None else await self.turn.tool(call, Tool(call.name, schema=_ANY))

    async def _effect(
        self, name: str, input: Any, run: Callable[[], Awaitable[Any]], *, asks: bool
    ) -> ToolResult:
        try:
            if not asks:
                with suppress(ApprovalNeeded):
                    return ToolResult(await self.turn.effect(name, run))
            if not await self.turn.approve(name, input):
                return ToolResult("The user did not allow this call.", is_error=True)
            with allowing(is_allowed=True):
                return ToolResult(await self.turn.effect(name, run))
        except EffectUnknown:  # the framework would make an error of it, and its model a second try
            return ToolResult(UNKNOWN, is_error=True)


async def earlier_messages(turn: Turn) -> list[Message]:
    """Return the conversation before this turn: by whichever framework it was held."""
    mine = {event.seq for event in turn.inputs}
    return [
        message
        for message in await turn.session.messages()
        if message.event.seq not in mine
        and message.event.invocation_id != turn.id
        and message.event.processed != 0  # it waits for another turn
    ]


def prompt_of(turn: Turn) -> str:
    """Return what the user says in this turn."""
    texts = []
    for event in turn.inputs:
        data = event.data or {}
        parts = data.get("content") or [data]
        texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "\n".join(texts)


def ignoring_context(ask: Callable[[], Any]) -> Call:
    """A call for `turn.model` by a framework that has its own context."""

    def call(_: ModelRequest) -> Any:
        return ask()

    return call
