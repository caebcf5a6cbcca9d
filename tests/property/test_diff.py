"""Diffs: exact for any two states, whichever way they are used."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from limpet import Diff, Kind, LimpetError, diff
from limpet.errors import DiffMismatch, IntegrityViolation, InvalidDiff
from limpet.model import ops
from limpet.model.diff.diff import FORMAT
from limpet.model.values import FrozenDict, FrozenList, canonical, freeze, same, thaw
from tests.property.related import edited, values, versions
from tests.support.examples import examples
from tests.unit.model.test_inverse import fitting

RELATED = versions()
ANY = versions(of=values)


def is_read_only(value: Any) -> bool:
    """Whether no dict or list anywhere inside can be changed."""
    if isinstance(value, dict):
        return type(value) is FrozenDict and all(is_read_only(v) for v in value.values())
    if isinstance(value, list):
        return type(value) is FrozenList and all(is_read_only(v) for v in value)
    return True


@examples(300)
@given(RELATED | ANY)
@example(({"n": 1}, {"n": True}))
@example(({"n": 0.0}, {"n": -0.0}))
@example(([1, 2, 3, 4], [2, 3, 4, 5]))
def test_applying_the_difference_gives_the_other(pair: tuple[Any, Any]) -> None:
    """To the byte and in read-only form, from plain and from frozen values; neither is touched."""
    a, b = pair
    before = canonical(a), canonical(b)
    found = diff(a, b)
    assert canonical(found.apply(a)) == canonical(b)
    assert is_read_only(found.apply(a))
    frozen = diff(freeze(a), freeze(b))
    assert frozen == found
    assert canonical(frozen.apply(freeze(a))) == canonical(b)
    assert (canonical(a), canonical(b)) == before


@examples(200)
@given(RELATED | ANY)
def test_no_change_is_without_effect(pair: tuple[Any, Any]) -> None:
    """A value does not differ from its copy, and what is modified is modified into another."""
    a, b = pair
    assert not diff(a, thaw(a))
    for change in diff(a, b).changes:
        assert change.kind is not Kind.MODIFY or not same(change.old, change.new)
        assert change.length is None or change.old or change.new


@examples(200)
@given(RELATED | ANY)
def test_the_inverse_takes_it_back(pair: tuple[Any, Any]) -> None:
    """Exactly, and the inverse of the inverse is the diff itself."""
    a, b = pair
    found = diff(a, b)
    assert canonical(found.inverse().apply(b)) == canonical(a)
    assert found.inverse().inverse() == found


@examples(300)
@given(RELATED)
def test_as_operations_it_does_the_same(pair: tuple[Any, Any]) -> None:
    """The fold applies them to the same bytes; the operations of the inverse lead back."""
    a, b = freeze(pair[0]), freeze(pair[1])
    found = diff(a, b)
    assert canonical(ops.apply(a, found.ops())) == canonical(b)
    assert canonical(ops.apply(b, found.inverse().ops())) == canonical(a)


@examples(150)
@given(RELATED)
def test_made_from_its_own_operations_it_is_the_same(pair: tuple[Any, Any]) -> None:
    """diff → ops → diff comes back to where it began."""
    a, b = pair
    assert Diff.of(a, diff(a, b).ops()) == diff(a, b)


@examples(100)
@given(fitting())
def test_made_from_operations_it_does_what_they_do(case: tuple[Any, list[Any]]) -> None:
    """Whatever they are, several on one place included."""
    state, given_ops = case
    after = ops.apply(state, given_ops)
    assert canonical(Diff.of(state, given_ops).apply(state)) == canonical(after)


@examples(150)
@given(RELATED | ANY)
def test_bytes_read_back_are_the_same_diff(pair: tuple[Any, Any]) -> None:
    """And the same diff has the same bytes, whatever order the names stood in."""
    found = diff(*pair)
    raw = found.to_bytes()
    assert Diff.from_bytes(raw) == found
    assert Diff.from_bytes(raw).to_bytes() == raw
    assert all(is_read_only(c.old) and is_read_only(c.new) for c in Diff.from_bytes(raw).changes)


@examples(60)
@given(RELATED, st.data())
def test_no_changed_byte_goes_unseen(pair: tuple[Any, Any], data: st.DataObject) -> None:
    """Whichever byte, whatever it becomes."""
    raw = bytearray(diff(*pair).to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((IntegrityViolation, InvalidDiff)):
        Diff.from_bytes(bytes(raw))


@examples(100)
@given(RELATED, RELATED)
def test_it_applies_where_the_old_values_are_or_not_at_all(
    pair: tuple[Any, Any], other: tuple[Any, Any]
) -> None:
    """On a stranger it either is refused, leaving it alone, or can be taken back."""
    found, stranger = diff(*pair), freeze(other[0])
    before = canonical(stranger)
    try:
        after = found.apply(stranger)
    except DiffMismatch:
        pass
    else:
        assert canonical(found.inverse().apply(after)) == before
    assert canonical(stranger) == before


@examples(150)
@given(RELATED, st.lists(st.integers(), min_size=1, max_size=3), st.data())
def test_diffs_one_after_the_other_are_one_diff(
    pair: tuple[Any, Any], more: list[int], data: st.DataObject
) -> None:
    """Changes at one place again and again are applied, undone and made operations in order."""
    (start, now), changes = pair, diff(*pair).changes
    for _ in more:
        after = data.draw(edited(thaw(now)))
        after = after if isinstance(after, dict) else {"a": after}
        changes += diff(now, after).changes
        now = after
    whole = Diff(changes)
    assert canonical(whole.apply(start)) == canonical(now)
    assert canonical(whole.inverse().apply(now)) == canonical(start)
    assert canonical(ops.apply(freeze(start), whole.ops())) == canonical(now)
    assert canonical(ops.apply(freeze(now), whole.inverse().ops())) == canonical(start)


FORGED = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", 0, 1, -1]), max_size=3),
    st.sampled_from(["add", "modify", "delete"]),
    st.none() | st.sampled_from([1, [0], [0, 1], {"a": 1}]),
    st.none() | st.sampled_from([2, [0], [1, 2], {"b": 1}]),
    st.none() | st.integers(-1, 3),
)
FEW = st.sampled_from([1, [0], [0, 1], {"a": 1}, {"a": [0, 1]}, {"a": {"a": 1}, "b": [0]}])


@examples(400)
@given(st.lists(FORGED, max_size=2), FEW)
def test_forged_changes_are_a_diff_or_are_refused(forged: Any, value: Any) -> None:
    """A checksum is no signature: whatever somebody made up raises errors of ours only."""
    body = canonical({"changes": forged, "format": FORMAT})
    digest = hashlib.sha256(body).hexdigest().encode()
    with suppress(LimpetError):
        found = Diff.from_bytes(body[:-1] + b',"sha256":"' + digest + b'"}')
        assert str(found).count("\n") == max(len(forged) - 1, 0)
        assert found.cost() >= 0
        after = found.apply(value)
        assert canonical(found.inverse().apply(after)) == canonical(value)
        assert not isinstance(value, dict) or canonical(
            ops.apply(freeze(value), found.ops())
        ) == canonical(after)
