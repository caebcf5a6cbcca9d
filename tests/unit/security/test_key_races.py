"""Keys that are destroyed while somebody asks for them: nobody keeps one that the ring has not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from limpet.errors import SealUnavailable
from limpet.security.ring import MemoryRing, RingRow
from limpet.store.coding.seal import KeyRenewed, Sealer, Unready
from limpet.store.protocol import Place
from tests.support.keys import memory_seal

OWNER = '["shop","ada"]'
PLACE = Place("scope", OWNER, "user:n@1")
Event = Callable[[], Awaitable[None]]


class Disturbed(MemoryRing):
    """A ring where something happens after a key was read, or as one was made."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Event] = []
        self.added: list[Event] = []

    async def get(self, kind: str, owners: Sequence[str]) -> list[RingRow]:
        found = await super().get(kind, owners)  # type: ignore[arg-type]  # as it was asked
        if kind == "plain" and self.read:  # the keys were read before
            await self.read.pop()()
        return found

    async def add(self, rows: Sequence[RingRow]) -> None:
        await super().add(rows)
        if self.added:
            await self.added.pop()()


@pytest.fixture
def ring() -> Disturbed:
    return Disturbed()


async def test_a_key_that_is_forgotten_while_it_is_fetched_is_not_used(ring: Disturbed) -> None:
    """What it seals would be readable until this process ends, and never again."""
    sealer = Sealer(memory_seal(ring))
    begun: list[asyncio.Task[None]] = []

    async def forget() -> None:
        begun.append(asyncio.create_task(sealer.forget(OWNER)))
        await asyncio.sleep(0)  # until it waits for the fetch

    ring.read = [forget]
    await sealer.ready([OWNER])
    await begun[0]
    with pytest.raises(Unready):
        sealer.check(OWNER)
    await sealer.ready([OWNER])
    sealed = sealer.seal(b"text", PLACE)
    later = memory_seal(ring)
    await later.ready([OWNER])
    assert later.open(sealed, PLACE) == b"text"


async def test_a_key_that_another_process_destroys_as_it_is_made_is_made_again(
    ring: Disturbed,
) -> None:
    seal = memory_seal(ring)
    ring.added = [lambda: ring.remove(OWNER)]
    await seal.ready([OWNER])
    assert seal.open(seal.seal(b"text", PLACE), PLACE) == b"text"


async def test_keys_that_are_always_destroyed_are_an_error_in_the_end(ring: Disturbed) -> None:
    ring.added = [lambda: ring.remove(OWNER)] * 1_000
    with pytest.raises(SealUnavailable, match="as often as one is made"):
        await memory_seal(ring).ready([OWNER])


async def test_a_fetch_beside_a_forget_that_goes_on_is_not_believed(ring: Disturbed) -> None:
    """It was begun after the keys were dropped here, and read them before the ring did."""
    sealer = Sealer(memory_seal(ring))
    await sealer.ready([OWNER])
    remove = ring.remove

    async def slow(owner: str) -> None:
        await sealer.ready([owner])
        await remove(owner)

    ring.remove = slow  # type: ignore[method-assign]  # of this one
    await sealer.forget(OWNER)
    with pytest.raises(Unready):
        sealer.check(OWNER)
    with pytest.raises(KeyRenewed):
        sealer._seal.seal(b"", PLACE)  # type: ignore[union-attr]  # there is one


async def test_who_was_checked_and_then_forgotten_is_asked_for_again() -> None:
    """An erasure on the event loop passes between a thread's check and its use of the keys."""
    sealer = Sealer(memory_seal())
    await sealer.ready([OWNER])
    sealed = sealer.seal(b"text", PLACE)
    await sealer.forget(OWNER)
    with pytest.raises(Unready):
        sealer.seal(b"text", PLACE)
    with pytest.raises(Unready):
        sealer.open(sealed, PLACE)


async def test_what_a_user_writes_who_is_back_is_read_after_the_erasure() -> None:
    """Their key is another one, and the end of the erasure does not take it."""
    sealer = Sealer(memory_seal())
    written: list[bytes] = []

    async def erase(gone: frozenset[str]) -> None:
        sealer.require_forgotten([OWNER], gone)
        await sealer.ready([OWNER])  # the user is back before the erasure has returned
        written.append(sealer.seal(b"new", PLACE))

    await sealer.ready([OWNER])
    await sealer.erasing(erase)
    await sealer.ready([OWNER])
    assert sealer.open(written[0], PLACE) == b"new"
