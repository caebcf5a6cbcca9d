"""A worker that claims and releases sessions, one after the other, as fast as it can.

    python -m bench.fresh.claim URL WORKER COUNT

Begins when a line comes in on stdin; prints the median milliseconds of a claim and the seconds
that all took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median

import limpet


async def work(url: str, worker: str, count: int) -> dict[str, float]:
    async with limpet.open(url) as lp:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        times: list[float] = []
        begin = time.perf_counter()
        for _ in range(count):
            at = time.perf_counter()
            (lease,) = await lp.work.claim(worker, limit=1, lease_seconds=60)
            times.append(time.perf_counter() - at)
            await lp.work.release(lease, retry_seconds=0)  # due again: it was left as it was found
        return {"p50": median(times) * 1e3, "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
