"""W9: how long the event loop keeps others waiting while 64 sessions write now and then.

Each session appends, pauses for 20 ms, appends again. Beside them a task that only sleeps notes how
late it is woken. Small commits run on the loop itself, or all of them on the writer's thread
(`?inline=off`): the loop must not be later for it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median, quantiles

import limpet
from bench import texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_most, ratio, row

_SESSIONS = 64
_PAUSE_SECONDS = 0.020
_TICK_SECONDS = 0.001


def rows(run: Run) -> list[Row]:
    each = run.size(100, 30)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_mixed(path, each, "on")),
        "thread": lambda path: asyncio.run(_mixed(path, each, "off")),
    }
    readings = run.alternate(contestants)
    worse = ratio(readings.median("ours", "lag99"), readings.median("thread", "lag99"))
    target = at_most(1.0, "lag, × the thread's", worse)
    found = [row("W9", "late by, 99 of 100", "ms", readings, "lag99", target)]
    for what, name in (("late by, median", "lag50"), ("an append, median", "append50")):
        found.append(row("W9", what, "ms", readings, name))
    for what, name in (("late by, 99 of 100", "lag99"), ("an append, median", "append50")):
        value = readings.median("thread", name)
        kept = {"thread": readings.of("thread", name)}
        found.append(Row("W9", f"thread alone: {what}", "ms", kept, value, None, None))
    return found


async def _mixed(path: Path, each: int, inline: str) -> Numbers:
    payloads = texts.tool_results(_SESSIONS)
    late: list[float] = []
    took: list[float] = []
    async with limpet.open(f"sqlite:///{path}/lag.db?inline={inline}") as lp:
        creations = (lp.create("bench", "ada", id=f"w9-{i}") for i in range(_SESSIONS))
        many = await asyncio.gather(*creations)
        ticking = asyncio.create_task(_tick(late))
        await asyncio.gather(*(_pausing(s, payloads[i], i, each, took) for i, s in enumerate(many)))
        ticking.cancel()
    return {
        "lag99": quantiles(late, n=100)[98] * 1e3,
        "lag50": median(late) * 1e3,
        "append50": median(took) * 1e3,
    }


async def _pausing(
    session: limpet.Session, data: dict[str, object], number: int, each: int, took: list[float]
) -> None:
    await asyncio.sleep(_PAUSE_SECONDS * number / _SESSIONS)  # not all at once
    for step in range(each):
        begin = time.perf_counter()
        change = texts.changes(step)
        await session.append("tool.result", data, actor="agent:main", set=change)
        took.append(time.perf_counter() - begin)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK_SECONDS
        await asyncio.sleep(_TICK_SECONDS)
        late.append(time.perf_counter() - due)
