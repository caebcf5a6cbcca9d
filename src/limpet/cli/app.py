"""The commands: doctor, verify, status, backup, restore, migrate; those of `moving` and `past`.

Each opens the store, calls one method, shows the result and exits with a code: 0 nothing is wrong,
1 something was found, else the `exit_code` of the error (2 the request, 3 the session, 4 the
store). A missing store is an error; only create, restore, copy and import make one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import typer

import limpet
from limpet.cli import agents, importing, life, moving, past, running, sessions
from limpet.cli.asked import (
    Json,
    MaybeId,
    MaybeUser,
    Url,
    apps_of,
    file_path,
    key_given,
    key_of,
    listed,
    named_by_options,
    on,
    refuse_unknown,
    store_url,
)
from limpet.cli.backlog import Backlog, SessionStatus, backlog_of
from limpet.cli.commands import Command, Commands
from limpet.cli.objects import imported_object
from limpet.cli.show import Screen
from limpet.cli.stuck import Stuck
from limpet.errors import InvalidInput
from limpet.model import to_us
from limpet.session.typing.migrate import MigrationPlan
from limpet.store.doctor import damage
from limpet.store.open import (
    backup_store,
    restore_store,
)
from limpet.store.protocol import Diagnosis, Report

T = TypeVar("T")

FOUND: Final = 1
# \b keeps the line breaks. docs/cli.md describes the same codes.
_CODES: Final = """\b
Exit codes:
  0    nothing is wrong
  1    something was found
  2    the request is wrong
  3    the session does not exist, or is not in the needed state
  4    the store cannot serve the request
  70   Limpet itself failed: a bug
  74   the output could not be written
  130  interrupted
  141  the reader of the output closed the pipe
"""

_ONE_OR_ALL: Final = "--app selects one app, --all-apps selects all. Pass one of the two."
_Registry = Annotated[
    str,
    typer.Option("--migrations", metavar="MODULE:NAME", help="The MigrationRegistry to apply."),
]
_StateClass = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="MODULE:CLASS",
        help="The State class to migrate to. Default: the newest version of the migrations.",
    ),
]
_OneApp = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
]
_AllApps = Annotated[bool, typer.Option("--all-apps", help="The sessions of every app.")]
_FailuresShown = Annotated[
    int, typer.Option(min=1, help="List at most N failing sessions of each kind; --json: all.")
]

app = typer.Typer(
    name="limpet",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Check, back up, restore, migrate and copy a store of sessions.",
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text, the same on a terminal and in a pipe
)
command = partial(app.command, cls=Command)


@app.callback(invoke_without_command=True)
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        sys.stdout.write(f"limpet {limpet.__version__}\n")
        raise typer.Exit


@command()
def doctor(
    url: Url,
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count warnings as findings: exit with 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a store, and recommend a fix for each finding.

    Verifies every session, then checks durability settings, versions, sizes and clocks. Read-only;
    safe to run while other processes write.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> Diagnosis:
        with screen.progress("reading sessions") as progress:
            return await lp.maintenance.doctor(progress=progress)

    with screen.errors():
        diagnosis = on(url, run, looking=True)
        well = screen.diagnosis(diagnosis, strict=strict)
    raise typer.Exit(0 if well else FOUND)


@command()
def verify(
    url: Url,
    *,
    app_name: Annotated[
        str | None,
        typer.Option("--app", metavar="NAME", help="The app of the one session to verify."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Its user.")] = None,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id.")] = None,
    as_json: Json = False,
) -> None:
    """Check every session's hash chain, or one session's.

    Also checks checksums, seqs, state and indexes. Read-only; safe to run while other processes
    write.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        key = key_given(app_name, user, id_)

        async def run(lp: limpet.Limpet) -> Report:
            with screen.progress("reading sessions") as progress, named_by_options():
                return await lp.maintenance.verify(key, progress=progress)

        report = on(url, run, looking=True)
        screen.report(report)
    raise typer.Exit(0 if report.ok else FOUND)


@command()
def status(
    url: Url,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
    ] = None,
    user: MaybeUser = None,
    id_: MaybeId = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, max=10_000, help="Show at most N.")
    ] = 50,
    as_json: Json = False,
) -> None:
    """Show which sessions wait, and which are leased.

    Counts all sessions and lists those that are leased, due or held back, the most urgent first; or
    shows one session, and why its last turn ended. Read-only; safe to run while other processes
    write.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> Backlog:
        if app_name is not None:
            await refuse_unknown(lp, app_name)
        return await backlog_of(lp, app_name, now=lp.now(), limit=limit)

    async def run_one(lp: limpet.Limpet) -> SessionStatus:
        with named_by_options():
            session = await lp.get(key, tail=0, untyped=True)
        texts = session.writer.known.texts
        run = (session.status, session.stop_reason)
        return SessionStatus(session.head, *run, to_us(lp.now()), texts)

    with screen.errors():
        if user is None and id_ is None:
            screen.status(on(url, run, looking=True))
        else:
            key = key_of(app_name, user, id_)
            screen.session_status(on(url, run_one, looking=True))


command("list")(sessions.list_)
command()(sessions.create)
command()(sessions.send)


@command()
def backup(
    url: Url,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The copy; must not exist yet.")],
    *,
    verify_copy: Annotated[
        bool, typer.Option("--verify", help="Verify the copy; exit with 1 if it is damaged.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a SQLite store to a file while it is in use.

    The copy is a consistent snapshot, and appears complete or not at all. For PostgreSQL use
    pg_dump or pg_basebackup.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        target = file_path(file)
        began = time.monotonic()
        with screen.steps("copying pages", "reading sessions") as (copying, reading):
            work = backup_store(
                store_url(url), target, verify=verify_copy, progress=copying, checking=reading
            )
            report = asyncio.run(work)
        screen.backed_up(target, report, time.monotonic() - began)
    raise typer.Exit(FOUND if report is not None and damage(report) else 0)


@command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The backup.")],
    url: Annotated[
        str, typer.Argument(metavar="STORE", help="The file to restore to, such as support.db.")
    ],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite the existing store.")
    ] = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Restore even a damaged backup; exit with 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a SQLite store from a backup.

    The backup is verified before anything is replaced. No process may have the store open. For
    PostgreSQL use pg_restore.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        backup_file = file_path(file)
        began = time.monotonic()
        with screen.steps("copying pages", "reading sessions") as (copying, reading):
            done = restore_store(
                backup_file,
                store_url(url, servers=False),
                replace=replace,
                damaged=damaged,
                progress=copying,
                checking=reading,
            )
        screen.restored(backup_file, done, time.monotonic() - began)
    raise typer.Exit(FOUND if damage(done.report) else 0)


@command()
def migrate(
    url: Url,
    *,
    registry: _Registry,
    state: _StateClass = None,
    app_name: _OneApp = None,
    all_apps: _AllApps = False,
    plan: Annotated[bool, typer.Option("--plan", help="Dry run: write nothing.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Migrate the sessions.")] = False,
    limit: _FailuresShown = 20,
    skip: Annotated[int, typer.Option(min=0, help="Skip the first N of them.")] = 0,
    as_json: Json = False,
) -> None:
    """Migrate typed state to a new schema version, in every session.

    Choose --plan (dry run) or --apply. A session that cannot be migrated is reported and left
    unchanged. Safe to interrupt and run again.
    """
    screen = Screen(as_json=as_json)
    stuck = Stuck() if as_json else Stuck(skip, limit)

    async def run(lp: limpet.Limpet) -> MigrationPlan:
        await _check_apps(lp, app_name, all_apps=all_apps)
        with screen.progress("migrating sessions" if apply else "trying sessions") as progress:
            how: dict[str, Any] = {"failure": stuck.add, "progress": progress}
            return await lp.maintenance.migrate(
                migrations, state_type, app=app_name, apply=apply, **how
            )

    with screen.errors():
        if plan == apply:
            raise InvalidInput("choose --plan (dry run) or --apply. Pass one of the two.")
        if app_name is not None and all_apps:
            raise InvalidInput(_ONE_OR_ALL)
        with screen.foreign():
            migrations = imported_object("--migrations", registry)
            state_type = None if state is None else imported_object("--state", state)
            done = on(url, run, looking=plan)
        screen.migration(done, stuck)
    raise typer.Exit(0 if done.ok else FOUND)


async def _check_apps(lp: limpet.Limpet, app_name: str | None, *, all_apps: bool) -> None:
    """Raise for an app without sessions, or if a registry may not be for all the apps here."""
    if app_name is not None:
        await refuse_unknown(lp, app_name)
    elif not all_apps and len(apps := await apps_of(lp, typed=True)) > 1:
        raise InvalidInput(
            f"this store has typed sessions of several apps: {listed(apps)}. Choose one with "
            "--app, or pass --all-apps if the registry is for all of them."
        )


verbs = (moving.copy, moving.erase, moving.export, moving.mirror)
runs = (*running.RUNS, running.confirm, running.answer, running.requeue, running.trace)
for verb in (*verbs, *runs):
    command()(verb)
for of_past in (*past.COMMANDS, *life.COMMANDS, *agents.COMMANDS):
    command()(of_past)
command("import")(moving.import_)
command("erase-user")(moving.erase_user)
command("import-adk")(importing.import_adk)
