"""A graph in a worker: it asks before it pays, its worker dies, and nothing is paid twice.

    python examples/graph_worker.py

An order goes through three nodes. The first worker process is killed with kill -9 right after the
bank took the money, before anybody could write that down. The second one goes on in the node where
the first died: the goods are not reserved again, and the payment is not repeated but asked about.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import Field

import limpet
from limpet.graph import END, GraphBuilder, State, append, approve, as_harness, effect, step

APP = "orders"


class Order(State):
    text: str = ""
    total: int = 0
    done: Annotated[list[str], append] = Field(default_factory=list)


def harness(bank: Path, *, dies: bool) -> object:
    """The graph of an order, as the harness of a worker."""

    def charge(euros: int, idempotency_key: str) -> str:
        with bank.open("a") as file:
            file.write(f"{idempotency_key} {euros}\n")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return "receipt 7"

    async def price(state: Order) -> dict[str, object]:
        return {"total": await step("price", len, state.text)}

    async def reserve(state: Order) -> dict[str, object]:
        print("did: reserve", flush=True)
        return {"done": ["reserve"]}

    async def pay(state: Order) -> dict[str, object]:
        if not await approve("charge", {"euros": state.total}):
            return {"done": ["denied"]}
        return {"done": [await effect("charge", charge, euros=state.total)]}

    graph = (
        GraphBuilder(Order)
        .add_node("price", price)
        .add_node("reserve", reserve)
        .add_node("pay", pay)
        .add_edge("price", "reserve")
        .add_edge("reserve", "pay")
        .add_edge("pay", END)
        .set_entry("price")
        .compile()
    )
    return as_harness(
        graph,
        initial=lambda turn: Order(text=turn.inputs[0].data["text"]),
        say=lambda state: f"{state.total} euros: {', '.join(state.done)}",
    )


async def work(url: str, bank: Path, *, dies: bool) -> None:
    """A worker process: it ends when nothing is due."""
    async with limpet.open(url) as lp:
        graph = harness(bank, dies=dies)
        await limpet.Worker(lp, graph, app=APP, lease_seconds=1, idle_exit=True).run()


def worker(url: str, bank: Path, *more: str) -> int:
    """Run a worker as a process of its own; its exit code."""
    command = [sys.executable, __file__, url, str(bank), *more]
    return subprocess.run(command, check=False).returncode


async def story(folder: Path) -> None:
    url, bank = f"sqlite:///{folder}/orders.db", folder / "bank.txt"
    async with limpet.open(url) as lp:
        session = await lp.create(APP, "ada", id="order", actor="user:ada")
        await session.append("user.message", {"text": "books"})
        worker(url, bank)
        await session.refresh()
        (request,) = session.blocked_on
        print(f"{request.kind} {request.name}: {request.input['euros']} euros")
        await session.confirm(request.id, allow=True)
        killed = worker(url, bank, "die") == -signal.SIGKILL
        print(f"killed: {killed}, payments: {len(bank.read_text().splitlines())}")
        await session.refresh()
        while not session.blocked_on:  # until the lease of the dead worker is over
            worker(url, bank)
            await session.refresh()
        (request,) = session.blocked_on
        print(f"{request.kind} {request.name}")
        await session.resolve(request.id, happened="receipt 7")
        worker(url, bank)
        (said,) = await session.read(types=["agent.message"])
        print(f"said: {said.data['text']}")
        print(f"payments: {len(bank.read_text().splitlines())}")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], Path(sys.argv[2]), dies="die" in sys.argv))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


if __name__ == "__main__":
    main()
