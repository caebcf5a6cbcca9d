"""Reducers: what each makes of an update, and the smallest operations for it."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.errors import InvalidSchema, SchemaViolation
from limpet.model.ops import Add, Cut, Merge, Set
from limpet.model.state import reducers as r
from limpet.model.state.reducers import Reducer
from limpet.model.values import ABSENT
from tests.support.ids import plain

A, B, C = {"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "c", "n": 1}
A2, B2 = {"id": "a", "n": 2}, {"id": "b", "m": 1}


@pytest.mark.parametrize(
    ("reducer", "old", "update", "ops", "guarded"),
    [
        (r.last_write_wins, [1], [2], (Set(("f",), [2]),), False),
        (r.last_write_wins, 1, 1, (Set(("f",), 1),), False),
        (r.append, [1], [2, 3], (Add(("f",), [2, 3]),), False),
        (r.append, [1], [], (), False),
        (r.append, ABSENT, [], (Add(("f",), []),), False),
        (r.concat_flatten, [1], [[2], [], [3, 4]], (Add(("f",), [2, 3, 4]),), False),
        (r.concat_flatten, [1], [[], []], (), False),
        (r.merge, {"a": 1}, {"a": 1, "b": 2}, (Merge(("f",), {"a": 1, "b": 2}),), False),
        (r.merge, {"a": 1}, {}, (), False),
        (r.merge_all, {}, [{"a": 1}, {"a": 2}], (Merge(("f",), {"a": 2}),), False),
        (r.merge_all, {"a": 1}, [], (), False),
        (r.bounded_append(3), [1], [2], (Add(("f",), [2]),), True),
        (r.bounded_append(3), [1, 2, 3], [4], (Add(("f",), [4]), Cut(("f",), 0, 1)), True),
        (r.bounded_append(3), [1, 2, 3, 4, 5], [], (), False),
        (r.bounded_append(3), [1, 2, 3, 4, 5], [6], (Add(("f",), [6]), Cut(("f",), 0, 3)), True),
        (r.bounded_append(3), [1, 2], [3, 4, 5, 6], (Set(("f",), [4, 5, 6]),), False),
        (r.dedupe_append("id"), [A], [A2, B, B2], (Add(("f",), [B]),), True),
        (r.dedupe_append("id"), [A], [A2], (), True),
        (r.dedupe_append("id"), [A], [], (), False),
        (r.dedupe_append(), [A, 1], [A, A2, 1.0, True, 1], (Add(("f",), [A2, 1.0, True]),), True),
        (r.merge_by_key("id"), [A, B], [B2], (Merge(("f", 1), {"m": 1}),), True),
        (r.merge_by_key("id"), [A, B], [B], (), True),
        (
            r.merge_by_key("id"),
            [A, B],
            [C, A2],
            (Merge(("f", 0), {"n": 2}), Add(("f",), [C])),
            True,
        ),
        (r.merge_by_key("id"), [A], [B, B2], (Add(("f",), [{"id": "b", "n": 1, "m": 1}]),), True),
        (r.merge_by_key("id"), [A, A], [A2], (Merge(("f", 0), {"n": 2}),), True),
        (r.merge_by_key("id"), [A], [], (), False),
    ],
    ids=plain,
)
def test_an_update_becomes_the_smallest_operations(
    reducer: Reducer, old: Any, update: Any, ops: Any, guarded: bool
) -> None:
    """Only what is new or changed; and a guard only where the old value was looked at."""
    compiled = reducer.ops("f", old, update)
    assert (compiled.ops, compiled.guarded) == (ops, guarded)


def test_many_changed_items_are_one_operation() -> None:
    """An event holds a bounded number of operations; beyond some the whole list is set."""
    old = [{"id": n, "x": 0} for n in range(1_000)]
    update = [{"id": n, "x": 1} for n in range(1_000)]
    compiled = r.merge_by_key("id").ops("f", old, update)
    assert compiled.ops == (Set(("f",), update),)
    assert compiled.guarded


def test_keys_are_compared_exactly() -> None:
    """1, 1.0, True and "1" are four keys, and lists and dicts may be keys."""
    items = [{"id": key} for key in (1, 1.0, True, "1", [1], {"a": 1})]
    assert r.dedupe_append("id").fold([], [*items, *items]) == items


def test_an_old_item_without_the_key_is_never_meant() -> None:
    """Whatever other code left in the list, new items find their place."""
    old = [{"x": 1}, 7, {"id": None}, A]
    assert r.merge_by_key("id").fold(old, [A2]) == [*old[:3], A2]
    assert r.dedupe_append("id").fold(old, [A2, B]) == [*old, B]


@pytest.mark.parametrize("reducer", [r.dedupe_append("id"), r.merge_by_key("id")])
@pytest.mark.parametrize("item", [{}, {"id": None}, 7, None])
def test_a_new_item_without_the_key_is_refused(reducer: Reducer, item: Any) -> None:
    """Two items without a key are not one item: nothing is dropped in silence."""
    with pytest.raises(SchemaViolation) as caught:
        reducer.ops("f", [], [A, item])
    assert caught.value.field == "f[1].id"


@pytest.mark.parametrize(
    ("reducer", "old", "update", "field", "expected"),
    [
        (r.append, {}, [1], "f", "list"),
        (r.append, [1], 2, "f", "list"),
        (r.append, None, [1], "f", "list"),
        (r.concat_flatten, [], [[1], 2], "f[1]", "list"),
        (r.merge, [], {"a": 1}, "f", "dict"),
        (r.merge, {}, [("a", 1)], "f", "dict"),
        (r.merge_all, {}, [{}, 1], "f[1]", "dict"),
        (r.merge_all, {}, {}, "f", "list"),
        (r.bounded_append(2), "ab", [1], "f", "list"),
        (r.dedupe_append("id"), [], {"id": 1}, "f", "list"),
        (r.merge_by_key("id"), [], "ab", "f", "list"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place(
    reducer: Reducer, old: Any, update: Any, field: str, expected: str
) -> None:
    """Folded or compiled, whether the field or the update is wrong."""
    for call in (lambda: reducer.ops("f", old, update), lambda: reducer.fold(old, update, "f")):
        with pytest.raises(SchemaViolation) as caught:
            call()
        assert (caught.value.field, caught.value.expected) == (field, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: r.bounded_append(0),
        lambda: r.bounded_append(True),
        lambda: r.bounded_append(2.0),  # type: ignore[arg-type]
        lambda: r.dedupe_append(""),
        lambda: r.dedupe_append(7),  # type: ignore[arg-type]
        lambda: r.merge_by_key("a..b"),
        lambda: r.merge_by_key(None),  # type: ignore[arg-type]
    ],
)
def test_a_parameter_that_means_nothing_is_refused(make: Any) -> None:
    """Where the field is declared."""
    with pytest.raises(InvalidSchema):
        make()


def test_reducers_have_names_and_are_values() -> None:
    """Two of the same parameters are equal, and a name says how it is written."""
    assert r.bounded_append(3) == r.bounded_append(3) != r.bounded_append(4)
    names = [
        x.name for x in (r.append, r.bounded_append(3), r.dedupe_append(), r.merge_by_key("k"))
    ]
    assert names == ["append", "bounded_append(3)", "dedupe_append(None)", "merge_by_key('k')"]
