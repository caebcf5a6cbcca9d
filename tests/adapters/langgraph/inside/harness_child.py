"""A worker with a graph of LangGraph: python -m … URL NOTES. See tests/support/harness_kill."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import limpet
from limpet.adapters.langgraph import as_harness
from tests.support.harness_kill import Notes, run_child

notes = Notes(sys.argv[2])


async def model(state: MessagesState) -> dict[str, Any]:
    notes.asked()
    if isinstance(state["messages"][-1], ToolMessage):
        return {"messages": [AIMessage("rain")]}
    call = {"id": "call_1", "name": "weather", "args": {}}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def tools(_: MessagesState) -> dict[str, Any]:
    notes.performed()
    return {"messages": [ToolMessage("rain", tool_call_id="call_1")]}


def after_model(state: MessagesState) -> str:
    return "tools" if state["messages"][-1].tool_calls else "__end__"


def with_lp(lp: limpet.Limpet) -> Callable[[limpet.Turn], Awaitable[None]]:
    graph = StateGraph(MessagesState).add_node("model", model).add_node("tools", tools)
    graph.add_edge(START, "model").add_conditional_edges("model", after_model)
    return as_harness(graph.add_edge("tools", "model"), lp)


if __name__ == "__main__":
    asyncio.run(run_child(sys.argv[1], with_lp))
