"""A1 and A2: google-adk on Limpet, beside its own DatabaseSessionService.

Both run in one process with google-adk's environment, through the same calls of ADK. The peer is
given fewer events where it is slow; rates and times are compared.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from bench.peer import Peer, in_environment
from bench.rounds import Contestant, Run
from bench.table import Row, at_least, row

_TIMES_CROWD = 25.0
_TIMES_TAIL = 10.0


def crowd(run: Run) -> list[Row]:
    """64 sessions appending at once."""
    sessions = 64
    with _adk() as peer:
        contestants: dict[str, Contestant] = {}
        for of, each in (("ours", run.size(50, 10)), ("peer", run.size(4, 1))):
            contestants[of] = _job(peer, "crowd", of=of, sessions=sessions, each=each)
        readings = run.alternate(contestants)
    what = f"append_event in {sessions} sessions at once"
    plain = row("A1", what, "per second", readings, "rate")
    target = at_least(_TIMES_CROWD, "× peer", plain.against(plain.peer))
    return [row("A1", what, "per second", readings, "rate", target)]


def tail(run: Run) -> list[Row]:
    """The last 20 events of a long session."""
    count = run.size(10_000, 2_000)
    with _adk() as peer, run.place.empty() as path:
        peer.run("fill", path=str(path), count=count)
        calls = run.size(200, 30)
        contestants: dict[str, Contestant] = {
            of: _job(peer, "tail", of=of, calls=calls, limit=20) for of in ("ours", "peer")
        }
        readings = run.alternate_in(path, contestants)
    found = []
    for name, which in (("read", "repeated"), ("first", "a new service's first")):
        what = f"get_session, last 20 of {count:,}, {which}"
        plain = row("A2", what, "ms", readings, name)
        target = at_least(_TIMES_TAIL, "× peer", plain.against(plain.peer))
        found.append(row("A2", what, "ms", readings, name, target))
    return found


def _job(peer: Peer, job: str, **args: object) -> Contestant:
    def run(path: Path) -> dict[str, float]:
        return peer.run(job, path=str(path), **args)

    return run


def _adk() -> AbstractContextManager[Peer]:
    return in_environment("adk", "bench.peer_adk")
