"""Large events, as users read them: in short pages, live and from the feed, and none is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from limpet import Limpet
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store import pages

TEXT = "x" * (5 * 2**20)
LARGE = READ_PAGE_BYTES_MAX // len(TEXT) + 2
ACTOR = "user:ada"
DEADLINE_SECONDS = 60


async def filled(lp: Limpet) -> list[int]:
    """More large inputs than fit a page; the seqs of the log."""
    session = await lp.create("support", "ada", id="one")
    for _ in range(LARGE):
        await session.append("user.message", {"text": TEXT}, actor=ACTOR)
    return list(range(1, LARGE + 2))


async def test_only_an_empty_page_is_the_end(lp: Limpet) -> None:
    """Whoever reads until a page is empty has met every event."""
    seqs = await filled(lp)
    session = lp.session(("support", "ada", "one"))
    first = await session.read(limit=100)
    assert 0 < len(first) < len(seqs)
    met: list[int] = []
    while page := await session.read(after=met[-1] if met else 0, limit=100):
        met += [event.seq for event in page]
    assert met == seqs


async def test_inputs_are_processed_page_by_page(lp: Limpet) -> None:
    """Whoever asks for pending inputs until there are none has met each of them."""
    seqs = await filled(lp)
    session = await lp.get(("support", "ada", "one"), tail=100)
    assert session.events[-1].seq == seqs[-1]
    assert 0 < len(session.events) < len(seqs)
    met: list[int] = []
    while inputs := await session.pending():
        assert len(met) + len(inputs) < len(seqs)
        met += [event.seq for event in inputs]
        await session.mark_processed([event.seq for event in inputs], actor=ACTOR)
    assert met == seqs[1:]


@pytest.fixture
def tiny_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Pages of two events; so many events are many pages."""
    monkeypatch.setattr(pages, "READ_PAGE_BYTES_MAX", 1_000)
    return 60


async def test_a_follower_goes_on_after_a_short_page(lp: Limpet, tiny_pages: int) -> None:
    """It does not wait for the next append to see what is there already."""
    session = await lp.create("support", "ada")
    for _ in range(tiny_pages):
        await session.append("user.message", {"text": "x" * 900}, actor=ACTOR)
    async with aclosing(session.follow()) as events, asyncio.timeout(DEADLINE_SECONDS):
        for seq in range(1, tiny_pages + 2):
            assert (await anext(events)).seq == seq


async def test_a_watcher_goes_on_after_a_short_page(lp: Limpet, tiny_pages: int) -> None:
    """Of every session and of an app, it does not wait for the next append."""
    session = await lp.create("support", "ada")
    for _ in range(tiny_pages):
        await session.append("user.message", {"text": "x" * 900}, actor=ACTOR)
    for app in (None, "support"):
        async with aclosing(lp.watch(app=app)) as entries, asyncio.timeout(DEADLINE_SECONDS):
            for seq in range(1, tiny_pages + 2):
                assert (await anext(entries)).event.seq == seq
