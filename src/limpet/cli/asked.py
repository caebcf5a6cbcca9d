"""What a command is asked for: the store, the session and the file it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import limpet
from limpet.cli.address import store_url
from limpet.errors import InvalidInput, SessionDeleted, SessionErased, SessionNotFound
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
    """A path. Raises InvalidInput for a URL."""
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
