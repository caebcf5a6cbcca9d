"""Payloads: what the file of a checkpoint holds: a state in an envelope, or a diff from another.

Both have a checksum of their own, which is verified when they are read.
"""

from __future__ import annotations

from typing import Final

from limpet.model import FrozenDict
from limpet.model.diff.diff import Diff, diff
from limpet.model.envelope import envelope

_BYTES_MAX: Final = 2**30  # of an envelope: a state is bounded by its own limits


def payload(
    seq: int, schema_version: str | None, fields: FrozenDict, now_us: int, base: FrozenDict | None
) -> bytes:
    """The bytes of a state, or of what changed in it since a base."""
    if base is not None:
        return diff(base, fields).to_bytes()
    return envelope.encode(
        fields,
        schema_version=schema_version,
        state_version=seq,
        serialized_at_us=now_us,
        bytes_max=_BYTES_MAX,
    )


def fields_in(raw: bytes, base: FrozenDict | None) -> FrozenDict:
    """The state in these bytes. Raises IntegrityViolation, InvalidEnvelope, InvalidDiff."""
    if base is None:
        return FrozenDict(envelope.decode(raw, bytes_max=_BYTES_MAX).fields)
    found: FrozenDict = Diff.from_bytes(raw).apply(base)
    return found
