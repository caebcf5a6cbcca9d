"""A store from outside this package plugs in through the protocol alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import limpet
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Store
from limpet.testing.clock import FakeClock
from limpet.testing.laws.log.commits import CommitLaws
from limpet.testing.laws.log.races import RaceLaws
from limpet.testing.laws.log.repeats import RepeatLaws
from limpet.testing.laws.reads.reading import ReadLaws
from limpet.testing.laws.resources.scopes import ScopeLaws

PROTOCOL = [name for name in vars(Store) if not name.startswith("_")]


class Elsewhere:
    """It has the names of the protocol Store, none of its optional abilities, and no base of ours.

    What it keeps is in a MemoryStore, which stands for a server that this package does not know.
    """

    def __init__(self, kept: MemoryStore) -> None:
        self._kept = kept


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: Elsewhere, *args: Any, **named: Any) -> Any:
        return getattr(self._kept, name)(*args, **named)

    return forward


for _name in PROTOCOL:
    setattr(Elsewhere, _name, _forwarded(_name))


class TestElsewhere(CommitLaws, RepeatLaws, ScopeLaws, ReadLaws, RaceLaws):
    """What is shipped in limpet.testing about the protocol alone. Forks, copies and cold events
    need optional protocols."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[Any]:
        store = MemoryStore(clock.clock())
        yield Elsewhere(store)
        await store.close()


async def test_sessions_live_in_a_store_from_elsewhere() -> None:
    """Create, append with scopes, get, list and delete work on it as on our own."""
    store: Any = Elsewhere(MemoryStore())
    assert not isinstance(store, MemoryStore)
    async with limpet.Limpet("memory://", store=store) as lp:
        session = await lp.create("support", "ada", id="s1", state={"n": 0, "app:motd": "hi"})
        await session.append(
            "user.message", {"text": "hello"}, actor="u", set={"n": 1, "temp:x": 2}
        )
        found = await lp.get("support", "ada", "s1")
        assert dict(found.values) == {"n": 1, "app:motd": "hi"}
        assert [message.role for message in await found.messages()] == ["user"]
        assert len((await lp.list(app="support", state=True)).items) == 1
        await lp.delete("support", "ada", "s1")
        with pytest.raises(limpet.errors.SessionDeleted):
            await session.append("late.write", actor="u")
