"""Limpet on every store, as a user opens it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import limpet
from tests.support import postgres


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def url(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    any_postgres: postgres.Server | postgres.Elsewhere,
) -> str:
    """Without an fsync for each commit: what the disk does is the fault suite's business."""
    if request.param == "memory":
        return "memory://"
    if request.param == "postgresql":
        await postgres.empty(any_postgres.url)
        return any_postgres.url
    return f"sqlite:///{tmp_path}/support.db?sync=normal"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """For what needs a file: several instances, other processes."""
    return f"sqlite:///{tmp_path}/support.db"


@pytest.fixture
async def lp(url: str) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url) as opened:
        yield opened


@pytest.fixture
async def s(lp: limpet.Limpet) -> limpet.Session:
    """A session with a little of everything in it, at version 2."""
    session = await lp.create(
        "support",
        "ada",
        id="one",
        state={
            "n": 0,
            "text": "x",
            "plan": {"steps": [1, 2]},
            "app:a": 1,
            "user:u": 2,
            "temp:t": 3,
        },
        labels={"plan": "gold"},
    )
    await session.append("user.message", {"text": "hi"}, actor="user:ada")
    return session
