"""Followers on a store that fails for a moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from limpet import Limpet, StoreFailed
from limpet.store.sqlite.store import SQLiteStore

DEADLINE_SECONDS = 8


class Skipping(SQLiteStore):
    """A store whose pulse cannot be felt a few times."""

    failures = 3

    def pulse(self) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreFailed("test", "the disk did not answer")
        return super().pulse()


async def test_a_pulse_that_fails_for_a_moment_loses_no_event(tmp_path: Path) -> None:
    """Events of another process reach the follower once the store answers again."""
    path = tmp_path / "a.db"
    store: Any = await Skipping.open(path)
    async with (
        Limpet("sqlite:///a", store=store) as lp,
        Limpet("sqlite:///a", store=await SQLiteStore.open(path)) as elsewhere,
    ):
        session = await lp.create("a", "b", id="c")
        theirs = elsewhere.session(session.key, actor="test:elsewhere")

        async def follow() -> list[int]:
            seen: list[int] = []
            async for event in session.follow():
                seen.append(event.seq)
                if len(seen) < 4:
                    await theirs.append("x.y")
                else:
                    break
            return seen

        assert await asyncio.wait_for(follow(), DEADLINE_SECONDS) == [1, 2, 3, 4]
