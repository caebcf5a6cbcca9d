"""The entry point of the `limpet` command; it must start even without the extra `cli`."""

from __future__ import annotations

import sys
import traceback
from typing import Final

from limpet.errors import ExtraMissing

BROKEN: Final = 70  # EX_SOFTWARE of sysexits.h
_BUG: Final = "this is a bug in Limpet. Please report it, with the lines above."


def main() -> None:
    """Run the command line, or say which package is missing."""
    try:
        from limpet.cli.app import app
        from limpet.cli.output import escaped
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        missing = ExtraMissing("typer", "cli")
        sys.stderr.write(f"limpet: {missing.code}\n  {missing}\n")
        sys.exit(missing.exit_code)
    try:
        app(prog_name="limpet")
    except Exception:  # ours: without the code 1, which means that something was found
        sys.stderr.write(f"{escaped(traceback.format_exc())}limpet: internal\n  {_BUG}\n")
        sys.exit(BROKEN)
