"""LimpetSessionStore by the SDK's own conformance suite, and by what the suite does not ask."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions
from claude_agent_sdk.testing import run_session_store_conformance

import limpet
from limpet.adapters.claude_agent_sdk import LimpetSessionStore
from limpet.adapters.claude_transcripts import import_transcripts
from limpet.errors import SessionDeleted, SessionMoved
from tests.adapters.claude_agent_sdk import writer
from tests.support.race import NAMES, race
from tests.support.switching import run_switching

KEY: Any = {"project_key": "-home-ada-shop", "session_id": "5f0c"}
TALK: list[Any] = [
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "What is here?"}},
    {
        "type": "assistant",
        "uuid": "a1",
        "message": {
            "role": "assistant",
            "model": "claude",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
            ],
        },
    },
    {
        "type": "user",
        "uuid": "u2",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}],
        },
    },
    {"type": "custom-title", "customTitle": "Looking around"},
]


@pytest.fixture
async def store(lp: limpet.Limpet) -> LimpetSessionStore:
    return LimpetSessionStore(lp)


async def test_the_conformance_suite_of_the_sdk_passes(url: str, tmp_path: Path) -> None:
    """All fourteen contracts, each on a store of its own, by apps of their own where it is one."""
    count = 0
    async with limpet.open(url) as lp:

        async def fresh() -> LimpetSessionStore:
            nonlocal count
            count += 1
            return LimpetSessionStore(lp, app=f"claude-{count}")

        await run_session_store_conformance(fresh)
    assert count >= 14


async def test_the_conformance_suite_passes_over_http(served_url: str) -> None:
    """The same on a server: a store there is a store like any other."""
    count = 0
    async with limpet.open(served_url) as lp:

        async def fresh() -> LimpetSessionStore:
            nonlocal count
            count += 1
            return LimpetSessionStore(lp, app=f"claude-{count}")

        await run_session_store_conformance(fresh)


async def test_a_transcript_reads_as_a_conversation(
    lp: limpet.Limpet, store: LimpetSessionStore
) -> None:
    """Without the SDK: messages, calls with their outcomes; nothing waits for a worker."""
    await store.append(KEY, TALK[:1])
    session = await lp.get("claude", KEY["project_key"], KEY["session_id"])
    assert session.head.pending == 1
    await store.append(KEY, TALK[1:])
    await session.refresh()
    assert session.head.pending == 0
    assert [(m.role, m.text) for m in await session.messages()] == [
        ("user", "What is here?"),
        ("assistant", "I look."),
        ("assistant", ""),
        ("tool", ""),
    ]
    assert await store.load(KEY) == TALK


async def test_a_repeated_batch_is_recorded_once(store: LimpetSessionStore) -> None:
    """The SDK sends a batch again after a lost answer; half of it may be new."""
    await store.append(KEY, TALK[:2])
    await store.append(KEY, TALK[:3])
    await store.append(KEY, [*TALK[1:3], TALK[2]])
    assert await store.load(KEY) == TALK[:3]


async def test_racing_writers_lose_no_entry_and_no_title(store: LimpetSessionStore) -> None:
    """The summary is folded in the commit of its entries, on what was read."""
    batches = [[{"type": "user", "uuid": f"{n}", "timestamp": "2026-01-01"}] for n in range(12)]
    title = [{"type": "custom-title", "customTitle": "mine", "timestamp": "2026-01-01"}]
    await asyncio.gather(*(store.append(KEY, batch) for batch in [*batches, title]))
    loaded = await store.load(KEY)
    assert loaded is not None
    assert len(loaded) == 13
    (summary,) = await store.list_session_summaries(KEY["project_key"])
    assert "mine" in json.dumps(summary["data"])


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/x.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_two_processes_lose_nothing(shared_url: str) -> None:
    """Batches of two machines on one new transcript are all there, once and in order."""
    race("tests.adapters.claude_agent_sdk.writer", shared_url)
    store = LimpetSessionStore(shared_url)
    loaded: Any = await store.load(writer.KEY)
    assert len(loaded) == 2 * (writer.COUNT + 1)
    for name in NAMES:
        mine = [each for each in loaded if each["uuid"].startswith(name)]
        assert mine == [writer.entry(name, number) for number in range(writer.COUNT + 1)]
    assert sorted(await store.list_subkeys(writer.KEY)) == [f"agents/{name}" for name in NAMES]
    await store.close()


async def test_an_entry_of_any_size_and_text_comes_back(store: LimpetSessionStore) -> None:
    """Larger than an event may be, half a surrogate, numbers beyond 64 bits."""
    entries: list[Any] = [
        {"type": "user", "uuid": "big", "message": {"content": "x" * (9 * 2**20)}},
        {"type": "user", "uuid": "odd", "message": {"content": "\ud800"}, "n": 2**80},
    ]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries


async def test_a_prompt_that_was_cut_in_a_character_is_summed_up(
    store: LimpetSessionStore,
) -> None:
    """A list of sessions shows the rest of it; the entry itself comes back as it was."""
    entries: list[Any] = [{"type": "user", "uuid": "u1", "message": {"content": "Hi \ud83e"}}]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries
    (summary,) = await store.list_session_summaries(KEY["project_key"])
    assert summary["data"]["first_prompt"] == "Hi ?"


async def test_a_whole_transcript_in_one_batch_fits(
    store: LimpetSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the SDK's fork sends it: more entries than a commit holds, each once."""
    monkeypatch.setattr("limpet.session.journal.DRAFTS_PER_COMMIT_MAX", 600)
    entries: list[Any] = [{"type": "user", "uuid": f"u{n}"} for n in range(1_100)]
    for _ in range(2):
        await store.append(KEY, entries)
    assert await store.load(KEY) == entries


async def test_a_transcript_of_large_entries_fits(
    store: LimpetSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit holds no more bytes than it may: an import of few entries takes several, too."""
    monkeypatch.setattr("limpet.session.journal.COMMIT_BYTES_MAX", 16_000)
    monkeypatch.setattr("limpet.adapters.claude_transcripts._BATCH_BYTES", 2_000)
    entries: list[Any] = [{"type": "x", "uuid": f"u{n}", "text": "x" * 1_000} for n in range(30)]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries


async def test_a_late_write_after_a_delete_is_refused(store: LimpetSessionStore) -> None:
    """A process that still runs does not bring a deleted conversation back."""
    await store.append(KEY, TALK)
    await store.delete(KEY)
    with pytest.raises(SessionDeleted):
        await store.append(KEY, TALK[:1])
    assert await store.load(KEY) is None


async def test_transcripts_of_a_machine_are_imported_once(
    lp: limpet.Limpet, store: LimpetSessionStore, tmp_path: Path
) -> None:
    """Sessions and their subagents; a bad line is named; a second run adds what is new."""
    projects = tmp_path / "projects"
    project = projects / "-home-ada-shop"
    (project / "5f0c/subagents").mkdir(parents=True)
    main = project / "5f0c.jsonl"
    main.write_text("".join(json.dumps(entry) + "\n" for entry in TALK) + "not JSON\n")
    (project / "5f0c/subagents/agent-1.jsonl").write_text(json.dumps(TALK[0]) + "\n")
    (project / "5f0c/subagents/agent-1.meta.json").write_text('{"agentType": "explorer"}')
    brought = [each async for each in import_transcripts(lp, projects)]
    assert [(str(b.key), b.entries, b.unreadable) for b in brought] == [
        ("claude/-home-ada-shop/5f0c/subagents/agent-1", 1, ()),
        ("claude/-home-ada-shop/5f0c", 4, ("5f0c.jsonl:5",)),
    ]
    with main.open("a") as file:
        file.write(json.dumps({"type": "user", "uuid": "u9"}) + "\n")
    async for _ in import_transcripts(lp, project):
        pass
    assert await store.load(KEY) == [*TALK, {"type": "user", "uuid": "u9"}]
    assert await store.list_subkeys(KEY) == ["subagents/agent-1"]
    subagent: Any = {**KEY, "subpath": "subagents/agent-1"}
    meta = {"agentType": "explorer", "type": "agent_metadata"}
    assert await store.load(subagent) == [TALK[0], meta]
    assert os.listdir(project)  # noqa: PTH208  # the files stay where they are


async def test_an_imported_conversation_is_listed_whole_after_it_goes_on(
    lp: limpet.Limpet, store: LimpetSessionStore, tmp_path: Path
) -> None:
    """The SDK's list names it by its own title, whether an import or the SDK wrote last."""
    project = tmp_path / KEY["project_key"]
    project.mkdir()
    file = project / f"{KEY['session_id']}.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in TALK))
    async for _ in import_transcripts(lp, tmp_path):
        pass
    assert await store.list_session_summaries(KEY["project_key"]) == []  # the SDK reads it instead
    later = [{"type": "user", "uuid": f"later{n}", "message": {"content": "More"}} for n in (1, 2)]
    await store.append(KEY, later[:1])
    (summary,) = await store.list_session_summaries(KEY["project_key"])
    assert "Looking around" in json.dumps(summary["data"])
    titled = {"type": "custom-title", "customTitle": "Another title"}
    with file.open("a") as lines:
        lines.write(json.dumps(titled) + "\n")
    async for _ in import_transcripts(lp, tmp_path):
        pass
    assert await store.list_session_summaries(KEY["project_key"]) == []
    await store.append(KEY, later)
    (summary,) = await store.list_session_summaries(KEY["project_key"])
    assert "Another title" in json.dumps(summary["data"])


async def test_a_conversation_goes_on_at_another_machine_and_comes_back(
    lp: limpet.Limpet, store: LimpetSessionStore, tmp_path: Path
) -> None:
    """Pushed and pulled: whoever has it appends, the other is told where it is."""
    await store.append(KEY, TALK[:2])
    async with limpet.open(f"sqlite:///{tmp_path}/desk.db?sync=normal") as desk:
        there, key = LimpetSessionStore(desk), limpet.Key("claude", *KEY.values())
        assert (await lp.move(key, desk)).success
        assert await there.load(KEY) == TALK[:2]
        with pytest.raises(SessionMoved):
            await store.append(KEY, TALK[2:3])
        await there.append(KEY, TALK[1:3])
        assert (await desk.move(key, lp)).success
    await store.append(KEY, TALK[2:])
    assert await store.load(KEY) == TALK
    (summary,) = await store.list_session_summaries(KEY["project_key"])
    assert "Looking around" in json.dumps(summary["data"])


async def test_the_page_shows_how_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/claude-agent-sdk.md: options that the SDK takes, with a store that it accepts."""
    monkeypatch.chdir(tmp_path)
    given = {"ClaudeAgentOptions": ClaudeAgentOptions}
    names = await run_switching("claude-agent-sdk.md", given)
    assert names["options"].session_store is names["store"]
    await names["store"].append(KEY, TALK)
    assert await names["store"].load(KEY) == TALK
    await names["store"].close()
