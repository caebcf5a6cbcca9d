"""Opening a store while a restore puts a backup in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import limpet
from limpet.errors import StoreBusy
from limpet.store.sqlite.file import backup as backups
from limpet.store.sqlite.file.connect import Database, close
from limpet.store.sqlite.store import SQLiteStore
from tests.fault.test_restore import copy, target, url, version

__all__ = ["copy", "target"]  # the fixtures


@pytest.fixture
def connecting() -> Iterator[list[Callable[[], object]]]:
    """Functions that are called once each, as soon as a connection has opened its file."""
    waiting: list[Callable[[], object]] = []

    def hook(_: apsw.Connection) -> None:
        if waiting:
            waiting.pop()()

    apsw.connection_hooks.append(hook)
    yield waiting
    apsw.connection_hooks.remove(hook)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_store_restored_while_it_is_opened_is_opened(
    copy: Path, target: Path, connecting: list[Callable[[], object]], times: int
) -> None:
    """The backup is what is open, not the file that lost its name, however often that happens."""
    restored: list[Path] = []

    def restore() -> None:
        restored.append(copy)
        limpet.restore(copy, url(target), replace=True)
        if len(restored) < times:
            connecting.append(restore)

    connecting.append(restore)
    async with limpet.open(url(target)) as lp:
        await lp.create("a", "b", id="new")
    assert len(restored) == times
    assert await version(target) == 50
    async with limpet.open(url(target)) as lp:
        assert (await lp.get(limpet.Key("a", "b", "new"))).version == 1


def replaced(path: Path) -> apsw.ReadOnlyError:
    """What SQLite says of a file whose name another file has."""
    other = path.with_name("other.db")
    conn = apsw.Connection(str(path))
    conn.pragma("journal_mode", "delete")
    os.replace(path, other)  # noqa: PTH105
    apsw.Connection(str(path)).pragma("user_version", 1)
    try:
        conn.pragma("user_version", 7)
    except apsw.ReadOnlyError as error:
        return error
    finally:
        conn.close()
    raise AssertionError("SQLite did not notice")


async def test_a_file_that_a_restore_replaced_is_not_called_unwritable(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is replaced again and again, the error says so, and that a retry helps."""
    error = replaced(target)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Database, "_migrate", fail)
    with pytest.raises(StoreBusy, match="a restore is putting a backup in its place") as info:
        await SQLiteStore.open(target, busy_seconds=0.01)
    assert info.value.retryable
    assert "permission" not in str(info.value)


async def test_a_store_held_by_a_restore_says_so(
    copy: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot wait for the end of a restore hears what is going on; the restore goes on."""
    heard: list[str] = []
    lift = backups._lift

    def look(part: Path, issued: int) -> None:
        database = Database(target, sync="full", vfs=None, busy_seconds=0.01)
        for attempt in (database.prepare, database.recognise):
            with pytest.raises(StoreBusy) as info:
                close(attempt())
            heard.append(info.value.reason)
        lift(part, issued)

    monkeypatch.setattr(backups, "_lift", look)
    limpet.restore(copy, url(target), replace=True)
    assert heard == ["a restore is putting a backup in its place"] * 2
    assert await version(target) == 50
