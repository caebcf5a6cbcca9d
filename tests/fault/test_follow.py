"""Followers on a store that fails for a moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from limpet import Limpet
from limpet.errors import PositionUnknown, StoreFailed
from limpet.store.protocol import Touched
from limpet.store.sqlite.store import SQLiteStore

DEADLINE_SECONDS = 60


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


class Restored(SQLiteStore):
    """A store whose positions are unknown to it now and then, as if put back to an earlier time."""

    looks = 0

    async def touched(self, after: str) -> Touched:
        self.looks += 1
        if self.looks % 3 == 0:
            raise PositionUnknown(after)
        return await super().touched(after)


async def test_a_feed_position_that_is_lost_loses_no_event(tmp_path: Path) -> None:
    """The reader begins again at the end of the feed, and every follower looks for itself."""
    path = tmp_path / "a.db"
    store: Any = await Restored.open(path)
    async with (
        Limpet("sqlite:///a", store=store) as lp,
        Limpet("sqlite:///a", store=await SQLiteStore.open(path)) as elsewhere,
    ):
        session = await lp.create("a", "b", id="c")
        theirs = elsewhere.session(session.key, actor="test:elsewhere")
        seen: list[int] = []
        following = session.follow()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while store.looks <= 6 or len(seen) < 30:
                heard = asyncio.ensure_future(anext(following))
                if seen:
                    # A follower that reads on at once needs no look: let it rest now and then.
                    await asyncio.sleep(0.01 if len(seen) % 3 == 0 else 0)
                    await theirs.append("x.y")
                seen.append((await heard).seq)
        assert seen == list(range(1, len(seen) + 1))
        await following.aclose()


class Overtaken(SQLiteStore):
    """A store that another process writes to while the reader begins again."""

    elsewhere: Any = None
    unknown = False

    async def touched(self, after: str) -> Touched:
        if self.unknown:
            raise PositionUnknown(after)
        return await super().touched(after)

    async def position(self) -> str:
        if self.unknown:
            await self.elsewhere.append("x.y")
            self.unknown = False
        return await super().position()


async def test_what_is_recorded_while_the_reader_begins_again_is_met(tmp_path: Path) -> None:
    """Everybody looks once more after the reader has its position, not only before."""
    path = tmp_path / "a.db"
    store: Any = await Overtaken.open(path)
    async with (
        Limpet("sqlite:///a", store=store) as lp,
        Limpet("sqlite:///a", store=await SQLiteStore.open(path)) as elsewhere,
    ):
        session = await lp.create("a", "b", id="c")
        other = await elsewhere.create("a", "b", id="d", actor="x")
        store.elsewhere = elsewhere.session(session.key, actor="x")
        following = session.follow()
        assert (await anext(following)).seq == 1
        waiting = asyncio.ensure_future(anext(following))
        for _ in range(50):
            await asyncio.sleep(0)
        store.unknown = True
        await other.append("x.y")  # so that the reader looks
        assert (await asyncio.wait_for(waiting, DEADLINE_SECONDS)).seq == 2
