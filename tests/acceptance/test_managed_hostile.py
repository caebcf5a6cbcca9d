"""Anything a model sends to a managed tool is answered: errors are results, never exceptions."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest

import limpet
from limpet.runtime.managed_tools import BY_NAME
from tests.support import seeds
from tests.support.examples import tries

ADA = "user:ada"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)
HOSTILE: tuple[Any, ...] = (
    *(
        "",
        " ",
        "\x00",
        "a\nb",
        "\ud800",
        "\u202e",
        "é",
        "*",
        "a@b",
        "$internal",
        "../x",
        "x" * 100_000,
    ),
    *(0, 1, -1, 2, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, True, False),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), None),
    *([], [""], ["\ud800"], [None], ["a"] * 5_000, {}, {"a": {}}, {1: 2}, {"": "\udfff"}),
    *(b"bytes", object(), {1, 2}, nested(90), nested(500), nested(50_000), LOOP),
)
PLAUSIBLE: dict[str, Any] = {
    "target": "working_buffer",
    "value": "x",
    "app": "research",
    "message": "look",
    "id": "own",
    "title": "refund",
    "tool": "search",
    "learning": "x",
}


def inputs_of(name: str) -> list[Any]:
    """Each field with each hostile value, the others as a model would send them."""
    fields = BY_NAME[name].__struct_fields__
    needed = {field: PLAUSIBLE[field] for field in fields if field in PLAUSIBLE and field != "id"}
    made = [{**needed, field: value} for field in fields for value in HOSTILE]
    return [*made, *HOSTILE, {"\ud800": 1}, {"": 1}, {1: 1}, {"surplus": 1}]


async def answered(
    lp: limpet.Limpet, s: limpet.Session[Any], name: Any, inputs: list[Any], **how: Any
) -> list[Any]:
    """What the tool answers to each of these, in one turn that comes to its end."""
    found: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp)
        for given in inputs:
            found.append(await tools.call(name, given))

    await s.append("user.message", {"text": "go"}, actor=ADA)
    woken = await lp.wake(s.key, harness, lease_seconds=600, **how)
    assert (woken.reason, woken.error) == ("end_turn", None), (name, inputs[len(found)])
    return found


@pytest.fixture
async def own(lp: limpet.Limpet, caplog: pytest.LogCaptureFixture) -> limpet.Session[Any]:
    caplog.set_level(logging.ERROR, logger="limpet")
    s = await lp.create("support", "ada", "own", budget=1.0)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, lambda turn: turn.say("hello"))
    return s


@pytest.mark.parametrize("name", sorted(BY_NAME))
async def test_every_field_of_every_tool_takes_any_value(
    lp: limpet.Limpet, own: limpet.Session[Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call has an answer that a model can read; the turn goes on and ends as any other."""
    inputs = inputs_of(name)
    if name == "session_delegate":  # so many may be at work
        inputs = [each for each in inputs if not isinstance(each, dict) or "app" not in each] + [
            {"app": "research", "message": "look", "budget": value} for value in HOSTILE
        ][-40:]
    for answer in await answered(lp, own, name, inputs):
        assert isinstance(answer, dict)
        text = json.dumps(answer, allow_nan=False)
        assert text.encode()
        if "error" in answer:
            assert set(answer["error"]) == {"code", "message"}
            assert answer["error"]["message"]
    assert caplog.records == [], "a mistake of ours, hidden from the model"
    assert (await lp.maintenance.verify()).ok


async def test_what_cannot_be_asked_about_is_refused_without_asking(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """With always_ask the input is shown to a person: it has to be plain, and not too large."""
    hostile = ["\ud800", float("nan"), nested(500), "x" * 100_000, LOOP]
    inputs = [{"target": "working_buffer", "value": value} for value in hostile]
    found = await answered(lp, own, "memory_write", inputs, permissions={"*": "always_ask"})
    assert all("error" in answer for answer in found)


@pytest.mark.parametrize("name", ["", "\ud800", "no_such_tool", None, 5, [], {}, "x" * 100_000])
async def test_a_tool_that_is_not_there_is_a_result(
    lp: limpet.Limpet, own: limpet.Session[Any], name: Any
) -> None:
    """A model makes names up."""
    (answer,) = await answered(lp, own, name, [{}])
    assert answer["error"]["code"] == "input.invalid"
    json.dumps(answer).encode()


async def test_an_answer_that_is_too_large_to_record_is_refused(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """The model is told to ask for less, and may."""
    for _ in range(5):
        await own.append("note.big", {"text": "x" * 1_000_000}, actor=ADA)
    big = {"types": ["note.*"]}
    much, less = await answered(lp, own, "session_get_events", [big, {**big, "limit": 2}])
    assert "Ask for less" in much["error"]["message"]
    assert len(less["events"]) == 2


async def test_a_budget_that_is_not_there_is_refused(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """A model that lends more than there is has an answer; the turn is not held for it."""
    inputs = [{"app": "research", "message": "look", "budget": n} for n in (5.0, -1.0, 0.25)]
    much, less, fits = await answered(lp, own, "session_delegate", inputs)
    assert much["error"]["code"] == "budget.reached"
    assert "error" in less
    assert fits["app"] == "research"


async def test_random_inputs_are_answered(
    lp: limpet.Limpet, own: limpet.Session[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Several hostile values at once, of fields that go together."""
    dice = random.Random(seeds.seed("managed tools"))
    for name in sorted(set(BY_NAME) - {"session_delegate"}):
        fields = BY_NAME[name].__struct_fields__
        inputs = [
            {f: dice.choice((*HOSTILE, PLAUSIBLE.get(f, 3))) for f in fields if dice.random() < 0.8}
            for _ in range(tries(8, 200))
        ]
        await answered(lp, own, name, inputs)
    assert caplog.records == []


async def test_each_call_of_a_managed_tool_is_a_span_of_its_wake(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Of kind tool, under that of the wake, with its result; once, however often the turn runs."""

    async def harness(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp)
        await tools.call("memory_write", {"target": "working_buffer", "value": "x"})
        await tools.call("memory_read", {"target": "nothing"})
        await tools.call("outcome_define", {"title": "refund"})
        await tools.call("session_delegate", {"app": "research", "message": "look"})
        await turn.ask("go on?", {})
        await tools.call("session_get_snapshot", {"id": "nobody"})

    await own.append("user.message", {"text": "go"}, actor=ADA)
    first = await lp.wake(own.key, harness)
    await own.refresh()
    await own.answer(own.blocked_on[0].id, "yes")
    second = await lp.wake(own.key, harness)
    spans = {}
    for woken in (first, second):
        assert woken.error is None
        assert woken.wake_id is not None
        trace = await own.runs.trace(woken.wake_id)
        assert trace.span.kind == "wake"
        for span in trace.spans[1:]:
            assert (span.kind, span.parent) == ("tool", woken.wake_id)
            assert span.took is not None
            assert span.took.total_seconds() >= 0
            assert trace.span.started_us <= span.ended_us
        spans[woken.wake_id] = [(span.name, span.result) for span in trace.spans[1:]]
    assert list(spans.values()) == [
        [
            ("memory_write", "success"),
            ("memory_read", "error"),
            ("outcome_define", "success"),
            ("session_delegate", "success"),
        ],
        [("session_get_snapshot", "error")],
    ]
    whole = await own.read(limit=1000, types=["span.*"])
    started = [event.data["span_id"] for event in whole if event.type == "span.started"]
    completed = [event.data["span_id"] for event in whole if event.type == "span.completed"]
    assert sorted(started) == sorted(completed)
    assert len(started) == len(set(started))
