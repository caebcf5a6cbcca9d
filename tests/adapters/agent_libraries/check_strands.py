"""LimpetSessionManager under agents of Strands, with a scripted model."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.models import Model
from strands.types.exceptions import SessionException
from strands.types.session import SessionAgent, SessionMessage

import limpet
from limpet.adapters.strands import LimpetSessionManager
from tests.support.switching import run_switching


class Scripted(Model):
    """Says its lines in order; a dict is a call of the tool `weather`."""

    def __init__(self, *lines: Any) -> None:
        self.lines = list(lines)

    def update_config(self, **_: Any) -> None:
        return None

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        yield {}

    async def stream(self, *_: Any, **__: Any) -> Any:
        line = self.lines.pop(0)
        start = {} if isinstance(line, str) else {"toolUse": {"toolUseId": "t1", "name": "weather"}}
        delta = {"text": line} if isinstance(line, str) else {"toolUse": {"input": line["input"]}}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if start else "end_turn"}}


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture(params=["sqlite", "postgresql", "http"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores that several managers can open; each call of Strands blocks its thread."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    name = "served_url" if request.param == "http" else "postgres_store_url"
    found: str = request.getfixturevalue(name)
    return found


def agent(url: str, *lines: Any, id: str = "a1", **given: Any) -> Agent:
    manager = LimpetSessionManager("s1", url)
    model = Scripted(*lines)
    return Agent(
        model=model,
        tools=[weather],
        session_manager=manager,
        agent_id=id,
        callback_handler=None,
        **given,
    )


async def read(url: str) -> list[tuple[str, str]]:
    async with limpet.open(url) as lp:
        session = await lp.get("strands", "default", "s1")
        assert session.head.pending == 0
        return [(m.role, m.text) for m in await session.messages()]


def test_an_agent_goes_on_where_another_stopped(shared_url: str) -> None:
    """Messages and state come back; each message is an event of the conversation."""
    first = agent(shared_url, {"input": '{"city": "Bern"}'}, "Sunny.", state={"step": 1})
    first("What is the weather?")
    first.state.set("step", 2)
    manager: Any = first._session_manager
    manager.sync_agent(first)
    second = agent(shared_url, "Again.")
    assert second.messages == first.messages
    assert second.state.get("step") == 2
    second("More?")
    third = agent(shared_url)
    assert third.messages == second.messages


async def test_a_conversation_is_readable_without_strands(tmp_path: Path) -> None:
    """And a redacted message shows its replacement."""
    url = f"sqlite:///{tmp_path}/support.db"
    import asyncio

    def converse() -> None:
        speaking = agent(url, {"input": '{"city": "Bern"}'}, "Sunny.", "secret")
        speaking("What is the weather?")
        speaking("Tell me.")
        manager: Any = speaking._session_manager
        manager.redact_latest_message(
            {"role": "assistant", "content": [{"text": "[redacted]"}]}, speaking
        )
        assert agent(url).messages[-1]["content"] == [{"text": "[redacted]"}]

    await asyncio.to_thread(converse)
    assert await read(url) == [
        ("user", "What is the weather?"),
        ("assistant", ""),
        ("tool", ""),
        ("assistant", "Sunny."),
        ("user", "Tell me."),
        ("assistant", "[redacted]"),
    ]


def test_agents_of_one_session_are_told_apart(tmp_path: Path) -> None:
    """Each restores its own messages; an id is used once."""
    url = f"sqlite:///{tmp_path}/support.db"
    manager = LimpetSessionManager("s1", url)
    given: Any = {"session_manager": manager, "callback_handler": None}
    one = Agent(model=Scripted("I am one."), agent_id="one", **given)
    two = Agent(model=Scripted("I am two."), agent_id="two", **given)
    one("Who?")
    two("Who?")
    assert agent(url, id="one").messages == one.messages
    assert agent(url, id="two").messages == two.messages
    with pytest.raises(SessionException):
        Agent(model=Scripted(), agent_id="one", **given)


async def test_a_redaction_takes_out_its_own_message_only(url: str) -> None:
    """Also if another agent has spoken since, and if an earlier message is redacted again."""
    manager = LimpetSessionManager("s1", url)

    def said(text: str, number: int) -> SessionMessage:
        message: Any = {"role": "assistant", "content": [{"text": text}]}
        return SessionMessage.from_message(message, number)

    def speak() -> list[list[str]]:
        for name in ("one", "two"):
            given = SessionAgent(agent_id=name, state={}, conversation_manager_state={})
            manager.create_agent("s1", given)
        for number, text in enumerate(("hello", "secret")):
            manager.create_message("s1", "one", said(text, number))
        manager.create_message("s1", "two", said("fine", 0))
        manager.update_message("s1", "one", said("[redacted]", 1))
        manager.update_message("s1", "one", said("[gone]", 0))
        manager.update_message("s1", "one", said("[gone twice]", 0))
        with pytest.raises(SessionException):
            manager.update_message("s1", "two", said("never said", 7))
        names = ("one", "two")
        listed = [manager.list_messages("s1", name) for name in names]
        assert manager.list_messages("s1", "one", limit=1, offset=1) == listed[0][1:]
        return [[each.message["content"][0]["text"] for each in those] for those in listed]

    assert await asyncio.to_thread(speak) == [["[gone twice]", "[redacted]"], ["fine"]]
    session: Any = await manager._store.run(lambda lp: lp.get("strands", "default", "s1"))
    texts = await manager._store.run(lambda _: session.messages())
    assert [message.text for message in texts] == ["fine", "[redacted]", "[gone twice]"]
    await manager.close()


async def test_the_page_shows_how_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/strands.md: a second process goes on with the messages of the first."""
    monkeypatch.chdir(tmp_path)
    scripted = partial(Agent, model=Scripted("One.", "Two."), callback_handler=None)
    for count in (2, 4):
        names = await asyncio.to_thread(_switched, scripted)
        assert len(names["agent"].messages) == count
        await names["manager"].close()


def _switched(scripted: Any) -> dict[str, Any]:
    names = asyncio.run(run_switching("strands.md", {"Agent": scripted}))
    names["agent"]("Hello")
    return names
