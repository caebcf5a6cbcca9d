"""W1: one session, one append after another, each durable before the next begins.

The hardest case for a store that batches: there is never a second append to share the fsync with.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import limpet
from bench import raw, texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row


def rows(run: Run) -> list[Row]:
    count = run.size(2_000, 400)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_ours(path, count)),
        "raw": lambda path: _raw(path, count),
    }
    run.with_peer(contestants, "appends", count=count)
    readings = run.alternate(contestants)
    found = row("W1", f"{count:,} appends", "per second", readings, "rate")
    targets = (
        at_least(0.75, "× raw", found.against(found.raw)),
        at_least(1.4, "× peer", found.against(found.peer)),
    )
    return [row("W1", found.what, found.unit, readings, "rate", *targets)]


async def _ours(path: Path, count: int) -> Numbers:
    payloads = texts.tool_results(count)
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        session = await lp.create("bench", "ada", id="w1", state=texts.changes(0))
        begin = time.perf_counter()
        for step, data in enumerate(payloads):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)
        seconds = time.perf_counter() - begin
        assert session.version == count + 1
    return {"rate": count / seconds}


def _raw(path: Path, count: int) -> Numbers:
    payloads = texts.tool_results(count)
    bodies = [{"data": data, "set": texts.changes(i)} for i, data in enumerate(payloads)]
    conn = raw.connect(path / "raw.db")
    seconds = raw.insert_singly(conn, raw.rows(bodies))
    conn.close()
    return {"rate": count / seconds}
