"""A write whose answer was lost: the error names the ids under which it may be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from limpet import Draft, Limpet
from limpet.errors import StoreFailed
from limpet.model.commit import Commit
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed
from limpet.store.sqlite.store import SQLiteStore


class Lossy:
    """Mixed into a store: when told to, it fails before or after it has recorded."""

    fails = ""

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreFailed("test", "the line was cut")
        answer: tuple[Committed, ...] = await super().commit(commits)  # type: ignore[misc]  # a store's
        if fails == "after":
            raise StoreFailed("test", "the line was cut")
        return answer


class LossyMemory(Lossy, MemoryStore):
    pass


class LossySQLite(Lossy, SQLiteStore):
    pass


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return LossyMemory()
    return await LossySQLite.open(tmp_path / "a.db", sync="normal")


@pytest.fixture
async def lp(store: Any) -> AsyncIterator[Limpet]:
    async with Limpet("test", store=store) as lp:
        yield lp


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_append_is_sent_again_and_counts_once(
    lp: Limpet, store: Any, when: str
) -> None:
    """Recorded or not: with the id of the error the second attempt makes it one."""
    session = await lp.create("a", "u", id="q", actor="x", state={"n": 0})
    store.fails = when
    with pytest.raises(StoreFailed) as info:
        await session.append("x.y", {"k": 1}, inc={"n": 1})
    (id,) = info.value.ids
    event = await session.append("x.y", {"k": 1}, inc={"n": 1}, id=id)
    assert (event.id, event.seq) == (id, 2)
    assert ((await session.refresh()).version, session.state["n"]) == (2, 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_lost_appends_are_sent_again_in_their_order(
    lp: Limpet, store: Any, when: str
) -> None:
    """One id for each draft; those that the caller chose are kept."""
    session = await lp.create("a", "u", id="q", actor="x", state={"n": 0})
    store.fails = when
    with pytest.raises(StoreFailed) as info:
        await session.append_many(
            [Draft(type="x.a", inc={"n": 1}), Draft(type="x.b", id="mine", inc={"n": 1})]
        )
    assert (len(info.value.ids), info.value.ids[1]) == (2, "mine")
    drafts = [
        Draft(type=type, id=id, inc={"n": 1})
        for type, id in zip(("x.a", "x.b"), info.value.ids, strict=True)
    ]
    await session.append_many(drafts)
    events = await session.read(after=1)
    assert [(event.type, event.id) for event in events] == list(
        zip(("x.a", "x.b"), info.value.ids, strict=True)
    )
    assert (await session.refresh()).state["n"] == 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_commit_is_sent_again_and_counts_once(
    lp: Limpet, store: Any, when: str
) -> None:
    """Over several sessions: the ids are in the order of the appends."""
    one, two = [await lp.create("a", "u", id=id, actor="x", state={"n": 0}) for id in "12"]

    async def write(ids: Sequence[str | None]) -> list[str]:
        async with lp.commit() as commit:
            for session, id in zip((one, two, one), ids, strict=True):
                commit.append(session, "x.y", inc={"n": 1}, id=id)
        return [event.id for event in commit.events]

    store.fails = when
    with pytest.raises(StoreFailed) as info:
        await write([None] * 3)
    assert len(set(info.value.ids)) == 3
    assert await write(info.value.ids) == list(info.value.ids)
    assert [(await s.refresh()).state["n"] for s in (one, two)] == [2, 1]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_creation_is_found_or_made_by_its_id(
    lp: Limpet, store: Any, when: str
) -> None:
    """Recorded or not: get_or_create, as the error says, leaves one session."""
    store.fails = when
    with pytest.raises(StoreFailed, match="get_or_create") as info:
        await lp.create("a", "u", id="q", state={"n": 1})
    assert info.value.asked == "create"
    session = await lp.get_or_create("a", "u", id="q", state={"n": 1})
    assert (session.version, dict(session.state)) == (1, {"n": 1})
    assert len((await lp.list(app="a")).items) == 1
