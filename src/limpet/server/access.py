"""Who enters: a request becomes an `Caller`, the Limpet that its sender may use.

With `dev` everybody on this machine is an admin; a request that names another host is refused,
because a page of the web may have made a browser send it. Otherwise a request needs a key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from limpet.errors import EntryRefused
from limpet.session.limpet import Limpet

_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
HERE: Final = "this server"


class Caller(msgspec.Struct, frozen=True):
    """Somebody who may come in, and what they may use."""

    lp: Limpet
    name: str  # of the principal, for logs and for what is remembered of a client
    app: str | None = None  # that the key is for; None: the request says
    user: str | None = None
    admin: bool = False  # may write reserved types and adopt events that other stores recorded


CallerOf = Callable[[HTTPConnection], Awaitable[Caller]]


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


class ClosedGate:
    """Lets nobody in: for a server without keys."""

    async def __call__(self, connection: HTTPConnection) -> Caller:
        raise EntryRefused(HERE, "the request has no key")


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
