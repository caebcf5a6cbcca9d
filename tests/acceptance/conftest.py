"""What a user has at hand: a file, and a session with a little of everything in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import limpet


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """For what needs a file: several instances, other processes."""
    return f"sqlite:///{tmp_path}/support.db"


@pytest.fixture
def two_urls(kinds: str, request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Two empty stores, of the kinds that the module's fixture `kinds` names: "memory-sqlite"."""
    urls = []
    for number, kind in enumerate(kinds.split("-")):
        if kind == "postgresql":
            urls.append(request.getfixturevalue("postgres_store_url"))
        else:
            file = f"sqlite:///{tmp_path}/{number}.db?sync=normal"
            urls.append("memory://" if kind == "memory" else file)
    return urls


@pytest.fixture
async def pair(two_urls: list[str]) -> AsyncIterator[tuple[limpet.Limpet, limpet.Limpet]]:
    async with limpet.open(two_urls[0]) as one, limpet.open(two_urls[1]) as other:
        yield one, other


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
