"""Two releases on one file: what ours wrote, opened by one that has a schema more.

There is only one schema yet, so the later one is a test's: `tests.support.later`. What it adds is
one numbered file, as a release would add it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import errors
from limpet.store.sqlite.file.schema import SCHEMA
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, load, log
from tests.support import later

ONE, TWO, GONE = key("one"), key("two"), key("gone")


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A file of our schema: two sessions, and one that was deleted."""
    store = await SQLiteStore.open(tmp_path / "ours.db")
    for of in (ONE, TWO, GONE):
        await create(store, of, {"n": 1})
    await add(store, ONE, draft("user.said", {"text": "hi"}, inc={"n": 1}))
    await store.delete(GONE)
    await store.close()
    return tmp_path / "ours.db"


async def test_a_file_is_brought_to_the_later_schema_and_all_of_it_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was folded, read and listed before is the same after, and the new table is filled."""
    store = await SQLiteStore.open(path)
    before = [await load(store, of) for of in (ONE, TWO)]
    await store.close()
    later.release(monkeypatch)
    store = await SQLiteStore.open(path)
    assert [await load(store, of) for of in (ONE, TWO)] == before
    assert [event.seq for event in await log(store, ONE)] == [1, 2]
    with pytest.raises(errors.SessionDeleted):
        await load(store, GONE)
    await add(store, ONE)
    assert (await store.verify(None)).findings == ()
    await store.close()
    assert (later.of(path), later.moods(path)) == (later.LATER, ["calm 2", "calm 1"])


async def test_a_file_is_migrated_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened by two at once, and again: the steps are taken by one of them."""
    later.release(monkeypatch)
    async with limpet.open(f"sqlite:///{path}") as one, limpet.open(f"sqlite:///{path}") as other:
        await one.session(ONE, actor="x").append("note.made")
        assert (await other.get(ONE)).version == 3
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.maintenance.verify()).ok
    assert later.moods(path) == ["calm 2", "calm 1"]


async def test_a_new_file_gets_every_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the newest one, and verification knows it."""
    later.release(monkeypatch)
    async with limpet.open(f"sqlite:///{tmp_path}/new.db") as lp:
        await lp.create("a", "b")
        assert (await lp.maintenance.verify()).ok
    assert later.of(tmp_path / "new.db") == later.LATER


async def test_a_step_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first statements are taken back with the last: a migration is one transaction."""
    broken = "CREATE TABLE moods (sid INTEGER PRIMARY KEY) STRICT; INSERT INTO nowhere VALUES (1);"
    with monkeypatch.context() as patch:
        later.release(patch, broken)
        with pytest.raises(errors.StoreError):
            await SQLiteStore.open(path)
    assert (later.of(path), later.moods(path)) == (SCHEMA, None)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.get(ONE)).version == 2
        assert (await lp.maintenance.verify()).ok


async def test_a_kill_in_a_migration_is_harmless(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our release goes on with the file, and the later one migrates it the next time."""
    command = (sys.executable, "-m", "tests.support.later", str(path))
    dying = await asyncio.create_subprocess_exec(*command)
    assert await dying.wait() == -signal.SIGKILL
    assert (later.of(path), later.moods(path)) == (SCHEMA, None)
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.session(TWO, actor="x").append("note.made")
    later.release(monkeypatch)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.maintenance.verify()).ok
    assert (later.of(path), later.moods(path)) == (later.LATER, ["calm 2", "calm 2"])


async def test_an_older_backup_is_verified_and_restored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified as the later release would read it, and left as it is; opened, it is migrated."""
    copy, target = tmp_path / "copy.db", tmp_path / "target.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.maintenance.backup(copy)
    content = copy.read_bytes()
    later.release(monkeypatch)
    restored = limpet.restore(copy, f"sqlite:///{target}")
    assert restored.report.ok
    assert (restored.report.sessions, restored.report.events) == (2, 3)
    assert copy.read_bytes() == content
    assert later.of(target) == SCHEMA
    async with limpet.open(f"sqlite:///{target}") as lp:
        assert (await lp.get(ONE)).version == 2
    assert later.of(target) == later.LATER


async def test_a_damaged_older_backup_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read as it would be after the migration, and its damage is found there."""
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    conn = apsw.Connection(str(copy))
    conn.execute("UPDATE events SET actor = 'other' WHERE seq = 2")
    conn.pragma("journal_mode", "delete")
    conn.close()
    later.release(monkeypatch)
    with pytest.raises(errors.BackupDamaged, match="chain"):
        limpet.restore(copy, f"sqlite:///{tmp_path}/target.db")
    assert not (tmp_path / "target.db").exists()


async def test_looking_does_not_migrate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of an earlier schema is refused to those who only read, and left as it is."""
    content = path.read_bytes()
    later.release(monkeypatch)
    with pytest.raises(errors.StoreOlder) as caught:
        await SQLiteStore.look(path)
    assert (caught.value.found, caught.value.known) == (SCHEMA, later.LATER)
    assert path.read_bytes() == content


async def test_a_file_of_a_later_release_is_refused(path: Path) -> None:
    """By those who would write it, and by those who only read: nothing is guessed."""
    with pytest.MonkeyPatch.context() as patch:
        later.release(patch)
        await (await SQLiteStore.open(path)).close()
    content = path.read_bytes()
    for way in (SQLiteStore.open, SQLiteStore.look):
        with pytest.raises(errors.StoreNewer) as caught:
            await way(path)
        assert (caught.value.found, caught.value.known) == (later.LATER, SCHEMA)
    with pytest.raises(errors.StoreNewer):
        limpet.restore(path, f"sqlite:///{path.parent}/target.db")
    assert path.read_bytes() == content
