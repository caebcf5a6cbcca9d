"""Verification: every session against its log, within one snapshot of the server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from holdfast.model.chain import SALT_BYTES
from holdfast.model.due import deadline_us, runnable_us
from holdfast.model.head import Head
from holdfast.model.keys import Key
from holdfast.store.codec import SEALED
from holdfast.store.postgres import rows
from holdfast.store.postgres.connect import Connection
from holdfast.store.postgres.reader import Found, Reader
from holdfast.store.protocol import Finding, Place, Progress, Report
from holdfast.store.verify import Stored, verify_session

_STORED = (
    "SELECT e.*, s.runnable_us, s.deadline_us FROM holdfast.sessions s "
    "JOIN holdfast.events e USING (sid) WHERE s.sid = $1 ORDER BY e.seq"
)
_KEYS = "SELECT app, owner, id FROM holdfast.sessions WHERE deleted_us IS NULL ORDER BY sid"


async def run(
    conn: Connection, reader: Reader, key: Key | None, progress: Progress | None
) -> Report:
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        keys = [Key(*row) for row in await conn.fetch(_KEYS)] if key is None else [key]
        findings: list[Finding] = []
        events = 0
        for done, each in enumerate(keys, 1):
            found = await reader.load(conn, each)
            stored = await conn.fetch(_STORED, found.live.sid)
            events += len(stored)
            findings += _session(reader, found, stored)
            if progress is not None:
                progress(done, len(keys))
    return Report(len(keys), events, tuple(findings))


def _session(reader: Reader, found: Found, stored: list[Any]) -> Iterator[Finding]:
    head = found.live.fold.head
    yield from verify_session(found.live.fold, _read(reader, head, stored))
    for row in stored[:1]:
        if (row["runnable_us"], row["deadline_us"]) != (runnable_us(head), deadline_us(head)):
            yield Finding("head", "has other due times than its log amounts to", head.key)


def _read(reader: Reader, head: Head, stored: list[Any]) -> Iterator[Stored]:
    for row in stored:
        event = rows.event_from(row, head.uid, reader.codec)
        raw = None
        if event.damage is None:
            place = Place("event", head.uid, event.id, event.type)
            raw = reader.codec.unpack(row["flags"], row["body"], row["crc"], partial(_same, place))
            if row["flags"] & SEALED:
                yield event, raw[SALT_BYTES:], raw[:SALT_BYTES], row["digest"]
                continue
        yield event, raw, row["salt"], row["digest"]


def _same(place: Place) -> Place:
    return place
