"""Laws of typed state: what is encoded is decoded, equal states are equal bytes, and nothing of a
wrong type gets through or raises anything but a SchemaViolation."""

from __future__ import annotations

import contextlib
import math
import uuid
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import combinations
from typing import Any, Literal, Union

import pytest
from hypothesis import example, given, strategies as st
from pydantic import create_model

from limpet import TTL, Record, Ref, State
from limpet.errors import InvalidSchema, SchemaViolation
from limpet.model import ops
from limpet.model.state.forms import duration_text
from limpet.model.state.state import decode_fields, encode_fields
from limpet.model.state.update import plan_update
from limpet.model.values import canonical, freeze
from tests.property.strategies import values
from tests.support.declared import (
    Boxed,
    Called,
    Everything,
    Level,
    Message,
    Node,
    Point,
    Reduced,
    Role,
    Said,
)
from tests.support.examples import examples

ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
zones: st.SearchStrategy[tzinfo] = st.builds(
    timezone, st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
)
# A day from either end, so that every zone has the moment within the calendar.
datetimes = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)  # noqa: DTZ001  # Hypothesis wants the bounds naive
decimals = st.decimals(allow_nan=False, allow_infinity=False)
ttls = st.timedeltas(timedelta()).map(TTL.of)
points = st.builds(Point, x=ints, y=floats)
saids = st.builds(Said, text=st.text(max_size=5))
steps = st.recursive(
    saids,
    lambda inner: st.builds(
        Called,
        tool=st.text(max_size=3),
        arguments=st.dictionaries(st.text(max_size=3), values, max_size=2),
        then=st.lists(inner, max_size=2),
    ),
    max_leaves=4,
)
nodes = st.recursive(
    st.builds(Node, name=st.text(max_size=3)),
    lambda inner: st.builds(Node, name=st.text(max_size=3), children=st.lists(inner, max_size=2)),
    max_leaves=4,
)
refs = st.builds(Ref.to, st.sampled_from(["s3://b/x", "urn:x:1", "checkpoint:7"]), st.binary())


def few(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=4)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "int_": ints,
    "float_": floats,
    "str_": st.text(),
    "bool_": st.booleans(),
    "bytes_": st.binary(),
    "none": st.none(),
    "datetime_": datetimes,
    "date_": st.dates(),
    "timedelta_": st.timedeltas(),
    "ttl": ttls,
    "uuid_": st.uuids(),
    "decimal": decimals,
    "named": ints,
    "optional": st.none() | ints,
    "role": st.sampled_from(Role),
    "level": st.sampled_from(Level),
    "literal": st.sampled_from(["a", 1, True, None]),
    "number": ints | floats,
    "scalar": ints | floats | st.text() | st.booleans() | st.none(),
    "moment": datetimes | ints,
    "ref": refs,
    "list_": few(floats),
    "deep": few(few(st.binary() | st.none())),
    "tuple_": few(ints).map(tuple),
    "row": st.tuples(ints, st.text(), datetimes),
    "set_": few(st.text()).map(set),
    "numbers": few(ints).map(set),
    "moments": few(datetimes).map(frozenset),
    "points": few(points).map(frozenset),
    "dict_": st.dictionaries(st.text(), st.timedeltas(), max_size=3),
    "by_int": st.dictionaries(ints, st.text(), max_size=3),
    "by_uuid": st.dictionaries(st.uuids(), ints, max_size=3),
    "by_role": st.dictionaries(st.sampled_from(Role), few(ints)),
    "by_level": st.dictionaries(st.sampled_from(Level), st.booleans()),
    "point": points,
    "maybe": points | st.none(),
    "tree": nodes,
    "steps": few(steps),
    "boxed": st.builds(Boxed[bytes], content=st.binary()),
    "any_": values,
    "json_": values,
}
SAMPLE: dict[str, Any] = {
    "int_": 1,
    "float_": 0.5,
    "str_": "é",
    "bool_": True,
    "bytes_": b"\xff",
    "none": None,
    "datetime_": datetime(2026, 1, 2, tzinfo=UTC),
    "date_": date(2026, 1, 2),
    "timedelta_": timedelta(days=-1, microseconds=1),
    "ttl": TTL(hours=1),
    "uuid_": uuid.UUID(int=7),
    "decimal": Decimal("1.10"),
    "named": 3,
    "optional": None,
    "role": Role.USER,
    "level": Level.HIGH,
    "literal": "a",
    "number": 1,
    "scalar": None,
    "moment": 1,
    "ref": Ref.to("urn:x:1", b""),
    "list_": [],
    "deep": [[None, b""]],
    "tuple_": (),
    "row": (1, "", datetime(2026, 1, 2, tzinfo=UTC)),
    "set_": {"b", "a"},
    "numbers": {3, 1, 2},
    "moments": frozenset(),
    "points": frozenset(),
    "dict_": {},
    "by_int": {1: "x"},
    "by_uuid": {},
    "by_role": {},
    "by_level": {},
    "point": Point(x=1),
    "maybe": None,
    "tree": Node(name=""),
    "steps": [],
    "boxed": Boxed[bytes](content=b""),
    "any_": None,
    "json_": None,
}


def same_kind(one: Any, other: Any) -> bool:
    """Whether two values are of one type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Record):
        return all(same_kind(v, getattr(other, n)) for n, v in one.__dict__.items())
    if isinstance(one, dict):
        names = {(type(name), name) for name in one} == {(type(name), name) for name in other}
        return names and all(same_kind(v, other[n]) for n, v in one.items())
    if isinstance(one, (list, tuple)):
        return all(same_kind(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (set, frozenset)):
        return {type(item) for item in one} == {type(item) for item in other}
    return True


@pytest.mark.parametrize("name", FIELDS)
@examples(40)
@given(data=st.data())
def test_what_is_encoded_is_decoded(name: str, data: st.DataObject) -> None:
    """An equal value of the same types comes back, and encodes to the same bytes again."""
    state = Everything(**{**SAMPLE, name: data.draw(FIELDS[name])})
    fields = encode_fields(state)
    assert freeze(fields) == fields  # plain values, which any store keeps
    back = decode_fields(Everything, freeze(fields))
    assert back == state
    assert same_kind(back, state)
    assert canonical(encode_fields(back)) == canonical(fields)


@pytest.mark.parametrize("name", [n for n in FIELDS if n not in ("decimal",)])
@examples(40)
@given(data=st.data())
def test_equal_states_are_equal_bytes(name: str, data: st.DataObject) -> None:
    """And different ones are not; 1, 1.0 and True count as different, as they do in any state."""
    one, other = (
        Everything(**{**SAMPLE, name: data.draw(FIELDS[name])}),
        Everything(**{**SAMPLE, name: data.draw(FIELDS[name])}),
    )
    equal = one == other and same_kind(one, other)
    assert (canonical(encode_fields(one)) == canonical(encode_fields(other))) == equal


@given(st.datetimes(timezones=zones), zones)
def test_one_moment_in_two_zones_is_one_value(moment: datetime, zone: tzinfo) -> None:
    """It is the moment that is kept, not where somebody looked at a clock."""
    try:
        other = moment.astimezone(zone)
        made = Everything(**{**SAMPLE, "datetime_": moment})
    except (OverflowError, SchemaViolation):
        return
    again = Everything(**{**SAMPLE, "datetime_": other})
    assert encode_fields(made) == encode_fields(again)
    assert made.datetime_.utcoffset() == timedelta()


@given(st.timedeltas())
@example(timedelta.min)
@example(timedelta.max)
@example(timedelta(microseconds=-1))
def test_durations_are_exact_to_the_microsecond(duration: timedelta) -> None:
    """Negative and extreme ones too; and no two durations are written alike."""
    state = Everything(**{**SAMPLE, "timedelta_": duration})
    back = decode_fields(Everything, encode_fields(state))
    assert back.timedelta_ == duration
    assert duration_text(back.timedelta_) == duration_text(duration)


@given(st.integers() | st.integers(2**53, 2**70) | floats)
def test_a_float_field_takes_a_number_exactly_or_not_at_all(number: float) -> None:
    """An integer becomes the float of the same value, or is refused."""
    try:
        made = Everything(**{**SAMPLE, "float_": number})
    except SchemaViolation:
        assert isinstance(number, int)
        with contextlib.suppress(OverflowError):
            assert float(number) != number
        return
    assert made.float_ == number
    assert type(made.float_) is float
    assert encode_fields(made)["float_"] == number


def test_minus_zero_is_zero() -> None:
    """Equal floats are equal bytes."""
    made = Everything(**{**SAMPLE, "float_": -0.0})
    assert math.copysign(1, encode_fields(made)["float_"]) == 1


MEMBERS: dict[Any, list[Any]] = {
    int: [0, 5, -(2**63)],
    float: [0.0, 5.0, 1e300],
    bool: [True, False],
    str: ["", "5", "true", "2026-01-02", "PT1H", "a"],
    bytes: [b"", b"abc"],
    datetime: [SAMPLE["datetime_"]],
    date: [SAMPLE["date_"]],
    timedelta: [timedelta(), timedelta(days=-1)],
    TTL: [TTL(hours=1)],
    uuid.UUID: [uuid.UUID(int=7)],
    Decimal: [Decimal("5"), Decimal("1.10")],
    Role: list(Role),
    Level: list(Level),
    Literal["a", 5]: ["a", 5],
    Point: [Point(x=1)],
    Said: [Said(text="")],
    Called: [Called(tool="")],
    Ref[bytes]: [SAMPLE["ref"]],
    list[int]: [[], [1]],
    tuple[str, ...]: [(), ("a",)],
    set[int]: [set(), {1}],
    dict[str, int]: [{}, {"x": 1}],
    Any: [5, "a", [1.5], {"x": None}, None],
}


@pytest.mark.parametrize(("one", "other"), list(combinations(MEMBERS, 2)), ids=str)
def test_a_union_that_is_admitted_tells_its_members_apart(one: Any, other: Any) -> None:
    """In either order, every value of either member comes back as it was, or none is taken."""
    for pair in ((one, other), (other, one)):
        try:
            made: Any = create_model("Made", __base__=State, field=(Union[pair], ...))  # noqa: UP007
        except InvalidSchema:
            continue
        for value in [*MEMBERS[one], *MEMBERS[other]]:
            state = made(field=value)
            back = decode_fields(made, encode_fields(state))
            assert same_kind(back, state)
            assert back == state
            assert same_kind(state.field, value)


wrong: st.SearchStrategy[Any] = st.one_of(
    values,
    st.binary(max_size=3),
    datetimes,
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    decimals,
    st.complex_numbers(),
    st.floats(),
    st.integers(),
    st.sets(st.integers(), max_size=2),
    st.sampled_from([object(), Role.USER, Level.LOW, int, len, float("nan"), "\ud800"]),
    points,
    nodes,
    st.lists(points, max_size=2),
    st.dictionaries(st.integers() | st.text(max_size=2), values, max_size=2),
)


@pytest.mark.parametrize("name", FIELDS)
@examples(40)
@given(value=wrong)
def test_any_value_is_stored_exactly_or_is_a_violation(name: str, value: Any) -> None:
    """Constructing, updating and encoding never raise anything else, and name the field."""
    try:
        made = Everything(**{**SAMPLE, name: value})
        fields = encode_fields(made)
    except SchemaViolation:
        with pytest.raises(SchemaViolation) as caught:
            plan_update(Everything, {}, {name: value})
        assert caught.value.field.startswith(name)
        return
    assert decode_fields(Everything, fields) == made
    (op,) = plan_update(Everything, {}, {name: value}).ops
    assert canonical(op.value) == canonical(fields[name])  # type: ignore[union-attr]  # a Set


@pytest.mark.parametrize("name", FIELDS)
@examples(40)
@given(stored=values)
def test_any_stored_value_is_read_or_is_a_violation(name: str, stored: Any) -> None:
    """Whatever other code left in a field, reading it raises nothing else."""
    fields = {**encode_fields(Everything(**SAMPLE)), name: stored}
    try:
        made = decode_fields(Everything, freeze(fields))
    except SchemaViolation as error:
        violated = error.field
    else:
        violated = name
        assert isinstance(encode_fields(made), dict)
    assert violated.startswith(name)


messages = st.builds(
    Message, id=st.sampled_from("abc"), text=st.sampled_from("xy"), role=st.sampled_from(Role)
)
numbers = st.dictionaries(st.sampled_from("kxy"), st.integers(0, 2), max_size=3)
UPDATES: dict[str, st.SearchStrategy[Any]] = {
    "last": few(messages),
    "appended": few(messages),
    "concat": few(few(messages)),
    "bounded": few(messages),
    "dedupe": few(messages),
    "whole": few(messages),
    "keyed": few(messages),
    "merged": numbers,
    "all_merged": few(numbers),
    "tuple_": few(messages).map(tuple),
}


@given(st.lists(st.fixed_dictionaries({}, optional=UPDATES), max_size=5))
def test_updates_one_after_another_keep_the_state_whole(updates: list[dict[str, Any]]) -> None:
    """After any updates the fields decode, and hold what a naive reading of the reducers gives."""
    fields = freeze({})
    naive: dict[str, Any] = {name: () if name == "tuple_" else [] for name in UPDATES}
    naive |= {"merged": {}, "all_merged": {}}
    for update in updates:
        fields = ops.apply(fields, map(freeze_op, plan_update(Reduced, fields, update).ops))
        for name, value in update.items():
            naive[name] = naively(name, naive[name], value)
    assert decode_fields(Reduced, fields) == Reduced(**naive)


def freeze_op(op: Any) -> Any:
    ops.frozen(op)
    return op


def naively(name: str, old: Any, update: Any) -> Any:
    """What each reducer means, written for reading."""
    match name:
        case "last":
            return update
        case "appended" | "tuple_":
            return old + update
        case "concat":
            return [*old, *(item for part in update for item in part)]
        case "bounded":
            return [*old, *update][-3:]
        case "merged":
            return old | update
        case "all_merged":
            return old | {k: v for part in update for k, v in part.items()}
    new = list(old)
    for item in update:
        found = [at for at, held in enumerate(new) if (held.id == item.id or name == "whole")]
        if name == "whole" and item in new:
            continue
        if name == "whole" or not found:
            new.append(item)
        elif name == "keyed":
            new[found[0]] = item
    return new


def test_the_fields_drawn_are_all_there_are() -> None:
    """No field of the declared states was forgotten here."""
    assert list(FIELDS) == list(SAMPLE) == list(Everything.model_fields)
    assert set(UPDATES) == set(Reduced.model_fields)
    assert issubclass(Everything, State)
