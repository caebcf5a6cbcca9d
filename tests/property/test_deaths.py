"""Fleets with sessions that kill, and with processes that are killed, in any order."""

from __future__ import annotations

import random

from tests.support import seeds
from tests.support.deaths import Fleet, a_fleet
from tests.support.examples import schedules

FEW, MANY = 40, 5_000


async def _schedule(seed: int) -> None:
    dice = random.Random(seed)
    retries = dice.randrange(1, 4)
    async with a_fleet(retries=retries, seed=seed) as fleet:
        killers = {f"k{number}" for number in range(dice.randrange(0, 4))}
        innocents = {f"s{number}" for number in range(dice.randrange(1, 25))}
        ids = sorted(killers | innocents)
        dice.shuffle(ids)
        for id in ids:
            await fleet.add(id, "die" if id in killers else "hi")
        await _storm(dice, fleet)
        from_outside = fleet.deaths if not killers else None
        await fleet.finish(concurrency=dice.choice([1, 4, 64]))
        assert await fleet.dead() == killers
        assert {id for id, end in (await fleet.ends()).items() if end == "end_turn"} == innocents
        if from_outside is not None:
            assert fleet.deaths == from_outside
        for id in innocents:
            assert fleet.wakes[id] <= 1 + fleet.in_flight[id]
        assert (await fleet.lp.maintenance.verify()).ok


async def _storm(dice: random.Random, fleet: Fleet) -> None:
    """Processes that are killed from outside, or by what they run."""
    for _ in range(dice.randrange(0, 6)):
        number = dice.randrange(2, 9)
        await fleet.process(concurrency=dice.choice([number, 64]), kills_at=number)
        fleet.later(dice.choice([1, 31, 400]))


async def test_only_who_kills_is_dead_in_any_schedule() -> None:
    """Every other session is answered, with a wake for each death that it was in and one more;
    suspects run alone (which the harness asserts); the number of deaths is bounded."""
    first = seeds.seed("deaths")
    for seed in range(first, first + schedules(FEW, MANY)):
        try:
            await _schedule(seed)
        except BaseException:
            print(f"the failing schedule: _schedule({seed})")
            raise
