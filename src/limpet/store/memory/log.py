"""One session in memory: its records in order, where each id stands, and what it begins on."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from limpet.model import (
    Base,
    Event,
    Fold,
    Recorded,
    based,
    blank,
    processed_by,
    removed_event,
    replay,
)
from limpet.model.adopt import whole
from limpet.store.blobs import Blob


class MemoryLog:
    """A session's fold and own records. What is below its floor is read from its parent's log."""

    __slots__ = (
        "base",
        "blobs",
        "cold",
        "fold",
        "forks",
        "hot",
        "ids",
        "parent",
        "pins",
        "processed",
        "records",
        "row",
    )

    def __init__(self, row: int, fold: Fold, base: Base | None, parent: MemoryLog | None) -> None:
        self.row, self.fold, self.base, self.parent = row, fold, base, parent
        self.records: list[Recorded] = []
        self.ids: dict[str, int] = {}  # the seq of each id
        self.processed: dict[int, Event] = {}  # by seq of the input: the event that processed it
        self.blobs: dict[str, tuple[Blob, list[bytes]]] = {}  # by hash: what it is, and its chunks
        self.pins: dict[int, Fold] = {}
        self.cold = 0  # up to here the feed no longer has its events
        self.hot: frozenset[int] = frozenset()  # but these, which were pending
        self.forks: list[MemoryLog] = []  # logs that begin on a state of this one, living ones

    @property
    def floor(self) -> int:
        return self.fold.head.floor

    @property
    def first(self) -> Recorded:
        return self.records[0]

    def add(self, rec: Recorded) -> None:
        rec = whole(rec)  # what is adopted comes undecoded
        event = rec.event
        self.records.append(rec)
        self.ids[event.id] = event.seq
        self.processed.update(dict.fromkeys(processed_by(event.type, event.data), event))

    def has(self, seq: int) -> bool:
        return 1 <= seq <= self.fold.head.version

    def is_hot(self, seq: int) -> bool:
        """True if the feed has it."""
        return seq > self.cold or seq in self.hot

    def is_pending(self, seq: int) -> bool:
        """True if it is an own input that no later event has processed."""
        own = self.floor < seq and self.has(seq)
        return own and seq not in self.processed and self.own(seq).event.processed is not None

    def own(self, seq: int) -> Recorded:
        return self.records[seq - self.floor - 1]

    def event(self, seq: int) -> Event:
        """An event of this history. What the parent had pending, the fork itself has ended."""
        if seq <= self.floor:
            return self._inherited(seq)
        event, by = self.own(seq).event, self.processed.get(seq)
        if by is None:
            return event
        return msgspec.structs.replace(event, processed=by.seq, processed_us=by.at_us)

    def sized(self, seq: int) -> tuple[Event, int]:
        """The event, and the bytes of its encoded body."""
        log: MemoryLog | None = self
        while log is not None and seq <= log.floor:
            log = log.parent
        return self.event(seq), 0 if log is None else len(log.own(seq).raw)

    def type(self, seq: int) -> str:
        return self.event(seq).type if seq <= self.floor else self.own(seq).event.type

    def fold_at(self, seq: int) -> Fold:
        """The fold as it was after this event."""
        if seq <= self.floor:
            assert self.parent is not None
            return self.parent.fold_at(seq)
        fold = self.start()
        for event in self.history(self.floor + 1, seq):
            fold = replay(fold, event)
        return fold

    def start(self) -> Fold:
        """Return the fold before its first own event."""
        head, base = self.fold.head, self.base
        if base is None:
            return Fold(blank(head.key, head.uid, head.created_us))
        begun = based(head.key, head.uid, head.created_us, base.floor, base.link)
        return Fold(begun, base.fields, base.versions)

    def history(self, first: int, last: int) -> Iterator[Event]:
        return (self.event(seq) for seq in range(first, last + 1))

    def _inherited(self, seq: int) -> Event:
        if self.parent is None:
            return removed_event(seq)
        event = self.parent.event(seq)
        if event.processed is None or 0 < event.processed <= self.floor:
            return event
        began = self.first.event
        return msgspec.structs.replace(event, processed=began.seq, processed_us=began.at_us)
