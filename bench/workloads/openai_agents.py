"""O1: openai-agents on Limpet, beside its own SQLiteSession, through the same calls.

Both run in one process with openai-agents' environment. A LimpetSession of a URL works from any
thread and event loop, and hands its work to a loop of its own; one of an open Limpet does not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from bench.peer import Peer, in_environment
from bench.rounds import Numbers, Run
from bench.table import Row, at_least, row

_TIMES_PEER = 6.0


def crowd(run: Run) -> list[Row]:
    """64 sessions adding items at once."""
    sessions, each = 64, run.size(50, 15)
    with _agents() as peer:

        def rate(of: str, path: Path) -> float:
            args = {"path": str(path / of), "sessions": sessions, "each": each}
            return peer.run("crowd", of=of, **args)["rate"]

        def ours(path: Path) -> Numbers:
            return {"open": rate("open", path), "url": rate("url", path)}

        def theirs(path: Path) -> Numbers:
            return dict.fromkeys(("open", "url"), rate("peer", path))

        readings = run.alternate({"ours": ours, "peer": theirs})
    found = []
    for name, store in (("open", "an open Limpet"), ("url", "a URL")):
        what = f"add_items in {sessions} sessions at once, on {store}"
        plain = row("O1", what, "per second", readings, name)
        target = at_least(_TIMES_PEER, "× peer", plain.against(plain.peer))
        found.append(row("O1", what, "per second", readings, name, target))
    return found


def _agents() -> AbstractContextManager[Peer]:
    return in_environment("openai-agents", "bench.peer_sessions")
