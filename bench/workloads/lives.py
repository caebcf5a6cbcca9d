"""S4: the life of sessions. Sweeping, appending under a timeout, suspending and resuming.

Raw is the same sweep among a tenth of the sessions, an append to a session without a timeout, and
the canonical encoding of the state that is suspended and resumed.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import limpet
from bench.rounds import Contestant, Numbers, Run, milliseconds, milliseconds_plain
from bench.table import Row, at_most, ratio, row
from bench.texts import Writer
from limpet.model import canonical

_CALLS, _AT_ONCE = 300, 500
_DUE = limpet.Timeouts(idle=timedelta(microseconds=1))
_LATER = limpet.Timeouts(idle=timedelta(days=1))


def rows(run: Run) -> list[Row]:
    many, due = run.size(100_000, 5_000), run.size(1_000, 50)
    with run.place.empty() as path:
        for name, count in (("long", many), ("short", many // 10)):
            run.say(f"building {count:,} sessions")
            asyncio.run(_build(path / f"{name}.db", count, due * run.rounds))
        sweeps: dict[str, Contestant] = {"ours": _swept("long", due), "raw": _swept("short", due)}
        swept = run.alternate_in(path, sweeps)
        lived = run.alternate_in(path, {"ours": lambda place: asyncio.run(_numbers(place))})
    times = ratio(swept.median("ours", "sweep"), swept.median("raw", "sweep"))
    target = at_most(1.5, f"÷ among {many // 10:,}", times)
    what = f"sweep of {due:,} due among {many:,}"
    found = [row("S4", what, "ms", swept, "sweep", target)]
    for name, beside, limit, what in (
        ("timed", "plain", 1.1, "append under an idle timeout"),
        ("resumed", "encoded", 20.0, "suspend and resume, a state of 1 MB"),
    ):
        lived.values["raw"] = {name: lived.of("ours", beside)}
        times = ratio(lived.median("ours", name), lived.median("ours", beside))
        target = at_most(limit, "÷ append" if name == "timed" else "÷ its encoding", times)
        found.append(row("S4", what, "ms", lived, name, target))
    return found


async def _build(path: Path, count: int, due: int) -> None:
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(count, start + _AT_ONCE))
            await asyncio.gather(*[_session(lp, number, due) for number in numbers])


async def _session(lp: limpet.Limpet, number: int, due: int) -> None:
    spans = _DUE if number < due else _LATER
    await lp.create("bench", f"user-{number}", "s4", timeouts=spans, actor="bench")


def _swept(name: str, due: int) -> Contestant:
    def numbers(path: Path) -> Numbers:
        return asyncio.run(_sweep(path / f"{name}.db", due))

    return numbers


async def _sweep(path: Path, due: int) -> Numbers:
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        begin = time.perf_counter()
        swept = await lp.work.sweep(limit=due)
        seconds = time.perf_counter() - begin
    assert swept.suspended == due
    return {"sweep": seconds * 1e3}


async def _numbers(path: Path) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/life.db") as lp:
        timed = await lp.create("bench", "ada", timeouts=_LATER, actor="bench")
        plain = await lp.create("bench", "ada", actor="bench")
        large = await _large(lp)

        async def turn() -> None:
            await large.suspend("bench")
            await large.resume()

        return {
            **await _appended(timed=timed, plain=plain),
            "resumed": await milliseconds(turn, 5),
            "encoded": milliseconds_plain(lambda: canonical(large.state), 5),
        }


async def _large(lp: limpet.Limpet) -> limpet.Session[Any]:
    """A session with a state of about 1 MB, and a few events since it was written."""
    writer = Writer()
    messages = [{"id": f"m{n}", "role": "user", "text": writer.prose(60)} for n in range(10_000)]
    large = await lp.create("bench", "ada", state={"messages": messages}, actor="bench")
    for number in range(25):
        await large.append("agent.did", set={"n": number})
    return large


async def _appended(**sessions: limpet.Session[Any]) -> Numbers:
    """The median time of an append to each, one after the other: a noisy moment hits all."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(_CALLS):
        for name, session in sessions.items():
            begin = time.perf_counter()
            await session.append("agent.did", set={"n": 1})
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(found) for name, found in times.items()}
