"""The operations that change state, by name: `ops.Inc(("plan", "done"), 1)`.

Only what is written in a program is here: an operation for each change, and the types of paths and
operations. What the package does with them is in `limpet.model.ops`.
"""

from limpet.model.ops import (
    Add,
    AddRef,
    Cut,
    Delete,
    Inc,
    Insert,
    Merge,
    MergeRef,
    Op,
    Path,
    PlainOp,
    Set,
    SetRef,
)

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
    """What completion offers: the operations, and nothing that a module has anyhow."""
    return sorted(__all__)
