"""The data of the built-in events, as other programs read them from the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import limpet
from limpet.runtime.wake import Wake, harness_options
from tests.support.agents import World, a_world

# Each type, and the members that its data has whatever happened; others may be there too.
MEMBERS = {
    "user.message": {"text"},
    "user.interrupt": {"note"},
    "user.tool_confirmation": {"request_id", "allow", "note"},
    "user.custom_tool_result": {"request_id", "output"},
    "user.define_outcome": {"title", "detail", "criteria"},
    "agent.message": {"text", "model", "usage", "cost"},
    "agent.tool_use": {"request_id", "name", "input", "permission"},
    "agent.custom_tool_use": {"request_id", "name", "input"},
    "agent.tool_result": {"request_id", "output"},
    "session.status_changed": {"from", "to", "reason"},
    "session.status_idle": {"stop_reason", "blocked_on"},
    "session.error": {"code", "message", "attempt", "retry_at"},
    "session.child_created": {"child", "title"},
    "session.child_ended": {"child", "stop_reason", "output"},
    "span.started": {"span_id", "kind", "name"},
    "span.completed": {"span_id", "kind", "name", "result"},
    "step.recorded": {"name", "occurrence", "args_hash", "result"},
    "effect.intended": {"name", "occurrence", "args_hash", "key"},
    "effect.succeeded": {"name", "occurrence", "args_hash", "key", "result"},
    "effect.failed": {"name", "occurrence", "args_hash", "key", "error"},
    "effect.unknown": {"name", "occurrence", "args_hash", "key", "error"},
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def refuses() -> None:
    raise ValueError("no")


def never_heard() -> None:
    raise limpet.EffectUnknown("ring", 1, "nobody answered")


async def harness(turn: limpet.Turn) -> None:
    """Everything a turn can record; its first run fails."""
    if turn.attempt == 1:
        raise RuntimeError("once")
    await turn.step("plan", lambda: 1)
    await turn.effect("pay", lambda: 1)
    for name, act in (("refuse", refuses), ("ring", never_heard)):
        with suppress(limpet.EffectFailed, limpet.EffectUnknown):
            await turn.effect(name, act)
    child = await turn.delegate("research", "look", title="a look")
    await child.result()
    await turn.approve("wire", {"eur": 9})
    await turn.ask("rate", {})
    usage = {"input": 1, "output": 1}
    await turn.say("done", model="m", usage=usage, cost=0.1)


async def works(turn: limpet.Turn) -> None:
    await turn.say("found")


async def everything(world: World) -> list[limpet.Event]:
    session = await world.begin("hi")
    await session.outcome.define("paid", "in full", ["the money is sent"], actor="user:ada")
    await world.work(harness)
    world.later(10)
    await world.work(harness)
    await session.resolve(session.blocked_on[0].id, give_up=True, actor="user:ada")
    await world.work(harness)
    (lease,) = await world.lp.work.claim("w", app="research")
    await Wake(world.lp, lease, harness_options(works)).run()
    world.later(1)
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True, note="fine", actor="user:ada")
    await world.work(harness)
    await session.answer(session.blocked_on[0].id, 1.1, actor="user:ada")
    await world.work(harness)
    await session.interrupt("enough", actor="user:ada")
    return await world.log()


async def test_every_family_has_the_members_that_others_read(world: World) -> None:
    """One story records each type, by the runtime and not by hand."""
    found: dict[str, Any] = {}
    for event in await everything(world):
        found.setdefault(event.type, event.data)
    assert set(MEMBERS) <= set(found)
    for type, members in MEMBERS.items():
        assert members <= set(found[type]), type


async def test_what_a_wake_records_has_its_id_and_its_spans_are_nested(world: World) -> None:
    """Wake spans by their own id, tool spans below them; inputs and answers have none."""
    log = await everything(world)
    wakes = {e.wake_id for e in log if e.type == "span.started" and e.data["kind"] == "wake"}
    for event in log:
        if event.type.startswith(("span.", "step.", "effect.", "agent.")):
            assert event.wake_id in wakes, event.type
        if event.type.startswith("user."):
            assert event.wake_id is None
        if event.type == "span.started" and event.data["kind"] == "tool":
            assert event.data["parent_span_id"] == event.wake_id


async def test_pending_is_an_input_that_nothing_has_processed(world: World) -> None:
    """processed is 0 until the end of its turn, then the seq of the event that says so."""
    session = await world.begin("hi")
    (message,) = await session.pending()
    assert (message.processed, message.processed_at) == (0, None)
    await world.work(works)
    (message,) = [e for e in await world.log() if e.type == "user.message"]
    (by,) = [e for e in await world.log() if e.type == "session.status_idle"]
    assert message.processed == by.seq
    assert message.processed_at is not None
    assert [e.processed for e in await world.log() if e.type == "agent.message"] == [None]
