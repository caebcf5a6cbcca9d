"""Stored bodies besides events: snapshots of state, and versions of app: and user: names; and the
checksums of what ended sessions leave, which has no log to be held against.

What a store in SQL keeps in these columns, whichever database it is. The bytes then pass the
codec, as those of events do.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import msgspec

from limpet.model import ops
from limpet.model.canonical import canonical, checksum
from limpet.model.fold import ScopeKey, ScopeWrite
from limpet.model.head import Head
from limpet.model.values import EMPTY, FrozenDict, freeze
from limpet.store.codec import Damaged
from limpet.store.protocol import Erasure, Place
from limpet.store.seal import scope_owner

WHOLE, BY_OP, DELETED = 0, 1, 2  # the forms of a scope row

_any_op: Final = msgspec.json.Decoder(ops.Op).decode


class Fields(msgspec.Struct, frozen=True):
    """The body of a snapshot. The checksum is inside: beside a sealed body it would let the body be
    guessed."""

    fields: dict[str, Any]
    versions: dict[str, int]
    checksum: str


_fields: Final = msgspec.json.Decoder(Fields).decode


def snapshot_body(fields: FrozenDict, versions: FrozenDict) -> bytes:
    return msgspec.json.encode(Fields(fields, versions, checksum(fields).hex()))


def snapshot_from(raw: bytes) -> tuple[FrozenDict, FrozenDict]:
    """State and versions. Raises Damaged if the state is not what its checksum says."""
    body = _fields(raw)
    fields = freeze(body.fields)
    if checksum(fields).hex() != body.checksum:
        raise Damaged("has a state that its checksum does not match")
    return fields, FrozenDict(body.versions)


def scope_place(key: ScopeKey, version: int, base: int, form: int, uid: str, seq: int) -> Place:
    """Where a version of a name belongs: name, form, base and the event that made it. All of it
    is bound into the row's checksum and seal, so that none of it can change unseen."""
    return Place(
        "scope", scope_owner(*key[:2]), f"{key[2]}@{version}", f"{form}/{base}/{uid}/{seq}"
    )


def scope_body(write: ScopeWrite, since_base: int) -> tuple[int, bytes, int]:
    """form, body, and the bytes of ops since the last whole value.

    A value is written whole until it is large; then only the op, until the ops outweigh it: a
    list that grows by a message a turn is written about twice, not once a turn.
    """
    if write.at.deleted:
        return DELETED, b"", -1
    step, whole = msgspec.json.encode(write.op), write.whole
    if since_base < 0 or len(whole) <= max(512, since_base + len(step)):
        return WHOLE, whole, 0
    return BY_OP, step, since_base + len(step)


def scope_op_from(raw: bytes) -> ops.PlainOp:
    op = _any_op(raw)
    ops.frozen(op)
    return ops.resolve(op, EMPTY)


# --- what is left of ended sessions --------------------------------------------------------------


def tomb_crc(head: Head, deleted_us: int) -> int:
    """The checksum of what a tombstone keeps."""
    times = (head.created_us, head.updated_us, deleted_us)
    return crc32(canonical((head.key, head.uid, head.version, head.link, *times)))


def erasure_crc(erasure: Erasure) -> int:
    """The checksum of what is kept of an erased session."""
    return crc32(canonical(msgspec.structs.astuple(erasure)))
