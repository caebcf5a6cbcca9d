"""Reclaiming a session whose target is lost, and targets that were lost and come back."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import limpet
from limpet import Limpet, errors
from limpet.model import Commit, Key
from limpet.model.facts.moves import reclaimed
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from limpet.session.move import mover, reclaim
from limpet.session.move.arrivals import Arrivals
from limpet.session.runs.delegation import head_of
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Query
from limpet.testing.clock import FakeClock
from tests.support.command import answer, run

KEY = Key("support", "ada", "c1")
ADA = "user:ada"
LOST: dict[str, Any] = {"target_is_lost": "b", "epoch": 1, "reason": "its disk is gone"}


async def _new(lp: Limpet, key: Key = KEY) -> limpet.Session[Any]:
    s = await lp.create(*(key.app, key.user, key.id), state={"n": 0}, actor=ADA)
    await s.append("user.message", {"text": "hi"}, inc={"n": 1})
    await s.memory.session.put("likes", ["tea"])
    await s.lifecycle.set_timer("call", timedelta(days=1))
    return s


async def _depart(source: Limpet, target: Limpet, *, staged: bool = False) -> None:
    """The part of a move after which its mover was killed: with `staged`, all of it is there."""
    head = await head_of(journal_of(source), KEY)
    assert head is not None
    begun = mover.Mover(source._services, source.node, Arrivals(target._services, target.node))
    member = mover._Member(head, 1)
    await begun._prepare([member])
    await begun._depart([member], [None])
    if staged:
        await begun._target._take_keys(await begun._transfer([member]))


async def _moved(tmp_path: Path) -> tuple[str, str]:
    """The URLs of two stores, the second of which has received the session."""
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    async with limpet.open(one, node="a") as a, limpet.open(two, node="b") as b:
        await _new(a)
        assert (await a.move(KEY, b)).success
    return one, two


def _checks(diagnosis: Any, name: str = "reclaimed") -> list[Any]:
    return [check for check in diagnosis.checks if check.name == name]


async def test_a_session_whose_target_is_lost_goes_on_where_it_left() -> None:
    """In a new epoch, recorded with who said it and why, with all that it had; departures that
    were not settled are, and a later move works."""
    async with (
        limpet.open("memory://", node="a") as a,
        limpet.open("memory://", node="b") as b,
        limpet.open("memory://", node="c") as c,
    ):
        s = await _new(a)
        await _depart(a, b)
        (check,) = _checks(await a.maintenance.doctor(), "moves")
        assert "limpet reclaim" in check.advice
        with pytest.raises(errors.SessionMoved, match=r"lost for good.*reclaim"):
            await s.append("user.message", {"text": "late"}, actor=ADA)
        done = await a.reclaim(KEY, **LOST, actor="user:root")
        assert done == limpet.Reclaimed(KEY, "a", 2, "b")
        event = (await s.read(limit=1, reverse=True))[0]
        assert (event.type, event.actor) == ("session.reclaimed", "user:root")
        assert {k: v for k, v in event.data.items() if k != "store"} == {
            "node": "a",
            "epoch": 2,
            "lost": "b",
            "reason": "its disk is gone",
        }
        assert await a.home(KEY) == limpet.Home("a", 2)
        await s.append("user.message", {"text": "on"}, actor=ADA, inc={"n": 1})
        assert (await s.refresh()).state["n"] == 2
        assert await s.memory.session.get("likes") == ["tea"]
        assert "call" in s.head.timers
        assert [head.key for head in (await a.list()).items] == [KEY]
        assert await a.reclaim(KEY, **LOST) == done, "a repeat whose answer was lost"
        diagnosis = await a.maintenance.doctor()
        assert _checks(diagnosis, "moves") == []
        assert diagnosis.report.findings == ()
        moved = await a.move(KEY, c)
        assert (moved.success, moved.epoch) == (True, 3)
        assert (await c.get(KEY)).state["n"] == 2
        with pytest.raises(errors.ReclaimRefused, match="left for c in epoch 3"):
            await a.reclaim(KEY, **LOST)
        moved = await c.move(KEY, a)
        assert (moved.success, moved.epoch) == (True, 4)
        assert (await c.maintenance.verify()).findings == ()


@pytest.mark.parametrize("wrong", [{"lost": "c"}, {"store": "s3"}, {"epoch": 3}, {"epoch": 1}])
async def test_a_store_records_no_reclaim_of_another_departure(wrong: dict[str, Any]) -> None:
    """Nor one in an epoch that does not follow; nor of a session that is here."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        s = await _new(a)
        journal, away = journal_of(a), {"to": "b", "store": await journal_of(b).store.identity()}
        fact = reclaimed("a", away | {"epoch": 1}, "its disk is gone")
        with pytest.raises(errors.InvalidEvent):
            await journal.commit([Commit(KEY, (journal.prepare(fact, "user:root"),))])
        await _depart(a, b)
        assert fact.data is not None
        forged = structs.replace(fact, data={**fact.data, **wrong})
        with pytest.raises(errors.InvalidEvent):
            await journal.commit([Commit(KEY, (journal.prepare(forged, "user:root"),))])
        await journal.commit([Commit(KEY, (journal.prepare(fact, "user:root"),))])
        await s.append("user.message", {"text": "on"}, actor=ADA)


async def test_what_is_said_must_be_true_of_the_session(tmp_path: Path) -> None:
    """Another node, another epoch, a session that is here, one that never was, and one whose rows
    were removed: nothing is recorded, and each error has a next step."""
    clock = FakeClock()
    store = MemoryStore(clock.clock())
    async with (
        Limpet("memory://a", store=store, node="a") as a,
        limpet.open("memory://", node="b") as b,
    ):
        s = await _new(a)
        with pytest.raises(errors.ReclaimRefused, match="it is here"):
            await a.reclaim(KEY, **LOST)
        assert (await a.move(KEY, b)).success
        version = (await s.read(limit=1, reverse=True))[0].seq
        for wrong in ({"target_is_lost": "c"}, {"epoch": 2}):
            with pytest.raises(errors.ReclaimRefused, match="left for b in epoch 1"):
                await a.reclaim(KEY, **LOST | wrong)
        for malformed in (
            {"target_is_lost": ""},
            {"target_is_lost": True},
            {"epoch": 0},
            {"epoch": True},
            {"epoch": "1"},
            {"reason": ""},
            {"reason": "x" * 1_001},
        ):
            with pytest.raises(errors.InvalidInput):
                await a.reclaim(KEY, **LOST | malformed)
        with pytest.raises(errors.SessionNotFound):
            await a.reclaim("support", "ada", "none", **LOST)
        assert (await s.read(limit=1, reverse=True))[0].seq == version
        clock.advance(timedelta(days=2))
        await a.work.sweep()
        with pytest.raises(errors.ReclaimRefused, match="removed a day after") as refused:
            await a.reclaim(KEY, **LOST)
        assert (refused.value.code, refused.value.status) == ("session.reclaim_refused", 409)


@pytest.mark.parametrize("place", [str, Limpet], ids=["URL", "Limpet"])
async def test_a_target_that_can_be_asked_is_not_lost(
    tmp_path: Path, place: type[str] | type[Limpet]
) -> None:
    """Whether it has received the session or not; a new store under its name is another one, and a
    file that is gone is not made again."""
    one, two = await _moved(tmp_path)
    file = tmp_path / "b.db"
    async with limpet.open(one, node="a", nodes={"b": place(two)}) as a:
        with pytest.raises(errors.ReclaimRefused, match="can be reached, and has received it"):
            await a.reclaim(KEY, **LOST)
    async with limpet.open(two, node="b") as b:
        s = await b.get(KEY, actor=ADA)
        await s.append("user.message", {"text": "there"})
    for each in tmp_path.glob("b.db*"):
        each.unlink()
    async with limpet.open(one, node="a", nodes={"b": place(two)}) as a:
        other = await _new(a, Key("support", "ada", "c2"))
        assert (await a.reclaim(KEY, **LOST)).epoch == 2
        assert not file.exists()
        async with limpet.open(two, node="b") as b:
            await a.move(other.key, b)
        with pytest.raises(errors.ReclaimRefused, match="can be reached"):
            await a.reclaim(other.key, **LOST)
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        await _depart(a, b)
        async with limpet.open("memory://", node="b") as empty:
            a._services.nodes._places["b"] = b  # type: ignore[union-attr,index]
            with pytest.raises(errors.ReclaimRefused, match="Sweep this store"):
                await a.reclaim(KEY, **LOST)
            a._services.nodes._places["b"] = empty  # type: ignore[union-attr,index]
            assert (await a.reclaim(KEY, **LOST)).epoch == 2
        with pytest.raises(errors.ReclaimRefused, match="it is here"):
            await a.reclaim(KEY, **LOST | {"epoch": 2})


async def test_a_lost_target_that_comes_back_is_found_and_refused(tmp_path: Path) -> None:
    """Doctor names the second owner at both stores; neither store accepts the copy of the other;
    once one of them is erased, doctor has nothing to say."""
    one, two = await _moved(tmp_path)
    aside = tmp_path / "aside.db"
    shutil.move(tmp_path / "b.db", aside)
    async with limpet.open(one, node="a", nodes={"b": two}) as a:
        await a.reclaim(KEY, **LOST)
        s = await a.get(KEY, actor=ADA)
        await s.append("user.message", {"text": "here"})
        (waiting,) = _checks(await a.maintenance.doctor(), "nodes")
        assert "b" in waiting.found
    shutil.move(aside, tmp_path / "b.db")
    async with (
        limpet.open(one, node="a", nodes={"b": two}) as a,
        limpet.open(two, node="b", nodes={"a": one}) as b,
    ):
        zombie = await b.get(KEY, actor=ADA)
        await zombie.append("user.message", {"text": "there"})
        for lp in (a, b):
            (check,) = _checks(await lp.maintenance.doctor())
            assert (check.severity, "two stores own support/ada/c1" in check.found) == (
                "problem",
                True,
            )
            assert "b has it from before" in check.found
            assert "limpet erase" in check.advice
        for source, target in ((a, b), (b, a)):
            moved = await source.move(KEY, target)
            assert moved.reason == "exists"
            with pytest.raises(errors.SessionExists):
                await source.prestage(KEY, target)
            events = await source.session(KEY).read(limit=50)
            assert [e.type for e in events].count("session.departed") == 1, "it was not even begun"
        await b.export(KEY, tmp_path / "kept.limpet")
        await b.erase(KEY)
        for lp in (a, b):
            checks = _checks(await lp.maintenance.doctor())
            assert [check for check in checks if check.severity != "ok"] == []


async def test_a_copy_that_has_moved_on_is_found_where_it_is(tmp_path: Path) -> None:
    """Epochs of the two lines say nothing: a log that lacks the event of the reclaim is the copy,
    and one that has it is not, wherever the session went since."""
    one, two = await _moved(tmp_path)
    async with limpet.open(one, node="a") as a:
        await a.reclaim(KEY, **LOST)
    async with (
        limpet.open(two, node="b") as b,
        limpet.open("memory://", node="c") as c,
        limpet.open("memory://", node="d") as d,
        limpet.open(one, node="a", nodes={"b": b, "c": c, "d": d}) as a,
    ):
        assert (await a.move(KEY, d)).epoch == 3
        assert _checks(await a.maintenance.doctor())[0].severity == "problem"
        assert (await b.move(KEY, c)).epoch == 2
        assert (await c.move(KEY, b)).epoch == 3
        assert (await b.move(KEY, c)).epoch == 4
        (check,) = _checks(await a.maintenance.doctor())
        assert "c has it from before" in check.found


async def test_doctor_takes_its_time_for_each_copy_not_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that answers every question is not one that cannot be asked, however many they are."""
    loop, asked = asyncio.get_running_loop(), 0
    async with (
        limpet.open("memory://", node="b") as b,
        limpet.open("memory://", node="a", nodes={"b": b}) as a,
    ):
        for name in ("c1", "c2", "c3"):
            s = await _new(a, Key("support", "ada", name))
            assert (await a.move(s.key, b)).success
        a._services.nodes._places = {}  # type: ignore[union-attr]  # out of reach for a while
        for name in ("c1", "c2", "c3"):
            await a.reclaim("support", "ada", name, **LOST)
        a._services.nodes._places = {"b": b}  # type: ignore[union-attr]
        has_copy, now = reclaim._has_copy, loop.time

        async def slow(journal: Any, of: Any) -> bool:
            nonlocal asked
            asked += 1
            monkeypatch.setattr(loop, "time", lambda: now() + 3 * asked)
            await asyncio.sleep(0)
            return await has_copy(journal, of)

        monkeypatch.setattr(reclaim, "_has_copy", slow)
        monkeypatch.setattr(reclaim, "_ASKED_TOGETHER", 1)
        diagnosis = await a.maintenance.doctor()
        assert (asked, len(_checks(diagnosis)), _checks(diagnosis, "nodes")) == (3, 3, [])


async def test_a_target_that_was_lost_while_it_received_does_not_let_it_arrive() -> None:
    """Its sweep asks the source first, refuses the epoch and frees the key."""
    async with (
        limpet.open("memory://", node="a") as a,
        limpet.open("memory://", node="b", nodes={"a": a}) as b,
    ):
        s = await _new(a)
        await _depart(a, b, staged=True)
        await a.reclaim(KEY, **LOST)
        await b.work.sweep()
        assert await head_of(journal_of(b), KEY) is None
        await s.append("user.message", {"text": "on"}, actor=ADA)
        moved = await a.move(KEY, b)
        assert (moved.success, moved.epoch) == (True, 3)


async def test_a_mover_that_wakes_up_after_the_reclaim_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was stopped between the departure and the arrival."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        s = await _new(a)
        depart = mover.Mover._depart

        async def stopped(self: Any, members: Any, leases: Any) -> None:
            await depart(self, members, leases)
            await a.reclaim(KEY, **LOST)

        monkeypatch.setattr(mover.Mover, "_depart", stopped)
        moved = await a.move(KEY, b)
        assert (moved.success, moved.reason) == (False, "refused")
        assert await b.find(KEY) is None
        await s.append("user.message", {"text": "on"}, actor=ADA)
        assert await a.home(KEY) == limpet.Home("a", 2)


async def test_a_family_comes_back_in_one_commit() -> None:
    """A parent without the children that left with it would wait for them for good."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        parent = await _new(a)
        child = await a.spawn(parent, task="look it up", id="kid")
        assert (await a.drain(b)).sessions == 2
        done = await a.reclaim(child.key, **LOST)
        assert set(done.family) == {KEY, child.key}
        for key in done.family:
            assert await a.home(key) == limpet.Home("a", 2)
        kid = await a.get(child.key, actor="agent:kid")
        await kid.complete()
        assert (await a.wait_for_children(KEY)).pending == ()


async def test_only_an_admin_of_the_app_reclaims() -> None:
    """Not the owner, who may move the session, and not by a raw commit either; the audit knows
    both."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        await _depart(a, b)
        for who in (
            limpet.Principal(ADA, role="owner", app="support", user="ada"),
            limpet.Principal("user:x", role="admin", app="support", user="ada"),
            limpet.Principal("user:y", role="admin", app="sales"),
            limpet.Principal("agent:z", role="agent", app="support"),
            limpet.Principal("user:v", role="viewer", app="support"),
        ):
            acting = a.acting_as(who)
            with pytest.raises(errors.AccessDenied):
                await acting.reclaim(KEY, **LOST)
            head = await head_of(journal_of(a), KEY)
            assert head is not None
            draft = journal_of(acting).prepare(
                reclaimed("a", head.facts["departed"], "mine"), who.id
            )
            with pytest.raises(errors.AccessDenied):
                await journal_of(acting).commit([Commit(KEY, (draft,), head.version)])
        root = a.acting_as(limpet.Principal("user:root", role="admin", app="support"))
        with pytest.raises(errors.AccessDenied):
            await root.reclaim(KEY, **LOST, actor="user:ada")
        assert (await root.reclaim(KEY, **LOST)).epoch == 2
        event = (await a.session(KEY).read(limit=1, reverse=True))[0]
        assert event.actor == "user:root"
        denied = {r.principal for r in (await root.audit(denied=True)).items}
        assert ADA in denied
        allowed = [r for r in (await root.audit(denied=False)).items if r.action == "move"]
        assert "user:root" in {r.principal for r in allowed}


async def test_a_server_reclaims_for_an_admin_and_asks_the_nodes_that_it_knows() -> None:
    """The verb travels: for an owner's key it is refused, and what is recorded says who asked."""
    async with AsyncExitStack() as stack:
        places: dict[str, Any] = {}
        a = await stack.enter_async_context(limpet.open("memory://", node="a", nodes=places))
        b = await stack.enter_async_context(limpet.open("memory://", node="b"))
        url = await stack.enter_async_context(serving(a))
        await _new(a)
        await _depart(a, b)
        for role, user in (("owner", "ada"), ("admin", None)):
            _, token = await AccessKeys(journal_of(a)).create(role=role, app="support", user=user)
            entered = limpet.open(url, token=token, node="laptop")
            client = await stack.enter_async_context(entered)
            if role == "owner":
                with pytest.raises(errors.AccessDenied):
                    await client.reclaim(KEY, **LOST)
                continue
            a._services.nodes._places["b"] = b  # type: ignore[union-attr,index]
            with pytest.raises(errors.ReclaimRefused, match="can be reached"):
                await client.reclaim(KEY, **LOST)
            a._services.nodes._places.clear()  # type: ignore[union-attr,attr-defined]
            done = await client.reclaim(KEY, **LOST)
            assert done == await client.reclaim(KEY, **LOST) == limpet.Reclaimed(KEY, "a", 2, "b")
            await (await client.get(KEY)).append("system.message", {"text": "on"})
            event = (await a.session(KEY).read(limit=2, reverse=True))[1]
            assert event.type == "session.reclaimed"
            assert event.actor.startswith("key:")


async def test_erasing_forgets_that_it_was_reclaimed() -> None:
    """The document beside the session goes with it."""
    async with limpet.open("memory://", node="a") as a, limpet.open("memory://", node="b") as b:
        await _new(a)
        await _depart(a, b)
        await a.reclaim(KEY, **LOST)
        store, query = journal_of(a).store, Query(app="$$reclaims")
        assert len((await store.heads(query, cursor=None, limit=9)).items) == 1
        await a.erase(KEY)
        assert (await store.heads(query, cursor=None, limit=9)).items == ()


def test_a_session_is_reclaimed_at_the_shell(tmp_path: Path) -> None:
    """By naming the target and the epoch; exit codes as for any refusal."""
    with (
        limpet.open_sync(f"sqlite:///{tmp_path}/a.db", node="a") as a,
        limpet.open_sync(f"sqlite:///{tmp_path}/b.db", node="b") as b,
    ):
        a.create(*(KEY.app, KEY.user, KEY.id), actor=ADA)
        assert a.move(KEY, b).success
    said = ("reclaim", "a.db", str(KEY), "--node", "a", "--epoch", "1", "--reason", "fire")
    assert run(tmp_path, *said).returncode == 2, "that it is lost has to be said"
    refused = run(tmp_path, *said, "--target-is-lost", "b", "--nodes", "b=b.db")
    assert (refused.returncode, "has received it" in refused.stderr) == (3, True)
    done = run(tmp_path, *said, "--target-is-lost", "b", "--actor", "user:root")
    assert (done.returncode, done.stdout) == (
        0,
        "ok: support/ada/c1 is here again (a), in epoch 2; b is lost.\n",
    )
    code, told = answer(tmp_path, *said, "--target-is-lost", "b")
    assert (code, told["epoch"], told["lost"], told["family"]) == (0, 2, "b", [])
    found = run(tmp_path, "doctor", "a.db", "--node", "a", "--nodes", "b=b.db")
    assert (found.returncode, "two stores own support/ada/c1" in found.stdout) == (1, True)
    found = run(tmp_path, "doctor", "b.db", "--node", "b", "--nodes", "a=a.db")
    assert (found.returncode, "two stores own support/ada/c1" in found.stdout) == (1, True)
