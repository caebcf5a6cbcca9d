"""The URL of a server: what of it may be shown, and what is wrong with it before it is tried.

The rest of it is the driver's: its options, and the server's settings among them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from limpet.errors import InvalidURL

PORT_MAX: Final = 65_535
# The options that are ours and not the driver's.
POOLER: Final = "pooler"
POOLED: Final = "transaction"  # its only value
DIRECT: Final = "direct"  # beside it: the URL of the server itself
_SCHEMES: Final = ("postgresql", "postgres")
_QUOTING: Final = "in a user or a password write @ : / ? # as %40 %3A %2F %3F %23"
_ENCODING: Final = "Percent-encode it as a whole, by urllib.parse.quote: it is a URL within a URL"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|%00")


def where(url: str) -> str:
    """The URL without its password, wherever that stands, for people."""
    # With all that follows: an & in it that was not encoded parts its password.
    url = re.sub(rf"(?<=[?&]{DIRECT}=).*", "…", url, flags=re.DOTALL)
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
    for mode in _given(url, POOLER):
        if mode != POOLED:
            other = f", not {mode!r}" if mode.isalnum() else ""  # it may be more than one option
            reason = (
                f"{POOLER} is {POOLED}{other}. For a pooler in session mode, or none, name "
                f"the server itself and leave {POOLER} out"
            )
            raise InvalidURL(where(url), reason)
    for server in _given(url, DIRECT):
        if wrong := _not_direct(server, pooled=is_pooled(url)):
            raise InvalidURL(where(url), wrong)


def is_pooled(url: str) -> bool:
    """True if the URL says that a pooler in transaction mode stands before the server."""
    return bool(_given(url, POOLER))


def listening_url(url: str) -> str | None:
    """The URL by which a process of the server can be had alone, as LISTEN needs it; None if the
    URL names a pooler and nothing else."""
    return url if not is_pooled(url) else next(reversed(_given(url, DIRECT)), None)


def driver_url(url: str) -> str:
    """The URL without what is not the driver's: it would take that for a setting of the server."""
    before, _, query = url.partition("?")
    rest = "&".join([part for part in query.split("&") if _name(part) not in (POOLER, DIRECT)])
    return f"{before}?{rest}" if rest else before


def options(url: str) -> dict[str, list[str]]:
    """The options after its ?, by name."""
    return parse_qs(urlsplit(url).query)


def _given(url: str, name: str) -> list[str]:
    """The values of an option of ours."""
    parts = [part for part in urlsplit(url).query.split("&") if _name(part) == name]
    return [unquote(part.partition("=")[2]) for part in parts]


def _not_direct(server: str, *, pooled: bool) -> str | None:
    """The reason why this is not the URL of the server behind a pooler, without its password."""
    if not pooled:
        return f"{DIRECT} belongs beside {POOLER}={POOLED}; without a pooler leave it out"
    if server.partition("://")[0] not in _SCHEMES:
        return f"{DIRECT} is a URL of the server itself, as in {DIRECT}=postgresql://user@host/name"
    if is_pooled(server) or _given(server, DIRECT):
        return f"{DIRECT} is a URL of the server itself, without {POOLER} and {DIRECT}"
    try:
        check_url(server)
    except InvalidURL as error:
        return f"of the URL after {DIRECT}=: {error.reason}. {_ENCODING}"
    return None


def _name(part: str) -> str:
    return unquote(part.partition("=")[0])


def _check_port(url: str, port: str) -> None:
    """A port is a number. What stands in its place may be a piece of a password."""
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= PORT_MAX):
        shown = where(url).replace(f":{port}", ":…", 1)
        reason = f"its port is not a number from 1 to {PORT_MAX}; {_QUOTING}"
        raise InvalidURL(shown, reason)
