"""Advice: a signal in the aggregates, the response to it, and the evidence.

Each signal has a threshold and a least number of cases, both in `AdvicePolicy`. Nothing is done by
itself: only what a policy turns on is applied, to switches that workers and stores really follow,
and each application is recorded as a document of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.analytics.tables import Cells, group_columns
from limpet.errors import SessionError
from limpet.model import DefaultActor, Key
from limpet.session.documents import Internal
from limpet.session.history.retention import limits_of
from limpet.session.limpet import Limpet, journal_of
from limpet.session.runs.switches import ToolSwitch

Signal: TypeAlias = Literal[
    "high_turn_latency",
    "tool_errors",
    "low_completion",
    "many_repairs",
    "low_satisfaction",
    "large_state",
    "frequent_suspensions",
]
COLLECTION: Final = "advice"
_NAMED: Final = 20  # tools in a record
ACTOR: Final = DefaultActor("system:analytics")
RESPONSES: Final[Mapping[Signal, str]] = {
    "high_turn_latency": "keep retrieved evidence fresh for longer, and warm tools up beforehand",
    "tool_errors": "open the circuit of the tool, and name a fallback for it",
    "low_completion": "decompose tasks of this type better, and give them more retrieval sources",
    "many_repairs": "verify earlier and more strictly, and improve the planning prompt",
    "low_satisfaction": "offer help in these sessions, or escalate them to a person",
    "large_state": "compact more often, and prune the history",
    "frequent_suspensions": "lengthen the idle timeout, and give workers more resources",
}


class AdvicePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of the signals, and which responses run without asking. Every response is off
    by default."""

    # Thresholds: a signal is given beyond them, from `cases` cases on.
    cases: int = 20
    turn_latency_seconds: float = 30.0  # p99
    tool_error_rate: float = 0.2
    completion_rate: float = 0.7
    repairs_per_session: float = 0.5
    satisfaction: float = 0.5
    state_bytes: int = 1_048_576  # p99
    suspensions_per_session: float = 2.0
    # Responses.
    open_circuits: bool = False
    fallbacks: Mapping[str, str] = {}  # tool → the tool that stands in for it
    circuit_seconds: float = 600.0  # after which it closes by itself
    fresh_seconds: float | None = None  # how long evidence is fresh under high latency
    cache_seconds: float | None = None  # how long results of pure tools are used again then
    escalate_priority: int | None = None  # of live sessions whose satisfaction is low
    hot_events: int | None = None  # how many events of each session stay hot under large states
    idle_timeout: timedelta | None = None  # of new sessions, where the app's own is shorter


class SignalEvidence(msgspec.Struct, frozen=True):
    """The number behind a signal."""

    app: str
    dimension: str
    value: str  # the group: a tool, a task type, an agent version, or "" for the app
    metric: str
    measured: float
    threshold: float
    cases: int  # that it was measured on


class Advice(msgspec.Struct, frozen=True):
    """A signal and the response to it. `applied` says what a policy did about it, if anything."""

    signal: Signal
    response: str
    evidence: SignalEvidence
    applied: str | None = None  # what was done

    def __str__(self) -> str:
        e = self.evidence
        of = f" of {e.value}" if e.value else ""
        if e.dimension == "task_type" and not e.value:
            of = " of sessions without a task type"
        return (
            f"{e.metric.replace('_', ' ')}{of} is {e.measured:,.3g} (threshold {e.threshold:,.3g}, "
            f"{e.cases:,} cases): {self.response}"
        )


Totals: TypeAlias = Callable[[str, str], Cells]  # (app, dimension) → groups


def advice_for(app: str, totals: Totals, policy: AdvicePolicy) -> Iterator[Advice]:
    """Yield the advice for an app, from its roll-ups over all time."""
    task_types, tools = totals(app, "task_type"), totals(app, "tool")
    whole = task_types.pooled
    row = {name: column[0] for name, column in group_columns(whole).items()}
    for signal, metric, threshold, cases in (
        ("high_turn_latency", "p99_turn_latency", policy.turn_latency_seconds, row["turns"]),
        ("large_state", "p99_peak_state_size", policy.state_bytes, row["sessions"]),
        (
            "frequent_suspensions",
            "suspensions_per_session",
            policy.suspensions_per_session,
            row["sessions"],
        ),
        ("many_repairs", "repair_frequency", policy.repairs_per_session, row["sessions"]),
    ):
        yield from _above(signal, (app, "app", "", metric), row[metric], threshold, cases, policy)
    predicted = int(whole["predicted"][0])
    satisfaction = row["mean_satisfaction"]
    of = (app, "app", "", "mean_satisfaction")
    yield from _below("low_satisfaction", of, satisfaction, policy.satisfaction, predicted, policy)
    for tool in tools.table("tool").rows:
        of = (app, "tool", tool["tool"], "error_rate")
        rate, count = tool["error_rate"], tool["count"]
        yield from _above("tool_errors", of, rate, policy.tool_error_rate, count, policy)
    for group in task_types.table("task_type").rows:
        of = (app, "task_type", group["task_type"], "completion_rate")
        rate, ended = group["completion_rate"], group["ended"]
        yield from _below("low_completion", of, rate, policy.completion_rate, ended, policy)


def _above(
    signal: Any,
    of: tuple[str, str, str, str],
    measured: float | None,
    threshold: float,
    cases: int,
    policy: AdvicePolicy,
) -> Iterator[Advice]:
    if measured is not None and measured > threshold and cases >= policy.cases:
        yield Advice(signal, RESPONSES[signal], SignalEvidence(*of, measured, threshold, cases))


def _below(
    signal: Any,
    of: tuple[str, str, str, str],
    measured: float | None,
    threshold: float,
    cases: int,
    policy: AdvicePolicy,
) -> Iterator[Advice]:
    if measured is not None and measured < threshold and cases >= policy.cases:
        yield Advice(signal, RESPONSES[signal], SignalEvidence(*of, measured, threshold, cases))


async def apply(
    lp: Limpet,
    advice: Advice,
    policy: AdvicePolicy,
    low: Callable[[str], list[Key]],
    totals: Totals,
) -> Advice:
    """Do what the policy allows about one piece of advice, once, and record it. `low` gives the
    keys of an app's live sessions whose satisfaction is below the threshold."""
    done = await _applied(lp, advice, policy, low, totals)
    if done is None:
        return advice
    applied = msgspec.structs.replace(advice, applied=done)
    documents = Internal(journal_of(lp), COLLECTION, actor=ACTOR)
    await documents.put(_name(advice), msgspec.to_builtins(applied))
    return applied


def _name(advice: Advice) -> str:
    """Return the name of the document that says what was done about it the last time."""
    return f"{advice.evidence.app}/{advice.signal}/{advice.evidence.value}"


async def _applied(
    lp: Limpet,
    advice: Advice,
    policy: AdvicePolicy,
    low: Callable[[str], list[Key]],
    totals: Totals,
) -> str | None:
    """Return what was done; None if the policy allows nothing, or it is done already."""
    app = advice.evidence.app
    match advice.signal:
        case "tool_errors" if policy.open_circuits:
            return await _switch_circuit(lp, advice, policy)
        case "high_turn_latency":
            return await _keep_longer(lp, app, policy, totals(app, "tool").values)
        case "large_state" if policy.hot_events is not None:
            kept = await limits_of(journal_of(lp), app)
            if kept is not None and kept.events is not None and kept.events <= policy.hot_events:
                return None
            await lp.policies.retention(app, events=policy.hot_events, actor=ACTOR)
            report = await lp.maintenance.compact()
            return f"{policy.hot_events:,} events stay hot; {report}"
        case "frequent_suspensions" if policy.idle_timeout is not None:
            return await _lengthen_idle(lp, app, policy.idle_timeout)
        case "low_satisfaction" if policy.escalate_priority is not None:
            return await _escalate(lp, low(app), policy.escalate_priority)
    return None


async def _keep_longer(lp: Limpet, app: str, policy: AdvicePolicy, tools: list[str]) -> str | None:
    """Use what was retrieved, and the results of pure tools, for longer."""
    before, done = await lp.policies.switches(app), []
    if policy.fresh_seconds is not None and before.fresh_seconds < policy.fresh_seconds:
        await lp.policies.fresh_evidence(app, policy.fresh_seconds, actor=ACTOR)
        done.append(f"evidence is fresh for {policy.fresh_seconds:,.0f} s")
    seconds = policy.cache_seconds
    if seconds is not None:
        switches = {tool: before.tools.get(tool, ToolSwitch()) for tool in tools}
        short = {tool: of for tool, of in switches.items() if of.cache_seconds < seconds}
        for tool, switch in short.items():
            longer = msgspec.structs.replace(switch, cache_seconds=seconds)
            await lp.policies.switch_tool(app, tool, longer, actor=ACTOR)
        if short:
            named = ", ".join(sorted(short)[:_NAMED])
            done.append(f"if pure, these tools keep results for {seconds:,.0f} s: {named}")
    return "; ".join(done) or None


async def _switch_circuit(lp: Limpet, advice: Advice, policy: AdvicePolicy) -> str | None:
    """Open the circuit of a tool, or close it when its time is over. A tool whose circuit was open
    is judged by the calls since then: what it did before would keep it open for good."""
    now_us, app, tool = journal_of(lp).now_us(), advice.evidence.app, advice.evidence.value
    before = (await lp.policies.switches(app)).tools.get(tool, ToolSwitch())
    if before.is_open(now_us):
        return None
    if before.open:
        switch = msgspec.structs.replace(before, open=False, until_us=None)
        await lp.policies.switch_tool(app, tool, switch, actor=ACTOR)
        return f"the circuit of {tool} is closed; its next {policy.cases} calls are judged"
    if not await _fails_still(lp, advice, policy):
        return None
    fallback = policy.fallbacks.get(tool, before.fallback)
    until_us = now_us + round(policy.circuit_seconds * 1_000_000)
    switch = msgspec.structs.replace(before, open=True, fallback=fallback, until_us=until_us)
    await lp.policies.switch_tool(app, tool, switch, actor=ACTOR)
    instead = "" if fallback is None else f"; {fallback} stands in for it"
    return f"the circuit of {tool} is open for {policy.circuit_seconds:,.0f} s{instead}"


async def _fails_still(lp: Limpet, advice: Advice, policy: AdvicePolicy) -> bool:
    """True if a tool has failed too often since something was last done about it."""
    documents = Internal(journal_of(lp), COLLECTION)
    document = await documents.find(_name(advice))
    last = None if document is None else documents.decoded(document, Advice)
    if last is None:
        return True
    now, then = advice.evidence, last.evidence
    calls = now.cases - then.cases
    errors = round(now.measured * now.cases) - round(then.measured * then.cases)
    return calls >= policy.cases and errors / calls > policy.tool_error_rate


async def _lengthen_idle(lp: Limpet, app: str, idle: timedelta) -> str | None:
    if (await lp.policies.switches(app)).idle_seconds >= idle.total_seconds():
        return None
    await lp.policies.longer_idle(app, idle, actor=ACTOR)
    return f"new sessions are idle for up to {idle}"


async def _escalate(lp: Limpet, keys: list[Key], priority: int) -> str | None:
    raised = 0
    for key in keys:
        with suppress(SessionError):  # it has just ended, or moved to another node
            session = await lp.find(key)
            if session is not None and session.head.priority < priority:
                await session.lifecycle.set_priority(priority, actor=ACTOR)
                raised += 1
    return f"{raised} sessions have priority {priority}" if raised else None
