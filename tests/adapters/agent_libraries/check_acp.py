"""`limpet acp`, driven by the protocol's own client over stdio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

import limpet

HARNESS = "tests.adapters.agent_libraries.acp_harness:agent"


class Editor:
    """What an editor hears, and what its user chooses."""

    def __init__(self, chooses: str = "allow") -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.chooses = chooses

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> Any:
        self.asked.append(tool_call)
        if self.chooses == "leave":
            denied = schema.DeniedOutcome(outcome="cancelled")
            return schema.RequestPermissionResponse(outcome=denied)
        chosen = schema.AllowedOutcome(outcome="selected", option_id=self.chooses)
        return schema.RequestPermissionResponse(outcome=chosen)

    def text(self, kind: str = "agent_message_chunk") -> str:
        said = [each for each in self.updates if each.session_update == kind]
        return "".join(each.content.text for each in said)


@asynccontextmanager
async def editing(store: Path, editor: Editor) -> AsyncIterator[Any]:
    arguments = ["-m", "limpet.cli", "acp", str(store), "support/ada", "--harness", HARNESS]
    root = Path(__file__).parents[3]
    spawned = acp.spawn_agent_process(
        editor,
        sys.executable,
        *arguments,
        env={"PYTHONPATH": f"{root / 'src'}:{root}"},
        cwd=str(root),
        use_unstable_protocol=True,
    )
    async with spawned as (conn, _):
        await conn.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield conn


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "support.db"
    limpet.open_sync(f"sqlite:///{path}").close()
    return path


async def test_a_prompt_is_a_turn_and_the_session_stays(store: Path) -> None:
    """Streamed, counted, listed; another editor loads the conversation and goes on."""
    first = Editor()
    async with editing(store, first) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        done = await conn.prompt(session_id=made.session_id, prompt=[acp.text_block("hi")])
        assert (done.stop_reason, done.usage.total_tokens) == ("end_turn", 5)
        assert first.text() == "Hello."
    second = Editor()
    async with editing(store, second) as conn:
        (listed,) = (await conn.list_sessions()).sessions
        assert (listed.session_id, listed.title, listed.cwd) == (made.session_id, "hi", "/tmp")
        await conn.load_session(cwd="/tmp", session_id=made.session_id, mcp_servers=[])
        assert (second.text("user_message_chunk"), second.text()) == ("hi", "Hello.")
        fork = await conn.fork_session(session_id=made.session_id, cwd="/tmp")
        await conn.prompt(session_id=fork.session_id, prompt=[acp.text_block("more")])
        await conn.resume_session(session_id=made.session_id, cwd="/tmp")
        assert await conn.ext_method("limpet/session/delete", {"sessionId": fork.session_id})
        assert len((await conn.list_sessions()).sessions) == 1
    with limpet.open_sync(f"sqlite:///{store}") as lp:
        said = lp.get("support", "ada", made.session_id).messages()
        assert [message.text for message in said] == ["hi", "Hello."]


@pytest.mark.parametrize(("chooses", "paid"), [("allow", True), ("deny", False), ("leave", False)])
async def test_an_approval_is_asked_in_the_editor(store: Path, chooses: str, paid: bool) -> None:
    """Allowed, it is done once; denied or left, the model hears of it."""
    editor = Editor(chooses)
    async with editing(store, editor) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        done = await conn.prompt(session_id=made.session_id, prompt=[acp.text_block("refund 7")])
        assert done.stop_reason == "end_turn"
    assert [(call.title, call.raw_input) for call in editor.asked] == [("refund", {"order": 7})]
    assert ("receipt 7" in editor.text()) is paid
    states = [u.status for u in editor.updates if u.session_update == "tool_call_update"]
    assert states[-1] == ("completed" if paid else "failed")


async def test_a_foreign_session_is_not_found(store: Path) -> None:
    with limpet.open_sync(f"sqlite:///{store}") as lp:
        lp.create("support", "bob", "c1")
    async with editing(store, Editor()) as conn:
        with pytest.raises(acp.RequestError):
            await conn.load_session(cwd="/tmp", session_id="c1", mcp_servers=[])
