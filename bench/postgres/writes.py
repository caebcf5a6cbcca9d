"""P1, P2 and P6: what writing costs on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from statistics import median
from typing import Any

import asyncpg

import limpet
from bench import texts
from bench.postgres import pgbench
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, at_most, ratio, row
from tests.support.cluster import replicating
from tests.support.postgres import empty

_CALLERS = 64
_WINDOW = 50


def appends(run: Run) -> list[Row]:
    count = run.size(2_000, 500)
    contestants: dict[str, Contestant] = {
        "ours": lambda _: asyncio.run(_appends(run.postgres.url, count)),
        "raw": lambda _: {"rate": _pgbench(run, 1, "equivalent")},
        "bare": lambda _: {"rate": _pgbench(run, 1, "bare")},
    }
    readings = run.alternate(contestants)
    what = f"{count:,} appends"
    found = row("P1", what, "per second", readings, "rate")
    target = at_least(1.4, "× pgbench", found.against(found.raw))
    return [
        row("P1", what, "per second", readings, "rate", target),
        replace(
            row("P1", "the same beside an insert and a counter", "per second", readings, "rate"),
            raw=readings.median("bare", "rate"),
        ),
    ]


def _pgbench(run: Run, clients: int, script: pgbench.Script) -> float:
    seconds = run.size(3, 1)
    return pgbench.rate(run.postgres, clients=clients, seconds=seconds, script=script)


async def _appends(url: str, count: int) -> Numbers:
    await empty(url)
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="p1", state=texts.changes(0))
        payloads = texts.tool_results(count)
        begin = time.perf_counter()
        for step, data in enumerate(payloads):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)
        return {"rate": count / (time.perf_counter() - begin)}


def crowd(run: Run) -> list[Row]:
    each = run.size(100, 40)

    def raw(_: object) -> Numbers:
        own = _pgbench(run, _CALLERS, "equivalent")
        return {"own": own, "burst": own, "shared": _pgbench(run, _CALLERS, "shared")}

    contestants: dict[str, Contestant] = {
        "ours": lambda _: asyncio.run(_crowd(run.postgres.url, each)),
        "raw": raw,
        "bare": lambda _: {"own": _pgbench(run, _CALLERS, "bare")},
    }
    readings = run.alternate(contestants)
    found = []
    for name, what in (
        ("own", "a session each"),
        ("shared", "a session each, and one app: key for all"),
        ("burst", "a session each, all appends at once"),
    ):
        plain = row("P2", what, "per second", readings, name)
        target = at_least(3.0, "× pgbench, 64 clients", plain.against(plain.raw))
        found.append(row("P2", what, "per second", readings, name, target))
    bare = row(
        "P2", "a session each, beside an insert and a counter", "per second", readings, "own"
    )
    return [*found, replace(bare, raw=readings.median("bare", "own"))]


async def _crowd(url: str, each: int) -> Numbers:
    payloads = texts.tool_results(_CALLERS * each)
    numbers = {}
    for name in ("own", "shared", "burst"):
        await empty(url)
        async with limpet.open(url) as lp:
            creations = (lp.create("bench", "ada", id=f"p2-{i}") for i in range(_CALLERS))
            many = await asyncio.gather(*creations)
            begin = time.perf_counter()
            if name == "burst":
                await asyncio.gather(
                    *(_append(many[i % _CALLERS], i, data) for i, data in enumerate(payloads))
                )
            else:
                shared = {"app:count": 1} if name == "shared" else {}
                await asyncio.gather(
                    *(_lane(many[n], payloads[n::_CALLERS], shared) for n in range(_CALLERS))
                )
            numbers[name] = len(payloads) / (time.perf_counter() - begin)
            assert sum(session.version - 1 for session in many) == len(payloads)
    return numbers


async def _append(session: limpet.Session, step: int, data: Any, **more: Any) -> None:
    change = texts.changes(step)
    await session.append("tool.result", data, actor="agent:main", set=change, **more)


async def _lane(session: limpet.Session, payloads: list[Any], shared: dict[str, int]) -> None:
    for step, data in enumerate(payloads):
        await _append(session, step, data, inc=shared)


def quorum(run: Run) -> list[Row]:
    """The lanes of P2 on three servers of this machine, each commit on two of them, beside the
    same three servers without a quorum."""
    each = run.size(100, 40)
    with replicating(fsync="on") as waiting, replicating(awaited=0, fsync="on") as alone:
        readings = run.alternate(
            {
                "ours": lambda _: asyncio.run(_lanes(waiting.url(), each)),
                "raw": lambda _: asyncio.run(_lanes(alone.primary.url, each)),
            }
        )
    what = "a session each, two of three servers have each commit"
    plain = row("P12", what, "per second", readings, "rate")
    target = at_least(0.5, "× without a quorum", plain.against(plain.raw))
    return [row("P12", what, "per second", readings, "rate", target)]


async def _lanes(url: str, each: int) -> Numbers:
    payloads = texts.tool_results(_CALLERS * each)
    async with limpet.open(url) as lp:
        user = f"{time.time_ns()}"
        creations = (lp.create("bench", user, id=f"p12-{i}") for i in range(_CALLERS))
        many = await asyncio.gather(*creations)
        begin = time.perf_counter()
        await asyncio.gather(*(_lane(many[n], payloads[n::_CALLERS], {}) for n in range(_CALLERS)))
        return {"rate": len(payloads) / (time.perf_counter() - begin)}


def growth(run: Run) -> list[Row]:
    turns = run.size(1_000, 300)
    url = run.postgres.url
    readings = run.alternate({"ours": lambda _: asyncio.run(_growth(url, turns))})
    payload = sum(texts.size(message) for message in texts.messages(turns))
    slower = ratio(readings.median("ours", "last"), readings.median("ours", "first"))
    return [
        row("P6", f"first turn (median of {_WINDOW})", "ms", readings, "first"),
        row(
            "P6",
            f"last of {turns:,} turns (median of {_WINDOW})",
            "ms",
            readings,
            "last",
            at_most(1.3, "÷ own first", slower),
        ),
        row(
            "P6",
            f"in tables and indexes ({payload:,} of payload)",
            "bytes",
            readings,
            "bytes",
        ),
    ]


async def _growth(url: str, turns: int) -> Numbers:
    await empty(url)
    times = []
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="p6", state={"messages": []})
        for message in texts.messages(turns):
            begin = time.perf_counter()
            await session.append(
                "agent.message",
                {"message": message},
                actor="agent:main",
                add={"messages": [message]},
            )
            times.append(time.perf_counter() - begin)
    return {
        "first": median(times[:_WINDOW]) * 1e3,
        "last": median(times[-_WINDOW:]) * 1e3,
        "bytes": await _stored(url),
    }


async def _stored(url: str) -> float:
    conn = await asyncpg.connect(url)
    size = await conn.fetchval(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'limpet' AND c.relkind = 'r'"
    )
    await conn.close()
    return float(size)
