"""LimpetHistoryProvider and LimpetThreadSnapshotStore, with agents of agent-framework itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, HistoryProvider, Message
from agent_framework_ag_ui import AGUIThreadSnapshot, AGUIThreadSnapshotStore

import limpet
from limpet.adapters.agent_framework import LimpetHistoryProvider, LimpetThreadSnapshotStore
from limpet.errors import InvalidInput
from tests.adapters.agent_framework.writer import COUNT
from tests.support.race import NAMES, race
from tests.support.switching import run_switching

TALK = [
    Message("user", ["What is here?"]),
    Message("assistant", ["I look.", Content.from_function_call("c1", "ls", arguments="{}")]),
    Message("tool", [Content.from_function_result("c1", result="a.py")]),
    Message("assistant", ["One file."]),
]


class Echo(BaseChatClient):  # type: ignore[misc]  # as the framework's own tests do it
    """A model that says how many messages it was sent."""

    def _inner_get_response(
        self, *, messages: Any, stream: bool = False, options: Any = None, **_: Any
    ) -> Any:
        async def reply() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [f"{len(messages)} messages"])])

        return reply()


async def test_an_agent_remembers_over_processes(url: str, tmp_path: Any) -> None:
    """A second agent with a provider of its own goes on with the conversation of the first."""
    async with limpet.open(url) as lp:
        for turn, sent in enumerate((1, 3), 1):
            provider = LimpetHistoryProvider(lp)
            agent = Agent(Echo(), context_providers=[provider])
            session = agent.create_session(session_id="s1")
            reply = await agent.run("hello", session=session)
            assert reply.text == f"{sent} messages", turn
        stored = await lp.get("agent-framework", "default", "s1")
        assert [m.role for m in await stored.messages()] == ["user", "assistant"] * 2
        assert stored.head.pending == 0


async def test_messages_come_back_unchanged(lp: limpet.Limpet) -> None:
    """And read as a conversation without the framework."""
    provider = LimpetHistoryProvider(lp)
    assert isinstance(provider, HistoryProvider)
    assert await provider.get_messages("s1") == []
    await provider.save_messages("s1", TALK)
    await provider.save_messages("s1", [])
    assert [m.to_dict() for m in await provider.get_messages("s1")] == [m.to_dict() for m in TALK]
    session = await lp.get("agent-framework", "default", "s1")
    said = [(m.role, m.text) for m in await session.messages()]
    assert said[:2] == [("user", "What is here?"), ("assistant", "I look.")]
    assert said[-1] == ("assistant", "One file.")
    with pytest.raises(InvalidInput, match="no session id"):
        await provider.save_messages(None, TALK)


async def test_racing_runs_lose_no_message(lp: limpet.Limpet) -> None:
    """Two providers on one session: every batch is there, whole."""
    providers = [LimpetHistoryProvider(lp) for _ in range(2)]
    batches = [[Message("user", [f"{n}"]), Message("assistant", [f"{n}"])] for n in range(10)]
    await asyncio.gather(
        *(providers[n % 2].save_messages("s1", batch) for n, batch in enumerate(batches))
    )
    texts = [m.text for m in await providers[0].get_messages("s1")]
    assert texts[::2] == texts[1::2]
    assert sorted(texts[::2], key=int) == [str(n) for n in range(10)]


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/x.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_two_processes_lose_nothing(shared_url: str) -> None:
    """Runs of two processes on one new session are all there, whole and in order."""
    race("tests.adapters.agent_framework.writer", shared_url)
    provider = LimpetHistoryProvider(shared_url)
    said = [message.text for message in await provider.get_messages("s1")]
    assert all(a == b for a, b in zip(said[::2], said[1::2], strict=True))
    for name in NAMES:
        mine = [text for text in said[::2] if text.startswith(name)]
        assert mine == [f"{name} {number}" for number in range(COUNT)]
    threads = LimpetThreadSnapshotStore(shared_url)
    snapshot = await threads.get(scope="ada", thread_id="t1")
    assert snapshot is not None
    assert snapshot.state in [{"last": f"{name} {COUNT - 1}"} for name in NAMES]
    await provider.close()
    await threads.close()


async def test_the_latest_snapshot_of_a_thread_is_kept(lp: limpet.Limpet) -> None:
    """By scope and thread; a growing conversation is stored once."""
    store = LimpetThreadSnapshotStore(lp)
    assert isinstance(store, AGUIThreadSnapshotStore)
    place: Any = {"scope": "ada", "thread_id": "t1"}
    assert await store.get(**place) is None
    snapshot = AGUIThreadSnapshot(messages=[], state={"step": 0})
    for n in range(50):
        snapshot.messages.append({"id": f"{n}", "role": "user", "content": "x" * 1_000})
        await store.save(**place, snapshot=snapshot)
    snapshot.interrupt = [{"id": "i1"}]
    await store.save(**place, snapshot=snapshot)
    assert await store.get(**place) == snapshot
    assert await store.get(scope="bob", thread_id="t1") is None
    session = await lp.get("agent-framework-threads", "ada", "t1")
    size = sum(len(str(event.ops)) for event in await session.read())
    assert size < 50 * 2_000  # whole snapshots would be 25 times as much
    assert await store.delete(**place)
    assert not await store.delete(**place)
    await store.save(**place, snapshot=snapshot)
    await store.clear(scope="ada")
    assert await store.get(**place) is None


async def test_the_page_shows_how_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/agent-framework.md: a second process goes on with the messages of the first."""
    monkeypatch.chdir(tmp_path)
    for sent in (1, 3):
        names = await run_switching("agent-framework.md", {"Agent": Agent, "client": Echo()})
        session = names["agent"].create_session(session_id="s1")
        assert (await names["agent"].run("hello", session=session)).text == f"{sent} messages"
        await names["history"].close()
