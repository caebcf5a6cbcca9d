"""Cold segments in the database: reading on into them, and moving events there.

The events of a session that are in segments are always its oldest own ones. A segment ends where a
snapshot stands, so that a snapshot is compared with the link beside it, and a state of long ago is
read from a snapshot and one segment. What is pending keeps its row, and is read from there; the
newest event is never moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import apsw

from limpet.model import Event
from limpet.store import cold
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.cold import Cold, SegmentDamaged
from limpet.store.pages import wanted
from limpet.store.protocol import ChainedEvent
from limpet.store.sqlite import rows
from limpet.store.sqlite.sql import SQL

_LAST: Final = 2**62  # beyond every seq
_KEPT: Final = 4  # segments that stay decoded: pages are read one after the other


class ColdReader:
    """Everything that is asked of the table of segments."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self._conn, self._codec = conn, codec
        self._decoded: dict[tuple[int, int, int], list[Cold]] = {}

    def top(self, sid: int) -> int:
        """The newest event of a session that is in a segment; 0 if none is."""
        return int(self._conn.execute(SQL["segment_top"], (sid,)).get or 0)

    def link_at(self, sid: int, uid: str, seq: int) -> bytes | None:
        """The link of an event in a segment."""
        link: bytes | None = self._conn.execute(SQL["segment_link"], (sid, seq)).get
        if link is not None:
            return link
        event = self.at(sid, uid, seq)
        return None if event is None or not event.link else event.link

    def at(self, sid: int, uid: str, seq: int) -> Event | None:
        return next((event for event, _ in self.events(sid, uid, seq - 1, seq)), None)

    def by_id(self, sid: int, uid: str, id: str) -> Event | None:
        """The event that was recorded under an id."""
        seqs: Any = self._conn.execute(SQL["segment_seqs"], (sid, cold.mark(id))).fetchall()
        for (seq,) in seqs:
            event = self.at(sid, uid, seq)
            if event is not None and event.id == id:
                return event
        return None

    def events(
        self,
        sid: int,
        uid: str,
        low: int,
        high: int,
        *,
        types: tuple[str, ...] | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Event, int]]:
        """Yield the events with low < seq <= high, in either direction, with the sizes of their
        bodies."""
        for first, last in self._ranges(sid, low, high, reverse=reverse):
            readable = self._readable(sid, uid, first, last)
            for event, size in reversed(readable) if reverse else readable:
                if low < event.seq <= high and wanted(event.type, types):
                    yield event, size

    def records(self, sid: int, uid: str, low: int) -> Iterator[Cold]:
        """Yield the events beyond a seq, as they were recorded. Raises Damaged."""
        for first, last in self._ranges(sid, low, _LAST, reverse=False):
            yield from [c for c in self.segment(sid, uid, first, last) if c.record.event.seq > low]

    def _ranges(self, sid: int, low: int, high: int, *, reverse: bool) -> Iterator[tuple[int, int]]:
        """Yield the first and last seq of each segment that has some of these, when it is
        needed."""
        name = "segment_before" if reverse else "segment_after"
        at = high + 1 if reverse else low
        while (row := self._conn.execute(SQL[name], (sid, at)).fetchone()) is not None:
            first, last = row
            if last <= low or first > high:
                return
            yield first, last
            at = first if reverse else last

    def _readable(self, sid: int, uid: str, first: int, last: int) -> list[tuple[Event, int]]:
        """The events of a segment; if it cannot be read, what stands for each."""
        try:
            segment = self.segment(sid, uid, first, last)
        except Damaged as error:
            return [(rows.lost_event(seq, str(error)), 0) for seq in range(first, last + 1)]
        return [(c.record.event, len(c.record.raw or b"")) for c in segment]

    def segment(self, sid: int, uid: str, first: int, last: int) -> list[Cold]:
        """The events of one segment. Raises SegmentDamaged."""
        events = self._decoded.get((sid, first, last)) or self._open_segment(sid, uid, first, last)
        if not cold.lacks(events):
            return events
        try:
            asked = (sid, first, last)
            rows_: Any = self._conn.execute(SQL["kept_rows"], asked).fetchall()
        except apsw.CorruptError as error:
            raise SegmentDamaged(f"cannot be read ({error!r})") from error
        return cold.filled(events, {row[1]: self._cold_row(row, uid) for row in rows_})

    def _cold_row(self, row: tuple[Any, ...], uid: str) -> Cold:
        """An event of a segment whose row is there."""
        event, _, raw, sealed = rows.opened_event(row[:-2], uid, self._codec)
        salt = row[-2] if sealed is None else sealed
        return Cold(ChainedEvent(event, raw, salt, row[-1]), rows.is_adopted(row[10]))

    def _open_segment(self, sid: int, uid: str, first: int, last: int) -> list[Cold]:
        """A segment as it is stored. Raises SegmentDamaged."""
        try:
            row: Any = self._conn.execute(SQL["segment"], (sid, first)).fetchone()
            flags, body, crc, previous, link = row
        except (apsw.CorruptError, TypeError) as error:
            raise SegmentDamaged(f"cannot be read ({error!r})") from error
        stored, links = (flags, body, crc), (previous, link)
        segment = cold.opened(self._codec, uid, (first, last), stored, links)
        if cold.lacks(segment):
            return segment  # not to be kept: what is processed is put into it
        if len(self._decoded) >= _KEPT:
            self._decoded.pop(next(iter(self._decoded)))
        self._decoded[sid, first, last] = segment
        return segment

    def forget(self) -> None:
        """Segments have changed."""
        self._decoded.clear()


def segment_row(
    sid: int, uid: str, cold_events: Sequence[Cold], previous: bytes, codec: Codec
) -> tuple[Any, ...]:
    """The values of an INSERT into segments."""
    first, last = cold_events[0].record.event, cold_events[-1].record.event
    place = cold.place(uid, first.seq, last.seq)
    packed = codec.pack(cold.encode(cold.hollowed(cold_events)), place, bound=True)
    return (sid, first.seq, last.seq, *packed, previous, last.link, last.at_us)
