"""Ids of the wire: a prefix and an id of ours, URL-safe and reversible.

An id that is made of letters, digits, "-" and "_" is shown as it is. Any other is written in
base64url after a dot, so `sevt_.NWFl…` is the event "5ae…/asked". No two ids of ours share one of
the wire.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from typing import Final

from limpet.errors import InvalidInput
from limpet.model import Key

SESSION: Final = "sesn_"
EVENT: Final = "sevt_"
THREAD: Final = "sthr_"
OUTCOME: Final = "outc_"
_PLAIN: Final = re.compile(r"[0-9A-Za-z_-]+")


def new_id(prefix: str) -> str:
    """A new id that sorts by the time it was made at."""
    return f"{prefix}{time.time_ns() // 1_000:014x}{secrets.token_hex(6)}"


def to_wire(prefix: str, id: str) -> str:
    """An id of ours as the wire shows it."""
    if _PLAIN.fullmatch(id):
        return prefix + id
    return f"{prefix}.{base64.urlsafe_b64encode(id.encode()).decode().rstrip('=')}"


def from_wire(prefix: str, text: str) -> str:
    """The id of ours. Raises InvalidInput if it is not one that `to_wire` makes."""
    rest = text.removeprefix(prefix)
    if text.startswith(prefix) and _PLAIN.fullmatch(rest):
        return rest
    id = _decoded(prefix, text)
    if id and to_wire(prefix, id) == text:
        return id
    raise InvalidInput(f"{text[:100]!r} is not an id of the form {prefix}…. Pass one unchanged.")


def _decoded(prefix: str, text: str) -> str:
    """The id that was encoded after a prefix and a dot; empty if there is none."""
    rest = text.removeprefix(f"{prefix}.")
    if rest == text:
        return ""
    try:
        return base64.urlsafe_b64decode(rest + "=" * (-len(rest) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""


def session_id(id: str) -> str:
    """The wire's id of a session: those made here are called so already."""
    if id.startswith(SESSION) and _PLAIN.fullmatch(id):
        return id
    return f"{SESSION}.{base64.urlsafe_b64encode(id.encode()).decode().rstrip('=')}"


def thread_id(key: Key) -> str:
    """The wire's id of a session as a thread of another one, or as its own first."""
    return to_wire(THREAD, f"{key.app}\n{key.id}")


def session_key_id(text: str) -> str:
    """The id in the session's key. Raises InvalidInput."""
    if text.startswith(SESSION) and _PLAIN.fullmatch(text):
        return text
    id = _decoded(SESSION, text)
    if not id or session_id(id) != text:
        shown = text[:100]
        ours = f"; yours is {session_id(shown)!r} here" if _PLAIN.fullmatch(shown) else ""
        raise InvalidInput(
            f"{shown!r} is not the id of a session. Pass one that this server returned{ours}."
        )
    return id
