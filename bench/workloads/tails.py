"""W3: the last 20 events of a session of 100 to 100,000.

Every length is a file of its own, so that a deeper tree shows. `read` gives the events alone, which
is what the neighbour's get_items does; `get` also gives head, state and scopes. A first read is
that of a store just opened, which has decoded nothing yet.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import apsw

import limpet
from bench import raw, texts
from bench.rounds import (
    Contestant,
    Numbers,
    Readings,
    Run,
    milliseconds,
    milliseconds_plain,
)
from bench.table import Row, at_least, at_most, ratio, row

_TAIL = 20
_OPENINGS = 15  # for first reads
_KEY = ("bench", "ada", "w3")


def rows(run: Run) -> list[Row]:
    counts = [100, 1_000, 10_000] if run.quick else [100, 1_000, 10_000, 100_000]
    calls = run.size(300, 100)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_ours(path, counts, calls)),
        "raw": lambda path: _raw(path, counts, calls),
    }
    run.with_peer(contestants, "tail", counts=counts, calls=calls, limit=_TAIL)
    with run.place.empty() as path:
        for count in counts:
            run.say(f"building {count:,} events")
            _build(run, path, count)
        readings = run.alternate_in(path, contestants)
    reads = [_row(readings, "read", count, counts) for count in counts]
    first = [_row(readings, "first read", count, counts) for count in counts]
    return [*reads, *first, *(_row(readings, "get", count, counts) for count in counts)]


def _row(readings: Readings, verb: str, count: int, counts: list[int]) -> Row:
    name = f"{verb} {count}"
    what = f"{verb} at {count:,} events"
    plain = row("W3", what, "ms", readings, name)
    targets = []
    if count == counts[-1]:
        first = readings.median("ours", f"{verb} {counts[0]}")
        targets.append(at_most(1.5, f"÷ own at {counts[0]}", ratio(plain.ours, first)))
    if verb != "get":
        targets.append(at_least(3.0, "× peer", plain.against(plain.peer)))
    return row("W3", what, "ms", readings, name, *targets)


def _build(run: Run, path: Path, count: int) -> None:
    payloads = texts.tool_results(count)
    asyncio.run(_build_ours(path, payloads))
    bodies = [{"data": data, "set": texts.changes(i)} for i, data in enumerate(payloads)]
    conn = raw.connect(path / f"raw-{count}.db")
    raw.insert_in_batches(conn, raw.rows(bodies), 1_000)
    raw.put_head(conn, count, texts.changes(count))
    conn.close()
    if run.peer is not None:
        run.peer.run("fill", path=str(path), count=count)


async def _build_ours(path: Path, payloads: list[Any]) -> None:
    """The first event is the creation, so that the session has exactly as many as asked."""
    async with limpet.open(f"sqlite:///{path}/ours-{len(payloads)}.db") as lp:
        session = await lp.create(*_KEY[:2], id=_KEY[2])
        drafts = [
            limpet.Draft(type="tool.result", data=data, actor="agent:main", set=texts.changes(i))
            for i, data in enumerate(payloads[1:])
        ]
        for at in range(0, len(drafts), 1_000):
            await session.append_many(drafts[at : at + 1_000])
        assert session.version == len(payloads)


async def _ours(path: Path, counts: list[int], calls: int) -> Numbers:
    numbers = {}
    for count in counts:
        async with limpet.open(f"sqlite:///{path}/ours-{count}.db") as lp:
            session = lp.session(_KEY)
            read, get = partial(_read, session), partial(_get, lp)
            numbers[f"read {count}"] = await milliseconds(read, calls)
            numbers[f"get {count}"] = await milliseconds(get, calls)
            assert len(await read()) == len(await get()) == _TAIL
        times = [await _first(f"sqlite:///{path}/ours-{count}.db") for _ in range(_OPENINGS)]
        numbers[f"first read {count}"] = median(times) * 1e3
    return numbers


async def _first(url: str) -> float:
    async with limpet.open(url) as lp:
        session = lp.session(_KEY)
        begin = time.perf_counter()
        await _read(session)
        return time.perf_counter() - begin


async def _read(session: limpet.Session) -> list[Any]:
    """The events with what they hold, as the neighbour and raw give it."""
    return [event.data for event in await session.read(reverse=True, limit=_TAIL)]


async def _get(lp: limpet.Limpet) -> list[Any]:
    session = await lp.get(_KEY, tail=_TAIL)
    assert session.state["step"] >= 0
    return [event.data for event in session.events]


def _raw(path: Path, counts: list[int], calls: int) -> Numbers:
    numbers = {}
    for count in counts:
        conn = raw.connect(path / f"raw-{count}.db")
        read = partial(raw.last, conn, _TAIL)
        numbers[f"read {count}"] = milliseconds_plain(read, calls)
        numbers[f"get {count}"] = milliseconds_plain(partial(_raw_get, conn), calls)
        assert len(read()) == _TAIL
        conn.close()
        times = [_raw_first(path / f"raw-{count}.db") for _ in range(_OPENINGS)]
        numbers[f"first read {count}"] = median(times) * 1e3
    return numbers


def _raw_first(path: Path) -> float:
    conn = raw.connect(path)
    begin = time.perf_counter()
    raw.last(conn, _TAIL)
    took = time.perf_counter() - begin
    conn.close()
    return took


def _raw_get(conn: apsw.Connection) -> tuple[Any, Any]:
    return raw.head(conn), raw.last(conn, _TAIL)
