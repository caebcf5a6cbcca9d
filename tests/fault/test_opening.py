"""Opening a file while another is just making it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet.store.sqlite.file.connect import Database, close
from limpet.store.sqlite.store import SQLiteStore


@pytest.fixture
def statements() -> Iterator[list[Any]]:
    """Functions that are called with every statement of connections opened from now on."""
    watchers: list[Any] = []

    def trace(cursor: Any, sql: str, bindings: Any) -> bool:
        for watcher in list(watchers):
            watcher(sql)
        return True

    def hook(conn: apsw.Connection) -> None:
        conn.exec_trace = trace

    apsw.connection_hooks.append(hook)
    yield watchers
    apsw.connection_hooks.remove(hook)


@pytest.mark.parametrize("number", range(12))
async def test_a_file_made_between_two_looks_is_recognised(
    tmp_path: Path, statements: list[Any], number: int
) -> None:
    """Another process makes the database before the nth statement of an opening: both succeed."""
    path = tmp_path / "a.db"
    seen = 0

    def make(sql: str) -> None:
        nonlocal seen
        seen += 1
        if seen == number + 1:
            statements.remove(make)
            with suppress(
                limpet.errors.StoreBusy
            ):  # the one who looks has the lock: it will make it
                close(Database(path, sync="full", vfs=None, busy_seconds=0.05).prepare())

    statements.append(make)
    store = await SQLiteStore.open(path)
    async with limpet.Limpet("sqlite:///a", store=store) as lp:
        await lp.create("a", "b", id="c")
        assert (await lp.maintenance.verify()).ok
