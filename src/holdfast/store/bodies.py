"""Stored bodies besides events: snapshots of state, and versions of app: and user: names.

What a store in SQL keeps in these columns, whichever database it is. The bytes then pass the
codec, as those of events do.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.model import ops
from holdfast.model.fold import ScopeKey, ScopeValue
from holdfast.model.values import EMPTY, FrozenDict, freeze
from holdfast.store.protocol import Place

WHOLE, BY_OP, DELETED = 0, 1, 2  # the forms of a scope row

_any_op: Final = msgspec.json.Decoder(ops.Op).decode


class Fields(msgspec.Struct, frozen=True):
    """The body of a snapshot."""

    fields: dict[str, Any]
    versions: dict[str, int]


_fields: Final = msgspec.json.Decoder(Fields).decode


def snapshot_body(fields: FrozenDict, versions: FrozenDict) -> bytes:
    return msgspec.json.encode(Fields(fields, versions))


def snapshot_from(raw: bytes) -> tuple[FrozenDict, FrozenDict]:
    body = _fields(raw)
    return freeze(body.fields), FrozenDict(body.versions)


def scope_place(key: ScopeKey, version: int) -> Place:
    return Place("scope", msgspec.json.encode(key[:2]).decode(), f"{key[2]}@{version}")


def scope_body(value: ScopeValue, op: ops.PlainOp, since_base: int) -> tuple[int, bytes, int]:
    """form, body, and the bytes of ops since the last whole value.

    A value is written whole until it is large; then only the op, until the ops outweigh it: a
    list that grows by a message a turn is written about twice, not once a turn.
    """
    if value.deleted:
        return DELETED, b"", -1
    step = msgspec.json.encode(op)
    whole = msgspec.json.encode(value.value)
    if since_base < 0 or len(whole) <= max(512, since_base + len(step)):
        return WHOLE, whole, 0
    return BY_OP, step, since_base + len(step)


def scope_op_from(raw: bytes) -> ops.PlainOp:
    op = _any_op(raw)
    ops.frozen(op)
    return ops.resolve(op, EMPTY)
