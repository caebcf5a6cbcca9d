"""The address of a server: its URL, the key to enter with, and how TLS is checked."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from limpet.errors import InvalidInput, InvalidURL
from limpet.store.remote.messages import PATH
from limpet.store.remote.tls import Tls, is_pinned

PORT: Final = 8420
_ADVICE: Final = "Write http://host:8420, or https://host for a server with TLS"


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
