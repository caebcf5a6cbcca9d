"""Who enters: a request becomes a `Caller`, with the Limpet that it may use.

With `dev` everybody on this machine is an admin; a request that names another host is refused,
because a page of the web may have made a browser send it. Otherwise a request needs a key, whose
principal decides everything else: the Limpet of a caller is `lp.acting_as(principal)`.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import secrets
import weakref
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from limpet.errors import AccessDenied, EntryRefused, InvalidInput, LimpetError
from limpet.security.access import Principal, Resource
from limpet.security.roles import EVERY_APP
from limpet.server.ids import session_key_id
from limpet.server.limits import CALLERS_KEPT_MAX, KEY_CHECK_SECONDS
from limpet.server.loggers import SERVER
from limpet.session.access_keys import AccessKey, AccessKeys
from limpet.session.limpet import Limpet, journal_of
from limpet.session.tokens import Tokens, is_good
from limpet.store.logs import error_name

_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_BEARER: Final = "bearer "
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)  # a key has no dots
_OUTSIDE: Final = "store"  # the operation of a route that is about no session
NONCE_HEADER: Final = "limpet-nonce"  # a text that the client uses once
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
    """What a route does, for those who decide before it is asked."""

    operation: str = "read"  # an action of the guard
    streams: bool = False  # it is open for long


NOTE: Final = "limpet_note"  # of the function that answers a route


def note_of(connection: HTTPConnection) -> RouteNote:
    """What the route of a request does."""
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
        """Raises EntryRefused if the request comes from elsewhere, or names another host."""
        client = connection.client
        if client is not None and not is_loopback(client.host):
            reason = "it serves this machine only (--dev)"
            raise EntryRefused(HERE, reason, "Start it without --dev, and create a key")
        for header in ("host", "origin"):
            named = connection.headers.get(header)
            if named is not None and not _names_loopback(named):
                reason = f"the request names the {header} {named[:100]!r}"
                raise EntryRefused(HERE, reason, "With --dev only localhost is served")
        return self._caller

    async def close(self) -> None:
        pass


class LinkGate:
    """Lets in whoever has the link of `limpet studio`, from this machine only.

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
        given = connection.headers.get("authorization", "")
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
    """Lets in whoever has a key. Every failure is in the audit before it is answered.

    The keys of those who are in are looked at again every KEY_CHECK_SECONDS: revoked or expired,
    `lapsed` is set, and whoever serves the caller ends.
    """

    def __init__(self, lp: Limpet) -> None:
        self._lp = lp
        self._keys = AccessKeys(journal_of(lp))
        self._callers: dict[str, Caller] = {}  # by the id of their key, the newest last
        self._watching: asyncio.Task[None] | None = None

    async def __call__(self, connection: HTTPConnection) -> Caller:
        token = bearer_of(connection)
        address = None if connection.client is None else connection.client.host
        try:
            if not token:
                raise EntryRefused(HERE, "the request has no key")
            key = await self._keys.check(token)
        except EntryRefused as error:
            await self._record(error, token, address)
            raise
        return self._caller(key)

    def _caller(self, key: AccessKey) -> Caller:
        """What a key opens: one Limpet for all who come with it."""
        caller = self._callers.pop(key.id, None)
        if caller is None or caller.lapsed.is_set():
            principal = key.principal
            caller = Caller(
                self._lp.acting_as(principal),
                principal.id,
                principal.app,
                principal.user,
                principal.role == "admin",
                principal,
            )
        self._callers[key.id] = caller
        if len(self._callers) > CALLERS_KEPT_MAX:
            self._callers.pop(next(iter(self._callers))).lapsed.set()  # it may come again
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        return caller

    async def _watch(self) -> None:
        """Look at the keys of those who are in, again and again."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            for id, caller in tuple(self._callers.items()):
                try:
                    key = await self._keys.find(id)
                except LimpetError as error:  # nobody is thrown out because a store is busy
                    SERVER.warning("keys not checked: error=%s", error_name(error))
                    break
                if key is None or key.state(journal_of(self._lp).now_us()) != "active":
                    self._callers.pop(id, None)
                    caller.lapsed.set()

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
    """Lets in whoever has a session token, for the session that it names; hands all others on.

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
        claims = await self._tokens.check(
            token,
            operation=operation,
            address=address,
            nonce=connection.headers.get(NONCE_HEADER),
            session_id=None if named is None else _session_id(str(named)),
        )
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
            self._lp.acting_as(principal),
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
            for caller in tuple(self._callers):
                assert caller.token is not None
                try:
                    good = await is_good(self._tokens, caller.token)
                except LimpetError as error:
                    SERVER.warning("tokens not checked: error=%s", error_name(error))
                    break
                if not good:
                    self._callers.discard(caller)
                    caller.lapsed.set()

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
    given = connection.headers.get("authorization", "")
    token = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
    return token.strip() or connection.headers.get("x-api-key", "")


def is_loopback(host: str) -> bool:
    """True if an address is of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or not host  # a unix socket has no host


def _names_loopback(named: str) -> bool:
    try:
        found = urlsplit(named if "://" in named else f"//{named}").hostname
    except ValueError:
        return False
    return found in _NAMES
