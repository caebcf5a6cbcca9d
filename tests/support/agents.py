"""Agents for the tests of the runtime: a store whose clock stands still, and workers that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import limpet
from limpet.model.commit import Commit
from limpet.runtime.run import QUIET_SECONDS
from limpet.runtime.wake import DelayedCalls, Wake, harness_options
from limpet.session.runs.runs import WakeOptions
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed
from limpet.testing.clock import FakeClock

APP = "support"
LEASE_SECONDS = 30.0
Harness = Callable[[limpet.Turn], Awaitable[None]]


class Killed(BaseException):
    """A worker is dead: nothing of it runs any more."""


class MortalStore(MemoryStore):
    """A store whose caller dies at a commit: before it is recorded, or just after."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.clock())
        self.commits = 0
        self.dies_at: int | None = None
        self.after = True  # it is recorded: the commit at which it dies

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self.commits += 1
        if self.dies_at is not None and self.commits >= self.dies_at:
            if self.after and self.commits == self.dies_at:
                await super().commit(commits)
            raise Killed  # at every later one too: what cleans up is dead as well
        return await super().commit(commits)


class World:
    """One session of an agent, a clock, and workers that run it once each."""

    def __init__(self, lp: limpet.Limpet, store: MortalStore, clock: FakeClock) -> None:
        self.lp, self.store, self.clock = lp, store, clock
        self.session: Any = None

    async def begin(self, *texts: str) -> limpet.Session[Any]:
        """A session with these messages."""
        self.session = await self.lp.create(APP, "ada", actor="user:ada")
        for text in texts:
            await self.send(text)
        return self.session

    async def send(self, text: str) -> limpet.Event:
        self.later(0.001)
        return await self.session.append("user.message", {"text": text}, actor="user:ada")

    async def work(
        self, harness: Any, *, quiet_seconds: float = QUIET_SECONDS, **how: Any
    ) -> list[limpet.Woken]:
        """What a worker makes of everything that is due now."""
        done = []
        options = harness_options(harness, WakeOptions(**how), quiet_seconds=quiet_seconds)
        for _ in range(50):
            leases = await self.lp.work.claim("w", lease_seconds=LEASE_SECONDS, app=APP, limit=10)
            if not leases:
                await self.session.refresh()
                return done
            for lease in leases:
                done.append(await Wake(self.lp, lease, options).run())
        raise AssertionError("there is always something due")

    async def die(self, harness: Any, at: int, *, recorded: bool, **how: Any) -> bool:
        """A worker that dies at its n-th commit. False if it came to its end before, or if nothing
        is due."""
        leases = await self.lp.work.claim("dead", lease_seconds=LEASE_SECONDS, app=APP)
        if not leases:
            return False
        (lease,) = leases
        self.store.commits, self.store.dies_at, self.store.after = 0, at, recorded
        try:
            # However slow the machine is: a commit more, and it would die at another place.
            listeners = DelayedCalls(3_600)
            options = harness_options(harness, WakeOptions(**how))
            await Wake(self.lp, lease, options, listeners=listeners).run()
        except Killed:
            return True
        finally:
            self.store.dies_at = None
        return False

    def later(self, seconds: float = LEASE_SECONDS + 1) -> None:
        """Let time pass: leases of the dead end."""
        self.clock.advance(timedelta(seconds=seconds))

    async def log(self) -> list[limpet.Event]:
        return list(await self.session.read(limit=1000))

    async def types(self) -> list[str]:
        return [event.type for event in await self.log()]

    async def said(self) -> list[str]:
        return [e.data["text"] for e in await self.log() if e.type == "agent.message"]


async def decide(
    session: limpet.Session[Any], request: limpet.Request, *, allow: bool, actor: str = "user:ada"
) -> None:
    """A person says yes or no to a request, by the verb for its kind."""
    if request.kind == "approval":
        await session.confirm(request.id, allow=allow, actor=actor)
    elif allow:
        await session.resolve(request.id, run_again=True, actor=actor)
    else:
        await session.resolve(request.id, give_up=True, actor=actor)


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    clock = FakeClock()
    store = MortalStore(clock)
    async with limpet.Limpet("memory://", store=store) as lp:
        lp._journal.now_us = lambda: clock.now_us  # type: ignore[method-assign]
        yield World(lp, store, clock)


class Bank:
    """The other side of an effect: counts what it did, by idempotency key."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def refund(self, order: int, idempotency_key: str) -> dict[str, Any]:
        self.done.append(idempotency_key)
        await asyncio.sleep(0)
        return {"order": order, "number": len(self.done)}
