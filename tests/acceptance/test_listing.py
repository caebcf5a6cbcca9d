"""Listing as a user asks for it: states, deleted sessions, filters, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import limpet
from limpet import Head, Key, Limpet, Page, Session
from limpet.errors import InvalidQuery
from limpet.model import limits
from limpet.store.postgres.reading import heads
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Query
from limpet.store.sqlite.store import SQLiteStore

ACTOR = "test:listing"


async def pages(lp: Limpet, **query: Any) -> list[Page[Head]]:
    found = [await lp.list(**query)]
    while found[-1].cursor is not None:
        found.append(await lp.list(cursor=found[-1].cursor, **query))
    return found


async def keys(lp: Limpet, **query: Any) -> list[Key]:
    return [head.key for page in await pages(lp, **query) for head in page.items]


def end_pages_after(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """End a page of states after so many bytes, in every store."""
    for place in (limits, heads):
        monkeypatch.setattr(place, "STATES_BYTES_MAX", size)


# --- states --------------------------------------------------------------------------------------


async def test_a_listed_state_is_what_values_shows(lp: Limpet, s: Session) -> None:
    """Own fields, app: and user: names, without temp:, for each session of the page."""
    other = await lp.create("support", "bob", id="two", state={"n": 5, "user:u": 7})
    await other.append("a.b", actor=ACTOR, inc={"app:a": 1})
    page = await lp.list(app="support", state=True)
    assert page.states == {
        key: (await lp.get(key)).values for key in (Key("support", "bob", "two"), s.key)
    }
    assert page.states[s.key]["app:a"] == 2
    assert "temp:t" not in page.states[s.key]
    assert page.damaged == ()


async def test_a_listing_has_no_states_unless_asked(lp: Limpet, s: Session) -> None:
    """Heads only: nothing else is read."""
    assert (await lp.list(app="support")).states == {}


@pytest.fixture(params=["sqlite", "postgresql"])
async def stored_url(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_store_url: str
) -> str:
    """Where states are read from, and not just there."""
    return postgres_store_url if request.param == "postgresql" else f"sqlite:///{tmp_path}/list.db"


@pytest.fixture
async def filled(stored_url: str) -> AsyncIterator[Limpet]:
    """Eight sessions with a state of some size each, opened after they were written."""
    async with limpet.open(stored_url) as lp:
        for number in range(8):
            text = "".join(chr(0x4E00 + (n * n + number * 7_919) % 20_000) for n in range(3_000))
            await lp.create("shop", f"u{number}", id=f"s{number}", state={"text": text})
    async with limpet.open(stored_url) as lp:
        yield lp


async def test_a_page_of_states_ends_by_its_bytes(
    filled: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one session at least; going on by the cursor meets each exactly once."""
    whole = (await filled.list(state=True)).states
    end_pages_after(monkeypatch, 10_000)
    found = await pages(filled, state=True)
    assert 1 < len(found[0].items) < 8
    assert [key for page in found for key in page.states] == list(whole)
    assert all([head.key for head in page.items] == [*page.states] for page in found)
    end_pages_after(monkeypatch, 0)
    assert [len(page.items) for page in await pages(filled, state=True)] == [1] * 8


@pytest.mark.parametrize("users", ["ada", "abcdef"])
async def test_a_page_of_states_ends_by_the_names_it_shows(
    stored_url: str, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names count for each session that sees them, its user's own or those of all: else a page of
    many users would read a thousand times as much as one session may."""
    names = {f"user:{number}": number for number in range(40)}
    async with limpet.open(stored_url) as lp:
        for number in range(6):
            user = users if users == "ada" else users[number]
            await lp.create("shop", user, id=f"s{number}", state=names)
        whole = (await lp.list(state=True)).states
        assert [len(state) for state in whole.values()] == [40] * 6
        end_pages_after(monkeypatch, 60 * limits.STATES_NAME_BYTES)
        found = await pages(lp, state=True)
        assert [len(page.items) for page in found] == [2, 2, 2]
        assert {key: state for page in found for key, state in page.states.items()} == whole
        end_pages_after(monkeypatch, 0)
        assert [len(page.states) for page in await pages(lp, state=True)] == [1] * 6


async def test_states_of_a_page_are_one_round_trip(postgres_store_url: str) -> None:
    """One statement to a server, whatever the number of sessions and of users."""
    store = await PostgresStore.open(postgres_store_url)
    conn = await asyncpg.connect(postgres_store_url)
    async with Limpet(postgres_store_url, store=store) as lp:
        for number in range(12):
            state = {"n": number, "app:n": number, "user:n": number}
            await lp.create("shop", f"u{number}", state=state)
        asked: list[Any] = []
        with conn.query_logger(asked.append):
            page = await heads.page_with_states(store._reader, conn, Query(), cursor=None, limit=50)
            await asyncio.sleep(0)  # the driver tells it with the loop's next turn
        assert (len(page.states), len(asked)) == (12, 1)
    await conn.close()


async def test_a_file_is_asked_as_often_for_many_states_as_for_few(tmp_path: Path) -> None:
    """Snapshots, events and names are read for the page together."""
    path = tmp_path / "list.db"
    counts: list[int] = []
    for size in (3, 30):
        store = await SQLiteStore.open(path, sync="off")
        async with Limpet("sqlite:///", store=store) as lp:
            for number in range(size):
                await lp.create("shop", f"u{number}", state={"n": 1, "user:n": number})
        store = await SQLiteStore.open(path, sync="off")
        async with Limpet("sqlite:///", store=store) as lp:
            asked: list[str] = []

            def note(cursor: Any, sql: str, bindings: Any, asked: list[str] = asked) -> bool:
                asked.append(sql)
                return True

            store._reader.conn.exec_trace = note
            page = await lp.list(app="shop", state=True, limit=100)
            store._reader.conn.exec_trace = None
            assert all(state["n"] == 1 for state in page.states.values())
            counts.append(len(asked))
    assert counts[0] == counts[1] < 10


# --- damage --------------------------------------------------------------------------------------

ROT = {
    "body": "UPDATE {events} SET body = substr(body, 1, 3) WHERE id = 'bad'",
    "gap": "DELETE FROM {events} WHERE id = 'bad'",
}


@pytest.mark.parametrize("rot", ROT.values(), ids=ROT.keys())
async def test_a_damaged_session_does_not_take_its_page_along(stored_url: str, rot: str) -> None:
    """It is named, and the others have their states."""
    async with limpet.open(stored_url) as lp:
        for number in range(3):
            s = await lp.create("shop", "ada", id=f"s{number}", state={"n": number})
            await s.append("a.b", actor=ACTOR, id="bad" if number == 1 else None, inc={"n": 1})
            await s.append("a.b", actor=ACTOR, inc={"n": 1})
    await _change(stored_url, rot)
    async with limpet.open(stored_url) as lp:
        page = await lp.list(app="shop", state=True)
        assert len(page.items) == 3
        assert page.damaged == (Key("shop", "ada", "s1"),)
        assert {key.id: dict(state) for key, state in page.states.items()} == {
            "s0": {"n": 2},
            "s2": {"n": 4},
        }


async def test_a_name_of_another_kind_does_not_take_its_page_along(tmp_path: Path) -> None:
    """One bit makes a number of an id: the listing leaves the name out, as a load does."""
    url = f"sqlite:///{tmp_path}/list.db"
    async with limpet.open(url) as lp:
        for user in ("ada", "bob"):
            await lp.create("shop", user, id="one", state={"user:n": 5, "user:m": 6})
    path = tmp_path / "list.db"
    conn = apsw.Connection(str(path))
    conn.execute("UPDATE scopes SET uid = 5 WHERE user = 'ada' AND name = 'user:n'")
    conn.close()
    async with limpet.open(url) as lp:
        page = await lp.list(app="shop", state=True)
        assert page.states == {head.key: (await lp.get(head.key)).values for head in page.items}
        assert page.states[Key("shop", "bob", "one")] == {"user:n": 5, "user:m": 6}
        assert page.states[Key("shop", "ada", "one")] == {"user:m": 6}


async def test_an_unreadable_snapshot_costs_time_and_no_state(stored_url: str) -> None:
    """What it stood for is read from the log, as a load does."""
    async with limpet.open(stored_url) as lp:
        s = await lp.create("shop", "ada", id="long", state={"n": 0})
        for number in range(30):
            text = "".join(chr(0x4E00 + (n * n + number * 7_919) % 20_000) for n in range(2_000))
            await s.append("a.b", actor=ACTOR, set={"text": text}, inc={"n": 1})
    assert await _change(stored_url, "UPDATE {snapshots} SET crc = crc + 1") > 1  # a ladder
    async with limpet.open(stored_url) as lp:
        page = await lp.list(app="shop", state=True)
        assert page.states == {s.key: (await lp.get(s.key)).values}
        assert (page.states[s.key]["n"], page.damaged) == (30, ())


async def _change(url: str, sql: str) -> int:
    """Change the tables behind the store's back; how many rows were changed."""
    tables = ("events", "snapshots")
    if url.startswith("sqlite"):
        conn = apsw.Connection(url.removeprefix("sqlite:///"))
        conn.execute(sql.format(**{name: name for name in tables}))
        changed = conn.total_changes()
        conn.close()
        return changed
    server = await asyncpg.connect(url)
    done = await server.execute(sql.format(**{name: f"limpet.{name}" for name in tables}))
    await server.close()
    return int(done.split()[-1])


async def test_a_broken_page_of_the_file_loses_one_session_only(tmp_path: Path) -> None:
    """Where a statement over all cannot be answered, each session is read by itself."""
    path = tmp_path / "broken.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        for number in range(3):
            text = "".join(chr(0x4E00 + (n * n + number * 7_919) % 20_000) for n in range(4_000))
            await lp.create("shop", "ada", id=f"s{number}", state={"text": text})
    await _change(f"sqlite:///{path}", "DELETE FROM {snapshots}")  # or they would do instead
    content = path.read_bytes()
    conn = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    size, whole = conn.pragma("page_size"), conn.pragma("page_count")
    conn.close()
    lost: set[tuple[int, int]] = set()
    for number in range(1, whole):
        begin = number * size
        path.write_bytes(content[:begin] + b"\xff" * size + content[begin + size :])
        try:
            async with limpet.open(f"sqlite:///{path}") as lp:
                page = await lp.list(app="shop", state=True)
        except limpet.StoreError:
            continue  # the page of a table's root, or of the heads
        assert len(page.states) + len(page.damaged) == len(page.items)
        lost.add((len(page.states), len(page.damaged)))
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert (2, 1) in lost


# --- deleted sessions ----------------------------------------------------------------------------


async def test_deleted_sessions_are_found_and_erased(lp: Limpet, s: Session) -> None:
    """By app and user; once erased, they are nowhere."""
    gone = await lp.create("support", "ada", id="gone")
    await lp.delete(gone.key)
    (tomb,) = (await lp.list(app="support", user="ada", deleted=True)).items
    assert (tomb.key, tomb.uid, tomb.version) == (gone.key, gone.head.uid, 1)
    assert tomb.deleted_at is not None
    assert tomb.deleted_at >= gone.head.created_at
    assert await keys(lp, app="support") == [s.key]
    assert await lp.erase(tomb.key) is not None
    assert await keys(lp, deleted=True) == []


# --- filters -------------------------------------------------------------------------------------


async def test_filters_go_together_in_either_order(lp: Limpet) -> None:
    """Later than a time and of a schema version, by creation and by update."""
    made = [await lp.create("shop", "ada", id=f"s{number}") for number in range(4)]
    await made[0].append("a.b", actor=ACTOR)
    edge, moved = made[1].head.created_at, made[0].head.updated_at
    created = [made[3].key, made[2].key]
    assert await keys(lp, created_after=edge) == created
    assert await keys(lp, app="shop", order="updated", created_after=edge) == created
    updated = await keys(lp, app="shop", updated_after=made[3].head.created_at)
    assert updated == [made[0].key]
    assert await keys(lp, app="shop", order="updated", updated_after=moved) == []
    assert await keys(lp, schema_version="1.0.0") == []


WRONG: dict[str, dict[str, Any]] = {
    "deleted": {"deleted": 1},
    "state": {"state": None},
    "deleted with states": {"deleted": True, "state": True},
    "schema version as a number": {"schema_version": 2},
    "schema version with a zero": {"schema_version": "1\0"},
    "empty schema version": {"schema_version": ""},
}


@pytest.mark.parametrize("query", WRONG.values(), ids=WRONG.keys())
async def test_what_cannot_be_listed_is_refused(lp: Limpet, query: dict[str, Any]) -> None:
    """Before a store is asked."""
    with pytest.raises(InvalidQuery):
        await lp.list(**query)


PLANNED: list[dict[str, Any]] = [
    {},
    {"app": "a"},
    {"app": "a", "user": "u"},
    {"app": "a", "order": "updated"},
    {"app": "a", "user": "u", "order": "updated"},
    {"app": "a", "phase": "suspended"},
]


async def test_every_filter_is_applied_on_the_way_along_an_index(tmp_path: Path) -> None:
    """No listing reads a table without an index, and none sorts more than a step of updates."""
    store = await SQLiteStore.open(tmp_path / "plan.db", sync="off")
    at = limpet.model.events.to_time(5)
    filters = [{}, {"created_after": at}, {"updated_after": at}, {"schema_version": "1.0.0"}]
    asked: list[tuple[str, Any]] = []

    def note(cursor: Any, sql: str, bindings: Any) -> bool:
        asked.append((sql, bindings))
        return True

    async with Limpet("sqlite:///", store=store) as lp:
        await asyncio.gather(*(lp.create("a", "u") for _ in range(3)))
        conn = store._reader.conn
        conn.exec_trace = note
        for query in PLANNED:
            for more in filters:
                await lp.list(limit=2, **query, **more)
        for query in PLANNED[:3]:
            await lp.list(deleted=True, **query)
        conn.exec_trace = None
        assert len(asked) == 27
        for sql, bindings in asked:
            plan = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
            steps = [step for step in plan if "slot" not in sql or "LAST 2 TERMS" not in step]
            assert all("USING INDEX" in step for step in steps), (sql, plan)


async def test_each_goes_through_all_pages_of_a_list(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every head once, in the order of list, with its filters, however many pages there are."""
    monkeypatch.setattr("limpet.session.limpet._EACH_PAGE", 2)
    for number in range(5):
        await lp.create("each", "ada", f"s{number}", labels={"odd": str(number % 2)})
    await lp.create("other", "ada", "x")
    heads = [head.key.id async for head in lp.each(app="each", order="key", reverse=False)]
    assert heads == [f"s{number}" for number in range(5)]
    odd = [head.key.id async for head in lp.each(app="each", labels={"odd": "1"})]
    assert sorted(odd) == ["s1", "s3"]
    assert [head async for head in lp.each(app="nothing")] == []
