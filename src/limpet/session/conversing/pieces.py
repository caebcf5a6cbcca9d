"""Pieces of a coming message, for those who show it while it is said.

Partials may be lost, and a message may be begun again by another attempt. What was shown is then
left as it is until the message is recorded: the recorded text brings the rest, or replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpet.model import Event


class ShownPieces:
    """What a reader was shown of the message that is being said."""

    def __init__(self) -> None:
        self.id: str | None = None  # of the message of which something was shown
        self._text, self._index, self._attempt = "", -1, 1

    def add(self, partial: Event) -> str:
        """Return what to show of a partial; "" if it does not follow what was shown."""
        text = partial.data.get("text") if isinstance(partial.data, Mapping) else None
        if partial.type != "agent.message" or not isinstance(text, str) or not text:
            return ""
        index = partial.data.get("index")
        if partial.id != self.id:
            if index != 0:
                return ""  # its beginning is missing: the recorded message comes whole
            self.id, self._text, self._index, self._attempt = partial.id, "", -1, partial.attempt
        if index != self._index + 1 or partial.attempt != self._attempt:
            self._index = -2  # nothing follows any more
            return ""
        self._index += 1
        self._text += text
        return text

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
