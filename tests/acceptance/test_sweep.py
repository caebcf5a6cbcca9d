"""Timeouts and the sweep: what happens to sessions because time has passed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.cli.backlog import backlog_of
from limpet.store.memory import MemoryStore
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support.deadlines import passed

NOW = timedelta(microseconds=1)  # over when `passed` returns
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def timed(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[limpet.Limpet]:
    """Limpet on a store whose clock the test moves."""
    store: Any = MemoryStore(clock.clock())
    if request.param == "sqlite":
        path = tmp_path / "timed.db"
        store = await SQLiteStore.open(path, sync="normal", clock=clock.clock())
    async with limpet.Limpet("timed://", store=store) as lp:
        yield lp


async def test_an_idle_session_is_suspended_and_input_resumes_it(lp: limpet.Limpet) -> None:
    """Idle → suspended by the sweep; the next input is recorded and makes it active again."""
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(idle=NOW), actor="user:ada")
    await passed(lp)
    swept = await lp.work.sweep()
    assert (swept.suspended, swept.failed, swept.more) == (1, (), False)
    await s.refresh()
    assert s.phase == "suspended"
    assert s.events[-1].data["reason"] == "idle"
    assert s.events[-1].data["event"] == "timeout"
    await s.lifecycle.set_timeouts(limpet.Timeouts())
    await s.append("user.message", {"text": "back"})
    assert s.phase == "active"
    assert s.head.pending == 1
    assert (await lp.maintenance.verify()).ok


async def test_input_that_waited_before_does_not_resume(lp: limpet.Limpet) -> None:
    """A session that nobody served is suspended all the same, and stays so until new input."""
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(idle=NOW), actor="user:ada")
    await s.append("user.message", {"text": "hello?"})
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    assert (await s.refresh()).phase == "suspended"
    assert (await lp.work.sweep()) == limpet.Swept()


async def test_a_worker_resumes_what_was_suspended_with_input_that_nobody_saw(
    lp: limpet.Limpet,
) -> None:
    """Pending work is not idleness: the session is due, and the worker answers."""
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(idle=NOW), actor="user:ada")
    await s.append("user.message", {"text": "hello?"})
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    backlog = await backlog_of(lp, "support", limit=10)
    assert ([head.key for head in backlog.shown], backlog.status.due) == ([s.key], 1)
    await s.lifecycle.set_timeouts(limpet.Timeouts())

    async def answer(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await turn.say(f"you said {message.data['text']}")

    async with asyncio.timeout(60):
        rates = await limpet.Worker(lp, answer, app="support", idle_exit=True).run()
    assert rates.turns == 1
    await s.refresh()
    assert (s.phase, s.head.pending) == ("active", 0)
    assert [e.data["text"] for e in await s.read(types=["agent.*"])] == ["you said hello?"]
    assert (await lp.maintenance.verify()).ok


async def test_a_worker_leaves_what_the_policy_keeps_suspended(lp: limpet.Limpet) -> None:
    """Without resume_on_input only a person or a program resumes it: it is not due."""
    lp.policies.lifecycle("support", resume_on_input=False, timeouts=limpet.Timeouts(idle=NOW))
    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "hello?"})
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    assert (await backlog_of(lp, "support", limit=10)).status.due == 0
    assert await lp.work.claim("worker", limit=1) == ()


async def test_input_does_not_resume_where_the_policy_says_so(lp: limpet.Limpet) -> None:
    """With resume_on_input=False the input waits until somebody resumes the session."""
    lp.policies.lifecycle("support", resume_on_input=False, timeouts=limpet.Timeouts(idle=NOW))
    s = await lp.create("support", "ada", actor="user:ada")
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    await s.append("user.message", {"text": "back"})
    assert (await s.refresh()).phase == "suspended"
    assert (await lp.work.sweep()).resumed == 0


async def test_a_suspension_by_hand_is_not_ended_by_input(lp: limpet.Limpet) -> None:
    """Only idleness is ended by input."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.suspend("lunch")
    await s.append("user.message", {"text": "back"})
    assert (await s.refresh()).phase == "suspended"


async def test_a_sweep_resumes_what_the_recording_process_did_not(lp: limpet.Limpet) -> None:
    """If a process dies between the input and the resuming, the next sweep does it."""
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(idle=NOW), actor="user:ada")
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    await s.lifecycle.set_timeouts(limpet.Timeouts())
    lp.policies.lifecycle("support", guards={("suspended", "resume"): lambda s: "not now"})
    await s.append("user.message", {"text": "back"})
    assert (await s.refresh()).phase == "suspended"
    lp.policies.lifecycle("support")
    await passed(lp)
    assert (await lp.work.sweep()).resumed == 1
    assert (await s.refresh()).phase == "active"


async def test_past_its_absolute_timeout_a_session_is_suspended_and_terminated(
    lp: limpet.Limpet,
) -> None:
    """Both transitions are one commit of one sweep; cleanup runs before."""
    ran: list[str] = []
    lp.policies.lifecycle("support", cleanup={"flush": lambda s: ran.append(s.phase)})
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(absolute=NOW))
    await passed(lp)
    assert (await lp.work.sweep()).terminated == 1
    await s.refresh()
    assert s.phase == "terminated"
    ended = ["session.suspended", "session.status_changed", "session.terminated"]
    assert [e.type for e in s.events[-3:]] == ended
    assert ran == ["active"]
    assert [e.data["reason"] for e in s.events[-3:]] == ["absolute"] * 3
    assert "cleanup" not in s.events[-2].data
    assert s.events[-1].data["cleanup"] == [{"name": "flush"}]


async def test_past_its_grace_a_suspended_session_is_terminated(lp: limpet.Limpet) -> None:
    """Suspended for too long, it ends by expire, after the cleanup hooks."""
    ran: list[tuple[str, str]] = []

    def step(name: str) -> Any:
        return lambda session: ran.append((name, session.phase))

    cleanup: Any = {name: step(name) for name in ("notify", "flush")}
    lp.policies.lifecycle("support", cleanup=cleanup, compensate=[step("undo")])
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(grace=NOW), actor="user:ada")
    assert (await lp.work.sweep()).terminated == 0
    await s.suspend()
    await passed(lp)
    assert (await lp.work.sweep()).terminated == 1
    await s.refresh()
    assert ran == [("undo", "suspended"), ("flush", "suspended"), ("notify", "suspended")]
    data = s.events[-1].data
    assert (s.phase, data["event"], data["reason"]) == ("terminated", "expire", "grace")
    assert data["cleanup"] == [{"name": "flush"}, {"name": "notify"}]
    assert (await lp.work.sweep()) == limpet.Swept()
    assert len(ran) == 3


async def test_past_its_expiry_an_ended_session_is_deleted(lp: limpet.Limpet) -> None:
    """Expiry counts from the end of the session, and deletes it."""
    limits = limpet.Timeouts(expiry=NOW)
    s = await lp.create("support", "ada", timeouts=limits, actor="user:ada")
    assert (await lp.work.sweep()).deleted == 0
    await s.complete()
    await passed(lp)
    assert (await lp.work.sweep()).deleted == 1
    with pytest.raises(limpet.errors.SessionDeleted):
        await lp.get(s.key)


async def test_a_deadline_timer_ends_the_session(lp: limpet.Limpet) -> None:
    """A timer of kind deadline is when the session should end."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.lifecycle.set_timer("end", timedelta(0), kind="deadline")
    await passed(lp)
    assert (await lp.work.sweep()).terminated == 1
    assert (await s.refresh()).phase == "terminated"


async def test_a_leased_session_is_left_for_the_next_sweep(lp: limpet.Limpet) -> None:
    """What a worker holds is not touched under its hands."""
    s = await lp.create("support", "ada", timeouts=limpet.Timeouts(absolute=NOW))
    await passed(lp)
    lease = await lp.work.lock(s.key, worker="w")
    assert (await lp.work.sweep()).terminated == 0
    assert (await s.refresh()).phase == "active"
    await lp.work.release(lease)
    assert (await lp.work.sweep()).terminated == 1


async def test_many_sweeps_at_once_deal_with_each_session_once(lp: limpet.Limpet, url: str) -> None:
    """Of several sweeps exactly one moves each session on, and no event is doubled."""
    limits = limpet.Timeouts(absolute=NOW)
    made = [await lp.create("support", "ada", timeouts=limits) for _ in range(30)]
    await passed(lp, 30)
    swept = await asyncio.gather(*[lp.work.sweep() for _ in range(4)])
    assert sum(each.terminated for each in swept) == 30
    assert not any(each.failed for each in swept)
    for s in made:
        types = [event.type for event in (await s.refresh()).events]
        ended = ["session.suspended", "session.status_changed", "session.terminated"]
        assert types == ["session.created", *ended]
    assert (await lp.work.sweep()) == limpet.Swept()


async def test_a_sweep_stops_at_its_limit(lp: limpet.Limpet) -> None:
    """It deals with so many sessions and says that there are more."""
    for _ in range(5):
        await lp.create("support", "ada", timeouts=limpet.Timeouts(absolute=NOW))
    await passed(lp, 5)
    swept = await lp.work.sweep(limit=3)
    assert (swept.terminated, swept.more) == (3, True)
    swept = await lp.work.sweep(limit=3)
    assert (swept.terminated, swept.more) == (2, False)
    assert str(swept).startswith("0 suspended, 2 terminated")


async def test_a_session_that_cannot_be_swept_stops_no_other(lp: limpet.Limpet) -> None:
    """A guard that refuses is reported; the others are moved on."""
    lp.policies.lifecycle("stuck", guards={("active", "timeout"): lambda s: "it is busy"})
    limits = limpet.Timeouts(idle=NOW)
    stuck = await lp.create("stuck", "ada", timeouts=limits)
    await lp.create("support", "ada", timeouts=limits)
    await passed(lp, 2)
    swept = await lp.work.sweep()
    assert swept.suspended == 1
    assert [(each.key, "it is busy" in each.reason) for each in swept.failed] == [(stuck.key, True)]
    assert (await stuck.refresh()).phase == "active"
    assert (
        await stuck.append("user.message", {"text": "hi"}, actor="user:ada")
    ).seq  # not locked any more
    lp.policies.lifecycle("stuck")
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1


async def test_idle_is_never_early_and_late_by_a_sixteenth_at_most(
    timed: limpet.Limpet, clock: FakeClock
) -> None:
    """Before the timeout nothing happens; a sixteenth after it the session is suspended."""
    s = await timed.create(
        "support", "ada", timeouts=limpet.Timeouts(idle=16 * HOUR), actor="user:ada"
    )
    clock.advance(10 * HOUR)
    await s.append("agent.message", {"text": "busy"})
    clock.advance(16 * HOUR - NOW)
    assert (await timed.work.sweep()).suspended == 0
    clock.advance(HOUR + NOW)
    assert (await timed.work.sweep()).suspended == 1


async def test_an_input_behind_others_is_activity_as_the_first_is(
    timed: limpet.Limpet, clock: FakeClock
) -> None:
    """It changes nothing of what is due but when the session counts as idle."""
    s = await timed.create("support", "ada", timeouts=limpet.Timeouts(idle=HOUR), actor="user:ada")
    for _ in range(3):
        clock.advance(3 * HOUR / 4)
        await s.append("user.message", {"text": "hello?"})
        assert (await timed.maintenance.verify()).ok  # the indexed deadline is that of the head
        assert (await timed.work.sweep()).suspended == 0
    clock.advance(HOUR + HOUR / 8)
    assert (await timed.work.sweep()).suspended == 1
    assert (await s.refresh()).head.pending == 3


async def test_heartbeats_and_labels_do_not_count_as_activity(
    timed: limpet.Limpet, clock: FakeClock
) -> None:
    """Leases, labels and background events leave the session as idle as it was."""
    s = await timed.create("support", "ada", timeouts=limpet.Timeouts(idle=HOUR), actor="user:ada")
    clock.advance(HOUR)
    lease = await timed.work.lock(s.key, worker="w")
    await timed.work.renew(lease)
    await timed.work.release(lease)
    await s.label({"plan": "gold"})
    await s.append("system.tick", {})
    clock.advance(HOUR / 8)
    assert (await timed.work.sweep()).suspended == 1


async def test_background_counts_where_it_was_asked_for(
    timed: limpet.Limpet, clock: FakeClock
) -> None:
    """With background=True a system event keeps the session active."""
    limits = limpet.Timeouts(idle=HOUR, background=True)
    s = await timed.create("support", "ada", timeouts=limits, actor="user:ada")
    clock.advance(HOUR)
    await s.append("system.tick", {})
    clock.advance(HOUR / 8)
    assert (await timed.work.sweep()).suspended == 0


async def test_renewing_adds_up_to_the_most(timed: limpet.Limpet, clock: FakeClock) -> None:
    """Idle becomes min(idle + delta, idle_max), and the deadline moves."""
    limits = limpet.Timeouts(idle=HOUR, idle_max=3 * HOUR, absolute=DAY)
    s = await timed.create("support", "ada", timeouts=limits, actor="user:ada")
    await s.lifecycle.renew(idle=HOUR)
    assert s.lifecycle.timeouts is not None
    assert s.lifecycle.timeouts.idle == 2 * HOUR
    await s.lifecycle.renew(idle=5 * HOUR)
    assert s.lifecycle.timeouts.idle == 3 * HOUR
    clock.advance(2 * HOUR)
    assert (await timed.work.sweep()).suspended == 0
    clock.advance(DAY)
    with pytest.raises(limpet.errors.GuardFailed, match="absolute"):
        await s.lifecycle.renew(idle=HOUR)


async def test_renewing_may_be_refused_by_a_guard(lp: limpet.Limpet) -> None:
    """The guard of ("active", "renew") says whether the owner and the budget allow it."""
    lp.policies.lifecycle("support", guards={("active", "renew"): lambda s: "no budget left"})
    limits = limpet.Timeouts(idle=HOUR)
    s = await lp.create("support", "ada", timeouts=limits, actor="user:ada")
    with pytest.raises(limpet.errors.GuardFailed, match="no budget left"):
        await s.lifecycle.renew(idle=HOUR)


async def test_renewing_needs_the_owner_and_a_budget(lp: limpet.Limpet) -> None:
    """Others are refused, and who is not named; and everybody once the budget is used up."""
    how: dict[str, Any] = {
        "timeouts": limpet.Timeouts(idle=HOUR),
        "budget": limpet.Budget(tokens=9),
    }
    s = await lp.create("support", "ada", actor="user:ada", **how)
    for other in ("user:bob", "bob", "ada", "viewer:bob", "user:ada2", "User:ada", "agents:x"):
        with pytest.raises(limpet.errors.GuardFailed, match=f"{other} is not its owner"):
            await s.lifecycle.renew(idle=HOUR, actor=other)
    with pytest.raises(limpet.errors.GuardFailed, match="nobody is named"):
        await lp.session(s.key).lifecycle.renew(idle=HOUR)
    await s.lifecycle.renew(idle=HOUR)
    await s.lifecycle.renew(idle=HOUR, actor="agent:main")
    assert s.lifecycle.timeouts is not None
    assert s.lifecycle.timeouts.idle == 3 * HOUR
    usage = {"usage": {"input": 5, "output": 4}}
    await s.append("agent.message", {"text": "hi", **usage}, actor="agent:main")
    version = s.version
    with pytest.raises(limpet.errors.GuardFailed, match="budget"):
        await s.lifecycle.renew(idle=HOUR)
    assert (await s.refresh()).version == version


async def test_durations_are_those_of_the_clock(timed: limpet.Limpet, clock: FakeClock) -> None:
    """Seconds in each phase add up to the whole life, and stop at its end."""
    s = await timed.create("support", "ada", phase="init", actor="user:ada")
    clock.advance(HOUR)
    await s.activate()
    clock.advance(2 * HOUR)
    await s.suspend()
    clock.advance(4 * HOUR)
    await s.resume()
    clock.advance(HOUR)
    spent = s.lifecycle.durations
    assert (spent.init, spent.active, spent.suspended) == (3600, 3 * 3600, 4 * 3600)
    assert spent.total == 8 * 3600
    assert spent.active_ratio == 3 / 8
    await s.complete()
    clock.advance(DAY)
    assert s.lifecycle.durations == spent


async def test_frequent_suspensions_are_pointed_out(
    timed: limpet.Limpet, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """More suspensions a day than the policy holds to be healthy are a warning and a metric."""
    s = await timed.create("support", "ada", actor="user:ada")
    for _ in range(3):
        clock.advance(HOUR)
        await s.suspend()
        await s.resume()
    assert not s.lifecycle.suspended_often
    heard: list[limpet.Metric] = []
    timed.maintenance.on_metric(heard.append)
    caplog.set_level(logging.WARNING, "limpet")
    timed.policies.lifecycle("support", suspensions_per_day=10)
    assert s.lifecycle.suspended_often
    await s.suspend()
    (metric,) = [each for each in heard if each.name == "session.suspended_often"]
    assert (metric.values["session"], metric.values["suspensions"]) == (s.key, 4)
    assert "suspended often: session=" in caplog.text


async def test_a_whole_life_by_time_alone(timed: limpet.Limpet, clock: FakeClock) -> None:
    """Idle, grace and expiry lead a forgotten session to its deletion, and each is measured."""
    heard: list[str] = []
    timed.maintenance.on_metric(lambda metric: heard.append(metric.name))
    limits = limpet.Timeouts(idle=HOUR, grace=DAY, expiry=30 * DAY)
    s = await timed.create("support", "ada", timeouts=limits, actor="user:ada")
    clock.advance(2 * HOUR)
    assert (await timed.work.sweep()).suspended == 1
    clock.advance(DAY)
    assert (await timed.work.sweep()).terminated == 1
    for _ in range(31):  # the store's clock follows no jump of more than a day
        assert (await timed.work.sweep()).deleted == 0
        clock.advance(DAY - HOUR)
    clock.advance(DAY)
    assert (await timed.work.sweep()).deleted == 1
    assert await timed.find(s.key) is None
    wanted = ["session.idle_timeout", "session.grace_expired", "session.permanently_deleted"]
    assert [name for name in heard if name in wanted] == wanted


async def test_a_sweep_holds_a_session_for_as_long_as_its_hooks_may_take(
    timed: limpet.Limpet, clock: FakeClock
) -> None:
    """However long that is, another sweep does not begin them a second time meanwhile."""
    ran: list[str] = []

    async def slow(session: limpet.Session) -> None:
        clock.advance(timedelta(minutes=9))
        ran.append(session.id)
        if len(ran) < 5:
            assert (await timed.work.sweep()).left == 1

    timed.policies.lifecycle(
        "support", compensate=[slow, slow], cleanup={"flush": slow}, cleanup_seconds=600
    )
    await timed.create("support", "ada", id="one", timeouts=limpet.Timeouts(absolute=NOW))
    clock.advance(HOUR)
    assert (await timed.work.sweep()).terminated == 1
    assert ran == ["one"] * 3
