"""Checkpoints and resume: one commit a step, and a run continues exactly where it stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
import pytest

import limpet
from limpet.graph import (
    END,
    CheckpointFilter,
    CheckpointRecord,
    FailureIsolationMiddleware,
    GraphBuilder,
    InMemoryCheckpointer,
    InMemorySessionStore,
    LimpetCheckpointer,
    Position,
    RetryMiddleware,
    SessionRecord,
    State,
    append,
    current_correlation_id,
    current_invocation_id,
    suspend,
)
from tests.support.graphs import CheckedCheckpointer, PlainCheckpointer, gives, line


class Log(State):
    n: int = 0
    log: Annotated[list[str], append] = []


class Breaks:
    """A node that logs its name and fails while it is told to."""

    def __init__(self, name: str, *, times: int = 0) -> None:
        self.name, self.left, self.runs = name, times, 0

    async def __call__(self, s: Any) -> dict[str, Any]:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise RuntimeError(f"{self.name} is down")
        return {"n": s.n + 1, "log": [self.name]}


def nodes(*names: str, broken: str = "") -> dict[str, Breaks]:
    return {name: Breaks(name, times=int(name == broken)) for name in names}


@pytest.fixture(params=["changes", "whole"])
def checkpointer(request: pytest.FixtureRequest) -> Any:
    """One that takes changes and checks each, and one that knows whole records only."""
    return CheckedCheckpointer() if request.param == "changes" else PlainCheckpointer()


# --- one commit a step ----------------------------------------------------------------------------


async def test_every_completed_node_is_one_commit() -> None:
    """The start is saved with the first node, and the end together with the last one."""
    checkpointer = CheckedCheckpointer()
    graph = line(Log, **nodes("a", "b", "c")).with_checkpointer(checkpointer).compile()
    final = await graph.invoke(Log(), correlation_id="c")
    saved = [save.cursor[0].node for save in checkpointer.saves if save.cursor]
    assert saved == ["b", "c", None]
    assert [save.revision for save in checkpointer.saves] == [1, 2, 3]
    assert [save.status for save in checkpointer.saves] == ["running"] * 2 + ["completed"]
    record = await checkpointer.latest("c")
    assert record is not None
    assert record.state == {"n": 3, "log": ["a", "b", "c"]}
    assert [p.node for p in record.completed_positions] == ["a", "b", "c"]
    assert (record.correlation_id, record.schema_version) == ("c", "")
    assert record.last_saved_at is not None
    assert final.n == 3


async def test_a_step_of_a_long_run_costs_what_it_changed() -> None:
    """After a thousand messages a step is as few and as small operations as at the start."""
    sizes: list[int] = []

    class Weighing(InMemoryCheckpointer):
        async def save_changes(self, invocation_id: str, ops: Any, whole: Any, /) -> None:
            sizes.append(len(msgspec.json.encode(ops)))
            await super().save_changes(invocation_id, ops, whole)

    async def say(s: Log) -> dict[str, Any]:
        return {"n": s.n + 1, "log": ["a message of some length"]}

    graph = (
        GraphBuilder(Log)
        .add_node("say", say)
        .add_conditional_edge("say", lambda s: "say" if s.n < 1_000 else END)
        .set_entry("say")
        .with_checkpointer(Weighing())
        .compile()
    )
    await graph.invoke()
    assert len(sizes) == 999  # the first step is saved with the whole record
    assert max(sizes[-10:-1]) < sizes[0] + 64  # the last one says that it is the end


async def test_the_start_is_saved_while_the_first_node_waits(checkpointer: Any) -> None:
    """A process that dies inside of it leaves a record with the initial state."""
    found: list[CheckpointRecord] = []

    async def waits(s: Log) -> dict[str, Any]:
        while not found:
            await asyncio.sleep(0)
            if (record := await checkpointer.load("i")) is not None:
                found.append(record)
        return {"log": ["waited"]}

    graph = line(Log, waits=waits, last=Breaks("last")).with_checkpointer(checkpointer).compile()
    final = await graph.invoke(Log(log=["start"]), invocation_id="i")
    assert final.log == ["start", "waited", "last"]
    assert found[0].cursor is not None
    assert (found[0].status, found[0].cursor[0].node) == ("running", "waits")
    assert found[0].state == {"n": 0, "log": ["start"]}
    assert (await checkpointer.load("i")).state["log"] == ["start", "waited", "last"]


@pytest.mark.parametrize("base", [PlainCheckpointer, InMemoryCheckpointer])
@pytest.mark.parametrize("turns", [1, 5])
async def test_a_start_that_cannot_be_saved_stops_the_run_at_its_first_step(
    base: Any, turns: int
) -> None:
    """The error of the checkpointer is the cause; nothing is saved and no node runs after it."""
    calls = 0

    class Slow(base):  # type: ignore[misc]
        async def save(self, record: CheckpointRecord) -> None:
            nonlocal calls
            calls += 1
            for _ in range(3):
                await asyncio.sleep(0)
            raise OSError("disk full")

    async def waits(s: Log) -> dict[str, Any]:
        for _ in range(turns):
            await asyncio.sleep(0)
        return {}

    last = Breaks("last")
    graph = line(Log, waits=waits, last=last).with_checkpointer(Slow()).compile()
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="disk full") as info:
        await graph.invoke(Log())
    assert isinstance(info.value.__cause__, OSError)
    assert (last.runs, calls) == (0, 1)


async def test_a_save_of_the_start_that_is_under_way_is_waited_for() -> None:
    """Saves of one invocation never overlap, however the first node ends."""
    saving = 0

    class Slow(PlainCheckpointer):
        async def save(self, record: CheckpointRecord) -> None:
            nonlocal saving
            saving += 1
            assert saving == 1
            for _ in range(10):
                await asyncio.sleep(0)
            await super().save(record)
            saving -= 1

    async def waits(s: Log) -> dict[str, Any]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if s.log == ["suspend"]:
            await suspend("x")
        if s.log == ["fail"]:
            raise RuntimeError("down")
        return {}

    for how in ("suspend", "fail", "end"):
        checkpointer, store = Slow(), InMemorySessionStore()
        graph = (
            line(Log, waits=waits)
            .with_checkpointer(checkpointer)
            .with_session_store(store, session_state=Log)
            .compile()
        )
        result = await asyncio.gather(
            graph.invoke(Log(log=[how]), invocation_id="i", session_id="s"), return_exceptions=True
        )
        record = await checkpointer.load("i")
        assert record is not None
        status = {"suspend": "suspended", "fail": "running", "end": "completed"}[how]
        assert (record.status, saving, len(result)) == (status, 0, 1)


async def test_a_step_is_saved_after_the_start_however_long_that_takes() -> None:
    """The changes of the first steps are applied to the record of the start, in order."""

    class Slow(CheckedCheckpointer):
        async def save(self, record: CheckpointRecord, /) -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            await super().save(record)

    async def waits(s: Log) -> dict[str, Any]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return {"log": ["waited"]}

    checkpointer = Slow()
    graph = line(Log, waits=waits, last=Breaks("last")).with_checkpointer(checkpointer).compile()
    await graph.invoke(invocation_id="i")
    for _ in range(30):
        await asyncio.sleep(0)
    record = await checkpointer.load("i")
    assert record is not None
    assert (record.status, record.state["log"]) == ("completed", ["waited", "last"])
    assert [save.revision for save in checkpointer.saves] == [1, 2, 3]


async def test_a_change_is_only_saved_after_the_whole_record() -> None:
    """A checkpointer of somebody else's may rely on it: it has the document that changes."""
    order: list[str] = []
    saving, go = asyncio.Event(), asyncio.Event()

    class Slow(InMemoryCheckpointer):
        async def save(self, record: CheckpointRecord, /) -> None:
            saving.set()
            await go.wait()
            await super().save(record)
            order.append("whole")

        async def save_changes(self, invocation_id: str, ops: Any, whole: Any, /) -> None:
            order.append("changes")
            await super().save_changes(invocation_id, ops, whole)

    async def waits(s: Log) -> dict[str, Any]:
        await saving.wait()
        asyncio.get_running_loop().call_soon(go.set)
        return {"log": ["waited"]}

    graph = line(Log, waits=waits, b=gives(log=["b"])).with_checkpointer(Slow()).compile()
    assert (await graph.invoke()).log == ["waited", "b"]
    assert order == ["whole", "changes", "changes"]


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["a", "b", "c"])
async def test_a_failed_run_continues_at_the_node_that_failed(
    checkpointer: Any, broken: str
) -> None:
    """Nodes that had completed do not run again, also if the very first one failed."""
    made = nodes("a", "b", "c", broken=broken)
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Log(log=["start"]), invocation_id="i")
    final = await graph.invoke(Log(log=["ignored"]), resume_invocation="i")
    assert final == Log(n=3, log=["start", "a", "b", "c"])
    assert [node.runs for node in made.values()] == [1 + (n == broken) for n in made]


async def test_a_resumed_run_has_a_new_id_and_the_same_correlation(checkpointer: Any) -> None:
    """The record of the failed run says by which it was resumed, if the checkpointer can tell."""
    ids: list[tuple[str | None, str | None]] = []
    node = Breaks("a", times=1)

    async def noting(s: Log) -> dict[str, Any]:
        ids.append((current_invocation_id(), current_correlation_id()))
        return await node(s)

    graph = line(Log, a=noting).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i", correlation_id="c")
    await graph.invoke(resume_invocation="i", correlation_id="another")
    (first, c1), (second, c2) = ids
    assert (first, c1, c2) == ("i", "c", "c")
    assert second not in (None, "i")
    kept, new = await checkpointer.load("i"), await checkpointer.load(second or "")
    known = ("resumed", second) if hasattr(checkpointer, "hold") else ("running", None)
    assert (kept.status, kept.resumed_as, new.status) == (*known, "completed")


async def test_resume_in_a_cycle_goes_on_with_its_round(checkpointer: Any) -> None:
    """A node that has run in earlier rounds runs again in this one, as often as without a crash."""
    think, act = Breaks("think"), Breaks("act")

    def once_at_seven(s: Log) -> bool:
        return s.n == 7 and act.left == 0 and act.runs < 4

    async def acting(s: Log) -> dict[str, Any]:
        if once_at_seven(s):
            act.left = 1
        return await act(s)

    graph = (
        GraphBuilder(Log)
        .add_node("think", think)
        .add_node("act", acting)
        .add_edge("think", "act")
        .add_conditional_edge("act", lambda s: "think" if s.n < 12 else END)
        .set_entry("think")
        .with_checkpointer(checkpointer)
        .compile()
    )
    act.runs = 0
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    act.runs = 99
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["think", "act"] * 6
    assert think.runs == 6


async def test_edges_are_not_evaluated_again_on_a_later_state(checkpointer: Any) -> None:
    """A choice that was made stays made, though it would be another one now."""
    last = Breaks("last", times=1)
    graph = (
        GraphBuilder(Log)
        .add_node("choose", gives(n=0))
        .add_node("low", gives(n=50, log=["low"]))
        .add_node("high", gives(n=0, log=["high"]))
        .add_node("last", last)
        .add_conditional_edge("choose", lambda s: "low" if s.n < 10 else "high")
        .add_edge("low", "last")
        .add_edge("high", "last")
        .add_edge("last", END)
        .set_entry("choose")
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["low", "last"]


async def test_resume_inside_a_subgraph_continues_there(checkpointer: Any) -> None:
    """Inner nodes that had completed do not run again, at any depth."""
    inmost, middle, outer = nodes("x", "y", "z", broken="y"), nodes("before"), nodes("first", "end")

    def nested(name: str, inner: Any, made: dict[str, Breaks], *, after: str = "") -> Any:
        builder = GraphBuilder(Log)
        (first, node), *rest = made.items()
        builder.add_node(first, node).add_edge(first, name).set_entry(first)
        builder.add_subgraph_node(name, inner, inputs={"n": "n"})
        builder.add_edge(name, after or END)
        for other, fn in rest:
            builder.add_node(other, fn).add_edge(other, END)
        return builder

    graph2 = line(Log, **inmost).compile()
    graph1 = nested("deep", graph2, middle).compile()
    graph = nested("sub", graph1, outer, after="end").with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    record = await checkpointer.load("i")
    assert [frame.node for frame in record.cursor] == ["sub", "deep", "y"]
    assert record.state == {"n": 3, "log": ["x"]}
    assert [state["log"] for state in record.parent_states] == [["first"], ["before"]]
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["first", "before", "x", "y", "z", "end"]
    runs = {name: node.runs for made in (inmost, middle, outer) for name, node in made.items()}
    assert runs == {"x": 1, "y": 2, "z": 1, "before": 1, "first": 1, "end": 1}


async def test_a_retried_subgraph_starts_again_and_is_checkpointed_right(checkpointer: Any) -> None:
    """Frames of an attempt that failed are replaced by those of the next."""

    async def sleep(seconds: float) -> None:
        pass

    made = nodes("x", "y", broken="y")
    graph = (
        GraphBuilder(Log)
        .add_subgraph_node(
            "sub", line(Log, **made).compile(), middleware=[RetryMiddleware(sleep=sleep)]
        )
        .add_node("end", Breaks("end", times=1))
        .add_edge("sub", "end")
        .add_edge("end", END)
        .set_entry("sub")
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["x", "y", "end"]
    assert made["x"].runs == 2


async def test_the_frames_of_the_last_attempt_are_the_ones_that_are_kept(
    checkpointer: Any,
) -> None:
    """However often the subgraph was tried before, the cursor has one frame for it."""

    async def sleep(seconds: float) -> None:
        pass

    made = {"x": Breaks("x"), "y": Breaks("y", times=2)}
    graph = (
        GraphBuilder(Log)
        .add_subgraph_node(
            "sub",
            line(Log, **made).compile(),
            middleware=[RetryMiddleware(max_attempts=2, sleep=sleep)],
        )
        .add_edge("sub", END)
        .set_entry("sub")
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    record = await checkpointer.load("i")
    assert [frame.node for frame in record.cursor] == ["sub", "y"]
    assert (await graph.invoke(resume_invocation="i")).log == ["x", "y"]
    assert made["x"].runs == 2


async def test_what_a_skipped_node_had_inside_is_not_given_to_another(checkpointer: Any) -> None:
    """Middleware may answer for a resumed subgraph; the next subgraph starts from its beginning."""
    skip = False

    async def skips(state: Any, next: Any) -> Any:
        return {"log": ["skipped"]} if skip else await next(state)

    first, second = nodes("x", "y", broken="y"), nodes("x", "y")
    graph = (
        GraphBuilder(Log)
        .add_subgraph_node("one", line(Log, **first).compile(), middleware=[skips])
        .add_subgraph_node("two", line(Log, **second).compile())
        .add_edge("one", "two")
        .add_edge("two", END)
        .set_entry("one")
        .with_checkpointer(checkpointer)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    skip = True
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["skipped", "x", "y"]
    (last,) = [item for item in await checkpointer.list() if item.status == "completed"]
    assert (await checkpointer.load(last.invocation_id)).state["log"] == final.log


async def test_a_cancelled_run_can_be_resumed(checkpointer: Any) -> None:
    """Cancellation leaves the last checkpoint, like a crash does."""
    inside = asyncio.Event()
    first = Breaks("first")

    async def wait(s: Log) -> dict[str, Any]:
        if not inside.is_set():
            inside.set()
            await asyncio.Event().wait()
        return {"log": ["waited"]}

    graph = line(Log, first=first, wait=wait).with_checkpointer(checkpointer).compile()
    task = asyncio.ensure_future(graph.invoke(invocation_id="i"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["first", "waited"]
    assert first.runs == 1


async def test_a_record_without_a_cursor_resumes_by_its_positions() -> None:
    """The node after the last completed position runs next, also inside a subgraph."""
    checkpointer, made = PlainCheckpointer(), nodes("a", "b", "c")
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    record = CheckpointRecord(
        invocation_id="i",
        correlation_id="c",
        state={"n": 2, "log": ["a", "b"]},
        completed_positions=(Position(node="a", step=1), Position(node="b", step=2)),
    )
    await checkpointer.save(record)
    assert (await graph.invoke(resume_invocation="i")).log == ["a", "b", "c"]
    outer = (
        GraphBuilder(Log)
        .add_subgraph_node("sub", graph)
        .add_edge("sub", END)
        .set_entry("sub")
        .with_checkpointer(checkpointer)
        .compile()
    )
    inside = Position(node="a", step=1, parents=("sub",))
    await checkpointer.save(
        msgspec.structs.replace(
            record,
            state={"n": 1, "log": ["a"]},
            parent_states=({"n": 0, "log": []},),
            completed_positions=(inside,),
        )
    )
    assert (await outer.invoke(resume_invocation="i")).log == ["a", "b", "c"]
    assert [node.runs for node in made.values()] == [0, 1, 2]


# --- a completed one begins a new turn ------------------------------------------------------------


async def test_resuming_a_completed_invocation_begins_a_new_turn(checkpointer: Any) -> None:
    """Its state is the base, the new input is folded in, and every node runs again."""
    made = nodes("a", "b")
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    await graph.invoke(Log(log=["one"]), invocation_id="i1", correlation_id="chat")
    final = await graph.invoke(Log(log=["two"]), resume_invocation="i1", invocation_id="i2")
    assert final == Log(n=4, log=["one", "a", "b", "two", "a", "b"])
    record = await checkpointer.load("i2")
    assert record.correlation_id == "chat"
    assert [position.node for position in record.completed_positions] == ["a", "b"]
    third = await graph.invoke(resume_invocation="i2")
    assert third.n == 6


async def test_only_fields_that_the_caller_set_are_folded_in(checkpointer: Any) -> None:
    """A default of the new input does not overwrite what the turn before left."""
    graph = line(Log, a=gives(n=5)).with_checkpointer(checkpointer).compile()
    await graph.invoke(Log(), invocation_id="i")
    noted: list[int] = []

    async def note(s: Log) -> dict[str, Any]:
        noted.append(s.n)
        return {}

    again = line(Log, a=note).with_checkpointer(checkpointer).compile()
    await again.invoke(Log(log=["x"]), resume_invocation="i")
    await again.invoke(Log(n=0), resume_invocation="i")
    assert noted == [5, 0]


async def test_the_newest_record_of_a_correlation_is_found() -> None:
    """An application need not keep a table from its session to the last invocation."""
    checkpointer = InMemoryCheckpointer()
    graph = line(Log, **nodes("a")).with_checkpointer(checkpointer).compile()
    for _ in range(3):
        found = await checkpointer.latest("chat")
        if found is None:
            await graph.invoke(correlation_id="chat", session_id="s")
        else:
            await graph.invoke(resume_invocation=found.invocation_id, session_id="s")
    await graph.invoke(correlation_id="another")
    found = await checkpointer.latest("chat")
    assert found is not None
    assert found.state["n"] == 3
    listed = await checkpointer.list(CheckpointFilter(correlation_id="chat"))
    assert len(listed) == 3
    assert len(await checkpointer.list(CheckpointFilter(session_id="s"))) == 3
    assert len(await checkpointer.list()) == 4
    page = await checkpointer.list(CheckpointFilter(limit=3))
    rest = await checkpointer.list(CheckpointFilter(limit=3, cursor=page.cursor))
    assert (len(page), len(rest), rest.cursor) == (3, 1, None)


async def test_retention_forgets_the_oldest_completed_invocations() -> None:
    """An unfinished invocation is never forgotten."""
    checkpointer = InMemoryCheckpointer(keep=2)
    broken = line(Log, **nodes("a", broken="a")).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await broken.invoke(invocation_id="unfinished")
    graph = line(Log, **nodes("a")).with_checkpointer(checkpointer).compile()
    for number in range(4):
        await graph.invoke(invocation_id=f"i{number}")
    assert [s.invocation_id for s in await checkpointer.list()] == ["i2", "i3", "unfinished"]
    await checkpointer.delete("i2")
    await checkpointer.delete("i2")
    assert await checkpointer.load("i2") is None


# --- what cannot be resumed -----------------------------------------------------------------------


async def test_an_id_that_never_was_is_not_found() -> None:
    """Nothing runs; without a checkpointer no id is known."""
    made = nodes("a")
    for builder in (line(Log, **made), line(Log, **made).with_checkpointer(PlainCheckpointer())):
        with pytest.raises(limpet.errors.CheckpointNotFound) as info:
            await builder.compile().invoke(resume_invocation="never")
        assert info.value.category == "checkpoint_not_found"
    assert made["a"].runs == 0


class Elsewhere(State):
    n: int = 0


async def test_a_record_of_another_graph_is_refused(checkpointer: Any) -> None:
    """By its name, or because the node where it stopped is not there."""
    graph = line(Log, **nodes("a", "b", broken="b")).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    other = line(Elsewhere, a=gives()).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="belongs to the graph 'Log'"):
        await other.invoke(resume_invocation="i")
    fewer = line(Log, **nodes("a")).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="'b'") as info:
        await fewer.invoke(resume_invocation="i")
    assert info.value.category == "checkpoint_record_invalid"


async def test_a_record_of_another_session_is_refused(checkpointer: Any) -> None:
    """A failed run and a completed one: neither goes on in the session of somebody else."""
    made = nodes("a", "b", broken="b")
    builder = line(Log, **made).with_checkpointer(checkpointer)
    graph = builder.with_session_store(InMemorySessionStore(), session_state=Log).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i", session_id="ada")
    for last in ("i", "j"):
        with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="another session"):
            await graph.invoke(resume_invocation=last, session_id="bob")
        await graph.invoke(resume_invocation=last, session_id="ada")
        if last == "i":
            await graph.invoke(invocation_id="j", session_id="ada")


async def test_a_run_without_a_session_does_not_replace_the_state_of_one(
    checkpointer: Any,
) -> None:
    """It has never seen that state. In a session that is new it goes on."""
    made = nodes("a", "b", broken="b")
    store = InMemorySessionStore()
    builder = line(Log, **made).with_checkpointer(checkpointer)
    graph = builder.with_session_store(store, session_state=Log).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    await store.save("ada", SessionRecord(session_id="ada", state={"log": ["history"]}))
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="no session"):
        await graph.invoke(resume_invocation="i", session_id="ada")
    found = await store.load("ada")
    assert found is not None
    assert found.state["log"] == ["history"]
    assert (await graph.invoke(resume_invocation="i", session_id="new")).log == ["a", "b"]


async def test_an_id_that_an_invocation_has_already_is_refused(checkpointer: Any) -> None:
    """Its record would be lost."""
    made = nodes("a", "b", broken="b")
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    before = await checkpointer.load("i")
    with pytest.raises(limpet.errors.GraphMisused, match="already"):
        await graph.invoke(invocation_id="i")
    assert await checkpointer.load("i") == before


@pytest.mark.parametrize("asked", ["i", "j"])
async def test_a_resumed_run_has_an_id_of_its_own_whichever_the_caller_passes(
    checkpointer: Any, asked: str
) -> None:
    """An id of the caller's is for an invocation that begins; the correlation stays the same."""
    ids: list[str | None] = []

    async def b(s: Log) -> dict[str, Any]:
        ids.append(current_invocation_id())
        if len(ids) == 1:
            raise RuntimeError("down")
        return {"log": ["b"]}

    graph = line(Log, a=nodes("a")["a"], b=b).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i", correlation_id="c")
    assert (await graph.invoke(resume_invocation="i", invocation_id=asked)).log == ["a", "b"]
    assert ids[0] == "i"
    assert UUID(ids[1]).version == 4
    record = await checkpointer.load(ids[1])
    assert (record.correlation_id, record.status) == ("c", "completed")
    assert await checkpointer.load("j") is None


@pytest.mark.parametrize("how", ["begin", "resume"])
async def test_of_two_runs_that_start_under_one_id_at_once_one_runs(how: str) -> None:
    """The claim decides before the first node, not what each of them had read."""
    both = asyncio.Barrier(2)

    class Racing(CheckedCheckpointer):
        racing = False

        async def load(self, invocation_id: str, /) -> CheckpointRecord | None:
            found = await super().load(invocation_id)
            if self.racing:
                await both.wait()
                self.racing = False
            return found

    checkpointer, first, last = Racing(), Breaks("a"), Breaks("b", times=int(how == "resume"))
    graph = line(Log, a=first, b=last).with_checkpointer(checkpointer).compile()
    call = {"invocation_id": "i"}
    if how == "resume":
        with pytest.raises(limpet.errors.NodeException):
            await graph.invoke(invocation_id="i")
        call = {"resume_invocation": "i"}
    checkpointer.racing, runs = True, last.runs
    results = await asyncio.gather(
        *[graph.invoke(**call) for _ in range(2)], return_exceptions=True
    )
    loser = "GraphMisused" if how == "begin" else "CheckpointInUse"
    assert sorted(type(result).__name__ for result in results) == [loser, "Log"]
    assert (first.runs, last.runs - runs) == (1, 1)
    found = await checkpointer.load("i")
    assert found is not None
    if how == "resume":
        found = await checkpointer.load(found.resumed_as or "")
        assert found is not None
    assert (found.status, found.state["log"]) == ("completed", ["a", "b"])


async def test_of_two_processes_that_start_one_invocation_one_runs_it(tmp_path: Path) -> None:
    """Each has opened the file for itself; the other gets an error and runs nothing."""
    url, runs = f"sqlite:///{tmp_path / 'graph.db'}", 0

    async def slow(s: Log) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        return {"log": ["slow"]}

    async with limpet.open(url) as one, limpet.open(url) as other:
        graphs = [
            line(Log, slow=slow).with_checkpointer(LimpetCheckpointer(lp, "jobs")).compile()
            for lp in (one, other)
        ]
        results = await asyncio.gather(
            *[graph.invoke(invocation_id="job-7") for graph in graphs], return_exceptions=True
        )
        kinds = sorted(type(result).__name__ for result in results)
        assert (kinds, runs) == (["GraphMisused", "Log"], 1)
        found = await LimpetCheckpointer(one, "jobs").load("job-7")
        assert found is not None
        assert (found.status, found.state["log"]) == ("completed", ["slow"])


async def test_a_record_whose_state_does_not_fit_runs_nothing() -> None:
    """The record is invalid for this graph, and the error names the field."""
    checkpointer, made = PlainCheckpointer(), nodes("a")
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    await checkpointer.save(
        CheckpointRecord(invocation_id="i", correlation_id="c", state={"n": "many"})
    )
    with pytest.raises(
        limpet.errors.CheckpointRecordInvalid, match=r"does not fit Log \(n\)"
    ) as info:
        await graph.invoke(resume_invocation="i")
    assert isinstance(info.value.__cause__, limpet.errors.StateValidationError)
    assert made["a"].runs == 0


async def test_a_state_inside_that_does_not_fit_runs_nothing(checkpointer: Any) -> None:
    """It is found at the entry, not when the run comes to its graph."""
    made = nodes("a")

    class Inner(State):
        n: int = 0

    fails = Breaks("y", times=1)
    old = line(Inner, x=gives(n=1), y=fails).compile()
    builder = GraphBuilder(Log).add_node("a", made["a"]).add_subgraph_node("in", old)
    builder.add_edge("a", "in").add_edge("in", END).set_entry("a")
    with pytest.raises(limpet.errors.NodeException):
        await builder.with_checkpointer(checkpointer).compile().invoke(invocation_id="i")

    class Narrow(State):
        n: Literal[2] = 2

    new = line(Narrow, x=gives(), y=gives()).compile()
    builder = GraphBuilder(Log).add_node("a", made["a"]).add_subgraph_node("in", new)
    builder.add_edge("a", "in").add_edge("in", END).set_entry("a")
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match=r"does not fit Narrow \(n\)"):
        await builder.with_checkpointer(checkpointer).compile().invoke(resume_invocation="i")
    assert made["a"].runs == 1


@pytest.mark.parametrize(
    "stored", [b"{", b"\xff", b"[]", b'{"invocation_id": 3}', b'{"status": "gone"}']
)
async def test_a_record_that_cannot_be_read_is_invalid(stored: bytes) -> None:
    """The checkpointer works, and what it has is not a record."""
    checkpointer, made = PlainCheckpointer(), nodes("a")
    checkpointer.stored["i"] = stored
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="cannot be read"):
        await graph.invoke(resume_invocation="i")
    assert made["a"].runs == 0


async def test_a_record_that_another_program_wrote_over_is_invalid() -> None:
    """Also in a store of ours: it is not reported as a store that is down."""
    async with limpet.open("memory://") as lp:
        await lp.create("jobs", "invocations", "i", state={"completed_positions": 3})
        graph = line(Log, **nodes("a")).with_checkpointer(LimpetCheckpointer(lp, "jobs")).compile()
        with pytest.raises(limpet.errors.CheckpointRecordInvalid, match="not a record"):
            await graph.invoke(resume_invocation="i")


async def test_a_record_that_is_gone_while_its_invocation_runs_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody deleted it; a checkpointer that can writes it again, whole."""
    checkpointer = InMemoryCheckpointer()

    async def deletes(s: Log) -> dict[str, Any]:
        await checkpointer.delete("i")
        return {}

    graph = line(Log, a=nodes("a")["a"], b=deletes, c=nodes("c")["c"])
    await graph.with_checkpointer(checkpointer).compile().invoke(invocation_id="i")
    assert "checkpoint missing: invocation=i" in caplog.text
    record = await checkpointer.load("i")
    assert record is not None
    assert (record.status, record.state["log"]) == ("completed", ["a", "c"])


async def test_a_checkpointer_that_fails_to_load_runs_nothing() -> None:
    """Its error is the cause; anything that is not a record is refused."""

    class Broken(PlainCheckpointer):
        async def load(self, invocation_id: str) -> Any:
            if invocation_id == "odd":
                return {"state": {}}
            raise OSError("disk")

    made = nodes("a")
    graph = line(Log, **made).with_checkpointer(Broken()).compile()
    with pytest.raises(limpet.errors.CheckpointLoadFailed, match="disk") as info:
        await graph.invoke(resume_invocation="i")
    assert isinstance(info.value.__cause__, OSError)
    with pytest.raises(limpet.errors.CheckpointRecordInvalid):
        await graph.invoke(resume_invocation="odd")
    assert made["a"].runs == 0


@pytest.mark.parametrize("fails_at", [1, 2])
async def test_a_checkpointer_that_fails_to_save_stops_the_run(fails_at: int) -> None:
    """The run does not go on unsaved; the error has the state, and the last checkpoint stands."""

    class Broken(PlainCheckpointer):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        async def save(self, record: CheckpointRecord) -> None:
            self.count += 1
            if self.count == fails_at:
                raise OSError("disk full")
            await super().save(record)

    checkpointer, made = Broken(), nodes("a", "b")
    graph = line(Log, **made).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="disk full") as info:
        await graph.invoke(invocation_id="i")
    assert info.value.category == "checkpoint_save_failed"
    assert info.value.result.n == fails_at
    assert [node.runs for node in made.values()] == [1, fails_at - 1]
    if fails_at == 1:
        with pytest.raises(limpet.errors.CheckpointNotFound):
            await graph.invoke(resume_invocation="i")
        return
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["a", "b"]


async def test_a_failed_save_is_not_a_failure_of_the_node_to_be_retried_or_isolated() -> None:
    """Middleware around a subgraph lets it pass: the run cannot go on unsaved."""

    class Broken(PlainCheckpointer):
        async def save(self, record: CheckpointRecord) -> None:
            raise OSError("disk full")

    made = nodes("x", "y")
    layers = [FailureIsolationMiddleware(degraded_update={}), RetryMiddleware()]
    graph = (
        GraphBuilder(Log)
        .add_subgraph_node("sub", line(Log, **made).compile(), middleware=layers)
        .add_edge("sub", END)
        .set_entry("sub")
        .with_checkpointer(Broken())
        .compile()
    )
    with pytest.raises(limpet.errors.CheckpointSaveFailed):
        await graph.invoke()
    assert made["x"].runs == 1


# --- migrations of checkpoints --------------------------------------------------------------------


class V1(State):
    schema_version: ClassVar[str] = "v1"
    name: str = ""


class V2(State):
    schema_version: ClassVar[str] = "v2"
    first: str = ""
    log: Annotated[list[str], append] = []


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"first": fields["name"]}


def old_and_new(checkpointer: Any) -> tuple[Any, Any]:
    old = GraphBuilder(V1, name="g").add_node("a", gives(name="Ada")).add_edge("a", "b")
    old.add_node("b", Breaks("b", times=1)).add_edge("b", END).set_entry("a")
    new = GraphBuilder(V2, name="g").add_node("a", gives()).add_edge("a", "b")
    new.add_node("b", gives(log=["b"])).add_edge("b", END).set_entry("a")
    return old.with_checkpointer(checkpointer), new.with_checkpointer(checkpointer)


async def test_a_checkpoint_is_migrated_when_it_is_resumed(checkpointer: Any) -> None:
    """The run goes on at its cursor, with state of the new version."""
    old, new = old_and_new(checkpointer)
    with pytest.raises(limpet.errors.NodeException):
        await old.compile().invoke(invocation_id="i")
    new.with_state_migration("v1", "v2", renamed)
    assert await new.compile().invoke(resume_invocation="i") == V2(first="Ada", log=["b"])


async def test_a_record_without_a_cursor_is_migrated_before_its_edge_is_evaluated() -> None:
    """The edge is the new graph's, so it sees state of the new version."""
    checkpointer = PlainCheckpointer()
    await checkpointer.save(
        CheckpointRecord(
            invocation_id="i",
            correlation_id="c",
            state={"name": "Ada"},
            schema_version="v1",
            completed_positions=(Position(node="a", step=1),),
        )
    )
    graph = (
        GraphBuilder(V2)
        .add_node("a", gives())
        .add_node("ada", gives(log=["ada"]))
        .add_node("other", gives(log=["other"]))
        .add_conditional_edge("a", lambda s: "ada" if s.first == "Ada" else "other")
        .add_edge("ada", END)
        .add_edge("other", END)
        .set_entry("a")
        .with_checkpointer(checkpointer)
        .with_state_migration("v1", "v2", renamed)
        .compile()
    )
    assert await graph.invoke(resume_invocation="i") == V2(first="Ada", log=["ada"])


def broken(fields: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("steps", "category"),
    [
        ([], "checkpoint_state_migration_missing"),
        ([("v1", "v2", broken)], "checkpoint_state_migration_failed"),
    ],
)
async def test_a_migration_that_cannot_be_made_runs_nothing(
    steps: Any, category: str, checkpointer: Any
) -> None:
    """Each kind has its own category, and the record is unchanged."""
    old, new = old_and_new(checkpointer)
    with pytest.raises(limpet.errors.NodeException):
        await old.compile().invoke(invocation_id="i")
    before = await checkpointer.load("i")
    for step in steps:
        new.with_state_migration(*step)
    with pytest.raises(limpet.errors.MigrationError) as info:
        await new.compile().invoke(resume_invocation="i")
    assert info.value.category == category
    assert await checkpointer.load("i") == before


async def test_what_a_migration_gives_must_fit_the_class(checkpointer: Any) -> None:
    """The migration did its work: the record is invalid, it is not a failure of the migration."""
    old, new = old_and_new(checkpointer)
    with pytest.raises(limpet.errors.NodeException):
        await old.compile().invoke(invocation_id="i")
    before = await checkpointer.load("i")
    new.with_state_migration("v1", "v2", lambda fields: fields)
    with pytest.raises(limpet.errors.CheckpointRecordInvalid, match=r"does not fit V2 \(name\)"):
        await new.compile().invoke(resume_invocation="i")
    assert await checkpointer.load("i") == before


class Inner1(State):
    schema_version: ClassVar[str] = "v1"
    name: str = ""
    out: list[str] = []


class Inner2(State):
    schema_version: ClassVar[str] = "v2"
    first: str = ""
    out: list[str] = []


class Own(State):
    schema_version: ClassVar[str] = "a"
    label: str = ""


class Own2(State):
    schema_version: ClassVar[str] = "b"
    text: str = ""


class Top1(State):
    schema_version: ClassVar[str] = "v1"
    name: str = "top"
    names: list[str] = ["x", "y"]
    outs: list[list[str]] = []


class Top2(State):
    schema_version: ClassVar[str] = "v2"
    first: str = ""
    names: list[str] = []
    outs: list[list[str]] = []


@pytest.mark.parametrize("kind", ["subgraph", "fan_out"])
async def test_states_of_inner_graphs_are_migrated_too(checkpointer: Any, kind: str) -> None:
    """With the graph around them, or by their own migrations, at every depth."""

    def graph(top: Any, inner: Any, deep: Any, stop: Any, field: str) -> Any:
        name = next(iter(deep.model_fields))
        sub = line(deep, keep=gives(**{name: "kept"}), stop=stop)
        if deep is Own2:
            sub.with_state_migration("a", "b", lambda fields: {"text": fields["label"]})

        async def end(s: Any) -> dict[str, Any]:
            return {"out": [getattr(s, field)]}

        middle = GraphBuilder(inner).add_node("begin", gives(**{field: "inner"}))
        middle.add_subgraph_node("deep", sub.compile(), outputs={}).add_node("end", end)
        middle.add_edge("begin", "deep").add_edge("deep", "end").add_edge("end", END)
        compiled = middle.set_entry("begin").compile()
        builder: Any = GraphBuilder(top, name="g")
        if kind == "subgraph":
            builder.add_subgraph_node("in", compiled, outputs={"names": "out"})
        else:
            builder.add_fan_out_node(
                "in", subgraph=compiled, count=2, collect_field="out", target_field="outs"
            )
        return builder.add_edge("in", END).set_entry("in").with_checkpointer(checkpointer)

    calls: list[dict[str, Any]] = []

    def rename(fields: dict[str, Any]) -> dict[str, Any]:
        calls.append(dict(fields))
        return {("first" if n == "name" else n): value for n, value in fields.items()}

    with pytest.raises(limpet.errors.NodeException):
        await (
            graph(Top1, Inner1, Own, Breaks("s", times=9), "name")
            .compile()
            .invoke(invocation_id="i")
        )
    seen: list[str] = []

    async def look(s: Own2) -> dict[str, Any]:
        seen.append(s.text)
        return {}

    new = graph(Top2, Inner2, Own2, look, "first").with_state_migration("v1", "v2", rename)
    final = await new.compile().invoke(resume_invocation="i")
    assert final.first == "top"
    assert (final.names if kind == "subgraph" else final.outs[0]) == ["inner"]
    assert set(seen) == {"kept"}  # by the migrations of the innermost graph
    stopped = {"subgraph": 1, "fan_out": 2}[kind]
    assert len(calls) == 1 + stopped


async def test_every_entry_of_a_record_without_a_cursor_is_migrated() -> None:
    """The state of the graph inside, and those of the graphs around it."""
    checkpointer, calls = PlainCheckpointer(), 0
    await checkpointer.save(
        CheckpointRecord(
            invocation_id="i",
            correlation_id="c",
            state={"name": "inner"},
            parent_states=({"name": "outer"},),
            schema_version="v1",
            completed_positions=(Position(node="x", step=1, parents=("in",)),),
        )
    )

    def rename(fields: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {"first": fields["name"]}

    inner = line(Inner2, x=gives()).compile()
    builder = GraphBuilder(Top2).add_subgraph_node("in", inner, outputs={"names": "out"})
    builder.add_edge("in", END).set_entry("in").with_checkpointer(checkpointer)
    graph = builder.with_state_migration("v1", "v2", rename).compile()
    final = await graph.invoke(resume_invocation="i")
    assert (final.first, final.names, calls) == ("outer", [], 2)


async def test_records_have_the_version_of_the_class_that_the_graph_declares() -> None:
    """An instance of a subclass is taken, and its own version is not."""

    class Later(V1):
        schema_version: ClassVar[str] = "v9"

    class More(V1):
        extra: int = 0

    checkpointer = CheckedCheckpointer()
    graph = line(V1, a=gives(name="Ada")).with_checkpointer(checkpointer).compile()
    final = await graph.invoke(Later(name="Eve"))
    assert (type(final), final.name) == (V1, "Ada")
    await graph.invoke(More(name="Eve"))
    assert {record.schema_version for record in checkpointer.saves} == {"v1"}
    with pytest.raises(limpet.errors.StateValidationError, match="extra"):
        await graph.invoke(More(extra=3))


def test_ambiguous_checkpoint_migrations_are_found_when_compiling() -> None:
    """A duplicate when it is registered, two shortest paths when the graph is compiled."""
    _, new = old_and_new(PlainCheckpointer())
    new.with_state_migration("v1", "a", renamed).with_state_migration("a", "v2", renamed)
    new.with_state_migration("v1", "b", renamed).with_state_migration("b", "v2", renamed)
    with pytest.raises(limpet.errors.MigrationAmbiguous):
        new.compile()
    with pytest.raises(limpet.errors.MigrationAmbiguous):
        new.with_state_migration("v1", "a", renamed)


# --- together with a session ----------------------------------------------------------------------


async def test_a_resumed_run_loads_the_session_but_starts_from_the_checkpoint() -> None:
    """The session is saved at the end with the state of the run."""
    store, checkpointer = InMemorySessionStore(), CheckedCheckpointer()
    made = nodes("a", "b", broken="b")
    graph = (
        line(Log, **made)
        .with_checkpointer(checkpointer)
        .with_session_store(store, session_state=Log)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Log(log=["mine"]), invocation_id="i", session_id="s")
    assert await store.load("s") is None
    await store.save("s", SessionRecord(session_id="s", state={"n": 100, "log": ["other"]}))
    final = await graph.invoke(resume_invocation="i", session_id="s")
    assert final.log == ["mine", "a", "b"]
    saved = await store.load("s")
    assert saved is not None
    assert saved.state == {"n": 2, "log": ["mine", "a", "b"]}


# --- what a record cannot hold --------------------------------------------------------------------


class Ratio(State):
    ratio: float = 0.0


@pytest.mark.parametrize("where", ["first", "second"])
async def test_a_value_that_json_would_change_is_refused_and_not_stored(
    checkpointer: Any, where: str
) -> None:
    """NaN would come back as nothing: the save fails, and the checkpoint before it stands."""
    bad = gives(ratio=float("nan"))
    made = {"first": bad if where == "first" else gives(ratio=0.5), "second": bad}
    graph = line(Ratio, **made).with_checkpointer(checkpointer).compile()
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="is nan") as info:
        await graph.invoke(correlation_id="c")
    assert isinstance(info.value.__cause__, limpet.errors.InvalidValue)
    saved = [await checkpointer.load(one.invocation_id) for one in await checkpointer.list()]
    assert [one.state for one in saved] == ([] if where == "first" else [{"ratio": 0.5}])
