"""Moving a live session between stores: what travels, what is refused, and what is left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, errors
from limpet.model import Head, Key
from limpet.session.limpet import journal_of
from limpet.session.move import mover, nodes
from limpet.session.move.arrivals import Arrival, Arrivals
from limpet.session.runs.delegation import head_of
from limpet.store.memory import MemoryStore
from limpet.store.remote import link
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support import postgres
from tests.support.messages import relayed
from tests.support.served import served

KEY = Key("support", "ada", "c1")


async def _new(lp: Limpet, key: Key = KEY) -> limpet.Session[Any]:
    """A session with everything that travels."""
    s = await lp.create(
        *(key.app, key.user, key.id),
        state={"n": 0, "user:lang": "en"},
        labels={"plan": "gold"},
        actor="user:ada",
        budget=limpet.Budget(cost=5.0),
    )
    await s.append("user.message", {"text": "hi"}, actor="user:ada", inc={"n": 1})
    await s.memory.session.put("likes", ["tea"])
    await s.memory.episodic.put("met", "in May")
    await s.memory.session_state.write("notes")
    await s.lifecycle.set_timer("call", timedelta(days=1))
    await s.checkpoint(full=True)
    return s


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Limpet, Limpet]]:
    """Two nodes that know each other, on stores of several kinds."""
    one, two = "memory://", "memory://"
    if request.param in ("sqlite", "files"):
        one = f"sqlite:///{tmp_path}/a.db"
        two = f"sqlite:///{tmp_path}/b.db"
    if request.param == "files":
        two = f"files:///{tmp_path}/b"
    if request.param == "postgres":
        one = f"sqlite:///{tmp_path}/a.db"
        two = request.getfixturevalue("any_postgres").url
        await postgres.empty(two)
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(limpet.open(two, node="eu-2"))
        a = await stack.enter_async_context(limpet.open(one, node="eu-1", nodes={"eu-2": b}))
        yield a, b


async def test_everything_of_a_session_moves_and_comes_back(pair: tuple[Limpet, Limpet]) -> None:
    """Log, state, labels, memory, buffers, blobs, checkpoints, timers and budget; app: and user:
    names stay and are named; the way back sends only what came since."""
    a, b = pair
    s = await _new(a)
    ref = await s.blobs.put(b"picture", "image/png")
    before = [event.link for event in await s.read(limit=100)]
    moved = await a.move(KEY, b)
    assert moved.success, moved
    assert (moved.reason, moved.epoch, moved.left_out) == (None, 1, ("user:lang",))
    assert moved.compressed_bytes > 0
    assert {"suspend", "serialize", "transfer", "verify", "pause", "total"} <= set(moved.seconds)
    for refused in (
        lambda: s.append("user.message", {"text": "late"}, actor="user:ada"),
        lambda: s.refresh(),
        lambda: s.checkpoint(),
        lambda: s.memory.session.put("late", 1),
        lambda: s.memory.episodic.put("late", 1),
        lambda: a.get(KEY),
        lambda: a.delete(KEY),
        lambda: a.create(KEY.app, KEY.user, KEY.id),
        lambda: a.work.lock(KEY, worker="w"),
        lambda: a.export(KEY, "nowhere.limpet"),
    ):
        with pytest.raises(errors.SessionMoved) as error:
            await refused()
        assert (error.value.to, error.value.epoch) == ("eu-2", 1)
    assert [head.key for head in (await a.list()).items] == []
    there = await b.get(KEY, actor="user:ada")
    assert there.values == {"n": 1}
    assert (there.labels, there.runs.budget.limit.cost) == ({"plan": "gold"}, 5.0)
    assert await there.memory.session.get("likes") == ["tea"]
    assert await there.memory.episodic.get("met") == "in May"
    assert (await there.memory.session_state.read()).value == "notes"
    assert "call" in there.head.timers
    assert await there.blobs.get(ref) == b"picture"
    events = await there.read(limit=100)
    assert [event.link for event in events][: len(before)] == before
    assert [event.type for event in events][-2:] == ["session.departed", "session.arrived"]
    assert [c.trigger for c in (await there.history.checkpoints()).items] == ["migration", "manual"]
    assert await a.home(KEY) == await b.home(KEY) == limpet.Home("eu-2", 1)
    for lp in (a, b):
        assert (await lp.maintenance.verify()).findings == ()
    await there.append("user.message", {"text": "more"}, inc={"n": 1})
    back = await b.move(KEY, a)
    assert back.success, back
    assert back.events < moved.events
    assert (await a.get(KEY)).values == {"n": 2, "user:lang": "en"}
    assert await a.home(KEY) == await b.home(KEY) == limpet.Home("eu-1", 2)
    for lp in (a, b):
        assert (await lp.maintenance.verify()).findings == ()


async def test_what_is_prestaged_is_neither_listed_nor_claimed(pair: tuple[Limpet, Limpet]) -> None:
    """It stays active at the source, and the move then sends only what came since."""
    a, b = pair
    s = await _new(a)
    assert (await a.prestage(KEY, b)).events > 0
    assert (await b.list()).items == ()
    assert await b.find(KEY) is None
    assert await b.work.claim("w") == ()
    await s.append("user.message", {"text": "on"}, actor="user:ada")
    moved = await a.move(KEY, b)
    assert moved.success
    assert moved.events <= 4  # the message, the departure, and the checkpoint of the move
    assert [lease.key for lease in await b.work.claim("w")] == [KEY]
    assert await a.work.claim("w") == ()


async def test_the_pause_of_a_move_reads_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged a moment ago is still known when it takes its key: the pause of a long log is
    that of a short one, on the way back too."""
    loads: list[int] = []
    load_fold, publish = SQLiteReader.load_fold, Arrivals.publish

    def counted(reader: SQLiteReader, sid: int, head: Head) -> Any:
        loads.append(head.version)
        return load_fold(reader, sid, head)

    async def publishing(arrivals: Arrivals, ready: Any) -> Any:
        monkeypatch.setattr(SQLiteReader, "load_fold", counted)
        decision = await publish(arrivals, ready)
        monkeypatch.setattr(SQLiteReader, "load_fold", load_fold)
        return decision

    monkeypatch.setattr(Arrivals, "publish", publishing)
    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db", node="a") as a,
        limpet.open(f"sqlite:///{tmp_path}/b.db", node="b") as b,
    ):
        s = await _new(a)
        await s.append_many([limpet.Draft(type="note.made", data={"n": n}) for n in range(500)])
        for source, target in ((a, b), (b, a), (a, b)):
            await source.prestage(KEY, target)
            assert (await source.move(KEY, target)).success
        assert [version for version in loads if version > 100] == []
        assert (await b.get(KEY)).values["n"] == 1
        assert (await b.maintenance.verify()).findings == ()


async def test_a_client_follows_where_a_session_went(tmp_path: Path) -> None:
    """Up to four hops with rising epochs; without follow_moves it is told where."""
    async with AsyncExitStack() as stack:
        places: dict[str, Any] = {}
        opened: dict[str, Limpet] = {}
        for name in ("n0", "n1", "n2"):
            lp = limpet.open(f"sqlite:///{tmp_path}/{name}.db", node=name, nodes=places)
            opened[name] = places[name] = await stack.enter_async_context(lp)
        await _new(opened["n0"])
        assert (await opened["n0"].move(KEY, opened["n1"])).success
        assert (await opened["n1"].move(KEY, opened["n2"])).success
        urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in opened}
        following = limpet.open(urls["n0"], node="n0", nodes=urls, follow_moves=True)
        async with following as client:
            s = await client.get(KEY, actor="user:ada")
            await s.append("user.message", {"text": "found"})
        assert (await opened["n2"].get(KEY)).events[-1].data["text"] == "found"
        with pytest.raises(errors.SessionMoved):
            await opened["n0"].get(KEY)


async def test_a_key_that_exists_at_the_target_is_not_overwritten(
    pair: tuple[Limpet, Limpet],
) -> None:
    """Neither a living session nor one that was deleted or erased there; the source goes on."""
    a, b = pair
    s = await _new(a)
    other = await b.create(*(KEY.app, KEY.user, KEY.id), state={"mine": 1})
    moved = await a.move(KEY, b)
    assert (moved.success, moved.reason) == (False, "exists")
    assert (await b.get(KEY)).head.uid == other.head.uid
    await b.delete(KEY)
    assert (await a.move(KEY, b)).reason == "deleted"
    await b.erase(KEY)
    assert (await a.move(KEY, b)).reason == "erased"
    await s.append("user.message", {"text": "still here"}, actor="user:ada")


async def test_the_target_decides_what_it_accepts(pair: tuple[Limpet, Limpet]) -> None:
    """Sessions, bytes, the schema version and required tools are asked before anything departs."""
    a, b = pair
    s = await _new(a)
    await b.policies.arrivals(KEY.app, sessions=0)
    assert (await a.move(KEY, b)).reason == "capacity"
    await b.policies.arrivals(KEY.app, bytes=10)
    assert (await a.move(KEY, b)).reason == "capacity"
    await b.policies.arrivals(KEY.app, sessions=1, bytes=10**6)
    tools = limpet.ToolRegistry([limpet.Tool("refund", "1.0.0", {})])
    await s.tools.bind(tools)
    moved = await a.move(KEY, b, tools=limpet.ToolRegistry())
    assert (moved.reason, "refund" in moved.detail) == ("tools", True)
    assert not [event for event in await s.read(limit=100) if event.type == "session.departed"]
    assert (await a.move(KEY, b, tools=tools)).success


async def test_a_schema_that_the_target_does_not_know_is_refused() -> None:
    """The same MAJOR, and the target's MINOR is not older."""

    class Cart(limpet.State):
        schema_version = "2.1.0"
        items: int = 0

    async with limpet.open("memory://") as a, limpet.open("memory://") as b:
        await a.create(*(KEY.app, KEY.user, KEY.id), state=Cart(items=1))
        for known, accepted in (("1.9.0", False), ("2.0.0", False), ("2.1.0", True)):
            await b.policies.arrivals(KEY.app, schema=known)
            moved = await a.move(KEY, b)
            assert (moved.success, moved.reason) == (accepted, None if accepted else "schema")


class _LyingStore(MemoryStore):
    """A target that accepts everything, and then has no space."""

    full = True

    async def commit(self, commits: Any) -> Any:
        types = [draft.type for commit in commits for draft in commit.drafts]
        if self.full and "session.departed" in types:
            raise errors.StoreFull("memory://")
        return await super().commit(commits)


async def test_a_target_that_lies_about_its_capacity_gets_nothing() -> None:
    """The session departs, the target fails, the epoch is refused, and the session returns; the
    next move has the next epoch."""
    store = _LyingStore()
    async with limpet.open("memory://") as a, Limpet("memory://b", store=store) as b:
        s = await _new(a)
        moved = await a.move(KEY, b)
        assert (moved.success, moved.reason, moved.epoch) == (False, "transfer", 1)
        assert (await s.read(limit=1, reverse=True))[0].type == "session.returned"
        await s.append("user.message", {"text": "on"}, actor="user:ada")
        decisions = b.documents("moves", owner=(KEY.app, KEY.user))
        (decided,) = (await decisions.list()).items
        assert decided.name == f"{s.head.uid}/1"
        assert decided.value["decision"] == "refused"
        with pytest.raises(errors.InvalidInput):
            await decisions.put(decided.name, {"decision": "arrived"}, actor="user:eve")
        assert await b.find(KEY) is None
        store.full = False
        moved = await a.move(KEY, b)
        assert (moved.success, moved.epoch) == (True, 2)


async def test_an_epoch_that_was_refused_or_has_arrived_cannot_be_replayed() -> None:
    """A decision is made once: who replays an arrival is told what it was, and nothing changes."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        s = await _new(a)
        uid = (await s.refresh()).head.uid
        arrivals = Arrivals(b._services, "b")
        future = Arrival(KEY, uid, 1, "a")
        assert await arrivals.refuse((future,), "an operator said so") == "refused"
        moved = await a.move(KEY, b)
        assert (moved.success, moved.reason) == (False, "refused")
        assert (await a.move(KEY, b)).epoch == 2
        here = await b.get(KEY, actor="user:ada")
        await here.append("user.message", {"text": "on"})
        for epoch, decided in ((1, "refused"), (2, "arrived")):
            replayed = Arrival(KEY, uid, epoch, "a", version=here.version)
            assert await arrivals.publish((replayed,)) == decided
            assert await arrivals.refuse((replayed,), "again") == decided
        assert (await here.refresh()).events[-1].data == {"text": "on"}


async def test_a_stage_that_is_not_whole_never_takes_the_key() -> None:
    """A part of the log would be active at the target; the exchange compares where it ends."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        s = await _new(a)
        await a.prestage(KEY, b)
        arrivals = Arrivals(b._services, "b")
        head = (await s.refresh()).head
        claimed = Arrival(KEY, head.uid, 1, "a", head.version + 1, head.link)
        with pytest.raises(errors.SessionConflict):
            await arrivals.publish((claimed,))
        assert await b.find(KEY) is None


class _ForgingStore(MemoryStore):
    """A source that hands out other bodies than it recorded."""

    forges = False

    async def records(self, key: Key, *, after: int, limit: int) -> Any:
        found = await super().records(key, after=after, limit=limit)
        if not self.forges or key != KEY:
            return found
        return tuple([limpet_replace(each, raw=b'{"data":{"text":"forged"}}') for each in found])


def limpet_replace(record: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    return replace(record, **changes)


async def test_a_forged_log_is_refused_before_anything_departs() -> None:
    """The target computes every link again."""
    store = _ForgingStore()
    async with Limpet("memory://a", store=store) as a, limpet.open("memory://") as b:
        s = await _new(a)
        store.forges = True
        with pytest.raises(errors.LimpetError):
            await a.move(KEY, b)
        store.forges = False
        assert await b.find(KEY) is None
        await s.append("user.message", {"text": "mine"}, actor="user:ada")


async def test_a_turn_under_way_is_waited_for_and_then_refuses_or_is_ended(
    pair: tuple[Limpet, Limpet],
) -> None:
    """Until the deadline; with force its lease ends with the departure."""
    a, b = pair
    await _new(a)
    (lease,) = await a.work.claim("w")
    moved = await a.move(KEY, b, deadline=0.01)
    assert (moved.success, moved.reason) == (False, "busy")
    moved = await a.move(KEY, b, force=True)
    assert moved.success, moved
    with pytest.raises(errors.SessionError):
        await a.work.renew(lease)
    with pytest.raises((errors.SessionMoved, errors.SessionFenced)):
        await a.session(KEY, lease=lease).append("agent.message", {"text": "x"}, actor="agent:w")


async def test_a_move_to_a_server_that_is_down_ends_with_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It begins with the call, however long a call waits for the server; nothing has changed."""
    async with limpet.open("memory://", node="a") as a, AsyncExitStack() as server:
        await _new(a)
        url = await server.enter_async_context(served(MemoryStore()))
        async with limpet.open(url, node="b") as b:
            await server.aclose()
            with monkeypatch.context() as patched:
                patched.setattr(link, "PATIENCE_SECONDS", 3_600.0)
                moved = await asyncio.wait_for(a.move(KEY, b, deadline=0.2), 60)
            assert (moved.success, moved.reason) == (False, "unreachable")
        await a.session(KEY).append("user.message", {"text": "on"}, actor="user:ada")


@pytest.mark.parametrize("silent", ["begin", "decided", "publish", "clear"])
async def test_a_target_that_falls_silent_holds_a_move_no_longer_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """At whichever step: what has departed is in doubt until the next move, which finishes it."""

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        with monkeypatch.context() as patched:
            patched.setattr(Arrivals, silent, never)
            if silent != "clear":
                patched.setattr(Arrivals, "refuse", never)
            moved = await asyncio.wait_for(a.move(KEY, b, deadline=0.2), 60)
        assert moved.success or moved.reason in ("unreachable", "deadline", "unknown")
        assert (await a.move(KEY, b)).success
        assert (await b.get(KEY)).state["n"] == 1


async def test_families_are_refused_alone_and_drained_together(tmp_path: Path) -> None:
    """A parent does not leave an open child behind, nor a child its parent."""

    async def delegating(turn: limpet.Turn) -> None:
        child = await turn.delegate("helper", "look it up")
        await child.result()

    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db") as a,
        limpet.open(f"sqlite:///{tmp_path}/b.db") as b,
    ):
        await _new(a)
        alone = await _new(a, Key("support", "bob", "c2"))
        await a.wake(KEY, delegating)
        (child,) = [head.key async for head in a.each(app="helper")]
        for key in (KEY, child):
            assert (await a.move(key, b)).reason == "family"
        done = await a.drain(b)
        assert (done.sessions, done.refused) == (3, ())
        assert {head.key async for head in b.each()} == {KEY, child, alone.key}
        assert [head.key async for head in a.each()] == []
        assert (await a.drain(b)).sessions == 0


async def test_a_live_share_ends_when_either_end_moves() -> None:
    """What is left of it is in both logs."""
    async with limpet.open("memory://") as a, limpet.open("memory://") as b:
        source = await _new(a)
        for number, moves in enumerate((KEY, Key("support", "ada", "t1"))):
            target = await a.create("support", "ada", f"t{number}")
            await source.share(target, "n", sync="live")
            assert (await a.move(moves, b)).success
            if moves == KEY:
                assert (await target.refresh()).shared == {}
                assert (await b.move(KEY, a)).success
                source = await a.get(KEY, actor="user:ada")
            else:
                assert (await b.get(moves)).shared == {}


async def test_a_moved_fork_brings_its_base_and_forks_of_a_moved_session_stay(
    pair: tuple[Limpet, Limpet],
) -> None:
    """Their histories read as before."""
    a, b = pair
    s = await _new(a)
    fork = await s.fork(id="f1")
    assert (await a.move(KEY, b)).success
    assert (await fork.refresh()).values["n"] == 1
    assert [event.seq for event in await fork.read(limit=3)] == [1, 2, 3]
    assert (await a.move(fork.key, b)).success
    assert (await b.get(fork.key)).values["n"] == 1
    assert (await b.maintenance.verify()).findings == ()


async def test_what_a_session_left_here_is_not_taken_for_its_state() -> None:
    """Nothing is merged from its rows, and the graph says where it is."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        s = await _new(a)
        fork = await s.fork(id="fork", actor="user:ada")
        await fork.append("note.made", actor="user:ada", set={"n": 7})
        assert (await a.move(fork.key, b)).success
        with pytest.raises(errors.SessionMoved):
            await s.merge(fork)
        assert (await s.refresh()).values["n"] == 1
        graph = await a.graph(KEY)
        assert {node.key: node.moved_to for node in graph.nodes} == {KEY: None, fork.key: "b"}
        assert str(graph).splitlines()[1] == f"  fork {fork.key} (at b)"


async def test_an_ended_session_moves_and_a_waiting_request_travels(
    pair: tuple[Limpet, Limpet],
) -> None:
    """A completed session stays completed; an approval is answered at the target."""

    async def asking(turn: limpet.Turn) -> None:
        if await turn.approve("refund", {"eur": 5}):
            await turn.say("done")

    a, b = pair
    s = await _new(a)
    await a.wake(KEY, asking)
    ended = await _new(a, Key("support", "ada", "c9"))
    await ended.terminate()
    for key in (KEY, ended.key):
        assert (await a.move(key, b)).success
    assert [(len((await lp.inbox()).items), (await lp.status()).sessions) for lp in pair] == [
        *((0, 0), (1, 2))
    ]
    assert (await b.get(ended.key)).phase == "terminated"
    there = await b.get(KEY, actor="user:ada")
    (request,) = there.blocked_on
    await there.confirm(request.id, allow=True)
    assert (await b.wake(KEY, asking)).error is None
    assert (await there.refresh()).events
    assert s.key == KEY


class _Counted(limpet.State):
    n: int = 0


async def test_what_is_done_to_a_whole_store_leaves_out_what_has_moved(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Migrations and files for people go on with the rest, and dead letters are those of here."""

    async def failing(turn: limpet.Turn) -> None:
        raise ValueError

    a, b = pair
    for id in ("here", "away"):
        s = await a.create("support", "ada", id, state=_Counted(n=1), actor="user:ada")
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
        while (await a.wake(s.key, failing)).reason != "retries_exhausted":
            pass
    assert (await a.move(("support", "ada", "away"), b)).success
    for lp, key in ((a, "here"), (b, "away")):
        assert [head.key.id for head in (await lp.work.dead_letters(app="support")).items] == [key]
    registry = limpet.MigrationRegistry()
    registry.register("1.0.0", "2.0.0", dict)
    for apply, fate in ((False, "migratable"), (True, "migrated")):
        plan = await a.maintenance.migrate(registry, app="support", apply=apply)
        assert [(each.fate, each.sessions) for each in plan.outcomes] == [(fate, 1)]
    assert (await a.maintenance.mirror(tmp_path / "mirror")).sessions == 1
    assert (await b.get("support", "ada", "away")).head.schema_version == "1.0.0"


async def test_a_sweep_finishes_what_a_mover_left_and_removes_what_stays_behind() -> None:
    """The source's sweep knows the node. A day later the rows go, and a route stays."""
    clock = FakeClock()
    store, other = MemoryStore(clock.clock()), MemoryStore(clock.clock())
    async with Limpet("memory://b", store=other, node="b") as b:
        a = await Limpet("memory://a", store=store, node="a", nodes={"b": b})
        await _new(a)
        arrivals = Arrivals(b._services, "b")
        begun = mover.Mover(a._services, "a", arrivals)
        head = await head_of(journal_of(a), KEY)
        assert head is not None
        member = mover._Member(head, 1)
        await arrivals.begin(member.arrival("a"))
        await begun._depart([member], [None])  # and the process died
        checks = (await a.maintenance.doctor()).checks
        assert [c.severity for c in checks if c.name == "moves"] == ["warning"]
        assert await a.home(KEY) == limpet.Home("b", 1)
        assert (await a.work.sweep()).moves == 1
        assert (await b.get(KEY)).values["n"] == 1
        assert not [c for c in (await a.maintenance.doctor()).checks if c.name == "moves"]
        clock.advance(timedelta(days=1, seconds=1))
        assert (await a.work.sweep()).removed == 1
        with pytest.raises(errors.SessionMoved):
            await a.get(KEY)
        assert await a.home(KEY) == limpet.Home("b", 1)
        assert (await b.move(KEY, a)).success
        assert (await a.get(KEY)).values["n"] == 1
        assert (await a.maintenance.verify()).findings == ()
        await a.close()


async def test_where_a_session_went_is_said_after_its_rows_are_gone(tmp_path: Path) -> None:
    """Whoever writes, creates, moves, exports or imports it where it was is told where it is, and
    never to use its key again."""
    clock, older = FakeClock(), tmp_path / "older.limpet"
    async with (
        limpet.open("memory://", node="b") as b,
        Limpet("memory://a", store=MemoryStore(clock.clock()), node="a") as a,
    ):
        s = await _new(a)
        await a.export(KEY, older)
        assert (await a.move(KEY, b)).success
        calls: list[Any] = [
            lambda: s.append("user.message", {"text": "x"}, actor="user:ada"),
            lambda: s.refresh(),
            lambda: s.label({"plan": "none"}),
            lambda: a.get(KEY),
            lambda: a.get_or_create(KEY.app, KEY.user, KEY.id),
            lambda: a.export(KEY, tmp_path / "now.limpet"),
            lambda: a.import_(older),
            lambda: a.prestage(KEY, b),
        ]
        for call in calls:
            with pytest.raises(errors.SessionMoved):
                await call()
        clock.advance(timedelta(days=1, seconds=1))
        assert (await a.work.sweep()).removed == 1
        for call in (*calls, lambda: a.create(KEY.app, KEY.user, KEY.id), lambda: a.move(KEY, b)):
            with pytest.raises(errors.SessionMoved) as moved:
                await call()
            assert (moved.value.to, moved.value.epoch) == ("b", 1)
        assert (await b.get(KEY)).values["n"] == 1


async def test_the_target_finishes_an_arrival_whose_mover_and_source_are_gone() -> None:
    """Its whole log is there, inert: not listed, not claimed; a sweep at the target lets it
    arrive."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        arrivals = Arrivals(b._services, "b")
        head = await head_of(journal_of(a), KEY)
        assert head is not None
        begun, member = mover.Mover(a._services, "a", arrivals), mover._Member(head, 1)
        await arrivals.begin(member.arrival("a"))
        await begun._depart([member], [None])
        await arrivals._take_keys(await begun._transfer([member]))
        assert ((await b.list()).items, await b.work.claim("w")) == ((), ())
        with pytest.raises(errors.SessionMoved):
            await b.session(KEY).append("user.message", {"text": "x"}, actor="user:ada")
        checks = (await b.maintenance.doctor()).checks
        assert [c.severity for c in checks if c.name == "arrivals"] == ["warning"]
        assert (await b.work.sweep()).moves == 1
        assert (await b.get(KEY)).values["n"] == 1


async def test_another_store_of_the_same_name_finishes_no_move() -> None:
    """Names are chosen by people: the session would be active in both stores."""
    async with (
        limpet.open("memory://", node="desk") as desk,
        limpet.open("memory://", node="laptop") as here,
        limpet.open("memory://", node="laptop") as elsewhere,
    ):
        await _new(desk)
        assert (await desk.move(KEY, elsewhere)).success
        with pytest.raises(errors.SessionMoved):
            await desk.move(KEY, here)
        assert await head_of(journal_of(here), KEY) is None
        there = await elsewhere.get(KEY, actor="user:ada")
        await there.append("user.message", {"text": "still here"}, inc={"n": 1})


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
async def test_a_target_that_was_restored_from_before_the_move_gets_the_session_again(
    tmp_path: Path, scheme: str
) -> None:
    """Its backup is older than everything that ever arrived there: what the source still has of the
    session goes on at the same target, and at no other."""
    place, backup = tmp_path / "b.db", tmp_path / "b.backup"
    url = f"{scheme}:///{place}"
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", node="a") as a:
        await _new(a)
        async with limpet.open(url, node="b") as b:
            await b.create("support", "eve", "other", actor="user:eve")
            await b.maintenance.backup(backup)
            assert (await a.move(KEY, b)).success
        await asyncio.to_thread(limpet.restore, backup, url, replace=True)
        async with limpet.open(url, node="b") as b, limpet.open("memory://", node="b") as other:
            assert await b.find(KEY) is None
            with pytest.raises(errors.SessionMoved):
                await a.move(KEY, other)
            assert (await a.move(KEY, b)).success
            assert (await b.get(KEY)).values["n"] == 1
            assert (await b.maintenance.verify()).findings == ()


async def test_a_copy_of_the_targets_file_is_not_the_target(tmp_path: Path) -> None:
    """It has the same identity: its name, and what was staged, tell that it is another place."""
    async with limpet.open(f"sqlite:///{tmp_path}/b.db") as b:
        await b.create("support", "eve", "other", actor="user:eve")
    shutil.copy(tmp_path / "b.db", tmp_path / "copy.db")
    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db") as a,
        limpet.open(f"sqlite:///{tmp_path}/b.db") as b,
        limpet.open(f"sqlite:///{tmp_path}/copy.db") as copy,
    ):
        assert await journal_of(b).store.identity() == await journal_of(copy).store.identity()
        s = await _new(a)
        assert (await a.move(KEY, b)).success
        with pytest.raises(errors.SessionMoved):
            await a.move(KEY, copy)
        assert await copy.find(KEY) is None
        assert (await b.get(KEY)).head.uid == s.head.uid


async def test_sessions_move_between_two_copies_of_one_file(tmp_path: Path) -> None:
    """Nodes that began as copies of one template: each session has one owner, and what it leaves
    behind is removed a day later."""
    clock = FakeClock()
    async with limpet.open(f"sqlite:///{tmp_path}/a.db") as a:
        await a.documents("rules").put("tone", "kind", actor="user:ops")
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    one = await SQLiteStore.open(tmp_path / "a.db", clock=clock.clock())
    async with (
        Limpet("a", store=one, node="a") as a,
        limpet.open(f"sqlite:///{tmp_path}/b.db", node="b") as b,
    ):
        await _new(a)
        assert (await a.move(KEY, b)).success
        with pytest.raises(errors.SessionMoved):
            await a.get(KEY)
        clock.advance(timedelta(days=1, seconds=1))
        assert (await a.work.sweep()).removed == 1
        assert (await b.move(KEY, a)).success
        assert (await a.get(KEY)).values["n"] == 1
        with pytest.raises(errors.SessionMoved):
            await b.get(KEY)


async def test_a_target_lets_arrive_what_was_sent_to_it_under_another_name() -> None:
    """A mover may know a store by another name than its own processes: its sweep keeps what
    arrives, and finishes it under that name."""
    clock = FakeClock()
    async with (
        limpet.open("memory://", node="a") as a,
        Limpet("memory://b", store=MemoryStore(clock.clock()), node="b") as b,
    ):
        await _new(a)
        arrivals = Arrivals(b._services, "desk:8420")
        head = await head_of(journal_of(a), KEY)
        assert head is not None
        begun, member = mover.Mover(a._services, "a", arrivals), mover._Member(head, 1)
        await arrivals.begin(member.arrival("a"))
        await begun._depart([member], [None])
        await arrivals._take_keys(await begun._transfer([member]))
        clock.advance(timedelta(days=2))
        assert not await mover.remove_departed(b._services, KEY), "it is not what was left here"
        swept = await b.work.sweep()
        assert (swept.moves, swept.removed) == (1, 0)
        s = await b.get(KEY)
        assert s.values["n"] == 1
        assert (await s.read())[-1].data["node"] == "desk:8420"
        assert (await a.move(KEY, b)).success, "the source learns it, by whichever name"


async def test_a_target_out_of_reach_leaves_the_session_undecided() -> None:
    """Departed, with the reason unknown; the next move finishes."""

    class Unreachable(MemoryStore):
        down = False

        async def commit(self, commits: Any) -> Any:
            departs = [d.type for c in commits for d in c.drafts if d.type == "session.departed"]
            self.down = self.down or bool(departs)
            return await self._answer(super().commit(commits))

        async def heads(self, *args: Any, **kwargs: Any) -> Any:
            return await self._answer(super().heads(*args, **kwargs))

        async def read(self, *args: Any, **kwargs: Any) -> Any:
            return await self._answer(super().read(*args, **kwargs))

        async def _answer(self, made: Any) -> Any:
            if self.down:
                made.close()
                raise errors.StoreFailed("memory://b", "unreachable")
            return await made

    store = Unreachable()
    async with limpet.open("memory://", node="a") as a, Limpet("b", store=store, node="b") as b:
        s = await _new(a)
        moved = await a.move(KEY, b)
        assert (moved.success, moved.reason) == (False, "unknown")
        with pytest.raises(errors.SessionMoved):
            await s.append("user.message", {"text": "x"}, actor="user:ada")
        assert (await a.move(KEY, b)).reason == "unknown"
        store.down = False
        store.commit = lambda commits: MemoryStore.commit(store, commits)  # type: ignore[method-assign]
        assert (await a.move(KEY, b)).success


async def test_who_may_move_and_the_audit_knows() -> None:
    """The owner its own and the admin of the app; a viewer and another user may not."""
    async with limpet.open("memory://") as a, limpet.open("memory://") as b:
        await _new(a)
        for id, role, user in (
            ("v", "viewer", "ada"),
            ("o", "owner", "bob"),
            ("g", "agent", "ada"),
        ):
            who = limpet.Principal(f"user:{id}", role=role, app="support", user=user)  # type: ignore[arg-type]
            with pytest.raises(errors.AccessDenied):
                await a.acting_as(who).move(KEY, b)
        ada = limpet.Principal("user:ada", role="owner", app="support", user="ada")
        viewer = limpet.Principal("user:eve", role="viewer", app="support", user="ada")
        with pytest.raises(errors.AccessDenied):
            await a.acting_as(ada).move(KEY, b.acting_as(viewer))
        assert (await a.acting_as(ada).move(KEY, b.acting_as(ada))).success
        for lp in (a, b):
            root = lp.acting_as(limpet.Principal("root", role="admin"))
            done = [r for r in (await root.audit()).items if r.action == "move" and r.allowed]
            assert {record.principal for record in done} == {"user:ada"}


async def test_erasing_forgets_what_moves_have_left() -> None:
    """What is staged, the route and the departure go with the session."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        await a.prestage(KEY, b)
        await b.create(*(KEY.app, KEY.user, KEY.id))
        await b.erase(KEY)
        store = journal_of(b).store
        assert (await store.heads(_of("$$arrivals"), cursor=None, limit=9)).items == ()
        assert (await a.move(KEY, b)).reason == "erased"


def _of(app: str) -> Any:
    from limpet.store.protocol import Query

    return Query(app=app)


async def test_measurements_are_handed_out() -> None:
    """`session.migrated` has the nodes, the size and the latencies."""
    seen: list[limpet.Metric] = []
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        a.maintenance.on_metric(seen.append)
        await a.move(KEY, b)
    (metric,) = [each for each in seen if each.name == "session.migrated"]
    assert (metric.values["from"], metric.values["to"]) == ("a", "b")
    assert {"session", "bundle_size", "transfer_latency_ms", "total_latency_ms"} <= set(
        metric.values
    )


async def test_a_finished_move_is_counted_once() -> None:
    """Moved again to where it is, a session is there already: nothing is measured."""
    seen: list[limpet.Metric] = []
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        a.maintenance.on_metric(seen.append)
        assert (await a.move(KEY, b)).success
        assert (await a.move(KEY, b)).success
    (metric,) = [each for each in seen if each.name == "session.migrated"]
    assert metric.values["bundle_size"] > 0


def test_a_cluster_whose_hosts_have_ports_has_a_name() -> None:
    """Without its password; hosts that share a port, or name none, keep the name they had."""
    hosts = "postgresql://app:secret@DB1:5432,db2:5433/app?replicas=2"
    assert limpet.Limpet(hosts).node == "db1:5432,db2:5433/app"
    assert limpet.Limpet("postgresql://app:secret@db1,db2:5432/app").node == "db1,db2:5432/app"
    assert limpet.Limpet("postgresql://app:secret@db1:5432/app").node == "db1:5432/app"
    assert "secret" not in limpet.Limpet("postgresql://app:secret@[::1]:1,[::2]:2/app").node


async def test_nodes_have_names_and_never_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL, a blank or a long text is refused; a store without a name has one that follows."""
    for node in ("", "postgresql://x", "n" * 65):
        with pytest.raises(errors.InvalidInput):
            limpet.open("memory://", node=node)
    for places in ({"b": 5}, {"b": limpet.open_sync("memory://")}, {"": "memory://"}, ["b"]):
        with pytest.raises(errors.InvalidInput):
            limpet.open("memory://", nodes=places)  # type: ignore[arg-type]
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="a") as b:
        await _new(a)
        wrong = ((a, "same store"), (b, "node 'a'"), (None, "another store"), ("b", "Open one"))
        for target, why in wrong:
            with pytest.raises(errors.InvalidInput, match=why):
                await a.move(KEY, target)  # type: ignore[arg-type]
    names = {limpet.Limpet(f"{url}:///home/ada/limpet.db").node for url in ("sqlite", "files")}
    monkeypatch.setattr(nodes, "gethostname", lambda: "another-machine")
    names |= {limpet.Limpet(f"{url}:///home/ada/limpet.db").node for url in ("sqlite", "files")}
    assert len(names) == 2, "of each machine, by its path"
    assert not [name for name in names if "/" in name or "another" in name]
    secret = limpet.Limpet("postgresql://ada:secret@db/support")
    assert (secret.node, "secret" in secret.node) == ("db:/support", False)


async def test_a_session_moves_to_a_server_and_back() -> None:
    """Over HTTP the target is a store like any other."""
    async with (
        limpet.open("memory://", node="laptop") as a,
        served(MemoryStore()) as url,
        limpet.open(url, node="desk") as b,
    ):
        s = await _new(a)
        ref = await s.blobs.put(b"picture", "image/png")
        moved = await a.move(KEY, b)
        assert moved.success, moved
        there = await b.get(KEY, actor="user:ada")
        assert await there.blobs.get(ref) == b"picture"
        await there.append("user.message", {"text": "over there"}, inc={"n": 1})
        assert (await b.move(KEY, a)).success
        assert (await a.get(KEY)).values["n"] == 2


async def test_what_travels_to_a_server_is_compressed() -> None:
    """The sizes of a move are those of the messages: what is said to be saved is not sent."""
    async with (
        limpet.open("memory://", node="laptop") as a,
        served(MemoryStore()) as url,
        relayed(url) as proxy,
        limpet.open(proxy.url, node="desk") as b,
    ):
        s = await _new(a)
        text = {"text": "the same words as in every other message of this session"}
        await s.append_many([limpet.Draft(type="user.message", data=text)] * 500, actor="user:ada")
        before = sum(map(len, proxy.seen))
        for source, target in ((a, b), (b, a)):
            moved = await source.move(KEY, target)
            assert moved.success, moved
            sent, before = sum(map(len, proxy.seen)) - before, sum(map(len, proxy.seen))
            assert 0 < moved.compressed_bytes <= sent < moved.compressed_bytes * 1.5
            if target is b:
                assert sent < moved.bundle_bytes / 2


async def test_sealed_stores_seal_again_what_arrives(tmp_path: Path) -> None:
    """Each with its own keys: no body of the one can be read with the keys of the other."""
    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db", keys="memory:") as a,
        limpet.open(f"sqlite:///{tmp_path}/b.db", keys="memory:") as b,
    ):
        await _new(a)
        moved = await a.move(KEY, b)
        assert moved.success, moved
        assert (await b.get(KEY)).values["n"] == 1
        for source, target in ((b, a), (a, b)):
            for lp in (a, b):
                assert (await lp.maintenance.verify()).findings == ()
            await source.prestage(KEY, target)
            assert (await target.maintenance.verify(KEY)).findings == ()
            assert (await source.move(KEY, target)).success


async def test_who_follows_a_move_may_do_no_more_there(tmp_path: Path) -> None:
    """A principal stays the same principal at the other node."""
    async with limpet.open("memory://", node="b") as b:
        opening = limpet.open("memory://", node="a", nodes={"b": b}, follow_moves=True)
        async with opening as a:
            await _new(a)
            assert (await a.move(KEY, b)).success
            ada = limpet.Principal("user:ada", role="viewer", app="support", user="ada")
            there = await a.acting_as(ada).get(KEY)
            assert there.values["n"] == 1
            with pytest.raises(errors.AccessDenied):
                await there.append("user.message", {"text": "x"}, actor="user:ada")
            bob = limpet.Principal("user:bob", role="owner", app="support", user="bob")
            with pytest.raises(errors.AccessDenied):
                await a.acting_as(bob).get(KEY)


async def test_the_admin_of_an_app_receives_sessions_of_that_app_and_no_others() -> None:
    """As a server's store asks: every step of an arrival is decided by the guard."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        for app, accepted in (("sales", False), ("support", True)):
            admin = limpet.Principal("key:1", role="admin", app=app)
            arrivals = Arrivals(b.acting_as(admin)._services, "b")
            begun = mover.Mover(a._services, "a", arrivals)
            if accepted:
                assert (await begun.move((KEY,))).success
                continue
            with pytest.raises(errors.AccessDenied):
                await begun.move((KEY,))
        assert (await b.get(KEY)).values["n"] == 1


async def test_what_is_in_the_way_refuses_a_prestage() -> None:
    """As the move would be refused, by an error that says so."""
    async with limpet.open("memory://") as a, limpet.open("memory://") as b:
        await _new(a)
        await b.create(*(KEY.app, KEY.user, KEY.id))
        with pytest.raises(errors.SessionExists):
            await a.prestage(KEY, b)
        await b.delete(KEY)
        with pytest.raises(errors.SessionDeleted):
            await a.prestage(KEY, b)


async def test_spawned_children_keep_their_parent_and_are_drained_with_it() -> None:
    """Its head has their number, its log their keys."""
    async with limpet.open("memory://") as a, limpet.open("memory://") as b:
        parent = await _new(a)
        child = await a.spawn(parent, task="look it up")
        for key in (KEY, child.key):
            assert (await a.move(key, b)).reason == "family"
        done = await a.drain(b)
        assert (done.sessions, done.refused) == (2, ())
        assert {head.key async for head in b.each()} == {KEY, child.key}
