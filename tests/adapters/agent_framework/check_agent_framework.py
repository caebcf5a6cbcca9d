"""LimpetHistoryProvider and LimpetThreadSnapshotStore, with agents of agent-framework itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, HistoryProvider, Message
from agent_framework_ag_ui import AGUIThreadSnapshot, AGUIThreadSnapshotStore

import limpet
from limpet.adapters.agent_framework import LimpetHistoryProvider, LimpetThreadSnapshotStore
from limpet.errors import InvalidInput

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
