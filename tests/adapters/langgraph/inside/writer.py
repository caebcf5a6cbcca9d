"""A process that adds entries to a list in one thread: `writer.py WHOSE WHERE APP NAME COUNT`.

For each entry it reads the newest checkpoint, says so, waits for a line, and puts the checkpoint
that follows. Who is told of a conflict reads again and puts again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import limpet
from limpet.adapters.langgraph import LimpetSaver

THREAD: Any = {"configurable": {"thread_id": "shared", "checkpoint_ns": ""}}


@asynccontextmanager
async def opened(whose: str, where: str, app: str) -> AsyncIterator[Any]:
    if whose == "ours":
        async with LimpetSaver.from_url(where, app=app) as saver:
            yield saver
    else:
        async with AsyncSqliteSaver.from_conn_string(where) as theirs:
            yield theirs


async def entries(saver: Any) -> list[str]:
    found = await saver.aget_tuple(THREAD)
    return list(found.checkpoint["channel_values"]["log"])


async def put(saver: Any, found: Any, log: list[str]) -> None:
    new: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"log": log}}
    new["channel_versions"] = {"log": len(log) + 1}
    config = THREAD if found is None else found.config
    await saver.aput(config, new, {"source": "loop"}, new["channel_versions"])


async def main(whose: str, where: str, app: str, name: str, count: int) -> None:
    async with opened(whose, where, app) as saver:
        for number in range(count):
            found = await saver.aget_tuple(THREAD)
            print("read", flush=True)
            sys.stdin.readline()
            while True:
                log = [*found.checkpoint["channel_values"]["log"], f"{name} {number}"]
                try:
                    await put(saver, found, log)
                    break
                except limpet.SessionConflict:
                    found = await saver.aget_tuple(THREAD)
            print("put", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))  # type: ignore[arg-type]  # five of them
