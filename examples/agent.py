"""A support agent with a tool, and the worker that runs it as a process of its own.

    python agent.py STORE BANK [die]

The bank is a file with a line for each payment. With `die`, the process is killed by SIGKILL when
the money is sent and before it could write that down.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import limpet

APP = "agents"
LIMIT_EUR = 100
LEASE_SECONDS = 1.0


class Agent:
    """Answers a customer, and refunds what was charged twice."""

    def __init__(self, bank: Path, *, dies: bool = False) -> None:
        self.bank, self.dies = bank, dies

    async def run(self, turn: limpet.Turn) -> None:
        for message in turn.inputs:
            charge = await turn.step("look up", look_up, message.data["text"])
            await turn.stream("answer", model(charge))
            if charge["eur"] > LIMIT_EUR:
                wanted = {"order": charge["order"], "eur": charge["eur"]}
                day = timedelta(days=1)
                if not await turn.approve("refund", wanted, deadline=day, otherwise="deny"):
                    await turn.say("A colleague has to look at this first.")
                    continue
            receipt = await turn.effect("refund", self.refund, **charge)
            await turn.say(f"Refunded {charge['eur']} euros: {receipt}.")

    async def refund(self, order: int, eur: int, idempotency_key: str) -> str:
        """Send the money."""
        with self.bank.open("a") as book:
            book.write(f"order {order}: {eur} euros, key {idempotency_key}\n")
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)  # the money is gone, and nobody wrote it down
        return f"receipt {order}"


def look_up(text: str) -> dict[str, int]:
    """What a tool of yours would find."""
    return {"order": 7, "eur": 250}


async def model(charge: dict[str, int]) -> AsyncIterator[str]:
    """What a model of yours would say, word by word."""
    for word in f"You were charged {charge['eur']} euros twice, let me see.".split():
        yield f"{word} "
        await asyncio.sleep(0)


async def work(url: str, agent: Agent) -> None:
    async with limpet.open(url) as lp:
        worker = limpet.Worker(lp, agent, app=APP, lease_seconds=LEASE_SECONDS, poll_seconds=0.1)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Agent(Path(sys.argv[2]), dies=sys.argv[3:] == ["die"])))
