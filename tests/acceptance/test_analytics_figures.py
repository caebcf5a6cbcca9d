"""Every number of analytics, computed by hand from the events of a few sessions.

Three sessions of ada and one of bob in one hour. What each column says of them is in the tables
below, with how it is computed where that is not plain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.analytics.anomalies import K, anomalies_in
from limpet.analytics.metrics import (
    HOUR_US,
    MILLION,
    SessionFold,
    analytics_of,
    begin,
    fold_checkpoint,
    fold_event,
    rating_of,
)
from limpet.analytics.rollup import Horizons, hours_since, tallies_of

HOUR = 490_008  # 2025-11-25T00:00Z: a day begins
Row = tuple[float, str, Mapping[str, Any]]


def folded(user: str, id: str, *rows: Row, at: float = 0, **setup: Any) -> SessionFold:
    """The fold of a session that was created at this second of the hour; rows begin with their
    second after it."""
    start_us = HOUR * HOUR_US + round(at * MILLION)
    key = limpet.Key("support", user, id)
    created = {"setup": {"agent": "helper@1"}, "labels": {"task_type": "refund"}, **setup}
    fold = begin(key, limpet.Event(1, f"uid-{id}", "session.created", "a:b", start_us, created))
    for seq, (second, type, data) in enumerate(rows, 2):
        at_us = start_us + round(second * MILLION)
        fold_event(fold, limpet.Event(seq, f"{id}-{seq}", type, "a:b", at_us, dict(data)))
    return fold


def phase(second: float, type: str, before: str, to: str) -> Row:
    return second, f"session.{type}", {"from": before, "to": to, "event": type}


def called(second: float, request: str, tool: str) -> Row:
    return second, "agent.tool_use", {"request_id": request, "name": tool, "input": {}}


def returned(second: float, request: str, *, is_error: bool = False) -> Row:
    return second, "agent.tool_result", {"request_id": request, "output": "", "is_error": is_error}


def intended(second: float, span: str, **more: Any) -> Row:
    return (
        second,
        "effect.intended",
        {"name": "search", "span_id": span, "key": f"k {span}", **more},
    )


def settled(second: float, span: str, cost: int) -> Row:
    return second, "budget.settled", {"reservation": span, "cost": cost}


def said(second: float, tokens: tuple[int, int], cost: float) -> Row:
    usage = {"input": tokens[0], "output": tokens[1]}
    return second, "agent.message", {"text": "Here.", "usage": usage, "cost": cost}


def completed_one() -> SessionFold:
    """One turn of 20 s with four calls: two that returned after 3 and 5 s, the second an error; one
    of another tool after 2 s, and one that never returned. Completed after 60 s."""
    fold = folded(
        "ada",
        "completed",
        (10, "user.message", {"text": "Where is it?"}),
        called(12, "r1", "search"),
        intended(13, "s1", call="r1"),
        returned(16, "r1"),
        settled(16, "s1", 250_000),
        (16, "span.completed", {"kind": "tool", "span_id": "s1", "name": "search"}),
        called(17, "r2", "search"),
        intended(18, "s2", call="r2"),
        returned(23, "r2", is_error=True),
        settled(23, "s2", 500_000),
        called(24, "r3", "pay"),
        returned(26, "r3"),
        called(27, "r4", "search"),
        said(30, (100, 20), 0.25),
        (31, "user.feedback", {"rating": 0.5, "hallucinated": True}),
        (32, "user.feedback", {"hallucinated": False}),
        phase(40, "suspended", "active", "suspended"),
        phase(45, "reactivated", "suspended", "active"),
        phase(60, "completed", "active", "completed"),
    )
    fold_checkpoint(fold, 3_000)
    fold_checkpoint(fold, 1_000)
    fold.satisfaction = 800_000
    return fold


def terminated_one() -> SessionFold:
    """A turn of 10 s, and one of 11 s whose second attempt succeeds; two evaluations, one passed.
    Terminated after 40 s."""
    wake = {"kind": "wake", "name": "wake", "span_id": "w", "turn": "t1"}
    fold = folded(
        "ada",
        "terminated",
        (5, "user.message", {"text": "Where is it?"}),
        said(15, (50, 10), 0.5),
        (16, "session.outcome_evaluated", {"verdict": "pass"}),
        (17, "session.outcome_evaluated", {"verdict": "fail"}),
        (20, "span.started", {**wake, "inputs": []}),
        (21, "session.error", {"code": "turn.failed"}),
        (22, "session.status_idle", {"stop_reason": "rescheduling"}),
        (25, "span.started", {**wake, "inputs": []}),
        (31, "session.status_idle", {"stop_reason": "end_turn"}),
        phase(40, "terminated", "active", "terminated"),
        at=20,
    )
    fold.satisfaction = 400_000
    return fold


def live_one() -> SessionFold:
    """It said hello after 4 s, and goes on."""
    fold = folded("ada", "live", (4, "agent.message", {"text": "Hello."}), at=30)
    fold.satisfaction = 600_000
    return fold


def silent_one() -> SessionFold:
    """Created by bob, without a task type."""
    return folded("bob", "silent", labels={}, at=50)


def fleet() -> list[SessionFold]:
    return [completed_one(), terminated_one(), live_one(), silent_one()]


@pytest.fixture
async def an() -> AsyncIterator[limpet.Analytics]:
    """Analytics of the four sessions."""
    async with limpet.open("memory://") as lp, limpet.Analytics(lp, "memory://") as opened:
        put(opened, fleet())
        yield opened


def put(an: limpet.Analytics, folds: Iterable[SessionFold]) -> None:
    with an.file.commit() as c:
        for fold in folds:
            for key, tally in tallies_of(fold).items():
                c.add(key, tally)


ADA: dict[str, Any] = {
    "sessions": 3,
    "ended": 2,
    "completion_rate": 1 / 2,
    "error_rate": 1 / (4 + 2),  # calls and generations
    "repair_frequency": 1 / 3,
    "repair_success_rate": 1.0,
    "hallucination_rate": 1 / 2,
    "verification_pass_rate": 1 / 2,
    "mean_satisfaction": (0.8 + 0.4 + 0.6) / 3,
    "mean_rating": 0.5,
    "turns": 3,
    "mean_duration": (60 + 40) / 2,
    "p50_duration": 40,
    "p95_duration": 60,
    "p99_duration": 60,
    "mean_time_to_first_response": (30 + 15 + 4) / 3,
    "mean_turn_latency": (20 + 10 + 11) / 3,
    "p50_turn_latency": 11,
    "p95_turn_latency": 20,
    "p99_turn_latency": 20,
    "tool_invocations": 4,
    "tokens_input": 150,
    "tokens_output": 30,
    "cost_usd": 0.25 + 0.5 + 0.25 + 0.5,  # of two calls, and of two messages
    "cost_per_session": 1.5 / 3,
    "cost_per_success": 1.5,
    "suspensions_per_session": 1 / 3,
    "p50_peak_state_size": 3_000,
    "p99_peak_state_size": 3_000,
}
BOB: dict[str, Any] = {
    **dict.fromkeys(ADA),
    **dict.fromkeys(("ended", "turns", "tool_invocations", "tokens_input", "tokens_output"), 0),
    "sessions": 1,
    "error_rate": 0.0,
    "repair_frequency": 0.0,
    "cost_usd": 0.0,
    "cost_per_session": 0.0,
    "suspensions_per_session": 0.0,
}


def same(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The columns of a row are these, and no others; quantiles are right within 1 %."""
    assert row.keys() == wanted.keys()
    for name, value in wanted.items():
        is_quantile = name[0] == "p" and name[1:3].isdigit()
        if isinstance(value, (int, float)):
            value = pytest.approx(value, rel=0.01 if is_quantile else 1e-9)
        assert row[name] == value, name


async def test_every_column_of_a_group(an: limpet.Analytics) -> None:
    """Of users, task types and agent versions; nobody's rate is a mean of rates."""
    table = await an.by("user", app="support")
    same(table["ada"], {"user": "ada", **ADA})
    same(table["bob"], {"user": "bob", **BOB})
    same((await an.by("task_type", app="support"))["refund"], {"task_type": "refund", **ADA})
    both = (await an.by("agent_version", app="support"))["helper@1"]
    assert both["sessions"] == 4
    assert both["cost_per_session"] == pytest.approx(1.5 / 4)
    assert both["repair_frequency"] == pytest.approx(1 / 4)
    assert both["mean_satisfaction"] == pytest.approx(1.8 / 3)


async def test_every_column_of_a_tool(an: limpet.Analytics) -> None:
    """Latencies are of what has returned, counts of all calls, and costs of what was settled."""
    table = await an.by("tool", app="support")
    search = {"tool": "search", "count": 3, "sessions": 1, "errors": 1, "error_rate": 1 / 3}
    search |= {"mean_latency": (3 + 5) / 2, "p50_latency": 3, "p95_latency": 5, "p99_latency": 5}
    same(table["search"], {**search, "total_cost": 0.75})
    pay = {"tool": "pay", "count": 1, "sessions": 1, "errors": 0, "error_rate": 0.0}
    pay |= {"mean_latency": 2, "p50_latency": 2, "p95_latency": 2, "p99_latency": 2}
    same(table["pay"], {**pay, "total_cost": 0.0})


@pytest.mark.parametrize(("grain", "hours"), [("hour", 1), ("day", 24), ("month", 30 * 24)])
async def test_every_column_of_a_window(an: limpet.Analytics, grain: Any, hours: int) -> None:
    """Rates are for an hour: a day divides by 24, and November by its 720 hours."""
    (row,) = (await an.by("window", app="support", window=grain)).rows
    names = {"hour": "2025-11-25T00:00Z", "day": "2025-11-25", "month": "2025-11"}
    same(
        row,
        {
            "window": names[grain],
            "started": 4,
            "ended": 2,
            "completed": 1,
            "completion_rate": 1 / 2,
            "turns": 3,
            "throughput": 3 / hours,
            "peak_concurrency": 2,  # two turns, from second 25 to 30
            "errors": 1,
            "error_rate": 1 / (4 + 2),
            "mean_turn_latency": 41 / 3,
            "p50_turn_latency": 11,
            "p95_turn_latency": 20,
            "p99_turn_latency": 20,
            "tokens_input": 150,
            "tokens_output": 30,
            "cost_usd": 1.5,
            "cost_rate": 1.5 / hours,
        },
    )


def test_every_number_of_a_session() -> None:
    """Of the one that completed, a minute later."""
    fold = completed_one()
    seen = analytics_of(fold, fold.ended_us + 60 * MILLION)
    assert (seen.task_type, seen.agent_version, seen.phase) == ("refund", "helper@1", "completed")
    assert (seen.final, seen.rating, seen.satisfaction, seen.seq) == (True, 0.5, 0.8, 20)
    temporal = {"total": 60, "active": 55, "suspended": 5, "time_to_first_response": 30}
    temporal |= {"mean_turn_latency": 20, "p99_turn_latency": 20, "init": 0, "resumed": 0}
    interaction = {"turns": 1, "user_messages": 1, "agent_messages": 1, "tool_invocations": 4}
    interaction |= {"retrieval_queries": 0, "repair_cycles": 0, "generations": 1}
    resource = {"tokens_input": 100, "tokens_output": 20, "cost_usd": 1.0, "api_calls": 3}
    resource |= {"checkpoints": 2, "peak_state_size": 3_000}
    quality = {"task_completion": 1, "error_rate": 1 / 5, "repair_success_rate": None}
    quality |= {"hallucination_rate": 1 / 2, "verification_pass_rate": None}
    plain = seen.plain
    assert plain["temporal"] == {**temporal, "suspensions": 1}
    for group, wanted in (
        ("interaction", interaction),
        ("resource", resource),
        ("quality", quality),
    ):
        assert {name: plain[group][name] for name in wanted} == wanted
    assert plain["tools"] == {
        "pay": {"count": 1, "errors": 0, "total_latency": 2, "total_cost": 0},
        "search": {"count": 3, "errors": 1, "total_latency": 8, "total_cost": 0.75},
    }


def test_a_prediction_is_counted_in_its_hundredth() -> None:
    """0.80 is in the bin of 80, and the last millionth below it in that of 79."""
    fold = completed_one()
    for satisfaction, hundredth in ((800_000, 80), (799_999, 79), (0, 0), (1_000_000, 100)):
        fold.satisfaction = satisfaction
        (tally, *_) = tallies_of(fold).values()
        assert tally.histogram("satisfaction") == {hundredth: 1}


async def test_hours_and_days_are_kept_as_long_as_was_asked_for() -> None:
    """The horizons are the beginning of the day five hours ago, and of the month 1,000 days ago."""
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://", hours_kept=5, days_kept=1_000) as an,
    ):
        began = lp.now()
        await lp.create("support", "ada", actor="user:ada")
        await an.run(once=True)
        kept = []
        for at in (began, lp.now()):  # midnight may have come
            day = (at - timedelta(hours=5)).replace(hour=0, minute=0, second=0, microsecond=0)
            month = (at - timedelta(days=1_000)).replace(day=1, hour=0, minute=0, second=0)
            kept.append(Horizons(hours_since(day), hours_since(month)))
        assert an.file.horizons in kept


def test_what_a_tool_costs_is_what_was_settled_for_it() -> None:
    """Once, for the span of its effect, whichever way it was used: not what another span cost, nor
    what comes when its span or its wake is over."""
    wake = {"kind": "wake", "name": "wake", "span_id": "w", "turn": "t1", "inputs": []}
    fold = folded(
        "ada",
        "costs",
        called(1, "r1", "search"),
        intended(2, "s1", call="r1"),
        settled(3, "s1", 100_000),
        settled(3, "s1", 1),  # again
        settled(3, "other", 10),
        intended(4, "s2", tool="search"),
        settled(5, "s2", 200_000),
        intended(6, "s3", tool="search"),
        (7, "span.completed", {"kind": "tool", "span_id": "s3"}),
        settled(7, "s3", 100),
        intended(8, "s4", tool="search"),
        (9, "span.started", wake),
        settled(9, "s4", 1_000),
    )
    assert fold.tools["search"].cost == 300_000
    assert fold.cost == 301_111


def test_a_use_by_hand_has_the_time_and_the_outcome_of_its_last_try() -> None:
    """It begins with the try that had an outcome; one that waits for a person has none yet, and one
    that nobody settles is counted without."""
    key = {"key": "k"}
    fold = folded(
        "ada",
        "by hand",
        intended(1, "s1", tool="search", **key),
        (4, "effect.unknown", {"name": "search", "error": "lost", **key}),
        intended(10, "s2", tool="search", **key),
        (11, "effect.failed", {"name": "search", "error": "", **key}),
        intended(20, "s3", tool="search", **key),
        (22, "effect.succeeded", {"name": "search", "result": 1, **key}),
        intended(30, "s4", tool="search", **key),
        (33, "effect.failed", {"name": "search", "error": "503", **key}),
        intended(40, "s5", tool="search", **key),
        (50, "session.status_idle", {"stop_reason": "end_turn"}),
        (60, "effect.succeeded", {"name": "search", "result": 1, **key}),
        intended(70, "s6"),
        (71, "effect.succeeded", {"name": "search", "result": 1, "key": "k s6"}),
    )
    search = fold.tools["search"]
    assert (search.count, search.errors, search.latency_us) == (3, 1, (2 + 3) * MILLION)
    assert (fold.tool_invocations, fold.errors, fold.effects) == (3, 1, 6)


@pytest.mark.parametrize(
    ("said", "rating"),
    [
        ({"rating": 0.25, "thumb": "up", "completed": True}, 0.25),
        ({"thumb": "up", "completed": False}, 1.0),
        ({"thumb": "down", "completed": True}, 0.0),
        ({"completed": True}, 1.0),
        ({"completed": False}, 0.0),
        ({"completed": "yes"}, None),
        ({"rating": 4}, None),
        ({"rating": True}, None),
        ({"note": "thanks"}, None),
    ],
)
def test_feedback_is_a_rating_or_a_thumb_or_completed(said: Any, rating: float | None) -> None:
    """In this order, and on the session."""
    assert rating_of(said) == rating
    fold = folded("ada", "rated", (1, "user.feedback", said))
    assert analytics_of(fold, fold.updated_us).rating == rating


async def test_completed_alone_is_feedback_to_learn_from() -> None:
    """Sixty users who only said whether their task was done are sixty rated sessions."""
    async with limpet.open("memory://") as lp, limpet.Analytics(lp, "memory://") as an:
        for number in range(60):
            s = await lp.create("support", f"u{number}", actor="user:ada")
            await s.append("user.feedback", {"completed": number % 3 > 0}, actor="user:ada")
        await an.run(once=True)
        model = await an.model()
        assert model is not None
        assert model.sessions == 60
        rows = (await an.by("user", app="support", limit=99)).column("mean_rating")
        assert sorted(rows) == [0.0] * 20 + [1.0] * 40


def with_errors(errors: int) -> list[SessionFold]:
    """200 sessions of 1,000 calls that failed 400 or 600 times in turn, and one that failed so
    often."""
    folds = []
    for number, failed in enumerate([400, 600] * 100 + [errors]):
        fold = SessionFold("app", "user", f"s{number}", f"uid{number}")
        fold.tool_invocations, fold.errors = 1_000, failed
        folds.append(fold)
    return folds


def test_three_deviations_are_an_alert() -> None:
    """Of rates of 0.4 and 0.6 the mean is 0.5 and the standard deviation 0.1 √(200 / 199), which is
    0.10025: three of them end at 0.80075."""
    assert K == 3
    assert len(anomalies_in(with_errors(800), metrics=("error_rate",))) == 0
    (alert,) = anomalies_in(with_errors(801), metrics=("error_rate",))
    assert alert.deviations == pytest.approx(0.301 / (0.1 * (200 / 199) ** 0.5))
    assert (alert.value, alert.expected) == (pytest.approx(0.801), pytest.approx(0.5))
    assert len(anomalies_in(with_errors(200), metrics=("error_rate",))) == 0
    assert len(anomalies_in(with_errors(199), metrics=("error_rate",))) == 1
