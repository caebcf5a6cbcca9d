"""Resumption: five phases, each reported; tools, memory and retrieval on the way."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

import limpet
from limpet import Tool, ToolRegistry
from limpet.model.commit import Commit
from limpet.model.facts.checkpoints import recorded
from limpet.model.keys import checkpoints_of
from limpet.session.writer import writer_of
from limpet.store.memory import MemoryStore
from limpet.store.open import sqlite_path
from limpet.store.protocol import Query
from limpet.testing.clock import FakeClock
from tests.support.deadlines import passed


async def suspended(lp: limpet.Limpet, *tools: Tool, **state: Any) -> limpet.Session:
    """A session with tools bound, suspended at a checkpoint."""
    s = await lp.create("support", "ada", state=state, actor="user:ada")
    if tools:
        await s.tools.bind(ToolRegistry(tools))
    await s.append("agent.message", {"text": "hi", "usage": {"input": 30, "output": 10}})
    await s.suspend()
    return s


async def test_a_session_is_resumed_in_five_reported_phases(lp: limpet.Limpet) -> None:
    """The report names each phase, and the record has all figures."""
    s = await suspended(lp, Tool("search"), plan="x")
    session, report = await lp.resume(s.key, tools=ToolRegistry([Tool("search")]), tokens=100)
    assert session.phase == "active"
    names = [step.name for step in report.steps]
    assert names == ["restore", "rehydrate", "rebind", "reconstruct", "verify"]
    assert (report.tools, report.tokens_left, report.checkpoint) == (("search",), 60, 1)
    event = (await session.read(types=["session.resumed"]))[0]
    wanted = {"checkpoint": 1, "tools_bound": 1, "tools_degraded": 0, "evidence": 0}
    assert wanted.items() <= dict(event.data).items()
    assert event.data["tokens_left"] == 60
    assert str(report).splitlines()[1].startswith("  restore")
    assert (await lp.maintenance.verify()).ok


async def test_resuming_may_stop_before_it_is_active(lp: limpet.Limpet) -> None:
    """With activate=False the session is resumed; a second call completes it."""
    s = await suspended(lp)
    session, _ = await lp.resume(s.key, activate=False)
    assert session.phase == "resumed"
    session, _ = await lp.resume(s.key)
    assert session.phase == "active"


async def test_only_a_suspended_session_is_resumed(lp: limpet.Limpet) -> None:
    """An active one has no transition for it."""
    s = await lp.create("support", "ada")
    with pytest.raises(limpet.errors.InvalidTransition):
        await lp.resume(s.key)


async def test_the_context_is_compiled_from_role_state_memory_and_evidence(
    lp: limpet.Limpet,
) -> None:
    """As one value, and as one text in which the role comes first and what does not fit is told."""
    s = await suspended(lp, plan="refund", retrieval_queries=["orders of ada"])
    await s.memory.semantic.put("policy", "30 days")

    def role(session: limpet.Session[Any]) -> str:
        return f"You help {session.user}."

    _, report = await lp.resume(s.key, role=role, retrieve=lambda query: ["order 7"])
    context = report.context
    assert (context.role, context.state["plan"]) == ("You help ada.", "refund")
    assert [each.value for each in context.evidence.values()] == [["order 7"]]
    assert [each.value for each in context.memory["semantic"]] == ["30 days"]
    text = str(context)
    assert text.splitlines()[0] == "You help ada."
    for part in ("- plan: refund", '- orders of ada: ["order 7"] (retrieved)', "30 days"):
        assert part in text
    short = context.text(tokens=1)
    assert short.startswith("You help ada.")
    assert "refund" not in short
    assert "left out" in short
    await s.refresh()
    await s.suspend()
    wrong: Any = 5
    with pytest.raises(limpet.InvalidInput, match="role"):
        await lp.resume(s.key, role=wrong)


# --- retrieval ----------------------------------------------------------------------------------


async def test_queries_are_served_from_the_cache_while_they_are_fresh(lp: limpet.Limpet) -> None:
    """A cached answer younger than the threshold is used; an older one is retrieved again."""
    asked: list[Any] = []

    async def retrieve(query: Any) -> Any:
        asked.append(query)
        return {"found": len(asked)}

    s = await suspended(lp, retrieval_queries=["weather", {"id": "q2", "query": "news"}])
    for fresh, wanted in ((60.0, 2), (60.0, 2), (0.0, 4)):
        session, report = await lp.resume(s.key, retrieve=retrieve, fresh_seconds=fresh)
        assert set(report.evidence) == {"weather", "q2"}
        assert len(asked) == wanted
        await session.suspend(actor="user:ada")
    assert report.evidence["weather"].source == "retrieved"


async def test_retrieval_has_a_deadline_and_falls_back_to_what_is_stale(lp: limpet.Limpet) -> None:
    """A retrieval that hangs or fails is a warning; an old answer is better than none."""

    async def hangs(query: Any) -> Any:
        await asyncio.Event().wait()

    s = await suspended(lp)
    how: dict[str, Any] = {"queries": ["weather"], "fresh_seconds": 0}
    session, report = await lp.resume(s.key, retrieve=hangs, deadline_seconds=0.01, **how)
    assert report.evidence == {}
    assert "too slow" in report.warnings[0]
    await session.suspend(actor="user:ada")
    session, _ = await lp.resume(s.key, retrieve=lambda query: "rain", **how)
    await session.suspend(actor="user:ada")
    _, report = await lp.resume(s.key, **how)
    assert (report.evidence["weather"].value, report.evidence["weather"].source) == (
        "rain",
        "stale",
    )


async def test_too_few_tokens_keep_a_session_suspended(lp: limpet.Limpet) -> None:
    """What was used counts against the budget; below the least nothing is resumed."""
    s = await suspended(lp)
    with pytest.raises(limpet.errors.InsufficientTokenBudget) as caught:
        await lp.resume(s.key, tokens=100, tokens_min=61)
    assert (caught.value.available, caught.value.needed) == (60, 61)
    assert (await s.refresh()).phase == "suspended"


# --- tools --------------------------------------------------------------------------------------


async def test_a_tool_is_rebound_only_if_its_version_fits(lp: limpet.Limpet) -> None:
    """The same MAJOR and not older: the newest of those is bound."""
    s = await suspended(lp, Tool("search", "1.2.0"))
    newer = ToolRegistry(
        [Tool("search", "1.1.0"), Tool("search", "1.4.0"), Tool("search", "2.0.0")]
    )
    session, _ = await lp.resume(s.key, tools=newer)
    assert session.tools.bound["search"]["version"] == "1.4.0"
    await session.suspend(actor="user:ada")
    with pytest.raises(limpet.errors.RequiredToolUnavailable) as caught:
        await lp.resume(s.key, tools=ToolRegistry([Tool("search", "2.0.0")]))
    assert caught.value.tool == "search"
    assert (await s.refresh()).phase == "suspended"


@pytest.mark.parametrize("older", ["1.1.9", "1.2.0", "0.9.0"])
async def test_an_older_version_of_a_tool_is_never_bound_in_its_place(
    lp: limpet.Limpet, older: str
) -> None:
    """Neither for a required tool, by any way that binds, nor for one that may be left out."""
    s = await suspended(lp, Tool("search", "1.2.1"), Tool("paint", "1.2.1", required=False))
    registry = ToolRegistry([Tool("search", older), Tool("paint", older)])
    with pytest.raises(limpet.errors.RequiredToolUnavailable):
        await lp.resume(s.key, tools=registry)
    lp.policies.lifecycle("support", tools=registry)
    with pytest.raises(limpet.errors.GuardFailed, match="search"):
        await s.resume()
    registry.add(Tool("search", "1.2.1"))
    s, report = await lp.resume(s.key)
    assert ({*s.tools.bound}, report.degraded) == ({"search"}, ("paint",))
    assert s.tools.bound["search"]["version"] == "1.2.1"


async def test_a_missing_tool_is_substituted_degraded_or_fails(lp: limpet.Limpet) -> None:
    """A substitute is a warning, an optional tool is left out, a required one fails."""
    s = await suspended(lp, Tool("search", substitutes=("find",)), Tool("paint", required=False))
    session, report = await lp.resume(s.key, tools=ToolRegistry([Tool("find")]))
    assert report.substituted == {"search": "find"}
    assert report.degraded == ("paint",)
    assert "tool substituted: search by find" in report.warnings
    assert session.tools.bound["search"]["as"] == "find"
    assert (await session.read(types=["session.tools_bound"]))[-1].data["degraded"] == ["paint"]


async def test_a_tool_is_bound_for_who_may_use_it(lp: limpet.Limpet) -> None:
    """Authorization is asked for this session; a required tool that is refused fails."""

    def authorize(tool: Tool, session: limpet.Session) -> Any:
        return session.user == "eve" or f"{session.user} may not"

    s = await suspended(lp, Tool("search"))
    with pytest.raises(limpet.errors.ToolAuthorizationFailed, match="ada may not"):
        await lp.resume(s.key, tools=ToolRegistry([Tool("search")], authorize=authorize))
    new = await lp.create("support", "ada", actor="user:ada")
    with pytest.raises(limpet.errors.ToolAuthorizationFailed):
        await new.tools.bind(ToolRegistry([Tool("rm", permission="deny")]))
    optional = ToolRegistry([Tool("rm", permission="deny", required=False)])
    assert await new.tools.bind(optional) == {}


async def test_an_exclusive_tool_is_held_by_one_session(lp: limpet.Limpet) -> None:
    """Suspending lets go of it; so does ending it."""
    registry = ToolRegistry([Tool("printer", exclusive=True)])
    one = await lp.create("support", "ada", actor="user:ada")
    other = await lp.create("support", "bob", actor="user:bob")
    for s in (one, other):
        await s.tools.bind(registry)
    await one.tools.lock("printer")
    await one.tools.lock("printer")  # again, by itself
    with pytest.raises(limpet.errors.ToolLocked):
        await other.tools.lock("printer")
    await one.suspend()
    await other.tools.lock("printer")
    with pytest.raises(limpet.errors.ToolLocked):
        await one.tools.lock("printer")
    await other.terminate()
    await one.tools.lock("printer")


# --- verification -------------------------------------------------------------------------------


async def test_a_plan_that_does_not_hold_keeps_a_session_suspended(lp: limpet.Limpet) -> None:
    """Every failed check is named in one error."""
    s = await suspended(lp)
    with pytest.raises(limpet.errors.SessionIntegrity) as caught:
        await lp.resume(s.key, plan=lambda session: "step 3 is missing")
    assert caught.value.failures == ("plan: step 3 is missing",)
    assert (await s.refresh()).phase == "suspended"


async def test_without_a_checkpoint_there_is_nothing_to_resume_from(lp: limpet.Limpet) -> None:
    """NoCheckpoint if none is kept, NoFullCheckpoint if none of them has the state."""
    s = await suspended(lp)
    (kept,) = (await s.history.checkpoints()).items
    await s.history.unpin(kept.ref)
    with pytest.raises(limpet.errors.NoCheckpoint):
        await lp.resume(s.key)
    await s.checkpoint(full=False)
    with pytest.raises(limpet.errors.NoFullCheckpoint):
        await lp.resume(s.key)
    await s.checkpoint(full=True)
    await lp.resume(s.key)


async def test_a_damaged_checkpoint_falls_back_to_an_older_one(tmp_path: Path) -> None:
    """Without the fallback the session stays suspended; with it, it goes on from what is sure."""
    url = f"sqlite:///{tmp_path}/damaged.db"
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        sure = await s.checkpoint(full=True)
        broken = await s.append("agent.message", {"text": "x"}, set={"n": 2})
        await s.suspend()
    conn = apsw.Connection(f"{tmp_path}/damaged.db")
    conn.execute("UPDATE events SET body = x'00' WHERE type = 'agent.message'")
    assert conn.changes() == 1
    conn.execute("DELETE FROM snapshots WHERE seq >= ?", (broken.seq,))
    conn.close()
    async with limpet.open(url) as lp:
        with pytest.raises(limpet.errors.CheckpointIntegrity):
            await lp.resume(s.key)
        assert (await lp.get(s.key)).phase == "suspended"
        session, report = await lp.resume(s.key, fallback=True, actor="user:ada")
        assert (session.phase, report.fell_back) == ("active", True)
        assert session.values == {"n": 1}
        assert sure.seq == 1


async def forged(s: limpet.Session) -> limpet.CheckpointRef:
    """A checkpoint that names another state than the log gives there."""
    ref = await s.checkpoint(full=True)
    row = {"number": ref.number + 1, "seq": ref.seq, "checksum": "0" * 64, "full": True}
    row |= {"trigger": "forged", "size": 1, "at_us": s.head.updated_us}
    journal = writer_of(s).journal
    draft = journal.prepare(recorded(row), "agent:main")
    await journal.store.commit([Commit(checkpoints_of(s.key), (draft,))])
    return msgspec.structs.replace(ref, number=ref.number + 1, checksum="0" * 64)


async def test_a_restored_state_has_the_checksum_of_its_checkpoint(lp: limpet.Limpet) -> None:
    """Else it is not restored and not resumed, by any verb; the fallback goes on from one that
    has it."""
    s = await suspended(lp, n=1)
    ref = await forged(s)
    for refused in (s.history.restore(ref), s.history.at(ref), lp.resume(s.key)):
        with pytest.raises(limpet.errors.CheckpointIntegrity, match="another state"):
            await refused
    for activate in (True, False):
        with pytest.raises(limpet.errors.GuardFailed, match="checkpoint 3 cannot be trusted"):
            await s.resume(activate=activate)
    assert (await lp.get(s.key)).phase == "suspended"
    session, report = await lp.resume(s.key, fallback=True)
    assert (session.phase, report.checkpoint, report.fell_back) == ("active", 2, True)
    assert report.warnings == (
        "checkpoint 3 cannot be trusted: the log gives another state",
        "checkpoint 3 failed; checkpoint 2 was restored",
    )


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_a_report_names_the_kept_states_that_cannot_be_read(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And what gave the state instead: it is verified all the same, by the log."""
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", state={"n": 1}, actor="user:ada")
        await s.checkpoint(full=True)
        await s.append("agent.message", {"text": "x"}, set={"n": 2})
        await s.suspend()
        whole = await suspended(lp)
        assert (await lp.resume(whole.key))[1].warnings == ()
    await _rot(url, f"UPDATE snapshots SET crc = crc - 1 WHERE seq = {s.version - 1}")
    async with limpet.open(url) as lp:
        session, report = await lp.resume(s.key)
        used = "the log from event 2 on was used instead"
        assert report.warnings == (f"the kept state of checkpoint 2 is damaged; {used}",)
        assert "by the log from event 2 on: 1 kept state cannot be read" in str(report)
        assert (session.values, report.fell_back) == ({"n": 2}, False)
        assert "checkpoint state unreadable" in caplog.text
        await session.suspend()
    await _rot(url, "UPDATE snapshots SET crc = crc - 1 WHERE seq < 100")
    async with limpet.open(url) as lp:
        _, report = await lp.resume(s.key)
        used = "the log from the first event on was used instead"
        named = [f"the kept state of checkpoint {number} is damaged; {used}" for number in (3, 1)]
        assert set(report.warnings) >= set(named)


async def _rot(url: str, statement: str) -> None:
    if url.startswith("postgresql"):
        conn = await asyncpg.connect(url)
        await conn.execute(statement.replace("snapshots", "limpet.snapshots"))
        await conn.close()
    else:
        with contextlib.closing(apsw.Connection(str(sqlite_path(url)))) as file:
            file.execute(statement)


# --- memory -------------------------------------------------------------------------------------


async def test_each_layer_is_resumed_by_its_own_strategy(lp: limpet.Limpet) -> None:
    """Working memory is reset; the others are there again, also in another object."""
    s = await lp.create("support", "ada", labels={"task": "refund"}, actor="user:ada")
    for name in ("working", "session", "episodic", "semantic", "procedural"):
        layer = getattr(s.memory, name)
        await layer.put("fact", {"of": name})
        assert await layer.get("fact") == {"of": name}
        assert [each.name for each in await layer.list()] == ["fact"]
    await s.suspend()
    assert await s.memory.working.get("fact") is None
    session, report = await lp.resume(s.key)
    wanted = {"working": 0, "session": 1, "episodic": 1, "semantic": 1, "procedural": 1}
    assert report.memory == wanted
    assert await session.memory.session.get("fact") == {"of": "session"}


async def test_layers_are_shared_as_far_as_they_should_be(lp: limpet.Limpet) -> None:
    """Session memory is one session's, semantic an app's, procedural a task's."""
    s = await lp.create("support", "ada", labels={"task": "refund"}, actor="user:ada")
    for name in ("session", "semantic", "procedural"):
        await getattr(s.memory, name).put("fact", name)
    other = await lp.create("support", "bob", labels={"task": "refund"})
    elsewhere = await lp.create("sales", "ada")
    assert await other.memory.session.get("fact") is None
    assert await other.memory.semantic.get("fact") == "semantic"
    assert await other.memory.procedural.get("fact") == "procedural"
    assert await elsewhere.memory.semantic.get("fact") is None
    assert await elsewhere.memory.procedural.get("fact") is None


async def test_completing_promotes_episodes_to_the_user(lp: limpet.Limpet) -> None:
    """Other sessions of the user see what happened in a completed one, in one commit with it."""
    s = await lp.create("support", "ada", id="one", actor="user:ada")
    await s.memory.episodic.put("refund", "it went well")
    later = await lp.create("support", "ada")
    other = await lp.create("support", "bob")
    assert await later.memory.episodic.list() == ()
    await s.complete()
    (seen,) = await later.memory.episodic.list()
    assert (seen.name, seen.value) == ("promoted/one/refund", "it went well")
    assert await other.memory.episodic.list() == ()
    with pytest.raises(limpet.SessionEnded):
        await s.memory.episodic.put("more", 1)
    await lp.erase_user("support", "ada")
    again = await lp.create("support", "ada")
    assert await again.memory.episodic.list() == ()


async def test_memory_is_searched_by_words(lp: limpet.Limpet) -> None:
    """What has the most of the words comes first."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.memory.semantic.put("a", "the blue door")
    await s.memory.semantic.put("b", "the blue car has a door")
    await s.memory.semantic.put("c", "a red car")
    found = await s.memory.semantic.search("blue car")
    assert [each.name for each in found] == ["b", "a", "c"]
    await s.memory.working.put("w", "car")
    assert [each.name for each in await s.memory.working.search("car")] == ["w"]


async def test_a_suspended_session_keeps_the_memory_it_had(lp: limpet.Limpet) -> None:
    """What belongs to it alone is refused like any other write; what is shared is not its own."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.memory.session.put("fact", 1)
    await s.suspend()
    for layer in (s.memory.session, s.memory.episodic):
        with pytest.raises(limpet.errors.SessionSuspended):
            await layer.put("fact", 2)
    await s.memory.semantic.put("policy", "30 days")
    await s.resume()
    assert await s.memory.session.get("fact") == 1
    await s.memory.session.put("fact", 2)


@pytest.mark.parametrize("way", ["delete", "erase", "expiry"])
async def test_what_a_session_remembered_goes_with_it(lp: limpet.Limpet, way: str) -> None:
    """Another under its key begins with nothing; what it promoted goes only if it is erased."""
    limits = limpet.Timeouts(expiry=timedelta(microseconds=1))
    s = await lp.create("support", "ada", id="one", timeouts=limits, actor="user:ada")
    await s.memory.session.put("fact", "secret")
    await s.memory.episodic.put("fact", "secret")
    await s.complete()
    if way == "expiry":
        await passed(lp)
        assert (await lp.work.sweep()).deleted == 1
    else:
        await getattr(lp, way)(s.key)
    again = await lp.create(
        "support", "ada", id="two" if way == "erase" else "one", reuse_deleted=True
    )
    assert await again.memory.session.list() == ()
    names = [each.name for each in await again.memory.episodic.list()]
    assert names == ([] if way == "erase" else ["promoted/one/fact"])
    assert (await lp.maintenance.verify()).ok


async def test_the_budget_of_the_session_counts_where_no_tokens_are_given(
    lp: limpet.Limpet,
) -> None:
    """What is left of it is in the report; too little keeps the session suspended."""
    s = await lp.create("support", "ada", actor="user:ada", budget=limpet.Budget(tokens=50))
    await s.append("agent.message", {"text": "hi", "usage": {"input": 30, "output": 10}})
    await s.suspend()
    with pytest.raises(limpet.errors.InsufficientTokenBudget):
        await lp.resume(s.key, tokens_min=11)
    session, report = await lp.resume(s.key, tokens_min=10)
    assert report.tokens_left == 10
    assert (await session.read(types=["session.resumed"]))[0].data["tokens_left"] == 10


async def test_what_is_cached_has_a_time_to_live() -> None:
    """Past it, an answer is not served even as stale, and is removed."""
    clock = FakeClock()
    store = MemoryStore(clock.clock())
    async with limpet.Limpet("memory://", store=store) as lp:
        s = await suspended(lp)
        how: dict[str, Any] = {"queries": ["weather"], "fresh_seconds": 0, "cache_seconds": 60}
        s, _ = await lp.resume(s.key, retrieve=lambda query: "rain", actor="user:ada", **how)
        for seconds, wanted in ((59, {"weather": "stale"}), (2, {})):
            await s.suspend()
            clock.advance(timedelta(seconds=seconds))
            s, report = await lp.resume(s.key, actor="user:ada", **how)
            assert {id: each.source for id, each in report.evidence.items()} == wanted
        kept = await lp._journal.store.heads(Query(app="$$retrieval"), cursor=None, limit=9)
        assert kept.items == ()
