"""What a run leaves behind when it ends, fails or dies: checkpoints and sessions that agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest

import limpet
from limpet.errors import (
    CheckpointNotFound,
    CheckpointSaveFailed,
    NodeException,
    SessionSaveFailed,
)
from limpet.graph import (
    END,
    GraphBuilder,
    InMemoryCheckpointer,
    InMemorySessionStore,
    LimpetCheckpointer,
    LimpetSessionStore,
    State,
    append,
)
from limpet.store.sqlite.store import SQLiteStore
from tests.support.vfs import WRITES, Faults, faulty


class Chat(State):
    messages: Annotated[list[str], append] = []


class Nodes:
    """Two nodes that say that they ran."""

    def __init__(self, *, failing: bool = False) -> None:
        self.ran: list[str] = []
        self.failing = failing

    async def first(self, state: Chat) -> dict[str, Any]:
        self.ran.append("first")
        if self.failing:
            raise ConnectionError("down")
        return {"messages": ["first"]}

    async def second(self, state: Chat) -> dict[str, Any]:
        self.ran.append("second")
        return {"messages": ["second"]}

    def graph(self, checkpointer: Any, store: Any = None) -> Any:
        builder = GraphBuilder(Chat).add_node("first", self.first).add_node("second", self.second)
        builder.add_edge("first", "second").add_edge("second", END).set_entry("first")
        builder.with_checkpointer(checkpointer)
        return (
            builder if store is None else builder.with_session_store(store, session_state=Chat)
        ).compile()


class Dying(InMemorySessionStore):
    """A store in which saving a session kills the process, as far as a test can tell."""

    dead = True

    async def save(self, session_id: str, record: Any, /, **how: Any) -> Any:
        if self.dead:
            raise KeyboardInterrupt
        return await super().save(session_id, record, **how)


async def test_a_death_before_the_session_is_saved_loses_no_turn() -> None:
    """The record is not complete yet: the resumed run runs no node and saves the session."""
    nodes, checkpointer, store = Nodes(), InMemoryCheckpointer(), Dying()
    graph = nodes.graph(checkpointer, store)
    with pytest.raises(KeyboardInterrupt):
        await graph.invoke(Chat(messages=["hi"]), session_id="s", correlation_id="c")
    store.dead = False
    record = await checkpointer.latest("c")
    assert record is not None
    assert record.status == "running"
    final = await graph.invoke(resume_invocation=record.invocation_id, session_id="s")
    assert final.messages == ["hi", "first", "second"]
    assert nodes.ran == ["first", "second"]
    assert (await store.load("s")).state == {"messages": ["hi", "first", "second"]}  # type: ignore[union-attr]
    assert (await checkpointer.latest("c")).status == "completed"  # type: ignore[union-attr]


async def test_a_session_that_could_not_be_saved_is_saved_by_resuming() -> None:
    """session_save_failed has the result, and nothing has to run again to save it."""
    async with limpet.open("memory://") as lp:
        nodes, checkpointer = Nodes(), LimpetCheckpointer(lp, "support")
        store = LimpetSessionStore(lp, "support", "ada")
        graph = nodes.graph(checkpointer, store)
        s = await lp.create("support", "ada", "s", state={"messages": []})
        await s.append("x.y", actor="user:ada", set={"app:shared": 1})
        healthy, checkpointer.save_with_session = checkpointer.save_with_session, _broken  # type: ignore[method-assign]
        with pytest.raises(SessionSaveFailed) as raised:
            await graph.invoke(Chat(messages=["hi"]), session_id="s", invocation_id="i")
        assert raised.value.result.messages == ["hi", "first", "second"]
        assert (await store.load("s")).state == {"messages": []}  # type: ignore[union-attr]
        checkpointer.save_with_session = healthy  # type: ignore[method-assign]
        await graph.invoke(resume_invocation="i", session_id="s")
        assert nodes.ran == ["first", "second"]
        assert (await store.load("s")).state["messages"] == ["hi", "first", "second"]  # type: ignore[union-attr]


async def _broken(*args: Any, **how: Any) -> int:
    raise OSError("the disk is full")


async def test_the_last_step_and_the_session_are_one_commit_where_they_live_together() -> None:
    """Both were recorded at one moment, and a step is one event."""
    async with limpet.open("memory://") as lp:
        checkpointer = LimpetCheckpointer(lp, "support")
        graph = Nodes().graph(checkpointer, LimpetSessionStore(lp, "support", "ada"))
        await graph.invoke(Chat(messages=["hi"]), session_id="s", correlation_id="c")
        last = await checkpointer.latest("c")
        assert last is not None
        run = await lp.get("support", "invocations", last.invocation_id)
        session = await lp.get("support", "ada", "s")
        assert run.head.updated_us == session.head.updated_us
        assert [event.type for event in run.events] == [
            "session.created",  # with the first node in it
            "graph.saved",
        ]
        assert run.values["status"] == "completed"


async def test_a_first_node_that_fails_leaves_a_record_to_resume_from() -> None:
    """With the initial state in it, though nothing was saved before."""
    nodes, checkpointer = Nodes(failing=True), InMemoryCheckpointer()
    graph = nodes.graph(checkpointer)
    with pytest.raises(NodeException):
        await graph.invoke(Chat(messages=["hi"]), invocation_id="i")
    nodes.failing = False
    final = await graph.invoke(resume_invocation="i")
    assert final.messages == ["hi", "first", "second"]


async def test_a_cancelled_first_node_leaves_a_record_too() -> None:
    """As one that failed does."""
    started = asyncio.Event()

    async def endless(state: Chat) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        return {}

    checkpointer = InMemoryCheckpointer()
    builder = GraphBuilder(Chat).add_node("n", endless).add_edge("n", END).set_entry("n")
    graph = builder.with_checkpointer(checkpointer).compile()
    task = asyncio.create_task(graph.invoke(Chat(messages=["hi"]), invocation_id="i"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await checkpointer.load("i")
    assert record is not None
    assert (record.status, record.state) == ("running", {"messages": ["hi"]})


async def test_a_first_node_that_fails_without_a_disk_fails_as_itself() -> None:
    """The caller sees what the node raised, with a note that it cannot be resumed."""

    class Full(InMemoryCheckpointer):
        async def save(self, record: Any, /) -> None:
            raise OSError("the disk is full")

    checkpointer = Full()
    graph = Nodes(failing=True).graph(checkpointer)
    with pytest.raises(NodeException) as raised:
        await graph.invoke(Chat(), correlation_id="c")
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert "the disk is full" in "".join(raised.value.__notes__)
    assert await checkpointer.latest("c") is None


async def test_an_id_that_cannot_be_claimed_runs_nothing() -> None:
    """Without its record nobody could tell this run from another under the same id."""

    class Full(InMemoryCheckpointer):
        async def save(self, record: Any, /) -> None:
            raise OSError("the disk is full")

    graph = Nodes(failing=True).graph(Full())
    with pytest.raises(CheckpointSaveFailed, match="the disk is full"):
        await graph.invoke(Chat(), invocation_id="i")
    with pytest.raises(CheckpointNotFound):
        await graph.invoke(resume_invocation="i")


async def test_a_step_costs_one_fsync(tmp_path: Path) -> None:
    """Three nodes in a row: three, for the whole invocation, and every next one."""
    faults = Faults(kinds=frozenset({"sync"}))
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(tmp_path / "graph.db", vfs=vfs)
        async with limpet.Limpet("sqlite:///graph.db", store=store) as lp:
            graph = Nodes().graph(LimpetCheckpointer(lp, "support"))
            await graph.invoke()
            before = faults.calls
            for _ in range(5):
                await graph.invoke()
            assert faults.calls - before <= 5 * 2


@pytest.mark.parametrize("at", range(1, 16, 3))
async def test_a_disk_that_fails_once_costs_no_step_that_was_saved(tmp_path: Path, at: int) -> None:
    """The nth write fails: the run says so, and goes on from its last checkpoint, or begins."""
    faults = Faults(kinds=WRITES | {"sync"})
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(tmp_path / "graph.db", vfs=vfs, busy_seconds=0.5)
        async with limpet.Limpet("sqlite:///graph.db", store=store) as lp:
            nodes, checkpointer = Nodes(), LimpetCheckpointer(lp, "support")
            graph = nodes.graph(checkpointer)
            faults.at = faults.calls + at
            try:
                final = await graph.invoke(Chat(messages=["hi"]), correlation_id="c")
            except limpet.errors.CheckpointSaveFailed:
                record = await checkpointer.latest("c")
                if record is None:
                    final = await graph.invoke(Chat(messages=["hi"]), correlation_id="c")
                else:
                    final = await graph.invoke(resume_invocation=record.invocation_id)
            assert final.messages == ["hi", "first", "second"]
            assert len(nodes.ran) <= 3
            assert (await lp.maintenance.verify()).ok
