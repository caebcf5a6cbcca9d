"""W11: the log store beside SQLite, a raw insert and the peer, alternating in one run.

    python -m bench W11
    python -m bench.workloads.files [ROUNDS]    # without the peer; also W3, W6 and many sessions

W1, W2 (lanes, burst and append_soon), W3 (the last 20 of a long log, read again and from a store
just opened), W6 (bytes of the log and the index after compaction, without the files for people)
and opening a store of many sessions.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import limpet
from bench import raw, texts
from bench.rounds import Contestant, Numbers, Run
from bench.table import Row, at_least, ratio, row
from bench.workloads.crowd import burst, lanes, soon

_STORES = {"files": "files:///{}/files", "sqlite": "sqlite:///{}/ours.db"}
_SESSIONS = 64
_MANY = 100_000


def rows(run: Run) -> list[Row]:
    """W1 and W2: "ours" is the log store; SQLite is the number that the targets name."""
    count, each = run.size(2_000, 400), run.size(100, 20)

    def measured(name: str, path: Path) -> Numbers:
        url = _STORES[name].format(path)
        return {"one": asyncio.run(_one(url, count)), **asyncio.run(_crowd(url, each))}

    contestants: dict[str, Contestant] = {
        "ours": lambda path: measured("files", path),
        "sqlite": lambda path: measured("sqlite", path),
        "raw": lambda path: {"one": _raw(path, count)},
    }
    run.with_peer(contestants, "crowd", sessions=_SESSIONS, each=each)
    readings = run.alternate(contestants)
    for rate in readings.of("peer", "lanes"):  # it has nothing like append_soon
        readings.add("peer", {"soon": rate})
    made = []
    for name, what, times_sqlite, times_other in (
        ("one", f"W1: {count:,} appends", 1.3, 1.0),
        ("lanes", f"W2 lanes: {_SESSIONS} sessions × {each}", 1.5, 12.0),
        ("burst", f"W2 burst: {_SESSIONS} sessions × {each}", 1.5, 12.0),
        ("soon", f"W2 append_soon: {_SESSIONS} sessions × {each}", 1.0, 30.0),
    ):
        plain = row("W11", what, "per second", readings, name)
        beside = ("× raw", plain.raw) if name == "one" else ("× peer", plain.peer)
        targets = (
            at_least(times_sqlite, "× SQLite", ratio(plain.ours, readings.median("sqlite", name))),
            at_least(times_other, beside[0], plain.against(beside[1])),
        )
        made.append(row("W11", what, "per second", readings, name, *targets))
    return made


async def _one(url: str, count: int) -> float:
    """W1: appends a second, one after another."""
    payloads = texts.tool_results(count)
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="w1", state=texts.changes(0))
        gc.collect()  # or one contestant pays for what was made before it
        begin = time.perf_counter()
        for step, data in enumerate(payloads):
            change = texts.changes(step)
            await session.append("tool.result", data, actor="agent:main", set=change)
        return count / (time.perf_counter() - begin)


async def _crowd(url: str, each: int) -> dict[str, float]:
    """W2: appends a second, of many sessions at once."""
    payloads = texts.tool_results(_SESSIONS * each)
    rates = {}
    for name, race in (("lanes", lanes), ("burst", burst), ("soon", soon)):
        async with limpet.open(f"{url}-{name}") as lp:
            made = [lp.create("bench", "ada", id=f"w2-{n}") for n in range(_SESSIONS)]
            sessions = await asyncio.gather(*made)
            gc.collect()
            begin = time.perf_counter()
            await race(lp, sessions, payloads)
            rates[name] = len(payloads) / (time.perf_counter() - begin)
    return rates


async def _tail(url: str, count: int) -> tuple[float, float]:
    """W3: microseconds to read the last 20 events again, and first in a store just opened."""
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="w3")
        for start in range(0, count, 500):
            drafts = [limpet.Draft(type="a.b", data=d) for d in texts.tool_results(500)]
            await session.append_many(drafts, actor="agent:main")
            del start
    async with limpet.open(url) as lp:
        session = lp.session("bench", "ada", "w3")
        gc.collect()  # what the opening left
        begin = time.perf_counter()
        assert len(await session.read(limit=20, reverse=True)) == 20
        first = time.perf_counter() - begin
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            await session.read(limit=20, reverse=True)
            times.append(time.perf_counter() - begin)
    return median(times) * 1e6, first * 1e6


async def _growth(url: str, path: Path, turns: int) -> float:
    """W6: bytes on disk for each byte of payload, after a compaction."""
    payload = sum(texts.size(message) for message in texts.messages(turns))
    async with limpet.open(url) as lp:
        session = await lp.create("bench", "ada", id="w6", state={"messages": []})
        for message in texts.messages(turns):
            data = {"message": message}
            add = {"messages": [message]}
            await session.append("agent.message", data, actor="agent:main", add=add)
        await lp.maintenance.compact()
    kept = [p for p in path.rglob("*") if p.is_file() and "sessions" not in p.parts]
    return sum(p.stat().st_size for p in kept) / payload


async def _many(url: str) -> tuple[float, float, float]:
    """Seconds to open a store of many sessions, bytes of memory for each, seconds of its close."""
    async with limpet.open(url) as lp:
        for start in range(0, _MANY, 1_000):
            async with lp.commit() as commit:
                for number in range(start, start + 1_000):
                    commit.create("bench", f"user-{number % 1_000}", f"s{number}", state={"n": 1})
        begin = time.perf_counter()
    closing = time.perf_counter() - begin
    begin = time.perf_counter()
    async with limpet.open(url) as lp:
        seconds = time.perf_counter() - begin
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with limpet.open(url) as lp:
        size = (tracemalloc.get_traced_memory()[0] - before) / _MANY
    tracemalloc.stop()
    return seconds, size, closing


def _raw(path: Path, count: int) -> float:
    payloads = texts.tool_results(count)
    bodies = [{"data": data, "set": texts.changes(i)} for i, data in enumerate(payloads)]
    conn = raw.connect(path / "raw.db")
    seconds = raw.insert_singly(conn, raw.rows(bodies))
    conn.close()
    return count / seconds


def main(rounds: int = 5) -> None:
    """Print medians and the ratios of each round's pairs."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in ("files", "sqlite", "raw") if number % 2 else ("raw", "sqlite", "files"):
            with TemporaryDirectory() as folder:
                path = Path(folder)
                if name == "raw":
                    found.setdefault("W1 raw", []).append(_raw(path, 2_000))
                    continue
                url = _STORES[name].format(path)
                found.setdefault(f"W1 {name}", []).append(asyncio.run(_one(url, 2_000)))
                for way, rate in asyncio.run(_crowd(url, 100)).items():
                    found.setdefault(f"W2 {way} {name}", []).append(rate)
    for what, rates in found.items():
        print(f"{what:20} {median(rates):10,.0f} a second  ({min(rates):,.0f}–{max(rates):,.0f})")
    for what, one, other in (
        ("W1 × raw", "W1 files", "W1 raw"),
        ("W1 × SQLite", "W1 files", "W1 sqlite"),
        ("W2 lanes × SQLite", "W2 lanes files", "W2 lanes sqlite"),
        ("W2 burst × SQLite", "W2 burst files", "W2 burst sqlite"),
        ("W2 soon × SQLite", "W2 soon files", "W2 soon sqlite"),
    ):
        ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
        print(f"{what:20} {median(ratios):6.2f}  ({min(ratios):.2f}–{max(ratios):.2f})")
    for name, form in _STORES.items():
        with TemporaryDirectory() as folder:
            again, first = asyncio.run(_tail(form.format(folder), 20_000))
            print(f"W3 {name}: {again:.1f} µs again, {first:.0f} µs first")
        with TemporaryDirectory() as folder:
            size = asyncio.run(_growth(form.format(folder), Path(folder), 1_000))
            print(f"W6 {name}: {size:.2f} × payload")
    with TemporaryDirectory() as folder:
        seconds, size, closing = asyncio.run(_many(_STORES["files"].format(folder)))
        print(f"{_MANY:,} sessions: open {seconds:.2f} s, close {closing:.2f} s, {size:.0f} B each")


if __name__ == "__main__":
    main(*[int(each) for each in sys.argv[1:2]])
