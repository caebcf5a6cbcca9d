"""The envelope as a record: what its bytes say, whichever format they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from limpet.errors import ExtraMissing, InvalidInput
from limpet.model.values import described

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State

S = TypeVar("S", bound="State")
NUMBER: Final = 1  # of the format, the same for all three


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded state whose checksum was verified."""

    schema_version: str | None  # SemVer; None for state without a schema
    state_version: int  # the version of the session
    serialized_at_us: int  # microseconds since 1970
    fields: dict[str, Any]  # read-only
    checksum: str  # SHA-256 in hex, of the very bytes: another format, another checksum

    def state(self, state_type: type[S], *, migrations: MigrationRegistry | None = None) -> S:
        """Return the fields as an object of this State class; `migrations` migrate another MAJOR.

        Without a schema version they are read as they are. Raises MigrationError, SchemaViolation.
        """
        try:
            from limpet.model.state.state import State, decode_fields
        except ModuleNotFoundError as error:
            raise ExtraMissing("pydantic", "state") from error
        if not (isinstance(state_type, type) and issubclass(state_type, State)):
            raise InvalidInput(
                f"{described(state_type)} is not a State. Pass a subclass of limpet.State."
            )
        version = self.schema_version
        return decode_fields(state_type, self.fields, schema_version=version, migrations=migrations)


def members(envelope: Envelope, checksum: str | bytes) -> dict[str, Any]:
    """The envelope as JSON and MessagePack have it. The names are in their canonical order."""
    return {
        "checksum": checksum,
        "envelope": NUMBER,
        "fields": envelope.fields,
        "schema_version": envelope.schema_version,
        "serialized_at_us": envelope.serialized_at_us,
        "state_version": envelope.state_version,
    }
