"""P11: turns of an empty harness by one and by two worker processes, and what a wake costs among
few and many sessions of one agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import limpet
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row
from tests.support.postgres import empty

_TWO = 1.6
_FLAT = 0.5
_PART = 500  # sessions created at once


def turns(run: Run) -> list[Row]:
    url, sessions = run.postgres.url, run.size(2_000, 400)
    contestants: dict[str, Contestant] = {
        "ours": lambda _: _turns(url, sessions, 2),
        "raw": lambda _: _turns(url, sessions, 1),
    }
    readings = run.alternate(contestants)
    what = f"{sessions:,} empty turns by 2 processes; raw: by 1"
    found = row("P11", what, "per second", readings, "rate")
    target = at_least(_TWO, "× one process", found.against(found.raw))
    return [row("P11", what, "per second", readings, "rate", target), _among(run)]


def _among(run: Run) -> Row:
    few, many = 10, run.size(100_000, 5_000)
    contestants: dict[str, Contestant] = {
        "ours": lambda _: asyncio.run(_wakes(run.postgres.url, many)),
        "raw": lambda _: asyncio.run(_wakes(run.postgres.url, few)),
    }
    readings = run.alternate(contestants)
    what = f"wakes among {many:,} sessions; raw: among {few}"
    found = row("P11", what, "per second", readings, "rate")
    target = at_least(_FLAT, "× among few", found.against(found.raw))
    return row("P11", what, "per second", readings, "rate", target)


def _turns(url: str, sessions: int, workers: int) -> Numbers:
    asyncio.run(_fill(url, sessions, due=True))
    command = [sys.executable, "-m", "bench.fresh.turn", url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = [subprocess.Popen(command, text=True, **pipes) for _ in range(workers)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0]) for process in running]
    assert sum(each["turns"] for each in found) == sessions
    seconds = max(each["end"] for each in found) - min(each["begin"] for each in found)
    return {"rate": sessions / seconds}


async def _fill(url: str, sessions: int, *, due: bool) -> None:
    await empty(url)
    async with limpet.open(url) as lp:
        for start in range(0, sessions, _PART):
            keys = [("bench", "ada", f"s{n}") for n in range(start, min(start + _PART, sessions))]
            many = await asyncio.gather(*[lp.create(*key[:2], id=key[2]) for key in keys])
            if due:
                asked = [s.append("user.message", {"text": "hi"}, actor="u") for s in many]
                await asyncio.gather(*asked)


async def _empty(turn: limpet.Turn) -> None:
    """Nothing to do."""


async def _wakes(url: str, sessions: int, wakes: int = 50) -> Numbers:
    await _fill(url, sessions, due=False)
    async with limpet.open(url) as lp:
        session = lp.session("bench", "ada", "s5")
        begin = time.perf_counter()
        for _ in range(wakes):
            await session.append("user.message", {"text": "hi"}, actor="u")
            assert (await lp.wake(session.key, _empty)).ran
        return {"rate": wakes / (time.perf_counter() - begin)}
