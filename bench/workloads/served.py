"""N1: a store behind `limpet serve`, beside the same store opened in process.

The server is a process of its own on the same machine, and both keep every append durable. Raw is
the store in process.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import limpet
from bench import texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, row

_SESSIONS = 64


def rows(run: Run) -> list[Row]:
    one, each = run.size(1_000, 300), run.size(50, 15)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: _served(path, one, each),
        "raw": lambda path: asyncio.run(_measured(f"sqlite:///{path}/here.db", one, each)),
    }
    readings = run.alternate(contestants)
    found = []
    for name, what, least in (
        ("one", f"one session: {one:,} appends", 0.4),
        ("many", f"{_SESSIONS} sessions × {each}", 0.35),
    ):
        plain = row("N1", what, "per second", readings, name)
        target = at_least(least, "× in process", plain.against(plain.raw))
        found.append(row("N1", what, "per second", readings, name, target))
    return found


def _served(path: Path, one: int, each: int) -> Numbers:
    with _server(path / "served.db") as url:
        return asyncio.run(_measured(url, one, each))


@contextmanager
def _server(path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "limpet.cli", "serve", str(path), "--dev", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGTERM)


async def _measured(url: str, one: int, each: int) -> Numbers:
    payloads = texts.tool_results(max(one, each))
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", state=texts.changes(0))
        begin = time.perf_counter()
        await _lane(session, payloads[:one])
        alone = one / (time.perf_counter() - begin)
        made = [lp.create("bench", "ada", state=texts.changes(0)) for _ in range(_SESSIONS)]
        sessions = await asyncio.gather(*made)
        begin = time.perf_counter()
        await asyncio.gather(*[_lane(session, payloads[:each]) for session in sessions])
        return {"one": alone, "many": _SESSIONS * each / (time.perf_counter() - begin)}


async def _lane(session: limpet.Session, payloads: list[dict[str, object]]) -> None:
    for step, data in enumerate(payloads):
        change = texts.changes(step)
        await session.append("tool.result", data, actor="agent:main", set=change)
