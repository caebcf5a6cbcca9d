"""Processes archive, bring back, write to and forget the same sessions, and some are killed.

Whatever was acknowledged is there in the end: events, blobs and checkpoints of a session that
nobody forgot; and nothing of one that somebody did, neither in the store nor in the archive.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.bucket import bucket_server
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.seeds import seed

pytestmark = pytest.mark.deeper
PROCESSES, SESSIONS = 3, 4  # as many as `tests.support.archivist` has


class Acknowledged:
    """What the processes said."""

    def __init__(self, lines: list[str]) -> None:
        words = [line.split() for line in lines]
        self._words = [each for each in words if len(each) > 1]

    def of(self, what: str, n: int) -> set[str]:
        return {each[-1] for each in self._words if each[:2] == [what, f"{n}"]}


def race(where: tuple[str, ...], chance: random.Random, steps: int, kills: int) -> list[str]:
    """Let them run at once, and kill some; every line they said."""
    said: list[str] = []
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child("tests.support.archivist", *where, chance.getrandbits(32), steps)
            )
            for _ in range(PROCESSES)
        ]
        for child in children:
            child.expect("ready")
        for child in children:
            child.tell("go")
        for child in children[:kills]:
            said += child.killed_after(0, chance.uniform(0, 400_000))
        for child in children[kills:]:
            lines = list(child.lines())
            assert lines[-1:] == ["done"], child.complaint()
            said += lines
    return said


async def check(
    lp: limpet.Limpet, user: str, said: Acknowledged, files: Callable[[], set[str]]
) -> None:
    for _ in range(3):  # each finishes what processes that died have left
        assert (await lp.work.sweep()).failed == ()
    assert (await lp.maintenance.verify()).findings == ()
    for n in range(SESSIONS):
        key = limpet.Key("race", user, f"{n}")
        forgotten = said.of("going", n)
        try:
            s = await lp.get(key, archived=True)
        except (limpet.errors.SessionDeleted, limpet.errors.SessionErased):
            assert forgotten, n
            continue
        assert not said.of("gone", n), n
        log = await s.read(limit=1_000)
        assert [event.seq for event in log] == list(range(1, s.version + 1))
        texts = {event.data["text"] for event in log if event.type == "user.message"}
        assert said.of("said", n) <= texts
        for hash in said.of("blob", n):
            assert await s.blobs.get(hash)
        if s.phase != "archived" or "archive" not in (await head(lp, key)).facts:
            numbers = {
                f"{each.number}" for each in (await s.history.checkpoints(limit=1_000)).items
            }
            assert said.of("checkpoint", n) <= numbers
    page = await lp.list(app="race", limit=100)
    named = {each.facts["archive"]["place"] for each in page.items if "archive" in each.facts}
    assert files() == named


async def head(lp: limpet.Limpet, key: limpet.Key) -> Any:
    return next(each for each in (await lp.list(app="race", limit=100)).items if each.key == key)


async def run(url: str, archive: str, files: Callable[[], set[str]], rounds: int) -> None:
    chance = random.Random(seed("archive races"))
    for round in range(rounds):
        user = f"ada-{round}"
        async with limpet.open(url, archive=archive) as lp:
            for n in range(SESSIONS):
                state = {"n": n, "user:seen": n}
                await lp.create("race", user, f"{n}", state=state, actor=f"user:{user}")
        said = race((url, archive, user), chance, steps=60, kills=round % PROCESSES)
        async with limpet.open(url, archive=archive) as lp:
            await check(lp, user, Acknowledged(said), files)
            await lp.erase_user("race", user)
            assert files() == set()


async def test_processes_race_for_a_file_and_a_directory(tmp_path: Path) -> None:
    """Several processes on one SQLite file, with a directory as the archive."""
    cold = tmp_path / "cold"
    url = f"sqlite:///{tmp_path}/race.db?sync=normal"
    await run(url, f"file://{cold}", in_directory(cold), tries(3, 20))


async def test_processes_race_for_a_server_and_a_bucket(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on PostgreSQL, with a bucket as the archive."""
    with bucket_server(monkeypatch.setenv) as bucket:
        await run(postgres_store_url, "s3://cold", lambda: set(bucket), tries(2, 12))


def in_directory(cold: Path) -> Callable[[], set[str]]:
    def files() -> set[str]:
        return {each.relative_to(cold).as_posix() for each in cold.rglob("*") if each.is_file()}

    return files
