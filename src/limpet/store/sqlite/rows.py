"""Rows: how events, heads, snapshots and scope values lie in tables, both ways."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from limpet.errors import LimpetError
from limpet.model.chain import SALT_BYTES
from limpet.model.due import deadline_us, runnable_us
from limpet.model.events import Event, decode_body
from limpet.model.facts.inputs import PROCESSED
from limpet.model.facts.timers import Timer
from limpet.model.fold import Recorded, ScopeWrite
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.reasons import NONE, Reasons, due_for
from limpet.model.values import EMPTY, FrozenDict
from limpet.store import bodies
from limpet.store.codec import SEALED, Codec, Damaged
from limpet.store.protocol import Erasure, Place

EVENT_COLUMNS: Final = (
    "seq, id, type, actor, at_us, cause, invocation_id, correlation_id, wake_id, "
    "flags, body, crc, link, processed_us"
)
HEAD_COLUMNS: Final = (
    "sid, app, user, id, uid, version, link, created_us, updated_us, labels, pending, "
    "pending_us, timers, priority, schema_version, fence, lease_us, worker, deleted_us"
)

_is_uuid: Final = re.compile(
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
).fullmatch
_timers: Final = msgspec.json.Decoder(dict[str, Timer]).decode


# --- ids -----------------------------------------------------------------------------------------


def pack_id(id: str | None) -> bytes | str | None:
    """A UUID in its usual form as 16 bytes, anything else as it is."""
    if id is None or not _is_uuid(id):
        return id
    return bytes.fromhex(id.replace("-", ""))


def unpack_id(id: bytes | str) -> str:
    if isinstance(id, str):
        return id
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- events --------------------------------------------------------------------------------------


def event_row(sid: int, uid: str, rec: Recorded, codec: Codec) -> tuple[Any, ...]:
    """The values of an INSERT into events."""
    e = rec.event
    salt, raw, place = rec.salt, rec.raw, None
    if codec.seals:  # the salt goes inside: beside a sealed body it would let the body be guessed
        salt, raw, place = b"", salt + raw, Place("event", uid, e.id, e.type)
    flags, body, crc = codec.pack(raw, place)
    return (
        sid,
        e.seq,
        pack_id(e.id),
        e.type,
        e.actor,
        e.at_us,
        e.cause and pack_id(e.cause),
        e.invocation_id and pack_id(e.invocation_id),
        e.correlation_id and pack_id(e.correlation_id),
        e.wake_id and pack_id(e.wake_id),
        flags,
        body,
        crc,
        salt,
        rec.digest,
        e.link,
    )


def event_from(row: tuple[Any, ...], uid: str, codec: Codec) -> Event:
    """The event in a row of EVENT_COLUMNS. An unreadable body sets `damage` and never raises."""
    return sized_event(row, uid, codec)[0]


def sized_event(row: tuple[Any, ...], uid: str, codec: Codec) -> tuple[Event, int]:
    """The same, and the bytes of its encoded body; of what is stored, if that cannot be read."""
    seq, id, type_, actor, at_us, cause, inv, corr, wake, flags, body, crc, link, done_us = row
    try:
        id = unpack_id(id)
        raw = codec.unpack(flags, body, crc, lambda: Place("event", uid, id, type_))
        if flags & SEALED:
            raw = raw[SALT_BYTES:]
        size = len(raw)
        content = decode_body(raw)
        cause, inv, corr, wake = [x and unpack_id(x) for x in (cause, inv, corr, wake)]
        data: FrozenDict | None = content.data  # type: ignore[assignment]  # decode_body freezes
        found, damage = content.ops, None
    except (Damaged, msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        data, found, damage = None, (), f"{error}" if isinstance(error, Damaged) else repr(error)
        cause = inv = corr = wake = None
        size = len(body) if isinstance(body, (bytes, str)) else 0
    event = Event(
        seq,
        id if isinstance(id, str) else repr(id),
        type_,
        actor,
        at_us,
        data,
        found,
        cause,
        inv,
        corr,
        wake,
        done_us,
        link,
        False,
        damage,
    )
    return event, size


def processed_rows(sid: int, rec: Recorded) -> list[tuple[int, int, int]]:
    """The values of UPDATEs to the inputs that an event marks as processed; mostly none."""
    event = rec.event
    if event.type != PROCESSED or event.data is None:
        return []
    return [(event.at_us, sid, seq) for seq in event.data["seqs"]]


def lost_event(seq: int, reason: str) -> Event:
    """What stands for a row that cannot be read at all."""
    return Event(seq=seq, id="", type="", actor="", at_us=0, data=None, damage=reason)


# --- shared names --------------------------------------------------------------------------------


def scope_row(
    write: ScopeWrite, base: int, form: int, raw: bytes, uid: str, codec: Codec
) -> tuple[Any, ...]:
    """The values of an INSERT into scopes."""
    version = write.at.version
    place = bodies.scope_place(write.key, version, base, form, uid, write.seq)
    packed = codec.pack(raw, place, bound=True)
    return (*write.key, version, base, form, *packed, pack_id(uid), write.seq)


# --- heads ---------------------------------------------------------------------------------------


def head_from(row: tuple[Any, ...]) -> Head:
    """The head in a row of HEAD_COLUMNS. Raises Damaged."""
    try:
        return _head_from(row)
    except (msgspec.MsgspecError, LimpetError, AttributeError, TypeError, ValueError) as error:
        raise Damaged(f"the head of {'/'.join(map(str, row[1:4]))} cannot be read") from error


def _head_from(row: tuple[Any, ...]) -> Head:
    (
        _,
        app,
        user,
        id,
        uid,
        version,
        link,
        created,
        updated,
        labels,
        pending,
        since,
        timers,
        priority,
        schema_version,
        fence,
        lease_us,
        worker,
        _,
    ) = row
    return Head(
        Key(app, user, id),
        unpack_id(uid),
        version,
        link,
        created,
        updated,
        EMPTY if labels is None else FrozenDict(msgspec.json.decode(labels)),
        pending,
        since,
        EMPTY if timers is None else FrozenDict(_timers(timers)),
        priority,
        schema_version,
        fence,
        lease_us,
        worker,
    )


def key_of(row: tuple[Any, ...]) -> Key:
    """The key in a row of HEAD_COLUMNS. Raises Damaged."""
    try:
        return Key(*row[1:4])
    except (LimpetError, TypeError) as error:
        raise Damaged(f"the key {'/'.join(map(str, row[1:4]))} cannot be read") from error


def reasons_from(now_us: int, timers: Any, pending: Any, pending_us: Any) -> Reasons:
    """What made a session due, read without the rest of its head. A damaged column gives none."""
    try:
        waiting = {} if timers is None else _timers(timers)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return NONE
    return due_for(waiting, pending, pending_us, now_us)


def session_row(head: Head) -> tuple[Any, ...]:
    """The values of an INSERT into sessions."""
    key = head.key
    return (
        key.app,
        key.user,
        key.id,
        pack_id(head.uid),
        head.version,
        head.link,
        head.created_us,
        head.updated_us,
        head.pending,
        *head_cold(head),
    )


def erased_row(erasure: Erasure) -> tuple[Any, ...]:
    """The values of an INSERT into erased."""
    return (*msgspec.structs.astuple(erasure), bodies.erasure_crc(erasure))


def head_hot(head: Head, sid: int) -> tuple[Any, ...]:
    """What every event changes."""
    return (head.version, head.link, head.updated_us, head.pending, sid)


def head_cold(head: Head) -> tuple[Any, ...]:
    """What few events change: kept apart, so that its indexes rest."""
    labels = msgspec.json.encode(head.labels).decode() if head.labels else None
    timers = msgspec.json.encode(head.timers).decode() if head.timers else None
    due = (runnable_us(head), deadline_us(head))
    return (labels, timers, head.pending_us, *due, head.priority, head.schema_version)


def lease_row(sid: int, head: Head) -> tuple[Any, ...]:
    """What a lease changes."""
    return (head.fence, head.lease_us, head.worker, runnable_us(head), sid)


def label_rows(head: Head, sid: int) -> list[tuple[Any, ...]]:
    key, created_us = head.key, head.created_us
    return [(key.app, n, value, created_us, sid, key.user) for n, value in head.labels.items()]
