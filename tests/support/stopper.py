"""A process that runs one turn and comes to a standstill at a point that it announces.

    python -m tests.support.stopper URL LEDGER POINT

It prints "still" and goes on when it is given a line; its event loop does nothing meanwhile. In the
end it prints why the wake ended. Each payment is a line in the file LEDGER.

POINT is `between`: a payment was refused, and is about to be tried again. `intended`: the intent of
the payment is durable, and nothing has been paid. `before`: the harness has not called anything.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import limpet
from limpet.runtime import effects

APP = "support"
LEASE_SECONDS = 1.0


def stand_still() -> None:
    print("still", flush=True)
    sys.stdin.readline()


def harness_for(ledger: Path, who: str, point: str = "") -> Any:
    """Pays once, with one more try. `who` is written down with each payment."""

    def pay() -> str:
        with ledger.open("a") as file:
            file.write(f"{who}\n")
        if point == "between":
            stand_still()
            raise ConnectionError("reset by peer")
        return "paid"

    async def harness(turn: limpet.Turn) -> None:
        write = turn.run.log.write

        async def stalled(*drafts: Any, **how: Any) -> Any:
            events = await write(*drafts, **how)
            if point == "intended" and "effect.intended" in [each.type for each in events]:
                stand_still()
            return events

        turn.run.log.write = stalled  # type: ignore[method-assign]
        if point == "before":
            stand_still()
        await turn.effect("pay", pay, retries=1, on_unknown="retry")
        await turn.say(f"{who} paid")

    return harness


async def main(url: str, ledger: str, point: str) -> None:
    effects.BACKOFF_SECONDS = 0  # type: ignore[misc]  # the next try comes before any heartbeat
    async with limpet.open(url) as lp:
        harness = harness_for(Path(ledger), "stopped", point)
        woken = await lp.wake((APP, "ada", "s"), harness, lease_seconds=LEASE_SECONDS)
        print(woken.reason, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
