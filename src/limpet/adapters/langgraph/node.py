"""What a thread's tree is made of: checkpoints, the writes under them, and events for new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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


class Told(NamedTuple):
    """An event to be recorded, and how the lists of its checkpoint grow."""

    data: dict[str, Any]
    growths: Mapping[str, Growth] = {}
    id: str | None = None
    cause: str | None = None
    invocation_id: str | None = None
    expect: int | None = None  # it refers to others, so it holds on this version only


class Broken(Exception):
    """The events that a checkpoint stands on cannot be read."""
