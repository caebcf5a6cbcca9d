"""The index of a log store: what is held in memory of every session, and in which orders.

An idle session takes well under a kilobyte: its head in packed form, and the places of its events,
eight bytes each until they are compacted. Folds are made from the log when somebody asks. `Ordered`
lists are what pages, claims and sweeps walk, so that their cost does not grow with the rest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from limpet.model import EMPTY, Facts, Head, Key, deadline_us, due_us, freeze, is_reserved
from limpet.model.facts.phases import ACTIVE, Phase
from limpet.model.facts.running.waiting import ASKED
from limpet.store.blobs import BlobRow
from limpet.store.marks import Mark
from limpet.store.protocol import Erasure, Owner
from limpet.store.sqlite.rows import pack_id, unpack_id

T = TypeVar("T")
ROW_BITS: Final = 40
_ROW: Final = (1 << ROW_BITS) - 1
_LOOSE_MAX: Final = 8_192  # heads that are held decoded before they are packed
_OWNERS_MAX: Final = 1_024  # of whom the sessions are held in order
_MISSING: Final = 0  # the place of an event that is not there
_PackedHead: TypeAlias = tuple[
    Any, int, bytes, int, int, int, Any, int, int, int | None, str | None, int | None
]
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_PackedHead).decode


class Places:
    """The places of numbered things, from `first` on: in frames of many, and after them each
    alone."""

    __slots__ = ("first", "frames", "single", "single_first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.frames: array[int] | None = None  # the first number of each frame, and its place
        self.single: array[int] | None = None
        self.single_first = first

    @property
    def last(self) -> int:
        return self.single_first - 1 + (0 if self.single is None else len(self.single))

    def add(self, number: int, place: int) -> bool:
        """Note where the next one is. What is left out between is missing. False if it is old."""
        single = self.single
        if single is None:
            single = self.single = array("Q")
        between = number - self.single_first - len(single)
        if between < 0:
            return False
        if between:
            single.extend([_MISSING] * between)
        single.append(place)
        return True

    def find(self, number: int) -> tuple[int, int] | None:
        """Return the place of one and its index in the frame (-1: alone); None if missing."""
        if not self.first <= number <= self.last:
            return None
        if number >= self.single_first:
            assert self.single is not None
            place = self.single[number - self.single_first]
            return (place, -1) if place else None
        frames = self.frames
        assert frames is not None
        low, high = 0, len(frames) // 2
        if number >= frames[-2]:  # the last one is asked for most
            low = high - 1
        while low < high - 1:
            middle = (low + high) // 2
            if frames[2 * middle] <= number:
                low = middle
            else:
                high = middle
        return frames[2 * low + 1], number - frames[2 * low]


class IndexedSession(Places):
    """One session: living, or a tombstone."""

    __slots__ = (
        "base",
        "blobs",
        "changed",
        "cold",
        "delta_bytes",
        "forks",
        "held",
        "hot",
        "key",
        "mac",
        "parent",
        "pending",
        "pins",
        "processed",
        "row",
        "snapshot_bytes",
        "snapshots",
        "text",
    )

    def __init__(self, row: int, key: Key, floor: int) -> None:
        super().__init__(floor + 1)
        self.row, self.key = row, key
        self.held: Head | bytes = b""
        self.mac: bytes | None = None
        self.base = 0  # the place of the state that it begins on
        self.parent: IndexedSession | None = None
        self.forks: list[IndexedSession] | None = None
        self.pending: array[int] | None = None  # seqs of inputs
        self.processed: array[int] | None = None  # seq of an input << 32 | seq of what processed it
        self.snapshots: array[int] | None = None  # seq and place of each, ascending
        self.snapshot_bytes = self.delta_bytes = 0
        self.pins: dict[int, int] | None = None  # by number: the seq
        self.blobs: dict[str, BlobRow] | None = None
        self.cold = 0
        self.hot: frozenset[int] | None = None
        self.changed = False  # its files for people are out of date
        self.text: bytes | None = None  # how its lines name it, while its head is held decoded

    @property
    def head(self) -> Head:
        held = self.held
        return held if isinstance(held, Head) else unpacked(self.key, held)

    @property
    def floor(self) -> int:
        return self.first - 1

    def is_hot(self, seq: int) -> bool:
        """True if the feed has it."""
        return seq > self.cold or (self.hot is not None and seq in self.hot)

    def is_pending(self, seq: int) -> bool:
        return self.pending is not None and seq in self.pending

    def note_input(self, seq: int) -> None:
        if self.pending is None:
            self.pending = array("Q")
        self.pending.append(seq)

    def note_processed(self, seqs: tuple[int, ...], by: int) -> None:
        if self.processed is None:
            self.processed = array("Q")
        for seq in seqs:
            self.processed.append(seq << 32 | by)
            if self.pending is not None and seq in self.pending:
                self.pending.remove(seq)

    def processed_by(self, seq: int) -> int:
        """The seq of the event that processed an input; 0: none, as far as it is noted here."""
        for pair in reversed(self.processed or ()):
            if pair >> 32 == seq:
                return pair & 0xFFFF_FFFF
        return 0

    def note_snapshot(self, seq: int, place: int) -> None:
        kept = array("Q") if self.snapshots is None else self.snapshots
        if not len(kept) or kept[-2] < seq:
            kept.extend((seq, place))
        self.snapshots = kept

    def drop_snapshot(self, seq: int) -> None:
        """Let go of a snapshot that was pinned: the log gives the state, too."""
        kept = self.snapshots or array("Q")
        left = [kept[at : at + 2] for at in range(0, len(kept), 2) if kept[at] != seq]
        self.snapshots = array("Q", [each for pair in left for each in pair]) if left else None

    def snapshots_upto(self, seq: int) -> Iterator[tuple[int, int]]:
        """seq and place of snapshots, the newest first."""
        kept = self.snapshots or ()
        for at in range(len(kept) - 2, -1, -2):
            if kept[at] <= seq:
                yield kept[at], kept[at + 1]


class IndexedName(Places):
    """Every version of an app: or user: name."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__(1)
        self.size = 0  # of the newest value; DELETED


def packed(head: Head) -> bytes:
    """A head without its key."""
    lease = (head.fence, head.lease_us, head.worker, head.leased_us)
    times = (head.created_us, head.updated_us, head.active_us)
    if head.deleted_us is not None:  # of a tombstone; the ending stands in the place of the worker
        lease = (-1, head.deleted_us, head.ending, None)
    names = (pack_id(head.uid), head.version, head.link)
    return _pack((*names, *times, head.facts or None, head.floor, *lease))


def packed_beginning(uid: str) -> bytes:
    """The first bytes of packed heads with this uid: they find one without unpacking the others."""
    return b"\x9c" + _pack(pack_id(uid))  # 12 members follow, the uid first


def unpacked(key: Key, held: bytes) -> Head:
    uid, version, link, created, updated, active, facts, floor, fence, lease, worker, since = (
        _unpack(held)
    )
    times = (created, updated, active)
    frozen: Facts = EMPTY if facts is None else freeze(facts)
    if fence == -1:
        ended: Any = {"deleted_us": lease, "ending": worker}
        return Head(key, unpack_id(uid), version, link, *times, floor=floor, **ended)
    leased = (fence, lease, worker, since)
    return Head(key, unpack_id(uid), version, link, *times, frozen, floor, *leased)


class Ordered:
    """Integers in order: mostly added at the end. Each is a time or the like << ROW_BITS | row."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: int) -> None:
        items = self._items
        if not items or item > items[-1]:
            items.append(item)
        else:
            insort(items, item)

    def remove(self, item: int) -> None:
        at = bisect_left(self._items, item)
        if at < len(self._items) and self._items[at] == item:
            del self._items[at]

    def walk(self, *, low: int | None, high: int | None, reverse: bool) -> Iterator[int]:
        """Those with low < item < high."""
        items = self._items
        start = 0 if low is None else bisect_right(items, low)
        stop = len(items) if high is None else bisect_left(items, high)
        span = range(stop - 1, start - 1, -1) if reverse else range(start, stop)
        return (items[at] for at in span)


class OrderedTexts:
    """Texts in order."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[str] = []

    def add(self, item: str) -> None:
        at = bisect_left(self._items, item)
        if at == len(self._items) or self._items[at] != item:
            self._items.insert(at, item)

    def remove(self, item: str) -> None:
        at = bisect_left(self._items, item)
        if at < len(self._items) and self._items[at] == item:
            del self._items[at]

    def walk(self, start: str | None, *, reverse: bool) -> Iterator[str]:
        return walked(self._items, start, reverse=reverse)

    def __bool__(self) -> bool:
        return bool(self._items)


class OwnerTexts:
    """The users of an app and the ids of each, in order. Most users have few sessions."""

    __slots__ = ("_order", "_users")

    def __init__(self) -> None:
        self._users: dict[str, list[str]] = {}
        self._order: list[str] | None = None  # made when somebody walks

    def __bool__(self) -> bool:
        return bool(self._users)

    def add(self, user: str, id: str) -> None:
        ids = self._users.get(user)
        if ids is None:
            self._users[user] = [id]
            self._order = None
        elif id > ids[-1]:
            ids.append(id)
        else:
            insort(ids, id)

    def remove(self, user: str, id: str) -> None:
        ids = self._users[user]
        del ids[bisect_left(ids, id)]
        if not ids:
            del self._users[user]
            self._order = None

    def ids(self, user: str) -> list[str]:
        return self._users.get(user, [])

    def walk(self, start: str | None, *, reverse: bool) -> Iterator[str]:
        """The users from one on."""
        if self._order is None:
            self._order = sorted(self._users)
        return walked(self._order, start, reverse=reverse)


def walked(items: list[str], start: str | None, *, reverse: bool) -> Iterator[str]:
    """Texts in order from one on, itself included; None is the beginning."""
    if reverse:
        stop = len(items) if start is None else bisect_right(items, start)
        return (items[at] for at in range(stop - 1, -1, -1))
    first = 0 if start is None else bisect_left(items, start)
    return (items[at] for at in range(first, len(items)))


_Due: TypeAlias = tuple[int, int]  # priority, and runnable time << ROW_BITS | row
LabelKey: TypeAlias = tuple[str, str | None, str, str]  # app, user or None, name, value


class FilesIndex:
    """All sessions, shared names, marks and certificates of a store."""

    def __init__(self) -> None:
        self.living: dict[Key, IndexedSession] = {}
        self.by_row: dict[int, IndexedSession] = {}  # tombstones, too
        self.deleted: dict[Key, list[IndexedSession]] = {}
        self.erased: dict[bytes, Erasure] = {}
        self.names: dict[Owner, dict[str, IndexedName]] = {}
        self.marks: dict[tuple[str, str], Mark] = {}
        self.ring: str | None = None
        self.rows = 0
        self.ended = 0  # how often a session was deleted or erased
        self.compacted_us = 0  # the time of the last compaction; 0: there was none
        # The feed: row << 32 | seq of each event, in order, from number `feed_first` on. What came
        # before is in frames: the first number of each, and its place.
        self.feed = array("Q")
        self.feed_first = 1
        self.feed_frames: list[tuple[int, int]] = []
        self._loose: dict[int, IndexedSession] = {}
        # Of everything and of each app; of those owners that somebody has listed.
        self._created: dict[tuple[str, ...], Ordered] = {}
        self._updated: dict[tuple[str, ...], Ordered] = {}
        self._touched: dict[int, tuple[IndexedSession, int]] = {}  # updated since it was ordered
        self.apps = OrderedTexts()
        self.users: dict[str, OwnerTexts] = {}  # of each app
        self._labels: dict[LabelKey, Ordered] = {}
        self._standing: dict[tuple[str, str], Ordered] = {}  # rows by app and phase but active
        self._due: dict[int, Ordered] = {}  # by priority, without reserved apps
        self._due_in: dict[tuple[str, int], Ordered] = {}  # by app and priority
        self._due_at: dict[int, _Due] = {}  # where each row stands in these
        self._deadlines = Ordered()
        self._deadline_at: dict[int, int] = {}
        self.leased: set[int] = set()  # rows with a lease, or held back

    # --- sessions ------------------------------------------------------------------------------

    def begin(self, entry: IndexedSession, head: Head) -> None:
        """A session that is new, or came back under another key."""
        key = entry.key
        self.living[key] = self.by_row[entry.row] = entry
        self.rows = max(self.rows, entry.row)
        mark = head.created_us << ROW_BITS | entry.row
        for of in ((), (key.app,)):
            _ordered(self._created, of).add(mark)
        updated = head.updated_us << ROW_BITS | entry.row
        _ordered(self._updated, (key.app,)).add(updated)
        owner = (key.app, key.user)
        if owner in self._created:
            self._created[owner].add(mark)
            self._updated[owner].add(updated)
        self.apps.add(key.app)
        users = self.users.get(key.app)
        if users is None:
            users = self.users[key.app] = OwnerTexts()
        users.add(key.user, key.id)
        entry.held = head
        self._loose[entry.row] = entry
        self._label(entry, EMPTY, head.indexed_labels, head.created_us)
        self._stand(entry, ACTIVE, head.phase)
        self._time(entry, head)

    def move(self, entry: IndexedSession, before: Head, after: Head) -> None:
        """The head of a session has changed."""
        row = entry.row
        entry.held = after
        self._loose[row] = entry
        if len(self._loose) > _LOOSE_MAX:
            self.tighten()
        if row not in self._touched and before.updated_us != after.updated_us:
            self._touched[row] = (entry, before.updated_us << ROW_BITS | row)
        if before.facts is not after.facts or before.lease_us != after.lease_us:
            if before.facts is not after.facts:
                labels = (before.indexed_labels, after.indexed_labels)
                if labels[0] != labels[1]:
                    self._label(entry, *labels, after.created_us)
                self._stand(entry, before.phase, after.phase)
            self._time(entry, after)
        elif after.facts and before.active_us != after.active_us and "timeouts" in after.facts:
            self._time(entry, after)

    def end(self, entry: IndexedSession) -> None:
        """Take a session out of every order. Its row stays, for those who read its events."""
        head, key = entry.head, entry.key
        self.order_updated()
        mark = head.created_us << ROW_BITS | entry.row
        updated = head.updated_us << ROW_BITS | entry.row
        for of in ((), (key.app,), (key.app, key.user)):
            if of in self._created:
                self._created[of].remove(mark)
            if of in self._updated:
                self._updated[of].remove(updated)
        users = self.users[key.app]
        users.remove(key.user, key.id)
        if not users:
            del self.users[key.app]
            self.apps.remove(key.app)
        self._label(entry, head.indexed_labels, EMPTY, head.created_us)
        self._stand(entry, head.phase, ACTIVE)
        self._untime(entry)
        self._loose.pop(entry.row, None)
        entry.text = None
        del self.living[key]

    def tighten(self) -> None:
        """Pack the heads that were used."""
        for entry in self._loose.values():
            if isinstance(entry.held, Head):
                entry.held = packed(entry.held)
            entry.text = None
        self._loose.clear()

    def ends_of(self, key: Key) -> list[IndexedSession]:
        """Every session that has this key, the living one last."""
        living = self.living.get(key)
        return [*self.deleted.get(key, ()), *([] if living is None else [living])]

    def asking(self) -> Iterator[IndexedSession]:
        """The living sessions that wait for an answer: each has a label that says so."""
        rows = {
            row_of(item)
            for (_, user, name, _), order in self._labels.items()
            if user is None and name.startswith(ASKED)
            for item in order.walk(low=None, high=None, reverse=False)
        }
        return (self.by_row[row] for row in sorted(rows))

    # --- orders --------------------------------------------------------------------------------

    def created(self, app: str | None, user: str | None) -> Ordered:
        self._order_owner(app, user)
        of = () if app is None else (app,) if user is None else (app, user)
        return self._created.get(of) or Ordered()

    def updated(self, app: str | None, user: str | None) -> Ordered:
        self._order_owner(app, user)
        self.order_updated()
        of = (app or "",) if user is None else (app or "", user)
        return self._updated.get(of) or Ordered()

    def _order_owner(self, app: str | None, user: str | None) -> None:
        """Put the sessions of an owner in order, from now on: most are never listed alone."""
        if app is None or user is None or (app, user) in self._created:
            return
        if len(self._created) > _OWNERS_MAX:
            for of in [of for of in self._created if len(of) == 2]:
                del self._created[of], self._updated[of]
        self.order_updated()
        created, updated = Ordered(), Ordered()
        for id in self.ids_of(app, user):
            entry = self.living[Key(app, user, id)]
            head = entry.head
            created.add(head.created_us << ROW_BITS | entry.row)
            updated.add(head.updated_us << ROW_BITS | entry.row)
        self._created[app, user], self._updated[app, user] = created, updated

    def ids_of(self, app: str, user: str) -> list[str]:
        """The ids of an owner's sessions, in order."""
        users = self.users.get(app)
        return [] if users is None else users.ids(user)

    def standing(self, app: str, phase: str) -> Ordered:
        """The rows of an app's sessions in a phase other than active."""
        return self._standing.get((app, phase)) or Ordered()

    def labeled(self, app: str, user: str | None, name: str, value: str) -> Ordered:
        return self._labels.get((app, user, name, value)) or Ordered()

    def order_updated(self) -> None:
        """Bring the orders of updates up to date: commits leave that to those who list."""
        for entry, before in self._touched.values():
            key = entry.key
            after = entry.head.updated_us << ROW_BITS | entry.row
            for of in ((key.app,), (key.app, key.user)):
                order = self._updated.get(of)
                if order is not None:
                    order.remove(before)
                    order.add(after)
        self._touched.clear()

    def due(self, app: str | None, now_us: int) -> Iterator[int]:
        """Rows of sessions that are due, the highest priority first, then the longest due."""
        kept: Mapping[int, Ordered]
        if app is None:
            kept = self._due
        else:
            kept = {of[1]: order for of, order in self._due_in.items() if of[0] == app}
        for priority in sorted(kept, reverse=True):
            high = (now_us + 1) << ROW_BITS
            for item in kept[priority].walk(low=None, high=high, reverse=False):
                yield item & _ROW

    def expired(self, now_us: int, after: int | None) -> Iterator[int]:
        """Deadlines that have come, each << ROW_BITS | row, the earliest first."""
        return self._deadlines.walk(low=after, high=(now_us + 1) << ROW_BITS, reverse=False)

    def _label(
        self,
        entry: IndexedSession,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        created_us: int,
    ) -> None:
        mark, key = created_us << ROW_BITS | entry.row, entry.key
        for name, value in before.items():
            for user in (None, key.user):
                of = (key.app, user, name, value)
                _drop(self._labels, of, mark)
        for name, value in after.items():
            for user in (None, key.user):
                self._labels.setdefault((key.app, user, name, value), Ordered()).add(mark)

    def _stand(self, entry: IndexedSession, before: Phase, after: Phase) -> None:
        if before == after:
            return
        if before != ACTIVE:
            _drop(self._standing, (entry.key.app, before), entry.row)
        if after != ACTIVE:
            self._standing.setdefault((entry.key.app, after), Ordered()).add(entry.row)

    def _time(self, entry: IndexedSession, head: Head) -> None:
        """Put a session in its place among those that are due, and among deadlines."""
        row, facts = entry.row, head.facts
        if head.lease_us is None:
            self.leased.discard(row)
            at_us = due_us(facts) if facts else None
        else:
            self.leased.add(row)
            at_us = head.lease_us
        due = None if at_us is None else (head.priority, at_us << ROW_BITS | row)
        before = self._due_at.get(row)
        if due != before:
            self._undue(entry)
            if due is not None:
                self._due_at[row] = due
                self._due_in.setdefault((entry.key.app, due[0]), Ordered()).add(due[1])
                if not is_reserved(entry.key.app):
                    self._due.setdefault(due[0], Ordered()).add(due[1])
        end_us = deadline_us(head) if facts and not is_reserved(entry.key.app) else None
        last = self._deadline_at.get(row)
        item = None if end_us is None else end_us << ROW_BITS | row
        if item != last:
            if last is not None:
                self._deadlines.remove(last)
                del self._deadline_at[row]
            if item is not None:
                self._deadlines.add(item)
                self._deadline_at[row] = item

    def _undue(self, entry: IndexedSession) -> None:
        before = self._due_at.pop(entry.row, None)
        if before is None:
            return
        _drop(self._due_in, (entry.key.app, before[0]), before[1])
        _drop(self._due, before[0], before[1])

    def _untime(self, entry: IndexedSession) -> None:
        self._undue(entry)
        self.leased.discard(entry.row)
        if (last := self._deadline_at.pop(entry.row, None)) is not None:
            self._deadlines.remove(last)


def row_of(item: int) -> int:
    """The row in an item of an order."""
    return item & _ROW


def _drop(orders: dict[T, Ordered], of: T, item: int) -> None:
    """Take an item out of an order, and the order if nothing is left in it."""
    order = orders.get(of)
    if order is not None:
        order.remove(item)
        if not len(order):
            del orders[of]


def _ordered(orders: dict[tuple[str, ...], Ordered], of: tuple[str, ...]) -> Ordered:
    order = orders.get(of)
    if order is None:
        order = orders[of] = Ordered()
    return order
