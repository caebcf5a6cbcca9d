"""History and life on a server when the world misbehaves: damage, and clients that are killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import limpet
from limpet.errors import CheckpointIntegrity
from limpet.session.writer import writer_of
from tests.support.examples import tries
from tests.support.postgres import without_clients
from tests.support.processes import Child
from tests.support.seeds import seed

KEY = limpet.Key("shop", "ada", "1")
OWN = "sid = (SELECT sid FROM limpet.sessions WHERE app = 'shop') AND seq"
FLIPPED = "set_byte(body, length(body) / 2, get_byte(body, length(body) / 2) # 1)"


async def execute(url: str, *statements: str) -> None:
    conn = await asyncpg.connect(url)
    try:
        for sql in statements:
            await conn.execute(sql)
    finally:
        await conn.close()


async def filled(url: str) -> list[limpet.CheckpointRef]:
    """Nine events, and checkpoints after the third (full), the sixth and the ninth."""
    async with limpet.open(url) as lp:
        s = await lp.create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
        refs = []
        for number in range(2, 10):
            await s.append("agent.did", {"text": f"event {number}"}, inc={"n": 1})
            if number % 3 == 0:
                refs.append(await s.checkpoint(full=number == 3))
    return refs


async def test_a_damaged_checkpoint_falls_back_to_the_full_one_before_it(
    postgres_store_url: str,
) -> None:
    """Only if that is allowed; the state is then the one that the log gives there."""
    url = postgres_store_url
    refs = await filled(url)
    rot = f"UPDATE limpet.events SET body = {FLIPPED} WHERE {OWN} = 5"
    await execute(url, rot, f"DELETE FROM limpet.snapshots WHERE {OWN} >= 5")
    async with limpet.open(url) as lp:
        s = lp.session(KEY, actor="agent:main")
        for ref in refs[1:]:
            with pytest.raises(CheckpointIntegrity, match="event 5"):
                await s.history.restore(ref)
        done = await s.history.restore(refs[2], fallback=True)
        assert done.event is not None
        assert (done.event.data["checkpoint"], done.event.data["at"]) == (1, 3)
        assert writer_of(s).known.fields == {"n": 2}


async def test_a_damaged_snapshot_of_a_checkpoint_costs_time_only(postgres_store_url: str) -> None:
    """The log still gives the state, and it is compared with the checksum."""
    url = postgres_store_url
    refs = await filled(url)
    await execute(url, "UPDATE limpet.snapshots SET body = '' WHERE pin IS NOT NULL")
    async with limpet.open(url) as lp:
        s = await lp.get(KEY, actor="agent:main")
        await s.history.restore(refs[0])
        assert s.state == {"n": 2}
        assert not (await lp.maintenance.verify()).ok


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE limpet.segments SET body = {FLIPPED}",
        "UPDATE limpet.segments SET crc = crc + 1",
        "UPDATE limpet.segments SET link = decode(repeat('00', 32), 'hex')",
        "UPDATE limpet.segments SET previous = decode(repeat('00', 32), 'hex')",
        "DELETE FROM limpet.segments",
        "DELETE FROM limpet.segment_ids WHERE seq = 7",
    ],
)
async def test_damage_to_a_segment_is_found(postgres_store_url: str, change: str) -> None:
    """And the newest state, which stands on a snapshot, is still read."""
    url = postgres_store_url
    async with limpet.open(url) as lp:
        s = await lp.create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
        drafts = [limpet.Draft(type="agent.did", inc={"n": 1}) for _ in range(60)]
        await s.append_many(drafts)
        await lp.policies.retention("shop", events=5)
        await lp.maintenance.compact()
    await execute(url, change)
    async with limpet.open(url) as lp:
        assert (await lp.maintenance.verify()).findings
        assert (await lp.get(KEY)).state == {"n": 60}


async def test_rungs_stay_where_they_take_little_of_the_log(postgres_store_url: str) -> None:
    """Of a state that grows like its log the newest alone, of a small one all."""
    url, noise = postgres_store_url, random.Random(1)
    async with limpet.open(url) as lp:
        grown = await lp.create("shop", "ada", "1", state={"log": []}, actor="agent:main")
        small = await lp.create("shop", "ada", "2", state={"n": 0}, actor="agent:main")
        for _ in range(80):
            text = noise.randbytes(2_000).hex()
            await grown.append("agent.did", {"text": text}, add={"log": [text]})
            await small.append("agent.did", {"text": text}, inc={"n": 1})
        assert len((await grown.history.at(30))["log"]) == 29
        assert (await lp.maintenance.verify()).findings == ()
    conn = await asyncpg.connect(url)
    try:
        of = (
            "SELECT id, count(*) FROM limpet.sessions JOIN limpet.snapshots USING (sid) GROUP BY id"
        )
        counts = dict(await conn.fetch(of))
        assert counts["1"] == 1
        assert counts["2"] > 2
    finally:
        await conn.close()


# --- kill -9 -------------------------------------------------------------------------------------


async def test_a_client_killed_in_fork_restore_or_compaction_loses_nothing(
    postgres_store_url: str,
) -> None:
    """Between any two steps: what it had said is there, and everything verifies."""
    url = postgres_store_url
    chance = random.Random(seed("postgres history"))
    for _ in range(tries(2, 20)):
        with Child("tests.support.historian", url) as child:
            said = int(child.killed_after(chance.randrange(1, 30), chance.uniform(0, 3_000))[-1])
        await without_clients(url)
        async with limpet.open(url) as lp:
            assert (await lp.maintenance.verify()).findings == ()
            s = await lp.get(KEY)
            assert await s.read_ids([f"e{said}"])
            found: list[int] = []
            while page := await s.read(after=found[-1] if found else 0, limit=1_000):
                found += [event.seq for event in page]
            assert found == [*range(1, s.version + 1)]
            for each in (await s.history.checkpoints()).items:
                await s.history.at(each.ref)


async def test_a_killed_client_leaves_each_session_in_one_phase(
    postgres_store_url: str, tmp_path: Path
) -> None:
    """Between any two steps of suspend, resume, sweep, archive and unarchive."""
    url = postgres_store_url
    chance = random.Random(seed("postgres life"))
    for round in tries(range(1), range(20)):
        cold = tmp_path / f"{round}"
        with Child("tests.support.liver", url, cold) as child:
            said = child.killed_after(chance.randrange(1, 13), chance.uniform(0, 20_000))
        await without_clients(url)
        await check(url, cold, {line.split()[1] for line in said})


async def check(url: str, cold: Path, said: set[str]) -> None:
    """Each session is there, in one phase, and its log is whole."""
    how: dict[str, Any] = {"archive": f"file://{cold}"}
    async with limpet.open(url, **how) as lp:
        assert (await lp.maintenance.verify()).ok
        await lp.work.sweep()  # finishes what was between the store and the archive
        for id in said:
            key = limpet.Key("kill", "ada", id)
            try:
                s = await lp.get(key)
            except limpet.errors.SessionArchived:
                s = await lp.get(key, archived=True)
            log = await s.read(limit=100)
            assert [event.seq for event in log] == list(range(1, s.version + 1))
            assert [event.type for event in log[:2]] == ["session.created", "user.message"]
        assert (await lp.maintenance.verify()).ok


async def test_a_damaged_checkpoint_is_read_from_its_tier(
    postgres_store_url: str, tmp_path: Path
) -> None:
    """The very one that was asked for, though the log cannot give its state any more."""
    url = postgres_store_url
    async with limpet.open(url) as lp:
        await lp.policies.checkpointing(
            "shop", limpet.CheckpointPolicy(tier=f"file://{tmp_path}/tier")
        )
    refs = await filled(url)
    rot = f"UPDATE limpet.events SET body = {FLIPPED} WHERE {OWN} = 5"
    await execute(url, rot, f"DELETE FROM limpet.snapshots WHERE {OWN} >= 5")
    async with limpet.open(url) as lp:
        s = lp.session(KEY, actor="agent:main")
        done = await s.history.restore(refs[2])
        assert done.event is not None
        assert (done.event.data["checkpoint"], done.event.data["at"]) == (3, 9)
        assert writer_of(s).known.fields == {"n": 8}
