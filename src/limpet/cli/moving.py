"""The commands that move and forget sessions: copy, export, mirror, import, erase, erase-user."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

import limpet
from limpet.cli.asked import (
    Json,
    MaybeId,
    MaybeUser,
    Url,
    file_path,
    key_given,
    named_by_options,
    on,
    refuse_unknown,
    store_url,
)
from limpet.cli.moved import (
    show_copied,
    show_erased,
    show_exported,
    show_forgotten,
    show_imported,
    show_mirrored,
)
from limpet.cli.show import Screen
from limpet.errors import InvalidInput
from limpet.model import is_reserved
from limpet.session.move.transfer import Copied
from limpet.store.open import look_at
from limpet.store.protocol import Erasure, Erasures, Forks

App = Annotated[str, typer.Option("--app", metavar="NAME", help="The app of the session.")]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="Its user.")]
Id = Annotated[str, typer.Option("--id", metavar="ID", help="Its id.")]
MaybeApp = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_FOUND = 1


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to copy from.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The store to copy to; it is created if need be.")
    ],
    *,
    app_name: MaybeApp = None,
    user: MaybeUser = None,
    id_: MaybeId = None,
    as_json: Json = False,
) -> None:
    """Copy sessions from one store to another.

    Copies everything, an app, or one session. The source is only read. Safe to interrupt and run
    again: the next run sends what is missing. Exits with 1 if something could not be copied.
    """
    screen = Screen(as_json=as_json)

    async def run(urls: tuple[str, str]) -> Copied:
        looking = await look_at(urls[0])
        async with limpet.Limpet(urls[0], store=looking) as lp, limpet.open(urls[1]) as other:
            if key is None and app_name is not None and not is_reserved(app_name):
                await refuse_unknown(lp, app_name)
            with screen.progress("copying events") as progress, named_by_options():
                if key is not None:
                    return await lp.copy(key, to=other, progress=progress)
                return await lp.copy(app=app_name, to=other, progress=progress)

    with screen.errors():
        whole = user is None and id_ is None
        key = None if whole else key_given(app_name, user, id_)
        urls = (store_url(source), store_url(target))
        if urls[0] == urls[1]:
            raise InvalidInput("FROM and TO are the same store. Name another one to copy to.")
        began = time.monotonic()
        copied = asyncio.run(run(urls))
        show_copied(screen, copied, time.monotonic() - began)
    raise typer.Exit(0 if copied.ok else _FOUND)


def export(
    url: Url,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; must not exist yet.")],
    *,
    app_name: App,
    user: User,
    id_: Id,
    as_json: Json = False,
) -> None:
    """Write one session to a file, to be imported elsewhere.

    The file holds the whole log with its bodies in plain text. It appears complete or not at all.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        key, target = limpet.Key(app_name, user, id_), file_path(file)

        async def run(lp: limpet.Limpet) -> None:
            with named_by_options():
                await lp.export(key, target)

        on(url, run, looking=True)
        show_exported(screen, key, target)


def mirror(
    url: Url,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where to write; made if need be.")
    ],
    *,
    app_name: MaybeApp = None,
    user: MaybeUser = None,
    id_: MaybeId = None,
    as_json: Json = False,
) -> None:
    """Write sessions as files that people read.

    Each has a directory with session.json, events.jsonl, wake-queue.jsonl and runtime/. They are
    only written, in plain text: change the session, and run it again.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        whole = user is None and id_ is None
        key = None if whole else key_given(app_name, user, id_)
        target = file_path(directory)

        async def run(lp: limpet.Limpet) -> limpet.Mirrored:
            with named_by_options():
                if key is not None:
                    return await lp.maintenance.mirror(target, key)
                if app_name is not None:
                    await refuse_unknown(lp, app_name)
                return await lp.maintenance.mirror(target, app=app_name)

        show_mirrored(screen, on(url, run, looking=True), target)


def import_(
    url: Annotated[
        str, typer.Argument(metavar="STORE", help="The store; it is created if need be.")
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export has written.")],
    *,
    as_json: Json = False,
) -> None:
    """Bring the session in a file into a store.

    The whole file is verified first. Safe to interrupt and run again.
    """
    screen = Screen(as_json=as_json)

    async def run(source: Path) -> tuple[limpet.Key, int]:
        async with limpet.open(store_url(url)) as lp:
            key = await lp.import_(source)
            return key, (await lp.get(key, tail=0)).head.version

    with screen.errors():
        key, version = asyncio.run(run(file_path(file)))
        show_imported(screen, key, version)


def erase(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    forks: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="What to do about its forks: refuse, erase (them too) or keep."
        ),
    ] = "refuse",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Forget one session for good.

    A SQLite file is rewritten, which takes time by its size. Asks first, unless --yes is given.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        key = limpet.Key(app_name, user, id_)
        how: Forks = _forks(forks)

        async def run(lp: limpet.Limpet) -> Erasure | None:
            return await lp.erase(key, forks=how)

        _ask(f"Erase the session {key} for good?", yes=yes, as_json=as_json)
        show_erased(screen, key, on(url, run))


def erase_user(
    url: Url,
    *,
    app_name: Annotated[str, typer.Option("--app", metavar="NAME", help="The app of the user.")],
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The user to forget.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Forget a user, with all sessions and user: names.

    A SQLite file is rewritten once, which takes time by its size. Asks first, unless --yes is
    given. Repeating it is harmless, and finishes what was interrupted.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        limpet.Key(app_name, user, "any")  # refuses what could not be one

        async def run(lp: limpet.Limpet) -> Erasures:
            return await lp.erase_user(app_name, user)

        asked = f"Erase everything of the user {user} of {app_name} for good?"
        _ask(asked, yes=yes, as_json=as_json)
        show_forgotten(screen, app_name, user, on(url, run))


def _ask(question: str, *, yes: bool, as_json: bool) -> None:
    """Let a person confirm. Where nobody can be asked, --yes has to be given."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InvalidInput(f"nobody can be asked here: {question} Pass --yes to confirm.")
    if not typer.confirm(question, err=True):
        raise InvalidInput("nothing was erased: it was not confirmed. Answer y, or pass --yes.")


def _forks(text: str) -> Forks:
    match text:
        case "refuse" | "erase" | "keep":
            return text
    raise InvalidInput(f"--forks is {text!r}. Pass refuse, erase or keep.")
