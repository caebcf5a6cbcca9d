"""The command group and its commands, and the errors outside them: wrong usage, lost output.

A command reports its own errors. Errors before it starts, or while its output is written, are
reported here in the same form and with their own exit codes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from limpet.cli.output import safe_output
from limpet.cli.show import Screen
from limpet.errors import InvalidInput


class Commands(TyperGroup):
    """All commands under one name."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        with safe_output():
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
