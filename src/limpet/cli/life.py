"""The commands about the life of sessions: suspend, resume, complete, terminate, archive,
unarchive; and of a store: sweep and phases."""

from __future__ import annotations

import asyncio
import getpass
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.table import Table

import limpet
from limpet.cli.asked import Json, Url, named_by_options, store_url
from limpet.cli.output import cell
from limpet.cli.past import Actor, App, Id, User
from limpet.cli.show import Screen
from limpet.errors import InvalidInput
from limpet.model import PAGE_MAX
from limpet.model.facts.phases import PHASES, Phase
from limpet.session.wire import key_form
from limpet.store.open import look_at, refuse_missing

T = TypeVar("T")
Cold = Annotated[
    str | None,
    typer.Option("--archive", metavar="URL", help="file:///directory or s3://bucket/prefix."),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")]
Counts = dict[tuple[str, str], int]
_FOUND = 1


def suspend(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    reason: Reason = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Suspend a session: inputs wait, nothing runs."""
    key = (app_name, user, id_)
    _move(url, key, lambda s: s.suspend(reason, actor=acting(actor)), as_json=as_json)


def complete(
    url: Url, *, app_name: App, user: User, id_: Id, actor: Actor = None, as_json: Json = False
) -> None:
    """Complete a session: its work is done."""
    key = (app_name, user, id_)
    _move(url, key, lambda s: s.complete(actor=acting(actor)), as_json=as_json)


def terminate(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    reason: Reason = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Terminate a session: it ends before its work is done."""
    key = (app_name, user, id_)
    _move(url, key, lambda s: s.terminate(reason, actor=acting(actor)), as_json=as_json)


def archive(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    cold: Cold = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Move a completed or terminated session to the archive."""
    key = (app_name, user, id_)
    _move(url, key, lambda s: s.archive(actor=acting(actor)), cold, as_json=as_json)


def unarchive(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    cold: Cold = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Bring an archived session back, in the phase it had before."""
    screen, key = Screen(as_json=as_json), limpet.Key(app_name, user, id_)

    async def run(lp: limpet.Limpet) -> str:
        await lp.unarchive(key, actor=acting(actor))
        return (await lp.get(key)).phase

    with screen.errors(), named_by_options():
        _show_phase(screen, key, _on(url, run, cold))


def resume(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Restore an older checkpoint if need be.")
    ] = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Resume a suspended session, and print the report."""
    screen, key = Screen(as_json=as_json), limpet.Key(app_name, user, id_)

    async def run(lp: limpet.Limpet) -> limpet.Resumption:
        _, report = await lp.resume(key, fallback=fallback, actor=acting(actor))
        return report

    with screen.errors(), named_by_options():
        report = _on(url, run, None)
        steps = [msgspec.to_builtins(step) for step in report.steps]
        told = {"ok": True, "session": key_form(key), "steps": steps, **report.figures}
        with screen.answer({**told, "warnings": list(report.warnings)}) as say:
            for line in str(report).split("\n"):
                say(line, "warning" if line.startswith("  warning") else "ok")


def sweep(
    url: Url,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="With --watch: how often.")
    ] = 60.0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Act on at most N sessions at once.")
    ] = 1_000,
    cold: Cold = None,
    as_json: Json = False,
) -> None:
    """Act on timeouts: suspend, terminate, archive, delete.

    Any number may run at once. Exits with 1 if a session could not be moved on.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.Swept:
        while True:
            swept = await lp.work.sweep(limit=limit)
            if not watch:
                return swept
            _show_swept(screen, swept)
            if not swept.more:
                await asyncio.sleep(every)

    with screen.errors():
        if not every > 0:
            raise InvalidInput("--every is a number of seconds above 0.")
        swept = _on(url, run, cold)
        _show_swept(screen, swept)
    raise typer.Exit(_FOUND if swept.failed else 0)


def phases(url: Url, *, as_json: Json = False) -> None:
    """Count the sessions of each app by phase."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> Counts:
        counts: Counts = Counter()
        cursor = None
        while True:
            page = await lp.list(reverse=False, limit=PAGE_MAX, cursor=cursor)
            counts.update(Counter([(head.key.app, head.phase) for head in page.items]))
            cursor = page.cursor
            if cursor is None:
                return counts

    with screen.errors():
        counts = _on(url, run, None, looking=True)
        apps = sorted({app for app, _ in counts})
        told = {app: {p: counts.get((app, p), 0) for p in PHASES} for app in apps}
        screen.display({"ok": True, "apps": told}, lambda: _table(told), _lines(told))


def _table(told: Mapping[str, Mapping[Phase, int]]) -> Table:
    """Apps by phases, for a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("app")
    for phase in PHASES:
        table.add_column(phase, justify="right")
    for app, row in told.items():
        table.add_row(cell(app), *[f"{row[phase]:,}" if row[phase] else "" for phase in PHASES])
    return table


def _lines(told: Mapping[str, Mapping[Phase, int]]) -> Iterator[str]:
    for app, row in told.items():
        shown = ", ".join([f"{count:,} {phase}" for phase, count in row.items() if count])
        yield f"{app}: {shown}"


def acting(given: str | None) -> str:
    """Who acts: the one named, or whoever is logged in."""
    return f"cli:{getpass.getuser()}" if given is None else given


# --- private ------------------------------------------------------------------------------------


def _move(
    url: str,
    key: tuple[str, str, str],
    verb: Callable[[limpet.Session[Any]], Awaitable[limpet.Transition]],
    cold: str | None = None,
    *,
    as_json: bool,
) -> None:
    screen, of = Screen(as_json=as_json), limpet.Key(*key)

    async def run(lp: limpet.Limpet) -> str:
        return (await verb(lp.session(of))).phase

    with screen.errors(), named_by_options():
        _show_phase(screen, of, _on(url, run, cold))


def _show_phase(screen: Screen, key: limpet.Key, phase: str) -> None:
    with screen.answer({"ok": True, "session": key_form(key), "phase": phase}) as say:
        say(f"ok: {key} is {phase}.", "ok")


def _show_swept(screen: Screen, swept: limpet.Swept) -> None:
    failed = [{"session": key_form(e.key), "reason": e.reason} for e in swept.failed]
    told = {**msgspec.to_builtins(swept), "ok": not swept.failed, "failed": failed}
    with screen.answer(told) as say:
        for each in swept.failed:
            say(f"not swept: {each.key}: {each.reason}", "problem")
        say(f"{'not ok' if failed else 'ok'}: {swept}.", "problem" if failed else "ok")


def _on(
    url: str,
    work: Callable[[limpet.Limpet], Awaitable[T]],
    cold: str | None,
    *,
    looking: bool = False,
) -> T:
    async def run(found: str) -> T:
        if not looking:
            await refuse_missing(found)
        store = await look_at(found) if looking else None
        async with limpet.Limpet(found, store=store, archive=cold) as lp:
            return await work(lp)

    return asyncio.run(run(store_url(url)))


COMMANDS = (suspend, resume, complete, terminate, archive, unarchive, sweep, phases)
