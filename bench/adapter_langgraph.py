"""LangGraph on our saver and on its own, run with the interpreter that has both.

Each is used as its documentation shows and commits with WAL and synchronous=FULL; each step of a
graph is durable before the next (durability="sync"). One job a process: its name and arguments come
as JSON on the command line, its numbers go out as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages

from bench import texts
from limpet.adapters.langgraph import LimpetSaver


def _gathered(state: Any, writes: Any) -> Any:
    for each in writes:
        state = add_messages(state, each)
    return state


class Deltas(TypedDict):
    """Their way to store a list by its growth."""

    messages: Annotated[list[Any], DeltaChannel(_gathered)]


@asynccontextmanager
async def _saver(who: str, path: Path) -> AsyncIterator[Any]:
    if who == "ours":
        async with LimpetSaver.from_url(f"sqlite:///{path}/saver.db") as saver:
            yield saver
        return
    async with AsyncSqliteSaver.from_conn_string(f"{path}/saver.db") as theirs:
        await theirs.setup()
        await theirs.conn.execute("PRAGMA synchronous = FULL")
        yield theirs


async def crowd(who: str, path: Path, threads: int, each: int) -> dict[str, float]:
    """Many threads at once: a put and a put_writes, one after the other in each."""
    steps = {number: _steps(each) for number in range(-1, threads)}
    async with _saver(who, path) as saver:

        async def thread(number: int) -> None:
            config: Any = {"configurable": {"thread_id": f"{number}", "checkpoint_ns": ""}}
            for new, meta, task in steps[number]:
                config = await saver.aput(config, new, meta, new["channel_versions"])
                written = new["channel_values"]["messages"][-1:]
                await saver.aput_writes(config, [("messages", written)], task)

        await thread(-1)
        begin = time.perf_counter()
        await asyncio.gather(*(thread(number) for number in range(threads)))
        return {"rate": threads * each * 2 / (time.perf_counter() - begin)}


def _steps(count: int) -> list[tuple[Any, Any, str]]:
    """The checkpoints of a chat, one message more in each, with metadata and the id of a task."""
    messages: list[Any] = []
    made = []
    for step, text in enumerate(texts.messages(count)):
        messages = [*messages, AIMessage(str(text["content"]), id=str(uuid4()))]
        new = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": {"messages": step + 1}}
        new["channel_values"] = {"messages": messages}
        made.append((new, {"source": "loop", "step": step, "parents": {}}, str(uuid4())))
    return made


async def chat(who: str, path: Path, turns: int, window: int) -> dict[str, float]:
    """One long chat: what it leaves on disk, and what the saver takes of a turn."""
    spent = [0.0]
    said = iter(texts.messages(2 * turns))

    async def bot(state: Any) -> Any:
        return {"messages": [AIMessage(str(next(said)["content"]))]}

    async with _saver(who.removesuffix("-delta"), path) as saver:
        _clocked(saver, spent)
        schema = Deltas if who.endswith("-delta") else MessagesState
        graph: Any = (
            StateGraph(schema)
            .add_node("bot", bot)
            .add_edge(START, "bot")
            .compile(checkpointer=saver)
        )
        times = []
        for _ in range(turns):
            spent[0] = 0.0
            asked = {"messages": [HumanMessage(str(next(said)["content"]))]}
            where: Any = {"configurable": {"thread_id": "1"}}
            await graph.ainvoke(asked, where, durability="sync")
            times.append(spent[0])
    size = sum(file.stat().st_size for file in path.glob("saver.db*"))
    ends = {"first": median(times[5 : 5 + window]), "last": median(times[-window:])}
    return {"bytes": size, **{name: value * 1e3 for name, value in ends.items()}}


def _clocked(saver: Any, spent: list[float]) -> None:
    """Count the time in every call of the saver."""

    def clocked(verb: Any) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return await verb(*args, **named)
            finally:
                spent[0] += time.perf_counter() - begin

        return call

    names = ("aget_tuple", "aput", "aput_writes", "aget_delta_channel_history")
    changed = {name: clocked(getattr(saver, name)) for name in names}
    for name, verb in changed.items():
        setattr(saver, name, verb)


def main() -> None:
    asked = json.loads(sys.argv[1])
    job = {"crowd": crowd, "chat": chat}[asked.pop("job")]
    asked["path"] = Path(asked["path"])
    print(json.dumps(asyncio.run(job(**asked))))


if __name__ == "__main__":
    main()
