"""The live channel on PostgreSQL: NOTIFY and LISTEN, both on one connection of its own.

So partials wait for no commit and no commit for them. The server hands a notification to those who
listen at that moment and keeps nothing; a broken connection loses what came meanwhile. A payload
holds fewer than 8,000 bytes, so a message is sent in pieces, all in one transaction: they arrive
together and in order, and a message of which a piece is missing is dropped.

A pooler in transaction mode passes a NOTIFY on, and loses a LISTEN. Behind one, both go past it if
the URL says how to reach the server itself; if it does not, an end there sends and hears nothing.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from limpet.model import Key
from limpet.model.limits import PARTIAL_BYTES_MAX
from limpet.store.coding.codec import Codec
from limpet.store.live import Inbox, Packed, can_pack, pack_all
from limpet.store.logs import POSTGRES
from limpet.store.postgres.failures import UNOPENED
from limpet.store.postgres.server.pool import Outage
from limpet.store.postgres.server.pooler import connect_alone
from limpet.store.postgres.server.settings import (
    Connection,
    listening_url,
    unlimited_settings,
    where,
)
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Partial

CHANNEL: Final = "limpet_live"
PIECE_CHARS: Final = 7_900  # of text, beside its heading: a payload has fewer than 8,000 bytes
MESSAGE_BYTES: Final = 2 * PARTIAL_BYTES_MAX  # after which a message takes no more partials
MESSAGES_WAITING_MAX: Final = 256
SENDERS_MAX: Final = 64  # of whose messages a part has come
RETRY_SECONDS: Final = (1.0, 60.0)  # the pause before connecting again, at first and at most

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Packed]).decode


def open_channel(url: str, codec: Codec) -> ServerChannel:
    """An end of the live channel of the database that a URL names."""
    direct = listening_url(url)
    if direct is None:
        return SendingChannel(partial(connect_alone, url, unlimited_settings()), where(url), codec)
    return ServerChannel(partial(connect_alone, direct, unlimited_settings()), where(direct), codec)


class ServerChannel:
    """One end of a database's live channel."""

    def __init__(
        self, connect_alone: Callable[[], Awaitable[Connection]], place: str, codec: Codec
    ) -> None:
        self._connect, self._place, self._codec = connect_alone, place, codec
        self._outage = Outage(place, "live")
        self._conn: Connection = None
        self._listens = False  # this connection
        self._calls = asyncio.Lock()  # a connection serves one call at a time
        self._me, self._number = os.urandom(8).hex(), 0
        self._heard: Callable[[], None] | None = None  # None: not subscribed
        self._inbox: deque[bytes] = deque(maxlen=MESSAGES_WAITING_MAX)
        self._pieces, self._opened = Pieces(), Inbox(codec)
        self._keeping: asyncio.Task[None] | None = None

    async def publish(self, partials: Sequence[Partial]) -> None:
        if not await can_pack(self._codec, partials):
            return
        for message in _messages(pack_all(self._codec, partials)):
            self._number += 1
            pieces = split(f"{self._me}.{self._number}", message)
            await self._run(partial(_notify, pieces))

    async def subscribe(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        await self._listen()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        messages: list[Packed] = []
        while self._inbox:
            try:
                packed = _decode(self._inbox.popleft())
            except msgspec.MsgspecError:
                continue  # of a release that says it in another way
            messages += [each for each in packed if wanted(each.key)]
        return self._opened.take(messages, self._heard or (lambda: None))

    async def unsubscribe(self) -> None:
        self._heard = None
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        async with self._calls:
            self._drop()  # with it ends the listening; who publishes connects again
        self._inbox.clear()
        self._opened.clear()

    async def close(self) -> None:
        await self.unsubscribe()

    # --- the connection ------------------------------------------------------------------------

    async def _run(self, work: Callable[[Connection], Awaitable[object]]) -> bool:
        """Do something with the connection, made if needed. Whether it was done: what fails is
        lost."""
        async with self._calls:
            try:
                if self._conn is not None and self._conn.is_closed():
                    self._outage.lost(ConnectionResetError())
                    self._drop()
                if self._conn is None:
                    self._conn = await self._connect()
                await work(self._conn)
            except UNOPENED as error:
                self._outage.lost(error)
                self._drop()
                return False
            except asyncio.CancelledError:
                self._drop()
                raise
        self._outage.over()
        return True

    async def _listen(self) -> bool:
        """Listen on the connection, if it does not yet."""

        async def listen(conn: Connection) -> None:
            if not self._listens:
                await conn.execute(SQL["live_hold"])
                await conn.add_listener(CHANNEL, self._receive)
                self._listens = True

        return await self._run(listen)

    async def _keep(self) -> None:
        """Listen again after the connection broke, after growing pauses while that fails."""
        pause = RETRY_SECONDS[0]
        while True:
            await asyncio.sleep(pause)
            done = await self._listen()
            pause = RETRY_SECONDS[0] if done else min(2 * pause, RETRY_SECONDS[1])

    def _drop(self) -> None:
        conn, self._conn, self._listens = self._conn, None, False
        if conn is not None:
            conn.terminate()

    def _receive(self, _: object, __: object, ___: object, payload: str) -> None:
        message = None if payload.startswith(self._me) else self._pieces.add(payload)
        if message is not None and self._heard is not None:
            self._inbox.append(message)
            self._heard()


class SendingChannel(ServerChannel):
    """An end behind a pooler: what is published there goes out, and nothing comes in."""

    async def subscribe(self, heard: Callable[[], None]) -> None:
        """Log that this connection cannot LISTEN, for those who miss their partials."""
        POSTGRES.info("live channel not opened: store=%s error=%s", self._place, "pooler")


async def _notify(pieces: list[str], conn: Connection) -> None:
    await conn.execute(SQL["live_notify"], CHANNEL, pieces)


# --- messages and their pieces -------------------------------------------------------------------


def _messages(partials: Sequence[Packed]) -> Iterator[bytes]:
    """Encoded lists of partials, each of a bounded size."""
    some: list[Packed] = []
    size = 0
    for each in partials:
        some.append(each)
        size += len(each.body)
        if size >= MESSAGE_BYTES:
            yield _encode(some)
            some, size = [], 0
    if some:
        yield _encode(some)


def split(name: str, message: bytes) -> list[str]:
    """The message as payloads: `name.index.count.text`."""
    text = b64encode(message).decode()
    count = max(1, -(-len(text) // PIECE_CHARS))
    places = range(count)
    return [f"{name}.{n}.{count}.{text[n * PIECE_CHARS : (n + 1) * PIECE_CHARS]}" for n in places]


class Pieces:
    """Messages of which a part has come, one for each sender."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[str, list[str]]] = {}

    def add(self, payload: str) -> bytes | None:
        """The message, if this was its last piece and all others came before it, in order."""
        heading = payload.split(".", 4)
        if len(heading) != 5 or not (heading[2].isdigit() and heading[3].isdigit()):
            return None
        sender, number, place, count, text = heading
        of, parts = self._parts.pop(sender, ("", []))
        if of != number:
            parts = []
        if int(place) != len(parts):
            return None
        parts.append(text)
        if len(parts) == int(count):
            return b64decode("".join(parts))
        self._parts[sender] = (number, parts)
        if len(self._parts) > SENDERS_MAX:
            del self._parts[next(iter(self._parts))]
        return None
