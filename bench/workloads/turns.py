"""R1: turns of an empty harness, one worker, 1,000 sessions; beside our own appends of W2.

In turns per second, and in processor time, which a busy machine does not change. R2: the cost of a
wake among many sessions of one agent: it must not grow with their number. R4: how long a session
stays with a worker that was killed, beyond the end of its lease.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import limpet
from bench.rounds import Contestant, Numbers, Run, milliseconds
from bench.table import Row, at_least, at_most, ratio, row
from bench.workloads import crowd

_PART_OF_APPENDS = 0.25
_FLAT = 1.5
_LEASE_SECONDS = 1.0
_LATE_MS = 1_000.0


def rows(run: Run) -> list[Row]:
    sessions = run.size(1_000, 200)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_turns(path, sessions)),
        "raw": lambda path: asyncio.run(crowd.lanes_of_ours(path, 64, run.size(100, 20))),
    }
    readings = run.alternate(contestants)
    what = f"{sessions:,} empty turns; raw: appends of W2"
    found = row("R1", what, "per second", readings, "rate")
    target = at_least(_PART_OF_APPENDS, "× appends", found.against(found.raw))
    spent = row("R1", "their processor time", "ms", readings, "cpu")
    most = at_most(1 / _PART_OF_APPENDS, "× appends", ratio(spent.ours, spent.raw))
    return [
        row("R1", what, "per second", readings, "rate", target),
        row("R1", "their processor time", "ms", readings, "cpu", most),
    ]


def among(run: Run) -> list[Row]:
    few, many = 10, run.size(100_000, 2_000)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_wakes(path, many)),
        "raw": lambda path: asyncio.run(_wakes(path, few)),
    }
    readings = run.alternate(contestants)
    what = f"a message and its wake, among {many:,} sessions; raw: among {few}"
    found = row("R2", what, "ms", readings, "wake")
    target = at_most(_FLAT, "× among few", ratio(found.ours, found.raw))
    return [row("R2", what, "ms", readings, "wake", target)]


def recovery(run: Run) -> list[Row]:
    readings = run.alternate({"ours": _recovered})
    found = row("R4", "a kill -9, beyond the end of the lease", "ms", readings, "late")
    target = at_most(_LATE_MS, "ms", found.ours)
    return [row("R4", found.what, "ms", readings, "late", target)]


def _recovered(path: Path) -> Numbers:
    """From the end of a dead worker's lease to the claim of the next one, by the store's clock."""
    url = f"sqlite:///{path}/killed.db"
    command = [sys.executable, "-m", "bench.fresh.work", url, str(_LEASE_SECONDS)]
    return asyncio.run(_take_over(url, command))


async def _take_over(url: str, command: list[str]) -> Numbers:
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="s")
        await session.append("user.message", {"text": "hi"}, actor="u")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()  # its turn has begun
        process.kill()
        await process.wait()
        await session.refresh()
        until_us = session.head.lease_us
        assert until_us is not None
        worker = limpet.Worker(lp, _empty, app="bench")
        running = asyncio.ensure_future(worker.run())
        async for _ in session.follow(types=["session.status_idle"]):
            break
        worker.stop()
        await running
        newest, *_ = await session.runs.activations()
    return {"late": (newest.claimed_us - until_us) / 1_000}


async def _empty(turn: limpet.Turn) -> None:
    """Nothing to do."""


async def _turns(path: Path, sessions: int) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/turns.db") as lp:
        many = await asyncio.gather(*[lp.create("bench", "ada") for _ in range(sessions)])
        await asyncio.gather(*[s.append("user.message", {"text": "hi"}, actor="u") for s in many])
        worker = limpet.Worker(lp, _empty, app="bench", idle_exit=True)  # imports the runtime
        begin, spent = time.perf_counter(), time.process_time()
        rates = await worker.run()
        seconds, spent = time.perf_counter() - begin, time.process_time() - spent
        assert rates.turns == sessions
    return {"rate": sessions / seconds, "cpu": spent / sessions * 1e3}


async def _wakes(path: Path, sessions: int, wakes: int = 200) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/wakes.db?sync=normal") as lp:
        for first in range(0, sessions, 1_000):
            batch = range(first, min(sessions, first + 1_000))
            await asyncio.gather(*[lp.create("bench", "ada", id=f"s{n}") for n in batch])
        session = lp.session("bench", "ada", "s5")

        async def one() -> None:
            await session.append("user.message", {"text": "hi"}, actor="u")
            assert (await lp.wake(session.key, _empty)).ran

        return {"wake": await milliseconds(one, wakes)}
