"""F1 and F2: what following costs, and how long a partial event takes to another process.

F1 follows many idle sessions while another process commits to one more: what this process asks of
the store, and the longest time in which its event loop did nothing else. F2 publishes partials in
another process.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row
from limpet.store.protocol import Touched
from limpet.store.sqlite.store import SQLiteStore
from tests.support.processes import Child

_KEY = ("bench", "ada", "busy")
COMMITS = 100


class Counting(SQLiteStore):
    """Counts what is asked of it."""

    reads = looks = 0

    async def read(self, *args: Any, **how: Any) -> tuple[limpet.Event, ...]:
        self.reads += 1
        return await super().read(*args, **how)

    async def touched(self, after: str) -> Touched:
        self.looks += 1
        return await super().touched(after)


def idle(run: Run) -> list[Row]:
    many = run.size(1_000, 1_000)
    readings = run.alternate({"ours": lambda path: asyncio.run(_idle(path, many))})
    looks = at_most(COMMITS + 10, "looks", readings.median("ours", "looks"))
    stall = at_most(50.0, "ms", readings.median("ours", "stall"))
    begin = at_most(50.0, "ms", readings.median("ours", "begin"))
    return [
        row(
            "F1", f"looks at the feed, {COMMITS} foreign commits", "count", readings, "looks", looks
        ),
        row("F1", "reads of sessions meanwhile", "count", readings, "reads"),
        row("F1", f"longest stall, {many:,} followers", "ms", readings, "stall", stall),
        row("F1", f"longest stall, {many:,} of one session, a commit", "ms", readings, "crowd"),
        row("F1", f"longest stall, {many:,} begin at once", "ms", readings, "begin", begin),
    ]


async def _idle(path: Path, many: int) -> Numbers:
    url = f"sqlite:///{path}/a.db"
    store: Any = await Counting.open(path / "a.db")
    async with limpet.Limpet(url, store=store) as lp:
        await lp.create(*_KEY)
        for n in range(many - 1):
            await lp.create("bench", "ada", id=str(n), actor="x")
        keys = [("bench", "ada", str(n)) for n in range(many - 1)]
        stalls = Stalls()
        async with stalls:
            tasks = [asyncio.create_task(_follow(lp, key)) for key in keys]
            await _settled(store)
        begin = stalls.worst
        with Child("bench.fresh.say", url, *_KEY, "events", COMMITS) as child:
            await asyncio.to_thread(child.expect, "ready")
            looks, reads = store.looks, store.reads
            stalls = Stalls()
            async with stalls:
                child.tell("go")
                await asyncio.to_thread(child.expect, "done")
            numbers = {"looks": store.looks - looks, "reads": store.reads - reads}
            numbers |= {"stall": stalls.worst * 1e3, "begin": begin * 1e3}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return numbers | {"crowd": await _crowd(lp, store, many)}


async def _crowd(lp: limpet.Limpet, store: Any, many: int) -> float:
    """Everybody follows one session, and it is written to."""
    session = lp.session(*_KEY, actor="x")
    tasks = [asyncio.create_task(_follow(lp, _KEY)) for _ in range(many)]
    await _settled(store)
    stalls = Stalls()
    async with stalls:
        for _ in range(10):
            await session.append("a.b")
            await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return stalls.worst * 1e3


async def _settled(store: Any) -> None:
    """Until nobody has read anything for a moment."""
    reads = -1
    while reads != store.reads:
        reads = store.reads
        await asyncio.sleep(0.3)


async def _follow(lp: limpet.Limpet, key: tuple[str, str, str]) -> None:
    async for _ in lp.session(*key).follow():
        pass


class Stalls:
    """The longest time in which a task that always wants to run did not."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            at = time.perf_counter()
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, time.perf_counter() - at - 0.001)


def partials(run: Run) -> list[Row]:
    count = run.size(300, 100)

    def measure(path: Path) -> Numbers:
        return asyncio.run(latency(f"sqlite:///{path}/a.db", count))

    return latency_rows("F2", run, measure, 5.0)


def latency_rows(name: str, run: Run, measure: Any, limit: float) -> list[Row]:
    readings = run.alternate({"ours": measure})
    target = at_most(limit, "ms", readings.median("ours", "p50"))
    return [
        row(name, "partial to another process, median", "ms", readings, "p50", target),
        row(name, "partial to another process, 95 of 100", "ms", readings, "p95"),
        row(name, "partials that came, of all", "ratio", readings, "came"),
    ]


async def latency(url: str, count: int) -> Numbers:
    """Partials of another process, from its call to this follower."""
    delays: list[float] = []
    async with limpet.open(url) as lp:
        await lp.create(*_KEY)
        with Child("bench.fresh.say", url, *_KEY, "partials", count) as child:
            await asyncio.to_thread(child.expect, "ready")
            following = lp.session(*_KEY).follow()
            await anext(following)
            child.tell("go")

            async def follow() -> None:
                async for event in following:
                    delays.append((time.monotonic_ns() - event.data["at"]) / 1e6)

            task = asyncio.create_task(follow())
            await asyncio.to_thread(child.expect, "done")
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    came = {"came": len(delays) / count}
    return {"p50": median(delays), "p95": quantiles(delays, n=20)[-1], **came}
