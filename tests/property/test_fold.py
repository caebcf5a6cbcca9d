"""Laws of the model: replay gives the fold, encoding loses nothing, what is admitted reads back."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from limpet import Draft, InvalidInput, Key, LimpetError
from limpet.errors import InvalidValue
from limpet.model.events import decode_body, prepare
from limpet.model.fold import Fold, record, replay
from limpet.model.head import blank
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.values import FrozenDict, thaw
from limpet.store.coding.codec import COMPRESS_BYTES_MIN, Codec, Damaged
from limpet.store.protocol import Place
from tests.property.strategies import drafts
from tests.support.examples import examples
from tests.support.seal import KeylessSeal, at_once

KEY = Key("shop", "ada", "1")
PLACE = Place("event", "uid", "id", "x.y")
ACTOR = "test:fold"


# --- replay --------------------------------------------------------------------------------------


def dated(fold: Fold) -> Fold:
    """Without the time since when inputs wait: it is the clock's, which may have been set back."""
    inputs = FrozenDict({"pending": fold.head.pending, "since_us": None})
    facts = FrozenDict({**fold.head.facts, "inputs": inputs})
    return msgspec.structs.replace(fold, head=msgspec.structs.replace(fold.head, facts=facts))


@examples(120)
@given(st.lists(st.tuples(drafts(), st.integers(-5, 5)), max_size=15))
def test_replaying_the_log_gives_the_fold(steps: list[tuple[dict[str, Any], int]]) -> None:
    """State, versions and head, from the stored bytes alone, at every version."""
    now = Fold(blank(KEY, "uid", 100))
    log, folds = [], [now]
    at_us = 100
    for number, (draft, passed) in enumerate(steps):
        at_us += passed
        try:
            made = prepare(Draft(**draft), id=f"auto-{number}", actor=ACTOR)
            now, kept = record(now, made, at_us, b"salt" * 4)
        except LimpetError:
            continue
        body = decode_body(kept.raw)
        event = msgspec.structs.replace(kept.event, data=body.data, ops=body.ops)
        assert event == kept.event
        log.append(event)
        folds.append(now)
    start = Fold(blank(KEY, "uid", 100))
    assert dated(reduce(replay, log, start)) == dated(now)
    for event, before, after in zip(log, folds, folds[1:], strict=False):
        again = replay(before, event)
        assert dated(again) == dated(after)
        assert (again.head.pending_us is None) == (after.head.pending_us is None)
        assert event.at_us >= before.head.updated_us
        if all(passed >= 0 for _, passed in steps):
            assert again == after
    assert [event.seq for event in log] == list(range(1, len(log) + 1))


@examples(80)
@given(st.lists(drafts(), max_size=8))
def test_folding_changes_nothing_that_was_there(steps: list[dict[str, Any]]) -> None:
    """An earlier fold shares its values with later ones, and shows the same for ever."""
    now = Fold(blank(KEY, "uid", 100))
    earlier: list[tuple[Fold, Any]] = []
    for number, draft in enumerate(steps):
        earlier.append((now, thaw(now.fields)))
        try:
            made = prepare(Draft(**draft), id=f"auto-{number}", actor=ACTOR)
            now, _ = record(now, made, 100, b"salt" * 4)
        except LimpetError:
            continue
    for fold, fields in earlier:
        assert fold.fields == fields


# --- the codec -----------------------------------------------------------------------------------


class Rot13(KeylessSeal):
    """A seal of no strength: enough to see that it was asked, and for which place."""

    def seal(self, plain: bytes, place: Place) -> bytes:
        return place.aad() + bytes(byte ^ 13 for byte in plain)

    def open(self, sealed: bytes, place: Place) -> bytes:
        if not sealed.startswith(place.aad()):
            raise ValueError("sealed for another place")
        return bytes(byte ^ 13 for byte in sealed[len(place.aad()) :])


raw_bodies = st.one_of(
    st.binary(max_size=200),
    st.binary(min_size=COMPRESS_BYTES_MIN - 2, max_size=COMPRESS_BYTES_MIN + 2),
    st.builds(
        lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1, 999)
    ),
)


@pytest.mark.parametrize("seal", [None, Rot13()], ids=["open", "sealed"])
@given(raw=raw_bodies)
def test_what_is_packed_is_unpacked(raw: bytes, seal: Rot13 | None) -> None:
    """Compressed or not, sealed or not, the bytes are the same."""
    codec = Codec(seal)
    at_once(codec.sealer.ready([PLACE.owner]))
    flags, stored, crc = codec.pack(raw, PLACE)
    assert codec.unpack(flags, stored, crc, lambda: PLACE) == raw
    if seal is None:
        assert len(stored) <= len(raw)


@pytest.mark.parametrize("seal", [None, Rot13()], ids=["open", "sealed"])
@given(raw=raw_bodies, place=st.integers(0), bit=st.integers(0, 7))
def test_a_changed_body_is_not_unpacked(
    raw: bytes, place: int, bit: int, seal: Rot13 | None
) -> None:
    """One flipped bit anywhere is damage, and so is a body cut short."""
    codec = Codec(seal)
    at_once(codec.sealer.ready([PLACE.owner]))
    flags, stored, crc = codec.pack(raw, PLACE)
    if not stored:
        return
    changed = bytearray(stored)
    changed[place % len(stored)] ^= 1 << bit
    for wrong in (bytes(changed), stored[: place % len(stored)]):
        with pytest.raises(Damaged):
            codec.unpack(flags, wrong, crc, lambda: PLACE)


# --- values --------------------------------------------------------------------------------------


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Words(str):
    __slots__ = ()


class Point(msgspec.Struct):
    x: int


class Liar:
    """Equal to everything, as some mocks are."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


strange = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e22, 2**53 + 0.0]),
    st.integers(),
    st.integers(2**63 - 2, 2**64 + 2) | st.integers(-(2**63) - 2, -(2**63) + 2),
    st.text(st.characters(codec=None, categories=["Cs", "L", "Nd"]), max_size=3),
    st.text(alphabet="0123456789", min_size=17, max_size=25),
    st.binary(max_size=3),
    st.builds(bytearray, st.binary(max_size=3)),
    st.frozensets(st.integers(), max_size=2),
    st.sampled_from([Colour.RED, Size.BIG, Words("x"), Point(1), Liar(), object(), Ellipsis]),
    st.sampled_from([decimal.Decimal("1.5"), uuid.UUID(int=5), datetime.date(2030, 1, 1), 1j]),
    st.just(msgspec.Raw(b"1")),
    st.just(msgspec.UNSET),
    st.builds(lambda: datetime.datetime.now(datetime.UTC)),
)
plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5)
odd_keys = (
    st.text(max_size=3) | st.integers(-2, 2) | st.none() | st.just(Colour.RED) | st.booleans()
)
anything = st.recursive(
    plain | strange,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(odd_keys, inner, max_size=2),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=8,
)


def same(back: Any, value: Any) -> bool:
    """Whether what was read back is the value, in the plain form that JSON knows."""
    match value:
        case None | True | False:
            return back is value
        case int():
            return type(back) is int and back == int(value)
        case float():
            return type(back) is float and repr(back) == repr(float(value))
        case str():
            return type(back) is str and back == str.__str__(value)
        case Mapping():
            names = [str.__str__(name) for name in value]
            return (
                isinstance(back, dict)
                and list(back) == names
                and all(map(same, back.values(), value.values()))
            )
        case list() | tuple():
            return (
                isinstance(back, list) and len(back) == len(value) and all(map(same, back, value))
            )
        case _:
            return False


@examples(700)
@given(value=anything)
@example(value={"0": 1, 0: 2})
@example(value=[1, 1.0, True])
@example(value="\x00")
@example(value={"a": {"b": {Size.BIG: 1}}})
def test_a_value_is_refused_or_reads_back_equal(value: Any) -> None:
    """Whatever Python can hold: in data and in state, nothing is changed in silence."""
    try:
        made = prepare(Draft(type="x.y", data={"v": value}, set={"v": value}), id="i", actor=ACTOR)
    except InvalidInput:
        return
    body = decode_body(made.raw)
    assert same(body.data["v"], value)
    after, _ = record(Fold(blank(KEY, "uid", 100)), made, 100, b"salt" * 4)
    assert same(after.fields["v"], value)
    assert same(made.data["v"], value)


@examples(200)
@given(
    value=st.recursive(
        plain,
        lambda i: st.lists(i, min_size=1) | st.dictionaries(st.text(max_size=2), i, min_size=1),
        max_leaves=5,
    )
)
def test_what_was_admitted_is_not_the_callers_object(value: Any) -> None:
    """A caller that goes on changing its list changes neither the event nor the state."""
    data = {"v": value}
    try:
        made = prepare(Draft(type="x.y", data=data, set=data), id="i", actor=ACTOR)
    except LimpetError:
        return
    kept = copy.deepcopy(made.data)
    _spoil(value)
    data["more"] = 1
    assert made.data == kept


def _spoil(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoilt")
    elif isinstance(value, dict):
        for item in value.values():
            _spoil(item)
        value["spoilt"] = True


@pytest.mark.parametrize("depth", [1, 50, 90, 200, 5_000, 100_000])
def test_any_depth_is_admitted_or_refused_in_words(depth: int) -> None:
    """Too deep is an error of ours, never a RecursionError."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    try:
        made = prepare(Draft(type="x.y", data={"v": value}), id="i", actor=ACTOR)
        admitted = made.data == {"v": value}
    except InvalidValue:
        admitted = False
    assert admitted == (depth < VALUE_DEPTH_MAX)
    while isinstance(value, list):  # taken apart by hand: the interpreter would recurse
        value = value.pop()
