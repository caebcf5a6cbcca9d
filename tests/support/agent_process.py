"""A worker as a process of its own, whose refunds go to a server on this machine.

    python -m tests.support.agent_process URL PORT

Runs until it is killed. Effects of even orders ask when they are unknown, odd ones are retried.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import limpet

APP = "support"


async def post(port: int, key: str, order: int) -> str:
    """One HTTP request; the answer's body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /refund/{order} HTTP/1.1\r\nIdempotency-Key: {key}\r\n"
        writer.write(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return (await reader.read()).decode().partition("\r\n\r\n")[2]
    finally:
        writer.close()


def harness_for(port: int) -> Any:
    async def harness(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            order = message.data["order"]
            how: Any = "retry" if order % 2 else "ask"
            try:
                paid = await turn.effect("refund", refund, order=order, on_unknown=how)
            except limpet.EffectUnknown:
                paid = "unknown"
            await turn.say(f"{order}: {paid}")

    async def refund(order: int, idempotency_key: str) -> str:
        return await post(port, idempotency_key, order)

    return harness


async def main(url: str, port: int) -> None:
    async with limpet.open(url) as lp:
        worker = limpet.Worker(
            lp,
            harness_for(port),
            app=APP,
            concurrency=4,
            lease_seconds=1,
            poll_seconds=0.05,
            retries=1_000,
        )
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
