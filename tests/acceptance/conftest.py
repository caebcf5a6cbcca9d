"""What a user has at hand: a file, and a session with a little of everything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """For what needs a file: several instances, other processes."""
    return f"sqlite:///{tmp_path}/support.db"


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
