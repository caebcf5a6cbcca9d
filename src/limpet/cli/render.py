"""Results of commands on the screen: tables and trees on a terminal, plain lines in a pipe, JSON.

A command returns a CommandResult: its JSON form, and the lines, tables and trees that show the same
to a person. Results go to stdout, progress and errors to stderr. With --json both results and
errors are JSON on stdout, and nothing else is printed. No key, id or time is ever broken or cut:
a terminal shows short times and puts what is wide below its row; a pipe gets a header and a line
for each row.
"""

from __future__ import annotations

import logging
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import msgspec
import typer
from rich.cells import cell_len
from rich.highlighter import JSONHighlighter
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

from limpet.cli.output import cell, console, escaped, one_line, users_code
from limpet.errors import BackupDamaged, InvalidInput, LimpetError
from limpet.model import to_time
from limpet.model.diff.changes import Kind
from limpet.model.diff.diff import SIGNS, Diff, old_and_new, place
from limpet.session.json_forms import error_form
from limpet.store.logs import SHOWN
from limpet.store.protocol import Progress as Callback

FOUND: Final = 1
INTERRUPTED: Final = 130  # as a shell reports a process that was interrupted

Severity: TypeAlias = Literal["", "ok", "skipped", "warning", "problem"]
_STYLES: Final[dict[str, str]] = {
    "": "",
    "ok": "green",
    "skipped": "dim",
    "warning": "yellow",
    "problem": "bold red",
}
# The last sentence of an error is advice to a program. These take its place at the command line.
_ADVICE: Final = {
    "archive.sealed": "Use a program that has the seal",
    "checkpoint.integrity": "Restore an older one with --fallback, and run limpet verify",
    "checkpoint.no_full": "Make one with limpet checkpoint --full, or go back with limpet rewind",
    "checkpoint.none": "limpet checkpoint --list shows those that exist",
    "document.not_found": "limpet documents STORE COLLECTION lists those that exist",
    "event.too_large": "Send less in one event",
    "keys.missing": "Pass --keys, or set LIMPET_KEYS",
    "merge.conflict": "Pass --prefer ours or --prefer theirs",
    "promotion.decided": "A decision stands; limpet proposals shows it",
    "promotion.not_found": "limpet proposals shows those that exist",
    "promotion.refused": "Promote it again when that holds; limpet learnings shows the gates",
    "query.cursor": "Pass the cursor of the last page in JSON unchanged, or leave --cursor out",
    "request.not_found": "limpet status shows what a session waits for",
    "session.archived": "limpet unarchive brings it back",
    "session.corrupt": "Run limpet verify for details, then restore the store from a backup",
    "session.deleted": "To create one, pass another id",
    "session.has_forks": "Pass --forks erase or --forks keep",
    "session.moved": "Use the store that it has moved to; limpet where names its node, or limpet "
    "reclaim takes it back if that node is lost for good",
    "session.schema_violation": "Write a migration that repairs it, and run limpet migrate",
    "session.suspended": "limpet resume makes it active again",
    "session.typed": "Change it from the program that declares its State class",
    "share.not_found": "limpet share STORE SESSION shows the shares of a session",
    "store.failed": "It may have been done: look with limpet log, then run it again",
    "turn.mismatch": "Deploy the code that the turn began with, then limpet resolve --run-again",
    "turn.underway": "Interrupt the turn with limpet interrupt, and rewind once it has ended",
}
# Errors that end so have changed nothing: whoever reads one has nothing to look up first.
_TRY_AGAIN: Final = ("Nothing was written. Try again.", "it expires on its own. Try again.")
_KEYS: Final = "Open the store with its keys."
_JSON: Final = "null, true, false, 64-bit integers, finite numbers, text, and lists and objects"
_IN_PYTHON: Final = (  # a method or an argument that a command or an option stands beside
    (re.compile(r"lp\.[\w.]+\(\) \((limpet \w+)\)"), r"\1"),
    (re.compile(r"\b(?:lp|s)\.[\w.]+\(\), or (limpet )"), r"\1"),
    (re.compile(r"lp\.documents\('(\w+)'\)"), r"\1"),
    (re.compile(r"actor='([^']+)'"), r"--actor \1"),
    (
        re.compile(r"limpet\.open\(url, token=…\), or (limpet login URL) for the command line"),
        r"\1",
    ),
    (
        re.compile(r"pass tls=limpet\.Tls\(cert=…, key=…\)"),
        "set LIMPET_TLS_CERT and LIMPET_TLS_KEY",
    ),
    (
        re.compile(r"name its CA and its pin, as in tls=limpet\.Tls\(ca='ca\.pem'\)"),
        "name its CA in LIMPET_TLS_CA and its pin in LIMPET_TLS_PIN",
    ),
    (re.compile(r"\b(?:Connection\w*|OS|Timeout|BrokenPipe)Error: "), ""),
    (re.compile(r"Open it with limpet\.open\(url, keys=…\)"), "Pass --keys (or LIMPET_KEYS)"),
    (re.compile("open it with its keys"), "pass --keys (or LIMPET_KEYS)"),
    (re.compile("Open the store with its keys"), "Pass --keys (or LIMPET_KEYS)"),
    (re.compile(r"\[Errno -?\d+\] "), ""),
    (re.compile("None, bool, 64-bit integers, finite floats, text, and lists and dicts"), _JSON),
    (re.compile(r"\bnot (?:int|float|str|bool) "), "not "),
    (re.compile(r"\((?:\w+=\w+, or )(--[\w-]+) on the command line\)"), r"(\1)"),
    (
        re.compile("there is no such file; check its path"),
        "there is no such file. Check the path, or make a store with limpet create",
    ),
)
_FINDINGS_MAX: Final = 100
_STOPPED: Final = "stopped before the end. Nothing was half written: run the same command again."
_STOPPED_MIGRATING: Final = (
    "stopped before the end. Sessions already migrated stay migrated, the others are unchanged: "
    "run the same command again to continue."
)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_GAP: Final = 2
_ACTOR_CHARS_MAX: Final = 24
_DIFF_COLORS: Final = {Kind.ADD: "green", Kind.MODIFY: "yellow", Kind.DELETE: "red"}
_DIFF_CHARS_MAX: Final = 120


# --- results ------------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True):
    """A text in a table, with a shorter form for terminals and a color, if they differ."""

    text: str
    short: str | None = None
    severity: Severity = ""
    command: str = ""  # after the text; a terminal shows it alone and unbroken, to be copied


class Grid(msgspec.Struct, frozen=True):
    """A table. `below` names a last, wide column, which a terminal shows below the row."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell | str]]
    below: str = ""  # then each row has one cell more
    empty: str = ""  # shown instead of a table without rows
    right: tuple[str, ...] = ()  # columns of numbers


class TextLine(msgspec.Struct, frozen=True):
    """A line of text. A terminal wraps it between words."""

    text: str
    severity: Severity = ""


class JsonBlock(msgspec.Struct, frozen=True):
    """A value as indented JSON, in color on a terminal."""

    value: Any


class DiffBlock(msgspec.Struct, frozen=True):
    """Changes: a table in color on a terminal, a line for each change in a pipe."""

    diff: Diff


class TreeNode(msgspec.Struct, frozen=True):
    """A tree of lines, with branches on a terminal and indented in a pipe."""

    text: str
    style: str = ""
    children: tuple[TreeNode, ...] = ()


Part: TypeAlias = Grid | TextLine | JsonBlock | DiffBlock | TreeNode | str


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command: JSON, the same for people, and whether all is well (else exit 1)."""

    form: dict[str, Any]
    parts: Sequence[Part] = ()
    ok: bool = True


# --- times --------------------------------------------------------------------------------------


def timed(at_us: int, now_us: int) -> str:
    """Return a time with its age, such as `2026-05-01T10:00:00Z (3 h ago)`."""
    return f"{moment(at_us)} ({age(at_us, now_us)})"


def moment(at_us: int) -> str:
    """Return a time such as `2026-05-01T10:00:00Z`."""
    return to_time(at_us).isoformat(timespec="seconds").replace("+00:00", "Z")


def moment_cell(at_us: int) -> Cell:
    """Return a time to the second; on a terminal to the minute, `2026-05-01 10:00`."""
    return Cell(moment(at_us), f"{to_time(at_us):%F %H:%M}")


def instant(at_us: int) -> str:
    """Return a time such as `2026-05-01T10:00:00.000001Z`: exact, so that it names one place in a
    history.

    Nothing is known of a removed event, not even its time.
    """
    if not at_us:
        return "-"
    return to_time(at_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def instant_cell(at_us: int) -> Cell:
    """Exact; on a terminal to the second, `2026-05-01 10:00:00`."""
    return Cell(instant(at_us), f"{to_time(at_us):%F %T}" if at_us else None)


def actor_cell(actor: str) -> Cell:
    """Whole; on a terminal cut short, so that a row of the log fits into 80 columns."""
    return Cell(
        actor, actor if len(actor) <= _ACTOR_CHARS_MAX else f"{actor[: _ACTOR_CHARS_MAX - 1]}…"
    )


def age(at_us: int, now_us: int) -> str:
    """Return an age in the largest unit that fits, rounded down: `3 h ago`, `in 5 min`, `now`."""
    seconds = abs(now_us - at_us) // 1_000_000
    for unit, length in _UNITS:
        if seconds >= length:
            span = f"{seconds // length:,} {unit}"
            return f"{span} ago" if at_us < now_us else f"in {span}"
    return "now"


# --- the screen ---------------------------------------------------------------------------------


class _ShownWarnings(logging.Handler):
    """Prints those of our log's records that have a text for a person."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        shown = getattr(record, SHOWN, None)
        if shown is not None:
            self._screen.warn(shown)


class Screen:
    """The output of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json: Final = as_json
        self._out = console()
        self._err = console(stderr=True)

    def show(self, result: CommandResult) -> None:
        """Print a result: as JSON, for a terminal, or in plain lines."""
        if self.as_json:
            self._write({"ok": result.ok, **result.form})
            return
        for part in result.parts:
            if self._out.is_terminal:
                self._show_on_terminal(part)
            else:
                for line in _plain(part):
                    sys.stdout.write(f"{one_line(line)}\n")

    def error(self, error: LimpetError) -> None:
        """Print an error with its code and message; a person also sees where it is explained."""
        findings = error.findings if isinstance(error, BackupDamaged) else ()
        form = error_form(error)
        form["message"] = at_the_shell(error.code, str(error))
        self._fail(form, findings=findings)
        if self._err.is_terminal and not self.as_json:
            self._err.print(cell(f"  See docs/errors.md#{error.code}", "dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning beside the result."""
        self._err.print(cell(f"limpet: {text}", "yellow"), soft_wrap=True)

    @contextmanager
    def shown_warnings(self) -> Iterator[None]:
        """Print the warnings that a person has to see, which a program finds in its log."""
        handler, logger = _ShownWarnings(self), logging.getLogger("limpet")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Print a LimpetError with its code and message, and exit with its exit code."""
        try:
            yield
        except LimpetError as error:
            self.error(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            self._fail({"code": "interrupted", "message": _STOPPED, "retryable": True})
            raise typer.Exit(INTERRUPTED) from None

    @contextmanager
    def progress(self, what: str) -> Iterator[Callback | None]:
        """A progress bar on a terminal while the work lasts; otherwise nothing."""
        with self.steps(what) as (callback,):
            yield callback

    @contextmanager
    def steps(self, *whats: str) -> Iterator[tuple[Callback | None, ...]]:
        """Show the progress of work in several steps, each with its own bar."""
        if self.as_json or not self._err.is_terminal:
            yield (None,) * len(whats)
            return
        words = TextColumn("{task.description}")
        columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._err, transient=True) as bar:
            tasks = [bar.add_task(what, total=None, visible=what == whats[0]) for what in whats]
            yield tuple(_stepping(bar, task) for task in tasks)

    @contextmanager
    def migrations(self) -> Iterator[None]:
        """Wrap the user's migrations: their prints go to stderr, and sys.exit becomes an error."""
        try:
            with users_code():
                yield
        except SystemExit as error:
            raise InvalidInput(
                "a migration, or a module that it imports, called sys.exit. Raise an exception "
                "instead."
            ) from error
        except KeyboardInterrupt:
            self._fail({"code": "interrupted", "message": _STOPPED_MIGRATING, "retryable": True})
            raise typer.Exit(INTERRUPTED) from None

    def _fail(self, form: dict[str, Any], *, findings: tuple[str, ...] = ()) -> None:
        if self.as_json:
            more = {"findings": findings} if findings else {}
            self._write({"ok": False, "error": {**form, **more}})
            return
        self._err.print(cell(f"limpet: {form['code']}", "bold red"))
        for text in (*findings[:_FINDINGS_MAX], *form["message"].split("\n")):
            lines = [f"  {text}"]
            if self._err.is_terminal:
                lines = _wrap(text, self._err.width, indent=2)
            for line in lines:
                self._err.print(cell(line), soft_wrap=True)

    def _show_on_terminal(self, part: Part) -> None:
        match part:
            case Grid() if part.rows or not part.empty:
                for text in _laid_out(part, self._out.width):
                    self._out.print(text, soft_wrap=True)
            case JsonBlock():
                text = JSONHighlighter()(escaped(_json(part.value)))
                self._out.print(text, soft_wrap=True)
            case DiffBlock() if part.diff:
                self._out.print(diff_table(part.diff))
            case TreeNode():
                for text in _branches(part, self._out.width):
                    self._out.print(text, soft_wrap=True)
            case _:
                severity = part.severity if isinstance(part, TextLine) else ""
                for line in _plain(part):
                    for wrapped in _wrap(line, self._out.width):
                        self._out.print(cell(wrapped, _STYLES[severity]), soft_wrap=True)

    def _write(self, form: Any) -> None:
        sys.stdout.write(f"{_json(form)}\n")


def at_the_shell(code: str, message: str) -> str:
    """Return the message of an error with advice to a person at the command line."""
    happened, _, _ = message.rpartition(". ")
    if happened and code in _ADVICE and not message.endswith((*_TRY_AGAIN, _KEYS)):
        message = f"{happened}. {_ADVICE[code]}."
    for pattern, words in _IN_PYTHON:
        message = pattern.sub(words, message)
    return message


def diff_table(diff: Diff) -> Table:
    """A row for each change: its sign, its place, the old value and the new one."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("", no_wrap=True)
    for column in ("path", "old", "new"):
        made.add_column(column, overflow="fold")
    for change in diff.changes:
        color = _DIFF_COLORS[change.kind]
        old, new = old_and_new(change, _DIFF_CHARS_MAX)
        cells = ((SIGNS[change.kind], color), (place(change), ""), (old, "red"), (new, "green"))
        made.add_row(*(cell(text, style) for text, style in cells))
    return made


# --- private ------------------------------------------------------------------------------------


def _plain(part: Part) -> Iterator[str]:
    """A part of a result in lines for a pipe, where a row is never broken: it may be searched."""
    match part:
        case Grid(rows=[]) | Grid(rows=()) if part.empty:
            yield part.empty
        case Grid():
            names = (*part.columns, *([part.below] if part.below else []))
            rows = [names, *[[_whole(each) for each in row] for row in part.rows]]
            cells = [[one_line(text) for text in row] for row in rows]
            widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
            for row in cells:
                padded = zip(names, row, widths, strict=True)
                yield (" " * _GAP).join([_pad(part, *each) for each in padded]).rstrip()
        case JsonBlock():
            yield from _json(part.value).split("\n")
        case DiffBlock():
            yield from str(part.diff).split("\n")
        case TreeNode():
            yield from _indent(part)
        case TextLine():
            yield part.text
        case str():
            yield part


def _laid_out(grid: Grid, width: int) -> Iterator[Text]:
    """A table for a terminal. Where the columns do not fit, the widest gives way: a text that is
    too long for it stands alone, and its row goes on in the next line."""
    rows = [[_short(each) for each in row[: len(grid.columns)]] for row in grid.rows]
    cells = [grid.columns, *[[text for text, _ in row] for row in rows]]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= cell_len(grid.columns[widest]):
            break
        widths[widest] -= 1
    total = sum(widths) + _GAP * len(widths)
    below = grid.below if total + cell_len(grid.below) <= width else ""
    header = [(name, "bold") for name in (*grid.columns, below)]
    yield from _row(grid, header, widths, width)
    for row, given in zip(rows, grid.rows, strict=True):
        more = [(_short(given[-1])[0], "dim")] if grid.below else []
        yield from _row(grid, [*row, *more], widths, width)
        if command := _cell(given[-1]).command:
            yield Text(f"    {one_line(command)}")


def _row(grid: Grid, cells: list[tuple[str, str]], widths: list[int], width: int) -> Iterator[Text]:
    line, at = Text(), 0
    for number, (name, (text, style), space) in enumerate(
        zip(grid.columns, cells, widths, strict=False)
    ):
        start = sum(widths[:number]) + _GAP * number
        if line and at > start - _GAP:  # a text before was too long
            yield line
            line, at = Text(), 0
        line.append(" " * (start - at))
        line.append(_pad(grid, name, text, space), style)
        at = start + max(space, cell_len(text))
    below = cells[-1] if grid.below else ("", "")
    if below[0] and at + _GAP + cell_len(below[0]) <= width:
        line.append(" " * _GAP).append(*below)
        below = ("", "")
    line.rstrip()
    yield line
    for text in _wrap(below[0], width, indent=4) if below[0] else ():
        yield Text(text, below[1])


def _pad(grid: Grid, name: str, text: str, width: int) -> str:
    space = " " * max(0, width - cell_len(text))
    return f"{space}{text}" if name in grid.right else f"{text}{space}"


def _cell(given: Cell | str) -> Cell:
    return Cell(given) if isinstance(given, str) else given


def _whole(given: Cell | str) -> str:
    """The text of a cell for a pipe."""
    made = _cell(given)
    return f"{made.text}; {made.command}" if made.command else made.text


def _short(given: Cell | str) -> tuple[str, str]:
    """The text of a cell for a terminal, and its style."""
    made = _cell(given)
    return one_line(made.text if made.short is None else made.short), _STYLES[made.severity]


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Broken between words only, so that keys and ids stay whole."""
    text = one_line(text)
    lead = " " * (indent + len(text) - len(text.lstrip(" ")))
    if cell_len(text) + indent <= width:
        return [f"{' ' * indent}{text}"]
    return textwrap.wrap(
        text.strip(),
        max(width, 20),
        initial_indent=lead,
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(node: TreeNode, depth: int = 0) -> Iterator[str]:
    yield f"{'  ' * depth}{node.text}"
    for child in node.children:
        yield from _indent(child, depth + 1)


def _branches(node: TreeNode, width: int, first: str = "", rest: str = "") -> Iterator[Text]:
    """A tree for a terminal: `first` leads to the node, `rest` to what stands below it."""
    below = rest + ("│ " if node.children else "  ")
    for number, line in enumerate(_wrap(node.text, width - len(first))):
        yield Text(below if number else first, "dim").append(line, node.style)
    for child in node.children:
        last = child is node.children[-1]
        yield from _branches(
            child,
            width,
            rest + ("└── " if last else "├── "),
            rest + ("    " if last else "│   "),
        )


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _stepping(bar: Progress, task: TaskID) -> Callback:
    return lambda done, total: bar.update(task, completed=done, total=total, visible=True)
