"""A message of a conversation: what the log is read into, and what models are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from limpet.model import Event

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Part: TypeAlias = Mapping[str, Any]


class Message(msgspec.Struct, frozen=True):
    """One message: who speaks, what is said, and the event that recorded it.

    Parts are {type: text | image | file | data, …} as recorded, {type: "tool_use", request_id,
    name, input, signature?} and {type: "tool_result", request_id, name, output, is_error}. The
    event of a synthetic outcome is that of the call. `native` is what the provider wants back with
    it, in its own `shape`: {shape, items}, such as signed blocks of thinking.
    """

    role: Role
    parts: tuple[Part, ...]
    event: Event
    synthetic: bool = False
    native: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """What is said in words: the text parts, one after another."""
        return "".join(part["text"] for part in self.parts if part.get("type") == "text")


class Entry(msgspec.Struct, frozen=True):
    """One thing that was said or done, in the words of our vocabulary: what messages are made of.

    A framework's event may say several things, so one event may be that of several entries.
    """

    type: str
    data: Any
    event: Event
