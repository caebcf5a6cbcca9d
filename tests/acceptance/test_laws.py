"""What was seen to fail elsewhere, each as a law of ours. Numbers as in the list of failures."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import Draft, Limpet, errors
from limpet.model.ops import apply, inverse, resolve
from limpet.model.values import EMPTY, freeze
from limpet.store.clock import Clock
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Store
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support.views import shown, stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "support.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def still(request: pytest.FixtureRequest, path: Path, clock: FakeClock) -> Any:
    """Limpet on a store whose clock stands still."""
    store: Store = MemoryStore(clock.clock())
    if request.param == "sqlite":
        store = await SQLiteStore.open(path, clock=clock.clock())
    async with Limpet("memory://", store=store) as lp:
        yield lp


# --- 1: two services on one database lose no update ----------------------------------------------


async def test_law_1_two_instances_lose_no_state_key(file_url: str) -> None:
    """Two instances, one session, sixty rounds each: every key of both is there."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        key = (await one.create("a", "u")).key
        handles = [one.session(key, actor="one"), two.session(key, actor="two")]
        for n in range(60):
            await asyncio.gather(*(h.append("a.b", set={f"{h.actor}{n}": n}) for h in handles))
        state = (await one.get(key)).state
        assert state == (await two.get(key)).state
        assert len(state) == 120


async def test_law_1_app_writes_of_different_users_all_count(file_url: str) -> None:
    """120 acknowledged, 120 present: by increment, by name, and by update."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        ada = await one.create("a", "ada", state={"app:sum": 0, "app:read": 0})
        bob = await two.create("a", "bob")
        for n in range(60):
            await asyncio.gather(
                *(
                    s.append("a.b", actor="x", inc={"app:sum": 1}, set={f"app:{s.key.user}{n}": 1})
                    for s in (ada, bob)
                )
            )
        state = (await one.get(ada.key)).state
        assert state["app:sum"] == 120
        assert len([name for name in state if name.startswith(("app:ada", "app:bob"))]) == 120


async def test_law_1_updates_of_two_instances_all_count(file_url: str) -> None:
    """Read-modify-write on both sides of a file, on a session and on an app: name."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        key = (await one.create("a", "u", state={"n": 0, "app:n": 0})).key

        async def work(lp: Limpet) -> None:
            s = await lp.get(key)
            for _ in range(20):
                await s.update(lambda st: {"n": st["n"] + 1, "app:n": st["app:n"] + 1}, actor="x")

        await asyncio.gather(work(one), work(two))
        state = (await two.get(key)).state
        assert (state["n"], state["app:n"]) == (40, 40)


# --- 2, 3: sequence, not clock -------------------------------------------------------------------


async def test_law_2_staleness_is_by_sequence(still: Limpet) -> None:
    """With equal times one of two stale writers wins, and a fresh one is never called stale."""
    key = (await still.create("a", "u")).key
    for _ in range(10):
        one, two = await still.get(key), await still.get(key)
        answers = await asyncio.gather(
            *(s.append("a.b", actor="x", expect=s.version) for s in (one, two)),
            return_exceptions=True,
        )
        assert sorted(type(a).__name__ for a in answers) == ["Event", "SessionConflict"]
        fresh = await still.get(key)
        await fresh.append("a.b", actor="x", expect=fresh.version)


async def test_law_2_order_is_by_sequence(still: Limpet) -> None:
    """Events of one instant are read in the order of their recording."""
    s = await still.create("a", "u")
    for n in range(20):
        await s.append("a.b", {"n": n}, actor="x")
    events = await s.read(after=1)
    assert len({e.at_us for e in events}) == 1
    assert [(e.data or {})["n"] for e in events] == list(range(20))


async def test_law_3_time_never_runs_backwards(still: Limpet, clock: FakeClock) -> None:
    """Neither a wall set back nor an old time in the data moves the last update back."""
    clock.advance(timedelta(hours=1))
    s = await still.create("a", "u")
    before = s.head.updated_at
    clock.leap(timedelta(hours=-1))
    await s.append("a.b", {"timestamp": 0.0, "at_us": 0}, actor="x")
    assert s.head.updated_at == (await still.get(s.key)).head.updated_at == before
    assert (await still.list(app="a", order="updated")).items[0].updated_at == before


# --- 4, 5: repeats and failures ------------------------------------------------------------------


async def test_law_4_a_repeated_event_id_returns_the_first_record(file_url: str) -> None:
    """From the same instance, from another one, and after a restart."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        s = await one.create("a", "u", id="1", state={"n": 0})
        first = await s.append("a.b", {"n": 1}, actor="x", id="e", inc={"n": 1})
        assert await s.append("a.c", {"n": 2}, actor="y", id="e", inc={"n": 1}) == first
        other = await two.get(s.key)
        assert await other.append("a.b", actor="x", id="e", expect=0) == first
    async with limpet.open(file_url) as lp:
        s = await lp.get(("a", "u", "1"))
        assert await s.append("a.b", actor="x", id="e", inc={"n": 1}) == first
        assert (s.version, s.state["n"]) == (2, 1)


@pytest.mark.parametrize("failure", ["conflict", "op", "value", "busy", "deleted", "closed"])
async def test_law_5_a_failed_append_leaves_no_ghost(path: Path, failure: str) -> None:
    """No event, no state, no temp: name in the caller's object or in the store."""
    store = await SQLiteStore.open(path, busy_seconds=0.05)
    holder = apsw.Connection(str(path))
    holder.set_busy_timeout(5_000)
    async with Limpet("sqlite:///", store=store) as lp:
        s = await lp.create("a", "u", state={"n": 0, "temp:kept": 1})
        object_before, store_before = shown(s), await stored(lp)
        more: dict[str, Any] = {}
        match failure:
            case "conflict":
                more = {"expect": 7}
            case "op":
                more = {"add": {"n": [1]}}
            case "value":
                more = {"merge": {"d": {"v": b""}}}
            case "busy":
                holder.execute("BEGIN IMMEDIATE")
            case "deleted":
                await lp.delete(s.key)
                store_before = []
            case "closed":
                await lp.close()
        with pytest.raises(errors.LimpetError):
            await s.append("a.b", actor="x", set={"ghost": 1, "temp:ghost": 1, "app:g": 1}, **more)
        holder.close()
        assert shown(s) == object_before
        if failure != "closed":
            assert await stored(lp) == store_before


# --- 6: the initial state is an event ------------------------------------------------------------


async def test_law_6_the_way_back_is_exact(lp: Limpet) -> None:
    """From the log alone, inverses lead back to the state given at creation, user: included."""
    given = {"n": 1, "plan": {"steps": [1, 2]}, "user:lang": "en", "none": None}
    s = await lp.create("a", "u", state=given)
    await s.append("a.b", actor="x", inc={"n": 0.5}, delete=["none"], set={"user:lang": "de"})
    await s.append("a.b", {"t": "x" * 99}, actor="x", merge={"plan": {"a": 1}}, add={"log": [1]})
    await s.append("a.b", actor="x", delete=["user:lang"], ops=[limpet.ops.Cut("log", 0, 1)])
    states, back = [EMPTY], []
    for event in await s.read():
        state, undo = states[-1], []
        for op in event.ops:
            plain = resolve(op, event.data)
            undo[:0] = inverse(state, plain)
            state = apply(state, [plain])
        states.append(state)
        back.append(undo)
    assert states[1] == given
    assert states[-1] == {k: v for k, v in s.state.items() if not k.startswith("app:")}
    state = states[-1]
    for undo in reversed(back[1:]):
        state = apply(state, undo)
    assert state == given
    assert repr(state["n"]) == "1"


# --- 7: flat cost --------------------------------------------------------------------------------


async def _steps(store: SQLiteStore, call: Callable[[], Any]) -> int:
    """How many tens of instructions SQLite takes for a reading: a cost that no clock blurs."""
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return False

    store._reader.conn.set_progress_handler(tick, 10)
    await call()
    store._reader.conn.set_progress_handler(None)
    return count


async def test_law_7_loading_does_not_cost_more_as_the_log_grows(path: Path) -> None:
    """The last twenty of 5,000 events cost what the last twenty of 100 cost, and so does a page."""
    store = await SQLiteStore.open(path, sync="normal")
    async with Limpet("sqlite:///", store=store) as lp:
        s = await lp.create("a", "u", state={"n": 0})
        costs: list[list[int]] = []
        for size in (100, 5_000):
            while s.version < size:
                more = min(1_000, size - s.version)
                await s.append_many([Draft(type="a.b", actor="x", inc={"n": 1})] * more)
            costs.append(
                [
                    await _steps(store, lambda: lp.get(s.key, tail=20)),
                    await _steps(store, lambda: s.read(after=50, limit=20)),
                    await _steps(store, lambda: s.read(reverse=True, limit=20)),
                ]
            )
        for small, large in zip(*costs, strict=True):
            assert large <= small * 1.5, costs


async def test_law_7_what_is_pending_does_not_cost_more_as_the_log_grows(path: Path) -> None:
    """Three inputs after 5,000 that were dealt with cost what they cost after 100."""
    store = await SQLiteStore.open(path, sync="normal")
    async with Limpet("sqlite:///", store=store) as lp:
        s = await lp.create("a", "u", actor="x")
        costs = []
        for size in (100, 5_000):
            while s.version < size:
                more = min(1_000, size - s.version)
                await s.append_many([Draft(type="user.said")] * more)
                await s.mark_processed(range(s.version - more + 1, s.version + 1))
            await s.append_many([Draft(type="user.said")] * 3)
            costs.append(await _steps(store, s.pending))
            await s.mark_processed([event.seq for event in await s.pending()])
        assert costs[1] <= costs[0] * 1.5, costs


async def test_law_7_a_new_process_begins_as_fast(path: Path) -> None:
    """The first load after a clean close costs the same after 5,000 events as after 500."""
    costs = []
    for size in (500, 5_000):
        store = await SQLiteStore.open(path, sync="normal")
        async with Limpet("sqlite:///", store=store) as lp:
            s = await lp.get_or_create("a", "u", id="1", state={"n": 0})
            while s.version < size:
                more = min(1_000, size - s.version)
                await s.append_many([Draft(type="a.b", actor="x", inc={"n": 1})] * more)
        store = await SQLiteStore.open(path, sync="normal")
        async with Limpet("sqlite:///", store=store) as lp:
            costs.append(await _steps(store, lambda lp=lp: lp.get(("a", "u", "1"))))
    assert costs[1] <= costs[0] * 1.5, costs


async def test_law_7_listing_does_not_cost_more_as_sessions_grow(path: Path) -> None:
    """A page of fifty among 3,000 sessions costs what it costs among 300, however it is asked."""
    ticks = itertools.count(1)
    clock = Clock(lambda: next(ticks) << 30, lambda: 0)  # a second between two commits
    store = await SQLiteStore.open(path, sync="normal", clock=clock)
    async with Limpet("sqlite:///", store=store) as lp:
        made = 0

        async def grow(size: int) -> None:
            nonlocal made
            while made < size:
                ids = range(made, min(made + 25, size))
                labels = {"plan": "gold"}
                users = ("ada", "bob")
                await asyncio.gather(
                    *(lp.create("a", users[n % 2], id=str(n), labels=labels) for n in ids)
                )
                made = ids.stop

        queries: list[dict[str, Any]] = [
            {},
            {"app": "a"},
            {"app": "a", "user": "ada"},
            {"app": "a", "labels": {"plan": "gold"}},
            {"app": "a", "order": "updated"},
            {"app": "a", "user": "ada", "order": "updated", "reverse": False},
        ]
        costs: list[list[int]] = []
        for size in (300, 3_000):
            await grow(size)
            found = []
            for query in queries:
                cursor = (await lp.list(limit=50, **query)).cursor
                for at in (None, cursor):
                    found.append(
                        await _steps(store, lambda q=query, c=at: lp.list(limit=50, cursor=c, **q))
                    )
            costs.append(found)
        for small, large in zip(*costs, strict=True):
            assert large <= small * 1.5, costs


async def test_law_7_appenders_do_not_hold_each_other_up(lp: Limpet) -> None:
    """Twenty concurrent appenders of one session are done with one try each."""
    s = await lp.create("a", "u", state={"n": 0})

    async def work(n: int) -> None:
        mine = lp.session(s.key, actor=f"task:{n}")
        for _ in range(10):
            await mine.append("a.b", inc={"n": 1})

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(n) for n in range(20)))
    assert (await s.refresh()).state["n"] == 200


# --- 8, 9: late and racing writers ---------------------------------------------------------------


@pytest.mark.parametrize("end", ["delete", "erase"])
async def test_law_8_a_late_write_does_not_resurrect(file_url: str, end: str) -> None:
    """Not through the object that was held, another instance, a retry, or a creation."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        s = await one.create("a", "u", id="1")
        other = await two.get(s.key)
        await s.append("a.b", actor="x", id="e")
        await (one.delete(s.key) if end == "delete" else one.erase(s.key))
        gone = errors.SessionDeleted if end == "delete" else errors.SessionErased
        late: list[Callable[[], Any]] = [
            lambda: s.append("a.b", actor="x"),
            lambda: s.append("a.b", actor="x", id="e"),
            lambda: other.append("a.b", actor="x"),
            lambda: other.update(lambda _: {"n": 1}, actor="x"),
            lambda: two.create("a", "u", id="1"),
            lambda: two.get_or_create("a", "u", id="1"),
        ]
        for call in late:
            with pytest.raises(gone):
                await call()
        assert await two.find(s.key) is None
        assert (await two.list(app="a")).items == ()


async def test_law_9_of_two_writers_from_one_parent_one_is_accepted(file_url: str) -> None:
    """Whichever instance they come from."""
    async with limpet.open(file_url) as one, limpet.open(file_url) as two:
        key = (await one.create("a", "u")).key
        for _ in range(20):
            writers = [await one.get(key), await two.get(key)]
            answers = await asyncio.gather(
                *(w.append("a.b", actor="x", expect=w.version) for w in writers),
                return_exceptions=True,
            )
            assert sorted(type(a).__name__ for a in answers) == ["Event", "SessionConflict"]
        assert (await one.get(key)).version == 21


# --- 11: one corrupt row -------------------------------------------------------------------------


@pytest.fixture
async def varied(path: Path) -> Path:
    """A session with an event of every kind that the head is folded from."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.create("a", "u", id="1", state={"n": 0}, labels={"l": "v"})
        await s.append("user.message", {"text": "hi"}, actor="x", inc={"n": 1})
        await s.lifecycle.set_timer("t", s.head.updated_at, actor="x")
        await s.mark_processed([2], actor="x")
        await s.label({"m": "w"}, actor="x")
        await s.lifecycle.clear_timer("t", actor="x")
        await s.append("agent.message", {"text": "ho"}, actor="x", inc={"n": 1})
        await lp.create("a", "u", id="2")
    return path


@pytest.mark.parametrize("seq", range(1, 8))
async def test_law_11_a_corrupt_row_is_isolated_and_reported(varied: Path, seq: int) -> None:
    """Whichever event it is: the rest is served, the session goes on, verify names it."""
    conn = apsw.Connection(str(varied))
    conn.execute("UPDATE events SET body = x'00ff' WHERE seq = ? AND sid = 1", (seq,))
    conn.close()
    async with limpet.open(f"sqlite:///{varied}") as lp:
        s = await lp.get(("a", "u", "1"))
        assert s.history.damaged == (seq,)
        assert (s.version, s.labels) == (7, {"l": "v", "m": "w"})
        assert [e.seq for e in s.events] == [1, 2, 3, 4, 5, 6, 7]
        assert [e.seq for e in await s.read() if e.damage] == [seq]
        lost = s.events[seq - 1]
        assert (lost.data, lost.ops) == (None, ())
        assert (await s.append("a.b", actor="x")).seq == 8
        report = await lp.maintenance.verify()
        assert {(f.key.id if f.key else None, f.seq) for f in report.findings} == {("1", seq)}
        assert (await lp.get(("a", "u", "2"))).version == 1
        assert len((await lp.list(app="a")).items) == 2


@pytest.mark.parametrize("name", ["app:shared", "user:own"])
async def test_law_11_a_corrupt_shared_value_is_isolated_and_reported(
    path: Path, name: str
) -> None:
    """Sessions that see it are still served with everything else, and verify names it."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create("a", "u", id="1", state={"n": 1, "app:shared": 1, "user:own": 2})
        await lp.create("a", "v", id="2", state={"user:own": 3})
    conn = apsw.Connection(str(path))
    conn.execute("UPDATE scopes SET body = x'00ff' WHERE name = ? AND user != 'v'", (name,))
    conn.close()
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get(("a", "u", "1"))
        assert s.state["n"] == 1
        assert len([n for n in ("app:shared", "user:own") if n in s.state]) == 1
        assert (await s.append("a.b", actor="x", inc={"n": 1})).seq == 2
        assert (await lp.get(("a", "v", "2"))).state["user:own"] == 3
        report = await lp.maintenance.verify()
        assert not report.ok
        assert name in str(report.findings)
        await s.append("a.b", actor="x", set={name: 9})
        assert (await s.refresh()).state[name] == 9


async def test_law_11_a_corrupt_shared_value_fails_no_neighbour(path: Path) -> None:
    """An op that needs it is refused with an error of ours; what was sent with it is recorded."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create("a", "u", id="1", state={"app:shared": 1})
        await lp.create("b", "u", id="1")
    conn = apsw.Connection(str(path))
    conn.execute("UPDATE scopes SET body = x'00ff'")
    conn.close()
    async with limpet.open(f"sqlite:///{path}") as lp:
        harmed, sound = (lp.session((app, "u", "1"), actor="x") for app in "ab")
        wrong, right = await asyncio.gather(
            harmed.append("a.b", inc={"app:shared": 1}), sound.append("a.b"), return_exceptions=True
        )
        assert isinstance(wrong, errors.LimpetError)
        assert isinstance(right, limpet.Event)


# --- 13: data, never code ------------------------------------------------------------------------


class Bomb:
    """What an attacker would store where pickles are read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def raw(self) -> bytes:
        """A pickle, written by hand, that creates a file when it is loaded."""
        name = str(self.mark).encode()
        return b"cos\nopen\n(X" + struct.pack("<I", len(name)) + name + b"I65\ntR."


async def test_law_13_stored_bytes_are_never_run(varied: Path, tmp_path: Path) -> None:
    """A pickle in the place of a body is damage, and does nothing."""
    mark = tmp_path / "exploded"
    conn = apsw.Connection(str(varied))
    conn.execute("UPDATE events SET body = ?, flags = 0 WHERE seq = 2", (Bomb(mark).raw(),))
    conn.execute("UPDATE snapshots SET body = ?", (Bomb(mark).raw(),))
    conn.close()
    async with limpet.open(f"sqlite:///{varied}") as lp:
        assert (await lp.get(("a", "u", "1"))).history.damaged == (2,)
        await lp.maintenance.verify()
    assert not mark.exists()


async def test_law_13_data_that_looks_like_code_stays_data(lp: Limpet) -> None:
    """The words that other formats take as instructions are words here."""
    data = {
        "lc": 1,
        "type": "constructor",
        "id": ["os", "system"],
        "py/object": "os.system",
        "__class__": "x",
        "$ref": "#/",
        "!!python/object/apply:os.system": ["true"],
    }
    s = await lp.create("a", "u", state={"d": data})
    await s.append("a.b", data, actor="x")
    got = await lp.get(s.key)
    assert got.state["d"] == got.events[-1].data == freeze(data)


def test_law_13_nothing_here_can_load_code_from_bytes() -> None:
    """No module of ours imports a deserialiser that runs code, or calls eval or exec."""
    imports = r"^\s*(?:import|from)\s+(?:c?[pP]ickle|marshal|shelve|dill|yaml|jsonpickle|code)\b"
    calls = r"(?<![\w.])(?<!def )(?:eval|exec|compile|__import__)\("
    running = re.compile(f"{imports}|{calls}", re.MULTILINE)
    assert running.search("x = eval(text)")
    assert running.search("    import pickle")
    for file in Path(limpet.__file__).parent.rglob("*.py"):
        assert not running.search(file.read_text()), file
