"""How often the store is asked: many events, one commit, one answer."""

from __future__ import annotations

from collections.abc import Sequence

from limpet import Draft, Limpet
from limpet.model import Commit
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed
from limpet.testing.clock import FakeClock


class Counting(MemoryStore):
    """Counts the commits that it is asked for."""

    def __init__(self) -> None:
        super().__init__(FakeClock().clock())
        self.asked = 0

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self.asked += 1
        return await super().commit(commits)


async def test_many_events_of_one_call_have_one_answer() -> None:
    """append_many and a commit over sessions are handed to the store once each."""
    store = Counting()
    async with Limpet("memory://", store=store) as lp:
        many = [await lp.create("shop", "ada", id=f"s{n}", actor="a") for n in range(3)]
        await many[0].append("a.b")  # the policy of the app is read by now
        before = store.asked
        await many[0].append_many([Draft(type="a.b")] * 50)
        async with lp.commit() as c:
            for s in many * 5:
                c.append(s, "a.b")
        assert store.asked == before + 2


async def test_a_flush_asks_the_store_a_few_times() -> None:
    """6,400 events of 64 sessions, appended in turn, are at most 1,000 a commit; a session that is
    written through a new handle for each event is one commit per 16 handles."""
    store = Counting()
    async with Limpet("memory://", store=store) as lp:
        many = [await lp.create("shop", "ada", id=f"s{n}", actor="a") for n in range(64)]
        await many[0].append("a.b")
        before = store.asked
        for _ in range(100):
            for s in many:
                s.append_soon("a.b")
        await lp.flush()
        assert store.asked == before + 7  # ten sessions fill a commit
        for _ in range(64):
            lp.session("shop", "ada", "s0", actor="a").append_soon("a.b")
        await lp.flush()
        assert store.asked == before + 11
