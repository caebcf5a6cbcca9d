"""The law of Replace: whatever a field held, whatever its reducer, it holds the value then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from limpet import Replace
from limpet.errors import SchemaViolation
from limpet.model import ops
from limpet.model.state.state import decode_fields, encode_fields
from limpet.model.state.update import plan_update
from limpet.model.values import canonical, freeze
from tests.property.strategies import values
from tests.support.declared import Message, Reduced, Role
from tests.support.examples import examples

messages = st.lists(
    st.builds(
        Message, id=st.sampled_from("abc"), text=st.sampled_from("xy"), role=st.sampled_from(Role)
    ),
    max_size=6,
)
numbers = st.dictionaries(st.sampled_from("kxy"), st.integers(0, 2), max_size=3)
HELD: dict[str, st.SearchStrategy[Any]] = {
    name: messages for name in Reduced.model_fields if name not in ("merged", "all_merged")
} | {"merged": numbers, "all_merged": numbers, "tuple_": messages.map(tuple)}
states = st.builds(Reduced, **HELD)
names = st.sampled_from(list(Reduced.model_fields))


@given(data=st.data(), before=states, name=names)
def test_a_field_holds_what_it_was_replaced_by(
    data: st.DataObject, before: Reduced, name: str
) -> None:
    """To the byte as if the state had been made with it, other fields left alone."""
    value = data.draw(HELD[name])
    fields = encode_fields(before)
    if data.draw(st.booleans()):
        del fields[name]
    planned = plan_update(Reduced, freeze(fields), {name: Replace(value)})
    for op in planned.ops:
        ops.frozen(op)
    after = ops.apply(freeze(fields), planned.ops)
    wanted = before.model_copy(update={name: value})
    assert canonical(after) == canonical(encode_fields(wanted))
    assert decode_fields(Reduced, after) == wanted


@given(data=st.data(), before=states, meanwhile=states, name=names)
def test_replacing_looks_at_nothing_that_was_held(
    data: st.DataObject, before: Reduced, meanwhile: Reduced, name: str
) -> None:
    """So it is not guarded, and planned on one state it is good for any other."""
    update = {name: Replace(data.draw(HELD[name]))}
    planned = plan_update(Reduced, freeze(encode_fields(before)), update)
    assert planned == plan_update(Reduced, freeze(encode_fields(meanwhile)), update)
    assert planned.guards == ()


@given(data=st.data(), before=states, name=names)
def test_a_field_goes_on_with_its_reducer_after_it_was_replaced(
    data: st.DataObject, before: Reduced, name: str
) -> None:
    """Emptied and updated, it holds what the update makes of an empty one."""
    nests = name in ("concat", "all_merged")
    update = {name: data.draw(st.lists(HELD[name], max_size=2) if nests else HELD[name])}
    empty = type(getattr(before, name))()
    after = [freeze(encode_fields(before)), freeze({})]
    for step in ({name: Replace(empty)}, update):
        for at, fields in enumerate(after):
            planned = plan_update(Reduced, fields, step)
            for op in planned.ops:
                ops.frozen(op)
            after[at] = ops.apply(fields, planned.ops)
    assert canonical(after[0][name]) == canonical(after[1][name])


@pytest.mark.parametrize("name", list(Reduced.model_fields))
@examples(50)
@given(value=values)
def test_a_wrong_value_is_a_violation(name: str, value: Any) -> None:
    """Refused exactly where making the state with it would be, before anything is written."""
    try:
        made = Reduced(**{name: value})
    except SchemaViolation:
        with pytest.raises(SchemaViolation) as caught:
            plan_update(Reduced, freeze({}), {name: Replace(value)})
        assert caught.value.field.startswith(name)
    else:
        (op,) = plan_update(Reduced, freeze({}), {name: Replace(value)}).ops
        assert op == ops.Set((name,), encode_fields(made)[name])
