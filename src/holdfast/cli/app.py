"""The commands: doctor, verify, backup, restore, migrate.

Each opens the store, calls one verb, shows its answer and ends with a code: 0 nothing is wrong,
1 something was found, else the `exit_code` of the error (2 the request, 3 the session, 4 the
store). A store that is not there is a mistake in the URL; no command makes one but restore.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

import holdfast
from holdfast.cli.named import named
from holdfast.cli.show import Screen
from holdfast.errors import InvalidInput
from holdfast.session.migrate import MigrationPlan, apps_of
from holdfast.store.open import refuse_change, refuse_missing, refuse_server
from holdfast.store.protocol import Diagnosis, Report

T = TypeVar("T")

FOUND: Final = 1
_CODES: Final = (
    "Exit codes: 0 nothing is wrong · 1 something was found · 2 the request is wrong · "
    "3 the session is not as needed · 4 the store cannot serve. docs/errors.md has every error."
)

app = typer.Typer(
    name="holdfast",
    help="Look after stores of durable sessions: examine, verify, back up, restore, migrate.",
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The store: sqlite:///file.db (four slashes for an absolute path) or "
        "postgresql://user@host/database.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.callback(invoke_without_command=True)
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.command(epilog=_CODES)
def doctor(
    url: Url,
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count warnings as findings: exit with 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Examine a store, and say what to do about it.

    Reads everything back as verify does, then looks at how the store is kept: durability
    settings, versions, sizes, clocks, what was left undone. Safe while others write; changes
    nothing.
    """
    screen = Screen(as_json=as_json)

    async def run(hf: holdfast.Holdfast) -> Diagnosis:
        with screen.progress("reading sessions") as progress:
            return await hf.doctor(progress=progress)

    with screen.errors():
        diagnosis = _on(url, run)
        screen.diagnosis(diagnosis)
        well = all(c.ok for c in diagnosis.checks) if strict else diagnosis.ok
    raise typer.Exit(0 if well else FOUND)


@app.command(epilog=_CODES)
def verify(
    url: Url,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", help="Only one session: its app …")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="… its user …")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="… and its id.")] = None,
    as_json: Json = False,
) -> None:
    """Hold every session, or one, against its chain.

    Reads everything back: chain, checksums, dense seqs, folds, indexes. Safe while others write;
    changes nothing.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        key = _key(app_name, user, id_)

        async def run(hf: holdfast.Holdfast) -> Report:
            with screen.progress("reading sessions") as progress:
                return await hf.verify(key, progress=progress)

        report = _on(url, run)
        screen.report(report)
    raise typer.Exit(0 if report.ok else FOUND)


@app.command(epilog=_CODES)
def backup(
    url: Url,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; must not exist yet.")],
    *,
    as_json: Json = False,
) -> None:
    """Copy a SQLite store to a file, while it is in use.

    The copy is of one instant, and whole or not there. For PostgreSQL use pg_dump or
    pg_basebackup.
    """
    screen = Screen(as_json=as_json)

    async def run(hf: holdfast.Holdfast) -> None:
        with screen.progress("copying pages") as progress:
            await hf.backup(file, progress=progress)

    with screen.errors():
        refuse_server(url)
        began = time.monotonic()
        _on(url, run)
        screen.copied("backed up to", file, file.stat().st_size, time.monotonic() - began)


@app.command(epilog=_CODES)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    url: Url,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite the store that is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a backup in the place of a SQLite store.

    No process may have that store open. The backup is checked first. For PostgreSQL use pg_restore.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        began = time.monotonic()
        with screen.progress("copying pages") as progress:
            holdfast.restore(file, url, replace=replace, progress=progress)
        screen.copied("restored from", file, file.stat().st_size, time.monotonic() - began)


@app.command(epilog=_CODES)
def migrate(
    url: Url,
    *,
    registry: Annotated[
        str,
        typer.Option(
            "--registry",
            metavar="MODULE:NAME",
            help="The MigrationRegistry; modules are looked for from the working directory on.",
        ),
    ],
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="MODULE:CLASS",
            help="The State class to migrate to; else the newest version the registry leads to.",
        ),
    ] = None,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
    ] = None,
    all_apps: Annotated[
        bool, typer.Option("--all-apps", help="Every app has this kind of state.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Try every session, write nothing.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Migrate every session that can be.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring typed state to a new schema version, in every session.

    With --plan every migration is tried and nothing is written; with --apply each session is
    migrated in a commit of its own, and those that cannot be are left as they are. Safe while
    others write, safe to interrupt, safe to repeat.
    """
    screen = Screen(as_json=as_json)

    async def run(hf: holdfast.Holdfast) -> MigrationPlan:
        if app_name is None and not all_apps and len(apps := await apps_of(hf)) > 1:
            raise InvalidInput(
                f"typed sessions of several apps are here: {', '.join(apps)}. One registry is of "
                "one kind of state: name the app with --app, or say --all-apps."
            )
        with screen.progress("migrating sessions" if apply else "trying sessions") as progress:
            return await hf.migrate(
                migrations, state_type, app=app_name, apply=apply, progress=progress
            )

    with screen.errors():
        if plan == apply:
            raise InvalidInput(
                "it must be said what to do: --plan tries and writes nothing, --apply migrates. "
                "Give one of the two."
            )
        with screen.foreign():
            migrations = named("--registry", registry)
            state_type = None if state is None else named("--state", state)
            done = _on(url, run, looking=plan)
        screen.migration(done)
    raise typer.Exit(0 if done.ok else FOUND)


def _on(url: str, work: Callable[[holdfast.Holdfast], Awaitable[T]], *, looking: bool = False) -> T:
    """Open the store that is there, and work on it. `looking`: not if opening changes it."""

    async def run() -> T:
        await (refuse_change(url) if looking else refuse_missing(url))
        async with holdfast.open(url) as hf:
            return await work(hf)

    return asyncio.run(run())


def _key(app_name: str | None, user: str | None, id_: str | None) -> holdfast.Key | None:
    if app_name is None and user is None and id_ is None:
        return None
    if app_name is None or user is None or id_ is None:
        raise InvalidInput("a session is named by --app, --user and --id together. Give all three.")
    return holdfast.Key(app_name, user, id_)
