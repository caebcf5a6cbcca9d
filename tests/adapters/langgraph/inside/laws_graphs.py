"""Real graphs on the saver, beside LangGraph's own saver in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, interrupt

import limpet
from limpet.adapters.langgraph import LimpetSaver, LimpetStore

THREAD: dict[str, Any] = {"configurable": {"thread_id": "chat"}}


def gathered(state: Any, writes: Any) -> Any:
    for each in writes:
        state = add_messages(state, each)
    return state


class Deltas(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(gathered, snapshot_frequency=4)]


def chat(schema: Any, saver: Any) -> Any:
    async def bot(state: Any) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    builder = StateGraph(schema)
    builder.add_node("bot", bot)
    builder.add_edge(START, "bot")
    builder.add_edge("bot", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("schema", [MessagesState, Deltas])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_chat_goes_on_as_on_their_saver(
    schema: Any, durability: str, saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """Twelve turns, and the thread as another process sees it, are those of InMemorySaver."""
    ours, theirs = chat(schema, saver), chat(schema, InMemorySaver())
    for turn in range(12):
        said = {"messages": [HumanMessage(f"question {turn}")]}
        for graph in (ours, theirs):
            await graph.ainvoke(said, THREAD, durability=durability)
    elsewhere = chat(schema, LimpetSaver(lp, app=saver.app))
    wanted = [m.content for m in (await theirs.aget_state(THREAD)).values["messages"]]
    for graph in (ours, elsewhere):
        found = [m.content for m in (await graph.aget_state(THREAD)).values["messages"]]
        assert found == wanted
    steps = [len([each async for each in g.aget_state_history(THREAD)]) for g in (ours, theirs)]
    assert steps[0] == steps[1]


async def test_a_pruned_delta_channel_is_whole(saver: LimpetSaver) -> None:
    """What was made from removed checkpoints still stands: nothing is rebuilt as empty."""
    graph = chat(Deltas, saver)
    for turn in range(3):
        await graph.ainvoke({"messages": [HumanMessage(f"question {turn}")]}, THREAD)
    await saver.aprune(["chat"])
    state = await graph.aget_state(THREAD)
    assert len(state.values["messages"]) == 6
    await graph.ainvoke({"messages": [HumanMessage("one more")]}, THREAD)
    assert len((await graph.aget_state(THREAD)).values["messages"]) == 8


async def test_an_interrupted_run_resumes_elsewhere(saver: LimpetSaver, lp: limpet.Limpet) -> None:
    """A question asked by one process is answered in another, inside a subgraph too."""

    def build(saver: LimpetSaver) -> Any:
        def ask(state: Any) -> Any:
            return {"messages": [HumanMessage(interrupt({"question": "which?"}))]}

        inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
        outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
        return outer.compile(checkpointer=saver)

    asked = await build(saver).ainvoke({"messages": []}, THREAD)
    assert asked["__interrupt__"][0].value == {"question": "which?"}
    elsewhere = build(LimpetSaver(lp, app=saver.app))
    done = await elsewhere.ainvoke(Command(resume="this one"), THREAD)
    assert [message.content for message in done["messages"]] == ["this one"]


async def test_a_run_goes_back_in_time_and_an_update_branches(saver: LimpetSaver) -> None:
    """Time travel by the config of an old state, and update_state on it, need no token of ours."""
    graph = chat(MessagesState, saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, THREAD)
    old = await graph.aget_state(THREAD)
    await graph.ainvoke({"messages": [HumanMessage("two")]}, THREAD)
    again = await graph.ainvoke({"messages": [HumanMessage("not two")]}, old.config)
    assert [m.content for m in again["messages"]][2] == "not two"
    await graph.aupdate_state(old.config, {"messages": [HumanMessage("told")]})
    assert (await graph.aget_state(THREAD)).values["messages"][-1].content == "told"


async def test_the_second_of_two_runs_at_once_is_detected(saver: LimpetSaver) -> None:
    """A run that began on the same checkpoint and lost raises SessionConflict."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def bot(state: Any) -> Any:
        if state["messages"][-1].content == "slower":
            entered.set()
            await go.wait()
        return {"messages": [AIMessage("answer")]}

    builder = StateGraph(MessagesState).add_node("bot", bot).add_edge(START, "bot")
    graph: Any = builder.compile(checkpointer=saver)

    def run(text: str) -> Any:
        return graph.ainvoke({"messages": [HumanMessage(text)]}, THREAD, durability="sync")

    await run("one")
    slower = asyncio.create_task(run("slower"))
    await entered.wait()
    await run("faster")
    go.set()
    with pytest.raises(limpet.SessionConflict):
        await slower
    contents = [m.content for m in (await graph.aget_state(THREAD)).values["messages"]]
    assert contents[-2:] == ["faster", "answer"]


def test_graphs_without_await_use_saver_and_store(tmp_path: Path) -> None:
    """graph.invoke, nodes that use the store, and both on one file."""
    url = f"sqlite:///{tmp_path}/graphs.db"
    with LimpetSaver.from_url(url) as saver, LimpetStore.from_url(url) as store:

        def remember(state: Any) -> Any:
            get_store().put(("memories",), "count", {"n": len(state["messages"])})
            return {"messages": [AIMessage("noted")]}

        builder = StateGraph(MessagesState).add_node("remember", remember)
        builder.add_edge(START, "remember")
        graph: Any = builder.compile(checkpointer=saver, store=store)
        graph.invoke({"messages": [HumanMessage("hi")]}, THREAD)
        assert len(graph.get_state(THREAD).values["messages"]) == 2
        assert len(list(graph.get_state_history(THREAD))) == 3
        assert store.get(("memories",), "count").value == {"n": 1}
