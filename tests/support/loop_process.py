"""A process that runs one turn of an agent and kills itself at a named point.

    python -m tests.support.loop_process URL ID BANK POINT

POINT is `before:N` or `after:N` (the N-th commit), `model:N` (in the N-th model call), `look:1` or
`refund:1` (in the tool, after it acted), or `-` for a run to the end. BANK is a file to which a
refund appends its idempotency key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import limpet
from limpet import ModelRequest, Piece
from limpet.session.limpet import journal_of

APP = "loop"
LEASE_SECONDS = 1


def agent_for(bank: Path, at: Callable[[str], None]) -> limpet.Agent:
    """Two model calls, two tools at once, one of which asks and pays. `at` is told each point."""

    @limpet.tool(pure=True)
    async def look(order: int) -> dict[str, Any]:
        """Look at an order."""
        at("look")
        return {"order": order, "eur": 40}

    @limpet.tool(permission="always_ask")
    async def refund(order: int, idempotency_key: str) -> str:
        """Pay the money back."""
        with bank.open("a") as file:
            file.write(f"{idempotency_key}\n")
        at("refund")
        return "paid"

    async def model(request: ModelRequest) -> AsyncIterator[Piece]:
        yield Piece(text="One ")
        at("model")
        if request.messages[-1]["role"] == "user":
            for index, name in enumerate(("look", "refund")):
                call = {"index": index, "id": "same", "name": name, "arguments": '{"order": 7}'}
                yield Piece(tool=call)
        yield Piece(text="moment.", usage={"input": 2, "output": 1})

    return limpet.Agent(model, [look, refund])


async def main(url: str, id: str, bank: Path, point: str) -> None:
    counts: Counter[str] = Counter()

    def at(name: str) -> None:
        counts[name] += 1
        if f"{name}:{counts[name]}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async with limpet.open(url) as lp:
        store: Any = journal_of(lp).store
        commit = store.commit

        async def counted(commits: Any) -> Any:
            at("before")
            done = await commit(commits)
            at("after")
            return done

        store.commit = counted
        await lp.wake((APP, "ada", id), agent_for(bank, at), lease_seconds=LEASE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
