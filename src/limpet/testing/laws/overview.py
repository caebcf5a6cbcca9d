"""Overview: open requests are listed oldest first; sessions are counted by what they need."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Protocol

import pytest

from limpet.errors import InvalidQuery
from limpet.model import FrozenDict, Head, Key, Prepared, limits
from limpet.model.facts.isolation import Isolation
from limpet.model.facts.moves import departed, departure
from limpet.model.facts.phases import transition
from limpet.model.facts.running.requests import RequestKind, asked
from limpet.model.facts.running.runs import DEAD, STATUSES, failed, status_idle
from limpet.model.lease import READINESS, readiness, status_at
from limpet.store.leases import LeaseStore
from limpet.store.overview import AskedBy, Overview, Tally, WaitingPlace, WaitingQuery
from limpet.store.protocol import Query
from limpet.testing.clock import FakeClock
from limpet.testing.commits import ALL, add, create, creation, draft, key, ready
from limpet.testing.leases import FAR_US, claim, due

A, B, C = key("a"), key("b", user="bob"), key("c", app="bank")
SECOND = timedelta(seconds=1)
_ALL = WaitingQuery()


class OverviewStore(LeaseStore, Overview, Protocol):
    """A store that also lists open requests and counts sessions."""


def asking(id: str, kind: RequestKind = "approval") -> Prepared:
    return ready(asked(id, kind, "refund", {"order": 1}, input_hash=""))


def answer(id: str) -> Prepared:
    data = {"request_id": id, "result": "allow"}
    return draft("user.tool_confirmation", data, input=True)


async def wait(store: OverviewStore, of: Key, *requests: Prepared) -> None:
    """A session that waits for the answers to these requests."""
    await create(store, of)
    for request in requests:
        await add(store, of, request)


async def inbox(
    store: OverviewStore, query: WaitingQuery = _ALL, *, size: int = 100
) -> list[AskedBy]:
    """Every open request, page after page."""
    met: list[AskedBy] = []
    after: WaitingPlace | None = None
    while True:
        page, after = await store.waiting(query, limit=size, after=after)
        assert len(page) <= size
        met += page
        if after is None:
            return met


async def _pages(store: OverviewStore, query: Query) -> list[Head]:
    """Every head, two at a time, also after an empty page."""
    met: list[Head] = []
    page = await store.heads(query, cursor=None, limit=2)
    met += page.items
    while page.cursor is not None:
        page = await store.heads(query, cursor=page.cursor, limit=2)
        met += page.items
    return met


def seen(asked_by: list[AskedBy]) -> list[tuple[str, int]]:
    return [(asked.key.id, asked.request.seq) for asked in asked_by]


class OverviewLaws:
    """For stores that list open requests and count sessions."""

    async def test_open_requests_come_oldest_first(
        self, store: OverviewStore, clock: FakeClock
    ) -> None:
        """Across sessions and apps, by the time of asking; a session with two is met twice."""
        await wait(store, A, asking("a1"))
        clock.advance(SECOND)
        await wait(store, C, asking("c1", "question"))
        clock.advance(SECOND)
        await wait(store, B, asking("b1"))
        clock.advance(SECOND)
        await add(store, A, asking("a2", "question"))
        await create(store, key("quiet"))
        requests = await inbox(store)
        assert seen(requests) == [("a", 2), ("c", 2), ("b", 2), ("a", 3)]
        times = [each.request.since_us for each in requests]
        assert times == sorted(times)
        assert min(times) > 0
        assert [each.key for each in requests] == [A, C, B, A]

    async def test_open_requests_are_found_by_app_user_and_kind(self, store: OverviewStore) -> None:
        """Each alone, and together."""
        await wait(store, A, asking("a1"), asking("a2", "question"))
        await wait(store, B, asking("b1", "question"))
        await wait(store, C, asking("c1"))
        of_shop = seen(await inbox(store, WaitingQuery(app="shop")))
        assert sorted(of_shop) == [("a", 2), ("a", 3), ("b", 2)]
        assert seen(await inbox(store, WaitingQuery(app="shop", user="bob"))) == [("b", 2)]
        approvals = seen(await inbox(store, WaitingQuery(kind="approval")))
        assert sorted(approvals) == [("a", 2), ("c", 2)]
        both = WaitingQuery(app="shop", user="ada", kind="question")
        assert seen(await inbox(store, both)) == [("a", 3)]
        assert await inbox(store, WaitingQuery(app="nobody")) == []

    async def test_paging_meets_every_open_request_once(self, store: OverviewStore) -> None:
        """Paging is complete for every page size, also while requests are answered."""
        for number in range(5):
            await wait(store, key(f"s{number}"), asking("x"), asking("y", "question"))
        whole = seen(await inbox(store))
        assert len(set(whole)) == 10
        for size in (1, 2, 3, 9, 10):
            assert seen(await inbox(store, size=size)) == whole
        page, after = await store.waiting(WaitingQuery(), limit=3)
        await add(store, page[2].key, answer("x"))  # the place it ends at, or one before it
        rest, _ = await store.waiting(WaitingQuery(), limit=100, after=after)
        assert seen([*page, *rest]) == whole

    async def test_open_requests_of_lent_sessions_are_found_with_ones_own(
        self, store: OverviewStore, clock: FakeClock
    ) -> None:
        """Of sessions that name the user and of those of everybody, each once, in their order."""
        named, everybody = Isolation(users=("eve",)), Isolation("global")
        of = {
            key("a0"): None,
            key("b0", user="eve"): everybody,
            key("c0"): named,
            key("d0", app="bank"): everybody,
            key("e0", user="bob"): everybody,
            key("f0", user="eve"): None,
        }
        for each, isolation in of.items():
            await store.commit([creation(each, isolation=isolation)])
        for kind in ("approval", "question"):
            for each in of:
                await add(store, each, asking(f"{each.id}-{kind}", kind))
                clock.advance(SECOND)
        whole = [("b0", 2), ("c0", 2), ("e0", 2), ("f0", 2)]
        whole += [(id, 3) for id, _ in whole]
        lent = WaitingQuery(app="shop", user="eve", lent=True)
        for size in (1, 2, 3, 8, 9):
            assert seen(await inbox(store, lent, size=size)) == whole
        questions = WaitingQuery(app="shop", user="eve", lent=True, kind="question")
        assert seen(await inbox(store, questions)) == whole[4:]
        assert seen(await inbox(store, WaitingQuery(app="shop", user="eve"))) == [
            ("b0", 2),
            ("f0", 2),
            ("b0", 3),
            ("f0", 3),
        ]

    async def test_an_answered_request_is_not_listed(self, store: OverviewStore) -> None:
        """Nor one of a session that was interrupted, terminated or deleted."""
        for of in (A, B, C, key("d")):
            await wait(store, of, asking("x"), asking("y"))
        await add(store, A, answer("x"))
        left = seen(await inbox(store, WaitingQuery(app="shop", user="ada")))
        assert sorted(left) == [("a", 3), ("d", 2), ("d", 3)]
        await add(store, B, draft("user.interrupt", {}, input=True))
        await add(store, C, ready(transition("active", "terminate")))
        await store.delete(key("d"))
        assert seen(await inbox(store)) == [("a", 3)]

    async def _one_of_each(self, store: OverviewStore) -> None:
        """Sessions that need different things: nothing, an answer, a grant, a worker, …"""
        await create(store, key("idle"))
        await wait(store, key("paused"), asking("x"))
        stop = status_idle("requires_action", blocked_on=["x"])
        await add(store, key("paused"), ready(stop))
        await create(store, key("dead"))
        await add(store, key("dead"), ready(status_idle("retries_exhausted")))
        await create(store, key("short"))
        await add(store, key("short"), draft("session.budget_granted", {"cost_u": 1}))
        await add(
            store, key("short"), ready(status_idle("budget_reached", needs={"cost_u": 1_000_000}))
        )
        await due(store, key("leased"))
        await claim(store)
        await due(store, key("due"))
        await due(store, key("later"), FAR_US)
        await create(store, key("retried"))
        again = failed("x", "x", 1, retry_us=FAR_US)
        await add(store, key("retried"), ready(again), ready(status_idle("rescheduling")))
        await create(store, key("ended"))
        await add(store, key("ended"), ready(transition("active", "terminate")))
        await create(store, C)
        await add(store, C, draft("user.message", {"text": "hi"}, input=True))
        await wait(store, key("away"), asking("x"))
        await add(store, key("away"), ready(departed("eu-2", "of-eu-2", 1, source="eu-1")))

    async def test_what_has_departed_is_not_here(self, store: OverviewStore) -> None:
        """An answer given here would be refused. The others follow each other without a hole."""
        for name in ("a1", "a2", "a3"):
            await wait(store, key(name), asking("x"))
        await add(store, key("a2"), ready(departed("eu-2", "of-eu-2", 1, source="eu-1")))
        for query in (_ALL, WaitingQuery(app="shop"), WaitingQuery(app="shop", user="ada")):
            assert [asked.key.id for asked in await inbox(store, query, size=1)] == ["a1", "a3"]
        assert sum([tally.sessions for tally in await store.tally("shop", limit=ALL)]) == 2

    async def test_sessions_are_counted_by_what_they_need(self, store: OverviewStore) -> None:
        """As `readiness` says of the head of each: idle, due, leased, blocked, dead, held."""
        await self._one_of_each(store)
        await self._counts_agree(store, None)
        await self._counts_agree(store, "shop")
        await self._counts_agree(store, "bank")
        assert {tally.ready for tally in await store.tally(None, limit=ALL)} == {
            "idle",
            "due",
            "leased",
            "blocked",
            "dead",
            "held",
        }
        assert sum([tally.sessions for tally in await store.tally(None, limit=3)]) == 3

    @pytest.mark.parametrize("most", [limits.PAGE_MAX, 2])
    async def test_sessions_are_listed_by_what_they_do(
        self, store: OverviewStore, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of each status and readiness exactly those, in the order of creation, for any bound."""
        await self._one_of_each(store)
        heads = (await store.heads(Query(), cursor=None, limit=ALL)).items
        monkeypatch.setattr(limits, "SCAN_MAX", most)
        monkeypatch.setattr(limits, "WALK_MAX", most + 1)
        now, met = store.now_us(), 0
        for query in (
            *[Query(status=status, reverse=False) for status in STATUSES],
            *[Query(ready=each) for each in READINESS],
            *[Query(ready=each, app="shop", user="ada") for each in READINESS],
            Query(status="idle", ready="blocked", app="shop"),
            Query(app="shop", labels=FrozenDict({DEAD: "yes"}), ready="dead"),
            Query(app="shop", labels=FrozenDict({DEAD: "yes"}), ready="due"),
            Query(ready="due", created_after_us=heads[-1].created_us),
        ):
            expected = [
                head
                for head in (heads if query.reverse else heads[::-1])
                if query.app in (None, head.key.app)
                and query.user in (None, head.key.user)
                and query.labels.items() <= head.indexed_labels.items()
                and query.status in (None, status_at(head, now))
                and query.ready in (None, readiness(head, now))
                and head.created_us > (query.created_after_us or 0)
            ]
            assert await _pages(store, query) == expected, query
            met += len(expected)
        assert met >= 3 * len(heads)  # nearly each by its status and, twice, by its readiness

    @pytest.mark.arguments
    async def test_what_sessions_do_goes_with_the_order_of_creation(
        self, store: OverviewStore
    ) -> None:
        """Other orders, phases and tombstones are refused, and so is a word that is none of it."""
        wrong: Any
        for wrong in (
            Query(app="shop", status="idle", order="updated"),
            Query(app="shop", ready="due", order="key"),
            Query(ready="due", phase="init"),
            Query(status="idle", deleted=True),
            Query(status="asleep"),  # type: ignore[arg-type]  # what is refused
            Query(ready="busy"),  # type: ignore[arg-type]  # what is refused
        ):
            with pytest.raises(InvalidQuery):
                await store.heads(wrong, cursor=None, limit=2)

    async def _counts_agree(self, store: OverviewStore, app: str | None) -> None:
        page = await store.heads(Query(app=app), cursor=None, limit=ALL)
        counted = Counter(
            [
                (h.phase, h.facts.get("run", {}).get("stop", ""), readiness(h, now), h.pending > 0)
                for now in [store.now_us()]
                for h in page.items
                if departure(h.facts) is None
            ]
        )
        expected = {Tally(*kind, sessions=number) for kind, number in counted.items()}
        assert set(await store.tally(app, limit=ALL)) == expected
