"""The official client drives `limpet mcp` on the URL of a server, which this process does not run:
its URL is in SERVED, and a key of each kind in KEYS. See test_mcp.py."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

SERVED = os.environ["SERVED"]
KEYS: dict[str, str] = json.loads(os.environ["KEYS"])


@asynccontextmanager
async def with_key(key: str) -> AsyncIterator[Client]:
    args = ["-m", "limpet.cli", "mcp", SERVED, "--app", "support", "--user", "ada"]
    env = {**os.environ, "LIMPET_TOKEN": key}
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=args, env=env))
    ) as client:
        yield client


async def called(client: Client, tool: str, **input: Any) -> Any:
    return (await client.call_tool(tool, input)).structured_content


async def test_a_key_of_the_user_reads_and_writes() -> None:
    """As the user, and nobody else's sessions."""
    async with with_key(KEYS["owner"]) as client:
        listed = await called(client, "session_list")
        assert [each["id"] for each in listed["sessions"]] == ["c1"]
        place: dict[str, Any] = {"session": "c1", "target": "session_state"}
        await called(client, "memory_write", **place, value={"plan": "refund"})
        assert (await called(client, "memory_read", **place))["value"] == {"plan": "refund"}
        events = await called(client, "session_get_events", session="c1")
        assert {each["actor"] for each in events["events"]} == {"user:ada"}
        other = await called(client, "session_get_snapshot", session="secret")
        assert other["error"]["code"] == "session.not_found"


@pytest.mark.parametrize("role", ["viewer", "agent"])
async def test_a_key_of_another_role_reads_what_it_may_and_writes_nothing(role: str) -> None:
    """What it writes would be the user's words, which are not its own to say."""
    async with with_key(KEYS[role]) as client:
        assert (await called(client, "session_get_snapshot", session="c1"))["id"] == "c1"
        written = await called(
            client, "memory_write", session="c1", target="working_buffer", value="x"
        )
        assert written["error"]["code"] == "access.denied"


async def test_a_key_of_another_user_opens_nothing() -> None:
    """Neither a list nor a session."""
    async with with_key(KEYS["eve"]) as client:
        for tool, input in (("session_list", {}), ("session_get_snapshot", {"session": "c1"})):
            assert (await called(client, tool, **input))["error"]["code"] == "access.denied"
