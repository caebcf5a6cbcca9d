"""Runs: the turn that is under way, how the last one stopped, and when the next may begin.

The member `run` holds them. A session that no worker ever ran has none and pays nothing. That a
session is running is not a fact: it follows from its lease, so a worker that died leaves nothing
behind that says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from limpet.errors import SessionSuspended
from limpet.model.events import Fact, to_time
from limpet.model.facts import inputs, labels
from limpet.model.facts.running import budgets, children, deaths, requests
from limpet.model.facts.timers import without_revisits
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts, replaced, with_changes
from limpet.model.limits import EFFECT_ARGS_BYTES_MAX, TRACEBACK_BYTES_MAX
from limpet.model.values import EMPTY, FrozenDict, canonical

SPAN_STARTED: Final = "span.started"
SPAN_COMPLETED: Final = "span.completed"
# The types by which a trace asks for everything of a wake: a guard gives it to an auditor too,
# without the bodies.
TRACED: Final = (
    SPAN_STARTED,
    SPAN_COMPLETED,
    "step.*",
    "effect.*",
    "agent.*",
    "session.*",
    "user.*",
    "system.*",
)
STATUS_CHANGED: Final = "session.status_changed"
STATUS_IDLE: Final = inputs.STATUS_IDLE
ERROR: Final = "session.error"
STOPPED: Final = "worker.stopped"  # the code of the error of a run that its worker gave back
MAX_STEPS: Final = "max_steps"  # the `limit` in the note of an agent that stopped there
REQUEUED: Final = "session.requeued"
INTERRUPT: Final = "user.interrupt"
DEAD: Final = "$dead"  # the label of dead letters, by which they are listed

Status: TypeAlias = Literal["idle", "running", "rescheduling", "terminated"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
StopReason: TypeAlias = Literal[
    "end_turn",
    "requires_action",
    "rescheduling",
    "retries_exhausted",
    "budget_reached",
    "interrupted",
    "terminated",
]
SpanKind: TypeAlias = Literal["wake", "tool", "step", "model", "retrieval"]
# The purpose of a wake: a turn of the harness, or only to record the end of what is over.
WakeName: TypeAlias = Literal["wake", "settle", "finish"]
# The reason of a wake. died: the run before ended with its worker; deadline: of a request;
# ended: it is over, and something is left to do; asked: lp.wake, and nothing else made it due.
Why: TypeAlias = Literal[
    "input",
    "timer",
    "child",
    "answer",
    "deadline",
    "interrupt",
    "retry",
    "requeue",
    "died",
    "ended",
    "asked",
]
SpanResult: TypeAlias = Literal["success", "error", "blocked"]


class RunFailure(msgspec.Struct, frozen=True):
    """The failure of a run: the code of the error, its message, and which attempt it was."""

    code: str
    message: str
    attempt: int


_MESSAGE_CHARS_MAX: Final = 1_000
# Members that a run loses when a wake begins, and when its turn is over.
_BEGUN: Final[Changes] = dict.fromkeys(
    ("paused", "deadline_us", "retry_us", "requeued", "needs", "redirect")
)
_OVER: Final[Changes] = dict.fromkeys(("turn", "paused", "deadline_us", "retry_us", "fails"))


def readable(text: str) -> str:
    """Return an error's text as it can be stored: shortened, and without invalid characters."""
    return text[:_MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode()


def stored_error(error: BaseException) -> str:
    """The type and the text of an error as they can be stored. Some errors raise in `__str__`."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return readable(name)
    return readable(f"{name}: {text}" if text else name)


def _cut(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) > TRACEBACK_BYTES_MAX:
        mark = "\n  …\n".encode()
        first = TRACEBACK_BYTES_MAX // 4
        raw = raw[:first] + mark + raw[len(raw) - (TRACEBACK_BYTES_MAX - first - len(mark)) :]
    return raw.decode("utf-8", "ignore")


# --- the events -----------------------------------------------------------------------------------


def wake_started(
    wake_id: str,
    turn: str,
    *,
    attempt: int,
    inputs: Iterable[int],
    timers: Iterable[str],
    worker: str,
    why: Why,
    claimed_us: int,
    fence: int,
    answers: Iterable[int] = (),
    redirect: int | None = None,
    version: str | None = None,
    name: WakeName = "wake",
) -> Fact:
    """A wake began: one run of a harness within a turn, whose inputs the first one fixes.

    It is also the record of its activation: why it was woken, when it was claimed, and by whom. A
    turn that an interrupt began names it as its `redirect`. `version` is that of the worker's code;
    a turn keeps the one that it began with.
    """
    data = {
        "span_id": wake_id,
        "kind": "wake",
        "name": name,
        "turn": turn,
        "attempt": attempt,
        "inputs": list(inputs),
        "timers": list(timers),
        "worker": worker,
        "why": why,
        "claimed_us": claimed_us,
        "fence": fence,
    }
    if seqs := list(answers):
        data["answers"] = seqs
    if redirect is not None:
        data["redirect"] = redirect
    if version is not None:
        data["version"] = version
    return Fact(type=SPAN_STARTED, data=data, wake_id=wake_id, invocation_id=turn)


def wake_completed(
    wake_id: str,
    turn: str,
    result: SpanResult,
    *,
    fence: int,
    error: str | None = None,
    name: WakeName = "wake",
    got_on: bool = False,
    compute_us: int = 0,
) -> Fact:
    """A wake ended, under the lease with this fence; or the next one found it dead. `got_on`: it
    died, and had recorded something that the next one need not do again. `compute_us` is the time
    for which its worker held the session."""
    data: dict[str, Any] = {"span_id": wake_id, "kind": "wake", "name": name, "result": result}
    data["fence"] = fence
    if error is not None:
        data["error"] = readable(error)
    if got_on:
        data["got_on"] = True
    if compute_us > 0:
        data[budgets.COMPUTE] = compute_us
    return Fact(type=SPAN_COMPLETED, data=data, wake_id=wake_id, invocation_id=turn)


def span_started(span_id: str, kind: SpanKind, name: str, *, parent: str) -> Fact:
    """Something within a wake began: a tool, a step, a call of a model."""
    data = {"span_id": span_id, "parent_span_id": parent, "kind": kind, "name": name}
    return Fact(type=SPAN_STARTED, data=data)


def span_completed(
    span_id: str,
    kind: SpanKind,
    name: str,
    result: SpanResult,
    *,
    parent: str,
    error: str | None = None,
    took_us: int | None = None,
) -> Fact:
    """Return the end of a span. `took_us` is for what is recorded in one commit, beginning and
    end."""
    data: dict[str, Any] = {"span_id": span_id, "parent_span_id": parent, "kind": kind}
    data |= {"name": name, "result": result}
    if error is not None:
        data["error"] = readable(error)
    if took_us is not None:
        data["took_us"] = took_us
    return Fact(type=SPAN_COMPLETED, data=data)


def status_changed(before: Status, after: Status, reason: str) -> Fact:
    """The session's status is another one. For who follows: what it is follows from its lease and
    its phase."""
    return Fact(type=STATUS_CHANGED, data={"from": before, "to": after, "reason": reason})


def status_idle(
    stop_reason: StopReason,
    *,
    blocked_on: Iterable[str] = (),
    summary: str | None = None,
    processed: Iterable[int] = (),
    needs: Mapping[str, int] | None = None,
    redirect: int | None = None,
) -> Fact:
    """A wake stopped for this reason. With requires_action, it waits for these requests; if its
    turn is over, these inputs are `processed`. With budget_reached and `needs`, it is not over: it
    goes on when that much is left of the budget. With `redirect`, the interrupt with this seq has
    ended it and begins the next turn: until that is over, the interrupt is not processed."""
    data: dict[str, Any] = {"stop_reason": stop_reason, "blocked_on": list(blocked_on)}
    if seqs := sorted(set(processed)):
        data["processed"] = seqs
    if needs is not None:
        data["needs"] = dict(needs)
    if redirect is not None:
        data["redirect"] = redirect
    if summary is not None:
        data["summary"] = readable(summary)
    return Fact(type=STATUS_IDLE, data=data)


def failed(
    code: str,
    message: str,
    attempt: int,
    *,
    retry_us: int | None = None,
    counts: bool = True,
    effects: Iterable[Iterable[Any]] = (),
    traceback: str | None = None,
    death: deaths.Death | None = None,
) -> Fact:
    """A run failed. With a time, it is tried again then. `death` says that its worker died, and
    whether anything ran beside it.

    `effects` are those whose recorded failure ended the run: the next attempt performs them again.
    Of a long `traceback`, its beginning and its end are kept.
    """
    data: dict[str, Any] = {"code": code, "message": readable(message)}
    data |= {"attempt": attempt, "counts": counts}
    if retry_us is not None:
        data |= {"retry_at": to_time(retry_us).isoformat(), "retry_us": retry_us}
    if named := list(effects):
        data["effects"] = named
    if traceback is not None:
        data["traceback"] = _cut(traceback)
    if death is not None:
        data["death"] = death
    return Fact(type=ERROR, data=data)


def requeued(*, actor: str | None = None) -> Fact:
    """A dead letter is tried again, with all its attempts."""
    return Fact(type=REQUEUED, data={"fails": 0}, actor=actor)


# --- what follows from them -----------------------------------------------------------------------


def run_in(facts: Facts) -> FrozenDict:
    fields: FrozenDict = facts.get("run", EMPTY)
    return fields


def turn_in(facts: Facts) -> FrozenDict | None:
    """The turn that is under way: id, from, inputs, timers, attempt, span, since_us; redirect, if
    an interrupt began it; version, if the worker that began it has one."""
    fields: FrozenDict | None = run_in(facts).get("turn")
    return fields


def failure_in(facts: Facts, texts: Texts = NO_TEXTS) -> RunFailure | None:
    """Return why the last run of the turn under way failed; None if none did."""
    error = run_in(facts).get("error")
    if error is None:
        return None
    said = {**error, **texts.get(error.get("seq", 0), EMPTY)}
    return RunFailure(error["code"], said.get("message", ""), error["attempt"])


def waiting_status(facts: Facts) -> Status:
    """The status of a session that nobody runs, and that has not ended."""
    return "rescheduling" if run_in(facts).get("stop") == "rescheduling" else "idle"


def is_dead(facts: Facts) -> bool:
    """True if it is a dead letter: held until somebody requeues it."""
    return "dead" in run_in(facts)


def is_paused(facts: Facts) -> bool:
    """True if its turn waits for an answer that has not come."""
    return "paused" in run_in(facts)


def is_short(facts: Facts) -> bool:
    """True if its turn waits for more of the budget than is left."""
    needs = run_in(facts).get("needs")
    return needs is not None and not budgets.is_enough(facts, needs)


def is_interrupted(facts: Facts) -> bool:
    """True if an interrupt came that no wake has dealt with."""
    return "interrupt" in run_in(facts)


def is_at_work(facts: Facts) -> bool:
    """True if it has inputs to answer or a turn to end. One that is held as a dead letter has
    neither, nor one that was interrupted: that ended what it had."""
    if is_dead(facts) or is_interrupted(facts):
        return False
    return inputs.pending(facts) > 0 or turn_in(facts) is not None


def redirect_in(facts: Facts) -> int | None:
    """The seq of the interrupt that begins the next turn; None if none does."""
    seq: int | None = run_in(facts).get("redirect")
    return seq


def redirects(data: Mapping[str, Any] | None) -> bool:
    """True if an interrupt begins a turn: it has a note, and is not handed down by a parent."""
    note = None if data is None else data.get("note")
    return isinstance(note, str) and bool(note) and data is not None and "by" not in data


def is_open(facts: Facts) -> bool:
    """True if a run was begun and not closed: it is under way, or its worker died."""
    turn = turn_in(facts)
    return turn is not None and turn["span"] is not None


def is_retried(facts: Facts) -> bool:
    """True if the time of the next attempt is set."""
    return "retry_us" in run_in(facts)


def next_us(facts: Facts, due_us: int | None) -> int | None:
    """Return when a session may run that would be due at `due_us` by its inputs and timers."""
    run = facts.get("run")
    if run is None:
        return due_us
    if "dead" in run:
        return None
    if "interrupt" in run:
        return due_us
    if "paused" in run:
        deadline_us: int | None = run.get("deadline_us")
        return deadline_us
    if (retry_us := run.get("retry_us")) is not None:
        return int(retry_us)
    if (needs := run.get("needs")) is not None:
        return needs["since_us"] if budgets.is_enough(facts, needs) else None
    turn = run.get("turn")
    if turn is not None and turn["span"] is not None:  # its worker died, if nobody has it
        since_us: int = turn["since_us"]
        return since_us if due_us is None else min(due_us, since_us)
    return due_us


# --- folds ----------------------------------------------------------------------------------------


def fold_started(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data.get("kind") != "wake" or data.get("name") != "wake":
        return {}
    before = turn_in(facts)
    goes_on = before is not None and before["id"] == data["turn"]
    turn = {
        "id": data["turn"],
        "from": before["from"] if before and goes_on else at.seq - 1,
        "inputs": data["inputs"],
        "timers": data["timers"],
        "attempt": data["attempt"],
        "span": data["span_id"],
        "since_us": at.now_us,
    }
    if "redirect" in data:
        turn["redirect"] = data["redirect"]
    version = before.get("version") if before and goes_on else data.get("version")
    if version is not None:
        turn["version"] = version
    return _run(facts, turn=FrozenDict(turn), **_BEGUN)


def fold_completed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    turn = turn_in(facts)
    if data.get("kind") != "wake":
        return {}
    changes = budgets.fold_compute(facts, data) if budgets.COMPUTE in data else {}
    if data.get("name") == "settle":
        return changes | _settled(facts, at)
    if turn is None or turn["span"] != data["span_id"]:
        return changes
    if data.get("got_on"):
        facts = with_changes(facts, deaths.got_on(facts))
    return changes | _run(facts, turn=FrozenDict({**turn, "span": None}), fence=data["fence"])


def _settled(facts: Facts, at: Moment) -> Changes:
    """A wake without a turn has ended by itself: no death is left to be followed up."""
    if not deaths.is_suspect(facts):
        return {}
    changes = deaths.cleared(facts, at)
    stop = settled_stop(facts)
    return changes | _run(with_changes(facts, changes), retry_us=None, error=None, stop=stop)


def settled_stop(facts: Facts) -> StopReason:
    """Return the reason of the last stop, apart from a death that was to be followed up."""
    stop: StopReason = run_in(facts).get("stop", "end_turn")
    return "end_turn" if stop == "rescheduling" and turn_in(facts) is None else stop


def fold_idle(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes: Changes = {}
    if deaths.is_suspect(facts) and not _was_stopped(facts, data):
        changes = deaths.cleared(facts, at)
        facts = with_changes(facts, changes)
    if done := data.get("processed"):
        changes |= (more := fold_processed(facts, {"seqs": done}, at))
        if "run" in more:  # it has dealt with an interrupt
            facts = with_changes(facts, more)
    return {**changes, **_stop_changes(facts, data, at)}


def _was_stopped(facts: Facts, data: Mapping[str, Any]) -> bool:
    """True if a wake did not end by itself: its worker was stopped, or the session suspended."""
    code = run_in(facts).get("error", EMPTY).get("code")
    return data["stop_reason"] == "rescheduling" and code in (STOPPED, SessionSuspended.code)


def _stop_changes(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    reason, run = data["stop_reason"], run_in(facts)
    if reason == "requires_action":
        blocked = data["blocked_on"]
        waits = "interrupt" not in run and all([_is_awaited(facts, id) for id in blocked])
        deadline_us = requests.deadline_us(facts, blocked) if waits else None
        paused = True if waits else None
        return _run(facts, stop=reason, paused=paused, deadline_us=deadline_us)
    if reason == "rescheduling":
        return _run(facts, stop=reason)
    if (needs := data.get("needs")) is not None:
        if "interrupt" in run:  # it came before this was recorded: no grant is waited for
            return _run(facts, stop=reason)
        return _run(facts, stop=reason, needs=FrozenDict({**needs, "since_us": at.now_us}))
    if reason == "retries_exhausted":
        dead = FrozenDict({"at_us": at.now_us, **run.get("error", EMPTY)})
        changes = _run(facts, stop=reason, dead=dead, retry_us=None, paused=None, deadline_us=None)
        return changes | labels.fold(facts, {"labels": {DEAD: "yes"}}, at)
    next_turn: Changes = {}
    if (redirect := data.get("redirect")) is not None and redirect == run.get("interrupt"):
        next_turn = {"interrupt": None, "redirect": redirect}  # unless a newer one came meanwhile
    over = _run(facts, stop=reason, error=None, **_OVER, **next_turn)
    return {**over, "requests": None, **budgets.fold_turn(facts)}


def fold_error(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    error = FrozenDict({"code": data["code"], "attempt": data["attempt"], "seq": at.seq})
    fails = run_in(facts).get("fails", 0) + (1 if data.get("counts", True) else 0)
    changes: Changes = {}
    run: Changes = {"error": error, "fails": fails, "retry_us": data.get("retry_us")}
    if (death := data.get("death")) is not None:
        changes = deaths.fold_died(facts, death, at)
        facts = with_changes(facts, changes)
        if run["retry_us"] is not None:
            run["stop"] = "rescheduling"
    return {**changes, **_run(facts, **run)}


def fold_requeued(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if not is_dead(facts):
        return labels.fold(facts, {"labels": {DEAD: None}}, at)
    changes = _run(facts, dead=None, fails=None, retry_us=None, stop="rescheduling", requeued=True)
    return changes | labels.fold(facts, {"labels": {DEAD: None}}, at)


def fold_interrupt(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """Blocks are cleared and revisits dropped at once, also if no worker is alive."""
    changes: dict[str, Any] = dict.fromkeys(
        ("paused", "deadline_us", "retry_us", "needs", "redirect")
    )
    turn = turn_in(facts)
    if turn is not None and turn["span"] is None and not is_dead(facts):
        changes["stop"] = "interrupted"
    run = _run(facts, interrupt=at.seq, **changes)
    if data.get("by") == "parent" and (works_for := children.delegation(facts)) is not None:
        run["delegation"] = FrozenDict({**works_for, "quiet": True})
    return {**run, **requests.closed(facts, at), "timers": without_revisits(facts)}


def fold_processed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = inputs.fold_processed(facts, data, at)
    run = run_in(facts)
    done = [name for name in ("interrupt", "redirect") if run.get(name) in data["seqs"]]
    return changes | _run(facts, **dict.fromkeys(done)) if done else changes


def fold_answer(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """An answer to a request that is open, or the end of a child: a paused turn goes on."""
    changes = requests.fold_answer(facts, data, at)
    return {**changes, **_awake(facts)} if changes else {}


def fold_child_ended(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = children.fold_ended(facts, data, at)
    return {**changes, **_awake(facts)} if changes else {}


def _awake(facts: Facts) -> Changes:
    return _run(facts, paused=None, deadline_us=None) if is_paused(facts) else {}


def _is_awaited(facts: Facts, id: str) -> bool:
    return requests.is_open(facts, id) or children.is_open(facts, id)


def _run(facts: Facts, **changes: Any) -> Changes:
    return {"run": replaced(run_in(facts), changes)}


STEP: Final = "step.recorded"
INTENDED: Final = "effect.intended"
SUCCEEDED: Final = "effect.succeeded"
FAILED: Final = "effect.failed"
UNKNOWN: Final = "effect.unknown"
OUTCOMES: Final = {SUCCEEDED: "succeeded", FAILED: "failed", UNKNOWN: "unknown"}


def step_recorded(
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    result: Any,
    *,
    started_us: int,
    call: str | None = None,
) -> Fact:
    """A step of a turn, begun at this time, has this result. `call` is the id of the model's call
    that it was for."""
    data = {"name": name, "occurrence": occurrence, "args_hash": args_hash, "result": result}
    data["started_us"] = started_us
    return Fact(type=STEP, data=data if call is None else {**data, "call": call}, id=id)


def node_recorded(id: str, name: str, occurrence: int, result: Any, *, graph: str) -> Fact:
    """Nodes of a graph have run in a turn: a step whose result is the change of its checkpoint."""
    data = {"name": name, "occurrence": occurrence, "args_hash": "", "result": result}
    return Fact(type=STEP, data={**data, "graph": graph}, id=id)


class EffectOf(msgspec.Struct, frozen=True):
    """The effect of a turn that an event is about. `call` is the id of the model's call that it
    was for."""

    name: str
    occurrence: int
    args_hash: str
    key: str
    call: str | None = None


def effect_intended(
    id: str,
    of: EffectOf,
    tries: int,
    span_id: str,
    compensate: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] = EMPTY,
    *,
    tool: str | None = None,
    raised: int = 0,
) -> Fact:
    """An action on the world is about to be performed; `compensate` says what would undo it. Its
    arguments are recorded, unless they are large: who is asked about it later sees them. `tool` is
    the bound tool that a harness uses by it, without a call of a model. `raised` counts the tries
    that have raised since nobody knows whether it was performed."""
    more: dict[str, Any] = {"tries": tries, "span_id": span_id}
    if tool is not None:
        more["tool"] = tool
    if raised:
        more["raised"] = raised
    if args and len(canonical(args)) <= EFFECT_ARGS_BYTES_MAX:
        more["args"] = args
    if compensate is not None:
        more["compensate"] = compensate
    return _effect(INTENDED, id, of, more)


def effect_succeeded(id: str, of: EffectOf, result: Any) -> Fact:
    """Return the fact that the effect was performed, with this result."""
    return _effect(SUCCEEDED, id, of, {"result": result})


def effect_failed(id: str, of: EffectOf, error: str, *, not_done: bool = False) -> Fact:
    """Return the fact that the effect was not performed. With `not_done` its function has said so
    of every try, also of those that had no outcome."""
    more = {"error": error}
    return _effect(FAILED, id, of, {**more, "not_done": True} if not_done else more)


def effect_unknown(
    id: str, of: EffectOf, error: str, *, tries: int | None = None, raised: int = 0
) -> Fact:
    """Return the fact that nobody knows whether the effect was performed. A try that was refused
    before its intent is named by its number: `tries`."""
    more: dict[str, Any] = {"error": error}
    if tries is not None:
        more["tries"] = tries
    if raised:
        more["raised"] = raised
    return _effect(UNKNOWN, id, of, more)


def _effect(type: str, id: str, of: EffectOf, more: dict[str, Any]) -> Fact:
    data = {"name": of.name, "occurrence": of.occurrence, "args_hash": of.args_hash, "key": of.key}
    if of.call is not None:
        more["call"] = of.call
    return Fact(type=type, data={**data, **more}, id=id)
