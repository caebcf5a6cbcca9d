"""The Claude Agent SDK in a worker, with a program that is a script: no process, no network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from claude_agent_sdk import ClaudeAgentOptions, Transport, project_key_for_directory

import limpet
from limpet.adapters.claude_agent_sdk import LimpetSessionStore, as_harness
from limpet.errors import InvalidInput

performed: list[str] = []
heard: list[str] = []
resumed: list[str | None] = []


class Program(Transport):
    """Asks whether it may use a tool, uses it, and answers."""

    def __init__(self, options: ClaudeAgentOptions) -> None:
        self._options = options
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._id = options.resume or options.session_id
        resumed.append(options.resume)

    async def connect(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass

    async def close(self) -> None:
        self._out.put_nowait(None)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._out.get()) is not None:
            yield message

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            self._out.put_nowait({"type": "control_response", "response": answer})
        elif message["type"] == "user":
            heard.append(message["message"]["content"])
            self._mirror("user", heard[-1])
            self._say({"type": "text", "text": "I look."})
            self._say({"type": "tool_use", "id": "t1", "name": "Refund", "input": {"order": 7}})
            asked = {"subtype": "can_use_tool", "tool_name": "Refund", "input": {"order": 7}}
            asked |= {"tool_use_id": "t1"}
            self._out.put_nowait({"type": "control_request", "request_id": "r", "request": asked})
        elif message["type"] == "control_response":
            self._finish(message["response"]["response"]["behavior"])

    def _finish(self, behavior: str) -> None:
        performed.append(behavior)
        result = {"type": "tool_result", "tool_use_id": "t1", "content": behavior}
        content = {"role": "user", "content": [result]}
        self._out.put_nowait({"type": "user", "uuid": str(uuid4()), "message": content})
        self._say({"type": "text", "text": f"done: {behavior}"})
        end = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1}
        times = {"duration_ms": 1, "duration_api_ms": 1, "session_id": self._id}
        self._out.put_nowait({**end, **times})

    def _say(self, block: dict[str, Any]) -> None:
        usage = {"input_tokens": 30, "output_tokens": 12}
        message = {"model": "claude", "content": [block], "id": str(uuid4()), "usage": usage}
        said = {"type": "assistant", "uuid": str(uuid4()), "session_id": self._id}
        self._out.put_nowait({**said, "message": message})
        self._mirror("assistant", block)

    def _mirror(self, type: str, content: Any) -> None:
        """As the program does: its file goes to the store."""
        project = project_key_for_directory(self._options.cwd)
        path = Path(self._options.env["CLAUDE_CONFIG_DIR"]) / "projects" / project
        entry = {"type": type, "uuid": str(uuid4()), "message": {"role": type, "content": content}}
        entry["message"]["content"] = content if isinstance(content, str) else [content]
        frame = {"filePath": str(path / f"{self._id}.jsonl"), "entries": [entry]}
        self._out.put_nowait({"type": "transcript_mirror", **frame})


@pytest.fixture
async def session(lp: limpet.Limpet) -> limpet.Session[Any]:
    for notes in (performed, heard, resumed):
        notes.clear()
    made = await lp.create("support", "ada", "c1", budget=limpet.Budget(tokens=10_000))
    await made.append("user.message", {"text": "Help!"}, actor="user:ada")
    return made


def options(lp: limpet.Limpet, folder: Path) -> ClaudeAgentOptions:
    return ClaudeAgentOptions(
        session_store=LimpetSessionStore(lp),
        session_store_flush="eager",
        cwd=str(folder),
        env={"CLAUDE_CONFIG_DIR": str(folder / "config")},
    )


async def run(lp: limpet.Limpet, folder: Path) -> limpet.Session[Any]:
    harness = as_harness(options(lp, folder), transport=Program)
    await limpet.Worker(lp, harness, app="support", idle_exit=True, signals=False).run()
    return await lp.get("support", "ada", "c1")


@pytest.mark.parametrize("allow", [True, False])
async def test_a_permission_pauses_the_turn_and_the_conversation_is_resumed(
    lp: limpet.Limpet, session: limpet.Session[Any], tmp_path: Path, *, allow: bool
) -> None:
    """The question is not asked a second time, the answer reaches the program, tokens count."""
    session = await run(lp, tmp_path)
    (request,) = session.blocked_on
    assert (request.kind, dict(request.input)) == ("approval", {"order": 7})
    assert request.name.startswith("Refund")
    assert performed == []
    await session.confirm(request.id, allow=allow)
    session = await run(lp, tmp_path)
    assert (session.stop_reason, session.blocked_on) == ("end_turn", ())
    assert performed == ["allow" if allow else "deny"]
    assert heard[0] == "Help!"
    assert "Continue" in heard[1]
    assert resumed[0] is None
    assert resumed[1] is not None
    assert (await session.messages())[-1].text == f"done: {performed[0]}"
    budget = session.runs.budget
    assert budget is not None
    assert budget.spent.tokens == 5 * (30 + 12)  # what it said before the pause counts


async def test_a_second_turn_resumes_with_its_own_prompt(
    lp: limpet.Limpet, session: limpet.Session[Any], tmp_path: Path
) -> None:
    session = await run(lp, tmp_path)
    await session.confirm(session.blocked_on[0].id, allow=True)
    session = await run(lp, tmp_path)
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, tmp_path)
    assert heard[2] == "And now?"
    assert resumed[2] == resumed[1]


async def test_what_the_options_lack_is_said_at_once(lp: limpet.Limpet, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="LimpetSessionStore"):
        as_harness(ClaudeAgentOptions())
    given = options(lp, tmp_path)
    given.can_use_tool = performed  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="can_use_tool"):
        as_harness(given)
