"""What a session object and a whole store show, to compare with an earlier view."""

from __future__ import annotations

from typing import Any

import holdfast


def shown(session: holdfast.Session) -> dict[str, Any]:
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


async def stored(hf: holdfast.Holdfast) -> list[dict[str, Any]]:
    """Everything that can be read of every living session."""
    page = await hf.list(limit=1_000)
    return [shown(await hf.get(head.key, tail=1_000)) for head in page.items]
