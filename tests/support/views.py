"""What a session object and a whole store show, to compare with an earlier view."""

from __future__ import annotations

from typing import Any

import limpet


def shown(session: limpet.Session) -> dict[str, Any]:
    """Everything a session object tells of itself."""
    return {
        "key": session.key,
        "actor": session.actor,
        "head": session.head,
        "state": dict(session.state),
        "events": session.events,
        "labels": session.labels,
        "version": session.version,
    }


async def stored(lp: limpet.Limpet) -> list[dict[str, Any]]:
    """Everything that can be read of every living session."""
    page = await lp.list(limit=1_000)
    return [shown(await lp.get(head.key, tail=1_000)) for head in page.items]
