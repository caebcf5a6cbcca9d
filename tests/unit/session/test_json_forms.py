"""The JSON forms that every door writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

import limpet
from limpet.session import json_forms as wire

AT = datetime(2030, 1, 1, tzinfo=UTC)


async def session(lp: limpet.Limpet) -> limpet.Session[Any]:
    s = await lp.create("support", "ada", "c1", state={"n": 1}, labels={"plan": "gold"})
    await s.append("user.message", {"text": "hi"}, actor="user:ada", id="m1", inc={"n": 1})
    await s.lifecycle.set_timer("t", AT, actor="agent:a")
    return s


async def test_an_event_is_written_with_all_it_says() -> None:
    """Every field of the record, times in ISO 8601, and it is JSON."""
    async with limpet.open("memory://") as lp:
        event = (await (await session(lp)).read(types=["user.*"]))[0]
        form = msgspec.json.decode(msgspec.json.encode(wire.event_form(event)))
    assert form["at"] == event.at.isoformat()
    assert (form["seq"], form["id"], form["type"], form["actor"]) == (
        2,
        "m1",
        "user.message",
        "user:ada",
    )
    assert form["data"] == {"text": "hi"}
    assert form["ops"] == [["inc", ["n"], 1]]
    assert bytes.fromhex(form["link"]) == event.link
    known = {name.removesuffix("_us") for name in event.__struct_fields__}
    assert known <= {name.removesuffix("_at") for name in form} | {"at", "processed"}


async def test_a_brief_event_keeps_what_is_short() -> None:
    """A long text takes the room that is left, whatever comes after it; many names are cut too."""
    long = {
        "output": "x" * 50_000,
        "usage": {"input": 9},
        "deep": [["y" * 50_000]],
        "is_error": True,
    }
    many = {f"name{n:04}": n for n in range(5_000)}
    async with limpet.open("memory://") as lp:
        s = await session(lp)
        await s.append("agent.tool_result", long, actor="agent:a")
        await s.append("note.added", many, actor="user:ada")
        cut, crowd = [wire.brief_event_form(each) for each in await s.read(after=3)]
    assert list(cut["data"]) == ["output", "usage", "deep", "is_error"]
    assert (cut["data"]["usage"], cut["data"]["is_error"], cut["brief"]) == (
        {"input": 9},
        True,
        True,
    )
    assert 5_000 < len(cut["data"]["output"]) < 6_000
    assert cut["data"]["deep"] == []  # there was no room for it
    assert crowd["brief"]
    assert len(msgspec.json.encode(crowd)) < 10_000


async def test_a_page_is_written_with_its_heads_states_and_cursor() -> None:
    """A session without a state in the page has none in its form."""
    async with limpet.open("memory://") as lp:
        s = await session(lp)
        await lp.create("support", "bob")
        with_states = wire.page_form(await lp.list(app="support", limit=1, state=True))
        heads = wire.page_form(await lp.list(app="support", user="ada"))
    assert with_states["cursor"] is not None
    assert with_states["items"][0]["state"] == {}
    (head,) = heads["items"]
    assert "state" not in head
    assert head["session"] == {"app": "support", "user": "ada", "id": "c1"}
    assert (head["version"], head["labels"], head["pending"]) == (s.version, {"plan": "gold"}, 1)
    assert (head["phase"], head["deleted_at"]) == ("active", None)
    assert head["timers"] == {"t": {"at": AT.isoformat(), "kind": "wake"}}
    assert msgspec.json.decode(msgspec.json.encode(heads)) == heads


async def test_reports_and_errors_are_written_by_their_codes() -> None:
    """What a caller can act on: a code, words, whether a retry helps, and a page."""
    async with limpet.open("memory://") as lp:
        await session(lp)
        assert wire.report_form(await lp.maintenance.verify())["ok"] is True
        error = limpet.SessionNotFound(limpet.Key("a", "b", "c"))
    form = wire.error_form(error)
    assert (form["code"], form["retryable"]) == ("session.not_found", False)
    assert (form["message"], form["docs"]) == (str(error), "errors/#session.not_found")
