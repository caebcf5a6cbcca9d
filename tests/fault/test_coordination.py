"""Sessions that share fields and coordinate children, in several processes, some of them killed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import limpet
from tests.support.coordinator import ADA, LEAD, SOURCE
from tests.support.examples import tries
from tests.support.processes import Child

COUNT = 100


def started(stack: ExitStack, role: str, url: str, count: int) -> Child:
    child = stack.enter_context(Child("tests.support.coordinator", role, url, count))
    child.expect("ready")
    return child


async def test_a_change_in_one_process_is_seen_in_another_and_never_backwards(
    tmp_path: Path,
) -> None:
    """The follower sees versions and values rise, and the last one; a read waits for it."""
    url = f"sqlite:///{tmp_path}/a.db?sync=normal"
    async with limpet.open(url) as lp:
        source = await lp.create(SOURCE.app, SOURCE.user, SOURCE.id, state={"n": 0}, actor=ADA)
        target = await lp.create("support", "ada", "target", actor=ADA)
        share = (await source.share(target, "n", sync="live")).id
        with ExitStack() as stack:
            child = started(stack, "setter", url, COUNT)
            child.tell("go")
            seen: list[tuple[int, int]] = []
            async for context in target.follow_shared(share):
                seen.append((context.versions["n"], context.values["n"]))
                if context.values["n"] == COUNT:
                    break
            assert seen == sorted(set(seen)), "neither twice nor backwards"
            assert [value for _, value in seen] == list(range(seen[0][1], COUNT + 1)), "all of them"
            await asyncio.to_thread(child.expect, "done")
        newest = (await source.refresh()).version
        assert (await target.read_shared(share, at_least=newest)).values["n"] == COUNT


async def test_writers_through_shares_in_several_processes_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db?sync=normal"
    each = 20
    async with limpet.open(url) as lp:
        source = await lp.create(SOURCE.app, SOURCE.user, SOURCE.id, state={"n": 0}, actor=ADA)
        with ExitStack() as stack:
            children = [started(stack, "counter", url, each) for _ in range(3)]
            for child in children:
                child.tell("go")
            for child in children:
                await asyncio.to_thread(child.expect, "done")
        assert (await source.refresh()).values["n"] == 3 * each


async def test_a_coordinator_that_is_killed_goes_on_from_where_it_was(tmp_path: Path) -> None:
    """Killed with -9 after so many steps, again and again: each child is spawned once, ends once,
    and parent and child agree at every moment; budgets add up."""
    url = f"sqlite:///{tmp_path}/a.db?sync=normal"
    count = 12
    async with limpet.open(url) as lp:
        await lp.create(LEAD.app, LEAD.user, LEAD.id, budget=limpet.Budget(tokens=10**6), actor=ADA)
        for kill_after in (*tries((1, 2, 3, 5, 7, 9), tuple(range(1, 12))), None):
            with ExitStack() as stack:
                child = started(stack, "lead", url, count)
                child.tell("go")
                for _ in range(count if kill_after is None else kill_after):
                    await asyncio.to_thread(child.expect, "step")
                if kill_after is None:
                    await asyncio.to_thread(child.expect, "done")
                else:
                    child.kill()
            children = await lp.wait_for_children(LEAD, timeout=0)
            for key in (*children.done, *children.pending):
                ended = (await lp.get(key)).phase == "completed"
                assert ended is (key in children.done), "one is done, and the other does not know"
        assert [output["n"] for output in children.done.values()] == list(range(count))
        assert children.pending == ()
        lead = await lp.get(LEAD)
        assert lead.runs.budget is not None
        assert lead.runs.budget.remaining.tokens == 10**6
        assert (await lp.maintenance.verify()).ok
