"""A worker as a process that is told to end, or killed, while a turn runs."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import limpet
from tests.fault.test_runtime_kill import a_worker
from tests.support.agent_process import APP, harness_for


class Till:
    """An HTTP server that signals the worker when its request has come, and answers then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.calls = 0
        self.ready = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.calls += 1
            await self.ready.wait()
            if self.process is not None:
                self.process.send_signal(self.number)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(till: Till) -> AsyncIterator[int]:
    """The port it listens on, one that is free."""
    async with await asyncio.start_server(till.serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def signalled(lp: limpet.Limpet, url: str, number: int) -> tuple[Till, int | None]:
    """A worker that gets a signal in the middle of a refund; its exit code."""
    till = Till(number)
    session = await lp.create(APP, "ada", id="s", actor="user:ada")
    await session.append("user.message", {"text": "hi", "order": 1}, actor="user:ada")
    async with listening(till) as port, a_worker(url, port) as process:
        till.process = process
        till.ready.set()
        async with asyncio.timeout(60):
            code = await process.wait()
    return till, code


async def test_sigterm_in_mid_refund_finishes_the_turn_and_leaves_no_lease(tmp_path: Path) -> None:
    """The process ends by itself; the money is paid once and the answer is there."""
    url = f"sqlite:///{tmp_path}/agents.db"
    async with limpet.open(url) as lp:
        till, code = await signalled(lp, url, signal.SIGTERM)
        session = await lp.get(APP, "ada", "s")
        said = [e.data["text"] for e in await session.read(types=["agent.message"])]
        assert (code, till.calls, said) == (0, 1, ["1: ok"])
        assert (session.status, session.head.worker) == ("idle", None)


async def test_after_kill_9_the_session_is_taken_over_when_its_lease_ends(tmp_path: Path) -> None:
    """Not before, by the store's clock; and the activation says that its worker died."""
    url = f"sqlite:///{tmp_path}/agents.db"
    async with limpet.open(url) as lp:
        _, code = await signalled(lp, url, signal.SIGKILL)
        assert code == -signal.SIGKILL
        session = await lp.get(APP, "ada", "s")
        until_us = session.head.lease_us
        assert until_us is not None
        till = Till(signal.SIGTERM)
        till.ready.set()
        async with listening(till) as port:
            worker = limpet.Worker(lp, harness_for(port), app=APP)
            running = asyncio.ensure_future(worker.run())
            async with asyncio.timeout(60):
                async for event in session.follow(types=["session.status_idle"]):
                    assert event.data["stop_reason"] == "end_turn"
                    break
            worker.stop()
            await running
        newest, _ = await session.runs.activations()
        assert (newest.why, till.calls) == ("died", 1)
        assert newest.claimed_us >= until_us
