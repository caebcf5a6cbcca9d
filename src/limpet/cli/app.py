"""The command `limpet`: its help and its exit codes. The commands are in modules named like the
panels of --help (`agents` and `conversation` belong to Look); importing one registers its
commands."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Final

import typer

import limpet
from limpet.cli.command import app

__all__ = ["app"]

_CARE: Final = ("care", "keys", "access", "serve")
_MODULES: Final = (
    "look",
    "analytics",
    "conversation",
    "studio",
    "act",
    "agents",
    "mcp",
    "history",
    "life",
    "move",
    *_CARE,
)
# \b keeps the line breaks. docs/cli.md describes the same codes.
_HELP: Final = """Look at the sessions of a store, act on them, and take care of the store.

STORE is a SQLite file or a URL, SESSION is app/user/id. For example:

\b
  limpet create support.db support/ada/c1        make a store and a session
  limpet send support.db support/ada/c1 "Hello"  say something to its agent
  limpet status support.db                       see what waits, and for what
  limpet log support.db support/ada/c1           see what happened

limpet COMMAND --help shows the arguments of a command. Every command takes --json.
"""
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


@app.callback(invoke_without_command=True, help=_HELP, epilog=_CODES)
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        sys.stdout.write(f"limpet {limpet.__version__}\n")
        raise typer.Exit


for module in _MODULES:  # in the order of --help
    importlib.import_module(f"limpet.cli.{module}")
