"""M1: copying every session from one SQLite file to another.

Beside it the raw limit: the same rows of the log, read and inserted by plain SQLite into a table
with the same indexes, as many to a transaction. It computes no link, folds no state and keeps no
heads.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Final

import apsw

import limpet
from bench import raw, texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row
from limpet.session.move.adopter import PIECE_EVENTS
from limpet.store.sqlite.file.schema import SCHEMA, migrate

TARGET_RATE: Final = 20_000
_SHAPES: Final = (("long sessions", 2_000), ("short sessions", 20))


def rows(run: Run) -> list[Row]:
    count = run.size(40_000, 8_000)
    found = []
    for shape, events in _SHAPES:
        with run.place.empty() as home:
            source = home / "source.db"
            run.say(f"building {shape}")
            asyncio.run(_build(source, count, events))
            contestants: dict[str, Contestant] = {
                "ours": partial(_ours, source),
                "raw": partial(_raw, source),
            }
            readings = run.alternate(contestants)
        what = f"{count:,} events in {shape}"
        reading = row("M1", what, "events per second", readings, "rate")
        target = at_least(TARGET_RATE, "events per second", readings.median("ours", "rate"))
        found.append(row("M1", what, reading.unit, readings, "rate", target))
    return found


async def _build(path: Path, count: int, events: int) -> None:
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        for number in range(count // events):
            session = await lp.create("bench", f"user-{number}", id="m1", state=texts.changes(0))
            results = texts.tool_results(events - 1)
            drafts = [
                limpet.Draft(type="tool.result", data=data, set=texts.changes(step))
                for step, data in enumerate(results)
            ]
            await session.append_many(drafts, actor="agent:main")


def _ours(source: Path, path: Path) -> Numbers:
    return asyncio.run(_copy(source, path / "ours.db"))


async def _copy(source: Path, target: Path) -> Numbers:
    urls = (f"sqlite:///{source}", f"sqlite:///{target}")
    async with limpet.open(urls[0]) as lp, limpet.open(urls[1]) as other:
        begin = time.perf_counter()
        copied = await lp.copy(to=other)
        seconds = time.perf_counter() - begin
    assert copied.ok
    return {"rate": copied.events / seconds}


def _raw(source: Path, path: Path) -> Numbers:
    reader = apsw.Connection(str(source))
    writer = raw.connect(path / "raw.db", schema="")
    for number in range(1, SCHEMA + 1):
        migrate(writer, number)
    found = reader.execute("SELECT * FROM events ORDER BY sid, seq")
    insert = f"INSERT INTO events VALUES ({', '.join('?' * len(found.get_description()))})"
    begin = time.perf_counter()
    copied = 0
    while some := [each for _, each in zip(range(PIECE_EVENTS), found, strict=False)]:
        with writer:
            writer.executemany(insert, some)
        copied += len(some)
    seconds = time.perf_counter() - begin
    writer.close()
    reader.close()
    return {"rate": copied / seconds}
