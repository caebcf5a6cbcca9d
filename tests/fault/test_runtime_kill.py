"""Workers that are killed with kill -9 while money is on its way."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import limpet
from tests.support import seeds
from tests.support.agent_process import APP, harness_for
from tests.support.examples import tries
from tests.support.processes import ROOT

SESSIONS, ORDERS = 5, 4  # so that each session has orders of both kinds
KILLS, TORTURE = 8, 500


class Bank:
    """An HTTP server that counts refunds by idempotency key, and kills whoever it is told to."""

    def __init__(self, dice: random.Random) -> None:
        self.calls: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()
        self.killed = asyncio.Event()
        self._dice, self._target = dice, None
        self._left = 0

    def kill(self, process: Process, after: int) -> None:
        """At the n-th call from now: before it is answered, or when it has been."""
        self._target, self._left = process, after
        self.killed.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            key = request.partition("Idempotency-Key: ")[2].partition("\r\n")[0]
            self.calls[key] += 1
            self.orders[request.split()[1]] += 1
            self._left -= 1
            fatal = self._target is not None and self._left <= 0
            if fatal and self._dice.random() < 0.5:
                self._shoot()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
            if fatal:
                self._shoot()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _shoot(self) -> None:
        process, self._target = self._target, None
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGKILL)
            self.killed.set()


@asynccontextmanager
async def a_worker(url: str, port: int) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-W", "error", "-m", "tests.support.agent_process", url, str(port)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_worker_never_pays_twice_without_asking(tmp_path: Path) -> None:
    """Every order is paid once, or asked about; every input answered once; nothing runs on."""
    dice = random.Random(seeds.seed("runtime kill"))
    bank, url = Bank(dice), f"sqlite:///{tmp_path}/agents.db"
    server = await asyncio.start_server(bank.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, limpet.open(url) as lp:
        for number in range(SESSIONS):
            await lp.create(APP, "ada", id=f"s{number}", actor="user:ada")
        sent, asked = 0, set[str]()
        for _ in range(tries(KILLS, TORTURE)):
            asked |= await leave_unknown(lp)  # or all would wait for a person before long
            for _ in range(ORDERS):
                session = lp.session((APP, "ada", f"s{sent % SESSIONS}"))
                await session.append(
                    "user.message", {"text": "hi", "order": sent}, actor="user:ada"
                )
                sent += 1
            async with a_worker(url, port) as process:
                bank.kill(process, dice.randrange(1, 4))
                async with asyncio.timeout(60):
                    await bank.killed.wait()
                    await process.wait()
        asked |= await finish(lp, port)
        await check(lp, bank, sent, asked)


async def finish(lp: limpet.Limpet, port: int) -> set[str]:
    """Let the leases of the dead end and the rest be done; leave what is unknown."""
    asked: set[str] = set()
    async with asyncio.timeout(120):
        while True:
            await limpet.Worker(lp, harness_for(port), app=APP, idle_exit=True, retries=1_000).run()
            asked |= await leave_unknown(lp)
            if not any(head.pending for head in (await lp.list(app=APP)).items):
                return asked
            await asyncio.sleep(0.05)  # the lease of a dead worker lasts up to a second


async def leave_unknown(lp: limpet.Limpet) -> set[str]:
    """A person says of every effect that asks: leave it. The keys of these."""
    asked: set[str] = set()
    for head in (await lp.list(app=APP)).items:
        session = await lp.get(head.key)
        for request in session.blocked_on:
            asked.add(request.input["idempotency_key"])
            await session.resolve(request.id, give_up=True, actor="user:ada")
    return asked


async def check(lp: limpet.Limpet, bank: Bank, sent: int, asked: set[str]) -> None:
    said: Counter[str] = Counter()
    for head in (await lp.list(app=APP)).items:
        session = await lp.get(head.key)
        assert (session.status, session.stop_reason) == ("idle", "end_turn")
        log = await _whole(session)
        said.update(e.data["text"].split(":")[0] for e in log if e.type == "agent.message")
        asks = {
            e.data["key"] for e in log if e.type == "effect.intended" and _order(e, log) % 2 == 0
        }
        assert all(bank.calls[key] <= 1 for key in asks), "paid twice, and nobody was asked"
        done = Counter(e.data["key"] for e in log if e.type == "effect.succeeded")
        assert all(number == 1 for number in done.values())
        spans = [e.type for e in log if e.type.startswith("span.")]
        assert spans.count("span.started") == spans.count("span.completed")
    assert said == Counter(str(order) for order in range(sent)), "each is answered once"
    assert (await lp.maintenance.verify()).ok
    assert len(bank.calls) <= sent
    unpaid = [order for order in range(sent) if not bank.orders[f"/refund/{order}"]]
    assert len(unpaid) <= len(asked), "what nobody was asked about is paid"


async def _whole(session: limpet.Session[Any]) -> list[limpet.Event]:
    """The log, which has thousands of events after hundreds of kills."""
    log: list[limpet.Event] = []
    while page := await session.read(after=len(log), limit=1000):
        log += page
    return log


def _order(intent: limpet.Event, log: list[limpet.Event]) -> int:
    """The order that an effect is about: that of its input, by its place in the turn."""
    start = next(
        e for e in log if e.type == "span.started" and e.data.get("turn") == intent.invocation_id
    )
    seq = start.data["inputs"][intent.data["occurrence"] - 1]
    return int(log[seq - 1].data["order"])
