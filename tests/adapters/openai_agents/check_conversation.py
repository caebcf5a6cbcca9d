"""What LimpetSession records is a conversation of ours, and what others record is one of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from agents import SQLiteSession

import limpet
from limpet.adapters.openai_agents import LimpetSession
from tests.adapters.openai_agents.items import EVERY_KIND, assistant, call, output, user


async def test_messages_read_what_was_added(lp: limpet.Limpet) -> None:
    """Roles, texts, pictures, calls and their outcomes, whatever kind of item held them."""
    session = LimpetSession("c1", lp)
    await session.add_items(EVERY_KIND)
    read = await lp.session(session.key).messages()
    assert [message.role for message in read] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    picture = {"type": "image", "media_type": "image/png", "data": "iVBORw0"}
    assert read[1].parts == ({"type": "text", "text": "What is this?"}, picture)
    use = {"type": "tool_use", "request_id": "call_1", "name": "weather"}
    assert read[2].parts == ({**use, "input": {"city": "Oslo"}},)
    assert read[3].parts[0]["output"] == "rain"
    assert read[4].parts[0]["name"] == "shell_call"
    assert read[5].parts[0]["output"] == [{"stdout": "a", "stderr": ""}]
    assert read[6].parts == ({"type": "text", "text": "A red square."},)


async def test_messages_leave_out_what_was_popped_or_cleared(lp: limpet.Limpet) -> None:
    """The conversation is what the framework sees of it."""
    session = LimpetSession("c1", lp)
    await session.add_items([user("gone")])
    await session.clear_session()
    await session.add_items([user("kept"), call("x"), assistant("taken back")])
    await session.pop_item()
    read = await lp.session(session.key).messages()
    assert [message.role for message in read] == ["user", "assistant", "tool"]
    assert read[2].synthetic  # the call was never answered, and a model must hear so


async def test_a_pop_that_names_its_items_takes_these(lp: limpet.Limpet) -> None:
    """As another framework's redaction does; the newest that it does not name stays."""
    session = LimpetSession("c1", lp)
    await session.add_items([user("first"), user("secret"), user("last")])
    log = lp.session(session.key)
    (secret,) = [event for event in await log.read() if event.data.get("text") == "secret"]
    await log.append("view.popped", {"seqs": [secret.seq]}, actor="agent:other")
    texts = [item["content"] for item in await session.get_items()]
    assert texts == [message.text for message in await log.messages()] == ["first", "last"]
    await session.pop_item()
    assert [message.text for message in await log.messages()] == ["first"]


async def test_a_conversation_goes_on_that_another_door_began(lp: limpet.Limpet) -> None:
    """Messages and calls that were recorded without the framework come as items of its kind."""
    began = await lp.create("support", "ada", "c1", actor="user:ada")
    await began.append("user.message", {"text": "Weather?"})
    await began.append("agent.tool_use", {"request_id": "r", "name": "weather", "input": {"at": 1}})
    await began.append("agent.tool_result", {"request_id": "r", "output": {"sky": "grey"}})
    parts = [{"type": "text", "text": "Grey."}, {"type": "image", "url": "https://x.example/a"}]
    await began.append("agent.message", {"content": parts})
    await began.append("ticket.closed", {"text": "not said to anyone"})
    session = LimpetSession("c1", lp, app="support", user="ada")
    called = {"type": "function_call", "call_id": "r", "name": "weather", "arguments": '{"at": 1}'}
    assert await session.get_items() == [
        user("Weather?"),
        called,
        output("r", '{"sky": "grey"}'),
        {"role": "assistant", "content": "Grey."},
    ]
    assert (await session.pop_item() or {})["content"] == "Grey."


# --- damage -------------------------------------------------------------------------------------


def damage(file: Path, statement: str) -> None:
    conn = apsw.Connection(str(file))
    conn.execute(statement)
    assert conn.changes() == 1
    conn.close()


async def filled(session: Any) -> None:
    for n in range(5):
        await session.add_items([user(f"message {n}")])


async def test_a_corrupt_item_is_left_out_and_reported(tmp_path: Path) -> None:
    """The rest is served, limits count what can be read, and pops go past it."""
    file = tmp_path / "x.db"
    session = LimpetSession("c1", f"sqlite:///{file}")
    await filled(session)
    await session.close()
    damage(file, "UPDATE events SET body = x'ff00' WHERE seq = 6")
    session = LimpetSession("c1", f"sqlite:///{file}")
    assert [i["content"] for i in await session.get_items()] == [f"message {n}" for n in range(4)]
    assert [i["content"] for i in await session.get_items(2)] == ["message 2", "message 3"]
    await session.add_items([user("after")])
    assert [await session.pop_item(), await session.pop_item()] == [
        user("after"),
        user("message 3"),
    ]
    await session.close()
    async with limpet.open(f"sqlite:///{file}") as lp:
        (finding,) = (await lp.maintenance.verify()).findings
        assert finding.key == session.key


async def test_their_session_is_unreadable_for_one_corrupt_item(tmp_path: Path) -> None:
    """The same damage, one byte that is no text, in openai-agents' own SQLiteSession."""
    session = SQLiteSession("c1", tmp_path / "x.db")
    await filled(session)
    session.close()
    damage(
        tmp_path / "x.db",
        "UPDATE agent_messages SET message_data = CAST(x'ff00' AS TEXT) WHERE id = 5",
    )
    again = SQLiteSession("c1", tmp_path / "x.db")
    with pytest.raises(Exception, match="UTF-8"):
        await again.get_items()
    again.close()


async def test_a_changed_item_is_noticed(tmp_path: Path) -> None:
    """What somebody edits in the file is named by verify; SQLiteSession hands it to the model."""
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    session, other = LimpetSession("c1", f"sqlite:///{ours}"), SQLiteSession("c1", theirs)
    await filled(session)
    await filled(other)
    await session.close()
    other.close()
    damage(ours, "UPDATE events SET body = (SELECT body FROM events WHERE seq = 2) WHERE seq = 3")
    damage(
        theirs,
        "UPDATE agent_messages SET message_data = "
        "(SELECT message_data FROM agent_messages WHERE id = 1) WHERE id = 2",
    )
    async with limpet.open(f"sqlite:///{ours}") as lp:
        assert (await lp.maintenance.verify()).findings
        assert len(await LimpetSession("c1", lp).get_items()) == 4
    other = SQLiteSession("c1", theirs)
    assert [i["content"] for i in await other.get_items()][:2] == ["message 0", "message 0"]
    other.close()
