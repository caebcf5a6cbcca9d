"""W4: a new process, from having imported us to having the state and the last 20 events.

After a clean close, and after the writer was killed in mid-stream. Every sample is a process of
its own, started on its own copy of what the dead writer left.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import limpet
from bench import raw, texts
from bench.place import ROOT
from bench.rounds import Readings, Run
from bench.table import Row, at_most, ratio, row

_CLEAN_MS_MAX, _KILLED_MS_MAX = 2.0, 50.0
_TIMES_RAW_MAX = 1.5
_WHO = ("ours", "loaded", "raw")


def rows(run: Run) -> list[Row]:
    found = []
    for count in (run.size(10_000, 2_000), run.size(100_000, 20_000)):
        with run.place.empty() as path:
            run.say(f"building {count:,} events")
            clean, killed = path / "clean", path / "killed"
            clean.mkdir()
            versions = _build(clean, count)
            _sample(run, clean, versions)  # the first processes find cold caches: not counted
            readings = _samples(run, "clean", clean, versions)
            shutil.copytree(clean, killed)
            versions = _kill_writers(killed, run.size(2_000, 300))
            found += _rows(count, "clean", readings, _CLEAN_MS_MAX)
            readings = _samples(run, "killed", killed, versions)
            found += _rows(count, "killed", readings, _KILLED_MS_MAX)
    return found


def _rows(count: int, how: str, readings: Readings, limit: float) -> list[Row]:
    kinds = (("ours", "after import limpet"), ("loaded", "modules loaded"))
    found = []
    for name, what in kinds:
        plain = row("W4", f"{how}, {count:,} events, {what}", "ms", readings, name)
        targets = [at_most(limit, "ms", plain.ours)]
        if how == "clean":
            targets.append(at_most(_TIMES_RAW_MAX, "÷ raw", ratio(plain.ours, plain.raw)))
        found.append(row("W4", plain.what, "ms", readings, name, *targets))
    return found


def _build(path: Path, count: int) -> dict[str, int]:
    payloads = texts.tool_results(count)
    asyncio.run(_build_ours(path, payloads))
    bodies = [{"data": data, "set": texts.changes(i)} for i, data in enumerate(payloads)]
    conn = raw.connect(path / "raw.db")
    raw.insert_in_batches(conn, raw.rows(bodies), 1_000)
    raw.put_head(conn, count, texts.changes(count))
    conn.close()
    return {"ours": count, "raw": count}


async def _build_ours(path: Path, payloads: list[Any]) -> None:
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        session = await lp.create("bench", "ada", id="w4")
        drafts = [
            limpet.Draft(type="tool.result", data=data, actor="agent:main", set=texts.changes(i))
            for i, data in enumerate(payloads[1:])
        ]
        for at in range(0, len(drafts), 1_000):
            await session.append_many(drafts[at : at + 1_000])


def _kill_writers(path: Path, acknowledged: int) -> dict[str, int]:
    """Kill each writer once it has acknowledged so many appends; the last version it told."""
    versions = {}
    for who in ("ours", "raw"):
        command = [sys.executable, "-m", "bench.fresh.write", who, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(acknowledged):
                line = writer.stdout.readline()
                assert line, "the writer ended by itself"
                versions[who] = int(line)
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split("\n")[:-1]
            versions[who] = int(rest[-1]) if rest else versions[who]
    return versions


def _samples(run: Run, how: str, path: Path, versions: dict[str, int]) -> Readings:
    readings = Readings()
    count = run.size(11, 3)
    for number in range(count):
        run.say(f"{how}: process {number + 1} of {count}")
        times = _sample(run, path, versions)
        readings.add("ours", {"ours": times["ours"], "loaded": times["loaded"]})
        readings.add("raw", {"ours": times["raw"], "loaded": times["raw"]})
    return readings


def _sample(run: Run, path: Path, versions: dict[str, int]) -> dict[str, float]:
    """One new process each, in milliseconds; none may have lost what was acknowledged."""
    times = {}
    for who in _WHO:
        with run.place.empty() as parent:
            copy = shutil.copytree(path, parent / "copy")
            command = [sys.executable, "-m", "bench.fresh.state", who, str(copy)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        assert answer["version"] >= versions["raw" if who == "raw" else "ours"]
        times[who] = answer["ms"]
    return times
