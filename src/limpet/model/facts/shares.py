"""Shares: fields of one session that another may read, or write.

The target's member `shares` has those that it may use; to write or to read, nothing else is asked.
The source has them in its log alone: however many there are, its head stays small. The values of a
snapshot are in the source's event, so that they are erased with it; the target has their hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent, ShareNotFound
from limpet.model.events import Fact
from limpet.model.facts.relations import named
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.ops import PlainOp
from limpet.model.values import EMPTY, FrozenDict

SHARED: Final = "session.shared"  # in the log of the source
SHARE_RECEIVED: Final = "session.share_received"  # in the log of the target
UNSHARED: Final = "session.unshared"  # in both
SHARE_WRITTEN: Final = "session.share_written"  # in the log of the source: its state changes
SHARE_USED: Final = "session.share_used"  # in the log of the target, which wrote
ShareAccess: TypeAlias = Literal["read", "write"]
ShareSync: TypeAlias = Literal["snapshot", "live"]
SHARES_MAX: Final = 64  # that one session has received: a head must stay small
SHARED_FIELDS_MAX: Final = 64


class ShareTerms(msgspec.Struct, frozen=True, rename={"id": "share"}, omit_defaults=True):
    """The record of a share, at both ends."""

    id: str
    fields: tuple[str, ...]
    access: ShareAccess
    sync: ShareSync
    version: int  # of the source
    expires_us: int | None = None


def shared(
    terms: ShareTerms,
    target: Key,
    uid: str,
    values: Mapping[str, Any] | None,
    versions: Mapping[str, int],
) -> Fact:
    """The source lets `target` use these fields. A snapshot has `values`, and their `versions`."""
    data = {**msgspec.to_builtins(terms), "target": named(target, uid)}
    if values is not None:
        data |= {"values": dict(values), "versions": dict(versions)}
    return Fact(type=SHARED, data=data, id=shared_id(terms.id))


def shared_id(share: str) -> str:
    """Return the id of the source's event of a share."""
    return f"{share}/shared"


def share_received(terms: ShareTerms, source: Key, uid: str, values_hash: str | None) -> Fact:
    """The target may use fields of `source`."""
    data = {**msgspec.to_builtins(terms), "source": named(source, uid)}
    if values_hash is not None:
        data["hash"] = values_hash
    return Fact(type=SHARE_RECEIVED, data=data)


def unshared(share: str) -> Fact:
    """A share has ended, in the log of either end."""
    return Fact(type=UNSHARED, data={"share": share})


def share_written(share: str, target: Key, uid: str, ops: Sequence[PlainOp]) -> Fact:
    """`target` has written fields of this session, its source. The actor is who wrote; who let it
    is the actor of the event that `shared_id` names."""
    data = {"share": share, "target": named(target, uid)}
    return Fact(type=SHARE_WRITTEN, data=data, ops=ops)


def share_used(share: str, fields: Sequence[str]) -> Fact:
    """This session has written fields of the source. Refused if the share has ended."""
    return Fact(type=SHARE_USED, data={"share": share, "fields": list(fields)})


def shares_in(facts: Facts) -> FrozenDict:
    """Return the shares that the session has received, by id."""
    received: FrozenDict = facts.get("shares", EMPTY)
    return received


def fold_received(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    kept = {name: value for name, value in data.items() if name != "share"}
    share = FrozenDict({**kept, "at_us": at.at_us})
    return {"shares": FrozenDict({**shares_in(facts), data["share"]: share})}


def fold_unshared(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data["share"] not in shares_in(facts):
        return {}
    left = {id: share for id, share in shares_in(facts).items() if id != data["share"]}
    return {"shares": FrozenDict(left) if left else None}


def check_received(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if a session would have received too many."""
    if len(shares_in(after)) > SHARES_MAX:
        raise InvalidEvent(f"the session would have more than {SHARES_MAX} shares of others")


def check_known(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise ShareNotFound if the share has ended: the commit, and what the other end would have
    recorded in it, is refused."""
    if data["share"] not in shares_in(before):
        raise ShareNotFound(data["share"])
