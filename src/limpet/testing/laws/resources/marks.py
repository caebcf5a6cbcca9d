"""Marks: nonces, revocations and counters, each until its end."""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from limpet.errors import StoreClosed
from limpet.model.limits import INT_MAX, MARKS_SWEPT
from limpet.store.marks import KeepsMarks, Mark, Marks
from limpet.store.protocol import Feed, Query, Store
from limpet.testing.commits import ALL, create, key
from limpet.testing.laws.durable import Reopen
from limpet.testing.laws.work.setback import Leap

HOUR_US = 3_600_000_000


class MarkStore(Store, Feed, KeepsMarks, Protocol):
    """A store that keeps marks."""


class MarkLaws:
    """For stores that keep marks and whose clock the suite can set (`leap`)."""

    @pytest.fixture
    async def soon_us(self, store: Store) -> int:
        """An end that is an hour away, by the store's clock."""
        return (await create(store, key("clock"))).head.updated_us + HOUR_US

    @pytest.fixture
    def marks(self, store: MarkStore) -> Marks:
        return store.marks

    async def test_a_nonce_is_granted_once(self, marks: Marks, soon_us: int, leap: Leap) -> None:
        """True for the first caller, False for all others until it ends, then True again."""
        assert await marks.once("nonce", "n", soon_us, 7) is True
        assert await marks.once("nonce", "n", soon_us + 1) is False
        assert await marks.get("nonce", "n") == Mark("nonce", "n", 7, soon_us)
        assert await marks.once("other", "n", soon_us) is True
        assert await marks.once("nonce", "m", soon_us) is True
        await leap(3_590)
        assert await marks.once("nonce", "n", soon_us) is False
        await leap(20)
        assert await marks.get("nonce", "n") is None
        assert await marks.once("nonce", "n", soon_us + HOUR_US) is True

    async def test_a_nonce_that_has_ended_is_not_granted(self, marks: Marks, soon_us: int) -> None:
        """A mark that cannot be stored is refused every time."""
        for _ in range(2):
            assert await marks.once("nonce", "n", soon_us - 2 * HOUR_US) is False
        assert await marks.get("nonce", "n") is None

    async def test_one_of_racing_callers_gets_the_nonce(self, marks: Marks, soon_us: int) -> None:
        """However many ask at once."""
        asked = [marks.once("nonce", "n", soon_us) for _ in range(8)]
        assert sorted(await asyncio.gather(*asked)) == [False] * 7 + [True]

    async def test_a_put_replaces_and_can_take_back(self, marks: Marks, soon_us: int) -> None:
        """Value and end are those of the last put; one that has ended takes the mark back."""
        assert await marks.get("revoked", "t") is None
        await marks.put("revoked", "t", soon_us)
        await marks.put("revoked", "t", soon_us - 1, -5)
        assert await marks.get("revoked", "t") == Mark("revoked", "t", -5, soon_us - 1)
        await marks.put("revoked", "t", soon_us - 2 * HOUR_US)
        assert await marks.get("revoked", "t") is None

    async def test_a_counter_counts_until_its_end(
        self, marks: Marks, soon_us: int, leap: Leap
    ) -> None:
        """Each sum is returned; the end is that of the first addition; then it begins at 0."""
        assert await marks.add("calls", "ada", soon_us) == 1
        assert await marks.add("calls", "ada", soon_us + HOUR_US, 5) == 6
        assert await marks.add("calls", "ada", soon_us, -2) == 4
        assert await marks.get("calls", "ada") == Mark("calls", "ada", 4, soon_us)
        await leap(3_610)
        assert await marks.add("calls", "ada", soon_us + HOUR_US, 3) == 3

    async def test_a_counter_stops_at_64_bits(self, marks: Marks, soon_us: int) -> None:
        """In both directions, without an error."""
        for sign in (1, -1):
            name = f"n{sign}"
            assert await marks.add("calls", name, soon_us, sign * INT_MAX) == sign * INT_MAX
            assert await marks.add("calls", name, soon_us, sign * INT_MAX) == sign * INT_MAX
            assert await marks.add("calls", name, soon_us, -sign) == sign * (INT_MAX - 1)

    async def test_no_addition_is_lost(self, marks: Marks, soon_us: int) -> None:
        """Racing additions get all the numbers, each once."""
        sums = await asyncio.gather(*(marks.add("calls", "ada", soon_us) for _ in range(8)))
        assert sorted(sums) == list(range(1, 9))

    async def test_ended_marks_are_swept(self, marks: Marks, soon_us: int, leap: Leap) -> None:
        """At most as many as were asked for, never one that has not ended; writes sweep a few."""
        for n in range(10):
            await marks.put("s", f"n{n}", soon_us + n)
        await marks.put("s", "stays", soon_us + 2 * HOUR_US)
        assert await marks.sweep(100) == 0
        await leap(3_660)
        assert await marks.sweep(3) == 3
        await marks.add("s", "another", soon_us + 2 * HOUR_US)
        assert await marks.sweep(100) == 10 - 3 - MARKS_SWEPT
        assert await marks.sweep(100) == 0
        assert await marks.get("s", "stays") is not None

    async def test_marks_are_no_events(self, store: MarkStore, soon_us: int) -> None:
        """They are in no feed and no list, and verification counts none."""
        before = await store.position()
        await store.marks.put("s", "n", soon_us)
        await store.marks.add("s", "m", soon_us)
        assert await store.position() == before
        heads = await store.heads(Query(reserved=True), cursor=None, limit=ALL)
        assert [head.key.id for head in heads.items] == ["clock"]
        report = await store.verify(None)
        assert (report.ok, report.events) == (True, 1)

    async def test_a_closed_store_marks_nothing(self, store: MarkStore, soon_us: int) -> None:
        """Every call raises StoreClosed."""
        marks = store.marks
        await store.close()
        for call in (
            marks.once("s", "n", soon_us),
            marks.put("s", "n", soon_us),
            marks.add("s", "n", soon_us),
            marks.get("s", "n"),
            marks.sweep(1),
        ):
            with pytest.raises(StoreClosed):
                await call


class DurableMarkLaws:
    """For stores that outlive their process, beside MarkLaws."""

    async def test_marks_are_there_after_reopening(
        self, store: MarkStore, reopen: Reopen, soon_us: int
    ) -> None:
        """A nonce stays granted and a counter goes on."""
        await store.marks.once("nonce", "n", soon_us, 2)
        await store.marks.add("calls", "ada", soon_us, 3)
        again = await reopen()
        assert isinstance(again, KeepsMarks)
        assert await again.marks.once("nonce", "n", soon_us) is False
        assert await again.marks.add("calls", "ada", soon_us) == 4


class SharedMarkLaws:
    """For stores that several processes may open, beside MarkLaws."""

    async def test_two_instances_share_the_marks(
        self, store: MarkStore, other: MarkStore, soon_us: int
    ) -> None:
        """A nonce is granted by one of them, and both add to one counter, however they race."""
        both = (store.marks, other.marks)
        granted = await asyncio.gather(*(m.once("nonce", "n", soon_us) for m in both * 3))
        assert sum(granted) == 1
        sums = await asyncio.gather(*(m.add("calls", "ada", soon_us) for m in both * 3))
        assert sorted(sums) == [1, 2, 3, 4, 5, 6]
        assert await both[0].get("calls", "ada") == await both[1].get("calls", "ada")
