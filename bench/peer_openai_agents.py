"""The neighbour's side of the workloads, run with the interpreter of its own environment.

It is used as its documentation shows: one SQLiteSession per conversation, all on one file,
add_items and get_items awaited from tasks. It commits with WAL and synchronous=FULL, as we do.
Payloads are ours without the changes to state, which it has no place for.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from agents import SQLiteSession

from bench import texts
from bench.peer_langgraph import graph_kept, graph_plain


async def appends(path: str, count: int) -> dict[str, float]:
    """One session, one item after another."""
    session = SQLiteSession("w1", Path(path) / "peer.db")
    items = texts.tool_results(count)
    await session.add_items([items[0]])
    begin = time.perf_counter()
    for item in items:
        await session.add_items([item])
    seconds = time.perf_counter() - begin
    session.close()
    return {"rate": count / seconds}


async def crowd(path: str, sessions: int, each: int) -> dict[str, float]:
    """Many sessions at once: a task per session, then everything at once."""
    items = texts.tool_results(sessions * each)
    numbers = {}
    for name, race in (("lanes", _lanes), ("burst", _burst)):
        many = [SQLiteSession(f"w2-{i}", Path(path) / f"{name}.db") for i in range(sessions)]
        await asyncio.gather(*(session.add_items([items[0]]) for session in many))
        begin = time.perf_counter()
        await race(many, items)
        numbers[name] = len(items) / (time.perf_counter() - begin)
        for session in many:
            session.close()
    return numbers


async def _lanes(many: list[SQLiteSession], items: list[Any]) -> None:
    async def lane(number: int) -> None:
        for item in items[number :: len(many)]:
            await many[number].add_items([item])

    await asyncio.gather(*(lane(number) for number in range(len(many))))


async def _burst(many: list[SQLiteSession], items: list[Any]) -> None:
    count = len(many)
    await asyncio.gather(*(many[i % count].add_items([item]) for i, item in enumerate(items)))


async def fill(path: str, count: int) -> dict[str, float]:
    """A session of `count` items, for `tail` to read."""
    session = SQLiteSession("w3", Path(path) / f"peer-{count}.db")
    items = texts.tool_results(count)
    for at in range(0, count, 1_000):
        await session.add_items(items[at : at + 1_000])
    session.close()
    return {}


async def tail(path: str, counts: list[int], calls: int, limit: int) -> dict[str, float]:
    """The last items, at several lengths of the session."""
    numbers = {}
    for count in counts:
        session = SQLiteSession("w3", Path(path) / f"peer-{count}.db")
        times = []
        for _ in range(calls + 10):  # as many calls to warm up as the others get
            begin = time.perf_counter()
            items = await session.get_items(limit=limit)
            times.append(time.perf_counter() - begin)
            assert len(items) == limit
        numbers[f"read {count}"] = median(times[10:]) * 1e3
        session.close()
        first = [await _first(Path(path) / f"peer-{count}.db", limit) for _ in range(15)]
        numbers[f"first read {count}"] = median(first) * 1e3
    return numbers


async def _first(database: Path, limit: int) -> float:
    session = SQLiteSession("w3", database)
    begin = time.perf_counter()
    await session.get_items(limit=limit)
    took = time.perf_counter() - begin
    session.close()
    return took


async def growth(path: str, turns: int, window: int) -> dict[str, float]:
    """One conversation, one message a turn, and what it takes on disk."""
    database = Path(path) / "peer.db"
    session = SQLiteSession("w6", database)
    times = []
    for message in texts.messages(turns):
        begin = time.perf_counter()
        await session.add_items([message])
        times.append(time.perf_counter() - begin)
    session.close()
    size = sum(file.stat().st_size for file in database.parent.glob("peer.db*"))
    return {
        "seconds": sum(times) * 1e3,
        "first": median(times[:window]) * 1e3,
        "last": median(times[-window:]) * 1e3,
        "bytes": size,
    }


def about() -> dict[str, Any]:
    """What is being compared with, so that a result can be read later."""
    packages = [f"{name} {version(name)}" for name in ("openai-agents", "langgraph")]
    return {"peer": ", ".join(packages), "sqlite": sqlite3.sqlite_version}


def main() -> None:
    """Answer jobs until stdin ends."""
    # A connection per session and thread: give it the descriptors that takes.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    jobs: dict[str, Callable[..., Any]] = {
        job.__name__: job for job in (appends, crowd, fill, tail, growth, graph_plain, graph_kept)
    }
    print(json.dumps(about()), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = asyncio.run(jobs[asked["job"]](**asked["args"]))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
