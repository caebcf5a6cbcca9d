"""The runtime under every kind of bad luck, scheduled by a seed."""

from __future__ import annotations

import pytest

from limpet.runtime import wake
from tests.support import seeds, simulation
from tests.support.examples import schedules
from tests.support.families import Families

SHORT, LONG = 50, 10_000
FEW_FAMILIES, MANY_FAMILIES = 15, 5_000


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a schedule changes is as it was afterwards."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", wake.LISTEN_AFTER_SECONDS)


@pytest.mark.usefixtures("listening")
async def test_no_schedule_breaks_the_runtime() -> None:
    """Workers, leases, messages, interrupts, answers and crashes in any order: the laws hold."""
    first = seeds.seed("runtime")
    for seed in range(first, first + schedules(SHORT, LONG)):
        try:
            await simulation.simulate(seed)
        except BaseException:
            print(f"the failing schedule: simulation.simulate({seed})")
            raise


@pytest.mark.usefixtures("listening")
async def test_no_schedule_breaks_a_family() -> None:
    """Children, budgets, deadlines, interrupts, terminations and crashes: the sum over each tree
    stays what was granted, and nobody waits for good."""
    first = seeds.seed("families")
    for seed in range(first, first + schedules(FEW_FAMILIES, MANY_FAMILIES)):
        try:
            await simulation.simulate(seed, kind=Families)
        except BaseException:
            print(f"the failing schedule: simulation.simulate({seed}, kind=Families)")
            raise
