"""P8: how fast workers claim sessions: by one, two and four processes, among few and many."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from statistics import median

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row
from tests.support.postgres import empty

_FEW = 1_000


def claims(run: Run) -> list[Row]:
    many, count = run.size(100_000, 5_000), run.size(300, 100)
    url = run.postgres.url
    few = run.alternate({"ours": lambda _: _reading(url, _FEW, count)})
    lots = run.alternate({"ours": lambda _: _reading(url, many, count)})
    flat = lots.median("ours", "p50") / few.median("ours", "p50")
    return [
        row("P8", f"a claim among {_FEW:,} due sessions", "ms", few, "p50"),
        row("P8", f"among {many:,}", "ms", lots, "p50", at_most(1.5, "÷ among few", flat)),
        *(row("P8", f"{n} processes", "per second", few, f"by{n}") for n in (1, 2, 4)),
    ]


def _reading(url: str, sessions: int, count: int) -> Numbers:
    asyncio.run(_fill(url, sessions))
    numbers: Numbers = {}
    for workers in (1, 2, 4):
        found = _claim(url, workers, count)
        numbers[f"by{workers}"] = workers * count / max(each["seconds"] for each in found)
        if workers == 1:
            numbers["p50"] = median(each["p50"] for each in found)
    return numbers


async def _fill(url: str, sessions: int) -> None:
    """Sessions that are all due: each has an input that waits."""
    await empty(url)
    async with limpet.open(url) as lp:
        for start in range(0, sessions, 500):
            keys = [("bench", "ada", f"s{n}") for n in range(start, min(start + 500, sessions))]
            await asyncio.gather(*(lp.create(*key[:2], id=key[2]) for key in keys))
            await asyncio.gather(*(lp.session(k).append("user.asked", actor="u") for k in keys))


def _claim(url: str, workers: int, count: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "bench.fresh.claim", url]
    running = [
        subprocess.Popen(
            [*command, f"w{n}", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(workers)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0]) for process in running]
