"""The operations that change state: `ops.Inc(("plan", "done"), 1)`.

This module has only what a program uses: one class per operation, and the types of paths and
operations. `limpet.model.ops` has the functions that work on them.
"""

from limpet.model import Path, PlainOp
from limpet.model.ops import Add, AddRef, Cut, Delete, Inc, Insert, Merge, MergeRef, Op, Set, SetRef

__all__ = [
    "Add",
    "AddRef",
    "Cut",
    "Delete",
    "Inc",
    "Insert",
    "Merge",
    "MergeRef",
    "Op",
    "Path",
    "PlainOp",
    "Set",
    "SetRef",
]


def __dir__() -> list[str]:
    """Show only the operations in completion."""
    return sorted(__all__)
