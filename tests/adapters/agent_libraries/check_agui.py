"""AG-UI at /agui, read with the protocol's own types, over a real server and a real worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
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


WATCHED: list[asyncio.Event] = []  # set once a screen has seen the model being asked
PIECES = {"paint": ('{"color"', ': "re', 'd"}'), "look": ("",)}  # arguments, as they come


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
    elif said.startswith("pieces"):
        await WATCHED[-1].wait()  # pieces that nobody follows yet come with the recorded call
        yield limpet.Piece(reasoning="I think.")
        yield limpet.Piece(text="I paint. ")
        for n, (name, fragments) in enumerate(PIECES.items()):
            for fragment in fragments:
                tool = {"index": n, "id": f"p{n}", "name": name, "arguments": fragment}
                yield limpet.Piece(tool=tool)
        yield limpet.Piece(text=" Now.")
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
async def screen(
    store: str = "memory://",
) -> AsyncIterator[tuple[limpet.Limpet, httpx.AsyncClient]]:
    async with limpet.open(store) as lp, serving(lp, dev=True) as url:
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
                if seen[-1] == {"type": "STEP_STARTED", "stepName": "m0"} and WATCHED:
                    WATCHED[-1].set()
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


def shown(seen: list[Any]) -> list[tuple[str, str]]:
    """The conversation that a screen shows after these events, as its messages say it."""
    messages: dict[str, tuple[str, str]] = {}
    for each in seen:
        if each["type"] == "MESSAGES_SNAPSHOT":
            messages = {m["id"]: (m["role"], m["content"]) for m in each["messages"]}
        elif each["type"] == "TEXT_MESSAGE_START":
            assert each["messageId"] not in messages
            messages[each["messageId"]] = (each["role"], "")
        elif each["type"] == "TEXT_MESSAGE_CONTENT":
            role, text = messages[each["messageId"]]
            messages[each["messageId"]] = (role, text + each["delta"])
    return list(messages.values())


async def test_a_page_reloaded_in_mid_message_shows_it_whole_and_once() -> None:
    """The first page leaves after a piece; the second, and a second tab, see what comes since."""
    said, left = asyncio.Event(), asyncio.Event()

    async def slow(_: limpet.ModelRequest) -> Any:
        yield limpet.Piece(text="One, ")
        yield limpet.Piece(text="two, ")
        said.set()
        await left.wait()
        yield limpet.Piece(text="three, ")
        yield limpet.Piece(text="four.")

    async def agent(turn: limpet.Turn) -> None:
        await turn.session.append("agent.noted", actor="agent:main", inc={"turns": 1})
        await turn.model("m", slow)

    async def page(client: httpx.AsyncClient, ready: asyncio.Event) -> list[Any]:
        seen: list[Any] = []
        async with client.stream("POST", "/agui", json=asked(("u1", "Count."))) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                    if seen[-1]["type"] == "STATE_SNAPSHOT":
                        ready.set()
        return seen

    async with served(("support", agent)) as (_, client):
        await asyncio.gather(events(client, asked(("u1", "Count.")), stop=3), said.wait())
        ready = [asyncio.Event() for _ in range(2)]
        tabs = [asyncio.create_task(page(client, each)) for each in ready]
        for each in ready:
            await each.wait()
        left.set()
        for seen in await asyncio.gather(*tabs):
            assert shown(seen) == [("user", "Count."), ("assistant", "One, two, three, four.")]
            state = next(each for each in seen if each["type"] == "STATE_SNAPSHOT")
            assert state["snapshot"] == {"turns": 1}
            assert seen[-1]["outcome"] == {"type": "success"}


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


async def test_arguments_of_a_call_are_streamed_as_they_come() -> None:
    """Under the id that the call is recorded by; each call is begun and ended once."""
    tools = [
        {"name": name, "description": "Of the screen.", "parameters": {"type": "object"}}
        for name in PIECES
    ]
    WATCHED.append(asyncio.Event())
    async with screen() as (lp, client):
        seen = await events(client, asked(("u1", "pieces"), tools=tools))
        session = await lp.get("support", "ada", "t1")
        uses = [e for e in await session.read(limit=1_000) if e.type == "agent.tool_use"]
        starts = [each for each in seen if each["type"] == "TOOL_CALL_START"]
        assert [each["toolCallName"] for each in starts] == ["paint", "look"]
        assert {each["toolCallId"] for each in starts} == {e.data["request_id"] for e in uses}
        assert len({each["parentMessageId"] for each in starts}) == 1
        for start, wanted in zip(starts, ({"color": "red"}, {}), strict=True):
            id = start["toolCallId"]
            deltas = [
                e["delta"] for e in seen if e["type"] == "TOOL_CALL_ARGS" and e["toolCallId"] == id
            ]
            assert json.loads("".join(deltas)) == wanted
            assert len(deltas) == (3 if wanted else 1)
            ended = {"type": "TOOL_CALL_END", "toolCallId": id}
            assert seen.count(ended) == 1
        thoughts = [each for each in seen if each["type"].startswith("REASONING_")]
        assert [each["delta"] for each in thoughts if "delta" in each] == ["I think."]
        assert types(thoughts) == [
            *("REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT"),
            *("REASONING_MESSAGE_END", "REASONING_END"),
        ]
        assert seen.index(thoughts[-1]) < types(seen).index("TEXT_MESSAGE_CONTENT")
        first = types(seen).index("TOOL_CALL_ARGS")
        model = seen.index({"type": "STEP_FINISHED", "stepName": "m0"})
        assert first < model  # before the message was recorded
        assert text_of(seen) == "I paint. "
        snapshot = [each for each in seen if each["type"] == "MESSAGES_SNAPSHOT"][-1]
        assert "I paint.  Now." in [each.get("content") for each in snapshot["messages"]]


COPILOTKIT = """{
  "threadId": "t1",
  "runId": "6f1c2f5e-2f0a-4c3f-9a55-0d6f3a6f7c11",
  "protocolVersion": "1.0",
  "state": {"cart": [{"sku": "tea", "count": 2}]},
  "messages": [
    {"id": "ck-instructions", "role": "developer", "content": "Answer briefly."},
    {"id": "ck-1", "role": "user", "content": "color"}
  ],
  "tools": [
    {
      "name": "paint",
      "description": "Change the color of the page.",
      "parameters": {
        "type": "object",
        "properties": {"color": {"type": "string", "description": "A CSS color"}},
        "required": ["color"],
        "additionalProperties": false
      }
    }
  ],
  "context": [
    {"description": "The page that the user sees", "value": "{\\"path\\": \\"/cart\\"}"}
  ],
  "forwardedProps": {"config": {"locale": "en"}, "streamSubgraphs": true}
}"""


async def test_a_request_of_copilotkit_runs_its_tool_on_the_page() -> None:
    """Sent as CopilotKit sends it: instructions, a page's tool and context, and its own state."""
    async with screen() as (lp, client):
        body = json.loads(COPILOTKIT)
        RunAgentInput.model_validate(body)
        seen = await events(client, body)
        assert seen[1]["type"] == "STATE_SNAPSHOT"
        (pending,) = seen[-1]["outcome"]["pendingToolCallIds"]
        state = seen[1]["snapshot"]
        for each in seen:
            state = patched(state, each["delta"]) if each["type"] == "STATE_DELTA" else state
        assert state["cart"] == [{"sku": "tea", "count": 2}]
        call = {"id": pending, "type": "function"}
        call["function"] = {"name": "paint", "arguments": '{"color": "red"}'}
        body["messages"] += [
            {"id": "ck-a", "role": "assistant", "toolCalls": [call]},
            {"id": "ck-r", "role": "tool", "toolCallId": pending, "content": '{"ok": true}'},
        ]
        body |= {"runId": "second", "state": state}
        again = await events(client, body)
        assert again[-1]["outcome"] == {"type": "success"}
        session = await lp.get("support", "ada", "t1")
        sent = session.state["agui"]
        assert sent["context"][0]["value"] == '{"path": "/cart"}'
        assert sent["forwarded_props"]["config"] == {"locale": "en"}
        said = [(m.role, m.text) for m in await session.messages() if m.text]
        assert said[:2] == [("system", "Answer briefly."), ("user", "color")]


async def test_an_approval_that_expires_says_when() -> None:
    """expiresAt is the deadline that the harness gave, and a child's life is a subagent's."""

    async def helper(turn: limpet.Turn) -> None:
        await turn.say("checked")

    async def careful(turn: limpet.Turn) -> None:
        child = await turn.delegate("helper", "Check it.", title="Checker")
        await child.result()
        await turn.approve("pay", {"sum": 3}, deadline=timedelta(hours=1), otherwise="deny")
        await turn.say("paid")

    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        workers = [
            limpet.Worker(lp, careful, app="support", signals=False),
            limpet.Worker(lp, helper, app="helper", signals=False),
        ]
        working = [asyncio.create_task(worker.run()) for worker in workers]
        async with httpx.AsyncClient(base_url=url, headers=PLACE, timeout=60) as client:
            seen = await events(client, asked(("u1", "pay")))
            (interrupt,) = seen[-1]["outcome"]["interrupts"]
            session = await lp.get("support", "ada", "t1")
            (request,) = session.blocked_on
            assert datetime.fromisoformat(interrupt["expiresAt"]) == request.deadline
            began = [each for each in seen if each["type"] == "SUBAGENT_STARTED"]
            ended = [each for each in seen if each["type"] == "SUBAGENT_FINISHED"]
            assert [each["name"] for each in began] == ["Checker"]
            assert [each["subagentRunId"] for each in ended] == [began[0]["subagentRunId"]]
            answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
            seen = await events(client, asked(("u1", "pay"), run="r2", resume=[answer]))
            assert text_of(seen) == "paid"
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)


@asynccontextmanager
async def served(*harnesses: tuple[str, Any]) -> AsyncIterator[tuple[limpet.Limpet, Any]]:
    """A server with a worker for each app, and a screen of `support`."""
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        workers = [
            limpet.Worker(lp, each, app=app, retries=0, signals=False) for app, each in harnesses
        ]
        working = [asyncio.create_task(worker.run()) for worker in workers]
        async with httpx.AsyncClient(base_url=url, headers=PLACE, timeout=60) as client:
            yield lp, client
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)


async def test_a_child_that_is_ended_is_an_error_of_a_subagent() -> None:
    """SUBAGENT_ERROR, under the id that the child was begun with; the run itself goes on."""

    async def helper(turn: limpet.Turn) -> None:
        await turn.ask("which order?")

    async def careful(turn: limpet.Turn) -> None:
        child = await turn.delegate("helper", "Check it.", title="Checker")
        await child.result()
        await turn.say("I could not check it.")

    async with served(("support", careful), ("helper", helper)) as (lp, client):
        running = asyncio.create_task(events(client, asked(("u1", "check"))))
        async with aclosing(lp.watch(app="helper")) as entries:
            async for entry in entries:
                if entry.event.type == "session.status_idle":
                    await (await lp.get(entry.key)).terminate()
                    break
        seen = await running
        began = [each for each in seen if each["type"] == "SUBAGENT_STARTED"]
        failed = [each for each in seen if each["type"] == "SUBAGENT_ERROR"]
        assert [each["subagentRunId"] for each in failed] == [began[0]["subagentRunId"]]
        assert text_of(seen) == "I could not check it."
        assert seen[-1]["outcome"] == {"type": "success"}


async def test_a_run_that_fails_or_is_stopped_says_so() -> None:
    """RUN_ERROR with the reason, and RUN_FINISHED as cancelled."""
    waiting = asyncio.Event()

    async def agent(turn: limpet.Turn) -> None:
        if turn.inputs[-1].data["text"] == "wait":
            waiting.set()
            await asyncio.Event().wait()
        raise RuntimeError("no such order")

    async with served(("support", agent)) as (lp, client):
        seen = await events(client, asked(("u1", "fail")))
        assert seen[-1]["type"] == "RUN_ERROR"
        assert "no such order" in seen[-1]["message"]
        body = asked(("u2", "wait"), run="r2") | {"threadId": "t2"}
        running = asyncio.create_task(events(client, body))
        await waiting.wait()
        session = await lp.get("support", "ada", "t2")
        await session.interrupt()
        assert (await running)[-1]["outcome"] == {"type": "cancelled"}


async def test_state_and_history_outlive_the_server(tmp_path: Path) -> None:
    """Another server on the same file begins where the thread stands."""
    place = f"sqlite:///{tmp_path}/threads.db"
    async with screen(place) as (_, client):
        await events(client, asked(("u1", "Ada"), state={"theme": "dark"}))
    async with screen(place) as (_, client):
        seen = await events(client, asked(("u1", "Ada"), run="r2"))
        assert [m["content"] for m in seen[1]["messages"]] == ["Ada", "Hello, Ada."]
        assert seen[2]["snapshot"] == {"theme": "dark", "turns": 1, "log": ["turn"]}


async def test_pictures_and_files_come_back_after_a_reload() -> None:
    """As the screen sent them, each kind of them."""
    sources = {
        "image": {"type": "data", "value": "AAAA", "mimeType": "image/png"},
        "audio": {"type": "url", "value": "http://x/y.mp3", "mimeType": "audio/mp3"},
        "document": {"type": "file", "value": "f1"},
        "video": {"type": "url", "value": "http://x/y.mp4"},
    }
    linked = {"type": "image", "source": {"type": "url", "value": "http://x/y.png"}}
    parts = [{"type": "text", "text": "Look."}, linked]
    parts += [{"type": kind, "source": source} for kind, source in sources.items()]
    body = asked()
    body["messages"] = [
        {"id": "u1", "role": "user", "content": parts},
        {"id": "u2", "role": "user", "content": parts[1:2]},
    ]

    async def agent(turn: limpet.Turn) -> None:
        await turn.say("Nice.")

    async with served(("support", agent)) as (_, client):
        await events(client, body)
        again = await events(client, body)
        (snapshot,) = [each for each in again if each["type"] == "MESSAGES_SNAPSHOT"]
        assert [m for m in snapshot["messages"] if m["role"] == "user"] == body["messages"]


async def test_bad_requests_are_refused_and_record_nothing() -> None:
    async with screen() as (lp, client):
        for body in ({}, {"threadId": "", "runId": "r", "messages": []}, [1]):
            assert (await client.post("/agui", json=body)).status_code == 400
        bad = asked(("u1", "x"))
        bad["messages"][0]["content"] = 7
        assert (await client.post("/agui", json=bad)).status_code == 400
        for tool in ({}, {"name": ""}, {"name": 7}, {"name": "x", "parameters": "none"}):
            offering = asked(("u1", "x")) | {"tools": [tool]}
            assert (await client.post("/agui", json=offering)).status_code == 400
        assert await lp.find("support", "ada", "t1") is None


async def test_a_message_that_comes_while_an_approval_waits_does_not_hang() -> None:
    """It is recorded, the run ends with the same interrupt, and the answer lets both go on."""
    async with screen() as (_, client):
        seen = await events(client, asked(("u1", "refund please")))
        (interrupt,) = seen[-1]["outcome"]["interrupts"]
        said = (("u1", "refund please"), ("u2", "Bob"))
        again = await events(client, asked(*said, run="r2", state={"theme": "dark"}))
        assert [each["id"] for each in again[-1]["outcome"]["interrupts"]] == [interrupt["id"]]
        assert {"op": "add", "path": "/theme", "value": "dark"} in [
            op for each in again if each["type"] == "STATE_DELTA" for op in each["delta"]
        ]
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"allow": True}}
        last = await events(client, asked(*said, run="r3", resume=[answer]))
        assert last[-1]["outcome"] == {"type": "success"}
        results = [each for each in last if each["type"] == "TOOL_CALL_RESULT"]
        assert [each["content"] for each in results] == ["receipt 7"]


async def test_a_screens_state_comes_with_its_answers_and_never_with_a_repeat() -> None:
    """A page that only reloads may know an older state: it sets nothing."""
    async with screen() as (lp, client):
        seen = await events(client, asked(("u1", "refund please"), state={"theme": "dark"}))
        (interrupt,) = seen[-1]["outcome"]["interrupts"]
        await events(client, asked(("u1", "refund please"), run="r2", state={"turns": 0}))
        session = await lp.get("support", "ada", "t1")
        assert session.state["turns"] == 1
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
        body = asked(("u1", "refund please"), run="r3", state={"theme": "light"}, resume=[answer])
        seen = await events(client, body)
        assert seen[-1]["outcome"] == {"type": "success"}
        await session.refresh()
        assert session.state["theme"] == "light"
        body["state"] = {"theme": "dark"}
        await events(client, body)  # sent again: it was answered, so nothing is new
        await session.refresh()
        assert session.state["theme"] == "light"


@pytest.mark.parametrize("name", ["app:price", "user:name", "temp:x"])
async def test_a_screen_sets_fields_of_its_thread_only(name: str) -> None:
    """Names that other sessions read are not the screen's."""
    async with screen() as (lp, client):
        answer = await client.post("/agui", json=asked(("u1", "Ada"), state={name: 1}))
        assert answer.status_code == 400
        assert await lp.find("support", "ada", "t1") is None


async def test_a_tools_result_is_not_an_approval() -> None:
    """A `tool` message under the id of an approval is passed over: the approval stays open."""
    async with screen() as (_, client):
        seen = await events(client, asked(("u1", "refund please")))
        (interrupt,) = seen[-1]["outcome"]["interrupts"]
        body = asked(("u1", "refund please"), run="r2")
        result = {"role": "tool", "toolCallId": interrupt["id"], "content": '{"allow": true}'}
        body["messages"].append({"id": "x1", **result})
        again = await events(client, body)
        assert again[-1]["outcome"]["interrupts"] == [interrupt]


async def test_a_thread_of_more_than_a_thousand_messages_goes_on() -> None:
    """A screen sends its whole history with each run."""
    async with screen() as (lp, client):
        await events(client, asked(("u0", "Ada")))
        session = await lp.get("support", "ada", "t1")
        old = [(f"o{n}", f"message {n}") for n in range(1_200)]
        for first in range(0, len(old), 400):
            part = old[first : first + 400]
            await session.append_many(
                [limpet.Draft(type="agent.noted", data={"text": text}, id=id) for id, text in part],
                actor="agent:main",
            )
        seen = await events(client, asked(("u0", "Ada"), *old, ("u1", "Bob"), run="r2"))
        assert text_of(seen) == "Hello, Bob."


async def test_a_thread_that_is_deleted_in_mid_run_ends_with_an_error_of_the_protocol() -> None:
    """Whoever streams it reads RUN_ERROR, and the thread is not brought back."""
    WATCHED.append(asyncio.Event())
    async with screen() as (lp, client):
        seen: list[Any] = []
        async with client.stream("POST", "/agui", json=asked(("u1", "pieces"))) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(EVENTS.validate_json(line[6:]))
                    if (seen[-1].type, getattr(seen[-1], "step_name", "")) == (
                        "STEP_STARTED",
                        "m0",
                    ):
                        await lp.delete(("support", "ada", "t1"))
        WATCHED.pop().set()
        assert (seen[-1].type, seen[-1].code) == ("RUN_ERROR", "session.deleted")
        answer = await client.post("/agui", json=asked(("u1", "pieces"), run="r2"))
        assert answer.status_code == 404


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
