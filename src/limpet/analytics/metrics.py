"""The metrics of one session, folded from its events: docs/analytics.md has every formula.

`SessionFold` is the running state: small, encodable, and total: no event can make it fail, since
the data of user and agent events is anybody's. `SessionAnalytics` is what people read. The fold
keeps integers only (microseconds, millionths, counts), so that what a session adds to an aggregate
can be taken out again exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec

from limpet.analytics.histogram import Histogram, add, merge, quantile
from limpet.model import Event, Key, is_input, to_time
from limpet.model.facts import creation, labels, outcomes, phases
from limpet.model.facts.running import budgets, requests, runs
from limpet.model.facts.scores import FEEDBACK, INTERVENTION, SCORED
from limpet.runtime.turn_log import identity

MILLION: Final = 1_000_000
HOUR_US: Final = 3_600 * MILLION
TASK_TYPE: Final = "task_type"  # the label
BEGINNINGS: Final = (creation.CREATED, creation.FORKED)
# Inputs that ask for no answer.
_NOT_REQUESTS: Final = frozenset((FEEDBACK, outcomes.DEFINED, runs.INTERRUPT, *requests.ANSWERS))
_RUNTIME_QUESTIONS: Final = frozenset(("unknown_effect", "effect", "mismatch"))
# Judgements about a session: they do not make it newer than others.
_OURS: Final = frozenset((SCORED, INTERVENTION))
_GOES_ON: Final = frozenset(("requires_action", "rescheduling", "retries_exhausted"))
_WAITING_MAX: Final = 1_000  # of requests that are remembered until a turn answers them
_OPEN_MAX: Final = 1_000  # calls without a result: then the oldest is given up
_REQUESTS_MAX: Final = 10_000  # calls whose ids are remembered, so that each counts once
_MARK_BYTES: Final = 6  # of the hash of a request id
_BUSY_SECONDS_MAX: Final = 3_600  # that one wake counts as running: its worker may have died
# Anybody may write what they like, and sums have 64 bits: a number beyond is not counted, a time
# counts up to nine years.
_AMOUNT_MAX: Final = 2**40  # tokens, or millionths of a cost, of one event
_SPAN_US_MAX: Final = 2**48
_NOTHING: Final[Mapping[str, Any]] = {}
_WAKE_KIND: Final = "wake"
_PASS, _OTHER = 1, 2


class ToolTally(msgspec.Struct, array_like=True):
    """The calls of one tool in one session, in integers."""

    count: int = 0
    errors: int = 0
    latency_us: int = 0
    cost: int = 0
    latencies: Histogram = {}


class HourTally(msgspec.Struct, array_like=True):
    """A session's activity within one hour, which belongs to that window."""

    # By second of the hour: 1 where a worker began to run it, -1 behind where it stopped.
    busy: Histogram = {}
    turns: int = 0
    latency_us: int = 0
    tokens_input: int = 0
    tokens_output: int = 0
    cost: int = 0
    errors: int = 0
    attempts: int = 0  # tool invocations and generations
    latencies: Histogram = {}

    def copied(self) -> HourTally:
        """Return it as it is now."""
        both = {"busy": dict(self.busy), "latencies": dict(self.latencies)}
        return msgspec.structs.replace(self, **both)


class SessionFold(msgspec.Struct, array_like=True):
    """The state of the fold. What is stored is exactly this, in this order."""

    app: str
    user: str
    id: str
    uid: str
    seq: int = 0
    link: bytes = b""  # the first bytes of the last event's link: another log under these seqs
    created_us: int = 0
    updated_us: int = 0
    phase: str = phases.ACTIVE
    since_us: int = 0
    init_us: int = 0
    active_us: int = 0
    suspended_us: int = 0
    resumed_us: int = 0
    suspensions: int = 0
    ended_us: int = 0
    completed: bool = False
    task_type: str = ""
    agent: str = ""
    version: str = ""
    responded_us: int = 0
    turns: int = 0
    latency_us: int = 0
    latency_max_us: int = 0
    user_messages: int = 0
    agent_messages: int = 0
    generations: int = 0
    tool_invocations: int = 0
    retrieval_queries: int = 0
    repairs: int = 0
    repairs_ok: int = 0
    errors: int = 0
    tokens_input: int = 0
    tokens_output: int = 0
    cost: int = 0
    effects: int = 0
    checkpoints: int = 0
    peak_state: int = 0
    has_outcome: bool = False
    verdict: int = 0
    evaluations: int = 0
    passes: int = 0
    reports: int = 0  # feedback that says whether something was made up
    hallucinated: int = 0
    rating: int = -1  # of the last feedback, in millionths; -1: none
    rated_us: int = 0
    satisfaction: int = -1  # as the model predicted it, in millionths; -1: no model yet
    model: int = 0  # its version
    intervened: bool = False
    tools: dict[str, ToolTally] = {}
    hours: dict[int, HourTally] = {}
    scores: dict[str, list[int]] = {}  # by name: how many, and their sum in millionths
    asked_seq: int = 0  # of the last request: where a replay begins
    # The turn under way; empty once it is over.
    waiting: list[tuple[int, int]] = []  # requests that no turn has answered: seq and time
    turn: str = ""
    request_us: int = 0
    wake_us: int = 0
    failed: bool = False
    repairing: bool = False
    spans: list[str] = []  # of models that run
    calls: dict[str, tuple[str, int]] = {}  # tool calls without a result: name and start
    charges: dict[str, str] = {}  # tool by span, until its cost is settled
    requests: bytes = b""  # hashes of the ids of all calls, one behind the other
    seen_us: int = 0  # of its last event that is not ours
    # The hours that have changed since `rollup.marked`, as they were (None: there was none). A
    # session may have thousands of hours, and a batch changes one or two. Never stored.
    was: dict[int, HourTally | None] | None = None
    compute_us: int = 0  # for which workers held it

    @property
    def key(self) -> Key:
        return Key(self.app, self.user, self.id)

    @property
    def agent_version(self) -> str:
        """The agent of its setup, else the version of the worker that ran it last."""
        return self.agent or self.version

    @property
    def attempts(self) -> int:
        return self.tool_invocations + self.generations

    @property
    def api_calls(self) -> int:
        return self.generations + self.effects

    @property
    def task_completed(self) -> bool:
        """Ended by complete and, with an outcome, its last verdict is a pass."""
        return self.completed and (not self.has_outcome or self.verdict == _PASS)

    @property
    def completed_normally(self) -> bool:
        return self.completed or not self.ended_us

    @property
    def latencies(self) -> Histogram:
        """The latencies of its turns."""
        whole: Histogram = {}
        for hour in self.hours.values():
            merge(whole, hour.latencies)
        return whole

    def hour(self, at_us: int) -> HourTally:
        """The tally of the hour that this time is in, to be changed."""
        index = at_us // HOUR_US
        tally = self.hours.get(index)
        if self.was is not None and index not in self.was:
            self.was[index] = None if tally is None else tally.copied()
        if tally is None:
            tally = self.hours[index] = HourTally()
        return tally

    def tool(self, name: str) -> ToolTally:
        tally = self.tools.get(name)
        if tally is None:
            tally = self.tools[name] = ToolTally()
        return tally


# --- the fold -------------------------------------------------------------------------------------


def begins(event: Event) -> bool:
    """True if a session begins with this event, or with the fork that it is."""
    return event.type in BEGINNINGS


def is_stub(event: Event) -> bool:
    """True if the session is only the sign of one in the archive: its own log was folded before."""
    return event.type == creation.CREATED and bool(event.data) and "archived" in event.data


def begin(key: Key, event: Event) -> SessionFold:
    """Return the fold of a session that begins with this event."""
    data: Mapping[str, Any] = event.data or _NOTHING
    fold = SessionFold(key.app, key.user, key.id, event.id)
    fold.created_us = fold.since_us = event.at_us
    if data.get("phase") == phases.INIT:
        fold.phase = phases.INIT
    setup = data.get("setup")
    agent = setup.get("agent") if isinstance(setup, Mapping) else None
    if isinstance(agent, str):
        fold.agent = agent
    _take_labels(fold, data.get("labels"))
    _advance(fold, event)
    return fold


def fold_event(fold: SessionFold, event: Event) -> None:
    """Fold one more event. Its seq follows the last one. Raises nothing, whatever it holds."""
    _advance(fold, event)
    data = event.data
    if data is None:  # damaged, or removed
        return
    handler = _FOLDS.get(event.type)
    if handler is not None:
        handler(fold, event, data)
    elif event.processed is not None or is_input(event.type):
        _wait(fold, event)


def fold_checkpoint(fold: SessionFold, size: Any) -> None:
    """One more checkpoint was made, of a state of this size."""
    fold.checkpoints += 1
    if type(size) is int and size > fold.peak_state:
        fold.peak_state = size


def _advance(fold: SessionFold, event: Event) -> None:
    fold.seq, fold.updated_us, fold.link = event.seq, event.at_us, event.link[:8]
    if event.type not in _OURS:
        fold.seen_us = event.at_us


def _wait(fold: SessionFold, event: Event) -> None:
    if event.type not in _NOT_REQUESTS:
        fold.asked_seq = event.seq
        if len(fold.waiting) < _WAITING_MAX:
            fold.waiting.append((event.seq, event.at_us))


def _take_labels(fold: SessionFold, given: Any) -> None:
    if isinstance(given, Mapping) and TASK_TYPE in given:
        fold.task_type = str(given[TASK_TYPE] or "")


def _labeled(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    _take_labels(fold, data.get("labels"))


def _transition(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    """Each phase has its clock, as in s.lifecycle.durations; they stop at the end."""
    before, to = data.get("from"), data.get("to")
    spent = spent_us(fold.since_us, event.at_us)
    if before == phases.ACTIVE:
        fold.active_us += spent
    elif before == phases.SUSPENDED:
        fold.suspended_us += spent
    elif before == phases.INIT:
        fold.init_us += spent
    elif before == phases.RESUMED:
        fold.resumed_us += spent
    fold.since_us, fold.phase = event.at_us, str(to)
    if to == phases.SUSPENDED:
        fold.suspensions += 1
    if to in phases.TERMINAL and not fold.ended_us:
        fold.ended_us, fold.completed = event.at_us, to == phases.COMPLETED
        _close_wake(fold, event.at_us)


def _user_message(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.user_messages += 1
    _wait(fold, event)


def _agent_message(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.agent_messages += 1
    usage, at_us = data.get("usage"), event.at_us
    cost: Any = data.get("cost")
    if not fold.responded_us and (data.get("content") or _has_text(data.get("text"))):
        fold.responded_us = at_us
    if usage or cost:
        hour = fold.hour(at_us)
        if isinstance(usage, Mapping):
            taken, given = _count(usage.get("input")), _count(usage.get("output"))
            fold.tokens_input += taken
            fold.tokens_output += given
            hour.tokens_input += taken
            hour.tokens_output += given
        if type(cost) in (int, float) and 0 <= cost < _AMOUNT_MAX / MILLION:
            spent = round(cost * MILLION)
            fold.cost += spent
            hour.cost += spent
        is_of_span = bool(fold.spans) or ("call" in data and event.wake_id is not None)
        if usage and not is_of_span:
            fold.generations += 1
            hour.attempts += 1
    only_counts = bool(usage) and data.get("text") == "" and not data.get("content")
    if event.wake_id is None and fold.waiting and not only_counts:
        _end_turn(fold, fold.waiting[0][1], at_us)
        fold.waiting = []


def _tool_use(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    id, name = data.get("request_id"), data.get("name")
    if data.get("awaits") in _RUNTIME_QUESTIONS or type(id) is not str or type(name) is not str:
        return
    if id in fold.calls:  # asked about again: one invocation
        return
    if "awaits" in data and any([identity(call, "client") == id for call in fold.calls]):
        return  # a person allowed the call, and now its client is asked to make it
    if _remember(fold, id):
        _use_began(fold, id, name, event.at_us)


def _use_began(fold: SessionFold, id: str, name: str, at_us: int) -> None:
    if len(fold.calls) >= _OPEN_MAX:
        del fold.calls[next(iter(fold.calls))]
    fold.calls[id] = (name, at_us)
    fold.tool_invocations += 1
    fold.tool(name).count += 1
    fold.hour(at_us).attempts += 1


def _remember(fold: SessionFold, id: str) -> bool:
    """Note the id of a call. False if there was a call with this id before."""
    mark = blake2b(id.encode("utf-8", "surrogatepass"), digest_size=_MARK_BYTES).digest()
    at = fold.requests.find(mark)
    while at > 0 and at % _MARK_BYTES:  # it lies across two of them
        at = fold.requests.find(mark, at + 1)
    if at < 0 and len(fold.requests) < _REQUESTS_MAX * _MARK_BYTES:
        fold.requests += mark
    return at < 0


def _tool_result(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    _use_ended(fold, data.get("request_id"), event.at_us, is_error=data.get("is_error") is True)


def _use_ended(fold: SessionFold, id: Any, at_us: int, *, is_error: bool) -> None:
    call = fold.calls.pop(id, None) if type(id) is str else None
    if call is None:
        return
    name, start_us = call
    tool, took_us = fold.tool(name), spent_us(start_us, at_us)
    tool.latency_us += took_us
    add(tool.latencies, took_us)
    if is_error:
        tool.errors += 1
        fold.errors += 1
        fold.hour(at_us).errors += 1


def _intended(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    """An effect is performed: of a call, its latency begins now, not when the model asked. Without
    a call it may be a use of a tool by itself, and another try of one that has no outcome."""
    fold.effects += 1
    id, tool, span = data.get("call"), data.get("tool"), data.get("span_id")
    if id is None and isinstance(tool, str):
        id = _use_of(data)
        if id not in fold.calls:
            _use_began(fold, id, tool, event.at_us)
    _call_began(fold, id, event.at_us)
    call = fold.calls.get(id) if isinstance(id, str) else None
    if call is not None and isinstance(span, str):
        fold.charges[span] = call[0]


def _use_of(data: Mapping[str, Any]) -> str:
    """The id of a use without a call, among those of calls."""
    return f"effect {data.get('key')}"


def _succeeded(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    if "call" not in data:
        _use_ended(fold, _use_of(data), event.at_us, is_error=False)


def _effect_failed(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    """Without an error it waits for a person, and is performed then."""
    if "call" not in data and data.get("error") != "":
        _use_ended(fold, _use_of(data), event.at_us, is_error=True)


def _step(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    started_us = data.get("started_us")
    _call_began(fold, data.get("call"), started_us if type(started_us) is int else event.at_us)


def _call_began(fold: SessionFold, id: Any, at_us: int) -> None:
    if isinstance(id, str) and (call := fold.calls.get(id)) is not None:
        fold.calls[id] = (call[0], at_us)


def _settled(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    cost, span = _count(data.get("cost")), data.get("reservation")
    tool = fold.charges.pop(span, None) if isinstance(span, str) else None
    if cost:
        fold.cost += cost
        fold.hour(event.at_us).cost += cost
        if tool is not None:
            fold.tool(tool).cost += cost


def _span_started(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    kind = data.get("kind")
    if kind == "model":
        fold.generations += 1
        fold.hour(event.at_us).attempts += 1
        fold.spans.append(str(data.get("span_id")))
    elif kind == "retrieval":
        fold.retrieval_queries += 1
    elif kind == _WAKE_KIND and data.get("name") == _WAKE_KIND:
        _wake_started(fold, event, data)


def _wake_started(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    _close_wake(fold, event.at_us)  # of a worker that died
    fold.wake_us, fold.spans, fold.charges = event.at_us, [], {}
    if isinstance(version := data.get("version"), str):
        fold.version = version
    if fold.failed:
        fold.repairs += 1
        fold.failed, fold.repairing = False, True
    inputs = data.get("inputs")
    taken: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else ()
    if data.get("turn") != fold.turn:
        fold.turn = str(data.get("turn"))
        asked = [at_us for seq, at_us in fold.waiting if seq in taken]
        claimed = data.get("claimed_us")
        began_us = claimed if type(claimed) is int else event.at_us
        fold.request_us = min(asked) if asked else began_us
    fold.waiting = [each for each in fold.waiting if each[0] not in taken]


def _span_completed(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    kind, span = data.get("kind"), data.get("span_id")
    if kind == "model":
        if span in fold.spans:
            fold.spans.remove(span)
        elif "took_us" in data:  # recorded with its end
            fold.generations += 1
            fold.hour(event.at_us).attempts += 1
        if data.get("result") == "error":
            fold.errors += 1
            fold.hour(event.at_us).errors += 1
    elif kind == _WAKE_KIND:
        fold.compute_us += _count(data.get(budgets.COMPUTE))
        _close_wake(fold, event.at_us)
    elif kind == "tool":
        fold.charges.pop(str(span), None)


def _idle(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    """A wake stopped. The turn is over unless it waits, is tried again, or lacks budget."""
    _close_wake(fold, event.at_us)
    reason = data.get("stop_reason")
    if reason in _GOES_ON or data.get("needs") is not None:
        return
    if fold.turn:
        _end_turn(fold, fold.request_us, event.at_us)
    if fold.repairing and reason == "end_turn":
        fold.repairs_ok += 1
    fold.turn, fold.request_us = "", 0
    fold.failed = fold.repairing = False
    fold.calls, fold.spans, fold.charges = {}, [], {}


def _end_turn(fold: SessionFold, request_us: int, at_us: int) -> None:
    took_us = spent_us(request_us, at_us)
    fold.turns += 1
    fold.latency_us += took_us
    if took_us > fold.latency_max_us:
        fold.latency_max_us = took_us
    hour = fold.hour(at_us)
    hour.turns += 1
    hour.latency_us += took_us
    add(hour.latencies, took_us)
    if not fold.wake_us and not fold.turn:  # without a runtime: it was busy while it was asked
        _busy(fold, request_us, at_us)


def _close_wake(fold: SessionFold, at_us: int) -> None:
    if fold.wake_us:
        _busy(fold, fold.wake_us, at_us)
        fold.wake_us = 0


def _busy(fold: SessionFold, from_us: int, to_us: int) -> None:
    """Count the seconds between two times as busy, in each hour of them."""
    first = from_us // MILLION
    end = min(to_us // MILLION, first + _BUSY_SECONDS_MAX - 1) + 1
    while first < end:
        hour = fold.hour(first * MILLION)
        stop = min(end, (first // 3_600 + 1) * 3_600)
        merge(hour.busy, {first % 3_600: 1})
        merge(hour.busy, {first % 3_600 + stop - first: -1})
        first = stop


def _failed(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.failed, fold.repairing = True, False


def _outcome_defined(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.has_outcome, fold.verdict = True, 0


def _evaluated(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.evaluations += 1
    passed = data.get("verdict") == "pass"
    fold.passes += passed
    fold.verdict = _PASS if passed else _OTHER


def _feedback(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    if type(said := data.get("hallucinated")) is bool:
        fold.reports += 1
        fold.hallucinated += said
    rating = rating_of(data)
    if rating is not None:
        fold.rating, fold.rated_us = round(rating * MILLION), event.at_us


def rating_of(data: Mapping[str, Any]) -> float | None:
    """Return what feedback says, from 0 to 1: its rating, else its thumb, else `completed`."""
    rating: Any = data.get("rating")
    thumb, completed = data.get("thumb"), data.get("completed")
    if type(rating) in (int, float) and 0 <= rating <= 1:
        return float(rating)
    if thumb in ("up", "down"):
        return 1.0 if thumb == "up" else 0.0
    return float(completed) if isinstance(completed, bool) else None


def _scored(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    name = data.get("name")
    value: Any = data.get("value")
    if isinstance(name, str) and type(value) in (int, float) and 0 <= value <= 1:
        tally = fold.scores.setdefault(name, [0, 0])
        tally[0] += 1
        tally[1] += round(value * MILLION)


def _intervened(fold: SessionFold, event: Event, data: Mapping[str, Any]) -> None:
    fold.intervened = True


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < _AMOUNT_MAX else 0


def spent_us(from_us: int, to_us: int) -> int:
    """Return the time between two events as it counts: logs from elsewhere may hold any times."""
    return max(0, min(to_us - from_us, _SPAN_US_MAX))


def _has_text(text: Any) -> bool:
    return isinstance(text, str) and not text.isspace() and text != ""


_FOLDS: Final[Mapping[str, Callable[[SessionFold, Event, Mapping[str, Any]], None]]] = {
    labels.LABELED: _labeled,
    "user.message": _user_message,
    "agent.message": _agent_message,
    requests.TOOL_USE: _tool_use,
    requests.CUSTOM_TOOL_USE: _tool_use,
    requests.TOOL_RESULT: _tool_result,
    requests.CUSTOM_RESULT: _tool_result,
    runs.INTENDED: _intended,
    runs.SUCCEEDED: _succeeded,
    runs.FAILED: _effect_failed,
    runs.STEP: _step,
    budgets.SETTLED: _settled,
    runs.SPAN_STARTED: _span_started,
    runs.SPAN_COMPLETED: _span_completed,
    runs.STATUS_IDLE: _idle,
    runs.ERROR: _failed,
    outcomes.DEFINED: _outcome_defined,
    outcomes.EVALUATED: _evaluated,
    FEEDBACK: _feedback,
    SCORED: _scored,
    INTERVENTION: _intervened,
    **dict.fromkeys(phases.TRANSITIONS, _transition),
}


# --- what people read -----------------------------------------------------------------------------


class TemporalMetrics(msgspec.Struct, frozen=True):
    """Times in seconds. The clocks of the phases stop at the end of the session."""

    total: float
    active: float
    suspended: float
    time_to_first_response: float | None
    mean_turn_latency: float | None
    p99_turn_latency: float | None
    init: float = 0.0
    resumed: float = 0.0
    suspensions: int = 0


class InteractionMetrics(msgspec.Struct, frozen=True):
    """Counts of what was said and done."""

    turns: int
    user_messages: int
    agent_messages: int
    tool_invocations: int
    retrieval_queries: int
    repair_cycles: int
    generations: int = 0


class ResourceMetrics(msgspec.Struct, frozen=True):
    """Resources used. The size of the state is in bytes; the seconds are those for which workers
    held the session."""

    tokens_input: int
    tokens_output: int
    cost_usd: float
    api_calls: int
    checkpoints: int
    peak_state_size: int
    compute_seconds: float = 0.0


class QualityMetrics(msgspec.Struct, frozen=True):
    """Rates from 0 to 1; None if there was nothing to judge."""

    task_completion: float
    error_rate: float
    repair_success_rate: float | None
    hallucination_rate: float | None
    verification_pass_rate: float | None


class ToolUsage(msgspec.Struct, frozen=True):
    """The calls of one tool. Latency is the total in seconds."""

    count: int
    errors: int
    total_latency: float
    total_cost: float


class ScoreTally(msgspec.Struct, frozen=True):
    """The scores of one name: how many, and their mean."""

    count: int
    mean: float


class SessionAnalytics(msgspec.Struct, frozen=True):
    """The metrics of one session at `computed_at`; `final` once it has ended."""

    key: Key
    uid: str
    task_type: str
    agent_version: str
    phase: str
    final: bool
    temporal: TemporalMetrics
    interaction: InteractionMetrics
    resource: ResourceMetrics
    quality: QualityMetrics
    tools: Mapping[str, ToolUsage]
    scores: Mapping[str, ScoreTally]
    rating: float | None  # the last feedback
    satisfaction: float | None  # as predicted; None before the first model was trained
    created_at: datetime
    computed_at: datetime
    seq: int  # of the last event in it

    @property
    def owner(self) -> str:
        """The user whose session it is."""
        return self.key.user

    @property
    def plain(self) -> dict[str, Any]:
        """Return its JSON form."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def features_of(fold: SessionFold, now_us: int) -> tuple[float, ...]:
    """Return the eight features of the satisfaction model, in the order of FEATURES.

    A session without an answer has waited since it was created; one without an evaluation has
    passed all of them.
    """
    until_us = fold.responded_us or fold.ended_us or now_us
    rate = fold.passes / fold.evaluations if fold.evaluations else 1.0
    return (
        math.log1p(max(0, until_us - fold.created_us) / MILLION),
        math.log1p(fold.turns),
        float(fold.task_completed),
        1 - fold.errors / max(fold.attempts, 1),
        rate,
        -math.log1p(fold.repairs),
        float(fold.completed_normally),
        -math.log1p(fold.cost / MILLION),
    )


def analytics_of(fold: SessionFold, now_us: int) -> SessionAnalytics:
    """Return the metrics as they are at this time."""
    end_us = fold.ended_us or max(now_us, fold.updated_us)
    clocks = {name: getattr(fold, f"{name}_us") for name in phases.COUNTED}
    if fold.phase in phases.COUNTED and not fold.ended_us:
        clocks[fold.phase] += max(0, end_us - fold.since_us)
    responded_us = fold.responded_us - fold.created_us if fold.responded_us else None
    p99_us: float | None = fold.latency_max_us if fold.turns else None
    if fold.turns >= 100:  # below, the nearest rank of p99 is the last
        p99_us = quantile(fold.latencies, 0.99)
    return SessionAnalytics(
        key=fold.key,
        uid=fold.uid,
        task_type=fold.task_type,
        agent_version=fold.agent_version,
        phase=fold.phase,
        final=bool(fold.ended_us),
        temporal=TemporalMetrics(
            total=(end_us - fold.created_us) / MILLION,
            active=clocks[phases.ACTIVE] / MILLION,
            suspended=clocks[phases.SUSPENDED] / MILLION,
            time_to_first_response=None if responded_us is None else responded_us / MILLION,
            mean_turn_latency=fold.latency_us / fold.turns / MILLION if fold.turns else None,
            p99_turn_latency=None if p99_us is None else p99_us / MILLION,
            init=clocks[phases.INIT] / MILLION,
            resumed=clocks[phases.RESUMED] / MILLION,
            suspensions=fold.suspensions,
        ),
        interaction=InteractionMetrics(
            turns=fold.turns,
            user_messages=fold.user_messages,
            agent_messages=fold.agent_messages,
            tool_invocations=fold.tool_invocations,
            retrieval_queries=fold.retrieval_queries,
            repair_cycles=fold.repairs,
            generations=fold.generations,
        ),
        resource=ResourceMetrics(
            tokens_input=fold.tokens_input,
            tokens_output=fold.tokens_output,
            cost_usd=fold.cost / MILLION,
            api_calls=fold.api_calls,
            checkpoints=fold.checkpoints,
            peak_state_size=fold.peak_state,
            compute_seconds=fold.compute_us / MILLION,
        ),
        quality=QualityMetrics(
            task_completion=float(fold.task_completed),
            error_rate=fold.errors / max(fold.attempts, 1),
            repair_success_rate=_rate(fold.repairs_ok, fold.repairs),
            hallucination_rate=_rate(fold.hallucinated, fold.reports),
            verification_pass_rate=_rate(fold.passes, fold.evaluations),
        ),
        tools={
            name: ToolUsage(t.count, t.errors, t.latency_us / MILLION, t.cost / MILLION)
            for name, t in sorted(fold.tools.items())
        },
        scores={
            name: ScoreTally(count, total / MILLION / count)
            for name, (count, total) in sorted(fold.scores.items())
        },
        rating=None if fold.rating < 0 else fold.rating / MILLION,
        satisfaction=None if fold.satisfaction < 0 else fold.satisfaction / MILLION,
        created_at=to_time(fold.created_us),
        computed_at=to_time(now_us),
        seq=fold.seq,
    )


def _rate(part: int, of: int) -> float | None:
    return part / of if of else None
