"""Pieces of a streamed message: shown in order, and left alone once one is missing."""

from __future__ import annotations

from typing import Any

from limpet.model import Event
from limpet.session.conversation.pieces import ShownPieces


def piece(index: int, *, id: str = "m", attempt: int = 1, **data: Any) -> Event:
    given = {**data, "index": index}
    return Event(0, id, "agent.message", "agent:a", 1, given, partial=True, attempt=attempt)


def recorded(text: str) -> Event:
    return Event(4, "m", "agent.message", "agent:a", 1, {"text": text})


def test_text_after_reasoning_and_between_calls_is_shown() -> None:
    """One index runs over all pieces, so those without text count too."""
    shown, call = ShownPieces(), {"index": 0, "arguments": "{"}
    given = [{"reasoning": "hm"}, {"text": "a"}, {"tool": call}, {"text": "b"}]
    pieces = [piece(n, **data) for n, data in enumerate(given)]
    assert [shown.add(each) for each in pieces] == ["", "a", "", "b"]
    assert all(shown.follows(each) for each in pieces)
    assert shown.finish(recorded("abc")) == ("c", False)


def test_nothing_follows_a_piece_that_was_lost() -> None:
    """Nor another attempt, nor a beginning that was missed; the recorded text brings the rest."""
    shown = ShownPieces()
    assert [shown.add(piece(0, text="a")), shown.add(piece(2, text="c"))] == ["a", ""]
    assert not shown.follows(piece(2))
    assert shown.add(piece(3, text="d")) == ""
    assert shown.finish(recorded("abcd")) == ("bcd", False)
    late = ShownPieces()
    assert late.add(piece(1, text="b")) == ""
    assert late.finish(recorded("ab")) == ("ab", False)
    again = ShownPieces()
    assert [again.add(piece(0, text="a")), again.add(piece(0, text="x", attempt=2))] == ["a", ""]
    assert again.finish(recorded("xy")) == ("xy", True)
