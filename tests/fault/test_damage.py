"""Bytes that rotted, files that are not ours, disks that cannot be written."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import limpet
from limpet import Event, Key, Limpet, LimpetError
from limpet.store.sqlite.file.schema import SCHEMA
from limpet.store.sqlite.store import SQLiteStore
from tests.support import sample
from tests.support.examples import tries
from tests.support.inside import on_writer
from tests.support.pages import Pages
from tests.support.processes import Child
from tests.support.sample import ADA, BOB, FORK, LIVING, LONG, everything, opened
from tests.support.seeds import seed
from tests.support.vfs import Faults, faulty

TABLES = (
    "events",
    "sessions",
    "tombstones",
    "scopes",
    "snapshots",
    "bases",
    "labels",
    "blobs",
    "blob_chunks",
    "erased",
    "meta",
)


class Specimen:
    """A clean sample: its bytes, its map, what it shows; and copies of it with changed bytes."""

    def __init__(self, directory: Path, clean: Path, shows: dict[str, Any]) -> None:
        self.directory, self.clean = directory, clean
        self.pages, self.shows = Pages(clean), shows
        self.path = directory / "copy.db"

    def write(self, content: bytes) -> Path:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.write_bytes(content)
        return self.path

    def flipped(self, offset: int, bit: int) -> Path:
        content = bytearray(self.pages.content)
        content[offset] ^= 1 << bit
        return self.write(bytes(content))

    def changed(self, sql: str, *args: Any) -> Path:
        """A copy changed by a statement, behind the store's back."""
        path = self.write(self.pages.content)
        conn = apsw.Connection(str(path))
        conn.execute(sql, args)
        assert conn.total_changes() > 0
        conn.close()
        return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One sound file for all: its tests only damage copies. And what it shows."""
    path = tmp_path_factory.mktemp("damage") / "clean.db"

    async def build() -> dict[str, Any]:
        await sample.build(path)
        async with at(path) as lp:
            assert (await lp.maintenance.verify()).findings == ()
            return await everything(lp)

    return path, asyncio.run(build())


@pytest.fixture
def specimen(tmp_path: Path, clean: tuple[Path, dict[str, Any]]) -> Specimen:
    path, shows = clean
    return Specimen(tmp_path, path, shows)


@asynccontextmanager
async def at(path: Path) -> AsyncIterator[Limpet]:
    lp = await opened(path)
    try:
        yield lp
    finally:
        await lp.close()


async def finds(lp: Limpet) -> bool:
    """Whether a verification reports anything, or cannot even be made."""
    try:
        return not (await lp.maintenance.verify()).ok
    except LimpetError:
        return True


# --- any byte ------------------------------------------------------------------------------------


async def judge(specimen: Specimen, path: Path) -> str:
    """What becomes of a damaged copy: refused at the door, found, or provably harmless."""
    try:
        lp = await opened(path)
    except LimpetError as error:
        return f"refused with {error.code}"
    try:
        found = await finds(lp)
        shows = await everything(lp)  # whatever happened, every answer is an answer of ours
        if found:
            return "found"
        different = [name for name in shows if shows[name] != specimen.shows[name]]
        assert not different, f"silently different: {different}"
        return await write_on(lp)
    finally:
        await lp.close()


async def write_on(lp: Limpet) -> str:
    """A file that is called sound can be written, and is sound afterwards, or says that it is not
    (one bit of the header makes it read-only)."""
    ada = await lp.get(ADA)
    try:
        await ada.append("agent.said", actor="agent:ada", inc={"step": 1})
    except limpet.errors.StoreReadOnly:
        return "read-only"
    new = await lp.create(sample.APP, "new", id="new", state={"y": 2}, labels={"plan": "new"})
    assert new.version == 1
    assert {name: v for name, v in new.state.items() if ":" not in name} == {"y": 2}
    assert len(await new.read()) == 1
    assert (await lp.maintenance.verify()).findings == ()
    return "harmless"


async def judge_all(specimen: Specimen, flips: Iterable[tuple[int, int]]) -> dict[str, int]:
    verdicts: dict[str, int] = {}
    for offset, bit in flips:
        try:
            verdict = await judge(specimen, specimen.flipped(offset, bit))
        except BaseException:
            owner = specimen.pages.owner[offset // specimen.pages.size + 1]
            print(f"bit {bit} of byte {offset} ({owner})")
            raise
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    print(verdicts)
    return verdicts


async def test_a_flipped_bit_anywhere_is_found_or_harmless(specimen: Specimen) -> None:
    """Some bits of every page, and of some bytes of the header one."""
    chance = random.Random(seed("flips"))
    places = chance.sample(range(100), tries(20, 100))
    for number in range(1, len(specimen.pages) + 1):
        places += chance.sample(specimen.pages.offsets(number), tries(2, 8))
    verdicts = await judge_all(specimen, [(place, chance.randrange(8)) for place in places])
    assert verdicts["found"] > 10


@pytest.mark.torture
async def test_a_flipped_bit_of_any_byte_is_found_or_harmless(specimen: Specimen) -> None:
    """A bit of every third byte of the file."""
    start = seed("flips")
    chance = random.Random(start)
    places = range(start % 3, len(specimen.pages.content), 3)
    await judge_all(specimen, ((place, chance.randrange(8)) for place in places))


def contents(path: Path) -> dict[str, list[Any]]:
    """Every row of every table as SQLite reads it and as far as the store ever looks at it."""
    conn = apsw.Connection(str(path))
    try:
        return {table: _rows(conn, table) for table in TABLES}
    finally:
        conn.close()


def _rows(conn: apsw.Connection, table: str) -> list[dict[str, Any]]:
    """Facts are compared as they are understood. No log tells which snapshots are pinned, nor when
    a blob was put."""
    columns = [row[1] for row in conn.execute(f"PRAGMA table_info({table})")]
    found = conn.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    rows = [dict(zip(columns, row, strict=True)) for row in found]
    for row in rows:
        row.pop("pin", None)
        row.pop("touched_us", None)
        if row.get("facts") is not None:
            row["facts"] = msgspec.json.decode(row["facts"])
    return rows


async def check_flip_in_row(specimen: Specimen, place: int, bit: int) -> None:
    """Found, or every column of every row still reads the same."""
    path = specimen.flipped(place, bit)
    try:
        lp = await opened(path)
    except LimpetError:
        return
    try:
        found = await finds(lp)
    finally:
        await lp.close()
    clean = contents(specimen.clean)
    assert found or contents(path) == clean, f"bit {bit} of byte {place} was not found"


def places_of(specimen: Specimen, table: str) -> list[int]:
    return [place for row in specimen.pages.rows(table) for place in row.offsets]


@pytest.mark.parametrize("table", TABLES)
async def test_a_flipped_bit_in_a_row_is_found(specimen: Specimen, table: str) -> None:
    """Any column of any table that holds what was recorded: bodies, heads, scopes, certificates."""
    chance = random.Random(seed(f"flips in {table}"))
    places = places_of(specimen, table)
    for place in chance.sample(places, min(tries(20, 120), len(places))):
        await check_flip_in_row(specimen, place, chance.randrange(8))


@pytest.mark.torture
@pytest.mark.parametrize("table", TABLES)
async def test_every_flipped_bit_in_every_row_is_found(specimen: Specimen, table: str) -> None:
    """Every byte of every row, two bits of each."""
    chance = random.Random(seed(f"flips in {table}"))
    for place in places_of(specimen, table):
        for bit in chance.sample(range(8), 2):
            await check_flip_in_row(specimen, place, bit)


@pytest.mark.parametrize("tree", ["events_by_seq", "events_by_id", "sessions", "scopes_by_name"])
async def test_verifying_a_disordered_tree_ends(specimen: Specimen, tree: str) -> None:
    """Two rows that changed places do not send a verification round in circles."""
    root = specimen.pages.roots[tree]
    count = int.from_bytes(specimen.pages.page(root)[3:5], "big")
    start = (root - 1) * specimen.pages.size + 8
    pairs = list(itertools.combinations(range(count), 2))
    chosen = random.Random(seed(f"disorder in {tree}")).sample(pairs, min(40, len(pairs)))
    paths = []
    for one, other in chosen:
        content = bytearray(specimen.pages.content)
        a, b = (slice(start + 2 * n, start + 2 * n + 2) for n in (one, other))
        content[a], content[b] = content[b], content[a]
        paths.append(specimen.directory / f"{one}-{other}.db")
        paths[-1].write_bytes(content)
    with Child("tests.support.verifier", *paths) as child:
        for pair in chosen:
            assert child.line() == "found", f"rows {pair}: {child.complaint()}"


# --- one event -----------------------------------------------------------------------------------


def body_flipped(key: Key, seq: int) -> tuple[str, str, str, str, int]:
    return (
        "UPDATE events SET body = CAST(substr(body, 1, 4) || x'FF' || substr(body, 6) AS BLOB) "
        "WHERE seq = ?4 "
        "AND sid = (SELECT sid FROM sessions WHERE (app, user, id) = (?1, ?2, ?3))",
        key.app,
        key.user,
        key.id,
        seq,
    )


@pytest.mark.parametrize("key", [ADA, BOB, LONG], ids=str)
async def test_one_corrupt_event_costs_one_event(specimen: Specimen, key: Key) -> None:
    """Whichever it is: the session opens, the others are served, the damaged one is marked."""
    events: tuple[Event, ...] = specimen.shows[f"get {key}"][2]
    for lost in events:
        async with at(specimen.changed(*body_flipped(key, lost.seq))) as lp:
            session = await lp.get(key, tail=1_000)
            assert session.version == len(events)
            served = await session.read()
            for event, before in zip(served, events, strict=True):
                if event.seq == lost.seq:
                    assert event.damage is not None
                    assert event.data is None
                    assert (event.id, event.type, event.at_us) == (lost.id, lost.type, lost.at_us)
                else:
                    assert event == before
            assert session.events == served
            assert lost.seq in session.history.damaged
            report = await lp.maintenance.verify()
            assert {finding.seq for finding in report.findings if finding.seq} >= {lost.seq}
            await check_others(specimen, lp, key)
            went_on = await session.append("agent.said", {"text": "on"}, actor="agent:x")
            assert went_on.seq == len(events) + 1


async def check_others(specimen: Specimen, lp: Limpet, damaged: Key) -> None:
    shows = await everything(lp)
    for name in shows:
        forks = damaged == ADA and str(FORK) in name  # reads what is damaged as its parent does
        if name.startswith(("get", "read")) and str(damaged) not in name and not forks:
            assert shows[name] == specimen.shows[name]


async def test_a_damaged_event_is_served_among_those_of_its_type(specimen: Specimen) -> None:
    """A row that SQLite cannot read at all does not bring events that were not asked for."""
    rows = {row.rowid: row for row in specimen.pages.rows("events")}
    content = bytearray(specimen.pages.content)
    path = specimen.write(bytes(content))
    async with at(path) as lp:
        wanted = await lp.session(ADA).read(types=["user.*"])
    conn = apsw.Connection(str(path))
    (pos,) = conn.execute("SELECT pos FROM events WHERE id = 'my-own-id'").fetchone()
    conn.close()
    place = bytes(content).index(b"agent:ada", rows[pos].offsets[0])
    content[place] = 0xFF  # not UTF-8
    async with at(specimen.write(bytes(content))) as lp:
        served = await lp.session(ADA).read(types=["user.*"])
        assert [event.seq for event in served] == [event.seq for event in wanted]
        assert served[0].damage is not None
        assert served[1:] == wanted[1:]


async def test_a_watcher_passes_over_a_row_that_cannot_be_read(specimen: Specimen) -> None:
    """An event stands for it that says so, and all others come as they are."""
    async with at(specimen.write(specimen.pages.content)) as lp:
        whole = [change async for change in first(lp, 20)]
    path = specimen.changed("UPDATE events SET actor = CAST(x'75FF' AS TEXT) WHERE pos = 3")
    async with at(path) as lp:
        seen = [change async for change in first(lp, 20)]
    assert [(c.position, c.key, c.event.seq) for c in seen] == [
        (c.position, c.key, c.event.seq) for c in whole
    ]
    assert [c.position for c in seen if c.event.damage] == ["3"]


async def first(lp: Limpet, count: int) -> AsyncIterator[Any]:
    feed = lp.watch()
    for _ in range(count):
        yield await anext(feed)


@pytest.mark.parametrize("facts", [b'{"a":"\xff"}', b"[1]", b'{"checkpoint":5}'])
async def test_a_damaged_log_of_checkpoints_costs_no_session(tmp_path: Path, facts: bytes) -> None:
    """Which one is the newest is not known then: the session itself is read."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url) as lp:
        s = await lp.create("shop", "ada", "one", state={"n": 1}, actor="user:ada")
        await s.checkpoint()
    conn = apsw.Connection(str(tmp_path / "store.db"))
    change = "UPDATE sessions SET facts = CAST(? AS TEXT) WHERE app = '$$checkpoints'"
    conn.execute(change, (facts,))
    conn.close()
    async with limpet.open(url) as lp:
        (many,) = await lp.get_many([s.key])
        assert many is not None
        assert (await lp.get(s.key)).values == many.values == {"n": 1}


async def test_nothing_is_computed_from_a_state_with_a_hole(specimen: Specimen) -> None:
    """Neither an update nor an envelope; an append, which looks at nothing, is recorded."""
    path = specimen.changed("UPDATE events SET crc = crc + 1 WHERE id = 'my-own-id'")
    async with at(path) as lp:
        session = await lp.get(ADA, actor="agent:ada")
        assert session.history.damaged
        with pytest.raises(limpet.errors.SessionCorrupt):
            session.envelope()
        with pytest.raises(limpet.errors.SessionCorrupt):
            await session.update(lambda state: {"step": 1})
        await session.append("agent.said", set={"step": 1})


async def test_damage_never_speaks_a_foreign_tongue(specimen: Specimen) -> None:
    """Whatever rotted in a row, reading and writing raise our errors or none."""
    chance = random.Random(seed("tongue"))
    for table in ("events", "sessions", "scopes", "snapshots", "labels"):
        places = places_of(specimen, table)
        for place in chance.sample(places, min(tries(8, 80), len(places))):
            bit = chance.randrange(8)
            try:
                await check_verbs(specimen.flipped(place, bit))
            except BaseException:
                print(f"bit {bit} of byte {place} ({table})")
                raise


async def check_verbs(path: Path) -> None:
    try:
        lp = await opened(path)
    except LimpetError:
        return
    try:
        await everything(lp)
        for key in LIVING:
            session = lp.session(key, actor="test:rot")
            for attempt in (
                lambda s=session: s.append("agent.said", id="new", inc={"new": 1}),
                lambda s=session: s.append("agent.said", add={"user:notes": ["x"]}),
                lambda s=session: s.update(lambda state: {"step": state.get("step", 0)}),
                lambda s=session: s.mark_processed([2]),
                lambda s=session: s.label({"plan": None}),
                lambda k=key: lp.maintenance.verify(k),
                lambda k=key: lp.delete(k),
                lambda k=key: lp.erase(k),
            ):
                await refused_or_done(attempt)
    finally:
        await lp.close()


async def refused_or_done(attempt: Callable[[], Any]) -> None:
    with suppress(LimpetError):
        await attempt()


async def test_a_changed_definition_is_found(specimen: Specimen) -> None:
    """An index that was dropped, or a table that somebody else put in, is told by its name."""
    for sql, name in (
        ("DROP INDEX sessions_by_due", "sessions_by_due"),
        ("CREATE TABLE diary (text)", "diary"),
    ):
        path = specimen.write(specimen.pages.content)
        conn = apsw.Connection(str(path))
        conn.execute(sql)
        conn.close()
        async with at(path) as lp:
            (finding,) = (await lp.maintenance.verify()).findings
            assert name in finding.problem


# --- a snapshot ----------------------------------------------------------------------------------


async def check_long(specimen: Specimen, path: Path, *, writable: bool = True) -> None:
    async with at(path) as lp:
        session = await lp.get(LONG, tail=1_000)
        shown = (session.head, dict(session.state), session.events, session.history.damaged)
        assert shown == specimen.shows[f"get {LONG}"]
        if not writable:
            return
        made = await session.append("user.said", {"text": "x"}, actor="a:b", add={"list": ["x"]})
        assert made.seq == len(session.state["list"]) + 1


@pytest.mark.parametrize(
    "change",
    [
        "body = CAST(substr(body, 1, 9) || x'FF' || substr(body, 11) AS BLOB)",
        "body = x''",
        "crc = crc + 1",
        "flags = 1 - flags",
        "flags = 64",
        "seq = seq - 1",
        "seq = seq - 5",
        "seq = seq + 1",
        "seq = 0",
        "seq = -1",
    ],
)
async def test_a_damaged_snapshot_only_costs_time(specimen: Specimen, change: str) -> None:
    """The state is read from the log instead, and is the same."""
    path = specimen.changed(f"UPDATE snapshots SET {change}")
    await check_long(specimen, path)
    async with at(specimen.changed(f"UPDATE snapshots SET {change}")) as lp:
        assert await finds(lp)


async def test_a_lost_snapshot_only_costs_time(specimen: Specimen) -> None:
    """Without it the log is read from its beginning, and nothing is amiss."""
    path = specimen.changed("DELETE FROM snapshots")
    await check_long(specimen, path)


async def test_a_flipped_bit_in_a_snapshot_only_costs_time(specimen: Specimen) -> None:
    """Any byte of its row, and any bit of those that tell SQLite how to read it.

    (A transaction that meets a row without form is refused all writing by SQLite itself; then
    an append says that the store is corrupt.)
    """
    chance = random.Random(seed("flips in snapshots"))
    form = {place for row in specimen.pages.rows("snapshots") for place in row.offsets[:8]}
    every = places_of(specimen, "snapshots")
    for place in tries([*form, *every[::5]], every):
        for bit in range(8) if place in form else (chance.randrange(8),):
            try:
                await check_long(specimen, specimen.flipped(place, bit), writable=place not in form)
            except BaseException:
                print(f"bit {bit} of byte {place}")
                raise


# --- the file ------------------------------------------------------------------------------------


async def test_a_truncated_file_is_refused_or_found(specimen: Specimen) -> None:
    """However much is missing, it is not served as if it were whole.

    (Of no bytes or one nothing can be told: SQLite itself writes a lone byte into new files.)
    """
    chance = random.Random(seed("truncation"))
    whole = specimen.pages.content
    size = specimen.pages.size
    cuts = [2, 50, 99, 100, 512, size - 1, size, size + 1, len(whole) - size, len(whole) - 1]
    for length in [*cuts, *chance.sample(range(2 * size, len(whole)), 20)]:
        verdict = await judge(specimen, specimen.write(whole[:length]))
        # The last page may be a free one, of which nothing is missed.
        assert verdict != "harmless" or length > len(whole) - size, f"cut to {length} bytes"


@pytest.mark.parametrize("garbage", [b"hello", b"\x00" * 4_096, b"# A title\n" * 2_000, None])
async def test_a_file_that_is_no_database_is_left_alone(
    tmp_path: Path, garbage: bytes | None
) -> None:
    """It is refused as foreign, unchanged to the byte, and nothing is put beside it."""
    path = tmp_path / "notes.db"
    content = random.Random(1).randbytes(20_000) if garbage is None else garbage
    path.write_bytes(content)
    with pytest.raises(limpet.errors.StoreForeign):
        async with limpet.open(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path, journal: str) -> None:
    """Tables that are not ours: refused as foreign, unchanged to the byte."""
    path = tmp_path / "theirs.db"
    conn = apsw.Connection(str(path))
    conn.pragma("journal_mode", journal)
    conn.execute("CREATE TABLE events (id, text); INSERT INTO events VALUES (1, 'theirs')")
    conn.close()
    content = path.read_bytes()
    with pytest.raises(limpet.errors.StoreForeign):
        async with limpet.open(f"sqlite:///{path}"):
            pass
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


async def test_a_newer_schema_is_left_alone(specimen: Specimen) -> None:
    """What a later release wrote is refused, unchanged to the byte."""
    path = specimen.write(specimen.pages.content)
    conn = apsw.Connection(str(path))
    conn.pragma("user_version", SCHEMA + 1)
    conn.close()
    content = path.read_bytes()
    with pytest.raises(limpet.errors.StoreNewer) as caught:
        async with limpet.open(f"sqlite:///{path}"):
            pass
    assert (caught.value.found, caught.value.known) == (SCHEMA + 1, SCHEMA)
    assert path.read_bytes() == content


async def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    """A file of no bytes holds nothing of anybody's: it becomes ours."""
    path = tmp_path / "empty.db"
    path.touch()
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create("a", "b", id="c")
        assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("name", ["missing/a.db", "."])
async def test_a_place_that_cannot_hold_a_file_is_told(tmp_path: Path, name: str) -> None:
    """A directory that is not there, or is the path itself, is named in the error."""
    with pytest.raises(limpet.errors.StoreUnopened, match="directory"):
        await SQLiteStore.open(tmp_path / name)


# --- locks, permissions, space -------------------------------------------------------------------


async def test_a_lock_held_elsewhere_is_told_in_time(tmp_path: Path) -> None:
    """Writes are refused as busy, reads go on, and once it is let go the same call succeeds."""
    path = tmp_path / "a.db"
    store = await SQLiteStore.open(path, busy_seconds=0.2)
    async with Limpet("sqlite:///a", store=store) as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})
        with Child("tests.support.locker", path) as locker:
            locker.expect("locked")
            for attempt in (
                lambda: session.append("x.y", actor="a:b", id="once", inc={"n": 1}),
                lambda: lp.create("a", "b", id="d"),
                lambda: lp.delete(session.key),
                lambda: lp.erase(session.key),
            ):
                with pytest.raises(limpet.errors.StoreBusy):
                    await attempt()
            assert (session.version, session.state["n"]) == (1, 0)
            assert (await lp.get(session.key)).state["n"] == 0
            locker.tell("let go")
            locker.end()
        await session.append("x.y", actor="a:b", id="once", inc={"n": 1})
        assert session.state["n"] == 1
        assert (await lp.maintenance.verify()).ok


async def test_a_new_file_locked_elsewhere_is_told_in_time(tmp_path: Path) -> None:
    """Opening a file that somebody else is just making is refused as busy, not as damage."""
    path = tmp_path / "a.db"
    path.touch()
    with Child("tests.support.locker", path) as locker:
        locker.expect("locked")
        with pytest.raises(limpet.errors.StoreBusy):
            await SQLiteStore.open(path, busy_seconds=0.2)
        locker.tell("let go")
        locker.end()
    await (await SQLiteStore.open(path)).close()


async def check_read_only(lp: Limpet) -> None:
    session = await lp.get(ADA)
    before = (session.head, dict(session.state), session.events)
    with pytest.raises(limpet.errors.StoreReadOnly):
        await session.append("x.y", actor="a:b", inc={"step": 1})
    with pytest.raises(limpet.errors.StoreReadOnly):
        await lp.create("a", "b")
    assert (session.head, dict(session.state), session.events) == before


async def test_a_disk_that_may_not_be_written_is_told(specimen: Specimen) -> None:
    """Reading works, writing is refused as read-only, the object stays as it was."""
    path = specimen.write(specimen.pages.content)
    with faulty(Faults(read_only=True)) as vfs:
        store = await SQLiteStore.open(path, vfs=vfs)
        async with Limpet("sqlite:///read-only", store=store) as lp:
            await check_read_only(lp)
    assert path.read_bytes() == specimen.pages.content


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
async def test_a_file_without_permission_is_told(specimen: Specimen) -> None:
    """The same with the permissions of the operating system."""
    path = specimen.write(specimen.pages.content)
    path.chmod(0o444)
    async with at(path) as lp:
        await check_read_only(lp)
    specimen.directory.chmod(0o555)  # no -wal, no -shm can be put beside it
    try:
        with suppress(limpet.errors.StoreReadOnly, limpet.errors.StoreUnopened):
            async with at(path) as lp:
                await check_read_only(lp)
    finally:
        specimen.directory.chmod(0o755)
    assert path.read_bytes() == specimen.pages.content


async def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    """The append that finds no space leaves no trace, and succeeds once there is some."""
    store = await SQLiteStore.open(tmp_path / "a.db")
    async with Limpet("sqlite:///a", store=store) as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})

        async def pages_max(number: int) -> None:
            await on_writer(store, lambda writer: writer.conn.pragma("max_page_count", number))

        await pages_max(1)  # as many as there are
        large = {"raw": random.Random(2).randbytes(40_000).hex()}
        for _ in range(2):
            with pytest.raises(limpet.errors.StoreFull):
                await session.append("x.y", large, actor="a:b", id="large", inc={"n": 1})
        assert (session.version, session.state["n"]) == (1, 0)
        small = await session.append("x.y", actor="a:b", id="small", inc={"n": 1})
        assert small.seq == 2
        await pages_max(100_000)
        await session.append("x.y", large, actor="a:b", id="large", inc={"n": 1})
        assert (session.version, session.state["n"]) == (3, 2)
        assert (await lp.maintenance.verify()).ok


async def test_a_file_that_may_not_grow_is_told_and_passes(tmp_path: Path) -> None:
    """Under a limit on file size (RLIMIT_FSIZE): our error, nothing lost, and life goes on."""
    path = tmp_path / "a.db"
    with Child("tests.support.cramped", path) as child:
        said = list(child.lines())
        child.end()
    assert said[-1] == "fine", said
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.get(Key("a", "b", "c"))
        acknowledged = [line.removeprefix("did ") for line in said if line.startswith("did ")]
        recorded = [event.id for event in await session.read(limit=1_000)][1:]
        assert recorded == acknowledged
        assert session.state["n"] == len(acknowledged)
        assert (await lp.maintenance.verify()).ok
