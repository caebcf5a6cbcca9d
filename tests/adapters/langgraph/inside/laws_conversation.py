"""session.messages() on the threads of real graphs: the conversation, without LangGraph's help."""

from __future__ import annotations

import random
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode

import limpet
from limpet.adapters.langgraph import LimpetSaver

THREAD: dict[str, Any] = {"configurable": {"thread_id": "chat"}}


def gathered(state: Any, writes: Any) -> Any:
    for each in writes:
        state = add_messages(state, each)
    return state


class Deltas(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(gathered, snapshot_frequency=4)]


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def chat(schema: Any, saver: Any) -> Any:
    """A bot that calls a tool for every question, and answers with what the tool said."""

    async def bot(state: Any) -> Any:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage(f"It says: {last.content}")]}
        call = {"name": "weather", "args": {"city": last.content}, "id": f"call-{last.content}"}
        return {"messages": [AIMessage("Let me see.", tool_calls=[call])]}

    def following(state: Any) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(schema)
    builder.add_node("bot", bot).add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "bot").add_conditional_edges("bot", following, ["tools", END])
    builder.add_edge("tools", "bot")
    return builder.compile(checkpointer=saver)


async def read(lp: limpet.Limpet, saver: LimpetSaver) -> list[limpet.Message]:
    return await lp.session(saver.app, saver.user, "chat").messages()


def texts(found: list[limpet.Message]) -> list[Any]:
    return [part["text"] for message in found for part in message.parts if part["type"] == "text"]


@pytest.mark.parametrize("schema", [MessagesState, Deltas])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_chat_with_tools_reads_as_a_conversation(
    schema: Any, durability: str, saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """Who said what, which tool was called with what, and what it answered, turn by turn."""
    graph = chat(schema, saver)
    for city in ("Oslo", "Rome", "Bonn"):
        asked = {"messages": [HumanMessage(city)]}
        await graph.ainvoke(asked, THREAD, durability=durability)
    found = await read(lp, saver)
    assert [message.role for message in found] == [
        *(["user", "assistant", "assistant", "tool", "assistant"] * 3)
    ]
    use = {"type": "tool_use", "request_id": "call-Rome", "name": "weather"}
    assert found[7].parts == ({**use, "input": {"city": "Rome"}},)
    result = {"type": "tool_result", "request_id": "call-Rome", "name": "weather"}
    assert found[8].parts == ({**result, "output": "rain in Rome", "is_error": False},)
    assert texts(found)[-3:] == ["Bonn", "Let me see.", "It says: rain in Bonn"]
    assert not any(message.synthetic for message in found)
    seqs = [message.event.seq for message in found]
    assert seqs == sorted(seqs)


@pytest.mark.parametrize("schema", [MessagesState, Deltas])
async def test_what_a_graph_removed_replaced_or_went_back_from_is_not_said(
    schema: Any, saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """The conversation is the state of the newest checkpoint, after edits, branches and a prune."""
    graph = chat(schema, saver)
    await graph.ainvoke({"messages": [HumanMessage("Oslo", id="first")]}, THREAD)
    begun = await graph.aget_state(THREAD)
    await graph.ainvoke({"messages": [HumanMessage("Rome")]}, THREAD)
    await graph.ainvoke({"messages": [HumanMessage("Bonn")]}, begun.config)
    assert [text for text in texts(await read(lp, saver)) if len(text) == 4] == ["Oslo", "Bonn"]
    edit = {"messages": [HumanMessage("Lima", id="first")]}
    await graph.aupdate_state(THREAD, edit)
    await saver.aprune(["chat"])
    assert texts(await read(lp, saver))[0] == "Lima"
    state = (await graph.aget_state(THREAD)).values["messages"]
    assert texts(await read(lp, saver)) == [m.content for m in state if m.type != "tool"]
    await graph.aupdate_state(THREAD, {"messages": [RemoveMessage(id="first")]})
    assert texts(await read(lp, saver))[0] == "Let me see."
    everything = RemoveMessage(id=REMOVE_ALL_MESSAGES)
    await graph.aupdate_state(THREAD, {"messages": [everything, HumanMessage("again")]})
    assert texts(await read(lp, saver)) == ["again"]


async def test_the_messages_of_any_tree_are_those_of_its_newest_checkpoint(
    lp: limpet.Limpet, app: str
) -> None:
    """Whatever grew, shrank, was edited or branched."""
    choose, saver = random.Random(7), LimpetSaver(lp, app=app)
    made: list[tuple[Any, list[Any]]] = [
        ({"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}, [])
    ]
    for step in range(80):
        parent, before = made[-1] if choose.random() < 0.8 else choose.choice(made)
        messages = changed(choose, before)
        if parent["configurable"].get("checkpoint_id") and choose.random() < 0.6:
            writes = [("messages", messages[-1:]), ("step", step)]
            await saver.aput_writes(parent, writes, f"task-{step}", "path")
        values = {"messages": messages, "step": step}
        new: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values}
        new["channel_versions"] = dict.fromkeys(values, step + 1)
        put = await saver.aput(parent, new, {"source": "loop"}, new["channel_versions"])
        made.append((put, messages))
        assert texts(await read(lp, saver)) == [message.content for message in messages]


def changed(choose: random.Random, messages: list[Any]) -> list[Any]:
    new, kind = list(messages), choose.random()
    if kind < 0.15 and new:
        del new[choose.randrange(len(new))]
    elif kind < 0.3 and new:
        new[choose.randrange(len(new))] = AIMessage(f"edited {choose.random()}", id=str(uuid4()))
    else:
        new.append(HumanMessage("hello " * choose.randrange(1, 20) + str(choose.random())))
    return new


async def test_every_kind_of_message_has_its_role_and_parts(
    saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """System, user with a picture, thoughts that are nobody's, a failed tool, all in one input."""
    builder = StateGraph(MessagesState).add_node("bot", lambda state: {"messages": []})
    graph: Any = builder.add_edge(START, "bot").compile(checkpointer=saver)
    url = {"url": "data:image/png;base64,iVBORw0"}
    picture = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": url}]
    thought: list[Any] = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "A…"}]
    call = {"name": "look", "args": {}, "id": "c"}
    said = [SystemMessage("Be kind."), HumanMessage(picture)]
    said += [AIMessage(thought, tool_calls=[call])]
    said += [ToolMessage("no eyes", tool_call_id="c", status="error")]
    await graph.ainvoke({"messages": said}, THREAD)
    found = await read(lp, saver)
    assert [message.role for message in found] == [
        *("system", "user", "assistant", "assistant", "tool")
    ]
    image = {"type": "image", "media_type": "image/png", "data": "iVBORw0"}
    assert found[1].parts == ({"type": "text", "text": "What is this?"}, image)
    assert found[2].parts == ({"type": "text", "text": "A…"},)
    assert found[4].parts[0]["output"] == "no eyes"
    assert found[4].parts[0]["is_error"]
    shown = await lp.session(saver.app, saver.user, "chat").context(shape="anthropic")
    assert [message["role"] for message in shown.messages] == ["user", "assistant", "user"]
