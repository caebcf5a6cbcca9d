"""Many tasks at once: no update is lost, no object goes backwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import limpet
from limpet import Limpet, Session
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.store.memory import MemoryStore
from limpet.testing.commits import addition, draft


async def test_updates_of_one_session_all_count(lp: Limpet) -> None:
    """Twenty tasks, each with an object of its own, three increments each."""
    key = (await lp.create("a", "u", state={"count": 0})).key

    async def work(n: int) -> None:
        mine = lp.session(key, actor=f"task:{n}")
        for _ in range(3):
            await mine.update(lambda state: {"count": state["count"] + 1})

    await asyncio.gather(*(work(n) for n in range(20)))
    assert (await lp.get(key)).state["count"] == 60


async def test_updates_through_one_object_all_count(lp: Limpet) -> None:
    """Tasks that share the object do not overwrite each other either."""
    s = await lp.create("a", "u", state={"count": 0})
    await asyncio.gather(
        *(s.update(lambda state: {"count": state["count"] + 1}, actor="x") for _ in range(20))
    )
    assert s.state["count"] == (await lp.get(s.key)).state["count"] == 20


@pytest.mark.parametrize("name", ["app:count", "user:count"])
async def test_updates_of_a_shared_name_all_count(lp: Limpet, name: str) -> None:
    """Sessions that never heard of each other, one name, nothing lost."""
    sessions = [await lp.create("a", "u", state={name: 0} if n == 0 else {}) for n in range(10)]

    async def work(s: Session) -> None:
        await s.refresh()
        for _ in range(3):
            await s.update(lambda state: {name: state[name] + 1}, actor="x")

    await asyncio.gather(*(work(s) for s in sessions))
    assert (await sessions[0].refresh()).state[name] == 30


async def test_an_update_decides_on_the_newest_state(lp: Limpet) -> None:
    """A name it reads has moved on in another session: the function sees the new value."""
    one = await lp.create("a", "ada", state={"app:n": 1})
    two = await lp.create("a", "bob")
    await two.append("a.b", actor="x", set={"app:n": 10})
    seen: list[int] = []

    def change(state: Any) -> dict[str, Any]:
        seen.append(state["app:n"])
        return {"doubled": state["app:n"] * 2}

    await one.update(change, actor="x")
    assert seen == [10]
    assert one.state["doubled"] == 20


async def test_an_update_is_not_disturbed_by_what_it_did_not_look_at(lp: Limpet) -> None:
    """Another session's write to another shared name is no reason to try again."""
    one = await lp.create("a", "ada", state={"app:n": 1, "app:other": 1})
    two = await lp.create("a", "bob")
    await two.append("a.b", actor="x", inc={"app:other": 1})
    calls: list[int] = []

    def change(state: Any) -> dict[str, Any]:
        calls.append(1)
        return {"n": state["app:n"]}

    await one.update(change, actor="x")
    assert len(calls) == 1


async def test_an_update_that_looks_at_all_names_sees_new_ones(lp: Limpet) -> None:
    """A name that another writer added is a change of what the function looked at."""
    one = await lp.create("a", "u", state={"item1": 1})
    two = await lp.get(one.key)
    await two.append("a.b", actor="x", set={"item2": 1})
    await one.update(
        lambda state: {"count": sum(name.startswith("item") for name in state)}, actor="x"
    )
    assert one.state["count"] == 2


class Contested(MemoryStore):
    """A store in which somebody else is always a little faster than a guarded commit."""

    async def commit(self, commits: Any) -> Any:
        if commits[0].guards:
            await super().commit([addition(commits[0].key, draft(inc={"n": 1}))])
        return await super().commit(commits)


async def test_an_update_that_never_wins_gives_up_with_a_conflict() -> None:
    """Tries are bounded, and none of them leaves a trace."""
    async with Limpet("memory://", store=Contested()) as lp:
        s = await lp.create("a", "u", state={"n": 0})
        calls: list[int] = []

        def change(state: Any) -> dict[str, Any]:
            calls.append(1)
            return {"n": state["n"] + 1}

        with pytest.raises(limpet.SessionConflict) as info:
            await s.update(change, actor="x")
        assert info.value.retryable
        assert 1 < len(calls) <= UPDATE_TRIES_MAX + 2
        assert not await s.read(types=["state.updated"])


async def test_appends_of_many_tasks_are_dense(lp: Limpet) -> None:
    """A hundred tasks on one object: every event once, seqs without a hole, sums exact."""
    s = await lp.create("a", "u", state={"n": 0})
    events = await asyncio.gather(
        *(s.append("a.b", {"task": n}, actor="x", inc={"n": 1}) for n in range(100))
    )
    assert sorted(e.seq for e in events) == list(range(2, 102))
    assert (s.version, s.state["n"]) == (101, 100)
    read = await s.read(limit=200)
    assert {e.seq: e for e in read[1:]} == {e.seq: e for e in events}
    seqs = [e.seq for e in s.events]
    assert seqs == list(range(102 - len(seqs), 102))


async def test_temporary_names_of_racing_appends_all_stay(lp: Limpet) -> None:
    """Tasks that share an object share its temp: names too, and none is lost."""
    s = await lp.create("a", "u")
    await asyncio.gather(
        *(s.append("a.b", actor="x", set={f"temp:{n}": n}, inc={"temp:n": 1}) for n in range(10))
    )
    assert s.state == {**{f"temp:{n}": n for n in range(10)}, "temp:n": 10}


async def test_racing_get_or_create_gives_one_session(lp: Limpet) -> None:
    """Everyone gets the same session, created once."""
    sessions = await asyncio.gather(
        *(lp.get_or_create("a", "u", id="1", state={"by": n}) for n in range(10))
    )
    assert len({s.head.uid for s in sessions}) == 1
    assert len({s.state["by"] for s in sessions}) == 1
    assert (await lp.get(("a", "u", "1"))).version == 1


async def test_commits_over_crossed_sessions_all_succeed(lp: Limpet) -> None:
    """Transfers in both directions keep the sum and never deadlock."""
    one = await lp.create("a", "u", id="1", state={"n": 100})
    two = await lp.create("a", "u", id="2", state={"n": 100})

    async def move(giver: Session, taker: Session) -> None:
        async with lp.commit() as c:
            c.append(giver, "money.sent", actor="x", inc={"n": -1})
            c.append(taker, "money.got", actor="x", inc={"n": 1})

    await asyncio.gather(*(move(one, two) if n % 2 else move(two, one) for n in range(20)))
    assert (one.state["n"], two.state["n"], one.version, two.version) == (100, 100, 21, 21)


class SlowLoad(MemoryStore):
    """A store whose answer to `load` is held back until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def load(self, key: Any, **how: Any) -> Any:
        loaded = await super().load(key, **how)
        self.begun.set()
        await self.go.wait()
        return loaded


async def test_an_object_never_goes_backwards() -> None:
    """A load that was overtaken by an append does not take the append's effect away."""
    store = SlowLoad()
    async with Limpet("memory://", store=store) as lp:
        s = await lp.create("a", "u", state={"n": 0, "app:n": 0})
        loading = asyncio.create_task(s.refresh())
        await store.begun.wait()
        await s.append("a.b", actor="x", inc={"n": 1, "app:n": 1})
        store.go.set()
        await loading
        assert (s.version, s.state["n"], s.state["app:n"]) == (2, 1, 1)
        assert [e.seq for e in s.events] == [1, 2]


async def test_a_handle_is_loaded_after_refresh_whatever_raced_it() -> None:
    """Once refresh has returned, state is known, although an append was faster."""
    store = SlowLoad()
    async with Limpet("memory://", store=store) as lp:
        key = (await lp.create("a", "u", state={"n": 0})).key
        h = lp.session(key, actor="x")
        loading = asyncio.create_task(h.refresh())
        await store.begun.wait()
        await h.append("a.b", inc={"n": 1})
        store.go.set()
        await loading
        assert h.state["n"] == 1


async def test_a_cancelled_append_leaves_object_and_store_agreeing(lp: Limpet) -> None:
    """Cancelled at any point, the event is there or not, and a retry with its id makes it one."""
    s = await lp.create("a", "u", state={"n": 0})
    for turns in (0, 1, 2, 3, 10, 100):
        task = asyncio.create_task(s.append("a.b", actor="x", id=f"t{turns}", inc={"n": 1}))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await s.append("a.b", actor="x", id=f"t{turns}", inc={"n": 1})
    fresh = await lp.get(s.key)
    assert (fresh.version, fresh.state["n"]) == (7, 6)
    assert (s.version, s.state["n"]) == (7, 6)
