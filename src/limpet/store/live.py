"""Partial events as they travel between processes: what every store's live channel shares.

A partial is packed as a body is: compressed when it pays, and sealed if the store seals. Its key,
id and type stay readable, so that an end can pass over sessions that nobody follows there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import msgspec

from limpet.errors import SealUnavailable
from limpet.model import Event, Key, freeze
from limpet.model.limits import PARTIAL_BYTES_MAX, PARTIALS_WAITING_MAX
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.coding.seal import Unready
from limpet.store.protocol import Partial, Place


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    actor: str
    at_us: int
    data: dict[str, Any]
    attempt: int
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None


class Packed(NamedTuple):
    """A partial as columns of a row, or as an array in a message."""

    app: str
    user: str
    id: str
    uid: str
    mark: int
    event_id: str
    type: str
    flags: int
    body: bytes
    crc: int

    @property
    def key(self) -> Key:
        return Key(self.app, self.user, self.id)

    @property
    def place(self) -> Place:
        """No event has such a type: the sealed bytes of a partial are never those of an event."""
        return Place("event", self.uid, self.event_id, f"partial:{self.type}")


_decode: Final = msgspec.json.Decoder(_Body).decode


def pack(codec: Codec, partial: Partial) -> Packed | None:
    """A partial for the way; None if it is too large."""
    event = partial.event
    raw = msgspec.json.encode(
        _Body(
            event.actor,
            event.at_us,
            event.data,
            event.attempt,
            event.cause,
            event.invocation_id,
            event.correlation_id,
            event.wake_id,
        )
    )
    if len(raw) > PARTIAL_BYTES_MAX:
        return None
    key = partial.key
    blank = Packed(
        key.app, key.user, key.id, partial.uid, partial.mark, event.id, event.type, 0, b"", 0
    )
    flags, body, crc = codec.pack(raw, blank.place, bound=True)
    return blank._replace(flags=flags, body=body, crc=crc)


def pack_all(codec: Codec, partials: Sequence[Partial]) -> list[Packed]:
    """All that are not too large."""
    return [each for each in (pack(codec, partial) for partial in partials) if each is not None]


def unpack(codec: Codec, packed: Packed) -> Partial | None:
    """Return what was packed; None if it cannot be read here: it is damaged, or the key is
    another."""
    try:
        raw = codec.unpack(packed.flags, packed.body, packed.crc, lambda: packed.place, bound=True)
        body = _decode(raw)
    except (Damaged, msgspec.MsgspecError):
        return None
    event = Event(
        seq=0,
        id=packed.event_id,
        type=packed.type,
        actor=body.actor,
        at_us=body.at_us,
        data=freeze(body.data),
        cause=body.cause,
        invocation_id=body.invocation_id,
        correlation_id=body.correlation_id,
        wake_id=body.wake_id,
        partial=True,
        attempt=body.attempt,
    )
    return Partial(packed.key, packed.uid, packed.mark, event)


def unpack_all(codec: Codec, messages: Sequence[Packed]) -> tuple[Partial, ...]:
    """All that can be read here."""
    read = [unpack(codec, packed) for packed in messages]
    return tuple([partial for partial in read if partial is not None])


class Inbox:
    """Received partials, opened. Those sealed with keys that are not at hand wait for them."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._sealed: deque[Packed] = deque(maxlen=PARTIALS_WAITING_MAX)
        self._fetching: asyncio.Task[None] | None = None

    def take(self, messages: Sequence[Packed], heard: Callable[[], None]) -> tuple[Partial, ...]:
        """Return those that can be read now. `heard` is called when others can be."""
        waiting, opened = [*self._sealed, *messages], []
        self._sealed.clear()
        for packed in waiting:
            try:
                partial = unpack(self._codec, packed)
            except Unready:  # and so are the later ones of this session: their order is kept
                self._sealed.append(packed)
                continue
            opened += [] if partial is None else [partial]
        if self._sealed and self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(heard))
        return tuple(opened)

    def clear(self) -> None:
        self._sealed.clear()
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self, heard: Callable[[], None]) -> None:
        try:
            await self._codec.sealer.ready({packed.uid for packed in self._sealed})
        except SealUnavailable:
            self._sealed.clear()  # partials may be lost
        finally:
            self._fetching = None
        heard()


async def can_pack(codec: Codec, partials: Sequence[Partial]) -> bool:
    """True if the keys to seal them could be had."""
    if codec.locked:
        return False
    try:
        await codec.sealer.ready({partial.uid for partial in partials})
    except SealUnavailable:
        return False
    return True


class MemoryChannel:
    """One end of the live channel of a memory store: the ends hand partials to each other."""

    def __init__(self, ends: WeakSet[MemoryChannel]) -> None:
        self._ends = ends  # those that are subscribed
        self._inbox: deque[Partial] = deque(maxlen=PARTIALS_WAITING_MAX)
        self._heard: Callable[[], None] = lambda: None

    async def publish(self, partials: Sequence[Partial]) -> None:
        codec = Codec()
        fitting = unpack_all(codec, pack_all(codec, partials))  # as the others receive them
        for end in self._ends:
            if end is not self:
                end.hand_over(fitting)

    def hand_over(self, partials: Sequence[Partial]) -> None:
        """Take partials from another end."""
        self._inbox.extend(partials)
        self._heard()

    async def subscribe(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._ends.add(self)

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        partials = tuple([partial for partial in self._inbox if wanted(partial.key)])
        self._inbox.clear()
        return partials

    def keep(self, keys: Container[Key]) -> None:
        """Drop the partials of all sessions but these."""
        kept = [partial for partial in self._inbox if partial.key in keys]
        self._inbox.clear()
        self._inbox.extend(kept)

    def forget(self, key: Key) -> None:
        """Drop the partials of a session."""
        kept = [partial for partial in self._inbox if partial.key != key]
        self._inbox.clear()
        self._inbox.extend(kept)

    async def unsubscribe(self) -> None:
        self._ends.discard(self)
        self._inbox.clear()

    async def close(self) -> None:
        await self.unsubscribe()
