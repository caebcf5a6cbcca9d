"""Rows: how events, heads, snapshots and scope values lie in tables, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import msgspec

from limpet.errors import LimpetError
from limpet.model import (
    EMPTY,
    SALT_BYTES,
    Event,
    Facts,
    Head,
    Key,
    Reasons,
    Recorded,
    ScopeWrite,
    deadline_us,
    decode_body,
    due_us,
    freeze,
    is_input,
    processed_by,
)
from limpet.model.chain import header_digest
from limpet.model.due import NO_REASONS, due_for
from limpet.model.limits import UPDATE_SLOT_BITS
from limpet.store.cache import CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.bodies import checked
from limpet.store.coding.codec import (
    ADOPTED,
    COMPRESS_BYTES_MIN,
    COMPRESSED,
    REMOVED,
    SEALED,
    Codec,
    Damaged,
    decompressed,
)
from limpet.store.protocol import Erasure, Place

# Of the alias `e`. When an input was processed stands in the event that processed it.
EVENT_COLUMNS: Final = (
    "e.pos, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, "
    "e.wake_id, e.flags, e.body, e.crc, e.link, e.processed, CASE WHEN e.processed > 0 THEN "
    "(SELECT p.at_us FROM events p WHERE p.sid = e.sid AND p.seq = e.processed) END"
)
# The same without that time, and without the alias: SQLite prepares it in half the time. For pages,
# which mostly hold the event that says it, or nothing that was processed. See `sized_events`.
PAGE_COLUMNS: Final = EVENT_COLUMNS.partition("CASE")[0].replace("e.", "") + "NULL"
CHECKED_COLUMNS: Final = f"{PAGE_COLUMNS}, salt"
HEAD_COLUMNS: Final = (
    "sid, app, user, id, uid, version, link, created_us, updated_us, active_us, facts, floor, "
    "fence, lease_us, worker, leased_us"
)
TOMBSTONE_COLUMNS: Final = (
    "sid, app, user, id, uid, version, link, created_us, updated_us, active_us, floor, parent, "
    "deleted_us, ending"
)
_LOW: Final = 0xFFFF_FFFF
_PLAIN: Final = (0, ADOPTED)  # flags of a body that is neither compressed nor sealed nor removed
_UNSEALED: Final = (0, COMPRESSED, ADOPTED, ADOPTED | COMPRESSED)
_NO_IDS: Final = [None] * 4  # cause, invocation, correlation, wake
_NONE_GIVEN: Final[tuple[Any, ...]] = (None,) * 4

_hex: Final = bytes.fromhex
_facts: Final = msgspec.json.Decoder(dict[str, Any]).decode


# --- ids -----------------------------------------------------------------------------------------


def pack_id(id: str | None) -> bytes | str | None:
    """A UUID in its usual form as 16 bytes, anything else as it is."""
    if id is None or len(id) != 36 or not id[8] == id[13] == id[18] == id[23] == "-":
        return id
    digits = id.replace("-", "")
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return id
    # Capitals, say, or more dashes would be lost.
    return packed if len(packed) == 16 and packed.hex() == digits else id


_pack_name: Final = lru_cache(maxsize=256)(pack_id)  # those of a turn are in all of its events


def unpack_id(id: bytes | str) -> str:
    if isinstance(id, str):
        return id
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- events --------------------------------------------------------------------------------------


def event_row(pos: int, live: CachedSession, rec: Recorded, codec: Codec) -> tuple[Any, ...]:
    """The values of an INSERT into events of this session, at this position of the feed."""
    event, draft = rec.event, rec.draft
    raw, id = draft.raw, draft.id
    if draft.caller_chose_id or (len(raw) >= COMPRESS_BYTES_MIN and not codec.seals):
        return _any_row(pos, live, rec, codec)  # what is adopted has a chosen id, too
    if codec.seals:
        place = codec.event_place(
            live.fold.head.uid, id, event.type, event.seq, event.at_us, draft.header, event.link
        )
        flags, raw, crc = codec.pack(rec.salt + raw, place)
        salt = b""  # it went inside: beside a sealed body it would let the body be guessed
    else:
        flags, crc, salt = 0, crc32(raw), rec.salt
    return (
        pos,
        live.sid,
        event.seq,
        _hex(id.replace("-", "")) if len(id) == 36 else pack_id(id),  # ours: in its usual form
        event.type,
        event.actor,
        event.at_us,
        event.cause and _pack_name(event.cause),
        event.invocation_id and _pack_name(event.invocation_id),
        event.correlation_id and _pack_name(event.correlation_id),
        event.wake_id and _pack_name(event.wake_id),
        flags,
        raw,
        crc ^ (pos & _LOW),
        salt,
        rec.digest,
        event.link,
        event.processed,
    )


def _any_row(pos: int, live: CachedSession, rec: Recorded, codec: Codec) -> tuple[Any, ...]:
    e = rec.event
    salt, raw, place = rec.salt, rec.raw, None
    if codec.seals:  # the salt goes inside: beside a sealed body it would let the body be guessed
        salt, raw = b"", salt + raw
        bound = (e.seq, e.at_us, rec.draft.header, e.link)
        place = codec.event_place(live.fold.head.uid, e.id, e.type, *bound)
    # A sealed body contains the salt: it is compressed again.
    compressed = None if codec.seals else rec.draft.compressed
    flags, body, crc = codec.pack(raw, place, compressed=compressed)
    if rec.draft.origin is not None:
        flags |= ADOPTED
    names = (e.cause, e.invocation_id, e.correlation_id, e.wake_id)
    return (
        pos,
        live.sid,
        e.seq,
        pack_id(e.id),
        e.type,
        e.actor,
        e.at_us,
        *[id and _pack_name(id) for id in names],
        flags,
        body,
        crc ^ _crc_mix(pos, flags),
        salt,
        rec.digest,
        e.link,
        e.processed,
    )


def event_from(row: tuple[Any, ...], uid: str, codec: Codec) -> Event:
    """The event in a row of EVENT_COLUMNS. An unreadable body sets `damage` and never raises."""
    return sized_event(row, uid, codec)[0]


def sized_event(row: tuple[Any, ...], uid: str, codec: Codec) -> tuple[Event, int]:
    """The same, and the bytes of its encoded body; of what is stored, if that cannot be read."""
    plain = None if codec.marks else plain_event(row)
    return opened_event(row, uid, codec)[:2] if plain is None else (plain[0], len(plain[1]))


def opened_event(
    row: tuple[Any, ...], uid: str, codec: Codec
) -> tuple[Event, int, bytes | None, bytes | None]:
    """The same, with the encoded body if it can be read, and the salt if it was sealed with it."""
    pos, seq, id, type_, actor, at_us, *names, flags, body, crc, link, processed, done_us = row
    cause = inv = corr = wake = data = damage = raw = salt = None
    plain_ops: tuple[Any, ...] = ()
    removed = bool(isinstance(flags, int) and flags & REMOVED)
    size = len(body) if isinstance(body, (bytes, str)) else 0
    try:
        id = unpack_id(id)
        if names != _NO_IDS:
            cause, inv, corr, wake = [x and unpack_id(x) for x in names]
        if removed and body != b"":
            raise Damaged("is marked as removed and has a body")
        if not removed:
            of = (id, type_, actor, cause, inv, corr, wake)
            place = _place_of(codec, uid, of, (seq, at_us, link, processed))
            salt, raw = body_in(pos, place, (flags, body, crc), codec)
            size = len(raw)
            content = decode_body(raw)
            data, plain_ops = content.data, content.ops
    except (Damaged, msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        damage = f"{error}" if isinstance(error, Damaged) else repr(error)
        cause = inv = corr = wake = raw = None
    event = Event(
        seq,
        id if isinstance(id, str) else repr(id),
        type_,
        actor,
        at_us,
        data,
        plain_ops,
        cause,
        inv,
        corr,
        wake,
        processed,
        done_us,
        link,
        damage=damage,
        removed=removed and damage is None,
    )
    return event, size, raw, salt


def plain_names(row: tuple[Any, ...]) -> Event | None:
    """The event in a row without data and ops, if nothing of its names is unusual. Whoever moves
    logs needs no more of most."""
    id = row[2]
    if row[6:10] != _NONE_GIVEN or type(id) is not bytes or row[10] & REMOVED:
        return None
    type_, actor, at_us = row[3:6]
    names = (unpack_id(id), type_, actor, at_us, None, ())
    processed, done_us = row[14:16]
    return Event(row[1], *names, None, None, None, None, processed, done_us, row[13])


def is_plain(row: tuple[Any, ...]) -> bool:
    """True if the body in a row is stored as it is, and whole."""
    flags, body = row[10], row[11]
    if flags not in _PLAIN or type(body) is not bytes:
        return False
    return bool(crc32(body) == row[12] ^ _crc_mix(row[0], flags))


def sized_events(
    event_rows: Iterable[tuple[Any, ...]],
    uid: str,
    codec: Codec,
    time_at: Callable[[int], int | None],
) -> Iterator[tuple[Event, int]]:
    """The same of rows of PAGE_COLUMNS. `time_at` says when an event was recorded that is not among
    those before it."""
    times: dict[Any, Any] = {}
    for row in event_rows:
        times[row[1]] = row[5]
        done = row[14]
        if done and type(done) is int:
            row = (*row[:15], times[done] if done in times else time_at(done))
        plain = None if codec.marks else plain_event(row)
        yield opened_event(row, uid, codec)[:2] if plain is None else (plain[0], len(plain[1]))


def checked_events(
    event_rows: Iterable[tuple[Any, ...]],
    uid: str,
    codec: Codec,
    time_at: Callable[[int], int | None],
    link_before: Callable[[int], bytes | None],
) -> Iterator[tuple[Event, int]]:
    """The same of rows of CHECKED_COLUMNS, each compared with the chain. `link_before` says which
    link an event follows, where that is not the one that was read before it."""
    seq, link = 0, b""
    for *row, salt in event_rows:
        done = row[14]
        if done and type(done) is int:
            row[15] = time_at(done)
        event, size, raw, sealed = opened_event(tuple(row), uid, codec)
        previous = link if seq and event.seq == seq + 1 else link_before(event.seq)
        seq, link = event.seq, event.link
        yield checked(event, salt if sealed is None else sealed, raw, previous), size


def plain_event(row: tuple[Any, ...]) -> tuple[Event, bytes] | None:
    """The event in a row and its encoded body, if that is not sealed and nothing is unusual: most
    are so, and reading them takes a third less. None: see `opened_event`."""
    pos, seq, id, type_, actor, at_us, a, b, c, d, flags, body, crc, link, processed, done_us = row
    try:
        usual = a is b is c is d is None and flags in _UNSEALED
        if not usual or not type(id) is type(body) is bytes:
            return None
        if crc32(body) != crc ^ _crc_mix(pos, flags):
            return None
        if flags & COMPRESSED:
            body = decompressed(body)
        content = decode_body(body)
    except (Damaged, msgspec.MsgspecError, ValueError, TypeError, AttributeError):
        return None
    ids = (unpack_id(id), type_, actor, at_us, content.data, content.ops)
    return Event(seq, *ids, None, None, None, None, processed, done_us, link), body


def plain_place(row: tuple[Any, ...], event: Event, uid: str, codec: Codec) -> Callable[[], Place]:
    """Return the place of the body of a row whose names are those of `plain_names`."""
    names = (event.id, event.type, event.actor, None, None, None, None)
    return _place_of(codec, uid, names, (row[1], row[5], row[13], row[14]))


def _place_of(
    codec: Codec, uid: str, names: tuple[Any, ...], chained: tuple[Any, ...]
) -> Callable[[], Place]:
    """Return the place of the body of an event, by its names and its seq, time, link and
    `processed`."""

    def place() -> Place:
        if not codec.marks:
            return Place("event", uid, names[0], names[1])
        seq, at_us, link, processed = chained
        marked = processed is not None and not is_input(names[1])
        header = header_digest(names, marked=marked)
        return codec.event_place(uid, names[0], names[1], seq, at_us, header, link)

    return place


def body_in(
    pos: int, place: Callable[[], Place], stored: tuple[int, bytes, int], codec: Codec
) -> tuple[bytes | None, bytes]:
    """The salt, if it is sealed with the body, and the encoded body. Raises Damaged."""
    flags, body, crc = stored
    crc, flags = crc ^ _crc_mix(pos, flags), flags & ~ADOPTED
    raw = codec.unpack(flags, body, crc, place)
    return (raw[:SALT_BYTES], raw[SALT_BYTES:]) if flags & SEALED else (None, raw)


def _crc_mix(pos: int, flags: int) -> int:
    """The number mixed into the checksum of a body: its position, and whether it was adopted."""
    return (pos ^ (flags & ADOPTED)) & _LOW


def is_adopted(flags: object) -> bool:
    """True if another store recorded the event."""
    return isinstance(flags, int) and bool(flags & ADOPTED)


def processed_rows(sid: int, rec: Recorded) -> list[tuple[int, int, int]]:
    """The values of UPDATEs to the inputs that an event marks as processed; mostly none."""
    event = rec.event
    return [(event.seq, sid, seq) for seq in processed_by(event.type, event.data)]


def lost_event(seq: int, reason: str) -> Event:
    """The event that stands for a row that cannot be read at all."""
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
        _, app, user, id, uid, version, link, created, updated, active, facts, floor, *lease = row
        times = (created, updated, active)
        folded = facts_from(facts)
        return Head(
            Key(app, user, id), unpack_id(uid), version, link, *times, folded, floor, *lease
        )
    except (msgspec.MsgspecError, LimpetError, AttributeError, TypeError, ValueError) as error:
        raise Damaged(f"the head of {'/'.join(map(str, row[1:4]))} cannot be read") from error


def facts_from(text: str | None) -> Facts:
    """The document of facts in a column."""
    facts: Facts = EMPTY if text is None else freeze(_facts(text))
    return facts


def tombstone_from(row: tuple[Any, ...]) -> Head:
    """The head that a row of TOMBSTONE_COLUMNS keeps. Raises Damaged."""
    _, app, user, id, uid, version, link, created, updated, active, floor, _, ended, ending = row
    try:
        return Head(
            Key(app, user, id),
            unpack_id(uid),
            version,
            link,
            created,
            updated,
            active,
            floor=floor,
            deleted_us=ended,
            ending=ending,
        )
    except (LimpetError, AttributeError, TypeError, ValueError) as error:
        raise Damaged(f"the tombstone of {app}/{user}/{id} cannot be read") from error


def tombstone_row(sid: int, head: Head, parent: int | None) -> tuple[Any, ...]:
    """The values of an INSERT into tombstones."""
    key = head.key
    names = (sid, key.app, key.user, key.id, pack_id(head.uid), head.version, head.link)
    times = (head.created_us, head.updated_us, head.active_us)
    ended = (head.deleted_us, head.ending, bodies.tomb_crc(head))
    return (*names, *times, head.floor, parent, *ended)


def key_of(row: tuple[Any, ...]) -> Key:
    """The key in a row of HEAD_COLUMNS. Raises Damaged."""
    try:
        return Key(*row[1:4])
    except (LimpetError, TypeError) as error:
        raise Damaged(f"the key {'/'.join(map(str, row[1:4]))} cannot be read") from error


def reasons_from(now_us: int, facts: Any) -> Reasons:
    """The reasons why a session is due, from its facts alone. A damaged column gives none."""
    try:
        return NO_REASONS if facts is None else due_for(freeze(_facts(facts)), now_us)
    except (msgspec.MsgspecError, AttributeError, LookupError, TypeError, ValueError):
        return NO_REASONS


def session_row(head: Head, parent: int | None, mac: bytes | None) -> tuple[Any, ...]:
    """The values of an INSERT into sessions."""
    key = head.key
    names = (key.app, key.user, key.id, pack_id(head.uid), head.version, head.link)
    times = (head.created_us, head.updated_us, head.active_us, slot(head))
    return (*names, *times, facts_text(head), *due_columns(head), head.floor, parent, mac)


def erased_row(erasure: Erasure) -> tuple[Any, ...]:
    """The values of an INSERT into erased."""
    return (*erasure.stored, bodies.erasure_crc(erasure))


def slot(head: Head) -> int:
    """The time of the last update, in the steps by which it is indexed."""
    return head.updated_us >> UPDATE_SLOT_BITS


def facts_text(head: Head) -> str | None:
    return msgspec.json.encode(head.facts).decode() if head.facts else None


def due_columns(head: Head) -> tuple[int | None, int | None, int]:
    """The indexed columns that follow from the facts: due time, deadline and priority."""
    return (due_us(head.facts), deadline_us(head), head.priority)


def lease_row(sid: int, head: Head) -> tuple[Any, ...]:
    """The columns that a lease changes."""
    return (head.fence, head.lease_us, head.worker, head.leased_us, sid)


def label_rows(head: Head, sid: int) -> list[tuple[Any, ...]]:
    key, created_us, labels = head.key, head.created_us, head.indexed_labels
    return [(key.app, n, value, created_us, sid, key.user) for n, value in labels.items()]
