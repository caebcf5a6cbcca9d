"""Merges: each rule, each policy, and what is left for somebody to decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from limpet import ABSENT, Conflict, InvalidInput, LastWriter, Policy, Priority, escalate, merge
from limpet.errors import InvalidValue, MergeConflict
from limpet.model import ops
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.values import FrozenDict, FrozenList, canonical, freeze, same
from tests.support.ids import plain

# --- the rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "a", "b", "value"),
    [
        ({"n": 1}, {"n": 2}, {"n": 1}, {"n": 2}),
        ({"n": 1}, {"n": 2}, {"n": 2}, {"n": 2}),
        ({"n": 1}, {"n": 1.0}, {"n": 1}, {"n": 1.0}),
        ({"n": 0.0}, {"n": 0.0}, {"n": -0.0}, {"n": -0.0}),
        ({"n": 1}, {}, {"n": 1}, {}),
        ({"n": 1}, {}, {}, {}),
        ({}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"d": {"x": 1, "y": 1}}, {"d": {"x": 2, "y": 1}}, {"d": {"x": 1}}, {"d": {"x": 2}}),
        ({}, {"d": {"x": 1}}, {"d": {"y": 2}}, {"d": {"x": 1, "y": 2}}),
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1, 3, 4]}, {"l": [1, 2, 3, 4]}),
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1, 2]}, {"l": [1, 2]}),
        ({}, {"l": [1]}, {"l": [2]}, {"l": [1, 2]}),
        ({"l": [1, 2, 3]}, {"l": [9, 2, 3]}, {"l": [1, 2, 8]}, {"l": [9, 2, 8]}),
        ({"l": [{"id": 7, "x": 1}]}, {"l": [{"id": 7, "x": 2}]}, {"l": [{"id": 7, "x": 1, "y": 2}]},
         {"l": [{"id": 7, "x": 2, "y": 2}]}),
        ({"l": [{"x": 1}, {"x": 2}]}, {"l": [{"x": 3}, {"x": 2}]}, {"l": [{"x": 1}, {"x": 4}]},
         {"l": [{"x": 3}, {"x": 4}]}),
        ({"l": [{"x": 1}]}, {"l": [{"x": 2}]}, {"l": [{"x": 2}]}, {"l": [{"x": 2}]}),
        ({"l": [["a"]]}, {"l": [["a", "b"]]}, {"l": [["a", "c"]]}, {"l": [["a", "b", "c"]]}),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [1, 2]}, {"l": [1]}),
        (1, 1, 2, 2),
    ],
)  # fmt: skip
def test_what_can_be_merged_is_merged(base: Any, a: Any, b: Any, value: Any) -> None:
    """The changed side is taken, equal sides agree, dicts and lists are merged inside."""
    merged = merge(base, a, b)
    assert merged.conflicts == ()
    assert merged.resolved == ()
    assert same(merged.settled(), value)


@pytest.mark.parametrize(
    ("base", "a", "b", "path"),
    [
        ({"n": 1}, {"n": 2}, {"n": 3}, ("n",)),
        ({"n": 0}, {"n": 1}, {"n": True}, ("n",)),
        ({"n": 0}, {"n": 1}, {"n": 1.0}, ("n",)),
        ({"n": 1}, {}, {"n": 2}, ("n",)),
        ({"d": {"x": 1}}, {}, {"d": {"x": 2}}, ("d",)),
        ({}, {"n": 1}, {"n": 2}, ("n",)),
        ({}, {"d": {"x": 1}}, {"d": {"x": 2}}, ("d", "x")),
        ({"d": {"x": 1}}, {"d": 1}, {"d": {"x": 2}}, ("d",)),
        ({"d": 1}, {"d": {"x": 1}}, {"d": {"x": 2}}, ("d",)),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [1, 2, 3]}, ("l",)),
        ({"l": [1, 2]}, {"l": [9, 2]}, {"l": [1, 2, 3]}, ("l",)),
        ({"l": [1, 2]}, {"l": [8, 2]}, {"l": [9, 2]}, ("l", 0)),
        ({"l": [1]}, {"l": [0, 1]}, {"l": [1, 2]}, ("l",)),
        ({"l": [{"x": 1, "y": 1}]}, {"l": [{"x": 2, "y": 1}]}, {"l": [{"x": 1, "y": 2}]}, ("l", 0)),
        (
            {"l": [{"id": 1, "text": "milk"}]},
            {"l": [{"id": 2, "text": "bread"}]},
            {"l": [{"id": 1, "text": "milk", "done": True}]},
            ("l", 0),
        ),
        (
            {"l": [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]},
            {"l": [{"id": 2, "t": "B"}, {"id": 3, "t": "c"}]},
            {"l": [{"id": 1, "t": "a", "done": True}, {"id": 2, "t": "b"}]},
            ("l", 0),
        ),
        (
            {"l": [{"name": "x", "n": 1}, {"name": "x", "n": 2}]},
            {"l": [{"name": "x", "n": 3}, {"name": "x", "n": 2}]},
            {"l": [{"name": "x", "n": 1, "m": 1}, {"name": "x", "n": 2}]},
            ("l", 0),
        ),
        ({"l": [[]]}, {"l": [["a"]]}, {"l": [["b"]]}, ("l", 0)),
        ({"l": [1]}, {"l": [True, 2]}, {"l": [1, 3]}, ("l",)),
        (1, 2, 3, ()),
    ],
)
def test_what_both_changed_differently_is_a_conflict(
    base: Any, a: Any, b: Any, path: tuple[str | int, ...]
) -> None:
    """It has all three values, the merged value keeps the base's, and the rest is merged."""
    merged = merge(base, a, b)
    (conflict,) = merged.conflicts
    assert conflict.path == path
    for side, value in ((base, conflict.base), (a, conflict.a), (b, conflict.b)):
        found = side
        for step in path:
            inside = isinstance(found, list) or (isinstance(found, dict) and step in found)
            found = found[step] if inside else ABSENT
        assert same(found, value)
    with pytest.raises(MergeConflict) as info:
        merged.settled()
    assert len(info.value.places) == 1
    assert info.value.code == "merge.conflict"


ONE, TWO, DONE = {"id": 1}, {"id": 2}, {"id": 1, "done": True}


@pytest.mark.parametrize("deep", [0, 40])
@pytest.mark.parametrize(
    ("base", "a", "b"),
    [
        ([ONE, TWO], [TWO, ONE], [DONE, TWO]),
        ([ONE, TWO], [TWO, {"id": 3}], [DONE, TWO]),
        ([ONE, TWO], [TWO, {"id": 3}], [TWO, {"id": 4}]),
        ([1, 2, 3], [2, 1, 3], [1, 2, 9]),
    ],
    ids=str,
)
def test_a_list_whose_items_moved_is_one_conflict(base: Any, a: Any, b: Any, deep: int) -> None:
    """An index means another item to each side; a policy takes one side's list, whole."""
    path = ("l",) * (deep + 1)
    sides = [base, a, b]
    for _ in path:
        sides = [{"l": side} for side in sides]
    base, a, b = sides
    for one, two in ((a, b), (b, a)):
        assert [conflict.path for conflict in merge(base, one, two).conflicts] == [path]
        assert same(merge(base, one, two, policy=LastWriter(a=1, b=2)).settled(), two)
        for alone in (merge(base, one, base), merge(base, base, one), merge(base, one, one)):
            assert same(alone.settled(), one)


def test_a_conflict_leaves_the_rest_merged() -> None:
    """Only the place itself stays as it was; a name that both made anew stays away."""
    merged = merge({"n": 1, "d": {"x": 1}}, {"n": 2, "d": {"x": 2}, "new": 1},
                   {"n": 3, "d": {"x": 1, "y": 1}, "new": 2})  # fmt: skip
    assert merged.value == {"n": 1, "d": {"x": 2, "y": 1}}
    assert [conflict.path for conflict in merged.conflicts] == [("n",), ("new",)]
    with pytest.raises(MergeConflict, match="n, new"):
        merged.ops()


def test_many_conflicts_are_named_in_part() -> None:
    """A message stays readable; the error has all of the paths."""
    base = {f"n{n}": 0 for n in range(9)}
    merged = merge(base, dict.fromkeys(base, 1), dict.fromkeys(base, 2))
    with pytest.raises(MergeConflict, match="n0, n1, n2, n3, n4 and 4 more") as info:
        merged.settled()
    assert len(info.value.places) == 9


def test_the_value_is_read_only_and_the_sides_are_as_they_were() -> None:
    """Whatever was given: plain dicts, lists, or frozen ones."""
    base, a, b = {"l": [1], "d": {}}, {"l": [1, [2]], "d": {"x": []}}, {"l": [1, 3], "d": {"y": 1}}
    before = canonical([base, a, b])
    value = merge(base, a, b).value
    assert canonical([base, a, b]) == before
    assert (type(value), type(value["l"]), type(value["l"][1])) == (
        FrozenDict,
        FrozenList,
        FrozenList,
    )
    assert same(merge(freeze(base), freeze(a), freeze(b)).value, value)


def test_what_no_state_can_hold_is_refused() -> None:
    """On any side."""
    for sides in (({"x": {1}}, {}, {}), ({}, {"x": float("inf")}, {}), ({}, {}, {"x": b""})):
        with pytest.raises(InvalidValue):
            merge(*sides)


def test_below_the_deepest_path_a_difference_is_whole() -> None:
    """No conflict is at a place that an operation could not name."""
    base, a, b = ({"x": n, "y": m} for n, m in ((0, 0), (1, 0), (0, 1)))
    for _ in range(VALUE_DEPTH_MAX + 5):
        base, a, b = {"k": base}, {"k": a}, {"k": b}
    (conflict,) = merge(freeze(base), freeze(a), freeze(b)).conflicts
    assert len(conflict.path) == VALUE_DEPTH_MAX


# --- policies -----------------------------------------------------------------------------------

BASE, A, B = {"n": 1, "m": 1}, {"n": 2, "m": 2}, {"n": 3}
EARLY, LATE = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("policy", "side"),
    [
        (LastWriter(a=1, b=2), "b"),
        (LastWriter(a=LATE, b=EARLY), "a"),
        (LastWriter(a=EARLY, b=LATE), "b"),
        (Priority(a=10, b=2), "a"),
        (Priority(a=-1, b=0.5), "b"),
    ],
    ids=str,
)
def test_the_later_or_the_more_important_side_wins(policy: Policy, side: str) -> None:
    """A deletion wins like any change; what was decided is told with its policy."""
    merged = merge(BASE, A, B, policy=policy)
    assert same(merged.settled(), A if side == "a" else B)
    assert [(each.path, each.side, each.policy) for each in merged.resolved] == [
        (("m",), side, policy),
        (("n",), side, policy),
    ]
    assert merged.resolved[0].conflict == Conflict(("m",), 1, 2, ABSENT)


@pytest.mark.parametrize(
    "policy", [LastWriter(a=5, b=5), Priority(a=1, b=1.0), escalate], ids=plain
)
def test_a_tie_is_not_decided_by_chance(policy: Policy) -> None:
    """Neither by the order of the arguments: somebody has to look."""
    merged = merge(BASE, A, B, policy=policy)
    assert [each.path for each in merged.conflicts] == [("m",), ("n",)]
    assert merged.resolved == ()
    assert merged.value == BASE


def test_the_longest_path_has_the_policy() -> None:
    """Each place its own, a lone name as text, and the default for the rest."""
    base = {"d": {"x": {"p": 0, "q": 0}, "y": 0}, "n": 0, "dd": 0}
    a = {"d": {"x": {"p": 1, "q": 1}, "y": 1}, "n": 1, "dd": 1}
    b = {"d": {"x": {"p": 2, "q": 2}, "y": 2}, "n": 2, "dd": 2}
    merged = merge(base, a, b, policy=Priority(a=1, b=0), policies={
        "d": Priority(a=0, b=1), ("d", "x"): escalate, ("d", "x", "q"): Priority(a=1, b=0),
    })  # fmt: skip
    assert same(merged.value, {"d": {"x": {"p": 0, "q": 1}, "y": 2}, "n": 1, "dd": 1})
    assert [each.path for each in merged.conflicts] == [("d", "x", "p")]


def test_a_function_may_decide() -> None:
    """It returns the value, ABSENT to take the name out, or the conflict to leave it open."""

    def decide(conflict: Conflict) -> Any:
        match conflict.path[0]:
            case "sum":
                return conflict.a + conflict.b - conflict.base
            case "gone":
                return ABSENT
            case _:
                return conflict

    merged = merge({"sum": 1, "gone": 1, "open": 1}, {"sum": 3, "gone": 2, "open": 2},
                   {"sum": 6, "gone": 3, "open": 3}, policy=decide)  # fmt: skip
    assert merged.value == {"sum": 8, "open": 1}
    assert [(each.path[0], each.side) for each in merged.resolved] == [
        ("gone", "neither"),
        ("sum", "neither"),
    ]
    assert [each.path for each in merged.conflicts] == [("open",)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "last"},
        {"policies": {"n": None}},
        {"policies": {3: escalate}},
        {"policies": {("n", 1.5): escalate}},
        {"policies": {("n", True): escalate}},
    ],
    ids=plain,
)
def test_what_is_no_policy_or_no_path_is_refused(wrong: dict[str, Any]) -> None:
    """Before anything is merged, conflict or not."""
    with pytest.raises(InvalidInput):
        merge({}, {}, {}, **wrong)


@pytest.mark.parametrize(("a", "b"), [(1, "2"), (float("nan"), 1.0), (EARLY, 5), (None, None)])
def test_sides_that_cannot_be_ordered_are_refused(a: Any, b: Any) -> None:
    """When the policy is made, not when it is first needed."""
    with pytest.raises(InvalidInput):
        LastWriter(a=a, b=b)


def test_a_function_cannot_take_an_item_or_the_root_out() -> None:
    """A list of one length has a value at each index."""
    for sides in (({"l": [1]}, {"l": [2]}, {"l": [3]}), (1, 2, 3)):
        with pytest.raises(InvalidInput):
            merge(*sides, policy=lambda _: ABSENT)


def test_what_a_function_makes_has_to_be_storable() -> None:
    """The error names the place that the policy decided."""
    with pytest.raises(InvalidValue, match="what the policy made of n "):
        merge(BASE, A, B, policy=lambda _: {1, 2}, policies={"m": escalate})


# --- what follows -------------------------------------------------------------------------------


def test_the_merged_value_is_reached_by_operations() -> None:
    """From the base, or from a side that is already recorded."""
    base, a, b = {"n": 1, "l": []}, {"n": 2, "l": ["x"]}, {"n": 1, "l": ["y"], "m": 1}
    merged = merge(base, a, b)
    assert merged.ops() == (
        ops.Add(("l",), ["x", "y"]),
        ops.Set(("m",), 1),
        ops.Set(("n",), 2),
    )
    assert merged.ops(a) == (ops.Add(("l",), ["y"]), ops.Set(("m",), 1))
    assert same(ops.apply(freeze(b), merged.ops(b)), merged.value)
