"""Snapshots: a cache of the fold that costs time when it is lost, and never the truth."""

from __future__ import annotations

import random
from pathlib import Path
from zlib import crc32

import apsw
import pytest

import limpet

FORGED = b'{"fields":{"n":999},"versions":{"n":1}}'
CHECKED = b'{"fields":{"n":999},"versions":{"n":1},"checksum":"' + b"0" * 64 + b'"}'


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database whose one session was worth a snapshot when it was closed."""
    path = tmp_path / "store.db"
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create("a", "u", id="1", state={"n": 0})
        for _ in range(60):
            await s.append("a.b", {"text": "x" * 300}, actor="x", inc={"n": 1})
    return path


def change(path: Path, sql: str, *args: object) -> None:
    conn = apsw.Connection(str(path))
    conn.execute(sql, args)
    assert conn.changes() == 1
    conn.close()


async def test_a_close_leaves_a_snapshot_of_the_last_version(path: Path) -> None:
    """The next process starts from it and finds the state that was."""
    conn = apsw.Connection(str(path))
    assert conn.execute("SELECT seq FROM snapshots").fetchall() == [(61,)]
    conn.close()
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.get(("a", "u", "1"))).state == {"n": 60}
        assert (await lp.maintenance.verify()).findings == ()


async def test_short_processes_do_not_each_write_a_large_state_again(tmp_path: Path) -> None:
    """A snapshot comes when the log has grown by half of it: the file does not fill with them."""
    url = f"sqlite:///{tmp_path}/store.db?sync=normal"
    kept, noise = 64 * 2**10, random.Random(1)
    async with limpet.open(url) as lp:
        await lp.create("a", "u", id="1", state={"large": "x" * kept})
    for number in range(12):
        async with limpet.open(url) as lp:
            s = await lp.get(("a", "u", "1"))
            text = noise.randbytes(9_000).hex()  # half of it is left when it is compressed
            await s.append("a.b", {"text": text}, actor="x", set={"n": number})
    conn = apsw.Connection(str(tmp_path / "store.db"))
    assert conn.execute("SELECT count(*) FROM snapshots").get == 4  # not one each
    conn.close()
    async with limpet.open(url) as lp:
        assert (await lp.get(("a", "u", "1"))).state == {"large": "x" * kept, "n": 11}


async def test_a_state_that_grows_like_its_log_has_one_snapshot(tmp_path: Path) -> None:
    """The one before would take much of the log and save little. Pinned ones stay."""
    path, noise = tmp_path / "store.db", random.Random(1)
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create("a", "u", id="1", state={"log": []})
        for number in range(100):
            text = noise.randbytes(2_000).hex()
            await s.append("a.b", {"text": text}, actor="x", add={"log": [text]})
            if number == 50:
                await s.checkpoint("here", full=True)
                pinned = s.version
        assert len((await s.history.at(30))["log"]) == 29
        assert (await lp.maintenance.verify()).findings == ()
    conn = apsw.Connection(str(path))
    seqs = [seq for (seq,) in conn.execute("SELECT seq FROM snapshots WHERE sid = 1 ORDER BY seq")]
    conn.close()
    assert len(seqs) == 2
    assert seqs[0] == pinned < 90 < seqs[1]


async def test_a_small_state_keeps_its_ladder(tmp_path: Path) -> None:
    """Rungs that take little of the log stay, so that no version is far from one."""
    path, noise = tmp_path / "store.db", random.Random(1)
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create("a", "u", id="1", state={"n": 0})
        for _ in range(100):
            await s.append("a.b", {"text": noise.randbytes(2_000).hex()}, actor="x", inc={"n": 1})
    conn = apsw.Connection(str(path))
    seqs = [seq for (seq,) in conn.execute("SELECT seq FROM snapshots ORDER BY seq")]
    conn.close()
    assert len(seqs) == 7  # one for every 64 KiB
    assert max(b - a for a, b in zip([0, *seqs], seqs, strict=False)) <= 17


async def test_rungs_of_a_large_state_stand_further_apart(tmp_path: Path) -> None:
    """Each takes at most an eighth of the log since the one below; the newest may take more."""
    path, noise = tmp_path / "store.db", random.Random(1)
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create("a", "u", id="1", state={"large": noise.randbytes(10_000).hex()})
        for number in range(60):
            text = noise.randbytes(8_000).hex()
            await s.append("a.b", {"text": text}, actor="x", set={"n": number})
    conn = apsw.Connection(str(path))
    found = conn.execute("SELECT seq, length(body) FROM snapshots ORDER BY seq").fetchall()
    logged = dict(conn.execute("SELECT seq, length(body) + 128 FROM events").fetchall())
    conn.close()
    below = 0
    assert len(found) > 3
    for seq, size in found[:-1]:
        assert size * 8 <= sum(logged[at] for at in range(below + 1, seq + 1))
        below = seq


async def test_a_segment_still_ends_on_a_snapshot(tmp_path: Path) -> None:
    """What later snapshots remove is above what is cold."""
    path, noise = tmp_path / "store.db", random.Random(1)
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create("a", "u", id="1", state={"log": []})
        for number in range(120):
            text = noise.randbytes(2_000).hex()
            await s.append("a.b", {"text": text}, actor="x", add={"log": [text]})
            if number == 60:
                await lp._journal.store.compact(s.key, upto=number)
    conn = apsw.Connection(str(path))
    (last,) = conn.execute("SELECT last FROM segments").fetchone()
    seqs = [seq for (seq,) in conn.execute("SELECT seq FROM snapshots ORDER BY seq")]
    conn.close()
    assert seqs[0] == last
    assert seqs[-1] > 100


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("DELETE FROM snapshots", ()),
        ("UPDATE snapshots SET body = x'00ff'", ()),
        ("UPDATE snapshots SET body = ?, flags = 0, crc = ?", (FORGED, crc32(FORGED))),
        ("UPDATE snapshots SET body = ?, flags = 0, crc = ?", (CHECKED, crc32(CHECKED))),
        ("UPDATE snapshots SET body = ?, flags = 0, crc = ?", (b"[]", crc32(b"[]"))),
        ("UPDATE snapshots SET seq = 999", ()),
        ("UPDATE snapshots SET flags = 8", ()),
    ],
    ids=["lost", "rotten", "forged", "forged whole", "another shape", "too new", "unknown form"],
)
async def test_a_bad_snapshot_changes_nothing_but_the_time(
    path: Path, sql: str, args: tuple[object, ...]
) -> None:
    """State is read from the log, appends go on from it, and verify tells what it found."""
    change(path, sql, *args)
    async with limpet.open(f"sqlite:///{path}") as lp:
        report = await lp.maintenance.verify()
        assert report.ok == sql.startswith("DELETE")
        s = await lp.get(("a", "u", "1"))
        assert (s.state, s.version, s.history.damaged) == ({"n": 60}, 61, ())
        assert (await s.append("a.b", actor="x", inc={"n": 1})).seq == 62
        assert s.state == {"n": 61}
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.get(("a", "u", "1"))).state == {"n": 61}


async def test_a_damaged_log_is_not_laundered_by_a_snapshot(path: Path) -> None:
    """A state folded past a damaged event is not written down as if it were whole."""
    change(path, "DELETE FROM snapshots")
    change(path, "UPDATE events SET body = x'00ff' WHERE seq = 30")
    for _ in range(2):
        async with limpet.open(f"sqlite:///{path}") as lp:
            s = await lp.get(("a", "u", "1"))
            assert s.history.damaged == (30,)
            for _ in range(40):
                await s.append("a.b", {"text": "x" * 300}, actor="x", set={"n": 1})
    conn = apsw.Connection(str(path))
    assert conn.execute("SELECT count(*) FROM snapshots").get == 0
    conn.close()
