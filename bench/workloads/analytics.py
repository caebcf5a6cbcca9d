"""Y1: analytics beside the store that they measure.

Real histories of an agent are folded, once all of them and then live at 1,000 events a second. The
dashboards' queries run on a million sessions, made by folding synthetic logs into the same cells.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import limpet
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, at_most, row
from limpet.analytics.metrics import SessionFold, begin, fold_event
from limpet.analytics.rollup import tallies_of

_USERS = 20_000
_HOUR_US = 3_600 * 10**6


def rows(run: Run) -> list[Row]:
    sessions, many = run.size(1_500, 200), run.size(1_000_000, 50_000)
    seconds = run.size(10, 3)
    folding: dict[str, Contestant] = {"ours": lambda path: asyncio.run(_fold(path, sessions))}
    asking: dict[str, Contestant] = {"ours": lambda path: asyncio.run(_ask(path))}
    living: dict[str, Contestant] = {"ours": lambda path: asyncio.run(_live(path, seconds))}
    folded, live = run.alternate(folding), run.alternate(living)
    with run.place.empty() as path:  # filled once: that takes minutes, and is not measured
        asyncio.run(_fill(path, many))
        asked = run.alternate_in(path, asking)
    found = [
        row(
            "Y1",
            "events read from the feed, folded and committed, a second of one core",
            "per second",
            folded,
            "rate",
            at_least(25_000, "events a second", folded.median("ours", "rate")),
        ),
        row(
            "Y1",
            "the file, of the store",
            "ratio",
            folded,
            "share",
            at_most(0.05, "of the store", folded.median("ours", "share")),
        ),
        row(
            "Y1",
            "opened again, until nothing is left to fold",
            "ms",
            folded,
            "again",
            at_most(1_000, "ms", folded.median("ours", "again")),
        ),
        row(
            "Y1",
            "behind, 99 of 100, at 1,000 events a second",
            "ms",
            live,
            "lag99",
            at_most(1_000, "ms", live.median("ours", "lag99")),
        ),
    ]
    for name in _QUERIES:
        target = at_most(50, "ms", asked.median("ours", name))
        found.append(row("Y1", f"{name}, {many:,} sessions", "ms", asked, name, target))
    return found


# --- folding --------------------------------------------------------------------------------------


@limpet.tool
def search(q: str) -> str:
    """Search the orders."""
    return f"Order {q} was sent on Tuesday and is on its way. " * 4


def _model() -> Callable[[limpet.ModelRequest], Awaitable[limpet.Reply]]:
    said = 0

    async def model(request: limpet.ModelRequest) -> limpet.Reply:
        nonlocal said
        said += 1
        usage: Any = {"input": 1_200, "output": 80, "cost": 0.004}
        if said % 2:
            call = limpet.ToolCall("c", "search", {"q": "4711"}, "p")
            return limpet.Reply("", (call,), usage, "tools", None)
        return limpet.Reply("Your order is on its way. " * 8, (), usage, "end", None)

    return model


async def _write(lp: limpet.Limpet, sessions: int, turns: int) -> None:
    async def one(number: int) -> None:
        labels = {"task_type": f"type {number % 5}"}
        s = await lp.create("support", f"user{number % 97}", labels=labels, actor="user:ada")
        agent = limpet.Agent(_model(), [search])
        for _ in range(turns):
            await s.append("user.message", {"text": "Where is my order? " * 5})
            await lp.wake(s.key, agent, version="7")
        await s.complete()

    for start in range(0, sessions, 50):
        await asyncio.gather(*[one(start + n) for n in range(min(50, sessions - start))])


async def _fold(path: Path, sessions: int) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/store.db?sync=normal") as lp:
        await _write(lp, sessions, 3)
    async with limpet.open(f"sqlite:///{path}/store.db") as lp:
        an = limpet.Analytics(lp, f"sqlite:///{path}/analytics.db", retrain=None)
        began = time.process_time()  # of one core: others may use it meanwhile
        events = await an.run(once=True)
        took = time.process_time() - began
        size = an.file.size
        await an.close()
        began = time.perf_counter()
        async with limpet.Analytics(lp, f"sqlite:///{path}/analytics.db", retrain=None) as again:
            await again.run(once=True)
        opened = time.perf_counter() - began
    whole = (path / "store.db").stat().st_size
    return {"rate": events / took, "share": size / whole, "again": opened * 1e3}


# --- live -----------------------------------------------------------------------------------------


async def _live(path: Path, seconds: int) -> Numbers:
    """Append 1,000 events a second, and note how long each is not folded yet."""
    behind: list[float] = []
    async with (
        limpet.open(f"sqlite:///{path}/live.db?sync=normal") as lp,
        limpet.Analytics(lp, f"sqlite:///{path}/a.db", retrain=None) as an,
    ):
        many = [await lp.create("support", f"u{n}", actor="user:ada") for n in range(50)]
        running = asyncio.create_task(an.run())
        start = time.perf_counter()
        for number in range(seconds * 100):
            await asyncio.sleep(max(0, start + number / 100 - time.perf_counter()))
            for part in range(10):
                await many[(number * 10 + part) % 50].append("user.message", {"text": "hi"})
            event = await many[number % 50].append("user.message", {"text": "probe"})
            began = time.perf_counter()
            key = many[number % 50].key
            while (found := an.file.folds_of(key)) == [] or found[-1].seq < event.seq:  # noqa: ASYNC110  # measured
                await asyncio.sleep(0.001)
            behind.append(time.perf_counter() - began)
        an.stop()
        await many[0].append("user.message", {"text": "stop"})
        await running
    return {"lag99": quantiles(behind, n=100)[98] * 1e3}


# --- asking ---------------------------------------------------------------------------------------


async def _ask(path: Path) -> Numbers:
    async with limpet.open("memory://") as lp:
        an = limpet.Analytics(lp, f"sqlite:///{path}/asked.db", retrain=None)
        now = lp.now()
        took: Numbers = {}
        for name, query in _QUERIES.items():
            best = float("inf")
            for _ in range(3):
                began = time.perf_counter()
                await query(an, now)
                best = min(best, time.perf_counter() - began)
            took[name] = best * 1e3
        await an.close()
    return took


def _days(days: int) -> Any:
    from datetime import timedelta

    return timedelta(days=days)


_QUERIES: dict[str, Callable[[limpet.Analytics, Any], Awaitable[Any]]] = {
    "by user": lambda an, now: an.by("user", app="support"),
    "by task type": lambda an, now: an.by("task_type", app="support"),
    "by agent version, by day, 30 days": lambda an, now: an.by(
        "agent_version", app="support", since=now - _days(30), window="day"
    ),
    "by tool, 7 days": lambda an, now: an.by("tool", app="support", since=now - _days(7)),
    "by window, 48 hours": lambda an, now: an.by("window", app="support", since=now - _days(2)),
    "by window, by day": lambda an, now: an.by("window", app="support", window="day"),
    "by user, 1 day": lambda an, now: an.by("user", app="support", since=now - _days(1)),
    "by user, by day, 30 days": lambda an, now: an.by(
        "user", app="support", since=now - _days(30), window="day"
    ),
    "by user, by month": lambda an, now: an.by("user", app="support", window="month"),
    "advice, 30 days": lambda an, now: an.advice("support", since=now - _days(30)),
    "two users compared": lambda an, now: an.compare(
        "user1", "user2", app="support", dimension="user"
    ),
    "two versions compared": lambda an, now: an.compare("1", "2", app="support"),
    "advice": lambda an, now: an.advice("support"),
    "by task type, by hour, all apps": lambda an, now: an.by("task_type", window="hour"),
    "by user, all apps": lambda an, now: an.by("user"),
    "anomalies": lambda an, now: an.anomalies(app="support", false_alarm_rate=0.05),
    "the whole report": lambda an, now: an.report(),
}


async def _fill(path: Path, sessions: int) -> None:
    async with limpet.open("memory://") as lp:
        an = limpet.Analytics(lp, f"sqlite:///{path}/asked.db", retrain=None)
        _fill_file(an, sessions, int(lp.now().timestamp()) // 3_600)
        await an.close()


def _fill_file(an: limpet.Analytics, sessions: int, hour: int) -> None:
    """Sessions of 60 days, newest last, in windows as `run` keeps them."""
    from limpet.analytics.rollup import CellTally, Horizons, day_start, month_start

    chance = random.Random(4)
    horizons = Horizons(day_start(hour - 48), month_start(hour - 24 * 62))
    with an.file.commit() as c:
        c.roll(horizons)
    shapes = [_synthetic(chance, number) for number in range(300)]
    with an.file.commit() as c:  # the newest sessions: what is found out of the ordinary
        c.put_folds([_synthetic(chance, number) for number in range(300, 2_300)])
    for start in range(0, sessions, 20_000):
        changes: dict[Any, CellTally] = {}
        for number in range(start, min(sessions, start + 20_000)):
            fold = shapes[number % len(shapes)]
            fold.user = f"user{chance.randrange(_USERS)}"
            at = hour - 24 * 60 + 24 * 60 * number // sessions
            for key, tally in tallies_of(fold).items():
                place = key._replace(hour=at)
                changes.setdefault(place, CellTally.empty()).plus(tally)
        with an.file.commit() as c:
            for place, tally in changes.items():
                c.add(place, tally)


def _synthetic(chance: random.Random, number: int) -> SessionFold:
    at_us = 490_000 * _HOUR_US
    created = limpet.Event(1, f"uid{number}", "session.created", "user:ada", at_us, {})
    fold = begin(limpet.Key("support", "ada", f"s{number}"), created)
    fold.task_type, fold.version = f"type {number % 8}", f"{number % 3}"
    seq = 1
    for _ in range(chance.randrange(1, 6)):
        took = round(chance.lognormvariate(0, 1) * 10**6)
        call = {"request_id": f"r{seq}", "name": f"tool {chance.randrange(12)}"}
        said: Any = {"text": "yes", "usage": {"input": 900, "output": 50}, "cost": 0.01}
        for type_, data, more in (
            ("user.message", {"text": "hi"}, 0),
            ("agent.tool_use", call, 1),
            ("agent.tool_result", {"request_id": f"r{seq}", "is_error": seq % 5 == 0}, took),
            ("agent.message", said, took),
        ):
            seq, at_us = seq + 1, at_us + more
            fold_event(fold, limpet.Event(seq, f"e{seq}", type_, "a:b", at_us, data))
    ended = {"from": "active", "to": "completed", "event": "complete"}
    fold_event(fold, limpet.Event(seq + 1, "end", "session.completed", "a:b", at_us, ended))
    return fold
