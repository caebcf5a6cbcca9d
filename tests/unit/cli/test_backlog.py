"""What `limpet status` says of a session, by its head alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import limpet
from limpet.cli.backlog import needed_by, needs
from limpet.model.lease import readiness
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def shown(world: World) -> tuple[str, list[str]]:
    head = world.session.head
    state = readiness(head, world.clock.now_us)
    return state, needs(head, state, needed_by(world.session))


async def test_a_turn_that_waits_for_a_grant_is_blocked(world: World) -> None:
    """Nobody claims it and nothing was asked: it would wait unseen."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("dear", lambda: 1, max_cost=2)

    session = await world.begin("hi")
    await session.runs.grant(1.0)
    await world.work(harness)
    state, (need,) = shown(world)
    assert (state, need[:38]) == ("blocked", "the budget has 1 cost left, and the ca")
    await session.runs.grant(1.0)
    assert shown(world) == ("due", [])


async def test_one_that_has_ended_waits_for_nobody(world: World) -> None:
    """Its request cannot be answered any more, and its dead letter not be requeued."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "fail":
            raise RuntimeError("no")
        await turn.approve("refund", {})

    for text, before in (("ask", "blocked"), ("fail", "dead")):
        session = await world.begin(text)
        await world.work(harness, retries=0)
        assert shown(world)[0] == before
        await session.terminate()
        await world.work(harness)
        assert shown(world) == ("idle", [])


async def test_an_error_cannot_write_to_the_terminal(world: World) -> None:
    """It may quote anything: it is one line, and its control characters are spelled out."""

    async def harness(turn: limpet.Turn) -> None:
        raise RuntimeError("red\x1b[31m\n\x07bell")

    await world.begin("hi")
    await world.work(harness, retries=0)
    assert shown(world) == ("dead", [r"RuntimeError: red\u001b[31m \u0007bell"])
