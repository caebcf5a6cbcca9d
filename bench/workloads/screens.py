"""N4: screens at /agui: the first event of a run, and many runs at once.

The server is a process of its own with a worker in it, on a file that syncs. A run's message is
durable before its first event is sent, and a run counts only if its text came whole.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import limpet
from bench.rounds import Numbers, Run
from bench.table import Row, at_least, at_most, row

_WORDS = ("Here ", "is ", "your ", "answer.")


async def harness(turn: limpet.Turn) -> None:
    """An agent whose model says four words."""
    await turn.model("answer", _model)


async def _model(request: limpet.ModelRequest) -> AsyncIterator[limpet.Piece]:
    for word in _WORDS:
        yield limpet.Piece(text=word)


def rows(run: Run) -> list[Row]:
    alone, many = run.size(200, 50), run.size(500, 100)
    readings = run.alternate({"ours": lambda path: _served(path, alone, many)})
    first = row("N4", "first event of a run, the median", "ms", readings, "first")
    whole = row("N4", f"{many} runs at once: whole", "count", readings, "whole")
    return [
        row("N4", first.what, "ms", readings, "first", at_most(5, "ms", first.ours)),
        row("N4", whole.what, "count", readings, "whole", at_least(many, "runs", whole.ours)),
        row("N4", f"{many} runs at once: all over after", "ms", readings, "over"),
    ]


def _served(path: Path, alone: int, many: int) -> Numbers:
    with _server(path / "screens.db") as url:
        return asyncio.run(_measured(url, alone, many))


@contextmanager
def _server(path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "limpet.cli", "serve", str(path), "--dev", "--port", "0"]
    command += ["--harness", f"{__name__}:harness"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGTERM)


async def _measured(url: str, alone: int, many: int) -> Numbers:
    for number in range(10):
        await _run(url, f"warm{number}")
    times = [(await _run(url, f"one{number}"))[0] for number in range(alone)]
    begin = time.perf_counter()
    runs = await asyncio.gather(*[_run(url, f"many{number}") for number in range(many)])
    seconds = time.perf_counter() - begin
    whole = sum(text == "".join(_WORDS) for _, text in runs)
    return {"first": median(times) * 1e3, "whole": whole, "over": seconds * 1e3}


async def _run(url: str, thread: str) -> tuple[float, str]:
    """Seconds until the first event of a run, and its text; "" if it did not end well."""
    place = urlsplit(url)
    said = [{"id": f"{thread}-1", "role": "user", "content": "Hello"}]
    given: dict[str, Any] = {"threadId": thread, "runId": "r1", "messages": said}
    body = json.dumps({**given, "state": {}, "tools": [], "context": []}).encode()
    head = f"POST /agui?app=bench&user=ada HTTP/1.1\r\nHost: {place.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    begin = time.perf_counter()
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    first, text, outcome = 0.0, "", None
    async for line in reader:
        if line.startswith(b"data: "):
            first = first or time.perf_counter() - begin
            event = json.loads(line[6:])
            text += event["delta"] if event["type"] == "TEXT_MESSAGE_CONTENT" else ""
            outcome = event.get("outcome", outcome)
    writer.close()
    return first, text if outcome == {"type": "success"} else ""
