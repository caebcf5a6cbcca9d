"""The entry of the `holdfast` command, which must start even where its extra is not installed."""

from __future__ import annotations

import sys

from holdfast.errors import ExtraMissing


def main() -> None:
    """Run the command line, or say what is missing for it."""
    try:
        from holdfast.cli.app import app
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        missing = ExtraMissing("typer", "cli")
        sys.stderr.write(f"holdfast: {missing.code}\n  {missing}\n")
        sys.exit(missing.exit_code)
    app(prog_name="holdfast")
