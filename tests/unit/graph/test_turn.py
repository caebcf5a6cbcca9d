"""Graphs in the turns of a worker: each call once per run of a node, resumed after every death."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

import limpet
from limpet import graph as lg
from limpet.errors import GraphError, InvalidInput, ToolDenied, TurnMisused
from limpet.graph import (
    END,
    Branch,
    CompiledGraph,
    ExplicitMapping,
    GraphBuilder,
    RetryMiddleware,
    State,
    append,
)
from tests.support.agents import Bank, World, a_world
from tests.support.graphs import gives, line


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


class Work(State):
    number: int = 0
    log: Annotated[list[str], append] = []
    note: str = ""


def harness_of(graph: CompiledGraph[Any], **initial: Any) -> Any:
    return lg.as_harness(graph, initial=lambda turn: initial, say=lambda state: repr(state.log))


async def die_everywhere(make: Any, expected: str, *, orders: int) -> None:
    """Run it to its end after a death at each commit: it says this, and pays so many orders once.

    `make(bank)` returns a harness; each order is one effect of the bank.
    """
    for recorded in (True, False):
        for at in range(1, 60):
            async with a_world() as world:
                bank = Bank()
                await world.begin("go")
                if not await world.die(make(bank), at, recorded=recorded):
                    break
                world.later()
                await world.session.refresh()
                asked = await finish(world, make(bank))
                unknown = [each for each in asked if each.startswith(("effect", "unknown"))]
                assert await world.said() == [expected], (recorded, at)
                assert len(set(bank.done)) == len(bank.done), (recorded, at)
                assert orders - len(unknown) <= len(bank.done) <= orders, (recorded, at)
                codes = [e.data["code"] for e in await world.log() if e.type == "session.error"]
                assert "turn.mismatch" not in codes
        else:
            raise AssertionError("it never came to its end")


async def test_branches_keep_their_calls_apart() -> None:
    """A call and a subgraph at the same time, with calls of the same names: each is done once."""

    def make(bank: Bank) -> Any:
        async def pay(state: Work) -> dict[str, Any]:
            await asyncio.sleep(0)
            await lg.effect("pay", bank.refund, order=state.number)
            await lg.effect("pay", bank.refund, order=state.number + 1)
            return {"log": [f"paid {state.number}"]}

        async def tell(state: Work) -> dict[str, Any]:
            return {"log": [await lg.step("tell", str.upper, "told")]}

        inner = line(Work, pay=pay, tell=tell).compile()
        builder = GraphBuilder(Work).add_node("last", tell)
        builder.add_parallel_branches_node(
            "both",
            branches={
                "call": Branch(call=pay),
                "graph": Branch(subgraph=inner, inputs={"number": "number"}),
            },
        )
        builder.add_edge("both", "last").add_edge("last", END).set_entry("both")
        return harness_of(builder.compile(), number=7)

    await die_everywhere(make, "['paid 7', 'paid 7', 'TOLD', 'TOLD']", orders=4)


async def test_a_node_in_a_loop_has_a_run_for_each_visit() -> None:
    """Subgraphs in a loop: the same names again and again, and each call is done once for each."""

    def make(bank: Bank) -> Any:
        async def pay(state: Work) -> dict[str, Any]:
            await lg.effect("pay", bank.refund, order=state.number)
            return {"log": [f"inner {state.number}"]}

        async def count(state: Work) -> dict[str, Any]:
            return {"number": await lg.step("next", lambda: state.number + 1)}

        inner = line(Work, pay=pay, again=pay).compile()
        builder = GraphBuilder(Work).add_node("count", count)
        mapping = ExplicitMapping(inputs={"number": "number"}, outputs={"log": "log"})
        builder.add_subgraph_node("a/b", inner, mapping)
        builder.add_edge("count", "a/b").set_entry("count")
        builder.add_conditional_edge("a/b", lambda state: END if state.number == 3 else "count")
        return harness_of(builder.compile())

    log = [f"inner {number}" for number in (1, 1, 2, 2, 3, 3)]
    await die_everywhere(make, repr(log), orders=6)


async def test_a_retried_node_is_a_new_run_that_pays_nothing_twice() -> None:
    """What failed is tried again under a new name; what succeeded in the attempt before is kept."""
    async with a_world() as world:
        bank, models, tries = Bank(), [], []

        async def flaky(idempotency_key: str) -> str:
            tries.append(idempotency_key)
            if len(tries) < 3:
                raise ConnectionError("down")
            return "sent"

        async def work(state: Work) -> dict[str, Any]:
            await lg.effect("pay", bank.refund, order=1)
            models.append(await lg.step("draw", lambda: len(models)))
            return {"log": [await lg.effect("send", flaky)]}

        retry = RetryMiddleware(max_attempts=5, backoff=lambda attempt: 0)
        builder = GraphBuilder(Work).add_node("work", work, middleware=[retry])
        harness = harness_of(builder.add_edge("work", END).set_entry("work").compile())
        await world.begin("go")
        (woken,) = await world.work(harness)
        assert (woken.reason, await world.said()) == ("end_turn", ["['sent']"])
        assert (len(bank.done), len(set(tries)), models) == (1, 3, [0, 1, 2])
        named = [e.data["name"] for e in await world.log() if e.type == "effect.failed"]
        assert named == ["work/send", "work~2/send"]


async def test_a_retried_node_survives_a_death_in_each_attempt() -> None:
    """The attempt is recorded: the next run goes on with it, also if no failure repeats itself."""

    def make(bank: Bank) -> Any:
        failing = [True]

        async def pay(state: Work) -> dict[str, Any]:
            await lg.effect("pay", bank.refund, order=1)
            if failing.pop() if failing else False:
                raise OSError("of code that nobody records")
            await lg.effect("then", bank.refund, order=2)
            return {"log": ["paid"]}

        async def nothing(state: Work) -> dict[str, Any]:
            return {"log": [await lg.step("end", str, "end")]}

        retry = RetryMiddleware(backoff=lambda attempt: 0)
        inner = line(Work, pay=pay).compile()
        builder = GraphBuilder(Work).add_node("end", nothing)
        builder.add_subgraph_node("sub", inner, middleware=[retry])
        builder.add_edge("sub", "end").add_edge("end", END).set_entry("sub")
        return harness_of(builder.compile())

    await die_everywhere(make, "['paid', 'end']", orders=2)


async def test_a_model_that_returns_no_reply_in_a_node_is_a_dead_letter_at_once() -> None:
    """No attempt of the node, and no run of the turn, could cure it."""
    async with a_world() as world:
        asked: list[int] = []

        def model(request: limpet.ModelRequest) -> None:
            asked.append(1)

        async def work(state: Work) -> dict[str, Any]:
            await lg.model("draft", model)  # type: ignore[arg-type]  # which is the mistake
            return {}

        retry = RetryMiddleware(backoff=lambda attempt: 0)
        builder = GraphBuilder(Work).add_node("work", work, middleware=[retry])
        harness = harness_of(builder.add_edge("work", END).set_entry("work").compile())
        await world.begin("go")
        (woken,) = await world.work(harness)
        assert (woken.reason, len(asked)) == ("retries_exhausted", 1)


@pytest.mark.parametrize("policy", ["ask", "retry"])
async def test_a_retried_node_settles_what_its_last_attempt_cut_off(policy: Any) -> None:
    """A time limit of the node's own leaves its effect unknown: the next attempt does not take it
    for another one, with another key."""
    async with a_world() as world:
        keys: list[str] = []

        async def pay(idempotency_key: str) -> str:
            keys.append(idempotency_key)
            if len(keys) == 1:
                await asyncio.get_running_loop().create_future()
            return "paid"

        async def work(state: Work) -> dict[str, Any]:
            how: Any = {"on_unknown": policy}
            async with asyncio.timeout(0.001 if not keys else None):
                return {"log": [await lg.effect("pay", pay, **how)]}

        retry = RetryMiddleware(backoff=lambda attempt: 0)
        builder = GraphBuilder(Work).add_node("work", work, middleware=[retry])
        harness = harness_of(builder.add_edge("work", END).set_entry("work").compile())
        session = await world.begin("go")
        await world.work(harness)
        if policy == "ask":
            (request,) = session.blocked_on
            assert (request.kind, len(keys)) == ("unknown_effect", 1)
            await session.resolve(request.id, run_again=True, actor="user:ada")
            await world.work(harness)
        assert await world.said() == ["['paid']"]
        assert (len(keys), len(set(keys))) == (2, 1)


@pytest.mark.parametrize("allow", [True, False])
async def test_a_retried_node_keeps_the_answers_of_people(*, allow: bool) -> None:
    """Of an approval and of an effect that needs one, yes or no, in this run of the turn or in
    another one; another input, or another call, is another question."""
    async with a_world() as world:
        seen: list[Any] = []
        failing = [3, 2, 1]

        async def send(to: str) -> str:
            raise ConnectionError("down")

        async def work(state: Work) -> dict[str, Any]:
            tries = len(failing)
            seen.append(bool(await lg.approve("pay", {"order": 1})))
            seen.append(bool(await lg.approve("pay~2", {"order": 2})))
            try:
                await lg.effect("send", send, to="ada")
            except (limpet.errors.EffectFailed, ToolDenied) as error:
                seen.append(type(error).__name__)
            if failing:
                failing.pop()
                raise OSError("of code that nobody records")
            seen.append(bool(await lg.approve("pay", {"order": tries})))
            return {"log": ["done"]}

        retry = RetryMiddleware(max_attempts=9, backoff=lambda attempt: 0)
        builder = GraphBuilder(Work).add_node("work", work, middleware=[retry])
        harness = harness_of(builder.add_edge("work", END).set_entry("work").compile())
        session, asked = await world.begin("go"), list[Any]()
        for _ in range(9):
            await world.work(harness, permissions={"send": "always_ask"})
            for request in session.blocked_on:
                asked.append((request.name, dict(request.input)))
                await session.confirm(request.id, allow=allow, actor="user:ada")
        assert await world.said() == ["['done']"]
        assert asked == [
            ("work/pay", {"order": 1}),
            ("work/pay~2", {"order": 2}),
            ("work/send", {"to": "ada"}),
            ("work~4/pay", {"order": 0}),
        ]
        assert seen.count("EffectFailed" if allow else "ToolDenied") >= 4
        assert {each for each in seen if isinstance(each, bool)} == {allow}


async def test_a_suspended_graph_waits_for_an_answer() -> None:
    """The signal is a question of the session; its answer is the payload, checked when it comes."""
    async with a_world() as world:
        ran: list[str] = []

        async def ask(state: Work) -> dict[str, Any]:
            ran.append(f"ask {state.number}")
            await lg.suspend(lg.SuspensionDescriptor("number", {"why": "how many?"}))

        async def tell(state: Work) -> dict[str, Any]:
            return {"log": [f"number {state.number}"]}

        builder = GraphBuilder(Work).add_node("ask", ask).add_node("tell", tell)
        builder.add_edge("ask", "tell").set_entry("ask")
        builder.add_conditional_edge("tell", lambda state: END if state.number > 1 else "ask")
        harness = harness_of(builder.compile())
        session = await world.begin("go")
        await world.work(harness)
        (first,) = session.blocked_on
        shown = {"why": "how many?", "node": "ask"}
        assert (first.kind, first.name, first.input) == ("question", "number", shown)
        await session.answer(first.id, {"number": "many"}, actor="user:boss")
        await world.work(harness)
        (again,) = session.blocked_on
        assert "number" in again.input["refused"]
        await session.answer(again.id, {"number": 1}, actor="user:boss")
        await world.work(harness)
        (second,) = session.blocked_on
        assert (second.kind, second.name) == ("question", "number#2")
        await session.answer(second.id, {"number": 2}, actor="user:boss")
        await world.work(harness)
        assert await world.said() == ["['number 1', 'number 2']"]
        assert ran == ["ask 0", "ask 1"]


async def test_a_model_and_its_tools_run_in_two_nodes() -> None:
    """The loop of an agent as a graph: each call of a tool has one result, after any death."""

    class Chat(State):
        calls: list[dict[str, Any]] = []
        log: Annotated[list[str], append] = []

    def make(bank: Bank) -> Any:
        async def refund(order: int, idempotency_key: str) -> str:
            """Refund an order."""
            await bank.refund(order, idempotency_key)
            return "done"

        def model(request: limpet.ModelRequest) -> limpet.Reply:
            shown = repr(request.messages)
            made = [number for number in (1, 2) if f'{{"order":{number}}}' in shown]
            if len(made) == 2:
                return limpet.Reply(text="refunded 2")
            call = limpet.ToolCall("x", "refund", {"order": len(made) + 1})
            return limpet.Reply(tool_calls=(call,))

        async def think(state: Chat) -> dict[str, Any]:
            reply = await lg.model("think", model, tools=[refund])
            calls = [{"id": c.id, "name": c.name, "input": dict(c.input)} for c in reply.tool_calls]
            return {"calls": calls, "log": [reply.text] if reply.text else []}

        async def act(state: Chat) -> dict[str, Any]:
            for call in state.calls:
                await lg.tool(call, refund)
            return {}

        builder = GraphBuilder(Chat).add_node("think", think).add_node("act", act)
        builder.add_conditional_edge("think", lambda state: "act" if state.calls else END)
        builder.add_edge("act", "think").set_entry("think")
        return lg.as_harness(builder.compile(), say=lambda state: repr(state.log))

    async with a_world() as world:
        bank = Bank()
        await world.begin("refund both")
        await world.work(make(bank))
        assert await world.said() == ["", "", "refunded 2", "['refunded 2']"]
        assert len(bank.done) == 2
    for recorded in (True, False):
        for at in range(1, 40):
            async with a_world() as world:
                bank = Bank()
                await world.begin("refund both")
                if not await world.die(make(bank), at, recorded=recorded):
                    break
                world.later()
                await world.session.refresh()
                await finish(world, make(bank))
                assert (await world.said())[-2:] == ["refunded 2", "['refunded 2']"], at
                assert len(bank.done) == len(set(bank.done)) <= 2, at


async def test_a_tool_of_another_node_is_named() -> None:
    """After a resume nobody would know what the model was offered: its function is passed."""
    async with a_world() as world:

        async def act(state: Work) -> dict[str, Any]:
            await lg.tool({"id": "a", "name": "refund"})
            return {}

        await world.begin("go")
        (woken,) = await world.work(harness_of(line(Work, act=act).compile()))
        assert isinstance(woken.error, TurnMisused)
        assert "limpet.graph.tool(call, fn)" in str(woken.error)


async def test_calls_without_a_worker_name_as_harness() -> None:
    """A plain invoke has no session that could record them."""

    async def pay(state: Work) -> dict[str, Any]:
        return {"note": await lg.effect("pay", str, object=1)}

    with pytest.raises(GraphError) as raised:
        await line(Work, pay=pay).compile().invoke(Work())
    assert isinstance(raised.value.__cause__, TurnMisused)
    assert "limpet.graph.as_harness" in str(raised.value.__cause__)
    with pytest.raises(TurnMisused, match="as_harness"):
        await lg.step("x", str)


async def test_a_denied_effect_and_a_budget_end_the_turn_as_they_would_without_a_graph() -> None:
    """Errors that decide about a wake come through the nodes around them."""
    async with a_world() as world:

        async def pay(state: Work) -> dict[str, Any]:
            return {"log": [await lg.effect("pay", str, object=1)]}

        await world.begin("go")
        harness = harness_of(line(Work, pay=pay).compile())
        (woken,) = await world.work(harness, permissions={"pay": "deny"})
        assert isinstance(woken.error, ToolDenied)
        assert world.session.head.pending == 0


async def test_a_failing_node_is_retried_by_the_worker_from_where_it_stood() -> None:
    """The nodes before it do not run again, and the error names the node."""
    async with a_world() as world:
        ran: list[str] = []

        async def first(state: Work) -> dict[str, Any]:
            ran.append("first")
            return {"log": ["first"]}

        async def second(state: Work) -> dict[str, Any]:
            ran.append("second")
            if ran.count("second") == 1:
                raise ValueError("not yet")
            return {"log": ["second"]}

        await world.begin("go")
        harness = harness_of(line(Work, first=first, second=second).compile())
        (woken,) = await world.work(harness)
        assert woken.reason == "rescheduling"
        assert "node 'second' failed" in str(woken.error)
        world.later()
        await world.work(harness)
        assert await world.said() == ["['first', 'second']"]
        assert ran == ["first", "second", "second"]


async def test_a_waiting_run_is_seen_like_any_turn() -> None:
    """In the session's requests, in the status of the store, and as spans of its trace."""
    async with a_world() as world:
        shop = Shop()
        session = await world.begin("ab")
        await world.work(shop.harness)
        assert [each.name for each in session.blocked_on] == ["pay/pay"]
        wakes = await session.runs.wakes()
        trace = await session.runs.trace(wakes[0].data["span_id"])
        steps = {span.name: (span.kind, span.result) for span in trace.spans}
        assert steps["split"] == ("step", "success")
        assert steps["each[0]/look_up"] == ("step", "success")
        assert steps["pay"] == ("step", None)


def test_as_harness_takes_a_graph_without_a_session_store() -> None:
    """The session of the worker has the state; another one beside it would be a second truth."""

    async def node(state: Work) -> dict[str, Any]:
        return {}

    builder = line(Work, node=node)
    with pytest.raises(InvalidInput, match="compiled graph"):
        lg.as_harness(builder)  # type: ignore[arg-type]
    builder.with_session_store(lg.InMemorySessionStore(), session_state=Work)
    with pytest.raises(InvalidInput, match="with_session_store"):
        lg.as_harness(builder.compile())


async def test_an_interrupt_ends_the_turn_through_every_layer() -> None:
    """Middleware that retries or isolates failures, and a fan-out that collects them, let it by."""
    async with a_world() as world:
        ran: list[str] = []

        async def wait(state: Item) -> dict[str, Any]:
            ran.append("wait")
            await world.session.interrupt("stop it", actor="user:ada")
            await lg.step("never", str)
            await lg.step("nor this", str)
            return {}

        retry = RetryMiddleware(backoff=lambda attempt: 0, classifier=lambda error, state: True)
        builder = GraphBuilder(Order).add_fan_out_node(
            "each",
            subgraph=GraphBuilder(Item)
            .add_node("wait", wait, middleware=[retry])
            .add_edge("wait", END)
            .set_entry("wait")
            .compile(),
            count=1,
            collect_field="price",
            target_field="prices",
            error_policy="collect",
            middleware=[lg.FailureIsolationMiddleware(degraded_update={"seen": ["failed"]})],
        )
        harness = lg.as_harness(builder.add_edge("each", END).set_entry("each").compile())
        await world.begin("go")
        woken, *_ = await world.work(harness)
        assert (woken.reason, ran) == ("interrupted", ["wait"])


async def test_what_initial_did_is_not_missed_when_the_graph_goes_on() -> None:
    """The start is recorded: `initial` runs again only if nothing of the graph was recorded."""
    async with a_world() as world:
        bank, began = Bank(), []

        async def initial(turn: limpet.Turn) -> dict[str, Any]:
            began.append(await turn.step("roll", lambda: len(began)))
            await turn.effect("pay", bank.refund, order=1)
            return {"number": began[-1]}

        async def ask(state: Work) -> dict[str, Any]:
            await lg.approve("go on", {})
            return {"log": [f"number {state.number}"]}

        graph = line(Work, ask=ask).compile()
        harness = lg.as_harness(graph, initial=initial, say=lambda state: repr(state.log))
        await world.begin("go")
        await finish(world, harness)
        assert (await world.said(), len(bank.done), began) == (["['number 0']"], 1, [0])
        assert not [e for e in await world.log() if e.type == "session.error"]


async def test_a_graph_runs_in_a_worker_on_every_store(lp: limpet.Limpet) -> None:
    """It pauses, goes on and says its last state, on any store, and the inbox shows it."""

    async def pay(state: Work) -> dict[str, Any]:
        await lg.approve("pay", {"number": state.number})
        return {"log": [await lg.effect("pay", str, object=state.number)]}

    async def tell(state: Work) -> dict[str, Any]:
        return {"log": [await lg.step("tell", str.upper, "told")]}

    harness = harness_of(line(Work, pay=pay, tell=tell).compile(), number=5)
    session = await lp.create("shop", "ada", actor="user:ada")
    await session.append("user.message", {"text": "go"})
    await limpet.Worker(lp, harness, app="shop", idle_exit=True).run()
    await session.refresh()
    (request,) = session.blocked_on
    assert (session.status, session.stop_reason) == ("idle", "requires_action")
    waiting = [(w.key, w.request.name) for w in (await lp.inbox(app="shop")).items]
    assert waiting == [(session.key, "pay/pay")]
    assert (await lp.status(app="shop")).blocked == 1
    await session.confirm(request.id, allow=True)
    await limpet.Worker(lp, harness, app="shop", idle_exit=True).run()
    (said,) = await session.read(types=["agent.message"])
    assert said.data["text"] == "['5', 'TOLD']"


async def test_another_effect_in_a_node_is_a_mismatch_that_nothing_swallows() -> None:
    """The node was changed under its turn: a person is asked, and the other effect is not done."""
    async with a_world() as world:
        bank = Bank()

        def make(name: str) -> Any:
            async def pay(state: Item) -> dict[str, Any]:
                await lg.effect(name, bank.refund, order=1)
                return {"price": 1}

            isolate = lg.FailureIsolationMiddleware(degraded_update={"seen": ["failed"]})
            builder = GraphBuilder(Order).add_fan_out_node(
                "each",
                subgraph=line(Item, pay=pay).compile(),
                count=1,
                collect_field="price",
                target_field="prices",
                error_policy="collect",
                middleware=[isolate],
            )
            builder.add_edge("each", END).set_entry("each")
            return lg.as_harness(builder.compile(), say=lambda state: repr(state.prices))

        await world.begin("go")
        assert await world.die(make("pay"), 2, recorded=True)
        assert len(bank.done) == 1
        world.later()
        await world.work(make("send"), quiet_seconds=0.0)
        (request,) = world.session.blocked_on
        assert (request.kind, request.name) == ("mismatch", "each[0]/pay/pay")
        assert len(bank.done) == 1
        await world.session.resolve(request.id, run_again=True, actor="user:boss")
        await world.work(make("pay"))
        assert (await world.said(), len(bank.done)) == (["[1]"], 1)


async def test_a_node_that_ends_without_its_recorded_effect_is_not_completed() -> None:
    """Its next run would be left out, and nobody would miss the effect."""
    async with a_world() as world:
        bank = Bank()

        def make(*, pays: bool) -> Any:
            async def pay(state: Work) -> dict[str, Any]:
                if pays:
                    await lg.effect("pay", bank.refund, order=1)
                return {"log": ["paid" if pays else "not paid"]}

            return harness_of(line(Work, pay=pay, last=gives(log=["last"])).compile())

        await world.begin("go")
        assert await world.die(make(pays=True), 2, recorded=True)
        world.later()
        await world.work(make(pays=False))
        (request,) = world.session.blocked_on
        assert (request.kind, request.name) == ("mismatch", "pay/pay")
        await world.session.resolve(request.id, run_again=True, actor="user:boss")
        await world.work(make(pays=True))
        assert (await world.said(), len(bank.done)) == (["['paid', 'last']"], 1)
