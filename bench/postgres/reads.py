"""P3, P4 and P5: what reading costs on PostgreSQL, and that it stays the same as data grows."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import limpet
from bench import texts
from bench.rounds import Numbers, Run, milliseconds
from bench.table import Row, at_most, ratio, row
from tests.support.postgres import empty

_TAIL, _PAGE = 20, 50
_QUERIES: dict[str, dict[str, Any]] = {
    "app": {"app": "app-1"},
    "user": {"app": "app-1", "user": "user-1"},
    "label": {"app": "app-1", "labels": {"plan": "gold"}},
}


def tails(run: Run) -> list[Row]:
    counts = [100, 1_000, run.size(100_000, 10_000)]
    asyncio.run(_build_logs(run.postgres.url, counts))
    calls = run.size(300, 100)
    readings = run.alternate(
        {"ours": lambda _: asyncio.run(_tails(run.postgres.url, counts, calls))}
    )
    found = []
    for verb in ("read", "get"):
        for count in counts:
            slower = ratio(
                readings.median("ours", f"{verb} {count}"),
                readings.median("ours", f"{verb} {counts[0]}"),
            )
            target = [at_most(1.5, f"÷ own at {counts[0]}", slower)] if count > counts[0] else []
            what = f"{verb} at {count:,} events"
            found.append(row("P3", what, "ms", readings, f"{verb} {count}", *target))
    return found


def starts(run: Run) -> list[Row]:
    counts = [100, run.size(100_000, 10_000)]
    asyncio.run(_build_logs(run.postgres.url, counts))
    readings = run.alternate({"ours": lambda _: asyncio.run(_starts(run.postgres.url, counts))})
    found = []
    for count in counts:
        slower = ratio(readings.median("ours", f"{count}"), readings.median("ours", f"{counts[0]}"))
        target = [at_most(1.5, f"÷ own at {counts[0]}", slower)] if count > counts[0] else []
        found.append(
            row("P4", f"open and get, {count:,} events", "ms", readings, f"{count}", *target)
        )
    return found


def pages(run: Run) -> list[Row]:
    found, calls = [], run.size(200, 50)
    small: dict[str, float | None] = {}
    for count in (1_000, run.size(100_000, 10_000)):
        run.say(f"building {count:,} sessions")
        asyncio.run(_build_sessions(run.postgres.url, count))
        readings = run.alternate({"ours": lambda _: asyncio.run(_pages(run.postgres.url, calls))})
        for name in _QUERIES:
            now = readings.median("ours", name)
            first = small.setdefault(name, now)
            target = [at_most(1.5, "÷ own at 1,000", ratio(now, first))] if count > 1_000 else []
            what = f"by {name}, {count:,} sessions"
            found.append(row("P5", what, "ms", readings, name, *target))
    return found


async def _build_logs(url: str, counts: list[int]) -> None:
    await empty(url)
    async with limpet.open(url) as lp:
        for count in counts:
            session = await lp.create("bench", "ada", id=f"{count}")
            drafts = [
                limpet.Draft(
                    type="tool.result", data=data, actor="agent:main", set=texts.changes(i)
                )
                for i, data in enumerate(texts.tool_results(count - 1))
            ]
            for at in range(0, len(drafts), 500):
                await session.append_many(drafts[at : at + 500])


async def _tails(url: str, counts: list[int], calls: int) -> Numbers:
    numbers = {}
    async with limpet.open(url) as lp:
        for count in counts:
            session = lp.session(("bench", "ada", f"{count}"))
            read = partial(session.read, reverse=True, limit=_TAIL)
            numbers[f"read {count}"] = await milliseconds(read, calls)
            numbers[f"get {count}"] = await milliseconds(
                partial(lp.get, session.key, tail=_TAIL), calls
            )
            assert len(await read()) == _TAIL
    return numbers


async def _starts(url: str, counts: list[int]) -> Numbers:
    async def start(count: int) -> None:
        async with limpet.open(url) as lp:
            session = await lp.get(("bench", "ada", f"{count}"), tail=_TAIL)
            assert len(session.events) == _TAIL

    return {f"{count}": await milliseconds(partial(start, count), 10) for count in counts}


async def _build_sessions(url: str, count: int) -> None:
    await empty(url)
    async with limpet.open(url) as lp:
        for at in range(0, count, 500):
            await asyncio.gather(
                *(
                    lp.create(
                        f"app-{n % 2}",
                        f"user-{n % 20}" if n % 4 else f"once-{n}",
                        id=f"{n}",
                        labels={"plan": ("gold", "silver", "bronze", "free")[n // 2 % 4]},
                    )
                    for n in range(at, at + 500)
                )
            )


async def _pages(url: str, calls: int) -> Numbers:
    async with limpet.open(url) as lp:
        return {
            name: await milliseconds(partial(lp.list, **args, limit=_PAGE), calls)
            for name, args in _QUERIES.items()
        }
