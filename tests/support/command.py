"""The command `limpet`, run in three ways: in this process, in a pipe, on a terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pty
import termios
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import typer.main
from typer import testing

from limpet.cli.app import app
from tests.support.processes import forked

# The tree of commands takes longer to build than most commands take, and it is always the same.
testing._get_command = typer.main.get_command = functools.cache(typer.main.get_command)
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def invoke(*args: str, input: str | None = None) -> testing.Result:
    """The command in this process, which saves the second that a new one takes."""
    return testing.CliRunner().invoke(app, args, input=input, prog_name="limpet")


def run(here: Path, *args: str) -> Done:
    """The same in this directory. What was not to be raised is raised here."""
    with contextlib.chdir(here):
        result = invoke(*args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def run_process(here: Path, *args: str) -> Done:
    """The command as a process of its own, in a pipe."""
    with Path(os.devnull).open() as nothing, TemporaryFile() as out, TemporaryFile() as err:
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        code = forked("limpet.cli", [*args], streams, here=here, environment=_with(COLUMNS="80"))
        for file in (out, err):
            file.seek(0)
        return Done(code, out.read().decode(), err.read().decode())


def run_terminal(here: Path, *args: str, columns: int = 80) -> tuple[int, str]:
    """The command as a process of its own, on a terminal: its exit code and all that is shown."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown = b""

    def read() -> None:
        nonlocal shown
        with contextlib.suppress(OSError):  # how a terminal says that the other side is gone
            while chunk := os.read(ours, 65_536):
                shown += chunk

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with Path(os.devnull).open() as nothing:
            streams = (nothing.fileno(), theirs, theirs)
            environment = _with(TERM="xterm-256color")
            code = forked("limpet.cli", [*args], streams, here=here, environment=environment)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return code, shown.decode()


def _with(**more: str) -> dict[str, str]:
    """The environment of a command, which is not that of the runner of the tests."""
    return {**os.environ, **more}


def answer(here: Path, *args: str) -> tuple[int, Any]:
    """The exit code and the JSON, which is all there is."""
    done = run(here, *args, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)
