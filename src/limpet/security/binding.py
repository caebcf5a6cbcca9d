"""Opening a store with keys: it and its ring belong together, from the first opening on.

The store remembers the id of its ring. A ring remembers that it was bound, and what the store then
held in plain text; nothing else in plain text is accepted later. So neither a foreign ring nor a
store whose binding was removed is taken for a new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from limpet.errors import InvalidInput, SealUnavailable
from limpet.model.facts.phases import archive_place
from limpet.model.limits import PAGE_MAX
from limpet.security.keys import KeySeal
from limpet.store.coding.seal import scope_owner
from limpet.store.open import look_at, open_store, scheme_of
from limpet.store.pages import each_head
from limpet.store.protocol import Checked, KeyOwner, Names, Query, RingBinding, Store


async def open_sealed(
    url: str,
    keys: str,
    keyring: str | None,
    *,
    connections: int | None = None,
    check: Checked | None = None,
) -> tuple[Store, KeySeal]:
    """Open the store that a URL names, and its ring. Raises SealUnavailable if they do not belong
    together, or if the masters do not fit the ring."""
    seal = KeySeal.of(url, keys, keyring)
    store = await open_store(url, seal=seal, connections=connections, check=check)
    try:
        await _bind(url, store, seal)
    except BaseException:
        await store.close()
        await seal.close()
        raise
    return store, seal


async def look_sealed(url: str, keys: str, keyring: str | None) -> tuple[Store, KeySeal | None]:
    """Open the store that is there to read it. One that was never opened with keys stays so."""
    seal = KeySeal.of(url, keys, keyring)
    store = await look_at(url, seal=seal)
    try:
        expected = await store.ring() if isinstance(store, RingBinding) else None
        if expected is not None:
            await seal.open_ring(expected)
            return store, seal
    except BaseException:
        await store.close()
        raise
    await store.close()
    return await look_at(url), None


async def _bind(url: str, store: Store, seal: KeySeal) -> None:
    if not isinstance(store, RingBinding):
        raise InvalidInput("this store cannot remember a key ring. Open it with a seal.")
    expected = await store.ring()
    await seal.open_ring(expected)
    if expected is None:
        if not seal.fresh and await _has_sessions(store):
            reason = "this ring is bound, and this store holds sessions and names no ring"
            raise SealUnavailable([seal.ring.where], reason)
        remembered = await store.bind_ring(seal.id)
        if remembered != seal.id:
            reason = f"another process bound the store to the ring {remembered}"
            raise SealUnavailable([seal.ring.where], reason)
    if seal.fresh:
        await seal.mark_bound(await _plain_now(url, store))


async def _plain_now(url: str, store: Store) -> list[tuple[KeyOwner, str, int]]:
    """Look at the store without keys: reading it with them would make some, and a ring that has
    keys before it was bound is not to be trusted."""
    if scheme_of(url) == "memory":
        return [each async for each in _plain_bodies(store)]
    blind = await look_at(url)
    try:
        return [each async for each in _plain_bodies(blind)]
    finally:
        await blind.close()


async def _has_sessions(store: Store) -> bool:
    for deleted in (False, True):
        query = Query(reverse=False, reserved=True, deleted=deleted)
        if (await store.heads(query, cursor=None, limit=1)).items:
            return True
    return False


async def _plain_bodies(store: Store) -> AsyncIterator[tuple[KeyOwner, str, int]]:
    """Yield the owner, name ("" for a session) and newest version of everything in the store."""
    for deleted in (False, True):
        query = Query(reverse=False, reserved=True, deleted=deleted)
        async for head in each_head(store, query):
            yield head.uid, "", head.version
            if (archived := archive_place(head.facts)) is not None:
                yield archived["uid"], "", archived["version"]
    if not isinstance(store, Names):
        return
    after = None
    while owners := await store.owners(None, after=after, limit=PAGE_MAX):
        for app, user in owners:
            for name, value in (await store.names_of(app, user)).items():
                yield scope_owner(app, user), name, value.version
        after = owners[-1]
