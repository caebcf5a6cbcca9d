"""Partial events between the clients of a server, and between them and other processes.

The server has one end of the store's live channel for all of its clients. A client gets the
partials of the sessions that it wants only. Nobody tells the server which these are: it offers a
session when a partial of it comes, keeps a few partials until the client has answered, and asks
again after a while if the answer was no.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from limpet.errors import LimpetError
from limpet.model import Key
from limpet.model.keys import unfit
from limpet.model.limits import ACTOR_CHARS_MAX, ID_CHARS_MAX, PARTIALS_WAITING_MAX, TYPE_CHARS_MAX
from limpet.session.follow import POLL_SECONDS, POLL_SECONDS_LIVELY
from limpet.store.coding.codec import Codec
from limpet.store.live import Packed, pack_all, unpack_all
from limpet.store.protocol import Channel, Live, Partial, Store

OFFERS_MAX: Final = 1_000  # sessions that were offered to a client, which has not answered
QUIET_SECONDS: Final = 0.1  # after a client said that it does not want a session
_LIVELY_SECONDS: Final = 1.0
_CODEC: Final = Codec()  # what travels between client and server is not sealed by the store


class Told(Protocol):
    """A connection, as far as partials go."""

    def tell(self, kind: str, value: object) -> None: ...


class Relay:
    """The partials of one server process. Callers with a key have an end of the channel each, which
    checks what they publish and shows them what they may read; all others share one."""

    def __init__(self, store: Store) -> None:
        self._shared = RelayEnd(store)
        self._own: dict[Told, RelayEnd] = {}

    def _end(self, connection: Told, store: Store | None) -> RelayEnd:
        if store is None:
            return self._shared
        if connection not in self._own:
            self._own[connection] = RelayEnd(store)
        return self._own[connection]

    async def subscribe(self, connection: Told, store: Store | None) -> None:
        """Send partials to a connection from now on; `store` is the guarded one of a caller."""
        await self._end(connection, store).subscribe(connection)

    async def publish(
        self, connection: Told, store: Store | None, packed: Sequence[Packed]
    ) -> None:
        """Hand partials of one connection to all others, and to other processes."""
        await self._end(connection, store).publish(connection, packed)

    def wants(self, connection: Told, key: Key, *, wanted: bool) -> None:
        """A connection has answered an offer."""
        self._own.get(connection, self._shared).wants(connection, key, wanted=wanted)

    async def leave(self, connection: Told) -> None:
        """Send it no more."""
        self._shared.leave(connection)
        own = self._own.pop(connection, None)
        if own is not None:
            own.leave(connection)
            await own.close()

    async def close(self) -> None:
        for end in (self._shared, *self._own.values()):
            await end.close()


class RelayEnd:
    """One end of the live channel of a store, and the connections that share it."""

    def __init__(self, store: Store) -> None:
        self._channel: Channel | None = store.channel() if isinstance(store, Live) else None
        self._interests: dict[Told, Interest] = {}
        self._bell = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def subscribe(self, connection: Told) -> None:
        self._interests.setdefault(connection, Interest(connection))
        channel = self._channel
        if channel is not None and self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(channel))
            await channel.subscribe(self._bell.set)

    def leave(self, connection: Told) -> None:
        interest = self._interests.pop(connection, None)
        if interest is not None:
            interest.close()

    async def publish(self, connection: Told, packed: Sequence[Packed]) -> None:
        partials = [each for each in unpack_all(_CODEC, packed) if _is_fit(each)]
        if self._channel is None or not partials:
            return
        with suppress(LimpetError):  # it may not: the audit says so, and nobody waits for an answer
            await self._channel.publish(partials)
            self._hand_over(pack_all(_CODEC, partials), but=connection)

    def wants(self, connection: Told, key: Key, *, wanted: bool) -> None:
        interest = self._interests.get(connection)
        if interest is not None:
            interest.answered(key, wanted=wanted)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def _listen(self, channel: Channel) -> None:
        """Take what came from elsewhere, every few milliseconds while somebody is subscribed."""
        lively_until = 0.0
        while True:
            now = time.monotonic()
            seconds = POLL_SECONDS_LIVELY if now < lively_until else POLL_SECONDS
            timer = asyncio.get_running_loop().call_later(seconds, self._bell.set)
            try:
                await self._bell.wait()
            finally:
                timer.cancel()
            self._bell.clear()
            partials = channel.received(lambda _: bool(self._interests))
            if partials:
                lively_until = now + _LIVELY_SECONDS
                self._hand_over(pack_all(_CODEC, partials), but=None)

    def _hand_over(self, packed: Sequence[Packed], *, but: Told | None) -> None:
        for connection, interest in self._interests.items():
            if connection is not but:
                interest.offer(packed)


class Interest:
    """The sessions whose partials one connection gets."""

    def __init__(self, connection: Told) -> None:
        self._connection = connection
        self._wanted: set[Key] = set()
        self._offered: dict[Key, deque[Packed]] = {}  # no answer yet, or it is quiet
        self._quiet: dict[Key, asyncio.TimerHandle] = {}

    def offer(self, packed: Sequence[Packed]) -> None:
        """Send those that are wanted, in their order; offer the others."""
        sent = []
        for each in packed:
            key = each.key
            if key in self._wanted:
                sent.append(each)
                continue
            if key not in self._offered:
                if len(self._offered) >= OFFERS_MAX:  # it does not answer: the oldest is lost
                    del self._offered[next(iter(self._offered))]
                self._offered[key] = deque(maxlen=PARTIALS_WAITING_MAX)
                if key not in self._quiet:
                    self._connection.tell("offer", (key.app, key.user, key.id))
            self._offered[key].append(each)
        if sent:
            self._connection.tell("partials", sent)

    def answered(self, key: Key, *, wanted: bool) -> None:
        waiting = self._offered.pop(key, None)
        if wanted:
            self._wanted.add(key)
            if waiting:
                self._connection.tell("partials", list(waiting))
            return
        self._wanted.discard(key)
        if key not in self._quiet:
            loop = asyncio.get_running_loop()
            self._quiet[key] = loop.call_later(QUIET_SECONDS, self._ask_again, key)

    def _ask_again(self, key: Key) -> None:
        del self._quiet[key]
        if key in self._offered:
            self._connection.tell("offer", (key.app, key.user, key.id))

    def close(self) -> None:
        for timer in self._quiet.values():
            timer.cancel()


def _is_fit(partial: Partial) -> bool:
    """True if the names of a partial are such as an event could have."""
    event = partial.event
    bounds = (
        (event.id, ID_CHARS_MAX),
        (event.type, TYPE_CHARS_MAX),
        (event.actor, ACTOR_CHARS_MAX),
    )
    return not any([unfit(text, most) for text, most in bounds])
