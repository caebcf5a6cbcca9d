"""Checkpoints: facts of the log that a session's checkpoints are recorded in.

State there: `of` is the uid of the session, `last` the number of the newest checkpoint, and `kept`
has the checkpoints that were not let go, by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.facts.creation import created
from limpet.model.keys import Key
from limpet.model.ops import Delete, Op, Set

RECORDED: Final = "checkpoint.recorded"
UNPINNED: Final = "checkpoint.unpinned"
OF: Final = "of"
LAST: Final = "last"
KEPT: Final = "kept"


def checkpoints_created(key: Key, uid: str) -> Fact:
    """The log of the checkpoints of a session (its uid) begins."""
    return created(key, fields=_empty(uid))


def recorded(data: Mapping[str, Any], dropped: Iterable[int] = ()) -> Fact:
    """A checkpoint was made; those `dropped` are let go with it, as a policy says."""
    number = data["number"]
    row = {name: value for name, value in data.items() if name != "number"}
    ops: list[Op] = [Set((LAST,), number), Set((KEPT, str(number)), row)]
    ops += [Delete((KEPT, str(each))) for each in dropped]
    return Fact(type=RECORDED, data=data, ops=ops)


def begun_again(uid: str) -> Fact:
    """The key belongs to another session now, which has no checkpoints yet."""
    return Fact(type=UNPINNED, set=_empty(uid))


def unpinned(numbers: Iterable[int]) -> Fact:
    """Checkpoints were let go."""
    return Fact(type=UNPINNED, ops=[Delete((KEPT, str(each))) for each in numbers])


def _empty(uid: str) -> dict[str, Any]:
    return {OF: uid, LAST: 0, KEPT: {}}
