"""AG-UI at /agui, read with the protocol's own types, over a real server and a real worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from ag_ui.core import AgentCapabilities, Event, RunAgentInput
from pydantic import TypeAdapter

import limpet
from limpet.server.routes.agui import client_tools, json_patch
from limpet.server.serve import serving

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
PLACE = {"limpet-app": "support", "limpet-user": "ada"}


@limpet.tool(permission="always_ask")
def refund(order: int) -> str:
    """Pay money back."""
    return f"receipt {order}"


async def model(request: limpet.ModelRequest) -> Any:
    """Scripted by what the user said last."""
    last = request.messages[-1]
    said = last["content"] if last["role"] == "user" else ""
    if last["role"] == "tool":
        yield limpet.Piece(text=f"Done: {last['content']}")
    elif said.startswith("refund"):
        yield limpet.Piece(text="I ask. ")
        yield limpet.Piece(
            tool={"index": 0, "id": "p1", "name": "refund", "arguments": '{"order": 7}'}
        )
    elif said.startswith("color"):
        yield limpet.Piece(
            tool={"index": 0, "id": "p2", "name": "paint", "arguments": '{"color": "red"}'}
        )
    else:
        for piece in ("Hel", "lo, ", said, "."):
            yield limpet.Piece(text=piece)
    yield limpet.Piece(usage={"input": 3, "output": 2})


async def harness(turn: limpet.Turn) -> None:
    """An agent with a tool that asks, the screen's own tools, and state that it changes."""
    tools = [refund, *client_tools(turn.state)]
    await turn.step("count", lambda: 1)
    await turn.session.append(
        "agent.noted", actor="agent:main", inc={"turns": 1}, add={"log": ["turn"]}
    )
    for n in range(4):
        reply = await turn.model(f"m{n}", model, tools=tools)
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            await turn.tool(call)


@asynccontextmanager
async def screen() -> AsyncIterator[tuple[limpet.Limpet, httpx.AsyncClient]]:
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        worker = limpet.Worker(lp, harness, app="support", signals=False)
        working = asyncio.create_task(worker.run())
        try:
            async with httpx.AsyncClient(base_url=url, headers=PLACE, timeout=60) as client:
                yield lp, client
        finally:
            worker.stop()
            await working


def asked(*messages: tuple[str, str], run: str = "r1", **more: Any) -> dict[str, Any]:
    said = [{"id": id, "role": "user", "content": text} for id, text in messages]
    given = RunAgentInput.model_validate(
        {"threadId": "t1", "runId": run, "messages": said, "tools": [], "context": [], **more}
    )
    return given.model_dump(mode="json", by_alias=True, exclude_none=True)


async def events(client: httpx.AsyncClient, body: dict[str, Any], stop: int = 0) -> list[Any]:
    """The events of a run, each checked by the protocol's own types; the first `stop` of them."""
    seen: list[Any] = []
    async with client.stream("POST", "/agui", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                EVENTS.validate_json(line[6:])
                seen.append(json.loads(line[6:]))
                if len(seen) == stop:
                    break
    return seen


def text_of(seen: list[Any]) -> str:
    return "".join(e["delta"] for e in seen if e["type"] == "TEXT_MESSAGE_CONTENT")


def types(seen: list[Any]) -> list[str]:
    return [each["type"] for each in seen]


def patched(document: Any, operations: list[Any]) -> Any:
    """RFC 6902, as a screen applies it."""
    document = json.loads(json.dumps(document))
    for each in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in each["path"].split("/")[1:]]
        place = document
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            if each["op"] == "add":
                place.insert(int(last), each["value"])
            elif each["op"] == "remove":
                del place[int(last)]
            else:
                place[int(last)] = each["value"]
        elif each["op"] == "remove":
            del place[last]
        else:
            place[last] = each["value"]
    return document


async def test_a_run_is_a_turn_streamed_to_the_screen() -> None:
    """Begun, said piece by piece, finished with its usage; the state follows by patches."""
    async with screen() as (lp, client):
        seen = await events(client, asked(("u1", "Ada")))
        assert types(seen)[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
        assert text_of(seen) == "Hello, Ada."
        assert types(seen).count("TEXT_MESSAGE_START") == 1
        assert types(seen).count("STEP_STARTED") == types(seen).count("STEP_FINISHED") > 0
        assert seen[-1]["outcome"] == {"type": "success"}
        assert seen[-1]["usage"] == [{"inputTokens": 3, "outputTokens": 2}]
        state = seen[1]["snapshot"]
        for each in seen:
            if each["type"] == "STATE_DELTA":
                state = patched(state, each["delta"])
        assert state == {"turns": 1, "log": ["turn"]}
        session = await lp.get("support", "ada", "t1")
        assert [(m.role, m.text) for m in await session.messages()] == [
            ("user", "Ada"),
            ("assistant", "Hello, Ada."),
        ]


async def test_a_reload_and_a_repeat_lose_and_double_nothing() -> None:
    """The history comes back by a snapshot, and a message is taken once."""
    async with screen() as (lp, client):
        await events(client, asked(("u1", "Ada")))
        again = await events(client, asked(("u1", "Ada")))
        assert types(again) == [
            "RUN_STARTED",
            "MESSAGES_SNAPSHOT",
            "STATE_SNAPSHOT",
            "RUN_FINISHED",
        ]
        said = [(m["role"], m["content"]) for m in again[1]["messages"]]
        assert said == [("user", "Ada"), ("assistant", "Hello, Ada.")]
        more = await events(client, asked(("u1", "Ada"), ("u2", "Bob"), run="r2"))
        assert text_of(more) == "Hello, Bob."
        assert len(await lp.session("support", "ada", "t1").messages()) == 4


async def test_a_run_in_progress_is_rejoined() -> None:
    """The connection breaks, the run goes on, the next request sees its end."""
    async with screen() as (_, client):
        await events(client, asked(("u1", "refund please")), stop=2)
        again = await events(client, asked(("u1", "refund please")))
        assert again[-1]["outcome"]["type"] == "interrupt"


async def test_an_approval_is_an_interrupt_that_a_run_resumes() -> None:
    """With its id and schema; two tabs that answer pay once."""
    async with screen() as (lp, client):
        seen = await events(client, asked(("u1", "refund please")))
        call = [each for each in seen if each["type"] == "TOOL_CALL_START"]
        assert [each["toolCallName"] for each in call] == ["refund"]
        (interrupt,) = seen[-1]["outcome"]["interrupts"]
        assert interrupt["reason"] == "approval"
        assert interrupt["responseSchema"]["required"] == ["allow"]
        assert interrupt["metadata"] == {"name": "refund", "input": {"order": 7}}
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"allow": True}}
        body = asked(("u1", "refund please"), run="r2", resume=[answer])
        tabs = await asyncio.gather(events(client, body), events(client, body))
        assert any("Done: receipt 7" in text_of(each) for each in tabs)
        assert all(each[-1]["outcome"] == {"type": "success"} for each in tabs)
        session = await lp.get("support", "ada", "t1")
        results = [e for e in await session.read(limit=1_000) if e.type == "agent.tool_result"]
        assert len(results) == 1


async def test_a_cancelled_interrupt_is_a_denial() -> None:
    async with screen() as (_, client):
        seen = await events(client, asked(("u1", "refund please")))
        (interrupt,) = seen[-1]["outcome"]["interrupts"]
        answer = {"interruptId": interrupt["id"], "status": "cancelled"}
        seen = await events(client, asked(("u1", "refund please"), run="r2", resume=[answer]))
        assert "receipt" not in text_of(seen)
        assert seen[-1]["outcome"] == {"type": "success"}


async def test_a_tool_of_the_screen_is_run_by_the_screen() -> None:
    """The run ends with the call pending; the next one brings its result."""
    paint = {"name": "paint", "description": "Paint it.", "parameters": {"type": "object"}}
    async with screen() as (_, client):
        seen = await events(client, asked(("u1", "color"), tools=[paint]))
        (pending,) = seen[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "x1", "role": "tool", "toolCallId": pending, "content": "painted"}
        body = asked(("u1", "color"), run="r2", tools=[paint])
        body["messages"].append(result)
        seen = await events(client, body)
        assert text_of(seen) == "Done: painted"


async def test_bad_requests_are_refused_and_record_nothing() -> None:
    async with screen() as (lp, client):
        for body in ({}, {"threadId": "", "runId": "r", "messages": []}, [1]):
            assert (await client.post("/agui", json=body)).status_code == 400
        bad = asked(("u1", "x"))
        bad["messages"][0]["content"] = 7
        assert (await client.post("/agui", json=bad)).status_code == 400
        assert [e.type for e in await lp.session("support", "ada", "t1").read()] == [
            "session.created"
        ]


async def test_capabilities_are_those_of_the_protocol() -> None:
    async with screen() as (_, client):
        given = AgentCapabilities.model_validate((await client.get("/agui")).json())
        assert given.transport is not None
        assert given.transport.resumable
        assert given.state is not None
        assert given.state.persistent_state


@pytest.mark.parametrize("seed", range(20))
def test_patches_lead_from_any_state_to_any_other(seed: int) -> None:
    import random

    chance = random.Random(seed)

    def value(depth: int) -> Any:
        kind = chance.randrange(4 if depth else 2)
        if kind < 2:
            return chance.choice([1, "a/b", None, True, "~"])
        if kind == 2:
            return [value(depth - 1) for _ in range(chance.randrange(5))]
        return {chance.choice("ab~/"): value(depth - 1) for _ in range(3)}

    for _ in range(50):
        old, new = {"x": value(3)}, {"x": value(3)}
        assert patched(old, list(json_patch(old, new))) == new
