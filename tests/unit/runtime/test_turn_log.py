"""The log of a turn: its beginning is recorded once, whatever becomes of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import limpet
from limpet.errors import StoreBusy
from limpet.model import Commit
from limpet.runtime import turn_log
from limpet.store.protocol import Committed
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_a_beginning_whose_answers_are_lost_is_recorded_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next write of the run sends it under the same ids, and finds it."""
    commit, losing = world.store.commit, [False]

    async def lost(commits: Sequence[Commit]) -> tuple[Committed, ...]:
        committed = await commit(commits)
        if losing[0]:
            raise StoreBusy("the answer is lost")
        return committed

    async def harness(turn: Any) -> None:
        losing[0] = True
        with pytest.raises(limpet.StoreError):
            await turn.append("agent.note", {"n": 1})
        losing[0] = False
        await turn.append("agent.note", {"n": 2})

    monkeypatch.setattr(turn_log, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(world.store, "commit", lost)
    await world.begin("hi")
    (woken,) = await world.work(harness)
    types = Counter(await world.types())
    assert (woken.reason, types["agent.note"], types["span.started"]) == ("end_turn", 2, 1)


async def test_an_id_that_was_made_for_a_commit_is_not_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only when it is sent again can it have been recorded; then it is found."""
    commit, sent = world.store.commit, list[list[tuple[str, bool]]]()
    losing = [True]

    async def lost(commits: Sequence[Commit]) -> tuple[Committed, ...]:
        sent.append([(d.type, d.caller_chose_id) for each in commits for d in each.drafts])
        committed = await commit(commits)
        if losing.pop() if losing else False:
            raise StoreBusy("the answer is lost")
        return committed

    async def harness(turn: Any) -> None:
        await turn.step("look", lambda: 1)

    await world.begin("hi")
    monkeypatch.setattr(turn_log, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(world.store, "commit", lost)
    await world.work(harness)
    first, again, *_ = sent
    assert [chosen for type, chosen in first if type.startswith("span.")] == [False]
    assert again == [(type, True) for type, _ in first]
    assert Counter(await world.types())["span.started"] == 1
