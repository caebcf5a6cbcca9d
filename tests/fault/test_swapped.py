"""Snapshots and bases in another's place, or of another history: never a state that the log does
not have. Rows are moved behind the store's back."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec
import pytest

from limpet import errors
from limpet.model.commit import Commit
from limpet.model.keys import Key
from limpet.model.values import FrozenDict, checksum
from limpet.store.coding import bodies
from limpet.store.protocol import Query, Seal
from limpet.store.sqlite.rows import unpack_id
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, load, log
from limpet.testing.histories import fork
from tests.support.seal import FixedKeySeal

A, B, C, D = (key(id) for id in "abcd")


@pytest.fixture(params=[None, FixedKeySeal()], ids=["plain", "sealed"])
def seal(request: pytest.FixtureRequest) -> Seal | None:
    found: Seal | None = request.param
    return found


@asynccontextmanager
async def at(path: Path, seal: Seal | None) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(path, sync="off", seal=seal)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def path(tmp_path: Path, seal: Seal | None) -> Path:
    """Two sessions with a pinned snapshot each at 3 and 5, and a fork of each after event 4."""
    path = tmp_path / "a.db"
    async with at(path, seal) as store:
        for of, by in ((A, 1), (B, 100)):
            await create(store, of, {"n": 0})
            for seq in range(2, 7):
                pin = seq if seq in (3, 5) else None
                await store.commit([Commit(of, (draft(inc={"n": by}),), pin=pin)])
        await fork(store, C, A, 4, draft(inc={"n": 10_000}))
        await fork(store, D, B, 4, draft(inc={"n": 10_000}))
        assert (await store.verify(None)).findings == ()
    return path


def run(path: Path, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    conn = apsw.Connection(str(path))
    try:
        found = conn.execute(sql, args).fetchall()
        assert found or conn.total_changes(), "nothing was changed"
        return found
    finally:
        conn.close()


def sid(of: Key) -> str:
    return f"(SELECT sid FROM sessions WHERE id = '{of.id}')"


async def n_of(path: Path, seal: Seal | None, of: Key) -> tuple[Any, list[Any]]:
    """What a load, a page of states and every fold say, in a new process's eyes."""
    async with at(path, seal) as store:
        loaded = await load(store, of)
        page = await store.heads(Query(app="shop"), cursor=None, limit=9, states=True)
        if not loaded.damaged:
            assert page.states[of] == loaded.fields
        folds = [(await store.fold_at(of, seq)).fields["n"] for seq in range(1, 7)]
        return loaded.fields["n"], folds


# --- snapshots -----------------------------------------------------------------------------------

SWAPS = {
    "between sessions": "UPDATE snapshots SET sid = {a} + {b} - sid WHERE sid IN ({a}, {b})",
    "within one": "UPDATE snapshots SET seq = 8 - seq, sid = -sid WHERE sid = {a};"
    "UPDATE snapshots SET sid = -sid WHERE sid < 0",
    "to another version": "UPDATE snapshots SET seq = seq + 1 WHERE sid = {a}",
    "copied over another": "UPDATE snapshots SET (flags, body, crc) = "
    "(SELECT o.flags, o.body, o.crc FROM snapshots o WHERE o.sid = {b} AND o.seq = snapshots.seq) "
    "WHERE sid = {a}",
    "an older one over a newer": "UPDATE snapshots SET (flags, body, crc) = "
    "(SELECT o.flags, o.body, o.crc FROM snapshots o WHERE o.sid = {a} AND o.seq = 3) "
    "WHERE sid = {a} AND seq = 5",
}


@pytest.mark.parametrize("swap", SWAPS)
async def test_a_swapped_snapshot_yields_no_other_state(
    path: Path, seal: Seal | None, swap: str
) -> None:
    """It is passed over: the state is the log's, at every version, and verify finds the swap."""
    sql = SWAPS[swap]
    if swap == "between sessions":  # their rows would meet on the way
        run(path, f"UPDATE snapshots SET sid = -({sid(A)} + {sid(B)} - sid)")
        run(path, "UPDATE snapshots SET sid = -sid")
    else:
        for part in sql.format(a=sid(A), b=sid(B)).split(";"):
            run(path, part)
    assert await n_of(path, seal, A) == (5, [0, 1, 2, 3, 4, 5])
    async with at(path, seal) as store:
        found = (await store.verify(None)).findings
        assert {finding.where for finding in found} == {"snapshot"}
        assert (await add(store, A, draft(inc={"n": 1}))).fields["n"] == 6


async def test_a_snapshot_of_a_diverged_copy_yields_no_other_state(
    path: Path, seal: Seal | None, tmp_path: Path
) -> None:
    """The same session, version and time; another event below it, so another link."""
    other = tmp_path / "other.db"
    shutil.copy(path, other)
    for each, by in ((path, 1), (other, 1_000)):
        async with at(each, seal) as store:
            await store.commit([Commit(A, (draft(inc={"n": by}),), pin=7)])
    (row,) = run(other, f"SELECT flags, body, crc FROM snapshots WHERE sid = {sid(A)} AND seq = 7")
    run(
        path,
        f"UPDATE snapshots SET flags = ?, body = ?, crc = ? WHERE sid = {sid(A)} AND seq = 7",
        *row,
    )
    assert (await n_of(path, seal, A))[0] == 6
    async with at(path, seal) as store:
        (finding,) = (await store.verify(None)).findings
        assert (finding.where, finding.key, finding.seq) == ("snapshot", A, 7)


async def test_a_rolled_back_log_is_not_covered_by_its_snapshots(
    path: Path, seal: Seal | None
) -> None:
    """Where an event is gone its snapshot is not taken for it."""
    run(path, f"DELETE FROM events WHERE sid = {sid(A)} AND seq = 5")
    async with at(path, seal) as store:
        loaded = await load(store, A)
        assert (loaded.fields["n"], loaded.damaged) == (4, (5,))
        assert not (await store.verify(A)).ok


async def test_a_changed_snapshot_with_a_right_checksum_is_still_another(
    path: Path, seal: Seal | None
) -> None:
    """Its state may be sworn to; its link is not one of the log's unless the log has it."""
    ((body,),) = run(path, f"SELECT body FROM snapshots WHERE sid = {sid(A)} AND seq = 5")
    (found,) = run(path, f"SELECT uid FROM sessions WHERE sid = {sid(A)}")
    if seal is None:
        raw = msgspec.json.encode({**msgspec.json.decode(body), "link": "00" * 32})
    else:  # nobody can make one: this is another's
        raw = body[::-1]
    place = bodies.snapshot_place(unpack_id(found[0]), 5, bytes(32))
    sworn = crc32(place.aad(), crc32(raw))
    run(
        path, f"UPDATE snapshots SET body = ?, crc = ? WHERE sid = {sid(A)} AND seq = 5", raw, sworn
    )
    assert (await n_of(path, seal, A))[0] == 5


async def test_a_state_with_a_hole_is_not_pinned(path: Path, seal: Seal | None) -> None:
    """A snapshot of it would hide that an event cannot be read."""
    run(path, f"UPDATE events SET crc = crc + 1 WHERE sid = {sid(A)} AND seq = 6")
    async with at(path, seal) as store:
        with pytest.raises(errors.SessionCorrupt):
            await store.commit([Commit(A, (draft(),), pin=9)])
        await add(store, A)
    async with at(path, seal) as store:
        assert (await load(store, A)).damaged == (6,)


# --- bases ---------------------------------------------------------------------------------------


def swap_bases(path: Path) -> None:
    run(path, f"UPDATE bases SET sid = -({sid(C)} + {sid(D)} - sid)")
    run(path, "UPDATE bases SET sid = -sid")


def change_base(path: Path, *, sworn: bool) -> None:
    """Another state, with the checksums that anybody can compute."""
    ((flags, body),) = run(path, f"SELECT flags, body FROM bases WHERE sid = {sid(C)}")
    raw = body[::-1]  # sealed: nobody can make one, so this is another's
    if not flags:
        content = {**msgspec.json.decode(body), "fields": {"n": 77}}
        if sworn:
            content["checksum"] = checksum(FrozenDict({"n": 77})).hex()
        raw = msgspec.json.encode(content)
    (found,) = run(path, f"SELECT uid FROM sessions WHERE sid = {sid(C)}")
    crc = crc32(bodies.base_place(unpack_id(found[0]), 4).aad(), crc32(raw))
    run(path, f"UPDATE bases SET body = ?, crc = ? WHERE sid = {sid(C)}", raw, crc)


CHANGES = {
    "swapped": swap_bases,
    "changed": lambda path: change_base(path, sworn=False),
    "changed and sworn to": lambda path: change_base(path, sworn=True),
    "gone": lambda path: run(path, f"DELETE FROM bases WHERE sid = {sid(C)}"),
    "rotten": lambda path: run(path, "UPDATE bases SET crc = crc + 1"),
}


@pytest.mark.parametrize("how", CHANGES)
async def test_another_base_is_told_and_not_used(path: Path, seal: Seal | None, how: str) -> None:
    """The session's first event names the state it began on: nothing else is folded onto."""
    async with at(path, seal) as store:
        assert (await load(store, C)).fields["n"] == 10_003
    CHANGES[how](path)
    async with at(path, seal) as store:
        loaded = await load(store, C)
        assert loaded.damaged == (4,)  # the state is known to be without what it began on
        assert loaded.fields.get("n") in (None, 10_000)
        with pytest.raises(errors.SessionCorrupt):
            await store.base(C)
        with pytest.raises(errors.SessionCorrupt):
            await store.fold_at(C, 6)
        with pytest.raises(errors.SessionCorrupt):
            await store.commit([Commit(C, (draft(),), guards={"n": 6})])
        page = await store.heads(Query(app="shop"), cursor=None, limit=9, states=True)
        assert C in page.damaged
        found = (await store.verify(None)).findings
        assert ("base", C) in {(finding.where, finding.key) for finding in found}
        assert (await load(store, A)).fields["n"] == 5


# --- marks of inputs -----------------------------------------------------------------------------


async def test_a_mark_that_was_taken_away_is_found(path: Path, seal: Seal | None) -> None:
    """That an event was appended as an input is in its chain; so is that it was not."""
    async with at(path, seal) as store:
        await add(store, A, draft("tool.asked", input=True), draft("user.said"), draft())
    for seq, value in ((7, "NULL"), (8, "NULL"), (9, "0"), (7, "6")):
        other = path.with_name(f"{seq}{value}.db")
        shutil.copy(path, other)
        run(other, f"UPDATE events SET processed = {value} WHERE sid = {sid(A)} AND seq = {seq}")
        async with at(other, seal) as store:
            findings = (await store.verify(A)).findings
            assert "event" in {finding.where for finding in findings}, (seq, value)


# --- what forks stand on -------------------------------------------------------------------------


async def count(path: Path, of: int) -> int:
    ((found,),) = run(path, "SELECT count(*) FROM events WHERE sid = ?", of)
    return int(found)


async def test_what_nobody_reads_any_more_is_purged(path: Path, seal: Seal | None) -> None:
    """Of a deleted parent the rows up to the highest floor stay; with the last fork they go."""
    ((number,),) = run(path, f"SELECT {sid(A)}")
    async with at(path, seal) as store:
        await fork(store, key("low"), A, 2)
        before = await log(store, C)
        await store.delete(A)
    assert await count(path, number) == 4
    async with at(path, seal) as store:
        assert await log(store, C) == before
        await store.delete(C)
    assert await count(path, number) == 2
    async with at(path, seal) as store:
        await store.erase(key("low"))
        assert (await store.verify(None)).findings == ()
    assert await count(path, number) == 0
    for table in ("snapshots", "bases", "purges"):
        assert run(path, f"SELECT count(*) FROM {table} WHERE sid = {number}") == [(0,)]
