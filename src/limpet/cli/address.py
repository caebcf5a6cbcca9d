"""The store that a command is about: a URL, or the path of a SQLite file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from limpet.errors import InvalidURL

_SCHEME: Final = re.compile(r"(sqlite|postgresql|postgres|memory):")
_PATH: Final = "Write the path of a file, as in support.db or ./support"
_BOTH: Final = f"{_PATH}, or a URL, as in postgresql://user@host/database"


def store_url(text: str, *, servers: bool = True) -> str:
    """The URL of what was named. A path is a file that exists, ends in .db or has a slash in it.

    Raises InvalidURL for what is neither; it recommends a server only where one is taken.
    """
    advice = _BOTH if servers else _PATH
    if "://" in text:
        return text
    if scheme := _SCHEME.match(text):
        reason = f"{scheme[0]} begins a URL, and // is missing after it"
        raise InvalidURL(text, reason, advice)
    if not text or "\x00" in text or not _is_path(text):
        raise InvalidURL(text, "it is neither a URL nor a file here", advice)
    return f"sqlite:///{quote(text)}"


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".db") or Path(text).exists()
