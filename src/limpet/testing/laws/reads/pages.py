"""Pages by bytes: large events come a few at a time, and nothing is lost between two pages."""

from __future__ import annotations

import random
from typing import Final

import pytest

from limpet.model import PROCESSED, Event
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.protocol import Store
from limpet.testing.commits import ALL, add, create, draft, key

A = key("a")
_MIB: Final = 2**20
LARGE: Final = 5 * _MIB
COUNT: Final = 4  # of large events: more than fit one page
SMALL: Final = 40


def _text(size: int, *, compressible: bool) -> str:
    """Text that compresses well, and text that does not: both take the same memory."""
    if compressible:
        return "x" * size
    return random.Random(7).randbytes(size // 2).hex()


async def fill(store: Store, *, compressible: bool = True) -> int:
    """A session of large inputs among small ones; its last seq."""
    await create(store, A)
    for _ in range(COUNT):
        text = _text(LARGE, compressible=compressible)
        await add(store, A, draft("user.said", {"text": text}))
        await add(store, A, *(draft("user.said", {"n": n}) for n in range(SMALL // COUNT)))
    return 1 + COUNT * (1 + SMALL // COUNT)


def size_of(event: Event) -> int:
    """About the bytes of its encoded body."""
    return len(str((event.data or {}).get("text", "")))


def check_page(events: tuple[Event, ...], limit: int) -> None:
    """At most as many as requested, and all but the last one within the byte limit."""
    assert 0 < len(events) <= limit
    assert sum(map(size_of, events[:-1])) < READ_PAGE_BYTES_MAX
    assert all(event.damage is None for event in events)


async def _pages(store: Store, limit: int, *, reverse: bool) -> list[list[int]]:
    met: list[list[int]] = []
    after = 0
    while page := await store.read(A, after=after, limit=limit, reverse=reverse, types=None):
        check_page(page, limit)
        met.append([event.seq for event in page])
        after = page[-1].seq
        if reverse and after == 1:
            break
    return met


class PageLaws:
    """For every store."""

    @pytest.mark.parametrize(("reverse", "compressible"), [(False, False), (True, True)])
    async def test_a_page_of_large_events_ends_early(
        self, store: Store, *, reverse: bool, compressible: bool
    ) -> None:
        """In both directions no page exceeds the bound, and together they are the log."""
        last = await fill(store, compressible=compressible)
        everything = list(range(1, last + 1))
        for limit in (ALL, 7):
            pages = await _pages(store, limit, reverse=reverse)
            seqs = [seq for page in pages for seq in page]
            assert seqs == (everything[::-1] if reverse else everything)
            assert limit < ALL or 1 < len(pages) < last

    async def test_pages_of_inputs_end_early(self, store: Store) -> None:
        """Processing each page and asking again returns every input once."""
        last = await fill(store)
        met: list[int] = []
        pages = 0
        while page := await store.pending_inputs(A, limit=ALL):
            check_page(page, ALL)
            seqs = [event.seq for event in page]
            await add(store, A, draft(PROCESSED, {"seqs": seqs}))
            met += seqs
            pages += 1
        assert met == list(range(2, last + 1))
        assert 1 < pages < last

    @pytest.mark.parametrize("compressible", [True, False])
    async def test_a_loaded_tail_ends_early_at_its_older_end(
        self, store: Store, *, compressible: bool
    ) -> None:
        """The newest events that fit, without a gap, up to the version; state is complete."""
        last = await fill(store, compressible=compressible)
        await add(store, A, draft(set={"n": 1}))
        for tail in (ALL, last, 20, 3, 1):
            loaded = await store.load(A, tail=tail)
            check_page(loaded.events[::-1], tail)
            seqs = [event.seq for event in loaded.events]
            assert seqs == list(range(last + 2 - len(seqs), last + 2))
            assert seqs[0] > 1
            assert loaded.fields == {"n": 1}
            assert loaded.damaged == ()
        assert (await store.load(A, tail=0)).events == ()

    async def test_large_logs_are_verified(self, store: Store) -> None:
        """Verification reads them page by page, to the end."""
        last = await fill(store, compressible=False)
        report = await store.verify(None)
        assert report.ok
        assert report.events == last
