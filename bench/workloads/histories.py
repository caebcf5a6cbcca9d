"""H1: a session's past. Raw is the same call on a log of 1,000 events, or a plain append.

The long log has 100,000 events (10,000 in a hurry); a field in it changed ten times.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import limpet
from bench.rounds import Contestant, Numbers, Run, milliseconds
from bench.table import Row, at_most, ratio, row
from bench.texts import Writer

_SHORT, _CHANGES, _CALLS = 1_000, 10, 30


def rows(run: Run) -> list[Row]:
    count = run.size(100_000, 10_000)
    with run.place.empty() as path:
        run.say("building the logs")
        cold = asyncio.run(_build(path, count))
        readings = run.alternate_in(path, {"ours": _timed("long"), "raw": _timed("short")})
    found = []
    for name in ("state_at", "fork"):
        times = ratio(readings.median("ours", name), readings.median("raw", name))
        target = at_most(2.0, f"÷ at {_SHORT:,}", times)
        found.append(row("H1", f"{name} in {count:,} events", "ms", readings, name, target))
    blame = at_most(20.0, "ms", readings.median("ours", "blame"))
    found.append(
        row("H1", f"blame, {_CHANGES} changes in {count:,}", "ms", readings, "blame", blame)
    )
    times = ratio(readings.median("ours", "checkpoint"), readings.median("ours", "append"))
    target = at_most(1.1, "÷ append", times)
    found.append(row("H1", "incremental checkpoint", "ms", readings, "checkpoint", target))
    readings.values["ours"]["cold"] = [cold]
    target = at_most(0.35, "÷ rows", cold)
    found.append(row("H1", "bytes of cold segments", "ratio", readings, "cold", target))
    return found


async def _build(path: Path, count: int) -> float:
    """The logs, and how much smaller a third one became by compaction."""
    writer = Writer()
    async with limpet.open(f"sqlite:///{path}/h.db?sync=normal") as lp:
        for id, length in (("short", _SHORT), ("long", count), ("cold", 5_000)):
            s = await lp.create("cold" if id == "cold" else "bench", "ada", id, actor="bench")
            every = length // (_CHANGES + 1)
            for start in range(0, length, 500):
                drafts = [_draft(writer, number, every) for number in range(start, start + 500)]
                await s.append_many(drafts)
        await lp.policies.retention("cold", events=100)
        done = await lp.maintenance.compact()
    return done.segment_bytes / done.rows_bytes


def _draft(writer: Writer, number: int, every: int) -> limpet.Draft:
    rare = {"rare": number} if number and number % every == 0 else {}
    fields = {f"field {number % 50}": number, **rare}
    return limpet.Draft(type="agent.message", data={"text": writer.prose(120)}, set=fields)


def _timed(id: str) -> Contestant:
    def numbers(path: Path) -> Numbers:
        return asyncio.run(_numbers(path, id))

    return numbers


async def _numbers(path: Path, id: str) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/h.db") as lp:
        s = await lp.get("bench", "ada", id, actor="bench")
        middle = s.version // 2
        return {
            "state_at": await milliseconds(lambda: s.history.at(middle), _CALLS),
            "fork": await milliseconds(lambda: s.fork(middle), _CALLS),
            "blame": await milliseconds(lambda: s.history.blame("rare"), _CALLS),
            "append": await milliseconds(lambda: s.append("agent.did", set={"n": 1}), _CALLS),
            "checkpoint": await milliseconds(lambda: s.checkpoint(full=False), _CALLS),
        }
