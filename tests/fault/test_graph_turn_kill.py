"""A worker that runs a graph is killed with kill -9 at its commits; nothing is paid twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import limpet
from tests.support.examples import tries
from tests.support.graph_worker import APP, KEY
from tests.support.processes import Child

SAID = "[2, 3, 1] RECEIPT 6\n"
PAYMENTS = 4


async def begin(folder: Path) -> None:
    async with limpet.open(f"sqlite:///{folder}/graph.db") as lp:
        session = await lp.create(APP, "ada", id=KEY[2], actor="user:ada")
        await session.append("user.message", {"text": "three things"}, actor="user:ada")


def work(folder: Path, minutes: int, die_at: int, when: str) -> str | None:
    """Run one worker; what the agent has said at its end, or None if it was killed."""
    arguments = (folder / "graph.db", folder / "bank", minutes, die_at, when)
    with Child("tests.support.graph_worker", *arguments) as child:
        printed = child.output()
        if child.ended() == -signal.SIGKILL:
            return None
        child.end()
        assert child.complaint() == ""
    return printed


@pytest.mark.deeper
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", tries([1, 4, 7, 10, 14, 17, 20], list(range(1, 40))))
def test_a_killed_worker_of_a_graph_pays_once(tmp_path: Path, place: int, when: str) -> None:
    """The next worker goes on after the last completed node, asks about what it cannot know, and
    says what a worker that was not killed says."""
    asyncio.run(begin(tmp_path))
    said = work(tmp_path, 0, place, when)
    if said is None:
        said = work(tmp_path, 2, 0, when)
    assert said == SAID
    paid = (tmp_path / "bank").read_text().splitlines()
    assert len(paid) == len(set(paid)) == PAYMENTS


def test_a_graph_whose_workers_are_killed_again_and_again_ends_right(tmp_path: Path) -> None:
    """Each worker dies at its sixth commit: the run still comes to the same end."""
    asyncio.run(begin(tmp_path))
    said = None
    for number in range(30):
        if (said := work(tmp_path, 2 * number, 6, "after")) is not None:
            break
    assert said == SAID
    paid = (tmp_path / "bank").read_text().splitlines()
    assert len(paid) == len(set(paid)) == PAYMENTS
