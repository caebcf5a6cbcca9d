"""What a new session begins with, as it was given: a dict, a State, or an Envelope from elsewhere.

Whichever it is, the creation records plain fields and the schema version they follow, if they
follow one: a later load with a class then knows whether it may read them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from limpet.errors import InvalidInput
from limpet.model.ops import scope_of
from limpet.model.state.semver import SchemaVersion

if TYPE_CHECKING:
    from limpet.model.envelope.record import Envelope
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State
    from limpet.session.typed import Typed

Begin: TypeAlias = "Mapping[str, Any] | Envelope | State"


class Given(msgspec.Struct, frozen=True):
    """The first fields of a session, the version they follow, and the class they are seen by."""

    fields: Mapping[str, Any]
    schema_version: str | None = None
    typed: Any = None  # a Typed, which is not imported before it is needed


def given(state: Begin, migrations: MigrationRegistry | None) -> Given:
    """The beginning that `state` stands for. Raises SchemaViolation, InvalidInput."""
    if not is_plain(state):
        from limpet.session.typed import Typed, encoded

        fields, version = encoded(state)
        typed: Typed[Any] = Typed(type(state), migrations)
        typed.trust()
        return Given(fields, version, typed)
    if migrations is not None:
        raise InvalidInput(
            "migrations are of typed state. Create the session without, then load it with "
            "get(key, state_type=MyState, migrations=registry)."
        )
    if isinstance(state, Mapping):
        return Given(state)
    return _unpacked(state)  # type: ignore[arg-type]  # plain and no dict: an envelope


def is_plain(state: Begin) -> bool:
    """Whether a session that begins with this is seen without a class."""
    if isinstance(state, Mapping):
        return True
    from limpet.model.envelope.record import Envelope

    return isinstance(state, Envelope)


def _unpacked(envelope: Envelope) -> Given:
    """Its fields under its version. An envelope is of one session: what others share is refused."""
    for name in envelope.fields:
        if scope_of(name) != "session":
            raise InvalidInput(
                f"the envelope holds {name!r}, which is not one of the session's own fields. Take "
                "such names out before it is encoded, as s.envelope() does."
            )
    version = envelope.schema_version
    # As a session may have it: an envelope may also name a pre-release, which no load could read.
    return Given(envelope.fields, None if version is None else str(SchemaVersion.parse(version)))
