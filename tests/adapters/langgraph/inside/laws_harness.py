"""A graph of LangGraph in a worker: interrupts, usage, history, and a crash in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import limpet
from limpet.adapters.langgraph import as_harness
from tests.support.harness_kill import killed_and_run_again
from tests.support.harness_stream import streamed

performed: list[str] = []
heard: list[list[Any]] = []


async def model(state: MessagesState) -> dict[str, Any]:
    """Wants the tool once for each question, then says what it heard."""
    performed.append("model")
    heard.append(state["messages"])
    last = state["messages"][-1]
    used = {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"done: {last.content}", usage_metadata=used)]}
    call = {"id": f"call_{len(state['messages'])}", "name": "refund", "args": {"order": 7}}
    return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=used)]}


async def tools(state: MessagesState) -> dict[str, Any]:
    (call,) = state["messages"][-1].tool_calls
    allowed = interrupt({"refund": call["args"]["order"]})
    performed.append("refund" if allowed else "denied")
    return {"messages": [ToolMessage("receipt" if allowed else "no", tool_call_id=call["id"])]}


def after_model(state: MessagesState) -> str:
    return "tools" if state["messages"][-1].tool_calls else "__end__"


def builder() -> Any:
    graph = StateGraph(MessagesState).add_node("model", model).add_node("tools", tools)
    graph.add_edge(START, "model").add_conditional_edges("model", after_model)
    return graph.add_edge("tools", "model")


async def run(
    lp: limpet.Limpet, app: str, graph: Callable[[], Any] = builder
) -> limpet.Session[Any]:
    harness = as_harness(graph(), lp)
    await limpet.Worker(lp, harness, app=app, idle_exit=True, signals=False).run()
    return await lp.get(app, "ada", "c1")


@pytest.fixture
async def session(lp: limpet.Limpet, app: str) -> limpet.Session[Any]:
    performed.clear()
    heard.clear()
    made = await lp.create(app, "ada", "c1", budget=limpet.Budget(tokens=10_000))
    await made.append("user.message", {"text": "Help!"}, actor="user:ada")
    return made


async def test_an_interrupt_pauses_the_turn_and_no_node_is_repeated(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """Its value is the request's input, the answer what interrupt() returns."""
    session = await run(lp, app)
    (request,) = session.blocked_on
    assert (request.name, dict(request.input)) == ("interrupt", {"refund": 7})
    assert performed == ["model"]
    await session.answer(request.id, True)
    session = await run(lp, app)
    assert (session.stop_reason, session.blocked_on) == ("end_turn", ())
    assert performed == ["model", "refund", "model"]
    budget = session.runs.budget
    assert budget is not None
    assert budget.spent.tokens == 2 * 42
    said = await session.messages()
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]
    assert said[-1].text == "done: receipt"


async def test_a_compiled_graph_is_run_on_the_thread_of_the_session(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """As agents that are made in one line come; a checkpointer of its own is not used."""

    def compiled() -> Any:
        return builder().compile(checkpointer=InMemorySaver())

    session = await run(lp, app, compiled)
    await session.answer(session.blocked_on[0].id, True)
    session = await run(lp, app, compiled)
    assert performed == ["model", "refund", "model"]
    assert (await session.messages())[-1].text == "done: receipt"


@dataclass
class Order:
    number: int


class OrderState(MessagesState):
    order: Order


async def test_a_state_of_ones_own_classes_runs_with_their_codecs(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """What codecs= names is in the checkpoints, and comes back with its class in the next turn."""
    seen: list[Order | None] = []

    async def order(state: OrderState) -> dict[str, Any]:
        seen.append(state.get("order"))
        return {"order": Order(len(seen)), "messages": [AIMessage("noted")]}

    graph = StateGraph(OrderState).add_node("order", order).add_edge(START, "order")
    harness = as_harness(graph, lp, codecs=iter([Order]))
    for _ in range(2):
        await limpet.Worker(lp, harness, app=app, idle_exit=True, signals=False).run()
        session = await lp.get(app, "ada", "c1")
        assert session.stop_reason == "end_turn"
        await session.append("user.message", {"text": "And?"}, actor="user:ada")
    assert seen == [None, Order(1)]
    with pytest.raises(limpet.errors.InvalidInput, match="two codecs"):
        as_harness(graph, lp, codecs=[Order, Order])


async def test_a_second_turn_knows_the_first_and_what_others_said(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """The thread has each message once, also those that were not said by the graph."""
    session = await run(lp, app)
    await session.answer(session.blocked_on[0].id, True)
    session = await run(lp, app)
    await session.append("agent.message", {"text": "By another."}, actor="agent:other")
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, app)
    texts = [message.content for message in heard[-1]]
    assert texts == ["Help!", "", "receipt", "done: receipt", "By another.", "And now?"]


async def test_what_is_out_of_view_is_not_said_again(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """The thread still has it; the session's conversation begins after it."""
    session = await run(lp, app)
    await session.answer(session.blocked_on[0].id, True)
    session = await run(lp, app)
    await session.append("view.cleared", actor="user:ada")
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, app)
    roles = [message.role for message in await session.messages()]
    assert roles[:2] == ["user", "assistant"]
    assert not any(message.text == "done: receipt" for message in await session.messages())


async def test_a_stream_is_seen_by_followers(
    lp: limpet.Limpet, app: str, session: limpet.Session[Any]
) -> None:
    """What a model of the graph says in pieces are partials; the whole is one message."""
    fake = GenericFakeChatModel(messages=iter([AIMessage("It rains here.")]))

    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await fake.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say")
    pieces = await streamed(lp, session, as_harness(graph, lp))
    assert pieces == ["It", " ", "rains", " ", "here."]
    assert [m.text for m in await session.messages()] == ["Help!", "It rains here."]


def test_a_kill_between_two_nodes_repeats_only_the_second(tmp_path: Path) -> None:
    """kill -9 in the third node: the nodes whose checkpoints are there do not run again."""
    killed_and_run_again(tmp_path, "tests.adapters.langgraph.inside.harness_child")
