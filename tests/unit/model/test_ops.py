"""Ops: what each does, what each refuses, and where it points."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest

from limpet import ops
from limpet.errors import InvalidOp, LimpetError, OpPathUnknown, OpTypeMismatch, ScopeUnknown
from limpet.model.events import Draft, decode_body, prepare
from limpet.model.limits import INT_MAX, INT_MIN, VALUE_DEPTH_MAX
from limpet.model.ops import Op, apply, check, check_name, inverse, kind, resolve, scope_of, show
from limpet.model.values import FrozenDict, freeze

STATE = freeze(
    {
        "n": 1,
        "f": 0.5,
        "t": "text",
        "b": True,
        "z": None,
        "l": [1, 2, 3],
        "d": {"x": 1, "l": [{"y": 1}], "d": {}},
    }
)


def after(*given: Any, state: FrozenDict = STATE) -> dict[str, Any]:
    return apply(state, [check(op) for op in given])


def changed(*given: Any) -> dict[str, Any]:
    """Only what is different afterwards; a name that is gone is shown as ..."""
    now = after(*given)
    new = {name: value for name, value in now.items() if STATE.get(name, ...) != value}
    return new | {name: ... for name in STATE if name not in now}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.Set(("n",), 2), {"n": 2}),
        (ops.Set(("new",), {"a": 1}), {"new": {"a": 1}}),
        (ops.Set("n", 5), {"n": 5}),
        (ops.Set(("l", 0), "x"), {"l": ["x", 2, 3]}),
        (ops.Set(("d", "l", 0, "y"), 2), {"d": {"x": 1, "l": [{"y": 2}], "d": {}}}),
        (ops.Set(("d", "new"), 2), {"d": {"x": 1, "l": [{"y": 1}], "d": {}, "new": 2}}),
        (ops.Delete(("n",)), {"n": ...}),
        (ops.Delete(("d", "x")), {"d": {"l": [{"y": 1}], "d": {}}}),
        (ops.Delete(("d", "l", 0, "y")), {"d": {"x": 1, "l": [{}], "d": {}}}),
        (ops.Add(("l",), [4, 5]), {"l": [1, 2, 3, 4, 5]}),
        (ops.Add(("l",), []), {}),
        (ops.Insert(("l",), 0, [0]), {"l": [0, 1, 2, 3]}),
        (ops.Insert(("l",), 1, [9, 8]), {"l": [1, 9, 8, 2, 3]}),
        (ops.Insert(("l",), 3, [4]), {"l": [1, 2, 3, 4]}),
        (ops.Add(("new",), [1]), {"new": [1]}),
        (ops.Add(("d", "l"), [[1]]), {"d": {"x": 1, "l": [{"y": 1}, [1]], "d": {}}}),
        (ops.Merge(("d",), {"x": 2, "z": 3}), {"d": {"x": 2, "l": [{"y": 1}], "d": {}, "z": 3}}),
        (ops.Merge(("d",), {"d": {"q": 1}}), {"d": {"x": 1, "l": [{"y": 1}], "d": {"q": 1}}}),
        (ops.Merge(("new",), {"a": 1}), {"new": {"a": 1}}),
        (ops.Inc(("n",), 2), {"n": 3}),
        (ops.Inc(("n",), -2), {"n": -1}),
        (ops.Inc(("n",), 0.5), {"n": 1.5}),
        (ops.Inc(("f",), 1), {"f": 1.5}),
        (ops.Inc(("new",), 7), {"new": 7}),
        (ops.Inc(("l", 2), 1), {"l": [1, 2, 4]}),
        (ops.Cut(("l",), 0, 1), {"l": [2, 3]}),
        (ops.Cut(("l",), 1, 3), {"l": [1]}),
        (ops.Cut(("l",), 0, 3), {"l": []}),
        (ops.Cut(("l",), 2, 2), {}),
    ],
    ids=repr,
)
def test_an_op_does_what_it_says(op: Any, expected: dict[str, Any]) -> None:
    """The change is exactly the one described, and its inverse takes it back."""
    assert changed(op) == expected
    assert after(op, *inverse(STATE, check(op))) == STATE


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (ops.Add(("n",), [1]), OpTypeMismatch),
        (ops.Add(("t",), ["x"]), OpTypeMismatch),
        (ops.Add(("z",), [1]), OpTypeMismatch),
        (ops.Add(("d",), [1]), OpTypeMismatch),
        (ops.Insert(("l",), 4, [1]), OpPathUnknown),
        (ops.Merge(("l",), {"a": 1}), OpTypeMismatch),
        (ops.Merge(("z",), {"a": 1}), OpTypeMismatch),
        (ops.Inc(("t",), 1), OpTypeMismatch),
        (ops.Inc(("b",), 1), OpTypeMismatch),
        (ops.Inc(("z",), 1), OpTypeMismatch),
        (ops.Inc(("l",), 1), OpTypeMismatch),
        (ops.Cut(("t",), 0, 1), OpTypeMismatch),
        (ops.Cut(("d",), 0, 0), OpTypeMismatch),
        (ops.Cut(("new",), 0, 0), OpPathUnknown),
        (ops.Cut(("l",), 2, 4), OpPathUnknown),
        (ops.Delete(("new",)), OpPathUnknown),
        (ops.Delete(("l", 0)), OpTypeMismatch),
        (ops.Delete(("d", "new")), OpPathUnknown),
        (ops.Set(("new", "x"), 1), OpPathUnknown),
        (ops.Set(("n", "x"), 1), OpPathUnknown),
        (ops.Set(("t", 0), "x"), OpPathUnknown),
        (ops.Set(("l", 3), 1), OpPathUnknown),
        (ops.Set(("l", "x"), 1), OpPathUnknown),
        (ops.Set(("l", 7, "x"), 1), OpPathUnknown),
        (ops.Set(("d", 0), 1), OpPathUnknown),
        (ops.Set(("d", "missing", "x"), 1), OpPathUnknown),
        (ops.Inc(("d", "l", 5), 1), OpPathUnknown),
    ],
    ids=repr,
)
def test_an_op_that_does_not_fit_is_refused(op: Any, error: type[LimpetError]) -> None:
    """Well formed, but not for this state: the error says so and the state is untouched."""
    before = msgspec.json.encode(STATE)
    with pytest.raises(error) as info:
        after(op)
    assert info.type is error
    assert show(op.path) in str(info.value)
    assert msgspec.json.encode(STATE) == before


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (("new", "x", "y"), "new"),
        (("d", "new", "x"), "d.new"),
        (("n", "x", "y"), "dict or list at n"),
        (("d", "x", 0), "dict or list at d.x"),
        (("l", 3), "item 3"),
    ],
)
def test_the_error_of_a_path_says_what_is_missing_on_it(path: Any, missing: str) -> None:
    """A parent that is not there, or one that can hold nothing."""
    with pytest.raises(OpPathUnknown) as info:
        after(ops.Set(path, 1))
    assert (info.value.path, info.value.missing) == (show(path), missing)


@pytest.mark.parametrize(
    ("start", "by"),
    [
        (INT_MAX, 1),
        (INT_MIN, -1),
        (1.7e308, 1.7e308),
        (-1.7e308, -1.7e308),
    ],
)
def test_a_sum_stays_a_value(start: float, by: float) -> None:
    """An increment past 64 bits or past the finite is refused."""
    with pytest.raises(OpTypeMismatch):
        after(ops.Inc(("n",), by), state=freeze({"n": start}))


def test_sums_up_to_the_edge_are_exact() -> None:
    """The largest and smallest integers can be reached."""
    assert after(ops.Inc(("n",), 1), state=freeze({"n": INT_MAX - 1})) == {"n": INT_MAX}
    assert after(ops.Inc(("n",), -1), state=freeze({"n": INT_MIN + 1})) == {"n": INT_MIN}
    assert after(ops.Inc(("n",), 1e30), state=freeze({"n": 0.5})) == {"n": 1e30}  # a float: no edge


@pytest.mark.parametrize(
    "op",
    [
        "set",
        ("set", ["n"], 1),
        None,
        ops.Set((), 1),
        ops.Set(("",), 1),
        ops.Set((" n",), 1),
        ops.Set((0,), 1),
        ops.Set(("x" * 257,), 1),
        ops.Set(("a\x00",), 1),
        ops.Set(("n", -1), 1),
        ops.Set(("n", 1.0), 1),  # type: ignore[arg-type]  # wrong on purpose, here and below
        ops.Set(("n", True), 1),
        ops.Set(("n", None), 1),  # type: ignore[arg-type]
        ops.Set(("n", "\ud800"), 1),
        ops.Set(("n", *["x"] * VALUE_DEPTH_MAX), 1),
        ops.Add(("l",), "abc"),  # type: ignore[arg-type]
        ops.Add(("l",), {"a": 1}),  # type: ignore[arg-type]
        ops.Insert(("l",), -1, [1]),
        ops.Insert(("l",), True, [1]),
        ops.Merge(("d",), [1]),  # type: ignore[arg-type]
        ops.Merge(("d",), None),  # type: ignore[arg-type]
        ops.Inc(("n",), True),
        ops.Inc(("n",), "1"),  # type: ignore[arg-type]
        ops.Cut(("l",), -1, 1),
        ops.Cut(("l",), 2, 1),
        ops.Cut(("l",), 0, 1.0),  # type: ignore[arg-type]
        ops.Cut(("l",), 0.0, 1),  # type: ignore[arg-type]
        ops.Cut(("l",), False, 1),
        ops.SetRef(("n",), (1.5,)),  # type: ignore[arg-type]
        ops.SetRef(("n",), (-1,)),
        ops.AddRef(("n",), (None,)),  # type: ignore[arg-type]
        ops.MergeRef(("n",), ({},)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_malformed_op_is_refused_whatever_the_state(op: Any) -> None:
    """Unknown ops, bad paths, bad references and bad arguments are InvalidOp."""
    with pytest.raises(InvalidOp) as info:
        check(op)
    assert info.value.code == "op.invalid"


@pytest.mark.parametrize(
    "path",
    [
        ("n", "größe"),
        ("n", "a\nb"),
        ("n", "🐚"),
        ("n", ""),
        ("n", *["x"] * (VALUE_DEPTH_MAX - 1)),
    ],
    ids=ascii,
)
def test_a_step_below_the_first_may_be_any_text(path: tuple[str, ...]) -> None:
    """Every text that can be stored is a step, down to the deepest level a value may have."""
    assert check(ops.Set(path, 1)).path == path


def test_ops_apply_in_order_or_not_at_all() -> None:
    """Each sees what the one before left; the last one failing leaves the given state alone."""
    assert after(ops.Set("x", []), ops.Add("x", [1]), ops.Inc(("x", 0), 1))["x"] == [2]
    before = msgspec.json.encode(STATE)
    with pytest.raises(OpTypeMismatch):
        after(ops.Set("n", 9), ops.Set(("d", "x"), 9), ops.Add("t", [1]))
    assert msgspec.json.encode(STATE) == before


def test_what_did_not_change_is_shared() -> None:
    """A change deep in one branch copies that branch alone."""
    state = freeze({"a": {"x": [1]}, "b": {"y": [2]}})
    now = apply(state, [ops.Set(("a", "z"), 1)])
    assert now["b"] is state["b"]
    assert now["a"]["x"] is state["a"]["x"]
    assert state["a"] == {"x": [1]}


def test_the_state_that_comes_out_is_read_only() -> None:
    """New containers on the way are as frozen as the old ones."""
    now = after(ops.Add("new", freeze([1])), ops.Set(("d", "x"), 2), ops.Cut("l", 0, 1))
    for part in (now, now["new"], now["d"], now["l"]):
        with pytest.raises(TypeError):
            part.clear()


# --- references -------------------------------------------------------------------------

DATA = freeze({"text": "hi", "parts": [{"k": 1}, 2], "d": {"a": 1}})


@pytest.mark.parametrize(
    ("op", "plain"),
    [
        (ops.SetRef(("x",), ("text",)), ops.Set(("x",), "hi")),
        (ops.SetRef("x", "text"), ops.Set(("x",), "hi")),  # type: ignore[arg-type]  # a lone name
        (ops.SetRef(("x",), ()), ops.Set(("x",), DATA)),
        (ops.SetRef(("x",), ("parts", 0, "k")), ops.Set(("x",), 1)),
        (ops.AddRef(("x",), ("parts", 1)), ops.Add(("x",), [2])),
        (ops.MergeRef(("x",), ("d",)), ops.Merge(("x",), {"a": 1})),
        (ops.Inc(("x",), 1), ops.Inc(("x",), 1)),
    ],
    ids=repr,
)
def test_a_reference_stands_for_a_part_of_the_data(op: Any, plain: Any) -> None:
    """Resolved, it is the plain op with the value in place."""
    assert resolve(check(op), DATA) == plain


@pytest.mark.parametrize(
    "op",
    [
        ops.SetRef(("x",), ("missing",)),
        ops.SetRef(("x",), ("parts", 2)),
        ops.SetRef(("x",), ("text", 0)),
        ops.AddRef(("x",), ("parts", "0")),
        ops.MergeRef(("x",), ("parts",)),
        ops.MergeRef(("x",), ("text",)),
    ],
    ids=repr,
)
def test_a_reference_to_nothing_fitting_is_refused(op: Any) -> None:
    """Where the data has no such part, or no dict to merge, the op is invalid."""
    with pytest.raises(InvalidOp):
        resolve(check(op), DATA)


# --- words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("n", "session"),
        ("app:n", "app"),
        ("user:n", "user"),
        ("temp:n", "temp"),
        ("App:n", "session"),
        ("x:app:n", "session"),
        ("apps:n", "session"),
        ("app", "session"),
        (":n", "session"),
    ],
)
def test_a_prefix_tells_the_scope(name: str, scope: str) -> None:
    """Only the exact prefixes count; any other name is the session's own."""
    assert scope_of(name) == scope


@pytest.mark.parametrize("name", ["apps:b", "usr:x", "App:x", "x:app:n", ":n", "n:", "http://x"])
def test_a_name_with_an_unknown_scope_is_refused(name: str) -> None:
    """A misspelt prefix would else keep for one session what was meant for all."""
    for op in (
        ops.Set(name, 1),
        ops.Set((name, "x"), 1),
        ops.Add(name, [1]),
        ops.Merge(name, {}),
        ops.Inc(name, 1),
        ops.Cut(name, 0, 0),
        ops.SetRef(name, ("x",)),
        ops.Delete((name, "x")),
    ):
        with pytest.raises(ScopeUnknown, match="Start it with app:, user: or temp:") as refused:
            check(op)
        assert (refused.value.code, refused.value.name) == ("op.scope", name)


def test_names_inside_a_value_may_hold_any_colon() -> None:
    """Only the first name of a path has a scope."""
    assert check(ops.Set(("links", "http://x"), {"a:b": 1}))
    assert check(ops.Merge("links", {"a:b": 1}))


def test_a_name_of_an_unknown_scope_can_be_deleted() -> None:
    """Earlier releases let such names be written: what is there can be taken away."""
    assert check(ops.Delete("apps:b")) == ops.Delete(("apps:b",))
    assert apply(freeze({"apps:b": 1}), [ops.Delete(("apps:b",))]) == {}


def test_paths_and_kinds_are_shown_as_people_write_them() -> None:
    """Errors speak of plan.steps[0] and of a list, not of tuples and classes."""
    assert show(("plan", "steps", 0, "x")) == "plan.steps[0].x"
    assert show(("plan", "a.b", "", "\x07")) == "plan['a.b']['']['\\x07']"
    assert [kind(v) for v in (None, True, 1, 1.5, "", [], {})] == [
        "None",
        "a bool",
        "a number",
        "a number",
        "text",
        "a list",
        "a dict",
    ]


@pytest.mark.parametrize(
    ("op", "stored"),
    [
        (ops.Set(("a", 0), {"x": None}), b'["set",["a",0],{"x":null}]'),
        (ops.Delete("a"), b'["del",["a"]]'),
        (ops.Add("a", [1]), b'["add",["a"],[1]]'),
        (ops.Insert("a", 0, [1]), b'["ins",["a"],0,[1]]'),
        (ops.Merge("a", {"b": 1}), b'["merge",["a"],{"b":1}]'),
        (ops.Inc("a", 1.0), b'["inc",["a"],1.0]'),
        (ops.Cut("a", 0, 2), b'["cut",["a"],0,2]'),
        (ops.SetRef("a", ("b", 0)), b'["set@",["a"],["b",0]]'),
        (ops.AddRef("a", ()), b'["add@",["a"],[]]'),
        (ops.MergeRef("a", ("b",)), b'["merge@",["a"],["b"]]'),
    ],
    ids=repr,
)
def test_the_stored_form_is_frozen(op: Any, stored: bytes) -> None:
    """These bytes are in people's files: they decode for ever, and to the same op."""
    assert msgspec.json.encode(check(op)) == stored
    assert msgspec.json.decode(stored, type=ops.Op) == check(op)


def test_an_increment_keeps_the_kind_of_number() -> None:
    """Integers stay integers; a float makes a float."""
    assert repr(after(ops.Inc("n", 1))["n"]) == "2"
    assert repr(after(ops.Inc("n", 1.0))["n"]) == "2.0"
    assert math.isfinite(after(ops.Inc("f", -0.5))["f"])


@pytest.mark.parametrize(
    "stored",
    [
        '["set",["a"],{"x":[1]}]',
        '["set",["a"],[{"x":1}]]',
        '["merge",["a"],{"x":[1]}]',
        '["add",["a"],[{"x":1}]]',
        '["ins",["a"],0,[{"x":1}]]',
    ],
)
def test_what_a_stored_operation_holds_is_read_only_all_through(stored: str) -> None:
    """State shares it with everybody who reads the event."""
    body = decode_body(b'{"data":{},"ops":[%s]}' % stored.encode())
    held = msgspec.structs.astuple(body.ops[0])[-1]
    inner = held["x"] if isinstance(held, dict) else held[0]
    for part in (held, inner):
        with pytest.raises(TypeError, match="read-only"):
            part.clear()


@pytest.mark.parametrize("of", get_args(Op))
def test_an_operation_is_frozen_and_stored_as_a_list(of: type[msgspec.Struct]) -> None:
    """Events hand out the operations that they keep; their stored form is the golden one."""
    assert (of.__struct_config__.frozen, of.__struct_config__.array_like) == (True, True)


@pytest.mark.parametrize(
    ("op", "verb"),
    [
        (ops.Add(("n",), [1]), "add"),
        (ops.Insert(("n",), 0, [1]), "insert"),
        (ops.Merge(("n",), {"a": 1}), "merge"),
        (ops.Cut(("n",), 0, 1), "cut"),
    ],
    ids=repr,
)
def test_a_mismatch_names_the_operation_the_place_and_both_types(op: Any, verb: str) -> None:
    """As fields of the error too, for whoever handles it by program."""
    with pytest.raises(OpTypeMismatch, match=rf"^{verb} at n needs a \w+ but found ") as caught:
        after(op)
    assert (caught.value.op, caught.value.path) == (verb, "n")


def test_a_name_is_refused_for_its_prefix_unless_it_is_to_be_deleted() -> None:
    """Earlier releases allowed any prefix, so that such a name can still be removed."""
    with pytest.raises(ScopeUnknown):
        check_name("nope:x")
    with pytest.raises(ScopeUnknown):
        prepare(Draft(type="a.b", set={"nope:x": 1}), id="1", actor="x")
    assert check_name("nope:x", deleted=True) == "nope:x"
