"""Durability: acknowledged commits are there when the store is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from limpet.errors import SessionDeleted, SessionErased, StoreClosed
from limpet.store.protocol import Committed, Query, Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, picture

A, B, C = key("a"), key("b"), key("c")
Reopen = Callable[[], Awaitable[Store]]


class DurableLaws:
    """For stores that outlive their process. `reopen` closes the suite's store and opens it."""

    async def test_everything_is_there_after_reopening(self, store: Store, reopen: Reopen) -> None:
        """Events, state, scopes, labels, timers and pending inputs are the same after reopening."""
        await store.commit([creation(A, {"n": 0, "app:a": {"x": [1]}}, {"plan": "gold"})])
        await add(store, A, draft("user.said", {"text": "hi"}, inc={"n": 1}), draft("user.sent"))
        await add(store, A, draft("session.processed", {"seqs": [2]}))
        await add(store, A, draft("session.timer_set", {"name": "t", "at_us": 5, "kind": "wake"}))
        await create(store, B, {"user:u": None})
        before, events = await picture(store), await log(store, A)
        again = await reopen()
        assert await picture(again) == before
        assert await log(again, A) == events
        assert (await again.verify(None)).findings == ()

    async def test_a_store_stays_itself_after_reopening(self, store: Store, reopen: Reopen) -> None:
        """Moves that were under way to it find the same identity."""
        identity = await store.identity()
        assert await (await reopen()).identity() == identity

    async def test_writing_goes_on_where_it_ended(self, store: Store, reopen: Reopen) -> None:
        """Seqs, scope versions and conditions continue after reopening."""
        await create(store, A, {"app:n": 1})
        again = await reopen()
        made = await add(again, A, draft(inc={"app:n": 1}), expect=1, guards={"app:n": 1})
        assert made.head.version == 2
        assert (made.scopes["app:n"].version, made.scopes["app:n"].value) == (2, 2)
        assert (await again.verify(None)).ok

    async def test_a_retry_after_reopening_is_still_a_repeat(
        self, store: Store, reopen: Reopen
    ) -> None:
        """The first record is returned, no matter who recorded it and when."""
        await create(store, A)
        first = await add(store, A, draft(id="x", inc={"n": 1}))
        again = await add(await reopen(), A, draft(id="x", inc={"n": 1}), expect=99)
        assert again.events == first.events
        assert again.fields == {"n": 1}

    async def test_an_end_is_for_ever(self, store: Store, reopen: Reopen) -> None:
        """Tombstones and certificates outlive the process."""
        await create(store, A)
        await create(store, B)
        await store.delete(A)
        certificate = await store.erase(B)
        again = await reopen()
        for late, error in ((A, SessionDeleted), (B, SessionErased)):
            for commit in (addition(late), creation(late)):
                with pytest.raises(error):
                    await again.commit([commit])
        assert await again.erase(B) == certificate

    async def test_a_cursor_outlives_the_process(self, store: Store, reopen: Reopen) -> None:
        """Paging continues after reopening and returns every session once."""
        for id in "abcde":
            await create(store, key(id))
        first = await store.heads(Query(), cursor=None, limit=2)
        rest = await (await reopen()).heads(Query(), cursor=first.cursor, limit=9)
        assert [head.key.id for head in (*first.items, *rest.items)] == list("edcba")

    async def test_a_long_history_reopens_exactly(self, store: Store, reopen: Reopen) -> None:
        """State is the same before and after, with caches of it on disk or without."""
        await create(store, A, {"log": [], "n": 0})
        for place in range(80):
            await add(store, A, draft("a.b", add={"log": [f"{place}" * 800]}, inc={"n": 1}))
        before = await load(store, A, 5)
        again = await reopen()
        assert await load(again, A, 5) == before
        made = await add(again, A, draft(inc={"n": 1}))
        assert (made.fields["n"], len(made.fields["log"])) == (81, 80)
        assert (await again.verify(None)).findings == ()

    @pytest.mark.parametrize("turns", [0, 1, 5])
    async def test_what_was_acknowledged_before_a_close_is_there(
        self, store: Store, reopen: Reopen, turns: int
    ) -> None:
        """After a close during writes, exactly the acknowledged commits are found."""
        await create(store, A)
        tasks = [asyncio.create_task(add(store, A, draft(id=f"d{n}"))) for n in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        again = await reopen()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        acknowledged = {f"d{n}" for n, a in enumerate(answers) if isinstance(a, Committed)}
        assert all(isinstance(a, Committed) or type(a) is StoreClosed for a in answers)
        assert {event.id for event in (await log(again, A))[1:]} == acknowledged
