"""Races: concurrent callers, cancelled callers, and closing the store."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import LimpetError, OpTypeMismatch, SessionConflict, SessionExists, StoreClosed
from limpet.store.protocol import Committed, Query, Store
from limpet.testing.commits import add, addition, create, draft, key, load, log

A, B = key("a"), key("b")


class RaceLaws:
    async def test_concurrent_commits_are_dense_and_complete(self, store: Store) -> None:
        """Every acknowledged event is in the log once, at the seq that was acknowledged."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(store, A, *(draft(inc={"n": 1}) for _ in range(1 + n % 3))) for n in range(40))
        )
        acknowledged = {event.seq: event for answer in answers for event in answer.events}
        events = await log(store, A)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert tuple(acknowledged[event.seq] for event in events[1:]) == events[1:]
        assert (await load(store, A)).fields == {"n": len(acknowledged)}

    async def test_events_of_a_commit_stand_together(self, store: Store) -> None:
        """No other writer's event comes between the drafts of one commit."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(store, A, draft(), draft(), draft()) for _ in range(20))
        )
        for answer in answers:
            first = answer.events[0].seq
            assert [event.seq for event in answer.events] == [first, first + 1, first + 2]
            assert answer.head.version == first + 2

    async def test_each_answer_is_the_state_right_after_its_own_commit(self, store: Store) -> None:
        """Commits that share a transaction are answered separately."""
        await create(store, A)
        answers = await asyncio.gather(*(add(store, A, draft(inc={"n": 1})) for _ in range(20)))
        for answer in answers:
            assert answer.fields["n"] == answer.head.version - 1
            assert answer.head.link == answer.events[-1].link

    async def test_of_strict_writers_one_wins(self, store: Store) -> None:
        """Of ten commits that expect one version, exactly one is recorded."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(store, A, expect=1) for _ in range(10)), return_exceptions=True
        )
        lost = [answer for answer in answers if type(answer) is SessionConflict]
        assert (len(lost), (await load(store, A)).head.version) == (9, 2)

    async def test_of_racing_creators_one_wins(self, store: Store) -> None:
        """A key is created once; the others get SessionExists."""
        answers = await asyncio.gather(
            *(create(store, A, {"by": n}) for n in range(10)), return_exceptions=True
        )
        won = [answer for answer in answers if isinstance(answer, Committed)]
        assert len(won) == 1
        assert sum(type(answer) is SessionExists for answer in answers) == 9
        assert (await load(store, A)).fields == won[0].fields

    async def test_a_refused_commit_does_not_fail_its_neighbours(self, store: Store) -> None:
        """Valid and invalid commits sent together are answered separately."""
        await create(store, A, {"text": "x"})
        answers = await asyncio.gather(
            *(
                add(store, A, draft(inc={"n": 1}), draft(inc={"text" if n % 3 == 0 else "n": 1}))
                for n in range(30)
            ),
            return_exceptions=True,
        )
        for n, answer in enumerate(answers):
            assert type(answer) is (Committed if n % 3 else OpTypeMismatch)
        assert (await load(store, A)).fields == {"text": "x", "n": 40}

    async def test_sessions_crossed_in_one_commit_do_not_deadlock(self, store: Store) -> None:
        """Commits over the same sessions in opposite orders all succeed."""
        await create(store, A)
        await create(store, B)
        await asyncio.gather(
            *(
                store.commit([addition(of) for of in ((A, B) if n % 2 else (B, A))])
                for n in range(20)
            )
        )
        assert (await load(store, A)).head.version == (await load(store, B)).head.version == 21

    async def test_everything_verifies_after_a_race(self, store: Store) -> None:
        """Chains, folds and counts agree, and progress reaches its total."""
        await create(store, A)
        await create(store, B)
        await asyncio.gather(
            *(add(store, of, draft("user.said", inc={"n": 1, "app:n": 1})) for of in (A, B) * 10)
        )
        steps: list[tuple[int, int]] = []
        report = await store.verify(None, lambda done, total: steps.append((done, total)))
        assert report.findings == ()
        assert report.ok
        assert (report.sessions, report.events) == (2, 22)
        assert steps[-1][0] == steps[-1][1]
        one = await store.verify(A)
        assert (one.ok, one.sessions, one.events) == (True, 1, 11)

    @pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 20, 200])
    @pytest.mark.parametrize("impatience", [1, 3])
    async def test_a_cancelled_commit_never_happened_or_is_complete(
        self, store: Store, turns: int, impatience: int
    ) -> None:
        """Once CancelledError is raised, the call has no further effect."""
        await create(store, A)
        task = asyncio.create_task(add(store, A, draft(inc={"n": 1}), draft(inc={"n": 1})))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(impatience):
            task.cancel()
            await asyncio.sleep(0)
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        now = (await load(store, A)).head.version
        assert now == 3 if isinstance(answer, Committed) else now in (1, 3)
        await asyncio.gather(*(add(store, A) for _ in range(3)))
        assert (await load(store, A)).head.version == now + 3
        assert [event.seq for event in await log(store, A)] == list(range(1, now + 4))

    @pytest.mark.parametrize("turns", [0, 1, 3])
    async def test_a_cancelled_caller_harms_no_neighbour(self, store: Store, turns: int) -> None:
        """Commits sent together are recorded even if one caller is cancelled."""
        await create(store, A)
        tasks = [asyncio.create_task(add(store, A, draft(id=f"d{n}"))) for n in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[4].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        recorded = {event.id for event in await log(store, A)}
        for n, answer in enumerate(answers):
            if n != 4:
                assert isinstance(answer, Committed)
                assert f"d{n}" in recorded

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        """Every call after close raises StoreClosed, and closing again is fine."""
        await create(store, A)
        await store.close()
        await store.close()
        for call in (
            lambda: create(store, B),
            lambda: add(store, A),
            lambda: load(store, A),
            lambda: log(store, A),
            lambda: store.heads(Query(), cursor=None, limit=1),
            lambda: store.delete(A),
            lambda: store.erase(A),
            lambda: store.verify(A),
            lambda: store.verify(None),
        ):
            with pytest.raises(StoreClosed):
                await call()

    @pytest.mark.parametrize("turns", [0, 1, 5])
    async def test_closing_answers_everyone(self, store: Store, turns: int) -> None:
        """A commit during close is recorded or raises StoreClosed."""
        await create(store, A)
        tasks = [asyncio.create_task(add(store, A)) for _ in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.close()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(answer, Committed) or type(answer) is StoreClosed

    async def test_errors_of_a_store_are_limpet_errors(self, store: Store) -> None:
        """Every refusal is a LimpetError with a code."""
        with pytest.raises(LimpetError) as info:
            await load(store, key("missing"))
        assert info.value.code == "session.not_found"
