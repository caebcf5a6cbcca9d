"""Resuming takes a lease: of several callers one runs, also after the first of them has died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

import limpet
from limpet.graph import (
    CheckpointFilter,
    GraphBuilder,
    InMemoryCheckpointer,
    LeasingCheckpointer,
    LimpetCheckpointer,
    State,
    Suspended,
    append,
    suspend,
)
from limpet.session.work import StoreWork
from limpet.store.memory import MemoryStore
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support import graph_stores
from tests.support.graphs import CheckedCheckpointer, PlainCheckpointer, line


class Log(State):
    log: Annotated[list[str], append] = []


class Gate:
    """A node that breaks the first time, and then waits until it is opened."""

    def __init__(self) -> None:
        self.runs, self.broken = 0, True
        self.inside, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, s: Log) -> dict[str, Any]:
        self.runs += 1
        if self.broken:
            self.broken = False
            raise RuntimeError("down")
        assert not self.inside.is_set() or self.open.is_set(), "two run it at once"
        self.inside.set()
        await self.open.wait()
        return {"log": ["gate"]}


def says(word: str) -> Any:
    async def node(s: Log) -> dict[str, Any]:
        return {"log": [word]}

    return node


def graph_of(checkpointer: Any, gate: Any, **more: Any) -> Any:
    return line(Log, first=says("first"), gate=gate, **more).with_checkpointer(checkpointer)


async def failed(checkpointer: Any, gate: Gate) -> Any:
    """A graph whose run `i` failed in its second node."""
    graph = graph_of(checkpointer, gate, last=says("last")).compile()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i", correlation_id="c")
    gate.runs = 0
    return graph


async def heir(cp: Any, id: str = "i") -> str:
    """The id of the run that goes on in place of this one."""
    found = await cp.load(id)
    assert found.resumed_as is not None
    return str(found.resumed_as)


@pytest.fixture(params=graph_stores.KINDS)
def place(request: pytest.FixtureRequest) -> graph_stores.Place:
    return graph_stores.place(request)


@pytest.fixture
async def cp(place: graph_stores.Place) -> AsyncIterator[Any]:
    async with graph_stores.checkpointer(place) as opened:
        yield opened


async def test_a_run_that_is_being_resumed_cannot_be_resumed_again(cp: Any) -> None:
    """Neither by its old id nor by that of the run that goes on; the other gets an error."""
    assert isinstance(cp, LeasingCheckpointer)
    gate = Gate()
    graph = await failed(cp, gate)
    running = asyncio.ensure_future(graph.invoke(resume_invocation="i"))
    await asyncio.wait_for(gate.inside.wait(), 60)
    j = await heir(cp)
    for id in ("i", j):
        for named in (None, id):
            with pytest.raises(limpet.errors.CheckpointInUse, match="another caller") as info:
                await graph.invoke(resume_invocation=id, invocation_id=named)
            assert (info.value.code, info.value.retryable) == ("checkpoint.in_use", True)
    gate.open.set()
    assert (await running).log == ["first", "gate", "last"]
    assert gate.runs == 1
    found = await cp.load("i")
    assert (found.status, found.resumed_as, found.state) == ("resumed", j, {"log": ["first"]})
    assert [item.invocation_id for item in await cp.list(CheckpointFilter(status="running"))] == []


async def test_one_of_many_that_resume_at_once_runs(cp: Any) -> None:
    """The others get an error, whichever way they came too late, and run nothing."""
    gate = Gate()
    graph = await failed(cp, gate)
    gate.open.set()
    calls = [graph.invoke(resume_invocation="i") for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [r.log for r in results if isinstance(r, Log)] == [["first", "gate", "last"]]
    late = (limpet.errors.CheckpointInUse, limpet.errors.CheckpointSuperseded)
    assert sum(isinstance(result, late) for result in results) == 4
    assert gate.runs == 1


async def test_what_was_resumed_and_has_ended_is_not_run_again(cp: Any) -> None:
    """A caller that comes late is told where the run went on, and may begin a turn from there."""
    gate = Gate()
    graph = await failed(cp, gate)
    gate.open.set()
    await graph.invoke(resume_invocation="i")
    j = await heir(cp)
    with pytest.raises(
        limpet.errors.CheckpointSuperseded, match=f"as '{j}', which is completed"
    ) as info:
        await graph.invoke(resume_invocation="i")
    assert (info.value.invocation_id, info.value.resumed_as) == ("i", j)
    assert gate.runs == 1
    assert len((await graph.invoke(resume_invocation=j)).log) == 6


async def test_a_resumed_run_that_failed_goes_on_where_it_failed(cp: Any) -> None:
    """Also if it is resumed by the id of the first run: no node is run twice."""
    gate, last = Gate(), Gate()
    graph = graph_of(cp, gate, last=last).compile()
    gate.open.set()
    last.open.set()
    for call in ({"invocation_id": "i"}, {"resume_invocation": "i"}):
        with pytest.raises(limpet.errors.NodeException):
            await graph.invoke(**call)
    assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "gate"]
    assert (gate.runs, last.runs) == (2, 2)


async def test_a_run_that_waits_for_a_signal_is_not_continued_by_a_late_resume(cp: Any) -> None:
    """The late one would continue it without the payload."""
    gate = Gate()

    async def waits(s: Log) -> dict[str, Any]:
        await suspend("manager")
        return {}

    graph = graph_of(cp, gate, last=waits).compile()
    gate.open.set()
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(invocation_id="i")
    assert isinstance(await graph.invoke(resume_invocation="i"), Suspended)
    j = await heir(cp)
    with pytest.raises(limpet.errors.CheckpointSuperseded, match=f"as '{j}', which is suspended"):
        await graph.invoke(resume_invocation="i")
    final = await graph.invoke(resume_invocation=j, signal_payload={"log": ["signal"]})
    assert final.log == ["signal"]


async def test_a_run_that_took_its_signal_is_held_until_it_ends(cp: Any) -> None:
    """It keeps its id: resuming it without a payload is for one whose process died."""
    gate = Gate()
    gate.broken = False

    async def waits(s: Log) -> dict[str, Any]:
        await suspend("manager")
        return {}

    graph = line(Log, waits=waits, gate=gate).with_checkpointer(cp).compile()
    await graph.invoke(invocation_id="i")
    running = asyncio.ensure_future(graph.invoke(resume_invocation="i", signal_payload={}))
    await asyncio.wait_for(gate.inside.wait(), 60)
    with pytest.raises(limpet.errors.CheckpointInUse):
        await graph.invoke(resume_invocation="i")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.open.set()
    assert (await graph.invoke(resume_invocation="i")).log == ["gate"]


async def test_a_retry_after_the_signalled_run_completed_runs_nothing(cp: Any) -> None:
    """A second worker found the run in use and tried again later: it would plan and pay twice."""
    gate, plans = Gate(), 0
    gate.broken = False

    async def plan(s: Log) -> dict[str, Any]:
        nonlocal plans
        plans += 1
        await suspend("approval")
        return {}

    graph = line(Log, plan=plan, pay=gate).with_checkpointer(cp).compile()
    await graph.invoke(invocation_id="i")
    running = asyncio.ensure_future(graph.invoke(resume_invocation="i", signal_payload={}))
    await asyncio.wait_for(gate.inside.wait(), 60)
    with pytest.raises(limpet.errors.CheckpointInUse) as info:
        await graph.invoke(resume_invocation="i")
    assert info.value.retryable
    gate.open.set()
    assert (await running).log == ["gate"]
    for initial in (None, Log(), {}):
        with pytest.raises(limpet.errors.SuspensionRecordInvalid, match="has completed") as late:
            await graph.invoke(initial, resume_invocation="i")
        assert not late.value.retryable
    assert (plans, gate.runs) == (1, 1)
    turn = await graph.invoke(Log(log=["again"]), resume_invocation="i")
    assert isinstance(turn, Suspended)  # something new begins a new turn
    assert (plans, turn.state.log) == (2, ["gate", "again"])


async def test_a_late_resume_does_not_answer_the_next_signal(cp: Any) -> None:
    """The run took its signal and waits for another one: only who knows of that delivers it."""

    def asks(name: str) -> Any:
        async def node(s: Log) -> dict[str, Any]:
            await suspend(name)
            return {}

        return node

    graph = line(Log, one=asks("manager"), two=asks("board"), pay=says("paid")).with_checkpointer(
        cp
    )
    compiled = graph.compile()
    await compiled.invoke(invocation_id="i")
    with pytest.raises(
        limpet.errors.SuspensionRecordInvalid, match="waits for 'manager', not for 'b"
    ):
        await compiled.invoke(resume_invocation="i", signal_id="board")
    await compiled.invoke(resume_invocation="i", signal_id="manager")
    before = await cp.load("i")
    with pytest.raises(limpet.errors.SuspensionRecordInvalid, match="its next one, 'board'"):
        await compiled.invoke(resume_invocation="i")
    again: dict[str, Any] = {"signal_payload": {"log": ["twice"]}, "signal_id": "manager"}
    with pytest.raises(limpet.errors.SuspensionRecordInvalid, match="waits for 'board'"):
        await compiled.invoke(resume_invocation="i", **again)
    assert await cp.load("i") == before
    final = await compiled.invoke(resume_invocation="i", signal_id="board")
    assert final.log == ["paid"]


async def test_a_signal_that_met_another_is_not_delivered_to_the_next_gate() -> None:
    """It found the run suspended, and took the lease after another had moved the run on."""

    class Slow(InMemoryCheckpointer):
        first: Any = None

        async def hold(self, invocation_id: str, /) -> bool:
            if self.first is not None:
                other, self.first = self.first, None
                await other()
            return await super().hold(invocation_id)

    async def asks(s: Log) -> dict[str, Any]:
        await suspend("manager" if not s.log else "board", mark_node_completed=len(s.log) > 1)
        return {}

    cp = Slow()
    graph = line(Log, ask=asks, pay=says("paid")).with_checkpointer(cp).compile()
    await graph.invoke(invocation_id="i")

    async def faster() -> None:
        await graph.invoke(resume_invocation="i", signal_payload={"log": ["yes"]})

    cp.first = faster
    with pytest.raises(limpet.errors.SuspensionRecordInvalid, match="resumed already"):
        await graph.invoke(resume_invocation="i", signal_payload={"log": ["yes", "no"]})
    record = await cp.load("i")
    assert record is not None
    assert (record.status, record.state) == ("suspended", {"log": ["yes"]})


async def test_a_resume_that_is_refused_holds_nothing(cp: Any) -> None:
    """A record of another session or graph can be resumed by the right one at once."""
    gate = Gate()
    gate.open.set()
    graph = await failed(cp, gate)
    other = GraphBuilder(Log, name="other").add_node("first", says("x")).add_edge("first", "gate")
    other.add_node("gate", says("x")).add_edge("gate", limpet.graph.END).set_entry("first")
    with pytest.raises(limpet.errors.CheckpointRecordInvalid):
        await other.with_checkpointer(cp).compile().invoke(resume_invocation="i")
    assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]


async def test_what_was_resumed_is_not_run_again_when_its_end_was_deleted(cp: Any) -> None:
    """That nothing is left of the run that went on does not mean that it did nothing."""
    gate = Gate()
    graph = await failed(cp, gate)
    gate.open.set()
    await graph.invoke(resume_invocation="i")
    await cp.delete(await heir(cp))
    with pytest.raises(
        limpet.errors.CheckpointSuperseded, match=r"deleted\. Start a new invocation"
    ):
        await graph.invoke(resume_invocation="i")
    assert gate.runs == 1


@pytest.mark.parametrize("kind", ["process", "store"])
async def test_resumed_invocations_are_forgotten_like_completed_ones(kind: str) -> None:
    """With `keep`, once the run that went on has completed; before that they may be resumed."""
    async with limpet.open("memory://") as lp:
        cp: Any = InMemoryCheckpointer(keep=2)
        if kind == "store":
            cp = LimpetCheckpointer(lp, "jobs", keep=2)
        gate, last = Gate(), Gate()
        gate.open.set()
        last.open.set()
        graph = graph_of(cp, gate, last=last).compile()
        for call in ({"invocation_id": "i"}, {"resume_invocation": "i"}):
            with pytest.raises(limpet.errors.NodeException):
                await graph.invoke(**call)
        for id in "abc":
            await graph.invoke(invocation_id=id)
        kept = {item.invocation_id for item in await cp.list()}
        assert kept == {"b", "c", "i", await heir(cp)}
        await graph.invoke(resume_invocation="i")
        for id in "de":
            await graph.invoke(invocation_id=id)
        assert [item.invocation_id for item in await cp.list()] == ["d", "e"]


async def test_a_resume_that_is_cancelled_while_it_takes_the_lease_holds_nothing() -> None:
    """The lease was granted: unless it is given back, it is renewed until the process ends."""
    async with limpet.open("memory://") as lp:
        cp, gate, taken = LimpetCheckpointer(lp, "jobs"), Gate(), asyncio.Event()
        graph = await failed(cp, gate)
        gate.open.set()
        lease = cp.documents.lease

        async def stuck(_: Any) -> None:
            taken.set()
            await asyncio.Event().wait()

        cp.documents.lease = stuck  # type: ignore[method-assign]
        running = asyncio.ensure_future(graph.invoke(resume_invocation="i"))
        await asyncio.wait_for(taken.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        cp.documents.lease = lease  # type: ignore[method-assign]
        assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]


# --- when the one that runs has died --------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A store with a clock of ours, and a Limpet for each of two processes."""
    clock = FakeClock()
    if request.param == "memory":
        store: Any = MemoryStore(clock.clock())
        stores = [store, store]
    else:
        path = tmp_path / "graph.db"
        stores = [await SQLiteStore.open(path, sync="normal", clock=clock.clock()) for _ in "ab"]
    one = limpet.Limpet("memory://", store=stores[0])
    two = limpet.Limpet("memory://", store=stores[1])
    async with one, two:
        yield clock, LimpetCheckpointer(one, "jobs"), LimpetCheckpointer(two, "jobs")


async def test_the_lease_of_a_process_that_died_ends(world: Any) -> None:
    """Until then nobody can resume its run; then one goes on where it stopped."""
    clock, dead, alive = world
    gate, stuck = Gate(), Gate()
    stuck.broken = False
    await failed(dead, gate)
    dying = graph_of(dead, says("gate"), last=stuck).compile()
    lost = asyncio.ensure_future(dying.invoke(resume_invocation="i"))
    await asyncio.wait_for(stuck.inside.wait(), 60)  # and never comes back
    j = await heir(alive)
    graph = graph_of(alive, gate, last=says("last")).compile()
    clock.advance(timedelta(seconds=29))
    for id in ("i", j):
        with pytest.raises(limpet.errors.CheckpointInUse):
            await graph.invoke(resume_invocation=id)
    clock.advance(timedelta(seconds=2))
    final = await graph.invoke(resume_invocation="i")
    assert final.log == ["first", "gate", "last"]
    assert gate.runs == 0  # what the dead one had saved is not done again
    k = await heir(alive, j)
    assert (await heir(alive), (await alive.load(k)).resumed_as) == (j, None)
    stuck.open.set()
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="SessionFenced"):
        await lost
    assert (await alive.load(k)).state["log"] == ["first", "gate", "last"]
    assert (await alive.load(j)).state["log"] == ["first", "gate"]


async def test_a_lease_that_lapsed_is_not_taken_from_a_run_of_the_same_process(world: Any) -> None:
    """The event loop was kept busy, say. The run still goes on, and would save under both."""
    clock, cp, _ = world
    gate = Gate()
    graph = await failed(cp, gate)
    running = asyncio.ensure_future(graph.invoke(resume_invocation="i"))
    await asyncio.wait_for(gate.inside.wait(), 60)
    clock.advance(timedelta(seconds=31))
    with pytest.raises(limpet.errors.CheckpointInUse):
        await graph.invoke(resume_invocation="i")
    gate.open.set()
    with pytest.raises(limpet.errors.CheckpointSaveFailed, match="SessionFenced"):
        await running
    assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]


async def test_a_run_that_lost_its_lease_saves_nothing_more(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server as well: another goes on, and the first stops at its next step."""
    leases: list[Any] = []
    lock = StoreWork.lock

    async def noted(self: StoreWork, *key: Any, **how: Any) -> Any:
        leases.append(await lock(self, *key, **how))
        return leases[-1]

    monkeypatch.setattr(StoreWork, "lock", noted)

    gate, stuck = Gate(), Gate()
    stuck.broken = False
    async with limpet.open(postgres_store_url) as lp, limpet.open(postgres_store_url) as other:
        losing, alive = LimpetCheckpointer(lp, "jobs"), LimpetCheckpointer(other, "jobs")
        await failed(losing, gate)
        dying = graph_of(losing, says("gate"), last=stuck).compile()
        lost = asyncio.ensure_future(dying.invoke(resume_invocation="i"))
        await asyncio.wait_for(stuck.inside.wait(), 60)
        held = leases[-1]
        j = await heir(alive)
        graph = graph_of(alive, gate, last=says("last")).compile()
        with pytest.raises(limpet.errors.CheckpointInUse):
            await graph.invoke(resume_invocation="i")
        assert await other.work.release(held)  # as if it had ended
        assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]
        stuck.open.set()
        with pytest.raises(limpet.errors.CheckpointSaveFailed, match="SessionFenced"):
            await lost
        assert (gate.runs, (await alive.load(j)).state["log"]) == (0, ["first", "gate"])


async def test_a_pointer_is_never_saved_without_its_record(world: Any) -> None:
    """One commit has both: a process that dies in it leaves the old record to go on from."""
    _, dead, alive = world
    gate = Gate()
    await failed(dead, gate)
    put = dead.documents.put

    def dies(c: Any, id: str, *rest: Any) -> Any:
        if id != "i":
            raise RuntimeError("died")
        return put(c, id, *rest)

    dead.documents.put = dies
    gate.open.set()
    graph = graph_of(dead, gate, last=says("last")).compile()
    with pytest.raises(limpet.errors.CheckpointSaveFailed):
        await graph.invoke(resume_invocation="i")
    assert (await alive.load("i")).status == "running"
    assert len(await alive.list()) == 1
    graph = graph_of(alive, gate, last=says("last")).compile()
    assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]


async def test_a_first_run_that_is_still_alive_is_noticed_when_it_saves(world: Any) -> None:
    """It holds no lease; a save between the look at its record and the claim tells."""
    _, first, second = world
    gate = Gate()
    gate.broken = False
    slow = graph_of(first, gate, last=says("last")).compile()
    running = asyncio.ensure_future(slow.invoke(invocation_id="i"))
    await asyncio.wait_for(gate.inside.wait(), 60)
    pass_on = second.pass_on

    async def late(*arguments: Any) -> bool:
        gate.open.set()
        await running
        return await pass_on(*arguments)

    second.pass_on = late
    with pytest.raises(limpet.errors.CheckpointInUse):
        await graph_of(second, says("gate")).compile().invoke(resume_invocation="i")
    assert (await second.load("i")).status == "completed"


@pytest.mark.parametrize("kind", [PlainCheckpointer, InMemoryCheckpointer, CheckedCheckpointer])
async def test_a_checkpointer_without_leases_resumes_as_often_as_it_is_asked(kind: Any) -> None:
    """One of somebody else's may have none; its records stay as they are."""
    checkpointer, gate = kind(), Gate()
    graph = await failed(checkpointer, gate)
    gate.open.set()
    assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]
    if kind is PlainCheckpointer:
        assert (await graph.invoke(resume_invocation="i")).log == ["first", "gate", "last"]
        assert (await checkpointer.load("i")).status == "running"
    else:
        with pytest.raises(limpet.errors.CheckpointSuperseded):
            await graph.invoke(resume_invocation="i")


@pytest.mark.arguments
@pytest.mark.parametrize("given", [0, -1, "30", None, True])
def test_a_lease_lasts_a_number_of_seconds(given: Any) -> None:
    """Anything else is refused when the checkpointer is made."""
    with pytest.raises(limpet.InvalidInput, match="lease"):
        limpet.graph.SQLiteCheckpointer(":memory:", lease_seconds=given)
