"""A support agent with a tool that asks first, and the worker that runs it in its own process.

    python agent.py STORE BANK [die]

The bank is a file with a line for each payment. With `die`, the process is killed by SIGKILL when
the money is sent and before it could write that down.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import limpet

APP = "shop"
LEASE_SECONDS = 1.0


def agent(bank: Path, *, dies: bool = False) -> limpet.Agent:
    """An agent that answers a customer, and refunds what was charged twice."""

    @limpet.tool(permission="always_ask")  # pauses until a person decides
    def refund(order: int, eur: int, idempotency_key: str) -> str:
        """Pay money back to the customer."""
        with bank.open("a") as book:
            book.write(f"order {order}: {eur} euros, key {idempotency_key}\n")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)  # the money is gone, and nobody wrote it down
        return f"receipt {order}"

    return limpet.Agent(model, [refund], system="You are the support of a shop.")


def model(request: limpet.ModelRequest) -> limpet.Reply:
    """What a model of yours would say, from the conversation alone."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return limpet.Reply(f"Refunded 250 euros: {last['content']}.")
    said = [message["content"] for message in request.messages if message["role"] == "assistant"]
    refunds = [text for text in said if text and text.startswith("Refunded")]
    if refunds:
        return limpet.Reply(f"That is settled. {refunds[0]}")
    call = limpet.ToolCall("call-1", "refund", {"order": 7, "eur": 250})
    return limpet.Reply("You were charged twice. I will send 250 euros back.", tool_calls=(call,))


async def work(url: str, bank: Path, *, dies: bool) -> None:
    async with limpet.open(url) as lp:
        worker = limpet.Worker(
            lp, agent(bank, dies=dies), app=APP, lease_seconds=LEASE_SECONDS, poll_seconds=0.1
        )
        await worker.run()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), dies=sys.argv[3:] == ["die"]))
