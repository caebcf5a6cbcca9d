"""Movers in processes of their own, killed and stopped at every write of a move."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet
from limpet.session.limpet import journal_of
from limpet.session.runs.delegation import head_of
from tests.support.examples import tries
from tests.support.live_mover import KEY
from tests.support.node import answer
from tests.support.processes import Child
from tests.support.seeds import seed

POINTS = 24  # a move of this session makes fewer writes
ROUNDS = 10  # of the 300 moves of all three kinds of victims


async def _fill(path: Path) -> None:
    async with limpet.open(f"sqlite:///{path}?sync=normal", node="a") as lp:
        s = await lp.create(*(KEY.app, KEY.user, KEY.id), state={"n": 0}, actor="user:ada")
        for number in range(20):
            await s.append("user.message", {"text": "hi", "number": number}, inc={"n": 1})
        await s.memory.session.put("likes", ["tea"])
        await s.blobs.put(b"picture", "image/png")


async def _owners(*lps: Limpet) -> int:
    heads = [await head_of(journal_of(lp), KEY) for lp in lps]
    return len([head for head in heads if head is not None and "departed" not in head.facts])


async def _check(a: Limpet, b: Limpet, written: int) -> None:
    """The next move finishes, and everything that was accepted is at its one owner."""
    for _ in range(2):  # the first may read that an epoch was refused, and return the session
        moved = await a.move(KEY, b, force=True)
        assert await _owners(a, b) == 1, moved
        if moved.success:
            break
    assert moved.success, moved
    s = await b.get(KEY)
    assert s.state["n"] == 20 + written
    assert await s.memory.session.get("likes") == ["tea"]
    for lp in (a, b):
        assert (await lp.maintenance.verify()).findings == ()


def _urls(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.db", tmp_path / "b.db"


@pytest.mark.deeper
@pytest.mark.parametrize("writes", tries(list(range(0, POINTS, 3)), list(range(POINTS))))
async def test_a_killed_mover_leaves_one_owner_at_most_and_the_next_finishes(
    tmp_path: Path, writes: int
) -> None:
    """SIGKILL before each write to either store, while somebody else writes the session."""
    one, two = _urls(tmp_path)
    await _fill(one)
    with Child("tests.support.live_mover", one, two, writes) as child:
        line = child.line()
        assert line is not None, child.complaint()
        child.kill()
    async with (
        limpet.open(f"sqlite:///{one}", node="a") as a,
        limpet.open(f"sqlite:///{two}", node="b") as b,
    ):
        assert await _owners(a, b) <= 1
        written = 0
        for lp in (a, b):
            with suppress(limpet.SessionError):
                s = lp.session(KEY, actor="user:ada")
                await s.append("user.message", {"text": "meanwhile"}, inc={"n": 1})
                written += 1
        assert written <= 1
        if await head_of(journal_of(a), KEY):
            await _check(a, b, written)


@pytest.mark.deeper
@pytest.mark.parametrize("writes", tries([4, 9, 12], list(range(POINTS))))
async def test_a_stopped_mover_that_wakes_up_late_changes_nothing(
    tmp_path: Path, writes: int
) -> None:
    """SIGSTOP in the middle of a move; another mover finishes; then the first goes on."""
    one, two = _urls(tmp_path)
    await _fill(one)
    with Child("tests.support.live_mover", one, two, writes) as child:
        line = child.line()
        assert line is not None, child.complaint()
        if line == "halted":
            os.kill(child.pid, signal.SIGSTOP)
        async with (
            limpet.open(f"sqlite:///{one}", node="a") as a,
            limpet.open(f"sqlite:///{two}", node="b") as b,
        ):
            await _check(a, b, 0)
            if line == "halted":
                os.kill(child.pid, signal.SIGCONT)
                child.tell("go on")
                assert (child.line() or "").startswith("done")
            assert await _owners(a, b) == 1
            s = await b.get(KEY, actor="user:ada")
            await s.append("user.message", {"text": "on"}, inc={"n": 1})
            assert (await s.refresh()).state["n"] == 21


async def test_moves_under_load_with_a_worker_lose_nothing(tmp_path: Path) -> None:
    """Workers answer messages at whichever store has the session, and movers die at random points:
    every accepted message is answered exactly once."""
    one, two = _urls(tmp_path)
    await _fill(one)
    dice = random.Random(seed("moves under load"))

    async def answering(turn: limpet.Turn) -> None:
        for event in turn.inputs:
            await turn.say(f"re {event.seq}")

    async with (
        limpet.open(f"sqlite:///{one}?sync=normal", node="a") as a,
        limpet.open(f"sqlite:///{two}?sync=normal", node="b") as b,
    ):
        stop = asyncio.Event()
        workers = [limpet.Worker(lp, answering, app=KEY.app, signals=False) for lp in (a, b)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]

        async def talk() -> None:
            while not stop.is_set():
                for lp in (a, b):
                    with suppress(limpet.LimpetError):
                        await lp.session(KEY).append(
                            "user.message", {"text": "hi", "m": 1}, actor="user:ada"
                        )
                await asyncio.sleep(0.01)

        talking = asyncio.create_task(talk())
        source, target = (a, one), (b, two)
        try:
            for _ in range(tries(2, 30)):
                point = dice.randrange(POINTS)
                with Child("tests.support.live_mover", source[1], target[1], point) as child:
                    await asyncio.to_thread(child.line)
                    child.kill()
                assert await _owners(a, b) <= 1
                while not (await source[0].move(KEY, target[0], force=True)).success:
                    assert await _owners(a, b) == 1
                source, target = target, source
        finally:
            stop.set()
            await talking
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)
        owner = source[0]
        while (await owner.get(KEY)).head.pending:
            await owner.wake(KEY, answering)
        s = await owner.get(KEY)
        asked = [event.seq async for event in _all(s) if event.type == "user.message"]
        said = [event.data["text"] async for event in _all(s) if event.type == "agent.message"]
        assert sorted(said) == sorted([f"re {seq}" for seq in asked])
        for lp in (a, b):
            assert (await lp.maintenance.verify()).findings == ()


@pytest.mark.deeper
@pytest.mark.parametrize("round", tries([0], list(range(ROUNDS))))
async def test_nodes_and_movers_die_and_stand_still_under_load(tmp_path: Path, round: int) -> None:
    """Each node is a process with a worker and a writer. One of source, target and mover is killed
    or stopped at a random point of each of 300 moves, of three in the suite: every message that was
    accepted is answered exactly once, and one store owns the session. Each round has a session of
    its own: a log grows as long as it is written, and every move reads it."""
    one, two = _urls(tmp_path)
    await _fill(one)
    dice = random.Random(f"{seed('nodes under load')}/{round}")
    places = {"a": one, "b": two}
    with ExitStack() as stack:
        nodes = {name: _node(stack, path) for name, path in places.items()}
        source, target = "a", "b"
        async with (
            limpet.open(f"sqlite:///{one}?sync=normal", node="a") as a,
            limpet.open(f"sqlite:///{two}?sync=normal", node="b") as b,
        ):
            stores = {"a": a, "b": b}
            for number in range(tries(3, 300 // ROUNDS)):
                victim = (source, target, "mover")[number % 3]
                killed = number % 2 == 0 if number < 6 else dice.random() < 0.5
                point = dice.randrange(POINTS)
                child = Child("tests.support.live_mover", places[source], places[target], point)
                with child:
                    halted = await asyncio.to_thread(child.line) == "halted"
                    struck = child if victim == "mover" else nodes[victim]
                    os.kill(struck.pid, signal.SIGKILL if killed else signal.SIGSTOP)
                    if victim != "mover" and halted:
                        child.tell("go on")
                        await asyncio.sleep(dice.random() / 10)
                    if victim != "mover" or killed:
                        child.kill()
                        await _moved(stores[source], stores[target], a, b, struck, killed=killed)
                    else:  # another mover finishes, and then this one wakes up
                        await _moved(stores[source], stores[target], a, b, None, killed=False)
                        os.kill(child.pid, signal.SIGCONT)
                        if halted:
                            child.tell("go on")
                            assert (await asyncio.to_thread(child.line) or "").startswith("done")
                assert await _owners(a, b) == 1
                if killed and victim != "mover":
                    nodes[victim] = _node(stack, places[victim])
                source, target = target, source
            for node in nodes.values():
                node.kill()
            owner = stores[source]
            async with asyncio.timeout(60):
                while (await owner.get(KEY)).head.pending:
                    await owner.wake(KEY, answer)
            s = await owner.get(KEY)
            asked = [event.seq async for event in _all(s) if event.type == "user.message"]
            said = [event.data["text"] async for event in _all(s) if event.type == "agent.message"]
            assert sorted(said) == sorted([f"re {seq}" for seq in asked])
            for lp in (a, b):
                assert (await lp.maintenance.verify()).findings == ()


def _node(stack: ExitStack, path: Path) -> Child:
    child = stack.enter_context(Child("tests.support.node", path))
    assert child.line() == "ready", child.complaint()
    return child


async def _moved(
    source: Limpet, target: Limpet, a: Limpet, b: Limpet, struck: Child | None, *, killed: bool
) -> None:
    """Finish the move, however often that takes; a node that stands still wakes up meanwhile: it
    may hold the lock of a file."""
    for number in range(100):
        with suppress(limpet.StoreError):
            if (await source.move(KEY, target, force=True)).success:
                break
        assert await _owners(a, b) <= 1
        if number == 0 and struck is not None and not killed:
            os.kill(struck.pid, signal.SIGCONT)
    else:
        raise AssertionError("no attempt has finished the move")
    if struck is not None and not killed:
        os.kill(struck.pid, signal.SIGCONT)


async def _all(s: limpet.Session[Any]) -> AsyncIterator[limpet.Event]:
    after = 0
    while page := await s.read(after=after, limit=500):
        for event in page:
            yield event
        after = page[-1].seq
