"""The law of views: what is seen of a log is the whole log without the hidden names, no less."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, given, strategies as st

from limpet import Draft, Key, LimpetError
from limpet.model import Event, Fold, blank, ops, prepare, record, replay
from limpet.security.view import FieldView
from tests.property.strategies import NAMES, drafts
from tests.support.examples import examples

KEY = Key("shop", "ada", "1")
CANARY = "canary: what nobody who does not see this field may ever be shown"
hidden_names = st.frozensets(st.sampled_from(NAMES))


def recorded(steps: list[dict[str, Any]]) -> tuple[Fold, list[Event]]:
    """A log of those of the drafts that fit."""
    fold, log = Fold(blank(KEY, "uid", 100)), []
    for number, draft in enumerate(steps):
        try:
            made = prepare(Draft(**draft), id=f"auto-{number}", actor="test:view")
            fold, kept = record(fold, made, 100, b"salt" * 4)
        except LimpetError:
            continue
        log.append(kept.event)
    return fold, log


def views(hidden: frozenset[str]) -> list[FieldView]:
    """The same view, by what it hides and by what it shows."""
    shown = frozenset(NAMES) - hidden
    return [FieldView(None, hidden), FieldView(shown), FieldView(frozenset(NAMES), hidden)]


@examples(120)
@given(st.lists(drafts(), max_size=12), hidden_names)
def test_replaying_what_is_seen_gives_what_is_seen(
    steps: list[dict[str, Any]], hidden: frozenset[str]
) -> None:
    """Fields and versions of the filtered log are those of the whole log, without hidden names."""
    fold, log = recorded(steps)
    for view in views(hidden):
        seen = Fold(blank(KEY, "uid", 100))
        for event in log:
            seen = replay(seen, view.event(event))
        assert seen.fields == view.names(fold.fields)
        assert seen.versions == view.names(fold.versions)
        assert not hidden & {*seen.fields, *seen.versions}


@examples(120)
@given(st.lists(drafts(), max_size=12), hidden_names)
def test_everything_else_of_an_event_stays(
    steps: list[dict[str, Any]], hidden: frozenset[str]
) -> None:
    """Visible operations do what they did; an event that hides nothing is the very same."""
    _, log = recorded(steps)
    for event in log:
        seen = FieldView(None, hidden).event(event)
        whole = [ops.resolve(op, event.data) for op in event.ops]
        left = [op for op in whole if op.path[0] not in hidden]
        assert [ops.resolve(op, seen.data) for op in seen.ops] == left
        same = msgspec.structs.replace(seen, data=event.data, ops=event.ops)
        assert same == event
        if len(left) == len(whole):
            assert seen is event


def planted(draft: dict[str, Any], name: str) -> dict[str, Any]:
    """The draft with the canary in a name and in its data, once or as copies."""
    copy = "".join(list(CANARY))  # an equal text that is another object
    data = {**draft["data"], "said": CANARY, "deep": {"er": [copy, 1]}}
    sets = {**draft.get("set", {}), name: CANARY}
    kept = {n: v for n, v in draft.items() if n in ("type", "id")}
    return {**kept, "data": data, "set": sets}


@examples(120)
@given(drafts(), st.sampled_from(NAMES), hidden_names)
def test_the_data_that_a_hidden_value_came_from_is_hidden(
    draft: dict[str, Any], name: str, hidden: frozenset[str]
) -> None:
    """Whether it is stored once, as a reference, or as a copy, wherever it stands in the data."""
    assume(not name.startswith("temp:"))
    _, log = recorded([planted(draft, name)])
    for event in log:
        assert CANARY in repr(event)
        for view in views(hidden | {name}):
            assert CANARY not in repr(view.event(event))


@examples(60)
@given(drafts(), st.sampled_from(["a", "b", "list", "dict"]), st.booleans())
def test_containers_are_hidden_with_their_parts(
    draft: dict[str, Any], name: str, shared: bool
) -> None:
    """A message that is kept in a hidden list is not read from the event that brought it."""
    message = {"role": "user", "text": CANARY}
    data = message if shared else {"message": dict(message), "n": 1}
    sets = {"set": {name: message}} if name != "list" else {"add": {name: [message]}}
    _, log = recorded([{"type": "user.said", "data": data, **sets}])
    (event,) = log
    seen = FieldView(None, frozenset({name})).event(event)
    assert CANARY not in repr(seen)
    assert seen.data == ({} if shared else {"n": 1})


def test_a_reference_hides_what_it_names_whatever_that_is() -> None:
    """A number is hidden where it is referred to, and nowhere else; others keep their values."""
    made = {
        "type": "user.said",
        "data": {"n": 7, "deep": [7, {"x": 8}], "text": "t"},
        "ops": [ops.SetRef(("a",), ("n",)), ops.SetRef(("b",), ("deep", 1, "x"))],
    }
    _, (event,) = recorded([made])
    seen = FieldView(None, frozenset({"a"})).event(event)
    assert seen.data == {"deep": [7, {"x": 8}], "text": "t"}
    assert seen.ops == (ops.Set(("b",), 8),)
    other = FieldView(None, frozenset({"b"})).event(event)
    assert other.data == {"n": 7, "deep": [7, {}], "text": "t"}
    assert other.ops == (ops.Set(("a",), 7),)
