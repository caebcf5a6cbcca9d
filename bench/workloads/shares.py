"""F3: a live share across processes: how long a change takes, and what subscribers cost the writer.

Another process sets the shared field 200 times a second at most, each value the time at which it
was handed over; this one follows the share. Then the writer's own time for an append is measured
beside 1,000 subscribers that wait for a later version, and without them, in turns.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median, quantiles

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row
from tests.support.processes import Child

_SOURCE = ("bench", "ada", "source")
SUBSCRIBERS = 1_000
_FAR = 10**9  # a version that does not come


def rows(run: Run) -> list[Row]:
    count, many = run.size(400, 100), run.size(SUBSCRIBERS, 200)
    readings = run.alternate({"ours": lambda path: asyncio.run(_measure(path, count, many))})
    p99 = at_most(20.0, "ms", readings.median("ours", "p99"))
    ratio = at_most(1.1, "×", readings.median("ours", "ratio"))
    return [
        row("F3", "change of a shared field to another process, median", "ms", readings, "p50"),
        row("F3", "change of a shared field, 99 of 100", "ms", readings, "p99", p99),
        row("F3", f"append beside {many:,} subscribers", "ratio", readings, "ratio", ratio),
    ]


async def _measure(path: Path, count: int, many: int) -> Numbers:
    url = f"sqlite:///{path}/a.db"
    async with limpet.open(url) as lp:
        source = await lp.create(*_SOURCE, state={"at": 0}, actor="user:ada")
        target = await lp.create("bench", "ada", "target", actor="user:ada")
        share = (await source.share(target, "at", sync="live")).id
        delays = await _delays(lp, url, target, share, count)
    return {
        "p50": median(delays),
        "p99": quantiles(delays, n=100)[-1],
        "ratio": await _ratio(url, share, many),
    }


async def _delays(
    lp: limpet.Limpet, url: str, target: limpet.Session, share: str, count: int
) -> list[float]:
    delays: list[float] = []
    with Child("bench.fresh.set", url, *_SOURCE, count) as child:
        await asyncio.to_thread(child.expect, "ready")
        following = target.follow_shared(share)
        await anext(following)

        async def follow() -> None:
            async for seen in following:
                delays.append((time.monotonic_ns() - seen.values["at"]) / 1e6)

        task = asyncio.create_task(follow())
        child.tell("go")
        await asyncio.to_thread(child.line)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return delays


async def _ratio(url: str, share: str, many: int) -> float:
    """The time of an append in a process of its own, beside subscribers here and without them."""
    times: dict[bool, list[float]] = {True: [], False: []}
    async with limpet.open(url) as lp:
        for crowded in (False, True, True, False):
            readers = [lp.session("bench", "ada", "target") for _ in range(many if crowded else 0)]
            tasks = [
                asyncio.create_task(each.read_shared(share, at_least={"at": _FAR}))
                for each in readers
            ]
            await asyncio.sleep(0.5)
            with Child("bench.fresh.set", url, *_SOURCE, 100) as child:
                await asyncio.to_thread(child.expect, "ready")
                child.tell("go")
                said = await asyncio.to_thread(child.line)
            times[crowded].append(float(str(said).split()[-1]))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return median(times[True]) / median(times[False])
