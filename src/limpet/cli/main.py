"""The entry point of the `limpet` command; it must start even without the extra `cli`."""

from __future__ import annotations

import sys

from limpet.errors import ExtraMissing


def main() -> None:
    """Run the command line, or say which package is missing."""
    try:
        from limpet.cli.app import app
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        missing = ExtraMissing("typer", "cli")
        sys.stderr.write(f"limpet: {missing.code}\n  {missing}\n")
        sys.exit(missing.exit_code)
    app(prog_name="limpet")
