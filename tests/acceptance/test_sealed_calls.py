"""Calls that are sealed for the store of a server: what somebody in between sees and can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Limpet, errors
from limpet.server import store_door
from limpet.server.serve import serving
from limpet.session.limpet import journal_of
from limpet.store.remote import link, messages
from limpet.store.remote.link import Link
from tests.support.command import invoke
from tests.support.messages import Change, relayed

KEY = limpet.Key("support", "ada", "c1")
SECRET = "the code of the safe is 4711"


@pytest.fixture
async def target() -> AsyncIterator[Limpet]:
    async with limpet.open("memory://", keys="memory:") as lp:
        yield lp


@pytest.fixture
async def url(target: Limpet) -> AsyncIterator[str]:
    async with serving(target, dev=True) as url:
        yield url


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Limpet]:
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", node="a", keys="memory:") as lp:
        session = await lp.create(
            *(KEY.app, KEY.user, KEY.id), state={"note": SECRET}, actor="user:ada"
        )
        await session.append("user.message", {"text": SECRET})
        await session.memory.session.put("safe", SECRET)
        await session.blobs.put(SECRET.encode(), "text/plain")
        yield lp


async def test_who_stands_in_between_sees_no_content(
    source: Limpet, target: Limpet, url: str
) -> None:
    """Neither of what is sent nor of what is answered: not the text, the state, the memory, the
    blob, the key of the session. Without a seal the same move shows them."""
    for seal_for, seen in ((None, True), (target.keys.public_key, False)):
        async with relayed(url) as proxy:
            async with limpet.open(proxy.url, node="b", seal_for=seal_for) as other:
                moved = await source.move(KEY, other)
                assert moved.success, moved
                assert (await other.get(KEY)).state["note"] == SECRET
                assert (await other.move(KEY, source)).success
            traffic = b"".join(proxy.seen)
        assert (SECRET.encode() in traffic) is seen
        assert (b"user.message" in traffic) is seen
        assert (b"ada" in traffic) is seen
    for lp in (source, target):
        assert (await lp.maintenance.verify()).findings == ()


async def test_another_key_than_the_stores_is_refused_before_anything_is_sent(
    source: Limpet, target: Limpet, url: str
) -> None:
    """A server whose store has another key, or none; and what is not a key at all."""
    async with limpet.open("memory://", keys="memory:") as stranger:
        wrong = stranger.keys.public_key
    with pytest.raises(errors.SealBroken, match="another key"):
        await limpet.open(url, seal_for=wrong)
    async with limpet.open("memory://") as bare, serving(bare, dev=True) as other:
        with pytest.raises(errors.SealBroken, match="has no keys"):
            await limpet.open(other, seal_for=target.keys.public_key)
    for given in ("", "nonsense", 7):
        with pytest.raises(errors.InvalidInput, match="seal_for"):
            await limpet.open(url, seal_for=given)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput, match="seal_for"):
        limpet.open("memory://", seal_for=target.keys.public_key)
    assert (await target.list()).items == ()
    assert (await source.get(KEY)).state["note"] == SECRET


def _hello(change: Callable[[messages.Hello], messages.Hello]) -> Change:
    """Change what the server says of itself."""

    def changed(answers: messages.Answers) -> messages.Answers:
        news = []
        for each in answers.news:
            if each.kind == "hello":
                told = change(msgspec.msgpack.decode(each.value, type=messages.Hello))
                each = messages.News("hello", msgspec.Raw(messages.encode(told)))
            news.append(each)
        return msgspec.structs.replace(answers, news=tuple(news))

    return changed


@pytest.mark.parametrize(
    "named",
    [{"sealing": b""}, {"sealing": b"\x09" + bytes(31)}, {"signature": bytes(64)}],
)
async def test_nobody_in_between_names_a_key_of_their_own(
    target: Limpet, url: str, named: dict[str, bytes]
) -> None:
    """The key that the user knows vouches for the one that calls are sealed for."""
    own = _hello(lambda hello: msgspec.structs.replace(hello, **named))
    async with relayed(url, on_answers=own) as proxy:
        with pytest.raises(errors.SealBroken):
            await limpet.open(proxy.url, seal_for=target.keys.public_key)


def _flipped(raw: bytes) -> msgspec.Raw:
    """The same parcel with one bit changed in its middle."""
    data = bytearray(msgspec.msgpack.decode(raw))
    data[len(data) // 2] ^= 1
    return msgspec.Raw(messages.encode(bytes(data)))


def _flip_calls(sent: messages.Calls) -> messages.Calls:
    calls = [
        msgspec.structs.replace(call, args=_flipped(call.args)) if call.method == "commit" else call
        for call in sent.calls
    ]
    return msgspec.structs.replace(sent, calls=tuple(calls))


def _renamed(sent: messages.Calls) -> messages.Calls:
    """A commit under the id of another call."""
    calls = [
        msgspec.structs.replace(call, id=call.id + 1_000) if call.method == "commit" else call
        for call in sent.calls
    ]
    return msgspec.structs.replace(sent, calls=tuple(calls))


def _readdressed(sent: messages.Calls) -> messages.Calls:
    calls = [
        msgspec.structs.replace(call, method="erase") if call.method == "commit" else call
        for call in sent.calls
    ]
    return msgspec.structs.replace(sent, calls=tuple(calls))


@pytest.mark.parametrize("change", [_flip_calls, _readdressed])
async def test_a_changed_call_is_refused_and_nothing_is_recorded(
    source: Limpet, target: Limpet, url: str, change: Change
) -> None:
    """One bit of a sealed commit, or its method: the move ends, and the session stays."""
    async with relayed(url, on_calls=change) as proxy:
        known = target.keys.public_key
        async with limpet.open(proxy.url, node="b", seal_for=known) as other:
            with pytest.raises(errors.SealBroken):
                await source.move(KEY, other)
    assert (await target.list()).items == ()
    session = await source.get(KEY, actor="user:ada")
    await session.append("user.message", {"text": "still here"})


async def test_a_sealed_call_cannot_be_replayed_as_another(
    target: Limpet, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seal is bound to its id: the server opens it under no other."""
    async with relayed(url, on_calls=_renamed) as proxy:
        lp = await limpet.open(proxy.url, seal_for=target.keys.public_key)
        creating = asyncio.ensure_future(lp.create("support", "ada", "c2"))
        while not proxy.refused:
            await proxy.more.wait()
            proxy.more.clear()
        creating.cancel()
        monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.1)  # the answer never comes
        closing = asyncio.ensure_future(lp.close())
        await asyncio.wait([creating, closing])
    assert await target.find(("support", "ada", "c2")) is None


@pytest.mark.parametrize("form", [0, 1, 2])
async def test_a_forged_answer_is_not_believed(target: Limpet, url: str, form: int) -> None:
    """In plain text, compressed, or with a bit changed."""

    def forged(answers: messages.Answers) -> messages.Answers:
        made = []
        for answer in answers.answers:
            value = _flipped(answer.value) if form == 2 else msgspec.Raw(messages.encode(b""))
            made.append(msgspec.structs.replace(answer, value=value, form=form))
        return msgspec.structs.replace(answers, answers=tuple(made))

    async with relayed(url, on_answers=forged) as proxy:
        lp = await limpet.open(proxy.url, seal_for=target.keys.public_key)
        with pytest.raises(errors.SealBroken, match="its answer was changed"):
            await lp.get(KEY)
        await lp.close()


async def test_an_error_is_not_passed_on_as_a_result(target: Limpet, url: str) -> None:
    """Which of both an answer is, its seal says too."""

    def turned(answers: messages.Answers) -> messages.Answers:
        made = [msgspec.structs.replace(each, ok=not each.ok) for each in answers.answers]
        return msgspec.structs.replace(answers, answers=tuple(made))

    async with relayed(url, on_answers=turned) as proxy:
        lp = await limpet.open(proxy.url, seal_for=target.keys.public_key)
        with pytest.raises(errors.SealBroken, match="its answer was changed"):
            await lp.get(KEY)
        await lp.close()


async def test_a_sealed_call_whose_answer_was_dropped_learns_so(
    target: Limpet, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says under the seal that it does not remember: nobody has changed anything."""
    monkeypatch.setattr(store_door, "ANSWERS_KEPT_BYTES_PER_KEY_MAX", 0)
    monkeypatch.setattr(Link, "_answered_up_to", lambda _: 0)  # as if no answer had come
    async with limpet.open(url, seal_for=target.keys.public_key) as lp:
        store: Any = journal_of(lp).store
        until_us = 4_000_000_000_000_000
        assert await store.marks.add("s", "n", until_us, 5) == 5
        store._link._last_id -= 1  # the same call
        with pytest.raises(errors.StoreFailed, match="does not remember the answer"):
            await store.marks.add("s", "n", until_us, 5)
    kept: Any = journal_of(target).store
    assert (await kept.marks.get("s", "n")).value == 5


async def test_partial_events_do_not_travel_beside_a_seal(target: Limpet, url: str) -> None:
    """They would be in plain text; the events themselves come."""
    async with limpet.open(url, seal_for=target.keys.public_key) as lp:
        session = await lp.create("support", "ada", "c3", actor="agent:a")
        event = await session.append("agent.message", {"text": SECRET})
        assert (await anext(session.follow(after=1))).id == event.id


def test_the_command_line_seals_for_a_server_and_compares_with_a_file(tmp_path: Path) -> None:
    """`limpet keys public` prints the key; `limpet move --seal-for` takes it, as text or a file,
    and refuses a store that has another."""
    keys = f"file://{tmp_path}/masters"
    assert invoke("keys", "new", f"{tmp_path}/masters").exit_code == 0
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db", keys=keys) as lp:
        lp.create("support", "ada", "c1", actor="user:ada")
    with limpet.open_sync(f"sqlite:///{tmp_path}/b.db", keys=keys) as lp:
        known = lp.keys.public_key
    store = f"{tmp_path}/b.db"
    printed = invoke("keys", "public", store, "--keys", keys)
    assert printed.output.split() == known.split()
    (tmp_path / "a.pem").write_text(
        invoke("keys", "public", f"{tmp_path}/a.db", "--keys", keys).output
    )
    move: Any = ("move", f"{tmp_path}/a.db", "support/ada/c1", store, "--keys", keys, "--seal-for")
    refused = invoke(*move, f"{tmp_path}/a.pem")
    assert refused.exit_code == 4
    assert "another key" in refused.output
    assert invoke(*move, f"{tmp_path}/none.pem").exit_code == 2
    assert invoke(*move, known).exit_code == 0
    with limpet.open_sync(f"sqlite:///{store}", keys=keys) as lp:
        assert lp.get("support", "ada", "c1").version > 1
