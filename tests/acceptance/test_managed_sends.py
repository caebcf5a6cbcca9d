"""events.send without a handle: what follows from an input, and where there is no session."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet
from limpet.server.app import build
from tests.support.asgi import ask
from tests.support.deadlines import passed

NOW = timedelta(microseconds=1)  # over when `passed` returns
EVENTS = "/v1/sessions/sesn_one/events"


def message(text: str) -> dict[str, Any]:
    return {"events": [{"type": "user.message", "content": [{"type": "text", "text": text}]}]}


async def test_a_message_resumes_a_session_that_waits_for_it() -> None:
    """It was suspended for idleness; the answer shows the message as it was recorded."""
    async with limpet.open("memory://") as lp:
        idle = limpet.Timeouts(idle=NOW)
        await lp.create("default", "default", "sesn_one", timeouts=idle, actor="user:default")
        await passed(lp, 1)
        assert (await lp.work.sweep()).suspended == 1
        answer = await ask(build(lp, dev=True), "POST", EVENTS, message("back"))
        session: limpet.Session[Any] = await lp.get("default", "default", "sesn_one")
        assert session.phase == "active"
        (sent,) = answer.body["data"]
        assert (sent["type"], sent["processed_at"]) == ("user.message", None)
        assert sent["content"] == [{"type": "text", "text": "back"}]
        assert sent["id"] in {f"sevt_{event.id}" for event in session.events}


async def test_a_session_is_created_once_under_a_key() -> None:
    """Also by requests at the same time; with another body the key is refused."""
    async with limpet.open("memory://") as lp:
        app = build(lp, dev=True)
        agent = (await ask(app, "POST", "/v1/agents", {"name": "a", "model": "m"})).body["id"]
        body = {"agent": agent, "title": "t", "initial_events": message("hi")["events"]}

        async def create(key: str, **more: Any) -> Any:
            sent = {**body, **more}
            return await ask(app, "POST", "/v1/sessions", sent, {"idempotency-key": key})

        made = await asyncio.gather(*[create("k") for _ in range(5)])
        (id,) = {each.body["id"] for each in made}
        listed = await ask(app, "GET", f"/v1/sessions/{id}/events")
        assert len(listed.body["data"]) == 1
        await ask(app, "POST", f"/v1/sessions/{id}", {"title": "renamed"})
        assert (await create("k")).body["title"] == "renamed"
        refused = await create("k", title="other")
        assert refused.status == 400
        assert refused.body["error"]["details"]["error_code"] == "request.key_reused"
        assert (await create("k2")).body["id"] != id
        shown = (await ask(app, "GET", f"/v1/sessions/{id}")).body
        assert "request" not in shown
        ended = await ask(app, "HEAD", f"/v1/sessions/{id}/events/stream")
        assert (ended.status, ended.body) == (200, b"")


async def test_what_was_archived_or_deleted_takes_no_message(tmp_path: Path) -> None:
    """Neither makes a session anew; a principal that wrote before is refused alike."""
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", archive=archive) as lp:
        app = build(lp, dev=True)
        for id, end in (("sesn_two", "delete"), ("sesn_one", "archive")):
            session = await lp.create("default", "default", id, actor="user:default")
            path = EVENTS.replace("sesn_one", id)
            assert (await ask(app, "POST", path, message("hi"))).status == 200
            await _ended(lp, session, end)
            refused = await ask(app, "POST", path, message("there?"))
            code = refused.body["error"]["details"]["error_code"]
            assert (end, refused.status, code) in (
                ("delete", 404, "session.deleted"),
                ("archive", 400, "session.ended"),
            )


@pytest.mark.parametrize(
    "value",
    ["text", {}, {"agent": 5}, {"resources": [5]}, {"metadata": 5, "resources": 7}],
    ids=str,
)
async def test_whatever_a_state_has_under_our_name_a_session_is_shown(value: Any) -> None:
    """Who writes the state of a session may put anything there: the session, and the list that it
    is in, are shown as of one that was not made by the wire, and it can be changed."""
    async with limpet.open("memory://") as lp:
        app, path = build(lp, dev=True), "/v1/sessions/sesn_one"
        await lp.create("default", "default", "sesn_one", state={"managed": value}, actor="user:a")
        for shown in (path, "/v1/sessions", f"{path}/resources", f"{path}/threads"):
            assert (await ask(app, "GET", shown)).status == 200, shown
        changed = await ask(app, "POST", path, {"title": "mine", "metadata": {"a": "b"}})
        assert (changed.status, changed.body["title"]) == (200, "mine")
        repository = {"type": "github_repository", "url": "https://git.example/x"}
        assert (await ask(app, "POST", f"{path}/resources", repository)).status == 200
        (listed,) = (await ask(app, "GET", "/v1/sessions")).body["data"]
        assert [each["mount_path"] for each in listed["resources"]] == ["/workspace/x"]


async def _ended(lp: Limpet, session: limpet.Session[Any], end: str) -> None:
    if end == "delete":
        await lp.delete(session.key)
        return
    await session.refresh()
    await session.complete(actor="user:default")
    await session.archive(actor="user:default")
