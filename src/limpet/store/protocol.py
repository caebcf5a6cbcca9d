"""The promises of a store. Sessions, harnesses and doors rely on these words and on nothing else.

A store keeps logs and what is folded from them. It decides nothing about meaning: drafts arrive
prepared, folding is the model's. The contract suite in `limpet.testing` holds every store to
each sentence below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import msgspec

from limpet.model import (
    EMPTY,
    NO_TEXTS,
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    ScopeValue,
    Texts,
    to_time,
)
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.runs import Status
from limpet.model.lease import Readiness

Order: TypeAlias = Literal["created", "updated", "key"]
Ending: TypeAlias = Literal["deleted", "moved"]
Forks: TypeAlias = Literal["refuse", "erase", "keep"]  # what erase does to forks of a session
# Loads compare the checksums of bodies, or the chain of events too.
Checked: TypeAlias = Literal["crc", "chain"]
Severity: TypeAlias = Literal["ok", "skipped", "warning", "problem"]  # skipped: it cannot be seen
# Whose keys a body is sealed with: a session by its uid; app: names, or one user's user: names, by
# a JSON array of app and user ("" for app: names), which no uid looks like.
KeyOwner: TypeAlias = str
Progress: TypeAlias = Callable[[int, int], None]  # done, total
Owner: TypeAlias = tuple[str, str]  # of shared names: an app and a user, or "" for the app's own
_FINDINGS_SHOWN: Final = 20
if TYPE_CHECKING:
    import typing_extensions

    Item = typing_extensions.TypeVar("Item", default=Any)
else:
    Item = TypeVar("Item")


class Store(Protocol):
    """Append-only logs with atomic commits.

    Every coroutine raises StoreClosed after close and translates its driver's errors to StoreError.
    With a seal each raises SealUnavailable if keys cannot be had: nothing was written or read.
    What is read of the events and states of an archived session, by its stub: SessionArchived.
    MemoryError is never damage: a read raises it as it is, a write a StoreError that is retryable.
    A cancelled call either never happened or has completed by the time CancelledError is raised.
    """

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Record all of the commits or none; durable when it returns.

        Order: repeats are looked for first. A draft whose id its session has recorded before is
        not recorded again; the first record is returned in its place, and a commit of nothing
        but repeats succeeds whatever it expects. Then expect, fence and guards (the version of a
        session field is the seq that last set it, of an app: or user: name its own count; 0 if it
        is not there) are compared,
        then each op is checked on the newest state and applied, all in one transaction: no
        update is lost and no check is stale. Seq is dense, `at` never decreases in a session.
        Commits of concurrent callers do not fail each other.

        While an event of the session cannot be read, guards cannot be compared, and no state can be
        pinned: SessionCorrupt.
        Ops are checked on what the other events made and are recorded: one damaged event does not
        stop a session. What could not be read is not remembered: the next commit reads it again.

        A `classless` commit changes no field of a session that has a schema version: SessionTyped.

        Events are dated and linked by the planner, with the store's clock. A draft with an
        `origin` is adopted: it gets the seq, time, salt and link that another store gave it, or is
        refused with SessionConflict if the link that follows here is another. It writes no app: or
        user: name. Adopting begins a session if its first event is there.

        `uid` names the session that is meant; if its key belongs to another by now, SessionDeleted.
        `reuse` creates a session also under the key of a deleted one. `base` begins a log on a
        state of its parent, which has to be there (SessionNotFound) unless the log is adopted.
        `pin` keeps a snapshot of the version that the commit leaves; `release` ends a lease with
        it (SessionFenced if it is not held). Both are in the same transaction. A commit without
        drafts records nothing: it has a `pin`, or a `uid` that must be there for the others.

        Raises SessionNotFound, SessionExists (expect=0), SessionDeleted, SessionErased,
        SessionConflict, SessionFenced, SessionTyped, SessionCorrupt, NotPending, ScopeFull when it
        would leave an app or a user with more app: or user: names than there may be, or
        InvalidInput when an op does not fit.
        """
        ...

    async def load(
        self,
        key: Key,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str = "",
    ) -> Loaded:
        """The session and its last `tail` events (at or after `since_us`), from one instant.

        Fewer, if these are larger than a page (see `read`): the newest that fit, without a gap.
        Without `scopes` it brings no app: or user: names, nor the newest checkpoint. With them all
        come in one query, and the value of a name is unpacked when it is read. One round trip, and
        a cost that does not grow with the log. An unreadable event does not make the session
        unreadable: it is returned with `damage` set and named in `damaged`. `at_least` is the token
        of a commit that the reading must see; a store that cannot yet raises StoreBusy.
        Raises SessionNotFound, SessionDeleted, SessionErased.
        """
        ...

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        """Many sessions as `load` gives each, with their scopes; None where there is none now."""
        ...

    async def fold_at(self, key: Key, seq: int) -> Fold:
        """The session's own fields, their versions and its head as they were after event `seq`.

        The lease of the head is not that of then. The cost does not grow with the log, only with
        the state and what was recorded since the snapshot before. Raises as load does,
        SessionCorrupt if an event up to there cannot be read, and InvalidInput if there is no
        such event.
        """
        ...

    async def read(
        self,
        key: Key,
        *,
        after: int,
        limit: int,
        reverse: bool,
        types: tuple[str, ...] | None,
    ) -> tuple[Event, ...]:
        """At most `limit` events beyond seq `after`, ascending.

        Reversed: at most `limit` events before `after` (0: from the end), descending. A type
        ending in `.*` stands for its family. A page ends early, after one event or more, once
        their encoded bodies reach about READ_PAGE_BYTES_MAX: a short page says nothing, only an
        empty one is the end. Raises as load does.

        A log that begins on a state is read through to its parent's: seqs stay dense. If the parent
        was erased, what is below the floor reads as `removed`.
        """
        ...

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        """The events that the session recorded under these ids, in the order of the ids.

        Ids that it does not have are left out. Only its own events, none of its parent. Raises as
        load does.
        """
        ...

    async def rung(self, key: Key, seq: int) -> Fold:
        """Return what `fold_at` does, after the event `seq` or an earlier one: where the least
        has to be read."""
        ...

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        """At most `limit` events with after < seq < before, descending, among them all that have an
        operation on the name in state; others may be among them.

        The history is looked through without decoding what plainly does not name it. A page ends
        early as that of `read` does, and reads through to the parents'. Raises as load does.
        """
        ...

    async def names_since(
        self, key: Key, seq: int, names: Sequence[str]
    ) -> Mapping[str, NameSince]:
        """Return what app: and user: names were before the session changed them after event `seq`.

        From one instant. Names that it did not change since are left out. Another session changed
        a name since if it did so at that event's time or later; if its log is gone, it counts as
        having done so, unless it ended before. Raises as load does.
        """
        ...

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        """At most `limit` inputs that no later event has processed, the oldest first.

        From one instant. A page ends early as that of `read` does. Its cost grows with what is
        pending, not with the log. Raises as load does.
        """
        ...

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        """One page of heads of living sessions, on an index: its cost does not grow with the rest.

        Order "created" is for everything, an app, a user, and labels (`indexed_labels` of a head);
        order "updated" for an app or a user; order "key" for an app or a user, with a prefix of the
        id for a user. `lent` has an index in order "created"; the other orders read every session
        that is lent to the user for each page. created_after, created_before, updated_after,
        schema_version and phase go with each. A phase other than active, of everything or of an
        app, has an index of its own in order "created": sessions then come in the order in which
        this store received them. What the order goes by bounds the range that is read; the others
        are applied to what is met in it, at most WALK_MAX heads a page: then the page is short and
        its cursor leads on. So it is with `deleted`. Paging through order "created" meets every
        session that exists throughout exactly once.

        status and ready are as of now, by the store's clock. They go with order "created" and
        without a phase; a database compares at most SCAN_MAX heads a page, where they lie.

        With `states` the page has the state of each session, from the same instant and in the same
        round trip; it ends early once STATES_BYTES_MAX of stored state were read. A damaged session
        is named in `damaged` and keeps no other from the page.
        Raises InvalidCursor, and InvalidQuery for an order that no index serves.
        """
        ...

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        """Remove the session's log, leaving a tombstone. False if there was nothing to delete, or
        if the session does not stand `at` this place: then nothing is removed.

        Durable when it returns, and atomic: a racing commit is recorded before or is refused.
        What it wrote to app: and user: stays. So do its events up to the highest floor of living
        forks, for them to read. The log of its checkpoints (`limpet.model.keys.checkpoints_of`)
        ends with it.
        """
        ...

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        """Give keys of sessions to others, in this order and in one durable transaction. False, and
        nothing changes, if one does not stand where it should, or a key is taken or erased."""
        ...

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        """Let go of the pinned snapshots of these versions. The log still gives these states.

        Durable when it returns; repeating it is harmless. Raises as load does.
        """
        ...

    async def forks(self, key: Key) -> tuple[Key, ...]:
        """The living sessions whose logs begin on a state of this one, the oldest first.

        Where such a session was deleted, those that begin on a state of it stand in its place:
        they still read this one's events. So do forks from before the session was archived.
        """
        ...

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        """Forget the session: its log, its key and its labels leave the store.

        The log of its checkpoints is forgotten with it.
        A deleted session can still be erased, and all that were deleted under this key are; an
        erased one gives its certificate again; None if there never was one. What it wrote to app:
        and user: stays. If it has forks: SessionHasForks; or they are erased too, with their
        own; or they keep the state they began on, and read what is below it as removed. With a seal
        the keys of what goes are forgotten first: if that fails, nothing is erased and
        SealUnavailable is raised. So it is with erase_user.
        """
        ...

    async def erase_user(self, app: str, user: str) -> Erasures:
        """Forget a user of an app: all sessions, deleted ones too, and all versions of user: names.

        All or nothing as far as readers can see; the bytes leave the files before it returns. Forks
        of other users keep the state they began on. Documents that belong to the user
        (`limpet.model.keys.owner_of`) are erased with it. Repeating it is harmless.
        """
        ...

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        """Read everything back and compare: chain, checksums, folds, indexes. Changes nothing.

        With a key, one session; without, every session and the store's own structures.
        """
        ...

    def now_us(self) -> int:
        """The time by the store's clock, in microseconds since 1970, as a new event is dated.

        No I/O. What is compared with recorded times, or recorded to be compared with them, is
        counted from it: the clock of the machine that asks may be another. It is never ahead of the
        clock that judges leases.
        """
        ...

    async def identity(self) -> str:
        """Return what tells this store apart from others, even of the same name: a text that
        never changes. A copy of its files, a backup and what is restored from one have the same.
        """
        ...

    def pulse(self) -> int:
        """A number that has changed if another process may have committed since the last call.

        No I/O to speak of. Never misses a commit (a store that learns by hints may be a moment
        late where one is lost); may change without one.
        """
        ...

    async def close(self) -> None:
        """Finish what was handed over, release everything. Closing twice is fine."""
        ...


class FeedEntry(msgspec.Struct, frozen=True):
    """One event of the feed, and the position to resume from once it is handled."""

    position: str
    key: Key
    event: Event


class Touched(msgspec.Struct, frozen=True):
    """The sessions that have events beyond a position of the feed, without the events."""

    sessions: Mapping[Key, int]  # the last seq of each, as far as this page goes
    position: str  # where to go on
    more: bool  # there is another page
    whole: bool  # False: sessions that are not named here may have events too
    ended: str  # another text after a session was deleted or erased


@runtime_checkable
class Feed(Protocol):
    """The log of all sessions, in one order."""

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        """Events beyond a position (None: from the first), and the position that was read up to.

        No event is ever recorded behind a position that was returned: not by concurrent writers,
        not by a transaction that was open for long. Events of one session come in the order of
        their seq. A page ends early as that of `Store.read` does: only an empty one means that the
        end was reached for now. Events of deleted sessions are no longer there. Raises
        InvalidCursor if the position is not one of ours.
        """
        ...

    async def touched(self, after: str) -> Touched:
        """One page of the sessions that have events beyond a position. Reads no bodies.

        For readers that only need to know where to look. Names every event that can be read now,
        also one that `changes` does not hand out yet, and then names it again on the next call.
        Raises as `changes` does.
        """
        ...

    async def position(self) -> str:
        """The end of the feed: whatever is recorded after this call lies beyond it.

        So does nothing that the feed has handed out; what was recorded while an older transaction
        was open, and is therefore not handed out yet, may. The cost does not grow with the log.
        """
        ...


class ChainedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with what the chain needs of it, to be adopted elsewhere."""

    event: Event  # from `Records` without its data and ops: they are in `raw`
    raw: bytes | None  # the encoded body, opened; None if it cannot be read or was removed
    salt: bytes
    digest: bytes
    compressed: bytes | None = None  # `raw` as the store has it compressed, if it has

    @property
    def undecoded(self) -> ChainedEvent:
        """The record without the data and ops of its event."""
        event = msgspec.structs.replace(self.event, data=None, ops=())
        return msgspec.structs.replace(self, event=event)


@runtime_checkable
class SingleHeads(Protocol):
    """The ability to read the head of one session without its state."""

    async def head(self, key: Key) -> Head:
        """The head of a living session. Raises as `Store.load` does.

        A store with keys raises SessionCorrupt if those of the session do not vouch for the head.
        """
        ...


class Traffic:
    """The bytes of calls and answers since a link was made: as they are, and as they travelled."""

    __slots__ = ("plain", "sent")

    def __init__(self) -> None:
        self.plain = self.sent = 0

    def count(self, plain: int, sent: int) -> None:
        self.plain += plain
        self.sent += sent


@runtime_checkable
class Travels(Protocol):
    """A store elsewhere, to which everything travels."""

    @property
    def traffic(self) -> Traffic: ...


def traffic_of(store: Store) -> Traffic | None:
    """Return what counts the bytes to and from a store elsewhere; None if nothing travels."""
    return store.traffic if isinstance(store, Travels) else None


@runtime_checkable
class ActsAs(Protocol):
    """A store elsewhere that records what one principal does."""

    def actor_for(self, actor: str | None) -> str | None:
        """Return who acts if the caller names this one: the principal, where nobody was named or
        where a DefaultActor stands that it may not be."""
        ...


@runtime_checkable
class Performs(Protocol):
    """A store elsewhere, opened by a principal, whose server performs verbs for that principal:
    those that the system finishes behind the guard. See `session.performed`."""

    async def perform(self, verb: str, arguments: bytes) -> bytes:
        """Perform a verb that changes something; its encoded result. Raises what the verb raises,
        and InvalidInput if the server does not perform it."""
        ...

    async def consult(self, verb: str, arguments: bytes) -> bytes:
        """Perform a verb that only reads. It may be repeated."""
        ...


@runtime_checkable
class Records(Protocol):
    """The ability to read a log just as it was recorded."""

    async def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        """At most `limit` own events beyond seq `after`, ascending; bounded as `Store.read` is."""
        ...

    async def base(self, key: Key) -> Base | None:
        """The state that the session's log begins on, or None. Raises SessionCorrupt."""
        ...


@runtime_checkable
class Names(Protocol):
    """The ability to go through the app: and user: names, also of users without a session."""

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        """At most `limit` owners beyond `after` who have or had names, ascending; of one app or
        of all, reserved ones too."""
        ...

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        """The newest version of each name of one owner, deleted ones too. From one instant."""
        ...


@runtime_checkable
class UidIndex(Protocol):
    """The ability to find logs by their uid."""

    async def keys_with(self, uid: str) -> tuple[Key, ...]:
        """The keys of the living logs with this uid: of one, unless it is on its way."""
        ...


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """The events that one step of compaction moved, and their size before and after."""

    events: int = 0  # 0: there is nothing left to move
    rows_bytes: int = 0
    segment_bytes: int = 0


@runtime_checkable
class Compacts(Protocol):
    """The ability to keep a session's oldest events compressed together: cold."""

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        """Move own events up to a seq, as many as make one segment; none that is pending.

        Atomic and durable. Cold events are read, verified and exported like all others, and a
        repeat of their ids is recognised; the feed no longer has them. Raises as load does.
        """
        ...


@runtime_checkable
class CompactsLog(Protocol):
    """A store whose log is compacted as a whole."""

    async def compact_log(self) -> Compacted:
        """Compact the whole log now, and return the sizes of what was written again. Durable when
        it returns; events stay where readers, the feed and cursors find them."""
        ...


@runtime_checkable
class KeepsMirror(Protocol):
    """A store beside which files for people are kept: `limpet.session.move.mirror_follower` writes
    them."""

    @property
    def mirror_directory(self) -> Path | None:
        """The directory of these files; None: there are none."""
        ...

    @property
    def mirror_mark(self) -> Path | None:
        """The file that says how far they have come; None: one in that directory."""
        ...


@runtime_checkable
class Hints(Protocol):
    """A channel by which other processes say that something changed: soon, usually."""

    async def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` when another process has committed. A lost hint only delays: see pulse."""
        ...


class Partial(msgspec.Struct, frozen=True):
    """A partial event on its way to another process."""

    key: Key
    uid: str  # of the session
    mark: int  # the version that its publisher knew: it comes after that event
    event: Event


class Channel(Protocol):
    """One end of the live channel. Lossy by definition: any partial may be lost, and no caller
    waits for one. Nothing here raises a StoreError."""

    async def publish(self, partials: Sequence[Partial]) -> None:
        """Hand them to the other ends that are subscribed, in this order; never to this one.

        If there are none it costs next to nothing. One that is larger than PARTIAL_BYTES_MAX,
        encoded, is dropped.
        """
        ...

    async def subscribe(self, heard: Callable[[], None]) -> None:
        """Receive what other ends publish from now on, until `unsubscribe`.

        `heard` is called when something has come, where the store can tell.
        """
        ...

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        """Return what came since the last call, for wanted sessions. The partials of one publisher
        are in its order. No I/O to speak of."""
        ...

    async def unsubscribe(self) -> None:
        """Receive nothing more. What has come and was not taken is dropped."""
        ...

    async def close(self) -> None:
        """Release everything. Closing twice is fine."""
        ...


@runtime_checkable
class Live(Protocol):
    """A store with a live channel between the processes that have it open.

    Partials are never part of the log. Deleting or erasing a session also removes its partials.
    """

    def channel(self) -> Channel:
        """A new end. Costs nothing until it is used; close it before the store."""
        ...


@runtime_checkable
class Backups(Protocol):
    """The ability to copy a whole store while it is in use."""

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        """Write a consistent copy to `target`, which appears complete or not at all."""
        ...


@runtime_checkable
class Examined(Protocol):
    """The ability to say how the store itself is kept: settings, versions, sizes, clocks."""

    async def examine(self) -> tuple[Check, ...]:
        """Look at everything that verify does not read. Quick, and changes nothing.

        What cannot be looked at is a check too. Raises StoreError if the store cannot be reached.
        """
        ...


@runtime_checkable
class Probed(Protocol):
    """The ability to say quickly whether the store can be worked with."""

    async def probe(self) -> tuple[Check, ...]:
        """Check the schema, and a clock that is not this machine's.

        The cost does not grow with the store.

        Raises StoreError if the store cannot be reached.
        """
        ...


class Place(msgspec.Struct, frozen=True):
    """The place of a sealed body. Bound into the seal, so that it opens nowhere else."""

    kind: Literal["event", "scope", "snapshot", "base", "checkpoint", "blob", "segment", "file"]
    owner: KeyOwner
    id: str
    type: str = ""
    bound: bytes = b""  # of an event, for a MarkingSeal: see `event_binding`

    def aad(self) -> bytes:
        """The place as bytes for authenticated encryption."""
        return msgspec.json.encode((self.kind, self.owner, self.id, self.type)) + self.bound


def event_binding(seq: int, at_us: int, header: bytes, link: bytes) -> bytes:
    """An event's seq, time, header digest and link, as a MarkingSeal binds them to its body."""
    return f"{seq}/{at_us}/".encode() + header + link


class Seal(Protocol):
    """Encryption of stored bodies, with keys of its own for every owner.

    `ready` and `forget` are awaited on the event loop of the store, outside its locks and
    transactions. `seal` and `open` are pure functions of key, bytes and place: they wait for
    nothing, and the store calls them from any thread. Sealed bytes are opaque to stores; let them
    be format ‖ key number ‖ nonce ‖ text, so that formats and keys can change while old bytes
    stay readable.
    """

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        """Have the keys of these owners at hand: fetch them, or make them durable if new.

        Awaited before the first `seal` or `open` of an owner, and perhaps again. Both then work
        for the owner until `forget`. An owner whose keys were destroyed is no reason to raise: it
        gets a new key, and what was sealed before stays closed. Any exception means that keys
        cannot be reached; the store raises SealUnavailable and has changed nothing.
        """
        ...

    def seal(self, plain: bytes, place: Place) -> bytes:
        """Return the bytes sealed for this place. Opening them anywhere else fails."""
        ...

    def open(self, sealed: bytes, place: Place) -> bytes:
        """Return the opened bytes. Raises any exception if they were not sealed for this place
        with a key at hand."""
        ...

    async def forget(self, owner: KeyOwner) -> None:
        """Destroy the keys of an owner, durably, so that no copy of its bytes opens again.

        Awaited by `erase` before rows are removed, and once more after. Idempotent: an erasure
        that was cut short is done again.
        """
        ...


class MarkingSeal(Seal, Protocol):
    """A seal that knows which bodies may be in plain text, and binds events to the chain."""

    def allows_plain(self, place: Place) -> bool:
        """True if a plain body at this place is from before the store was sealed.

        Its owner is ready. Pure: it waits for nothing.
        """
        ...

    def mac(self, head: Head) -> bytes:
        """A MAC of a head, to be kept beside it: of its key, version, link and facts. Its uid is
        ready; see `allows_plain`."""
        ...

    def holds(self, head: Head, mac: bytes | None) -> bool:
        """True if `mac` is that of this head, or there is none and the head is from before the
        store was sealed. This and `open` raise KeyRenewed for a key that another process made;
        they, `seal`, `mac` and `allows_plain` do for keys that were forgotten meanwhile."""
        ...

    def doubt(self, owners: Sequence[KeyOwner]) -> None:
        """Have `ready` fetch the keys of these owners again, though they are at hand."""
        ...

    def lapsed(self) -> Sequence[KeyOwner]:
        """The owners to be made ready again: another process may have destroyed their keys.

        Asked before every commit, so mostly there are none.
        """
        ...


@runtime_checkable
class RingBinding(Protocol):
    """The ability to remember which key ring a store is sealed with."""

    async def ring(self) -> str | None:
        """The id of the ring; None if the store was never opened with keys."""
        ...

    async def bind_ring(self, id: str) -> str:
        """Remember a ring, durably, unless there is one. Returns the id that is remembered."""
        ...

    async def accept_head(self, key: Key) -> bool:
        """Have the session's keys vouch for its head as it stands. True if they did not yet.

        Raises SessionNotFound, SessionDeleted, SessionErased.
        """
        ...


def scope_fields(scopes: Mapping[str, ScopeValue]) -> dict[str, Any]:
    """The values of the scope names that are neither deleted nor damaged."""
    return {
        name: scope.value
        for name, scope in scopes.items()
        if not scope.deleted and scope.damage is None
    }


# --- what stores answer with; what a person may print is worded here ------------------------------


class Standing(NamedTuple):
    """The position of a session: to remove it there, and not what was recorded since."""

    uid: str
    version: int | None  # None: any
    checkpoints: int | None = None  # the version of their log, 0 without one; None: any

    def holds(self, uid: str, version: int, checkpoints: int) -> bool:
        """True if the session that has this uid, with a log of checkpoints so long, stands here."""
        at = (self.version in (None, version), self.checkpoints in (None, checkpoints))
        return uid == self.uid and all(at)


class Exchange(msgspec.Struct, frozen=True):
    """One session takes the key of another, which ends as by `delete` with the ending "moved".

    It keeps its log, blobs, snapshots and uid, and fences count on from those of the other. Whoever
    reads the key finds the one session or the other.
    """

    key: Key
    at: Standing | None  # the session that ends under the key; None: no session may have it
    by: Key | None = None  # the key of the session that takes it; None: no session does
    by_at: Standing | None = None  # where the session that takes it has to stand; None: anywhere


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The result of one Commit: its events (first records for repeated drafts) and the session."""

    events: tuple[Event, ...]
    head: Head
    fields: FrozenDict
    versions: FrozenDict
    scopes: Mapping[str, ScopeValue]  # app: and user: names it changed; all of them if it created
    repeated: int = 0  # how many of the events were recorded before
    damaged: tuple[int, ...] = ()  # as of Loaded: what these events did is missing from fields
    token: str = ""  # names the commit to a causal read; empty where every read sees it
    texts: Texts = NO_TEXTS  # of the events that the head's facts name


class Loaded(msgspec.Struct, frozen=True):
    """A session as one consistent reading: head, state, scopes and the last events."""

    head: Head
    fields: FrozenDict
    versions: FrozenDict
    scopes: Mapping[str, ScopeValue]  # a value is unpacked when it is read; see store.scopes
    events: tuple[Event, ...]
    damaged: tuple[int, ...] = ()  # seqs whose bodies could not be read; state is without them
    checkpoint: LastCheckpoint | None = None  # None: not asked for, or it cannot be read
    texts: Texts = NO_TEXTS  # of the events that the head's facts name


class NameSince(msgspec.Struct, frozen=True, gc=False):
    """The changes of an app: or user: name since an event of a session that changed it."""

    before: ScopeValue | None  # before the session first changed it since; None: it never was
    version: int  # its newest
    others: bool  # whether another session changed it since, too


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of heads, and their order. Newest first unless `reverse` is False.

    `deleted` asks for tombstones instead of living sessions, in the order of their keys. Without an
    app, reserved apps (`$…`) are left out unless `reserved` is True. Of a user, `lent` adds the
    sessions of other users in the app that let this one in.
    """

    app: str | None = None
    user: str | None = None
    lent: bool = False
    labels: FrozenDict = EMPTY
    order: Order = "created"
    reverse: bool = True
    created_after_us: int | None = None
    created_before_us: int | None = None
    updated_after_us: int | None = None
    schema_version: str | None = None
    phase: Phase | None = None
    status: Status | None = None
    ready: Readiness | None = None
    prefix: str = ""  # of the id, in order "key" or of deleted ones, of one user
    deleted: bool = False
    reserved: bool = False


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """A page of heads or other items; `cursor` is None on the last page.

    A page with a cursor may be short or even empty: a filter skipped many sessions, or states are
    large.
    """

    items: tuple[Item, ...]
    cursor: str | None
    # If they were asked for: session fields, app: and user: names in one mapping, by key.
    states: Mapping[Key, Mapping[str, Any]] = {}
    damaged: tuple[Key, ...] = ()  # sessions with an event that cannot be read: not in `states`


class ErasedSession(msgspec.Struct, frozen=True):
    """A session that a certificate names, as receipts of it do."""

    key_hash: bytes  # of its key and uid: the same as in its receipts
    uid: str
    version: int  # where it stood
    link: bytes


class ErasureCertificate(msgspec.Struct, frozen=True):
    """A signed statement of what was erased, when and by whom. See `limpet.check_certificate`.

    It contains no names: sessions and users appear only as hashes.
    """

    subject: Literal["session", "user"]
    key_hash: bytes  # of the session or the user: `Erasure.key_hash`
    by: str
    at: datetime
    sessions: tuple[ErasedSession, ...]  # with those that it was forked to, if they were erased too
    events: int
    names: int  # user: names
    documents: int  # memory, promoted memory and what else was kept of the sessions
    files: int  # in the archive
    forks_kept: int  # that keep the state they began on
    signer: str = ""
    signature: bytes = b""


class Erasure(msgspec.Struct, frozen=True):
    """The record of a forgotten session: all that is left of it."""

    key_hash: bytes
    version: int
    link: bytes
    erased_us: int
    forks_kept: int = 0  # forks that keep the state they began on
    certificate: ErasureCertificate | None = None  # if the store has keys

    @property
    def stored(self) -> tuple[bytes, int, bytes, int, int]:
        """The values that a store keeps of it."""
        return (self.key_hash, self.version, self.link, self.erased_us, self.forks_kept)

    def __str__(self) -> str:
        at = to_time(self.erased_us).isoformat(timespec="seconds")
        kept = f"; {plural(self.forks_kept, 'fork')} kept" if self.forks_kept else ""
        return f"{self.key_hash.hex()[:16]} erased at version {self.version:,}, {at}{kept}"


class Erasures(msgspec.Struct, frozen=True):
    """The record of a forgotten user."""

    # Of the user as a whole: `version` counts the sessions, `link` covers them and the logs.
    user: Erasure
    sessions: tuple[Erasure, ...]
    names: int  # user: names of which every version was removed
    forks: tuple[Key, ...]  # of other users: they keep the state they began on
    children: tuple[Key, ...] = ()  # delegated by these sessions to other apps: they are left
    logs: tuple[Erasure, ...] = ()  # of the user's documents and of the sessions' checkpoints
    certificate: ErasureCertificate | None = None  # if the store has keys

    @classmethod
    def of(
        cls,
        mark: bytes,
        certificates: Sequence[Erasure],
        sessions: Collection[bytes],
        *,
        at_us: int,
        names: int,
        forks: Sequence[Key],
    ) -> Erasures:
        """Return all that was erased; the hashes of keys tell sessions from names."""
        link = sha256(b"".join(sorted([each.link for each in certificates]))).digest()
        mine = tuple([each for each in certificates if each.key_hash in sessions])
        logs = tuple([each for each in certificates if each.key_hash not in sessions])
        whole = Erasure(mark, len(mine), link, at_us, len(forks))
        return cls(whole, mine, names, tuple(forks), logs=logs)

    def __str__(self) -> str:
        gone = f"{plural(len(self.sessions), 'session')}, {plural(self.names, 'user: name')} erased"
        kept = f"; kept, of other users: {', '.join(map(str, self.forks))}" if self.forks else ""
        left = f"; left in other apps: {', '.join(map(str, self.children))}"
        return gone + kept + (left if self.children else "")


class Finding(msgspec.Struct, frozen=True):
    """A problem that a check found, and its location."""

    where: str
    problem: str
    key: Key | None = None
    seq: int | None = None

    def __str__(self) -> str:
        """One line: which session, which event, what is wrong."""
        place = "" if self.key is None else f"{self.key} "
        seq = "" if self.seq is None else f" {self.seq}"
        return f"{place}{self.where}{seq} {self.problem}"


class Report(msgspec.Struct, frozen=True):
    """The result of a verification: how much it read, and its findings. `internal` counts the logs
    that Limpet keeps for itself (documents, policies, the audit), which `list` does not show and
    `sessions` does not count."""

    sessions: int
    events: int
    findings: tuple[Finding, ...]
    internal: int = 0

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def read(self) -> str:
        """Return a line for people: how much was read."""
        internal = f"{self.internal:,} internal, " if self.internal else ""
        return f"{plural(self.sessions, 'session')}, {internal}{plural(self.events, 'event')}"

    def __str__(self) -> str:
        if self.ok:
            return f"ok: {self.read} read, nothing is wrong."
        shown = list(map(str, self.findings[:_FINDINGS_SHOWN]))
        if more := len(self.findings) - len(shown):
            shown.append(f"and {more:,} more")
        return "\n".join([*shown, f"{plural(len(self.findings), 'finding')}: {self.read} read."])


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore, and the locations of what could not be replaced cleanly."""

    report: Report  # of the verification of what is in place now
    aside: Path | None  # None: there was nothing, or it was closed and replaced

    def __str__(self) -> str:
        aside = "" if self.aside is None else f"\nThe old store was kept as {self.aside}."
        return f"{self.report}{aside}"


class Check(msgspec.Struct, frozen=True):
    """One check of a doctor: the result and, if there is a problem, the next step."""

    name: str
    found: str
    severity: Severity = "ok"
    advice: str = ""  # empty when ok

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self.severity == "ok"

    def __str__(self) -> str:
        advice = f"\n  → {self.advice}" if self.advice else ""
        return f"{self.severity}: {self.name}: {self.found}{advice}"


class Diagnosis(msgspec.Struct, frozen=True):
    """Every check of a store, and the report of its verification."""

    checks: tuple[Check, ...]
    report: Report

    @property
    def ok(self) -> bool:
        """True if no problem was found. Warnings and skipped checks do not count."""
        return all(check.severity != "problem" for check in self.checks)

    @property
    def counted(self) -> str:
        """Return how many checks there are of each kind, for people."""
        severities = [check.severity for check in self.checks]
        text = (
            f"{plural(len(severities), 'check')}, {plural(severities.count('problem'), 'problem')}"
        )
        text += f", {plural(severities.count('warning'), 'warning')}"
        return text + (
            f", {severities.count('skipped')} skipped" if "skipped" in severities else ""
        )

    def __str__(self) -> str:
        """Return a line for people: the problems, and the counts."""
        shown = [str(check) for check in self.checks if not check.ok]
        return "\n".join([*shown, f"{'ok' if self.ok else 'not ok'}: {self.counted}."])


def plural(count: int, what: str) -> str:
    """Return a count with its noun, for people."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}"
        count /= 1_024
    return f"{count:.1f} GiB"
