"""LimpetSession beside openai-agents' own SQLiteSession, both under the framework, in one process.

    .venv-openai-agents/bin/python -m bench.adapter_openai_agents

Run from the root of the repository with PYTHONPATH=src; the environment is made by the suite in
tests/adapters/openai_agents. 64 conversations add items at the same time, one item a call, each
durable (WAL, synchronous=FULL) when the call returns. The two take turns; medians are compared.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from agents import SQLiteSession

from bench import texts
from limpet.adapters.openai_agents import LimpetSession

SESSIONS: Final = 64
EACH: Final = 20
ROUNDS: Final = 5
LENGTH: Final = 2_000
CALLS: Final = 30
TARGET: Final = 5.0
Make = Callable[[str, Path], Any]


def ours(id: str, path: Path) -> Any:
    return LimpetSession(id, f"sqlite:///{path}/ours.db")


def theirs(id: str, path: Path) -> Any:
    return SQLiteSession(id, path / "theirs.db")


async def crowd(make: Make, path: Path) -> float:
    """Items a second, over all conversations."""
    items = [{"role": "assistant", "content": text} for text in said(SESSIONS * EACH)]
    many = [make(f"c{number}", path) for number in range(SESSIONS)]
    await asyncio.gather(*(session.add_items(items[:1]) for session in many))

    async def lane(number: int) -> None:
        for item in items[number::SESSIONS]:
            await many[number].add_items([item])

    begin = time.perf_counter()
    await asyncio.gather(*(lane(number) for number in range(SESSIONS)))
    rate = len(items) / (time.perf_counter() - begin)
    for session in many:
        session.close()
    return rate


async def tail(make: Make, path: Path) -> float:
    """Milliseconds for the last 20 of a long conversation."""
    session = make("long", path)
    await session.add_items([{"role": "assistant", "content": text} for text in said(LENGTH)])
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        assert len(await session.get_items(20)) == 20
        times.append(time.perf_counter() - begin)
    session.close()
    return median(times) * 1e3


def said(count: int) -> list[str]:
    """Texts of about the length of a message."""
    writer = texts.Writer()
    return [writer.prose(600) for _ in range(count)]


def main() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # SQLiteSession takes many descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, list[float]] = {}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        for name, make in (("ours", ours), ("theirs", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(f"crowd {name}", []).append(asyncio.run(crowd(make, Path(folder))))
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(f"tail {name}", []).append(asyncio.run(tail(make, Path(folder))))
    numbers = {name: median(values) for name, values in found.items()}
    ratio = numbers["crowd ours"] / numbers["crowd theirs"]
    print(f"{SESSIONS} sessions, adding at once: {numbers['crowd ours']:,.0f} items a second,")
    print(f"SQLiteSession {numbers['crowd theirs']:,.0f}: {ratio:.1f} × (target {TARGET:.0f} ×)")
    print(f"the last 20 of {LENGTH:,}: {numbers['tail ours']:.2f} ms,", end=" ")
    print(f"SQLiteSession {numbers['tail theirs']:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
