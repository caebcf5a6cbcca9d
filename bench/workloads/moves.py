"""M2: moving a live session from one SQLite file to another.

Beside it, as the limit, the export of the same session to a file and its import from it, which hand
over no ownership. The pause is the time from the departure to the arrival of a session that was
prestaged, for a short and a long log: it does not grow with the log.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Final

import limpet
from bench import texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_most, row

TARGET_TIMES: Final = 1.5
TARGET_PAUSE_MS: Final = 50.0
_STATE_BYTES: Final = 2**20
KEY: Final = limpet.Key("bench", "ada", "m2")


def rows(run: Run) -> list[Row]:
    count = run.size(10_000, 1_000)
    with run.place.empty() as home:
        source = home / "source.db"
        run.say("building a long session")
        asyncio.run(_build(source, count))
        contestants: dict[str, Contestant] = {
            "ours": partial(_moved, source),
            "raw": partial(_carried, source),
        }
        readings = run.alternate(contestants)
        short = home / "short.db"
        asyncio.run(_build(short, count // 10))
        pauses = run.alternate({"ours": partial(_paused, source), "raw": partial(_paused, short)})
    what = f"{count:,} events and 1 MB of state"
    times = readings.median("ours", "ms") / readings.median("raw", "ms")
    target = at_most(TARGET_TIMES, "× export + import", times)
    found = [row("M2", f"{what}; limit: export + import", "ms", readings, "ms", target)]
    target = at_most(TARGET_PAUSE_MS, "ms", pauses.median("ours", "ms"))
    pause = f"the pause, prestaged; limit: {count // 10:,} events"
    found.append(row("M2", pause, "ms", pauses, "ms", target))
    return found


async def _build(path: Path, count: int) -> None:
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        state = {"notes": ["x" * 1_000] * (_STATE_BYTES // 1_000)}
        session = await lp.create(KEY.app, KEY.user, KEY.id, state=state)
        results = texts.tool_results(count - 1)
        drafts = [
            limpet.Draft(type="tool.result", data=data, set=texts.changes(step))
            for step, data in enumerate(results)
        ]
        for at in range(0, len(drafts), 1_000):
            await session.append_many(drafts[at : at + 1_000], actor="agent:main")


def _own(source: Path, path: Path) -> Path:
    """A copy of the file: a session moves once."""
    own = path / "own.db"
    own.write_bytes(source.read_bytes())
    return own


def _moved(source: Path, path: Path) -> Numbers:
    return asyncio.run(_move(_own(source, path), path / "target.db", ahead=False))


def _paused(source: Path, path: Path) -> Numbers:
    return asyncio.run(_move(_own(source, path), path / "target.db", ahead=True))


async def _move(source: Path, target: Path, *, ahead: bool) -> Numbers:
    urls = (f"sqlite:///{source}", f"sqlite:///{target}")
    async with limpet.open(urls[0]) as lp, limpet.open(urls[1]) as other:
        if ahead:
            await lp.prestage(KEY, other)
        begin = time.perf_counter()
        moved = await lp.move(KEY, other)
        seconds = time.perf_counter() - begin
    assert moved.success, moved
    return {"ms": (moved.seconds["pause"] if ahead else seconds) * 1_000}


def _carried(source: Path, path: Path) -> Numbers:
    return asyncio.run(_carry(_own(source, path), path))


async def _carry(source: Path, path: Path) -> Numbers:
    urls = (f"sqlite:///{source}", f"sqlite:///{path / 'target.db'}")
    async with limpet.open(urls[0]) as lp, limpet.open(urls[1]) as other:
        begin = time.perf_counter()
        await lp.export(KEY, path / "session.limpet")
        await other.import_(path / "session.limpet")
        seconds = time.perf_counter() - begin
    return {"ms": seconds * 1_000}
