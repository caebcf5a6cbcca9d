"""The studio without a browser: its files, its sign-in, the command, and the routes that it needs.
What the page does is tested in tests/adapters/browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import SessionDeleted
from limpet.server import ids
from limpet.server.pulse import StorePulse, follow_quietly, watch_quietly
from limpet.server.serve import serving
from limpet.session.runs.recorded_run import run_of
from limpet.studio import studio
from tests.support.http_door import HttpDoor
from tests.support.studio_sample import order_graph

ADA = "user:ada"


@pytest.fixture
async def lp(tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(f"sqlite:///{tmp_path / 'shop.db'}") as made:
        yield made


async def test_the_files_need_no_key_and_allow_no_foreign_script(lp: limpet.Limpet) -> None:
    """The shell and its modules, with a strict policy; a second visit is answered by a tag."""
    async with serving(lp) as url:
        door = HttpDoor(url)
        shell = await door.get("/studio")
        assert shell.status == 200
        for other in ("/", "/studio/", "/studio/index.html"):  # limpet serve prints the first
            assert (await door.get(other)).headers["etag"] == shell.headers["etag"]
        assert "default-src 'self'" in shell.headers["content-security-policy"]
        assert "unsafe" not in shell.headers["content-security-policy"]
        for name in ("app.js", "style.css", "icon.svg"):
            found = await door.get(f"/studio/{name}")
            assert found.status == 200
            again = await door.get(f"/studio/{name}", if_none_match=found.headers["etag"])
            assert again.status == 304
            packed = await door.get(f"/studio/{name}", accept_encoding="gzip, br")
            assert packed.headers["etag"] == found.headers["etag"]
            assert packed.headers["content-encoding"] == "gzip"
            assert "content-encoding" not in found.headers
            assert int(packed.headers["content-length"]) < int(found.headers["content-length"])
        assert (await door.get("/studio/../access.py")).status in (401, 404)
        assert (await door.get("/studio/nothing.js")).status == 404
        assert (await door.get("/limpet/v1/me")).status == 401  # what it shows needs a key
        assert (await door.post("/studio/sign_in", {"token": "x"})).status == 401


async def test_a_link_is_good_for_one_key(lp: limpet.Limpet) -> None:
    """Its token is exchanged once; what is done with the key has the person as its actor."""
    await lp.create("shop", "ada", "c1", actor=ADA)
    async with studio(lp) as link:
        url, _, token = link.partition("/studio#token=")
        door = HttpDoor(url)
        assert (await door.get("/limpet/v1/me")).status == 401
        given = await door.post("/studio/sign_in", {"token": token})
        assert (await door.post("/studio/sign_in", {"token": token})).status == 401
        opened = HttpDoor(url, authorization=f"Bearer {given.body['key']}")
        me = (await opened.get("/limpet/v1/me")).body
        assert (me["role"], "write" in me["actions"]) == ("admin", True)
        one = f"/limpet/v1/sessions/{ids.session_id('c1')}"
        await opened.post(f"{one}/labels?app=shop&user=ada", {"labels": {"plan": "gold"}})
        foreign = await opened.get("/limpet/v1/me", host="evil.example")
        assert foreign.status == 401
    s = await lp.get("shop", "ada", "c1")
    assert (await s.read(types=["session.labeled"]))[0].actor == me["id"]


async def test_lists_are_cut_and_searched(lp: limpet.Limpet) -> None:
    """brief cuts long texts and says so; sessions are found by text, label, user and readiness."""
    s = await lp.create("shop", "ada", "c1", actor=ADA, labels={"plan": "gold"})
    await s.append("user.message", {"text": "x" * 100_000, "more": ["y"] * 10_000})
    await lp.create("other", "eve", "Find-Me", actor="user:eve")
    one = f"/limpet/v1/sessions/{ids.session_id('c1')}/events?app=shop&user=ada"
    async with serving(lp, dev=True) as url:
        door = HttpDoor(url)
        (created, cut) = (await door.get(f"{one}&brief=true")).body["data"]
        assert (created["brief"], cut["brief"]) == (False, True)
        assert len(json.dumps(cut)) < 10_000
        assert len((await door.get(one)).body["data"][1]["data"]["text"]) == 100_000

        async def ids_of(query: str) -> list[str]:
            found = await door.get(f"/limpet/v1/sessions?{query}")
            return [each["session"]["id"] for each in found.body["data"]]

        assert await ids_of("") == ["Find-Me", "c1"]
        assert await ids_of("q=find-me") == ["Find-Me"]
        assert await ids_of("q=GOLD") == ["c1"]
        assert await ids_of("user=eve") == ["Find-Me"]
        assert await ids_of("labels[plan]=gold") == ["c1"]
        assert await ids_of("ready=due") == ["c1"]  # it has input
        forked = await door.post(
            f"/limpet/v1/sessions/{ids.session_id('c1')}/fork?app=shop&user=ada",
            {"at": 1, "set": {"mood": "curious"}},
        )
    assert (await lp.get("shop", "ada", forked.body["id"])).values["mood"] == "curious"


async def _says(turn: limpet.Turn) -> None:
    await turn.say("Here.")


async def test_what_the_page_compares_and_pages_through(lp: limpet.Limpet) -> None:
    """The difference to another session, wakes before a seq, and where forks part."""
    s = await lp.create("shop", "ada", "c1", actor=ADA, state={"mood": "calm", "n": [1, 2]})
    for text in ("one", "two", "three"):
        await s.append("user.message", {"text": text})
        await lp.wake(s.key, _says)
    fork = await s.fork(2, id="fork")
    await fork.update(lambda _: {"mood": "cross"})
    one = f"/limpet/v1/sessions/{ids.session_id('c1')}"
    async with serving(lp, dev=True) as url:
        door = HttpDoor(url)

        async def get(path: str) -> dict[str, Any]:
            answer = await door.get(f"{one}{path}&app=shop&user=ada")
            assert answer.status == 200, answer.body
            return dict(answer.body)

        other = ids.session_id("fork")
        diff = await get(f"/diff?other={other}")
        assert diff["shared"] == 2
        (change,) = diff["changes"]
        assert (change["path"], change["old"], change["new"]) == (["mood"], "calm", "cross")
        missing = await door.get(f"{one}/diff?other=sesn_none&app=shop&user=ada")
        assert missing.status == 404
        newest = (await get("/traces?limit=2"))["data"]
        older = (await get(f"/traces?limit=2&before={newest[-1]['seq']}"))["data"]
        assert len({each["seq"] for each in (*newest, *older)}) == 3
        assert len(older) == 1
        nodes = (await get("/graph?limit=9"))["nodes"]
        forked = {each["session"]["id"]: each["forked_at"] for each in nodes}
        assert forked == {"c1": None, "fork": 2}


def test_the_script_of_the_page_stays_small() -> None:
    """Less than 80,000 bytes in all modules, as they are written; none comes from elsewhere."""
    static = files("limpet") / "studio" / "static"
    modules = [each for each in static.iterdir() if each.name.endswith(".js")]
    assert sum([len(each.read_bytes()) for each in modules]) < 80_000
    named = {each.name for each in modules}
    for each in modules:
        imports = re.findall(r'^import .* from "(.*)";$', each.read_text(), re.MULTILINE)
        assert {path.removeprefix("./") for path in imports} <= named, each.name
        assert "innerHTML" not in each.read_text(), each.name
    for each in static.iterdir():
        found = set(re.findall(r"https?://[^\s\"'<>)]+", each.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, each.name
    page = (static / "index.html").read_text()
    assert set(re.findall(r'(?:src|href)="([^#][^"]*)"', page)) <= {
        f"studio/{each.name}" for each in static.iterdir()
    }


def test_every_sentence_that_the_page_says_is_in_the_shell() -> None:
    """A name that a module asks the shell for has its words or its template there."""
    static = files("limpet") / "studio" / "static"
    page = (static / "index.html").read_text()
    words = {
        re.sub("-([a-z])", lambda found: found[1].upper(), name)
        for name in re.findall(r' data-([\w:-]+)="', page)
    }
    templates = set(re.findall(r'<template id="([\w-]+)"', page))
    for each in static.iterdir():
        if each.name.endswith(".js"):
            script = each.read_text()
            assert set(re.findall(r"\bSAY\.(\w+)", script)) <= words, each.name
            for prefix, named in ((r"template\(", ""), (r"none\(", "none-"), (r"ask\(", "")):
                for id in re.findall(prefix + r'"([\w-]+)"', script):
                    assert f"{named}{id}" in templates, (each.name, id)


async def test_a_quiet_stream_misses_nothing(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Events of another process come in order, each once; partials while it is lively; a deletion
    ends it."""
    s = await lp.create("shop", "ada", "c1", actor=ADA)
    pulse = StorePulse(lp)
    events = follow_quietly(pulse, lp, s, 1, partials=True)
    entries = watch_quietly(pulse, lp, None, await lp.position())
    async with limpet.open(f"sqlite:///{tmp_path / 'shop.db'}") as other:
        away = await other.get("shop", "ada", "c1")
        for n in range(3):
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await away.append("user.message", {"text": str(n)}, actor=ADA)
            event = await asyncio.wait_for(waiting, 30)
            assert (event.seq, event.data["text"]) == (n + 2, str(n))
            entry = await asyncio.wait_for(anext(entries), 30)
            assert (entry.key, entry.event.seq) == (s.key, n + 2)
        waiting = asyncio.ensure_future(anext(events))
        await away.append("agent.message", {"text": "On"}, partial=True, id="f", actor="agent:a")
        piece = await asyncio.wait_for(waiting, 30)
        assert (piece.partial, piece.data["text"]) == (True, "On")
        await other.delete(s.key)
        with pytest.raises(SessionDeleted):
            await asyncio.wait_for(anext(events), 30)
    await entries.aclose()
    await pulse.close()


async def test_a_run_of_a_graph_is_read_back(lp: limpet.Limpet) -> None:
    """The drawing, the path and the state after each node; of a log without one, the path alone."""
    s = await lp.create("orders", "gwen", "books", actor="user:gwen")
    assert (await run_of(s)).path == ()
    await s.append("user.message", {"text": "five books"})
    await lp.wake(s.key, order_graph())
    run = await run_of(await lp.get(s.key))
    assert [visit.node for visit in run.path] == ["price", "check", "pack"]
    assert run.path[0].state["total"] == 30
    assert ("check", "refuse", True) in run.edges
    assert (run.entry, run.current, len(run.nodes)) == ("price", None, 4)


def test_the_command_prints_its_link_or_opens_a_browser(tmp_path: Path) -> None:
    """--no-browser prints the link; otherwise the browser gets it."""
    store, seen = tmp_path / "shop.db", tmp_path / "seen"
    with limpet.open_sync(f"sqlite:///{store}") as lp:
        lp.create("shop", "ada", "c1", actor=ADA)
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    script.chmod(0o755)
    for options in ((), ("--no-browser",)):
        seen.unlink(missing_ok=True)
        command = [sys.executable, "-m", "limpet.cli", "studio", str(store), *options]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "BROWSER": f"{script} %s"},
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "studio at http://127.0.0.1:" in line
            if not options:
                while not seen.exists() or not seen.read_text():
                    assert process.poll() is None
                assert seen.read_text() in line
        finally:
            process.terminate()
            process.stdout.close()
            assert process.wait(30) == 0
        assert seen.exists() == (not options)
