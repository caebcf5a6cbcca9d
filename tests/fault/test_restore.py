"""Restoring: what is in the way is never lost, and the backup is never changed."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Draft, StoreError
from limpet.errors import BackupRefused, StoreCorrupt, StoreForeign, StoreNewer
from limpet.store.sqlite.file import backup as backups
from tests.support.processes import Child
from tests.support.worker import KEY


def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def grow(path: Path, version: int) -> None:
    """The session, created if need be, at this version."""
    async with limpet.open(url(path)) as lp:
        session = await lp.get_or_create(KEY.app, KEY.user, id=KEY.id, state={"n": 1})
        drafts = [Draft(type="a.b", data={"text": "x" * 400}, actor="x", inc={"n": 1})]
        await session.append_many(drafts * (version - session.version))


async def version(path: Path) -> int:
    """The version of the session, in a database that verifies."""
    async with limpet.open(url(path)) as lp:
        assert (await lp.maintenance.verify()).findings == ()
        session = await lp.get(KEY)
        assert session.state["n"] == session.version
        return session.version


def folder(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def leftovers(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir() if file.suffix == ".part"]


@pytest.fixture
async def copy(tmp_path: Path) -> Path:
    """A backup with the session at version 50, in a folder of its own."""
    source, target = tmp_path / "source.db", tmp_path / "kept" / "copy.db"
    target.parent.mkdir()
    await grow(source, 50)
    async with limpet.open(url(source)) as lp:
        await lp.maintenance.backup(target)
    return target


@pytest.fixture
async def target(tmp_path: Path) -> Path:
    """A database with the session at version 9."""
    path = tmp_path / "live" / "a.db"
    path.parent.mkdir()
    await grow(path, 9)
    return path


# --- the backup ----------------------------------------------------------------------------------


def make_foreign(path: Path) -> None:
    conn = apsw.Connection(str(path))
    conn.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    conn.close()


def spoil(copy: Path, how: str) -> None:
    match how:
        case "empty":
            copy.write_bytes(b"")
        case "foreign":
            copy.unlink()
            make_foreign(copy)
        case "newer":
            conn = apsw.Connection(str(copy))
            conn.pragma("user_version", 99)
            conn.pragma("journal_mode", "delete")
            conn.close()
        case "damaged":
            content = bytearray(copy.read_bytes())
            for start in range(4_096, len(content), 8_192):
                content[start : start + 64] = b"\xff" * 64
            copy.write_bytes(content)


@pytest.mark.parametrize("there", [True, False], ids=["in place of one", "to a new place"])
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("empty", StoreForeign),
        ("foreign", StoreForeign),
        ("newer", StoreNewer),
        ("damaged", StoreCorrupt),
    ],
)
async def test_what_is_no_sound_backup_is_refused(
    copy: Path, target: Path, how: str, error: type[StoreError], there: bool
) -> None:
    """Nothing takes the target's place, and the file is left as it was found."""
    spoil(copy, how)
    kept = folder(copy.parent)
    if not there:
        target = target.with_name("new.db")
    with pytest.raises(error):
        limpet.restore(copy, url(target), replace=True)
    assert folder(copy.parent) == kept
    assert leftovers(target) == []
    assert target.exists() == there
    if there:
        assert await version(target) == 9


async def test_a_backup_is_only_read(copy: Path, target: Path) -> None:
    """Byte for byte the same after a restore, with nothing beside it; and good for another."""
    kept = folder(copy.parent)
    for _ in range(2):
        limpet.restore(copy, url(target), replace=True)
        assert folder(copy.parent) == kept
        assert await version(target) == 50
        await grow(target, 60)
    assert leftovers(target) == []


# --- what is in the way --------------------------------------------------------------------------


async def test_a_database_open_in_this_process_is_not_replaced(copy: Path, target: Path) -> None:
    """Refused while a Limpet has it open; what that one acknowledges before and after stays."""
    async with limpet.open(url(target)) as lp:
        session = await lp.get(KEY, actor="x")
        await session.append("a.b", inc={"n": 1})
        with pytest.raises(BackupRefused):
            limpet.restore(copy, url(target), replace=True)
        await session.append("a.b", inc={"n": 1})
    assert leftovers(target) == []
    assert await version(target) == 11
    limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50


async def test_a_database_open_in_another_process_is_not_replaced(copy: Path, target: Path) -> None:
    """Refused while that process has it open, and everything that it acknowledges stays."""
    with Child("tests.support.worker", "incrementer", target, "w", 5) as child:
        child.expect("ready")
        with pytest.raises(BackupRefused):
            limpet.restore(copy, url(target), replace=True)
        child.tell("go")
        child.expect("done w")
        child.end()
    assert leftovers(target) == []
    assert await version(target) == 14
    limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, "the disk did not answer")


@pytest.mark.parametrize("left", ["closed", "killed"])
async def test_a_restore_that_fails_at_the_rename_leaves_what_was(
    copy: Path, target: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Every commit is still there, also those that a killed process left in the log file only."""
    last = 9
    if left == "killed":
        with Child("tests.support.worker", "appender", target, "w", 0) as child:
            child.expect("ready")
            child.tell("go")
            while last < 29:
                last = 11 + 2 * int((child.line() or "").removeprefix("did "))
            child.kill()
            last += 2 * sum(line.startswith("did") for line in child.lines())
        assert target.with_name("a.db-wal").stat().st_size
    monkeypatch.setattr(backups.os, "replace", refuse)
    with pytest.raises(BackupRefused):
        limpet.restore(copy, url(target), replace=True)
    monkeypatch.undo()
    assert leftovers(target) == []
    assert await version(target) in (last, last + 2)  # the last one may have been cut short
    limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50


async def test_a_target_too_damaged_to_open_is_moved_aside(copy: Path, target: Path) -> None:
    """It and its log can still be looked at, under other names, and the name is told."""
    broken = target.read_bytes()[:100] + b"no database " * 1_000
    target.write_bytes(broken)
    wal = target.with_name("a.db-wal")
    wal.write_bytes(b"its log")
    done = limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50
    assert done.aside is not None
    assert done.aside.read_bytes() == broken
    assert Path(f"{done.aside}-wal").read_bytes() == b"its log"
    assert leftovers(target) == []


@pytest.mark.parametrize("kind", ["text", "database"])
async def test_what_is_not_ours_is_not_replaced(copy: Path, target: Path, kind: str) -> None:
    """Neither a text nor another program's database."""
    target.unlink()
    if kind == "database":
        make_foreign(target)
    else:
        target.write_bytes(b"dear diary")
    before = folder(target.parent)
    with pytest.raises(StoreForeign, match="Nothing was replaced"):
        limpet.restore(copy, url(target), replace=True)
    assert folder(target.parent) == before


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
async def test_a_log_that_is_left_is_not_taken_for_that_of_the_backup(
    copy: Path, target: Path, left: str
) -> None:
    """A -wal without its file is set aside, and what is restored is the backup alone."""
    await grow(target, 9)
    async with limpet.open(url(target)) as lp:
        await lp.session(KEY, actor="x").append("a.b", inc={"n": 1})
        log = target.with_name("a.db-wal").read_bytes()
        assert log
    target.unlink()
    if left == "an empty file":
        target.touch()
    target.with_name("a.db-wal").write_bytes(log)
    done = limpet.restore(copy, url(target), replace=True)
    assert done.aside is not None
    assert done.aside.read_bytes() == log
    assert await version(target) == 50


async def test_a_database_that_was_never_closed_is_known_as_ours(
    copy: Path, target: Path, tmp_path: Path
) -> None:
    """What makes it ours may be in its log alone, as after a process that died at once."""
    fresh, killed = tmp_path / "fresh.db", tmp_path / "killed.db"
    async with limpet.open(url(fresh)):
        for suffix in ("", "-wal"):
            shutil.copy(f"{fresh}{suffix}", f"{killed}{suffix}")
    assert limpet.restore(copy, url(killed), replace=True).aside is None
    assert await version(killed) == 50


# --- at once -------------------------------------------------------------------------------------


async def test_backups_to_one_directory_at_once_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is whole under its own name, also where two are to have the same one."""
    monkeypatch.setattr(backups, "_PAGES_PER_STEP", 2)
    await grow(tmp_path / "a.db", 200)
    names = ("1.bak", "2.bak", "same.bak", "same.bak", "same.bak")
    async with limpet.open(url(tmp_path / "a.db")) as lp:
        answers = await asyncio.gather(
            *(lp.maintenance.backup(tmp_path / name) for name in names), return_exceptions=True
        )
    assert answers[:2] == [None, None]
    assert None in answers[2:]
    assert {type(answer) for answer in answers} <= {type(None), BackupRefused}
    for name in set(names):
        assert await version(tmp_path / name) == 200
    assert not list(tmp_path.glob("*.part*"))


async def test_restores_of_several_at_once_leave_one_whole(copy: Path, tmp_path: Path) -> None:
    """Whoever comes last, the place holds a whole database."""
    target = tmp_path / "new.db"
    await asyncio.gather(
        *(asyncio.to_thread(limpet.restore, copy, url(target), replace=True) for _ in range(4)),
        return_exceptions=True,
    )
    assert await version(target) == 50
    assert leftovers(target) == []
