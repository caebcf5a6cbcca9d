"""Checkpoints: facts of the log that a session's checkpoints are recorded in.

State there: `of` is the uid of the session, `last` the number of the newest checkpoint, and `kept`
has the checkpoints that were not let go, by their numbers. The head of that log has the number and
the time of the newest one, let go or not: loading the session brings them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from limpet.model.events import Fact
from limpet.model.facts.creation import created
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.ops import Delete, Op, Set, SetRef
from limpet.model.values import FrozenDict

RECORDED: Final = "checkpoint.recorded"
UNPINNED: Final = "checkpoint.unpinned"
OF: Final = "of"
LAST: Final = "last"
KEPT: Final = "kept"


class LastCheckpoint(NamedTuple):
    """The newest checkpoint of a session: its number and its time; 0 if there was none."""

    number: int = 0
    at_us: int = 0


NO_CHECKPOINT: Final = LastCheckpoint()


def checkpoints_created(key: Key, uid: str) -> Fact:
    """The log of the checkpoints of a session (its uid) begins."""
    return created(key, fields=_empty(uid))


def recorded(data: Mapping[str, Any], dropped: Iterable[int] = ()) -> Fact:
    """A checkpoint was made; those `dropped` are let go with it, as a policy says."""
    number = data["number"]
    gone = [Delete((KEPT, str(each))) for each in dropped]
    row = SetRef((KEPT, str(number)), ())  # all of the data
    ops: tuple[Op, ...] = (Set((LAST,), number), row, *gone)
    return Fact(type=RECORDED, data=data, ops=ops)


def begun_again(uid: str) -> Fact:
    """The key belongs to another session now, which has no checkpoints yet."""
    return Fact(type=UNPINNED, data={OF: uid}, set=_empty(uid))


def unpinned(numbers: Iterable[int]) -> Fact:
    """Checkpoints were let go."""
    return Fact(type=UNPINNED, ops=[Delete((KEPT, str(each))) for each in numbers])


def last_checkpoint(facts: Facts) -> LastCheckpoint:
    """Return the newest checkpoint as the head of the log has it."""
    checkpoint = facts.get("checkpoint")
    return (
        NO_CHECKPOINT
        if checkpoint is None
        else LastCheckpoint(checkpoint["number"], checkpoint["at_us"])
    )


def fold_recorded(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"checkpoint": FrozenDict(number=data["number"], at_us=data["at_us"])}


def fold_unpinned(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"checkpoint": None} if OF in data else {}


def _empty(uid: str) -> dict[str, Any]:
    return {OF: uid, LAST: 0, KEPT: {}}
