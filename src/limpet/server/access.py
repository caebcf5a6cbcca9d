"""Access to the server: a request becomes a `Caller`, with the Limpet that it may use.

With `dev` everybody on this machine is an admin; a request that names another host is refused,
because a page of the web may have made a browser send it. Otherwise a request needs a key, whose
principal decides everything else: the Limpet of a caller is `lp.acting_as(principal)`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import Scope

from limpet.errors import (
    AccessDenied,
    EntryRefused,
    InvalidInput,
    LimpetError,
    TooManyRequests,
)
from limpet.security.access import Principal, Resource
from limpet.security.roles import EVERY_APP
from limpet.server.ids import session_key_id
from limpet.server.limits import (
    CALLERS_KEPT_MAX,
    FAILURES_AT_ONCE,
    FAILURES_PER_SECOND,
    KEY_CHECK_SECONDS,
    KEYS_CHECKED_AT_ONCE,
)
from limpet.server.loggers import SERVER
from limpet.server.rates import RequestRates
from limpet.session.access_keys import AccessKey, AccessKeys
from limpet.session.limpet import Limpet, journal_of
from limpet.session.tokens import Tokens, is_good
from limpet.store.logs import error_name
from limpet.store.remote.address import is_loopback

_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_HOSTS_REMEMBERED: Final = 256
_BEARER: Final = "bearer "
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)  # a key has no dots
_OUTSIDE: Final = "store"  # the operation of a route that is about no session
_FAILURES: Final = "failed entries from its address"
HEADERS: Final = "limpet.headers"  # in the scope: the first of each name
NONCE_HEADER: Final = b"limpet-nonce"  # a text that the client uses once
HERE: Final = "this server"


class Caller(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Somebody who may come in, and what they may use."""

    lp: Limpet
    name: str  # of the principal, for logs and for what is remembered of a client
    app: str | None = None  # that the key is for; None: the request says
    user: str | None = None
    admin: bool = False  # may adopt events that other stores recorded
    principal: Principal | None = None  # None: of a server without keys
    token: str | None = None  # a session token: for one session alone
    rotated: str | None = None  # the token that replaces it
    lapsed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  # streams end when set


class RouteNote(msgspec.Struct, frozen=True):
    """The action of a route, for checks that happen before it is called."""

    operation: str = "read"  # an action of the guard
    streams: bool = False  # it is open for long


NOTE: Final = "limpet_note"  # of the function that answers a route


def note_of(connection: HTTPConnection) -> RouteNote:
    """Return the note of a request's route."""
    note: RouteNote = getattr(connection.scope.get("endpoint"), NOTE, RouteNote())
    return note


CallerOf = Callable[[HTTPConnection], Awaitable[Caller]]


class Gate(Protocol):
    """Lets callers in, or raises EntryRefused."""

    async def __call__(self, connection: HTTPConnection) -> Caller: ...

    async def close(self) -> None:
        """Stop what is done in the background."""
        ...


class DevGate:
    """Lets everybody in who is on this machine, as an admin."""

    def __init__(self, lp: Limpet) -> None:
        self._caller = Caller(lp, "admin:dev", admin=True)

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Admit a request of this machine. Raises EntryRefused for another address or host."""
        client = connection.scope.get("client")
        if client is not None and not is_loopback(client[0]):
            reason = "it serves this machine only (--dev)"
            raise EntryRefused(HERE, reason, "Start it without --dev, and create a key")
        for header in (b"host", b"origin"):
            named = header_of(connection, header)
            if named is not None and not _names_loopback(named):
                reason = f"the request names the {header.decode()} {named[:100]!r}"
                raise EntryRefused(HERE, reason, "With --dev only localhost is served")
        return self._caller

    async def close(self) -> None:
        pass


class LinkGate:
    """Admits the holder of the link of `limpet studio`, from this machine only.

    The token of the link is exchanged for a key once; the key opens until this process ends. Both
    are compared by their hashes, and are in the memory of this process alone.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._tokens: set[bytes] = set()  # hashes of those that were not used yet
        self._keys: set[bytes] = set()
        self._local = DevGate(caller.lp)

    def new_token(self) -> str:
        """A token for a link, good for one exchange."""
        token = secrets.token_urlsafe(24)
        self._tokens.add(_hash(token))
        return token

    async def exchange(self, token: str, connection: HTTPConnection) -> str:
        """The key for a token. Raises EntryRefused: it was used already, or is not one of ours."""
        await self._local(connection)
        if _hash(token) not in self._tokens:
            reason = "this link was used already, or is of another start"
            raise EntryRefused(HERE, reason, "Start limpet studio again for a new one")
        self._tokens.discard(_hash(token))
        key = f"ls_{secrets.token_urlsafe(32)}"
        self._keys.add(_hash(key))
        return key

    async def __call__(self, connection: HTTPConnection) -> Caller:
        await self._local(connection)
        given = header_of(connection, b"authorization") or ""
        token = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""
        if _hash(token) not in self._keys:
            reason = "the request has no key of this studio"
            raise EntryRefused(HERE, reason, "Open the link that limpet studio printed")
        return self._caller

    async def close(self) -> None:
        pass


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class KeyGate:
    """Admits holders of keys. Every failure is in the audit before it is answered, up to
    FAILURES_PER_SECOND from one address: whoever tries more is told to wait, and does not fill the
    disk. Good keys from that address are let in all the same.

    A key that has opened is not looked up again for KEY_CHECK_SECONDS. The keys of those who are in
    are looked at again as often: revoked or expired, `lapsed` is set, and whoever serves the caller
    ends.
    """

    def __init__(self, lp: Limpet) -> None:
        self._lp = lp
        self._keys = AccessKeys(journal_of(lp))
        # Keys that opened, by the hash of their text, and when they were looked up; oldest first.
        self._opened: dict[bytes, tuple[AccessKey, float]] = {}
        # By the id of their key and where they come from, the newest last.
        self._callers: dict[tuple[str, str | None], Caller] = {}
        self._watching: asyncio.Task[None] | None = None
        self._failures = RequestRates(
            FAILURES_PER_SECOND, burst=FAILURES_AT_ONCE, most=CALLERS_KEPT_MAX
        )

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Admit the holder of a key. Raises EntryRefused, TooManyRequests."""
        token = bearer_of(connection)
        client = connection.scope.get("client")
        address = None if client is None else client[0]
        try:
            if not token:
                raise EntryRefused(HERE, "the request has no key")
            key = await self._key(token)
        except EntryRefused as error:
            if wait := self._failures.take(address):
                raise TooManyRequests(_FAILURES, FAILURES_AT_ONCE, wait) from error
            await self._record(error, token, address)
            raise
        return self._caller(key, address)

    async def _key(self, token: str) -> AccessKey:
        """The key of a text, as it was a second ago at most. Raises EntryRefused."""
        digest, now = _hash(token), time.monotonic()
        key, since = self._opened.get(digest, (None, 0.0))
        expires_us = None if key is None else key.expires_us
        is_over = expires_us is not None and expires_us <= journal_of(self._lp).now_us()
        if key is None or is_over or now - since > KEY_CHECK_SECONDS:
            self._opened.pop(digest, None)
            key = await self._keys.check(token)
            self._opened[digest] = (key, now)  # the time before it was asked for
            if len(self._opened) > CALLERS_KEPT_MAX:
                del self._opened[next(iter(self._opened))]
        return key

    def _caller(self, key: AccessKey, address: str | None) -> Caller:
        """Return the Limpet of a key: one for all requests with that key from one address."""
        place = (key.id, address)
        caller = self._callers.pop(place, None)
        if caller is None or caller.lapsed.is_set():
            principal = key.principal
            caller = Caller(
                self._lp.acting_as(principal, address=address),
                principal.id,
                principal.app,
                principal.user,
                principal.role == "admin",
                principal,
            )
        self._callers[place] = caller
        if len(self._callers) > CALLERS_KEPT_MAX:
            self._callers.pop(next(iter(self._callers))).lapsed.set()  # it may come again
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        return caller

    async def _watch(self) -> None:
        """Look at the keys of those who are in, again and again: each key once, however many
        addresses it comes from, and several at a time."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            ids = list(dict.fromkeys([id for id, _ in self._callers]))
            lapsed, failed = set[str](), None
            for first in range(0, len(ids), KEYS_CHECKED_AT_ONCE):
                some = ids[first : first + KEYS_CHECKED_AT_ONCE]
                keys = await asyncio.gather(
                    *[self._keys.find(id) for id in some], return_exceptions=True
                )
                now_us = journal_of(self._lp).now_us()
                for id, key in zip(some, keys, strict=True):
                    if isinstance(key, BaseException):
                        failed = key
                    elif key is None or key.state(now_us) != "active":
                        lapsed.add(id)
            if failed is not None:  # nobody is thrown out because a store is busy
                SERVER.warning("keys not checked: error=%s", error_name(failed))
            for digest in [d for d, (key, _) in self._opened.items() if key.id in lapsed]:
                del self._opened[digest]
            for place in [each for each in self._callers if each[0] in lapsed]:
                self._callers.pop(place).lapsed.set()

    async def _record(self, error: EntryRefused, token: str, address: str | None) -> None:
        """Record a failed entry. Of the text of a key only its id is recorded."""
        shown = token[:19] if token.startswith("lk_") else None
        await journal_of(self._lp).audit.record(
            shown,
            "enter",
            Resource("store", EVERY_APP),
            allowed=False,
            code=error.code,
            address=address,
        )

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


class TokenGate:
    """Admits holders of session tokens, for the session that each names; passes on all others.

    `limpet.Tokens` decides, in its order, with the operation of the route. Streams end within two
    seconds after their token has expired or was revoked.
    """

    def __init__(self, lp: Limpet, tokens: Tokens, others: Gate) -> None:
        self._lp, self._tokens, self._others = lp, tokens, others
        self._callers = weakref.WeakSet[Caller]()
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, connection: HTTPConnection) -> Caller:
        token = bearer_of(connection)
        if not _TOKEN.fullmatch(token):
            return await self._others(connection)
        if isinstance(self._others, DevGate):
            await self._others(connection)
        note, address = note_of(connection), None
        if connection.client is not None and connection.client.host:
            address = connection.client.host
        named = connection.path_params.get("session_id")
        operation = _OUTSIDE if named is None else note.operation
        try:
            claims = await self._tokens.check(
                token,
                operation=operation,
                address=address,
                nonce=header_of(connection, NONCE_HEADER),
                session_id=None if named is None else _session_id(str(named)),
            )
        except AccessDenied as denied:
            if named is None:  # no scope opens it
                raise AccessDenied(denied.denial, denied.action, denied.resource) from None
            raise
        principal = claims.principal
        if named is None:
            error = AccessDenied("access_denied", operation, str(Resource.of(claims.key)))
            await journal_of(self._lp).audit.record(
                principal,
                operation,
                Resource.of(claims.key),
                allowed=False,
                code=error.denial,
                address=address,
            )
            raise error
        caller = Caller(
            self._lp.acting_as(principal, address=address, session=claims.key),
            principal.id,
            claims.key.app,
            claims.key.user,
            principal.role == "admin",
            principal,
            token,
            claims.rotated,
        )
        if note.streams:
            self._callers.add(caller)
            if self._watching is None:
                self._watching = asyncio.get_running_loop().create_task(self._watch())
        return caller

    async def _watch(self) -> None:
        """End the streams of tokens that are not good any more."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            failed: LimpetError | None = None
            for caller in tuple(self._callers):
                assert caller.token is not None
                try:
                    good = await is_good(self._tokens, caller.token)
                except LimpetError as error:  # the others are looked at all the same
                    failed = error
                    continue
                if not good:
                    self._callers.discard(caller)
                    caller.lapsed.set()
            if failed is not None:
                SERVER.warning("tokens not checked: error=%s", error_name(failed))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._others.close()


def _session_id(named: str) -> str:
    """The id in the session's key; what is none is refused as the id of another session."""
    try:
        return session_key_id(named)
    except InvalidInput:
        return named


def bearer_of(connection: HTTPConnection) -> str:
    """The key or token of a request; empty if it has none."""
    given = header_of(connection, b"authorization") or ""
    token = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
    return token.strip() or header_of(connection, b"x-api-key") or ""


def header_of(connection: HTTPConnection, name: bytes) -> str | None:
    """The first header of this name, in lower case; None without one."""
    value = first_headers(connection.scope).get(name)
    return None if value is None else value.decode("latin-1")


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """The first header of each name, in lower case."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS)
    if headers is None:  # of another server than ours
        headers = scope[HEADERS] = dict([*scope["headers"]][::-1])
    return headers


@lru_cache(_HOSTS_REMEMBERED)
def _names_loopback(named: str) -> bool:
    try:
        host = urlsplit(named if "://" in named else f"//{named}").hostname
    except ValueError:
        return False
    return host in _NAMES
