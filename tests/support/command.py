"""The command `limpet`, run in three ways: in this process, in a pipe, on a terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, NamedTuple

import typer.main
from typer import testing

from limpet.cli.app import app

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
    done = subprocess.run(
        [sys.executable, "-m", "limpet.cli", *args],
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_terminal(here: Path, *args: str, columns: int = 80) -> tuple[int, str]:
    """The command as a process of its own, on a terminal: its exit code and all that is shown."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet.cli", *args],
        cwd=here,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
            "TERM": "xterm-256color",
        },
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 65_536):
            text += chunk
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(ours)
    return process.wait(60), text.decode()


def answer(here: Path, *args: str) -> tuple[int, Any]:
    """The exit code and the JSON, which is all there is."""
    done = run(here, *args, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)
