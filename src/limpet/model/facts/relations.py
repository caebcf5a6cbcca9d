"""Relations: sessions that know of each other beside parent, fork and merge.

Both record it in one commit, each with the other's key and uid. The log is where relations are
read from: the head keeps nothing of them, so a session may have any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from limpet.model.events import Fact
from limpet.model.keys import Key

RELATED: Final = "session.related"
RelationKind: TypeAlias = Literal["successor", "peer", "reference"]
Direction: TypeAlias = Literal["to", "from", "both"]
RELATION_KINDS: Final[tuple[RelationKind, ...]] = get_args(RelationKind)


def related(kind: RelationKind, direction: Direction, other: Key, uid: str, actor: str) -> Fact:
    """This session has a relation to or from `other`, or in both directions.

    The id follows from it: recorded again, it is the same event.
    """
    data = {"kind": kind, "direction": direction, **named(other, uid)}
    return Fact(type=RELATED, data=data, id=f"related/{kind}/{direction}/{uid}", actor=actor)


def named(key: Key, uid: str) -> dict[str, Any]:
    """Name another session in the data of an event."""
    return {"app": key.app, "user": key.user, "id": key.id, "uid": uid}


def key_in(data: Mapping[str, Any]) -> Key:
    """Return the key of the other session that this data names."""
    return Key(data["app"], data["user"], data["id"])
