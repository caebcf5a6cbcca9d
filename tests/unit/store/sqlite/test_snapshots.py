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
        assert (await lp.verify()).findings == ()


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
    assert conn.execute("SELECT count(*) FROM snapshots").get == 5  # not one each
    conn.close()
    async with limpet.open(url) as lp:
        assert (await lp.get(("a", "u", "1"))).state == {"large": "x" * kept, "n": 11}


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
        report = await lp.verify()
        assert report.ok == sql.startswith("DELETE")
        s = await lp.get(("a", "u", "1"))
        assert (s.state, s.version, s.damaged) == ({"n": 60}, 61, ())
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
            assert s.damaged == (30,)
            for _ in range(40):
                await s.append("a.b", {"text": "x" * 300}, actor="x", set={"n": 1})
    conn = apsw.Connection(str(path))
    assert conn.execute("SELECT count(*) FROM snapshots").get == 0
    conn.close()
