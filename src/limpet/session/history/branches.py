"""Branches: fork a session, merge what another changed since the two last agreed, show the lineage.

A fork goes on from any event of its parent; nothing is written to the parent. Where two sessions
last agreed is read from their logs: the last merge between them, or else the last event that their
histories share. Links are hashes of everything before them, so equal links are equal histories,
whoever is whose fork. app: and user: names are never merged: both see them anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from limpet.errors import (
    AccessDenied,
    InvalidInput,
    LimpetError,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    SessionTyped,
)
from limpet.model import EMPTY, Base, Commit, Event, Fold, Head, Key, Path, Prepared, checksum, same
from limpet.model.diff.merge import Merged, Policy, merge
from limpet.model.facts.creation import forked, inherited
from limpet.model.facts.history import MERGED, merged
from limpet.model.limits import PAGE_MAX
from limpet.session.history.point_in_time import event_at, fields_of
from limpet.session.journal import Journal
from limpet.session.schema.upgrade import ops_between
from limpet.session.writer import Writer
from limpet.store.protocol import Committed, Store

_GONE: tuple[type[LimpetError], ...] = (SessionNotFound, SessionDeleted, SessionErased)


class MergedSession(Merged, frozen=True, gc=False):
    """The merged state, and the event that recorded it; None if the other had nothing new."""

    event: Event | None = None
    at: int = 0  # the other session's event up to which it was merged


class MergedFrom(msgspec.Struct, frozen=True):
    """One merge in a session's log: the source session, its last merged event, and where it was
    recorded."""

    key: Key
    at: int
    seq: int


class Lineage(msgspec.Struct, frozen=True):
    """A session with the session it was forked from and its own forks."""

    key: Key
    at: int = 0  # the parent's event that it goes on from; 0: it has no parent
    parent: Lineage | None = None  # upwards; without the parent's other forks
    forks: tuple[Lineage, ...] = ()  # downwards, to the last
    merges: tuple[MergedFrom, ...] = ()  # the oldest first

    @property
    def above(self) -> tuple[Lineage, ...]:
        """Its parents, the oldest first."""
        ancestors: list[Lineage] = []
        parent = self.parent
        while parent is not None:
            ancestors.append(parent)
            parent = parent.parent
        return tuple(reversed(ancestors))

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
        for each in self.merges:
            yield "  " * (depth + 1) + f"<- {each.key} up to {each.at}, in event {each.seq}"
        for fork in self.forks:
            yield from fork._below(depth + 1)


class _MergeSide(NamedTuple):
    """One of the two sessions, as far as its log is looked at."""

    key: Key
    uid: str
    version: int


class _CommonPoint(NamedTuple):
    """An event of one of the two."""

    side: _MergeSide
    seq: int


# --- fork ----------------------------------------------------------------------------------------


async def record_fork(
    journal: Journal,
    parent: Head,
    fold: Fold,
    key: Key,
    *,
    labels: Mapping[str, str] | None,
    actor: str,
) -> tuple[Committed, tuple[Prepared, ...]]:
    """Begin the session `key` on a state of its parent, in one commit.

    What the parent may not do now, the fork may not do, at whichever event it begins: `parent` is
    its newest head. The cost grows with the state, not with the history. Raises SessionExists,
    SessionNotFound.
    """
    sum_, head = checksum(fold.fields), fold.head
    of = (parent.key, parent.uid, head.version, head.link)
    base = Base(*of, fold.fields, fold.versions, sum_)
    fact = forked(
        key,
        parent.key,
        labels=EMPTY if labels is None else labels,
        uid=parent.uid,
        floor=head.version,
        checksum=sum_,
        schema_version=head.schema_version,
        inherits=inherited(parent.facts),
    )
    draft = journal.prepare(fact, actor)
    (committed,) = await journal.commit((Commit(key, (draft,), 0, base=base),))
    return committed, (draft,)


# --- merge ---------------------------------------------------------------------------------------


async def merge_session(
    writer: Writer,
    other: Key,
    *,
    policy: Policy,
    policies: Mapping[str | Path, Policy] | None,
    actor: str | None,
) -> MergedSession:
    """Three-way: the base, this session, and the other as it is now. Raises MergeConflict.

    Nothing is written to the other. InvalidInput if the two have no common history, SessionMoved if
    the other is at another node.
    """
    store, made = writer.journal.store, list[MergedSession]()
    loaded = await store.load(other, tail=0, scopes=False)
    loaded.head.check_here()  # its rows here are not its state now
    side = _MergeSide(other, loaded.head.uid, loaded.head.version)
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
    side: _MergeSide,
    theirs: Fold,
    policy: Policy,
    policies: Mapping[str | Path, Policy] | None,
    actor: str | None,
) -> MergedSession:
    known, upgrade = writer.known, writer.typed
    store, fields, schema = writer.journal.store, known.fields, known.head.schema_version
    mine = _MergeSide(known.key, known.head.uid, known.version)
    place = await _agreed(store, mine, side)
    before = await store.fold_at(place.side.key, place.seq)
    _check_typed(writer, before, theirs)
    base, b = fields_of(upgrade, before), fields_of(upgrade, theirs)
    merge_result = merge(base, fields, b, policy=policy, policies=policies)
    value = merge_result.settled()
    if same(base, b):
        return MergedSession(value, base, at=side.version)
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
    return MergedSession(value, base, (), merge_result.resolved, event, side.version)


def _check_typed(writer: Writer, *folds: Fold) -> None:
    """Check that both have the same schema version: without its class, typed state cannot be
    migrated."""
    now = writer.known.head.schema_version
    if writer.classless and any([fold.head.schema_version != now for fold in folds]):
        raise SessionTyped(writer.known.key, str(now))


# --- where the two last agreed -------------------------------------------------------------------


async def _agreed(store: Store, mine: _MergeSide, other: _MergeSide) -> _CommonPoint:
    """The newest state that both have taken in.

    A merge of the other into this one took in the other's state then; a merge of this one into the
    other took in this one's. Of the two, the one that came after the other is the newer.
    """
    here = await _last_merge(store, mine, other)
    there = await _last_merge(store, other, mine)
    if there is not None and (here is None or there.data["at"] >= here.seq):
        return _CommonPoint(mine, there.data["at"])
    if here is not None:
        return _CommonPoint(other, here.data["at"])
    shared = await shared_events(store, (mine.key, mine.version), (other.key, other.version))
    if shared == 0:
        raise InvalidInput(
            f"{mine.key} and {other.key} have no common history. Merge a fork into the session it "
            "came from, or forks of one session into each other."
        )
    return _CommonPoint(mine, shared)


async def _last_merge(store: Store, into: _MergeSide, of: _MergeSide) -> Event | None:
    """The newest event by which one took in the other."""
    before = into.version + 1
    while page := await store.read(
        into.key, after=before, limit=PAGE_MAX, reverse=True, types=(MERGED,)
    ):
        for event in page:
            if event.data is None:
                raise SessionCorrupt(into.key, f"event {event.seq} cannot be read")
            if event.data["other"]["uid"] == of.uid:
                return event
        before = page[-1].seq
    return None


async def shared_events(store: Store, one: tuple[Key, int], other: tuple[Key, int]) -> int:
    """Return the last event that two histories share, each of a key up to a seq; 0 if they share
    none. Halves are ruled out one by one."""
    low, high = 0, min(one[1], other[1])
    while low < high:
        middle = (low + high + 1) // 2
        a, b = await event_at(store, one[0], middle), await event_at(store, other[0], middle)
        if a is not None and b is not None and a.link and a.link == b.link:
            low = middle
        else:
            high = middle - 1
    return low


# --- lineage -------------------------------------------------------------------------------------


async def lineage(store: Store, head: Head) -> Lineage:
    """The session with its parents above it and its forks below it."""
    return await _below(store, head, await _parent(store, head), set())


async def _below(store: Store, head: Head, parent: Lineage | None, seen: set[Key]) -> Lineage:
    seen.add(head.key)
    forks: list[Lineage] = []
    for key in await store.forks(head.key):
        if key not in seen:
            fork = await _head(store, key)
            forks += [] if fork is None else [await _below(store, fork, None, seen)]
    return Lineage(head.key, head.floor, parent, tuple(forks), await _merges(store, head.key))


async def _parent(store: Store, head: Head) -> Lineage | None:
    """The parent as far as it can be read; of one that ended, its key."""
    named = head.facts.get("parent")
    if named is None:
        return None
    key = Key(named["app"], named["user"], named["id"])
    above = await _head(store, key)
    if above is None or above.uid != named["uid"]:
        return Lineage(key)
    return Lineage(
        key, above.floor, await _parent(store, above), merges=await _merges(store, above.key)
    )


async def _head(store: Store, key: Key) -> Head | None:
    try:
        return (await store.load(key, tail=0, scopes=False)).head
    except _GONE:
        return None
    except AccessDenied:  # a relative of another user
        return None


async def _merges(store: Store, key: Key) -> tuple[MergedFrom, ...]:
    merges: list[MergedFrom] = []
    after = 0
    while page := await store.read(
        key, after=after, limit=PAGE_MAX, reverse=False, types=(MERGED,)
    ):
        for event in page:
            if event.data is not None:
                other = event.data["other"]
                of = Key(other["app"], other["user"], other["id"])
                merges.append(MergedFrom(of, event.data["at"], event.seq))
        after = page[-1].seq
    return tuple(merges)
