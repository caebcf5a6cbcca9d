"""Two processes on one database, through the adapters of pydantic-ai, Strands and A2A."""

from __future__ import annotations

from pathlib import Path

import pytest
from a2a.server.context import ServerCallContext

import limpet
from limpet.adapters.a2a import LimpetTaskStore
from limpet.adapters.pydantic_ai import LimpetConversationStore
from limpet.adapters.strands import LimpetSessionManager
from tests.adapters.agent_libraries.writer import COUNT
from tests.support.race import NAMES, race

SAID = {name: [f"{name} {number}" for number in range(COUNT)] for name in NAMES}


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_two_processes_lose_nothing(shared_url: str) -> None:
    """Every acknowledged save is there, once and in its writer's order."""
    race("tests.adapters.agent_libraries.writer", shared_url)
    async with limpet.open(shared_url) as lp:
        loaded = await LimpetConversationStore(lp).load("c1")
        assert loaded is not None
        prompts = [part.content for m in loaded.messages for part in m.parts if m.kind == "request"]
        tasks = LimpetTaskStore(lp)
        for name in NAMES:
            assert [text for text in prompts if text.startswith(name)] == SAID[name]
            task = await tasks.get(name, ServerCallContext())
            assert [message.parts[0].text for message in task.history] == SAID[name]
        assert len(prompts) == 2 * COUNT
        both = await lp.get("a2a", "anonymous", "both")
        texts = [message.text for message in await both.messages()]
        assert sorted(texts) == sorted(SAID["one"] + SAID["two"])
    manager = LimpetSessionManager("s1", shared_url)
    for name in NAMES:
        listed = manager.list_messages("s1", name)
        assert [each.message["content"][0]["text"] for each in listed] == SAID[name]
        assert manager.read_agent("s1", name) is not None
    await manager.close()
