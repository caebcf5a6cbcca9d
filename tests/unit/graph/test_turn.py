"""Graphs in the turns of a worker: each call once per run of a node, resumed after every death."""

from __future__ import annotations

from typing import Annotated, Any

import limpet
from limpet import graph as lg
from limpet.graph import (
    END,
    CompiledGraph,
    GraphBuilder,
    State,
    append,
)
from tests.support.agents import Bank, World, a_world
from tests.support.graphs import line


class Order(State):
    text: str = ""
    items: list[str] = []
    prices: Annotated[list[int], append] = []
    paid: dict[str, Any] = {}
    allowed: bool = False
    seen: Annotated[list[str], append] = []


class Item(State):
    name: str = ""
    price: int = 0


class Shop:
    """A graph with an effect, an approval and a fan-out, and counts of what its nodes did."""

    def __init__(self) -> None:
        self.bank = Bank()
        self.ran: list[str] = []
        self.graph = self._graph()
        self.harness = lg.as_harness(self.graph, initial=self._initial, say=self._say)

    def _initial(self, turn: limpet.Turn) -> Order:
        return Order(text=turn.inputs[0].data["text"])

    def _say(self, state: Order) -> str:
        return f"{state.items} cost {sum(state.prices)}, paid {state.paid}"

    def _graph(self) -> CompiledGraph[Order]:
        async def look_up(state: Item) -> dict[str, Any]:
            self.ran.append(f"look up {state.name}")
            return {"price": await lg.step("price", len, state.name)}

        async def book(state: Item) -> dict[str, Any]:
            await lg.effect("book", self.bank.refund, order=state.price)
            return {}

        async def split(state: Order) -> dict[str, Any]:
            self.ran.append("split")
            return {"items": await lg.step("split", state.text.split)}

        async def pay(state: Order) -> dict[str, Any]:
            self.ran.append("pay")
            total = sum(state.prices)
            if not await lg.approve("pay", {"total": total}):
                return {"seen": ["denied"]}
            paid = await lg.effect("pay", self.bank.refund, order=total)
            return {"paid": {"order": paid["order"]}, "allowed": True}

        each = line(Item, look_up=look_up, book=book).compile()
        builder = GraphBuilder(Order).add_node("split", split).add_node("pay", pay)
        builder.add_fan_out_node(
            "each",
            subgraph=each,
            items_field="items",
            item_field="name",
            collect_field="price",
            target_field="prices",
        )
        builder.add_edge("split", "each").add_edge("each", "pay").add_edge("pay", END)
        return builder.set_entry("split").compile()


async def finish(world: World, harness: Any) -> list[str]:
    """Work until nothing is left, and allow whatever is asked; what was asked about."""
    asked = []
    for _ in range(20):
        await world.work(harness)
        blocked = world.session.blocked_on
        if not blocked:
            return asked
        for request in blocked:
            asked.append(f"{request.kind} {request.name}")
            await decide(world.session, request)
    raise AssertionError("it asks for ever")


async def decide(session: Any, request: Any) -> None:
    if request.kind == "approval":
        await session.confirm(request.id, allow=True, actor="user:boss")
    elif request.kind == "question":
        await session.answer(request.id, {"allowed": True}, actor="user:boss")
    elif hasattr(session, "resolve"):
        await session.resolve(request.id, happened={"order": request.input["args"]["order"]})
    else:
        await session.answer(request.id, {"order": request.input["args"]["order"]})


async def test_a_graph_runs_in_a_turn_and_its_last_state_is_said() -> None:
    """Approval pauses the turn; nodes that were completed do not run again."""
    async with a_world() as world:
        shop = Shop()
        await world.begin("ab cde")
        (woken,) = await world.work(shop.harness)
        assert (woken.reason, woken.error) == ("requires_action", None)
        (request,) = world.session.blocked_on
        assert (request.kind, request.name, request.input) == ("approval", "pay/pay", {"total": 5})
        assert len(shop.bank.done) == 2
        await finish(world, shop.harness)
        assert await world.said() == ["['ab', 'cde'] cost 5, paid {'order': 5}"]
        assert sorted(shop.ran) == ["look up ab", "look up cde", "pay", "pay", "split"]
        assert len(shop.bank.done) == len(set(shop.bank.done)) == 3


async def test_a_worker_that_dies_at_any_commit_pays_once_and_says_the_same() -> None:
    """Before and after each commit of each wake: the same last state, nothing paid twice."""
    deaths = 0
    for recorded in (True, False):
        for wake in range(2):
            for at in range(1, 40):
                async with a_world() as world:
                    shop = Shop()
                    await world.begin("ab cde f")
                    if wake:
                        await world.work(shop.harness)
                        (request,) = world.session.blocked_on
                        await decide(world.session, request)
                    if not await world.die(shop.harness, at, recorded=recorded):
                        break
                    deaths += 1
                    world.later()
                    await world.session.refresh()
                    asked = await finish(world, shop.harness)
                    unknown = [each for each in asked if "approval" not in each]
                    assert await world.said() == ["['ab', 'cde', 'f'] cost 6, paid {'order': 6}"], (
                        recorded,
                        wake,
                        at,
                    )
                    assert len(shop.bank.done) == len(set(shop.bank.done)), (recorded, wake, at)
                    assert len(shop.bank.done) + len(unknown) >= 4
                    codes = [e.data["code"] for e in await world.log() if e.type == "session.error"]
                    assert "turn.mismatch" not in codes
            else:
                raise AssertionError("it never came to its end")
    assert deaths > 20
