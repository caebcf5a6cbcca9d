"""A store behind a server: what clients see of it, and who is let in."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Limpet
from limpet.errors import (
    AccessDenied,
    EntryRefused,
    InvalidInput,
    InvalidQuery,
    ProtocolMismatch,
    SessionConflict,
    SessionNotFound,
    StoreFailed,
)
from limpet.server import access, ids, store_door
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKey, AccessKeys
from limpet.session.limpet import journal_of
from limpet.store import blobs, leases, marks, overview, protocol
from limpet.store.memory import MemoryStore
from limpet.store.remote import link, messages, methods
from limpet.store.remote.forms import error_classes, pack_error, unpack_error
from tests.support.command import invoke
from tests.support.processes import Interpreter

ADA = ("support", "ada", "c1")


@pytest.fixture
async def served() -> AsyncIterator[Limpet]:
    async with limpet.open("memory://") as lp:
        yield lp


@pytest.fixture
async def url(served: Limpet) -> AsyncIterator[str]:
    async with serving(served, dev=True) as url:
        yield url


@pytest.fixture
async def keyed(served: Limpet) -> AsyncIterator[str]:
    async with serving(served) as url:
        yield url


@pytest.fixture
async def keys(served: Limpet) -> AccessKeys:
    return AccessKeys(journal_of(served))


async def request(url: str, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """One HTTP request, written by hand."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return int(lines[0].split()[1]), headers, content


async def post(url: str, message: bytes, **more: str) -> tuple[int, Any]:
    """Calls of the store protocol by POST."""
    headers = {"host": "localhost", "limpet_protocol": methods.version(), **more}
    named = "\n".join(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
    head = f"POST {messages.PATH} HTTP/1.1\n{named}\ncontent-length: {len(message)}"
    status, _, content = await request(url, head, message)
    return status, messages.decode_answers(content) if status == 200 else json.loads(content)


def call(id: int, name: str, *args: object, again: bool = False) -> messages.Call:
    return messages.Call(id, name, again, msgspec.Raw(messages.encode(args)))


# --- every verb ----------------------------------------------------------------------------------


async def test_a_worker_needs_a_url_and_no_database(url: str, served: Limpet) -> None:
    """It claims, runs and closes turns of sessions that another client wrote to."""

    async def answer(turn: limpet.Turn) -> None:
        await turn.say(f"you said {turn.inputs[0].data['text']}")

    async with limpet.open(url) as lp, limpet.open(url) as worker:
        session = await lp.create(*ADA)
        await session.append("user.message", {"text": "hi"}, actor="user:ada")
        running = limpet.Worker(worker, answer, app="support", idle_exit=True, signals=False)
        await running.run()
        said = [m.parts[0]["text"] for m in await session.messages() if m.role == "assistant"]
    assert said == ["you said hi"]


async def test_two_clients_that_race_lose_no_update(url: str) -> None:
    """Updates are decided on the newest state, whoever writes; one of two strict ones fails."""
    async with limpet.open(url) as one, limpet.open(url) as two:
        first = await one.create(*ADA, state={"n": 0})
        second = await two.get(*ADA)
        change = [s.update(lambda v: {"n": v["n"] + 1}, actor="x:y") for s in (first, second) * 10]
        await asyncio.gather(*change)
        assert (await one.get(*ADA)).state["n"] == 20
        version = (await one.get(*ADA)).version
        both = [s.append("a.b", {}, actor="x:y", expect=version) for s in (first, second)]
        ends = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["Event", "SessionConflict"]


async def test_partials_of_a_client_reach_the_followers_of_another(url: str) -> None:
    """In their order, before the final event."""
    async with limpet.open(url) as one, limpet.open(url) as two:
        session = await one.create(*ADA)
        follower = (await two.get(*ADA)).follow(after=0)
        assert (await anext(follower)).seq == 1  # it follows now
        first = asyncio.ensure_future(anext(follower))
        texts = []
        for piece in ("a", "b"):
            await session.append(
                "agent.message", {"text": piece}, actor="agent:x", partial=True, id="f", attempt=1
            )
            texts.append((await asyncio.wait_for(first, 20)).data["text"])
            first = asyncio.ensure_future(anext(follower))
        await session.append("agent.message", {"text": "ab"}, actor="agent:x", id="f")
        final = await asyncio.wait_for(first, 20)
        await follower.aclose()
    assert texts == ["a", "b"]
    assert (final.partial, final.data["text"]) == (False, "ab")


def test_the_sync_verbs_work_on_a_url() -> None:
    """A loop of its own for the server, one for the client."""
    server = limpet.open_sync("memory://")
    with server:
        running = server._loop.call(_begin, server._of)
        with limpet.open_sync(running[1]) as lp:
            s = lp.create(*ADA)
            s.append("user.message", {"text": "hi"}, actor="user:ada")
            assert lp.get(*ADA).version == 2
        server._loop.call(running[0].__aexit__, None, None, None)


async def _begin(lp: Limpet) -> tuple[Any, str]:
    context = serving(lp, dev=True)
    return context, await context.__aenter__()


async def test_shared_names_are_decoded_when_they_are_read(url: str) -> None:
    """A load brings bytes; the value of a name is made of them when somebody looks."""
    async with limpet.open(url) as lp:
        await lp.create(*ADA, state={"app:big": {"x": [1, 2]}, "user:n": 1})
        loaded = await journal_of(lp).store.load(limpet.Key(*ADA), tail=0)
        assert {type(kept).__name__ for kept in loaded.scopes.unread().values()} == {"UnreadScope"}  # type: ignore[attr-defined]
        assert loaded.scopes["app:big"].value == {"x": [1, 2]}
        with pytest.raises(TypeError):
            loaded.scopes["app:big"].value["x"] = 1


async def test_the_progress_of_a_long_call_is_told(url: str) -> None:
    """Before its answer; and what the callback raises is raised to the caller."""
    told: list[tuple[int, int]] = []
    async with limpet.open(url) as lp:
        for n in range(3):
            await lp.create("support", "ada", f"s{n}")
        store = journal_of(lp).store
        await store.verify(None, lambda done, total: told.append((done, total)))
        assert told[-1] == (3, 3)
        with pytest.raises(ZeroDivisionError):
            await store.verify(None, lambda done, total: 1 // 0)


async def test_a_new_method_of_a_protocol_needs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, arguments and result come from its annotations."""

    class Weather(msgspec.Struct, frozen=True):
        place: limpet.Key
        degrees: float | None

    async def weather(
        self: object, places: tuple[limpet.Key, ...], *, unit: str = "c"
    ) -> dict[str, Weather]:
        return {f"{each}/{unit}": Weather(each, 21.5) for each in places}

    weather.__annotations__ |= {"places": tuple[limpet.Key, ...], "return": dict[str, Weather]}
    monkeypatch.setattr(protocol.Store, "weather", weather, raising=False)
    monkeypatch.setattr(MemoryStore, "weather", weather, raising=False)
    _forget_methods()
    try:
        async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:  # noqa: SIM117
            async with limpet.open(url) as client:
                store: Any = journal_of(client).store
                found = await store.weather([limpet.Key(*ADA)], unit="f")
        assert found == {"support/ada/c1/f": Weather(limpet.Key(*ADA), 21.5)}
    finally:
        monkeypatch.undo()
        _forget_methods()


def _forget_methods() -> None:
    from limpet.store.remote import store

    for cached in (methods.methods, methods.version, store._store_class):
        cached.cache_clear()


def test_every_protocol_of_a_store_is_offered_or_has_a_form_of_its_own() -> None:
    """Whoever adds one decides whether it travels."""
    # By pulses, partials, the greeting, and what the link counts.
    own = {"ActsAs", "Hints", "Live", "Channel", "Travels"}
    # Files, probes, keys, and what its guard asks: the server's.
    not_offered = {"Backups", "CompactsLog", "KeepsMirror", "Probed", "RingBinding", "UidIndex"}
    known = {each.protocol.__name__ for each in methods.ABILITIES} | own | not_offered
    known |= {"KeepsBlobs", "KeepsMarks", "LeaseStore", "Seal", "MarkingSeal"}
    found = {
        name
        for module in (protocol, leases, blobs, marks, overview)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and getattr(kind, "_is_protocol", False)
        if kind.__module__ == module.__name__ and not name.startswith("_")
    }
    assert found == known


@asynccontextmanager
async def proxied(url: str, *, refusals: float) -> AsyncIterator[str]:
    """The URL of a proxy that answers so many requests for a websocket with 502."""
    host, port = url.removeprefix("http://").split(":")
    refused = 0

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while piece := await source.read(65_536):
            to.write(piece)
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        head = await reader.readuntil(b"\r\n\r\n")
        if b"upgrade" in head.lower() and refused < refusals:
            refused += 1
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        answers, server = await asyncio.open_connection(host, int(port))
        server.write(head)
        await asyncio.gather(copy(reader, server), copy(answers, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"


async def test_where_no_websocket_passes_every_call_is_a_post(url: str) -> None:
    """A proxy that refuses to upgrade: reads, writes and followers work all the same."""
    async with (
        proxied(url, refusals=math.inf) as through,
        limpet.open(through) as lp,
        limpet.open(url) as other,
    ):
        assert link_of(lp).posts
        session = await lp.create(*ADA)
        follower = session.follow(after=1)
        next_one = asyncio.ensure_future(anext(follower))
        await session.append("user.message", {"text": "hi"}, actor="user:ada")
        assert (await asyncio.wait_for(next_one, 20)).seq == 2
        next_one = asyncio.ensure_future(anext(follower))
        await (await other.get(*ADA)).append("user.message", {"text": "ho"}, actor="user:ada")
        assert (await asyncio.wait_for(next_one, 20)).data == {"text": "ho"}
        await follower.aclose()
        with pytest.raises(SessionNotFound):
            await lp.get("support", "ada", "none")


async def test_a_server_that_comes_back_behind_its_proxy_gets_a_websocket(url: str) -> None:
    """One refusal, while it was away, does not mean that no websocket passes."""
    async with proxied(url, refusals=1) as through, limpet.open(through) as lp:
        assert not link_of(lp).posts
        await lp.create(*ADA)


def link_of(lp: Limpet) -> link.Link:
    """The connection of a client."""
    store: Any = journal_of(lp).store
    made: link.Link = store._link
    return made


# --- errors --------------------------------------------------------------------------------------


async def test_errors_are_raised_as_the_same_classes(url: str) -> None:
    """With their fields: a key is a Key again."""
    async with limpet.open(url) as lp:
        with pytest.raises(SessionNotFound) as missing:
            await lp.get("support", "ada", "none")
        session = await lp.create(*ADA)
        with pytest.raises(SessionConflict) as conflict:
            await session.append("a.b", {}, actor="x:y", expect=7)
    assert missing.value.key == limpet.Key("support", "ada", "none")
    assert (conflict.value.expected, conflict.value.actual) == (7, 1)


@pytest.mark.parametrize("wrong", [{"phase": "asleep"}, {"order": "size"}, {"prefix": 7}])
async def test_a_query_that_is_wrong_is_refused_in_the_same_words(
    served: Limpet, url: str, wrong: dict[str, Any]
) -> None:
    """They say what is allowed: no encoding of the call stands in between."""
    said = []
    async with limpet.open(url) as lp:
        for store in (served, lp):
            with pytest.raises(InvalidQuery) as refused:
                await store.list(app="support", **wrong)
            said.append(str(refused.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("role", [None, "admin"])
async def test_a_policy_that_a_client_sets_is_followed_at_once(
    served: Limpet, keys: AccessKeys, role: str | None
) -> None:
    """The server follows it for all of its clients, and looks again when one has changed it."""
    token = None if role is None else (await keys.create(role="admin", app=None))[1]
    async with (
        serving(served, dev=role is None) as url,
        limpet.open(url, token=token) as lp,
    ):
        s = await lp.create(*ADA)
        actor = None if role else "agent:main"
        await s.append("agent.did", actor=actor)  # the server has read that there is no policy
        for policy, count in (
            (limpet.CheckpointPolicy(events=("agent.did",)), 1),
            (limpet.CheckpointPolicy(events=("agent.other",)), 1),
            (limpet.CheckpointPolicy(before=("agent.did",)), 2),
            (None, 2),
        ):
            await lp.policies.checkpointing("support", policy)
            await s.append("agent.did", actor=actor)
            assert len((await s.history.checkpoints()).items) == count


@pytest.mark.parametrize("code", sorted(error_classes()))
def test_every_error_has_a_way_over_the_wire(code: str) -> None:
    """By its code."""
    kind = error_classes()[code]
    error = kind.__new__(kind)
    for name in kind.field_names:
        setattr(error, name, limpet.Key(*ADA) if name == "key" else "x")
    error.args = ("what happened",)
    back = unpack_error(msgspec.msgpack.decode(messages.encode(pack_error(error))))
    assert (type(back), str(back)) == (kind, "what happened")
    assert [getattr(back, n) for n in kind.field_names] == [
        getattr(error, n) for n in kind.field_names
    ]


async def test_without_a_server_it_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error that is retryable, when it is opened and when the server has gone."""
    assert link.PATIENCE_SECONDS == 12
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with limpet.open("memory://") as lp:
        async with serving(lp, dev=True) as url:
            client = await limpet.open(url)
            session = await client.create(*ADA)
        monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.3)
        with pytest.raises(StoreFailed, match="check that limpet serve runs there") as failed:
            await limpet.open(gone)
        assert failed.value.retryable
        with pytest.raises(StoreFailed) as unknown:
            await session.append("a.b", {}, actor="x:y")
        assert (unknown.value.asked, len(unknown.value.ids)) == ("write", 1)
        await client.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404, not as limpet serve"),
        (b"HTTP/1.0 404 Not found\r\n\r\n", "status 404, not as limpet serve"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP, not as limpet serve"),
        (None, "closed the connection unanswered; if it has TLS, write https://"),
        (b"", "did not answer in time"),
    ],
)
async def test_what_is_there_instead_of_a_server_is_said(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, reason: str
) -> None:
    """Another program may listen at the address, or one that says nothing."""
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 1.0)
    over = asyncio.Event()

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer:
            writer.write(answer)
        elif answer is not None:
            await over.wait()
        writer.close()

    listening = await asyncio.start_server(other, "127.0.0.1", 0)
    with pytest.raises(StoreFailed, match=reason):
        await limpet.open(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    over.set()
    listening.close()


async def test_a_key_is_taken_as_its_file_holds_it(keyed: str, keys: AccessKeys) -> None:
    """With the end of a line after it. What cannot be a key is refused before it is sent."""
    _, token = await keys.create(role="viewer", app="support")
    for each in (f"{token}\n", f" {token}\r\n"):
        async with limpet.open(keyed, token=each) as lp:
            assert (await lp.list()).items == ()
    bad: Any
    for bad in ("lk_a b", "lk_a\nb", "lk_\x00", "lk_é", b"lk_", 5):
        with pytest.raises(InvalidInput, match="the text of a key"):
            await limpet.open(keyed, token=bad)


@pytest.mark.parametrize("given", [{"keys": "memory:"}, {"archive": "file:///x"}, {"seal": 1}])
def test_what_belongs_to_the_store_is_refused_with_a_url(given: dict[str, Any]) -> None:
    """It is passed to the server."""
    with pytest.raises(InvalidInput, match="limpet serve"):
        limpet.open("http://localhost:8420", **given)


# --- what travels --------------------------------------------------------------------------------


async def test_another_protocol_is_refused_and_both_are_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying again does not help."""
    monkeypatch.setattr(link, "version", lambda: "999")
    with pytest.raises(ProtocolMismatch) as refused:
        await limpet.open(url)
    assert {refused.value.theirs, refused.value.ours} == {methods.version(), "999"}
    assert not refused.value.retryable
    status, told = await post(url, b"", limpet_protocol="7")
    assert (status, told["error"]["code"]) == (426, "server.protocol")


async def test_a_repeated_call_is_answered_from_memory(url: str) -> None:
    """By POST here: a counter is added to once, however often the call comes."""
    until_us = 4_000_000_000_000_000
    message = messages.encode(messages.Calls(0, (call(7, "marks.add", "s", "n", until_us, 5),)))
    for _ in range(3):
        status, found = await post(url, message, limpet_client="me")
        assert (status, msgspec.msgpack.decode(found.answers[0].value)) == (200, 5)
    _, found = await post(url, message, limpet_client="another")
    assert msgspec.msgpack.decode(found.answers[0].value) == 10
    acknowledged = messages.encode(
        messages.Calls(7, (call(7, "marks.add", "s", "n", until_us, 5),))
    )
    assert (await post(url, acknowledged, limpet_client="me"))[1].answers == ()


async def test_a_call_whose_answer_was_dropped_is_not_made_twice(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter is not added to again: its client learns that the outcome is unknown. What changes
    nothing when it is repeated is made again."""
    monkeypatch.setattr(store_door, "ANSWERS_KEPT_BYTES_PER_KEY_MAX", 0)
    until_us = 4_000_000_000_000_000
    counted = messages.encode(messages.Calls(0, (call(1, "marks.add", "s", "n", until_us, 5),)))
    put = messages.encode(messages.Calls(0, (call(2, "marks.put", "s", "m", until_us, 7),)))
    assert (await post(url, counted, limpet_client="me"))[1].answers[0].ok
    _, again = await post(url, counted, limpet_client="me")
    code, said, _ = msgspec.msgpack.decode(again.answers[0].value)
    assert (again.answers[0].ok, code) == (False, "store.failed")
    assert "does not remember the answer" in said
    for _ in range(2):
        assert (await post(url, put, limpet_client="me"))[1].answers[0].ok


@pytest.mark.parametrize(
    "message",
    [b"", b"\x00", b"\xc1", b"\x92\x00\x91\x94\x01\xa4load\xc2\x90", b"\xdd\xff\xff\xff\xff"],
)
async def test_what_is_no_message_is_refused(url: str, message: bytes) -> None:
    """As an error of ours, by status or in the answer."""
    status, found = await post(url, message)
    if status == 200:
        (answer,) = found.answers
        assert not answer.ok
    else:
        assert (status, found["error"]["code"]) == (400, "input.invalid")


async def test_a_message_with_too_many_calls_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is begun; notes, which nobody waits for, do not count."""
    monkeypatch.setattr(store_door, "CALLS_PER_CONNECTION_MAX", 2)
    until_us = 4_000_000_000_000_000
    calls = [call(n, "marks.add", "s", "n", until_us, 1) for n in (1, 2, 3)]
    status, found = await post(url, messages.encode(messages.Calls(0, tuple(calls))))
    assert (status, found["error"]["code"]) == (400, "input.invalid")
    notes = [messages.Call(0, "$watch", False, msgspec.Raw(messages.encode(None)))] * 2
    status, found = await post(url, messages.encode(messages.Calls(0, (*notes, calls[0]))))
    assert (status, msgspec.msgpack.decode(found.answers[0].value)) == (200, 1)


async def test_answers_that_wait_for_a_client_hold_up_its_calls_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little may wait, every call is answered."""
    monkeypatch.setattr(store_door, "ANSWERS_WAITING_BYTES_MAX", 0)
    async with limpet.open(url) as lp:
        session = await lp.create(*ADA)
        one = [session.append("n.counted", {"n": n}, actor="a:b") for n in range(50)]
        await asyncio.gather(*one, *[lp.get(*ADA) for _ in range(50)])
        assert (await lp.get(*ADA)).version == 51


@pytest.mark.parametrize(
    "change",
    [
        {"raw": b'{"data": {"text":"hi"}}'},
        {"raw": b'{"data":{"n":123456789012345678901234567890}}'},
        {"raw": b'{"data":{},"ops":[["set",["temp:x"],1]]}'},
        {"raw": b"[]"},
        {"type": "nodots"},
        {"actor": " x"},
        {"id": ""},
    ],
)
async def test_a_forged_draft_is_refused(url: str, change: dict[str, Any]) -> None:
    """Everything is checked again: its names, and that its body is encoded as ours are."""
    from limpet.store.remote import commits

    async with limpet.open(url) as lp:
        session = await lp.create(*ADA)
        whole = commits._sent_draft

        def forged(draft: Any) -> Any:
            return msgspec.structs.replace(whole(draft), **change)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "_sent_draft", forged)
            with pytest.raises(InvalidInput):
                await session.append("user.message", {"text": "hi"}, actor="user:ada")
        assert (await lp.get(*ADA)).version == 1


# --- who enters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["host: evil.example", "host: localhost\norigin: https://evil"])
async def test_a_foreign_page_cannot_use_a_server_for_development(url: str, header: str) -> None:
    """The names that a browser sends are looked at."""
    head = f"POST {messages.PATH} HTTP/1.1\n{header}\ncontent-length: 0"
    status, _, content = await request(url, head)
    assert (status, json.loads(content)["error"]["code"]) == (401, "access.entry")


async def test_a_server_for_development_listens_on_loopback_only(served: Limpet) -> None:
    with pytest.raises(InvalidInput, match="lets everybody in"):
        await serving(served, host="0.0.0.0", dev=True).__aenter__()
    with pytest.raises(InvalidInput, match="the host is empty"):  # it would be every address
        await serving(served, host="", dev=True).__aenter__()


async def test_a_key_opens_what_its_principal_may_use(
    served: Limpet, keyed: str, keys: AccessKeys
) -> None:
    """Without one nobody enters; with one, what it writes has its principal as actor."""
    for token in (None, "lk_nothing", "lk_0123456789abcdef_x", "x"):
        with pytest.raises(EntryRefused):
            await limpet.open(keyed, token=token)
    _, token = await keys.create(role="owner", app="support", user="ada")
    await served.create("support", "bob", "b1")
    async with limpet.open(keyed, token=token) as lp:
        session = await lp.create(*ADA)
        event = await session.append("user.message", {"text": "hi"}, actor="user:ada")
        assert event.actor == "user:ada"
        assert [head.key.user for head in (await lp.list(app="support")).items] == ["ada"]
        with pytest.raises(AccessDenied):
            await lp.get("support", "bob", "b1")
        with pytest.raises(AccessDenied):
            await session.append("user.message", {"text": "hi"}, actor="user:bob")
    denied = await served.audit(denied=True)
    assert {record.action for record in denied.items} >= {"enter", "read", "write"}


async def test_an_agent_key_serves_the_workers_of_an_app(
    served: Limpet, keyed: str, keys: AccessKeys
) -> None:
    """It claims and runs, with a URL and a key."""
    _, token = await keys.create(role="agent", app="support")
    session = await served.create(*ADA)
    await session.append("user.message", {"text": "hi"}, actor="user:ada")

    async def answer(turn: limpet.Turn) -> None:
        await turn.say("done")

    async with limpet.open(keyed, token=token) as lp:
        worker = limpet.Worker(lp, answer, app="support", idle_exit=True, signals=False)
        await worker.run()
    await session.refresh()
    assert [event.type for event in session.events][-2:] != ["session.created", "user.message"]
    assert any(event.type == "agent.message" for event in session.events)


async def test_a_viewer_of_an_app_reads_what_all_its_users_have(
    served: Limpet, keyed: str, keys: AccessKeys
) -> None:
    """Without a user it reads every session of the app and writes none; an owner has a user."""
    for user, app in (("ada", "support"), ("bob", "support"), ("eve", "other")):
        await served.create(app, user, "c1")
    _, token = await keys.create(role="viewer", app="support")
    async with limpet.open(keyed, token=token) as lp:
        shown = [each.key async for each in lp.each(app="support")]
        assert {key.user for key in shown} == {"ada", "bob"}
        with pytest.raises(AccessDenied):
            await (await lp.get(*ADA)).append("user.message", {"text": "hi"})
        with pytest.raises(AccessDenied):
            await lp.get("other", "eve", "c1")
    with pytest.raises(InvalidInput, match="--user"):
        await keys.create(role="owner", app="support")


async def test_a_revoked_key_ends_its_connections(keyed: str, keys: AccessKeys) -> None:
    """Within two seconds, those that are open too."""
    key, token = await keys.create(role="owner", app="support", user="ada")
    lp = await limpet.open(keyed, token=token)
    await lp.create(*ADA)
    await keys.revoke(key.id)
    loop, begin = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    refused: list[float] = []
    while not refused:
        try:
            await lp.get(*ADA)
            await asyncio.sleep(0.05)
        except EntryRefused:
            refused.append(loop.time() - begin)
    assert refused[0] < 20  # two seconds on a machine that has nothing else to do
    with pytest.raises(EntryRefused):
        await limpet.open(keyed, token=token)
    await lp.close()


async def test_a_follower_whose_key_expires_is_told(
    keyed: str, keys: AccessKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no call under way that could fail, and would wait for ever."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", 0.05)
    _, token = await keys.create(role="owner", app="support", user="ada")
    async with limpet.open(keyed, token=token) as lp:
        s = await lp.create(*ADA)
        following = s.follow()
        assert (await anext(following)).seq == 1
        monkeypatch.setattr(AccessKey, "state", lambda *_: "expired")
        with pytest.raises(EntryRefused):
            async with asyncio.timeout(60):
                await anext(following)


async def test_a_revoked_key_ends_every_stream(
    served: Limpet, keyed: str, keys: AccessKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session, of a thread, of the log and of the feed; those of another key go on."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", 0.05)
    await served.create("support", "ada", "sesn_c1", actor="user:ada")
    thread = ids.thread_id(limpet.Key("support", "ada", "sesn_c1"))
    streams = [
        "/v1/sessions/sesn_c1/events/stream",
        f"/v1/sessions/sesn_c1/threads/{thread}/stream",
        "/limpet/v1/sessions/sesn_c1/events/stream",
        "/limpet/v1/events/stream",
    ]
    key, token = await keys.create(role="admin", app="support")
    _, other = await keys.create(role="admin", app="support")
    ending = [await follow(keyed, path, token) for path in streams]
    going = await follow(keyed, streams[0], other)
    await keys.revoke(key.id)
    async with asyncio.timeout(60):
        for reader, _ in ending:
            await reader.read()
        await served.session("support", "ada", "sesn_c1").append(
            "user.message", {"text": "hi"}, actor="user:ada"
        )
        await going[0].readuntil(b'"text":"hi"')
    for _, writer in (*ending, going):
        writer.close()


async def follow(
    url: str, path: str, token: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream, which is subscribed then."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"GET {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {token}"]
    lines += ["limpet-user: ada", "connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    await reader.readuntil(b": open\n")
    return reader, writer


async def test_an_expired_key_opens_nothing(keyed: str, keys: AccessKeys) -> None:
    """And what cannot be a key is not made."""
    _, token = await keys.create(
        role="viewer", app="a", user="b", expires=timedelta(microseconds=1)
    )
    with pytest.raises(EntryRefused):
        await limpet.open(keyed, token=token)
    for wrong in ({"role": "owner", "app": "a"}, {"role": "agent", "app": None, "user": "b"}):
        with pytest.raises(InvalidInput):
            await keys.create(**wrong)  # type: ignore[arg-type]


async def test_a_refused_websocket_is_not_a_failure_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever tries keys fills the audit, not the error log."""
    async with limpet.open("memory://") as lp, serving(lp) as url:
        with pytest.raises(EntryRefused):
            async with limpet.open(url, token="lk_wrong"):
                pass
        assert (await lp.audit(denied=True)).items
    assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_a_client_does_not_say_where_it_comes_from(served: Limpet, keyed: str) -> None:
    """The headers of proxies are not believed: policies and the audit go by the address."""
    head = "GET /v1/agents HTTP/1.1\nhost: localhost\nauthorization: Bearer lk_wrong"
    forged = "x-forwarded-for: 192.0.2.7\nx-forwarded-proto: https\nforwarded: for=192.0.2.7"
    status, _, _ = await request(keyed, f"{head}\n{forged}")
    assert status == 401
    (denied,) = (await served.audit(denied=True)).items
    assert denied.address == "127.0.0.1"


async def test_an_adapter_that_is_given_the_url_takes_its_key_from_the_environment(
    keyed: str, keys: AccessKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are called without await: they cannot be given an open Limpet."""
    _, token = await keys.create(role="owner", app="support", user="ada")
    monkeypatch.delenv("LIMPET_TOKEN", raising=False)

    async def create(lp: Limpet) -> limpet.Key:
        return (await lp.create(*ADA)).key

    async with limpet.SharedLimpet(keyed) as shared:
        with pytest.raises(EntryRefused):
            await shared.run(create)
        monkeypatch.setenv("LIMPET_TOKEN", token)
        assert await shared.run(create) == limpet.Key(*ADA)


async def test_an_admin_of_the_store_makes_and_revokes_keys_from_anywhere(
    keyed: str, keys: AccessKeys
) -> None:
    """In its own name. An admin of one app may not: a key could open more than that app."""
    _, admin = await keys.create(role="admin", app=None)
    _, of_app = await keys.create(role="admin", app="support")
    async with limpet.open(keyed, token=admin) as lp:
        there = AccessKeys(journal_of(lp))
        key, token = await there.create(role="viewer", app="support")
        async with limpet.open(keyed, token=token) as viewer:
            assert (await viewer.list()).items == ()
        assert (await there.revoke(key.id)).revoked_us is not None
    assert (await keys.find(key.id) or key).revoked_us is not None
    async with limpet.open(keyed, token=of_app) as lp:
        with pytest.raises(limpet.AccessDenied):
            await AccessKeys(journal_of(lp)).create(role="viewer", app="support")


async def test_no_secret_of_a_key_is_stored(served: Limpet, keys: AccessKeys) -> None:
    """The list shows keys without it, and the store has a hash."""
    key, token = await keys.create(role="admin", app=None)
    (listed,) = await keys.list()
    assert listed == key
    prefix = f"lk_{key.id}_"
    assert token.startswith(prefix)  # the secret itself may contain "_"
    document = await keys._documents.get(key.id)
    assert token.removeprefix(prefix) not in str(document.value)


# --- bounds --------------------------------------------------------------------------------------


async def test_long_headers_and_queries_are_refused(url: str) -> None:
    """Before anything looks at them."""
    status, _, _ = await request(url, f"GET /?{'x' * 9_000} HTTP/1.1\nhost: localhost")
    assert status == 414
    status, _, _ = await request(url, f"GET / HTTP/1.1\nx: {'y' * 40_000}")
    assert status == 431


async def test_a_request_whose_headers_do_not_come_is_cut_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a connection for a bounded time."""
    monkeypatch.setattr("limpet.server.connection.HEADER_SECONDS", 0.05)
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


# --- the page ------------------------------------------------------------------------------------


async def test_the_program_on_the_page_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands there, on a server of ours."""
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = next(each for each in blocks if "def main" in each)
    app = next(each for each in blocks if "def app" in each)
    names: dict[str, Any] = {}
    exec(program.partition("asyncio.run")[0], names)
    await names["main"](url)
    assert capsys.readouterr().out == "2\n"
    exec(app, names)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = {"path": "/none", "raw_path": b"/none", "query_string": b"", "root_path": ""}
    scope = {"type": "http", "method": "GET", "headers": [], "scheme": "http", **path}
    await names["app"](scope, receive, send)
    assert sent[0]["status"] == 404


def fails(lp: Limpet) -> None:
    raise ValueError("no such policy")


def test_a_set_up_that_fails_is_the_users(tmp_path: Path) -> None:
    """The error of the function that --policies names is told with its line, as no bug of ours."""
    args = ("serve", str(tmp_path / "s.db"), "--port", "0", "--policies", f"{__name__}:fails")
    done = invoke(*args)
    assert done.exit_code == 2
    assert "failed: ValueError: no such policy (test_serving.py, line" in done.stderr


def test_the_commands_on_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is made, kept by login, and opens the server for other commands until it is revoked."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LIMPET_TOKEN", raising=False)
    store = str(tmp_path / "support.db")
    made = invoke(
        "access", "create", store, "--app", "support", "--user", "ada", "--role", "owner", "--json"
    )
    key = json.loads(made.stdout)
    with Interpreter("limpet.cli", "serve", store, "--port", "0") as server:
        line = server.line()
        assert line is not None, server.complaint()
        url = line.split()[-1]
        assert invoke("list", url).exit_code == 4
        assert invoke("login", url, input=key["token"]).exit_code == 0
        kept = tmp_path / "config/limpet/logins.json"
        assert (kept.stat().st_mode & 0o777, key["token"] in kept.read_text()) == (0o600, True)
        assert invoke("create", url, "support/ada/c1", "--actor", "user:ada").exit_code == 0
        shown = invoke("list", url, "--json")
        assert len(json.loads(shown.stdout)["items"]) == 1
        listed = json.loads(invoke("access", "list", store, "--json").stdout)
        assert [each["state"] for each in listed["keys"]] == ["active"]
        assert "hash" not in listed["keys"][0]
        assert "limpet login URL" in invoke("list", url, "--token", "lk_none").stderr
        unknown = invoke("access", "revoke", store, "none")
        assert (unknown.exit_code, "limpet access list" in unknown.stderr) == (2, True)
        assert invoke("access", "revoke", store, key["id"]).exit_code == 0
        until = time.monotonic() + 60  # two seconds on a machine that has nothing else to do
        while (code := invoke("list", url).exit_code) == 0:
            assert time.monotonic() < until
        assert code == 4
        os.kill(server.pid, signal.SIGTERM)
        server.end(0)


def test_tokens_policies_and_an_archive_are_named_on_the_command_line(tmp_path: Path) -> None:
    """Each option does what it says: a token is made and let in, a policy refuses its owner, and an
    archived session lies where it should."""
    store, signing = str(tmp_path / "support.db"), str(tmp_path / "tokens.pem")
    rules, archive = tmp_path / "rules.cedar", tmp_path / "cold"
    rules.write_text(
        "permit (principal, action, resource);\n"
        '@id("no-locked-sessions")\nforbid (principal, action, resource)\n'
        'when { resource has id && resource.id == "locked" };\n'
    )
    assert invoke("tokens", "new-key", signing).exit_code == 0
    named = ("--app", "support", "--user", "ada", "--role", "owner", "--json")
    key = json.loads(invoke("access", "create", store, *named).stdout)["token"]
    for id in ("open", "locked"):
        assert invoke("create", store, f"support/ada/{id}", "--actor", "user:ada").exit_code == 0
    options = ("--tokens", signing, "--policies", str(rules), "--archive", archive.as_uri())
    with Interpreter("limpet.cli", "serve", store, "--port", "0", *options) as server:
        line = server.line()
        assert line is not None, server.complaint()
        url = line.split()[-1]

        def ask(method: str, id: str, verb: str, bearer: str) -> tuple[int, dict[str, Any]]:
            head = (
                f"{method} /limpet/v1/sessions/{ids.session_id(id)}/{verb} HTTP/1.1\nhost: x\n"
                f"authorization: Bearer {bearer}\ncontent-length: 2"
            )
            status, _, body = asyncio.run(request(url, head, b"{}"))
            return status, json.loads(body)

        status, issued = ask("POST", "open", "tokens", key)
        assert status == 200, issued
        assert ask("GET", "open", "state", issued["token"])[0] == 200
        assert ask("GET", "locked", "state", key)[0] in (403, 404)
        for verb in ("complete", "archive"):
            assert ask("POST", "open", verb, key)[0] == 200
        assert [path for path in archive.rglob("*") if path.is_file()]
        os.kill(server.pid, signal.SIGTERM)
        server.end(0)
