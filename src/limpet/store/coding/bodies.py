"""Stored bodies besides events, and what stores in SQL rebuild from them.

Snapshots of state, the states that logs begin on, versions of app: and user: names, and the
checksums of what ended sessions leave. A fold is rebuilt from a snapshot, or from the state that
its log begins on, and the events since; a shared name from its base and the operations since. Each
store reads its rows in its own way and hands the columns over: nothing here waits or reads a
database. The bytes pass the codec, as those of events do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from struct import error as StructError  # noqa: N812  # a class
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from limpet.errors import LimpetError
from limpet.model import (
    EMPTY,
    NO_TEXTS,
    Base,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    based,
    blank,
    canonical,
    chain,
    checksum,
    freeze,
    is_input,
    ops,
    replay_any,
    scope_next,
)
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.coding.seal import scope_owner
from limpet.store.protocol import Erasure, Place

WHOLE, BY_OP, DELETED = 0, 1, 2  # the forms of a scope row
PackedBody: TypeAlias = tuple[int, bytes, int]  # flags, body and checksum
NamesByOwner: TypeAlias = dict[tuple[str, str], dict[str, ScopeValue]]  # by app and user
# Errors of a body that is not ours: one flipped bit changes the kind of a column's value.
UNREADABLE: Final = (
    Damaged,
    LimpetError,
    msgspec.MsgspecError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


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
    """Return the place of a snapshot: on this event, with this link."""
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
    by_seq: Any = {seq: freeze(data) for seq, data in body.texts.items()}
    texts: Any = FrozenDict(by_seq)
    return Fold(head, fields, FrozenDict(body.versions), texts=texts or NO_TEXTS)


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
    """Return the place of a version of a name: name, form, base and the event that made it. All
    of it is bound into the row's checksum and seal, so that none of it can change unseen."""
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


# --- folds ---------------------------------------------------------------------------------------


def start_head(head: Head) -> Head:
    """The head before the first own event, without what the base says."""
    start = blank(head.key, head.uid, head.created_us)
    return start if not head.floor else msgspec.structs.replace(start, floor=head.floor)


def start_fold(head: Head, base: Base | None) -> Fold:
    """The fold that a log begins on. A log with a floor whose base cannot be read begins on a hole:
    its `damaged` names the floor."""
    if base is not None:
        start = based(head.key, head.uid, head.created_us, base.floor, base.link)
        return Fold(start, base.fields, base.versions)
    if not head.floor:
        return Fold(start_head(head))
    hole = msgspec.structs.replace(start_head(head), version=head.floor)
    return Fold(hole, damaged=(head.floor,))


def base_in(codec: Codec, head: Head, packed: PackedBody | None, first: Event | None) -> Base:
    """The state that a log begins on, as its first own event names it. Raises Damaged."""
    if packed is None or first is None or first.data is None or first.seq != head.floor + 1:
        raise Damaged("the state that its log begins on is not there")
    place = base_place(head.uid, head.floor)
    try:
        base = base_from(codec.unpack(*packed, lambda: place, bound=True))
    except (msgspec.MsgspecError, LimpetError, TypeError, ValueError) as error:
        what = f"the state that its log begins on cannot be read ({error!r})"
        raise Damaged(what) from error
    if first.data.get("base") != base.checksum.hex() or base.floor != head.floor:
        raise Damaged("its log begins on another state than its first event names")
    return base


def snapshot_in(
    codec: Codec, head: Head, seq: int, link: bytes | None, packed: PackedBody
) -> tuple[Fold, int] | None:
    """The fold that a snapshot keeps, and its size; None if it cannot be read, or if the log has
    another event where it stands."""
    if link is None:
        return None
    try:
        place = snapshot_place(head.uid, seq, link)
        raw = codec.unpack(*packed, lambda: place, bound=True)
        return snapshot_from(raw, start_head(head), seq, link), len(raw)
    except (Damaged, msgspec.MsgspecError, AttributeError, TypeError, UnicodeDecodeError):
        return None


def replay_events(fold: Fold, events: Iterable[Event], until: int) -> Fold:
    """The fold after these events, which should reach `until`; what is missing is in `damaged`."""
    damaged, seq = list(fold.damaged), fold.head.version
    for event in events:
        damaged += range(seq + 1, event.seq)  # rows that are not there at all
        fold, whole = replay_any(fold, event)
        if not whole:
            damaged.append(event.seq)
        seq = event.seq
    damaged += range(seq + 1, until + 1)
    return msgspec.structs.replace(fold, damaged=tuple(damaged))


def inherited_event(event: Event, forks: Sequence[tuple[int, int]]) -> Event:
    """An event of a log that others began on, as they have it.

    `forks`: floor and time of the beginning of each log on the way, the nearest to it first. What
    was pending there, the beginning of the log has ended.
    """
    for floor, at_us in forks:
        if event.processed is not None and not 0 < event.processed <= floor:
            event = msgspec.structs.replace(event, processed=floor + 1, processed_us=at_us)
    return event


def is_naming(event: Event, name: str) -> bool:
    """True if an event changes a field, or may have: one that cannot be read counts."""
    return event.data is None or any([op.path[0] == name for op in event.ops])


# --- shared names --------------------------------------------------------------------------------


class ScopeRow(NamedTuple):
    """One version of an app: or user: name, as it is stored."""

    version: int
    base: int
    form: int
    flags: int
    body: bytes
    crc: int
    uid: str
    seq: int


class ScopeNameReader:
    """A shared name being read, row by row from its base on."""

    __slots__ = ("_codec", "_key", "base", "made_by", "since_base", "size", "value")

    def __init__(self, key: ScopeKey, codec: Codec, before: ScopeValue | None = None) -> None:
        self._key, self._codec, self.value = key, codec, before
        self.base = self.since_base = 0
        self.made_by = ("", 0)  # the event of its newest version: uid and seq
        self.size = 0  # of its rows, unpacked

    def add(self, row: ScopeRow) -> ScopeValue:
        """The value after one more row. One that cannot be read has `damage` set, and `since_base`
        is -1: the next version must be written whole."""
        self.base, self.made_by = row.base, (row.uid, row.seq)
        try:
            raw = unpack_scope(self._codec, self._key, row)
            self.size += len(raw)
            self.value = scope_after(self._key, self.value, row.version, row.form, raw)
        except UNREADABLE as error:
            self.value, self.since_base = unreadable_scope(self.value, row.version, error), -1
            return self.value
        if row.form == DELETED:
            self.since_base = -1
        elif row.form == WHOLE:
            self.since_base = 0
        elif self.since_base >= 0:
            self.since_base += len(raw)
        return self.value


def unreadable_scope(before: ScopeValue | None, version: int, error: Exception) -> ScopeValue:
    """The value of a row that cannot be read: it says why, or why the one before could not."""
    damage = None if before is None else before.damage
    return ScopeValue(version, None, False, damage or str(error) or repr(error))


def unpack_scope(codec: Codec, key: ScopeKey, row: ScopeRow) -> bytes:
    """The body of a row. Raises Damaged."""
    place = scope_place(key, row.version, row.base, row.form, row.uid, row.seq)
    return codec.unpack(row.flags, row.body, row.crc, lambda: place, bound=True)


def scope_after(
    key: ScopeKey, before: ScopeValue | None, version: int, form: int, raw: bytes
) -> ScopeValue:
    """The value that the body of a row makes of the one before it. Raises UNREADABLE."""
    if form == DELETED:
        return ScopeValue(version, None, True)
    if form == WHOLE:
        return ScopeValue(version, freeze(msgspec.json.decode(raw)))
    return scope_next(key, before, scope_op_from(raw))


CHANGED: Final = "is not what the chain says: it was changed after it was recorded"


def checked(event: Event, salt: bytes, raw: bytes | None, previous: bytes | None) -> Event:
    """The event as it was read; marked as damaged if its link does not follow from that.

    `raw` is its encoded body, None if it has none, and `previous` the link before it, None if that
    is not known: then it is not compared.
    """
    if raw is None or previous is None or event.damage is not None:
        return event
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    marked = event.processed is not None and not is_input(event.type)
    header = chain.header_digest((*names, event.correlation_id, event.wake_id), marked=marked)
    try:
        _, link = chain.chained(previous, event.seq, event.at_us, header, salt, raw)
    except (TypeError, ValueError, StructError):  # a column of another kind
        link = b""
    return event if link == event.link else changed(event)


def changed(event: Event) -> Event:
    """Return the placeholder for an event that was changed after it was recorded."""
    return msgspec.structs.replace(event, data=None, ops=(), damage=CHANGED)


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


def store_identity(secret: bytes) -> str:
    """Return the identity of a store: it follows from the secret that the store was made with, and
    does not show it."""
    import hmac

    return hmac.digest(secret, b"limpet store identity", "sha256").hex()[:32]


def erasure_crc(erasure: Erasure) -> int:
    """The checksum of what is kept of an erased session."""
    return crc32(canonical(erasure.stored))
