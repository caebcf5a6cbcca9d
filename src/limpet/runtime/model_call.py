"""The vocabulary of a model call: what a model is asked, the pieces it streams, its whole reply.

`Turn.model` hands a `ModelRequest` to a function of the user's, or to one of `limpet.providers`,
and takes back a `Reply`, a text, or an async iterator of `Piece`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limpet.model import EMPTY, Event
from limpet.session.conversing.shapes import Shape
from limpet.session.life.tools import Tool


class ModelRequest(msgspec.Struct, frozen=True):
    """One call of a model: its context in the form of `shape`, and the tools that it may use.

    `attempt` counts the tries of this call, from 1; it is above 1 after a crash.
    """

    system: str
    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...] = ()
    shape: Shape = "openai"
    attempt: int = 1


class Piece(msgspec.Struct, frozen=True):
    """A part of a streamed reply. Every field may be absent.

    `tool` is `{index, id, name, arguments}`: `arguments` is a fragment of JSON text, fragments of
    one index belong together, and id and name may come with the first only. `usage` has the token
    counts `input`, `output` and `cache_read`, and perhaps `cost`; the last one counts. `reasoning`
    is shown to followers and never given back to a model. `native` is data that the provider wants
    back unchanged with this message, such as a signed block of reasoning.
    """

    text: str | None = None
    tool: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    stop: str | None = None
    reasoning: str | None = None
    native: Mapping[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the model wants to use. `id` is ours and unique in the session; `provider_id` is
    the id that the provider gave it."""

    id: str
    name: str
    input: Any = EMPTY
    provider_id: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """All that a model said in one call. `event` is its agent.message once it is recorded."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, Any] | None = None
    stop_reason: str | None = None
    event: Event | None = None


class ToolResult(msgspec.Struct, frozen=True):
    """The outcome of a tool call, as the model reads it."""

    output: Any = None
    is_error: bool = False
