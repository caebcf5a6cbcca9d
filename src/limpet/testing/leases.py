"""Due sessions and leases on them, for the lease tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from limpet.model import Key, Lease, Prepared, runnable_us
from limpet.store.leases import LeaseStore
from limpet.testing.commits import add, create, draft, key, load
from limpet.testing.laws.log.facts import timer

Age: TypeAlias = Callable[[float], Awaitable[None]]
FAR_US = 4_000_000_000_000_000  # in the year 2096
_ONE = key("a")


def prioritized(priority: int) -> Prepared:
    return draft("session.prioritized", {"priority": priority})


async def due(store: LeaseStore, of: Key, at_us: int = 1_000, *more: Prepared) -> None:
    """A session that is due since this time."""
    await create(store, of)
    await add(store, of, timer("t", at_us), *more)


async def claim(
    store: LeaseStore, limit: int = 100, *, worker: str = "w", app: str | None = None
) -> tuple[Lease, ...]:
    return await store.claim(worker, limit=limit, lease_seconds=60, app=app)


async def claimed(store: LeaseStore, of: Key = _ONE) -> Lease:
    """The lease on the only session that is due."""
    await due(store, of)
    (lease,) = await claim(store)
    assert lease.key == of
    return lease


async def is_held_back(store: LeaseStore, of: Key) -> bool:
    """True if nobody holds it, and claims return it only after some time."""
    head = (await load(store, of)).head
    return head.worker is None and head.lease_us is not None and runnable_us(head) == head.lease_us


async def renew(store: LeaseStore, lease: Lease, lease_seconds: float) -> Lease:
    """One lease renewed; raises what stands in its place if it is not held."""
    (renewed,) = await store.renew([lease], lease_seconds)
    if not isinstance(renewed, Lease):
        raise renewed
    return renewed


def ids(leases: tuple[Lease, ...]) -> str:
    return "".join(lease.key.id for lease in leases)
