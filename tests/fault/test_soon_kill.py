"""A process is killed with SIGKILL while it flushes; its successor goes on with the same file."""

from __future__ import annotations

import random
from pathlib import Path

import limpet
from tests.support.processes import Child
from tests.support.seeds import seed
from tests.support.soon_writer import APP, EACH, SESSIONS, USER

KILLS = 5


async def test_what_a_flush_acknowledged_is_there_in_order_and_once(tmp_path: Path) -> None:
    """Of the round that was under way, a session has a beginning or nothing; no event twice."""
    chance = random.Random(seed("soon_kill"))
    path, rounds = tmp_path / "soon.db", 0
    for _ in range(KILLS):
        with Child("tests.support.soon_writer", path, rounds) as child:
            said = child.killed_after(chance.randrange(1, 8), chance.uniform(0, 5_000))
        assert said == [str(rounds + each) for each in range(len(said))]
        rounds += len(said)
        await check(path, rounds)


async def check(path: Path, rounds: int) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.verify()).ok
        for number in range(SESSIONS):
            s = await lp.get(APP, USER, f"s{number}")
            recorded: list[int] = []
            while page := await s.read(after=1 + len(recorded), limit=1_000):
                recorded += [int(event.id) for event in page]
            assert recorded == list(range(len(recorded)))
            assert list(s.state["log"]) == recorded
            assert rounds * EACH <= len(recorded) <= (rounds + 1) * EACH
