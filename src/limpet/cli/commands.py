"""The group of commands, and what ends beside them: wrong usage, output that nobody takes.

A command tells its own errors. What happens before it begins, or while its answer is written, is
told here in the same form and with a code of its own.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

from typer.core import TyperGroup

from limpet.cli.show import Screen
from limpet.errors import InvalidInput

READER_GONE: Final = 141  # as a shell reports a process that a closed pipe ended
OUTPUT_LOST: Final = 74  # EX_IOERR of sysexits.h


class Commands(TyperGroup):
    """All commands under one name."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        with _answering():
            if "--json" not in given:
                return super().main(given, *rest, **extra)
            self._main_in_json(given, *rest, **extra)

    def _main_in_json(self, given: list[str], *rest: Any, **extra: Any) -> None:
        """The same, with wrong usage told as every other error is."""
        screen = Screen(as_json=True)
        try:
            code = super().main(given, *rest, **{**extra, "standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):  # typer's own, wherever its version keeps it
                raise
            words = str(error.format_message()).rstrip(".")
            command = f"limpet {given[0]}" if given[0] in self.commands else "limpet"
            screen.error(InvalidInput(f"{words}. See {command} --help."))
            code = InvalidInput.exit_code
        sys.exit(code if isinstance(code, int) else 0)


class _Lost(Exception):
    """The answer could not be written; no OSError, which others take for one of theirs."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


class _Output:
    """The standard output, whose failures are told from those of a store."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _Lost(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _Lost(error) from error


@contextmanager
def _answering() -> Iterator[None]:
    """Around everything that is printed: what is not taken is not called a finding."""
    stream = sys.stdout
    output: Any = _Output(stream)
    sys.stdout = output
    try:
        try:
            yield
        finally:
            output.flush()
    except _Lost as lost:
        _let_go(stream)
        if lost.cause.errno == errno.EPIPE:
            sys.exit(READER_GONE)
        reason = lost.cause.strerror or str(lost.cause)
        sys.stderr.write(
            f"limpet: output.lost\n  the answer could not be written: {reason}. What was asked "
            "for was done as far as it came: make room, or write elsewhere, and run it again.\n"
        )
        sys.exit(OUTPUT_LOST)
    finally:
        sys.stdout = stream


def _let_go(stream: TextIO) -> None:
    """What still waits to be written goes nowhere, instead of failing once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # no file of the operating system
        pass
    finally:
        os.close(nowhere)
