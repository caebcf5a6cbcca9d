"""The store that a command is about: a URL, or the path of a SQLite file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from limpet.errors import InvalidURL

_SCHEME: Final = re.compile(r"(sqlite|postgresql|postgres|memory):")
_PATH: Final = "Write the path of a file, such as support.db or ./support"
_BOTH: Final = f"{_PATH}, or a URL, such as postgresql://user@host/database"


def store_url(text: str, *, servers: bool = True) -> str:
    """The URL of a store. A path is an existing file, ends in .db or contains a slash.

    Raises InvalidURL otherwise; the advice mentions servers only where one is accepted.
    """
    advice = _BOTH if servers else _PATH
    if "://" in text:
        return text
    if scheme := _SCHEME.match(text):
        reason = f"{scheme[0]} starts a URL, and // is missing after it"
        raise InvalidURL(text, reason, advice)
    if not text or "\x00" in text or not _is_path(text):
        raise InvalidURL(text, "it is neither a URL nor an existing file", advice)
    return f"sqlite:///{quote(text)}"


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".db") or Path(text).exists()
