"""The feed reader looks when somebody waits, and misses nothing when nobody did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from limpet.model import Key
from limpet.session import follow
from limpet.session.follow import FeedReader, Hub
from limpet.store.protocol import Store, Touched

KEY = Key("app", "ada", "s")


class Beating:
    """A store that somebody else writes to, with a feed."""

    def __init__(self) -> None:
        self.commits, self.asked = 1, asyncio.Semaphore(0)
        self.looks = list[str]()

    def pulse(self) -> int:
        self.asked.release()
        return self.commits

    async def position(self) -> str:
        return str(self.commits)

    async def touched(self, after: str) -> Touched:
        self.looks.append(after)
        found = {KEY: self.commits} if int(after) < self.commits else {}
        return Touched(found, str(self.commits), more=False, whole=True, ended="")

    async def changes(self, after: str | None, **how: Any) -> Any:
        raise NotImplementedError


class Bells(Hub):
    """The followers whom the reader rings."""

    def __init__(self) -> None:
        self.waiting, self.heard = True, list[str]()

    def ring_for(self, sessions: Mapping[Key, int]) -> None:
        self.heard += [f"{key.id} at {seq}" for key, seq in sessions.items()]

    def ring(self) -> None:
        self.heard.append("look")

    def waits(self) -> bool:
        return self.waiting

    def tick(self) -> bool:
        return False


class Scene:
    """A reader that looks when it is woken, and never by the clock."""

    def __init__(self) -> None:
        self.store, self.bells = Beating(), Bells()
        self.reader = FeedReader(cast(Store, self.store), self.bells)

    async def turn(self, *, commits: int = 0) -> None:
        """Others commit, and the reader is woken and comes to its next rest."""
        self.store.commits += commits
        self.reader.wake()
        await self.rest()

    async def rest(self) -> None:
        await self.store.asked.acquire()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(follow, "POLL_SECONDS", 3_600.0)
    made = Scene()
    made.reader.start()
    await made.rest()
    made.bells.heard.clear()
    yield made
    task = made.reader.stop()
    assert task is not None
    await asyncio.wait([task])


async def test_followers_are_rung_for_each_session(scene: Scene) -> None:
    """Each time somebody else has committed, and else the feed is not read."""
    await scene.turn(commits=1)
    await scene.turn()
    await scene.turn(commits=1)
    assert scene.bells.heard == ["s at 2", "s at 3"]
    assert scene.store.looks == ["1", "1", "2"]


async def test_the_feed_is_not_read_while_nobody_waits(scene: Scene) -> None:
    """A worker that has more to do than it can needs no news."""
    scene.bells.waiting = False
    await scene.turn(commits=1)
    await scene.turn(commits=1)
    assert scene.bells.heard == []
    assert scene.store.looks == ["1"]


async def test_who_waits_again_looks_at_everything(scene: Scene) -> None:
    """Nobody has read which sessions were written to meanwhile; then it goes on as before."""
    scene.bells.waiting = False
    await scene.turn(commits=5)
    scene.bells.waiting = True
    await scene.turn()
    assert scene.bells.heard == ["look"]
    await scene.turn(commits=1)
    assert scene.bells.heard == ["look", "s at 7"]
    assert scene.store.looks == ["1", "6", "6"]
