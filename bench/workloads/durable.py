"""R3 and P10: turns of three recorded steps, beside workflows of three steps of DBOS.

Both record every step durably before the next begins: on SQLite with synchronous=FULL, on one
PostgreSQL server as it comes. Ours counts from the message to the end of its turn. DBOS runs in its
own environment and process, 64 workflows at a time, in the faster of its two ways.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from pathlib import Path

import asyncpg

import limpet
from bench.peer import Peer, in_environment
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row
from tests.support.postgres import empty

_TIMES = 3.0
_WAYS = ("async", "threads")


def sqlite(run: Run) -> list[Row]:
    return _rows(run, "R3", lambda path, name: f"sqlite:///{path}/{name}.db")


def postgres(run: Run) -> list[Row]:
    def url(path: Path, name: str) -> str:
        asyncio.run(_emptied(run.postgres.url))
        return run.postgres.url

    return _rows(run, "P10", url)


def _rows(run: Run, name: str, url: object) -> list[Row]:
    turns, workflows = run.size(1_000, 200), run.size(300, 100)
    with _dbos() as peer:

        def theirs(path: Path) -> Numbers:
            rates = []
            for way in _WAYS:
                where = url(path, way)  # type: ignore[operator]  # a function
                if where.startswith("postgresql://"):
                    where = where.replace("postgresql://", "postgresql+psycopg://", 1)
                rates.append(peer.run("workflows", url=where, count=workflows, way=way)["rate"])
            return {"rate": max(rates)}

        contestants: dict[str, Contestant] = {
            "ours": lambda path: asyncio.run(_turns(url(path, "ours"), turns)),  # type: ignore[operator]  # a function
            "peer": theirs,
        }
        readings = run.alternate(contestants)
    what = f"{turns:,} turns of three steps; peer: {peer.about['peer']}"
    found = row(name, what, "per second", readings, "rate")
    target = at_least(_TIMES, "× DBOS", found.against(found.peer))
    return [row(name, what, "per second", readings, "rate", target)]


async def steps(turn: limpet.Turn) -> None:
    """What the workflow does too."""
    for message in turn.inputs:
        order = await turn.step("look", lambda number: {"order": number}, message.data["number"])
        plan = await turn.step("decide", lambda found: f"refund {found['order']}", order)
        await turn.step("answer", lambda text: {"text": text}, plan)


async def _turns(url: str, count: int) -> Numbers:
    async with limpet.open(url) as lp:
        many = await asyncio.gather(*[lp.create("bench", "ada") for _ in range(count)])
        begin = time.perf_counter()
        asked = [
            s.append("user.message", {"text": "hi", "number": n}, actor="u")
            for n, s in enumerate(many)
        ]
        await asyncio.gather(*asked)
        rates = await limpet.Worker(lp, steps, app="bench", idle_exit=True).run()
        seconds = time.perf_counter() - begin
        assert rates.turns == count
    return {"rate": count / seconds}


async def _emptied(url: str) -> None:
    """Neither our schema nor that of DBOS is in the database."""
    await empty(url)
    conn = await asyncpg.connect(url)
    try:
        await conn.execute("DROP SCHEMA IF EXISTS dbos CASCADE")
    finally:
        await conn.close()


def _dbos() -> AbstractContextManager[Peer]:
    return in_environment("bench-dbos", "bench.peer_dbos")
