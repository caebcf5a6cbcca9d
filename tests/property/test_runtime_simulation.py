"""The runtime under every kind of bad luck, scheduled by a seed."""

from __future__ import annotations

import pytest

from limpet.runtime import wake
from tests.support import seeds
from tests.support.simulation import simulate

SHORT, LONG = 200, 10_000


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a schedule changes is as it was afterwards."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", wake.LISTEN_AFTER_SECONDS)


@pytest.mark.deeper
@pytest.mark.usefixtures("listening")
async def test_no_schedule_breaks_the_runtime() -> None:
    """Workers, leases, messages, interrupts, answers and crashes in any order: the laws hold."""
    first = seeds.seed("runtime")
    for seed in range(first, first + (LONG if seeds.fresh() else SHORT)):
        try:
            await simulate(seed)
        except BaseException:
            print(f"the failing schedule: simulate({seed})")
            raise
