"""The program that the SDK brings, in a worker, against a model that answers on this machine.

The program runs as it is installed. Its API is a server here; everything else it might want to
reach goes to a closed port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import claude_agent_sdk
import pytest
from claude_agent_sdk import ClaudeAgentOptions

import limpet
from limpet.adapters.claude_agent_sdk import LimpetSessionStore, as_harness

PROGRAM = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
SECONDS_MAX = 120  # for two starts of the program


def answer(text: str) -> bytes:
    """A message of the model, as its API streams it."""
    usage = {"input_tokens": 3, "output_tokens": 1}
    empty = {"id": "m", "type": "message", "role": "assistant", "model": "fake", "content": []}
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**empty, "usage": usage}},
        {"type": "content_block_start", **block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
    return "".join(lines).encode()


@asynccontextmanager
async def model() -> AsyncIterator[tuple[str, list[Any]]]:
    """The address of an API that counts what it was asked, and the requests."""
    asked: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = [line for line in head.split("\r\n") if line.startswith("content-length:")]
        body = await reader.readexactly(int(size[0].split(":")[1])) if size else b""
        said = b"{}"
        if "/v1/messages" in head.split("\r\n")[0] and body:
            asked.append(json.loads(body))
            said = answer(f"Answer {len(asked)}.")
        lines = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close"
        writer.write(f"{lines}\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@pytest.mark.skipif(not PROGRAM.exists(), reason="this wheel of the SDK has no program")
async def test_the_program_itself_runs_in_a_worker_and_resumes(tmp_path: Path) -> None:
    """Two turns are one conversation: the second is resumed from the store, not from a file."""
    async with model() as (url, asked), limpet.open("memory://") as lp:
        session = await lp.create("support", "ada", "c1")
        for turn, text in enumerate(("Hello", "And again")):
            home = tmp_path / f"machine{turn}"  # another one for each: it has no file of the first
            home.mkdir()
            env = {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CONFIG_DIR": str(home),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "HOME": str(home),
                "HTTP_PROXY": "http://127.0.0.1:9",
                "HTTPS_PROXY": "http://127.0.0.1:9",
                "NO_PROXY": "127.0.0.1",
            }
            options = ClaudeAgentOptions(
                session_store=LimpetSessionStore(lp),
                session_store_flush="eager",
                cwd=str(tmp_path),
                env=env,
                model="fake",
                setting_sources=[],
            )
            await session.append("user.message", {"text": text}, actor="user:ada")
            async with asyncio.timeout(SECONDS_MAX):
                woken = await lp.wake(session.key, as_harness(options))
            assert woken.reason == "end_turn"
        said = [(m.role, m.text) for m in await session.messages()]
        assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
        assert [text for role, text in said if role == "user"] == ["Hello", "And again"]
        assert all(text.startswith("Answer ") for role, text in said if role == "assistant")
        assert said[1][1] in json.dumps(asked[-1])  # the model was given the first answer again
