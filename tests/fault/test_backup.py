"""Backups on failing disks and beside other writers."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import Limpet, LimpetError
from limpet.store.sqlite.file import backup
from limpet.store.sqlite.store import SQLiteStore
from tests.support.processes import Child
from tests.support.vfs import Faults, faulty
from tests.support.worker import KEY
from tests.support.writer import APP, SHARED, USER


async def filled(lp: Limpet, events: int = 40) -> None:
    session = await lp.create(KEY.app, KEY.user, id=KEY.id, state={"n": 0})
    for _ in range(events):
        await session.append("x.y", {"text": "z" * 900}, actor="a:b", inc={"n": 1})


@pytest.mark.parametrize(
    "stride", [pytest.param(7, id="some"), pytest.param(1, id="every", marks=pytest.mark.torture)]
)
async def test_a_backup_that_fails_leaves_no_target(tmp_path: Path, stride: int) -> None:
    """Whichever read of the source fails: no file, no part of one; and the store serves on."""
    faults = Faults()
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(tmp_path / "a.db", vfs=vfs)
        async with Limpet("sqlite:///a", store=store) as lp:
            await filled(lp)
            number = 1
            while True:
                target = tmp_path / f"{number}.bak"
                faults.calls, faults.at, faults.struck = 0, number, []
                try:
                    await lp.maintenance.backup(target)
                except LimpetError:
                    assert faults.struck
                    left = {path.name for path in tmp_path.iterdir()}
                    assert left <= {"a.db", "a.db-wal", "a.db-shm"}
                else:
                    faults.mend()
                    async with limpet.open(f"sqlite:///{target}") as copy:
                        assert (await copy.get(KEY)).state["n"] == 40
                        assert (await copy.maintenance.verify()).ok
                    target.unlink()
                    if not faults.struck:
                        break
                number += stride
            await lp.session(KEY, actor="a:b").append("x.y", inc={"n": 1})


async def test_a_backup_killed_halfway_leaves_no_target(tmp_path: Path) -> None:
    """After a SIGKILL there is no target, and the next backup to that name succeeds."""
    path, target = tmp_path / "a.db", tmp_path / "a.bak"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await filled(lp)
    with Child("tests.support.copier", path, target) as child:
        child.expect("halfway")
        child.kill()
    assert not target.exists()
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.maintenance.backup(target)
        assert (await lp.maintenance.verify()).ok
    async with limpet.open(f"sqlite:///{target}") as copy:
        assert (await copy.get(KEY)).state["n"] == 40
        assert (await copy.maintenance.verify()).ok
    assert not list(tmp_path.glob("*.part*"))


async def test_a_backup_beside_another_process_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken in small steps while another process writes: whole, and no older than when it began."""
    monkeypatch.setattr(backup, "_PAGES_PER_STEP", 2)
    path = tmp_path / "a.db"
    with Child("tests.support.writer", path, 7, "0,0,0") as child:
        assert child.line() is not None
        async with limpet.open(f"sqlite:///{path}") as lp:
            for number in range(5):
                before = (await lp.get((APP, USER, SHARED))).state.get("app:total", 0)
                target = tmp_path / f"{number}.bak"
                await lp.maintenance.backup(target, progress=lambda *_: child.line())
                async with limpet.open(f"sqlite:///{target}") as copy:
                    assert (await copy.maintenance.verify()).findings == ()
                    total = 0
                    for head in (await copy.list()).items:
                        session = await copy.get(head.key)
                        total += session.state.get("n", 0)
                    assert session.state["app:total"] == total >= before
        child.kill()
