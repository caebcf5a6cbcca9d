"""A process is killed with SIGKILL while it flushes; its successor goes on with the same store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import limpet
from tests.support.examples import tries
from tests.support.postgres import without_clients
from tests.support.processes import Child
from tests.support.seeds import seed
from tests.support.soon_writer import APP, EACH, SESSIONS, USER


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/soon.db"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_what_a_flush_acknowledged_is_there_in_order_and_once(url: str) -> None:
    """Of the round that was under way, a session has a beginning or nothing; no event twice."""
    chance = random.Random(seed("soon_kill"))
    rounds = 0
    for _ in range(tries(5, 40)):
        with Child("tests.support.soon_writer", url, rounds) as child:
            said = child.killed_after(chance.randrange(1, 8), chance.uniform(0, 5_000))
        assert said == [str(rounds + each) for each in range(len(said))]
        rounds += len(said)
        if url.startswith("postgresql"):
            await without_clients(url)
        await check(url, rounds)


async def check(url: str, rounds: int) -> None:
    async with limpet.open(url) as lp:
        assert (await lp.maintenance.verify()).ok
        for number in range(SESSIONS):
            s = await lp.get(APP, USER, f"s{number}")
            recorded: list[int] = []
            while page := await s.read(after=1 + len(recorded), limit=1_000):
                recorded += [int(event.id) for event in page]
            assert recorded == list(range(len(recorded)))
            assert list(s.state["log"]) == recorded
            assert rounds * EACH <= len(recorded) <= (rounds + 1) * EACH
