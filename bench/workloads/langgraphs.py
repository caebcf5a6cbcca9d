"""L1 and L2: LangGraph on our saver, beside its own AsyncSqliteSaver.

Both sides run in an environment of their own, from requirements/langgraph.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.place import ROOT
from bench.rounds import Contestant, Numbers, Readings, Run
from bench.table import Row, at_least, at_most, ratio, row
from tests.support import venvs

_WINDOW: Final = 100  # turns at either end of a chat


def crowd(run: Run) -> list[Row]:
    """L1: 64 threads at once, put and put_writes."""
    sizes = {"threads": 64, "each": run.size(20, 5)}
    readings = _alternate(run, "crowd", {"ours": "ours", "peer": "theirs"}, **sizes)
    found = row("L1", "put + put_writes, 64 threads", "per second", readings, "rate")
    target = at_least(6, "× peer", found.against(found.peer))
    return [row("L1", found.what, found.unit, readings, "rate", target)]


def chat(run: Run) -> list[Row]:
    """L2: a chat with add_messages, on disk and turn by turn."""
    turns = run.size(1_000, 250)
    whom = {"ours": "ours", "peer": "theirs", "delta": "theirs-delta"}
    readings = _alternate(run, "chat", whom, turns=turns, window=_WINDOW)
    ours, delta = readings.median("ours", "bytes"), readings.median("delta", "bytes")
    disk = row("L2", f"on disk, {turns:,} turns", "bytes", readings, "bytes")
    less = at_least(300, "× peer", disk.against(disk.peer))
    less_than_delta = at_least(5, "× peer's DeltaChannel", ratio(delta, ours))
    slower = ratio(readings.median("ours", "last"), readings.median("ours", "first"))
    flat = at_most(1.5, "÷ own first", slower)
    return [
        row("L2", disk.what, disk.unit, readings, "bytes", less, less_than_delta),
        row("L2", f"the saver's part of a turn, first {_WINDOW}", "ms", readings, "first"),
        row("L2", f"the saver's part of a turn, last {_WINDOW}", "ms", readings, "last", flat),
    ]


def _alternate(run: Run, job: str, whom: dict[str, str], **sizes: Any) -> Readings:
    try:
        python = venvs.python_of("langgraph", install=True)
    except venvs.NotInstalled as error:
        run.say(str(error))
        return Readings()
    contestants: dict[str, Contestant] = {
        name: lambda path, who=who: _job(python, job, who, path, **sizes)  # type: ignore[misc]
        for name, who in whom.items()
    }
    return run.alternate(contestants)


def _job(python: Path, job: str, who: str, path: Path, **sizes: Any) -> Numbers:
    asked = json.dumps({"job": job, "who": who, "path": str(path), **sizes})
    done = subprocess.run(
        [str(python), "-m", "bench.adapter_langgraph", asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers
