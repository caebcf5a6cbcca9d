"""A log store on a disk that fails, and on one whose power is cut."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from limpet import Limpet, LimpetError, SessionNotFound
from limpet.errors import StoreFailed, StoreUnopened
from limpet.store.files.store import FilesStore
from tests.support.disks import KINDS, WRITING, DiskFaults, FaultyDisk, PowerDisk, holds
from tests.support.seeds import seed
from tests.support.workload import ACTOR, Ledger, Run, Step, check_open, script

TRIES = 3
URL = "files:///faulty"
TEXT = "aubergine "
MODES = {
    "error": (KINDS, False, False),
    "lasting error": (KINDS, False, True),
    "full": (WRITING, True, False),
    "lasting full": (WRITING, True, True),
}


async def opened(path: Path, faults: DiskFaults) -> Limpet | None:
    """Open on the failing disk; a fault that passes must not keep the next try from succeeding."""
    for _ in range(TRIES):
        try:
            store = await FilesStore.open(path, disk=FaultyDisk(faults))
        except LimpetError:
            continue
        store.compact_bytes = 40_000  # a short script must meet compactions too
        return await Limpet(URL, store=store).__aenter__()
    assert faults.lasting
    return None


async def check(path: Path, ledger: Ledger) -> None:
    """Hold what is in the directory against the ledger; then write to it and read again."""
    for _ in range(2):
        async with Limpet(URL, store=await FilesStore.open(path)) as lp:
            await check_open(lp, ledger)
            await lp.create("after", "ada", actor="test:disk")


async def run_script(lp: Limpet, ledger: Ledger, faults: DiskFaults) -> None:
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
            assert faults.lasting or not last, f"{step.name} failed again and again: {error!r}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "stride",
    [pytest.param(7, id="some"), pytest.param(1, marks=pytest.mark.torture, id="every")],
)
async def test_no_failing_call_costs_an_acknowledged_event(
    tmp_path: Path, mode: str, stride: int
) -> None:
    """Every so many calls one fails: acknowledged is present once, and a retry never doubles."""
    kinds, full, lasting = MODES[mode]
    at, runs = 1, 0
    while True:
        faults, ledger, path = (
            DiskFaults(at, kinds=kinds, full=full, lasting=lasting),
            Ledger(),
            tmp_path / f"{at}",
        )
        try:
            lp = await opened(path, faults)
            if lp is not None:
                await run_script(lp, ledger, faults)
                await lp.close()
            await check(path, ledger)
        except BaseException:
            print(f"{mode}: n = {at}, struck {faults.struck[:3]}")
            raise
        shutil.rmtree(path)
        runs += 1
        if not faults.struck:
            break
        at += stride
    assert runs > 5


@pytest.fixture(params=[False, True], ids=["as written", "compacted"])
async def to_erase(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with a session that is to be erased.

    Its lines stand between those of another."""
    path = tmp_path / "store"
    async with Limpet(URL, store=await FilesStore.open(path)) as lp:
        ada, eve = [await lp.create("erased", user, id="s", actor=ACTOR) for user in ("ada", "eve")]
        for _ in range(3):
            await eve.append("user.said", {"text": TEXT * 300})
            await ada.append("user.said", {"text": "on"})
        if request.param:
            await lp.maintenance.compact()
    shutil.rmtree(path / "sessions", ignore_errors=True)  # files for people: not the disk's
    return path


async def check_erased(path: Path, *, acknowledged: bool) -> None:
    """Whoever opens the directory finds nothing of what was erased, and all else whole."""
    async with Limpet(URL, store=await FilesStore.open(path)) as lp:
        assert (await lp.maintenance.verify()).findings == ()
        assert (await lp.get("erased", "ada", "s")).version == 4
        left = await lp.find("erased", "eve", "s")
        assert left is None or (not acknowledged and left.version == 4)
    if left is None:
        assert holds(path, TEXT) == []


@pytest.mark.parametrize("again", ["erase", "open"])
async def test_an_erasure_that_fails_halfway_is_finished(to_erase: Path, again: str) -> None:
    """A write of it leaves half of its data: asked for again, or opened again, it is whole."""
    number = 0
    while True:
        number += 1
        faults, path = DiskFaults(kinds=WRITING), to_erase.with_name(f"{number}")
        shutil.copytree(to_erase, path)
        async with Limpet(URL, store=await FilesStore.open(path, disk=FaultyDisk(faults))) as lp:
            faults.at, faults.lasting = faults.calls + number, again == "open"
            try:
                await lp.erase("erased", "eve", "s")
            except StoreFailed:
                if again == "erase":
                    await lp.erase("erased", "eve", "s")
        acknowledged = again == "erase" or not faults.struck
        await check_erased(path, acknowledged=acknowledged)
        if not faults.struck:
            break
    assert number > 3


async def test_an_erasure_that_is_cut_off_is_finished(to_erase: Path) -> None:
    """By the next opening, whatever the disk kept of lines and frames being overwritten."""
    start = seed("files power erasing")
    number, cut = 0, True
    while cut:
        number += 1
        run, left = to_erase.with_name(f"run{number}"), to_erase.with_name(f"left{number}")
        shutil.copytree(to_erase, run / "store")
        disk = PowerDisk(run)
        async with Limpet(URL, store=await FilesStore.open(run / "store", disk=disk)) as lp:
            disk.cut_at = disk.calls + number
            with suppress(LimpetError):
                await lp.erase("erased", "eve", "s")
            cut = disk.off
        disk.left(left, random.Random(f"{start}/{number}"))
        await check_erased(left / "store", acknowledged=not cut)
    assert number > 5


async def run_until_cut(
    directory: Path, disk: PowerDisk, ledger: Ledger, steps: list[Step]
) -> list[Step]:
    """Take the steps until the power is cut; those that were not acknowledged."""
    try:
        store = await FilesStore.open(directory / "store", disk=disk)
    except LimpetError:
        assert disk.off
        return steps
    store.compact_bytes = 40_000
    async with Limpet(URL, store=store) as lp:
        run = Run(lp, ledger)
        for number, step in enumerate(steps):
            error = await run.take(step)
            if error is not None:
                assert disk.off, f"{step.name} failed while the power was on: {error!r}"
                return steps[number:]
    return []


async def writes_in_all(directory: Path) -> int:
    """How many calls there are to cut at."""
    directory.mkdir()
    disk = PowerDisk(directory)
    assert await run_until_cut(directory, disk, Ledger(), list(script())) == []
    shutil.rmtree(directory)
    return disk.calls


@pytest.mark.parametrize(
    "stride",
    [pytest.param(5, id="some"), pytest.param(1, marks=pytest.mark.torture, id="every")],
)
async def test_a_cut_at_any_write_takes_nothing_acknowledged(tmp_path: Path, stride: int) -> None:
    """Every acknowledged event is there, whatever the disk kept of the rest."""
    start = seed("files power")
    last = await writes_in_all(tmp_path / "all")
    assert last > 60
    for number in range(1 + start % stride, last + 1, stride):
        run, left = tmp_path / "run", tmp_path / "left"
        run.mkdir()
        ledger, disk = Ledger(), PowerDisk(run, number)
        await run_until_cut(run, disk, ledger, list(script()))
        disk.left(left, random.Random(f"{start}/{number}"))
        try:
            await check(left / "store", ledger)
        except BaseException:
            print(f"cut at write {number} of {last}")
            raise
        shutil.rmtree(run)
        shutil.rmtree(left)


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(3, id="some"), pytest.param(60, marks=pytest.mark.torture, id="many")],
)
async def test_cuts_in_series_take_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    """A successor that is cut off while it recovers or writes on leaves no less than it found."""
    start = seed("files power series")
    for round_ in range(rounds):
        chance = random.Random(f"{start}/{round_}")
        directory = tmp_path / f"{round_}-0"
        directory.mkdir()
        ledger, steps, cuts = Ledger(), list(script()), 0
        while steps:
            disk = PowerDisk(directory, chance.randrange(1, 60) if cuts < 60 else None)
            steps = await run_until_cut(directory, disk, ledger, steps)
            cuts += 1
            directory = tmp_path / f"{round_}-{cuts}"
            disk.left(directory, chance)
        await check(directory / "store", ledger)


async def test_a_disk_that_does_not_sync_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the sync of a batch a cut takes acknowledged events, so these tests can fail."""
    monkeypatch.setattr(PowerDisk, "sync", lambda *_: None)
    start, lost = seed("files power unsynced"), 0
    for number in range(20, 80, 10):
        run, left = tmp_path / f"run{number}", tmp_path / f"left{number}"
        run.mkdir()
        ledger, disk = Ledger(), PowerDisk(run, number)
        await run_until_cut(run, disk, ledger, list(script()))
        disk.left(left, random.Random(f"{start}/{number}"))
        try:
            await check(left / "store", ledger)
        except (AssertionError, LimpetError):
            lost += 1
    assert lost > 0
