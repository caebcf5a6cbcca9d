"""State of a graph: the class users declare, and its fields compiled for the engine.

A node returns a partial update. Each value in it is validated as what the field's reducer accepts
and folded into the field; fields that no node changed are neither validated nor copied. A class
with validators of its own is validated whole, because they may look at any field.

`dump` and `load` are the stored form: JSON-mode values, so any pydantic type can be a field.
`changes` gives what a step changed as operations on that form; each costs what the step changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    get_origin,
    runtime_checkable,
)

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from limpet.errors import (
    ConflictingProjectionForms,
    ConflictingReducers,
    GraphInvalid,
    MappingReferencesUndeclaredField,
    ReducerConfigurationInvalid,
    ReducerError,
    StateValidationError,
    error_text,
)
from limpet.model import Path, PlainOp, canonical, described
from limpet.model.ops import Add, Merge, Set
from limpet.model.state.reducers import (
    FACTORIES,
    Append,
    BoundedAppend,
    ConcatFlatten,
    DedupeAppend,
    Keyed,
    LastWriteWins,
    MergeAll,
    MergeByKey,
    MergeDict,
    Reducer,
    Replace,
    last_write_wins,
)

S = TypeVar("S", bound="State")
_encode: Final = msgspec.json.Encoder().encode
_set: Final = object.__setattr__
Fold: TypeAlias = Callable[[Any, Any, Any], Any]  # the reducer, the old value, the update
# The types of a field, by the container that its reducer needs. Updates may have them too.
CONTAINERS: Final[dict[str, tuple[type, ...]]] = {"list": (list, tuple), "dict": (dict,)}


class State(BaseModel):
    """The state of a graph. Fields may have any pydantic type, and a reducer as annotation.

    `schema_version` is any text; migrations lead from one to another.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )
    schema_version: ClassVar[str] = ""


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    role: str
    content: str


class FieldPlan:
    """One field: how an update is validated and folded in, and how its value is stored."""

    __slots__ = (
        "fold",
        "follows",
        "holds_list",
        "name",
        "read",
        "reducer",
        "replace",
        "store",
        "takes",
        "update",
    )

    def __init__(self, of: type[BaseModel], name: str) -> None:
        info = of.model_fields[name]
        metadata = of.model_fields[name].metadata
        reducers = [item for item in metadata if isinstance(item, Reducer)]
        if len(reducers) > 1:
            names = " and ".join(reducer.name for reducer in reducers)
            raise ConflictingReducers(name, f"the reducers {names}")
        for item in metadata:
            if any(item is factory for factory in FACTORIES):
                raise ReducerConfigurationInvalid(
                    f"{of.__name__}.{name} has {item.__name__} without its argument", "Call it"
                )
        self.name, self.reducer = name, (reducers[0] if reducers else last_write_wins)
        rules = [item for item in info.metadata if not isinstance(item, Reducer)]
        if isinstance(info.discriminator, str):
            rules.append(Field(discriminator=info.discriminator))
        whole = Annotated[info.annotation, *rules] if rules else info.annotation
        adapter = _adapter(whole, of.model_config)
        self.replace: Callable[[Any], Any] = adapter.validator.validate_python
        self.store: Callable[..., Any] = adapter.serializer.to_python
        self.read: Callable[[bytes], Any] = adapter.validator.validate_json
        self.holds_list = _container(info.annotation) in CONTAINERS["list"]
        self._check(of, info.annotation)
        fold = FOLDS.get(type(self.reducer))
        base = list[info.annotation] if self.reducer.nests else info.annotation  # type: ignore[name-defined]  # a type at run time
        self.update = (
            adapter if self.reducer is last_write_wins else _adapter(base, of.model_config)
        )
        self.takes = self.update.validator.validate_python if fold is not None else None
        self.fold: Fold = self._folding(fold, check=bool(rules))
        # A rule may change the whole value: then the stored field is set, not added to.
        self.follows: Reducer = last_write_wins if rules else self.reducer

    def _folding(self, fold: Fold | None, *, check: bool) -> Fold:
        """The function that folds an accepted update in; rules are checked afterwards."""
        made, reducer, name = fold, self.reducer, self.name
        if made is None:  # a reducer of the user's own: its result is checked as any value is
            replace = self.replace
            return lambda _, old, update: replace(reducer.fold(old, update, name))
        if not check:
            return made
        inner, replace = made, self.replace
        return lambda reducer, old, update: replace(inner(reducer, old, update))

    def __call__(self, old: Any, update: Any) -> Any:
        """The field's value after an update. Raises what validation and the reducer raise."""
        if self.reducer is last_write_wins:
            return self.replace(update.value if type(update) is Replace else update)
        if type(update) is Replace:
            return self.replace(update.value)
        if self.takes is not None:
            self._check_shape(update)  # before validation: what a reducer takes is its own matter
            update = self.takes(update)
        return self.fold(self.reducer, old, update)

    def dump(self, value: Any) -> Any:
        """The stored form of a value of this field."""
        return self.store(value, mode="json", by_alias=False)

    def load(self, plain: Any) -> Any:
        """The value of a stored form."""
        return self.read(_encode(plain))

    def dump_update(self, update: Any) -> Any:
        """The stored form of an update of this field."""
        if type(update) is Replace:
            return {"replace": self.dump(update.value)}
        return {"update": self.update.serializer.to_python(update, mode="json", by_alias=False)}

    def load_update(self, plain: Any) -> Any:
        """The update of such a form."""
        if "replace" in plain:
            return Replace(self.load(plain["replace"]))
        return self.update.validator.validate_json(_encode(plain["update"]))

    def _check_shape(self, update: Any) -> None:
        """Refuse what the reducer does not take, as it was given. Raises TypeError."""
        holds, name = self.reducer.holds, self.reducer.name
        if not self.reducer.nests:
            if not isinstance(update, CONTAINERS[holds]):
                raise TypeError(f"{name} takes a {holds}, not {described(update)}")
            return
        if not isinstance(update, (list, tuple)):
            raise TypeError(f"{name} takes a list, not {described(update)}")
        for at, part in enumerate(update):
            if not isinstance(part, CONTAINERS[holds]):
                raise TypeError(
                    f"{name} takes a list of {holds}s, and item {at} is {described(part)}"
                )

    def _check(self, of: type[BaseModel], annotation: Any) -> None:
        if self.reducer.holds == "any":
            return
        if _container(annotation) not in CONTAINERS[self.reducer.holds]:
            raise ReducerConfigurationInvalid(
                f"{of.__name__}.{self.name} has the reducer {self.reducer.name}, which needs a "
                f"{self.reducer.holds}",
                "Declare the field with that type, or choose another reducer",
            )


class Contributions(dict[str, Any]):
    """Several updates in a row, as one: `parts` are applied one after another."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Mapping[str, Any]]) -> None:
        super().__init__()
        self.parts = parts
        for part in parts:
            for name, value in part.items():
                if type(self.get(name)) is not Replace:  # once replaced, the field is set whole
                    self[name] = value


class StatePlan(Generic[S]):
    """A State class compiled: its fields, and what happens to a state of it."""

    __slots__ = ("custom", "fields", "name", "of", "version", "whole")

    def __init__(self, of: type[S]) -> None:
        self.of, self.name, self.version = of, of.__name__, of.schema_version
        self.fields = {name: FieldPlan(of, name) for name in of.model_fields}
        made = of.__pydantic_decorators__
        self.whole = bool(
            made.field_validators
            or made.model_validators
            or made.validators
            or made.root_validators
            or of.__private_attributes__
        )
        self.custom = bool(made.field_serializers or made.model_serializers)

    def validate(self, given: Any, where: str) -> S:
        """A state from a State or a dict, validated. Raises StateValidationError."""
        if isinstance(given, BaseModel):
            if not isinstance(given, self.of):
                reason = f"it is a {type(given).__name__}, not a {self.name}"
                raise StateValidationError(where, (), reason)
            values, names = dict(given.__dict__), set(given.model_fields_set)
            if type(given) is not self.of:  # of a subclass: what this class declares
                if more := sorted(names - self.fields.keys()):
                    reason = f"{self.name} does not declare them, only {type(given).__name__} does"
                    raise StateValidationError(where, tuple(more), reason)
                values = {name: values[name] for name in self.fields}
        elif isinstance(given, Mapping):
            values = names = given  # type: ignore[assignment]  # names are its keys
        else:
            reason = f"it is {described(given)}, not a {self.name} or a dict of its fields"
            raise StateValidationError(where, (), reason)
        try:
            state: S = self.of.__pydantic_validator__.validate_python(values, by_name=True)
        except ValidationError as error:
            raise invalid(where, error) from error
        _set(state, "__pydantic_fields_set__", set(names))
        return state

    def apply(self, state: S, update: Any, node: str) -> S:
        """The state after a node's update. Raises StateValidationError or ReducerError."""
        if not isinstance(update, dict):
            update = self._mapping(update, node, state)
        if not update:
            return state
        if type(update) is Contributions:
            for part in update.parts:
                state = self.apply(state, part, node)
            return state
        values, fields = state.__dict__.copy(), self.fields
        for name, value in update.items():
            try:
                field = fields[name]
                values[name] = field(values[name], value)
            except Exception as error:
                raise self._update_error(error, name, node, state) from error
        if self.whole:
            try:
                new: S = self.of.__pydantic_validator__.validate_python(values, by_name=True)
            except ValidationError as error:
                raise invalid(f"the state after node {node!r}", error, state, node=node) from error
            except Exception as error:
                where = f"the state after node {node!r}"
                raise StateValidationError(
                    where, (), error_text(error), node=node, recoverable_state=state
                ) from error
            _set(new, "__pydantic_fields_set__", set(state.__pydantic_fields_set__))
            return new
        return self._next(state, values, update)

    def overlay(self, state: S, values: Mapping[str, Any], where: str) -> S:
        """The state with these values in place of its own, without reducers, validated."""
        return self.validate({**state.__dict__, **values}, where)

    def fold_in(self, base: S, given: S) -> S:
        """The base with those fields of `given` folded in that its caller set explicitly."""
        update = {name: getattr(given, name) for name in given.model_fields_set}
        return self.apply(base, update, "the initial state")

    def dump(self, state: S) -> dict[str, Any]:
        """The stored form of a state."""
        if self.custom:
            return state.model_dump(mode="json", by_alias=False, include=set(self.fields))
        held = state.__dict__
        return {name: field.dump(held[name]) for name, field in self.fields.items()}

    def load(self, plain: Mapping[str, Any], where: str) -> S:
        """The state of a stored form. Raises StateValidationError."""
        try:
            state: S = self.of.__pydantic_validator__.validate_json(_encode(plain), by_name=True)
            return state
        except ValidationError as error:
            raise invalid(where, error) from error
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise StateValidationError(where, (), f"it is not JSON data ({error})") from error

    def changes(self, old: S, new: S, update: Mapping[str, Any], path: Path) -> list[PlainOp]:
        """The operations by which the stored form at `path` follows an update."""
        if old is new:
            return []
        if self.whole or self.custom:
            before, after = self.dump(old), self.dump(new)
            return [Set((*path, n), after[n]) for n in after if after[n] != before[n]]
        was, now, fields = old.__dict__, new.__dict__, self.fields
        ops: list[PlainOp] = []
        for name, value in update.items():
            field = fields[name]
            reducer = last_write_wins if type(value) is Replace else field.follows
            ops += changed(reducer, (*path, name), was[name], now[name], field.dump)
        return ops

    def _next(self, state: S, values: dict[str, Any], update: Iterable[str]) -> S:
        new = self.of.__new__(self.of)
        _set(new, "__dict__", values)
        names = state.__pydantic_fields_set__
        names = names if names.issuperset(update) else names.union(update)
        _set(new, "__pydantic_fields_set__", names)
        _set(new, "__pydantic_extra__", None)
        _set(new, "__pydantic_private__", None)
        return new

    def _mapping(self, update: Any, node: str, state: S) -> dict[str, Any]:
        if isinstance(update, Mapping):
            return dict(update)
        reason = f"the node returned {described(update)}, not a dict of fields (an empty one "
        reason += "changes nothing)"
        where = f"the update of node {node!r}"
        raise StateValidationError(where, (), reason, node=node, recoverable_state=state)

    def _update_error(self, error: Exception, name: Any, node: str, state: S) -> Exception:
        where = f"the update of node {node!r}"
        if not isinstance(name, str) or name not in self.fields:
            reason = f"{self.name} does not declare this field"
            fields = (str(name),)
            return StateValidationError(where, fields, reason, node=node, recoverable_state=state)
        if isinstance(error, ValidationError):
            return invalid(where, error, state, name, node)
        return ReducerError(name, error_text(error), node=node, recoverable_state=state)


def plan_of(of: type[S]) -> StatePlan[S]:
    """The compiled form of a State class. Raises GraphInvalid if it cannot be compiled."""
    if not (isinstance(of, type) and issubclass(of, State)):
        raise GraphInvalid(
            f"{described(of)} is not a State class. Pass a subclass of limpet.graph.State."
        )
    plan: StatePlan[S] | None = of.__dict__.get("__plan__")
    if plan is None or plan.version != of.schema_version:
        _check_class(of)
        plan = StatePlan(of)
        of.__plan__ = plan  # type: ignore[attr-defined]  # a cache of this module
    return plan


def _check_class(of: type[State]) -> None:
    name = of.__name__
    if not isinstance(of.schema_version, str) or "schema_version" in of.model_fields:
        raise GraphInvalid(f"{name}.schema_version is not a ClassVar[str]. Write it as one.")
    config = of.model_config
    if config.get("extra") != "forbid" or not config.get("frozen"):
        raise GraphInvalid(f"{name} is not frozen or allows extra fields. Leave both settings.")
    try:
        of.model_rebuild()
    except (PydanticUserError, NameError) as error:
        reason = error_text(error)
        raise GraphInvalid(
            f"{name} names a type that is not defined ({reason}). Define it before the graph."
        ) from error


def invalid(
    where: str, error: ValidationError, state: Any = None, field: str = "", node: str = ""
) -> StateValidationError:
    """A validation error of pydantic, in our words: which fields, and why."""
    places, reasons = [], []
    for item in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        way = ([field] if field else []) + [str(step) for step in item["loc"]]
        places.append(".".join(way))
        reasons.append(item["msg"])
    reason = "; ".join(reasons)
    return StateValidationError(where, tuple(places), reason, node=node, recoverable_state=state)


def _container(annotation: Any) -> Any:
    return get_origin(annotation) or annotation


def _adapter(annotation: Any, config: ConfigDict) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=config)
    except PydanticUserError:  # a model or dataclass has settings of its own
        return TypeAdapter(annotation)


def _replace(reducer: Reducer, old: Any, update: Any) -> Any:
    return update


def _append(reducer: Reducer, old: Any, update: Any) -> Any:
    return [*old, *update] if type(old) is list else (*old, *update)


def _flatten(reducer: Reducer, old: Any, update: Any) -> Any:
    return _append(reducer, old, [item for part in update for item in part])


def _clamp(reducer: BoundedAppend, old: Any, update: Any) -> Any:
    return _append(reducer, old, update)[-reducer.n :]


def _merge(reducer: Reducer, old: Any, update: Any) -> Any:
    return {**old, **update}


def _merge_all(reducer: Reducer, old: Any, update: Any) -> Any:
    made = dict(old)
    for part in update:
        made.update(part)
    return made


def _dedupe(reducer: DedupeAppend, old: Any, update: Any) -> Any:
    seen = {_mark(reducer, item) for item in old}
    new = []
    for item in update:
        mark = _known(reducer, item)
        if mark not in seen:
            seen.add(mark)
            new.append(item)
    return _append(reducer, old, new)


def _merge_by_key(reducer: MergeByKey, old: Any, update: Any) -> Any:
    """An item takes the place of the last one with its key, whole; one with a new key is added."""
    places = {_mark(reducer, item): at for at, item in enumerate(old)}
    made = list(old)
    for item in update:
        at = places.setdefault(_known(reducer, item), len(made))
        if at == len(made):
            made.append(item)
        else:
            made[at] = item
    return made if type(old) is list else tuple(made)


def _mark(reducer: Keyed, item: Any) -> Any:
    """A comparable form of an item's key; None if it has none. 1, 1.0 and True differ."""
    value, key = item, reducer.key
    if callable(key):
        value = key(item)
    elif key is not None:
        for step in key.split("."):
            value = value.get(step) if isinstance(value, dict) else getattr(value, step, None)
            if value is None:
                break
    if value is None and key is not None:
        return None
    return value if type(value) is str else canonical(to_jsonable_python(value))


def _known(reducer: Keyed, item: Any) -> Any:
    if (mark := _mark(reducer, item)) is None:
        raise ValueError(f"an item has no key {reducer.key_name}")
    return mark


# By exact class: a subclass is a reducer of the user's own, whose `fold` is called.
FOLDS: Final[dict[type[Reducer], Fold]] = {
    LastWriteWins: _replace,
    Append: _append,
    ConcatFlatten: _flatten,
    MergeDict: _merge,
    MergeAll: _merge_all,
    BoundedAppend: _clamp,
    DedupeAppend: _dedupe,
    MergeByKey: _merge_by_key,
}
_ADDING: Final = (Append, ConcatFlatten, DedupeAppend, MergeByKey)
_MERGING: Final = (MergeDict, MergeAll)


def changed(
    reducer: Reducer, path: Path, was: Any, now: Any, dump: Callable[[Any], Any]
) -> list[PlainOp]:
    """The operations that turn the stored form of `was` at `path` into that of `now`.

    `now` is what the reducer's fold made of `was`. Old items are compared by identity: the folds
    keep every item that they do not change.
    """
    kind = type(reducer)
    if kind in _ADDING:
        ops: list[PlainOp] = []
        if kind is MergeByKey:
            ops = [
                Set((*path, at), dump(type(now)([new]))[0])
                for at, (old, new) in enumerate(zip(was, now, strict=False))
                if old is not new
            ]
        tail = dump(now[len(was) :])
        return [*ops, Add(path, tail)] if tail else ops
    if kind in _MERGING:
        names = {n: v for n, v in now.items() if n not in was or was[n] is not v}
        return [Merge(path, dump(names))] if names else []
    return [Set(path, dump(now))]


# --- projections ---------------------------------------------------------------------------------


@runtime_checkable
class Projection(Protocol):
    """Maps inner fields to outer fields, in both directions."""

    def inward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Inner field → the outer field whose value it starts with."""
        ...

    def outward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Outer field → the inner field whose value updates it."""
        ...


class FieldNameMatching:
    """The default: nothing goes in, and fields of the same name come out."""

    def inward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Empty: a subgraph starts with its defaults."""
        return {}

    def outward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Every field that both declare."""
        names = set(inner)
        return {name: name for name in outer if name in names}


class ExplicitMapping:
    """`inputs` maps inner fields to outer ones, `outputs` outer fields to inner ones.

    Without `outputs`, fields of the same name come out; with it, only those named. The first
    argument may be given by position, for a session: {session field: state field} both ways.
    """

    def __init__(
        self,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        for given in (inputs, outputs):
            if given is not None and not isinstance(given, Mapping):
                raise GraphInvalid("a mapping of fields is not a dict. Pass {field: field}.")
        self.inputs = dict(inputs or {})
        self.outputs = None if outputs is None else dict(outputs)

    def inward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Return the fields as declared."""
        return self.inputs

    def outward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Return the fields as declared, or those of the same name."""
        if self.outputs is not None:
            return self.outputs
        return FieldNameMatching().outward(inner, outer)


class DeclaredSameName:
    """Fields that have the same name on both sides, listed for each direction."""

    def __init__(self, *, in_fields: Iterable[str] = (), out_fields: Iterable[str] = ()) -> None:
        if isinstance(in_fields, str) or isinstance(out_fields, str):
            raise GraphInvalid("in_fields and out_fields take several names. Pass a list of them.")
        self.in_fields, self.out_fields = tuple(in_fields), tuple(out_fields)

    def inward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Each of `in_fields`."""
        return {name: name for name in self.in_fields}

    def outward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """Each of `out_fields`."""
        return {name: name for name in self.out_fields}


class CheckedProjection:
    """A projection between two State classes, checked: the names that cross, in both directions."""

    __slots__ = ("inner", "inward", "outer", "outward")

    def __init__(
        self, node: str, inner: StatePlan[Any], outer: StatePlan[Any], projection: Projection
    ) -> None:
        self.inner, self.outer = inner, outer
        self.inward = dict(projection.inward(tuple(inner.fields), tuple(outer.fields)))
        self.outward = dict(projection.outward(tuple(inner.fields), tuple(outer.fields)))
        check_names(node, inner, [*self.inward, *self.outward.values()])
        check_names(node, outer, [*self.outward, *self.inward.values()])

    def enter(self, state: Any, **more: Any) -> Any:
        """The inner state that an outer one gives. Raises StateValidationError."""
        held = state.__dict__
        values = {name: held[outer] for name, outer in self.inward.items()}
        values.update(more)
        return self.inner.validate(values, "the initial state of the subgraph")

    def leave(self, final: Any) -> dict[str, Any]:
        """The outer update that a final inner state gives."""
        return self.project(final.__dict__)

    def project(self, inner: Mapping[str, Any]) -> dict[str, Any]:
        """The outer update that these inner values give; what they lack is left as it is."""
        return {outer: inner[name] for outer, name in self.outward.items() if name in inner}


def projection_of(
    node: str,
    projection: Any,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> Projection:
    """The one projection that a node was given. Raises ConflictingProjectionForms."""
    mapped = inputs is not None or outputs is not None
    if projection is not None and mapped:
        raise ConflictingProjectionForms(node)
    if projection is None:
        return ExplicitMapping(inputs, outputs) if mapped else FieldNameMatching()
    if isinstance(projection, type) or not isinstance(projection, Projection):
        raise GraphInvalid(
            f"{node!r} has a projection without the methods inward and outward. Pass "
            "FieldNameMatching(), ExplicitMapping(…) or DeclaredSameName(…)."
        )
    forms = ("inputs", "outputs"), ("in_fields", "out_fields")
    if all(any(getattr(projection, name, None) for name in form) for form in forms):
        raise ConflictingProjectionForms(node)
    return projection


def check_names(node: str, plan: StatePlan[Any], names: Iterable[str]) -> None:
    """Raise MappingReferencesUndeclaredField for the first name that the class does not declare."""
    for name in names:
        if name not in plan.fields:
            raise MappingReferencesUndeclaredField(node, str(name), plan.name)
