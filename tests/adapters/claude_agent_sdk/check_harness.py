"""The Claude Agent SDK in a worker, with a program that is a script: no process, no network."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from claude_agent_sdk import ClaudeAgentOptions, Transport, project_key_for_directory

import limpet
from limpet.adapters.claude_agent_sdk import LimpetSessionStore, as_harness
from limpet.errors import InvalidInput
from tests.support import venvs
from tests.support.harness_kill import Notes

performed: list[str] = []
heard: list[str] = []
resumed: list[str | None] = []


class Program(Transport):
    """Asks whether it may use a tool, uses it, and answers."""

    whole: ClassVar[dict[str, int] | None] = None  # the usage of a query

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
        self._out.put_nowait({**end, **times, "uuid": str(uuid4()), "usage": self.whole})

    def _say(self, block: dict[str, Any]) -> None:
        usage = {"input_tokens": 30, "output_tokens": 12}
        message = {"model": "claude", "content": [block], "id": str(uuid4()), "usage": usage}
        if self._options.include_partial_messages:
            self._stream(message["id"], block)
        said = {"type": "assistant", "uuid": str(uuid4()), "session_id": self._id}
        self._out.put_nowait({**said, "message": message})
        self._mirror("assistant", block)

    def _stream(self, message: str, block: dict[str, Any]) -> None:
        """As the model's API sends it: the pieces of a text, then the program's own message."""
        empty = {**block, "text": ""} if block["type"] == "text" else block
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {"id": message}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
            {"type": "content_block_start", "index": 1, "content_block": empty},
        ]
        for text in block.get("text", "").partition(" "):
            delta = {"type": "text_delta", "text": text}
            events.append({"type": "content_block_delta", "index": 1, "delta": delta})
        for event in events:
            said = {"type": "stream_event", "uuid": str(uuid4()), "session_id": self._id}
            self._out.put_nowait({**said, "event": event})

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


async def test_a_stream_is_seen_by_followers(
    lp: limpet.Limpet, session: limpet.Session[Any], tmp_path: Path
) -> None:
    """Pieces of text are partials under the id of the message that has all of it."""
    ids: dict[str, str] = {}
    begun = asyncio.Event()

    async def follow() -> None:
        async with aclosing(session.follow(after=session.version)) as events:
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            begun.set()
            while (event := await following).type != "session.status_idle":
                if event.partial:
                    ids[event.id] = ids.get(event.id, "") + event.data["text"]
                following = asyncio.ensure_future(anext(events))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await begun.wait()
        await run(lp, tmp_path)
    said = [e for e in await session.read(limit=1_000) if e.type == "agent.message"]
    assert ids == {e.id: "I look." for e in said if e.data["text"] == "I look."} != {}


async def test_the_result_of_a_query_has_the_tokens_that_its_messages_lack(
    lp: limpet.Limpet, session: limpet.Session[Any], tmp_path: Path
) -> None:
    """The usage of a message is that of its beginning; the result's is whole, and counts once."""
    Program.whole = {"input_tokens": 70, "output_tokens": 500, "cache_read_input_tokens": 900}
    Program.whole |= {"cache_creation_input_tokens": 30}
    try:
        session = await run(lp, tmp_path)
        before = session.runs.usage
        await session.confirm(session.blocked_on[0].id, allow=True)
        session = await run(lp, tmp_path)
    finally:
        Program.whole = None
    used = session.runs.usage
    # Three messages of the second query say 30 and 12 each; its result says more.
    assert used.input - before.input == 70 + 900 + 30
    assert (used.output - before.output, used.cache_read) == (500, 900)


def test_a_kill_in_the_tool_resumes_the_transcript(tmp_path: Path) -> None:
    """kill -9 while the tool runs: the next process resumes and is told to continue. The tool has
    no result in the transcript, so the program may run it again: this one does."""
    url, notes = f"sqlite:///{tmp_path}/x.db", Notes(f"{tmp_path}/notes")
    module = "tests.adapters.claude_agent_sdk.harness_child"
    command = ("-m", module, url, f"{tmp_path}/notes", str(tmp_path))
    code, said = venvs.run(Path(sys.executable), *command, timeout=120)
    assert code == -signal.SIGKILL, said
    code, said = venvs.run(Path(sys.executable), *command, timeout=120)
    assert code == 0, said
    first, *rest = notes.lines()
    assert first == "None Help!"
    assert rest[0] == "tool"
    resume, _, text = rest[1].partition(" ")
    assert (resume != "None", "Continue" in text) == (True, True)
    assert rest[2:] == ["tool"]
    with limpet.open_sync(url) as lp:
        session = lp.get("support", "ada", "c1")
        assert session.messages()[-1].text == "done: allow"


async def test_what_the_options_lack_is_said_at_once(lp: limpet.Limpet, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="LimpetSessionStore"):
        as_harness(ClaudeAgentOptions())
    given = options(lp, tmp_path)
    given.can_use_tool = performed  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="can_use_tool"):
        as_harness(given)
