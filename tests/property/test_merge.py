"""Merges: nothing of either side is lost or doubled, and sides may be swapped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from limpet import LastWriter, Merged, Priority, diff, merge
from limpet.errors import MergeConflict
from limpet.model import ops
from limpet.model.ops import Path
from limpet.model.values import ABSENT, canonical, freeze, same, thaw
from tests.property.related import sides, versions
from tests.support.examples import examples


def found_at(value: Any, path: Path) -> Any:
    for step in path:
        inside = isinstance(value, dict) and step in value
        if not inside and not (isinstance(value, list) and step < len(value)):  # type: ignore[operator]
            return ABSENT
        value = value[step]
    return value


def joined(one: dict[str, Any], two: dict[str, Any], split: str) -> dict[str, Any]:
    """The names up to `split` from one, those after it from two."""
    return {
        **{name: v for name, v in one.items() if name <= split},
        **{name: v for name, v in two.items() if name > split},
    }


@examples(150)
@given(versions())
def test_what_only_one_side_changed_is_taken(pair: tuple[Any, Any]) -> None:
    """From either side, to the byte, without a conflict."""
    base, a = pair
    for merged in (merge(base, a, thaw(base)), merge(base, thaw(base), a)):
        assert canonical(merged.settled()) == canonical(a)


@examples(150)
@given(versions())
def test_sides_that_agree_give_what_they_agree_on(pair: tuple[Any, Any]) -> None:
    """A change made on both sides is made once."""
    base, a = pair
    assert canonical(merge(base, a, thaw(a)).settled()) == canonical(a)


@examples(150)
@given(versions(), versions())
def test_merges_of_different_places_commute(one: tuple[Any, Any], two: tuple[Any, Any]) -> None:
    """Sides that change different names have no conflict and give one value in either order."""
    base = joined(one[0], two[0], "b")
    a, b = joined(one[1], two[0], "b"), joined(one[0], two[1], "b")
    merged = merge(base, a, b)
    assert canonical(merged.settled()) == canonical(joined(one[1], two[1], "b"))
    assert canonical(merge(base, b, a).settled()) == canonical(merged.value)


@examples(200)
@given(sides())
def test_a_conflict_is_a_real_one(case: tuple[Any, Any, Any]) -> None:
    """At each of them all three differ and the value is as the base was."""
    base, a, b = case
    merged = merge(base, a, b)
    for conflict in merged.conflicts:
        assert not same(conflict.a, conflict.b)
        assert not same(conflict.base, conflict.a)
        assert not same(conflict.base, conflict.b)
        assert same(conflict.a, found_at(freeze(a), conflict.path))
        assert same(conflict.b, found_at(freeze(b), conflict.path))
        assert same(found_at(merged.value, conflict.path), conflict.base)
    swapped = merge(base, b, a)
    assert [c.path for c in swapped.conflicts] == [c.path for c in merged.conflicts]


@examples(150)
@given(sides())
def test_a_policy_that_always_decides_leaves_no_conflict(case: tuple[Any, Any, Any]) -> None:
    """The winner's value stands at every place that was decided; who is called a is no matter."""
    base, a, b = case
    merged = merge(base, a, b, policy=LastWriter(a=1, b=2))
    assert merged.conflicts == ()
    for each in merged.resolved:
        assert each.side == "b"
        assert same(found_at(merged.value, each.path), each.conflict.b)
    if not _tails(merge(base, a, b), merge(base, b, a)):
        swapped = merge(base, b, a, policy=Priority(a=2, b=1))
        assert canonical(swapped.value) == canonical(merged.value)


def _tails(one: Merged, two: Merged) -> bool:
    """Whether both sides added to one list: then the order of the sides shows."""
    return not same(one.value, two.value)


@examples(150)
@given(sides())
def test_the_operations_lead_to_the_merged_value(case: tuple[Any, Any, Any]) -> None:
    """From the base and from either side; with a conflict left there are none."""
    base, a, b = case
    merged = merge(base, a, b)
    if merged.conflicts:
        with pytest.raises(MergeConflict) as info:
            merged.ops()
        assert len(info.value.places) == len(merged.conflicts)
        return
    for start in (base, a, b):
        reached = ops.apply(freeze(start), merged.ops(start))
        assert canonical(reached) == canonical(merged.value)
    assert merged.ops() == diff(base, merged.value).ops()
