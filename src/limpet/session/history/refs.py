"""What history returns: references to checkpoints, rewinds, blame and lineages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from limpet.model import Event, Key, PlainOp


class CheckpointRef(msgspec.Struct, frozen=True):
    """Names a checkpoint. The checksum is that of the session's own fields there."""

    key: Key
    number: int  # counts up within the session, from 1
    seq: int
    checksum: str  # SHA-256 of the canonical encoding, in hex


class Place(msgspec.Struct, frozen=True):
    """Where the file of a checkpoint is, if it is kept in a tier besides the store."""

    tier: str
    file: str
    base: str | None = None  # the file that this one is the difference to
    schema_version: str | None = None


class Rewound(msgspec.Struct, frozen=True):
    """What a rewind changed."""

    event: Event | None  # None: the state was the same, so nothing was recorded
    restored: tuple[str, ...]  # names whose values are now those of then
    left: tuple[str, ...]  # app: and user: names that another session changed too

    def __str__(self) -> str:
        left = f"; left, since others changed them too: {', '.join(self.left)}" if self.left else ""
        if self.event is None:
            return f"nothing to restore{left}"
        return f"event {self.event.seq} restored {', '.join(self.restored) or 'nothing'}{left}"


class Blame(msgspec.Struct, frozen=True):
    """One change of a value: the event, who acted, when, and the operation."""

    event: Event
    actor: str
    at: datetime
    op: PlainOp


class MergedFrom(msgspec.Struct, frozen=True):
    """One merge in a session's log: which session, up to which of its events, recorded where."""

    key: Key
    at: int
    seq: int


class Lineage(msgspec.Struct, frozen=True):
    """A session among its relatives: the session that it forked, and those that forked it."""

    key: Key
    at: int = 0  # the parent's event that it goes on from; 0: it has no parent
    parent: Lineage | None = None  # upwards; without the parent's other forks
    forks: tuple[Lineage, ...] = ()  # downwards, to the last
    merges: tuple[MergedFrom, ...] = ()  # the oldest first

    @property
    def above(self) -> tuple[Lineage, ...]:
        """Its parents, the oldest first."""
        found: list[Lineage] = []
        parent = self.parent
        while parent is not None:
            found.append(parent)
            parent = parent.parent
        return tuple(reversed(found))

    @property
    def line(self) -> str:
        """Its own line in the tree."""
        return f"{self.key}" + (f" (from event {self.at})" if self.at else "")

    def __str__(self) -> str:
        """The tree, a line for each session and merge."""
        above = ["  " * depth + each.line for depth, each in enumerate(self.above)]
        return "\n".join([*above, *self._below(len(above))])

    def _below(self, depth: int) -> Iterator[str]:
        yield "  " * depth + self.line
        for merge in self.merges:
            yield "  " * (depth + 1) + f"<- {merge.key} up to {merge.at}, in event {merge.seq}"
        for fork in self.forks:
            yield from fork._below(depth + 1)
