"""R1: turns of an empty harness, one worker, 1,000 sessions; beside our own appends of W2.

R2: the cost of a wake among many sessions of one agent: it must not grow with their number.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import limpet
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row
from bench.workloads import crowd

_PART_OF_APPENDS = 0.25
_FLAT = 0.5


def rows(run: Run) -> list[Row]:
    sessions = run.size(1_000, 200)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_turns(path, sessions)),
        "raw": lambda path: {"rate": asyncio.run(crowd.lanes_of_ours(path, 64, 20))},
    }
    readings = run.alternate(contestants)
    what = f"{sessions:,} empty turns; raw: appends of W2"
    found = row("R1", what, "per second", readings, "rate")
    target = at_least(_PART_OF_APPENDS, "× appends", found.against(found.raw))
    return [row("R1", what, "per second", readings, "rate", target)]


def among(run: Run) -> list[Row]:
    few, many = 10, run.size(100_000, 2_000)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_wakes(path, many)),
        "raw": lambda path: asyncio.run(_wakes(path, few)),
    }
    readings = run.alternate(contestants)
    what = f"wakes among {many:,} sessions; raw: among {few}"
    found = row("R2", what, "per second", readings, "rate")
    target = at_least(_FLAT, "× among few", found.against(found.raw))
    return [row("R2", what, "per second", readings, "rate", target)]


async def _empty(turn: limpet.Turn) -> None:
    """Nothing to do."""


async def _turns(path: Path, sessions: int) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/turns.db") as lp:
        many = await asyncio.gather(*[lp.create("bench", "ada") for _ in range(sessions)])
        await asyncio.gather(*[s.append("user.message", {"text": "hi"}, actor="u") for s in many])
        begin = time.perf_counter()
        rates = await limpet.Worker(lp, _empty, app="bench", idle_exit=True).run()
        seconds = time.perf_counter() - begin
        assert rates.turns == sessions
    return {"rate": sessions / seconds}


async def _wakes(path: Path, sessions: int, wakes: int = 50) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/wakes.db?sync=normal") as lp:
        for first in range(0, sessions, 1_000):
            batch = range(first, min(sessions, first + 1_000))
            await asyncio.gather(*[lp.create("bench", "ada", id=f"s{n}") for n in batch])
        session = lp.session("bench", "ada", "s5")
        begin = time.perf_counter()
        for _ in range(wakes):
            await session.append("user.message", {"text": "hi"}, actor="u")
            assert (await lp.wake(session.key, _empty)).ran
        seconds = time.perf_counter() - begin
    return {"rate": wakes / seconds}
