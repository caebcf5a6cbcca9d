"""Rows of PostgreSQL, read into the model's records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from limpet.errors import LimpetError
from limpet.model.chain import SALT_BYTES
from limpet.model.events import Event, decode_body
from limpet.model.facts.timers import Timer
from limpet.model.fold import ScopeKey, ScopeValue, scope_next
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.model.reasons import Reasons, due_for
from limpet.model.values import EMPTY, FrozenDict, freeze
from limpet.store import bodies
from limpet.store.codec import SEALED, Codec, Damaged
from limpet.store.protocol import Place

_timers: Final = msgspec.json.Decoder(dict[str, Timer]).decode


def _load() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text()
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    bound = str(READ_PAGE_BYTES_MAX)
    return {
        name: body.strip().replace("{page_bytes}", bound)
        for name, body in zip(blocks[::2], blocks[1::2], strict=True)
    }


SQL: Final = _load()


def head_from(key: Key, row: Any) -> Head:
    """The head in a row of kind 0 of the query `load`."""
    labels, timers = msgspec.json.decode(row["type"]), _timers(row["actor"])
    return Head(
        key,
        row["id"],
        row["seq"],
        row["link"],
        row["at_us"],
        row["more"],
        FrozenDict(labels) if labels else EMPTY,
        row["flags"],
        row["processed_us"],
        FrozenDict(timers) if timers else EMPTY,
        int(row["correlation_id"]),
        row["wake_id"],
        row["crc"],
        None if row["invocation_id"] is None else int(row["invocation_id"]),
        row["cause"],
    )


def reasons_from(now_us: int, timers: str, pending: int, pending_us: int | None) -> Reasons:
    """What made a session due, as a claim or a lock found it."""
    return due_for(_timers(timers), pending, pending_us, now_us)


def buried(key: Key, row: Any) -> Head:
    """What a tombstone keeps of a head."""
    return Head(key, row["uid"], row["version"], row["link"], row["created_us"], row["updated_us"])


def event_from(row: Any, uid: str, codec: Codec) -> Event:
    """The event in a row that has its columns by name. An unreadable body is told in `damage`."""
    return sized_event(row, uid, codec)[0]


def sized_event(row: Any, uid: str, codec: Codec) -> tuple[Event, int]:
    """The same, and the bytes of its encoded body; of what is stored, if that cannot be read."""
    data: FrozenDict | None = None
    ops: Any = ()
    damage: str | None = None
    try:
        place = Place("event", uid, row["id"], row["type"])
        raw = codec.unpack(row["flags"], row["body"], row["crc"], lambda: place)
        if row["flags"] & SEALED:
            raw = raw[SALT_BYTES:]
        size = len(raw)
        content = decode_body(raw)
        data, ops = content.data, content.ops  # type: ignore[assignment]  # decode_body freezes
    except (Damaged, msgspec.MsgspecError) as error:
        damage, size = str(error), len(row["body"])
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
