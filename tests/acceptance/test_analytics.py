"""Analytics as a user meets it: folded, asked, trained, advised, exported, erased."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import limpet
from limpet.analytics import analytics, folding
from limpet.analytics.file import AnalyticsFile
from limpet.analytics.metrics import HOUR_US, SessionFold, begin, fold_event
from limpet.analytics.report import hourly, html_page, sparkline
from limpet.analytics.rollup import (
    ALL,
    DAY,
    HOUR,
    INDEX,
    MONTH,
    CellKey,
    CellTally,
    Horizons,
    month_start,
    pack,
    tallies_of,
)
from limpet.analytics.tables import Cells, Table, Tallies, group_columns, window_columns
from limpet.errors import InvalidInput, SessionNotFound, TooLittleFeedback
from limpet.session.history import checkpoints
from limpet.session.limpet import journal_of
from tests.support.command import invoke, run, run_terminal
from tests.support.roll_ups import cells_of


@pytest.fixture(params=["memory", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server: str = request.getfixturevalue("postgres_store_url")
    return server


@pytest.fixture
async def lp(url: str) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url) as opened:
        yield opened


@pytest.fixture
async def an(lp: limpet.Limpet) -> AsyncIterator[limpet.Analytics]:
    async with limpet.Analytics(lp, "memory://", retrain=None) as opened:
        yield opened


@limpet.tool
def search(q: str) -> str:
    """Search."""
    raise ValueError("down")


@limpet.tool
def archive_search(q: str) -> str:
    """Search elsewhere."""
    return f"archived {q}"


def replies(*said: Any) -> Any:
    """A model that gives these replies, one after another: a text, or names of tools to call."""
    left = list(said)

    async def model(request: limpet.ModelRequest) -> limpet.Reply:
        each = left.pop(0)
        usage = {"input": 10, "output": 5, "cost": 0.01}
        if isinstance(each, Exception):
            raise each
        if isinstance(each, str):
            return limpet.Reply(each, (), usage, "end", None)
        calls = [limpet.ToolCall(f"c{n}", name, {"q": "x"}, f"p{n}") for n, name in enumerate(each)]
        return limpet.Reply("", tuple(calls), usage, "tools", None)

    return model


async def spoken(
    lp: limpet.Limpet,
    *said: Any,
    user: str = "ada",
    task_type: str = "refund",
    version: str = "1",
    tools: Iterable[limpet.Tool] = (search, archive_search),
) -> limpet.Session:
    s = await lp.create("support", user, labels={"task_type": task_type}, actor=f"user:{user}")
    await s.append("user.message", {"text": "hi"})
    await lp.wake(s.key, limpet.Agent(replies(*said), tools), version=version)
    await s.refresh()
    return s


async def rated(lp: limpet.Limpet, count: int, *, good: Any = lambda n: n % 2 == 0) -> None:
    """Sessions whose users liked short answers without errors."""
    for number in range(count):
        liked = good(number)
        said = ("fine",) if liked else (["search", "search", "search"], "sorry")
        s = await spoken(lp, *said, user=f"u{number % 5}")
        await s.append("user.feedback", {"thumb": "up" if liked else "down"})
        await s.complete()


async def test_one_session_is_measured_while_it_runs_and_when_it_has_ended(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Also before anything was folded; the clocks stop at the end, and `final` says so."""
    s = await spoken(lp, ["search"], "done")
    live = await an.session(s.key)
    assert (live.interaction.turns, live.interaction.generations) == (1, 2)
    assert live.interaction.tool_invocations == 1
    assert live.quality.error_rate == pytest.approx(1 / 3)
    assert live.tools["search"].errors == 1
    assert (live.resource.tokens_input, live.resource.cost_usd) == (20, 0.02)
    assert not live.final
    assert (live.task_type, live.agent_version, live.owner) == ("refund", "1", "ada")
    await s.complete()
    await an.run(once=True)
    done = await an.session(s.key)
    assert done.final
    assert done.quality.task_completion == 1
    assert done.temporal.total == pytest.approx(s.lifecycle.durations.total)
    assert done.temporal == (await an.session(s.key)).temporal
    json.dumps(done.plain)
    with pytest.raises(SessionNotFound):
        await an.session("support", "ada", "nobody")


async def test_checkpoints_and_retrievals_are_counted(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Checkpoints have a log of their own, and a retrieval a span of its own."""
    s = await lp.create("support", "ada", state={"notes": "x" * 500}, actor="user:ada")
    await s.append("user.message", {"text": "hi"})

    async def harness(turn: limpet.Turn) -> None:
        assert await turn.retrieve("orders", lambda q: [q], "mine") == ["mine"]
        await turn.say("found")

    await lp.wake(s.key, harness)
    await s.checkpoint()
    await s.append("agent.noted", set={"notes": "y"}, actor="agent:a")
    await s.checkpoint()
    live = await an.session(s.key)
    await an.run(once=True)
    seen = await an.session(s.key)
    assert live.resource == seen.resource
    assert seen.interaction.retrieval_queries == 1
    assert seen.resource.checkpoints == 2
    assert seen.resource.peak_state_size > 500


async def test_the_seconds_of_wakes_are_those_of_the_usage(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """All wakes of a session together, as `s.runs.usage` counts them; live and folded."""
    s = await lp.create("support", "ada", actor="user:ada")

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("done")

    for _ in range(2):
        await s.append("user.message", {"text": "hi"})
        await lp.wake(s.key, harness)
    await s.refresh()
    used = s.runs.usage.compute_seconds
    assert used > 0
    assert (await an.session(s.key)).resource.compute_seconds == used
    await an.run(once=True)
    assert (await an.session(s.key)).resource.compute_seconds == used


async def test_a_request_id_is_one_invocation(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Also when it comes again after its result, and however many calls have none."""
    s = await lp.create("support", "ada", actor="agent:a")
    for _ in range(2):
        await s.append("agent.tool_use", {"request_id": "r", "name": "t", "input": {}})
        await s.append("agent.tool_result", {"request_id": "r", "output": "x", "is_error": True})
    assert (await an.session(s.key)).tools["t"].errors == 1
    many = [{"request_id": f"r{number}", "name": "t", "input": {}} for number in range(1_100)]
    for start in range(0, len(many), 100):
        await s.append_many(
            [limpet.Draft(type="agent.tool_use", data=data) for data in many[start:][:100]]
        )
    await s.append("agent.tool_result", {"request_id": "r1099", "output": "", "is_error": True})
    await an.run(once=True)
    seen = await an.session(s.key)
    assert seen.interaction.tool_invocations == seen.tools["t"].count == 1_101
    assert seen.tools["t"].errors == 2


async def test_an_attempt_after_an_error_is_a_repair(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Successful if it ends the turn, and one turn in all."""
    s = await spoken(lp, RuntimeError("down"))
    await lp.wake(s.key, limpet.Agent(replies("fine"), ()))
    seen = await an.session(s.key)
    assert seen.interaction.repair_cycles == 1
    assert seen.quality.repair_success_rate == 1
    assert seen.interaction.turns == 1
    assert seen.quality.error_rate == pytest.approx(1 / 2)


async def test_feedback_is_processed_without_a_turn(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """The agent is not asked to answer a thumb, and a harness that reads texts does not fail."""
    s = await spoken(lp, "done")
    await s.append("user.feedback", {"thumb": "up"})

    async def echo(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await s.append("user.feedback", {"thumb": "down"})
            assert await turn.news() == ()
            await turn.say(message.data["text"])

    assert (await lp.wake(s.key, echo)).reason == "settled"
    await s.refresh()
    assert (await s.pending(), s.status, s.stop_reason) == ((), "idle", "end_turn")
    await s.append("user.feedback", {"thumb": "up"})
    await s.append("user.message", {"text": "more"})
    await limpet.Worker(lp, echo, app="support", idle_exit=True, max_turns=5).run()
    await s.refresh()
    assert await s.pending() == ()
    assert s.runs.usage.turns == (await an.session(s.key)).interaction.turns == 2
    assert (await an.session(s.key)).rating == 0


async def test_a_child_with_feedback_ends_as_its_turn_did(lp: limpet.Limpet) -> None:
    """Feedback that comes while its last turn runs does not make it an interrupted one."""
    rated: list[limpet.Key] = []

    async def harness(turn: limpet.Turn) -> None:
        if turn.session.app == "helper":
            rated.append(turn.session.key)
            await lp.session(turn.session.key).append(
                "user.feedback", {"thumb": "up"}, actor="user:ada"
            )
            await turn.say("found")
            return
        child = await turn.delegate("helper", "look")
        await turn.say(str(await child.result()))

    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    for app in ("support", "helper", "helper", "support"):
        await limpet.Worker(lp, harness, app=app, idle_exit=True).run()
    (ended,) = await s.read(types=["session.child_ended"])
    assert ended.data["stop_reason"] == "end_turn"
    assert len(rated) == 1


@pytest.mark.parametrize(
    "said",
    [{"cost": 1e15}, {"cost": 1.1e6}, {"usage": {"input": 2**53 - 1, "output": 2**40}}],
)
async def test_absurd_numbers_are_not_counted(
    lp: limpet.Limpet, an: limpet.Analytics, said: dict[str, Any]
) -> None:
    """Anybody may write them: a sum that no file can hold would stop the folding for good."""
    s = await lp.create("support", "ada", actor="user:ada")
    for _ in range(3):
        await s.append("agent.message", {"text": "hi", **said}, actor="agent:main")
    await an.run(once=True)
    of = await an.session(s.key)
    assert (of.interaction.agent_messages, of.resource.cost_usd) == (3, 0)
    (row,) = await _rows(an, "user")
    assert (row["tokens_input"], row["tokens_output"], row["cost_usd"]) == (0, 0, 0)


def test_absurd_times_count_as_long_as_a_sum_can_hold() -> None:
    """Logs from elsewhere hold any times: a thousand sessions of eight thousand years add up."""
    whole = CellTally.empty()
    for number in range(1_000):
        fold = _synthetic(0, f"s{number}")
        ended = {"from": "active", "to": "completed", "event": "complete"}
        at_us = 250_000_000_000 * 1_000_000
        fold_event(fold, limpet.Event(4, "end", "session.completed", "a:b", at_us, ended))
        whole.plus(tallies_of(fold)[CellKey("support", "user", "ada", 0)])
    (row,) = Cells(["ada"], (0,), (0,), (0,), (pack(whole),)).table("user").rows
    assert (row["sessions"], row["mean_duration"]) == (1_000, 2**48 / 1e6)


def test_sums_beyond_64_bits_stop_nobody() -> None:
    """Of millions of such events: the column is wrong, and the others are not."""
    many = CellTally.empty()
    many.sums[INDEX["tokens_input"]], many.sums[INDEX["sessions"]] = 2**70, 1
    columns = group_columns(Tallies([pack(many)] * 3, [0, 0, 1], 2))
    assert columns["sessions"] == [2, 1]
    assert all([tokens > 2**59 for tokens in columns["tokens_input"]])


async def test_groups_are_pooled(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """The error rate of a group is errors over calls of all its sessions, not a mean of rates."""
    await spoken(lp, ["search"], "done", user="ada", task_type="refund")
    await spoken(lp, "fine", "x", user="bob", task_type="refund", version="2")
    await spoken(lp, "fine", user="bob", task_type="order", version="2")
    await an.run(once=True)
    refund = (await an.by("task_type", app="support"))["refund"]
    assert (refund["sessions"], refund["error_rate"]) == (2, pytest.approx(1 / 4))
    assert (await an.by("user", app="support"))["bob"]["sessions"] == 2
    assert (await an.by("agent_version", app="support"))["2"]["cost_usd"] == 0.02
    tool = (await an.by("tool", app="support"))["search"]
    assert (tool["count"], tool["error_rate"]) == (1, 1.0)
    (window,) = await _rows(an, "window")
    assert (window["started"], window["turns"]) == (3, 3)
    assert window["cost_usd"] == pytest.approx(0.04)
    assert 1 <= window["peak_concurrency"] <= 3
    table = await an.by("task_type", app="support", window="day")
    assert table.columns[:2] == ("task_type", "window")
    json.dumps(table.plain)
    assert tuple(table) == table.rows
    assert len(await an.by("user", app="nothing")) == 0
    assert sum((await an.by("user", app=None)).column("sessions")) == 3
    with pytest.raises(InvalidInput):
        await an.by("color", app="support")  # type: ignore[arg-type]  # wrong on purpose


async def _rows(an: limpet.Analytics, dimension: Any, **more: Any) -> tuple[dict[str, Any], ...]:
    return (await an.by(dimension, app="support", **more)).rows


async def test_a_feed_that_comes_again_changes_nothing(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """From its beginning, in pages of any size: a session counts by its uid and last seq."""
    for number in range(4):
        s = await spoken(lp, ["search"], "done", user=f"u{number}")
        await s.checkpoint()
    await an.run(once=True)
    before = _whole(an)
    for name in folding.FEEDS:
        an.file.set_meta(name, None)
    await an.run(once=True)
    assert _whole(an) == before
    fresh = limpet.Analytics(lp, "memory://")
    original = folding.PAGE
    folding.PAGE = 3  # type: ignore[misc]  # of any size
    try:
        await fresh.run(once=True)
    finally:
        folding.PAGE = original  # type: ignore[misc]  # as it was
    assert _whole(fresh) == before


def _whole(an: limpet.Analytics) -> dict[str, Any]:
    return {"folds": list(an.file.folds()), "cells": cells_of(an.file)}


async def test_two_programs_on_one_file_take_turns(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Each reads again what the other has written: a session that both have met counts once."""
    url = f"sqlite:///{tmp_path}/folded.db"
    async with (
        limpet.Analytics(lp, url, retrain=None) as one,
        limpet.Analytics(lp, url, retrain=None) as other,
    ):
        s = await spoken(lp, "fine")
        for number in range(6):
            await s.append("user.message", {"text": "hi"})
            await (one, other)[number % 2].run(once=True)
        fresh = limpet.Analytics(lp, "memory://", retrain=None)
        await fresh.run(once=True)
        assert _whole(one) == _whole(other) == _whole(fresh)


async def test_a_model_of_another_program_counts_once(lp: limpet.Limpet, tmp_path: Path) -> None:
    """A training writes every session again; who has them in memory reads them first."""
    await rated(lp, 12)
    s = await spoken(lp, "fine")
    url = f"sqlite:///{tmp_path}/folded.db"
    async with (
        limpet.Analytics(lp, url, retrain=None) as one,
        limpet.Analytics(lp, url, retrain=None) as other,
    ):
        await one.run(once=True)
        await other.train(minimum=12)
        await s.append("user.message", {"text": "hi"})
        await one.run(once=True)
        fresh = limpet.Analytics(lp, "memory://", retrain=None)
        await fresh.run(once=True)
        assert _whole(one) == _whole(fresh)


async def test_training_and_forgetting_wait_for_the_page_that_is_folded(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write sessions too: in the middle of a page they would undo what it has counted."""
    begun = asyncio.Event()

    def begin_and_tell(*given: Any) -> SessionFold:
        begun.set()
        return begin(*given)

    await rated(lp, 12)
    async with limpet.Analytics(lp, "memory://", retrain=None) as an:
        await an.run(once=True)
        await an.train(minimum=12)
        for number in range(6):
            await spoken(lp, "fine", user=f"new{number}")
        monkeypatch.setattr(folding, "_YIELD_EVERY", 1)
        monkeypatch.setattr(folding, "begin", begin_and_tell)
        async with asyncio.TaskGroup() as group:
            group.create_task(an.run(once=True))
            await begun.wait()
            group.create_task(an.forget("support", "u0"))
            group.create_task(an.train(minimum=9))
        fresh = limpet.Analytics(lp, "memory://", retrain=None)
        await fresh.run(once=True)
        await fresh.forget("support", "u0")
        assert _whole(an) == _whole(fresh)


async def test_events_that_left_the_feed_are_read_from_the_log(file_url: str) -> None:
    """Cold events are not in the feed any more; the fold misses none of them."""
    async with limpet.open(file_url) as lp, limpet.Analytics(lp, "memory://") as an:
        s = await lp.create("support", "ada", actor="user:ada")
        await lp.policies.retention("support", events=5)
        for _ in range(100):
            await s.append("user.message", {"text": "hi"})
        await lp.maintenance.compact()
        await s.append("agent.message", {"text": "done"}, actor="agent:a")
        await an.run(once=True)
        fold = an.file.folds_of(s.key)[-1]
        assert (fold.user_messages, fold.turns, fold.seq) == (100, 1, s.version)


async def test_an_erased_user_leaves_nothing(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Neither rows nor a share of any aggregate: the file is what it would be without them."""
    for number in range(3):
        s = await spoken(lp, ["search"], "done", user="ada", task_type=f"t{number}")
        await s.checkpoint()
        await an.score(s.key, "helpful", 1)
        await s.complete()
    await spoken(lp, "fine", user="bob")
    await an.run(once=True)
    await lp.erase_user("support", "ada")
    await an.run(once=True)
    alone = limpet.Analytics(lp, "memory://", retrain=None)
    await alone.run(once=True)
    assert _whole(an) == _whole(alone)
    assert [row["user"] for row in await _rows(an, "user")] == ["bob"]
    with pytest.raises(SessionNotFound):
        await an.session(s.key)


async def test_an_app_is_not_taken_for_another_that_has_its_id_now(tmp_path: Path) -> None:
    """Not by a process that has looked at the app, while another one removed it from the file."""
    writer, reader = (AnalyticsFile(tmp_path / "analytics.db") for _ in range(2))
    gone = _synthetic(490_000 * HOUR_US, "s1")
    later = msgspec.structs.replace(_synthetic(490_000 * HOUR_US, "s2"), app="later")
    for fold, times, left in ((gone, 1, 1), (gone, -1, 0), (later, 1, 0)):
        writer.changed_elsewhere()
        with writer.commit() as c:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally, times)
        assert len(reader.totals("support", "task_type", 9).table("task_type")) == left
    writer.close()
    reader.close()


async def test_the_name_of_an_erased_user_is_nowhere_in_the_file(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """Neither in rows nor in free pages nor in the log beside the file, which is still open."""
    path = tmp_path / "folded.db"
    async with limpet.Analytics(lp, f"sqlite:///{path}", retrain=None) as an:
        for number in range(60):
            s = await spoken(lp, "fine", user="zoltan" if number % 3 else "bob")
            await s.checkpoint()
            await an.run(once=True)
        assert any(b"zoltan" in file.read_bytes() for file in tmp_path.iterdir())
        await lp.erase_user("support", "zoltan")
        await an.run(once=True)
        assert [b"zoltan" in file.read_bytes() for file in tmp_path.iterdir()] == [False] * 3
        await an.run(once=True)
        assert [row["user"] for row in await _rows(an, "user")] == ["bob"]


async def test_a_reader_of_the_file_keeps_no_erased_name_in_its_log(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """While it reads, nobody waits for it; once it has read, the next commit empties the log."""
    path = tmp_path / "folded.db"
    async with limpet.Analytics(lp, f"sqlite:///{path}", retrain=None) as an:
        await spoken(lp, "fine", user="zoltan")
        await an.run(once=True)
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM sessions").fetchall()
        await lp.erase_user("support", "zoltan")
        await an.run(once=True)
        assert any(b"zoltan" in file.read_bytes() for file in tmp_path.iterdir())
        reader.execute("COMMIT")
        await spoken(lp, "fine", user="bob")
        await an.run(once=True)
        assert not any(b"zoltan" in file.read_bytes() for file in tmp_path.iterdir())
        reader.close()


async def test_a_deleted_session_stays_measured(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Deleting is the end of a life, not of what was measured of it; erasing it is."""
    s = await spoken(lp, "fine")
    await an.run(once=True)
    await lp.delete(s.key)
    await an.run(once=True)
    assert (await an.session(s.key)).interaction.turns == 1
    await lp.erase(s.key)
    await an.run(once=True)
    assert len(await an.by("user", app="support")) == 0


async def test_a_key_in_use_again_is_another_session(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Before it is folded and after; the deleted one still counts."""
    before = await lp.create("support", "ada", "one", actor="user:ada")
    for _ in range(5):
        await before.append("user.message", {"text": "hi"})
    await an.run(once=True)
    await lp.delete(before.key)
    after = await lp.create("support", "ada", "one", actor="user:ada", reuse_deleted=True)
    await after.append("user.message", {"text": "hi"})
    assert (await an.session(after.key)).interaction.user_messages == 1
    await an.run(once=True)
    assert (await an.session(after.key)).interaction.user_messages == 1
    assert (await _rows(an, "user"))[0]["sessions"] == 2


async def test_a_key_in_use_again_whose_first_events_left_the_feed(file_url: str) -> None:
    """What is in the feed has the seqs of the deleted session, and is not taken for it."""
    async with (
        limpet.open(file_url) as lp,
        limpet.Analytics(lp, "memory://", retrain=None) as an,
    ):
        before = await lp.create("support", "ada", "one", actor="user:ada")
        for _ in range(80):
            await before.append("user.message", {"text": "hi"})
        await an.run(once=True)
        await lp.delete(before.key)
        await lp.policies.retention("support", events=5)
        after = await lp.create("support", "ada", "one", actor="user:ada", reuse_deleted=True)
        for _ in range(60):
            await after.append("user.message", {"text": "hi"})
        await lp.maintenance.compact()
        await an.run(once=True)
        folds = an.file.folds_of(after.key)
        assert [fold.user_messages for fold in folds] == [80, 60]


async def test_a_session_that_moved_away_stops_nobody(tmp_path: Path) -> None:
    """It stays measured where it was; interventions and escalation go on for the others."""
    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db", node="a") as a,
        limpet.open("memory://", node="b") as b,
        limpet.Analytics(a, "memory://", retrain=None, intervene_below=0.4) as an,
        limpet.Analytics(b, "memory://", retrain=None) as there,
    ):
        await rated(a, 12)
        moved = await spoken(a, ["search"] * 3, "sorry")
        await an.run(once=True)
        await a.move(moved.key, to=b)
        here = await spoken(a, ["search"] * 3, "sorry")
        await an.run(once=True)
        await an.train(minimum=12)
        await an.run(once=True)
        assert len(await here.read(types=["session.intervention_suggested"])) == 1
        policy = limpet.AdvicePolicy(escalate_priority=50, satisfaction=0.99, cases=1)
        (done,) = await an.apply(policy)
        assert done.applied == "1 sessions have priority 50"
        assert (await an.session(moved.key)).interaction.turns == 1
        await there.run(once=True)
        assert (await there.session(moved.key)).quality == (await an.session(moved.key)).quality


@pytest.mark.parametrize("by", ["restore", "copy"])
async def test_a_store_that_was_put_back_is_folded_again(tmp_path: Path, by: str) -> None:
    """What was folded of events that the backup does not have is taken out, also by who copied
    the file and so gave the store positions that it never issued."""
    url, analytics = f"sqlite:///{tmp_path}/s.db", f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url) as lp:
        kept = await lp.create("support", "ada", "kept", actor="user:ada")
        await kept.append("user.message", {"text": "before"})
        await lp.maintenance.backup(tmp_path / "backup.db")
        await kept.append("user.message", {"text": "lost"})
        await kept.append("user.message", {"text": "lost too"})
        await lp.create("support", "bob", "lost", actor="user:bob")
        async with limpet.Analytics(lp, analytics) as an:
            await an.run(once=True)
    if by == "restore":
        limpet.restore(tmp_path / "backup.db", url, replace=True)
    else:
        url = f"sqlite:///{tmp_path}/backup.db"
    async with limpet.open(url) as lp, limpet.Analytics(lp, analytics) as an:
        await an.run(once=True)
        await lp.session("support", "ada", "kept").append(
            "user.message", {"text": "after"}, actor="user:ada"
        )
        await an.run(once=True)
        fresh = limpet.Analytics(lp, "memory://")
        await fresh.run(once=True)
        assert (await an.session("support", "ada", "kept")).interaction.user_messages == 2
        assert _whole(an) == _whole(fresh)


async def test_an_archived_session_is_counted_once(tmp_path: Path) -> None:
    """Its stub is no session of its own, and its way back counts nothing twice."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        limpet.open(url, archive=f"file://{tmp_path}/archive") as lp,
        limpet.Analytics(lp, "memory://", retrain=None) as an,
    ):
        s = await spoken(lp, "fine")
        await s.complete()
        await an.run(once=True)
        await s.archive()
        await an.run(once=True)
        assert (await _rows(an, "user"))[0]["sessions"] == 1
        await lp.unarchive(s.key)
        await an.run(once=True)
        assert (await _rows(an, "user"))[0]["sessions"] == 1
        assert (await _rows(an, "user"))[0]["turns"] == 1


async def test_the_newest_sessions_of_an_app_are_found_by_an_index(an: limpet.Analytics) -> None:
    """A small app beside a large one: its sessions are read, and no others."""
    connection = an.file._conn
    for where, index in (("", "sessions_seen"), ("WHERE app = 'x'", "sessions_app")):
        sql = f"EXPLAIN QUERY PLAN SELECT fold FROM sessions {where} ORDER BY seen DESC LIMIT 9"
        (plan,) = [detail for *_, detail in connection.execute(sql)]
        assert f"INDEX {index}" in plan
    folds = [_synthetic(490_000 * HOUR_US + number, f"s{number}") for number in range(30)]
    for fold in folds[:3]:
        fold.app = "small"
    with an.file.commit() as c:
        c.put_folds(folds)
    assert [fold.id for fold in an.file.recent("small", 2)] == ["s1", "s2"]
    assert [fold.id for fold in an.file.recent(None, 2)] == ["s28", "s29"]


def test_ids_of_what_was_erased_lead_nobody_to_others(tmp_path: Path) -> None:
    """Another process erases an app, and the next one gets its id: who has read or written the
    first one finds nothing of the second."""
    path = tmp_path / "analytics.db"
    with closing(AnalyticsFile(path)) as one, closing(AnalyticsFile(path)) as other:

        def add(file: AnalyticsFile, app: str, times: int = 1) -> None:
            fold = _synthetic(490_000 * HOUR_US, "s1")
            fold.app, fold.user = app, f"user of {app}"
            file.changed_elsewhere()
            with file.commit() as c:
                for key, tally in tallies_of(fold).items():
                    c.add(key, tally, times)

        def users(app: str) -> list[str]:
            return one.totals(app, "user", 9).values

        add(one, "bank")
        add(one, "shop")
        assert users("shop") == ["user of shop"]
        add(other, "shop", -1)
        add(other, "zoo")
        assert (users("shop"), users("zoo")) == ([], ["user of zoo"])
        add(one, "shop")
        assert (users("shop"), users("zoo")) == (["user of shop"], ["user of zoo"])


def test_opening_a_file_again_writes_nothing(tmp_path: Path) -> None:
    """A report that opens it would send the process that folds back to what it has read."""
    path = tmp_path / "analytics.db"
    with closing(AnalyticsFile(path)) as one, closing(AnalyticsFile(path)):
        assert not one.changed_elsewhere()


def test_a_file_of_the_first_formats_goes_on(tmp_path: Path) -> None:
    """The first had no app beside a session, the second no weights, and its cells by window: what
    was folded and rolled up is kept, and found by its app and its group."""
    path = tmp_path / "analytics.db"
    file = AnalyticsFile(path)
    with file.commit() as c:
        c.put_folds([_synthetic(490_000 * HOUR_US, "before")])
        for number in range(60):
            fold = _synthetic(490_000 * HOUR_US + number * HOUR_US, f"s{number}")
            fold.user, fold.app = f"user{number % 7}", f"app{number % 2}"
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)
    with file.commit() as c:
        c.roll(Horizons(490_000 + 40, 490_000 + 24))
    cells = cells_of(file)
    assert {grain for _, _, grain, _, _ in cells} == {ALL, HOUR, DAY, MONTH}
    _put_back(file, cells)
    file.close()
    file = AnalyticsFile(path)
    assert cells_of(file) == cells
    with file.commit() as c:  # and is counted on
        fold = _synthetic(490_050 * HOUR_US, "more")
        for key, tally in tallies_of(fold).items():
            c.add(key, tally)
    assert list(file.totals(None, "window", 9).pooled["sessions"]) == [0]
    assert list(file.ranged(None, "window", 0, 2**40, 9).pooled["sessions"]) == [61]
    with file.commit() as c:
        c.put_folds([_synthetic(490_001 * HOUR_US, "after")])
    folds = file.recent(None, 9)
    assert [fold.id for fold in folds] == ["before", "after"]
    assert file.recent(folds[0].app, 9) == folds
    file.close()


def _put_back(file: AnalyticsFile, cells: dict[Any, CellTally]) -> None:
    """Make a file of the first format of it."""
    file._conn.execute("DROP TABLE cells; DROP TABLE weights; DROP TABLE names; DROP TABLE records")
    file._conn.execute("""CREATE TABLE cells (
        app TEXT NOT NULL, dimension TEXT NOT NULL, grain INTEGER NOT NULL, start INTEGER NOT NULL,
        value TEXT NOT NULL, weight INTEGER NOT NULL, tally BLOB NOT NULL,
        PRIMARY KEY (app, dimension, grain, start, value)) STRICT, WITHOUT ROWID;
        CREATE INDEX cells_weight ON cells (app, dimension, weight) WHERE grain = 0""")
    for cell, tally in cells.items():
        sums = {index: value for index, value in enumerate(tally.sums) if value}
        histograms = {index: each for index, each in enumerate(tally.histograms) if each}
        raw = msgspec.msgpack.encode([sums, histograms])
        row = (*cell, tally["sessions"], raw)
        file._conn.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    file._conn.execute("DROP INDEX sessions_app; ALTER TABLE sessions DROP COLUMN app")
    file._conn.execute("PRAGMA user_version = 1")


async def test_windows_grow_coarser_and_keep_their_sums(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Hours become days, days become months; sums and histograms stay what they were."""
    base = 490_000 * HOUR_US
    folds = [_synthetic(base + hour * HOUR_US, f"s{hour}") for hour in range(24 * 40)]
    with an.file.commit() as c:
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)
    hours = an.file.ranged("support", "window", 0, 2**40, 10_000)
    assert set(hours.grains) == {HOUR}
    assert len(await an.by("window", app="support")) == len(folds)
    assert len(await an.by("window", app="support", limit=7)) == 7
    to = Horizons(490_000 - 490_000 % 24 + 24 * 35, 490_000 - 490_000 % 24 + 24 * 10)
    reached: list[Horizons] = []
    while reached[-1:] != [to]:  # a commit takes a day of a month at most
        with an.file.commit() as c:
            reached.append(c.roll(to))
        cells_of(an.file)
    assert len(reached) == 10
    kept = an.file.ranged("support", "window", 0, 2**40, 10_000)
    assert len(await an.by("window", app="support")) == len(kept.starts)
    assert set(kept.grains) == {HOUR, DAY, MONTH}
    assert len(kept.starts) < len(hours.starts) / 4
    for cells in (hours, kept):
        assert list(cells.pooled["turns"]) == [len(folds)]
    await _since_the_middle_of_windows(an, to)
    ranged = an.file.ranged("support", "task_type", 0, 2**40, 10_000)
    assert ranged.table("task_type") == an.file.totals("support", "task_type", 1).table("task_type")
    with an.file.commit() as c:  # taken out again, also of what was rolled up
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally, -1)
    assert len(await an.by("task_type", app="support")) == 0
    for (_, dimension, *_), tally in cells_of(an.file).items():
        assert (dimension, any(tally.sums)) == ("window", False)  # of a peak, a number stays


async def _since_the_middle_of_windows(an: limpet.Analytics, kept: Horizons) -> None:
    """The window that a range begins in is a part of it, however coarse it has become."""

    async def sessions(dimension: Any, hour: float) -> int:
        since = datetime.fromtimestamp(hour * 3_600, UTC)
        table = await an.by(dimension, app="support", since=since)
        return sum(table.column("started" if dimension == "window" else "sessions"))

    newest = 490_000 + 24 * 40 - 1
    assert await sessions("task_type", newest + 0.5) == 1
    assert await sessions("user", newest + 0.5) == newest % 24 + 1
    assert await sessions("task_type", kept.day - 1) == newest - kept.day + 1 + 24
    whole = await sessions("task_type", kept.month)
    for dimension in ("task_type", "window"):
        month = await sessions(dimension, kept.month - 1) - whole
        assert month == kept.month - month_start(kept.month - 1)
    assert await sessions("task_type", newest + 1) == 0


def _synthetic(at_us: int, id: str) -> SessionFold:
    fold = begin(
        limpet.Key("support", "ada", id),
        limpet.Event(1, f"uid-{id}", "session.created", "user:ada", at_us, {}),
    )
    said: tuple[tuple[str, dict[str, Any]], ...] = (
        ("user.message", {"text": "hi"}),
        ("agent.message", {"text": "yes", "usage": {"input": 3, "output": 4}, "cost": 0.5}),
    )
    for number, (type_, data) in enumerate(said, 2):
        event = limpet.Event(number, f"{id}-{number}", type_, "a:b", at_us + number * 10**6, data)
        fold_event(fold, event)
    return fold


# --- satisfaction ---------------------------------------------------------------------------------


async def test_a_model_is_learned_from_feedback(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Versioned, with the range of its data and its score on what it had not seen; then every
    session has a prediction, and so have groups."""
    await rated(lp, 20)
    await an.run(once=True)
    with pytest.raises(TooLittleFeedback):
        await an.train()
    first = await an.train(minimum=20)
    assert (first.version, first.sessions) == (1, 20)
    assert first.held_out.log_loss < first.held_out.base_log_loss
    assert len(first.weights) == len(first.features) == 8
    good = await spoken(lp, "fine")
    bad = await spoken(lp, ["search", "search", "search"], "sorry")
    happy, sad = await an.session(good.key), await an.session(bad.key)
    assert happy.satisfaction is not None
    assert sad.satisfaction is not None
    assert happy.satisfaction > 0.7 > 0.3 > sad.satisfaction
    assert (await an.train(minimum=20)).version == 2
    assert await an.model(1) == first
    assert (await _rows(an, "user"))[0]["mean_satisfaction"] is not None


async def test_a_model_of_the_store_is_found_by_who_has_not_folded(lp: limpet.Limpet) -> None:
    """Asked for one session first, and while it follows: a model that another process trained."""
    await rated(lp, 20)
    s = await spoken(lp, "fine")
    async with (
        limpet.Analytics(lp, "memory://", retrain=None) as other,
        limpet.Analytics(lp, "memory://", retrain=None) as follower,
        limpet.Analytics(lp, "memory://", retrain=None) as fresh,
    ):
        await other.run(once=True)
        running = asyncio.create_task(follower.run())
        async with asyncio.timeout(60):
            while follower.file.rated() < 20:  # noqa: ASYNC110  # written by another task
                await asyncio.sleep(0.01)
        await other.train(minimum=20)
        assert (await fresh.session(s.key)).satisfaction == pytest.approx(
            (await other.session(s.key)).satisfaction, abs=0.01
        )
        async with asyncio.timeout(60):
            while {fold.model for fold in follower.file.folds()} != {1}:  # noqa: ASYNC110  # likewise
                await asyncio.sleep(0.01)
        follower.stop()
        await running


async def test_a_prediction_follows_events_that_are_not_folded_yet(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """What is asked live is predicted live."""
    await rated(lp, 20)
    await an.run(once=True)
    await an.train(minimum=20)
    s = await spoken(lp, ["search"] * 3, "sorry")
    await an.run(once=True)
    sad = await an.session(s.key)
    for _ in range(20):
        said = {"text": "better", "usage": {"input": 1, "output": 1}}
        await s.append("agent.message", said, actor="agent:a")
    live = await an.session(s.key)
    await an.run(once=True)
    folded = await an.session(s.key)
    assert live.satisfaction == folded.satisfaction
    assert folded.satisfaction is not None
    assert sad.satisfaction is not None
    assert folded.satisfaction > sad.satisfaction


async def test_an_intervention_is_suggested_once(lp: limpet.Limpet) -> None:
    """In the log of the live session and to the hook, however often it is folded again."""
    called: list[limpet.Key] = []
    hook = {"on_intervention": lambda of: called.append(of.key)}
    an = limpet.Analytics(lp, "memory://", retrain=None, intervene_below=0.4, **hook)  # type: ignore[arg-type]  # a hook
    await rated(lp, 20)
    await an.run(once=True)
    await an.train(minimum=20)
    bad = await spoken(lp, ["search", "search", "search"], "sorry")
    good = await spoken(lp, "fine")
    for _ in range(3):
        await an.run(once=True)
        await bad.append("user.message", {"text": "hello?"})
    again = limpet.Analytics(lp, "memory://", retrain=None, intervene_below=0.4, **hook)  # type: ignore[arg-type]  # a hook
    await again.run(once=True)
    suggested = await bad.read(types=["session.intervention_suggested"])
    assert len(suggested) == 1
    assert suggested[0].data["satisfaction"] < suggested[0].data["threshold"] == 0.4
    assert called == [bad.key]
    assert not await good.read(types=["session.intervention_suggested"])


async def test_a_schedule_trains_by_itself(lp: limpet.Limpet) -> None:
    """When it is due and there is new feedback of enough sessions, and not again before: nor by
    another process, which begins with a file of its own."""
    an = limpet.Analytics(lp, "memory://", minimum=20, retrain=timedelta(days=1))
    await rated(lp, 19)
    await an.run(once=True)
    assert await an.model() is None
    await rated(lp, 1)
    await an.run(once=True)
    await rated(lp, 2)
    for each in (an, limpet.Analytics(lp, "memory://", minimum=20, retrain=timedelta(days=1))):
        await each.run(once=True)
        model = await each.model()
        assert model is not None
        assert (model.version, model.sessions) == (1, 20)


async def test_a_model_that_stays_in_its_file(lp: limpet.Limpet) -> None:
    """Who only looks at a store predicts with a model of its own, until the store has one."""
    await rated(lp, 20)
    an = limpet.Analytics(lp, "memory://", minimum=20, store_models=False)
    await an.run(once=True)
    assert await an.model() is None
    (row,) = (await an.by("task_type", app="support")).rows
    assert 0 < row["mean_satisfaction"] < 1
    assert {fold.model for fold in an.file.folds()} == {0}
    await limpet.Analytics(lp, "memory://", minimum=20).run(once=True)
    await an.run(once=True)
    assert {fold.model for fold in an.file.folds()} == {1}


async def test_a_model_that_was_left_in_a_file_is_replaced_by_one_of_the_store(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """Who may store models does not wait a day because somebody looked with the same file."""
    url = f"sqlite:///{tmp_path}/a.db"
    await rated(lp, 20)
    for stored in (False, True):
        async with limpet.Analytics(lp, url, minimum=20, store_models=stored) as an:
            await an.run(once=True)
            assert (await an.model() is not None) is stored
            assert {fold.model for fold in an.file.folds()} == {int(stored)}


async def test_two_programs_that_train_at_once(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is slower takes the model of the other, and goes on measuring."""
    await rated(lp, 10)
    one, other = (limpet.Analytics(lp, "memory://", minimum=10) for _ in range(2))
    samples = one._samples

    async def slowly(now_us: int) -> Any:
        found = await samples(now_us)
        monkeypatch.setattr(analytics, "train", trained_meanwhile)
        return found

    train = analytics.train

    def trained_meanwhile(*args: Any, **more: Any) -> limpet.SatisfactionModel:
        monkeypatch.setattr(analytics, "train", train)
        asyncio.run_coroutine_threadsafe(other.run(once=True), loop).result()
        return train(*args, **more)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(one, "_samples", slowly)
    await one.run(once=True)
    model = await one.model()
    assert model is not None
    assert model.version == 1
    assert {fold.model for fold in one.file.folds()} == {1}


async def test_folding_goes_on_while_a_model_is_trained(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training a model of many sessions takes long; what happens meanwhile is measured at once."""
    an = limpet.Analytics(lp, "memory://", minimum=10, retrain=timedelta(days=1))
    await rated(lp, 10)
    training, folded, trained = asyncio.Event(), asyncio.Event(), asyncio.Event()
    train = an.train

    async def slowly(*, minimum: int) -> None:
        training.set()
        await folded.wait()
        await train(minimum=minimum)
        trained.set()

    monkeypatch.setattr(an, "train", slowly)
    lp.maintenance.on_metric(lambda metric: training.is_set() and folded.set())
    async with asyncio.timeout(60):
        running = asyncio.create_task(an.run())
        await training.wait()
        await (await spoken(lp, "fine")).complete()
        await folded.wait()
        await trained.wait()
        an.stop()
        await (await spoken(lp, "fine")).complete()
        await running


async def test_predictions_that_were_broken_off_go_on(
    lp: limpet.Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two pages of predictions, the next run finishes them."""
    url = f"sqlite:///{tmp_path}/a.db"
    await rated(lp, 12)
    monkeypatch.setattr(folding, "_READ", 5)
    predicted = folding.FeedFold._predict_page
    pages: list[bytes] = []

    def dying(self: folding.FeedFold, after: bytes) -> None:
        pages.append(after)
        if len(pages) == 2:
            raise RuntimeError("killed")
        predicted(self, after)

    async with limpet.Analytics(lp, url, retrain=None) as an:
        await an.run(once=True)
        monkeypatch.setattr(folding.FeedFold, "_predict_page", dying)
        with pytest.raises(RuntimeError, match="killed"):
            await an.train(minimum=10)
    async with limpet.Analytics(lp, url, retrain=None) as an:
        await an.run(once=True)
        assert {fold.model for fold in an.file.folds()} == {1}


async def test_two_versions_are_compared_with_intervals(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """A real difference has an interval that leaves out zero, and drift shows it too."""
    for _ in range(15):
        await spoken(lp, "fine", version="1")
        await spoken(lp, ["search", "search"], "sorry", version="2")
    await an.run(once=True)
    found = await an.compare("1", "2", app="support")
    rate = found["error_rate"]
    assert rate.difference == pytest.approx(0.5)
    assert rate.differs
    assert rate in list(found)
    assert not (await an.compare("1", "1", app="support"))["error_rate"].differs
    (drift,) = await an.drift("support")
    assert (drift.a, drift.b, drift["error_rate"]) == ("1", "2", rate)
    with pytest.raises(InvalidInput):
        await an.compare("1", "3", app="support")


async def test_a_comparison_takes_any_group(an: limpet.Analytics) -> None:
    """However small it is among others; a group that only another app has is not there."""
    with an.file.commit() as c:
        fold = _synthetic(490_000 * HOUR_US, "one")
        tally = next(iter(tallies_of(fold).values()))
        for number in range(10_002):
            c.add(CellKey("support", "user", f"user{number % 10_001}", 490_000), tally)
        c.add(CellKey("other", "user", "eve", 490_000), tally)
    compared = await an.compare("user0", "user10000", app="support", dimension="user")
    assert (compared.sessions_a, compared.sessions_b) == (2, 1)
    with pytest.raises(InvalidInput, match="eve"):
        await an.compare("user0", "eve", app="support", dimension="user")


async def test_a_session_out_of_the_ordinary_is_named(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """With its metric, by how much, since when, and the rate of false alarms."""
    for _ in range(40):
        await spoken(lp, ["archive_search"], "fine")
    odd = await spoken(lp, ["search"] * 9, ["search"] * 9, "sorry")
    await an.run(once=True)
    found = await an.anomalies(app="support", false_alarm_rate=0.01)
    alert = next(alert for alert in found if alert.metric == "error_rate")
    assert alert.sessions == (odd.key,)
    assert alert.value > alert.expected == 0
    assert alert.since == (await an.session(odd.key)).created_at
    assert found.false_alarm_rate <= 0.0101
    with pytest.raises(InvalidInput):
        await an.anomalies(metrics=["color"])


async def test_what_analytics_record_makes_no_session_newer(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Interventions come to the least satisfied sessions: if these were the newest for it, each
    time satisfaction would seem to have fallen."""
    old, new = await spoken(lp, "fine"), await spoken(lp, "fine")
    await an.run(once=True)
    await an.score(old.key, "helpful", 0.1)
    await an.run(once=True)
    assert [fold.key for fold in an.file.recent("support", 2)] == [old.key, new.key]
    await old.append("user.message", {"text": "hello?"})
    await an.run(once=True)
    assert [fold.key for fold in an.file.recent("support", 2)] == [new.key, old.key]


async def test_a_regression_is_tested_from_a_fixed_session(an: limpet.Analytics) -> None:
    """Of 95 sessions in tests of 60, the third is about the last 35: the first two are over."""
    folds = [_synthetic(490_000 * HOUR_US + number, f"s{number}") for number in range(95)]
    for number, fold in enumerate(folds):
        fold.satisfaction = (800_000 if number < 60 else 400_000) + number % 7
    with an.file.commit() as c:
        c.put_folds(folds)
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)
    assert not (await an.regression("support", baseline=30, limit=60)).fell
    assert (await an.regression("support", baseline=30, limit=95)).fell
    with pytest.raises(InvalidInput):
        await an.regression("support", baseline=60, limit=60)


# --- principals -----------------------------------------------------------------------------------


async def test_who_acts_as_a_principal_measures_what_it_may_read(lp: limpet.Limpet) -> None:
    """An owner its own sessions, an admin those of its app; nobody reads more through a model."""
    for user in ("ada", "bob"):
        s = await spoken(lp, "fine", user=user)
        await s.checkpoint()
    await lp.create("other", "ada", actor="user:ada")
    ada = {"app": "support", "user": "ada"}
    for principal, users in (
        (limpet.Principal("user:ada", role="owner", **ada), {"ada"}),
        (limpet.Principal("user:eve", role="viewer", **ada), {"ada"}),
        (limpet.Principal("user:root", role="admin", app="support"), {"ada", "bob"}),
    ):
        acting = lp.acting_as(principal)
        async with limpet.Analytics(acting, "memory://", intervene_below=0.99, minimum=1) as own:
            await own.run(once=True)
            await own.run(once=True)
            assert {row["user"] for row in (await own.by("user")).rows} == users
            assert (await own.session(s.key if "bob" in users else _of(own))).final is False
            with pytest.raises(limpet.errors.AccessDenied):
                await own.train(minimum=1)
    eve = lp.acting_as(limpet.Principal("user:eve", role="viewer", **ada))
    with pytest.raises(limpet.errors.AccessDenied):
        await limpet.Analytics(eve, "memory://").session(s.key)
    auditor = lp.acting_as(limpet.Principal("user:law", role="auditor", app="support"))
    with pytest.raises(limpet.errors.AccessDenied):
        await limpet.Analytics(auditor, "memory://").run(once=True)


def _of(an: limpet.Analytics) -> limpet.Key:
    return next(iter(an.file.folds())).key


# --- advice ---------------------------------------------------------------------------------------


async def test_advice_is_given_and_done_only_where_a_policy_says_so(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """A tool that fails: the circuit opens, the fallback answers, and it is on record."""
    for _ in range(20):
        await spoken(lp, ["search"], "sorry")
    await an.run(once=True)
    (found,) = [each for each in await an.advice("support") if each.signal == "tool_errors"]
    assert (found.evidence.value, found.evidence.measured, found.applied) == ("search", 1.0, None)
    assert "circuit" in found.response
    assert await an.apply() == ()
    assert (await lp.policies.switches("support")).tools == {}
    policy = limpet.AdvicePolicy(open_circuits=True, fallbacks={"search": "archive_search"})
    (done,) = await an.apply(policy)
    assert done.applied is not None
    assert "archive_search" in done.applied
    assert await an.apply(policy) == ()  # it is done already
    assert await an.applied() == (done,)
    s = await spoken(lp, ["search"], "found it")
    (result,) = await s.read(types=["agent.tool_result"])
    assert result.data["output"] == "archived x"


async def test_a_circuit_closes_and_is_judged_by_its_next_calls(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """What the tool did before would open it again for good; if it fails on, it is opened again."""

    @limpet.tool(name="search")
    def repaired(q: str) -> str:
        """Search."""
        return "found"

    policy = limpet.AdvicePolicy(open_circuits=True, circuit_seconds=0, cases=5)

    async def done(tool: limpet.Tool, calls: int) -> list[str]:
        for _ in range(calls):
            await spoken(lp, ["search"], "there", tools=(tool,))
        await an.run(once=True)
        return [str(each.applied) for each in await an.apply(policy)]

    assert await done(search, 5) == ["the circuit of search is open for 0 s"]
    assert await done(repaired, 0) == [
        "the circuit of search is closed; its next 5 calls are judged"
    ]
    assert not (await lp.policies.switches("support")).tools["search"].open
    assert await done(repaired, 4) == []
    assert await done(repaired, 2) == []  # they were good, though most of all calls failed
    assert await done(search, 5) == ["the circuit of search is open for 0 s"]


async def test_advice_for_an_app_changes_no_other(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Sessions of an app whose users are content keep their priority."""
    await lp.create("sales", "ada", "live", actor="user:ada")
    folds = [_synthetic(490_000 * HOUR_US, f"s{number}") for number in range(20)]
    for fold in folds:
        fold.satisfaction = 100_000
    other = _synthetic(490_000 * HOUR_US, "live")
    other.app, other.satisfaction = "sales", 100_000
    with an.file.commit() as c:
        c.put_folds([*folds, other])
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)
    assert "low_satisfaction" in {each.signal for each in await an.advice("support")}
    await an.apply(limpet.AdvicePolicy(escalate_priority=50))
    assert (await lp.get("sales", "ada", "live")).head.priority != 50


async def test_an_open_circuit_without_a_fallback_refuses_at_once(lp: limpet.Limpet) -> None:
    """The model reads that the tool is off; nothing is tried. Closed, it runs again."""
    await lp.policies.switch_tool("support", "search", limpet.ToolSwitch(open=True))
    s = await spoken(lp, ["search"], "sorry")
    (result,) = await s.read(types=["agent.tool_result"])
    assert result.data["is_error"] is True
    assert "switched off" in result.data["output"]
    assert await s.read(types=["effect.intended"]) == ()
    await lp.policies.switch_tool("support", "search", None)
    s = await spoken(lp, ["search"], "sorry")
    assert len(await s.read(types=["effect.intended"])) == 1


async def handled(lp: limpet.Limpet, s: limpet.Session, harness: Any) -> limpet.Woken:
    """One turn of a harness that is no agent."""
    await s.append("user.message", {"text": "go"}, actor="user:ada")
    woken = await lp.wake(s.key, harness)
    await s.refresh()
    return woken


def bound_tools() -> limpet.ToolRegistry:
    return limpet.ToolRegistry([limpet.Tool("search", cost=0.25), limpet.Tool("pay")])


async def test_a_tool_that_is_used_by_an_effect_is_measured(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """As a call of a model is, in the session and among the tools; what is not bound is none."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("search", lambda: "found")
        await turn.effect("search", lambda: "again")
        with pytest.raises(limpet.errors.EffectFailed):
            await turn.effect("pay", search, q="x")
        await turn.say("done")

    s = await lp.create("a", "ada", actor="user:ada")
    await s.tools.bind(bound_tools())
    await handled(lp, s, harness)
    free = await lp.create("a", "ada", actor="user:ada")
    await handled(lp, free, harness)
    live = await an.session(s.key)
    await an.run(once=True)
    seen = await an.session(s.key)
    assert live.tools == seen.tools
    found, paid = seen.tools["search"], seen.tools["pay"]
    assert (found.count, found.errors, found.total_cost) == (2, 0, 0.5)
    assert (paid.count, paid.errors, paid.total_cost) == (1, 1, 0)
    assert (seen.interaction.tool_invocations, seen.quality.error_rate) == (3, 1 / 3)
    assert seen.resource.cost_usd == s.runs.usage.cost == 0.5
    rows = {row["tool"]: row for row in (await an.by("tool", app="a")).rows}
    assert {tool: (row["count"], row["errors"]) for tool, row in rows.items()} == {
        "search": (2, 0),
        "pay": (1, 1),
    }
    assert (await an.session(free.key)).tools == {}
    assert (await an.by("window", app="a")).column("turns") == (2,)


async def test_a_bound_tool_of_a_model_is_counted_once(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Its call, its effect and what it costs are one use."""

    s = await lp.create("a", "ada", actor="user:ada")
    await s.tools.bind(bound_tools())
    await handled(lp, s, limpet.Agent(replies(["search"], "done"), (search,)))
    seen = await an.session(s.key)
    assert seen.interaction.tool_invocations == seen.tools["search"].count == 1
    assert (seen.tools["search"].errors, seen.tools["search"].total_cost) == (1, 0.25)
    (intent,) = await s.read(types=["effect.intended"])
    assert "tool" not in intent.data


async def test_tries_without_an_outcome_are_one_use(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Until it is known; an effect that failed and is made again is another one."""
    left: list[Any] = [limpet.EffectUnknown("search", 1, "lost"), "found"]

    def flaky() -> str:
        match left.pop(0):
            case Exception() as error:
                raise error
            case found:
                return str(found)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("search", flaky, on_unknown="retry")

    s = await lp.create("a", "ada", actor="user:ada")
    await s.tools.bind(bound_tools())
    await handled(lp, s, harness)
    while left:
        await lp.wake(s.key, harness)
    assert len(await s.read(types=["effect.intended"])) == 2
    tool = (await an.session(s.key)).tools["search"]
    assert (tool.count, tool.errors) == (1, 0)
    left += [ValueError("down"), "found"]
    await handled(lp, s, harness)
    while left:
        await lp.wake(s.key, harness)
    tool = (await an.session(s.key)).tools["search"]
    assert (tool.count, tool.errors) == (3, 1)


async def test_an_effect_in_a_part_of_a_harness_is_a_use_of_its_tool(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """A node of a graph has a name of its own, and the tool keeps its own."""

    class Asked(limpet.graph.State):
        answer: str = ""

    async def look(state: Asked) -> dict[str, Any]:
        return {"answer": await limpet.graph.effect("search", lambda: "found")}

    builder = limpet.graph.GraphBuilder(Asked)
    builder.add_node("look", look)
    builder.set_entry("look")
    builder.add_edge("look", limpet.graph.END)
    harness = limpet.graph.as_harness(
        builder.compile(), initial=lambda turn: Asked(), say=lambda state: state.answer
    )
    s = await lp.create("a", "ada", actor="user:ada")
    await s.tools.bind(bound_tools())
    await handled(lp, s, harness)
    assert {name: tool.count for name, tool in (await an.session(s.key)).tools.items()} == {
        "search": 1
    }


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("permission", ["always_allow", "always_ask"])
async def test_an_open_circuit_refuses_an_effect(
    lp: limpet.Limpet, bound: bool, permission: Any
) -> None:
    """Before it is tried, and before anybody is asked; closed, or closed by time, it acts."""
    s = await lp.create("a", "ada", actor="user:ada")
    if bound:
        await s.tools.bind(bound_tools())
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.effect("search", lambda: done.append("acted"))
        except limpet.ToolDenied as error:
            done.append(str(error.note))

    async def used(switch: limpet.ToolSwitch | None) -> list[str]:
        await lp.policies.switch_tool("a", "search", switch)
        await s.append("user.message", {"text": "go"}, actor="user:ada")
        await lp.wake(s.key, harness, permissions={"*": permission})
        await s.refresh()
        said, done[:] = list(done), []
        return said

    (refused,) = await used(limpet.ToolSwitch(open=True, fallback="pay"))
    assert "circuit is open" in refused
    assert await s.read(types=["effect.*", "agent.tool_use"]) == ()
    closed = limpet.ToolSwitch(open=True, until_us=journal_of(lp).now_us())
    if permission == "always_ask":
        assert await used(closed) == []
        assert [request.name for request in s.blocked_on] == ["search"]
        return
    assert await used(closed) == ["acted"]
    assert await used(None) == ["acted"]


async def test_an_open_circuit_decides_nothing_about_an_effect_that_is_unknown(
    lp: limpet.Limpet,
) -> None:
    """No other try acts while it is open, and nothing says that it failed."""
    tried: list[str] = []

    async def lost() -> None:
        tried.append(limpet.idempotency_key())
        await lp.policies.switch_tool("a", "search", limpet.ToolSwitch(open=True))
        raise limpet.EffectUnknown("search", 1, "lost")

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("search", lost, on_unknown="retry")

    s = await lp.create("a", "ada", actor="user:ada")
    await handled(lp, s, harness)
    await lp.wake(s.key, harness)
    assert len(tried) == 1
    outcomes = [event.type for event in await s.read(types=["effect.*"])]
    assert outcomes[:2] == ["effect.intended", "effect.unknown"]
    assert "effect.failed" not in outcomes


async def test_a_fallback_asks_for_its_own_permission(lp: limpet.Limpet) -> None:
    """An open circuit is no way around what the fallback asks for."""
    asks = limpet.tool(permission="always_ask", name="archive_search")(lambda q: q)  # type: ignore[misc]  # untyped
    switch = limpet.ToolSwitch(open=True, fallback="archive_search")
    await lp.policies.switch_tool("support", "search", switch)
    s = await spoken(lp, ["search"], "done", tools=(search, asks))
    assert [request.kind for request in s.blocked_on] == ["approval"]


async def test_a_call_that_has_begun_ends_with_its_own_tool(lp: limpet.Limpet) -> None:
    """A circuit that opens while a call's outcome is unknown does not send it elsewhere."""
    ran: list[str] = []

    @limpet.tool(on_unknown="retry", name="search")
    async def flaky(q: str) -> str:
        """Search."""
        ran.append(q)
        if len(ran) == 1:
            await lp.policies.switch_tool(
                "support", "search", limpet.ToolSwitch(open=True, fallback="archive_search")
            )
            raise limpet.EffectUnknown("search", 1, "lost")
        return "itself"

    s = await spoken(lp, ["search"], "done", tools=(flaky, archive_search))
    await lp.wake(s.key, limpet.Agent(replies("done"), (flaky, archive_search)))
    (result,) = await s.read(types=["agent.tool_result"])
    assert (result.data["output"], len(ran)) == ("itself", 2)


async def test_results_of_pure_tools_are_cached_for_their_user(lp: limpet.Limpet) -> None:
    """While the switch says so; another user's are not used."""
    ran: list[str] = []

    @limpet.tool(pure=True, name="search")
    def pure(q: str) -> str:
        """Search."""
        ran.append(q)
        return f"{len(ran)}"

    await lp.policies.switch_tool("support", "search", limpet.ToolSwitch(cache_seconds=3_600))
    for user in ("ada", "ada", "bob"):
        await spoken(lp, ["search"], "done", user=user, tools=(pure,))
    assert len(ran) == 2
    await lp.policies.switch_tool("support", "search", None)
    await spoken(lp, ["search"], "done", user="ada", tools=(pure,))
    assert len(ran) == 3


async def test_a_switch_bounds_the_time_of_a_tool(lp: limpet.Limpet) -> None:
    """A try that takes longer is stopped, and the model reads that it failed."""

    @limpet.tool(name="search")
    async def endless(q: str) -> str:
        """Search."""
        await asyncio.Event().wait()
        return q

    await lp.policies.switch_tool("support", "search", limpet.ToolSwitch(timeout_seconds=0.01))
    s = await spoken(lp, ["search"], "sorry", tools=(endless,))
    assert len(await s.read(types=["effect.intended"])) == 1
    assert await s.read(types=["effect.succeeded"]) == ()


@pytest.fixture(params=["sqlite", "files", "postgres", "served"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store that outlives a process, and a server in front of one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/desk.db?sync=normal"
    if request.param == "files":
        return f"files:///{tmp_path}/desk"
    fixture = {"postgres": "postgres_store_url", "served": "served_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


async def test_every_store_is_measured_alike(any_url: str, tmp_path: Path) -> None:
    """Folded, continued from the file, followed, trained on, intervened in, switched, replayed by
    a fork, and without a user who was erased."""
    file = f"sqlite:///{tmp_path}/folded.db"
    called: list[limpet.Key] = []
    async with limpet.open(any_url) as lp:
        await rated(lp, 10)
        async with limpet.Analytics(
            lp,
            file,
            retrain=None,
            intervene_below=0.4,
            on_intervention=lambda of: called.append(of.key),
        ) as an:
            assert await an.run(once=True) > 0
            assert (await an.train(minimum=10)).sessions == 10
            bad = await spoken(lp, ["search"] * 3, "sorry", user="zoe")
            await bad.checkpoint()
            await an.score(bad.key, "helpful", 0.5)
            await an.run(once=True)
            assert called == [bad.key]
            assert (await an.session(bad.key)).resource.checkpoints == 1
            assert [score.value for score in await an.scores(bad.key)] == [0.5]
        async with limpet.Analytics(lp, file, retrain=None, intervene_below=None) as an:
            await an.run(once=True)
            assert await an.run(once=True) == 0
            failing = (await an.failing("support")).sessions[0]
            session = await lp.get(failing.key)
            fork = await session.fork(at=failing.at)
            (request,) = await session.read(after=failing.request - 1, limit=1)
            await fork.append(request.type, request.data, actor=request.actor)
            await lp.wake(fork.key, limpet.Agent(replies("fine"), ()))
            assert (await an.session(fork.key)).interaction.turns == 1
            await (await spoken(lp, "fine", user="liv")).complete()
            lp.maintenance.on_metric(lambda metric: an.stop())
            await an.run()
            policy = limpet.AdvicePolicy(open_circuits=True, cases=10)
            assert len(await an.apply(policy)) == len(await an.applied()) == 1
            assert (await lp.policies.switches("support")).tools["search"].open
            await lp.erase_user("support", "u1")
            await an.run(once=True)
            users = {row["user"]: row["sessions"] for row in await _rows(an, "user")}
            forked = fork.key.user
            expected = {**dict.fromkeys(("u0", "u2", "u3", "u4"), 2), "zoe": 1, "liv": 1}
            assert users == {**expected, forked: expected[forked] + 1}
            fresh = limpet.Analytics(lp, "memory://", retrain=None, intervene_below=None)
            await fresh.run(once=True)
            assert _whole(an) == _whole(fresh)


async def test_every_signal_has_its_response(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Each beyond its threshold, with evidence; automatic ones are really switched."""
    folds = []
    for number in range(25):
        fold = _synthetic(490_000 * HOUR_US + number, f"s{number}")
        fold.repairs, fold.suspensions, fold.peak_state = 3, 5, 5_000_000
        fold.ended_us, fold.satisfaction = fold.updated_us, 100_000
        fold.hours[490_000].latencies = {}
        fold.hours[490_000].latencies[1_100] = 5
        folds.append(fold)
    with an.file.commit() as c:
        c.put_folds(folds)
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)
    signals = {each.signal for each in await an.advice("support")}
    assert signals == {
        each.signal for each in await an.advice(since=datetime(2020, 1, 1, tzinfo=UTC))
    }
    assert await an.advice(since=lp.now()) == ()  # of sessions that are older
    assert signals == {
        "high_turn_latency",
        "low_completion",
        "many_repairs",
        "low_satisfaction",
        "large_state",
        "frequent_suspensions",
    }
    lp.policies.lifecycle("support", timeouts=limpet.Timeouts(idle=timedelta(minutes=1)))
    live = await lp.create("support", "ada", "live", actor="user:ada")
    fold = _synthetic(490_000 * HOUR_US, "live")
    fold.satisfaction = 100_000
    with an.file.commit() as c:
        c.put_folds([fold])
    policy = limpet.AdvicePolicy(
        fresh_seconds=7_200,
        escalate_priority=50,
        hot_events=100,
        idle_timeout=timedelta(hours=1),
    )
    done = {each.signal for each in await an.apply(policy)}
    assert done == {"high_turn_latency", "low_satisfaction", "large_state", "frequent_suspensions"}
    assert (await lp.policies.switches("support")).fresh_seconds == 7_200
    await live.refresh()
    assert live.head.priority == 50
    new = await lp.create("support", "ada", actor="user:ada")
    assert new.lifecycle.timeouts is not None
    assert new.lifecycle.timeouts.idle == timedelta(hours=1)
    assert len(await an.applied()) == 4
    assert await an.apply(policy) == ()  # all of it is done already


async def test_a_worker_follows_what_a_policy_applied(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Slow turns and a failing tool: results are used again, evidence stays fresh, the fallback
    answers. Without the policy the worker goes on as before."""
    looked: list[str] = []

    @limpet.tool(pure=True)
    def look(q: str) -> str:
        """Look something up."""
        looked.append(q)
        return "found"

    async def model(request: limpet.ModelRequest) -> limpet.Reply:
        if request.messages[-1]["role"] == "user":
            names = ("search", "look")
            calls = [limpet.ToolCall(name, name, {"q": "x"}, name) for name in names]
            return limpet.Reply("", tuple(calls), {}, "tools", None)
        return limpet.Reply("done", (), {}, "end", None)

    agent = limpet.Agent(model, (search, archive_search, look))

    async def work(count: int) -> tuple[limpet.Event, ...]:
        for _ in range(count):
            s = await lp.create("support", "ada", actor="user:ada")
            await s.append("user.message", {"text": "hi"})
        await limpet.Worker(lp, agent, app="support", idle_exit=True).run()
        await an.run(once=True)
        return await s.read(types=["agent.tool_result"])

    thresholds: dict[str, Any] = {"cases": 2, "turn_latency_seconds": 0}
    await work(2)
    assert await an.apply(limpet.AdvicePolicy(**thresholds)) == ()
    await work(1)
    assert len(looked) == 3
    policy = limpet.AdvicePolicy(
        **thresholds,
        cache_seconds=3_600,
        fresh_seconds=3_600,
        open_circuits=True,
        fallbacks={"search": "archive_search"},
    )
    assert {each.signal for each in await an.apply(policy)} == {"high_turn_latency", "tool_errors"}
    results = await work(2)
    assert {result.data["output"] for result in results} == {"archived x", "found"}
    assert len(looked) == 4  # once, and then from the cache
    asked: list[Any] = []
    s = await lp.create("support", "ada", actor="user:ada")
    for _ in range(2):
        await s.suspend()
        s, _ = await lp.resume(s.key, queries=["x"], retrieve=asked.append, fresh_seconds=0)
    assert asked == ["x"]
    assert await an.apply(policy) == ()


async def test_a_longer_idle_timeout_holds_in_every_process(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """A policy that was applied in one process lengthens the idle timeout of the sessions that
    others create, within the bound that their app sets; timeouts that are given stay."""
    for _ in range(2):
        s = await spoken(lp, "fine")
        for _ in range(3):
            await s.suspend()
            await s.resume()
    await an.run(once=True)
    policy = limpet.AdvicePolicy(cases=2, idle_timeout=timedelta(hours=1))
    (done,) = await an.apply(policy)
    assert done.signal == "frequent_suspensions"
    assert await an.apply(policy) == ()
    async with limpet.Limpet("another process", store=journal_of(lp).store) as other:

        async def idle(**more: Any) -> timedelta | None:
            s = await other.create("support", "ada", actor="user:ada", **more)
            return None if s.lifecycle.timeouts is None else s.lifecycle.timeouts.idle

        assert await idle() is None
        of_app = limpet.Timeouts(idle=timedelta(minutes=5), idle_max=timedelta(minutes=40))
        other.policies.lifecycle("support", timeouts=of_app)
        assert await idle() == timedelta(minutes=40)
        of_app = limpet.Timeouts(idle=timedelta(minutes=5))
        other.policies.lifecycle("support", timeouts=of_app)
        assert await idle() == timedelta(hours=1)
        assert await idle(timeouts=of_app) == timedelta(minutes=5)
        async with other.commit() as c:
            made = c.create("support", "ada", actor="user:ada")
        assert (await other.get(made.key)).lifecycle.timeouts == limpet.Timeouts(
            idle=timedelta(hours=1)
        )
        other.policies.lifecycle("support", timeouts=limpet.Timeouts(idle=timedelta(hours=2)))
        assert await idle() == timedelta(hours=2)
        await lp.policies.longer_idle("support", None)
        assert (await lp.policies.switches("support")).idle_seconds == 0
        with pytest.raises(limpet.errors.InvalidEvent, match="idle"):
            await lp.policies.longer_idle("support", timedelta(0))


# --- seeing it ------------------------------------------------------------------------------------


async def test_scores_of_sessions_turns_and_calls(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Also after the end of a session."""
    s = await spoken(lp, ["search"], "done")
    (use,) = await s.read(types=["agent.tool_use"])
    await s.complete()
    await an.score(s.key, "helpful", 1)
    await an.score(s.key, "helpful", 0.5, turn=use.invocation_id, actor="user:judge")
    await an.score(s.key, "right", 0, call=use.data["request_id"])
    live = await an.scores(s.key)
    fork = await s.fork(at=s.version - 1)
    assert await an.scores(fork.key) == ()
    await an.run(once=True)
    assert await an.scores(fork.key) == ()
    await an.score(s.key, "late", 1)
    scores = await an.scores(s.key)
    assert scores[:3] == live
    assert [(each.name, each.value) for each in scores] == [
        ("helpful", 1),
        ("helpful", 0.5),
        ("right", 0),
        ("late", 1),
    ]
    assert (scores[1].turn, scores[2].call) == (use.invocation_id, use.data["request_id"])
    seen = await an.session(s.key)
    assert (seen.scores["helpful"].count, seen.scores["helpful"].mean) == (2, 0.75)
    with pytest.raises(InvalidInput):
        await an.score(s.key, "helpful", 2)


async def test_failing_sessions_are_saved_and_replayed_by_forks(
    lp: limpet.Limpet, an: limpet.Analytics, tmp_path: Path
) -> None:
    """A set names the sessions, why they failed, and where to fork them."""
    s = await spoken(lp, ["search"], "sorry")
    await s.append("user.feedback", {"thumb": "down"})
    await spoken(lp, "fine")
    await an.run(once=True)
    found = await an.failing("support")
    assert [each.key for each in found.sessions] == [s.key]
    found.save(tmp_path / "set.json")
    (again,) = limpet.FailingSet.load(tmp_path / "set.json")
    session = await lp.get(again.key)
    fork = await session.fork(at=again.at)
    (request,) = await session.read(after=again.request - 1, limit=1)
    await fork.append(request.type, request.data, actor=request.actor)
    woken = await lp.wake(fork.key, limpet.Agent(replies("fine"), ()))
    assert woken.reason == "end_turn"


async def test_what_has_ended_is_emitted_as_a_metric(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Once for each session, with the whole record."""
    emitted: list[limpet.Metric] = []
    lp.maintenance.on_metric(emitted.append)
    s = await spoken(lp, "fine")
    await an.run(once=True)
    await s.complete()
    await an.run(once=True)
    await an.run(once=True)
    found = [metric for metric in emitted if metric.name == "session.analytics"]
    assert [metric.values["session"] for metric in found] == [s.key]
    assert found[0].values["record"]["interaction"]["turns"] == 1


def records(lp: limpet.Limpet) -> list[dict[str, Any]]:
    """The records that are emitted from now on."""
    emitted: list[dict[str, Any]] = []

    def hook(metric: limpet.Metric) -> None:
        if metric.name == "session.analytics":
            emitted.append(metric.values["record"])

    lp.maintenance.on_metric(hook)
    return emitted


async def checkpointed(lp: limpet.Limpet) -> limpet.Session:
    """A session with checkpoints of states that grow, the last and largest made by its end."""
    s = await spoken(lp, ["search"], "fine")
    for number in range(3):
        await s.append("agent.noted", set={"notes": "x" * 100 * number}, actor="agent:a")
        await s.checkpoint()
    await s.append("agent.noted", set={"notes": "x" * 3_000}, actor="agent:a")
    await s.complete()
    return s


async def same(an: limpet.Analytics, record: dict[str, Any]) -> bool:
    """True if a record says what is said of the session now; only the time it was asked differs."""
    key = record["key"]
    now = (await an.session(key["app"], key["user"], key["id"])).plain
    return {**record, "computed_at": None} == {**now, "computed_at": None}


@pytest.mark.parametrize("folded", ["before", "after"])
@pytest.mark.parametrize("page", [4_000, 2])
async def test_the_emitted_record_has_all_checkpoints(
    lp: limpet.Limpet, an: limpet.Analytics, folded: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the end makes too, whether folding began before the end or comes after it."""
    monkeypatch.setattr(folding, "PAGE", page)
    emitted = records(lp)
    await rated(lp, 12)
    if folded == "before":
        await an.run(once=True)
        await an.train(minimum=12)
    del emitted[:]
    s = await checkpointed(lp)
    await an.run(once=True)
    (record,) = [each for each in emitted if each["uid"] == s.head.uid]
    assert record["resource"]["checkpoints"] == 4
    assert record["resource"]["peak_state_size"] > 3_000
    assert await same(an, record)


async def test_a_record_is_emitted_once_however_often_folding_stops(
    any_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between the end and its checkpoints, another process emits the whole record; nobody
    emits it again, also not with a feed that comes again."""
    file = f"sqlite:///{tmp_path}/folded.db"
    monkeypatch.setattr(folding, "PAGE", 7)
    async with limpet.open(any_url) as lp:
        emitted, sessions = records(lp), [await checkpointed(lp) for _ in range(3)]
        while len(emitted) < 3:  # one step of each process, then it ends
            async with limpet.Analytics(lp, file, retrain=None) as an:
                await an._fold_page()
        async with limpet.Analytics(lp, file, retrain=None) as an:
            await an.run(once=True)
            for name in folding.FEEDS:
                an.file.set_meta(name, None)
            await an.run(once=True)
            assert {each["uid"] for each in emitted} == {s.head.uid for s in sessions}
            assert len(emitted) == 3
            assert all([await same(an, record) for record in emitted])


async def test_a_record_is_as_the_newest_model_sees_it(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Also of a session that was folded before there was a model, and whose prediction in the file
    is not written yet."""
    file, emitted = f"sqlite:///{tmp_path}/a.db", records(lp)
    await rated(lp, 12)
    async with limpet.Analytics(lp, file, retrain=None) as an:
        await an._fold_page()
        await limpet.Analytics(lp, "memory://", minimum=12, intervene_below=None).run(once=True)
    del emitted[:]
    async with limpet.Analytics(lp, file, retrain=None, intervene_below=None) as an:
        await an.catch_up(0)
        assert len(emitted) == 12
        assert all([record["satisfaction"] is not None for record in emitted])
        assert all([await same(an, record) for record in emitted])


async def test_what_another_process_folds_meanwhile_is_emitted_with_its_checkpoints(
    lp: limpet.Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has looked for checkpoints before a session ended does not emit its record."""
    file, emitted = f"sqlite:///{tmp_path}/a.db", records(lp)
    async with (
        limpet.Analytics(lp, file, retrain=None) as an,
        limpet.Analytics(lp, file, retrain=None) as other,
    ):
        await an.run(once=True)
        feed = an._parts()[1]._feed
        changes = feed.changes

        async def meanwhile(after: Any, *, app: Any, **more: Any) -> Any:
            seen = await changes(after, app=app, **more)
            if app is not None and not emitted:
                monkeypatch.undo()
                await checkpointed(lp)
                await other._fold_page()
            return seen

        monkeypatch.setattr(feed, "changes", meanwhile)
        await an._fold_page()
        assert not emitted
        await an.run(once=True)
        assert [await same(an, record) for record in emitted] == [True]


async def test_records_of_many_and_of_nobody_who_was_erased(
    lp: limpet.Limpet, an: limpet.Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one look finds; one who is forgotten before is not emitted, nor remembered."""
    emitted = records(lp)
    for number in range(7):
        await (await spoken(lp, "fine", user=f"u{number}")).complete()
    await an._fold_page()
    await an.forget("support", "u3")
    assert len(an.file.unemitted(99)) == 6
    monkeypatch.setattr(folding, "_READ", 2)
    await an.run(once=True)
    users = sorted([record["key"]["user"] for record in emitted])
    assert users == ["u0", "u1", "u2", "u4", "u5", "u6"]
    assert an.file.unemitted(99) == []


async def test_a_hook_that_ends_the_process_sees_its_record_once(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """A record is taken from the file before it is emitted, one by one: what comes after goes on
    with the next."""
    seen: list[limpet.Key] = []

    def fatal(metric: limpet.Metric) -> None:
        if metric.name == "session.analytics":
            seen.append(metric.values["session"])
            raise KeyboardInterrupt

    lp.maintenance.on_metric(fatal)
    sessions = [await checkpointed(lp) for _ in range(2)]
    for _ in sessions:
        async with limpet.Analytics(lp, f"sqlite:///{tmp_path}/a.db", retrain=None) as an:
            with pytest.raises(KeyboardInterrupt):
                await an.run(once=True)
    async with limpet.Analytics(lp, f"sqlite:///{tmp_path}/a.db", retrain=None) as an:
        await an.run(once=True)
    assert sorted(seen) == sorted([s.key for s in sessions])


async def test_who_follows_a_store_waits_for_the_checkpoint_after_the_end(
    lp: limpet.Limpet, an: limpet.Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy makes it once the end is durable; meanwhile the end may be folded already."""
    go, folded = asyncio.Event(), asyncio.Event()
    step, record = folding.FeedFold.step, checkpoints.StoreCheckpoints.checkpoint

    async def held(of: Any, key: limpet.Key, asked: Any, **more: Any) -> Any:
        if asked.trigger == "session.completed":
            await go.wait()
        return await record(of, key, asked, **more)

    async def seen(of: folding.FeedFold) -> Any:
        changed = await step(of)
        if of.complete:
            folded.set()
        return changed

    await lp.policies.checkpointing(
        "support", limpet.CheckpointPolicy(events=("session.completed",))
    )
    monkeypatch.setattr(checkpoints.StoreCheckpoints, "checkpoint", held)
    monkeypatch.setattr(folding.FeedFold, "step", seen)
    monkeypatch.setattr(analytics, "_SETTLE_SECONDS", inf)
    emitted = records(lp)
    async with asyncio.timeout(60):
        running = asyncio.create_task(an.run())
        s = await spoken(lp, "fine")
        ending = asyncio.create_task(s.complete())
        await folded.wait()
        assert not emitted
        go.set()
        await ending
        monkeypatch.setattr(analytics, "_SETTLE_SECONDS", 0)
        while not emitted:  # noqa: ASYNC110  # by another task
            await asyncio.sleep(0.01)
        an.stop()
        await running
    assert await same(an, emitted[0])
    checkpointed = (await s.history.checkpoints()).items
    assert [each.trigger for each in checkpointed] == ["session.completed", "complete"]


async def test_checkpoints_do_not_wait_until_nothing_happens(
    lp: limpet.Limpet, an: limpet.Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others are written all the time, a session that ends has its checkpoints and record."""
    emitted = records(lp)
    s, busy = await checkpointed(lp), await lp.create("support", "bob", actor="user:bob")
    step, steps = folding.FeedFold.step, 0

    async def beside(of: folding.FeedFold) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            an.stop()
        await busy.append("user.message", {"text": "hi"})
        return await step(of)

    monkeypatch.setattr(folding.FeedFold, "step", beside)
    await an.run(once=True)
    assert [record["uid"] for record in emitted] == [s.head.uid]
    assert await same(an, emitted[0])


async def test_prometheus_and_opentelemetry_read_the_same_totals(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Names of tools are escaped, and every counter has its help."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    odd = limpet.tool(name='a"b')(lambda q: q)  # type: ignore[misc]  # untyped
    await spoken(lp, ['a"b'], "done", tools=(odd,))
    await an.run(once=True)
    text = await an.prometheus()
    assert 'limpet_turns_total{app="support"} 1\n' in text
    assert 'limpet_tool_calls_total{app="support",tool="a\\"b"} 1\n' in text
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    an.instrument(provider)
    data = reader.get_metrics_data()
    assert data is not None
    named = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    (point,) = named["limpet.turns"].data.data_points
    assert (point.value, dict(point.attributes or {})) == (1, {"app": "support"})
    provider.shutdown()


async def test_instruments_are_collected_in_a_thread_of_their_own(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """As periodic readers do, also in the middle of a commit; closed analytics have no values."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])

    async def sessions() -> list[int]:
        data = await asyncio.to_thread(reader.get_metrics_data)
        of = [s for r in data.resource_metrics for s in r.scope_metrics] if data else []
        named = {metric.name: metric.data.data_points for s in of for metric in s.metrics}
        return [point.value for point in named.get("limpet.sessions", ())]

    async with limpet.Analytics(lp, f"sqlite:///{tmp_path}/analytics.db", retrain=None) as an:
        an.instrument(provider)
        await spoken(lp, "done")
        await an.run(once=True)
        with an.file.commit() as c:
            for key, tally in tallies_of(_synthetic(490_000 * HOUR_US, "s1")).items():
                c.add(key, tally)
            c.write()
            assert await sessions() == [1]
        assert await sessions() == [2]
    assert await sessions() == []
    provider.shutdown()


def test_hours_without_an_event_are_in_the_report() -> None:
    """48 hours up to now, or up to the newest of a store at rest; days stay days."""

    def table(*names: str) -> Table:
        count = len(names)
        columns = window_columns(Tallies([], [], count), [], [1] * count)
        return Table.of("window", {"window": list(names)} | columns | {"turns": [1] * count})

    noon = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)
    course = hourly(table("2026-11-16", "2026-11-18T09:00Z", "2026-11-18T11:00Z"), noon)
    assert len(course) == 48
    assert course.rows[0]["window"] == "2026-11-16T13:00Z"
    assert course.column("turns")[-4:] == (1, 0, 1, 0)
    rest = hourly(table("2026-11-01T09:00Z"), noon)
    assert (rest.rows[-1]["window"], rest.column("turns")[-2:]) == ("2026-11-01T09:00Z", (0, 1))
    days = table("2026-11-01", "2026-11-02")
    assert hourly(days, noon) == days


async def test_the_page_holds_no_text_of_anybody_as_markup(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Names of users, tools and task types are escaped; nothing is loaded from elsewhere."""
    bad = "<script>alert(1)</script>"
    await spoken(lp, "fine", user=bad, task_type=bad, version=bad)
    await spoken(lp, "fine", task_type="safe\u202e")
    await an.run(once=True)
    page = html_page(await an.report())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert page.count("<svg") == 6
    assert "\u202e" not in page
    assert "safe⟦U+202E⟧" in page
    json.dumps((await an.report("support")).plain)
    assert sparkline([0, None, 4, 8]) == "▁ ▄█"


def test_the_commands_report_and_metrics(tmp_path: Path) -> None:
    """In a terminal of 80 columns, as JSON, as a page, and as a set of failing sessions."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/s.db") as lp:
        s = lp.create("support", "ada", "one", labels={"task_type": "refund"}, actor="user:ada")
        s.append("user.message", {"text": "hi"})
        s.append("agent.message", {"text": "yes", "usage": {"input": 3, "output": 4}}, actor="a:b")
        s.terminate()
    code, shown = run_terminal(tmp_path, "report", "s.db")
    assert code == 0
    assert "refund" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert all(len(line.rstrip("\r")) <= 80 for line in plain.splitlines())
    done = run(tmp_path, "metrics", "s.db", "support/ada/one")
    assert "p99 turn latency" in done.stdout
    page = run(tmp_path, "report", "s.db", "--html", "r.html", "--analytics", "a.db")
    assert page.returncode == 0
    assert "</html>" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "a.db").exists()
    assert run(tmp_path, "report", "s.db", "--failing", "--save", "set.json").returncode == 0
    assert json.loads((tmp_path / "set.json").read_text())["sessions"][0]["id"] == "one"
    assert "limpet_turns_total" in run(tmp_path, "report", "s.db", "--prometheus").stdout
    result = invoke("report", f"{tmp_path}/s.db", "--json")
    assert json.loads(result.output)["sessions"] == 1
    assert run(tmp_path, "report", "s.db", "--save", "x.json").returncode == 2


def test_a_report_of_one_app_is_of_that_app_in_every_form(tmp_path: Path) -> None:
    """Totals too; and a form that would be left out is refused."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/s.db?sync=normal") as lp:
        for app in ("support", "sales"):
            lp.create(app, "ada", actor="user:ada")
    shown = run(tmp_path, "report", "s.db", "--app", "sales", "--prometheus").stdout
    assert 'limpet_sessions_total{app="sales"} 1' in shown
    assert "support" not in shown
    assert json.loads(invoke("report", f"{tmp_path}/s.db", "--json").output)["sessions"] == 2
    refused = run(tmp_path, "report", "s.db", "--prometheus", "--html", "r.html")
    assert refused.returncode == 2
    assert "exclude one another" in refused.stderr
    assert not (tmp_path / "r.html").exists()


def test_the_report_of_a_terminal_shows_drift_and_the_metrics_scores(tmp_path: Path) -> None:
    """What differs between the two newest versions, with its interval; ratings and scores."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/s.db?sync=normal") as lp:
        for version in (1, 2):
            lp.agents.put("helper", {"system": f"{version}"}, actor="user:ada")
            for number in range(12):
                s = lp.create("support", "ada", f"{version}-{number}", agent="helper")
                s.terminate() if version == 2 else s.complete()
        s = lp.create("support", "ada", "live", actor="user:ada")
        s.append("user.feedback", {"rating": 0.25})
        s.record(limpet.facts.scored("helpful", 0.5, actor="user:ada"))
    shown = run(tmp_path, "report", "s.db").stdout
    assert re.search(r"drift +helper@1 +helper@2", shown)
    assert "Completion rate of sessions without a task type is 0.5" in shown
    assert re.search(r"completion rate +1 +0 +-1 to -0\.\d+", shown)
    shown = run(tmp_path, "metrics", "s.db", "support/ada/live").stdout
    assert "rating 0.25, predicted satisfaction –" in shown
    assert re.search(r"helpful +1 +0\.5", shown)
    with limpet.open_sync(f"sqlite:///{tmp_path}/empty.db"):
        pass
    assert "all apps: 0 sessions." in run(tmp_path, "report", "empty.db").stdout
    for form in (["--html"], ["--failing", "--save"]):
        refused = run(tmp_path, "report", "empty.db", *form, "nowhere/report")
        assert (refused.returncode, "nowhere/report cannot be written" in refused.stderr) == (
            2,
            True,
        )


async def test_a_file_of_another_program_is_refused(tmp_path: Path, lp: limpet.Limpet) -> None:
    """And so is a URL that names no file."""
    import apsw

    with apsw.Connection(str(tmp_path / "x.db")) as conn:
        conn.execute("CREATE TABLE t (a)")
    with pytest.raises(limpet.errors.StoreForeign):
        await limpet.Analytics(lp, f"sqlite:///{tmp_path}/x.db").by("user", app="support")
    assert conn.execute("PRAGMA journal_mode").get == "delete"
    conn.close()
    async with limpet.open(f"sqlite:///{tmp_path}/s.db"):
        pass
    with pytest.raises(limpet.errors.InvalidURL, match="is a store"):
        await limpet.Analytics(lp, f"sqlite:///{tmp_path}/s.db").by("user", app="support")
    with pytest.raises(limpet.errors.InvalidURL):
        limpet.Analytics(lp, "postgresql://x")
    with pytest.raises(InvalidInput):
        limpet.Analytics("x", "memory://")  # type: ignore[arg-type]  # wrong on purpose


async def test_a_damaged_file_says_what_to_do(tmp_path: Path, lp: limpet.Limpet) -> None:
    """Whoever folds or reads it is asked to remove it: the store has what was in it."""
    path = tmp_path / "analytics.db"
    async with limpet.Analytics(lp, f"sqlite:///{path}") as an:
        for number in range(50):
            await lp.create("support", f"u{number}", actor="user:ada")
        await an.run(once=True)
    pages = bytearray(path.read_bytes())
    for at in range(8192, len(pages), 4096):
        pages[at : at + 100] = b"\xff" * 100
    path.write_bytes(pages)
    for ask in ("by", "run", "failing"):
        an = limpet.Analytics(lp, f"sqlite:///{path}")
        with pytest.raises(limpet.errors.StoreCorrupt, match="Remove it"):
            await getattr(an, ask)(*(["user"] if ask == "by" else []))
        await an.close()
    path.write_text("a file of somebody")
    with pytest.raises(limpet.errors.StoreForeign):
        await limpet.Analytics(lp, f"sqlite:///{path}").by("user")


WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("anomalies", {"false_alarm_rate": 0}),
    ("anomalies", {"false_alarm_rate": "x"}),
    ("anomalies", {"k": float("nan")}),
    ("anomalies", {"k": -1}),
    ("anomalies", {"limit": -1}),
    ("anomalies", {"warm_up": "x"}),
    ("compare", {"a": "", "b": "", "confidence": 2}),
    ("regression", {"rate": 0}),
    ("regression", {"limit": "x"}),
    ("train", {"minimum": 0}),
    ("failing", {"limit": 0}),
    ("advice", {"policy": 3}),
    ("advice", {"since": "x"}),
    ("apply", {"policy": "x"}),
    *[
        (verb, {**more, "app": 5})
        for verb, more in (
            ("by", {"dimension": "user"}),
            ("anomalies", {}),
            ("compare", {"a": "", "b": ""}),
            ("drift", {}),
            ("regression", {}),
            ("advice", {}),
            ("apply", {}),
            ("failing", {}),
            ("prometheus", {}),
            ("report", {}),
        )
    ],
)


async def test_wrong_arguments_are_refused_by_name() -> None:
    """Before anything is read: what is asked of the file, and how it is opened."""
    async with limpet.open("memory://") as lp, limpet.Analytics(lp, "memory://") as an:
        for verb, given in WRONG:
            with pytest.raises(InvalidInput):
                await getattr(an, verb)(**given)
        for options in (
            {"hours_kept": "x"},
            {"days_kept": 0},
            {"minimum": 0},
            {"intervene_below": 5},
            {"retrain": 3},
            {"policy": 3},
        ):
            with pytest.raises(InvalidInput):
                limpet.Analytics(lp, "memory://", **options)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(limpet.errors.InvalidURL):
            limpet.Analytics(lp, None)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInput):
        limpet.FailingSet.load("nothing/there.json")


async def test_analytics_follow_a_store_as_it_is_written(
    lp: limpet.Limpet, an: limpet.Analytics
) -> None:
    """Without once, until it is told to stop."""
    ended = asyncio.Event()
    lp.maintenance.on_metric(lambda metric: ended.set())
    running = asyncio.ensure_future(an.run())
    s = await spoken(lp, "fine")
    await s.complete()
    await asyncio.wait_for(ended.wait(), 60)
    an.stop()
    await lp.create("support", "bob", actor="user:bob")  # it looks again, and stops
    assert await running > 0


async def test_an_outage_of_the_store_stops_nothing(
    lp: limpet.Limpet, an: limpet.Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a store tries again; what does not pass is raised, and nothing counts twice."""
    failures = [limpet.errors.StoreFailed("s.db", "gone", "read") for _ in range(3)]
    take = folding.FeedFold._take

    def failing(of: Any, *args: Any) -> bool:
        taken = take(of, *args)
        if failures:
            raise failures.pop()
        return taken

    monkeypatch.setattr(folding.FeedFold, "_take", failing)
    monkeypatch.setattr(analytics, "_HOUSE_SECONDS", 0.01)
    ended = asyncio.Event()
    lp.maintenance.on_metric(
        lambda metric: ended.set() if metric.name == "session.analytics" else None
    )
    async with asyncio.timeout(60):
        s = await spoken(lp, "fine")
        await s.complete()
        running = asyncio.ensure_future(an.run())
        await ended.wait()
        assert not failures
        assert (await an.by("user", app="support"))["ada"]["turns"] == 1
        failures.append(limpet.errors.StoreClosed("s.db"))
        await lp.create("support", "bob", actor="user:bob")
        with pytest.raises(limpet.errors.StoreClosed):
            await running


async def test_closing_ends_what_follows_a_store(lp: limpet.Limpet) -> None:
    """Without another event, and the file stays closed."""
    following = asyncio.Event()
    lp.maintenance.on_metric(lambda metric: following.set())
    async with asyncio.timeout(60):
        async with limpet.Analytics(lp, "memory://", retrain=None) as an:
            running = asyncio.create_task(an.run())
            await (await spoken(lp, "fine")).complete()
            await following.wait()
        assert await running > 0
        assert an._opened is None
        an.stop()  # nothing runs any more


async def test_closing_waits_for_what_follows_also_after_another_run(
    lp: limpet.Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that follows a store may catch up before it asks."""
    go, held = asyncio.Event(), asyncio.Event()
    step = folding.FeedFold.step

    async def slow(of: folding.FeedFold) -> Any:
        if asyncio.current_task() is following:
            held.set()
            await go.wait()
        return await step(of)

    monkeypatch.setattr(folding.FeedFold, "step", slow)
    an = limpet.Analytics(lp, f"sqlite:///{tmp_path}/analytics.db", retrain=None)
    async with asyncio.timeout(60):
        following = asyncio.create_task(an.run())
        await held.wait()
        await lp.create("support", "ada", actor="user:ada")
        assert await an.run(once=True) == 1
        closing = asyncio.create_task(an.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        go.set()
        await closing
        await following


def test_the_record_that_is_stored_is_small() -> None:
    """A session of one turn takes fewer bytes than one of its messages."""
    fold = _synthetic(490_000 * HOUR_US, "s1")
    assert len(msgspec.msgpack.encode(fold)) < 250


async def test_the_store_is_not_written_to(lp: limpet.Limpet, an: limpet.Analytics) -> None:
    """Folding and asking record nothing."""
    await spoken(lp, "fine")
    before = await journal_of(lp).store.position()  # type: ignore[attr-defined]  # a Feed
    await an.run(once=True)
    await an.report()
    assert await journal_of(lp).store.position() == before  # type: ignore[attr-defined]  # a Feed
