"""Partials have one shape, whoever publishes them, and assemble joins them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from limpet import Piece, assemble
from tests.support.agents import World, a_world

WORDS = ("It ", "arrives ", "today.")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def pieces() -> AsyncIterator[str]:
    for word in WORDS:
        yield word


async def mixed(request: limpet.ModelRequest) -> AsyncIterator[Piece]:
    yield Piece(reasoning="hm")
    for word in WORDS:
        yield Piece(text=word)
    yield Piece(tool={"index": 0, "id": "c", "name": "look", "arguments": "{}"})


async def published(world: World, harness: Any) -> list[limpet.Event]:
    """The partials that followers see of a turn."""
    session, seen = await world.begin("hi"), list[limpet.Event]()

    async def follow() -> None:
        async for event in session.follow(after=session.version):
            seen.append(event)
            if event.type == "session.status_idle":
                return

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    await world.work(harness)
    await asyncio.wait_for(following, 5)
    return [event for event in seen if event.partial]


async def test_streams_and_models_publish_the_same_shape(world: World) -> None:
    """A screen that joins pieces shows either, and the whole is what is recorded."""

    async def streams(turn: limpet.Turn) -> None:
        await turn.stream("answer", pieces())

    async def models(turn: limpet.Turn) -> None:
        await turn.model("answer", mixed)

    partials = await published(world, streams)
    assert [dict(event.data) for event in partials] == [
        {"text": word, "index": n} for n, word in enumerate(WORDS)
    ]
    assert [assemble(partials)] == await world.said() == ["".join(WORDS)]
    partials = await published(world, models)
    assert [{*event.data} - {"index"} for event in partials] == [
        {"reasoning"},
        *[{"text"}] * 3,
        {"tool"},
    ]
    assert [event.data["index"] for event in partials] == [0, 1, 2, 3, 4]
    assert [assemble(partials)] == await world.said() == ["".join(WORDS)]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_piece_is_by_whoever_the_message_is_by(world: World, *, guarded: bool) -> None:
    """The agent, or the principal that the worker acts as; as a plain text, which can be sent."""
    session, seen = await world.begin("hi"), list[limpet.Event]()
    principal = limpet.Principal("service:desk", role="admin")
    lp = world.lp.acting_as(principal) if guarded else world.lp

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("answer", mixed)

    async def follow() -> None:
        async for event in session.follow(after=session.version, types=["agent.message"]):
            seen.append(event)
            if not event.partial:
                return

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    assert (await lp.wake(session.key, harness)).reason == "end_turn"
    await asyncio.wait_for(following, 5)
    assert len(seen) == 6
    assert {(type(each.actor), each.actor) for each in seen} == {(str, seen[-1].actor)}
    assert seen[-1].actor == ("service:desk" if guarded else "agent:support")


def piece(text: str, index: int, *, id: str = "m1", attempt: int = 1, **more: Any) -> limpet.Event:
    data = {"text": text, "index": index}
    how = {"partial": True, "attempt": attempt, **more}
    return limpet.Event(0, id, "agent.message", "agent:a", 1, data, **how)


def test_pieces_are_joined_in_their_order() -> None:
    """Those of the last attempt, of the newest message; recorded events are not pieces."""
    assert assemble([]) == ""
    assert assemble([piece("b", 1), piece("a", 0)]) == "ab"
    again = [piece("old", 0), piece("new", 0, attempt=2), piece("er", 1, attempt=2)]
    assert assemble(again) == "newer"
    assert assemble([piece("one", 0), piece("two", 0, id="m2")]) == "two"
    assert assemble([piece("a", 0), piece("whole", 0, partial=False)]) == "a"
