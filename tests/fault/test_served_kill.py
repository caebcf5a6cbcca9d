"""A server is killed while clients send by HTTP and read streams: nothing is lost or doubled.

The clients are as simple as can be: a sender repeats a request with its Idempotency-Key until it is
answered, and a reader comes back with the last id that it saw.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import limpet
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.seeds import seed

SENDERS = 3
FOLLOWERS = 2
SECONDS_MAX = 120  # without progress
PAUSE_SECONDS = 0.02  # of a client that was cut off
SESSION = "sesn_killed"


class Clients:
    """Threads that send and follow until they are told to stop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered: list[list[str]] = [[] for _ in range(SENDERS)]  # ids, in their order
        self.seen: list[list[tuple[int, str]]] = [[] for _ in range(FOLLOWERS)]
        self.stops = False
        self.until: int | None = None  # the last seq that a follower has to see
        self.repeats = self.returns = 0
        self._moved = threading.Condition()

    @property
    def done(self) -> int:
        return sum(map(len, self.answered))

    def reach(self, count: int) -> None:
        """Wait until so many messages were answered."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.done >= count, SECONDS_MAX)

    def send(self, lane: int) -> None:
        while not self.stops:
            number = len(self.answered[lane])
            text = f"{lane}/{number}"
            message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
            id = self._sent(json.dumps({"events": [message]}), text)
            with self._moved:
                self.answered[lane].append(id)
                self._moved.notify_all()

    def _sent(self, body: str, key: str) -> str:
        """Repeat it until it is answered; the id of the event."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
            try:
                path = f"/v1/sessions/{SESSION}/events"
                connection.request("POST", path, body, {"Idempotency-Key": key})
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                self.repeats += 1
                time.sleep(PAUSE_SECONDS)
                continue
            finally:
                connection.close()
            assert response.status == 200, answer
            return str(answer["data"][0]["id"])

    def follow(self, lane: int) -> None:
        seen = self.seen[lane]
        while not self._ended(seen):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
            last = str(seen[-1][0] if seen else 1)
            try:
                path = f"/v1/sessions/{SESSION}/events/stream"
                connection.request("GET", path, headers={"Last-Event-ID": last})
                response = connection.getresponse()
                assert response.status == 200, response.read()
                self._read(response, seen)
            except (OSError, http.client.HTTPException, ValueError):
                self.returns += 1
                time.sleep(PAUSE_SECONDS)
            finally:
                connection.close()

    def _read(self, response: http.client.HTTPResponse, seen: list[tuple[int, str]]) -> None:
        id: int | None = None
        while not self._ended(seen) and (line := response.readline()):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if not line.endswith(b"\n"):
                return  # cut off within a frame
            if name == "id":
                id = int(value)
            elif name == "data" and id is not None:
                seen.append((id, json.loads(value)["id"]))
                id = None

    def _ended(self, seen: list[tuple[int, str]]) -> bool:
        return self.until is not None and bool(seen) and seen[-1][0] >= self.until


async def test_clients_of_a_server_that_is_killed_go_on(tmp_path: Path) -> None:
    """SIGKILL in mid-send and in mid-stream: each message is recorded once and in its order, and
    each follower sees every one of them once."""
    chance, kills = random.Random(seed("served kills")), tries(6, 200)
    store, port = f"sqlite:///{tmp_path}/store.db", _free_port()
    async with limpet.open(store) as lp:
        await lp.create("default", "default", SESSION)
    clients = Clients(port)
    with ExitStack() as running:
        child = await _start(running, store, port)
        sending = [asyncio.to_thread(clients.send, lane) for lane in range(SENDERS)]
        following = [asyncio.to_thread(clients.follow, lane) for lane in range(FOLLOWERS)]
        tasks = [asyncio.ensure_future(each) for each in (*sending, *following)]
        for _ in range(kills):
            wanted = clients.done + chance.randrange(1, 25)
            await asyncio.to_thread(clients.reach, wanted)
            await asyncio.to_thread(child.kill)
            child = await _start(running, store, port)
        clients.stops = True
        await asyncio.gather(*tasks[:SENDERS])
        async with limpet.open(f"http://127.0.0.1:{port}") as lp:
            clients.until = (await lp.get("default", "default", SESSION)).version
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*tasks[SENDERS:])
    assert clients.repeats
    assert clients.returns
    await _check(store, clients)


async def _check(store: str, clients: Clients) -> None:
    async with limpet.open(store) as lp:
        s: limpet.Session[Any] = await lp.get("default", "default", SESSION)
        log: list[tuple[int, str, str]] = []
        after = 1
        while page := await s.read(after=after, limit=500):
            log += [(event.seq, event.id, event.data["text"]) for event in page]
            after = page[-1].seq
        assert (await lp.maintenance.verify()).ok
    for lane, answered in enumerate(clients.answered):
        mine = [(id, text) for _, id, text in log if text.startswith(f"{lane}/")]
        assert [text for _, text in mine] == [f"{lane}/{n}" for n in range(len(answered))]
        assert [f"sevt_{id}" for id, _ in mine] == answered
    for seen in clients.seen:
        assert seen == [(seq, f"sevt_{id}") for seq, id, _ in log]


async def _start(running: ExitStack, store: str, port: int) -> Child:
    def start() -> Child:
        child = running.enter_context(Child("tests.support.server_process", store, port))
        child.expect(f"http://127.0.0.1:{port}")
        return child

    return await asyncio.to_thread(start)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
