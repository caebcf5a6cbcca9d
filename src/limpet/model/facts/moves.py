"""Moves: a session leaves one store for another, and exactly one of them owns it.

`session.departed` is the last event that the source records: from then on its fold refuses every
local draft, and the same event in the target's copy keeps that copy inert too. The session goes on
with `session.arrived`, recorded in the target, or with `session.returned`, recorded in the source
once the target has refused the epoch; or with `session.reclaimed`, recorded there in a new epoch
once a person has said that the target is lost. Member `departed` is there between the two; `moves`
has the last epoch and the node that owns the session since. An epoch is never used twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from limpet.errors import InvalidEvent, SessionMoved
from limpet.model.events import Fact
from limpet.model.facts.phases import TERMINAL, phase
from limpet.model.facts.running.children import children_in, delegation
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict, canonical

DEPARTED: Final = "session.departed"
ARRIVED: Final = "session.arrived"
RETURNED: Final = "session.returned"
RECLAIMED: Final = "session.reclaimed"
SETTLES: Final = frozenset((ARRIVED, RETURNED, RECLAIMED))  # what may follow a departure
MOVES: Final = frozenset((DEPARTED, *SETTLES))
# For so long the source keeps the rows of a session that has left; then only its route.
KEPT_US: Final = 24 * 3_600 * 1_000_000
NODE_CHARS_MAX: Final = 64
FAMILY_MAX: Final = 250  # sessions that depart in one commit
EXPECTED: Final = "expected"  # the part of a stage that names its session
LOG: Final = "log"  # the part that has its log
CHECKPOINTS_PART: Final = "checkpoints"  # and that of its checkpoints
_STAGE: Final = re.compile(
    r"([0-9a-f]{32}/[0-9a-f]{32})/[1-9][0-9]{0,18}"
    r"/(expected|log|checkpoints|memory/[0-9a-f]{32})",
    re.ASCII,
)


def departed(to: str, store: str, epoch: int, *, source: str, family: Sequence[Key] = ()) -> Fact:
    """The session leaves for the node `to`, whose store has this identity. `family` are the
    sessions that leave in the same commit, this one among them, if there are others."""
    data: dict[str, Any] = {"to": to, "store": store, "from": source, "epoch": epoch}
    if len(family) > 1:
        data["family"] = [[key.app, key.user, key.id] for key in family]
    return Fact(type=DEPARTED, data=data)


def arrived(node: str, epoch: int, *, source: str) -> Fact:
    """The node owns the session from here on."""
    return Fact(type=ARRIVED, data={"node": node, "from": source, "epoch": epoch})


def returned(node: str, epoch: int, reason: str) -> Fact:
    """The target has refused this epoch: the node still owns the session."""
    return Fact(type=RETURNED, data={"node": node, "epoch": epoch, "reason": reason})


def reclaimed(node: str, away: Mapping[str, Any], reason: str) -> Fact:
    """The node owns the session again, in a new epoch: the store that it departed to is lost."""
    data = {"node": node, "epoch": away["epoch"] + 1, "lost": away["to"], "reason": reason}
    if "store" in away:
        data["store"] = away["store"]
    return Fact(type=RECLAIMED, data=data)


def stage_prefix(key: Key, uid: str | None = None) -> str:
    """Return how the names of a session's stages begin; without a uid, of all under its key."""
    return f"{short_digest(key.id)}/" + ("" if uid is None else f"{short_digest(uid)}/")


def stage_part(id: str) -> str | None:
    """Return the part of a session that the name of a stage says it has; None: it is no such
    name."""
    named = _STAGE.fullmatch(id)
    return None if named is None else named[2]


def stage_session(id: str) -> str | None:
    """Return the prefix of all stage names of the same session; None for any other name."""
    named = _STAGE.fullmatch(id)
    return None if named is None else named[1]


def short_digest(text: str) -> str:
    """Return a name of bounded length for a text of any."""
    return sha256(canonical(text)).hexdigest()[:32]


def last_epoch(facts: Facts) -> int:
    """Return the epoch of the last departure; 0: it never departed."""
    if "departed" in facts:
        return int(facts["departed"]["epoch"])
    return int(facts.get("moves", EMPTY).get("epoch", 0))


def departure(facts: Facts) -> FrozenDict | None:
    """Return where the session departed to; None if it is here."""
    away: FrozenDict | None = facts.get("departed")
    return away


def reclaimed_in(facts: Facts) -> tuple[str, int] | None:
    """Return the node that the session was reclaimed from, and the epoch since then; None if it
    has departed since, or never was."""
    moves = EMPTY if "departed" in facts else facts.get("moves", EMPTY)
    return (moves["lost"], moves["epoch"]) if "lost" in moves else None


def leads_to(away: Mapping[str, Any], node: str, store: str) -> bool:
    """True if a session that departed so is on its way to the store with this identity.

    Names of nodes are chosen by people, and two stores may have the same one. A departure that an
    earlier release recorded has the name alone.
    """
    return bool(away["store"] == store if "store" in away else away["to"] == node)


def family_in(away: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the sessions that left in one commit with this one; empty if it left alone."""
    return tuple([Key(*names) for names in away.get("family", ())])


def check_here(key: Key, facts: Facts) -> None:
    """Raise SessionMoved if the session has departed."""
    away = facts.get("departed")
    if away is not None:
        raise SessionMoved(key, away["to"], away["epoch"])


def kin_of(facts: Facts) -> tuple[Key, ...]:
    """Return the sessions that it works with now: open children, and the parent it works for."""
    kin = [Key(each["app"], each["user"], id) for id, each in children_in(facts).items()]
    parent = delegation(facts)
    if parent is not None and not parent.get("ended") and phase(facts) not in TERMINAL:
        kin.append(Key(parent["app"], parent["user"], parent["id"]))
    return tuple(kin)


def fold_departed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    away = {name: data[name] for name in ("to", "store", "epoch", "family") if name in data}
    away["from"], away["at_us"] = data.get("from", ""), at.at_us
    return {"departed": FrozenDict(away)}


def fold_settled(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """Fold that it arrived, or returned."""
    return {
        "departed": None,
        "moves": FrozenDict({"epoch": data["epoch"], "node": data["node"]}),
    }


def fold_reclaimed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    moves = {name: data[name] for name in ("epoch", "node", "lost")}
    return {"departed": None, "moves": FrozenDict(moves)}


def check_departed(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the epoch does not follow, or if a child that is open, or the parent
    of the session, would be left behind."""
    if data["epoch"] != last_epoch(before) + 1:
        raise InvalidEvent(f"epoch {data['epoch']} does not follow {last_epoch(before)}")
    family = family_in(data)
    if before.get("spawned", 0) > max(0, len(family) - 1):
        raise InvalidEvent("its spawned children are open and would be left behind")
    for relative in kin_of(before):
        if relative not in family:
            raise InvalidEvent(f"{relative} works with it and would be left behind")


def check_settled(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent unless the session is away in this very epoch."""
    away = before.get("departed")
    if away is None or away["epoch"] != data["epoch"]:
        raise InvalidEvent(f"the session is not away in epoch {data['epoch']}")


def check_reclaimed(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent unless the session is away at the store that is said to be lost, and the
    epoch is the next one."""
    away = before.get("departed")
    if away is None or away["to"] != data["lost"] or away.get("store") != data.get("store"):
        raise InvalidEvent(f"the session is not away at {data['lost']}")
    if data["epoch"] != away["epoch"] + 1:
        raise InvalidEvent(f"epoch {data['epoch']} does not follow {away['epoch']}")
