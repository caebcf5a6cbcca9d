"""Values: what is admitted, what is refused, and what is handed out."""

from __future__ import annotations

import collections
import copy
import enum
import json
import math
import types
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from limpet.errors import InvalidValue
from limpet.model.events import Body, decode_body
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.values import (
    FrozenDict,
    FrozenList,
    Reads,
    encode,
    freeze,
    round_trip,
    settle,
    thaw,
)
from tests.support.examples import examples


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic(kind: type) -> Any:
    if kind is list:
        inside: Any = [1]
        inside.append({"again": inside})
        return inside
    outside: dict[str, Any] = {}
    outside["self"] = [outside]
    return outside


BAD = {
    "nan": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "2**63": 2**63,
    "-2**63-1": -(2**63) - 1,
    "2**64": 2**64,
    "a huge integer": 10**400,
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "a set": {1},
    "a frozenset": frozenset({1}),
    "an object": object(),
    "a complex number": 1j,
    "a generator": (n for n in ()),
    "a struct": Body({}),
    "a type": int,
    "a lone surrogate": "a\udc80",
    "a lone surrogate in a name": {"a\ud800": 1},
    "an integer name": {1: 2},
    "a None name": {None: 2},
    "a bool name": {True: 2},
    "a tuple name": {(1, 2): 3},
    "a list that contains itself": cyclic(list),
    "a dict that contains itself": cyclic(dict),
    "nested too deep": nested(VALUE_DEPTH_MAX + 1),
    "nested very deep": nested(100_000),
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("where", ["itself", "in a list", "in a dict"])
def test_what_json_cannot_hold_is_refused(value: Any, where: str) -> None:
    """At the top or inside, each gets InvalidValue, and the fast path admits none of it."""
    given = {"itself": value, "in a list": [1, value], "in a dict": {"x": {"y": value}}}[where]
    assert round_trip(Body({"v": given}), lambda raw: msgspec.json.decode(raw, type=Body)) is None
    with pytest.raises(InvalidValue) as info:
        settle(given, "data")
    assert info.value.code == "value.invalid"


def test_the_error_names_the_very_place() -> None:
    """A path leads to the value that is wrong."""
    with pytest.raises(InvalidValue, match=r"^data\['a'\]\[1\]\['b'\] is nan"):
        settle({"a": [0, {"b": math.nan}]}, "data")


GOOD = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "largest integer": 2**63 - 1,
    "smallest integer": -(2**63),
    "float": 0.1,
    "negative zero": -0.0,
    "largest float": 1.7976931348623157e308,
    "smallest float": 5e-324,
    "whole float": 1.0,
    "large whole float": 1e20,
    "text": "ä😀\x00\u2028",
    "digits": "0" * 40,
    "empty text": "",
    "list": [],
    "dict": {},
    "nested": nested(VALUE_DEPTH_MAX),
    "shared but not cyclic": [[1]] * 3,
}


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD.keys())
def test_what_json_can_hold_is_kept_exactly(value: Any) -> None:
    """The settled copy and its decoded encoding are the same value of the same kinds."""
    settled = settle(value, "data")
    assert repr(settled) == repr(value)
    assert repr(msgspec.json.decode(encode(settled))) == repr(value)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Words(str):
    __slots__ = ()


class Ratio(float):
    __slots__ = ()


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, 2), [1, 2]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
        (FrozenDict({"a": FrozenList([1])}), {"a": [1]}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Words("w"), "w"),
        (Ratio(0.5), 0.5),
        ({Words("name"): 1}, {"name": 1}),
        ({Colour.RED: 1}, {"red": 1}),
    ],
    ids=str,
)
def test_near_relatives_become_plain(value: Any, plain: Any) -> None:
    """Tuples become lists, subclasses their plain kind, and nothing of the given kind is left."""
    settled = settle(value, "data")
    assert settled == plain
    assert repr(settled) == repr(plain)


def test_what_is_settled_shares_nothing_with_what_was_given() -> None:
    """Changing the caller's containers afterwards changes nothing here."""
    given = {"a": [1]}
    settled = settle(given, "data")
    given["a"].append(2)
    assert settled == {"a": [1]}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@examples(60)
@given(st.dictionaries(st.text(), json_values))
def test_stored_and_live_cannot_differ(data: dict[str, Any]) -> None:
    """Whatever is admitted decodes from its stored bytes to the very same kinds and values."""
    trip = round_trip(Body(data), lambda raw: msgspec.json.decode(raw, type=Body))
    body = Body(settle(data, "data")) if trip is None else trip[1]
    raw = encode(body) if trip is None else trip[0]
    assert repr(decode_body(raw).data) == repr(data)


# --- frozen containers ------------------------------------------------------------------

DICT_MUTATORS = {
    "__setitem__": ("a", 2),
    "__delitem__": ("a",),
    "__ior__": ({"b": 1},),
    "clear": (),
    "pop": ("a",),
    "popitem": (),
    "setdefault": ("b", 1),
    "update": ({"b": 1},),
}
LIST_MUTATORS = {
    "__setitem__": (0, 2),
    "__delitem__": (0,),
    "__iadd__": ([2],),
    "__imul__": (2,),
    "append": (2,),
    "clear": (),
    "extend": ([2],),
    "insert": (0, 2),
    "pop": (),
    "remove": (1,),
    "reverse": (),
    "sort": (),
}


@pytest.mark.parametrize(("name", "args"), DICT_MUTATORS.items())
def test_a_frozen_dict_refuses_every_mutator(name: str, args: tuple[Any, ...]) -> None:
    """Each raises TypeError and leaves the content as it was."""
    frozen = freeze({"a": 1})
    with pytest.raises(TypeError, match="read-only"):
        getattr(frozen, name)(*args)
    assert frozen == {"a": 1}


@pytest.mark.parametrize(("name", "args"), LIST_MUTATORS.items())
def test_a_frozen_list_refuses_every_mutator(name: str, args: tuple[Any, ...]) -> None:
    """Each raises TypeError and leaves the content as it was."""
    frozen = freeze([1])
    with pytest.raises(TypeError, match="read-only"):
        getattr(frozen, name)(*args)
    assert frozen == [1]


@pytest.mark.parametrize(
    ("kind", "known"), [(dict, DICT_MUTATORS), (list, LIST_MUTATORS)], ids=["dict", "list"]
)
def test_no_mutator_is_forgotten(kind: type, known: dict[str, Any]) -> None:
    """Every public method of the plain container either leaves a copy unchanged or is refused."""
    harmless = {
        dict: {"copy", "fromkeys", "get", "items", "keys", "values"},
        list: {"copy", "count", "index"},
    }[kind]
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - harmless == {name for name in known if not name.startswith("_")}


def test_frozen_containers_pass_for_plain_ones() -> None:
    """Equality, isinstance, json and msgspec treat them as the containers they are."""
    plain = {"a": [1, {"b": None}], "c": "d"}
    frozen = freeze(plain)
    assert frozen == plain
    assert isinstance(frozen, dict)
    assert isinstance(frozen["a"], list)
    assert json.loads(json.dumps(frozen)) == plain
    assert msgspec.json.decode(msgspec.json.encode(frozen)) == plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frozen)) == plain
    assert {**frozen} == plain
    assert frozen | {"x": 1} == {**plain, "x": 1}


def test_a_deep_copy_may_be_changed() -> None:
    """copy.deepcopy and thaw give plain containers all the way down."""
    frozen = freeze({"a": [{"b": [1]}]})
    for copied in (copy.deepcopy(frozen), thaw(frozen)):
        copied["a"][0]["b"].append(2)
        assert copied == {"a": [{"b": [1, 2]}]}
    assert frozen == {"a": [{"b": [1]}]}
    assert type(copy.deepcopy(freeze([1]))) is list


def test_a_shallow_copy_is_still_safe() -> None:
    """copy.copy and .copy() never open a way to change the original."""
    frozen = freeze({"a": [1]})
    for copied in (copy.copy(frozen), frozen.copy()):
        assert copied == frozen
        with pytest.raises(TypeError):
            copied["a"].append(2)
    assert frozen == {"a": [1]}


def test_frozen_containers_cross_processes() -> None:
    """The pickle protocol that multiprocessing uses brings them over, still frozen."""
    frozen = freeze({"a": [1, {"b": 2}]})
    make, args = frozen.__reduce__()
    again = make(*args)
    assert again == frozen
    assert type(again) is FrozenDict
    assert type(again["a"]) is FrozenList


def test_frozen_containers_are_hashable_by_content() -> None:
    """Equal containers have one hash."""
    assert hash(freeze({"a": [1]})) == hash(freeze({"a": [1]}))
    assert len({freeze([1, 2]), freeze([1, 2]), freeze([2, 1])}) == 2


def test_equal_dicts_have_one_hash_whatever_their_order() -> None:
    """Order of names does not matter to equality and must not to the hash."""
    one, two = freeze({"a": 1, "b": 2}), freeze({"b": 2, "a": 1})
    assert one == two
    assert hash(one) == hash(two)


def test_freezing_what_is_frozen_shares_it() -> None:
    """A frozen part is taken as it is, not copied."""
    inner = freeze({"big": [1] * 10})
    assert freeze({"a": inner})["a"] is inner
    assert freeze(inner) is inner


# --- reads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "names"),
    [
        (lambda r: r["a"], {"a"}),
        (lambda r: r.get("b"), {"b"}),
        (lambda r: r.get("missing"), {"missing"}),
        (lambda r: "missing" in r, {"missing"}),
        (lambda r: list(r), {"a", "b"}),
        (lambda r: dict(r), {"a", "b"}),
        (lambda r: {**r}, {"a", "b"}),
        (lambda r: len(r), {"a", "b"}),
        (lambda r: r == {}, {"a", "b"}),
        (lambda r: list(r.items()), {"a", "b"}),
        (lambda r: None, set()),
    ],
)
def test_what_a_decision_looked_at_is_known(look: Any, names: set[str]) -> None:
    """Every way to look at the state is noted, absent names included."""
    reads = Reads({"a": 1, "b": 2})
    look(reads)
    assert reads.names == names
