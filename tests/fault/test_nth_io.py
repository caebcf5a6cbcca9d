"""The first, the second, … the nth I/O call of a run fails, until a run meets no fault."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from limpet import Limpet, LimpetError, SessionNotFound
from limpet.errors import StoreUnopened
from limpet.store.sqlite import write_connection
from limpet.store.sqlite.store import SQLiteStore
from tests.support.vfs import ALL, WRITES, Faults, faulty
from tests.support.workload import Ledger, Run, check, check_open, script

TRIES = 3
MODES = {
    "error": (ALL, False, False),
    "lasting error": (ALL, False, True),
    "full": (WRITES, True, False),
    "lasting full": (WRITES, True, True),
}


@pytest.fixture(autouse=True)
def _early_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short script must meet checkpoints too."""
    monkeypatch.setattr(write_connection, "CHECKPOINT_PAGES", 40)


async def opened(path: Path, vfs: str, faults: Faults) -> Limpet | None:
    """Open on the failing disk; a fault that passes must not keep the next try from succeeding."""
    for _ in range(TRIES):
        try:
            store = await SQLiteStore.open(path, vfs=vfs, busy_seconds=0.5)
        except LimpetError:
            continue
        lp = Limpet("sqlite:///faulty", store=store)
        return await lp.__aenter__()
    assert faults.lasting
    return None


async def run_once(path: Path, faults: Faults) -> bool:
    """One run of the script with these faults and the check of what is left; whether any struck."""
    ledger = Ledger()
    with faulty(faults) as vfs:
        lp = await opened(path, vfs, faults)
        if lp is not None:
            await run_script(lp, ledger, faults)
            await lp.close()
        left = [conn for conn in apsw.connections() if conn.filename == str(path)]
        assert left == [], "a connection was left to the garbage collector"
    await check(path, ledger)
    return bool(faults.struck)


async def run_script(lp: Limpet, ledger: Ledger, faults: Faults) -> None:
    run = Run(lp, ledger)
    for step in script():
        for tried in range(TRIES):
            error = await run.take(step)
            if error is None:
                break
            assert faults.struck, f"{step.name} failed without a fault: {error!r}"
            if isinstance(error, SessionNotFound):  # since creating it failed too
                assert error.key not in ledger.created
                break
            assert error.retryable or isinstance(error, StoreUnopened), f"{step.name}: {error!r}"
            last = tried + 1 == TRIES
            assert faults.lasting or not last, f"{step.name} failed for ever: {error!r}"


async def loop(directory: Path, mode: str, begin: int, stride: int) -> int:
    """Runs with n = begin, begin + stride, … until one ends clean; the number of runs."""
    kinds, full, lasting = MODES[mode]
    runs = 0
    at = begin
    while True:
        path = directory / f"{at}.db"
        faults = Faults(at, kinds=kinds, full=full, lasting=lasting)
        try:
            struck = await run_once(path, faults)
        except BaseException:
            print(f"{mode}: n = {at}, struck {faults.struck[:3]}")
            raise
        for file in directory.iterdir():
            file.unlink()
        runs += 1
        if not struck:
            return runs
        at += stride


@pytest.mark.parametrize("mode", MODES)
async def test_no_failing_call_costs_an_acknowledged_event(tmp_path: Path, mode: str) -> None:
    """Every so many calls one fails: acknowledged is present once, and a retry never doubles."""
    assert await loop(tmp_path, mode, begin=1, stride=37) > 10


@pytest.mark.torture
@pytest.mark.parametrize("mode", MODES)
async def test_no_failing_call_at_all_costs_an_acknowledged_event(
    tmp_path: Path, mode: str
) -> None:
    """Every single call fails in its turn: acknowledged is present once, a retry never doubles."""
    assert await loop(tmp_path, mode, begin=1, stride=1) > 300


async def test_a_disk_that_is_mended_serves_the_same_store(tmp_path: Path) -> None:
    """After a spell in which everything fails, the store that lived through it goes on."""
    faults = Faults()
    ledger = Ledger()
    with faulty(faults) as vfs:
        lp = await opened(tmp_path / "a.db", vfs, faults)
        assert lp is not None
        run = Run(lp, ledger)
        steps = list(script())
        for number, step in enumerate(steps):
            if number in (5, 12):
                faults.at, faults.lasting = faults.calls + 1, True
                assert await run.take(step) is not None
                faults.mend()
            assert await run.take(step) is None
        await check_open(lp, ledger)
        await lp.close()
    await check(tmp_path / "a.db", ledger)
