"""Agents, what they learn, and the outcomes of their sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

import limpet
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def answers(turn: limpet.Turn) -> None:
    await turn.say("the parcel has arrived")


async def test_a_session_keeps_the_version_of_its_agent(world: World) -> None:
    """A newer definition changes new sessions, not this one."""
    lp = world.lp
    await lp.agents.put("support", {"model": "small"}, actor="user:ada")
    await lp.environments.put("default", {}, actor="user:ada")
    session = await lp.create("support", "ada", agent="support", environment="default", budget=0.5)
    await lp.agents.put("support", {"model": "large"}, actor="user:ada")
    newer = await lp.create("support", "ada", agent="support")
    older = await lp.create("support", "ada", agent="support@1")
    facts = [s.head.facts["agent"] for s in (session, newer, older)]
    assert facts == ["support@1", "support@2", "support@1"]
    assert session.head.facts["environment"] == "default@1"
    assert session.runs.budget is not None
    assert session.runs.budget.limit.cost == 0.5
    with pytest.raises(limpet.errors.DocumentNotFound, match="Define it first"):
        await lp.create("support", "ada", agent="nobody")
    with pytest.raises(limpet.InvalidInput):
        await lp.create("support", "ada", agent="support@new")


async def test_learnings_are_shared_once_and_promoted_into_a_curated_text(world: World) -> None:
    """The same text twice is one learning; what is promoted is rendered, by kind."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.learn("lesson", "Ask for the  order number.")
        await turn.learn("error", "The refund API is slow.")

    await world.begin("one")
    await world.begin("two")
    await world.work(harness)
    found = {learning.kind: learning for learning in await world.lp.learnings("support")}
    assert found["lesson"].text == "Ask for the order number."
    assert len(found) == 2
    for _ in range(2):
        await world.lp.promote("support", found["lesson"])
    text = await world.lp.memory_of("support")
    assert text == "# What support has learned\n\n## Lessons\n\n- Ask for the order number.\n"
    assert await world.lp.memory_of("nobody") == ""


@pytest.mark.parametrize(("kind", "text"), [("fact", "x"), ("lesson", ""), ("lesson", "x" * 2_001)])
async def test_a_learning_is_a_short_text_of_a_kind(world: World, kind: Any, text: str) -> None:
    """Anything else is refused."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.learn(kind, text)

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.InvalidInput)


async def test_an_outcome_is_graded_from_the_log(world: World) -> None:
    """missing, in_progress, blocked, sleeping, done_candidate."""
    session = await world.begin()
    assert await session.outcome.grade() == "missing"
    await session.outcome.define("deliver", criteria=["the parcel has arrived"])
    assert await session.outcome.grade() == "in_progress"

    async def asks(turn: limpet.Turn) -> None:
        if turn.inputs:
            await turn.approve("go", {})
            turn.revisit(timedelta(hours=1), "look again")

    await world.work(asks)
    assert await session.outcome.grade() == "blocked"
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(asks)
    assert await session.outcome.grade() == "sleeping"
    world.later(3_601)
    await world.work(asks)
    assert await session.outcome.grade() == "done_candidate"


async def test_22_criteria_are_never_matched_against_their_own_text(world: World) -> None:
    """An evaluator sees what the agent said and did since, and not the definition."""
    session = await world.begin()
    await session.outcome.define("deliver", criteria=["arrived"])

    def mentioned(outcome: limpet.Outcome, evidence: Sequence[limpet.Event]) -> list[bool]:
        texts = [str(dict(event.data)) for event in evidence]
        return [any(each in text for text in texts) for each in outcome.criteria]

    async def silent(turn: limpet.Turn) -> None:
        pass

    assert (await session.outcome.evaluate(mentioned)).verdict == "not_ready"
    await world.work(silent)
    assert (await session.outcome.evaluate()).verdict == "uncertain"
    assert (await session.outcome.evaluate(mentioned)).verdict == "fail"
    await world.send("and?")
    await world.work(answers)
    found = await session.outcome.evaluate(mentioned)
    assert (found.verdict, found.trend) == ("pass", "improving")
    assert session.outcome.current is not None
    assert session.outcome.current.verdict == "pass"
    types = [event.type for event in await session.outcome.history()]
    assert types == ["session.outcome_evaluated"] * 4 + ["user.define_outcome"]


@pytest.mark.parametrize("criteria", ["text", [""], [5], ["x"] * 33])
async def test_criteria_are_a_short_list_of_texts(world: World, criteria: Any) -> None:
    """Anything else is refused, and nothing is recorded."""
    session = await world.begin()
    with pytest.raises(limpet.errors.InvalidEvent):
        await session.outcome.define("deliver", criteria=criteria)
    assert session.version == 1


async def test_an_evaluator_answers_for_each_criterion(world: World) -> None:
    """One answer for all is fine; another number is not."""
    session = await world.begin()
    await session.outcome.define("deliver", criteria=["a", "b"])
    await world.work(answers)
    assert (await session.outcome.evaluate(lambda outcome, evidence: True)).met == (True, True)
    with pytest.raises(limpet.InvalidInput):
        await session.outcome.evaluate(lambda outcome, evidence: [True, True, True])
