"""What a thread's tree is made of: checkpoints, the writes under them, and events for new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from limpet.adapters.langgraph.changes import changed, metadata_after, touched, versions_after
from limpet.adapters.langgraph.lists import Growth

CHECKPOINT: Final = "langgraph.checkpoint"
WRITES: Final = "langgraph.writes"
REMOVED: Final = "langgraph.removed"
TYPES: Final = (CHECKPOINT, WRITES, REMOVED)


class Write(NamedTuple):
    """One write of a task to a channel."""

    task: str
    channel: str
    data: Any
    path: str


class Node:
    """A checkpoint, whole: what its event says, on top of the one it was made from."""

    def __init__(self, ns: str, id: str, parent: str | None, number: int, seq: int) -> None:
        self.ns, self.id, self.parent, self.number, self.seq = ns, id, parent, number, seq
        self.ts: Any = ""  # as data
        self.rest: dict[str, Any] = {}  # v and other members of the checkpoint, as data
        self.meta: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.values: dict[str, Any] = {}  # data, or a List
        self.children: dict[str, int] = {}  # the ids of checkpoints made from this one, and seqs
        self.hidden = False

    def read(self, on: Node, data: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
        """Take what its event says, on top of another node; lists are not part of it."""
        self.meta = metadata_after(on.meta, data, shape)
        self.versions, self.seen = versions_after(on, data, shape)
        self.values = {**changed(on.values, shape, "values"), **data.get("values", {})}
        self.values |= dict.fromkeys(shape.get("nulls", ()))
        self.rest = changed(on.rest, shape, "rest")
        if shape.get("updated"):
            self.rest["updated_channels"] = touched(data, shape)


class After(NamedTuple):
    """What the node of a checkpoint will hold besides its lists, as it was when it was described:
    its own event need not be read for it."""

    meta: dict[str, Any]
    versions: dict[str, Any]
    seen: dict[str, Any]
    values: dict[str, Any]
    rest: dict[str, Any]


class Told(NamedTuple):
    """An event to be recorded; of a checkpoint, how its lists grow, and the rest of its node."""

    data: dict[str, Any]
    growths: Mapping[str, Growth] = {}
    id: str | None = None
    cause: str | None = None
    invocation_id: str | None = None
    expect: int | None = None  # it refers to others, so it holds on this version only
    after: After | None = None


class Broken(Exception):
    """The events that a checkpoint stands on cannot be read."""
