"""Merge: bring what another session changed since the two last agreed into this one.

Where the two last agreed is read from their logs: the last merge between them, or else the last
event that their histories share. Links are hashes of everything before them, so equal links are
equal histories, whoever is whose fork. app: and user: names are never merged: both see them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.errors import InvalidInput, SessionCorrupt, SessionTyped
from limpet.model import PAGE_MAX, Event, Fold, Key, Path, checksum, same
from limpet.model.diff.merge import Merged as MergedValue
from limpet.model.diff.merge import merge as merge_values
from limpet.model.diff.policy import Policy
from limpet.model.facts.history import MERGED, merged
from limpet.session.history.at import event_at, fields_of
from limpet.session.typing.upgrade import ops_between
from limpet.session.writer import Writer
from limpet.store.protocol import Store


class Merged(MergedValue, frozen=True, gc=False):
    """The merged state, and the event that recorded it; None if the other had nothing new."""

    event: Event | None = None
    at: int = 0  # the other session's event up to which it was merged


class _Side(NamedTuple):
    """One of the two sessions, as far as its log is looked at."""

    key: Key
    uid: str
    version: int


class _Place(NamedTuple):
    """An event of one of the two."""

    side: _Side
    seq: int


async def merge(
    writer: Writer,
    other: Key,
    *,
    policy: Policy,
    policies: Mapping[str | Path, Policy] | None,
    actor: str | None,
) -> Merged:
    """Three-way: the base, this session, and the other as it is now. Raises MergeConflict.

    Nothing is written to the other. InvalidInput if the two have no common history.
    """
    store, made = writer.journal.store, list[Merged]()
    loaded = await store.load(other, tail=0, scopes=False)
    side = _Side(other, loaded.head.uid, loaded.head.version)
    theirs = await store.fold_at(other, side.version)
    await writer.load_whole()
    if side.uid == writer.known.head.uid:
        raise InvalidInput(f"{other} is the session itself. Merge another session into it.")

    async def attempt() -> Event | None:
        made[:] = [await _attempt(writer, side, theirs, policy, policies, actor)]
        return made[0].event

    await writer.persist(attempt)
    return made[0]


async def _attempt(
    writer: Writer,
    side: _Side,
    theirs: Fold,
    policy: Policy,
    policies: Mapping[str | Path, Policy] | None,
    actor: str | None,
) -> Merged:
    known, upgrade = writer.known, writer.typed
    store, fields, schema = writer.journal.store, known.fields, known.head.schema_version
    mine = _Side(known.key, known.head.uid, known.version)
    place = await _agreed(store, mine, side)
    before = await store.fold_at(place.side.key, place.seq)
    _check_typed(writer, before, theirs)
    base, b = fields_of(upgrade, before), fields_of(upgrade, theirs)
    found = merge_values(base, fields, b, policy=policy, policies=policies)
    value = found.settled()
    if same(base, b):
        return Merged(value, base, at=side.version)
    fact = merged(
        side.key,
        uid=side.uid,
        at=side.version,
        base={"uid": place.side.uid, "at": place.seq},
        checksum=checksum(value),
        ops=ops_between(fields, value),
    )
    draft = writer.journal.prepare(fact, actor)
    if upgrade is not None:
        upgrade.fit_after(fields, (draft,))  # and whether this actor may write them
    (event,) = await writer.commit((draft,), mine.version, {}, schema, classless=False)
    return Merged(value, base, (), found.resolved, event, side.version)


def _check_typed(writer: Writer, *folds: Fold) -> None:
    """Without its class, typed state takes over what has the same schema version only."""
    now = writer.known.head.schema_version
    if writer.classless and any([fold.head.schema_version != now for fold in folds]):
        raise SessionTyped(writer.known.key, str(now))


# --- where the two last agreed -------------------------------------------------------------------


async def _agreed(store: Store, mine: _Side, other: _Side) -> _Place:
    """The newest state that both have taken in.

    A merge of the other into this one took in the other's state then; a merge of this one into the
    other took in this one's. Of the two, the one that came after the other is the newer.
    """
    here = await _last_merge(store, mine, other)
    there = await _last_merge(store, other, mine)
    if there is not None and (here is None or there.data["at"] >= here.seq):
        return _Place(mine, there.data["at"])
    if here is not None:
        return _Place(other, here.data["at"])
    return _Place(mine, await _shared(store, mine, other))


async def _last_merge(store: Store, into: _Side, of: _Side) -> Event | None:
    """The newest event by which one took in the other."""
    before = into.version + 1
    how: dict[str, Any] = {"limit": PAGE_MAX, "reverse": True, "types": (MERGED,)}
    while page := await store.read(into.key, after=before, **how):
        for event in page:
            if event.data is None:
                raise SessionCorrupt(into.key, f"event {event.seq} cannot be read")
            if event.data["other"]["uid"] == of.uid:
                return event
        before = page[-1].seq
    return None


async def _shared(store: Store, one: _Side, other: _Side) -> int:
    """The last event that two histories share: halves are ruled out one by one."""
    low, high = 0, min(one.version, other.version)
    while low < high:
        middle = (low + high + 1) // 2
        a, b = await event_at(store, one.key, middle), await event_at(store, other.key, middle)
        if a is not None and b is not None and a.link and a.link == b.link:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise InvalidInput(
            f"{one.key} and {other.key} have no common history. Merge a fork into the session it "
            "came from, or forks of one session into each other."
        )
    return low
