"""DBOS, run with the interpreter of its own environment: workflows of three steps.

Both of its ways are there, async functions on an event loop and plain functions in threads; its
settings are those it comes with, and on SQLite that is synchronous=FULL with a rollback journal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version
from typing import Any, Final

from dbos import DBOS, DBOSConfig

_AT_ONCE: Final = 64


@DBOS.step()
def look(number: int) -> dict[str, Any]:
    return {"order": number}


@DBOS.step()
def decide(order: dict[str, Any]) -> str:
    return f"refund {order['order']}"


@DBOS.step()
def answer(plan: str) -> dict[str, str]:
    return {"text": plan}


@DBOS.workflow()
def plain(number: int) -> dict[str, str]:
    return answer(decide(look(number)))


@DBOS.step()
async def look_async(number: int) -> dict[str, Any]:
    return {"order": number}


@DBOS.step()
async def decide_async(order: dict[str, Any]) -> str:
    return f"refund {order['order']}"


@DBOS.step()
async def answer_async(plan: str) -> dict[str, str]:
    return {"text": plan}


@DBOS.workflow()
async def flow(number: int) -> dict[str, str]:
    return await answer_async(await decide_async(await look_async(number)))


def workflows(url: str, count: int, way: str) -> dict[str, float]:
    """So many workflows, 64 at a time, in one of both ways."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    config |= {"max_executor_threads": _AT_ONCE, "sys_db_pool_size": 20}
    DBOS(config=config)
    DBOS.launch()
    try:
        begin = time.perf_counter()
        if way == "async":
            asyncio.run(_async(count))
        else:
            _threads(count)
        return {"rate": count / (time.perf_counter() - begin)}
    finally:
        DBOS.destroy()


async def _async(count: int) -> None:
    async def lane(first: int) -> None:
        for number in range(first, count, _AT_ONCE):
            handle = await DBOS.start_workflow_async(flow, number)
            await handle.get_result()

    await asyncio.gather(*(lane(first) for first in range(_AT_ONCE)))


def _threads(count: int) -> None:
    waiting = []
    for number in range(count):
        waiting.append(DBOS.start_workflow(plain, number))
        if len(waiting) >= _AT_ONCE:
            waiting.pop(0).get_result()
    for handle in waiting:
        handle.get_result()


def main() -> None:
    """Answer jobs until stdin ends."""
    print(json.dumps({"peer": f"dbos {version('dbos')}", "sqlite": ""}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = workflows(**asked["args"])
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
