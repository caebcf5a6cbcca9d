"""The Claude Agent SDK in a worker. No network: the program that the SDK brings talks to a model
that answers on this machine.

    python examples/claude_agent.py sqlite:///claude.db "Hello" "And again"

Each text is a turn. The second resumes the conversation from the store, in an empty home directory:
it could be another machine. Needs the extra `claude-agent-sdk`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions

import limpet
from limpet.adapters.claude_agent_sdk import LimpetSessionStore, as_harness


def answer(request: dict[str, Any]) -> bytes:
    """What the model says, as its API streams it: how many questions it was asked by then."""
    asked = sum(message["role"] == "user" for message in request["messages"])
    text = f"I know {asked} of your messages."
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
async def model() -> AsyncIterator[str]:
    """The address of an API with one model."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = [line for line in head.split("\r\n") if line.startswith("content-length:")]
        body = await reader.readexactly(int(size[0].split(":")[1])) if size else b""
        is_asked = "/v1/messages" in head.split("\r\n")[0] and body
        said = answer(json.loads(body)) if is_asked else b"{}"
        lines = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close"
        writer.write(f"{lines}\r\nContent-Length: {len(said)}\r\n\r\n".encode() + said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def machine(home: str, model_url: str) -> dict[str, str]:
    """The environment of the SDK's program: files in `home`, and nothing to reach but the model."""
    return {
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": home,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "HOME": home,
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }


async def main(url: str, *texts: str) -> None:
    async with model() as model_url, limpet.open(url) as lp:
        session = await lp.get_or_create("support", "ada", "c1")
        for text in texts:
            await session.append("user.message", {"text": text}, actor="user:ada")
            with tempfile.TemporaryDirectory() as home:
                options = ClaudeAgentOptions(
                    session_store=LimpetSessionStore(lp),
                    session_store_flush="eager",
                    cwd=tempfile.gettempdir(),  # the same for both: it names the project
                    env=machine(home, model_url),
                    model="fake",
                    setting_sources=[],
                )
                harness = as_harness(options)
                await limpet.Worker(lp, harness, app="support", idle_exit=True, signals=False).run()
        for message in await session.messages():
            print(f"{message.role}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
