"""Projections: which fields cross between a graph and a subgraph, or a graph and its session.

A projection has two directions. `inward` names the inner fields that start with an outer value;
`outward` names the outer fields that an inner value updates, through the outer reducers. Both are
checked when the graph is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from limpet.errors import ConflictingProjectionForms, GraphInvalid, MappingReferencesUndeclaredField
from limpet.graph.state import StatePlan


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
        """As declared."""
        return self.inputs

    def outward(self, inner: Iterable[str], outer: Iterable[str], /) -> Mapping[str, str]:
        """As declared, or the fields of the same name."""
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
