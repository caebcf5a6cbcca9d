"""What operators are told: each message is provoked, and is as docs/logging.md describes it."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import limpet
from limpet.store import logs
from limpet.store.memory import MemoryStore
from limpet.store.postgres import live, notify
from limpet.store.postgres.server import schema, settings
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Place
from limpet.store.sqlite import write_connection
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, draft, key, load
from tests.support import chats, later
from tests.support.heard import Heard, described
from tests.support.inside import as_one_batch, on_writer
from tests.support.postgres import Server, functions
from tests.support.seal import KeylessSeal

ROOT = Path(__file__).parents[2]
A, B = key("a"), key("b")
SECRET = "hunter2"


@pytest.fixture
async def heard(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Heard]:
    heard = Heard(caplog)
    logging.getLogger("limpet").addHandler(heard)
    yield heard
    logging.getLogger("limpet").removeHandler(heard)


@pytest.fixture
async def store(tmp_path: Path, heard: Heard) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(tmp_path / "a.db", busy_seconds=0.01)
    yield store
    await store.close()


# --- the page -----------------------------------------------------------------------------------


def test_the_page_describes_every_message_and_no_other() -> None:
    """The words that messages in the source begin with are those of the page's tables."""
    source = "\n".join(path.read_text() for path in (ROOT / "src/limpet").rglob("*.py"))
    found = re.findall(
        r'"([A-Za-z][a-z A-Z]+): (?:store|sessions?|error|to|node|event|graph|invocation'
        r"|method|signal|seconds|code)=%",
        source,
    )
    plain = re.findall(r'\.(?:debug|info|warning|error)\("([a-z ]+)"', source)
    assert set(found) | set(plain) == set(described())


def test_the_threshold_on_the_page_is_the_real_one() -> None:
    """What counts as a slow commit."""
    page = (ROOT / "docs/logging.md").read_text()
    assert f"`SLOW_COMMIT_SECONDS` ({logs.SLOW_COMMIT_SECONDS}," in page


def test_nothing_is_printed_unless_logging_is_configured(tmp_path: Path) -> None:
    """A warning of ours does not reach stderr by itself, as Python would have it."""
    program = (
        "import asyncio, limpet\nfrom limpet.store import logs\nlogs.SLOW_COMMIT_SECONDS = 0.0\n"
        "async def main():\n"
        "    async with limpet.open('sqlite:///a.db') as lp:\n"
        "        await lp.create('a', 'b')\n"
        "asyncio.run(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("", "")


# --- SQLite -------------------------------------------------------------------------------------


async def test_a_slow_commit_is_told_with_its_time_and_its_events(
    heard: Heard, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is not slow is not told of."""
    monkeypatch.setattr(logs, "SLOW_COMMIT_SECONDS", 1e9)
    await create(store, A)
    await on_writer(store, lambda _: None)  # the batch before this is done with
    assert heard.all("slow commit") == []
    monkeypatch.setattr(logs, "SLOW_COMMIT_SECONDS", 0.0)
    await add(store, A, draft(), draft(), draft())
    told = await heard.until("slow commit")
    assert (told["store"], told["commits"], told["events"]) == (f"{tmp_path}/a.db", "1", "3")
    assert 0 <= float(told["seconds"]) < 60


async def test_making_and_migrating_a_file_is_told_once(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is as it should be is opened without a word."""
    async with limpet.open(f"sqlite:///{tmp_path}/new.db"):
        pass
    assert heard.one("store created")["schema"] == str(later.LATER - 1)
    shutil.copy(ROOT / "tests/golden/store-1.db", tmp_path / "old.db")
    later.release(monkeypatch)
    for _ in range(2):
        async with limpet.open(f"sqlite:///{tmp_path}/old.db"):
            pass
    told = heard.one("schema migrated")
    found = (told["store"], told["from"], told["to"])
    assert found == (f"{tmp_path}/old.db", "1", str(later.LATER))


async def test_checkpoints_are_told_and_what_holds_them_up(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of an older instant keeps the log from being copied whole."""
    monkeypatch.setattr(write_connection, "CHECKPOINT_PAGES", 1)
    store = await SQLiteStore.open(tmp_path / "a.db")
    await create(store, A)
    await heard.until("WAL checkpoint")
    reader = apsw.Connection(str(tmp_path / "a.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchall()
    await add(store, A)
    held = await heard.until("WAL checkpoint held up")
    assert int(held["copied"]) < int(held["pages"])
    reader.close()
    await store.close()


async def test_a_write_that_fails_is_told(heard: Heard, store: SQLiteStore, tmp_path: Path) -> None:
    """Another process keeps the write lock: both kinds of writes are told of."""
    await create(store, A)
    holder = apsw.Connection(str(tmp_path / "a.db"))
    holder.set_busy_timeout(10_000)  # the writer may be lengthening its log just now
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(limpet.errors.StoreBusy):
        await add(store, A)
    with pytest.raises(limpet.errors.StoreBusy):
        await store.claim("w", limit=1, lease_seconds=1)
    holder.close()
    told = [(one["error"], one["commits"]) for one in heard.all("write failed")]
    assert told == [("BusyError", "1"), ("BusyError", "0")]


class BrittleSeal(KeylessSeal):
    """Fails for one event."""

    def seal(self, plain: bytes, place: Place) -> bytes:
        if place.id == "bad":
            raise RuntimeError(SECRET)
        return plain


async def test_a_batch_that_is_split_is_told(heard: Heard, tmp_path: Path) -> None:
    """One commit of three cannot be written: they are retried one by one, and it alone fails."""
    store = await SQLiteStore.open(tmp_path / "a.db", seal=BrittleSeal())
    await create(store, A)
    await as_one_batch(store, *(add(store, A, draft(id=id)) for id in ("good", "bad", "fine")))
    await store.close()
    assert heard.one("batch split")["commits"] == "3"
    assert heard.one("write failed") == {
        "store": f"{tmp_path}/a.db",
        "error": "RuntimeError",
        "commits": "1",
    }
    assert SECRET not in heard.text


async def test_a_writer_that_cannot_go_on_is_told_and_so_is_its_successor(
    heard: Heard, store: SQLiteStore
) -> None:
    """A transaction is left open and no connection can be made: the next write starts a writer."""
    await create(store, A)
    running = store._write()

    def fail(_: object, *, here: bool = False) -> None:
        running._writes.conn.execute("BEGIN IMMEDIATE")
        raise apsw.IOError("the disk is gone")

    def refuse() -> None:
        raise apsw.CantOpenError("no file can be opened")

    running._commit = fail  # type: ignore[assignment,method-assign]
    running._writes.open = refuse  # type: ignore[method-assign]
    with pytest.raises(limpet.StoreError):
        await add(store, A)
    assert (await heard.until("writer stopped"))["error"] == "CantOpenError"
    await add(store, A)
    assert len(heard.all("writer restarted")) == 1


async def test_a_connection_that_is_replaced_is_told(heard: Heard, store: SQLiteStore) -> None:
    """Somebody left a transaction open: the file is opened again, and the next write succeeds."""
    await create(store, A)
    await on_writer(store, lambda writer: writer.conn.execute("BEGIN").fetchall())
    await add(store, A)
    assert len(heard.all("connection replaced")) == 1


async def test_housekeeping_that_fails_is_told(heard: Heard, store: SQLiteStore) -> None:
    """The next round begins with a table that is not there; nobody's write fails for it."""
    await create(store, A)

    def spoil(writer: Any) -> None:
        writer.conn.execute("ALTER TABLE purges RENAME TO elsewhere")
        writer.purging = True

    await on_writer(store, spoil)
    assert (await heard.until("housekeeping failed"))["error"] == "SQLError"
    await add(store, A)


async def test_an_open_that_waits_for_another_process_is_told(heard: Heard, tmp_path: Path) -> None:
    """It is held up until the other one is done with the file."""
    shutil.copy(ROOT / "tests/golden/store-1.db", tmp_path / "a.db")
    holder = apsw.Connection(str(tmp_path / "a.db"))
    holder.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(SQLiteStore.open(tmp_path / "a.db"))
    await heard.until("open waits")
    holder.close()
    await (await opening).close()


async def test_backups_and_restores_are_told(heard: Heard, tmp_path: Path) -> None:
    """With what was found in them, and where what could not be closed is now."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url) as lp:
        session = await lp.create("a", "b", id="c", actor="x")
        await session.append("note.made", {"text": "a marker"})
        await lp.maintenance.backup(tmp_path / "copy.db")
    told = heard.one("backup written")
    assert (told["file"], told["verified"]) == (f"{tmp_path}/copy.db", "False")
    content = (tmp_path / "copy.db").read_bytes().replace(b"a marker", b"a marKer")
    (tmp_path / "bad.db").write_bytes(content)
    (tmp_path / "a.db").write_bytes((tmp_path / "a.db").read_bytes()[:100] + bytes(9_000))
    limpet.restore(tmp_path / "copy.db", url, replace=True)
    limpet.restore(tmp_path / "bad.db", url, replace=True, damaged=True)
    found = [one["findings"] for one in heard.all("store restored")]
    assert found == ["0", "1"]
    assert Path(heard.one("store set aside")["aside"]).exists()


# --- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture
def url(postgres_server: Server) -> str:
    """A URL with a password in it, which this server does not ask for."""
    return postgres_server.url.replace("limpet@", f"limpet:{SECRET}@")


@pytest.fixture
async def remote(url: str, heard: Heard) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url)
    yield store
    await store.close()
    assert SECRET not in heard.text


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(url)
    yield conn
    await conn.close()


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    heard: Heard, postgres_server: Server, remote: PostgresStore
) -> None:
    """By the writer and by the readers, each once, however often they try meanwhile."""
    await create(remote, A)
    await asyncio.to_thread(postgres_server.stop)
    writing = asyncio.create_task(add(remote, A))
    reading = asyncio.create_task(load(remote, A))
    for name in ("writer", "pool"):
        await heard.until("connection lost", connection=name)
        await heard.until("connection retried", connection=name)
    await asyncio.to_thread(postgres_server.start)
    await asyncio.gather(writing, reading)
    for name in ("writer", "pool"):
        regained = await heard.until("connection regained", connection=name)
        assert int(regained["tries"]) > 1
        lost = [one for one in heard.all("connection lost") if one["connection"] == name]
        assert len(lost) == 1


async def test_a_listener_that_is_lost_comes_back(
    heard: Heard, url: str, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers poll until it is there again; both ends are told."""
    monkeypatch.setattr(notify, "RELISTEN_SECONDS", 0.0)
    async with limpet.open(url) as lp:
        session = await lp.create("a", "b", id="c", actor="x")
        events = session.follow(partials=False)
        await anext(events)
        ours = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        while (pid := await admin.fetchval(ours)) is None:
            await session.append("note.made")
            await anext(events)
        await admin.execute("SELECT pg_terminate_backend($1)", pid)
        await heard.until("connection lost", connection="listener")
        await heard.until("connection regained", connection="listener")
        await events.aclose()


async def test_a_live_channel_that_is_lost_comes_back(
    heard: Heard, url: str, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partials of other processes come again then; both ends are told."""
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.01, 0.01))
    async with limpet.open(url) as lp, limpet.open(url) as elsewhere:
        session = await lp.create("a", "b", id="c", actor="x")
        events = elsewhere.session(session.key).follow()
        await anext(events)
        ours = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1"
        pid = await admin.fetchval(ours, 5210131961453309286 & 0xFFFFFFFF)
        await admin.execute("SELECT pg_terminate_backend($1)", pid)
        await heard.until("connection lost", connection="live")
        await heard.until("connection regained", connection="live")
        await session.append("note.made", partial=True)
        assert (await asyncio.wait_for(anext(events), 60)).partial
        await events.aclose()


async def test_commits_that_others_overtook_are_told_as_retried(
    heard: Heard, url: str, remote: PostgresStore
) -> None:
    """What this store remembers of the session is no longer true: it plans again."""
    await create(remote, A)
    other = await PostgresStore.open(url)
    await add(other, A)
    await other.close()
    await add(remote, A)
    assert heard.one("commits retried")["commits"] == "1"


async def test_a_batch_that_the_server_refuses_is_told(
    heard: Heard, remote: PostgresStore, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's transaction holds one of two rows: they are split, and one fails."""
    monkeypatch.setattr(settings, "LANE_LOCK_SECONDS_MAX", 0.05)
    for each in (A, B):
        await create(remote, each)
    async with admin.transaction():
        await admin.execute("SELECT FROM limpet.sessions WHERE id = 'a' FOR UPDATE")
        adding = [add(remote, each) for each in (A, B)]
        held, free = await asyncio.gather(*adding, return_exceptions=True)
    assert isinstance(held, limpet.errors.StoreBusy)
    assert not isinstance(free, BaseException)
    assert heard.one("batch split")["commits"] == "2"
    assert heard.one("write failed")["error"] == "LockNotAvailableError(55P03)"


async def test_a_slow_commit_to_a_server_is_told(
    heard: Heard, remote: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its time and its events, as on SQLite."""
    await create(remote, A)
    monkeypatch.setattr(logs, "SLOW_COMMIT_SECONDS", 0.0)
    await add(remote, A, draft(), draft())
    told = await heard.until("slow commit", events="2")
    assert told["commits"] == "1"
    assert told["store"].startswith("postgresql://limpet@/")


async def test_what_opening_does_to_a_database_is_told_once(
    heard: Heard, url: str, admin: Any
) -> None:
    """It makes the schema, replaces functions, notices a move."""

    async def reopened() -> None:
        for _ in range(2):
            await (await PostgresStore.open(url)).close()

    await reopened()
    assert heard.one("store created")["schema"] == str(schema.SCHEMA)
    await functions(url, b"0 of another release")
    await reopened()
    assert heard.one("functions replaced")["release"] == str(schema.FUNCTIONS)
    await admin.execute("UPDATE limpet.meta SET value = '1/1' WHERE name = 'home'")
    await reopened()
    assert len(heard.all("store moved")) == 1
    assert SECRET not in heard.text


# --- sessions -----------------------------------------------------------------------------------


@pytest.fixture
async def leased(heard: Heard) -> AsyncIterator[tuple[limpet.Limpet, limpet.Lease, FakeClock]]:
    clock = FakeClock()
    async with limpet.Limpet("memory://", store=MemoryStore(clock.clock())) as lp:
        session = await lp.create("a", "b", id="c", actor="x")
        yield lp, await lp.work.lock(session.key, worker="w1", lease_seconds=10), clock


async def test_a_lease_that_ended_is_told_to_whoever_goes_on(
    heard: Heard, leased: tuple[limpet.Limpet, limpet.Lease, FakeClock]
) -> None:
    """On renewing, on writing, alone or with others, and on giving it back."""
    lp, lease, clock = leased
    session = await lp.session(lease.key, actor="x", lease=lease).refresh()
    clock.advance(timedelta(seconds=11))
    with pytest.raises(limpet.errors.SessionFenced):
        await lp.work.renew(lease)
    with pytest.raises(limpet.errors.SessionFenced):
        await session.append("note.made")
    with pytest.raises(limpet.errors.SessionFenced):
        async with lp.commit() as c:
            c.append(session, "note.made")
    assert not await lp.work.release(lease)
    told = {"session": "a/b/c", "worker": "w1", "fence": "1"}
    during = ("renewal", "commit", "commit")
    assert heard.all("lease expired") == [{**told, "during": each} for each in during]
    assert heard.one("lease already over") == told


async def test_a_lease_that_another_took_is_told_with_both_fences(
    heard: Heard, leased: tuple[limpet.Limpet, limpet.Lease, FakeClock]
) -> None:
    """The slow worker is told of, and the fence of the one who came after it."""
    lp, lease, clock = leased
    clock.advance(timedelta(seconds=11))
    await lp.work.lock(lease.key, worker="w2")
    with pytest.raises(limpet.errors.SessionFenced):
        await lp.session(lease.key, actor="x", lease=lease).append("note.made")
    told = heard.one("lease taken over")
    assert (told["worker"], told["fence"], told["new_fence"]) == ("w1", "1", "2")


def migrations(**steps: Any) -> limpet.MigrationRegistry:
    registry = limpet.MigrationRegistry()
    registry.register("1.0.0", "2.0.0", steps["step"])
    return registry


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"goal": fields["plan"]}


async def test_migrations_of_state_are_told_by_session_and_version(
    heard: Heard, tmp_path: Path
) -> None:
    """On load and for a whole store; one that fails is told by its code, without what it met."""
    url = f"sqlite:///{tmp_path}/a.db"
    await chats.fill(url, "old", "bare", "wrong")
    async with limpet.open(url) as lp:
        registry = migrations(step=renamed)
        old = limpet.Key("support", "ada", "old")
        await lp.get(old, state_type=chats.New, migrations=registry)
        told = heard.one("state migrated")
        assert (told["session"], told["from"], told["to"]) == (str(old), "1.0.0", "2.0.0")
        await lp.maintenance.migrate(registry, chats.New, apply=True)
    failed = {one["session"]: one["code"] for one in heard.all("state migration failed")}
    assert failed == {
        "support/ada/bare": "migration.failed",
        "support/ada/wrong": "session.schema_violation",
    }
    assert heard.one("sessions migrated") == {
        "to": "2.0.0",
        "sessions": "3",
        "migrated": "0",
        "impossible": "2",
    }


async def test_a_migration_that_another_writer_overtook_is_told(
    heard: Heard, tmp_path: Path
) -> None:
    """Somebody writes to the session while its migration is computed."""
    url = f"sqlite:///{tmp_path}/a.db"
    await chats.fill(url, "old")
    runs = []

    def interrupted(fields: dict[str, Any]) -> dict[str, Any]:
        runs.append(1)
        if len(runs) == 1:
            with limpet.open_sync(url) as other:
                other.session(("support", "ada", "old"), actor="x").append("note.made")
        return renamed(fields)

    async with limpet.open(url) as lp:
        registry = migrations(step=interrupted)
        await lp.get(("support", "ada", "old"), state_type=chats.New, migrations=registry)
    assert heard.one("migration retried")["tries"] == "1"


async def test_an_update_that_is_computed_again_is_told(heard: Heard, tmp_path: Path) -> None:
    """Somebody else wrote what it relied on while it was computed."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url) as lp:
        mine = await lp.create("a", "b", id="c", actor="x", state={"n": 1})
        await mine.update(overtaken(url, {"n": 5}))
        assert mine.state["n"] == 6
    assert heard.one("update retried") == {"session": "a/b/c", "tries": "1"}


def overtaken(url: str, written: dict[str, Any]) -> Any:
    """A change during whose first run another instance sets the same names."""
    runs = []

    def change(state: Any) -> dict[str, Any]:
        runs.append(state["n"])
        if len(runs) == 1:
            with limpet.open_sync(url) as other:
                other.session(("a", "b", "c"), actor="x").append("note.made", set=written)
            return {"n": 0}
        return {"n": state["n"] + 1 if isinstance(state["n"], int) else SECRET}

    return change


class Faltering(MemoryStore):
    """A store that for a while cannot say whether anything changed."""

    away = False

    def pulse(self) -> int:
        if self.away:
            raise limpet.errors.StoreFailed("memory", "away", "read")
        return super().pulse()


async def test_a_feed_reader_that_is_lost_comes_back(heard: Heard) -> None:
    """Both ends are told, each once; what is followed goes on."""
    store = Faltering()
    async with limpet.Limpet("memory://", store=store) as lp:
        session = await lp.create("a", "b", id="c", actor="x")
        events = session.follow()
        await anext(events)
        store.away = True
        await heard.until("feed reader lost")
        store.away = False
        await heard.until("feed reader regained")
        await session.append("note.made")
        assert (await anext(events)).seq == 2
        await events.aclose()
    assert len(heard.all("feed reader lost")) == 1


# --- what is never logged -----------------------------------------------------------------------


async def test_no_body_and_no_state_is_ever_logged(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the most talkative level, with every commit slow and every update retried."""
    monkeypatch.setattr(logs, "SLOW_COMMIT_SECONDS", 0.0)
    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url) as lp:
        state = {"n": SECRET, "user:pin": SECRET, "app:pin": SECRET}
        session = await lp.create("a", "b", id="c", actor="x", state=state, labels={"pin": SECRET})
        await session.update(overtaken(url, {"n": SECRET}))
        await session.append("user.message", {"text": SECRET})
        with pytest.raises(limpet.SessionConflict):
            await session.append("user.message", {"text": SECRET}, expect=1)
    assert heard.all("update retried")
    assert heard.all("slow commit")
    assert SECRET not in heard.text
