"""LimpetTaskStore beside the SDK's own store in memory: the same tasks, pages and owners."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError

import limpet
from limpet.adapters.a2a import LimpetTaskStore
from tests.support.switching import run_switching

CONTEXT = ServerCallContext()


def task(n: int) -> Any:
    made = pb.Task(id=f"t{n}", context_id=f"c{n % 2}")
    made.status.state = pb.TASK_STATE_WORKING
    made.status.timestamp.FromSeconds(1_000 + n)
    made.history.append(message(f"m{n}", pb.ROLE_USER, "How much?"))
    return made


def message(id: str, role: Any, text: str) -> Any:
    return pb.Message(message_id=id, role=role, parts=[pb.Part(text=text)])


@pytest.fixture
def store(lp: limpet.Limpet) -> LimpetTaskStore:
    return LimpetTaskStore(lp)


async def test_tasks_and_pages_are_those_of_the_sdks_store(store: LimpetTaskStore) -> None:
    """Saved, updated and listed by every filter, page by page."""
    theirs = InMemoryTaskStore()
    for n in range(7):
        made = task(n)
        for each in (store, theirs):
            await each.save(made, CONTEXT)
        made.history.append(message(f"r{n}", pb.ROLE_AGENT, "Forty."))
        made.artifacts.append(pb.Artifact(artifact_id="a", parts=[pb.Part(text="bill")]))
        if n % 3:
            made.status.state = pb.TASK_STATE_COMPLETED
        for each in (store, theirs):
            await each.save(made, CONTEXT)
    assert await store.get("t3", CONTEXT) == await theirs.get("t3", CONTEXT)
    assert await store.get("nowhere", CONTEXT) is None
    after = pb.ListTasksRequest()
    after.status_timestamp_after.FromSeconds(1_004)
    requests = [
        pb.ListTasksRequest(),
        pb.ListTasksRequest(context_id="c1"),
        pb.ListTasksRequest(status=pb.TASK_STATE_WORKING),
        pb.ListTasksRequest(page_size=3),
        after,
    ]
    for request in requests:
        assert await store.list(request, CONTEXT) == await theirs.list(request, CONTEXT)
    token = (await store.list(requests[3], CONTEXT)).next_page_token
    following = pb.ListTasksRequest(page_size=3, page_token=token)
    assert await store.list(following, CONTEXT) == await theirs.list(following, CONTEXT)
    with pytest.raises(InvalidParamsError):
        await store.list(pb.ListTasksRequest(page_token="!"), CONTEXT)
    await store.delete("t1", CONTEXT)
    await store.delete("t1", CONTEXT)
    assert await store.get("t1", CONTEXT) is None


async def test_the_smallest_task_is_saved_and_a_task_changes_its_context(
    store: LimpetTaskStore,
) -> None:
    """An id alone is a task; contexts and message ids are any text."""
    smallest = pb.Task(id="t1")
    await store.save(smallest, CONTEXT)
    assert await store.get("t1", CONTEXT) == smallest
    contexts = (" odd ", "x" * 300)
    for context in contexts:
        moved = pb.Task(id="t1", context_id=context, history=[message(" m ", pb.ROLE_USER, "Hi")])
        await store.save(moved, CONTEXT)
        assert await store.get("t1", CONTEXT) == moved
    listed = [
        (await store.list(pb.ListTasksRequest(context_id=each), CONTEXT)).total_size
        for each in contexts
    ]
    assert listed == [0, 1]
    await store.save(smallest, CONTEXT)
    asked = pb.ListTasksRequest(context_id=contexts[1])
    assert (await store.list(asked, CONTEXT)).total_size == 0


async def test_the_history_of_a_task_is_a_conversation(
    lp: limpet.Limpet, store: LimpetTaskStore
) -> None:
    """Each message once, however often the task is saved; earlier states can be read."""
    made = task(1)
    await store.save(made, CONTEXT)
    made.history.append(message("r1", pb.ROLE_AGENT, "Forty."))
    for _ in range(3):
        await store.save(made, CONTEXT)
    (head,) = (await lp.list(app="a2a")).items
    session = await lp.get(head.key)
    said = [(m.role, m.text) for m in await session.messages()]
    assert said == [("user", "How much?"), ("assistant", "Forty.")]
    assert len((await session.history.at(2))["task"]["history"]) == 1


async def test_nobody_reads_the_tasks_of_another(lp: limpet.Limpet) -> None:
    """The owner is that of the call's context."""
    caller = iter(("ada", "bob", "bob", "ada"))
    store = LimpetTaskStore(lp, owner_resolver=lambda _: next(caller))
    await store.save(task(1), CONTEXT)
    assert await store.get("t1", CONTEXT) is None
    assert (await store.list(pb.ListTasksRequest(), CONTEXT)).total_size == 0
    assert await store.get("t1", CONTEXT) == task(1)


async def test_savers_at_once_leave_one_whole_task(store: LimpetTaskStore) -> None:
    """The last save wins, and is never mixed with another."""
    tasks = [task(1) for _ in range(8)]
    for n, each in enumerate(tasks):
        each.history.append(message(f"x{n}", pb.ROLE_AGENT, f"{n}"))
        each.artifacts.append(pb.Artifact(artifact_id=f"{n}"))
    await asyncio.gather(*(store.save(each, CONTEXT) for each in tasks))
    assert await store.get("t1", CONTEXT) in tasks


async def test_a_task_of_more_than_a_thousand_messages_goes_on(lp: limpet.Limpet) -> None:
    """Each save has the whole history, of which only the end is new."""
    store, saved = LimpetTaskStore(lp), task(1)
    for first in (0, 1_500):
        saved.history.extend(
            message(f"x{n}", pb.ROLE_AGENT, f"{n} 🦪") for n in range(first, first + 1_500)
        )
        await store.save(saved, CONTEXT)
    assert await store.get("t1", CONTEXT) == saved
    session = await lp.get("a2a", "anonymous", "t1")
    assert len(await session.messages()) == 3_001


async def test_the_page_shows_how_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/a2a.md: the SDK's own handler on our store."""
    monkeypatch.chdir(tmp_path)
    given = {"DefaultRequestHandler": DefaultRequestHandler, "executor": None}
    names = await run_switching("a2a.md", {**given, "card": pb.AgentCard()})
    await names["tasks"].save(task(1), CONTEXT)
    request = pb.GetTaskRequest(id="t1")
    assert await names["handler"].on_get_task(request, CONTEXT) == task(1)
    await names["tasks"].close()
