"""Whatever a process does with a store that it has open, the file stays locked for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet.errors import BackupRefused
from tests.fault.test_restore import copy, grow, leftovers, target, url, version
from tests.support.processes import Child

__all__ = ["copy", "target"]  # the fixtures

DEEDS = {
    "restore_onto_it": "backup.refused",
    "restore_without_replace": "backup.refused",
    "restore_from_it": "backup.refused",
    "restore_from_and_onto_it": "backup.refused",
    "back_up": "well",
    "back_up_onto_it": "backup.refused",
    "doctor": "well",
    "verify": "well",
    "open_it_twice": "well",
    "open_wrong_paths": "well",
    "look_where_nothing_may_be_written": "well",
    "run_every_command": "well",
}


def refuse_restore(copy: Path, target: Path) -> None:
    with pytest.raises(BackupRefused, match="is open in a process"):
        limpet.restore(copy, url(target), replace=True)


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_store_stays_locked_whatever_its_process_does(
    copy: Path, target: Path, deed: str
) -> None:
    """Another process can neither restore over it nor throw its log away, before and after more
    events are acknowledged; and Python itself never opened the file."""
    with Child("tests.support.holder", target, copy) as child:
        child.expect("open")
        child.tell(deed)
        child.expect(DEEDS[deed])
        refuse_restore(copy, target)
        assert await version(target) == 10  # opened and closed here: the last one empties the log
        child.tell("append 22")
        child.expect("at 32")
        refuse_restore(copy, target)
        child.tell("end")
        child.end()
    assert await version(target) == 32
    assert leftovers(target) == []
    limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50


async def test_a_restore_sees_a_process_that_lost_its_locks(copy: Path, target: Path) -> None:
    """A program that read the file by hand unlocked it; a restore does not replace it even so."""
    with Child("tests.support.holder", target, copy) as child:
        child.expect("open")
        child.tell("read_the_file_by_hand")
        child.expect("well")
        refuse_restore(copy, target)
        child.tell("append 22")
        child.expect("at 32")
        refuse_restore(copy, target)
        child.tell("end")
        child.end()
    assert await version(target) == 32


async def test_a_damaged_file_is_not_moved_from_under_a_process(copy: Path, target: Path) -> None:
    """What is too damaged to be opened is refused as well while a process has it open."""
    with Child("tests.support.holder", target, copy) as child:
        child.expect("open")
        with target.open("r+b") as file:
            file.write(b"x" * 8_192)
        target.with_name("a.db-wal").write_bytes(b"")
        refuse_restore(copy, target)
        assert target.exists()
        child.kill()
    done = limpet.restore(copy, url(target), replace=True)
    assert done.aside is not None
    assert await version(target) == 50


async def test_a_log_left_by_a_killed_process_keeps_nobody_out(copy: Path, target: Path) -> None:
    """A dead process holds no locks, though all its files are still there."""
    with Child("tests.support.holder", target, copy) as child:
        child.expect("open")
        child.kill()
    assert target.with_name("a.db-shm").exists()
    limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50


async def test_every_restored_store_can_be_written(copy: Path, target: Path) -> None:
    """The lock that a restore held is gone when it ends."""
    limpet.restore(copy, url(target), replace=True)
    await grow(target, 55)
    assert await version(target) == 55
