"""A writer that is going to be killed: it appends one event after another, without end.

    python -m bench.fresh.write ours|raw DIRECTORY

A line on stdout for every event that was acknowledged, with the version it left.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count, cycle
from pathlib import Path

from bench import texts


async def ours(path: Path) -> None:
    """Append to the session of the store."""
    import limpet

    payloads = cycle(texts.tool_results(500, seed=2))
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        session = lp.session(("bench", "ada", "w4"), actor="agent:main")
        for step in count():
            await session.append("tool.result", next(payloads), set=texts.changes(step))
            print(session.version, flush=True)


def plain(path: Path) -> None:
    """Insert into the raw table, and keep its head in step."""
    from bench import raw

    payloads = texts.tool_results(500, seed=2)
    conn = raw.connect(path / "raw.db")
    version, _ = raw.head(conn)
    for step in count():
        body = {"data": payloads[step % 500], "set": texts.changes(step)}
        (line,) = raw.rows([body])
        version += 1
        with conn:
            raw.insert_singly(conn, [(1, version, version.to_bytes(16, "big"), *line[3:])])
            raw.put_head(conn, version, texts.changes(step))
        print(version, flush=True)


if __name__ == "__main__":
    who, directory = sys.argv[1], Path(sys.argv[2])
    asyncio.run(ours(directory)) if who == "ours" else plain(directory)
