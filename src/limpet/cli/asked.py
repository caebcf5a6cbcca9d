"""What a command is asked for: the store, the session and the file it is about."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import quote

import typer

import limpet
from limpet.errors import InvalidInput, InvalidURL, SessionDeleted, SessionErased, SessionNotFound
from limpet.store.open import look_at, refuse_missing, sqlite_path

T = TypeVar("T")

Url = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        show_default=False,
        help="A file (support.db) or a URL (postgresql://user@host/database).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
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


def on(url: str, work: Callable[[limpet.Limpet], Awaitable[T]], *, looking: bool = False) -> T:
    """Open an existing store and work on it; with `looking`, read-only."""

    async def run(url: str) -> T:
        if not looking:
            await refuse_missing(url)
        store = await look_at(url) if looking else None
        async with limpet.Limpet(url, store=store) as lp:
            return await work(lp)

    return asyncio.run(run(store_url(url)))


@contextmanager
def named_by_options() -> Iterator[None]:
    """Give command-line advice for a session that does not exist."""
    try:
        yield
    except SessionNotFound as error:
        raise SessionNotFound(error.key, "Check --app, --user and --id") from error
    except (SessionDeleted, SessionErased) as error:
        raise type(error)(error.key, "Its events can no longer be read") from error


def file_path(text: str) -> Path:
    """A path. Raises InvalidInput for a URL, and for the - that other programs take for a pipe."""
    if text == "-":
        raise InvalidInput("FILE is a path, and - is not one. For a file of that name write ./-.")
    if text.startswith("sqlite://"):
        raise InvalidInput(f"FILE is a path, not a URL. Write {sqlite_path(text)} instead.")
    if "://" in text:
        raise InvalidInput(
            f"FILE is a path, and {text.partition('://')[0]}:// starts a URL. "
            "Write the path of a file, such as monday.db."
        )
    return Path(text)


def key_given(app_name: str | None, user: str | None, id_: str | None) -> limpet.Key | None:
    if app_name is None and user is None and id_ is None:
        return None
    if app_name is None or user is None or id_ is None:
        raise InvalidInput("a session is named by --app, --user and --id together. Pass all three.")
    return limpet.Key(app_name, user, id_)


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".db") or Path(text).exists()
