"""Traces for an auditor: who worked when on what, and not a word of what was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import limpet
from limpet import AccessDenied, Key, Limpet, Principal
from limpet.errors import InvalidInput, SessionNotFound
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from tests.support.command import invoke
from tests.support.http_door import HttpDoor

KEY = Key("support", "ada", "c1")
SECRET = "canary 4711"


async def works(turn: limpet.Turn) -> None:
    """A turn with a body in each kind of event that it records."""

    async def repeated(text: str) -> dict[str, str]:
        return {"text": text}

    await turn.step("look", repeated, text=SECRET)
    await turn.effect("pay", repeated, text=SECRET)
    await turn.append("note.made", {"text": SECRET}, set={"n": SECRET})
    await turn.say(SECRET, model="large", usage={"input": 3, "output": 4}, cost=0.5)


@pytest.fixture
async def worked(lp: Limpet) -> str:
    """A session with one wake; its id."""
    s = await lp.create("support", "ada", "c1", state={"secret": SECRET})
    await s.append("user.message", {"text": SECRET}, actor="user:ada")
    woken = await lp.wake(KEY, works)
    assert woken.error is None
    return woken.wake_id


def forms(trace: limpet.WakeTrace) -> Any:
    return (trace.spans, [(e.seq, e.type, e.actor) for e in trace.events], trace.activation)


async def test_an_auditor_reads_a_trace_without_bodies(lp: Limpet, worked: str) -> None:
    """The same spans, times and events as others, and nothing of what was said; a session stays
    closed."""
    auditor = lp.acting_as(Principal("user:eve", role="auditor", app="support"))
    s = auditor.session(KEY)
    trace = await s.runs.trace(worked)
    whole = await lp.session(KEY).runs.trace(worked)
    assert forms(trace) == forms(whole)
    assert {"wake", "tool", "step"} <= {span.kind for span in trace.spans}
    assert "note.made" in [event.type for event in trace.events]
    assert SECRET in repr(whole)
    assert SECRET not in repr(trace)
    assert all([event.ops == () for event in trace.events])
    assert [w.wake_id for w in await s.runs.wakes()] == [worked]
    with pytest.raises(InvalidInput, match="no wake"):
        await s.runs.trace("none")
    with pytest.raises(SessionNotFound):
        await auditor.session("support", "ada", "none").runs.trace(worked)
    for call in (s.read, s.refresh, s.messages):
        with pytest.raises(AccessDenied):
            await call()
    viewer = lp.acting_as(Principal("user:ada", role="viewer", app="support", user="ada"))
    assert forms(await viewer.session(KEY).runs.trace(worked)) == forms(whole)
    assert SECRET in repr(await viewer.session(KEY).runs.trace(worked))


class Served:
    """A server, and the key of an auditor."""

    def __init__(self, lp: Limpet, url: str, token: str) -> None:
        self.lp, self.url, self.token = lp, url, token


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(limpet.open("memory://"))
        url = await stack.enter_async_context(serving(lp))
        _, token = await AccessKeys(journal_of(lp)).create(role="auditor", app="support")
        s = await lp.create("support", "ada", "c1")
        await s.append("user.message", {"text": SECRET}, actor="user:ada")
        assert (await lp.wake(KEY, works)).error is None
        yield Served(lp, url, token)


async def test_so_it_is_over_http(served: Served) -> None:
    """By a client, and by the routes; no denial is left in the audit."""
    whole = await served.lp.session(KEY).runs.trace(
        str((await served.lp.session(KEY).runs.wakes())[0].wake_id)
    )
    async with limpet.open(served.url, token=served.token) as lp:
        trace = await lp.session(KEY).runs.trace(whole.wake_id)
        assert (forms(trace), SECRET in repr(trace)) == (forms(whole), False)
    door = HttpDoor(served.url, authorization=f"Bearer {served.token}")
    one = f"/limpet/v1/sessions/sesn_.{'YzE'}"
    listed = await door.get(f"{one}/traces?user=ada")
    assert [each["wake_id"] for each in listed.body["data"]] == [whole.wake_id]
    shown = await door.get(f"{one}/traces/{whole.wake_id}?user=ada")
    assert len(shown.body["spans"]) == len(whole.spans)
    assert len(shown.body["events"]) == len(whole.events)
    assert SECRET not in json.dumps([listed.body, shown.body])
    assert (await door.get(f"{one}/traces/none?user=ada")).status == 404
    assert (await door.get(f"{one}?user=ada")).status == 404
    denied = (await served.lp.audit(denied=True)).items
    assert [each.action for each in denied] == ["read"]  # of the session itself


async def test_so_it_is_on_the_command_line(served: Served) -> None:
    """`limpet trace` with the auditor's key."""
    for options in ((), ("--list",), ("--json",)):
        asked = ("trace", served.url, str(KEY), "--token", served.token, *options)
        done = await asyncio.to_thread(invoke, *asked)
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
        assert "agent.message" in done.output or options == ("--list",)
