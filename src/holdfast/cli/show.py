"""How answers are shown: tables on a terminal, plain lines in a pipe, JSON when asked for.

Answers go to stdout, progress and errors to stderr; with --json both answers and errors are JSON
on stdout and nothing else is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from holdfast.errors import HoldfastError, InvalidInput
from holdfast.session.migrate import MigrationOutcome, MigrationPlan
from holdfast.store.doctor import finding_line, plural, size
from holdfast.store.protocol import Check, Diagnosis, Finding, Report
from holdfast.store.protocol import Progress as Callback

_COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_FINDINGS: Final = (
    "What to do: keep a copy of the store, restore the sessions named here from a backup, and run "
    "holdfast doctor."
)

INTERRUPTED: Final = 130  # as a shell reports a process that was interrupted
_INTERRUPTED: Final = (
    "stopped before the end. What was migrated stays migrated, the rest is as it was: run the same "
    "command again to go on."
)


class Screen:
    """Where one command says what it has to say."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """An error of ours is told by its code and its words, and ends with its exit code."""
        try:
            yield
        except HoldfastError as error:
            self._error(error)
            raise typer.Exit(error.exit_code) from error

    @contextmanager
    def progress(self, what: str) -> Iterator[Callback | None]:
        """A bar on the terminal, for as long as the work takes; else nothing."""
        if self._json or not self._err.is_terminal:
            yield None
            return
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def foreign(self) -> Iterator[None]:
        """Around code that is not ours: what it prints is no answer, and where it ends is told."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except SystemExit as error:
            raise InvalidInput(
                "a migration, or a module that it needs, ended the process (sys.exit). Let it "
                "raise an exception instead."
            ) from error
        except KeyboardInterrupt:
            self._tell("interrupted", _INTERRUPTED, retryable=True)
            raise typer.Exit(INTERRUPTED) from None

    # --- answers -------------------------------------------------------------------------------

    def diagnosis(self, found: Diagnosis) -> None:
        if self._json:
            checks = [{**msgspec.to_builtins(c), "ok": c.ok} for c in found.checks]
            self._write({"ok": found.ok, "checks": checks, "verify": _report(found.report)})
            return
        if self._out.is_terminal:
            self._out.print(_table(found.checks))
        else:
            for line in _lines(found.checks):
                typer.echo(line)
        self._say(_summary(found), "ok" if found.ok else "problem")

    def report(self, report: Report) -> None:
        if self._json:
            self._write(_report(report))
            return
        for finding in report.findings:
            self._say(finding_line(finding), "problem")
        read = f"{plural(report.sessions, 'session')}, {plural(report.events, 'event')} read"
        if report.ok:
            self._say(f"ok: {read}, nothing is wrong.", "ok")
        else:
            self._say(f"{plural(len(report.findings), 'finding')}: {read}. {_FINDINGS}", "problem")

    def copied(self, what: str, file: Path, count: int, seconds: float) -> None:
        if self._json:
            self._write({"ok": True, "file": str(file), "bytes": count, "seconds": seconds})
        else:
            self._say(f"{what} {file}: {size(count)} in {seconds:.1f} s.", "ok")

    def migration(self, plan: MigrationPlan) -> None:
        if self._json:
            told = {"ok": plan.ok, "target": plan.target, "applied": plan.applied}
            outcomes = [_outcome(outcome) for outcome in plan.outcomes]
            told |= {"sessions": plan.sessions, "leftovers": dict(plan.leftovers)}
            self._write({**told, "outcomes": outcomes})
            return
        if self._out.is_terminal:
            self._out.print(_fates(plan))
        else:
            for line in _fate_lines(plan):
                typer.echo(line)
        for name, sessions in plan.leftovers.items():
            many = plural(sessions, "session")
            self._say(f"left over: {name}, in {many}; the class does not declare it.", "warning")
        self._say(_migration_summary(plan), "ok" if plan.ok else "problem")

    # --- private -------------------------------------------------------------------------------

    def _error(self, error: HoldfastError) -> None:
        self._tell(error.code, str(error), retryable=error.retryable)

    def _tell(self, code: str, message: str, *, retryable: bool) -> None:
        if self._json:
            told = {"code": code, "message": message, "retryable": retryable}
            self._write({"ok": False, "error": told})
            return
        self._err.print(Text(f"holdfast: {code}", "bold red"))
        self._err.print(Text(f"  {message}"), soft_wrap=True)

    def _say(self, line: str, severity: str) -> None:
        if self._out.is_terminal:
            self._out.print(Text(line, _COLOURS[severity]))
        else:
            typer.echo(line)

    def _write(self, answer: Any) -> None:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")


def _table(checks: tuple[Check, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(Text(check.severity, _COLOURS[check.severity]), check.name, Text(check.found))
        if check.advice:
            table.add_row("", "", Text(f"→ {check.advice}", "italic"))
    return table


def _lines(checks: tuple[Check, ...]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.severity:<7}  {check.name:<{width}}  {check.found}"
        if check.advice:
            yield f"{'':<7}  {'':<{width}}  → {check.advice}"


def _summary(found: Diagnosis) -> str:
    problems = sum(check.severity == "problem" for check in found.checks)
    warnings = sum(check.severity == "warning" for check in found.checks)
    counts = f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}"
    return f"{'ok' if found.ok else 'not ok'}: {plural(len(found.checks), 'check')}, {counts}."


def _report(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "sessions": report.sessions,
        "events": report.events,
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    key = finding.key
    named = None if key is None else {"app": key.app, "user": key.user, "id": key.id}
    return {
        "where": finding.where,
        "problem": finding.problem,
        "session": named,
        "seq": finding.seq,
    }


def _fates(plan: MigrationPlan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("outcome")
    table.add_column("sessions", justify="right")
    table.add_column("one of them")
    table.add_column("why")
    for outcome in plan.outcomes:
        colour = _COLOURS["ok" if outcome.ok else "problem"]
        key = Text(str(outcome.key)) if outcome.reason else ""
        count = f"{outcome.sessions:,}"
        table.add_row(Text(outcome.fate, colour), count, key, Text(outcome.reason))
    return table


def _fate_lines(plan: MigrationPlan) -> Iterator[str]:
    counts = [plural(outcome.sessions, "session") for outcome in plan.outcomes]
    width = max(map(len, counts), default=0)
    for outcome, count in zip(plan.outcomes, counts, strict=True):
        example = f"  {outcome.key}: {outcome.reason}" if outcome.reason else ""
        yield f"{outcome.fate:<12}  {count:<{width if example else 0}}{example}"


def _migration_summary(plan: MigrationPlan) -> str:
    able = plan.count("migrated" if plan.applied else "migratable")
    verb = "migrated" if plan.applied else "to be migrated"
    told = f"{plural(able, 'session')} of {plan.sessions:,} {verb} to schema {plan.target}"
    stuck = sum(outcome.sessions for outcome in plan.outcomes if not outcome.ok)
    if plan.applied:
        left = f", {stuck:,} could not be and are as they were" if stuck else ""
    else:
        left = (f", {stuck:,} cannot be" if stuck else "") + "; nothing was written"
    return f"{'ok' if plan.ok else 'not ok'}: {told}{left}."


def _outcome(outcome: MigrationOutcome) -> dict[str, Any]:
    key = outcome.key
    return {
        "fate": outcome.fate,
        "ok": outcome.ok,
        "sessions": outcome.sessions,
        "session": {"app": key.app, "user": key.user, "id": key.id},
        "reason": outcome.reason,
    }
