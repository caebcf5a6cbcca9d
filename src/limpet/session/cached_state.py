"""The cached state of a session object: head, fields, shared names, temp: names, the last events.

Pure: it changes only by what a load brought or a commit answered, and never goes backwards. Whoever
decides on it asks for the versions of the names that were looked at (`guards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import structs

from limpet.errors import InvalidInput, SessionCorrupt, SessionDeleted, SessionNotLoaded
from limpet.model import (
    EMPTY,
    NO_CHECKPOINT,
    NO_TEXTS,
    PROCESSING,
    Event,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    Prepared,
    Texts,
    checksum,
    ops as op,
    processed_by,
)
from limpet.model.limits import TAIL_KEPT
from limpet.store.protocol import Committed, Loaded, scope_fields
from limpet.store.scopes import Scopes


class CachedState:
    """One session as far as one object has read or written it."""

    __slots__ = (
        "_checksum",
        "_kept_max",
        "_unread",
        "_values",
        "checkpoint",
        "damaged",
        "events",
        "fields",
        "key",
        "maybe_head",
        "scopes",
        "temp",
        "texts",
        "versions",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.maybe_head: Head | None = None
        self.fields: FrozenDict = EMPTY
        self.versions: FrozenDict = EMPTY
        self.texts: Texts = NO_TEXTS  # of events that the head's facts name
        self.scopes: Scopes | None = None  # None: never loaded
        self.temp: FrozenDict = EMPTY
        self.events: list[Event] = []  # the tail, and at most a quarter more: see `_extend`
        self._kept_max = TAIL_KEPT
        self.checkpoint: LastCheckpoint | None = None  # None: never loaded
        self.damaged: tuple[int, ...] = ()
        self._unread = False  # an event of the tail could not be read
        self._values: FrozenDict | None = None
        self._checksum: tuple[FrozenDict, str] | None = None  # of these fields

    # --- reading -------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The newest head. Raises SessionNotLoaded."""
        if self.maybe_head is None:
            raise SessionNotLoaded("the head")
        return self.maybe_head

    @property
    def tail(self) -> tuple[Event, ...]:
        """The newest events that are known of, without a gap."""
        return tuple(self.events[-self._kept_max :])

    @property
    def version(self) -> int:
        """The seq of the last event; 0 if nothing is known."""
        return 0 if self.maybe_head is None else self.maybe_head.version

    @property
    def uid(self) -> str | None:
        """The uid of the session, even if another has its key by now; None if it is unknown."""
        return None if self.maybe_head is None else self.maybe_head.uid

    @property
    def is_loaded(self) -> bool:
        """True if there is state to decide on."""
        return self.maybe_head is not None and self.scopes is not None

    @property
    def values(self) -> FrozenDict:
        """Session fields, app:, user: and temp: names in one. Raises SessionNotLoaded."""
        if self.scopes is None:
            raise SessionNotLoaded("the state")
        if self._values is None:
            merged = {**self.fields, **scope_fields(self.scopes), **self.temp}
            self._values = FrozenDict(merged)
        return self._values

    def checksum(self) -> str:
        """The checksum of the fields. Raises SessionNotLoaded; SessionCorrupt, since it would vouch
        for what is not known."""
        if not self.is_loaded:
            raise SessionNotLoaded("the state")
        self.check_whole()
        if self._checksum is None or self._checksum[0] is not self.fields:
            self._checksum = (self.fields, checksum(self.fields).hex())
        return self._checksum[1]

    def guards(self, names: Iterable[str]) -> dict[str, int]:
        """The version of each name, for a decision that rests on them. Raises SessionCorrupt if a
        shared value was looked at and could not be read."""
        assert self.scopes is not None
        versions: dict[str, int] = {}
        for name in names:
            kind = op.scope_of(name)
            if kind == "session":
                versions[name] = self.versions.get(name, 0)
            elif kind != "temp":
                damage = self.scopes.damage(name)
                if damage is not None:
                    raise SessionCorrupt(f"{name} of {self.key.app}", damage)
                versions[name] = self.scopes.version(name)
        return versions

    def check_whole(self) -> None:
        """Raise SessionCorrupt if an event could not be read: the state lacks what it did."""
        if self.damaged:
            raise SessionCorrupt(self.key, f"event {self.damaged[0]} cannot be read")

    def check_temp(self, drafts: Iterable[Prepared]) -> None:
        """Raise before anything is recorded if a temp: operation does not fit."""
        temp = self.temp
        for draft in drafts:
            if draft.temp_ops:
                temp = op.apply(temp, draft.temp_ops)

    # --- learning ------------------------------------------------------------------------------

    def begin(self, committed: Committed, drafts: tuple[Prepared, ...]) -> None:
        """A session just created: its commit also answered all app: and user: names."""
        self.scopes = Scopes()
        self.note_checkpoint(NO_CHECKPOINT)
        self.absorb(committed, drafts)

    def take(self, loaded: Loaded) -> None:
        """Take in what a load brought, unless a commit of this process was faster than it."""
        if self.uid not in (None, loaded.head.uid):
            raise SessionDeleted(self.key)
        if self.scopes is None:
            self.scopes = Scopes()
        self._learn(loaded.scopes)
        if loaded.checkpoint is not None:
            self.note_checkpoint(loaded.checkpoint)
        if self.version > loaded.head.version:
            return
        self.maybe_head, self.fields, self.versions = loaded.head, loaded.fields, loaded.versions
        self._values, self.texts = None, loaded.texts
        self.events, self._kept_max = list(loaded.events), max(TAIL_KEPT, len(loaded.events))
        self.damaged = loaded.damaged
        self._unread = any([event.damage for event in loaded.events])

    def note_checkpoint(self, last: LastCheckpoint) -> None:
        """Note that there is this checkpoint; a newer one may be known of."""
        if self.checkpoint is None or last > self.checkpoint:
            self.checkpoint = last

    def preview(self, fields: FrozenDict) -> None:
        """Show the state that is about to be restored, until the next load."""
        self.fields, self.damaged, self._values = fields, (), None

    def absorb(self, committed: Committed, drafts: tuple[Prepared | None, ...]) -> None:
        """Take in what a commit left. An answer older than what is known adds only what is new.

        `drafts` go with the commit's events; None stands for one that another object proposed.
        """
        before = self.maybe_head
        if before is not None and self._absorb_next(committed, before.version + 1):
            pass  # the common case on the hot path
        elif before is None or committed.head.version > before.version:
            known = self.version
            self.maybe_head, self._values = committed.head, None
            self.fields, self.versions = committed.fields, committed.versions
            self.texts = committed.texts
            self._extend(committed.events, known)
            self.damaged = committed.damaged
            if self._unread:
                unread = [event.seq for event in self.tail if event.damage]
                self._unread = bool(unread)
                self.damaged = tuple(sorted({*committed.damaged, *unread}))
        if committed.scopes and self.scopes is not None:
            self._learn(committed.scopes)
        for draft in drafts:
            if draft is not None and draft.temp_ops:
                self._absorb_temp(committed, drafts)
                break

    def _absorb_next(self, committed: Committed, version: int) -> bool:
        """Absorb one event more, which was recorded by this commit and says nothing about others.
        False if it is not so."""
        head, events = committed.head, committed.events
        if len(events) != 1 or committed.repeated or committed.damaged or self._unread:
            return False
        (event,) = events
        if not event.seq == version == head.version or event.type in PROCESSING:
            return False
        self.maybe_head, self._values, self.damaged = head, None, ()
        self.fields, self.versions = committed.fields, committed.versions
        self.texts = committed.texts
        tail, kept = self.events, self._kept_max
        tail.append(event)
        if len(tail) > kept + kept // 4:  # as in `_extend`
            del tail[:-kept]
        return True

    def _absorb_temp(self, committed: Committed, drafts: tuple[Prepared | None, ...]) -> None:
        """temp: operations of the drafts that were recorded now, not of repeats."""
        before = committed.head.version - (len(drafts) - committed.repeated)
        new = {event.seq: draft for draft, event in zip(drafts, committed.events, strict=True)}
        for seq, draft in new.items():
            if seq > before and draft is not None:
                with suppress(InvalidInput):  # it fitted when checked; another append was faster
                    self.temp, self._values = op.apply(self.temp, draft.temp_ops), None

    def _learn(self, scopes: Mapping[str, Any]) -> None:
        """Take over the newer ones among app: and user: names."""
        assert self.scopes is not None
        if self.scopes.learn(scopes):
            self._values = None

    def _extend(self, events: tuple[Event, ...], known: int) -> None:
        other = [e for e in events if e.repeated or e.damage or e.type in PROCESSING]
        if not other and known + len(events) == self.version:  # a run of new ones
            self.events += events
            if len(self.events) > self._kept_max + self._kept_max // 4:
                del self.events[: -self._kept_max]
            return
        for event in events:
            if event.type in PROCESSING and (done := processed_by(event.type, event.data)):
                self._mark_processed(done, event)
            if event.seq > known:
                if event.seq != known + 1:  # others wrote between: no gap in the tail
                    self.events.clear()
                if event.repeated:  # of that write's answer only: the tail shows what is recorded
                    event = structs.replace(event, repeated=False)
                if event.damage:
                    self._unread = True
                self.events.append(event)
                known = event.seq
                # Some are cut off at a time: one by one would move all of them with every event.
                if len(self.events) > self._kept_max + self._kept_max // 4:
                    del self.events[: -self._kept_max]
        if known != self.version:  # repeats, and others wrote since: the tail ends at the version
            self.events.clear()

    def _mark_processed(self, seqs: Iterable[int], by: Event) -> None:
        """Show in the tail what an event says about earlier ones."""
        done = set(seqs)
        for place, event in enumerate(self.events):
            if event.seq in done:
                self.events[place] = structs.replace(event, processed=by.seq, processed_us=by.at_us)


def changes_fields(draft: Prepared) -> bool:
    """True if a draft changes the session's own state."""
    return bool(own_ops(draft))


def own_ops(draft: Prepared) -> list[op.PlainOp]:
    """The operations of a draft on the session's own names."""
    return [o for o in draft.plain_ops if op.scope_of(str(o.path[0])) == "session"]
