"""Standard output and error of the command: the one place through which everything is printed.

Stored text may hold anything, so no character that a terminal obeys, or that reorders or hides the
text around it, is ever written as it is: it becomes `\\u001b`, which is valid within JSON too and
means the same there. Only the colors and cursor movements of the command itself pass. What the
user's own code prints is not ours and is passed on unchanged (`users_code`).
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.segment import Segment
from rich.text import Text

READER_GONE: Final = 141  # as a shell reports a process that a closed pipe ended
OUTPUT_LOST: Final = 74  # EX_IOERR of sysexits.h

# Control characters but tab and newline, DEL, C1, marks that turn the direction of text, characters
# without a shape (but the joiners, which emoji and several scripts need), line separators, halves
# of pairs, tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def escaped(text: str) -> str:
    """The text, which may have several lines, with unsafe characters written as JSON has them."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: str) -> str:
    """Return the escaped text as part of a line: its line breaks are escaped too."""
    return escaped(text).replace("\n", "\\n")


def cell(text: str, style: str = "") -> Text:
    """One line for rich, or a cell of its tables."""
    return Text(one_line(text), style)


class Output:
    """A standard stream. Writes safe text, and fails unlike a store does if it cannot."""

    def __init__(self, stream: TextIO) -> None:
        self.stream: Final = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # would be a way around
            raise AttributeError(name)
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.control(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def control(self, text: str) -> int:
        """Write a text that the terminal is meant to obey: one of ours, never a stored one."""
        try:
            try:
                return self.stream.write(text)
            except UnicodeEncodeError:  # a terminal or a pipe for fewer letters
                return self.stream.write(re.sub(r"[^\x00-\x7f]", _escape, text))
        except OSError as error:
            raise Lost(self.stream, error) from error

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise Lost(self.stream, error) from error


class Lost(Exception):
    """The output could not be written. Not an OSError, so that nobody mistakes it for a store's."""

    def __init__(self, stream: TextIO, cause: OSError) -> None:
        self.stream, self.cause = stream, cause


def output(*, stderr: bool = False) -> Output:
    """Standard output or error as it is now; it stays ours while the user's code runs."""
    stream: Any = sys.stderr if stderr else sys.stdout
    return stream if isinstance(stream, Output) else Output(stream)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Rich's console on a standard stream; what it renders is made safe before it is colored."""
    file: Any = _Rendered(output(stderr=stderr).stream)
    made = Console(file=file, highlight=False, width=width)
    made.push_render_hook(_Safely())
    return made


@contextmanager
def users_code() -> Iterator[None]:
    """Send what the user's own code prints to stderr, unchanged, while it runs."""
    raw = output(stderr=True).stream
    with redirect_stdout(raw), redirect_stderr(raw):
        yield


@contextmanager
def safe_output() -> Iterator[None]:
    """All output is safe, and a failed write has its own exit code."""
    streams = sys.stdout, sys.stderr
    answers: Any = Output(sys.stdout)
    errors: Any = Output(sys.stderr)
    sys.stdout, sys.stderr = answers, errors
    try:
        try:
            yield
        finally:
            answers.flush()
    except Lost as lost:
        _let_go(lost.stream)
        if lost.cause.errno == errno.EPIPE:
            sys.exit(READER_GONE)
        reason = lost.cause.strerror or str(lost.cause)
        if lost.stream is streams[0]:
            streams[1].write(
                f"limpet: output.lost\n  the output could not be written: {reason}. The command "
                "ran up to that point: free space, or write elsewhere, and run it again.\n"
            )
        sys.exit(OUTPUT_LOST)
    finally:
        sys.stdout, sys.stderr = streams


# --- private ------------------------------------------------------------------------------------


def _escape(unsafe: re.Match[str]) -> str:
    """Escape a character as JSON does: one beyond the first 65,536 is a pair."""
    units = unsafe[0].encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)])


class _Rendered(Output):
    """The text that rich has rendered: safe text with the colors that it was given."""

    def write(self, text: str) -> int:
        return self.control(text)


class _Safely(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Safe(each) for each in renderables]


class _Safe:
    """Something to render, each of its texts made safe. Control codes of rich's own stay."""

    def __init__(self, what: RenderableType) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._what, options):
            yield Segment(text if control else escaped(text), style, control)


def _let_go(stream: TextIO) -> None:
    """Discard buffered output, so that it does not fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # no file of the operating system
        pass
    finally:
        os.close(nowhere)
