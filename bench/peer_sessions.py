"""Both sides of the workload O1, run with the interpreter of openai-agents' environment.

The same calls on the same items: LimpetSession and the framework's own SQLiteSession, each on a
SQLite file with WAL and synchronous=FULL, an item durable when its call returns.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agents import SQLiteSession

import limpet
from bench import texts
from limpet.adapters.openai_agents import LimpetSession


async def crowd(of: str, path: str, sessions: int, each: int) -> dict[str, float]:
    """A task for each session, all at once; each adds one item after another."""
    if of == "open":
        async with limpet.open(f"sqlite:///{path}/open.db") as lp:
            return await _crowd([LimpetSession(f"s{i}", lp) for i in range(sessions)], each)
    if of == "url":
        url = f"sqlite:///{path}/url.db"
        return await _crowd([LimpetSession(f"s{i}", url) for i in range(sessions)], each)
    return await _crowd([SQLiteSession(f"s{i}", f"{path}/peer.db") for i in range(sessions)], each)


async def _crowd(many: list[Any], each: int) -> dict[str, float]:
    items = [_item(number, data) for number, data in enumerate(texts.tool_results(64 * each))]
    await asyncio.gather(*(session.add_items(items[:1]) for session in many))

    async def lane(number: int) -> None:
        for item in items[number :: len(many)]:
            await many[number].add_items([item])

    begin = time.perf_counter()
    await asyncio.gather(*(lane(number) for number in range(len(many))))
    rate = len(items) / (time.perf_counter() - begin)
    for session in many:
        closing = session.close()
        if closing is not None:
            await closing
    return {"rate": rate}


def _item(number: int, data: Any) -> dict[str, Any]:
    """A tool's answer, as Runner hands it over."""
    return {"type": "function_call_output", "call_id": f"c{number}", "output": json.dumps(data)}


def main() -> None:
    """Answer jobs until stdin ends."""
    # SQLiteSession opens a connection per session and thread: give it the descriptors that takes.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    about = {"peer": f"openai-agents {version('openai-agents')}", "sqlite": ""}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            Path(asked["args"]["path"]).mkdir(exist_ok=True)
            answer = asyncio.run(crowd(**asked["args"]))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
