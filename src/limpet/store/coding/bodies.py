"""Stored bodies besides events: snapshots of state, the states that logs begin on, and versions of
app: and user: names; and the checksums of what ended sessions leave, which has no log to be
compared with.

What a store in SQL keeps in these columns, whichever database it is. The bytes then pass the
codec, as those of events do.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final
from zlib import crc32

import msgspec

from limpet.model import (
    EMPTY,
    Base,
    Fold,
    FrozenDict,
    Head,
    Key,
    ScopeKey,
    ScopeWrite,
    canonical,
    checksum,
    freeze,
    ops,
)
from limpet.model.fold import by_seq
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.coding.seal import scope_owner
from limpet.store.protocol import Erasure, Place

WHOLE, BY_OP, DELETED = 0, 1, 2  # the forms of a scope row


class _Fields(msgspec.Struct, frozen=True):
    """The body of a snapshot. The checksum is inside: beside a sealed body it would let the body be
    guessed. `link` is that of the event it stands on: one of another history does not fit."""

    fields: dict[str, Any]
    versions: dict[str, int]
    checksum: str
    link: str
    updated_us: int
    active_us: int
    facts: dict[str, Any] = {}
    texts: dict[int, dict[str, Any]] = {}


class _Base(msgspec.Struct, frozen=True):
    """The body of a base."""

    fields: dict[str, Any]
    versions: dict[str, int]
    checksum: str
    link: str
    floor: int
    parent: tuple[str, str, str]
    uid: str


_fields: Final = msgspec.json.Decoder(_Fields).decode


@cache  # made when the first is read: most processes read none
def _op_decoder() -> msgspec.json.Decoder[ops.Op]:
    return msgspec.json.Decoder(ops.Op)


def snapshot_place(uid: str, seq: int, link: bytes) -> Place:
    """Where a snapshot belongs: on this event, with this link."""
    return Place("snapshot", uid, f"{seq}/{link.hex()}")


def snapshot_body(fold: Fold) -> bytes:
    head, sum_ = fold.head, checksum(fold.fields).hex()
    times = (head.updated_us, head.active_us)
    stands = (sum_, head.link.hex(), *times)
    body = _Fields(fold.fields, fold.versions, *stands, head.facts, fold.texts)  # type: ignore[arg-type]  # a dict
    return msgspec.json.encode(body)


def packed_snapshot(fold: Fold, codec: Codec) -> tuple[int, tuple[int, bytes, int], int]:
    """The seq of a snapshot, its columns, and the size of its body."""
    head, raw = fold.head, snapshot_body(fold)
    place = snapshot_place(head.uid, head.version, head.link)
    return head.version, codec.pack(raw, place, bound=True), len(raw)


def snapshot_from(raw: bytes, start: Head, seq: int, link: bytes | None) -> Fold:
    """The fold at a snapshot, on the head that the log begins with.

    Raises Damaged if the state is not what its checksum says, or if the log has another link there.
    """
    body = _fields(raw)
    fields = freeze(body.fields)
    if checksum(fields).hex() != body.checksum:
        raise Damaged("has a state that its checksum does not match")
    if link is None or link.hex() != body.link:
        raise Damaged("stands on an event that the log does not have")
    head = msgspec.structs.replace(
        start,
        version=seq,
        link=link,
        updated_us=body.updated_us,
        active_us=body.active_us,
        facts=freeze(body.facts) if body.facts else EMPTY,
    )
    texts = by_seq({seq: freeze(data) for seq, data in body.texts.items()})
    return Fold(head, fields, FrozenDict(body.versions), texts=texts)


def base_place(uid: str, floor: int) -> Place:
    return Place("base", uid, str(floor))


def base_body(base: Base) -> bytes:
    parent = (base.parent.app, base.parent.user, base.parent.id)
    sum_ = base.checksum.hex()
    body = _Base(base.fields, base.versions, sum_, base.link.hex(), base.floor, parent, base.uid)
    return msgspec.json.encode(body)


def base_from(raw: bytes) -> Base:
    """Return what a log begins on. Raises Damaged if the state is not what its checksum says.

    Whether it is the state that the log's first event names, the reader compares.
    """
    body = msgspec.json.decode(raw, type=_Base)
    fields = freeze(body.fields)
    actual = checksum(fields)
    if actual.hex() != body.checksum:
        raise Damaged("has a state that its checksum does not match")
    versions, link = FrozenDict(body.versions), bytes.fromhex(body.link)
    return Base(Key(*body.parent), body.uid, body.floor, link, fields, versions, actual)


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
    op = _op_decoder().decode(raw)
    ops.frozen(op)
    return ops.resolve(op, EMPTY)


# --- what is left of ended sessions --------------------------------------------------------------


def tomb_crc(head: Head) -> int:
    """The checksum of what a tombstone keeps."""
    times = (head.created_us, head.updated_us, head.active_us, head.deleted_us)
    kept = (head.key, head.uid, head.version, head.link, head.floor, head.ending)
    return crc32(canonical((*kept, *times)))


def key_hash(secret: bytes, key: Key | tuple[str, str, str]) -> bytes:
    """Return the hash kept of an erased key or user, by which it is recognized again."""
    import hmac  # most processes meet nothing that was erased

    return hmac.digest(secret, canonical(key), "sha256")


def erasure_crc(erasure: Erasure) -> int:
    """The checksum of what is kept of an erased session."""
    return crc32(canonical(erasure.stored))
