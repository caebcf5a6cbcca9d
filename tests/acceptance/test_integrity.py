"""Before a session works again: six checks on the newest head, and a fallback in one commit."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest

import limpet
from limpet import Budget, State, Tool, ToolRegistry
from limpet.session.documents import commit_puts
from limpet.session.writer import writer_of

ADA = "user:ada"


async def failed(lp: limpet.Limpet, key: limpet.Key, **how: Any) -> tuple[str, ...]:
    """The failures of a resumption; the session is where it was."""
    with pytest.raises(limpet.errors.SessionIntegrity) as caught:
        await lp.resume(key, actor=ADA, **how)
    assert caught.value.key == key
    failures: tuple[str, ...] = caught.value.failures
    return failures


async def test_tools_that_another_bound_meanwhile_are_missed(lp: limpet.Limpet) -> None:
    """Rebound are fewer than required: another object bound one more while this one resumed."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.suspend()
    await s.resume(activate=False)

    async def role(session: limpet.Session) -> str:
        await s.tools.bind(ToolRegistry([Tool("search")]))
        return "helper"

    assert await failed(lp, s.key, role=role) == ("tools: search not bound",)
    assert (await s.refresh()).phase == "resumed"


async def test_tokens_that_were_used_meanwhile_count(lp: limpet.Limpet) -> None:
    """The budget is looked at again when everything else is done."""
    s = await lp.create("support", "ada", actor=ADA, budget=Budget(tokens=100))
    await s.suspend()

    async def role(session: limpet.Session) -> str:
        await s.resume()
        await s.append("agent.message", {"text": "hi", "usage": {"input": 80, "output": 15}})
        await s.suspend()
        return "helper"

    assert await failed(lp, s.key, role=role, tokens_min=6) == ("budget: 5 tokens left",)
    assert (await s.refresh()).phase == "suspended"


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    n: int = 0


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    n: int = 0


async def test_state_that_newer_code_migrated_meanwhile_is_not_ours(lp: limpet.Limpet) -> None:
    """Its schema version is not compatible with this code any more."""
    s = await lp.create("support", "ada", state=Old(), actor=ADA)
    await s.suspend()
    migrations = limpet.MigrationRegistry("notes")
    migrations.register("1.0.0", "2.0.0", dict)

    async def role(session: limpet.Session) -> str:
        await lp.maintenance.migrate(migrations, New, app="support", apply=True, actor=ADA)
        return "helper"

    (reason,) = await failed(lp, s.key, role=role, state_type=Old)
    assert reason.startswith("schema: ")
    assert "2.0.0" in reason


async def test_a_child_that_is_lost_is_an_orphan(lp: limpet.Limpet) -> None:
    """A parent that waits for a child that is not there would wait for good."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")

    s = await lp.create("support", "ada", actor=ADA)
    await s.append("user.message", {"text": "hi"})
    await lp.wake(s.key, delegates)
    (child,) = await s.runs.children()
    await s.suspend()
    await lp._journal.store.delete(child)  # as a restored backup may have lost it
    assert await failed(lp, s.key) == (f"children: {child.id} not found",)


async def test_every_check_that_fails_is_named(lp: limpet.Limpet) -> None:
    """None hides another."""
    s = await lp.create("support", "ada", actor=ADA, budget=Budget(tokens=10))
    await s.suspend()
    await s.resume(activate=False)

    async def role(session: limpet.Session) -> str:
        await s.tools.bind(ToolRegistry([Tool("search"), Tool("paint", required=False)]))
        return "helper"

    found = await failed(lp, s.key, role=role, plan=lambda s: "step 3 is missing")
    assert found == ("tools: search not bound", "plan: step 3 is missing")


# --- the fallback -------------------------------------------------------------------------------


@pytest.fixture
async def damaged(tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    """A store with a suspended session whose newest checkpoint cannot be trusted."""
    url = f"sqlite:///{tmp_path}/damaged.db"
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", id="one", state={"n": 1}, actor=ADA)
        await s.memory.session.put("a", "old")
        await s.checkpoint(full=True)
        await s.memory.session.put("a", "new")
        await s.memory.session.put("b", "new")
        broken = await s.append("agent.message", {"text": "x"}, set={"n": 2, "m": 3})
        await s.suspend()
    conn = apsw.Connection(f"{tmp_path}/damaged.db")
    conn.execute("UPDATE events SET body = x'00' WHERE type = 'agent.message'")
    conn.execute("DELETE FROM snapshots WHERE seq >= ?", (broken.seq,))
    conn.close()
    async with limpet.open(url) as lp:
        yield lp


KEY = limpet.Key("support", "ada", "one")


async def test_a_fallback_is_one_commit_with_all_figures(
    damaged: limpet.Limpet, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint that was restored is the one that report and record name."""
    caplog.set_level(logging.WARNING, "limpet")
    session, report = await damaged.resume(KEY, fallback=True, actor=ADA)
    assert (report.fell_back, report.checkpoint) == (True, 1)
    assert "checkpoint 1 (full) verified in place of 2" in report.steps[0].found
    assert "checkpoint integrity failure" in caplog.text
    log = await session.read(after=3)
    assert [event.type for event in log] == [
        "session.resumed",
        "session.rewound",
        "session.reactivated",
    ]
    figures = {"checkpoint": 1, "tools_bound": 0, "tools_degraded": 0, "evidence": 0}
    assert figures.items() <= dict(log[0].data).items()
    assert "state_version" in log[0].data
    assert log[1].data["checkpoint"] == 1
    assert session.values == {"n": 1}
    assert report.context.state == {"n": 1}


async def test_session_memory_comes_back_as_of_the_checkpoint(damaged: limpet.Limpet) -> None:
    """What was remembered since is not remembered any more, as the state is not."""
    session, _ = await damaged.resume(KEY, fallback=True, actor=ADA)
    found = {each.name: each.value for each in await session.memory.session.list()}
    assert found == {"a": "old"}


async def test_state_and_memory_go_back_in_one_commit(
    damaged: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both or neither: entries that are put again, and entries that are deleted."""
    session = await damaged.get(KEY, actor=ADA)
    journal, sent = writer_of(session).journal, []
    commit = journal.commit

    async def noted(commits: Any) -> Any:
        sent.append({each.key.id.rpartition("/")[2] for each in commits})
        return await commit(commits)

    monkeypatch.setattr(journal, "commit", noted)
    await damaged.resume(KEY, fallback=True, actor=ADA)
    assert sent == [{"a", "b", KEY.id}]


async def test_memory_goes_back_over_any_number_of_versions(lp: limpet.Limpet) -> None:
    """What was written often since the checkpoint is taken back, not deleted."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.memory.session.put("a", "old")
    await s.checkpoint()
    (kept,) = (await s.history.checkpoints()).items
    for number in range(101):
        await s.memory.session.put("a", number)
    (put,) = await s.memory.session.back_to(kept)
    _, (document,) = await commit_puts(writer_of(s).journal, (), (put,))
    assert (document.value, document.version) == ("old", 103)


async def test_a_fallback_that_fails_later_leaves_the_session_suspended(
    damaged: limpet.Limpet,
) -> None:
    """The phases see the state that would be restored; nothing is recorded unless all pass."""
    seen: list[Any] = []

    def plan(session: limpet.Session) -> Any:
        seen.append(dict(session.values))
        return "not now"

    assert await failed(damaged, KEY, fallback=True, plan=plan) == ("plan: not now",)
    assert seen == [{"n": 1}]
    s = await damaged.get(KEY)
    assert (s.phase, s.version) == ("suspended", 3)
    assert {each.value for each in await s.memory.session.list()} == {"new"}


async def test_a_state_that_is_not_the_checkpoints_is_refused(damaged: limpet.Limpet) -> None:
    """A function of the caller's that reads the damage back in is found out."""

    async def role(session: limpet.Session) -> str:
        await session.refresh()
        return "helper"

    (reason,) = await failed(damaged, KEY, fallback=True, role=role)
    assert reason == "checksum: event 2 cannot be read"


async def test_a_fallback_may_stop_at_resumed(damaged: limpet.Limpet) -> None:
    """With activate=False it is resumed at the older state; a second call makes it active."""
    session, _ = await damaged.resume(KEY, fallback=True, activate=False, actor=ADA)
    assert (session.phase, dict(session.values)) == ("resumed", {"n": 1})
    session, _ = await damaged.resume(KEY, fallback=True, actor=ADA)
    assert (session.phase, dict(session.values)) == ("active", {"n": 1})


async def test_a_resumed_session_falls_back_with_its_memory(tmp_path: Path) -> None:
    """It was damaged after it had been resumed, and stays resumed: state and memory go together."""
    url = f"sqlite:///{tmp_path}/resumed.db"
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", id="one", state={"n": 1}, actor=ADA)
        await s.memory.session.put("a", "old")
        await s.checkpoint(full=True)
        for name in "ab":
            await s.memory.session.put(name, "new")
        broken = await s.append("agent.message", {"text": "x"}, set={"n": 2})
        await s.append("agent.noted", set={"m": 3})
        await s.suspend()
        await s.resume(activate=False)
    conn = apsw.Connection(f"{tmp_path}/resumed.db")
    conn.execute("UPDATE events SET body = x'00' WHERE type = 'agent.message'")
    conn.execute("DELETE FROM snapshots WHERE seq >= ?", (broken.seq,))
    conn.close()
    async with limpet.open(url) as lp:
        session, _ = await lp.resume(KEY, fallback=True, activate=False, actor=ADA)
        assert (session.phase, dict(session.values)) == ("resumed", {"n": 1})
        found = {each.name: each.value for each in await session.memory.session.list()}
        assert found == {"a": "old"}
        assert dict((await lp.get(KEY)).values) == {"n": 1}, "it is recorded, not only shown"
