"""The metrics of sessions against a second implementation, on random logs and real histories."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

import limpet
from limpet.analytics.histogram import (
    ERROR,
    PEAK,
    Histograms,
    bin_of,
    merge,
    pack,
    quantile,
    rank_of,
    unpack,
    value_of,
)
from limpet.analytics.metrics import SessionFold, analytics_of, begin, features_of, fold_event
from limpet.analytics.ranking import changed, largest, part_of
from limpet.analytics.rollup import (
    CellKey,
    CellTally,
    change_of,
    marked,
    pack as pack_tally,
    peak_of,
    tallies_of,
)
from limpet.model import Event, Key, freeze
from tests.support.analytics_model import Log
from tests.support.examples import examples
from tests.support.histograms import histogram_of

KEY = Key("support", "ada", "one")
SECOND = 1_000_000


def folded(events: Sequence[Event]) -> SessionFold:
    fold = begin(KEY, events[0])
    for event in events[1:]:
        fold_event(fold, event)
    return fold


def compare(events: Sequence[Event], fold: SessionFold) -> None:
    """Every number of the fold is that of the model."""
    model, now_us = Log(list(events)), events[-1].at_us + 7 * SECOND
    seen = analytics_of(fold, now_us)
    clocks = model.clocks(now_us)
    assert seen.temporal.total * SECOND == pytest.approx(
        (model.ended_us() or now_us) - model.created_us
    )
    for name, clock in clocks.items():
        assert getattr(seen.temporal, name) * SECOND == pytest.approx(clock), name
    waited = model.first_response_us()
    assert seen.temporal.time_to_first_response == (None if waited is None else waited / SECOND)
    turns = model.turns()
    assert seen.interaction.turns == len(turns)
    latencies = [max(0, over - asked) for asked, over in turns]
    if latencies:
        mean = sum(latencies) / len(latencies) / SECOND
        assert seen.temporal.mean_turn_latency == pytest.approx(mean)
        p99 = model.p99_us()
        assert p99 is not None
        assert seen.temporal.p99_turn_latency == pytest.approx(p99 / SECOND, rel=ERROR)
        if len(turns) < 100:
            assert seen.temporal.p99_turn_latency == pytest.approx(p99 / SECOND)
    assert seen.interaction.user_messages == len(model.of("user.message"))
    assert seen.interaction.agent_messages == len(model.of("agent.message"))
    assert seen.interaction.tool_invocations == model.invocations()
    assert seen.interaction.retrieval_queries == len(model.spans("started", "retrieval"))
    assert seen.interaction.repair_cycles == model.repairs()[0]
    assert seen.interaction.generations == model.generations()
    assert seen.resource.tokens_input == model.tokens("input")
    assert seen.resource.tokens_output == model.tokens("output")
    assert seen.resource.cost_usd == pytest.approx(model.cost() / SECOND)
    assert seen.resource.api_calls == model.generations() + len(model.of("effect.intended"))
    for name, rate in model.rates().items():
        assert getattr(seen.quality, name) == pytest.approx(rate), name
    tools = {
        name: (
            t.count,
            t.errors,
            round(t.total_latency * SECOND),
            round(t.total_cost * SECOND),
        )
        for name, t in seen.tools.items()
    }
    assert tools == model.tools()
    assert features_of(fold, now_us) == pytest.approx(model.features(now_us))


# --- random logs ----------------------------------------------------------------------------------

NAMES = st.sampled_from(["search", "refund"])
IDS = st.sampled_from(["r1", "r2", "r3"])
KEYS = st.sampled_from(["k1", "k2"])
SPANS = st.sampled_from(["x", "y"])
NUMBERS = st.one_of(st.integers(-3, 5_000), st.floats(0, 3), st.just("many"), st.none())


def data(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


PLAIN: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "user.message": data(text=st.sampled_from(["hi", ""])),
    "system.message": data(text=st.just("x")),
    "agent.message": data(
        text=st.sampled_from(["", " ", "hello"]),
        content=st.just([{"type": "text"}]),
        usage=st.one_of(data(input=NUMBERS, output=NUMBERS), st.just("junk")),
        cost=NUMBERS,
    ),
    "agent.tool_use": st.fixed_dictionaries(
        {"request_id": IDS, "name": NAMES},
        optional={"awaits": st.sampled_from(["approval", "mismatch"])},
    ),
    "agent.tool_result": st.fixed_dictionaries(
        {"request_id": IDS}, optional={"is_error": st.sampled_from([True, False, "x"])}
    ),
    "user.custom_tool_result": st.fixed_dictionaries({"request_id": IDS}),
    "user.define_outcome": st.fixed_dictionaries({"title": st.just("t"), "criteria": st.just([])}),
    "user.feedback": data(
        rating=NUMBERS,
        thumb=st.sampled_from(["up", "down", 3]),
        completed=st.booleans(),
        hallucinated=st.one_of(st.booleans(), st.just("no")),
    ),
    "session.outcome_evaluated": st.fixed_dictionaries(
        {"verdict": st.sampled_from(["pass", "fail", "not_ready"]), "met": st.just([])}
    ),
    "effect.intended": st.fixed_dictionaries(
        {"name": NAMES, "call": IDS, "key": KEYS, "span_id": SPANS}, optional={"tool": NAMES}
    ),
    "effect.by hand": st.fixed_dictionaries(
        {"name": NAMES, "key": KEYS, "span_id": SPANS}, optional={"tool": NAMES}
    ),
    "effect.succeeded": st.fixed_dictionaries({"name": NAMES, "key": KEYS}, optional={"call": IDS}),
    "effect.failed": st.fixed_dictionaries(
        {"name": NAMES, "key": KEYS, "error": st.sampled_from(["", "503"])}, optional={"call": IDS}
    ),
    "effect.unknown": st.fixed_dictionaries({"name": NAMES, "key": KEYS, "error": st.just("?")}),
    "step.recorded": st.fixed_dictionaries({"name": NAMES, "call": IDS}),
    "budget.settled": st.fixed_dictionaries({"reservation": SPANS, "cost": NUMBERS}),
    "session.error": st.fixed_dictionaries({"code": st.just("turn.failed")}),
    "odd.event": data(anything=NUMBERS),
}

# More of them than of the rest.
CALLS = ("agent.tool_use", "agent.tool_result", "agent.message", "effect.by hand", "budget.settled")


def _open(events: list[Event]) -> list[str]:
    """The calls of this turn that have no result."""
    model = Log(events)
    since = max([e.seq for e in model.overs()], default=0)
    done = {r.data["request_id"] for r in model.of("agent.tool_result", "user.custom_tool_result")}
    return [id for id, use in model.calls().items() if use.seq > since and id not in done]


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A log without a runtime, or with wakes in any order that a runtime could record."""
    events = [Event(1, "uid", "session.created", "user:ada", 10 * SECOND, {})]
    wake: dict[str, Any] = {"turn": "", "open": False, "turns": 0}
    ended = False
    for _ in range(draw(st.integers(0, 40))):
        seq, at_us = len(events) + 1, events[-1].at_us + draw(st.integers(0, 90)) * SECOND // 7
        kind = draw(st.sampled_from(["plain", "plain", "plain", "wake", "close", "phase", "span"]))
        made: tuple[str, dict[str, Any]] | None = None
        if kind == "plain":
            type_ = draw(st.sampled_from([*sorted(PLAIN), *CALLS, *CALLS]))
            made = type_, draw(PLAIN[type_])
            if type_ == "agent.tool_use":  # a request may be asked again, also once it is answered
                ids = st.sampled_from([f"r{seq}", *Log(events).calls()])
                made = type_, {**made[1], "request_id": draw(ids)}
            elif type_ == "effect.by hand":
                made = "effect.intended", made[1]
            elif "request_id" in made[1] or "call" in made[1]:
                member = "request_id" if "request_id" in made[1] else "call"
                ids = st.sampled_from(["r0", *_open(events)])
                made = type_, {**made[1], member: draw(ids)}
        elif kind == "wake":
            if not wake["turn"]:
                wake["turns"] += 1
                wake["turn"] = f"t{wake['turns']}"
            model = Log(events)
            taken = model.taken()
            open_ = [e.seq for e in model.requests() if e.seq not in taken]
            made = (
                "span.started",
                {
                    "kind": "wake",
                    "name": "wake",
                    "span_id": f"w{seq}",
                    "turn": wake["turn"],
                    "inputs": draw(st.sampled_from([open_, open_[:1], []])),
                },
            )
        elif kind == "close" and wake["turn"]:
            reason = draw(
                st.sampled_from(["end_turn", "rescheduling", "requires_action", "interrupted"])
            )
            made = "session.status_idle", {"stop_reason": reason, "blocked_on": []}
            if reason in ("end_turn", "interrupted"):
                wake["turn"] = ""
        elif kind == "phase" and not ended:
            phase = Log(events).of("session.suspended", "session.reactivated")
            suspended = bool(phase) and phase[-1].type == "session.suspended"
            step = ("session.reactivated", "suspended", "active")
            if not suspended:
                step = draw(
                    st.sampled_from(
                        [
                            ("session.suspended", "active", "suspended"),
                            ("session.completed", "active", "completed"),
                            ("session.terminated", "active", "terminated"),
                        ]
                    )
                )
            ended = step[2] in ("completed", "terminated")
            made = step[0], {"from": step[1], "to": step[2], "event": "x"}
        elif kind == "span":
            which = draw(st.sampled_from(["model", "retrieval"]))
            end = draw(st.sampled_from(["started", "completed"]))
            result = draw(st.sampled_from(["success", "error"]))
            open_spans = [e.data["span_id"] for e in Log(events).spans("started", which)]
            span = open_spans[-1] if end == "completed" and open_spans else f"s{seq}"
            if end == "started" or span in open_spans:
                made = f"span.{end}", {"kind": which, "span_id": span, "result": result}
        if made is None:
            continue
        within = bool(wake["turn"]) and draw(st.booleans()) and made[0].startswith("agent.")
        events.append(
            Event(seq, f"e{seq}", made[0], "a:b", at_us, made[1], wake_id="w" if within else None)
        )
    return events


@examples(400)
@given(logs())
def test_every_formula_gives_what_its_definition_says(events: list[Event]) -> None:
    """On random logs with junk in them, each metric and feature is that of a second
    implementation."""
    compare(events, folded(events))


# What members may hold that another program has written, in a log that is adopted.
JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "r1", "model", "wake", "tool", "active", "completed", "end_turn"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["id", "input"]), inner)
    ),
    max_leaves=4,
)
WAKE = {"kind": "wake", "name": "wake", "span_id": "w", "turn": "t", "inputs": [2]}
FORMS: dict[str, list[dict[str, Any]]] = {
    "session.labeled": [{"labels": {"task_type": "refund"}}],
    "user.message": [{"text": "hi"}],
    "agent.message": [{"text": "hi", "content": [], "usage": {"input": 1}, "cost": 1, "call": "m"}],
    "agent.tool_use": [{"request_id": "r1", "name": "search", "awaits": "approval"}],
    "agent.custom_tool_use": [{"request_id": "r1", "name": "search"}],
    "agent.tool_result": [{"request_id": "r1", "is_error": True}],
    "user.custom_tool_result": [{"request_id": "r1"}],
    "effect.intended": [
        {"call": "r1", "span_id": "x", "key": "k"},
        {"tool": "search", "span_id": "x", "key": "k"},
    ],
    "effect.succeeded": [{"key": "k"}, {"key": "k", "call": "r1"}],
    "effect.failed": [{"key": "k", "error": ""}, {"key": "k", "error": "503"}],
    "step.recorded": [{"call": "r1", "started_us": 5}],
    "budget.settled": [{"reservation": "x", "cost": 5}],
    "span.started": [{**WAKE, "version": "1", "claimed_us": 5}, {"kind": "model", "span_id": "x"}],
    "span.completed": [
        {"kind": "wake"},
        {"kind": "tool", "span_id": "x"},
        {"kind": "model", "span_id": "x", "took_us": 1, "result": "error"},
    ],
    "session.status_idle": [{"stop_reason": "end_turn", "needs": None}],
    "session.error": [{"code": "turn.failed"}],
    "user.define_outcome": [{"title": "t"}],
    "session.outcome_evaluated": [{"verdict": "pass"}],
    "user.feedback": [{"rating": 1, "thumb": "up", "completed": True, "hallucinated": True}],
    "session.scored": [{"name": "helpful", "value": 1}],
    "session.intervention_suggested": [{"satisfaction": 0.1}],
    "session.suspended": [{"from": "active", "to": "suspended"}],
    "session.completed": [{"from": "active", "to": "completed"}],
    "session.checkpoint": [{"size": 5}],
}
CREATED = {"labels": {"task_type": "refund"}, "setup": {"agent": "a"}, "phase": "init"}


@st.composite
def broken(draw: st.DrawFn, form: dict[str, Any]) -> dict[str, Any]:
    """Data in which some members hold anything, or are missing."""
    made = dict(form)
    for name in form:
        match draw(st.sampled_from(["as it is", "as it is", "junk", "missing"])):
            case "junk":
                made[name] = draw(JUNK)
            case "missing":
                del made[name]
    return made


@pytest.mark.parametrize("type_", FORMS)
def test_no_member_of_an_event_can_make_the_fold_fail(type_: str) -> None:
    """Whatever one of them holds, while a turn is under way and requests wait."""
    anything: list[Any] = [None, True, -1, 2**62, 1e300, "", "x", [], [[]], [5], {}, {"x": []}]
    before = [("user.message", 0), ("span.started", 0), ("agent.tool_use", 0)]
    before += [("effect.intended", 1), ("user.message", 0)]
    for form in FORMS[type_]:
        for name in form:
            for value in anything:
                fold = begin(KEY, Event(1, "uid", "session.created", "user:ada", SECOND, CREATED))
                said = [(each, FORMS[each][at]) for each, at in before]
                said += [(type_, {**form, name: value}), ("session.status_idle", {})]
                for seq, (type, data) in enumerate(said, 2):
                    fold_event(fold, Event(seq, f"e{seq}", type, "a:b", SECOND, freeze(data)))
                json.dumps(analytics_of(fold, SECOND).plain)


@examples(600)
@given(st.data())
def test_no_event_can_make_the_fold_fail(data: st.DataObject) -> None:
    """Whatever its members hold and whenever it says that it happened; what is then said of the
    session can be written down."""
    times = st.integers(0, 250_000_000_000 * SECOND)
    created = freeze(data.draw(broken(CREATED)))
    at_us = data.draw(times)
    fold = begin(KEY, Event(1, "uid", "session.created", "user:ada", at_us, created))
    for seq in range(2, data.draw(st.integers(3, 14))):
        type_ = data.draw(st.sampled_from(sorted(FORMS)))
        said = freeze(data.draw(broken(data.draw(st.sampled_from(FORMS[type_])))))
        wake = data.draw(st.sampled_from([None, "w"]))
        fold_event(fold, Event(seq, f"e{seq}", type_, "a:b", data.draw(times), said, wake_id=wake))
    json.dumps(analytics_of(fold, 250_000_000_000 * SECOND).plain)
    assert all([math.isfinite(feature) for feature in features_of(fold, 0)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fold), type=SessionFold) == fold
    for tally in tallies_of(fold).values():
        pack_tally(tally)


def test_a_generation_is_a_span_or_a_message_with_usage_outside_of_one() -> None:
    """What a model says while its span is open counts with the span, and its tokens count once."""
    model: dict[str, Any] = {"kind": "model", "span_id": "s"}
    said: dict[str, Any] = {"text": "hi", "usage": {"input": 2, "output": 3}}
    happened = [
        ("session.created", {}),
        ("agent.message", said),
        ("span.started", model),
        ("agent.message", said),
        ("span.completed", {**model, "result": "success"}),
        ("agent.message", said),
    ]
    events = [
        Event(seq, f"e{seq}", type_, "a:b", seq * SECOND, data)
        for seq, (type_, data) in enumerate(happened, 1)
    ]
    fold = folded(events)
    compare(events, fold)
    assert (fold.generations, fold.tokens_input, fold.tokens_output) == (3, 6, 9)


@examples(200)
@given(logs(), st.integers(0, 40))
def test_a_fold_that_was_stored_goes_on_as_if_it_had_not_been(events: list[Event], at: int) -> None:
    """Encoding and decoding the running state between any two events changes nothing, and the
    share of a session in every cell follows from its state alone."""
    fold = begin(KEY, events[0])
    for number, event in enumerate(events[1:]):
        if number == at:
            fold = msgspec.msgpack.decode(msgspec.msgpack.encode(fold), type=SessionFold)
        fold_event(fold, event)
    assert fold == folded(events)
    assert tallies_of(fold) == tallies_of(folded(events))


@examples(200)
@given(logs(), st.integers(0, 40), st.integers(0, 40), st.sampled_from([1, 300]))
def test_a_change_of_a_session_is_what_its_cells_change_by(
    events: list[Event], at: int, length: int, slower: int
) -> None:
    """Whatever a batch folds, in one hour or in many: what is taken out and added leaves the
    tallies of the whole."""
    events = [replace(event, at_us=event.at_us * slower) for event in events]
    fold, cells = begin(KEY, events[0]), dict[CellKey, CellTally]()

    def count(changes: Iterable[tuple[dict[CellKey, CellTally], int]]) -> None:
        for tallies, times in changes:
            for key, tally in tallies.items():
                cells.setdefault(key, CellTally.empty()).plus(tally, times)

    count(change_of(None, fold))
    batches = (events[1 : at + 1], events[at + 1 : at + 1 + length], events[at + 1 + length :])
    for number, batch in enumerate(batches):
        before = marked(fold)
        for event in batch:
            fold_event(fold, event)
        fold.task_type = f"type {number // 2}"  # as a label does: it leaves its group once
        count(change_of(before, fold))
        fold.was = None
    left = {key: tally for key, tally in cells.items() if not tally.is_empty}
    whole = {key: tally for key, tally in tallies_of(fold).items() if not tally.is_empty}
    assert left == whole
    count(change_of(fold, None))
    assert all([tally.is_empty for tally in cells.values()])


def test_a_batch_counts_the_hours_that_it_changes_and_no_others() -> None:
    """A session may live for years: what an event costs does not grow with them."""
    fold = begin(KEY, Event(1, "uid", "session.created", "user:ada", SECOND, {}))
    said = {"text": "yes", "usage": {"input": 1, "output": 1}}
    for seq in range(2, 500):
        before = marked(fold)
        at_us = seq * 3_600 * SECOND
        fold_event(fold, Event(seq, f"e{seq}", "agent.message", "agent:a", at_us, said))
        windows = [key for of, _ in change_of(before, fold) for key in of if key[1] == "window"]
        assert len(set(windows)) <= 2


# --- histograms -----------------------------------------------------------------------------------

VALUES = st.lists(st.integers(0, 10**13), max_size=60)


@examples(300)
@given(VALUES, VALUES)
def test_merging_histograms_is_the_histogram_of_the_union(a: list[int], b: list[int]) -> None:
    """And taking one out again leaves the other."""
    whole = histogram_of(a)
    merge(whole, histogram_of(b))
    assert whole == histogram_of([*a, *b])
    merge(whole, histogram_of(b), -1)
    assert whole == histogram_of(a)


COUNTS = st.one_of(st.integers(1, 9), st.integers(1, 2**40))
MANY = st.lists(
    st.tuples(st.dictionaries(st.integers(-1, 2_200), COUNTS, max_size=9), st.integers(0, 3)),
    max_size=9,
)


@examples(300)
@given(MANY)
def test_many_histograms_give_what_each_gives(many: list[tuple[dict[int, int], int]]) -> None:
    """Stored, read as arrays, and merged by row: what they hold is what dicts hold."""
    raws, rows = [pack(each) for each, _ in many], [row for _, row in many]
    assert [unpack(raw) for raw in raws] == [each for each, _ in many]
    merged = Histograms.unpacked(raws).merged(np.array(rows, np.int64), 4)
    wanted: list[dict[int, int]] = [{} for _ in range(4)]
    for each, row in many:
        merge(wanted[row], each)
    found: list[dict[int, int]] = [{} for _ in range(4)]
    for owner, bin, count in zip(merged.owners, merged.bins, merged.counts, strict=True):
        found[owner][int(bin)] = int(count)
    assert found == wanted
    assert merged.totals.tolist() == [sum(each.values()) for each in wanted]
    for q, values in zip((0.01, 0.5, 0.99), merged.quantiles((0.01, 0.5, 0.99)), strict=True):
        exact = [math.nan if not each else quantile(each, q) for each in wanted]
        assert values.tolist() == pytest.approx(exact, nan_ok=True)


SECONDS = st.dictionaries(st.integers(0, 3_600), st.sampled_from([-2, -1, 1, 3]), max_size=9)
PEAKS = st.integers(1, 400).map(lambda peak: {PEAK: peak})


@examples(300)
@given(st.lists(st.one_of(SECONDS, PEAKS), max_size=9))
def test_peaks_of_many_are_those_of_each(many: list[dict[int, int]]) -> None:
    """By second, or as they were rolled up."""
    found = Histograms.unpacked([pack(each) for each in many]).peaks
    assert found.tolist() == [peak_of(each) for each in many]


@examples(300)
@given(
    st.lists(st.dictionaries(st.integers(0, 9_000), st.integers(1, 50), max_size=30), max_size=9),
    st.integers(1, 12),
)
def test_the_largest_groups_are_those_with_most_weight(
    windows: list[dict[int, int]], limit: int
) -> None:
    """Of all windows together, however their weights were written."""
    parts: dict[tuple[int, int], bytes] = {}
    whole: Counter[int] = Counter()
    for window, weights in enumerate(windows):
        whole.update(weights)
        whole.subtract({max(weights, default=0): weights.get(max(weights, default=0), 0)})
        for group, weight in weights.items():
            part, offset = part_of(group)
            before = changed(parts.get((window, part)), {offset: weight + 1})
            parts[window, part] = changed(before, {offset: weight})
        gone = max(weights, default=0)
        part, offset = part_of(gone)
        parts[window, part] = changed(parts.get((window, part)), {offset: 0})
    raws = {place: raw for place, raw in parts.items() if raw}
    whole = +whole
    found = largest([part for _, part in raws], list(raws.values()), limit)
    assert found == sorted(whole, key=lambda group: (-whole[group], group))[:limit]


@examples(300)
@given(VALUES.filter(bool), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_one_percent(values: list[int], q: float) -> None:
    """Of the value of its nearest rank, whatever the values are."""
    exact = sorted(values)[rank_of(q, len(values)) - 1]
    found = quantile(histogram_of(values), q)
    assert found is not None
    assert abs(found - exact) <= ERROR * exact * (1 + 1e-6)


@examples(300)
@given(st.integers(1, 2**62))
def test_a_bin_stands_for_each_of_its_values(value: int) -> None:
    """Within the stated error."""
    assert abs(value_of(bin_of(value)) - value) <= ERROR * value * (1 + 1e-6)


# --- real histories -------------------------------------------------------------------------------


@limpet.tool
def lookup(q: str) -> str:
    """Look something up."""
    if q == "bad":
        raise ValueError("no")
    return f"found {q}"


@limpet.tool(pure=True)
def peek(q: str) -> str:
    """Look at something."""
    return q


def model_of(chance: random.Random, failures: list[bool]) -> Any:
    async def model(request: limpet.ModelRequest) -> limpet.Reply:
        if failures and failures.pop():
            raise RuntimeError("down")
        calls = chance.choice([0, 0, 1, 2])
        return limpet.Reply(
            text=chance.choice(["", "hello"]) if calls else "done",
            tool_calls=tuple(
                [
                    limpet.ToolCall(
                        id=f"c{n}",
                        name=chance.choice(["lookup", "peek", "nothing"]),
                        input={"q": chance.choice(["good", "bad"])},
                        provider_id=f"p{n}",
                    )
                    for n in range(calls)
                ]
            ),
            usage={"input": chance.randrange(100), "output": 3, "cost": chance.random() / 10},
            stop_reason="x",
            event=None,
        )

    return model


@pytest.mark.parametrize("number", range(6))
async def test_the_metrics_of_real_histories(number: int) -> None:
    """What an agent, its tools, its failures and its life record is measured as the second
    implementation does, and as the session itself counts."""
    chance = random.Random(number)
    async with limpet.open("memory://") as lp:
        an = limpet.Analytics(lp, "memory://")
        s = await lp.create("support", "ada", labels={"task_type": "refund"}, actor="user:ada")
        for _ in range(chance.randrange(1, 4)):
            await s.append("user.message", {"text": "hi"})
            failures = [False, chance.random() < 0.5]
            agent = limpet.Agent(model_of(chance, failures), [lookup, peek], max_steps=4)
            await lp.wake(s.key, agent, version="7")
            await lp.work.requeue(s.key) if s.status == "x" else None
            await lp.wake(s.key, agent, version="7")
            if chance.random() < 0.5:
                await s.refresh()
                await s.suspend()
                await s.resume()
            await an.run(once=True)
        if chance.random() < 0.7:
            await s.refresh()
            await s.terminate()
        await an.run(once=True)
        await s.refresh()
        events = [e async for e in _all(s)]
        fold = an.file.folds_of(s.key)[-1]
        compare(events, fold)
        seen = await an.session(s.key)
        assert seen.interaction.turns == s.runs.usage.turns
        assert seen.resource.cost_usd == pytest.approx(s.runs.usage.cost)
        assert seen.resource.tokens_input == s.runs.usage.input
        if seen.final:
            assert seen.temporal.active == pytest.approx(s.lifecycle.durations.active)
            assert seen.temporal.suspended == pytest.approx(s.lifecycle.durations.suspended)


async def _all(s: limpet.Session) -> Any:
    after = 0
    while events := await s.read(after=after, limit=500):
        for event in events:
            yield event
        after = events[-1].seq
