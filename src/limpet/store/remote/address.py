"""The address of a server: its URL, the key to enter with, and how TLS is checked."""

from __future__ import annotations

import ipaddress
import ssl
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from limpet.errors import InvalidInput, InvalidURL
from limpet.store.logs import REMOTE, SHOWN, is_heard
from limpet.store.protocol import Check
from limpet.store.remote.messages import PATH
from limpet.store.remote.tls import Tls, is_pinned

PORT: Final = 8420
PLAIN_HTTP: Final = "server.plain_http"  # the code of the warnings, of a server and of its clients
_HOSTS_REMEMBERED: Final = 256
_ADVICE: Final = "Write http://host:8420, or https://host for a server with TLS"
_USE_TLS: Final = (
    "Start the server with --tls-cert and --tls-key, or put a proxy with TLS before it; then write "
    "https://."
)


class Address(msgspec.Struct, frozen=True):
    """A server, and how to enter it. It is shown without its key."""

    url: str
    host: str
    port: int
    path: str  # before the routes: a proxy may serve the store under a path
    tls: ssl.SSLContext | None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    @property
    def pinned(self) -> bool:
        """True if only servers with a certain public key are spoken to."""
        return self.tls is not None and is_pinned(self.tls)

    @property
    def in_plain(self) -> bool:
        """True if what is sent can be read on the way to another machine."""
        return self.tls is None and not is_loopback(self.host)

    @property
    def socket_url(self) -> str:
        scheme = "ws" if self.tls is None else "wss"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}{PATH}"


def address_of(
    url: str, *, token: str | None = None, tls: Tls | ssl.SSLContext | str | Path | None = None
) -> Address:
    """Read the URL of a server. `tls` is a Tls, an SSLContext, or a file of the CA to trust.

    Raises InvalidURL, InvalidInput.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidURL(url, "it is not a URL", _ADVICE) from None
    if not host:
        raise InvalidURL(url, "it names no host", _ADVICE)
    if parts.username or parts.password:
        raise InvalidURL(url, "a key does not belong into a URL", "Pass it as token=…")
    if parts.query or parts.fragment:
        raise InvalidURL(url, "the URL of a server has no options", _ADVICE)
    token = None if token is None else _checked(token)
    secure = parts.scheme == "https"
    if tls is not None and not secure:
        raise InvalidInput("tls goes with https:// URLs. Leave it out, or write https.")
    default = 443 if secure else PORT
    context = _context(tls) if secure else None
    return Address(url, host, port or default, parts.path.rstrip("/"), context, token)


@lru_cache(_HOSTS_REMEMBERED)
def is_loopback(host: str) -> bool:
    """True if an address is of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a unix socket has no host
        return host in ("localhost", "") or host.endswith(".localhost")


def warn_if_plain(address: Address) -> None:
    """Log a warning if keys and sessions are about to travel in plain text, and let Python show it
    if nobody reads the log. Called once for each client, before anything is sent."""
    if address.in_plain:
        shown = (
            f"{PLAIN_HTTP}: {address.url} is reached without TLS. The key and all sessions can be "
            "read on the way: write https:// if the server, or a proxy before it, has TLS."
        )
        REMOTE.warning(
            "plain HTTP: store=%s code=%s", address.url, PLAIN_HTTP, extra={SHOWN: shown}
        )
        if not is_heard(REMOTE):
            warnings.warn(shown, RuntimeWarning, stacklevel=2)


def transport_check(url: str) -> Check:
    """Return the doctor's check of the way to a server. Raises InvalidURL."""
    if url.lower().startswith("https:"):
        return Check("transport", "TLS")
    if not address_of(url).in_plain:
        return Check("transport", "plain HTTP within this machine")
    text = "plain HTTP: the key and all sessions can be read on the way to the server"
    return Check("transport", text, "warning", _USE_TLS)


def _checked(token: object) -> str:
    """The text of a key, without the line end of the file that it was read from. Raises
    InvalidInput."""
    key = token.strip() if isinstance(token, str) else None
    if key is None or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput("token is the text of a key, as limpet access create printed it.")
    return key


def _context(tls: Tls | ssl.SSLContext | str | Path | None) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is None or isinstance(tls, (str, Path)):
        tls = Tls(ca=tls)
    if not isinstance(tls, Tls):
        raise InvalidInput(
            "tls takes a limpet.Tls, an ssl.SSLContext, or the file of a CA's certificate."
        )
    return tls.context()
