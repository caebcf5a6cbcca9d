"""Servers are killed and connections are cut while clients write: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, Session
from limpet.server.serve import serving
from limpet.store.remote import link
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.proxy import Mischief, proxied
from tests.support.seeds import seed

LANES = 6


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a silent connection up soon, and connect again at once: these tests lose hundreds."""
    monkeypatch.setattr(link, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(link, "BRIEF_SECONDS", 0.0)
    monkeypatch.setattr(link, "PAUSE_SECONDS", (0.001, 0.01))
    # A connection that a server's end cuts off before its handshake is noticed by this alone.
    monkeypatch.setattr(link, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 60.0)  # many such tries on a slow machine


async def test_a_server_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL while commits are on their way, again and again; the same clients go on."""
    kills = tries(6, 200)
    chance = random.Random(seed("remote kills"))
    store, port = f"sqlite:///{tmp_path}/store.db", _free_port()
    with ExitStack() as running:
        child = await _start(running, store, port)
        async with limpet.open(f"http://127.0.0.1:{port}") as lp:
            writers = Writers(lp, [await lp.create("app", "ada", f"s{n}") for n in range(LANES)])
            writing = asyncio.create_task(writers.run())
            for _ in range(kills):
                await writers.reach(writers.done + chance.randrange(1, 40))
                for _ in range(chance.randrange(40)):
                    await asyncio.sleep(0)
                await asyncio.to_thread(child.kill)
                child = await _start(running, store, port)
            writers.stops = True
            await writing
    await _check(store, writers)


async def test_a_proxy_that_cuts_delays_and_repeats_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Whatever becomes of the bytes, every append is recorded once, in its order."""
    store = f"sqlite:///{tmp_path}/store.db?sync=normal"
    mischief = Mischief(random.Random(seed("remote proxy")), cuts=0.02, repeats=0.02)
    async with limpet.open(store) as served, serving(served, dev=True) as url:  # noqa: SIM117
        async with proxied(url, mischief) as through, limpet.open(through) as lp:
            writers = Writers(lp, [await lp.create("app", "ada", f"s{n}") for n in range(LANES)])
            writing = asyncio.create_task(writers.run())
            while mischief.done < tries(30, 300):
                await writers.reach(writers.done + 10)
            writers.stops = True
            await writing
    await _check(store, writers)


class Writers:
    """A task for each session that appends numbers, each when the one before was answered."""

    def __init__(self, lp: Limpet, sessions: Sequence[Session]) -> None:
        self.sessions, self.counts = sessions, [0] * len(sessions)
        self.stops = False
        self._moved = asyncio.Event()

    @property
    def done(self) -> int:
        return sum(self.counts)

    async def run(self) -> None:
        await asyncio.gather(*[self._write(lane) for lane in range(len(self.sessions))])

    async def reach(self, count: int) -> None:
        """Wait until so many appends were answered."""
        async with asyncio.timeout(60):
            while self.done < count:
                self._moved.clear()
                await self._moved.wait()

    async def _write(self, lane: int) -> None:
        session = self.sessions[lane]
        while not self.stops:
            number = self.counts[lane]
            change = {"inc": {"sum": number}} if number % 3 else {"set": {"user:last": number}}
            event = await session.append("n.counted", {"n": number}, actor="a:b", **change)
            assert (event.seq, event.data) == (number + 2, {"n": number})
            assert session.version == number + 2
            self.counts[lane] += 1
            self._moved.set()


async def _check(store: str, writers: Writers) -> None:
    """Every number is in the log, once and in its order; and the store is whole."""
    async with limpet.open(store) as lp:
        for session, count in zip(writers.sessions, writers.counts, strict=True):
            found = [event.data["n"] async for event in _events(lp, session.key)]
            assert found == list(range(count))
            state = (await lp.get(session.key)).state
            assert state.get("sum", 0) == sum(n for n in range(count) if n % 3)
        assert (await lp.maintenance.verify()).ok


async def _events(lp: Limpet, key: limpet.Key):  # type: ignore[no-untyped-def]
    session, after = await lp.get(key), 1
    while page := await session.read(after=after, limit=500):
        for event in page:
            yield event
        after = page[-1].seq


async def _start(running: ExitStack, store: str, port: int) -> Child:
    def start() -> Child:
        child = running.enter_context(Child("tests.support.server_process", store, port))
        child.expect(f"http://127.0.0.1:{port}")
        return child

    return await asyncio.to_thread(start)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
