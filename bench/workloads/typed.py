"""S1: one message more for typed state, that has none and that has ten thousand.

The update is checked and compiled without looking at what is there, and one message is stored. What
may grow is only what the store does to the fold in memory.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import limpet
from bench import texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_most, ratio, row
from limpet import Record, State, reducers

_CALLS = 300


class Message(Record):
    role: str
    content: str


class Chat(State):
    plan: str = ""
    messages: Annotated[list[Message], reducers.append] = []


def rows(run: Run) -> list[Row]:
    many = run.size(10_000, 2_000)
    found = []
    for kind in ("sqlite", "memory"):
        contestants: dict[str, Contestant] = {
            "ours": lambda path, kind=kind: asyncio.run(_ours(path, kind, many))  # type: ignore[misc]
        }
        readings = run.alternate(contestants)
        times = ratio(readings.median("ours", "full"), readings.median("ours", "empty"))
        target = at_most(1.3, "÷ own on an empty state", times)
        # In memory nothing hides what is done to the fold: shown, not promised.
        targets = (target,) if kind == "sqlite" else ()
        found += [
            row("S1", f"{kind}: a message more, of none", "ms", readings, "empty"),
            row("S1", f"{kind}: of {many:,}", "ms", readings, "full", *targets),
        ]
    return found


async def _ours(path: Path, kind: str, many: int) -> Numbers:
    url = f"sqlite:///{path}/ours.db" if kind == "sqlite" else "memory://"
    said = [Message(**message) for message in texts.messages(many)]
    async with limpet.open(url) as lp:
        empty = await lp.create("bench", "ada", id="empty", state=Chat(), actor="agent:main")
        full = await lp.create(
            "bench", "ada", id="full", state=Chat(messages=said), actor="agent:main"
        )
        times: dict[str, list[float]] = {"empty": [], "full": []}
        for message in said[:_CALLS]:
            for name, session in (("empty", empty), ("full", full)):
                begin = time.perf_counter()
                await session.apply({"messages": [message]})
                times[name].append(time.perf_counter() - begin)
    return {name: median(each) * 1e3 for name, each in times.items()}
