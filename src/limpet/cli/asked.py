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
from limpet.model import PAGE_MAX
from limpet.store.cursor import check_app
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
MaybeUser = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="With --id: only this session.")
]
MaybeId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="With --user: only this session.")
]
_APPS_SHOWN: Final = 10
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


def on(
    url: str,
    work: Callable[[limpet.Limpet], Awaitable[T]],
    *,
    looking: bool = False,
    create: bool = False,
) -> T:
    """Open a store and work on it: with `looking`, read-only; with `create`, a new one too."""

    async def run(url: str) -> T:
        if not looking and not create:
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


def key_of(app_name: str | None, user: str | None, id_: str | None) -> limpet.Key:
    """The one session that all three options name. Raises InvalidInput if one is missing."""
    key = key_given(app_name, user, id_)
    assert key is not None  # one of the three is given
    return key


async def refuse_unknown(lp: limpet.Limpet, app_name: str, *, deleted: bool = False) -> None:
    """Raise SessionNotFound for an app without sessions: probably a misspelled name."""
    if (await lp.list(app=check_app(app_name), limit=1)).items:
        return
    if deleted and (await lp.list(app=app_name, limit=1, deleted=True)).items:
        return
    apps = await apps_of(lp)
    here = f"this store has sessions of {listed(apps)}" if apps else "this store has no sessions"
    raise SessionNotFound(f"of the app {app_name!r}", f"Check --app: {here}")


async def apps_of(lp: limpet.Limpet, *, typed: bool = False) -> list[str]:
    """The apps that have sessions, or typed ones."""
    found: set[str] = set()
    cursor = None
    while True:  # oldest first, which no write changes: each session is met once
        page = await lp.list(reverse=False, limit=PAGE_MAX, cursor=cursor)
        found.update([h.key.app for h in page.items if h.schema_version is not None or not typed])
        cursor = page.cursor
        if cursor is None:
            return sorted(found)


def listed(apps: list[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(apps) - _APPS_SHOWN
    return ", ".join(apps[:_APPS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".db") or Path(text).exists()
