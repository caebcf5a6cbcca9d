"""`limpet acp`, driven by the protocol's own client over stdio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

import limpet
from limpet.acp import AcpAgent

HARNESS = "tests.adapters.agent_libraries.acp_harness:agent"


class Editor:
    """What an editor hears, and what its user chooses."""

    def __init__(self, chooses: str = "allow") -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.chooses = chooses
        self.heard, self.heard_question = asyncio.Event(), asyncio.Event()
        self.cancelled = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.heard.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> Any:
        self.asked.append(tool_call)
        self.heard_question.set()
        if self.chooses == "wait":
            await self.cancelled.wait()
        if self.chooses in ("leave", "wait"):
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
        assert first.text("agent_thought_chunk") == "A greeting."
    second = Editor()
    async with editing(store, second) as conn:
        (listed,) = (await conn.list_sessions()).sessions
        assert (listed.session_id, listed.title, listed.cwd) == (made.session_id, "hi", "/tmp")
        await conn.load_session(cwd="/tmp", session_id=made.session_id, mcp_servers=[])
        assert (second.text("user_message_chunk"), second.text()) == ("hi", "Hello.")
        fork = await conn.fork_session(session_id=made.session_id, cwd="/tmp")
        await conn.prompt(session_id=fork.session_id, prompt=[acp.text_block("more")])
        await conn.resume_session(session_id=made.session_id, cwd="/tmp")
        await conn._conn.send_request("session/delete", {"sessionId": fork.session_id})
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


async def test_a_cancelled_turn_ends_its_prompt(store: Path) -> None:
    """The model is stopped where it was, the prompt ends as cancelled, and the next one runs."""
    editor = Editor()
    async with editing(store, editor) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        prompt = asyncio.create_task(
            conn.prompt(session_id=made.session_id, prompt=[acp.text_block("wait")])
        )
        await editor.heard.wait()
        await conn.cancel(session_id=made.session_id)
        assert (await prompt).stop_reason == "cancelled"
        done = await conn.prompt(session_id=made.session_id, prompt=[acp.text_block("hi")])
        assert done.stop_reason == "end_turn"
        assert editor.text().endswith("Hello.")


async def test_a_prompt_is_cancelled_while_the_user_is_asked(store: Path) -> None:
    """The editor answers an open question with "cancelled", as the protocol has it: no payment."""
    editor = Editor("wait")
    async with editing(store, editor) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        prompt = asyncio.create_task(
            conn.prompt(session_id=made.session_id, prompt=[acp.text_block("refund 7")])
        )
        await editor.heard_question.wait()
        await conn.cancel(session_id=made.session_id)
        editor.cancelled.set()
        assert (await prompt).stop_reason == "cancelled"
    assert "receipt" not in editor.text()


async def test_an_editor_that_died_while_it_asked_is_asked_again(store: Path) -> None:
    """The question is still open: the next prompt asks it, and then answers what was said."""
    gone = Editor("wait")
    async with editing(store, gone) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        prompt = asyncio.create_task(
            conn.prompt(session_id=made.session_id, prompt=[acp.text_block("refund 7")])
        )
        await gone.heard_question.wait()
    prompt.cancel()
    editor = Editor()
    async with editing(store, editor) as conn:
        await conn.load_session(cwd="/tmp", session_id=made.session_id, mcp_servers=[])
        done = await conn.prompt(session_id=made.session_id, prompt=[acp.text_block("and?")])
        assert done.stop_reason == "end_turn"
        assert [call.title for call in editor.asked] == ["refund"]
    with limpet.open_sync(f"sqlite:///{store}") as lp:
        session = lp.get("support", "ada", made.session_id)
        results = [e for e in session.read(limit=1_000) if e.type == "agent.tool_result"]
        assert [e.data["output"] for e in results] == ["receipt 7"]


async def test_a_turn_that_fails_for_good_ends_its_prompt() -> None:
    """The editor hears why. In this process: a worker of the command tries for a minute."""

    async def failing(turn: limpet.Turn) -> None:
        raise ValueError("no such order")

    async with limpet.open("memory://") as lp:
        agent = AcpAgent(lp, "support", "ada")
        agent.on_connect(Editor())
        worker = limpet.Worker(lp, failing, app="support", retries=0, signals=False)
        working = asyncio.create_task(worker.run())
        made = await agent.new_session("/tmp")
        async with asyncio.timeout(60):
            with pytest.raises(acp.RequestError) as caught:
                await agent.prompt(made.session_id, [acp.text_block("fail")])
            with pytest.raises(acp.RequestError) as again:  # no worker takes what is said now
                await agent.prompt(made.session_id, [acp.text_block("and?")])
        assert "no such order" in str(caught.value.data)
        assert "no such order" in str(again.value.data)
        worker.stop()
        await working


async def test_a_prompt_to_a_suspended_session_ends_at_once() -> None:
    """Nobody works on it before it is resumed. What was said is kept until then."""
    async with limpet.open("memory://") as lp:
        agent = AcpAgent(lp, "support", "ada")
        agent.on_connect(Editor())
        made = await agent.new_session("/tmp")
        session = await lp.get("support", "ada", made.session_id)
        await session.suspend("by hand")
        async with asyncio.timeout(60):
            with pytest.raises(acp.RequestError) as caught:
                await agent.prompt(made.session_id, [acp.text_block("hi")])
        assert "resume" in str(caught.value.data)
        await session.refresh()
        assert session.head.pending == 1


async def test_a_session_is_deleted_by_the_protocols_own_method(store: Path) -> None:
    """session/delete: the session is not listed, not loaded and not prompted any more."""
    async with editing(store, Editor()) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        request = {"sessionId": made.session_id}
        await conn._conn.send_request("session/delete", request)
        assert (await conn.list_sessions()).sessions == []
        for ask in (
            conn.load_session(cwd="/tmp", session_id=made.session_id, mcp_servers=[]),
            conn.prompt(session_id=made.session_id, prompt=[acp.text_block("hi")]),
        ):
            with pytest.raises(acp.RequestError):
                await ask
        await conn._conn.send_request("session/delete", request)  # once more: it is gone already


async def test_what_an_editor_asks_wrongly_is_said_by_the_protocols_code(store: Path) -> None:
    """An empty prompt, a cursor of nothing; a directory may have any name."""
    where = "/" + "deep/" * 100 + " "
    async with editing(store, Editor()) as conn:
        made = await conn.new_session(cwd=where, mcp_servers=[])
        (listed,) = (await conn.list_sessions(cwd=where)).sessions
        assert (listed.session_id, listed.cwd) == (made.session_id, where)
        assert (await conn.list_sessions(cwd="/deep")).sessions == []
        for ask in (
            conn.prompt(session_id=made.session_id, prompt=[]),
            conn.list_sessions(cursor="nowhere"),
        ):
            with pytest.raises(acp.RequestError) as caught:
                await ask
            assert caught.value.code == acp.RequestError.invalid_params().code


async def test_a_large_prompt_in_every_script_arrives_whole(store: Path) -> None:
    """Half a megabyte with characters outside the basic plane."""
    text = "αβ🦪\u2028\x00 " * 60_000
    async with editing(store, Editor()) as conn:
        made = await conn.new_session(cwd="/tmp", mcp_servers=[])
        await conn.prompt(session_id=made.session_id, prompt=[acp.text_block(text)])
    with limpet.open_sync(f"sqlite:///{store}") as lp:
        assert lp.get("support", "ada", made.session_id).messages()[0].text == text
