"""Laws of session stores, each on memory, on a Limpet, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import InvalidCursor, InvalidInput, InvalidQuery, SessionWriteConflict
from limpet.graph.sessions import SessionFilter, SessionLocks, SessionRecord, SessionStore
from limpet.graph.stores.documents import OpenLimpet
from limpet.graph.stores.sessions import (
    LeaseLocks,
    LimpetSessionStore,
    PostgresSessionStore,
    SQLiteSessionStore,
    StoredSessions,
)
from limpet.session.work import StoreWork
from limpet.store.memory import MemoryStore
from limpet.testing.clock import FakeClock
from tests.support import graph_stores
from tests.support.graph_stores import KINDS, Place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    return graph_stores.place(request)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Any]:
    """Every store, empty."""
    async with graph_stores.session_store(place) as opened:
        yield opened


@pytest.fixture(params=KINDS[1:])
def logged_place(request: pytest.FixtureRequest) -> Place:
    return graph_stores.place(request)


@pytest.fixture
async def logged(logged_place: Place) -> AsyncIterator[Any]:
    """The stores that keep a log."""
    async with graph_stores.session_store(logged_place) as opened:
        yield opened


def record(state: dict[str, Any], version: str = "v1", id: str = "s") -> SessionRecord:
    return SessionRecord(session_id=id, state=state, schema_version=version)


# --- load and save -------------------------------------------------------------------------------


def test_a_store_of_ours_is_what_the_protocol_asks_for(store: Any) -> None:
    """Both protocols, the one of stores and the one of locks."""
    assert isinstance(store, SessionStore)
    assert isinstance(store, SessionLocks)


async def test_a_session_that_was_never_saved_is_none(store: Any) -> None:
    """Loading is no error, and makes nothing."""
    assert await store.load("s") is None
    assert await store.list() == ()


async def test_a_saved_record_is_loaded_as_it_was(store: Any) -> None:
    """State, schema version, times and a version number."""
    state = {"messages": [{"role": "user", "content": "hi"}], "n": 1, "x": 0.5, "none": None}
    before = datetime.now(UTC)
    token = await store.save("s", record(state))
    found = await store.load("s")
    assert (found.session_id, found.state, found.schema_version) == ("s", state, "v1")
    assert found.version == token
    assert before - timedelta(minutes=1) <= found.created_at <= found.updated_at


async def test_a_save_replaces_the_whole_state(store: Any) -> None:
    """Names that the new state lacks are gone."""
    await store.save("s", record({"old": 1, "list": [1, 2, 3]}))
    await store.save("s", record({"list": [1, 3], "new": {}}, "v2"))
    found = await store.load("s")
    assert (found.state, found.schema_version) == ({"list": [1, 3], "new": {}}, "v2")


async def test_every_save_gives_a_greater_version_even_if_nothing_changed(store: Any) -> None:
    """The creation time stays, the version grows, the time of the update never goes back."""
    first = await store.save("s", record({"n": 1}))
    created = await store.load("s")
    second = await store.save("s", record({"n": 1}))
    found = await store.load("s")
    assert second > first
    assert (found.version, found.created_at) == (second, created.created_at)
    assert found.updated_at >= created.updated_at


async def test_what_was_loaded_or_given_is_not_the_store_s_own(store: Any) -> None:
    """Changing a loaded state, or one that was saved, changes nothing that is stored."""
    state = {"list": [1]}
    await store.save("s", record(state))
    state["list"].append(2)
    found = await store.load("s")
    found.state["list"].append(3)
    assert (await store.load("s")).state == {"list": [1]}


async def test_sessions_do_not_touch_each_other(store: Any) -> None:
    """One id, one record; also where one looks like the other with a number behind it."""
    for number, id in enumerate(["a", "a~1", "a~2", "b"]):
        await store.save(id, record({"n": number}, id=id))
    await store.delete("a")
    await store.save("a", record({"n": 9}, id="a"))
    loaded = [(await store.load(id)).state["n"] for id in ["a", "a~1", "a~2", "b"]]
    assert loaded == [9, 1, 2, 3]
    assert sorted(item.session_id for item in await store.list()) == ["a", "a~1", "a~2", "b"]


@pytest.mark.parametrize("version", ["", "v1", "2026-05", "1.0.0", ' "odd" ', '"', "tab\tλ"])
async def test_any_text_is_a_schema_version(store: Any, version: str) -> None:
    """It is returned as it was saved, and can be filtered by."""
    await store.save("s", record({}, version))
    await store.save("other", record({}, "another", id="other"))
    assert (await store.load("s")).schema_version == version
    (found,) = await store.list(SessionFilter(schema_version=version))
    assert (found.session_id, found.schema_version) == ("s", version)


# --- delete --------------------------------------------------------------------------------------


async def test_delete_removes_a_session_and_is_idempotent(store: Any) -> None:
    """A session that is not there is deleted as well as one that is."""
    await store.delete("s")
    await store.save("s", record({"n": 1}))
    await store.delete("s")
    await store.delete("s")
    assert await store.load("s") is None
    assert await store.list() == ()


async def test_a_save_after_a_delete_begins_a_new_session(store: Any) -> None:
    """Nothing of the old one is left, as often as it is done."""
    for number in range(3):
        await store.save("s", record({"n": number, f"only{number}": 1}))
        assert (await store.load("s")).state == {"n": number, f"only{number}": 1}
        await store.delete("s")
    assert await store.save("s", record({"n": 9}), expected_version=0) >= 1
    assert [item.session_id for item in await store.list()] == ["s"]


# --- list ----------------------------------------------------------------------------------------


async def test_a_listing_has_summaries_without_state(store: Any) -> None:
    """Id, schema version, times and version of every session."""
    await store.save("s", record({"n": 1}))
    (found,) = await store.list()
    loaded = await store.load("s")
    names = ("session_id", "schema_version", "created_at", "updated_at", "version")
    assert [getattr(found, n) for n in names] == [getattr(loaded, n) for n in names]
    assert not hasattr(found, "state")


async def test_a_listing_is_filtered_by_time(store: Any) -> None:
    """Later than a time, exclusively: of creation, of the last update."""
    for id in ("a", "b"):
        await store.save(id, record({}, id=id))
    first, second = sorted(await store.list(), key=lambda item: item.created_at)
    later = await store.list(SessionFilter(created_after=first.created_at))
    assert [item.session_id for item in later] == [second.session_id]
    await store.save("a", record({"n": 2}, id="a"))
    updated = await store.list(SessionFilter(updated_after=second.updated_at))
    assert [item.session_id for item in updated] == ["a"]
    none = SessionFilter(updated_after=datetime.now(UTC) + timedelta(days=1))
    assert await store.list(none) == ()


async def test_pages_meet_every_session_once(store: Any) -> None:
    """With a limit and the cursor of the page before; the last page has no cursor."""
    for number in range(7):
        version = "even" if number % 2 == 0 else "odd"
        await store.save(f"s{number}", record({}, version, id=f"s{number}"))
    for version, count in ((None, 7), ("even", 4), ("none", 0)):
        met, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            wanted = SessionFilter(schema_version=version, limit=3, cursor=cursor)
            page = await store.list(wanted)
            assert len(page) <= 3
            met += [item.session_id for item in page]
            cursor, pages = page.cursor, pages + 1
        assert len(met) == len(set(met)) == count


async def test_a_cursor_that_is_none_is_refused(logged: Any) -> None:
    """A cursor is what a page gave."""
    with pytest.raises(InvalidCursor):
        await logged.list(SessionFilter(cursor="nonsense"))


# --- concurrency ---------------------------------------------------------------------------------


async def test_an_expected_version_that_is_not_the_stored_one_is_a_conflict(store: Any) -> None:
    """Nothing is overwritten, and the error names both versions."""
    first = await store.save("s", record({"n": 1}), expected_version=0)
    second = await store.save("s", record({"n": 2}), expected_version=first)
    for expected in (0, first, second + 1):
        with pytest.raises(SessionWriteConflict) as raised:
            await store.save("s", record({"n": 3}), expected_version=expected)
        error = raised.value
        assert (error.session_id, error.expected_version) == ("s", expected)
        assert (error.actual_version, error.category) == (second, "session_write_conflict")
    assert (await store.load("s")).state == {"n": 2}
    with pytest.raises(SessionWriteConflict):
        await store.save("new", record({}, id="new"), expected_version=4)
    assert await store.load("new") is None


async def test_of_saves_with_one_expected_version_exactly_one_succeeds(store: Any) -> None:
    """Optimistic writers that loaded the same record: one wins, the others are told."""
    base = await store.save("s", record({"n": 0}))
    saves = [
        store.save("s", record({"n": number}), expected_version=base) for number in range(1, 9)
    ]
    answers = await asyncio.gather(*saves, return_exceptions=True)
    won = [number for number, answer in enumerate(answers, 1) if isinstance(answer, int)]
    lost = [answer for answer in answers if isinstance(answer, SessionWriteConflict)]
    assert (len(won), len(lost)) == (1, 7)
    assert (await store.load("s")).state == {"n": won[0]}


@pytest.mark.parametrize("existed", [True, False])
async def test_concurrent_saves_all_succeed_and_one_of_them_is_the_state(
    store: Any, existed: bool
) -> None:
    """Last write wins: no save is refused, none is mixed with another."""
    if existed:
        await store.save("s", record({"by": -1, "list": list(range(20)), "mine": {"-1": 1}}))
    states = [{"by": n, "list": [n] * n, "mine": {str(n): n}} for n in range(12)]
    versions = await asyncio.gather(*[store.save("s", record(state)) for state in states])
    found = await store.load("s")
    assert found.state == states[found.state["by"]]
    assert found.version == max(versions)
    assert len(set(versions)) == 12


async def test_a_save_that_races_with_a_delete_is_kept_or_deleted_whole(store: Any) -> None:
    """Whoever was last: the session is gone, or it is exactly what was saved."""
    for number in range(6):
        await store.save("s", record({"n": number}))
        state = {"n": number, "after": True}
        await asyncio.gather(store.save("s", record(state)), store.delete("s"))
        found = await store.load("s")
        assert found is None or found.state == state
        await store.delete("s")


async def test_a_lock_is_held_by_one_at_a_time(store: Any) -> None:
    """The next one gets it when it is released; the session need not exist."""
    await store.acquire_lock("s")
    waiting = asyncio.create_task(store.acquire_lock("s"))
    await store.acquire_lock("another")
    await store.release_lock("another")
    assert not waiting.done()
    await store.release_lock("s")
    await asyncio.wait_for(waiting, 60)
    await store.release_lock("s")
    await store.release_lock("s")
    assert await store.load("s") is None
    assert await store.list() == ()


async def test_a_lock_that_was_granted_to_a_cancelled_caller_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store had granted it, and the caller never learned of it."""
    async with limpet.open("memory://") as lp:
        acquire, granted, go_on = StoreWork.lock, asyncio.Event(), asyncio.Event()

        async def slow(self: StoreWork, *args: Any, **how: Any) -> Any:
            lease = await acquire(self, *args, **how)
            granted.set()
            await go_on.wait()
            return lease

        store = LimpetSessionStore(lp, "support", "ada")
        monkeypatch.setattr(StoreWork, "lock", slow)  # what a slow server does
        cancelled = asyncio.create_task(store.acquire_lock("s"))
        await granted.wait()
        cancelled.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(store.acquire_lock("s"), 60)
        await store.release_lock("s")


# --- what a log adds -----------------------------------------------------------------------------


async def test_a_saved_session_has_a_log_of_what_each_save_changed(logged: StoredSessions) -> None:
    """Adding one message to a thousand records one message."""
    messages = [{"role": "user", "content": f"number {n}"} for n in range(1000)]
    await logged.save("s", record({"messages": messages, "turn": 1}))
    added = {"role": "user", "content": "one more"}
    await logged.save("s", record({"messages": [*messages, added], "turn": 2}))
    session = await logged.session("s")
    assert session is not None
    (event,) = await session.read(after=1)
    assert event.type == "graph.saved"
    assert {type(op).__name__: op.path for op in event.ops} == {
        "Add": ("messages",),
        "Set": ("turn",),
    }
    assert event.ops[0].items == [added]


async def test_a_change_everywhere_is_saved_as_whole_fields(logged: Any) -> None:
    """More changes than an event may hold are still one save."""
    await logged.save("s", record({"list": [{"n": n} for n in range(3000)], "same": 1}))
    wanted = {"list": [{"n": -n, "x": n} for n in range(3000)], "same": 1}
    await logged.save("s", record(wanted))
    assert (await logged.load("s")).state == wanted


@pytest.mark.arguments
@pytest.mark.parametrize("id", ["", None, 7, b"s", " ", "a\0", "x" * 300, "\ud800"])
async def test_an_id_that_is_none_is_refused(store: Any, id: Any) -> None:
    """By every verb of every store, before anything is written."""
    for call in (
        store.load(id),
        store.save(id, record({})),
        store.delete(id),
        store.acquire_lock(id),
        store.release_lock(id),
    ):
        with pytest.raises(InvalidInput):
            await call
    assert await store.list() == ()


@pytest.mark.arguments
@pytest.mark.parametrize(
    "wrong",
    [
        SessionFilter(limit=0),
        SessionFilter(limit="1"),  # type: ignore[arg-type]
        SessionFilter(created_after=datetime(2026, 1, 1)),  # noqa: DTZ001  # without a time zone
        SessionFilter(updated_after="yesterday"),  # type: ignore[arg-type]
        {"schema_version": "v1"},
    ],
)
async def test_a_filter_that_is_none_is_refused(store: Any, wrong: Any) -> None:
    """By every store in the same words."""
    with pytest.raises(InvalidQuery):
        await store.list(wrong)


@pytest.mark.arguments
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {"state": {}},
        SessionRecord(session_id="s", state=[1]),  # type: ignore[arg-type]
        SessionRecord(session_id="s", state={}, schema_version=3),  # type: ignore[arg-type]
        SessionRecord(session_id="s", state={"n": float("nan")}),
        SessionRecord(session_id="s", state={"n": object()}),
        SessionRecord(session_id="s", state={1: 2}),  # type: ignore[dict-item]
        SessionRecord(session_id="s", state={"app:n": 1}),
        SessionRecord(session_id="s", state={" n": 1}),
        SessionRecord(session_id="s", state={}, schema_version="v" * 300),
    ],
)
async def test_a_record_that_is_none_is_refused(store: Any, wrong: Any) -> None:
    """By every store, the one in memory too: tests must not pass on what a file refuses."""
    with pytest.raises(InvalidInput):
        await store.save("s", wrong)
    assert await store.load("s") is None


@pytest.mark.arguments
@pytest.mark.parametrize("state", [{"app:n": 1}, {"x": object()}, {"": 1}, {1: 2}, {"n": 2**70}])
async def test_a_state_that_cannot_be_stored_is_refused(logged: Any, state: Any) -> None:
    """Names that other sessions would see, and values that are not plain: nothing changes."""
    await logged.save("s", record({"n": 1}))
    with pytest.raises(limpet.InvalidInput):
        await logged.save("s", record(state))
    with pytest.raises(limpet.InvalidInput):
        await logged.save("new", record(state, id="new"))
    assert (await logged.load("s")).state == {"n": 1}
    assert await logged.load("new") is None


async def test_a_session_of_the_application_is_a_session_of_the_graph() -> None:
    """What lp.create made is loaded, and what the graph saved is there for lp.get."""
    async with limpet.open("memory://") as lp:
        await lp.create("support", "ada", "s1", state={"n": 1, "app:shared": 5})
        store = LimpetSessionStore(lp, "support", "ada")
        found = await store.load("s1")
        assert found is not None
        assert (found.state, found.schema_version) == ({"n": 1}, "")
        await store.save("s1", record({"n": 2}, id="s1"))
        s = await lp.get("support", "ada", "s1")
        assert s.values == {"n": 2, "app:shared": 5}
        assert (await lp.maintenance.verify()).ok


async def test_two_stores_of_one_file_see_one_session(tmp_path: Path) -> None:
    """Whoever saved last, through whichever object; the file is closed by the last of them."""
    path = tmp_path / "with space ü.db"
    one, two = SQLiteSessionStore(path), SQLiteSessionStore(str(path))
    await one.save("s", record({"n": 1}))
    await two.save("s", record({"n": 2}))
    await one.save("s", record({"n": 3, "m": 1}))
    assert (await two.load("s")).state == {"n": 3, "m": 1}  # type: ignore[union-attr]
    await one.close()
    assert (await two.load("s")).version == 3  # type: ignore[union-attr]
    await two.close()
    assert await one.save("s", record({"n": 4})) == 4  # opens the file again
    await one.close()
    assert path.exists()


def test_a_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    """It is made before any loop runs, as a module does, and never closed, as scripts do."""
    store = SQLiteSessionStore(tmp_path / "sessions.db")
    asyncio.run(store.save("s", record({"n": 1})))
    found = asyncio.run(store.load("s"))
    assert found is not None
    assert found.state == {"n": 1}
    asyncio.run(store.close())


def test_a_store_on_a_server_serves_one_event_loop_after_another(postgres_store_url: str) -> None:
    """A connection belongs to a loop; a store that was closed in one opens again in the next."""
    store = PostgresSessionStore(postgres_store_url)

    async def save(number: int) -> None:
        await store.save("s", record({"n": number}))
        await store.save("s", record({"n": number, "twice": True}))
        await store.close()

    for number in range(3):
        asyncio.run(save(number))

    async def load() -> Any:
        async with store:
            return await store.load("s")

    assert asyncio.run(load()).state == {"n": 2, "twice": True}


@pytest.mark.parametrize("dsn", ["sqlite:///x.db", "", None, "host=x"])
def test_a_dsn_that_is_not_of_postgres_is_refused(dsn: Any) -> None:
    """At once, not at the first use."""
    with pytest.raises(limpet.errors.InvalidURL):
        PostgresSessionStore(dsn)


async def test_a_lock_is_renewed_while_it_is_held_and_an_outage_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Renewed again and again the lock is still held; released, it is free at once."""
    renewed, renew, renewals = asyncio.Event(), StoreWork.renew, itertools.count(1)

    async def counted(self: StoreWork, lease: Any, **how: Any) -> Any:
        number = next(renewals)
        if number == 2:
            raise limpet.errors.StoreBusy("memory", "another holds it")
        if number == 4:
            renewed.set()
        return await renew(self, lease, **how)

    monkeypatch.setattr(StoreWork, "renew", counted)
    async with limpet.open("memory://") as lp:
        locks = LeaseLocks(OpenLimpet(lp), "support", "ada", renew_seconds=0)
        await locks.acquire("s")
        waiting = asyncio.create_task(locks.acquire("s"))
        await asyncio.wait_for(renewed.wait(), 60)
        assert not waiting.done()
        await locks.release("s")
        await asyncio.wait_for(waiting, 60)
        await locks.release_all()


async def test_a_lock_that_has_lapsed_is_not_the_lock_of_who_has_it_now() -> None:
    """A task that was away for longer than its lease releases its own lock, which is gone."""
    clock, lapsed, taken = FakeClock(), asyncio.Event(), asyncio.Event()
    async with limpet.Limpet("memory://", store=MemoryStore(clock.clock())) as lp:
        locks = LeaseLocks(OpenLimpet(lp), "support", "ada")

        async def away() -> None:
            await locks.acquire("s")
            clock.advance(timedelta(seconds=31))
            lapsed.set()
            await taken.wait()
            await locks.release("s")

        async def present() -> None:
            await lapsed.wait()
            await locks.acquire("s")
            taken.set()
            await late
            with pytest.raises(limpet.errors.SessionLocked):
                await lp.work.lock("support.locks", "ada", "s", worker="a third")
            await locks.release("s")

        late = asyncio.create_task(away())
        await asyncio.wait_for(present(), 30)
        lease = await lp.work.lock("support.locks", "ada", "s", worker="a third")
        assert await lp.work.release(lease)
