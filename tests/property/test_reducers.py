"""The law of reducers: applied as operations or folded, the field holds the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from limpet import reducers
from limpet.errors import SchemaViolation
from limpet.model import ops
from limpet.model.state.reducers import Reducer
from limpet.model.values import ABSENT, canonical, freeze
from tests.property.strategies import values
from tests.support.examples import examples

# Few keys and few values, so that updates meet what is there; sometimes no key, or an odd one.
keys = st.sampled_from(["a", "b", "c", 1, 1.0, True, "1"])
items = st.fixed_dictionaries(
    {"id": keys, "x": st.sampled_from([0, 1, 1.0, True, None, [1], {"k": 1}])},
    optional={"y": st.integers(0, 1), "deep": st.fixed_dictionaries({"id": keys})},
)
lists = st.lists(items, max_size=6)
dicts = st.dictionaries(st.sampled_from("kxyz"), values, max_size=4)
deep = st.lists(
    st.fixed_dictionaries({"deep": st.fixed_dictionaries({"id": keys})}, optional={"y": keys}),
    max_size=5,
)
ALL: list[tuple[Reducer, Any, Any]] = [
    (reducers.last_write_wins, values, values),
    (reducers.append, lists, lists),
    (reducers.merge, dicts, dicts),
    (reducers.concat_flatten, lists, st.lists(lists, max_size=3)),
    (reducers.merge_all, dicts, st.lists(dicts, max_size=3)),
    (reducers.bounded_append(1), lists, lists),
    (reducers.bounded_append(3), lists, lists),
    (reducers.bounded_append(100), lists, lists),
    (reducers.dedupe_append("id"), lists, lists),
    (reducers.dedupe_append(), lists, lists),
    (reducers.dedupe_append("deep.id"), deep | lists, deep),
    (reducers.merge_by_key("id"), lists, lists),
    (reducers.merge_by_key("deep.id"), deep | lists, deep),
]
IDS = [reducer.name for reducer, _, _ in ALL]


@pytest.mark.parametrize(("reducer", "olds", "updates"), ALL, ids=IDS)
@given(data=st.data())
def test_as_ops_or_folded_the_field_holds_the_same(
    reducer: Reducer, olds: Any, updates: Any, data: st.DataObject
) -> None:
    """To the byte, with other fields left alone, on a field that is there or not."""
    fields = {"other": [1], "field": data.draw(olds)}
    if data.draw(st.integers(0, 5)) == 0:
        del fields["field"]
    old = fields.get("field", ABSENT)
    update = data.draw(updates)
    compiled = reducer.ops("field", old, update)
    for op in compiled.ops:
        ops.frozen(op)
    after = ops.apply(freeze(fields), compiled.ops)
    assert canonical(after) == canonical({**fields, "field": reducer.fold(old, update)})


@pytest.mark.parametrize(("reducer", "olds", "updates"), ALL, ids=IDS)
@given(data=st.data())
def test_ops_that_are_not_guarded_fit_any_old_value(
    reducer: Reducer, olds: Any, updates: Any, data: st.DataObject
) -> None:
    """What was compiled on one value does on another what a fold of that one gives."""
    seen, meanwhile, update = data.draw(olds), data.draw(olds), data.draw(updates)
    compiled = reducer.ops("field", seen, update)
    if compiled.guarded:
        return
    for op in compiled.ops:
        ops.frozen(op)
    after = ops.apply(freeze({"field": meanwhile}), compiled.ops)
    assert canonical(after["field"]) == canonical(reducer.fold(meanwhile, update))


@pytest.mark.parametrize(("reducer", "olds", "updates"), ALL, ids=IDS)
@examples(50)
@given(old=values, update=values)
def test_a_wrong_type_is_a_violation(
    reducer: Reducer, olds: Any, updates: Any, old: Any, update: Any
) -> None:
    """Whatever the field holds and whatever is given, nothing else is raised, by either way."""
    try:
        folded = reducer.fold(old, update, "field")
    except SchemaViolation:
        with pytest.raises(SchemaViolation) as caught:
            reducer.ops("field", old, update)
        assert caught.value.field.startswith("field")
        return
    after = ops.apply(freeze({"field": old}), reducer.ops("field", old, update).ops)
    assert canonical(after["field"]) == canonical(folded)
