"""The doctor of database files: each bad setting is found on a real file, with its advice."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Check, Diagnosis, Key
from limpet.store.clock import Clock, wall_ns
from limpet.store.protocol import size
from limpet.store.sqlite import doctor, erasure
from limpet.store.sqlite.file.filesystems import DiskSpace, disk_space
from limpet.store.sqlite.store import SQLiteStore
from tests.support.seal import FixedKeySeal

KEY = Key("shop", "ada", "1")


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A small sound file, closed."""
    path = tmp_path / "a.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.create(*("shop", "ada"), id="1", labels={"plan": "gold"})
        await s.append("user.message", {"text": "a marker"}, actor="user:ada")
    return path


async def diagnose(path: Path, options: str = "") -> Diagnosis:
    async with limpet.open(f"sqlite:///{path}{options}") as lp:
        return await lp.maintenance.doctor()


def of(diagnosis: Diagnosis, name: str) -> Check:
    (check,) = [check for check in diagnosis.checks if check.name == name]
    return check


def unwell(diagnosis: Diagnosis) -> dict[str, str]:
    """What is not ok, but for the disk that the tests happen to run on."""
    disk = ("file system", "disk space", "event loop")  # which a slow disk holds
    return {c.name: c.severity for c in diagnosis.checks if not c.ok and c.name not in disk}


def run(path: Path, sql: str) -> None:
    conn = apsw.Connection(str(path))
    conn.execute(sql).fetchall()  # to its end, whichever statement answers
    conn.close()


async def test_the_live_channel_is_named_and_may_be_damaged(path: Path) -> None:
    """Its file is shown with its size; one that cannot be read is no loss."""
    assert of(await diagnose(path), "live channel").found.startswith("no file")
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await anext(lp.session(KEY).follow())).seq == 1
        assert of(await lp.maintenance.doctor(), "live channel").found == "16 KiB in a.db-live"
    path.with_name("a.db-live").write_bytes(b"x" * 5_000)
    diagnosis = await diagnose(path)
    assert unwell(diagnosis) == {"live channel": "warning"}
    assert "Delete a.db-live" in of(diagnosis, "live channel").advice


async def test_a_sound_file_is_well(path: Path) -> None:
    """Every check is ok, none gives advice, and the report is there."""
    diagnosis = await diagnose(path)
    assert diagnosis.ok
    assert unwell(diagnosis) == {}
    assert (diagnosis.report.sessions, diagnosis.report.events) == (1, 2)
    assert len({check.name for check in diagnosis.checks}) == len(diagnosis.checks) >= 13


@pytest.mark.parametrize(
    ("free", "total", "files", "severity"),
    [
        (50 * 2**30, 100 * 2**30, 1_000, "ok"),
        (2**30, 1_000 * 2**30, None, "ok"),
        (800 * 2**20, 1_000 * 2**20, 1_000, "ok"),  # a small disk is not a full one
        (2**30 - 1, 1_000 * 2**30, 1_000, "warning"),
        (90 * 2**20, 1_000 * 2**20, 1_000, "warning"),
        (64 * 2**20 - 1, 1_000 * 2**30, 1_000, "problem"),
        (0, 8 * 2**20, None, "problem"),
        (50 * 2**30, 100 * 2**30, 0, "problem"),  # no inodes
    ],
)
def test_a_full_disk_is_found(free: int, total: int, files: int | None, severity: str) -> None:
    """By what is left and by how large the disk is; whoever is unwell is given advice."""
    check = doctor.space(DiskSpace(free, total, files))
    assert check.severity == severity
    assert bool(check.advice) == (severity != "ok")


async def test_the_disk_that_is_looked_at_is_the_stores(path: Path) -> None:
    """The numbers are those of the directory that holds the file."""
    found = of(await diagnose(path), "disk space").found
    assert f"of {size(disk_space(path.parent).total_bytes)} are free" in found


async def test_progress_is_told(path: Path) -> None:
    """The caller hears how far the reading is, to its end."""
    steps: list[tuple[int, int]] = []
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.maintenance.doctor(progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (1, 1)


async def test_sync_normal_is_a_warning(path: Path) -> None:
    """It was asked for, so it is no problem; what it costs is said."""
    diagnosis = await diagnose(path, "?sync=normal")
    assert diagnosis.ok
    assert unwell(diagnosis) == {"synchronous": "warning"}
    assert "?sync=" in of(diagnosis, "synchronous").advice


async def test_no_sync_is_a_problem(path: Path) -> None:
    """A store that syncs nothing can be lost as a whole."""
    store = await SQLiteStore.open(path, sync="off")
    checks = {check.name: check.severity for check in await store.examine()}
    await store.close()
    assert checks["synchronous"] == "problem"


async def test_another_journal_mode_is_mended_by_opening(path: Path) -> None:
    """As the advice says: somebody switched the file from WAL, the next to open it back."""
    run(path, "PRAGMA journal_mode=delete")
    assert unwell(await diagnose(path)) == {}


async def test_another_page_size_is_a_warning_and_its_advice_mends_it(path: Path) -> None:
    """The statements of the advice bring the file back to our page size."""
    run(path, "PRAGMA journal_mode=delete; PRAGMA page_size=8192; VACUUM; PRAGMA journal_mode=wal")
    diagnosis = await diagnose(path)
    assert unwell(diagnosis) == {"page size": "warning"}
    run(path, of(diagnosis, "page size").advice.split("'")[1])
    assert unwell(await diagnose(path)) == {}


async def test_a_damaged_byte_is_a_problem(path: Path) -> None:
    """The check names the session and the event."""
    content = path.read_bytes()
    assert content.count(b"a marker") == 1
    path.write_bytes(content.replace(b"a marker", b"a marKer"))
    diagnosis = await diagnose(path)
    assert not diagnosis.ok
    assert of(diagnosis, "log").severity == "problem"
    assert "shop/ada/1 event 2" in of(diagnosis, "log").found
    assert "backup" in of(diagnosis, "log").advice


async def test_a_lost_index_entry_is_a_problem(path: Path) -> None:
    """A label that is not listed disagrees with its head."""
    run(path, "DELETE FROM labels")
    assert of(await diagnose(path), "indexes").severity == "problem"


async def test_a_table_that_is_gone_is_told_and_the_rest_still_answered(path: Path) -> None:
    """A question that fails is a problem of its own."""
    run(path, "DROP TABLE purges")
    diagnosis = await diagnose(path)
    assert of(diagnosis, "removals").severity == "problem"
    assert of(diagnosis, "clock").ok


async def test_an_erasure_that_was_cut_short_is_a_problem_that_erasing_again_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following the advice leaves the store well, with the same certificate."""
    with monkeypatch.context() as patch:
        patch.setattr(erasure, "purge_some", lambda _: False)
        async with limpet.open(f"sqlite:///{path}") as lp:
            first = await lp.erase(KEY)
            diagnosis = await lp.maintenance.doctor()
    assert of(diagnosis, "removals").severity == "problem"
    assert "lp.erase" in of(diagnosis, "removals").advice
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert await lp.erase(KEY) == first
        assert of(await lp.maintenance.doctor(), "removals").ok


async def test_a_removal_that_is_not_done_is_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted log that still has rows: the next writer goes on with it."""
    monkeypatch.setattr(erasure, "purge_some", lambda _: False)
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.delete(KEY)
        diagnosis = await lp.maintenance.doctor()
    assert unwell(diagnosis) == {"removals": "warning"}


async def test_a_log_that_a_reader_keeps_long_is_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows while somebody reads on an old instant."""
    monkeypatch.setattr(doctor, "WAL_PAGES_MAX", 4)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT * FROM sessions").fetchall()
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        for _ in range(10):
            await lp.session(KEY).append("a.b", {"text": "x" * 900}, actor="x")
        check = of(await lp.maintenance.doctor(), "write-ahead log")
    reader.close()
    assert check.severity == "warning"
    assert "transaction" in check.advice


async def test_a_clock_that_was_set_back_is_a_warning(path: Path) -> None:
    """The newest event lies in the future."""
    ahead = await SQLiteStore.open(path, clock=Clock(lambda: wall_ns() + 3_600 * 10**9))
    async with limpet.Limpet("sqlite:///ahead", store=ahead) as lp:
        await lp.session(KEY).append("a.b", actor="x")
    check = of(await diagnose(path), "clock")
    assert check.severity == "warning"
    assert "in the future" in check.found


async def test_a_sealed_store_without_its_seal_is_not_called_damaged(tmp_path: Path) -> None:
    """The doctor says that it could not look into the bodies."""
    url = f"sqlite:///{tmp_path}/sealed.db"
    async with limpet.open(url, seal=FixedKeySeal()) as lp:
        await lp.create("shop", "ada", state={"user:x": 1})
        assert unwell(await lp.maintenance.doctor()) == {}
    assert unwell(await diagnose(tmp_path / "sealed.db")) == {"seal": "warning"}


@pytest.mark.parametrize(
    ("check", "severity"),
    [
        (doctor.version("3.50.4"), "warning"),
        (doctor.version("3.50.7"), "ok"),
        (doctor.version("3.51.2"), "warning"),
        (doctor.version("3.51.3"), "ok"),
        (doctor.version("3.53.0"), "ok"),
        (doctor.schema(0, 1), "problem"),
        (doctor.journal_mode("delete"), "problem"),
        (doctor.filesystem("ext4"), "ok"),
        (doctor.filesystem(None), "skipped"),
        (doctor.filesystem("nfs4"), "problem"),
        (doctor.filesystem("overlay"), "warning"),
        (doctor.free(900, 1_000), "ok"),
        (doctor.free(6_000, 10_000), "warning"),
        (doctor.clock(None, time.time_ns() // 1_000), "ok"),
    ],
)
def test_each_value_is_judged(check: Check, severity: str) -> None:
    """What a test cannot set up on this machine, by its value."""
    assert check.severity == severity
    assert bool(check.advice) is not check.ok
