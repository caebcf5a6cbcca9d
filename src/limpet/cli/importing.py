"""The command that brings sessions of another system into a store: import-adk."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Final

import typer

import limpet
from limpet.adapters.adk_import import Imported, open_source
from limpet.adapters.adk_import import import_adk as bring
from limpet.cli.asked import Json, store_url
from limpet.cli.show import Screen
from limpet.errors import InvalidInput
from limpet.store.answers import plural

_FOUND: Final = 1
_FILE: Final = re.compile(r"sqlite(\+\w+)?:///(?P<path>[^?]+?)(\.(db|sqlite3?))?(\?.*)?")


def import_adk(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The database of google-adk, as ADK has it: sqlite:///adk.db."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[STORE]",
            help="The store to import into; it is created if need be. Default: NAME.limpet.db "
            "beside NAME.db.",
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Bring the sessions of a google-adk database into a store.

    ADK's database is only read. Safe to interrupt and run again: the next run brings what is
    missing. Exits with 1 if a session could not be imported.
    """
    screen = Screen(as_json=as_json)

    async def run(source: str, store: str) -> Imported:
        async with open_source(source):  # it is one, or no store is made
            pass
        async with limpet.open(store) as lp:
            with screen.progress("importing events") as progress:
                return await bring(source, lp, progress=progress)

    with screen.errors():
        source = store_url(url)
        store = _beside(source) if target is None else store_url(target)
        began = time.monotonic()
        done = asyncio.run(run(source, store))
        show(screen, done, store, time.monotonic() - began)
    raise typer.Exit(0 if done.ok else _FOUND)


def show(screen: Screen, done: Imported, store: str, seconds: float) -> None:
    told = {
        "ok": done.ok,
        "sessions": done.sessions,
        "events": done.events,
        "names": done.names,
        "refused": [{"what": r.what, "code": r.code, "reason": r.reason} for r in done.refused],
        "refusals": done.refusals,
        "seconds": seconds,
    }
    with screen.answer(told) as say:
        for each in done.refused:
            say(f"not imported: {each.what}: {each.reason}", "problem")
        if done.refusals > len(done.refused):
            say(f"and {done.refusals - len(done.refused):,} more were not imported.", "problem")
        brought = f"{plural(done.sessions, 'new session')}, {plural(done.events, 'event')}"
        brought += f", {plural(done.names, 'shared name')}"
        how = "ok" if done.ok else "not ok"
        into = f" into {store}" if store.startswith("sqlite:") else ""  # a URL may have a password
        words = f"{how}: {brought} imported{into} in {seconds:.1f} s."
        say(words, "ok" if done.ok else "problem")


def _beside(source: str) -> str:
    """The store for a SQLite file whose owner names none."""
    found = _FILE.fullmatch(source)
    if found is None:
        raise InvalidInput("name the STORE to import into, such as support.db, after the URL.")
    return f"sqlite:///{found['path']}.limpet.db"
