"""A diff as a table in colour, as wide as the terminal allows."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from limpet.cli.output import cell
from limpet.model.diff.changes import Kind
from limpet.model.diff.diff import Diff
from limpet.model.diff.text import SIGNS, old_and_new, place

_COLOURS: Final = {Kind.ADD: "green", Kind.MODIFY: "yellow", Kind.DELETE: "red"}
_CELL_CHARS_MAX: Final = 120


def diff_table(diff: Diff) -> Table:
    """A row for each change: its sign, its place, the old value and the new one."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("", no_wrap=True)
    for column in ("path", "old", "new"):
        made.add_column(column, overflow="fold")
    for change in diff.changes:
        colour = _COLOURS[change.kind]
        old, new = old_and_new(change, _CELL_CHARS_MAX)
        cells = ((SIGNS[change.kind], colour), (place(change), ""), (old, "red"), (new, "green"))
        made.add_row(*(cell(text, style) for text, style in cells))
    return made
