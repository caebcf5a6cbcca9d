"""Backup and restore: whole or not at all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

import limpet
from limpet import errors

T = TypeVar("T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "support.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def fill(path: Path, count: int) -> None:
    """One session at version `count`."""
    async with limpet.open(url(path)) as lp:
        s = await lp.get_or_create("a", "u", id="1", state={"n": 1})
        while s.version < count:
            await s.append("a.b", {"text": "x" * 500}, actor="x", inc={"n": 1})


async def version(path: Path) -> int:
    """The version of the session, in a database that verifies."""
    async with limpet.open(url(path)) as lp:
        assert (await lp.maintenance.verify()).findings == ()
        s = await lp.get(("a", "u", "1"))
        assert s.state["n"] == s.version
        return s.version


async def test_a_backup_is_of_one_instant_while_others_write(path: Path, copy: Path) -> None:
    """Two sessions that are always written together are together in the copy."""
    async with limpet.open(url(path)) as lp:
        one = await lp.create("a", "u", id="1", state={"n": 0})
        two = await lp.create("a", "u", id="2", state={"n": 0})

        async def write() -> None:
            for _ in range(100):
                async with lp.commit() as c:
                    c.append(one, "a.b", {"text": "x" * 2_000}, actor="x", inc={"n": 1})
                    c.append(two, "a.b", actor="x", inc={"n": 1})

        steps: list[tuple[int, int]] = []
        writing = asyncio.create_task(write())
        await lp.maintenance.backup(copy, progress=lambda done, total: steps.append((done, total)))
        await writing
        assert steps[-1][0] == steps[-1][1]
    async with limpet.open(url(copy)) as lp:
        assert (await lp.maintenance.verify()).ok
        states = [(await lp.get(("a", "u", id))).state["n"] for id in ("1", "2")]
        assert states[0] == states[1]


async def test_a_backup_does_not_overwrite(path: Path, copy: Path) -> None:
    """A target that exists is refused and stays what it is."""
    await fill(path, 2)
    copy.write_text("precious")
    async with limpet.open(url(path)) as lp:
        with pytest.raises(errors.BackupRefused):
            await lp.maintenance.backup(copy)
    assert copy.read_text() == "precious"


async def test_a_backup_that_cannot_be_written_leaves_nothing(path: Path) -> None:
    """No file and no part of one, where the directory is missing."""
    await fill(path, 2)
    async with limpet.open(url(path)) as lp:
        with pytest.raises(errors.StoreError):
            await lp.maintenance.backup(path.parent / "missing" / "copy.db")
    assert [file.name for file in path.parent.iterdir()] == ["support.db"]


async def test_a_restore_brings_the_moment_of_the_backup_back(path: Path, copy: Path) -> None:
    """In a new place, and in the old one when asked to replace it."""
    await fill(path, 3)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    await fill(path, 9)
    elsewhere = path.with_name("elsewhere.db")
    limpet.restore(copy, url(elsewhere))
    assert (await version(elsewhere), await version(path)) == (3, 9)
    limpet.restore(copy, url(path), replace=True)
    assert await version(path) == 3
    await fill(path, 5)
    assert (await version(path), await version(copy)) == (5, 3)


async def test_a_restore_does_not_overwrite_unasked(path: Path, copy: Path) -> None:
    """Without replace=True an existing database is safe."""
    await fill(path, 3)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    await fill(path, 5)
    with pytest.raises(errors.BackupRefused):
        limpet.restore(copy, url(path))
    assert await version(path) == 5


async def test_a_restore_verifies_every_session_first(path: Path, copy: Path) -> None:
    """Damage inside an event is found, told by its findings, and taken only when asked to."""
    await fill(path, 5)
    async with limpet.open(url(path)) as lp:
        s = await lp.get(("a", "u", "1"), actor="x")
        await s.append("a.b", {"text": "a marker"}, inc={"n": 1})
        await lp.maintenance.backup(copy)
    content = copy.read_bytes()
    assert content.count(b"a marker") == 1
    copy.write_bytes(content.replace(b"a marker", b"a marKer"))
    with pytest.raises(errors.BackupDamaged) as refused:
        limpet.restore(copy, url(path), replace=True)
    (finding,) = refused.value.findings
    assert finding.startswith("a/u/1 event 6 ")
    assert await version(path) == 6
    done = limpet.restore(copy, url(path), replace=True, damaged=True)
    assert (done.report.sessions, len(done.report.findings), done.aside) == (1, 1, None)
    async with limpet.open(url(path)) as lp:
        assert not (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("wrong", ["missing", "text", "torn"])
async def test_a_bad_backup_does_not_replace_a_good_database(
    path: Path, copy: Path, wrong: str
) -> None:
    """It is checked before anything of the target is touched."""
    await fill(path, 5)
    if wrong == "text":
        copy.write_text("dear diary, " * 1_000)
    if wrong == "torn":
        async with limpet.open(url(path)) as lp:
            await lp.maintenance.backup(copy)
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    with pytest.raises(errors.StoreError):
        limpet.restore(copy, url(path), replace=True)
    assert await version(path) == 5


@pytest.mark.parametrize("wrong", ["memory://", "nonsense", "mysql://x/y"])
def test_only_a_file_can_be_restored_to(copy: Path, wrong: str) -> None:
    """Any other URL is refused."""
    with pytest.raises(errors.InvalidURL):
        limpet.restore(copy, wrong)


async def watched(lp: limpet.Limpet, after: str | None, count: int) -> tuple[list[int], str]:
    """The seqs of so many changes beyond a position, and the position of the last."""
    changes = [change async for change, _ in azip(lp.watch(after=after), range(count))]
    return [change.event.seq for change in changes], changes[-1].position


async def azip(them: AsyncIterator[T], numbers: Iterable[int]) -> AsyncIterator[tuple[T, int]]:
    """Pairs, for as long as there are numbers."""
    for number in numbers:
        yield await anext(them), number


async def test_a_watcher_goes_on_over_a_restore(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded after it comes, though as many events of before are gone; and again, if the
    same backup is restored again, with a clock that stands."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    await fill(path, 4)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    await fill(path, 9)
    async with limpet.open(url(path)) as lp:
        seen, position = await watched(lp, None, 9)
    assert seen == list(range(1, 10))
    for _ in range(3):
        limpet.restore(copy, url(path), replace=True)
        await fill(path, 7)
        async with limpet.open(url(path)) as lp:
            seen, position = await watched(lp, position, 3)
            assert seen == [5, 6, 7]
            assert (await watched(lp, None, 7))[0] == list(range(1, 8))
            assert (await lp.maintenance.verify()).findings == ()


@pytest.mark.parametrize("mode", [0o600, 0o640])
async def test_copies_are_as_private_as_what_they_are_of(path: Path, copy: Path, mode: int) -> None:
    """A backup as the store, a restored store as the one it replaces, or else as the backup."""
    await fill(path, 3)
    path.chmod(mode)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    assert copy.stat().st_mode & 0o777 == mode
    new = path.with_name("new.db")
    limpet.restore(copy, url(new))
    copy.chmod(0o604)
    limpet.restore(copy, url(path), replace=True)
    assert [each.stat().st_mode & 0o777 for each in (new, path)] == [mode, mode]


async def test_a_link_is_followed_and_stays_a_link(path: Path, copy: Path, tmp_path: Path) -> None:
    """What it leads to is replaced, so that both names go on meaning one store."""
    await fill(path, 3)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    await fill(path, 5)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    limpet.restore(copy, url(link), replace=True)
    assert link.is_symlink()
    assert (await version(path), await version(link)) == (3, 3)


async def test_a_log_beside_the_file_behind_a_link_is_not_passed_over(
    path: Path, copy: Path, tmp_path: Path
) -> None:
    """SQLite keeps it beside the file itself: a restore from a link looks there too."""
    link = tmp_path / "elsewhere"
    link.mkdir()
    link /= "link.db"
    link.symlink_to(path)
    async with limpet.open(url(path)) as lp:
        s = await lp.create("a", "u", id="1", state={"n": 1})
        await s.append("a.b", actor="x", inc={"n": 1})
        with pytest.raises(errors.BackupRefused, match="-wal"):
            limpet.restore(link, url(copy))
    limpet.restore(link, url(copy))
    assert await version(copy) == 2
    loop = tmp_path / "loop.db"
    loop.symlink_to(loop)  # leads nowhere, and is no file that could be lost
    limpet.restore(path, url(loop))
    assert await version(loop) == 2


async def test_a_copy_of_another_group_is_not_read_by_it(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the group cannot be given, its rights are not either."""
    await fill(path, 2)
    path.chmod(0o640)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
    assert copy.stat().st_mode & 0o777 == 0o600
