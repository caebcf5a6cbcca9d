"""P13: the primary is killed under a writer: how soon a write is acknowledged by the next one."""

from __future__ import annotations

import asyncio
import time

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row
from tests.support.cluster import Cluster, replicating


def failover(run: Run) -> list[Row]:
    """From when a standby is promoted and the other one follows it: two servers make a quorum."""
    count = run.size(5, 2)
    with replicating(fsync="on") as servers:
        readings = run.alternate({"ours": lambda _: asyncio.run(_failovers(servers, count))})
    target = at_most(2_000.0, "ms", readings.median("ours", "longest"))
    what = f"first write after a promotion, the longest of {count}"
    return [row("P13", what, "ms", readings, "longest", target)]


async def _failovers(servers: Cluster, count: int) -> Numbers:
    longest = 0.0
    async with limpet.open(servers.url()) as lp:
        session = await lp.create("bench", "ada", id=f"p13-{time.time_ns()}")
        for number in range(count):
            await session.append("a.b", actor="agent:main", id=f"before-{number}")
            killing = asyncio.create_task(asyncio.to_thread(servers.fail_over))
            write, done = 0, 0.0
            while not done:
                write += 1
                await _acknowledged(session, f"{number}-{write}")
                done = time.perf_counter() if killing.done() else 0.0
            longest = max(longest, done - servers.promoted)
            await asyncio.to_thread(servers.join, await killing)
    return {"longest": longest * 1e3}


async def _acknowledged(session: limpet.Session, id: str) -> None:
    """Append until it is acknowledged."""
    while True:
        try:
            await session.append("a.b", actor="agent:main", id=id)
            return
        except limpet.StoreError as error:
            if not error.retryable:
                raise
