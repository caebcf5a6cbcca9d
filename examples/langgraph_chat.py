"""A chat on LangGraph whose memory is a Limpet file: it survives its process, and can go back.

Three turns of a graph, then the same thread as another process would find it, a look into the past,
and the long-term store beside it. No model is called: the node computes the answer.

    python examples/langgraph_chat.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import limpet
from limpet.adapters.langgraph import LimpetSaver, LimpetStore

THREAD: Any = {"configurable": {"thread_id": "ada"}}


async def answer(state: MessagesState) -> dict[str, Any]:
    """A model would answer here; this one counts."""
    return {"messages": [AIMessage(f"That was message {len(state['messages'])}.")]}


def chat(saver: LimpetSaver) -> Any:
    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


async def main(url: str) -> None:
    async with LimpetSaver.from_url(url) as saver:
        for text in ("hello", "how are you?", "goodbye"):
            await chat(saver).ainvoke({"messages": [("user", text)]}, THREAD)

    # Opened again, as after a crash: the thread is there.
    async with limpet.open(url) as lp:
        saver = LimpetSaver(lp)
        graph = chat(saver)
        state = await graph.aget_state(THREAD)
        print(*[message.content for message in state.values["messages"]], sep="\n")

        # Every step of it is there too.
        steps = [step async for step in graph.aget_state_history(THREAD)]
        session = await lp.get(saver.app, saver.user, "ada")
        print(f"{len(steps)} checkpoints, {session.version} events")

        store = LimpetStore(lp)
        await store.aput(("users", "ada"), "mood", {"text": "fine"}, ttl=60)
        print((await store.asearch(("users",)))[0].value)

        # Deleted is deleted: a run that still has the old thread cannot bring it back.
        await saver.adelete_thread("ada")
        try:
            await saver.aput_writes(state.config, [("messages", "too late")], "task")
        except limpet.errors.SessionDeleted as error:
            print(type(error).__name__)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{Path(folder) / 'chat.db'}"))
