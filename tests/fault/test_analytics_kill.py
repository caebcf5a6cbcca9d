"""The folding process is killed with SIGKILL anywhere: every event counts exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import limpet
from limpet.analytics.file import AnalyticsFile
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.roll_ups import cells_of
from tests.support.seeds import seed

SESSIONS = 60


async def write(url: str) -> None:
    async with limpet.open(url) as lp:
        for number in range(SESSIONS):
            labels = {"task_type": f"t{number % 3}"}
            s = await lp.create("support", f"u{number % 7}", labels=labels, actor="user:ada")
            for _ in range(3):
                await s.append("user.message", {"text": "hi"})
                usage = {"usage": {"input": 7, "output": 3}, "cost": 0.01}
                await s.append("agent.message", {"text": "yes", **usage}, actor="agent:a")
            await s.checkpoint()
            if number % 2:
                await s.complete()


def cells(path: Path) -> dict[str, object]:
    file = AnalyticsFile(path)
    try:
        return {"folds": list(file.folds()), "cells": cells_of(file)}
    finally:
        file.close()


@pytest.fixture(params=["sqlite", "postgresql", "files", "served"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store that is folded."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db?sync=normal"
    if request.param == "files":
        return f"files:///{tmp_path}/store"
    fixture = {"postgresql": "postgres_store_url", "served": "served_url"}[request.param]
    server: str = request.getfixturevalue(fixture)
    return server


async def test_a_killed_fold_counts_every_event_once(url: str, tmp_path: Path) -> None:
    """Results and position are one commit: killed again and again, then finished, the file has
    what an undisturbed one has, cell by cell."""
    chance = random.Random(seed("analytics_kill"))
    await write(url)
    kills = finished = 0
    while kills < tries(5, 200):
        name = f"killed{finished}.db"
        with Child("tests.support.analyst", url, f"sqlite:///{tmp_path}/{name}", 9) as child:
            said = child.killed_after(1, chance.uniform(0, 60_000))
        kills += 1
        finished += "done" in said
    last = f"killed{finished}.db"
    with Child("tests.support.analyst", url, f"sqlite:///{tmp_path}/{last}", 9) as child:
        child.end()
    with Child("tests.support.analyst", url, f"sqlite:///{tmp_path}/calm.db", 1_000) as child:
        child.end()
    calm = cells(tmp_path / "calm.db")
    for number in range(finished + 1):
        assert cells(tmp_path / f"killed{number}.db") == calm
    assert len(calm["folds"]) == SESSIONS  # type: ignore[arg-type]  # a list


async def test_two_processes_on_one_file_count_every_event_once(url: str, tmp_path: Path) -> None:
    """Whoever is slower finds its batch refused, and goes on where the other stopped."""
    await write(url)
    file = f"sqlite:///{tmp_path}/both.db"
    shared = f"{url}?mode=ro" if url.startswith("files:") else url  # which one process writes
    with (
        Child("tests.support.analyst", shared, file, 7) as one,
        Child("tests.support.analyst", shared, file, 11) as other,
    ):
        one.end()
        other.end()
    with Child("tests.support.analyst", url, f"sqlite:///{tmp_path}/calm.db", 1_000) as child:
        child.end()
    assert cells(tmp_path / "both.db") == cells(tmp_path / "calm.db")
