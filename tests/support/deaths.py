"""Workers as processes that die: every call of a dead one to its store waits without end.

The clock is a fake one. A process is a real `limpet.Worker`, which runs until nothing is due for
it, or until somebody kills it: a session, or the schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import Any

import limpet
from limpet.model.facts.running.deaths import is_suspect
from limpet.store.memory import MemoryStore
from limpet.testing.clock import FakeClock

APP = "support"
LEASE_SECONDS = 30.0
_CALLS = ("claim", "renew", "release", "acquire", "commit", "load", "load_many", "heads")


class Process:
    """One process: whether it lives, and which sessions it runs."""

    def __init__(self) -> None:
        self.died, self.worker = asyncio.Event(), ""
        self.running: set[limpet.Key] = set()

    async def kill(self) -> None:
        """Nothing of it goes on."""
        self.died.set()
        await asyncio.get_running_loop().create_future()


_process: ContextVar[Process | None] = ContextVar("process", default=None)


def running_process() -> Process | None:
    """The process in which this runs."""
    return _process.get()


def _mortal(name: str) -> Callable[..., Any]:
    call = getattr(MemoryStore, name)

    @wraps(call)
    async def made(self: Any, *args: Any, **given: Any) -> Any:
        process = _process.get()
        if process is not None and process.died.is_set():
            await asyncio.get_running_loop().create_future()
        return await call(self, *args, **given)

    return made


MortalStore: Any = type("MortalStore", (MemoryStore,), {name: _mortal(name) for name in _CALLS})


class Fleet:
    """Sessions, some of which kill, and the processes that run them."""

    def __init__(self, lp: limpet.Limpet, clock: FakeClock, *, retries: int = 3) -> None:
        self.lp, self.clock, self.retries = lp, clock, retries
        self.deaths = 0
        self.wakes: Counter[str] = Counter()
        self.order: list[tuple[str, bool]] = []  # the sessions that ran, and if as suspects
        self.in_flight: Counter[str] = Counter()  # how often a session was, in a death

    async def add(self, id: str, text: str = "hi") -> None:
        session = await self.lp.create(APP, "ada", id=id, actor="user:ada")
        await session.append("user.message", {"text": text}, actor="user:ada")

    async def harness(self, turn: limpet.Turn) -> None:
        """Answer, or kill the process when all that it has claimed is under way."""
        process, key = _process.get(), turn.session.key
        assert process is not None
        suspect = is_suspect(turn.session.head.facts)
        self.wakes[key.id] += 1
        self.order.append((key.id, suspect))
        process.running.add(key)
        text = turn.inputs[0].data["text"]
        try:
            for _ in range(20):
                if suspect:
                    assert process.running == {key}, "a suspect runs alone in its worker"
                await asyncio.sleep(0)
            if text == "die":
                await self.kill(process)
            await turn.say("done")
        finally:
            process.running.discard(key)

    async def kill(self, process: Process) -> None:
        self.deaths += 1
        heads = (await self.lp.list(app=APP, limit=1_000)).items
        mine = [head for head in heads if (head.worker or "").startswith(process.worker)]
        self.in_flight.update(head.key.id for head in mine)
        await process.kill()

    async def process(self, *, concurrency: int = 64, kills_at: int | None = None) -> Process:
        """Run a process until nothing is due, or until it is dead. `kills_at`: from outside, when
        so many turns are under way."""
        process = Process()
        _process.set(process)
        worker = limpet.Worker(
            self.lp,
            self.harness if kills_at is None else self._killed_at(kills_at),
            app=APP,
            concurrency=concurrency,
            lease_seconds=LEASE_SECONDS,
            retries=self.retries,
            idle_exit=True,
            poll_seconds=0.001,
            signals=False,
        )
        process.worker = worker.name
        task = asyncio.ensure_future(worker.run())
        died = asyncio.ensure_future(process.died.wait())
        _process.set(None)
        await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return process

    def _killed_at(self, number: int) -> Any:
        async def harness(turn: limpet.Turn) -> None:
            process = _process.get()
            assert process is not None
            if len(process.running) + 1 >= number:
                process.running.add(turn.session.key)
                await self.kill(process)
            await self.harness(turn)

        return harness

    def later(self, seconds: float = LEASE_SECONDS + 1) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    async def ends(self) -> dict[str, str | None]:
        """The stop reason of each session."""
        heads = (await self.lp.list(app=APP, limit=1_000)).items
        return {head.key.id: head.facts.get("run", {}).get("stop") for head in heads}

    async def finish(self, *, concurrency: int = 64, rounds: int = 400) -> None:
        """Start processes again until everything is over: then nothing is due, nor will be."""
        for _ in range(rounds):
            await self.process(concurrency=concurrency)
            self.later()
            ends = set((await self.ends()).values())
            if ends <= {"end_turn", "retries_exhausted"}:
                return
        raise AssertionError("it does not come to an end")

    async def dead(self) -> set[str]:
        return {head.key.id for head in (await self.lp.work.dead_letters(app=APP)).items}


@asynccontextmanager
async def a_fleet(*, retries: int = 3, seed: int = 1) -> AsyncIterator[Fleet]:
    clock, begun = FakeClock(), set[asyncio.Task[Any]]()
    asyncio.get_running_loop().set_task_factory(_noted(begun))
    store = MortalStore(clock.clock())
    random.seed(seed)
    async with limpet.Limpet("memory://", store=store) as lp:
        lp._journal.now_us = lambda: clock.now_us  # type: ignore[method-assign]
        fleet = Fleet(lp, clock, retries=retries)
        try:
            yield fleet
        finally:
            await _bury(begun)
            asyncio.get_running_loop().set_task_factory(None)


def _noted(begun: set[asyncio.Task[Any]]) -> Callable[..., asyncio.Task[Any]]:
    """A factory that notes the tasks of processes."""

    def made(loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **given)
        if _process.get() is not None:
            begun.add(task)
        return task

    return made


async def _bury(begun: set[asyncio.Task[Any]]) -> None:
    """End what the dead have left: each may wait again in what cleans up."""
    while tasks := [task for task in begun if not task.done()]:
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
