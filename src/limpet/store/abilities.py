"""What a store may be able to do besides: a feed, a live channel, raw records, backups, seals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from limpet.model import Base, Event, Key, ScopeValue
from limpet.store.answers import (
    Check,
    KeyOwner,
    Owner,
    Progress,
)


class FeedEntry(msgspec.Struct, frozen=True):
    """One event in the feed, and the position to go on from once it was dealt with."""

    position: str
    key: Key
    event: Event


class Touched(msgspec.Struct, frozen=True):
    """Which sessions have events beyond a position of the feed, without the events."""

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
        """The same without the data and ops of its event."""
        event = msgspec.structs.replace(self.event, data=None, ops=())
        return msgspec.structs.replace(self, event=event)


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


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """What one step of compaction moved, and about what it took before and takes now."""

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
        """What has come since the last call for sessions that are wanted. The partials of one
        publisher are in its order. No I/O to speak of."""
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


class Place(msgspec.Struct, frozen=True):
    """Where a sealed body belongs. Bound into the seal, so that it opens nowhere else."""

    kind: Literal["event", "scope", "snapshot", "base", "checkpoint", "blob", "segment", "file"]
    owner: KeyOwner
    id: str
    type: str = ""

    def aad(self) -> bytes:
        """The place as bytes for authenticated encryption."""
        return msgspec.json.encode((self.kind, self.owner, self.id, self.type))


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

    def seal(self, plain: bytes, place: Place) -> bytes: ...

    def open(self, sealed: bytes, place: Place) -> bytes:
        """Raises any exception if the bytes were not sealed for this place with a key at hand."""
        ...

    async def forget(self, owner: KeyOwner) -> None:
        """Destroy the keys of an owner, durably, so that no copy of its bytes opens again.

        Awaited by `erase` before rows are removed, and once more after. Idempotent: an erasure
        that was cut short is done again.
        """
        ...


def scope_fields(scopes: Mapping[str, ScopeValue]) -> dict[str, Any]:
    """The values of the scope names that are neither deleted nor damaged."""
    return {
        name: scope.value
        for name, scope in scopes.items()
        if not scope.deleted and scope.damage is None
    }
