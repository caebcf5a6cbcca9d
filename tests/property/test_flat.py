"""The short way for flat drafts: whatever it prepares and folds, the usual way does too."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import example, given, strategies as st

from limpet.errors import LimpetError
from limpet.model import (
    Draft,
    Fold,
    FrozenDict,
    Key,
    blank,
    events as model,
    is_run,
    record,
    record_run,
)

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
SALT = b"s" * 16
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats()
    | st.text(max_size=60)
    | st.sampled_from(["\ud800", "x" * 50, b"bytes"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
names = st.sampled_from(["a", "b", "step", "", " ", "app:n", "user:n", "temp:n", "odd:n", "\x00"])
drafts = st.builds(
    Draft,
    type=st.sampled_from(["a.b", "user.said", "system.tick", "session.x", "nodot"]),
    data=st.dictionaries(st.text(max_size=3) | st.just("\ud800"), values, max_size=4),
    actor=st.sampled_from([None, "", "user:ada", 'a "quoted" \\ one', "ä"]),
    set=st.dictionaries(names, values, max_size=3),
    inc=st.sampled_from([{}, {"n": 1}]),
    delete=st.sampled_from([(), ("a",)]),
    id=st.sampled_from([None, "chosen", 'a "quoted" \\ one', "", " padded", "\ud800"]),
    cause=st.sampled_from([None, "c", ""]),
    wake_id=st.sampled_from([None, "ä"]),
    input=st.booleans(),
)


def prepared(draft: Draft) -> Any:
    """The prepared draft, or the words of the refusal."""
    try:
        return model.prepare(draft, id=ID, actor="agent:main")
    except LimpetError as error:
        return str(error)


@given(drafts)
def test_a_flat_draft_is_prepared_as_any_other(draft: Draft) -> None:
    """The same bytes, digest and values, or the same refusal."""
    short = prepared(draft)
    with patch.object(model, "_prepare_flat", lambda *_: None):
        usual = prepared(draft)
    if isinstance(short, str):
        assert short == usual
    else:
        assert msgspec.structs.replace(short, sets=None) == usual
        assert repr(short.data) == repr(usual.data)  # which tells 1 from True and 1.0


@given(drafts, st.sampled_from([{}, (), None, [("a", 1)]]))
def test_what_is_prepared_without_a_draft_is_what_its_draft_would_be(
    draft: Draft, other: object
) -> None:
    """Of type, data and names to set; None where the draft would not be flat, or is refused."""
    alone = Draft(type=draft.type, data=draft.data, set=draft.set, actor="agent:main")
    with patch.object(model, "_prepare_flat", lambda *_: None):
        usual = prepared(alone)
    short = model.prepare_flat(draft.type, draft.data, draft.set, ID, "agent:main")
    if short is not None:
        assert msgspec.structs.replace(short, sets=None) == usual
        assert repr(short.data) == repr(usual.data)
        assert (short.sets or {}) == {op.path[0]: op.value for op in usual.plain_ops}
    for odd in ((draft.data, other), (other, {})):
        if other != {}:
            assert model.prepare_flat("a.b", *odd, ID, "agent:main") is None


class Text(str):
    """Text of a class of its own."""


def test_names_of_another_class_than_text_are_looked_at_closely() -> None:
    """They are equal to names that were seen before, and are not these."""
    assert model.prepare_flat("a.b", {"n": 1}, {"n": 1}, ID, "agent:main") is not None
    odd = [({Text("n"): 1}, {}), ({"n": Text()}, {}), ({}, {Text("n"): 1}), ({}, {"n": Text()})]
    for data, given_ in odd:
        assert model.prepare_flat("a.b", data, given_, ID, "agent:main") is None
    assert model.prepare_flat(Text("a.b"), {}, {}, ID, "agent:main") is None
    assert model.prepare_flat("a.b", {}, {}, ID, Text("agent:main")) is None


@given(st.lists(drafts, max_size=5))
def test_a_union_folds_as_the_operations_do(many: list[Draft]) -> None:
    """Fields, their order, and their versions."""
    one = two = Fold(blank(Key("a", "u", "s"), "u", 1))
    for draft in many:
        found = prepared(draft)
        if isinstance(found, str):
            continue
        try:
            two, usual = record(two, msgspec.structs.replace(found, sets=None), 5, SALT)
        except LimpetError:
            continue
        one, short = record(one, found, 5, SALT)
        assert short.event == usual.event
        assert repr((one.fields, one.versions)) == repr((two.fields, two.versions))
        assert one == two


steps = st.builds(
    Draft,
    type=st.sampled_from(["a.b", "a.b", "agent.said", "agent.message", "user.said", "system.tick"]),
    data=st.dictionaries(st.text(max_size=3), scalars, max_size=2),
    set=st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
    inc=st.sampled_from([{}, {}, {}, {"n": 1}]),
    id=st.sampled_from([None, None, None, "chosen"]),
    input=st.sampled_from([False, False, False, True]),
)


plain_steps = st.builds(
    Draft,
    type=st.sampled_from(["a.b", "agent.said"]),
    data=st.dictionaries(st.sampled_from("xy"), st.integers(0, 3), max_size=2),
    set=st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
)


def begun(drafts: list[Draft]) -> Fold:
    """A session with these events, and one before them."""
    fold = Fold(blank(Key("a", "u", "s"), "u", 1))
    for draft in (Draft(type="a.b"), *drafts):
        if not isinstance(found := prepared(draft), str):
            fold, _ = record(fold, found, 5, SALT)
    return fold


@given(
    st.lists(steps, max_size=3), st.lists(plain_steps, min_size=1, max_size=5), st.integers(0, 9)
)
@example([], [Draft(type="a.b"), Draft(type="a.b", set={"b": 1, "a": 1})], 9)  # no activity
@example([], [Draft(type="agent.said", set={"a": 1}), Draft(type="a.b", set={"a": 2})], 9)
def test_a_run_is_recorded_as_one_after_the_other(
    before: list[Draft], many: list[Draft], now_us: int
) -> None:
    """Events, links, state and head, whatever the session was before; else it is not a run."""
    fold, run = begun(before), [prepared(draft) for draft in many]
    if not is_run(fold, run):
        assert "inputs" in fold.head.facts
        return
    salts = [bytes([number]) * 16 for number in range(len(run))]
    after, recorded = record_run(fold, run, now_us, iter(salts).__next__)
    for draft, salt, each in zip(run, salts, recorded, strict=True):
        fold, alone = record(fold, draft, now_us, salt)
        assert each == alone
    assert after == fold
    assert repr((after.fields, after.versions)) == repr((fold.fields, fold.versions))


@given(st.lists(steps, min_size=1, max_size=5))
def test_events_that_do_more_than_set_names_are_no_run(many: list[Draft]) -> None:
    """Inputs, chosen ids, other operations, and types that facts follow from."""
    fold = begun([])
    run = [found for draft in many if not isinstance(found := prepared(draft), str)]
    plain = [
        draft.type in ("a.b", "agent.said") and not (draft.input or draft.id or draft.inc)
        for draft in many
        if not isinstance(prepared(draft), str)
    ]
    assert is_run(fold, run) == all(plain)


def test_a_run_is_not_the_beginning_and_no_phase_refuses_it() -> None:
    """The first event says when the session was created, and each is held against its phase."""
    run, fold = [prepared(Draft(type="a.b"))], begun([])
    assert is_run(fold, run)
    assert not is_run(Fold(blank(Key("a", "u", "s"), "u", 1)), run)
    facts = FrozenDict({"phase": "suspended"})
    assert not is_run(Fold(msgspec.structs.replace(fold.head, facts=facts)), run)


def test_a_caller_that_changes_its_data_later_changes_nothing() -> None:
    """Neither dicts nor lists inside are shared with what is recorded."""
    data: dict[str, Any] = {"n": 1, "in": {"n": 1}, "list": [1, {"n": 1}, [1]]}
    found = prepared(Draft(type="a.b", data=data, set={"x": 1}))
    assert found.sets == {"x": 1}
    data["n"], data["in"]["n"] = 2, 2
    data["list"][1]["n"] = 2
    data["list"][2].append(2)
    data["list"].append(2)
    assert found.data == {"n": 1, "in": {"n": 1}, "list": [1, {"n": 1}, [1]]}


def test_a_list_that_contains_itself_many_times_is_refused_at_once() -> None:
    """The short way looks at so many values and no more; the long way names the place."""
    around: list[Any] = []
    around.extend([around] * 32)
    assert "contains itself" in prepared(Draft(type="a.b", data={"a": around}))
