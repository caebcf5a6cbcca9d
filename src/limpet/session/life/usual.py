"""Timeouts outside of the usual ranges, which are often mistakes: the doctor points them out."""

from __future__ import annotations

from collections import Counter

from limpet.model import PAGE_MAX
from limpet.model.facts.timeouts import USUAL, unusual
from limpet.store.protocol import Check, Query, Store


async def unusual_timeouts(store: Store) -> tuple[Check, ...]:
    """A warning for each timeout that sessions have and that is unusually short or long."""
    counts: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = await store.heads(Query(reverse=False), cursor=cursor, limit=PAGE_MAX)
        for head in page.items:
            if "timeouts" in head.facts:
                counts.update(unusual(head.facts))
        cursor = page.cursor
        if cursor is None:
            return tuple([_check(name, counts[name]) for name in USUAL if counts[name]])


def _check(name: str, count: int) -> Check:
    least, most = USUAL[name]
    found = f"{count:,} sessions are outside of the usual {least} to {most}"
    advice = "Look whether that is meant; set others with s.lifecycle.set_timeouts."
    return Check(f"timeout {name}", found, "warning", advice)
