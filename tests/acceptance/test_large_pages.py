"""Large events, as users read them: in short pages, live and from the feed, and none is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from limpet import Limpet
from limpet.model.limits import READ_PAGE_BYTES_MAX

TEXT = "x" * (5 * 2**20)
LARGE = READ_PAGE_BYTES_MAX // len(TEXT) + 2
ACTOR = "user:ada"
DEADLINE_SECONDS = 30


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


async def test_a_follower_goes_on_after_a_short_page(lp: Limpet) -> None:
    """It does not wait for the next append to see what is there already."""
    seqs = await filled(lp)
    async with aclosing(lp.session(("support", "ada", "one")).follow()) as events:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert [(await anext(events)).seq for _ in seqs] == seqs


async def test_a_watcher_goes_on_after_a_short_page(lp: Limpet) -> None:
    """Of every session and of one, it does not wait for the next append."""
    seqs = await filled(lp)
    for app in (None, "support"):
        async with aclosing(lp.watch(app=app)) as entries:
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert [(await anext(entries)).event.seq for _ in seqs] == seqs
