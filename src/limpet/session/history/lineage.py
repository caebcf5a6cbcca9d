"""Lineage: a session's parents, forks and merges, read from heads and logs."""

from __future__ import annotations

from typing import Any

from limpet.errors import LimpetError, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import PAGE_MAX, Head, Key
from limpet.model.facts.history import MERGED
from limpet.session.history.refs import Lineage, MergedFrom
from limpet.store.protocol import Store

_GONE: tuple[type[LimpetError], ...] = (SessionNotFound, SessionDeleted, SessionErased)


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


async def _merges(store: Store, key: Key) -> tuple[MergedFrom, ...]:
    found: list[MergedFrom] = []
    after = 0
    how: dict[str, Any] = {"limit": PAGE_MAX, "reverse": False, "types": (MERGED,)}
    while page := await store.read(key, after=after, **how):
        for event in page:
            if event.data is not None:
                other = event.data["other"]
                of = Key(other["app"], other["user"], other["id"])
                found.append(MergedFrom(of, event.data["at"], event.seq))
        after = page[-1].seq
    return tuple(found)
