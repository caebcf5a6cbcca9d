"""A process that has just begun: how long until it has the session's state and last events?

    python -m bench.fresh.state ours|loaded|raw DIRECTORY

`ours` has done `import limpet` and no more; `loaded` has also imported the store's own modules,
as a process that opened any database before has. Prints milliseconds and the version found.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

_TAIL = 20


async def ours(path: Path) -> tuple[float, int]:
    import limpet

    if sys.argv[1] == "loaded":
        import limpet.store.sqlite.store  # loading it beforehand is the point
    begin = time.perf_counter()
    lp = await limpet.open(f"sqlite:///{path}/ours.db").__aenter__()
    session = await lp.get(("bench", "ada", "w4"), tail=_TAIL)
    step = session.state["step"]
    took = time.perf_counter() - begin
    assert isinstance(step, int)
    assert len(session.events) == _TAIL
    await lp.close()
    return took, session.version


def plain(path: Path) -> tuple[float, int]:
    from bench import raw

    begin = time.perf_counter()
    conn = raw.connect(path / "raw.db")
    version, _ = raw.head(conn)
    events = raw.last(conn, _TAIL)
    took = time.perf_counter() - begin
    assert len(events) == _TAIL
    conn.close()
    return took, version


if __name__ == "__main__":
    directory = Path(sys.argv[2])
    seconds, found = plain(directory) if sys.argv[1] == "raw" else asyncio.run(ours(directory))
    print(json.dumps({"ms": seconds * 1e3, "version": found}))
