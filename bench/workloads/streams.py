"""N2 and N3: the streams of a server, and sending to it.

N2 has 1,000 followers of 100 sessions, as server-sent events, while 500 events a second are sent to
them: how late they come, whether any is lost, and what an idle follower costs the server. N3 sends
events by HTTP beside a handler that only parses the same bodies and answers: raw is that handler,
under the same ASGI server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from bench.rounds import Numbers, Run
from bench.table import Row, at_least, at_most, row

FOLLOWERS, SESSIONS, RATE = 1_000, 100, 500
_SENDERS = 32
_BARE = "bench.workloads.streams"
_HEADERS = "host: 127.0.0.1\r\ncontent-type: application/json\r\n"


def followed(run: Run) -> list[Row]:
    seconds = run.size(10, 4)
    readings = run.alternate({"ours": lambda path: _measured(path, seconds)})
    p99 = at_most(250.0, "ms", readings.median("ours", "p99"))
    lost = at_most(0, "lost", readings.median("ours", "lost"))
    size = at_most(50.0, "KB", readings.median("ours", "size"))
    what = f"{FOLLOWERS:,} followers of {SESSIONS} sessions, {RATE} events a second"
    return [
        row("N2", f"{what}: p99", "ms", readings, "p99", p99),
        row("N2", "the same, median", "ms", readings, "p50"),
        row("N2", "events that did not come, of all", "count", readings, "lost", lost),
        row("N2", "an idle follower in the server", "KB", readings, "size", size),
    ]


def sent(run: Run) -> list[Row]:
    many = run.size(2_000, 600)
    readings = run.alternate(
        {
            "ours": lambda path: _sending(path, many, bare=False),
            "raw": lambda path: _sending(path, many, bare=True),
        }
    )
    what = f"events.send, {_SENDERS} at once"
    plain = row("N3", what, "per second", readings, "rate")
    target = at_least(0.5, "× a bare handler", plain.against(plain.raw))
    return [row("N3", what, "per second", readings, "rate", target)]


@contextmanager
def _server(path: Path, *, bare: bool = False) -> Iterator[tuple[int, int]]:
    """A server in a process of its own; its port and process id."""
    command = [sys.executable, "-m", "limpet.cli", "serve", str(path / "served.db"), "--dev"]
    command += ["--port", "0", "--rate", "0"]
    if bare:
        command = [sys.executable, "-m", _BARE]
    with Popen(command, stdout=PIPE, stderr=DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline().rpartition(":")[2]), server.pid
        finally:
            server.kill()  # nothing of it is needed any more


# --- following ----------------------------------------------------------------------------------


def _measured(path: Path, seconds: int) -> Numbers:
    with _server(path) as (port, pid):
        return asyncio.run(_followed(port, pid, seconds))


async def _followed(port: int, pid: int, seconds: int) -> Numbers:
    agent = (await _post(port, "/v1/agents", {"name": "a", "model": "m"}))["id"]
    made = [await _post(port, "/v1/sessions", {"agent": agent}) for _ in range(SESSIONS)]
    sessions = [each["id"] for each in made]
    before = _resident_kb(pid)
    late: list[float] = []
    followers = [Follower(port, sessions[n % SESSIONS], late) for n in range(FOLLOWERS)]
    for at in range(0, FOLLOWERS, 50):
        await asyncio.gather(*[each.open() for each in followers[at : at + 50]])
    size = (_resident_kb(pid) - before) / FOLLOWERS
    reading = [asyncio.ensure_future(each.read()) for each in followers]
    total = RATE * seconds
    queue: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
    senders = [asyncio.ensure_future(_send(port, sessions, queue)) for _ in range(_SENDERS)]
    begin = time.perf_counter()
    for number in range(total):
        due = begin + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        queue.put_nowait((number, due))
    await queue.join()
    wanted = total * FOLLOWERS // SESSIONS
    with suppress(TimeoutError):  # what did not come by then is lost
        async with asyncio.timeout(30):
            for each in followers:
                await each.reach(wanted // FOLLOWERS)
    for task in (*senders, *reading):
        task.cancel()
    await asyncio.gather(*senders, *reading, return_exceptions=True)
    cuts = quantiles(late, n=100)
    lost = float(wanted - len(late))
    return {"p99": cuts[98] * 1e3, "p50": cuts[49] * 1e3, "lost": lost, "size": size}


class Follower:
    """One stream of a session; notes how late each event comes after it was due to be sent."""

    def __init__(self, port: int, session: str, late: list[float]) -> None:
        self._port, self._session, self._late = port, session, late
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._count, self._came = 0, asyncio.Event()

    async def reach(self, count: int) -> None:
        """Wait until so many events have come."""
        while self._count < count:
            self._came.clear()
            await self._came.wait()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        path = f"/v1/sessions/{self._session}/events/stream"
        self._writer.write(f"GET {path} HTTP/1.1\r\n{_HEADERS}\r\n".encode())
        while b": open" not in await self._reader.readline():
            pass

    async def read(self) -> None:
        assert self._reader is not None
        while line := await self._reader.readline():
            if line.startswith(b"data: ") and b"user.message" in line:
                text = json.loads(line[6:])["content"][0]["text"]
                self._late.append(time.perf_counter() - float(text))
                self._count += 1
                self._came.set()


async def _send(port: int, sessions: list[str], queue: asyncio.Queue[tuple[int, float]]) -> None:
    connection = Sender(port)
    while True:
        number, due = await queue.get()
        path = f"/v1/sessions/{sessions[number % SESSIONS]}/events"
        await connection.post(path, _message(repr(due)))
        queue.task_done()


def _resident_kb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_000


# --- sending ------------------------------------------------------------------------------------


def _sending(path: Path, many: int, *, bare: bool) -> Numbers:
    with _server(path, bare=bare) as (port, _):
        return asyncio.run(_rate(port, many))


async def _rate(port: int, many: int) -> Numbers:
    agent = (await _post(port, "/v1/agents", {"name": "a", "model": "m"}))["id"]
    made = [await _post(port, "/v1/sessions", {"agent": agent}) for _ in range(_SENDERS)]
    senders = [Sender(port) for _ in made]

    async def lane(sender: Sender, session: str) -> None:
        for number in range(many // _SENDERS):
            await sender.post(f"/v1/sessions/{session}/events", _message(f"message {number}"))

    begin = time.perf_counter()
    pairs = zip(senders, [each["id"] for each in made], strict=True)
    await asyncio.gather(*[lane(sender, session) for sender, session in pairs])
    return {"rate": many // _SENDERS * _SENDERS / (time.perf_counter() - begin)}


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"events": [{"type": "user.message", "content": content}]}


class Sender:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\n{_HEADERS}content-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        status, length = (await reader.readline()).split()[1], 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answer = await reader.readexactly(length)
        assert status == b"200", answer
        return json.loads(answer)


async def _post(port: int, path: str, body: Any) -> Any:
    return await Sender(port).post(path, body)


def _serve_bare() -> None:
    """A server whose handler parses the body of a send, and answers; it stores nothing."""
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from limpet.server.managed.events import SendEvents
    from limpet.server.serve import listen

    async def handle(request: Request) -> Response:
        body = await request.body()
        if request.url.path.endswith("/events"):
            events = msgspec.json.decode(body, type=SendEvents).events
            return Response(msgspec.json.encode({"data": events}), media_type="application/json")
        return Response(b'{"id": "x"}', media_type="application/json")

    app = Starlette(routes=[Route("/{rest:path}", handle, methods=["POST"])])
    listening = listen("127.0.0.1", 0)
    listening.listen(1_000)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="error")).run([listening])


if __name__ == "__main__":
    _serve_bare()
