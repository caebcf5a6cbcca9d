"""Reducer types: which reducer works with which field."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from limpet.errors import InvalidSchema
from limpet.model.state.forms import (
    AnyForm,
    DictForm,
    Form,
    ItemsForm,
    RecordForm,
    SetForm,
    UnionForm,
    fields_of,
)
from limpet.model.state.reducers import FACTORIES, Keyed, Reducer, last_write_wins

# What other frameworks use as a reducer: here it would be ignored, and data overwritten.
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, partial)
_NAMES: Final = frozenset(
    {
        "append",
        "bounded_append",
        "concat_flatten",
        "dedupe_append",
        "last_write_wins",
        "merge",
        "merge_all",
        "merge_by_key",
    }
)


def reducer_of(metadata: Iterable[Any]) -> Reducer:
    """The reducer among a field's annotations."""
    found = [item for item in metadata if isinstance(item, Reducer)]
    return found[0] if found else last_write_wins


def check_reducers(metadata: Iterable[Any], form: Form, where: str, *, allowed: bool) -> None:
    """Refuse two reducers on one field, a reducer of the wrong type, and one in a nested record."""
    metadata = list(metadata)
    for item in metadata:
        if any(item is factory for factory in FACTORIES):
            raise InvalidSchema(f"{where} has {item.__name__} without its argument; call it")
        if isinstance(item, _FUNCTIONS) or (isinstance(item, str) and item in _NAMES):
            named = item if isinstance(item, str) else getattr(item, "__name__", "a function")
            raise InvalidSchema(
                f"{where} has {named}, which is not a reducer; use one of limpet.reducers: "
                f"{', '.join(sorted(_NAMES))}"
            )
    found = [item for item in metadata if isinstance(item, Reducer)]
    if not found:
        return
    if not allowed:
        raise InvalidSchema(f"{where} has a reducer; reducers stand on fields of a State")
    if len(found) > 1:
        names = " and ".join(reducer.name for reducer in found)
        raise InvalidSchema(f"{where} has the reducers {names}; a field has one")
    _check_fit(found[0], form, where)


def _check_fit(reducer: Reducer, form: Form, where: str) -> None:
    is_list = isinstance(form, ItemsForm) and not isinstance(form, SetForm)
    if reducer.holds == "list" and not is_list:
        raise InvalidSchema(f"{where} is {form.words}, and {reducer.name} needs a list or tuple")
    if reducer.holds == "dict" and not isinstance(form, DictForm):
        raise InvalidSchema(f"{where} is {form.words}, and {reducer.name} needs a dict")
    key = reducer.key if isinstance(reducer, Keyed) else None
    if callable(key):
        raise InvalidSchema(
            f"{where} has the reducer {reducer.name}, whose key is a function; name a field or a "
            "dotted path"
        )
    if key is not None and isinstance(form, ItemsForm) and not _has(form.item, key.split(".")):
        raise InvalidSchema(f"{where} is {form.words}, which has no key {key!r}")


def _has(form: Form | None, path: list[str]) -> bool:
    """Whether a value of the form may have something at the path."""
    if form is None or not path:
        return form is not None
    if isinstance(form, UnionForm):
        members = [member for member in form.members if member.words != "None"]
        return bool(members) and all(_has(member, path) for member in members)
    if isinstance(form, AnyForm):
        return True
    if isinstance(form, RecordForm):
        return _has(fields_of(form.of).get(path[0]), path[1:])
    return isinstance(form, DictForm) and _has(form.value, path[1:])
