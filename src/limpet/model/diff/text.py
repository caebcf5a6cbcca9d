"""Diff for people: one plain line for each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from limpet.model.diff.changes import Change, Kind, brief, brief_pair
from limpet.model.ops import Path, show

SIGNS: Final = {Kind.ADD: "+", Kind.MODIFY: "~", Kind.DELETE: "-"}
_LINE_CHARS_MAX: Final = 60


def lines(changes: Iterable[Change]) -> Iterator[str]:
    """One line for each change: its sign, its path, the old and the new value."""
    for change in changes:
        values = " → ".join(filter(None, old_and_new(change, _LINE_CHARS_MAX)))
        yield f"{SIGNS[change.kind]} {place(change)}: {values}"


def place(change: Change) -> str:
    """Where a change is; for a run of several items, as a slice."""
    items = change.old if change.kind is Kind.DELETE else change.new
    if change.length is None or len(items) == 1:
        return show(change.path) or "the root"
    start = change.path[-1]
    assert isinstance(start, int)  # a run of items has its index
    above: Path = change.path[:-1]
    return f"{show(above)}[{start}:{start + len(items)}]"


def old_and_new(change: Change, chars_max: int) -> tuple[str, str]:
    """Old and new value for display; a missing one is empty."""
    match change.kind:
        case Kind.ADD:
            return "", brief(_one(change, change.new), chars_max)
        case Kind.DELETE:
            return brief(_one(change, change.old), chars_max), ""
        case Kind.MODIFY:
            return brief_pair(change.old, change.new, chars_max)


def _one(change: Change, value: object) -> object:
    """A run of one item is shown as that item."""
    if change.length is not None and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value
