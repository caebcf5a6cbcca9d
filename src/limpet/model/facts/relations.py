"""Relations: sessions that know of each other beside parent, fork and merge.

Both record it in one commit, each with the other's key and uid. The log is where relations are
read from: the head keeps nothing of them, so a session may have any number. A relation by which a
session reads from another names what it reads, with the hash of each; a citation is such a
relation that the session records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from limpet.model.events import Fact
from limpet.model.keys import Key

RELATED: Final = "session.related"
UNRELATED: Final = "session.unrelated"
RelationKind: TypeAlias = Literal["successor", "predecessor", "peer", "reference"]
CITED_MAX: Final = 64  # fields, and blobs, that one relation lets a session read
Direction: TypeAlias = Literal["to", "from", "both"]
RELATION_KINDS: Final[tuple[RelationKind, ...]] = get_args(RelationKind)


class ReadTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of another session that one may read by a relation: hashes of the output and of
    fields, and blobs; as they were at this `version` of it. `maker` is who lets it, as a
    principal."""

    version: int
    output: str | None = None
    fields: Mapping[str, str] = {}
    blobs: tuple[Mapping[str, Any], ...] = ()
    maker: Mapping[str, Any] | None = None


def related(
    kind: RelationKind,
    direction: Direction,
    other: Key,
    uid: str,
    actor: str,
    *,
    before: int = 0,
    reads: ReadTerms | None = None,
    id: str | None = None,
) -> Fact:
    """This session has a relation to or from `other`, or in both directions.

    The id follows from it: recorded again, it is the same event. `before` is how many such
    relations have ended. One with `reads` has an `id` of its own.
    """
    data = {"kind": kind, "direction": direction, **named(other, uid)}
    if reads is not None:
        data["reads"] = msgspec.to_builtins(reads)
    again = f"/{before}" if before else ""
    own = id or f"related/{kind}/{direction}/{uid}{again}"
    return Fact(type=RELATED, data=data, id=own, actor=actor)


def unrelated(relation: str) -> Fact:
    """The relation that this session recorded under this id has ended."""
    return Fact(type=UNRELATED, data={"relation": relation})


def named(key: Key, uid: str) -> dict[str, Any]:
    """Name another session in the data of an event."""
    return {"app": key.app, "user": key.user, "id": key.id, "uid": uid}


def key_in(data: Mapping[str, Any]) -> Key:
    """Return the key of the other session that this data names."""
    return Key(data["app"], data["user"], data["id"])
