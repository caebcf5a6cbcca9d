"""Backup and restore: whole or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import errors


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
    async with holdfast.open(url(path)) as hf:
        s = await hf.get_or_create("a", "u", id="1", state={"n": 1})
        while s.version < count:
            await s.append("a.b", {"text": "x" * 500}, actor="x", inc={"n": 1})


async def version(path: Path) -> int:
    """The version of the session, in a database that verifies."""
    async with holdfast.open(url(path)) as hf:
        assert (await hf.verify()).findings == ()
        s = await hf.get(("a", "u", "1"))
        assert s.state["n"] == s.version
        return s.version


async def test_a_backup_is_of_one_instant_while_others_write(path: Path, copy: Path) -> None:
    """Two sessions that are always written together are together in the copy."""
    async with holdfast.open(url(path)) as hf:
        one = await hf.create("a", "u", id="1", state={"n": 0})
        two = await hf.create("a", "u", id="2", state={"n": 0})

        async def write() -> None:
            for _ in range(100):
                async with hf.commit() as c:
                    c.append(one, "a.b", {"text": "x" * 2_000}, actor="x", inc={"n": 1})
                    c.append(two, "a.b", actor="x", inc={"n": 1})

        steps: list[tuple[int, int]] = []
        writing = asyncio.create_task(write())
        await hf.backup(copy, progress=lambda done, total: steps.append((done, total)))
        await writing
        assert steps[-1][0] == steps[-1][1]
    async with holdfast.open(url(copy)) as hf:
        assert (await hf.verify()).ok
        states = [(await hf.get(("a", "u", id))).state["n"] for id in ("1", "2")]
        assert states[0] == states[1]


async def test_a_backup_does_not_overwrite(path: Path, copy: Path) -> None:
    """A target that exists is refused and stays what it is."""
    await fill(path, 2)
    copy.write_text("precious")
    async with holdfast.open(url(path)) as hf:
        with pytest.raises(errors.BackupRefused):
            await hf.backup(copy)
    assert copy.read_text() == "precious"


async def test_a_backup_that_cannot_be_written_leaves_nothing(path: Path) -> None:
    """No file and no part of one, where the directory is missing."""
    await fill(path, 2)
    async with holdfast.open(url(path)) as hf:
        with pytest.raises(errors.StoreError):
            await hf.backup(path.parent / "missing" / "copy.db")
    assert [file.name for file in path.parent.iterdir()] == ["support.db"]


async def test_a_restore_brings_the_moment_of_the_backup_back(path: Path, copy: Path) -> None:
    """In a new place, and in the old one when asked to replace it."""
    await fill(path, 3)
    async with holdfast.open(url(path)) as hf:
        await hf.backup(copy)
    await fill(path, 9)
    elsewhere = path.with_name("elsewhere.db")
    holdfast.restore(copy, url(elsewhere))
    assert (await version(elsewhere), await version(path)) == (3, 9)
    holdfast.restore(copy, url(path), replace=True)
    assert await version(path) == 3
    await fill(path, 5)
    assert (await version(path), await version(copy)) == (5, 3)


async def test_a_restore_does_not_overwrite_unasked(path: Path, copy: Path) -> None:
    """Without replace=True an existing database is safe."""
    await fill(path, 3)
    async with holdfast.open(url(path)) as hf:
        await hf.backup(copy)
    await fill(path, 5)
    with pytest.raises(errors.BackupRefused):
        holdfast.restore(copy, url(path))
    assert await version(path) == 5


async def test_a_restore_verifies_every_session_first(path: Path, copy: Path) -> None:
    """Damage inside an event is found, told by its findings, and taken only when asked to."""
    await fill(path, 5)
    async with holdfast.open(url(path)) as hf:
        s = await hf.get(("a", "u", "1"), actor="x")
        await s.append("a.b", {"text": "a marker"}, inc={"n": 1})
        await hf.backup(copy)
    content = copy.read_bytes()
    assert content.count(b"a marker") == 1
    copy.write_bytes(content.replace(b"a marker", b"a marKer"))
    with pytest.raises(errors.BackupDamaged) as refused:
        holdfast.restore(copy, url(path), replace=True)
    (finding,) = refused.value.findings
    assert finding.startswith("a/u/1 event 6 ")
    assert await version(path) == 6
    done = holdfast.restore(copy, url(path), replace=True, damaged=True)
    assert (done.report.sessions, len(done.report.findings), done.aside) == (1, 1, None)
    async with holdfast.open(url(path)) as hf:
        assert not (await hf.verify()).ok


@pytest.mark.parametrize("wrong", ["missing", "text", "torn"])
async def test_a_bad_backup_does_not_replace_a_good_database(
    path: Path, copy: Path, wrong: str
) -> None:
    """It is checked before anything of the target is touched."""
    await fill(path, 5)
    if wrong == "text":
        copy.write_text("dear diary, " * 1_000)
    if wrong == "torn":
        async with holdfast.open(url(path)) as hf:
            await hf.backup(copy)
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    with pytest.raises(errors.StoreError):
        holdfast.restore(copy, url(path), replace=True)
    assert await version(path) == 5


@pytest.mark.parametrize("wrong", ["memory://", "nonsense", "mysql://x/y"])
def test_only_a_file_can_be_restored_to(copy: Path, wrong: str) -> None:
    """Any other URL is refused."""
    with pytest.raises(errors.InvalidURL):
        holdfast.restore(copy, wrong)
