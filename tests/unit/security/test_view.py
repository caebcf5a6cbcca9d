"""What a view leaves of events that have more of a state than their operations say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet.model import Event, FrozenDict, Set
from limpet.security.view import _HASHES, FieldView

SECRET = "nobody else knows 4711"
VIEW = FieldView(frozenset({"n"}))


def event(type: str, data: dict[str, Any], *ops: Any) -> Event:
    return Event(5, "e5", type, "user:ada", 0, FrozenDict(data), tuple(ops))


@pytest.mark.parametrize("type", _HASHES)
def test_hashes_of_the_whole_state_are_left_out(type: str) -> None:
    """They would confirm a guess of what is hidden."""
    names = sorted(_HASHES[type])
    seen = VIEW.event(event(type, {"kept": 1, **dict.fromkeys(names, "00" * 32)}))
    assert seen.data == {"kept": 1}


def test_hidden_changes_are_left_out_of_the_text_that_an_adapter_keeps() -> None:
    """Of google-adk: the event as it was given, with its delta; in a blob it goes as a whole."""
    delta = {"actions": {"state_delta": {"secret": SECRET, "n": 1}}, "author": "agent"}
    changes = (Set(("secret",), SECRET), Set(("n",), 1))
    text = msgspec.json.encode(delta).decode()
    for data in ({"adk": text}, {"adk": "not JSON " + SECRET}, {"adk_blob": SECRET}):
        seen = VIEW.event(event("agent.message", {"kept": 1, **data}, *changes))
        assert SECRET not in repr(seen)
        assert seen.data["kept"] == 1
        assert seen.ops == changes[1:]
    whole = VIEW.event(event("agent.message", {"adk": text}, *changes))
    left = msgspec.json.decode(whole.data["adk"])
    assert left == {"actions": {"state_delta": {"n": 1}}, "author": "agent"}
