"""Two processes on one thread of one database: nothing is lost, and with theirs it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.langgraph.inside.writer import THREAD, entries, opened, put

COUNT = 5
NAMES = ("one", "two")
WANTED = sorted(f"{name} {number}" for name in NAMES for number in range(COUNT))


async def race(whose: str, where: str, app: str) -> list[str]:
    """What is in the thread after two processes wrote to it."""
    async with opened(whose, where, app) as saver:
        await put(saver, None, [])
    write_at_once(whose, where, app)
    async with opened(whose, where, app) as saver:
        return await entries(saver)


def write_at_once(*where: str) -> None:
    """Both read the same checkpoint before either goes on from it, again and again."""
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), *where]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, name, str(COUNT)], **pipes) for name in NAMES]
    for _ in range(COUNT):
        assert [writer.stdout.readline() for writer in writers] == ["read\n"] * 2
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [writer.stdout.readline() for writer in writers] == ["put\n"] * 2
    for writer in writers:
        writer.communicate(timeout=60)


async def test_two_processes_lose_nothing(url: str, app: str) -> None:
    """Every entry of either process is in the newest checkpoint, each writer's in its order."""
    if url == "memory://":
        pytest.skip("a store in memory belongs to one process")
    found = await race("ours", url, app)
    assert sorted(found) == WANTED
    for name in NAMES:
        assert [entry for entry in found if entry.startswith(name)] == [
            f"{name} {number}" for number in range(COUNT)
        ]


async def test_their_saver_loses_what_one_of_two_processes_wrote(tmp_path: Path, app: str) -> None:
    """The same check on AsyncSqliteSaver: both are acknowledged, and half of it is gone."""
    found = await race("theirs", str(tmp_path / "theirs.db"), app)
    assert len(found) == COUNT < len(WANTED)


async def test_their_saver_accepts_both_writers_from_one_parent(tmp_path: Path, app: str) -> None:
    """The second put from one checkpoint raises nothing there; ours raises SessionConflict."""
    where = str(tmp_path / "theirs.db")
    async with opened("theirs", where, app) as one, opened("theirs", where, app) as other:
        await put(one, None, [])
        mine, yours = [await saver.aget_tuple(THREAD) for saver in (one, other)]
        await put(one, mine, ["mine"])
        await put(other, yours, ["yours"])
        assert await entries(one) == ["yours"]
