"""The pages docs/coming-from of frameworks: each program prints the same before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.test_examples import blocks, titled
from tests.support import venvs

FOLDER = "docs/coming-from"
FRAMEWORKS = ("adk", "langgraph", "openai-agents")


@pytest.mark.parametrize("page", FRAMEWORKS)
def test_a_program_with_a_framework_prints_the_same_before_and_after(
    page: str, tmp_path: Path
) -> None:
    """Both run in the environment of the framework."""
    path = f"{FOLDER}/{page}.md"
    try:
        interpreter = venvs.python_of(page)
    except venvs.NotInstalled as error:
        pytest.skip(f"{page} is not tested here: {error}")
    (shown,) = [block.text for block in blocks(path) if block.language == "text"]
    for name in ("before.py", "after.py"):
        file = tmp_path / name
        file.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{titled(path, name)}")
        code, said = venvs.run(interpreter, str(file), timeout=240)
        assert (code, said[-len(shown) :]) == (0, shown), said


OLD = """
import asyncio, sys

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from limpet.adapters.langgraph import LimpetSaver


async def answer(state: MessagesState):
    if state["messages"][-1].content == "ask":
        return {"messages": [AIMessage(f"you said {interrupt('sure?')}")]}
    return {"messages": [AIMessage(f"message {len(state['messages'])}")]}


builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
ADA, BOB = ({"configurable": {"thread_id": name}} for name in ("ada", "bob"))


async def seen(graph, thread):
    return [
        (each.config["configurable"]["checkpoint_id"], each.values, each.next, each.metadata)
        + (each.interrupts,)
        async for each in graph.aget_state_history(thread)
    ]


async def main():
    async with AsyncSqliteSaver.from_conn_string("old.db") as saver:
        old = builder.compile(checkpointer=saver)
        if sys.argv[1:] == ["before"]:
            for thread, text in ((ADA, "Hello"), (BOB, "Hi"), (ADA, "ask")):
                await old.ainvoke({"messages": [("user", text)]}, thread)
            return
        async with LimpetSaver.from_url("sqlite:///new.db") as saver:
            new = builder.compile(checkpointer=saver)
            for thread in (ADA, BOB):
                assert await seen(new, thread) == await seen(old, thread)
            for given, thread in ((Command(resume="yes"), ADA), ({"messages": "more"}, BOB)):
                state = await new.ainvoke(given, thread)
                assert (await old.ainvoke(given, thread))["messages"][-1].content == (
                    state["messages"][-1].content
                )
            state = await new.ainvoke({"messages": "and on"}, ADA)
            print([message.content for message in state["messages"]])


asyncio.run(main())
"""


def test_items_of_another_session_of_openai_agents_come_along(tmp_path: Path) -> None:
    """The program on the page, twice, after the one whose database it reads."""
    try:
        interpreter = venvs.python_of("openai-agents")
    except venvs.NotInstalled as error:
        pytest.skip(f"openai-agents is not tested here: {error}")
    for name in ("before.py", "bring.py", "bring.py"):
        program = titled(f"{FOLDER}/openai-agents.md", name)
        (tmp_path / name).write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{program}")
        code, said = venvs.run(interpreter, str(tmp_path / name), timeout=240)
        assert (code, said) == (0, "['user', 'assistant']\n")


def test_threads_of_another_saver_of_langgraph_come_along_whole(tmp_path: Path) -> None:
    """The program on the page: histories are the same, an interrupt is answered, and runs go on."""
    try:
        interpreter = venvs.python_of("langgraph")
    except venvs.NotInstalled as error:
        pytest.skip(f"langgraph is not tested here: {error}")
    files = {"old.py": OLD, "bring.py": titled(f"{FOLDER}/langgraph.md", "bring.py")}
    for name, text in files.items():
        (tmp_path / name).write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{text}")
    said = []
    for name, *args in (
        ("old.py", "before"),
        ("bring.py", "old.db", "sqlite:///new.db"),
        ("bring.py", "old.db", "sqlite:///new.db"),  # a second time changes nothing
        ("old.py", "after"),
    ):
        code, out = venvs.run(interpreter, str(tmp_path / name), *args, timeout=240)
        assert code == 0, out
        said.append(out)
    assert said[1] == said[2] == "2 threads\n"
    assert said[3] == "['Hello', 'message 1', 'ask', 'you said yes', 'and on', 'message 5']\n"
