"""Children: sessions that a turn has delegated work to, and how they end.

The parent's member `children` has those that have not ended. The child's member `delegation` names
its parent. Each names the other by key and uid, and only what both say counts: a session that has
taken the key of a deleted one, or was imported, is nobody's parent or child by its own word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet import errors
from limpet.errors import InvalidEvent
from limpet.model.events import CHILD_ENDED, Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.limits import CHILDREN_MAX, DELEGATION_DEPTH_MAX
from limpet.model.values import EMPTY, FrozenDict

CHILD_CREATED: Final = "session.child_created"
DELEGATED: Final = "session.delegated"
CHILD_RELEASED: Final = "session.child_released"
DELEGATION_ENDED: Final = "session.delegation_ended"


def named(child: Key, uid: str) -> dict[str, Any]:
    """A child in the log of its parent."""
    return {"child": child.id, "app": child.app, "user": child.user, "uid": uid}


def kin(data: Mapping[str, Any]) -> FrozenDict:
    """Return the fields that name a session beside its id."""
    return FrozenDict({name: data.get(name) for name in ("app", "user", "uid")})


def child_created(
    child: Key,
    uid: str,
    occurrence: int,
    args_hash: str,
    title: str | None,
    *,
    cascade: bool = True,
) -> Fact:
    """A child was created, to do something for this session."""
    data: dict[str, Any] = named(child, uid)
    data |= {"name": child.app, "occurrence": occurrence, "args_hash": args_hash}
    if title is not None:
        data["title"] = title
    if not cascade:
        data["cascade"] = False  # it goes on when this session is interrupted or ends
    return Fact(type=CHILD_CREATED, data=data, id=created_id(child.id))


def created_id(id: str) -> str:
    """The id of the event by which a session says that this is its child."""
    return f"{id}/child"


def child_ended(
    child: Key, uid: str, stop_reason: str, *, summary: str | None, output: Any
) -> Fact:
    """A child has ended: an input of its parent. The commit raises ChildNotFound if it has none
    such at work."""
    data: dict[str, Any] = {**named(child, uid), "stop_reason": stop_reason}
    if summary is not None:
        data["summary"] = summary
    if output is not None:
        data["output"] = output
    return Fact(type=CHILD_ENDED, data=data, id=f"{child.id}/ended")


def child_released(child: Key, uid: str | None = None) -> Fact:
    """A child was interrupted with its parent, which does not wait for it.

    With the uid it is recorded by the child, and the commit raises ChildNotFound like child_ended.
    """
    data = {"child": child.id} if uid is None else named(child, uid)
    return Fact(type=CHILD_RELEASED, data=data)


def delegated(
    parent: Key,
    uid: str,
    turn: str | None,
    depth: int,
    tools: Any = None,
    *,
    spawned: Mapping[str, Any] = EMPTY,
) -> Fact:
    """This session works for another one. Raises InvalidEvent if it is too far down.

    `spawned` is what a child of no turn remembers: the hash of its task, and what it was given.
    """
    if depth > DELEGATION_DEPTH_MAX:
        raise InvalidEvent(f"sessions may delegate {DELEGATION_DEPTH_MAX} levels down, no further")
    data: dict[str, Any] = {"app": parent.app, "user": parent.user, "id": parent.id, "uid": uid}
    data |= {"depth": depth, **spawned}
    if turn is not None:
        data["turn"] = turn
    if tools is not None:
        data["tools"] = tools
    return Fact(type=DELEGATED, data=data)


def delegation_ended() -> Fact:
    """The work of this session for another one is done."""
    return Fact(type=DELEGATION_ENDED, data={"ended": True})


def children_in(facts: Facts) -> FrozenDict:
    """The children that have not ended, by id."""
    fields: FrozenDict = facts.get("children", EMPTY)
    return fields


def is_open(facts: Facts, id: str) -> bool:
    return id in children_in(facts)


def delegation(facts: Facts) -> FrozenDict | None:
    """Return the parent that the session works for, its app, user and id, and how far down it
    is."""
    fields: FrozenDict | None = facts.get("delegation")
    return fields


def works_for(facts: Facts, parent: Key, uid: str) -> bool:
    """True if the session says that it was delegated from this one."""
    delegated = delegation(facts)
    return delegated is not None and parent_in(facts) == parent and delegated.get("uid") == uid


def parent_in(facts: Facts) -> Key | None:
    """The session that this one works for."""
    parent = delegation(facts)
    return None if parent is None else Key(parent["app"], parent["user"], parent["id"])


def depth(facts: Facts) -> int:
    """Return how many sessions are above it."""
    return int(facts.get("delegation", EMPTY).get("depth", 0))


def fold_created(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    kept = ("app", "user", "uid", "cascade")  # its title is the event's
    # The seq is their order: a store need not keep the order of members.
    child = FrozenDict({"seq": at.seq, **{name: data[name] for name in kept if name in data}})
    return {"children": FrozenDict({**children_in(facts), data["child"]: child})}


def fold_ended(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data.get("child") not in children_in(facts):
        return {}
    left = {id: child for id, child in children_in(facts).items() if id != data["child"]}
    return {"children": FrozenDict(left) if left else None}


def fold_delegated(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return {"delegation": FrozenDict(data)}


def fold_delegation_ended(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    parent = delegation(facts)
    return {} if parent is None else {"delegation": FrozenDict({**parent, "ended": True})}


def check_created(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if too many children would be open."""
    if len(children_in(after)) > CHILDREN_MAX:
        raise InvalidEvent(f"the session would have more than {CHILDREN_MAX} children at work")


def check_ended(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise ChildNotFound if the session has no such child at work. What a parent says of a child
    itself, without a uid, may come late."""
    if "uid" in data:
        check_known(before, data)


def check_known(facts: Facts, data: Mapping[str, Any]) -> None:
    """Raise ChildNotFound if no child at work is the one that this data names."""
    child = children_in(facts).get(data["child"])
    if child is None or kin(child) != kin(data):
        raise errors.ChildNotFound(data["child"])
