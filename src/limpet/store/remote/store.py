"""A store on a server. It has the methods of the server's store, each of which is one call.

They are made from the protocols (see `methods`). What has no call is here: the clock, the pulse,
the live channel, and closing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import LimpetError
from limpet.model import Key, acting_actor
from limpet.model.limits import PARTIALS_WAITING_MAX
from limpet.store.coding.codec import Codec
from limpet.store.live import Packed, pack_all, unpack_all
from limpet.store.protocol import Partial, Traffic
from limpet.store.remote.address import address_of, warn_if_plain
from limpet.store.remote.link import Link
from limpet.store.remote.methods import ABILITIES, SUBSCRIBE, Method, methods_of
from limpet.store.remote.packing import SealedFor

if TYPE_CHECKING:
    from pathlib import Path
    from ssl import SSLContext

    from limpet.store.protocol import Store
    from limpet.store.remote.tls import Tls

_LOOKS_PER_SECOND: Final = 4  # of those who follow, where the server cannot tell them
_CODEC: Final = Codec()  # the store of the server seals what it keeps; what travels is opened
_decode_packed: Final = msgspec.msgpack.Decoder(tuple[Packed, ...]).decode
_decode_key: Final = msgspec.msgpack.Decoder(tuple[str, str, str]).decode


async def open_remote(
    url: str,
    *,
    token: str | None = None,
    tls: Tls | SSLContext | str | Path | None = None,
    seal_for: str | bytes | None = None,
) -> Store:
    """Connect to a server; the store that it serves. Raises StoreFailed if none answers in time,
    EntryRefused, ProtocolMismatch.

    With `seal_for`, the public key of its store, every call and answer is sealed; raises SealBroken
    if the store has another key. Partial events do not travel then: they would be in plain text.
    """
    news = _News()
    address = address_of(url, token=token, tls=tls)
    warn_if_plain(address)
    sealed_for = None if seal_for is None else SealedFor(url, seal_for)
    link = news.link = Link(address, news.receive, news.connected, news.refused, sealed_for)
    await link.open()
    assert link.hello is not None
    hello = link.hello
    live = hello.live and sealed_for is None
    kind = _store_class(hello.abilities, live=live, acts=hello.actor is not None)
    store: Store = kind(link, news)
    return store


class RemoteStore:
    """The part of a store on a server that does not depend on its abilities."""

    audits_itself = True  # its server records whom it refuses; nobody else writes to its audit

    def __init__(self, link: Link, news: _News) -> None:
        self._link, self._news = link, news

    @property
    def traffic(self) -> Traffic:
        return self._link.traffic

    def now_us(self) -> int:
        return self._link.now_us()

    def pulse(self) -> int:
        return self._news.pulse()

    async def listen(self, heard: Callable[[], None]) -> None:
        self._news.heard.add(heard)
        self._news.pulse()

    async def close(self) -> None:
        await self._link.close()


class _RemotePart:
    """The methods of one part of a store: its blobs, its marks."""

    def __init__(self, link: Link) -> None:
        self._link = link


@lru_cache(maxsize=8)
def _store_class(abilities: tuple[str, ...], *, live: bool, acts: bool) -> Callable[..., Any]:
    """The class of a store with these abilities."""
    parts: dict[str, dict[str, Any]] = {ability.part: {} for ability in ABILITIES}
    for method in methods_of(abilities):
        parts[method.part][method.verb] = _calling(method)
    names = parts.pop("")
    for part, verbs in parts.items():
        if verbs:
            names[part] = property(_part_of(type(part.title(), (_RemotePart,), verbs)))
    if live:
        names["channel"] = _channel
    if acts:
        names["actor_for"] = _actor_for
    return type("RemoteStore", (RemoteStore,), names)


def _channel(store: RemoteStore) -> RemoteChannel:
    """A new end of the live channel."""
    return RemoteChannel(store._link, store._news)


def _actor_for(store: RemoteStore, actor: str | None) -> str | None:
    """Return who acts, as ActsAs says."""
    hello = store._link.hello
    assert hello is not None
    return acting_actor(actor, hello.actor, hello.writes_as)


def _calling(method: Method) -> Callable[..., Awaitable[Any]]:
    def call(self: Any, *args: Any, **given: Any) -> Awaitable[Any]:
        called: Awaitable[Any] = self._link.call(method, args, given)
        return called

    call.__name__ = method.verb
    return call


def _part_of(kind: type[_RemotePart]) -> Callable[[Any], _RemotePart]:
    def part(store: RemoteStore) -> _RemotePart:
        return kind(store._link)

    return part


# --- news ----------------------------------------------------------------------------------------


class _News:
    """News that the server sends unasked: that something was recorded, and partial events."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.heard: set[Callable[[], None]] = set()
        self.channels: list[RemoteChannel] = []
        self._undecided: dict[Key, set[RemoteChannel]] = {}  # by key: who has not answered an offer
        self._count = 0
        self._watches = False

    def pulse(self) -> int:
        """A number that has changed if something was recorded; from now on the server says so."""
        if not self._watches and self.link is not None:
            self._watches = True
            self.link.note("$watch", None)
        if self.link is not None and self.link.posts:  # it may change without a commit
            return int(time.monotonic() * _LOOKS_PER_SECOND)
        return self._count

    def receive(self, kind: str, value: msgspec.Raw) -> None:
        if kind == "pulse":
            self._changed()
        elif kind == "partials":
            partials = unpack_all(_CODEC, _decode_packed(value))
            for channel in self.channels:
                channel.hand_over(partials)
        elif kind == "offer":
            key = Key(*_decode_key(value))
            self._undecided[key] = set(self.channels)
            for channel in self.channels:
                channel.offer(key)

    def decide(self, channel: RemoteChannel, key: Key, *, wanted: bool) -> None:
        """One end wants the partials of a session, or not. They come if one of them does."""
        assert self.link is not None
        undecided = self._undecided.get(key, {channel})
        undecided.discard(channel)
        if wanted or not undecided:
            self._undecided.pop(key, None)
            self.link.note("$wanted", (key.app, key.user, key.id, wanted))

    def connected(self) -> None:
        """Subscribe again and notify: nobody heard of what was recorded meanwhile."""
        assert self.link is not None
        if self._watches:
            self.link.note("$watch", None)
        if self.channels:
            self.link.note("$subscribe", None)
        self._changed()

    def refused(self) -> None:
        """Have everybody who follows look: they are told why no more will come."""
        self._changed()

    def _changed(self) -> None:
        self._count += 1
        for heard in self.heard:
            heard()


class RemoteChannel:
    """One end of the live channel, on a server. Ends of one client hand partials to each other."""

    def __init__(self, link: Link, news: _News) -> None:
        self._link, self._news = link, news
        self._inbox: deque[Partial] = deque(maxlen=PARTIALS_WAITING_MAX)
        self._offers: set[Key] = set()  # sessions of which there are partials, if they are wanted
        self._heard: Callable[[], None] = _nothing

    async def publish(self, partials: Sequence[Partial]) -> None:
        packed = pack_all(_CODEC, partials)
        if packed:
            fitting = unpack_all(_CODEC, packed)  # as the others receive them
            for channel in self._news.channels:
                if channel is not self:
                    channel.hand_over(fitting)
            self._link.note("$publish", packed)

    async def subscribe(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        if self not in self._news.channels:
            self._news.channels.append(self)
        with suppress(LimpetError):  # a partial may be lost: nothing here raises
            await self._link.call(SUBSCRIBE, (None,), {})

    def hand_over(self, partials: Sequence[Partial]) -> None:
        """Take partials from the server, or from another end."""
        self._inbox.extend(partials)
        self._heard()

    def offer(self, key: Key) -> None:
        """Note that the server has partials of this session."""
        self._offers.add(key)
        self._heard()

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        offers, self._offers = self._offers, set()
        for key in offers:
            self._news.decide(self, key, wanted=wanted(key))
        if not self._inbox:
            return ()
        partials, unwanted = [], set()
        for partial in self._inbox:
            if wanted(partial.key):
                partials.append(partial)
            else:
                unwanted.add(partial.key)
        self._inbox.clear()
        for key in unwanted:
            self._news.decide(self, key, wanted=False)
        return tuple(partials)

    async def unsubscribe(self) -> None:
        self._inbox.clear()
        self._offers.clear()
        if self in self._news.channels:
            self._news.channels.remove(self)
            if not self._news.channels:
                self._link.note("$unsubscribe", None)

    async def close(self) -> None:
        await self.unsubscribe()


def _nothing() -> None:
    """Do nothing: nobody listens."""
