"""The power fails at the nth write: what was acknowledged had been synced before."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from limpet import Limpet, LimpetError
from limpet.store.sqlite import write_connection
from limpet.store.sqlite.store import SQLiteStore
from tests.support.power import Power, powered
from tests.support.seeds import seed
from tests.support.workload import Ledger, Run, Step, check, script

NAME = "power.db"
CUTS_MAX = 60


@pytest.fixture(autouse=True)
def _early_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short script must meet checkpoints too."""
    monkeypatch.setattr(write_connection, "CHECKPOINT_PAGES", 40)


async def run_until_cut(
    directory: Path, power: Power, ledger: Ledger, steps: list[Step], sync: str = "full"
) -> list[Step]:
    """Take the steps until the power is cut; those that were not acknowledged."""
    with powered(power) as vfs:
        try:
            store = await SQLiteStore.open(directory / NAME, vfs=vfs, sync=sync, busy_seconds=0.5)
        except LimpetError:
            assert power.off
            return steps
        async with Limpet("sqlite:///power", store=store) as lp:
            run = Run(lp, ledger)
            for number, step in enumerate(steps):
                error = await run.take(step)
                if error is not None:
                    assert power.off, f"{step.name} failed while the power was on: {error!r}"
                    return steps[number:]
    return []


async def cut_at(directory: Path, number: int, chance: random.Random, sync: str = "full") -> Ledger:
    """One run with one cut; leaves the remains in `directory`/left."""
    (directory / "run").mkdir()
    ledger, power = Ledger(), Power(directory / "run", number)
    await run_until_cut(directory / "run", power, ledger, list(script()), sync)
    power.left(directory / "left", chance)
    shutil.rmtree(directory / "run")
    return ledger


async def writes_in_all(directory: Path) -> int:
    """How many calls there are to cut at."""
    (directory / "run").mkdir()
    power = Power(directory / "run")
    assert await run_until_cut(directory / "run", power, Ledger(), list(script())) == []
    shutil.rmtree(directory / "run")
    return power.calls


@pytest.mark.parametrize(
    "stride",
    [pytest.param(23, id="some"), pytest.param(1, marks=pytest.mark.torture, id="every")],
)
async def test_a_cut_at_any_write_takes_nothing_acknowledged(tmp_path: Path, stride: int) -> None:
    """With sync=full every acknowledged event is there, whatever the disk kept of the rest."""
    start = seed("power")
    number = 1 + start % stride
    last = await writes_in_all(tmp_path)
    assert last > 300
    while number <= last:
        chance = random.Random(f"{start}/{number}")
        ledger = await cut_at(tmp_path, number, chance)
        try:
            await check(tmp_path / "left" / NAME, ledger)
        except BaseException:
            print(f"cut at write {number} of {last}")
            raise
        shutil.rmtree(tmp_path / "left")
        number += stride


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(3, id="some"), pytest.param(60, marks=pytest.mark.torture, id="many")],
)
async def test_cuts_in_series_take_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    """A successor that is cut off while it recovers or writes on leaves no less than it found."""
    start = seed("power series")
    for round_ in range(rounds):
        chance = random.Random(f"{start}/{round_}")
        directory = tmp_path / f"{round_}-0"
        directory.mkdir()
        ledger, steps, cuts = Ledger(), list(script()), 0
        while steps:
            power = Power(directory, chance.randrange(1, 200) if cuts < CUTS_MAX else None)
            steps = await run_until_cut(directory, power, ledger, steps)
            cuts += 1
            directory = tmp_path / f"{round_}-{cuts}"
            power.left(directory, chance)
        await check(directory / NAME, ledger)
        print(f"round {round_}: {cuts} cuts")


async def test_a_store_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    """With sync=normal a cut takes acknowledged events, which shows that these tests can fail;
    but what is left is still one consistent past."""
    start = seed("power normal")
    lost = 0
    for number in range(60, 600, 60):
        chance = random.Random(f"{start}/{number}")
        ledger = await cut_at(tmp_path, number, chance, sync="normal")
        path = tmp_path / "left" / NAME
        try:
            await check(path, ledger)
        except AssertionError:
            lost += 1
            await check(path, Ledger(asked=ledger.asked, going=ledger.going))
        shutil.rmtree(tmp_path / "left")
    assert lost > 0
