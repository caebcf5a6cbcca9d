"""A process that works on the graph of one session until nothing is left, or kills itself.

    python -m tests.support.graph_worker FILE BANK MINUTES DIE_AT WHEN

Its clock is MINUTES ahead, so that the leases of dead processes are over. Before or after (WHEN)
its commit number DIE_AT it kills itself (0: never). BANK gets a line for each effect. It allows
what is asked, and says of an unknown effect that it happened if BANK has it, else to run it again.
At the end it prints what the agent has said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import limpet
from limpet import graph as lg
from limpet.graph import END, GraphBuilder, State, append
from limpet.model.commit import Commit
from limpet.store.clock import Clock
from limpet.store.protocol import Committed
from limpet.store.sqlite.store import SQLiteStore

APP = "support"
KEY = (APP, "ada", "graph")


class MortalStore(SQLiteStore):
    """A store whose process is killed at a commit."""

    commits, die_at, when = 0, 0, ""

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self.commits += 1
        if self.commits == self.die_at and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = await super().commit(commits)
        if self.commits == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


class Item(State):
    name: str = ""
    price: int = 0


class Order(State):
    items: list[str] = ["ab", "cde", "f"]
    prices: Annotated[list[int], append] = []
    receipt: str = ""


def harness_for(bank: Path) -> Any:
    """A fan-out with an effect in each instance, then an approval and an effect, then a step."""

    def pay(cents: int, idempotency_key: str) -> str:
        with bank.open("a") as file:
            file.write(f"{idempotency_key}\n")
        return f"receipt {cents}"

    async def weigh(state: Item) -> dict[str, Any]:
        return {"price": await lg.step("weigh", len, state.name)}

    async def reserve(state: Item) -> dict[str, Any]:
        await lg.effect("reserve", pay, cents=state.price)
        return {}

    async def charge(state: Order) -> dict[str, Any]:
        total = sum(state.prices)
        await lg.approve("charge", {"total": total})
        return {"receipt": await lg.effect("charge", pay, cents=total)}

    async def finish(state: Order) -> dict[str, Any]:
        return {"receipt": await lg.step("finish", str.upper, state.receipt)}

    each = GraphBuilder(Item).add_node("weigh", weigh).add_node("reserve", reserve)
    each.add_edge("weigh", "reserve").add_edge("reserve", END).set_entry("weigh")
    builder = GraphBuilder(Order).add_fan_out_node(
        "each",
        subgraph=each.compile(),
        items_field="items",
        item_field="name",
        collect_field="price",
        target_field="prices",
    )
    builder.add_node("charge", charge).add_node("finish", finish).set_entry("each")
    builder.add_edge("each", "charge").add_edge("charge", "finish").add_edge("finish", END)
    return lg.as_harness(builder.compile(), say=lambda state: f"{state.prices} {state.receipt}")


async def decide(session: Any, bank: Path) -> None:
    """Answer all that the session asks."""
    for request in session.blocked_on:
        if request.kind == "approval":
            await session.confirm(request.id, allow=True)
        elif request.input["idempotency_key"] in bank.read_text().splitlines():
            cents = request.input["args"]["cents"]
            await session.resolve(request.id, happened=f"receipt {cents}")
        else:
            await session.resolve(request.id, run_again=True)


async def main(file: Path, bank: Path, minutes: int) -> None:
    bank.touch()
    clock = Clock(lambda: time.time_ns() + minutes * 60 * 1_000_000_000, time.monotonic_ns)
    store = await MortalStore.open(file, clock=clock)
    async with limpet.Limpet("sqlite://", store=store) as lp:
        session, harness = await lp.get(KEY), harness_for(bank)
        while session.head.pending or session.blocked_on:
            await limpet.Worker(lp, harness, app=APP, idle_exit=True, retries=1_000).run()
            await session.refresh()
            await decide(session, bank)
            await session.refresh()
        for event in await session.read(types=["agent.message"]):
            print(event.data["text"])


if __name__ == "__main__":
    MortalStore.die_at, MortalStore.when = int(sys.argv[4]), sys.argv[5]
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
