"""The official client of the Model Context Protocol drives `limpet mcp`, over stdio and HTTP."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import Client, StdioServerParameters, stdio_client

import limpet
from limpet.mcp import OFFERED, McpTools, http_app
from limpet.runtime.managed_tools import BY_NAME

ADA = "user:ada"
RUN = [sys.executable, "-m", "limpet.cli"]


async def answers(turn: limpet.Turn) -> None:
    await turn.say("Hello, Ada.", cost=0.1)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Two sessions of ada's, one of them with a turn, and one of eve's."""
    path = tmp_path / "support.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.create("support", "ada", "c1", state={"step": 1}, actor=ADA)
        await s.append("user.message", {"text": "Hi"}, actor=ADA)
        await lp.wake(s.key, answers)
        await lp.create("support", "ada", "c2", actor=ADA)
        await lp.create("support", "eve", "secret", state={"pin": "the code"}, actor="user:eve")
    return path


@asynccontextmanager
async def over_stdio(store: Path, *options: str) -> AsyncIterator[Client]:
    args = [*RUN[1:], "mcp", str(store), "--app", "support", "--user", "ada", *options]
    how = StdioServerParameters(command=RUN[0], args=args, env=dict(os.environ))
    async with Client(stdio_client(how)) as client:
        yield client


@contextmanager
def served(store: Path) -> Iterator[str]:
    """`limpet mcp --http` in a process of its own: its URL."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = [*RUN, "mcp", str(store), "support/ada", "--http", str(port)]
    process = subprocess.Popen(args, stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(20)


async def asked(client: Client, tool: str, **input: Any) -> Any:
    result = await client.call_tool(tool, input)
    assert not result.is_error, result
    return result.structured_content


async def refusal(client: Client, tool: str, **input: Any) -> str:
    result = await client.call_tool(tool, input)
    assert result.is_error, result
    code: str = result.structured_content["error"]["code"]
    return code


async def test_over_stdio(store: Path) -> None:
    async with over_stdio(store) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == set(OFFERED)
        assert set(BY_NAME) - names == {
            "session_delegate",
            "session_run_child",
            "permissions_check",
            "permissions_describe",
            "learning_list",
            "memory_promote_note",
        }
        listed = await asked(client, "session_list")
        assert {each["id"] for each in listed["sessions"]} == {"c1", "c2"}
        shown = await asked(client, "session_get_snapshot", session="c1")
        assert shown["state"] == {"step": 1}
        written = await asked(
            client, "memory_write", session="c1", target="session_state", value={"plan": "refund"}
        )
        assert written["version"] == 1
        read = await asked(client, "memory_read", session="c1", target="session_state")
        assert read["value"] == {"plan": "refund"}
    async with limpet.open(f"sqlite:///{store}") as lp:
        s = await lp.get("support", "ada", "c1")
        assert s.events[-1].actor == ADA, "what it writes is the user's"


async def test_over_http(store: Path) -> None:
    with served(store) as url:
        async with Client(url) as client:
            events = await asked(client, "session_get_events", session="c1", types=["agent.*"])
            assert [each["data"]["text"] for each in events["events"]] == ["Hello, Ada."]
            trace = await asked(client, "session_get_trace", session="c1")
            assert trace["spans"]


async def test_a_client_sees_one_user_alone(store: Path) -> None:
    async with over_stdio(store) as client:
        assert await refusal(client, "session_get_snapshot", session="secret") == (
            "session.not_found"
        )
        for text in ("support/eve/secret", "../eve/secret", ""):
            code = await refusal(client, "session_get_snapshot", session=text)
            assert code in ("session.not_found", "key.invalid")
        snapshot = await refusal(client, "session_get_snapshot", session="c1", id="secret")
        assert snapshot == "session.not_found"
        assert "the code" not in str(await asked(client, "session_list", limit=200))


async def test_every_result_has_the_schema_that_was_promised(store: Path) -> None:
    inputs: dict[str, dict[str, Any]] = {
        "memory_read": {"target": "session_state"},
        "memory_write": {"target": "working_buffer", "value": "x"},
        "memory_list_versions": {"target": "working_buffer"},
        "outcome_define": {"title": "refund", "criteria": ["paid"]},
    }
    async with over_stdio(store, "--session", "c1") as client:
        for tool in (await client.list_tools()).tools:
            assert tool.output_schema is not None
            jsonschema.Draft202012Validator.check_schema(tool.output_schema)
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            result = await asked(client, tool.name, **inputs.get(tool.name, {}))
            jsonschema.validate(result, tool.output_schema)


async def test_bad_input_is_a_result_that_says_what_to_do(store: Path) -> None:
    async with over_stdio(store) as client:
        assert await refusal(client, "session_get_snapshot") == "input.invalid"
        assert await refusal(client, "memory_read", session="c1", target="none") == "input.invalid"
        assert await refusal(client, "session_get_snapshot", session=7) == "input.invalid"
        assert await refusal(client, "session_delegate", session="c1") == "input.invalid"


async def test_http_is_for_this_machine(store: Path) -> None:
    async with limpet.open("memory://") as lp:
        with pytest.raises(limpet.InvalidInput, match="loopback"):
            http_app(lp, "support", "ada", host="0.0.0.0")
        assert re.match(
            "Sessions of ada", McpTools(lp, "support", "ada").server().instructions or ""
        )
