"""Forks of forks, when the session at the beginning is gone: they move, and are read to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import Key, Limpet

FIRST, SECOND, THIRD = [Key("support", "ada", name) for name in ("first", "second", "third")]
PAIRS = ["memory-sqlite", "sqlite-memory", "sqlite-postgresql", "postgresql-sqlite"]
GONE = ["deleted", "erased", "there"]


@pytest.fixture(params=PAIRS)
def kinds(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def grown(s: limpet.Session, start: int, count: int) -> None:
    for n in range(start, start + count):
        await s.append("agent.message", {"text": f"{n}"}, actor="agent:main", set={"n": n})


async def line(lp: Limpet, *, at: int) -> None:
    """Three sessions: events 1 to 6 are the first's, 7 to 10 the second's. The third begins at
    `at`: below the floor of the second, on it, or above it."""
    first = await lp.create("support", "ada", "first", state={"n": 0})
    await grown(first, 1, 7)
    second = await first.fork(6, id=SECOND.id, actor="agent:main")
    await grown(second, 60, 3)
    third = await second.fork(at, id=THIRD.id, actor="agent:main")
    await grown(third, 90, 3)


async def lose(lp: Limpet, gone: str) -> None:
    if gone == "deleted":
        await lp.delete(FIRST)
    elif gone == "erased":
        await lp.erase(FIRST, forks="keep")


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("at", [4, 6, 9])
async def test_a_fork_of_a_fork_moves_without_its_grandparent(
    pair: tuple[Limpet, Limpet], tmp_path: Path, at: int, gone: str
) -> None:
    """By copy and by file, where its parent is and where it is not: with the same state."""
    source, target = pair
    await line(source, at=at)
    await lose(source, gone)
    state = (await source.get(THIRD)).state
    await source.export(THIRD, tmp_path / "third.limpet")
    await source.export(SECOND, tmp_path / "second.limpet")
    for files in ((SECOND, THIRD), (THIRD, SECOND), (THIRD,)):
        async with limpet.open(f"sqlite:///{tmp_path}/{len(files)}-{files[0].id}.db") as fresh:
            for key in files:
                await fresh.import_(tmp_path / f"{key.id}.limpet")
            assert (await fresh.get(THIRD)).state == state
            assert (await fresh.maintenance.verify()).ok
    copied = await source.copy(to=target)
    assert copied.refused == ()
    assert (await target.get(THIRD)).state == state
    assert (await target.maintenance.verify()).ok


@pytest.mark.parametrize("gone", GONE)
async def test_blame_and_bisect_look_at_every_event_that_can_be_read(lp: Limpet, gone: str) -> None:
    """Those of the parent, too, where only the session above it is gone."""
    await line(lp, at=9)
    await lose(lp, gone)
    third = await lp.get(THIRD)
    read = [each for each in await third.read(limit=100) if not each.removed]
    changed = [each.seq for each in read if each.type == "agent.message" or each.seq == 1]
    assert [each.event.seq for each in await third.history.blame("n")] == changed[::-1]
    assert 8 in changed
    found = await third.history.bisect(lambda state: state["n"] < 60)
    assert found.seq == 8
