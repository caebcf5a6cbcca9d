"""Output of the commands: tables on a terminal, plain lines in a pipe, JSON with --json.

Results go to stdout, progress and errors to stderr. With --json both results and errors are JSON on
stdout, and nothing else is printed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from limpet.cli.ages import timed
from limpet.cli.backlog import Backlog, Readiness, SessionStatus, needs, readiness
from limpet.cli.output import cell, console, one_line, users_code
from limpet.cli.stuck import Stuck
from limpet.errors import BackupDamaged, InvalidInput, LimpetError
from limpet.model import NO_TEXTS, Head, Texts, runnable_us, to_time
from limpet.session.typing.migrate import MigrationOutcome, MigrationPlan
from limpet.session.wire import error_form, head_form, key_form, report_form
from limpet.store.answers import Check, Diagnosis, Report, Restored, plural, size
from limpet.store.answers import Progress as Callback
from limpet.store.doctor import damage

_COLOURS: Final = {"ok": "green", "skipped": "dim", "warning": "yellow", "problem": "bold red"}
_FINDINGS: Final = (
    "What to do: keep a copy of the store. Then restore the whole store from a backup that "
    "verifies (limpet restore FILE STORE --replace); or, to keep newer events of the other "
    "sessions, open that backup and copy the state of the damaged sessions from it."
)
# The last sentence of an error is advice to a program. These take its place at the command line.
_ADVICE: Final = {
    "archive.sealed": "Use a program that has the seal",
    "checkpoint.integrity": "Restore an older one with --fallback, and run limpet verify",
    "checkpoint.no_full": "Make one with limpet checkpoint --full, or go back with limpet rewind",
    "checkpoint.none": "limpet checkpoint --list shows those that there are",
    "document.not_found": "limpet documents STORE COLLECTION lists those that there are",
    "merge.conflict": "Pass --prefer ours or --prefer theirs",
    "promotion.refused": "Promote it again when that holds; limpet learnings shows the gates",
    "query.cursor": "Pass the cursor of the last page in JSON unchanged, or leave --cursor out",
    "request.not_found": "limpet status shows what a session waits for",
    "session.archived": "limpet unarchive brings it back",
    "session.corrupt": "Run limpet verify for details, then restore the store from a backup",
    "session.has_forks": "Pass --forks erase or --forks keep",
    "session.invalid_transition": "limpet status with --app, --user and --id shows where it stands",
    "session.suspended": "limpet resume makes it active again",
    "store.failed": "Whether it was done is not known: look with limpet log, then run it again",
}
_BOTH_WAYS: Final = re.compile(r"lp\.\w+\(\) \((limpet \w+)\)")  # a method, and its command
_ASIDE: Final = "The old store could not be closed and was kept as"
_SHOWN_MAX: Final = 100

INTERRUPTED: Final = 130  # as a shell reports a process that was interrupted
_STOPPED: Final = "stopped before the end. Nothing was half written: run the same command again."
_INTERRUPTED: Final = (
    "stopped before the end. Sessions already migrated stay migrated, the others are unchanged: "
    "run the same command again to continue."
)


class Screen:
    """The output of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._out = console()
        self._err = console(stderr=True)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Print a LimpetError with its code and message, and exit with its exit code."""
        try:
            yield
        except LimpetError as error:
            self.error(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            self._tell("interrupted", _STOPPED, retryable=True)
            raise typer.Exit(INTERRUPTED) from None

    @contextmanager
    def progress(self, what: str) -> Iterator[Callback | None]:
        """A progress bar on a terminal while the work lasts; otherwise nothing."""
        with self.steps(what) as (callback,):
            yield callback

    @contextmanager
    def steps(self, *whats: str) -> Iterator[tuple[Callback | None, ...]]:
        """The same for work in several steps, each with its own bar."""
        if self._json or not self._err.is_terminal:
            yield (None,) * len(whats)
            return
        words = TextColumn("{task.description}")
        columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._err, transient=True) as bar:
            tasks = [bar.add_task(what, total=None, visible=what == whats[0]) for what in whats]
            yield tuple(_stepping(bar, task) for task in tasks)

    @contextmanager
    def foreign(self) -> Iterator[None]:
        """Wraps the user's code: its prints go to stderr, and sys.exit becomes an error."""
        try:
            with users_code():
                yield
        except SystemExit as error:
            raise InvalidInput(
                "a migration, or a module that it imports, called sys.exit. Raise an exception "
                "instead."
            ) from error
        except KeyboardInterrupt:
            self._tell("interrupted", _INTERRUPTED, retryable=True)
            raise typer.Exit(INTERRUPTED) from None

    # --- answers -------------------------------------------------------------------------------

    def diagnosis(self, found: Diagnosis, *, strict: bool) -> bool:
        """Show it. Returns whether all is well; with `strict`, warnings count."""
        counts = Counter(check.severity for check in found.checks)
        well = not counts["problem"] and not (strict and counts["warning"])
        if self._json:
            checks = [{**msgspec.to_builtins(c), "ok": c.ok} for c in found.checks]
            self._write({"ok": well, "checks": checks, "verify": report_form(found.report)})
            return well
        if self._out.is_terminal:
            self._out.print(_table(found.checks))
        else:
            for line in _lines(found.checks):
                self._line(line)
        told = f"{'ok' if well else 'not ok'}: {found.counted}"
        if not well and not counts["problem"]:
            told += "; with --strict a warning counts"
        self._say(f"{told}.", "ok" if well else "problem")
        return well

    def report(self, report: Report) -> None:
        if self._json:
            self._write(report_form(report))
            return
        if report.ok:
            self._say(str(report), "ok")
            return
        for finding in report.findings:
            self._say(str(finding), "problem")
        many = plural(len(report.findings), "finding")
        self._say(f"{many}: {report.read} read. {_FINDINGS}", "problem")

    def status(self, found: Backlog) -> None:
        if self._json:
            texts = found.texts
            shown = [
                _waiting(head, found.now_us, texts.get(head.key, NO_TEXTS)) for head in found.shown
            ]
            told = {"ok": True, "at": _time(found.now_us), "sessions": found.sessions}
            told |= {"pending": found.pending, "due": found.due, "leased": found.leased}
            told |= {"blocked": found.blocked, "dead": found.dead, "held": found.held}
            self._write({**told, "shown": shown, "left_off": found.left_off})
            return
        counts = f"{found.pending:,} with pending input, {found.due:,} due, {found.leased:,} leased"
        rarer = {"blocked": found.blocked, "dead": found.dead, "held back": found.held}
        counts += "".join([f", {number:,} {word}" for word, number in rarer.items() if number])
        self._say(f"{plural(found.sessions, 'session')}: {counts}.", "ok")
        if self._out.is_terminal and found.shown:
            self._out.print(_waiting_table(found))
        else:
            for line in _waiting_lines(found):
                self._line(line)
        if found.left_off:
            self._say(f"and {found.left_off:,} more; use --limit to show more.", "skipped")

    def session_status(self, found: SessionStatus) -> None:
        head = found.head
        waiting = _waiting(head, found.now_us, found.texts)
        if self._json:
            told = {"ok": True, "at": _time(found.now_us), "status": found.status}
            self._write({**told, "stop_reason": found.stop_reason, **waiting})
            return
        stopped = f", stopped: {found.stop_reason}" if found.stop_reason is not None else ""
        self._say(f"{head.key}: {found.status}{stopped}.", "ok")
        state = readiness(head, found.now_us)
        waits = [] if state == "idle" else _waits(head, state, found.now_us, found.texts)
        since = f"{head.phase}, version {head.version:,}, {head.pending:,} pending"
        for line in (since, f"{state}: {', '.join(waits)}" if waits else "nothing to do"):
            self._line(f"  {line}")

    def backed_up(self, file: Path, report: Report | None, seconds: float) -> None:
        found = () if report is None else damage(report)
        if self._json:
            self._write(_copied(file, report, seconds))
            return
        for finding in found:
            self._say(str(finding), "problem")
        told = f"backed up to {file}: {size(file.stat().st_size)} in {seconds:.1f} s; "
        if found:
            told += f"{_verified(report)}. The copy has the same damage as the store. {_FINDINGS}"
        elif report is None:
            told += "not verified (--verify reads the copy back)."
        else:
            told += f"{_verified(report)}."
        self._say(told, "problem" if found else "ok")

    def restored(self, file: Path, done: Restored, seconds: float) -> None:
        found = damage(done.report)
        if self._json:
            aside = None if done.aside is None else str(done.aside)
            self._write({**_copied(file, done.report, seconds), "aside": aside})
            return
        for finding in found:
            self._say(str(finding), "problem")
        told = f"restored from {file}: {size(file.stat().st_size)} in {seconds:.1f} s; "
        self._say(f"{told}{_verified(done.report)}.", "problem" if found else "ok")
        if done.aside is not None:
            self._say(f"{_ASIDE} {done.aside}.", "warning")

    def migration(self, plan: MigrationPlan, stuck: Stuck) -> None:
        if self._json:
            told = {"ok": plan.ok, "target": plan.target, "applied": plan.applied}
            outcomes = [_outcome(outcome, stuck) for outcome in plan.outcomes]
            told |= {"sessions": plan.sessions, "leftovers": dict(plan.leftovers)}
            self._write({**told, "outcomes": outcomes})
            return
        if self._out.is_terminal:
            self._out.print(_fates(plan, stuck))
        else:
            for line in _fate_lines(plan, stuck):
                self._line(line)
        for name, sessions in plan.leftovers.items():
            many = plural(sessions, "session")
            self._say(f"left over: {name}, in {many}; the class does not declare it.", "warning")
        self._say(plan.summary, "ok" if plan.ok else "problem")

    @contextmanager
    def answer(self, told: dict[str, Any]) -> Iterator[Callable[[str, str], None]]:
        """An answer: as JSON, or in the lines that the block says, each with its severity."""
        if self._json:
            self._write(told)
            yield lambda line, severity: None
        else:
            yield self._say

    def display(
        self, told: Any, on_terminal: Callable[[], RenderableType], lines: Iterable[str]
    ) -> None:
        """An answer: as JSON, as what rich makes of it on a terminal, or in plain lines."""
        if self._json:
            self._write(told)
        elif self._out.is_terminal:
            self._out.print(on_terminal())
        else:
            for line in lines:
                self._line(line)

    def error(self, error: LimpetError) -> None:
        """Print an error with its code and message."""
        found = error.findings if isinstance(error, BackupDamaged) else ()
        form = error_form(error)
        self._tell(findings=found, **{**form, "message": _at_the_shell(error.code, str(error))})

    # --- private -------------------------------------------------------------------------------

    def _tell(
        self, code: str, message: str, *, retryable: bool, findings: tuple[str, ...] = ()
    ) -> None:
        if self._json:
            told: dict[str, Any] = {"code": code, "message": message, "retryable": retryable}
            if findings:
                told["findings"] = findings
            self._write({"ok": False, "error": told})
            return
        self._err.print(cell(f"limpet: {code}", "bold red"))
        for line in findings[:_SHOWN_MAX]:
            self._err.print(cell(f"  {line}"), soft_wrap=True)
        for line in message.split("\n"):
            self._err.print(cell(f"  {line}"), soft_wrap=True)

    def _say(self, line: str, severity: str) -> None:
        if self._out.is_terminal:
            self._out.print(cell(line, _COLOURS[severity]))
        else:
            self._line(line)

    def _line(self, line: str) -> None:
        sys.stdout.write(f"{one_line(line)}\n")

    def _write(self, answer: Any) -> None:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")


def _at_the_shell(code: str, message: str) -> str:
    """The message of an error with advice to a person at the command line."""
    happened, _, _ = message.rpartition(". ")
    if happened and code in _ADVICE:
        return f"{happened}. {_ADVICE[code]}."
    return _BOTH_WAYS.sub(r"\1", message)


def _stepping(bar: Progress, task: TaskID) -> Callback:
    return lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def _verified(report: Report | None) -> str:
    """What was read from a copy, and the result."""
    assert report is not None
    found = damage(report)
    sealed = len(report.findings) - len(found)
    more = "; sealed bodies by chain and checksum only" if sealed else ""
    if found:
        return f"{plural(len(found), 'finding')}: {report.read} read{more}"
    return f"verified: {report.read}, nothing is wrong{more}"


def _copied(file: Path, report: Report | None, seconds: float) -> dict[str, Any]:
    told = {"file": str(file), "bytes": file.stat().st_size, "seconds": seconds}
    if report is None:
        return {"ok": True, **told, "verify": None}
    found = damage(report)
    sealed = len(report.findings) - len(found)
    verify = {**report_form(Report(report.sessions, report.events, found)), "sealed": sealed}
    return {"ok": not found, **told, "verify": verify}


def _waiting_table(found: Backlog) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("state")
    table.add_column("session", overflow="fold")
    table.add_column("pending", justify="right")
    table.add_column("waiting", no_wrap=True)  # a time with its age stays on one line
    for head in found.shown:
        state = readiness(head, found.now_us)
        colour = _COLOURS["problem" if state == "dead" else "ok"]
        colour = _COLOURS["warning"] if state in ("due", "blocked") else colour
        when, *whose = _waits(head, state, found.now_us, found.texts.get(head.key, NO_TEXTS))
        session = Text("\n").join([cell(str(head.key)), *[cell(who, "dim") for who in whose]])
        table.add_row(cell(state, colour), session, f"{head.pending:,}", when)
    return table


def _waiting_lines(found: Backlog) -> Iterator[str]:
    width = max((len(str(head.key)) for head in found.shown), default=0)
    states = [readiness(head, found.now_us) for head in found.shown]
    widest = max(map(len, ("leased", *states)))
    for head, state in zip(found.shown, states, strict=True):
        waits = ", ".join(
            (
                f"{head.pending:,} pending",
                *_waits(head, state, found.now_us, found.texts.get(head.key, NO_TEXTS)),
            )
        )
        yield f"{state:<{widest}}  {head.key!s:<{width}}  {waits}"


def _waits(head: Head, state: Readiness, now_us: int, texts: Texts) -> list[str]:
    """Since when or until when a session waits, and for whom or what."""
    if state in ("blocked", "dead"):
        return [f"since {timed(head.updated_us, now_us)}", *needs(head, state, texts)]
    at = timed(runnable_us(head) or 0, now_us)
    if state == "leased":
        return [f"until {at}", f"leased to {head.worker} (fence {head.fence})"]
    if state == "held":
        return [f"retried at {at}"]
    if head.worker is not None:
        return [f"since {at}", f"the lease of {head.worker} (fence {head.fence}) ended"]
    return [f"since {at}"]


def _waiting(head: Head, now_us: int, texts: Texts) -> dict[str, Any]:
    state = readiness(head, now_us)
    return {**head_form(head), "state": state, "needs": needs(head, state, texts)}


def _time(at_us: int) -> str:
    return to_time(at_us).isoformat(timespec="seconds")


def _table(checks: tuple[Check, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(cell(check.severity, _COLOURS[check.severity]), check.name, cell(check.found))
        if check.advice:
            table.add_row("", "", cell(f"→ {check.advice}", "italic"))
    return table


def _lines(checks: tuple[Check, ...]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.severity:<7}  {check.name:<{width}}  {check.found}"
        if check.advice:
            yield f"{'':<7}  {'':<{width}}  → {check.advice}"


def _fates(plan: MigrationPlan, stuck: Stuck) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("outcome")
    table.add_column("sessions", justify="right")
    table.add_column("which")
    table.add_column("why")
    for outcome in plan.outcomes:
        colour = _COLOURS["ok" if outcome.ok else "problem"]
        first, *others = _listed(outcome, stuck) or [("", "")]
        count = f"{outcome.sessions:,}"
        table.add_row(cell(outcome.fate, colour), count, *map(cell, first))
        for other in others:
            table.add_row("", "", *map(cell, other))
    return table


def _fate_lines(plan: MigrationPlan, stuck: Stuck) -> Iterator[str]:
    counts = [plural(outcome.sessions, "session") for outcome in plan.outcomes]
    width = max(map(len, counts), default=0)
    for outcome, count in zip(plan.outcomes, counts, strict=True):
        first, *others = [": ".join(filter(None, row)) for row in _listed(outcome, stuck)] or [""]
        yield f"{outcome.fate:<12}  {count:<{width}}  {first}".rstrip()
        for other in others:
            yield f"{'':<12}  {'':<{width}}  {other}"


def _listed(outcome: MigrationOutcome, stuck: Stuck) -> list[tuple[str, str]]:
    """Sessions and reasons of an outcome: an example, or a page of those that cannot migrate."""
    if outcome.ok:
        return [(str(outcome.key), outcome.reason)] if outcome.reason else []
    rows = [(str(key), reason) for key, reason in stuck.of(outcome.fate)]
    more = stuck.more(outcome.fate)
    return [*rows, (more, "")] if more else rows


def _outcome(outcome: MigrationOutcome, stuck: Stuck) -> dict[str, Any]:
    return {
        "fate": outcome.fate,
        "ok": outcome.ok,
        "sessions": outcome.sessions,
        "session": key_form(outcome.key),
        "reason": outcome.reason,
        "named": [{**key_form(key), "reason": why} for key, why in stuck.of(outcome.fate)],
    }
