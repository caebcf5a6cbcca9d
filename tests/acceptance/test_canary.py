"""A text that any verb accepts stands nowhere in the clear, if the store has a seal."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

import limpet
from limpet import Evaluation, Key, Limpet, Session, Turn
from tests.support.keys import key_file
from tests.support.seal import FixedKeySeal

MARK = "xq7canary"
SOON = 60.0  # seconds; what is awaited comes at once, or the test has failed
COLD = ("archive", "tier")
# Whoever raises an error in a hook or a harness says what is in it, and its traceback is logged.
FAILED = {f"{MARK}-hook", f"{MARK}-error"}
# Analytics count calls by the names of tools and requests, and say them.
NAMED = {f"{MARK}-approval", f"{MARK}-question"}


def said(where: str) -> str:
    """A text that is looked for; `where` names the verb that was given it."""
    return f"{MARK}-{where}-"


KINDS = ("sqlite", "postgresql", "sqlite with keys", "files with keys", "postgresql with keys")


@pytest.fixture(params=KINDS)
def how(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The stores that keep bytes: with a seal of one's own, and with keys."""
    kind: str = request.param
    if kind.startswith("sqlite"):
        url = f"sqlite:///{tmp_path}/support.db?sync=normal"
    elif kind.startswith("files"):
        url = f"files:///{tmp_path}/support"
    else:
        url = request.getfixturevalue("postgres_store_url")
    if kind.endswith("keys"):
        return {"url": url, "keys": key_file(tmp_path / "masters")}
    return {"url": url, "seal": FixedKeySeal()}


@pytest.fixture
def url(how: dict[str, Any]) -> str:
    found: str = how["url"]
    return found


@pytest.fixture
async def lp(how: dict[str, Any], tmp_path: Path) -> AsyncIterator[Limpet]:
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(**how, archive=archive) as opened:
        tier = limpet.CheckpointPolicy(tier=f"file://{tmp_path}/tier", full_every=2)
        await opened.policies.checkpointing("support", tier)
        yield opened


async def shown(url: str, folder: Path) -> dict[str, str]:
    """Where a text can be read without a key: the name of the verb, and the file or the table."""
    raw = {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder)}
    if url.startswith("postgresql"):
        raw |= await _tables(url)
    found: dict[str, str] = {}
    for place, content in raw.items():
        for where in re.findall(rf"{MARK}-(\w+)-".encode(), content):
            found[where.decode()] = place
    return found


def logged(record: logging.LogRecord) -> str:
    """A log line, with the traceback under it."""
    return logging.Formatter().format(record)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def _tables(url: str) -> dict[str, bytes]:
    conn = await asyncpg.connect(url)
    try:
        sql = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'limpet%'"
        found = {}
        for schema, table in await conn.fetch(sql):
            rows = await conn.fetch(f'SELECT * FROM {schema}."{table}"')
            found[f"{schema}.{table}"] = b"\n".join(
                [_bytes(value) for row in rows for value in row.values()]
            )
        return found
    finally:
        await conn.close()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def begun(lp: Limpet, id: str, **how: Any) -> Session[Any]:
    s = await lp.create("support", "ada", id=id, actor="user:ada", **how)
    await s.append("user.message", {"text": said("message")})
    return s


# --- what is said -------------------------------------------------------------------------------


async def speak(lp: Limpet) -> None:
    """Every way to write to a session."""
    s = await begun(lp, "spoken", state={"field": said("state"), "user:u": said("user")})
    await s.append("note.made", {"text": said("append")}, set={"app:a": said("app")})
    await s.append_many([limpet.Draft(type="note.made", data={"text": said("many")})])
    await s.update(lambda fields: {"more": said("update")})
    s.append_soon("note.made", {"text": said("soon")})
    await lp.flush()
    async with lp.commit() as c:
        c.append(s, "note.made", {"text": said("commit")})
        c.put(lp.documents("notes"), "shared", {"text": said("in_commit")}, actor="user:ada")
    await s.blobs.put(said("blob").encode(), f"text/{said('media')}")
    await s.checkpoint(said("trigger"))
    await s.checkpoint("second", full=False)
    await s.fork(id="forked")
    await s.append("note.made", set={"field": said("later")})
    await s.rewind(3)
    await s.interrupt(said("interrupt"))
    await s.suspend(said("suspend"))
    await s.resume()
    await s.terminate(said("terminate"))


async def remember(lp: Limpet) -> None:
    """Memory, documents and agents."""
    s = await begun(lp, "remembering")
    for layer in ("session", "episodic", "semantic", "procedural"):
        await getattr(s.memory, layer).put("name", {"text": said(layer)}, actor="user:ada")
    await s.memory.session_state.write(said("buffer"))
    await lp.documents("notes").put("one", {"text": said("document")}, actor="user:ada")
    await lp.agents.put("helper", {"prompt": said("agent")}, actor="user:ada")
    await lp.environments.put("prod", {"text": said("environment")}, actor="user:ada")
    await lp.resources.put("files", {"text": said("resource")}, actor="user:ada")
    await lp.vaults.put("keys", {"token": f"vault:{said('vault')}"}, actor="user:ada")
    await lp.create(
        "support", "ada", id="set-up", actor="user:ada", agent="helper", environment="prod"
    )
    schema = {"type": "object", "description": said("schema")}
    tools = limpet.ToolRegistry([limpet.Tool("search", "1.0.0", schema)])
    lp.policies.lifecycle("support", tools=tools, after={("active", "suspended"): _failing_hook})
    await s.tools.bind(tools)
    await s.suspend()


async def _failing_hook(session: Any) -> None:
    raise RuntimeError(said("hook"))


async def achieve(lp: Limpet) -> None:
    s = await lp.create("support", "ada", id="achieving", actor="user:ada")
    await s.outcome.define(said("title"), said("detail"), [said("criterion")])
    await s.mark_processed([s.version])
    await s.outcome.evaluate(
        lambda outcome, evidence: Evaluation("fail", (False,), note=said("verdict"))
    )
    assert s.outcome.current is not None
    assert (s.outcome.current.title, s.outcome.current.verdict) == (said("title"), "fail")


async def ask(lp: Limpet) -> None:
    """A turn that has said and done things, and waits for a person."""
    s = await begun(lp, "asking")

    async def harness(turn: Turn) -> None:
        await turn.say(said("say"), model=said("model"))
        await turn.step(said("step"), lambda: said("result"))
        await turn.effect("pay", _paid, order=said("argument"), key=said("key"))
        await turn.stream("stream", [said("piece")])
        await turn.append("note.made", {"text": said("turn")})
        await turn.learn("lesson", said("lesson"))
        await turn.approve(said("approval"), {"text": said("approve")})
        await turn.ask(said("question"), {"text": said("ask")})

    woken = await lp.wake(s.key, harness)
    assert woken.error is None, woken
    await s.refresh()
    (request,) = s.blocked_on
    assert (request.name, request.input) == (said("approval"), {"text": said("approve")})
    await s.confirm(request.id, allow=True, note=said("confirm"))
    await lp.wake(s.key, harness)
    other = await begun(lp, "answered")
    await lp.wake(other.key, harness)
    await other.refresh()
    await other.confirm(other.blocked_on[0].id, allow=True)
    await lp.wake(other.key, harness)
    await other.refresh()
    await other.answer(other.blocked_on[0].id, said("answer"))
    await s.refresh()
    assert [each.name for each in s.blocked_on] == [said("question")]


async def _paid(order: str, idempotency_key: str) -> str:
    return said("effect")


async def delegate(lp: Limpet) -> None:
    s = await begun(lp, "delegating")

    async def harness(turn: Turn) -> None:
        turn.revisit(timedelta(hours=1), said("revisit"))
        how = {"title": said("child"), "fields": {"x": said("child_field")}}
        await turn.delegate("child", said("delegated"), **how)

    await lp.wake(s.key, harness)

    async def worker(turn: Turn) -> None:
        await turn.say(said("child_said"))

    (child,) = await s.runs.children()
    await lp.wake(child, worker)
    again = await begun(lp, "delegating-too")
    await lp.wake(again.key, harness)


async def fail(lp: Limpet) -> None:
    """A dead letter, one that is tried again, and an effect nobody knows the end of."""

    async def harness(turn: Turn) -> None:
        raise RuntimeError(said("error"))

    s = await begun(lp, "dead")
    await lp.wake(s.key, harness, retries=0)
    await s.refresh()
    assert s.runs.failure is not None
    assert s.runs.failure.message == f"RuntimeError: {said('error')}"
    await lp.wake((await begun(lp, "retried")).key, harness)

    async def mismatched(turn: Turn) -> None:
        await turn.step("same", lambda: 1, said("mismatch"))
        await turn.approve("go on", said("mismatched"))

    s = await begun(lp, "mismatched")
    await lp.wake(s.key, mismatched)

    async def unknown(turn: Turn) -> None:
        await turn.effect("pay", _never_heard, order=said("unknown"))

    for number, (answer, word) in enumerate((("happened", "happened"), ("note", "given up"))):
        s = await begun(lp, f"unknown-{number}")
        await lp.wake(s.key, unknown)
        await s.refresh()
        (request,) = s.blocked_on
        assert request.input["args"] == {"order": said("unknown")}
        if answer == "happened":
            await s.resolve(request.id, happened=said(word))
        else:
            await s.resolve(request.id, give_up=True, note=said(word))
        await lp.wake(s.key, unknown)


async def _never_heard(order: str) -> None:
    raise TimeoutError(said("never heard"))


async def put_away(lp: Limpet) -> None:
    s = await begun(lp, "archived", state={"field": said("archived")})
    await s.checkpoint("kept", full=True)
    await s.blobs.put(said("archived_blob").encode(), "text/plain")
    await s.complete({"result": said("complete")})
    await s.archive()


async def coordinate(lp: Limpet) -> None:
    """Between sessions: shares, children and proposals."""
    s = await begun(lp, "source", state={"field": said("shared"), "live": said("live")})
    target = await begun(lp, "target")
    shared = await s.share(target, "field")
    await s.share(target, "live", access="write", sync="live")
    assert (await target.read_shared(shared.id)).values == {"field": said("shared")}
    child = await lp.spawn(s, task="look", fields=("field",))
    await child.complete({"text": said("output")})
    about = {"provenance": s.key, "confidence": 0.9, "to": "org:acme"}
    await lp.propose(said("proposal"), **about)


async def travel(lp: Limpet, folder: Path) -> None:
    """To another store with a seal."""
    seal = {"keys": key_file(folder / "other-masters")}
    async with limpet.open(f"sqlite:///{folder}/other.db", **seal, node="other") as other:
        moving = await begun(lp, "moving", state={"field": said("moved")})
        await moving.blobs.put(said("moved_blob").encode(), "text/plain")
        assert (await lp.move(moving.key, other)).success
        await lp.copy(Key("support", "ada", "spoken"), to=other)


async def measure(lp: Limpet, folder: Path) -> None:
    """A file of analytics, which has counts and no texts."""
    s = await begun(lp, "measured")
    await s.append("user.feedback", {"rating": 0.5, "note": said("feedback")})
    analytics = limpet.Analytics(lp, f"sqlite:///{folder}/analytics.db")
    await analytics.run(once=True)
    assert await analytics.session(s.key)
    await analytics.close()
    raw = b"".join([path.read_bytes() for path in folder.glob("analytics.db*")])
    assert {text.decode() for text in re.findall(rb"%b-\w+" % MARK.encode(), raw)} == NAMED


async def stream(lp: Limpet, how: dict[str, Any]) -> None:
    """A partial event on its way to another process."""
    s = await lp.create("support", "ada", id="streamed", actor="user:ada")
    async with limpet.open(**how) as other:
        following = other.session(s.key).follow(after=s.version)
        heard = asyncio.create_task(anext(following))
        async with asyncio.timeout(SOON):
            while not heard.done():  # the follower makes the channel when it begins
                await s.append("agent.message", {"text": said("partial")}, partial=True, id="m")
                await asyncio.wait([heard], timeout=0.01)
        assert heard.result().data == {"text": said("partial")}
        await following.aclose()


# --- the law ------------------------------------------------------------------------------------


async def test_no_text_is_readable_without_a_key(
    lp: Limpet,
    how: dict[str, Any],
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a verb is given, no file, table, sidecar, archive, log line or listing shows it:
    while the store is used, after every step, and after it was closed."""
    caplog.set_level(logging.DEBUG, "limpet")
    for step in (speak, remember, achieve, ask, delegate, fail, put_away):
        await step(lp)
        assert await shown(url, tmp_path) == {}, step.__name__
    await coordinate(lp)
    await travel(lp, tmp_path)
    assert await shown(url, tmp_path) == {}
    await measure(lp, tmp_path)
    (tmp_path / "analytics.db").unlink()
    assert await shown(url, tmp_path) == {}
    if not url.startswith("files"):  # of which one process has the channel
        await stream(lp, how)
    assert await shown(url, tmp_path) == {}
    assert {path.relative_to(tmp_path).parts[0] for path in _files(tmp_path)} >= set(COLD)
    heads = [(await lp.list(limit=100)).items, (await lp.work.dead_letters(app="support")).items]
    assert MARK not in json.dumps(msgspec.to_builtins(heads, enc_hook=str))
    assert (await lp.maintenance.verify()).ok
    await lp.close()
    assert await shown(url, tmp_path) == {}
    own = [record for record in caplog.records if record.name.startswith("limpet")]
    shown_in_logs = {text for each in own for text in re.findall(f"{MARK}-\\w+", logged(each))}
    assert shown_in_logs <= FAILED


async def test_the_texts_are_there_with_the_key(lp: Limpet, how: dict[str, Any]) -> None:
    """The same sessions show what was asked, aimed at and said of a failure: in another process
    too, from a snapshot or from the log."""
    for step in (achieve, ask, fail):
        await step(lp)
    await lp.close()
    async with limpet.open(**how) as again:
        asking, dead = [await again.get("support", "ada", id) for id in ("asking", "dead")]
        assert [each.input for each in asking.blocked_on] == [{"text": said("ask")}]
        assert dead.runs.failure is not None
        assert said("error") in dead.runs.failure.message
        achieving = await again.get("support", "ada", "achieving")
        assert achieving.outcome.current is not None
        assert achieving.outcome.current.criteria == (said("criterion"),)
        assert (await again.maintenance.verify()).ok


async def test_without_the_key_a_request_is_listed_by_its_id(lp: Limpet, url: str) -> None:
    """Its kind and its id can be read; its name and its input cannot."""
    await ask(lp)
    await lp.close()
    async with limpet.open(url) as blind:
        s = await blind.get("support", "ada", "asking")
        (request,) = s.blocked_on
        assert (request.kind, request.name, request.input) == ("question", "", None)


async def test_errors_do_not_repeat_what_is_sealed(lp: Limpet, tmp_path: Path) -> None:
    """Refusals, damage and missing keys name the session and the field, and no value: in the
    message, its repr and its traceback."""
    s = await begun(lp, "refused", state={"field": said("state"), "list": [said("item")]})
    refused: list[Callable[[], Awaitable[Any]]] = [
        lambda: s.append("note.made", inc={"field": 1}),
        lambda: s.append("note.made", {"text": said("late")}, expect=1),
        lambda: s.append("note.made", merge={"list": {"a": said("merged")}}),
        lambda: s.prove(99),
        lambda: lp.create("support", "ada", id="refused", state={"field": said("again")}),
    ]
    for call in refused:
        with pytest.raises(limpet.LimpetError) as caught:
            await call()
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert MARK not in text.replace("said(", ""), text
