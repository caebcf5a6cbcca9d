"""Rows of PostgreSQL, read into the model's records.

A column has one name and one meaning in every statement, so one function reads a head, an event or
a shared name wherever it comes from.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.model import (
    EMPTY,
    SALT_BYTES,
    Event,
    Facts,
    Head,
    Key,
    LastCheckpoint,
    buried,
    decode_body,
    freeze,
    is_input,
    last_checkpoint,
)
from limpet.model.chain import header_digest
from limpet.store.coding.bodies import ScopeRow
from limpet.store.coding.codec import REMOVED, SEALED, Codec, Damaged
from limpet.store.protocol import ChainedEvent, Ending, Place

# The order of updates is indexed in steps of 2**18 microseconds, a quarter of a second, and sorted
# within a step. Coarser than elsewhere: an update that moves one index entry costs an entry in each
# index of the table here.
SLOT_BITS: Final = 18
_LOW: Final = 0xFFFF_FFFF
# The members that the header digest of an event covers, in this order.
_NAMES: Final = ("id", "type", "actor", "cause", "invocation_id", "correlation_id", "wake_id")
_STRIDE: Final = 1_000_003  # more than the events of any transaction


def by_kind(rows: list[Any]) -> dict[str, list[Any]]:
    """The rows of `load` or `states`, in their order, by what they are rows of."""
    kinds: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for row in rows:
        kinds[row["kind"]].append(row)
    return kinds


_KINDS: Final = ("head", "snapshot", "base", "event", "name", "checkpoint")


# --- heads ---------------------------------------------------------------------------------------


def key_names(key: Key) -> tuple[str, str, str]:
    """A key as parameters of a statement."""
    return (key.app, key.user, key.id)


def key_from(row: Any) -> Key:
    """The key in a row that names a session in full."""
    return Key(row["app"], row["owner"], row["session_id"])


def facts_from(text: str | None) -> Facts:
    """The document of facts in a column."""
    facts: Facts = EMPTY if text is None else freeze(msgspec.json.decode(text))
    return facts


def checkpoint_from(row: Any) -> LastCheckpoint | None:
    """The newest checkpoint in the facts of their log; None if that cannot be read, which is no
    reason not to read the session."""
    try:
        return last_checkpoint(facts_from(row["facts"]))
    except (msgspec.MsgspecError, LookupError, TypeError):
        return None


def head_from(key: Key, row: Any) -> Head:
    """The head in a row of kind `head`."""
    return Head(
        key,
        row["uid"],
        row["version"],
        row["link"],
        row["created_us"],
        row["updated_us"],
        row["active_us"],
        facts_from(row["facts"]),
        row["floor"],
        row["fence"],
        row["lease_us"],
        row["worker"],
        row["leased_us"],
    )


def tombstone_from(key: Key, row: Any) -> Head:
    """The head that a row of tombstones keeps."""
    return unburied(key, row, row["deleted_us"], row["ending"])


def unburied(key: Key, row: Any, deleted_us: int, ending: Ending) -> Head:
    """The head that a tombstone keeps, from a row that was just removed."""
    times = (row["created_us"], row["updated_us"], row["active_us"])
    head = Head(key, row["uid"], row["version"], row["link"], *times, floor=row["floor"])
    return buried(head, deleted_us, ending)


# --- events --------------------------------------------------------------------------------------


def placed(crc: int, row: Any) -> int:
    """A checksum with, or again without, the event's position in the feed: swapped ones show."""
    xid, pos = int(row["xid"]), int(row["pos"])
    return crc ^ (((xid & _LOW) * _STRIDE + pos) & _LOW)


def event_from(row: Any, uid: str, codec: Codec) -> Event:
    """The event in a row. Says in `damage` why its body cannot be read, if so."""
    return sized_event(row, uid, codec)[0]


def sized_event(row: Any, uid: str, codec: Codec) -> tuple[Event, int]:
    """The same, and the bytes of its encoded body; of what is stored, if that cannot be read."""
    data, ops, damage, size = None, (), None, len(row["body"])
    removed = bool(row["flags"] & REMOVED)
    if not removed:
        data, ops, damage, size = _content(row, uid, codec)
    event = Event(
        row["seq"],
        row["id"],
        row["type"],
        row["actor"],
        row["at_us"],
        data,
        ops,
        row["cause"],
        row["invocation_id"],
        row["correlation_id"],
        row["wake_id"],
        row["processed"],
        row["processed_us"],
        row["link"],
        damage=damage,
        removed=removed,
    )
    return event, size


def _content(row: Any, uid: str, codec: Codec) -> tuple[Any, Any, str | None, int]:
    """Data and ops of an event's body, or why they cannot be read; and the size of the body."""
    try:
        raw = body_in(row, uid, codec)[1]
        content = decode_body(raw)
    except (Damaged, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, (), str(error), len(row["body"])
    return content.data, content.ops, None, len(raw)


def body_in(row: Any, uid: str, codec: Codec) -> tuple[bytes | None, bytes]:
    """The salt, if it is sealed with the body, and the encoded body. Raises Damaged."""
    place = _place_of(row, uid, codec)
    crc = placed(row["crc"], row)
    raw = codec.unpack(row["flags"], row["body"], crc, lambda: place)
    return (raw[:SALT_BYTES], raw[SALT_BYTES:]) if row["flags"] & SEALED else (None, raw)


def _place_of(row: Any, uid: str, codec: Codec) -> Place:
    if not codec.marks:
        return Place("event", uid, row["id"], row["type"])
    names = tuple([row[name] for name in _NAMES])
    marked = row["processed"] is not None and not is_input(row["type"])
    header = header_digest(names, marked=marked)
    bound = (row["seq"], row["at_us"], header, row["link"])
    return codec.event_place(uid, row["id"], row["type"], *bound)


def record_from(row: Any, uid: str, codec: Codec) -> tuple[ChainedEvent, int]:
    """The event in a row with what the chain needs of it, and its size."""
    event, size = sized_event(row, uid, codec)
    salt, raw = None, None
    if event.damage is None and not event.removed:
        salt, raw = body_in(row, uid, codec)
    digest = row.get("digest", b"")  # not every statement that reads salts reads it
    return ChainedEvent(event, raw, row["salt"] if salt is None else salt, digest), size


# --- shared names --------------------------------------------------------------------------------


def scope_row(row: Any) -> ScopeRow:
    return ScopeRow(*[row[name] for name in ScopeRow._fields])
