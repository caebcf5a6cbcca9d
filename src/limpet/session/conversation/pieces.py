"""Pieces of a coming message, for those who show it while it is said.

Partials may be lost, and a message may be begun again by another attempt. What was shown is then
left as it is until the message is recorded: the recorded text brings the rest, or replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from limpet.model import Event

_LOST: Final = -2  # a piece is missing: nothing follows any more


class ShownPieces:
    """The part of the streaming message that a reader has already seen."""

    def __init__(self) -> None:
        self.id: str | None = None  # of the message of which text was shown
        self._text = ""
        self._coming: str | None = None  # the message whose pieces are read
        self._index, self._attempt = -1, 1

    def add(self, partial: Event) -> str:
        """Return the text to show of a partial; "" if it has none or does not follow the others."""
        if partial.type != "agent.message" or not isinstance(partial.data, Mapping):
            return ""
        if partial.id != self._coming:
            self._coming, self._index, self._attempt = partial.id, -1, partial.attempt
        if partial.data.get("index") != self._index + 1 or partial.attempt != self._attempt:
            self._index = _LOST
            return ""
        self._index += 1
        text = partial.data.get("text")
        if not isinstance(text, str) or not text:
            return ""  # reasoning, or a fragment of a tool call
        if partial.id != self.id:
            self.id, self._text = partial.id, ""
        self._text += text
        return text

    def follows(self, partial: Event) -> bool:
        """True if the partial that was added last followed all before it."""
        return partial.id == self._coming and self._index != _LOST

    def finish(self, message: Event) -> tuple[str, bool]:
        """Return what is left to show of a recorded message, and whether it replaces what was
        shown of it."""
        text = text_of(message.data)
        shown, self.id = (self._text if message.id == self.id else ""), None
        if text.startswith(shown):
            return text[len(shown) :], False
        return text, True


def text_of(data: Mapping[str, Any]) -> str:
    """Return the text of a message, or of its parts."""
    content = data.get("content")
    parts = content if isinstance(content, Sequence) and not isinstance(content, str) else [data]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "".join([text for text in texts if isinstance(text, str)])
