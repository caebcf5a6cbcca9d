"""Both sides of the ADK workloads, run with the interpreter of google-adk's environment.

The same calls on the same events: LimpetSessionService and ADK's own DatabaseSessionService, each
on a SQLite file with its own settings, both with synchronous=FULL.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types

import limpet
from bench import texts
from limpet.adapters.adk import LimpetSessionService
from limpet.adapters.adk_import import import_adk

_WHO: Final = {"app_name": "bench", "user_id": "ada"}


def _service(of: str, path: str) -> Any:
    if of == "ours":
        return LimpetSessionService(f"sqlite:///{path}/ours.db")
    # With the usual five seconds it gives up: "database is locked".
    patient = {"connect_args": {"timeout": 300}}
    return DatabaseSessionService(f"sqlite+aiosqlite:///{path}/adk.db", **patient)


def _events(count: int) -> list[Event]:
    """By turns what an agent says and what a tool answers, each with a change to state."""
    found = []
    for number, data in enumerate(texts.tool_results(count)):
        answer = types.FunctionResponse(id=f"c{number}", name="search", response=data)
        part = (
            types.Part(function_response=answer) if number % 2 else types.Part(text=data["output"])
        )
        content = types.Content(role="model", parts=[part])
        actions = EventActions(state_delta=texts.changes(number))
        found.append(Event(author="bot", invocation_id="i", content=content, actions=actions))
    return found


async def crowd(of: str, path: str, sessions: int, each: int) -> dict[str, float]:
    """A task for each session, all at once; each appends one event after another."""
    events = _events(sessions * each)
    async with _service(of, path) as service:
        many = [await service.create_session(**_WHO, session_id=f"s{i}") for i in range(sessions)]

        async def lane(number: int) -> None:
            for event in events[number::sessions]:
                await service.append_event(many[number], event)

        begin = time.perf_counter()
        await asyncio.gather(*(lane(number) for number in range(sessions)))
        return {"rate": len(events) / (time.perf_counter() - begin)}


async def fill(path: str, count: int) -> dict[str, float]:
    """One session of `count` events in both databases: ADK's by its own tables, ours imported."""
    from google.adk.sessions.schemas.v1 import StorageEvent

    async with _service("peer", path) as service:
        session = await service.create_session(**_WHO, session_id="long")
        events = _events(count)
        await service.append_event(session, events[0])
        for start in range(1, count, 1_000):
            async with service.database_session_factory() as rows:
                some = events[start : start + 1_000]
                rows.add_all([StorageEvent.from_event(session, event) for event in some])
                await rows.commit()
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        await import_adk(f"sqlite:///{path}/adk.db", lp)
    return {}


async def tail(of: str, path: str, calls: int, limit: int) -> dict[str, float]:
    """The last events of the long session: read again and again, and by a new service first."""
    config = GetSessionConfig(num_recent_events=limit)

    async def read(service: Any) -> float:
        begin = time.perf_counter()
        found = await service.get_session(**_WHO, session_id="long", config=config)
        assert len(found.events) == limit
        return time.perf_counter() - begin

    firsts = []
    for _ in range(calls // 20 + 1):
        async with _service(of, path) as service:
            firsts.append(await read(service))
    async with _service(of, path) as service:
        times = [await read(service) for _ in range(calls + 10)]
    return {"read": median(times[10:]) * 1e3, "first": median(firsts) * 1e3}


def main() -> None:
    """Answer jobs until stdin ends."""
    jobs: dict[str, Callable[..., Any]] = {job.__name__: job for job in (crowd, fill, tail)}
    about = {"peer": f"google-adk {version('google-adk')}", "sqlite": ""}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            Path(asked["args"]["path"]).mkdir(exist_ok=True)
            answer = asyncio.run(jobs[asked["job"]](**asked["args"]))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
