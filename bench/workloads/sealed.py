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


async def _one(path: Path, count: int, keys: str | None) -> float:
    """Appends per second, one after another."""
    payloads = texts.tool_results(count)
    async with limpet.open(f"sqlite:///{path}/ours.db", keys=keys) as lp:
        session = await lp.create("bench", "ada", id="w1", state=texts.changes(0))
        begin = time.perf_counter()
        for step, data in enumerate(payloads):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)
        return count / (time.perf_counter() - begin)


async def _many(path: Path, each: int, keys: str | None) -> float:
    """Appends per second of many sessions at once."""
    payloads = texts.tool_results(each)
    async with limpet.open(f"sqlite:///{path}/ours.db", keys=keys) as lp:
        made = [lp.create("bench", "ada", id=f"w2-{n}") for n in range(_SESSIONS)]
        sessions = await asyncio.gather(*made)

        async def lane(session: limpet.Session[object]) -> None:
            for step, data in enumerate(payloads):
                change = texts.changes(step)
                await session.append("tool.result", data, actor="agent:main", set=change)

        begin = time.perf_counter()
        await asyncio.gather(*map(lane, sessions))
        return each * _SESSIONS / (time.perf_counter() - begin)


def main(rounds: int = 9) -> None:
    """Print medians of alternating rounds."""
    for name, work, count in (("W1", _one, 1_000), ("W2", _many, 100)):
        ratios, plain, sealed = [], [], []
        for number in range(rounds):
            rates = {}
            for keys in (None, "memory:") if number % 2 else ("memory:", None):
                with TemporaryDirectory() as folder:
                    rates[keys] = asyncio.run(work(Path(folder), count, keys))
            plain.append(rates[None])
            sealed.append(rates["memory:"])
            ratios.append(1 - rates["memory:"] / rates[None])
        told = f"{median(plain):,.0f} plain, {median(sealed):,.0f} sealed per second"
        print(f"{name}: {told}: sealing costs {median(ratios):.1%} (median of {rounds})")


if __name__ == "__main__":
    main()
