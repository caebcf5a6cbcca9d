"""T1: a turn with one model call and one tool, beside one with a step and an effect. T2: 200 turns
that wait on a model at the same time. T3: what a model says, followed in another process.

The model is fake and answers at once, or after half a second in T2. T3: followers take their pieces
through the live channel; a piece carries the time at which it was said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import limpet
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, at_most, ratio, row
from limpet.session.limpet import journal_of
from tests.support.processes import Child

_CPU = 1.6
_AT_ONCE = 200
_WAIT_SECONDS = 0.5
_TURNS_PER_SECOND = 300.0
_LAG_MS = 20.0
_TICK_SECONDS = 0.001
_FOLLOWERS = 100
_LATE_MS = 50.0


@limpet.tool
def look(order: int) -> str:
    """Look an order up."""
    return "found"


def _reply(request: limpet.ModelRequest) -> limpet.Reply:
    return limpet.Reply("I look.", (limpet.ToolCall("1", "look", {"order": 7}),))


async def _agent(turn: limpet.Turn) -> None:
    reply = await turn.model("think", _reply, tools=[look])
    await turn.tool(reply.tool_calls[0])


async def _plain(turn: limpet.Turn) -> None:
    await turn.step("think", lambda: "I look.")
    await turn.effect("look", lambda order: "found", order=7)


async def _waiting(turn: limpet.Turn) -> None:
    async def later(request: limpet.ModelRequest) -> str:
        await asyncio.sleep(_WAIT_SECONDS)
        return "done"

    await turn.model("think", later)


def cost(run: Run) -> list[Row]:
    sessions = run.size(500, 100)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_turns(path, sessions, _agent)),
        "raw": lambda path: asyncio.run(_turns(path, sessions, _plain)),
    }
    readings = run.alternate(contestants)
    what = "a turn with a model call and a tool; raw: with a step and an effect"
    found = row("T1", f"{what}: processor time", "ms", readings, "cpu")
    target = at_most(_CPU, "× a step and an effect", ratio(found.ours, found.raw))
    commits = at_most(5, "commits", readings.median("ours", "commits"))
    return [
        row("T1", f"{what}: processor time", "ms", readings, "cpu", target),
        row("T1", f"{what}: commits", "count", readings, "commits", commits),
    ]


def waiting(run: Run) -> list[Row]:
    turns = run.size(1_000, 400)
    readings = run.alternate({"ours": lambda path: asyncio.run(_crowd(path, turns))})
    rate = at_least(_TURNS_PER_SECOND, "turns/s", readings.median("ours", "rate"))
    lag = at_most(_LAG_MS, "ms", readings.median("ours", "lag99"))
    what = f"{_AT_ONCE} turns at once, each waits {_WAIT_SECONDS} s"
    return [
        row("T2", what, "per second", readings, "rate", rate),
        row("T2", "the loop is late by, 99 of 100", "ms", readings, "lag99", lag),
    ]


def streaming(run: Run) -> list[Row]:
    pieces = run.size(1_000, 300)
    readings = run.alternate({"ours": lambda path: asyncio.run(_stream(path, pieces))})
    late = at_most(_LATE_MS, "ms", readings.median("ours", "late99"))
    order = at_most(0, "out of order", readings.median("ours", "disorder"))
    what = f"100 pieces a second, {_FOLLOWERS} followers in another process"
    return [
        row("T3", f"{what}: late by, 99 of 100", "ms", readings, "late99", late),
        row("T3", "pieces out of order", "count", readings, "disorder", order),
        row("T3", "pieces lost", "count", readings, "lost"),
    ]


async def _begin(lp: limpet.Limpet, sessions: int) -> None:
    many = await asyncio.gather(*[lp.create("bench", "ada") for _ in range(sessions)])
    await asyncio.gather(*[s.append("user.message", {"text": "hi"}, actor="u") for s in many])


async def _turns(path: Path, sessions: int, harness: Any) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/turns.db") as lp:
        await _begin(lp, sessions)
        worker = limpet.Worker(lp, harness, app="bench", idle_exit=True)
        counted = _Commits(lp)
        spent = time.process_time()
        rates = await worker.run()
        spent = time.process_time() - spent
        assert rates.turns == sessions
    return {"cpu": spent / sessions * 1e3, "commits": counted.number / sessions}


class _Commits:
    """Counts the commits of a store: one for each session in each."""

    def __init__(self, lp: limpet.Limpet) -> None:
        store: Any = journal_of(lp).store
        self.number, before = 0, store.commit

        async def commit(commits: Any) -> Any:
            self.number += len(commits)
            return await before(commits)

        store.commit = commit


async def _crowd(path: Path, turns: int) -> Numbers:
    late: list[float] = []
    async with limpet.open(f"sqlite:///{path}/crowd.db") as lp:
        await _begin(lp, turns)
        worker = limpet.Worker(lp, _waiting, app="bench", concurrency=_AT_ONCE, idle_exit=True)
        ticking = asyncio.create_task(_tick(late))
        begin = time.perf_counter()
        rates = await worker.run()
        seconds = time.perf_counter() - begin
        ticking.cancel()
        assert rates.turns == turns
    return {"rate": turns / seconds, "lag99": quantiles(late, n=100)[98] * 1e3}


async def _tick(late: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(_TICK_SECONDS)
        late.append(time.perf_counter() - begin - _TICK_SECONDS)


async def _stream(path: Path, pieces: int) -> Numbers:
    url = f"sqlite:///{path}/stream.db"
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", "s")
        await session.append("user.message", {"text": "hi"}, actor="u")
        with Child("bench.fresh.listen", url, "bench", "ada", "s", _FOLLOWERS, pieces) as child:
            await asyncio.to_thread(child.expect, "ready")
            await lp.wake(session.key, _speaking(pieces))
            said = str(await asyncio.to_thread(child.line))
    late99, disorder, lost = map(float, said.split()[-3:])
    return {"late99": late99, "disorder": disorder, "lost": lost}


def _speaking(pieces: int) -> Any:
    async def speak(request: limpet.ModelRequest) -> AsyncIterator[str]:
        begin = time.perf_counter()
        for number in range(pieces):
            await asyncio.sleep(max(0, begin + number / 100 - time.perf_counter()))
            yield f"{time.time():.6f} "

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("speak", speak)

    return harness
