"""What a turn's calls take and keep: ids of events, pieces of streams, arguments, tracebacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from limpet.model.limits import TRACEBACK_BYTES_MAX
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_an_event_of_a_turn_may_have_an_id_of_the_caller(world: World) -> None:
    """It is the identity of the call: recorded once in all runs, and by all turns."""
    events: list[limpet.Event] = []

    async def harness(turn: limpet.Turn) -> None:
        events.append(await turn.append("order.shipped", {"run": turn.attempt}, id="order-7"))
        await turn.approve("go on", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    await world.send("again")
    await world.work(harness)
    assert [(event.id, event.data["run"]) for event in events] == [("order-7", 1)] * 3
    assert len(await session.read(types=["order.shipped"])) == 1


@pytest.mark.parametrize(
    "piece",
    [
        {"tool": {"index": 0, "id": "a", "name": "refund", "arguments": "{}"}},
        {"text": "hi", "tool_calls": []},
        limpet.Piece(text="hi", tool={"index": 0, "name": "refund", "arguments": "{}"}),
    ],
)
async def test_a_stream_refuses_what_it_cannot_record(world: World, piece: Any) -> None:
    """Above all a tool call, which nobody would run."""

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.InvalidInput, match=r"use turn\.model for a model that calls"):
            await turn.stream("tell", ["one ", piece])

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.error, await world.said()) == (None, [])


async def test_a_stream_takes_the_text_and_usage_of_pieces(world: World) -> None:
    """Those that a provider's function yields."""

    async def harness(turn: limpet.Turn) -> None:
        usage = {"input": 3, "output": 2, "cost": 0.5}
        pieces = [limpet.Piece(text="one "), limpet.Piece(text="two"), limpet.Piece(usage=usage)]
        assert await turn.stream("tell", [*pieces, limpet.Piece(stop="stop")]) == "one two"

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.error is None
    (said,) = await session.read(types=["agent.message"])
    assert (said.data["usage"], said.data["cost"]) == ({"input": 3, "output": 2}, 0.5)


@pytest.mark.parametrize("records", [True, False, None])
async def test_a_tool_may_leave_its_arguments_out_of_the_intent(
    world: World, records: bool | None
) -> None:
    """By limpet.tool or by the call; otherwise they are recorded."""

    @limpet.tool(record_args=records is not None)
    async def charge(card: str) -> str:
        return "done"

    def model(request: limpet.ModelRequest) -> limpet.Reply:
        return limpet.Reply("", (limpet.ToolCall("x", "charge", {"card": "4711"}),))

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("decide", model, tools=[charge])
        await turn.tool(reply.tool_calls[0], record_args=records)

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.error is None
    (intent,) = await session.read(types=["effect.intended"])
    assert intent.data.get("args") == ({"card": "4711"} if records else None)
    assert intent.data["args_hash"]


async def test_what_can_be_undone_needs_its_arguments(world: World) -> None:
    """They are what the compensation is called with."""

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.InvalidInput, match="needs the recorded arguments"):
            await turn.effect("pay", print, compensate="undo", record_args=False)

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.error is None


async def test_a_failed_turn_keeps_its_traceback(world: World) -> None:
    """From the harness on; of a long one its beginning and its end."""

    async def fails(turn: limpet.Turn) -> None:
        _deep(3)

    session = await world.begin("hi")
    await world.work(fails)
    (error,) = await session.read(types=["session.error"])
    lines = error.data["traceback"]
    assert lines.startswith("Traceback (most recent call last):")
    assert "runtime/run.py" not in lines
    assert (lines.count("in _deep"), lines.rstrip().endswith("ValueError: at the bottom")) == (
        4,
        True,
    )

    async def says_much(turn: limpet.Turn) -> None:
        raise ValueError("é" * 50_000 + " the end")

    session = await world.begin("hi")
    await world.work(says_much)
    (error,) = await session.read(types=["session.error"])
    lines = error.data["traceback"]
    assert TRACEBACK_BYTES_MAX - 8 <= len(lines.encode()) <= TRACEBACK_BYTES_MAX
    assert lines.startswith("Traceback")
    assert lines.rstrip().endswith("the end")


def _deep(levels: int) -> None:
    if not levels:
        raise ValueError("at the bottom")
    _deep(levels - 1)
