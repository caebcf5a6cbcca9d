"""W2: many sessions at once, read in two ways.

Lanes: a task per session, each appending in order, as agents working side by side do. Burst: every
append handed over at once, as a busy server's queue does. Soon: each queued by append_soon, all
made durable by one flush. Raw is one transaction per 64 rows.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import limpet
from bench import raw, texts
from bench.rounds import Contestant, Numbers, Readings, Run
from bench.table import Row, at_least, ratio, row

_TIMES_PEER = 12.0
_SOON_TIMES_PEER, _SOON_TIMES_LANES = 30.0, 3.0


def rows(run: Run) -> list[Row]:
    sessions, each = 64, run.size(100, 20)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_ours(path, sessions, each)),
        "raw": lambda path: _raw(path, sessions, each),
    }
    run.with_peer(contestants, "crowd", sessions=sessions, each=each)
    readings = run.alternate(contestants)
    found = []
    for name in ("lanes", "burst"):
        what = f"{name}: {sessions} sessions × {each}"
        plain = row("W2", what, "per second", readings, name)
        target = at_least(_TIMES_PEER, "× peer", plain.against(plain.peer))
        found.append(row("W2", what, "per second", readings, name, target))
    return [*found, _soon_row(readings, f"append_soon + flush: {sessions} sessions × {each}")]


def _soon_row(readings: Readings, what: str) -> Row:
    for rate in readings.of("peer", "lanes"):  # it has nothing like it: what a user has now
        readings.add("peer", {"soon": rate})
    plain = row("W2", what, "per second", readings, "soon")
    in_lanes = readings.median("ours", "lanes")
    targets = (
        at_least(_SOON_TIMES_PEER, "× peer", plain.against(plain.peer)),
        at_least(_SOON_TIMES_LANES, "× lanes", ratio(plain.ours, in_lanes)),
    )
    return row("W2", what, "per second", readings, "soon", *targets)


async def _ours(path: Path, sessions: int, each: int) -> Numbers:
    payloads = texts.tool_results(sessions * each)
    numbers = {}
    for name, race in (("lanes", lanes), ("burst", burst), ("soon", soon)):
        async with limpet.open(f"sqlite:///{path}/{name}.db") as lp:
            creations = (lp.create("bench", "ada", id=f"w2-{i}") for i in range(sessions))
            many = await asyncio.gather(*creations)
            begin = time.perf_counter()
            await race(lp, many, payloads)
            numbers[name] = len(payloads) / (time.perf_counter() - begin)
            assert all(session.version == each + 1 for session in many)
    return numbers


async def lanes_of_ours(path: Path, sessions: int, each: int) -> Numbers:
    """Appends per second in lanes and their processor time, for workloads that are measured
    against them: without the opening of the store and the creation of the sessions."""
    payloads = texts.tool_results(sessions * each)
    async with limpet.open(f"sqlite:///{path}/lanes.db") as lp:
        creations = (lp.create("bench", "ada", id=f"w2-{i}") for i in range(sessions))
        many = await asyncio.gather(*creations)
        begin, spent = time.perf_counter(), time.process_time()
        await lanes(lp, many, payloads)
        seconds, spent = time.perf_counter() - begin, time.process_time() - spent
    return {"rate": len(payloads) / seconds, "cpu": spent / len(payloads) * 1e3}


async def lanes(_: limpet.Limpet, many: list[limpet.Session], payloads: list[Any]) -> None:
    async def lane(number: int) -> None:
        session = many[number]
        for step, data in enumerate(payloads[number :: len(many)]):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)

    await asyncio.gather(*(lane(number) for number in range(len(many))))


async def burst(_: limpet.Limpet, many: list[limpet.Session], payloads: list[Any]) -> None:
    count = len(many)
    await asyncio.gather(
        *(
            many[i % count].append(
                "tool.result", data, actor="agent:main", set=texts.changes(i // count)
            )
            for i, data in enumerate(payloads)
        )
    )


async def soon(lp: limpet.Limpet, many: list[limpet.Session], payloads: list[Any]) -> None:
    count = len(many)
    for i, data in enumerate(payloads):
        change = texts.changes(i // count)
        many[i % count].append_soon("tool.result", data, actor="agent:main", set=change)
    await lp.flush()


def _raw(path: Path, sessions: int, each: int) -> Numbers:
    payloads = texts.tool_results(sessions * each)
    bodies = [{"data": data, "set": texts.changes(i)} for i, data in enumerate(payloads)]
    by_session = [raw.rows(bodies[i::sessions], sid=i + 1) for i in range(sessions)]
    interleaved = [line[step] for step in range(each) for line in by_session]
    conn = raw.connect(path / "raw.db")
    seconds = raw.insert_in_batches(conn, interleaved, sessions)
    conn.close()
    rate = len(payloads) / seconds
    return {"lanes": rate, "burst": rate, "soon": rate}
