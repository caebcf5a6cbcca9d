"""Updates: from a partial update of typed state to the operations that record it.

Each value is checked against what its field's reducer accepts, encoded, and compiled. Neither the
state nor the updated field is validated or copied as a whole: adding one message costs the same
however large the session is. The user declares the exceptions. A field with its own constraints or
validators is checked with its new value. For a class with a model validator, or a @field_validator
on an updated field, the whole new state is checked, and every field is guarded because the result
depends on all of them. A value in a Replace bypasses the reducer: it is checked and compiled as if
the field had none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from limpet.errors import LimpetError, SchemaViolation
from limpet.model import ABSENT, Add, Delete, Inc, Merge, PlainOp, Set, described
from limpet.model.limits import OPS_PER_EVENT_MAX
from limpet.model.state import validation
from limpet.model.state.forms import DictForm, Form, ItemsForm, RecordForm, Scalar, fields_of
from limpet.model.state.reducers import (
    Compiled,
    Item,
    LastWriteWins,
    MergeByKey,
    Reducer,
    Replace,
    last_write_wins,
    reducer_of,
)
from limpet.model.state.state import (
    Access,
    Record,
    State,
    decode_fields,
    decoded,
    encode_fields,
    encoded,
)

_EMPTY: Final[tuple[Any, ...]] = ([], {})


class Planned(msgspec.Struct, frozen=True):
    """An update as operations, and the fields that must not have changed since they were read."""

    ops: tuple[PlainOp, ...]
    guards: tuple[str, ...] = ()


class FieldUpdate:
    """A field to be updated: what its reducer accepts, and what is checked afterwards."""

    def __init__(self, state_type: type[State], name: str, *, whole: bool = False) -> None:
        field = state_type.__pydantic_fields__[name]
        self.name, self.of, self.field = name, state_type, field
        self.reducer: Reducer = last_write_wins if whole else reducer_of(field.metadata)
        rules = tuple(item for item in field.metadata if not isinstance(item, (Reducer, Access)))
        replaces = isinstance(self.reducer, LastWriteWins)
        taken = list[field.annotation] if self.reducer.nests else field.annotation  # type: ignore[name-defined]  # a type at run time
        self.takes = _single(self, taken, rules if replaces else ())
        self.becomes = _single(self, field.annotation, rules) if rules and not replaces else None
        self.form: Form = fields_of(self.takes)[name]

    def plain(self, value: Any) -> Any:
        """The plain form of a value that the reducer accepts. Raises SchemaViolation."""
        try:
            made = self.takes.__pydantic_validator__.validate_python({self.name: value})
        except ValidationError as error:
            raise validation.violation(error, RecordForm(self.takes), self.name) from error
        except (LimpetError, MemoryError):
            raise
        except Exception as error:
            raise validation.failed(error, self.form, self.name, value) from error
        held = made.__dict__[self.name]
        plain = encoded(self.form, held, self.name)
        return _items(held, plain) if isinstance(self.reducer, MergeByKey) else plain

    def compiled(self, fields: Mapping[str, Any], plain: Any) -> Compiled:
        """The operations of a plain update; the result is checked if needed."""
        old, before = self.held(fields)
        made = self.reducer.ops(self.name, old, plain)
        if isinstance(self.reducer, MergeByKey) and any(map(_is_partial, plain)):
            self.check_merged(old, made.ops)
        if self.becomes is not None:
            decoded(self.becomes, {self.name: self.reducer.fold(old, plain, self.name)})
        guarded = made.guarded or bool(before) or self.becomes is not None
        return Compiled((*before, *made.ops), guarded)

    def compiled_whole(self, fields: Mapping[str, Any], plain: Any) -> Compiled:
        """The same as one operation that replaces the field: an event has limited operations."""
        whole = self.reducer.fold(self.held(fields)[0], plain, self.name)
        return Compiled((Set((self.name,), whole),), guarded=True)

    def check_merged(self, old: Any, ops: Iterable[PlainOp]) -> None:
        """Check merged items: each part was valid, the result may not be."""
        items: dict[int, Any] = {}
        start = 0 if old is ABSENT else len(old)
        for op in ops:
            if isinstance(op, Merge) and isinstance(at := op.path[1], int):
                items[at] = {**old[at], **op.value}
            elif isinstance(op, Add):
                items |= enumerate(op.items, start)
            elif isinstance(op, Set):
                items |= enumerate(op.value)
        for at, item in items.items():
            try:
                decoded(self.takes, {self.name: [item]})
            except SchemaViolation as error:
                where = f"{self.name}[{at}]{error.field.removeprefix(f'{self.name}[0]')}"
                raise SchemaViolation(where, error.expected, error.actual) from error

    def held(self, fields: Mapping[str, Any]) -> tuple[Any, tuple[PlainOp, ...]]:
        """The value of the field. A default that was never stored is stored first, if needed."""
        if self.name in fields:
            return fields[self.name], ()
        if isinstance(self.reducer, LastWriteWins) or self.field.is_required():
            return ABSENT, ()
        if self.field.default_factory_takes_validated_data:
            default = encode_fields(decode_fields(self.of, fields))[self.name]
        else:
            value = self._default()
            default = encoded(fields_of(self.of)[self.name], value, self.name)
        return (ABSENT, ()) if default in _EMPTY else (default, (Set((self.name,), default),))

    def _default(self) -> Any:
        try:
            return self.field.get_default(call_default_factory=True)
        except (LimpetError, MemoryError):
            raise
        except Exception as error:
            raise validation.failed(error, self.form, self.name, None) from error


def plan_update(
    state_type: type[State], fields: Mapping[str, Any], update: Mapping[str, Any]
) -> Planned:
    """The operations and guards that apply a partial update to a session's fields.

    Every name and value is checked before anything is computed. Raises SchemaViolation.
    """
    if not isinstance(update, Mapping):
        raise SchemaViolation("update", "a dict of fields", described(update))
    slots = [
        _slot(state_type, name, whole=type(value) is Replace) for name, value in update.items()
    ]
    values = [value.value if type(value) is Replace else value for value in update.values()]
    plain = [slot.plain(value) for slot, value in zip(slots, values, strict=True)]
    parts = [slot.compiled(fields, value) for slot, value in zip(slots, plain, strict=True)]
    if sum([len(part.ops) for part in parts]) > OPS_PER_EVENT_MAX:
        parts = [
            part if len(part.ops) < 2 else slot.compiled_whole(fields, value)
            for slot, value, part in zip(slots, plain, parts, strict=True)
        ]
    ops = [op for part in parts for op in part.ops]
    guards = [slot.name for slot, part in zip(slots, parts, strict=True) if part.guarded]
    if any(_is_whole(state_type, slot.name) for slot in slots):
        after = dict(fields)
        for slot, value in zip(slots, plain, strict=True):
            after[slot.name] = slot.reducer.fold(slot.held(fields)[0], value, slot.name)
        state = decode_fields(state_type, after)
        replaced = {slot.name for slot in slots if isinstance(slot.reducer, LastWriteWins)}
        # A validator may have changed a value that is replaced as a whole: that one is stored.
        settled: list[PlainOp] = [
            Set(op.path, encoded(fields_of(state_type)[op.path[0]], getattr(state, op.path[0])))
            if type(op) is Set and op.path[0] in replaced and isinstance(op.path[0], str)
            else op
            for op in ops
        ]
        return Planned(tuple(settled), tuple(state_type.__pydantic_fields__))
    return Planned(tuple(ops), tuple(guards))


def rests_on(state_type: type[State], ops: Iterable[PlainOp]) -> tuple[str, ...]:
    """The fields that the check of plain operations depends on and that must not have changed.

    Operations that are valid for any old value do not count: a new value, or more items for a list
    of unlimited length.
    """
    names: dict[str, None] = {}
    for op in ops:
        name = str(op.path[0])
        if _is_whole(state_type, name):
            return tuple(state_type.__pydantic_fields__)
        if not _fits_always(state_type, name, op):
            names[name] = None
    return tuple(names)


def _fits_always(state_type: type[State], name: str, op: PlainOp) -> bool:
    if len(op.path) > 1:
        return False
    if isinstance(op, (Set, Delete)):
        return True
    field = state_type.__pydantic_fields__[name]
    ruled = any(not isinstance(item, (Reducer, Access)) for item in field.metadata)
    of = type(fields_of(state_type)[name])
    return not ruled and isinstance(op, (Add, Inc, Merge)) and of in (ItemsForm, Scalar, DictForm)


def _is_whole(state_type: type[State], name: str) -> bool:
    """True if checking an update of this field needs more than the field."""
    declared = state_type.__pydantic_decorators__
    if declared.model_validators or declared.root_validators:
        return True
    named = [validator.info.fields for validator in declared.field_validators.values()]
    named += [validator.info.fields for validator in declared.validators.values()]
    return any(name in fields or "*" in fields for fields in named)


def _slot(state_type: type[State], name: Any, *, whole: bool) -> FieldUpdate:
    slots: dict[tuple[str, bool], FieldUpdate] | None = state_type.__dict__.get("__slots_of__")
    if slots is None:
        fields_of(state_type)  # complete, or refused
        slots = {}
        state_type.__slots_of__ = slots  # type: ignore[attr-defined]  # a cache of this module
    slot = slots.get((name, whole)) if isinstance(name, str) else None
    if slot is None:
        if name not in state_type.__pydantic_fields__:
            words = f"a field of {state_type.__name__}"
            raise SchemaViolation(str(name), words, "a name that it does not declare")
        slot = slots[name, whole] = FieldUpdate(state_type, name, whole=whole)
    return slot


def _items(made: Iterable[Any], plain: list[Any]) -> list[Any]:
    """The plain items; records also note which names were given."""
    return [
        Item(names, record.__pydantic_fields_set__) if isinstance(record, Record) else names
        for record, names in zip(made, plain, strict=True)
    ]


def _is_partial(item: Any) -> bool:
    return isinstance(item, Item) and len(item.explicit) < len(item)


def _single(slot: FieldUpdate, annotation: Any, rules: tuple[Any, ...]) -> type[Record]:
    """A record with this one field, for checking values of the annotation."""
    info: FieldInfo = Field(discriminator=slot.field.discriminator)
    info.metadata = list(rules)
    made: type[Record] = create_model(  # type: ignore[call-overload]  # a name known at run time
        f"{slot.of.__name__}.{slot.name}", __base__=Record, **{slot.name: (annotation, info)}
    )
    return made
