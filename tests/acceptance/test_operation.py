"""What operators see and do: probes, metrics, the access log, an orderly end, two servers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from starlette.requests import HTTPConnection

import limpet
from limpet import Limpet, Principal
from limpet.errors import EntryRefused, InvalidInput
from limpet.server import build, ids, requests, serve, service
from limpet.server.access import Caller
from limpet.server.routes import operation
from limpet.server.serve import serving
from limpet.store.memory.store import MemoryStore
from tests.support.http_door import HttpDoor
from tests.support.processes import Child, Interpreter

Answer = tuple[int, dict[str, str], bytes]


async def ask(url: str, path: str, *headers: str, method: str = "GET") -> Answer:
    """One request by hand: what is answered is seen as it is."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{port}", "connection: close", *headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *rest = head.decode().split("\r\n")
    fields = dict([line.lower().split(": ", 1) for line in rest])
    return int(first.split(" ")[1]), fields, body


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_store_url")
        return found
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?sync=normal"


def by_role(lp: Limpet) -> Any:
    """Let in whoever names a role, as a principal of it."""

    async def caller_of(connection: HTTPConnection) -> Caller:
        role = connection.headers.get("x-role")
        if role is None:
            raise EntryRefused("this server", "the request has no key")
        principal = Principal("user:ada", role=role, app="support", user="ada")
        return Caller(lp.acting_as(principal), principal.id, admin=role == "admin")

    return caller_of


async def test_the_probes_need_no_key_and_answer_on_every_store(store: str) -> None:
    """Up, and ready: the store is reachable, its schema right, the clock sane."""
    async with limpet.open(store) as lp, serving(lp, caller_of=by_role(lp)) as url:
        assert await ask(url, "/healthz") == (*(await ask(url, "/healthz"))[:2], b'{"ok":true}')
        status, _, body = await ask(url, "/readyz")
        assert (status, json.loads(body)) == (200, {"ready": True, "reasons": []})
        assert (await ask(url, "/metrics"))[0] == 401


async def test_a_store_with_another_schema_or_clock_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is in the answer; the process is up all the same."""
    monkeypatch.setattr(operation, "READY_KEPT_SECONDS", -1.0)
    file = tmp_path / "s.db"
    async with limpet.open(f"sqlite:///{file}") as lp, serving(lp, dev=True) as url:
        await lp.create("support", "ada")
        conn = apsw.Connection(str(file))
        conn.set_busy_timeout(10_000)
        number = conn.pragma("user_version")
        conn.pragma("user_version", 999)
        status, _, body = await ask(url, "/readyz")
        assert status == 503
        assert "schema: 999" in json.loads(body)["reasons"][0]
        conn.pragma("user_version", number)
        conn.execute("UPDATE sessions SET created_us = created_us + 1000 * 1000000")
        conn.close()
        status, _, body = await ask(url, "/readyz")
        assert status == 503
        assert "clock" in json.loads(body)["reasons"][0]
        assert (await ask(url, "/healthz"))[0] == 200


async def test_whoever_asks_for_readiness_asks_the_store_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody needs a key for it: many at once, and one after another, are one probe."""
    monkeypatch.setattr(operation, "READY_KEPT_SECONDS", 600.0)
    asked = 0

    class CountedStore(MemoryStore):
        async def heads(self, *args: Any, **given: Any) -> Any:
            nonlocal asked
            asked += 1
            return await super().heads(*args, **given)

    async with Limpet("memory://", store=CountedStore()) as lp, serving(lp, dev=True) as url:
        answers = await asyncio.gather(*[ask(url, "/readyz") for _ in range(20)])
        assert {status for status, _, _ in answers} == {200}
        assert (await ask(url, "/readyz"))[0] == 200
    assert asked == 1


async def test_a_store_that_is_gone_is_not_ready() -> None:
    """It was closed under the server."""
    lp = limpet.Limpet("memory://")
    async with lp, serving(lp, dev=True) as url:
        await lp._journal.store.close()
        status, _, body = await ask(url, "/readyz")
        assert (status, json.loads(body)["ready"]) == (503, False)


@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("POST", 404), ("DELETE", 405)])
async def test_a_path_that_is_not_served_is_an_error_of_ours(method: str, status: int) -> None:
    """Its code and its page stand in the answer, outside the wires too."""
    async with limpet.open("memory://") as lp, serving(lp, caller_of=by_role(lp)) as url:
        path = "/healthz" if status == 405 else "/nothing?secret=1"
        answered, headers, body = await ask(url, path, method=method)
        error = json.loads(body)["error"]
        assert (answered, error["details"]["error_code"]) == (status, "request.no_route")
        assert f"{method} {path.partition('?')[0]}." in error["message"]
        assert ("allow" in headers) == (status == 405)


async def test_metrics_count_and_name_no_user(store: str) -> None:
    """Commits, latencies, followers, sessions by kind, denials, connections; for admins alone."""
    async with limpet.open(store) as lp, serving(lp, caller_of=by_role(lp)) as url:
        s = await lp.create("support", "ada-the-user")
        await s.append("user.message", {"text": "hi"}, actor="user:ada-the-user")
        assert (await ask(url, "/metrics", "x-role: owner"))[0] == 403
        denied = (await lp.audit(denied=True)).items[0]
        assert (denied.principal, denied.action, denied.address) == (
            "user:ada",
            "inspect",
            "127.0.0.1",
        )
        assert (await ask(url, "/metrics"))[0] == 401
        status, headers, body = await ask(url, "/metrics", "x-role: admin")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        text = body.decode()
        values = dict([line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#"])
        assert int(values["limpet_commits_total"]) >= 2
        assert values["limpet_entries_refused_total"] == "1"
        assert values["limpet_sessions_all"] == "1"
        for state in ("leased", "due", "blocked", "dead"):
            assert f'limpet_sessions{{state="{state}"}}' in values
        for name in ("followers", "connections", "denials_total", "requests_at_work"):
            assert f"limpet_{name}" in values
        series = 'limpet_request_seconds_bucket{method="GET",route="/metrics",le="+Inf"}'
        assert values[series] == "2"
        assert "ada" not in text


async def test_metrics_of_the_store_protocol_and_of_followers() -> None:
    """Calls by method with their latencies, and who follows."""
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        async with limpet.open(url) as client:
            await client.create("support", "ada")
            text = (await ask(url, "/metrics"))[2].decode()
        assert 'limpet_calls_total{method="commit",outcome="ok"} 1' in text
        assert 'limpet_call_seconds_count{method="commit"} 1' in text
        assert "limpet_connections 1" in text
        assert "limpet_commits_total 1" in text


async def test_requests_are_logged_without_query_and_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line each, with the principal; a path cannot write lines of its own."""
    with caplog.at_level(logging.INFO, "limpet.server.access"):
        async with limpet.open("memory://") as lp, serving(lp, caller_of=by_role(lp)) as url:
            await ask(url, "/metrics?secret=hunter2", "x-role: admin")
            await ask(url, "/none%0a%20x")
            assert (await ask(url, "/?" + "q" * 9_000))[0] == 414
    lines = [record.getMessage() for record in caplog.records if "request: " in record.getMessage()]
    assert lines[0].startswith("request: method=GET path=/metrics status=200 seconds=")
    assert lines[0].endswith("principal=user:ada address=127.0.0.1")
    assert "hunter2" not in caplog.text
    assert "\x1b" not in caplog.text


async def test_a_key_has_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key is let in meanwhile, and so is the first once it has ended something."""
    share = requests.KeyShare(most=2)
    ada = ("support", "user:ada")
    share.enter(ada)
    share.enter(ada)
    with pytest.raises(limpet.errors.TooManyRequests, match="this key has 2"):
        share.enter(ada)
    share.enter(("support", "user:bob"))
    share.enter(("sales", "user:ada"))
    share.leave(ada)
    share.enter(ada)
    monkeypatch.setattr(service, "KeyShare", lambda rate: requests.KeyShare(most=1))
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        assert (await ask(url, "/metrics"))[0] == 200
        async with limpet.open(url):
            assert (await ask(url, "/metrics"))[0] == 429
            assert (await ask(url, "/healthz"))[0] == 200


@pytest.fixture
async def crossed() -> AsyncIterator[str]:
    async with limpet.open("memory://") as lp:
        named = ("https://app.example.com",)
        async with serving(lp, caller_of=by_role(lp), cors=named) as url:
            yield url


async def test_other_origins_are_closed_unless_named(crossed: str) -> None:
    """A browser asks first; without an answer for its origin it does not send."""
    asked = ("access-control-request-method: GET", "access-control-request-headers: authorization")
    named, other = "origin: https://app.example.com", "origin: https://evil.example"
    allowed = (await ask(crossed, "/metrics", named, *asked, method="OPTIONS"))[1]
    assert allowed["access-control-allow-origin"] == "https://app.example.com"
    for headers in ((await ask(crossed, "/metrics", other, *asked, method="OPTIONS"))[1],):
        assert "access-control-allow-origin" not in headers
    assert "access-control-allow-origin" not in (await ask(crossed, "/healthz", other))[1]
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        assert "access-control-allow-origin" not in (await ask(url, "/healthz", named))[1]
        for wrong in ("*", "app.example.com", "https://app.example.com/path"):
            with pytest.raises(InvalidInput, match="not an origin"):
                build(lp, cors=[wrong])


async def test_sigterm_ends_in_order(tmp_path: Path) -> None:
    """What was answered is stored, the client is told, and the exit code is 0."""
    store = f"sqlite:///{tmp_path}/s.db"
    with Child("tests.support.bounded_server", store) as child:
        url = await asyncio.to_thread(child.line)
        async with limpet.open(str(url)) as lp:
            s = await lp.create("support", "ada", "c1")
            await s.append("user.message", {"text": "hi"}, actor="user:ada")
            os.kill(child.pid, signal.SIGTERM)
            assert await asyncio.to_thread(child.line) == "ended"
            await asyncio.to_thread(child.end, 0)
    async with limpet.open(store) as lp:
        assert (await lp.get("support", "ada", "c1")).version == 2


def test_whoever_has_read_the_url_may_stop_the_server(tmp_path: Path) -> None:
    """SIGTERM is caught before the line is printed: it drains, and the exit code is 0."""
    args = ("serve", str(tmp_path / "s.db"), "--dev", "--port", "0")
    with Interpreter("tests.support.stopped_server", *args) as child:
        assert "serving at http://127.0.0.1:" in str(child.line())
        child.end(0)


async def test_two_servers_serve_one_store(tmp_path: Path) -> None:
    """What is written through one is followed through the other, and a lease is held by one."""
    store = f"sqlite:///{tmp_path}/s.db?sync=normal"
    with (
        Child("tests.support.bounded_server", store) as one,
        Child("tests.support.bounded_server", store) as two,
    ):
        urls = [str(await asyncio.to_thread(each.line)) for each in (one, two)]
        async with limpet.open(urls[0]) as here, limpet.open(urls[1]) as there:
            s = await here.create("support", "ada", "c1")
            other = await there.get("support", "ada", "c1")
            for number in range(20):
                of = (s, other)[number % 2]
                await of.append("user.message", {"text": "hi", "n": number}, actor="user:ada")
            seen = []
            async for event in other.follow():
                seen.append(event.seq)
                if event.seq == 21:
                    break
            assert seen == list(range(seen[0], 22))
            assert (await here.get("support", "ada", "c1")).version == 21


async def test_streams_are_told_and_turns_are_given_back_when_a_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream ends whole, with a word; the session of a turn that goes on can be claimed."""
    monkeypatch.setattr(serve, "TURNS_SECONDS", 0.01)
    began = asyncio.Event()

    async def endless(turn: limpet.Turn) -> None:
        began.set()
        await asyncio.Event().wait()

    async with limpet.open("memory://") as lp:
        async with serving(lp, dev=True) as url:
            s = await lp.create("default", "default", "c1")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2]))
            path = f"/v1/sessions/{ids.session_id(s.key.id)}/events/stream"
            writer.write(
                f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
            )
            assert (await reader.readuntil(b": open\n\n")).startswith(b"HTTP/1.1 200")
            async with serve.working(lp, [(None, endless)]):
                await s.append("user.message", {"text": "go on"}, actor="user:default")
                await began.wait()
            assert (await lp.status()).leased == 0
            assert (await lp.status()).due == 1
        rest = await reader.read()
        writer.close()
    assert b"the server ends" in rest
    assert rest.endswith(b"0\r\n\r\n")


async def test_a_turn_that_does_not_end_keeps_no_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that goes on when it is cancelled is left alone; what was recorded is there."""
    monkeypatch.setattr(serve, "TURNS_SECONDS", 0.01)
    monkeypatch.setattr(serve, "CANCEL_SECONDS", 0.01)
    began, ends = asyncio.Event(), asyncio.Event()

    async def stubborn(turn: limpet.Turn) -> None:
        began.set()
        while not ends.is_set():
            with suppress(asyncio.CancelledError):
                await ends.wait()

    async with limpet.open("memory://") as lp:
        s = await lp.create("default", "default", "c1")
        async with serve.working(lp, [(None, stubborn)]):
            await s.append("user.message", {"text": "go on"}, actor="user:default")
            await began.wait()
        assert "drain cut short" in caplog.text
        assert (await lp.status()).leased == 1  # until its lease ends
        workers = [task for task in asyncio.all_tasks() if "Worker.run" in repr(task)]
        ends.set()
        await asyncio.gather(*workers)


def test_a_thread_of_a_turn_keeps_no_server(tmp_path: Path) -> None:
    """What a tool waits for in a thread may take for ever: the process ends in order without it."""
    thread = ("--policies", "tests.support.stopped_server:leave_a_thread")
    args = ("serve", str(tmp_path / "s.db"), "--dev", "--port", "0", *thread)
    with Interpreter("tests.support.stopped_server", *args) as child:
        assert "serving at http://127.0.0.1:" in str(child.line())
        child.end(0)


async def test_a_server_that_stops_gets_nothing_new_while_its_turns_end() -> None:
    """It refuses connections and is not ready on those that are there; a stream has the answer."""
    began, stopped, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answers(turn: limpet.Turn) -> None:
        began.set()
        await ends.wait()
        await turn.say("the answer")

    async with limpet.open("memory://") as lp, AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(lp, dev=True, stopped=stopped))
        at = ("127.0.0.1", int(url.split(":")[2]))
        s = await lp.create("default", "default", "c1")
        probe, to_probe = await asyncio.open_connection(*at)
        stream, to_stream = await asyncio.open_connection(*at)
        path = f"/v1/sessions/{ids.session_id(s.key.id)}/events/stream"
        for status, asked, writer, reader in (
            (b"200", "/readyz", to_probe, probe),
            (b"200", path, to_stream, stream),
            (b"503", "/readyz", to_probe, probe),
        ):
            writer.write(f"GET {asked} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            if asked == path:
                await stack.enter_async_context(serve.working(lp, [(None, answers)]))
                await s.append("user.message", {"text": "go on"}, actor="user:default")
                await began.wait()
                stopped.set()
                await asyncio.sleep(0)
            elif status == b"200":
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
        with pytest.raises(OSError):  # noqa: PT011  # refused, in the words of the system
            await asyncio.open_connection(*at)
        ends.set()
        await stack.aclose()
        said = await stream.read()
        to_probe.close()
        to_stream.close()
    assert b"the answer" in said.partition(b"the server ends")[0]


async def test_a_turn_that_does_not_end_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the part of the drain that turns have; another worker can claim its session at once."""
    monkeypatch.setattr(serve, "TURNS_SECONDS", 0.01)
    began = asyncio.Event()

    async def never(turn: limpet.Turn) -> None:
        began.set()
        await asyncio.Event().wait()

    async with limpet.open("memory://") as lp, asyncio.timeout(10):
        async with serve.working(lp, [(None, never)]):
            s = await lp.create("default", "default", "c1")
            await s.append("user.message", {"text": "go on"}, actor="user:default")
            await began.wait()
        assert [lease.key for lease in await lp.work.claim("another")] == [s.key]


async def test_limpet_serve_takes_nobody_in_while_its_turns_end(tmp_path: Path) -> None:
    """Those who are there go on: a turn ends with what they still say."""
    file = tmp_path / "s.db"
    args = ("serve", str(file), "--dev", "--port", "0", "--harness")
    with Interpreter("limpet.cli", *args, "tests.support.managed_harness:converse") as child:
        url = str(await asyncio.to_thread(child.line)).split()[-1]
        async with limpet.open(url) as lp:
            s = await lp.create("support", "ada", "c1")
            await s.append("user.message", {"text": "wait"}, actor="user:ada")
            async with aclosing(s.follow(after=0)) as events:
                while (await anext(events)).type != "span.started":
                    pass
            os.kill(child.pid, signal.SIGTERM)
            with pytest.raises(OSError):  # noqa: PT011  # refused, in the words of the system
                await _connect_until_refused(url)
            assert (await s.refresh()).status == "running"
            await s.append("user.message", {"text": "go on"}, actor="user:ada")
        await asyncio.to_thread(child.end, 0)
    async with limpet.open(f"sqlite:///{file}") as lp:
        assert [each.data["text"] for each in await lp.session(s.key).read(types=["agent.message"])]


async def _connect_until_refused(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    while True:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("id", ["c1", "sesn_c1", "sesn_", "a/b c", "é", ".", "sesn_.YzE"])
def test_every_session_has_an_id_on_the_wire(id: str) -> None:
    """Also those that were not made there; and only the one that was given out leads back."""
    assert ids.session_key_id(ids.session_id(id)) == id
    with pytest.raises(InvalidInput):
        ids.session_key_id(ids.session_id(id) + "=")


def test_an_id_of_ones_own_is_refused_with_the_one_that_leads_there() -> None:
    """As somebody would first try it."""
    with pytest.raises(InvalidInput, match=r"yours is 'sesn_\.Y2hhdA' here"):
        ids.session_key_id("chat")


def test_a_key_has_its_rate_and_its_kinds() -> None:
    """A second's requests come back with time; streams and uploads are counted by themselves."""
    now = [0.0]
    share = requests.KeyShare(streams=1, uploads=1, rate=10, clock=lambda: now[0])
    ada, bob = ("support", "user:ada"), ("support", "user:bob")
    for _ in range(20):
        share.count(ada)
    with pytest.raises(limpet.errors.TooManyRequests) as refused:
        share.count(ada)
    assert refused.value.retry_after_seconds == pytest.approx(0.1)
    share.count(bob)
    now[0] += 0.1
    share.count(ada)
    with pytest.raises(limpet.errors.TooManyRequests):
        share.count(ada)
    for what in (requests.STREAMS, requests.UPLOADS):
        share.enter(ada, what)
        with pytest.raises(limpet.errors.TooManyRequests, match="this key has 1"):
            share.enter(ada, what)
        share.leave(ada, what)
        share.enter(ada, what)
    share.enter(ada)


async def test_a_key_above_its_rate_is_told_when_to_come_back() -> None:
    """429 with retry-after; nothing of the request was stored, on the wire and beside it."""
    async with limpet.open("memory://") as lp:
        await lp.create("default", "default", "sesn_1")
        async with serving(lp, dev=True, rate=2) as url:
            door = HttpDoor(url)
            path, body = "/limpet/v1/sessions/sesn_1/labels", {"labels": {"a": "b"}}
            replies = [await door.post(path, body) for _ in range(5)]
            refused = [reply for reply in replies if reply.status == 429]
            assert refused
            assert refused[0].headers["retry-after"] == "1"
            assert refused[0].headers["x-should-retry"] == "true"
            assert refused[0].body["error"]["type"] == "rate_limit_error"
            code = refused[0].body["error"]["details"]["error_code"]
            assert code == "request.too_many"
            session = await lp.get("default", "default", "sesn_1")
            assert session.version == 1 + len(replies) - len(refused)
            while (await door.get("/openapi.json")).status != 429:
                pass
            assert (await door.get("/openapi.json")).headers["retry-after"] == "1"
            assert (await door.get("/healthz")).status == 200


async def test_large_bodies_of_one_key_are_read_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one is being read, another is refused; later it is not."""
    monkeypatch.setattr(service, "KeyShare", lambda rate: requests.KeyShare(uploads=1))
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        host, port = url.removeprefix("http://").split(":")
        large = 2 * 2**20
        head = f"POST /limpet/v1/import HTTP/1.1\r\nhost: {host}\r\ncontent-length: {large}\r\n\r\n"
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"x" * (large - 1))
        await writer.drain()
        while True:  # until the first one is counted
            reply = await HttpDoor(url).ask("POST", "/limpet/v1/import", b"x" * large)
            if reply.status == 429:
                break
        writer.write(b"x")
        assert (await reader.readline()).split()[1] == b"400"  # not an export
        writer.close()
        assert (await HttpDoor(url).ask("POST", "/limpet/v1/import", b"x" * large)).status == 400
