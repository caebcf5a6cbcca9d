"""W6: a conversation whose messages are also a list in state, one message more every turn.

A store that rewrites the state each turn grows with the square of the conversation. Here a
message is stored once: disk stays near the payload and the last turn costs what the first did.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import limpet
from bench import raw, texts
from bench.place import bytes_of
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_most, ratio, row

_WINDOW = 50


def rows(run: Run) -> list[Row]:
    turns = run.size(1_000, 300)
    contestants: dict[str, Contestant] = {
        "ours": lambda path: asyncio.run(_ours(path, turns)),
        "raw": lambda path: _raw(path, turns),
    }
    run.with_peer(contestants, "growth", turns=turns, window=_WINDOW)
    readings = run.alternate(contestants)
    payload = sum(texts.size(message) for message in texts.messages(turns))
    on_disk = ratio(readings.median("ours", "bytes"), payload)
    slower = ratio(readings.median("ours", "last"), readings.median("ours", "first"))
    disk = at_most(2.0, "÷ payload", on_disk)
    last = at_most(1.3, "÷ own first", slower)
    return [
        row("W6", f"{turns:,} turns", "ms", readings, "seconds"),
        row("W6", f"first turn (median of {_WINDOW})", "ms", readings, "first"),
        row("W6", f"last turn (median of {_WINDOW})", "ms", readings, "last", last),
        row("W6", f"on disk ({payload:,} of payload)", "bytes", readings, "bytes", disk),
    ]


async def _ours(path: Path, turns: int) -> Numbers:
    database = path / "ours.db"
    times = []
    async with limpet.open(f"sqlite:///{database}") as lp:
        session = await lp.create("bench", "ada", id="w6", state={"messages": []})
        for message in texts.messages(turns):
            begin = time.perf_counter()
            await session.append(
                "agent.message",
                {"message": message},
                actor="agent:main",
                add={"messages": [message]},
            )
            times.append(time.perf_counter() - begin)
        assert len(session.state["messages"]) == turns
    return _numbers(times, database)


def _raw(path: Path, turns: int) -> Numbers:
    database = path / "raw.db"
    conn = raw.connect(database)
    times = [raw.insert_singly(conn, [each]) for each in raw.rows(texts.messages(turns))]
    conn.close()
    return _numbers(times, database)


def _numbers(times: list[float], database: Path) -> Numbers:
    return {
        "seconds": sum(times) * 1e3,
        "first": median(times[:_WINDOW]) * 1e3,
        "last": median(times[-_WINDOW:]) * 1e3,
        "bytes": bytes_of(database),
    }
