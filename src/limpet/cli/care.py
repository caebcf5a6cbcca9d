"""The commands that take care of a whole store: doctor, verify, backup, restore, migrate, compact;
and those that forget for good: erase, erase-user."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

import limpet
from limpet.cli.command import (
    CARE,
    Actor,
    Display,
    MaybeKey,
    Reading,
    SessionKey,
    Unopened,
    User,
    Writing,
    ask_first,
    chosen_keys,
    command,
)
from limpet.cli.options import (
    App,
    OtherNodes,
    OwnNode,
    Yes,
    apps_of,
    file_path,
    imported_object,
    json_file,
    refuse_unknown,
    shortened,
    store_url,
)
from limpet.cli.render import Cell, CommandResult, Grid, Part, TextLine
from limpet.errors import InvalidInput, KeysMissing, StoreOlder
from limpet.model import Key, to_time
from limpet.session.json_forms import key_form, report_form
from limpet.session.schema.migrate import Fate, MigrationOutcome, MigrationPlan
from limpet.store.doctor import damage
from limpet.store.open import backup_store, restore_store
from limpet.store.protocol import (
    Diagnosis,
    Erasure,
    ErasureCertificate,
    Forks,
    Report,
    plural,
    size,
)
from limpet.store.upgrade import upgrade_checks

_FINDINGS: Final = (
    "What to do: keep a copy of the store. Then restore the whole store from a backup that "
    "verifies (limpet restore FILE STORE --replace); or, to keep newer events of the other "
    "sessions, open that backup and copy the state of the damaged sessions from it."
)
_SEALED: Final = (
    "Sealed bodies were not read, and nothing else is wrong. What to do: pass --keys (or "
    "LIMPET_KEYS), which opens them."
)
Certificate = Annotated[
    str | None,
    typer.Option(
        "--certificate", metavar="FILE", help="Save the signed certificate. Needs --keys."
    ),
]
_ASIDE: Final = "The old store could not be closed and was kept as"
_ONE_OR_ALL: Final = "--app selects one app, --all-apps selects all. Pass one of the two."


@command(CARE)
async def doctor(
    store: Unopened,
    screen: Display,
    *,
    node: OwnNode = None,
    nodes: OtherNodes = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count warnings as findings: exit with 1.")
    ] = False,
) -> CommandResult:
    """Check a store, and recommend a fix for each finding.

    Verifies every session, then checks durability settings, versions, sizes and clocks. Of a store
    that an earlier release wrote it says what the upgrade will do. With --nodes it also looks for
    sessions that a node and this store both own. Read-only; safe to run while other processes
    write.
    """
    try:
        async with store.opened(writes=False, node=node, nodes=nodes or ()) as lp:
            with screen.progress("reading sessions") as progress:
                diagnosis = await lp.maintenance.doctor(progress=progress)
    except StoreOlder as error:
        checks = upgrade_checks(error.found, error.known)
        rest = TextLine("Nothing else was checked: this release reads the store once upgraded.")
        return _doctor_result(Diagnosis(checks, Report(0, 0, ())), rest, strict=strict)
    return _doctor_result(diagnosis, strict=strict)


def _doctor_result(diagnosis: Diagnosis, *lines: TextLine, strict: bool) -> CommandResult:
    counts = Counter(check.severity for check in diagnosis.checks)
    well = not counts["problem"] and not (strict and counts["warning"])
    rows: list[tuple[Cell | str, ...]] = []
    for check in diagnosis.checks:
        rows.append((Cell(check.severity, severity=check.severity), check.name, check.found))
        if check.advice:
            rows.append(("", "", f"→ {check.advice}"))
    words = f"{'ok' if well else 'not ok'}: {diagnosis.counted}"
    if not well and not counts["problem"]:
        words += "; with --strict a warning counts"
    checks = [{**msgspec.to_builtins(c), "ok": c.ok} for c in diagnosis.checks]
    form = {"checks": checks, "verify": report_form(diagnosis.report)}
    line = TextLine(f"{words}.", "ok" if well else "problem")
    grid = Grid(("result", "check"), rows, "what was found")
    return CommandResult(form, [grid, *lines, line], well)


@command(CARE)
async def verify(
    lp: Reading,
    key: MaybeKey,
    screen: Display,
    *,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="FILE", help="Compare with a receipt, too."),
    ] = None,
) -> CommandResult:
    """Check every session's hash chain, or one session's.

    Also checks checksums, seqs, state and indexes. Read-only; safe to run while other processes
    write. --against FILE also compares the log with a receipt of limpet receipt, which finds that
    store and key ring were rolled back together.
    """
    with screen.progress("reading sessions") as progress:
        report = await lp.maintenance.verify(key, progress=progress)
    if against is not None:
        findings = await lp.keys.compare(_receipt_in(against))
        report = msgspec.structs.replace(report, findings=(*report.findings, *findings))
    if report.ok:
        return CommandResult(report_form(report), [TextLine(str(report), "ok")])
    lines = [TextLine(str(finding), "problem") for finding in report.findings]
    many = plural(len(report.findings), "finding")
    advice = _FINDINGS if damage(report) else _SEALED
    lines.append(TextLine(f"{many}: {report.read} read. {advice}", "problem"))
    return CommandResult(report_form(report), lines, ok=False)


def _receipt_in(file: str) -> limpet.Receipt:
    """The receipt in a file, as limpet receipt prints it. Raises InvalidInput."""
    said = json_file("--against", file)
    try:
        return msgspec.convert(said.get("receipt", said), limpet.Receipt)
    except (msgspec.ValidationError, AttributeError) as error:
        raise InvalidInput(f"--against {file} is not a receipt. Pass one as printed.") from error


@command(CARE)
async def backup(
    store: Unopened,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The copy; must not exist yet.")],
    screen: Display,
    *,
    verify_copy: Annotated[
        bool, typer.Option("--verify", help="Verify the copy; exit with 1 if it is damaged.")
    ] = False,
) -> CommandResult:
    """Copy a SQLite or log store to a file while it is in use.

    The copy is a consistent snapshot, and appears complete or not at all. For PostgreSQL use
    pg_dump or pg_basebackup.
    """
    target, began = file_path(file), time.monotonic()
    with screen.steps("copying pages", "reading sessions") as (copying, reading):
        report = await backup_store(
            store.url, target, verify=verify_copy, progress=copying, checking=reading
        )
    seconds = time.monotonic() - began
    damaged = () if report is None else damage(report)
    words = f"backed up to {target}: {size(target.stat().st_size)} in {seconds:.1f} s; "
    if report is None:
        words += "not verified (--verify reads the copy back)."
    else:
        words += f"{_verification_text(report)}."
    if damaged:
        words += f" The copy has the same damage as the store. {_FINDINGS}"
    lines = [TextLine(str(finding), "problem") for finding in damaged]
    lines.append(TextLine(words, "problem" if damaged else "ok"))
    return CommandResult(_copy_form(target, report, seconds), lines, not damaged)


@command(CARE)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The backup.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE", help="What to restore to: support.db, or files:///support."
        ),
    ],
    screen: Display,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite the existing store.")
    ] = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Restore even a damaged backup; exit with 1.")
    ] = False,
) -> CommandResult:
    """Restore a SQLite or log store from a backup.

    The backup is verified before anything is replaced. No process may have the store open. For
    PostgreSQL use pg_restore. With --keys the key ring accepts the sessions as they are now.
    """
    source, began = file_path(file), time.monotonic()
    with screen.steps("copying pages", "reading sessions") as (copying, reading):
        done = restore_store(
            source,
            store_url(target, servers=False),
            replace=replace,
            damaged=damaged,
            progress=copying,
            checking=reading,
        )
    keys, keyring = chosen_keys()
    if keys is not None:
        accepting = limpet.open_sync(store_url(target, servers=False), keys=keys, keyring=keyring)
        with accepting as lp:
            lp.keys.anchor()
    seconds, problems = time.monotonic() - began, damage(done.report)
    words = f"restored from {source}: {size(source.stat().st_size)} in {seconds:.1f} s; "
    lines = [TextLine(str(finding), "problem") for finding in problems]
    words += f"{_verification_text(done.report)}."
    lines.append(TextLine(words, "problem" if problems else "ok"))
    if done.aside is not None:
        lines.append(TextLine(f"{_ASIDE} {done.aside}.", "warning"))
    aside = None if done.aside is None else str(done.aside)
    form = {**_copy_form(source, done.report, seconds), "aside": aside}
    return CommandResult(form, lines, not problems)


@command(CARE)
def migrate(
    store: Unopened,
    screen: Display,
    *,
    registry: Annotated[
        str,
        typer.Option("--migrations", metavar="MODULE:NAME", help="The MigrationRegistry to apply."),
    ],
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="MODULE:CLASS",
            help="The State class to migrate to; else the newest.",
        ),
    ] = None,
    app_name: App = None,
    all_apps: Annotated[
        bool, typer.Option("--all-apps", help="The sessions of every app.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Dry run: write nothing.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Migrate the sessions.")] = False,
    limit: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="List N failing ones a kind."),
    ] = 20,
    skip: Annotated[int, typer.Option(metavar="N", min=0, help="Skip the first N of them.")] = 0,
) -> CommandResult:
    """Migrate typed state to a new schema, in every session.

    Choose --plan (dry run) or --apply. A session that cannot be migrated is reported and left
    unchanged. Safe to interrupt and run again.
    """
    failures = MigrationFailures() if screen.as_json else MigrationFailures(skip, limit)

    async def run() -> MigrationPlan:
        async with store.opened(writes=apply) as lp:
            await _check_apps(lp, app_name, all_apps=all_apps)
            with screen.progress("migrating sessions" if apply else "trying sessions") as progress:
                return await lp.maintenance.migrate(
                    migrations,
                    state_type,
                    app=app_name,
                    apply=apply,
                    failure=failures.add,
                    progress=progress,
                )

    if plan == apply:
        raise InvalidInput("choose --plan (dry run) or --apply. Pass one of the two.")
    if app_name is not None and all_apps:
        raise InvalidInput(_ONE_OR_ALL)
    with screen.migrations():
        migrations = imported_object("--migrations", registry)
        state_type = None if state is None else imported_object("--state", state)
        done = asyncio.run(run())
    return _migration(done, failures)


@command(CARE)
async def compact(
    lp: Writing,
    screen: Display,
    actor: Actor,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Set the limits of this app first.")
    ] = None,
    events: Annotated[
        int | None, typer.Option("--events", metavar="N", min=1, help="Keep this many events hot.")
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0, help="What is younger stays hot.")
    ] = None,
) -> CommandResult:
    """Move old events into compressed segments.

    Nothing is lost: they are read, verified and exported like all others. Safe to interrupt.
    """
    if (app_name is None) != (events is None and days is None):
        raise InvalidInput("--app goes with --events or --days. Pass them together.")
    if app_name is not None:
        age = None if days is None else timedelta(days=days)
        await lp.policies.retention(app_name, events=events, age=age, actor=actor)
    with screen.progress("compacting sessions") as progress:
        done = await lp.maintenance.compact(progress=progress)
    return CommandResult(msgspec.structs.asdict(done), [TextLine(f"{done}.", "ok")])


@command(CARE)
async def erase(
    lp: Writing,
    key: SessionKey,
    screen: Display,
    *,
    forks: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="What to do about its forks: refuse, erase (them too) or keep."
        ),
    ] = "refuse",
    certificate: Certificate = None,
    yes: Yes = False,
    actor: Actor,
) -> CommandResult:
    """Erase one session permanently.

    A SQLite file is rewritten, which takes time by its size. Asks first, unless --yes is given.
    """
    to_forks, saved = _forks(forks), _certificate_file(certificate)
    deed = f"erase the session {key}"
    ask_first(screen, deed, "nothing was erased", yes=yes)
    erasure = await lp.erase(key, forks=to_forks, actor=actor)
    if erasure is None:
        line = TextLine(f"ok: there is no session {key}; nothing was erased.", "warning")
        return CommandResult({"session": key_form(key), "erased": None}, [line])
    whose = "its" if erasure.forks_kept == 1 else "their"
    kept = f"; {plural(erasure.forks_kept, 'fork')} kept {whose} state"
    line = TextLine(f"ok: {key} erased{kept if erasure.forks_kept else ''}.", "ok")
    lines = [line, *_save(saved, erasure.certificate)]
    form = {"session": key_form(key), "erased": _certificate(erasure, erasure.certificate)}
    return CommandResult(form, lines)


@command(CARE, "erase-user")
async def erase_user(
    lp: Writing,
    who: User,
    screen: Display,
    *,
    certificate: Certificate = None,
    yes: Yes = False,
    actor: Actor,
) -> CommandResult:
    """Erase a user, with all sessions and user: names.

    A SQLite file is rewritten once, which takes time by its size. Asks first, unless --yes is
    given. Repeating it is harmless, and finishes what was interrupted.
    """
    Key(who.app, who.user, "any")  # refuses what could not be one
    saved = _certificate_file(certificate)
    deed = f"erase user {who.user} of app {who.app}"
    ask_first(screen, deed, "nothing was erased", yes=yes)
    done = await lp.erase_user(who.app, who.user, actor=actor)
    lines = [
        TextLine(f"kept: {key}, a fork of another user, keeps the state it began on.", "warning")
        for key in done.forks
    ]
    gone = f"{plural(len(done.sessions), 'session')}, {plural(done.names, 'user: name')}"
    lines.append(TextLine(f"ok: user {who.user} of app {who.app} erased: {gone}.", "ok"))
    lines += _save(saved, done.certificate)
    form = {
        "app": who.app,
        "user": who.user,
        "certificate": _certificate(done.user, done.certificate),
        "sessions": len(done.sessions),
        "names": done.names,
        "forks": [key_form(key) for key in done.forks],
    }
    return CommandResult(form, lines)


class MigrationFailures:
    """Receives every session that cannot be migrated; keeps at most `limit` of each fate, after the
    first `skip`."""

    def __init__(self, skip: int = 0, limit: int | None = None) -> None:
        self._skip, self._limit = skip, limit
        self._counts: dict[Fate, int] = {}
        self._kept: dict[Fate, list[tuple[Key, str]]] = {}

    def add(self, key: Key, fate: Fate, reason: str) -> None:
        """Add one more session. They arrive in order of creation."""
        count = self._counts[fate] = self._counts.get(fate, 0) + 1
        if self._skip < count and (self._limit is None or count <= self._skip + self._limit):
            self._kept.setdefault(fate, []).append((key, reason))

    def of(self, fate: Fate) -> list[tuple[Key, str]]:
        """The page of one fate: sessions with their reasons."""
        return self._kept.get(fate, [])

    def more(self, fate: Fate) -> str:
        """Return how many follow after the page, and how to see them; empty if none do."""
        end = self._skip + len(self.of(fate))
        left = self._counts.get(fate, 0) - end
        if left <= 0 or self._limit is None:
            return ""
        return f"and {left:,} more: --skip {self._skip + self._limit} continues, --json has all"


# --- private ------------------------------------------------------------------------------------


def _migration(plan: MigrationPlan, failures: MigrationFailures) -> CommandResult:
    rows: list[tuple[Cell | str, ...]] = []
    for outcome in plan.outcomes:
        fate = Cell(outcome.fate, severity="ok" if outcome.ok else "problem")
        first, *others = _sessions(outcome, failures) or [("", "")]
        rows.append((fate, f"{outcome.sessions:,}", *first))
        rows += [("", "", *other) for other in others]
    columns = ("outcome", "sessions", "session")
    parts: list[Part] = [Grid(columns, rows, "why", right=("sessions",))]
    for name, sessions in plan.leftovers.items():
        many = plural(sessions, "session")
        left = f"left over: {name}, in {many}; the class does not declare it."
        parts.append(TextLine(left, "warning"))
    parts.append(TextLine(plan.summary, "ok" if plan.ok else "problem"))
    form: dict[str, Any] = {"target": plan.target, "applied": plan.applied}
    form |= {"sessions": plan.sessions, "leftovers": dict(plan.leftovers)}
    form["outcomes"] = [_outcome_form(outcome, failures) for outcome in plan.outcomes]
    return CommandResult(form, parts, plan.ok)


def _sessions(outcome: MigrationOutcome, failures: MigrationFailures) -> list[tuple[str, str]]:
    """Sessions and reasons of an outcome: an example, or a page of those that cannot migrate."""
    if outcome.ok:
        return [(str(outcome.key), outcome.reason)] if outcome.reason else []
    rows = [(str(key), reason) for key, reason in failures.of(outcome.fate)]
    more = failures.more(outcome.fate)
    return [*rows, ("", more)] if more else rows


def _outcome_form(outcome: MigrationOutcome, failures: MigrationFailures) -> dict[str, Any]:
    return {
        "fate": outcome.fate,
        "ok": outcome.ok,
        "sessions": outcome.sessions,
        "session": key_form(outcome.key),
        "reason": outcome.reason,
        "named": [{**key_form(key), "reason": why} for key, why in failures.of(outcome.fate)],
    }


async def _check_apps(lp: limpet.Limpet, app_name: str | None, *, all_apps: bool) -> None:
    """Raise for an app without sessions, or if a registry may not be for all the apps here."""
    if app_name is not None:
        await refuse_unknown(lp, app_name)
    elif not all_apps and len(apps := await apps_of(lp, typed=True)) > 1:
        raise InvalidInput(
            f"this store has typed sessions of several apps: {shortened(apps)}. Choose one with "
            "--app, or pass --all-apps if the registry is for all of them."
        )


def _verification_text(report: Report) -> str:
    """Return how much of a copy was read, and the result."""
    problems = damage(report)
    sealed = len(report.findings) - len(problems)
    more = "; sealed bodies by chain and checksum only" if sealed else ""
    if problems:
        return f"{plural(len(problems), 'finding')}: {report.read} read{more}"
    return f"verified: {report.read}, nothing is wrong{more}"


def _copy_form(file: Path, report: Report | None, seconds: float) -> dict[str, Any]:
    form = {"file": str(file), "bytes": file.stat().st_size, "seconds": seconds}
    if report is None:
        return {**form, "verify": None}
    problems = damage(report)
    sealed = len(report.findings) - len(problems)
    read = msgspec.structs.replace(report, findings=problems)
    verify = {**report_form(read), "sealed": sealed}
    return {**form, "verify": verify}


def _forks(text: str) -> Forks:
    match text:
        case "refuse" | "erase" | "keep":
            return text
    raise InvalidInput(f"--forks is {text!r}. Pass refuse, erase or keep.")


def _certificate_file(name: str | None) -> Path | None:
    """The file for a certificate, looked at before anything is erased."""
    if name is None:
        return None
    if chosen_keys()[0] is None:
        raise KeysMissing("a certificate")
    path = file_path(name)
    if path.exists() or not path.parent.is_dir():
        raise InvalidInput(f"{path} exists, or its directory does not. Choose a new file.")
    return path


def _save(path: Path | None, certificate: ErasureCertificate | None) -> list[TextLine]:
    """Write a certificate to its file."""
    if path is None or certificate is None:
        return []
    path.write_bytes(msgspec.json.encode(certificate) + b"\n")
    return [TextLine(f"The signed certificate is in {path}.", "ok")]


def _certificate(erasure: Erasure, signed: ErasureCertificate | None) -> dict[str, Any]:
    return {
        "certificate": None if signed is None else msgspec.to_builtins(signed),
        "key_hash": erasure.key_hash.hex(),
        "version": erasure.version,
        "link": erasure.link.hex(),
        "erased_at": to_time(erasure.erased_us).isoformat(timespec="seconds"),
        "forks_kept": erasure.forks_kept,
    }
