"""A deterministic simulation of moves: two stores, movers that die, and a network that fails.

Every call that a mover makes passes `Wire`. A seed decides what becomes of it: it is made, made
twice, lost on the way, made without an answer, made much later, or it is the mover's last. Between
calls people write wherever they are let, nodes sweep, clocks leap, and a second mover may be at
work. After every call the world is looked at: at most one store may accept a write. When the faults
end, the next attempt has to leave exactly one owner, with everything that was ever accepted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from limpet.errors import LimpetError, SessionLocked, StoreFailed
from limpet.model import Key
from limpet.session.limpet import Limpet, journal_of
from limpet.session.move.mover import Moved
from limpet.session.runs.delegation import head_of
from limpet.store.memory import MemoryStore
from limpet.testing.clock import FakeClock

KEY: Final = Key("support", "ada", "c1")
LOCK_EXPIRES: Final = timedelta(seconds=61)
_READS: Final = ("load", "read", "heads", "records", "base", "names_of", "tally", "load_many")
_WRITES: Final = ("commit", "exchange", "delete", "acquire", "release")
_FAULTS: Final = ("lost", "unanswered", "twice", "late", "dies_before", "dies_after")


class Died(BaseException):
    """The process of a mover is gone. Nothing of it is done after this, not even a `finally`."""


class Wire:
    """The calls of one mover to both stores."""

    def __init__(self, world: World, chance: float) -> None:
        self._world, self._chance = world, chance
        self.dead = False

    async def call(self, to: str, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        world, dice = self._world, self._world.dice
        if self.dead:
            raise Died
        await world.between()
        if self.dead:
            raise Died
        if to in world.cut_off:
            if dice.random() < 0.5 and name in _WRITES:  # it arrives, its answer does not
                await self._quietly(make)
            raise StoreFailed(to, "unreachable")
        fault = dice.choice(_FAULTS) if dice.random() < self._chance else ""
        world.trace.append(f"{to}.{name} {fault}".strip())
        if fault == "dies_before":
            self.dead = True
            raise Died
        if fault == "lost" or (fault == "late" and name not in _WRITES):
            raise StoreFailed(to, "lost")
        if fault == "late":
            world.late.append(make)
            raise StoreFailed(to, "late")
        try:
            answer = await make()
        except SessionLocked:  # whoever waits, time passes
            for clock in world.clocks.values():
                clock.advance(timedelta(seconds=10))
            raise
        await world.check()
        if fault == "twice" and name in _WRITES:
            await self._quietly(make)
        if fault == "unanswered":
            raise StoreFailed(to, "no answer")
        if fault == "dies_after":
            self.dead = True
            raise Died
        return answer

    async def _quietly(self, make: Callable[[], Awaitable[Any]]) -> None:
        with suppress(LimpetError):
            await make()
        await self._world.check()


class WiredStore(MemoryStore):
    """A store as one mover reaches it: the same store, by a wire."""

    __slots__ = ("name", "wire")

    def __init__(self, of: MemoryStore, name: str, wire: Wire) -> None:
        self.__dict__ = of.__dict__
        self.name, self.wire = name, wire

    async def close(self) -> None:
        """Its world closes it."""


def _wired(method: str) -> Any:
    made = getattr(MemoryStore, method)

    async def call(self: WiredStore, *args: Any, **kwargs: Any) -> Any:
        of = MemoryStore.__new__(MemoryStore)
        of.__dict__ = self.__dict__
        return await self.wire.call(self.name, method, lambda: made(of, *args, **kwargs))

    return call


for _method in (*_READS, *_WRITES):
    setattr(WiredStore, _method, _wired(_method))


class World:
    """Two stores, and everybody who uses them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clocks = {"a": FakeClock(), "b": FakeClock()}
        self.stores = {name: MemoryStore(clock.clock()) for name, clock in self.clocks.items()}
        self.lps = {n: Limpet(f"memory://{n}", store=s, node=n) for n, s in self.stores.items()}
        self.late: list[Callable[[], Awaitable[Any]]] = []
        self.cut_off: set[str] = set()
        self.accepted: list[str] = []
        self.trace: list[str] = []
        self._busy = self.calm = False  # calm: nothing fails any more, people go on

    async def open(self) -> None:
        for lp in self.lps.values():
            await lp.__aenter__()
        s = await self.lps["a"].create(*_parts(KEY), state={"n": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", inc={"n": 1})
        await s.memory.session.put("likes", ["tea"])
        await s.blobs.put(b"picture", "image/png")

    async def close(self) -> None:
        for lp in self.lps.values():
            await lp.close()

    async def owners(self) -> list[str]:
        """The stores that would accept a write now."""
        found = []
        for name, lp in self.lps.items():
            head = await head_of(journal_of(lp), KEY)
            if head is not None and "departed" not in head.facts:
                found.append(name)
        return found

    async def source(self) -> str:
        """The store that owns the session, or from which it has departed last."""
        heads = {n: await head_of(journal_of(lp), KEY) for n, lp in self.lps.items()}
        found = {n: head for n, head in heads.items() if head is not None}
        here = [n for n, head in found.items() if "departed" not in head.facts]
        if here:
            return here[0]
        newest = {n: head.facts["departed"] for n, head in found.items()}
        away = max(newest.values(), key=lambda each: int(each["epoch"]))
        return str(away["from"])

    async def check(self) -> None:
        owners = await self.owners()
        assert len(owners) <= 1, (owners, self.trace)

    async def between(self) -> None:
        """What happens in the world between two calls of a mover."""
        if self._busy:  # of two movers, one lets the world go on
            return
        self._busy = True
        try:
            dice = self.dice
            if dice.random() < 0.15:
                await self._write(dice.choice("ab"))
            if not self.calm and dice.random() < 0.03:
                leap = timedelta(seconds=dice.choice((-3_600, -30, 30, 86_400)))
                self.clocks[dice.choice("ab")].leap(leap)
            if dice.random() < 0.03:
                await self._sweep(dice.choice("ab"))
            if self.late and dice.random() < 0.2:
                await self.deliver(self.late.pop(dice.randrange(len(self.late))))
            if not self.calm and dice.random() < 0.04:
                cut = dice.choice("ab")
                self.cut_off.symmetric_difference_update(cut)
            await asyncio.sleep(0)
        finally:
            self._busy = False

    async def deliver(self, make: Callable[[], Awaitable[Any]]) -> None:
        """A message arrives long after it was sent."""
        with suppress(LimpetError):
            await make()
        self.trace.append("late one")
        await self.check()

    async def _sweep(self, name: str) -> None:
        """A node finishes what has its key there, and removes what nobody stages any more."""
        await self.lps[name].work.sweep()
        self.trace.append(f"sweep at {name}")
        await self.check()

    async def _write(self, name: str) -> None:
        id = f"w{len(self.accepted)}-{self.dice.randrange(10**9)}"
        session = self.lps[name].session(KEY)
        try:
            await session.append("user.message", {"text": id}, actor="user:ada", id=id)
        except LimpetError:
            return
        self.accepted.append(id)

    async def attempt(self, source: str, chance: float, *, force: bool = False) -> Moved | None:
        """One process tries to move the session; None: it died, or met an error."""
        wire, target = Wire(self, chance), "b" if source == "a" else "a"
        stores = {name: WiredStore(store, name, wire) for name, store in self.stores.items()}
        lps = {n: Limpet(f"memory://{n}", store=s, node=n) for n, s in stores.items()}
        for lp in lps.values():
            await lp.__aenter__()
        try:
            return await lps[source].move(KEY, lps[target], deadline=20, force=force)
        except (Died, LimpetError) as error:
            self.trace.append(f"attempt ended: {error!r}")
            return None
        finally:
            self.trace.append("---")

    def settle_network(self) -> None:
        self.cut_off.clear()
        self.calm = True
        for clock in self.clocks.values():
            clock.advance(LOCK_EXPIRES)


def _parts(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id


async def run(seed: int) -> str:
    """One schedule. Returns what it came to: "moved", or "stayed"."""
    world = World(seed)
    await world.open()
    dice = world.dice
    try:
        for _ in range(dice.randint(1, 4)):
            source = (await world.owners() or ["a"])[0] if dice.random() < 0.2 else "a"
            if dice.random() < 0.15:
                await asyncio.gather(
                    world.attempt(source, 0.05), world.attempt(source, 0.05, force=True)
                )
            else:
                await world.attempt(
                    source, dice.choice((0.02, 0.05, 0.15)), force=dice.random() < 0.5
                )
            await world.check()
            for clock in world.clocks.values():
                clock.advance(LOCK_EXPIRES)
        return await _finish(world)
    finally:
        await world.close()


async def _finish(world: World) -> str:
    """The faults have ended: the next attempt leaves one owner, who has everything."""
    world.settle_network()
    undecided = await world.owners() == []
    source = await world.source()
    moved = await world.attempt(source, 0.0)
    owners = await world.owners()
    assert moved is not None, world.trace
    assert len(owners) == 1, (moved, owners, world.trace)
    if undecided:
        assert moved.success or moved.reason != "unknown", (moved, world.trace)
    for make in world.late:
        await world.deliver(make)
    assert await world.owners() == owners, world.trace
    if owners == [source]:  # it was refused, or returned: nothing is in the way any more
        world.settle_network()
        moved = await world.attempt(source, 0.0)
        owners = await world.owners()
        assert moved is not None, world.trace
        assert moved.success, (moved, world.trace)
    (owner,) = owners
    assert owner != source
    await _compare(world, owner, source)
    return "moved"


async def _compare(world: World, owner: str, other: str) -> None:
    """The owner has all that was accepted, whole; what the other has is the beginning of it."""
    session = await world.lps[owner].get(KEY)
    events = [event async for event in _events(world.lps[owner])]
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)
    assert set(world.accepted) <= set(ids), world.trace
    assert session.state["n"] == 1
    assert await session.memory.session.get("likes") == ["tea"]
    left = [event async for event in _events(world.lps[other])]
    assert [each.link for each in left] == [each.link for each in events[: len(left)]]
    for lp in world.lps.values():
        report = await lp.maintenance.verify()
        assert report.findings == (), (report.findings, world.trace)
    await session.append("user.message", {"text": "on"}, actor="user:ada")


async def _events(lp: Limpet) -> Any:
    after, store = 0, journal_of(lp).store
    while page := await store.read(KEY, after=after, limit=500, reverse=False, types=None):
        for event in page:
            yield event
        after = page[-1].seq
