"""The URL of a server: what of it may be shown, and what is wrong with it before it is tried.

The rest of it is the driver's: its options, and the server's settings among them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from limpet.errors import InvalidURL

PORT_MAX: Final = 65_535
POOLER: Final = "pooler"  # the option that is ours and not the driver's
POOLED: Final = "transaction"  # its only value
_QUOTING: Final = "in a user or a password write @ : / ? # as %40 %3A %2F %3F %23"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|%00")


def where(url: str) -> str:
    """The URL without its password, wherever that stands, for people."""
    url = re.sub(r"(?<=password=)[^&]*", "…", url)
    before, at, after = url.rpartition("@")
    if not at or "://" not in before:
        return url
    scheme, _, login = before.partition("://")
    return f"{scheme}://{login.partition(':')[0]}@{after}"


def check_url(url: str) -> None:
    """Raise InvalidURL for what no server can be asked for. Shows nothing of a password."""
    if _CONTROL.search(url):
        raise InvalidURL(where(url), "it holds a control character")
    parts = urlsplit(url)
    hosts = parts.netloc.partition("@")[2] if "@" in parts.netloc else parts.netloc
    if "@" in hosts or parts.fragment:
        raise InvalidURL(where(url), f"it has an @ or a # too many; {_QUOTING}")
    for host in hosts.split(","):
        port = re.sub(r"^\[[^\]]*\]|^[^:]*", "", host).removeprefix(":")
        _check_port(url, unquote(port))
    try:
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        reason = "what stands after its ? is not name=value, parted by &"
        raise InvalidURL(where(url), reason) from None
    for port in options.get("port", [""])[-1].split(","):
        _check_port(url, port)
    for mode in _poolers(url):
        if mode != POOLED:
            reason = (
                f"{POOLER} is {POOLED}, not {mode!r}. For a pooler in session mode, or none, name "
                f"the server itself and leave {POOLER} out"
            )
            raise InvalidURL(where(url), reason)


def is_pooled(url: str) -> bool:
    """Whether the URL says that a pooler in transaction mode stands before the server."""
    return bool(_poolers(url))


def driver_url(url: str) -> str:
    """The URL without what is not the driver's: it would take that for a setting of the server."""
    before, _, query = url.partition("?")
    rest = "&".join([part for part in query.split("&") if _name(part) != POOLER])
    return f"{before}?{rest}" if rest else before


def options(url: str) -> dict[str, list[str]]:
    """What stands after its ?, by name."""
    return parse_qs(urlsplit(url).query)


def _poolers(url: str) -> list[str]:
    found = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    return [value for name, value in found if name == POOLER]


def _name(part: str) -> str:
    return unquote(part.partition("=")[0])


def _check_port(url: str, port: str) -> None:
    """A port is a number. What stands in its place may be a piece of a password."""
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= PORT_MAX):
        shown = where(url).replace(f":{port}", ":…", 1)
        reason = f"its port is not a number from 1 to {PORT_MAX}; {_QUOTING}"
        raise InvalidURL(shown, reason)
