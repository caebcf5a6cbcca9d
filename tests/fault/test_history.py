"""History when the world misbehaves: damaged events and segments, and processes that are killed."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft
from limpet.errors import CheckpointIntegrity
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.writer import writer_of
from limpet.store.coding import codec
from limpet.store.sqlite.reading.reader import SQLiteReader
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.seeds import seed

Made = limpet.Session[Any]
KEY = limpet.Key("shop", "ada", "1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def execute(path: Path, sql: str, *args: Any) -> list[Any]:
    conn = sqlite3.connect(path)
    try:
        found = conn.execute(sql, args).fetchall()
        conn.commit()
        return found
    finally:
        conn.close()


async def filled(path: Path) -> list[limpet.CheckpointRef]:
    """Nine events, and checkpoints after the third (full), the sixth and the ninth."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
        refs = []
        for number in range(2, 10):
            await s.append("agent.did", {"text": f"event {number}"}, inc={"n": 1})
            if number % 3 == 0:
                refs.append(await s.checkpoint(full=number == 3))
    return refs


def damage(path: Path, seq: int) -> None:
    """Turn a bit in the body of an event. Snapshots beyond it go too, or they would save it."""
    where = "sid = (SELECT sid FROM sessions WHERE app = 'shop') AND seq"
    ((body,),) = execute(path, f"SELECT body FROM events WHERE {where} = ?", seq)
    rotten = bytes((body[0] ^ 1, *body[1:]))
    execute(path, f"UPDATE events SET body = ? WHERE {where} = ?", rotten, seq)
    execute(path, f"DELETE FROM snapshots WHERE {where} >= ?", seq)


# --- restoring -----------------------------------------------------------------------------------


async def test_a_damaged_checkpoint_falls_back_to_the_full_one_before_it(path: Path) -> None:
    """Only if that is allowed; the state is then the one that the log gives there."""
    refs = await filled(path)
    damage(path, 5)
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = lp.session(KEY, actor="agent:main")
        for ref in refs[1:]:
            with pytest.raises(CheckpointIntegrity, match="event 5"):
                await s.history.restore(ref)
        done = await s.history.restore(refs[2], fallback=True)
        assert done.event is not None
        assert (done.event.data["checkpoint"], done.event.data["at"]) == (1, 3)
        assert writer_of(s).known.fields == {"n": 2}
        with pytest.raises(limpet.errors.SessionCorrupt):
            await s.checkpoint()


async def test_without_a_good_full_checkpoint_nothing_is_restored(path: Path) -> None:
    """Not even with a fallback: no state is made up."""
    refs = await filled(path)
    damage(path, 2)
    async with limpet.open(f"sqlite:///{path}") as lp:
        with pytest.raises(CheckpointIntegrity):
            await lp.session(KEY, actor="agent:main").history.restore(refs[2], fallback=True)
        fork_from = lp.session(KEY, actor="agent:main")
        assert (await fork_from.fork(1, id="f")).state == {"n": 0}


async def test_a_damaged_snapshot_of_a_checkpoint_costs_time_only(path: Path) -> None:
    """The log still gives the state, and it is compared with the checksum."""
    refs = await filled(path)
    execute(path, "UPDATE snapshots SET body = x'00' WHERE pin IS NOT NULL")
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get(KEY, actor="agent:main")
        await s.history.restore(refs[0])
        assert s.state == {"n": 2}
        assert not (await lp.maintenance.verify()).ok


async def test_a_pinned_state_saves_what_damage_before_it_would_cost(path: Path) -> None:
    """A full checkpoint after the damaged event is read from its own snapshot."""
    await filled(path)
    async with limpet.open(f"sqlite:///{path}") as lp:
        ref = await (await lp.get(KEY, actor="agent:main")).checkpoint(full=True)
    ((body,),) = execute(path, "SELECT body FROM events WHERE seq = 5 AND type = 'agent.did'")
    execute(path, "UPDATE events SET body = ? WHERE body = ?", b"x" + body[1:], body)
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get(KEY, actor="agent:main")
        await s.append("agent.did", set={"n": 99})
        await s.history.restore(ref)
        assert s.state == {"n": 8}


async def test_restoring_reads_the_state_and_a_few_deltas(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most |state| + (F - 1) · max |delta|, however long the log is."""
    every, per_delta = 5, 20
    refs = []
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.policies.checkpointing(
            "shop", limpet.CheckpointPolicy(full_every=every, keep=1_000)
        )
        s = await lp.create("shop", "ada", "1", state={"n": 0, "x": "y" * 3_000}, actor="a")
        for _ in range(30):
            await s.append_many(
                [Draft(type="agent.did", data={"text": "z" * 50}) for _ in range(per_delta)]
            )
            refs.append(await s.checkpoint())
    read: list[int] = []  # the sizes of all bodies
    unpack, sized = codec.Codec.unpack, SQLiteReader._read_page

    def unpacked(*args: Any, **named: Any) -> bytes:
        read.append(len(unpack(*args, **named)))
        return unpack(*args, **named)

    def paged(*args: Any, **named: Any) -> Any:
        page = sized(*args, **named)
        read.extend([size for _, size in page])  # of events, which are too short to be packed
        return page

    monkeypatch.setattr(codec.Codec, "unpack", unpacked)
    monkeypatch.setattr(SQLiteReader, "_read_page", paged)
    async with limpet.open(f"sqlite:///{path}") as lp:
        store = writer_of(lp.session(KEY)).journal.store
        state = max([await taken(store, ref, read) for ref in refs[::every]])  # full ones
        one = await taken(store, refs[1], read) - await taken(store, refs[0], read)
        assert 3_000 < state < 4_000
        assert per_delta * 50 < one < per_delta * 100
        for place, ref in enumerate(refs):
            assert await taken(store, ref, read) <= state + (every - 1) * one
            assert await taken(store, ref, read) <= state + place % every * one  # of the nearest


async def taken(store: Any, ref: limpet.CheckpointRef, read: list[int]) -> int:
    """How many bytes are read for the state at a checkpoint."""
    read.clear()
    await store.fold_at(ref.key, ref.seq)
    return sum(read)


# --- segments ------------------------------------------------------------------------------------


async def cold(path: Path) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
        for number in range(60):
            await s.append("agent.did", {"text": f"event {number}"}, inc={"n": 1}, id=f"e{number}")
        await lp.policies.retention("shop", events=5)
        await lp.maintenance.compact()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE segments SET body = zeroblob(length(body))",
        "UPDATE segments SET crc = crc + 1",
        "UPDATE segments SET link = zeroblob(32)",
        "UPDATE segments SET previous = zeroblob(32)",
        "UPDATE segments SET last_us = last_us + 1",
        "DELETE FROM segments",
        "UPDATE segment_ids SET mark = mark + 1 WHERE seq = 7",
        "DELETE FROM segment_ids WHERE seq = 7",
        "INSERT INTO segments SELECT 99, first, last, flags, body, crc, previous, link, last_us "
        "FROM segments",
    ],
)
async def test_damage_to_a_segment_is_found(path: Path, change: str) -> None:
    """And the newest state, which stands on a snapshot, is still read."""
    await cold(path)
    execute(path, change)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.maintenance.verify()).findings
        assert (await lp.get(KEY)).state == {"n": 60}


async def test_events_of_a_damaged_segment_are_stood_in_for(path: Path) -> None:
    """Each says why it cannot be read; those after it are whole."""
    await cold(path)
    execute(path, "UPDATE segments SET body = zeroblob(length(body))")
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get(KEY)
        events = await s.read(limit=100)
        assert [event.seq for event in events] == [*range(1, 62)]
        assert [event.damage is None for event in events].count(True) == 5
        with pytest.raises(limpet.errors.SessionCorrupt):
            await s.history.at(10)


async def test_nothing_is_left_of_the_segments_of_an_ended_session(path: Path) -> None:
    """Deleted or erased, its rows go."""
    await cold(path)
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.erase(KEY)
    assert execute(path, "SELECT count(*) FROM segments") == [(0,)]
    assert execute(path, "SELECT count(*) FROM segment_ids") == [(0,)]
    assert b"event 7" not in path.read_bytes()


# --- kill -9 -------------------------------------------------------------------------------------


async def test_a_process_killed_in_fork_restore_or_compaction_loses_nothing(
    path: Path,
) -> None:
    """Between any two steps: what it had said is there, and everything verifies; a checkpoint that
    is listed has its file, whole."""
    chance = random.Random(seed("history"))
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.policies.checkpointing("shop", limpet.CheckpointPolicy(tier=f"file://{path}-tier"))
    for _ in range(tries(4, 40)):
        with Child("tests.support.historian", path) as child:
            said = int(child.killed_after(chance.randrange(1, 30), chance.uniform(0, 3_000))[-1])
        async with limpet.open(f"sqlite:///{path}") as lp:
            assert (await lp.maintenance.verify()).findings == ()
            s = await lp.get(KEY)
            assert await s.read_ids([f"e{said}"])
            assert [event.seq for event in await everything(s)] == [*range(1, s.version + 1)]
            tiers = store_checkpoints(writer_of(s).journal).tiers
            for each in (await s.history.checkpoints()).items:
                assert each.place is not None
                assert await tiers.fields((KEY, s.head.uid), each.place) == await s.history.at(
                    each.ref
                )


async def everything(s: Made) -> list[limpet.Event]:
    found: list[limpet.Event] = []
    while page := await s.read(after=found[-1].seq if found else 0, limit=1_000):
        found += page
    return found


# --- from another place ---------------------------------------------------------------------------


async def kept_elsewhere(path: Path, tier: Path) -> list[limpet.CheckpointRef]:
    """As `filled`, by an app that keeps its checkpoints in a directory, too."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.policies.checkpointing("shop", limpet.CheckpointPolicy(tier=f"file://{tier}"))
    return await filled(path)


@pytest.mark.parametrize("number", [2, 3])
async def test_a_damaged_checkpoint_is_read_from_its_tier(path: Path, number: int) -> None:
    """The very one that was asked for, though the log cannot give its state any more."""
    refs = await kept_elsewhere(path, path.parent / "tier")
    damage(path, 5)
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = lp.session(KEY, actor="agent:main")
        done = await s.history.restore(refs[number - 1])
        assert done.event is not None
        assert done.event.data["tier"] == f"file://{path.parent}/tier"
        assert (done.event.data["checkpoint"], done.event.data["at"]) == (number, 3 * number)
        assert writer_of(s).known.fields == {"n": 3 * number - 1}
        assert done.event.data["checksum"] == refs[number - 1].checksum


async def test_a_file_that_is_not_of_its_checkpoint_is_not_taken(path: Path) -> None:
    """Changed, exchanged or gone, of it or of the full one that it needs: then as without it."""
    tier = path.parent / "tier"
    refs = await kept_elsewhere(path, tier)
    damage(path, 5)
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get(KEY, actor="agent:main")
        full, one, two = [tier / place.file for place in await places(s)]
        whole = {each: each.read_bytes() for each in (full, one, two)}
        for broken in (one.write_bytes, full.write_bytes):
            for raw in (b"", whole[two], whole[full][:-9] + b"x" + whole[full][-8:]):
                broken(raw)
                with pytest.raises(CheckpointIntegrity, match="event 5"):
                    await s.history.restore(refs[1])
            one.write_bytes(whole[one])
            full.write_bytes(whole[full])
        one.unlink()
        done = await s.history.restore(refs[1], fallback=True)
        assert done.event is not None
        assert (done.event.data["checkpoint"], "tier" in done.event.data) == (1, False)


async def places(s: limpet.Session[Any]) -> list[Any]:
    return [each.place for each in (await s.history.checkpoints()).items[::-1]]


async def test_a_session_is_resumed_from_the_tier_of_its_checkpoint(path: Path) -> None:
    """Where a fallback is allowed, the newest checkpoint itself is restored, not an older one."""
    await kept_elsewhere(path, path.parent / "tier")
    async with limpet.open(f"sqlite:///{path}") as lp:
        await (await lp.get(KEY, actor="agent:main")).suspend()
    damage(path, 5)
    async with limpet.open(f"sqlite:///{path}") as lp:
        s, report = await lp.resume(KEY, fallback=True)
        assert (s.phase, writer_of(s).known.fields, report.fell_back) == ("active", {"n": 8}, True)
        assert any("of file://" in warning for warning in report.warnings)
