"""P7: how long after a commit returns a follower in another Limpet has the event; P9: how long a
partial event takes to a follower in another process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median, quantiles

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row
from bench.workloads import follows
from tests.support.postgres import empty

_KEY = ("bench", "ada", "p7")


def latency(run: Run) -> list[Row]:
    count = run.size(300, 100)
    readings = run.alternate({"ours": lambda _: asyncio.run(_latency(run.postgres.url, count))})
    target = at_most(5.0, "ms", readings.median("ours", "p50"))
    return [
        row("P7", "commit to follower, median", "ms", readings, "p50", target),
        row("P7", "commit to follower, 95 of 100", "ms", readings, "p95"),
    ]


async def _latency(url: str, count: int) -> Numbers:
    await empty(url)
    seen: dict[int, float] = {}
    came = asyncio.Event()

    async def follow(lp: limpet.Limpet) -> None:
        async for event in lp.session(_KEY).follow():
            seen[event.seq] = time.perf_counter()
            came.set()

    async with limpet.open(url) as here, limpet.open(url) as there:
        session = await here.create(*_KEY[:2], id=_KEY[2])
        task = asyncio.create_task(follow(there))
        delays = []
        for _ in range(count):
            event = await session.append("a.b", actor="x")
            done = time.perf_counter()
            while event.seq not in seen:
                came.clear()
                await came.wait()
            delays.append(max(seen[event.seq] - done, 0.0))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return {"p50": median(delays) * 1e3, "p95": quantiles(delays, n=20)[-1] * 1e3}


def partials(run: Run) -> list[Row]:
    url, count = run.postgres.url, run.size(300, 100)

    def measure(_: Path) -> Numbers:
        asyncio.run(empty(url))
        return asyncio.run(follows.latency(url, count))

    return follows.latency_rows("P9", run, measure, 2.0)
