"""W1 and W2 with and without keys, side by side: what sealing costs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import limpet
from bench import texts

_SESSIONS = 64


async def _one(path: Path, count: int, keys: str | None) -> tuple[float, float]:
    """Appends, one after another."""
    payloads = texts.tool_results(count)
    async with limpet.open(f"sqlite:///{path}/ours.db", keys=keys) as lp:
        session = await lp.create("bench", "ada", id="w1", state=texts.changes(0))
        begin, spent = time.perf_counter(), time.process_time()
        for step, data in enumerate(payloads):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)
        return _measured(count, begin, spent)


async def _many(path: Path, each: int, keys: str | None) -> tuple[float, float]:
    """Appends of many sessions at once."""
    payloads = texts.tool_results(each)
    async with limpet.open(f"sqlite:///{path}/ours.db", keys=keys) as lp:
        made = [lp.create("bench", "ada", id=f"w2-{n}") for n in range(_SESSIONS)]
        sessions = await asyncio.gather(*made)

        async def lane(session: limpet.Session[object]) -> None:
            for step, data in enumerate(payloads):
                change = texts.changes(step)
                await session.append("tool.result", data, actor="agent:main", set=change)

        begin, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(lane, sessions))
        return _measured(each * _SESSIONS, begin, spent)


def _measured(count: int, begin: float, spent: float) -> tuple[float, float]:
    """Appends per second, and microseconds of processor time for each."""
    cpu = (time.process_time() - spent) / count * 1e6
    return count / (time.perf_counter() - begin), cpu


def main(rounds: int = 11) -> None:
    """Print medians of alternating rounds."""
    for name, work, count in (("W1", _one, 1_000), ("W2", _many, 100)):
        found: dict[str | None, list[tuple[float, float]]] = {None: [], "memory:": []}
        for number in range(rounds):
            for keys in (None, "memory:") if number % 2 else ("memory:", None):
                with TemporaryDirectory() as folder:
                    found[keys].append(asyncio.run(work(Path(folder), count, keys)))
        pairs = list(zip(found["memory:"], found[None], strict=True))
        rate = median([1 - sealed[0] / plain[0] for sealed, plain in pairs])
        cpu = [median([each[1] for each in found[keys]]) for keys in (None, "memory:")]
        rates = [median([each[0] for each in found[keys]]) for keys in (None, "memory:")]
        print(
            f"{name}: {rates[0]:,.0f} plain, {rates[1]:,.0f} sealed per second ({rate:.1%} less); "
            f"processor {cpu[0]:.1f} and {cpu[1]:.1f} us an append"
        )


if __name__ == "__main__":
    main()
