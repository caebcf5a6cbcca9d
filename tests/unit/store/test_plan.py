"""Planning: what a commit costs, and what is not planned on a state with a hole."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

import limpet
from limpet.model import SALT_BYTES, Commit
from limpet.model.fold import is_run
from limpet.store.memory import MemoryStore
from limpet.store.plan import Plan
from limpet.testing.commits import addition, create, draft, key


async def cost(inputs: int) -> int:
    """Lines of Python that a commit of so many inputs, each processed by itself, runs through."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    async with limpet.open("memory://") as lp:
        session = await lp.create("a", "u", actor="x")
        commit = await lp.commit().__aenter__()
        for number in range(inputs):
            commit.append(session, "user.said", {"n": number})
        for number in range(inputs):
            commit.record(session, limpet.facts.processed([2 + number]))
        before = sys.gettrace()
        sys.settrace(count)
        try:
            async with commit:
                pass
        finally:
            sys.settrace(before)
        assert session.head.pending == 0
        assert session.version == 1 + 2 * inputs
    return lines


async def test_inputs_processed_in_the_commit_that_brings_them_cost_the_same_each() -> None:
    """Four times as many are about four times the work; all against all would be sixteen."""
    few, many = await cost(100), await cost(400)
    assert 0 < many < 6 * few


async def test_thousands_of_inputs_are_processed_in_the_commit_that_brings_them() -> None:
    """Three thousand of each, all or nothing, and none is pending afterwards."""
    async with limpet.open("memory://") as lp:
        session = await lp.create("a", "u", actor="x")
        async with lp.commit() as commit:
            for _ in range(3_000):
                commit.append(session, "user.said")
            for number in range(3_000):
                commit.record(session, limpet.facts.processed([2 + number]))
        assert (session.version, session.head.pending) == (6_001, 0)
        assert (await lp.maintenance.verify()).findings == ()


@pytest.mark.parametrize(
    ("change", "guards"),
    [
        ({"inc": {"n": 1}}, {"n": 1}),
        ({"set": {"n": 1}}, {"n": 1}),
        ({}, {"app:n": 0}),
    ],
)
async def test_no_guard_is_judged_on_a_fold_with_a_hole(
    change: dict[str, Any], guards: dict[str, int]
) -> None:
    """A guarded commit is refused; a plain one is planned, and its answer names the hole."""
    store, one = MemoryStore(), key()
    await create(store, one, {"n": 0, "items": []})
    kept = store._kept[one]
    kept.keep(msgspec.structs.replace(kept.fold, damaged=(1,)))
    with pytest.raises(limpet.errors.SessionCorrupt):
        await store.commit([addition(one, draft(**change), guards=guards)])
    with pytest.raises(limpet.errors.SessionCorrupt):
        await store.commit([addition(one), addition(one, draft(**change), guards=guards)])
    (committed,) = await store.commit([addition(one, draft(set={"n": 5, "app:n": 1}))])
    assert (committed.head.version, committed.damaged) == (2, (1,))


async def on_one_session() -> tuple[Plan, Commit]:
    """A plan, and a commit that takes the short way through it."""
    store, one = MemoryStore(), key()
    await create(store, one)
    commit = addition(one, draft("agent.did"))
    assert commit.drafts[0].plain
    return Plan(store, 1, lambda: bytes(SALT_BYTES)), commit


async def test_a_plain_commit_follows_what_was_planned_before_it() -> None:
    """Two callers of one batch write to one session: each has its own place in the log."""
    plan, commit = await on_one_session()
    made = [plan.add([commit])[0] for _ in range(2)]
    assert [each.head.version for each in made] == [2, 3]


async def test_the_state_of_a_plain_commit_is_pinned() -> None:
    """An event that changes nothing may be the one that a checkpoint is taken at."""
    plan, commit = await on_one_session()
    plan.add([msgspec.structs.replace(commit, pin=7)])
    assert [(at, fold.head.version) for _, at, fold in plan.pins] == [(7, 2)]


async def test_events_of_which_facts_follow_are_not_recorded_as_a_run() -> None:
    """A message may count against a budget, though anybody may append one."""
    plan, commit = await on_one_session()
    plan.add([commit])
    fold = plan.folds[commit.key]
    message = msgspec.structs.replace(commit.drafts[0], type="agent.message")
    assert is_run(fold, commit.drafts)
    assert not is_run(fold, (message, message))
