"""A graph of all kinds of nodes whose workers die at random and whose nodes fail at random."""

from __future__ import annotations

import asyncio
import random
from typing import Annotated, Any

import pytest

from limpet import graph as lg
from limpet.graph import END, Branch, GraphBuilder, RetryMiddleware, State, append
from tests.support import seeds
from tests.support.agents import Bank, World, a_world
from tests.support.examples import tries
from tests.support.graphs import line

EACH = "[['paid 10', 'T10', 'ok'], ['paid 20', 'T20', 'ok']]"
LOG = ["paid 1", "T1", "paid 101", EACH, "paid 2", "T2", "paid 102", EACH]
PAYMENTS = 16
ROUNDS_MAX = 400


class Work(State):
    number: int = 0
    log: Annotated[list[str], append] = []


class Top(State):
    number: int = 0
    numbers: list[int] = [10, 20]
    logs: list[Any] = []
    log: Annotated[list[str], append] = []


def harness_for(bank: Bank, dice: random.Random) -> Any:
    """A loop over three branches: a fan-out in a subgraph, a subgraph, and a call.

    Every node that pays fails now and then between its two payments, in code that is not recorded.
    """

    async def pay(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        await lg.effect("pay", bank.refund, order=state.number)
        if dice.random() < 0.2:
            raise OSError("flaky")
        await lg.effect("pay", bank.refund, order=state.number + 1)
        return {"log": [f"paid {state.number}"]}

    async def tell(state: Work) -> dict[str, Any]:
        return {"log": [await lg.step("tell", str.upper, f"t{state.number}")]}

    async def ask(state: Work) -> dict[str, Any]:
        return {"log": ["ok" if await lg.approve("ok", {"number": state.number}) else "no"]}

    async def call(state: Top) -> dict[str, Any]:
        return await pay(Work(number=state.number + 100))

    async def count(state: Top) -> dict[str, Any]:
        return {"number": state.number + 1}

    async def flat(state: Top) -> dict[str, Any]:
        return {"log": [repr(state.logs)], "logs": []}

    retry = RetryMiddleware(max_attempts=50, backoff=lambda attempt: 0)
    one = GraphBuilder(Work).add_node("pay", pay, middleware=[retry])
    one.add_node("tell", tell).add_node("ask", ask).set_entry("pay")
    one.add_edge("pay", "tell").add_edge("tell", "ask").add_edge("ask", END)
    each = GraphBuilder(Top).add_fan_out_node(
        "each",
        subgraph=one.compile(),
        items_field="numbers",
        item_field="number",
        collect_field="log",
        target_field="logs",
    )
    middle = each.add_edge("each", END).set_entry("each").compile()
    other = line(Work, pay=pay, tell=tell).compile()
    number, layers = {"number": "number"}, (retry,)
    branches = {
        "many": Branch(subgraph=middle, outputs={"logs": "logs"}, middleware=layers),
        "one": Branch(subgraph=other, inputs=number, outputs={"log": "log"}, middleware=layers),
        "call": Branch(call=call, middleware=layers),
    }
    top = GraphBuilder(Top).add_node("count", count).add_node("flat", flat).set_entry("count")
    top.add_parallel_branches_node("all", branches=branches)
    top.add_edge("count", "all").add_edge("all", "flat")
    top.add_conditional_edge("flat", lambda state: END if state.number == 2 else "count")
    return lg.as_harness(top.compile(), say=lambda state: repr(state.log))


async def answer_all(world: World, bank: Bank) -> None:
    """Allow what is asked; an unknown effect happened if the bank has its key."""
    for request in world.session.blocked_on:
        assert request.kind in ("approval", "unknown_effect"), request
        if request.kind == "approval":
            await world.session.confirm(request.id, allow=True, actor="user:boss")
        elif request.input["idempotency_key"] in bank.done:
            order = request.input["args"]["order"]
            await world.session.resolve(request.id, happened={"order": order}, actor="user:boss")
        else:
            await world.session.resolve(request.id, run_again=True, actor="user:boss")
    await world.session.refresh()


@pytest.mark.parametrize("number", range(tries(10, 200)))
async def test_a_storm_of_deaths_and_failures_changes_nothing(number: int) -> None:
    """The last state is that of a run without any, each payment is made once, and nothing is ever
    taken for a mismatch."""
    dice = random.Random(f"{seeds.seed('graph turns')} {number}")
    async with a_world() as world:
        bank = Bank()
        await world.begin("go")
        for _ in range(ROUNDS_MAX):
            harness = harness_for(bank, dice)
            if dice.random() < 0.85:
                at, recorded = dice.randrange(1, 9), dice.random() < 0.5
                await world.die(harness, at, recorded=recorded, retries=1_000)
            else:
                await world.work(harness, retries=1_000)
            world.later(400)
            await world.session.refresh()
            await answer_all(world, bank)
            if not world.session.head.pending:
                break
        assert await world.said() == [repr(LOG)]
        assert len(bank.done) == len(set(bank.done)) == PAYMENTS
        codes = {e.data["code"] for e in await world.log() if e.type == "session.error"}
        assert codes <= {"turn.died"}
