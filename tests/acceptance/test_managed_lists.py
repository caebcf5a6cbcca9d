"""The Managed Agents wire: no parameter of a list is passed over, and what is taken is shown again
in the forms that the official client reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

import limpet
from limpet.server.app import build
from tests.support.asgi import ask


class Wire:
    """Requests to the wire of a store."""

    def __init__(self, lp: limpet.Limpet) -> None:
        self.lp = lp
        self._app: ASGIApp = build(lp, dev=True)

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **headers: str
    ) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await ask(self._app, method, f"/v1{path}", body, named)
        assert answer.status == status, answer.body
        return answer.body

    async def all(self, path: str) -> list[Any]:
        """Every page of a list."""
        items: list[Any] = []
        page: str | None = ""
        while page is not None:
            more = f"&page={page}" if page else ""
            answer = await self("GET", path + more)
            items += answer["data"]
            page = answer["next_page"]
        return items

    async def session(self, **more: Any) -> str:
        agent = await self("POST", "/agents", {"name": "a", "model": "m"})
        made = await self("POST", "/sessions", {"agent": agent["id"], **more})
        return str(made["id"])

    async def upload(self, name: str = "a.txt", **fields: str) -> Any:
        parts = [f'name="{field}"\r\n\r\n{value}' for field, value in fields.items()]
        parts.append(f'name="file"; filename="{name}"\r\ncontent-type: text/plain\r\n\r\nshort')
        form = "".join([f"--x\r\ncontent-disposition: form-data; {p}\r\n" for p in parts])
        kind = {"content_type": "multipart/form-data; boundary=x"}
        return await self("POST", "/files", f"{form}--x--\r\n".encode(), **kind)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with limpet.open("memory://") as lp:
        yield Wire(lp)


async def test_models_and_skills_are_paged_and_filtered(wire: Wire) -> None:
    """Models after and before an id, as their list has it; skills by page and source."""
    for n in range(4):
        skills = [{"type": "custom", "skill_id": f"s{n}"}]
        skills.append({"type": "anthropic", "skill_id": "pdf"})
        await wire("POST", "/agents", {"name": "a", "model": f"m{n}", "skills": skills})

    async def models(query: str) -> tuple[list[str], bool]:
        answer = await wire("GET", f"/models?{query}")
        return [each["id"] for each in answer["data"]], answer["has_more"]

    assert await models("") == (["m0", "m1", "m2", "m3"], False)
    assert await models("limit=2") == (["m0", "m1"], True)
    assert await models("limit=2&after_id=m1") == (["m2", "m3"], False)
    assert await models("limit=2&before_id=m3") == (["m1", "m2"], True)
    assert await models("lifecycle[]=retired") == ([], False)
    assert await models("lifecycle[]=retired&lifecycle[]=active&limit=1") == (["m0"], True)
    await wire("GET", "/models?lifecycle[]=bogus", status=400)
    await wire("GET", "/models?after_id=none", status=404)
    every = [each["id"] for each in await wire.all("/skills?limit=1")]
    assert sorted(every) == ["pdf", "s0", "s1", "s2", "s3"]
    assert [each["id"] for each in await wire.all("/skills?source=anthropic")] == ["pdf"]


async def test_resources_and_threads_are_paged_and_filtered(wire: Wire) -> None:
    """A page is not longer than asked for; threads of other statuses are left out."""
    session = await wire.session()
    path = f"/sessions/{session}"
    repository = {"type": "github_repository", "url": "https://x.test/o/r"}
    made = [(await wire("POST", f"{path}/resources", repository))["id"] for _ in range(3)]
    assert len((await wire("GET", f"{path}/resources?limit=2"))["data"]) == 2
    assert [each["id"] for each in await wire.all(f"{path}/resources?limit=2")] == made
    assert len(await wire.all(f"{path}/threads?statuses[]=idle")) == 1
    assert await wire.all(f"{path}/threads?statuses[]=running") == []
    await wire("GET", f"{path}/threads?statuses[]=bogus", status=400)


async def test_files_are_listed_by_id_and_scope(wire: Wire) -> None:
    """Ids that are not there are left out, on one page; no file here is made by a session."""
    a, b = await wire.upload(), await wire.upload()
    found = await wire("GET", f"/files?limit=1&ids[]={b['id']}&ids[]=file_x&ids[]={a['id']}")
    assert [each["id"] for each in found["data"]] == [b["id"], a["id"]]
    assert (found["next_page"], found["has_more"]) == (None, False)
    assert (await wire("GET", "/files?scope_id=sesn_x"))["data"] == []
    many = "&".join([f"ids[]=file_{n}" for n in range(101)])
    await wire("GET", f"/files?{many}", status=400)


async def test_a_file_expires(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says when; from then on it is not there, and its content is removed."""
    kept, file = await wire.upload(), await wire.upload(expires_in_seconds="3600")
    assert kept["expires_at"] is None
    assert (await wire("GET", f"/files/{file['id']}"))["expires_at"] == file["expires_at"]
    later = wire.lp.now() + timedelta(hours=1)
    monkeypatch.setattr(limpet.Limpet, "now", lambda _: later)
    assert [each["id"] for each in await wire.all("/files?")] == [kept["id"]]
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        await wire(method, f"/files/{file['id']}{path}", status=404)
    files = wire.lp.documents("wire_files", owner=("default", "default"))
    assert [each.name async for each in files.each()] == [kept["id"]]
    for wrong in ("3599", "7776001", "soon", "-1"):
        with pytest.raises(AssertionError, match="expires_in_seconds is a number"):
            await wire.upload(expires_in_seconds=wrong)


async def test_the_name_of_a_file_is_the_end_of_its_path(wire: Wire) -> None:
    """What has no name gets one."""
    assert (await wire.upload("dir/../a.txt"))["filename"] == "a.txt"
    assert (await wire.upload("dir/"))["filename"] == "unnamed.txt"


async def test_versions_of_memories_are_filtered_newest_first(wire: Wire) -> None:
    """Of all memories, those too that were deleted; by writer, time and operation."""
    store = (await wire("POST", "/memory_stores", {"name": "m"}))["id"]
    memories, versions = (
        f"/memory_stores/{store}/memories",
        f"/memory_stores/{store}/memory_versions",
    )
    a = (await wire("POST", memories, {"path": "/a", "content": "1"}))["id"]
    b = (await wire("POST", memories, {"path": "/b", "content": "1"}))["id"]
    await wire("POST", f"{memories}/{a}", {"content": "2"})
    await wire("DELETE", f"{memories}/{b}")
    found = await wire.all(f"{versions}?limit=1")
    shown = [(each["memory_id"], each["operation"]) for each in found]
    assert shown == [(b, "deleted"), (a, "modified"), (b, "created"), (a, "created")]
    assert await wire.all(f"{versions}?created_at[gte]={found[1]['created_at']}") == found[:2]
    assert await wire.all(f"{versions}?operation=deleted") == found[:1]
    for writer in ("session_id", "api_key_id", "service_account_id"):
        assert await wire.all(f"{versions}?{writer}=x") == []
    await wire("GET", f"{versions}?operation=bogus", status=400)


async def test_a_view_says_whether_a_memory_has_its_content(wire: Wire) -> None:
    """In the answer to each request; depth=0 lists the whole store."""
    store = (await wire("POST", "/memory_stores", {"name": "m"}))["id"]
    memories = f"/memory_stores/{store}/memories"
    made = await wire("POST", f"{memories}?view=basic", {"path": "/a/b", "content": "1"})
    assert made["content"] is None
    one = f"{memories}/{made['id']}"
    assert (await wire("POST", f"{one}?view=basic", {"content": "2"}))["content"] is None
    assert (await wire("POST", f"{one}?view=full", {"content": "3"}))["content"] == "3"
    assert (await wire("GET", f"{one}?view=basic"))["content"] is None
    assert (await wire("GET", one))["content"] == "3"
    assert [each["path"] for each in await wire.all(f"{memories}?depth=0")] == ["/a/b"]
    await wire("GET", f"{one}?view=bogus", status=400)
    await wire("POST", one, {"content": "4", "precondition": {"type": "bogus"}}, status=400)


@pytest.mark.parametrize(
    "path",
    ["a", "", "/", "/a/", "//a", "/a/./b", "/../a", "/a\n", "/a\u200b", "/e\u0301", "/a" * 21],
    ids=repr,
)
async def test_a_path_of_a_memory_has_one_spelling(wire: Wire, path: str) -> None:
    """Others are refused: they would name another memory and look the same."""
    store = (await wire("POST", "/memory_stores", {"name": "m"}))["id"]
    body = {"path": path, "content": "1"}
    await wire("POST", f"/memory_stores/{store}/memories", body, status=400)


TEXT = {"type": "text", "text": "t"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "aaaa"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "abc"}
RESULT = {"type": "search_result", "source": "s", "title": "t", "content": [TEXT]}
RESULT |= {"citations": {"enabled": True}}


async def test_content_comes_back_as_it_was_sent(wire: Wire) -> None:
    """Every block that a message may hold, in the answer and in a list."""
    session, file = await wire.session(), (await wire.upload())["id"]
    blocks: list[Any] = [TEXT, {"type": "redacted"}]
    for source in ({**PDF, "media_type": "image/png"}, {"type": "url", "url": "https://x.test"}):
        blocks.append({"type": "image", "source": source})
    blocks.append({"type": "image", "source": {"type": "file", "file_id": file}})
    for source in (
        PDF,
        PLAIN,
        {"type": "url", "url": "https://x"},
        {"type": "file", "file_id": file},
    ):
        blocks.append({"type": "document", "source": source, "title": "T"})
    events = [{"type": "user.message", "content": blocks}]
    (sent,) = (await wire("POST", f"/sessions/{session}/events", {"events": events}))["data"]
    assert sent["content"] == blocks
    (read,) = await wire.all(f"/sessions/{session}/events?types[]=user.message")
    assert read["content"] == blocks


@pytest.mark.parametrize(
    ("type", "block"),
    [
        ("user.message", {"type": "bogus"}),
        ("user.message", {"type": "text"}),
        ("user.message", {"type": "image"}),
        ("user.message", {"type": "image", "source": {"type": "bogus"}}),
        ("user.message", {"type": "image", "source": PLAIN}),
        ("user.message", {"type": "document", "source": {"type": "base64", "data": "a"}}),
        ("user.message", RESULT),
        ("system.message", {"type": "document", "source": PLAIN}),
    ],
    ids=str,
)
async def test_a_block_that_the_client_could_not_read_is_refused(
    wire: Wire, type: str, block: Any
) -> None:
    """400 with a reason; nothing is stored."""
    session = await wire.session()
    body = {"events": [{"type": type, "content": [block]}]}
    error = await wire("POST", f"/sessions/{session}/events", body, status=400)
    assert error["error"]["details"]["error_code"] == "input.invalid"
    assert await wire.all(f"/sessions/{session}/events?") == []


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "static_bearer", "token": "t"},
        {"type": "mcp_oauth", "mcp_server_url": "https://x.test"},
        {"type": "environment_variable", "secret_name": "N", "secret_value": "v"},
    ],
)
async def test_a_credential_has_all_that_its_kind_needs(wire: Wire, auth: Any) -> None:
    """One without could not be used, nor be read by the client."""
    vault = (await wire("POST", "/vaults", {"display_name": "v"}))["id"]
    await wire("POST", f"/vaults/{vault}/credentials", {"auth": auth}, status=400)


async def test_an_outcome_is_shown_with_its_words_and_verdicts(wire: Wire) -> None:
    """On the session, in a list of sessions, and in its events."""
    id = await wire.session()
    rubric = {"type": "text", "content": "polite\nshort"}
    event = {"type": "user.define_outcome", "description": "An answer", "rubric": rubric}
    await wire("POST", f"/sessions/{id}/events", {"events": [event]})
    await wire.lp.wake(("default", "default", id), _say)
    s: limpet.Session[Any] = await wire.lp.get("default", "default", id)
    await s.outcome.evaluate(lambda *_: [False, True])
    await s.outcome.evaluate(lambda *_: limpet.Evaluation("pass", (True, True), note="fine"))
    (shown,) = (await wire("GET", f"/sessions/{id}"))["outcome_evaluations"]
    named = (shown["description"], shown["iteration"], shown["result"], shown["explanation"])
    assert named == ("An answer", 1, "satisfied", "fine")
    assert shown["completed_at"] is not None
    (listed,) = await wire.all("/sessions?")
    assert listed["outcome_evaluations"] == [shown]
    events = await wire.all(f"/sessions/{id}/events?types[]=span.outcome_evaluation_end")
    assert [(each["outcome_id"], each["iteration"]) for each in events] == [
        (shown["outcome_id"], 0),
        (shown["outcome_id"], 1),
    ]


async def _say(turn: limpet.Turn) -> None:
    await turn.say("done", cost=0.25)


async def test_a_session_shows_what_it_cost_and_stops_its_clock(wire: Wire) -> None:
    """The duration of a session that has ended does not grow."""
    id = await wire.session()
    message = {"type": "user.message", "content": [TEXT]}
    await wire("POST", f"/sessions/{id}/events", {"events": [message]})
    await wire.lp.wake(("default", "default", id), _say)
    shown = await wire("POST", f"/sessions/{id}/archive")
    assert shown["usage"]["list_cost"] == {"amount": "0.25", "currency": "USD"}
    assert (await wire("GET", f"/sessions/{id}"))["stats"] == shown["stats"]


async def test_work_names_the_user_of_its_session(wire: Wire) -> None:
    """A worker with a key of the whole app finds the session by it."""
    environment = (await wire("POST", "/environments", {"name": "lab"}))["id"]
    agent = (await wire("POST", "/agents", {"name": "a", "model": "m"}))["id"]
    made = {"agent": agent, "environment_id": environment}
    made |= {"initial_events": [{"type": "user.message", "content": [TEXT]}]}
    ada = {"limpet_user": "ada"}
    session = (await wire("POST", "/sessions", made, **ada))["id"]
    work = await wire("GET", f"/environments/{environment}/work/poll")
    assert work["data"] == {"type": "session", "id": session, "user": "ada"}
    await wire("GET", f"/sessions/{session}", status=404)
    assert (await wire("GET", f"/sessions/{session}", **ada))["status"] == "running"
    stop = f"/environments/{environment}/work/{work['id']}"
    await wire("POST", f"{stop}/stop", {})
    beat = await wire("POST", f"{stop}/heartbeat")
    assert (beat["last_heartbeat"], beat["lease_extended"]) == ("", False)


async def _delegates(turn: limpet.Turn) -> None:
    (event,) = turn.inputs
    below = int(event.data["text"])
    if below:
        child = await turn.delegate("default", str(below - 1))
        await turn.say(str((await child.result())["output"]))
    else:
        await turn.say("yes" if await turn.approve("refund", {"amount": 3}) else "no")


WEATHER = limpet.Tool(name="weather", version="1.0.0", schema={"type": "object"})


def _asks_for_weather(request: limpet.ModelRequest) -> limpet.Reply:
    if len(request.messages) > 1:
        return limpet.Reply("it is " + str(request.messages[-1]["content"]))
    return limpet.Reply("", (limpet.ToolCall("c1", "weather", {"city": "Kyiv"}),))


async def test_a_tool_of_the_client_is_used_once_on_the_wire(wire: Wire) -> None:
    """The model's call is the agent.custom_tool_use that asks for its result, and the result is the
    client's event: neither is shown again as if the agent had run the tool."""
    id = await wire.session()
    path, key = f"/sessions/{id}/events", ("default", "default", id)
    agent = limpet.Agent(_asks_for_weather, [WEATHER])
    await wire("POST", path, {"events": [{"type": "user.message", "content": [TEXT]}]})
    await wire.lp.wake(key, agent)
    shown = await wire.all(f"{path}?")
    (use,) = [each for each in shown if each["type"].endswith("tool_use")]
    assert (use["type"], use["name"]) == ("agent.custom_tool_use", "weather")
    assert shown[-1]["stop_reason"] == {"type": "requires_action", "event_ids": [use["id"]]}
    answer = {"type": "user.custom_tool_result", "custom_tool_use_id": use["id"]}
    await wire("POST", path, {"events": [{**answer, "content": [{**TEXT, "text": "dry"}]}]})
    await wire.lp.wake(key, agent)
    types = [each["type"] for each in await wire.all(f"{path}?")]
    assert "agent.tool_result" not in types
    assert "agent.tool_use" not in types
    (said,) = await wire.all(f"{path}?types[]=agent.message")
    assert said["content"][0]["text"] == "it is dry"


async def _run(lp: limpet.Limpet) -> None:
    await limpet.Worker(lp, _delegates, app="default", idle_exit=True, signals=False).run()


async def test_an_answer_finds_the_thread_that_waits_for_it(tmp_path: Path) -> None:
    """By the id of the event alone, also in a thread of a thread, and once; the same key returns
    the first answer; the threads name their parents."""
    async with limpet.open(f"sqlite:///{tmp_path}/a.db") as lp:
        wire = Wire(lp)
        id = await wire.session()
        path = f"/sessions/{id}"
        message = {"type": "user.message", "content": [{"type": "text", "text": "2"}]}
        await wire("POST", f"{path}/events", {"events": [message]})
        await _run(lp)
        first, second, third = await wire.all(f"{path}/threads?")
        assert (first["parent_thread_id"], second["parent_thread_id"]) == (None, first["id"])
        assert third["parent_thread_id"] == second["id"]
        (use,) = await wire.all(f"{path}/threads/{third['id']}/events?types[]=agent.tool_use")
        answer = {"type": "user.tool_confirmation", "tool_use_id": use["id"], "result": "allow"}
        body, key = {"events": [answer, message]}, {"idempotency_key": "k"}
        sent = await wire("POST", f"{path}/events", body, **key)
        assert sent["data"][0]["session_thread_id"] == third["id"]
        again = await wire("POST", f"{path}/events", body, **key)
        assert [each["id"] for each in again["data"]] == [each["id"] for each in sent["data"]]
        other = {"events": [message]}
        error = await wire("POST", f"{path}/events", other, status=400, **key)
        assert error["error"]["details"]["error_code"] == "request.key_reused"
        error = await wire("POST", f"{path}/events", {"events": [answer]}, status=400)
        assert error["error"]["details"]["error_code"] == "request.answered"
        await _run(lp)
        said = await wire.all(f"{path}/events?types[]=agent.message")
        assert said[0]["content"][0]["text"] == "yes"


async def test_an_interrupt_is_for_the_thread_that_it_names(tmp_path: Path) -> None:
    """The others go on; a thread of another session is not found."""
    async with limpet.open(f"sqlite:///{tmp_path}/a.db") as lp:
        wire = Wire(lp)
        id, other = await wire.session(), await wire.session()
        path = f"/sessions/{id}"
        message = {"type": "user.message", "content": [{"type": "text", "text": "1"}]}
        await wire("POST", f"{path}/events", {"events": [message]})
        await _run(lp)
        _, thread = await wire.all(f"{path}/threads?")
        interrupt = {"type": "user.interrupt", "session_thread_id": thread["id"]}
        body = {"events": [interrupt]}
        await wire("POST", f"/sessions/{other}/events", body, status=404)
        (sent,) = (await wire("POST", f"{path}/events", body))["data"]
        assert sent["session_thread_id"] == thread["id"]
        assert await wire.all(f"{path}/events?types[]=user.interrupt") == []
        found = await wire.all(f"{path}/threads/{thread['id']}/events?types[]=user.interrupt")
        assert [each["id"] for each in found] == [sent["id"]]
