"""Rows of PostgreSQL, read into the model's records.

A column has one name and one meaning in every statement, so one function reads a head, an event or
a shared name wherever it comes from.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import LimpetError
from limpet.model.chain import SALT_BYTES
from limpet.model.events import Event, decode_body
from limpet.model.facts.timers import Timer
from limpet.model.fold import ScopeKey, ScopeValue, scope_next
from limpet.model.head import Head, buried
from limpet.model.keys import Key
from limpet.model.reasons import Reasons, due_for
from limpet.model.values import EMPTY, FrozenDict, freeze
from limpet.store import bodies
from limpet.store.codec import SEALED, Codec, Damaged
from limpet.store.protocol import Place

_timers: Final = msgspec.json.Decoder(dict[str, Timer]).decode


def by_kind(found: list[Any]) -> dict[str, list[Any]]:
    """The rows of `load` or `states`, in their order, by what they are rows of."""
    kinds: dict[str, list[Any]] = {"head": [], "snapshot": [], "event": [], "name": []}
    for row in found:
        kinds[row["kind"]].append(row)
    return kinds


def key_from(row: Any) -> Key:
    """The key in a row that names a session in full."""
    return Key(row["app"], row["owner"], row["session_id"])


def head_from(key: Key, row: Any) -> Head:
    """The head in a row of kind `head`. A deleted one is what is left of it."""
    labels, timers = msgspec.json.decode(row["labels"]), _timers(row["timers"])
    head = Head(
        key,
        row["uid"],
        row["version"],
        row["link"],
        row["created_us"],
        row["updated_us"],
        FrozenDict(labels) if labels else EMPTY,
        row["pending"],
        row["pending_us"],
        FrozenDict(timers) if timers else EMPTY,
        row["priority"],
        row["schema_version"],
        row["fence"],
        row["lease_us"],
        row["worker"],
    )
    return head if row["deleted_us"] is None else buried(head, row["deleted_us"])


def reasons_from(now_us: int, timers: str, pending: int, pending_us: int | None) -> Reasons:
    """What made a session due, as a claim or a lock found it."""
    return due_for(_timers(timers), pending, pending_us, now_us)


def tombstone(key: Key, row: Any) -> Head:
    """What a tombstone keeps of a head, for its checksum."""
    return Head(key, row["uid"], row["version"], row["link"], row["created_us"], row["updated_us"])


def event_from(row: Any, uid: str, codec: Codec) -> Event:
    """The event in a row. Says in `damage` why its body cannot be read, if so."""
    return sized_event(row, uid, codec)[0]


def sized_event(row: Any, uid: str, codec: Codec) -> tuple[Event, int]:
    """The same, and the bytes of its encoded body; of what is stored, if that cannot be read."""
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
        row["processed_us"],
        row["link"],
        False,
        damage,
    )
    return event, size


def _content(row: Any, uid: str, codec: Codec) -> tuple[Any, Any, str | None, int]:
    """Data and ops of an event's body, or why they cannot be read; and the size of the body."""
    try:
        place = Place("event", uid, row["id"], row["type"])
        raw = codec.unpack(row["flags"], row["body"], row["crc"], lambda: place)
        if row["flags"] & SEALED:
            raw = raw[SALT_BYTES:]
        content = decode_body(raw)
    except (Damaged, msgspec.MsgspecError) as error:
        return None, (), str(error), len(row["body"])
    return content.data, content.ops, None, len(raw)


class Name:
    """A scope name being read, row by row from its base on."""

    def __init__(self, key: ScopeKey, codec: Codec) -> None:
        self._key, self._codec = key, codec
        self.value: ScopeValue | None = None
        self.base, self.since_base = 0, 0
        self.size = 0  # of its rows, unpacked

    def add(self, row: Any) -> None:
        version, base, form = row["version"], row["base"], row["form"]
        self.base = base
        try:
            place = bodies.scope_place(self._key, version, base, form, row["uid"], row["seq"])
            raw = self._codec.unpack(
                row["flags"], row["body"], row["crc"], lambda: place, bound=True
            )
            self.size += len(raw)
            if form == bodies.DELETED:
                self.value, self.since_base = ScopeValue(version, None, True), -1
            elif form == bodies.WHOLE:
                self.value = ScopeValue(version, freeze(msgspec.json.decode(raw)))
                self.since_base = 0
            else:
                self.value = scope_next(self._key, self.value, bodies.scope_op_from(raw))
                self.since_base += len(raw)
        except (Damaged, msgspec.MsgspecError, LimpetError) as error:
            self.value = ScopeValue(version, None, False, str(error))
            self.since_base = -1
