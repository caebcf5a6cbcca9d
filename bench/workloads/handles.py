"""W10: many open handles in one process, as a server holds one for every conversation.

A handle is `lp.session(key)`: nothing was read, so this is what it takes beyond its state. The keys
are made beforehand. Raw is the same number of plain objects with three attributes.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_most, row

_BYTES_MAX = 1_024.0


class _Plain:
    def __init__(self, key: limpet.Key) -> None:
        self.key, self.actor, self.writer = key, None, None


def rows(run: Run) -> list[Row]:
    count = run.size(100_000, 10_000)
    readings = run.alternate(
        {
            "ours": lambda path: asyncio.run(_ours(path, count)),
            "raw": lambda _: _measure(_Plain, count),
        }
    )
    size = at_most(_BYTES_MAX, "bytes", readings.median("ours", "bytes"))
    return [
        row("W10", f"a handle, of {count:,}", "bytes", readings, "bytes", size),
        row("W10", f"to make {count:,} handles", "ms", readings, "ms"),
    ]


async def _ours(path: Path, count: int) -> Numbers:
    async with limpet.open(f"sqlite:///{path}/handles.db") as lp:
        return _measure(lp.session, count)


def _measure(make: Callable[[limpet.Key], Any], count: int) -> Numbers:
    keys = [limpet.Key("bench", f"user-{n}", f"s-{n}") for n in range(count)]
    gc.collect()
    begin = time.perf_counter()
    made = [make(key) for key in keys]
    took = time.perf_counter() - begin
    del made
    gc.collect()
    tracemalloc.start()
    try:
        made = [make(key) for key in keys]
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert len(made) == count
    return {"bytes": each, "ms": took * 1e3}
