"""LimpetConversationStore beside pydantic-ai's own store in memory, with its own test model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel

import limpet
from limpet.adapters.pydantic_ai import LimpetConversationStore
from tests.support.switching import run_switching

agent = Agent(TestModel(), system_prompt="Be brief.")


@agent.tool_plain
def weather(city: str) -> str:
    return f"sunny in {city}"


async def talk(store: ConversationStore, id: str, text: str, **scope: Any) -> Conversation:
    conversation = await store.load(id) or Conversation(conversation_id=id)
    result = await agent.run(text, conversation=conversation)
    await store.save(result, **scope)
    return result.conversation


async def messages(store: ConversationStore, id: str, **given: Any) -> list[Any] | None:
    loaded = await store.load(id, **given)
    return None if loaded is None else list(loaded.messages)


@pytest.fixture
def store(lp: limpet.Limpet) -> LimpetConversationStore:
    return LimpetConversationStore(lp)


async def test_a_conversation_goes_on_elsewhere(
    lp: limpet.Limpet, store: LimpetConversationStore
) -> None:
    """Another object, another process: the messages are equal, and read without pydantic-ai."""
    said = await talk(store, "c1", "hello")
    other = LimpetConversationStore(lp)
    assert await messages(other, "c1") == said.messages
    said = await talk(other, "c1", "again")
    assert await messages(store, "c1") == said.messages
    assert await messages(store, "c1", limit=2) == said.messages[-2:]
    session = await lp.get("pydantic-ai", "default", "c1")
    roles = [m.role for m in await session.messages()]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert session.head.pending == 0
    counted = session.runs.usage  # also of the answer that was only a call
    assert (counted.input, counted.output) == (
        said.usage.input_tokens,
        said.usage.output_tokens,
    )


async def test_of_two_savers_one_is_told(store: LimpetConversationStore) -> None:
    """Both loaded the same revision: the second save is a conflict, and nothing of it is stored."""
    await talk(store, "c1", "hello")
    loaded = [await store.load("c1") for _ in range(2)]
    results = [await agent.run("more", conversation=each) for each in loaded]
    saves = await asyncio.gather(*map(store.save, results), return_exceptions=True)
    assert sorted(type(each).__name__ for each in saves) == ["ConversationConflict", "list"]
    winner = results[[isinstance(each, list) for each in saves].index(True)]
    assert await messages(store, "c1") == winner.conversation.messages
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(conversation_id="c1"))


async def test_scopes_are_kept_apart(store: LimpetConversationStore) -> None:
    """A conversation of another scope is treated as one that is not there."""
    await talk(store, "c1", "hello", scope="ada")
    await talk(store, "c2", "hello", scope="bob")
    assert await messages(store, "c1", scope="bob") is None
    listed = await store.list_conversations(scope="ada")
    assert [record.conversation_id for record in listed] == ["c1"]
    assert [r.conversation_id for r in await store.list_conversations(limit=1)] == ["c2"]
    await store.delete("c1", scope="bob")
    assert await messages(store, "c1") is not None


async def test_branches_and_forks_are_as_in_their_own_store(
    lp: limpet.Limpet, store: LimpetConversationStore
) -> None:
    """The same steps on both stores lead to the same messages; a left branch goes out of view."""
    seen: list[list[Any]] = []
    for each in (store, InMemoryConversationStore()):
        texts: list[Any] = []
        for text in ("one", "two", "three"):
            await talk(each, "c1", text)
        record = await each.read_record("c1")
        assert record is not None
        branched = await each.branch("c1", at=4, expected_revision=record.revision)
        await each.save(await agent.run("other", conversation=branched))
        texts.append(_prompts(await messages(each, "c1")))
        record = await each.read_record("c1")
        assert record is not None
        back = await each.branch(
            "c1", from_entry=record.branches[0], expected_revision=record.revision
        )
        texts.append(_prompts(list(back.messages)))
        await each.fork("c1", at=6, new_conversation_id="c2")
        await talk(each, "c2", "forked")
        await each.delete("c1")
        texts.append(_prompts(await messages(each, "c2")))
        assert await messages(each, "c1") is None
        seen.append(texts)
    assert seen[0] == seen[1]
    assert seen[0] == [["one", "other"], ["one", "two", "three"], ["one", "two", "forked"]]
    entries = await store.load_entries("c2")
    assert entries is not None
    fresh = LimpetConversationStore(lp)  # knows of no entry yet
    assert (await fresh.read_entry(entries[0].id)).message == entries[0].message
    with pytest.raises(LookupError):
        await fresh.read_entry("nowhere")
    shown = [m.text for m in await lp.session("pydantic-ai", "default", "c2").messages()]
    assert [text for text in shown if text in ("one", "two", "three", "forked")] == [
        "one",
        "two",
        "forked",
    ]


def _prompts(given: list[Any] | None) -> list[str]:
    assert given is not None
    parts = [part for message in given for part in message.parts]
    return [part.content for part in parts if part.part_kind == "user-prompt"]


async def test_a_record_is_checked_as_in_their_own_store(store: LimpetConversationStore) -> None:
    """At an entry that is nowhere it is a conflict; it may begin with others' entries and its own,
    be moved onto others' entries, and change its scope, which is any text."""
    for each in (store, InMemoryConversationStore()):
        await talk(each, "c1", "one")
        kept = await each.read_record("c1")
        assert kept is not None
        lost = replace(kept, head_id="nowhere", revision="x")
        with pytest.raises(ConversationConflict):
            await each.write_record(lost, expected_revision=kept.revision)
        with pytest.raises(ConversationConflict):
            await each.write_record(replace(lost, conversation_id="c2"), expected_revision=None)
        own = ConversationEntry(
            parent_id=kept.head_id, message=ModelRequest(parts=[UserPromptPart("two")])
        )
        begun = ConversationRecord(conversation_id="c2", head_id=own.id, scope=" a ")
        await each.write_record(begun, new_entries=[own], expected_revision=None)
        assert _prompts(await messages(each, "c2")) == ["one", "two"]
        await talk(each, "c3", "three")
        record = await each.read_record("c3")
        assert record is not None
        moved = replace(begun, conversation_id="c3", scope="b" * 300, revision="y")
        await each.write_record(moved, expected_revision=record.revision)
        assert _prompts(await messages(each, "c3")) == ["one", "two"]
        again = replace(moved, scope=None, revision="z")
        for scope, found in ((" a ", ["c2"]), ("b" * 300, ["c3"])):
            assert [r.conversation_id for r in await each.read_records(scope=scope)] == found
        await each.write_record(again, expected_revision="y")
        assert await each.read_records(scope="b" * 300) == []


async def test_a_deleted_conversation_begins_again_from_nothing(
    store: LimpetConversationStore,
) -> None:
    """A copy from before the deletion cannot be saved over the new one."""
    old = await talk(store, "c1", "old")
    await store.delete("c1")
    with pytest.raises(ConversationConflict):
        await store.save(old)
    new = await talk(store, "c1", "new")
    assert await messages(store, "c1") == new.messages


async def test_the_page_shows_how_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/pydantic-ai.md: its lines, and what follows them "as ever"."""
    monkeypatch.chdir(tmp_path)
    for count in (2, 4):
        names = await run_switching("pydantic-ai.md", {"Conversation": Conversation})
        speaker: Agent[Any, Any] = Agent(TestModel(custom_output_text="hi"))
        result = await speaker.run("hello", conversation=names["conversation"])
        await names["store"].save(result)
        assert len(result.conversation.messages) == count
        await names["store"].close()
