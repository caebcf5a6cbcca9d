"""The command group and its commands, and the errors outside them: wrong usage, lost output.

A command reports its own errors. Errors before it starts, or while its output is written, are
reported here in the same form and with their own exit codes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

from typer.core import TyperCommand, TyperGroup

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
        """The same, with usage errors reported as JSON too."""
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


class Command(TyperCommand):
    """A command. What takes one value, or says yes or no, is accepted once: the last would win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and not (option.multiple or _is_plain_flag(option)):
                names = " or ".join([*option.opts, *option.secondary_opts])
                ctx.fail(f"{names} is given {times} times. Pass it once.")
        return super().parse_args(ctx, args)


def _is_plain_flag(option: Any) -> bool:
    """Whether it can only say one thing, however often."""
    return bool(option.is_flag and not option.secondary_opts)


class _Lost(Exception):
    """The output could not be written. Not an OSError, so that nobody mistakes it for a store's."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


class _Output:
    """Standard output whose failures cannot be confused with those of a store."""

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
    """Wraps all output, so that a failed write gets its own exit code."""
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
            f"limpet: output.lost\n  the output could not be written: {reason}. The command ran "
            "up to that point: free space, or write elsewhere, and run it again.\n"
        )
        sys.exit(OUTPUT_LOST)
    finally:
        sys.stdout = stream


def _let_go(stream: TextIO) -> None:
    """Discard buffered output, so that it does not fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # no file of the operating system
        pass
    finally:
        os.close(nowhere)
