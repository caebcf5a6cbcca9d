"""Typed sessions: a session's own fields, seen and changed through a State class.

Stands between a session and the pure parts (state, update): says how the stored schema version
stands to the class's. How state is brought forward it has from `upgrade`. pydantic is imported
here, so nothing that runs without typed state may import this module at its top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from limpet.errors import FieldAccessDenied, InvalidInput, SchemaViolation
from limpet.model import Fact, FrozenDict, FrozenList, Head, PlainOp, Prepared, apply, described
from limpet.model.facts.isolation import field_policies_in
from limpet.model.facts.schema import migrated
from limpet.model.state.migrations import MigrationRegistry, SchemaVersion, relation
from limpet.model.state.state import (
    Record,
    State,
    decode_fields,
    encode_fields,
    field_policies,
)
from limpet.model.state.update import Planned, plan_update, rests_on
from limpet.session.cached_state import own_ops
from limpet.session.schema.upgrade import Upgrade, misfit

S = TypeVar("S", bound=State)


class Typed(Upgrade, Generic[S]):
    """One State class over one session. Holds the last view, so that reading twice costs once."""

    __slots__ = ("_proven", "_seen", "hidden_from", "of")

    def __init__(self, of: type[S], migrations: MigrationRegistry | None = None) -> None:
        if not (isinstance(of, type) and issubclass(of, State)):
            raise InvalidInput(_no_state(of))
        registry = MigrationRegistry() if migrations is None else migrations
        super().__init__(SchemaVersion.parse(of.schema_version), registry, of.newer_minor)
        self.of = of
        self._seen: tuple[FrozenDict, S] | None = None
        self._proven = False
        # The role that a field is hidden from, if the principal that acts has it; else None.
        self.hidden_from: Callable[[str], str | None] | None = None

    def view(self, head: Head, fields: FrozenDict) -> S:
        """The typed form of the fields. Raises MigrationError, SessionSchemaViolation."""
        self.check(head)
        seen = self._seen
        if seen is None or seen[0] is not fields:
            try:
                seen = self._seen = (fields, self.fresh(fields))
            except SchemaViolation as error:
                raise misfit(head, error) from error
            self._proven = True
        return seen[1]

    def prove(self, head: Head, fields: FrozenDict) -> None:
        """Check once that what is stored is what the class declares. Raises SessionSchemaViolation.

        The store knows versions, not classes: another class of the same version must not write.
        """
        if not self._proven:
            self.view(head, fields)

    @property
    def field_policies(self) -> dict[str, Any]:
        """Return by field the roles that may read and write it, as they are kept with a session."""
        return field_policies(self.of)

    def trust(self) -> None:
        """Note that this class has just made what is stored."""
        self._proven = True

    def fresh(self, fields: FrozenDict) -> S:
        """A view that nobody else has. Its lists and dicts are read-only, as all state is."""
        state = self._decode(fields)
        inside = state.__dict__
        for name, value in inside.items():
            if type(value) is list:
                inside[name] = FrozenList(value)
            elif type(value) is dict:
                inside[name] = FrozenDict(value)
        return state

    def plan(self, fields: FrozenDict, update: Mapping[str, Any], actor: str | None) -> Planned:
        planned = plan_update(self.of, fields, update)
        self._admit(update, actor)
        return planned

    def _admit(self, names: Iterable[str], actor: str | None) -> None:
        """Raise FieldAccessDenied if the class does not let this actor write one of the fields.

        Who has no name yet is refused by the event itself.
        """
        for name in names:
            policy = self.of.access_of(name)
            if actor is not None and not policy.allows("write", actor):
                raise FieldAccessDenied(name, actor, tuple(sorted(policy.write or ())))

    def raising(self, head: Head, fields: FrozenDict, update: tuple[PlainOp, ...]) -> Fact | None:
        """The fact that newer code writes now, if that is so: nothing else need be changed.

        A version is a promise about the whole state, so this once all of it is checked as the
        update leaves it. Raises SchemaViolation.
        """
        stored = head.schema_version
        if stored is None or relation(SchemaVersion.parse(stored), self.code) == "older_minor":
            self._decode(apply(fields, update))
            return migrated(stored, str(self.code), field_policies=self.policies_after(head))
        if "field_policies" not in head.facts and (policies := self.field_policies):
            return migrated(stored, stored, field_policies=policies)  # of an earlier release
        return None

    def policies_after(self, head: Head) -> dict[str, Any] | None:
        now = self.field_policies
        return None if now == field_policies_in(head.facts) else now

    def fit(self, fields: Mapping[str, Any]) -> None:
        self._decode(fields)

    def _decode(self, fields: Mapping[str, Any]) -> S:
        """The fields as an object of the class. Raises SchemaViolation; FieldAccessDenied if one
        that the class requires is there, and hidden."""
        try:
            return decode_fields(self.of, fields)
        except SchemaViolation as error:
            name, hidden_from = error.field, self.hidden_from
            if hidden_from is None or name in fields or name not in self.of.model_fields:
                raise
            principal = hidden_from(name)
            if principal is None:
                raise
            roles = tuple(sorted(self.of.access_of(name).read or ()))
            raise FieldAccessDenied(name, principal, roles, operation="read") from None

    def undeclared(self, fields: Mapping[str, Any]) -> Iterable[str]:
        return [name for name in fields if name not in self.of.model_fields]

    def fit_after(self, fields: FrozenDict, drafts: Iterable[Prepared]) -> tuple[str, ...]:
        """Raise SchemaViolation if plain operations would leave what the class does not declare.

        They know nothing of types, so all of the state is looked at; apply need not do that.
        Returns the fields that the verdict rests on.
        """
        after, guards = fields, set[str]()
        for draft in drafts:
            ops = [op for op in own_ops(draft) if op.path[0] in self.of.model_fields]
            self._admit([str(op.path[0]) for op in ops], draft.actor)
            after = apply(after, ops)
            guards.update(rests_on(self.of, ops))
        if after is not fields:
            self._decode(after)
        return tuple(sorted(guards))


def encoded(state: object) -> tuple[dict[str, Any], str]:
    """The fields of a State and the version of its class. Raises SchemaViolation."""
    if not isinstance(state, State):
        raise SchemaViolation("state", "a dict, a State or an Envelope", described(state))
    return encode_fields(state), type(state).schema_version


def _no_state(of: object) -> str:
    """Return what was given in the place of a State class."""
    if isinstance(of, State):
        return f"{type(of).__qualname__}(…) is an object, not a State class. Pass its class."
    if not isinstance(of, type):
        return f"{described(of)} is not a State class. Pass a subclass of limpet.State."
    if issubclass(of, Record):
        return f"{described(of)} is a Record, not a State. Pass the State class that contains it."
    return f"{described(of)} is not a State class. Derive it from limpet.State, or pass another."
