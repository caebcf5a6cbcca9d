"""The golden stores on a server and in log files: each is opened, verified and written to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import limpet
from limpet import errors
from limpet.store.files.state import FORMAT
from limpet.store.files.store import FilesStore
from limpet.store.postgres.server.schema import SCHEMA
from tests.golden import public
from tests.golden.public import ERASED, FORGOTTEN, FORK, GONE, MAIN, STATES
from tests.support.disks import DiskFaults, FaultyDisk

HERE: Final = Path(__file__).parent
# A golden file is never written again: this is the SHA-256 of each.
FILES: Final = {
    "postgres-1.sql": "e852628a5e41948729b2cddb19b8c74c2ef46bbfbd172fdbf3ca3ef66186761f",
    "postgres-2.sql": "d99255aeacb63e9e1064465297437038e8800476ee36cdaf764409d4b2af1897",
    "files-1.tar.xz": "8797902d624fbbdd0e6e7ccd8025c39dd768f96e12c12bd9c4f4e5c53646059f",
    "files-2.tar.xz": "4767ddf3cce0dae6fb9a5a29d1d49c092dc6219a8142184181c371aa904083f1",
    "files-2-compacted.tar.xz": "957f5f666587ca1c23f52c2997be3a3d8c243f9477e7f9803a197cea40af0499",
    "files-3.tar.xz": "798f551886f4142002c0ef8d2ed69e0cb1a7ce7a3729b90432d0f097023e265f",
}


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A copy of the golden store, as it was."""
    name: str = request.param
    if name.endswith(".sql"):
        server: str = request.getfixturevalue("postgres_url")
        asyncio.run(loaded(server, (HERE / name).read_text()))
        return server
    with tarfile.open(HERE / name) as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return f"files:///{tmp_path}/store"


async def loaded(server: str, dump: str) -> None:
    conn = await asyncpg.connect(server)
    try:
        await conn.execute(dump)
    finally:
        await conn.close()


@pytest.fixture
async def lp(url: str) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url) as opened:
        yield opened


def test_every_schema_has_its_golden_file() -> None:
    """Whoever adds a schema or a format adds a file, and none is ever changed."""
    wanted = {f"postgres-{number}.sql" for number in range(1, SCHEMA + 1)}
    wanted |= {f"files-{number}.tar.xz" for number in range(1, FORMAT + 1)}
    wanted |= {"files-2-compacted.tar.xz"}  # its lines lie in frames, which format 3 has not
    assert set(FILES) == wanted
    for name, digest in FILES.items():
        assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == digest


async def test_all_of_it_is_there(lp: limpet.Limpet) -> None:
    """Events, state, shared names, labels, a timer, a fork, a blob, documents and ends."""
    main, fork = await lp.get(MAIN), await lp.get(FORK)
    assert {MAIN: main.values, FORK: fork.values} == STATES
    log = await main.read()
    assert [event.type for event in log][: len(public.TYPES)] == public.TYPES
    assert (log[1].data, log[2].data) == ({"text": "hi"}, {"poem": public.POEM})
    assert main.labels == {"plan": "gold"}
    assert main.head.timers["nap"].at_us == int(public.WAKE.timestamp()) * 1_000_000
    assert [event.id for event in await fork.read(limit=2)] == [event.id for event in log[:2]]
    hash = hashlib.sha256(public.PHOTO).hexdigest()
    assert await main.blobs.get(hash) == public.PHOTO
    assert [each.trigger for each in (await main.history.checkpoints()).items] == ["golden"]
    found = await lp.documents("agents").get("support")
    assert (found.value, found.version) == ({"model": "large"}, 2)
    with pytest.raises(errors.SessionDeleted):
        await lp.get(GONE)
    with pytest.raises(errors.SessionErased):
        await lp.get(ERASED)
    fresh = await lp.create(*FORGOTTEN[:2], id="again", actor="user:bob")
    assert fresh.values == {"app:visits": 3}
    assert (await lp.maintenance.verify()).findings == ()


async def test_it_goes_on(lp: limpet.Limpet) -> None:
    """New events follow the old ones, a repeated id is known, and all of it verifies."""
    for key in STATES:
        s = await lp.get(key, actor="agent:late")
        version = s.version
        await s.append("note.made", {"late": True}, inc={"n": 1, "app:visits": 1})
        assert s.version == version + 1
    main = await lp.get(MAIN, actor="user:ada")
    assert (await main.append("user.message", {"text": "hi"}, id="m2", inc={"n": 1})).seq == 2
    assert main.values["app:visits"] == 5
    assert (await lp.maintenance.verify()).findings == ()


async def test_a_later_one_is_refused(url: str) -> None:
    """By its number, in words that say to upgrade; nothing is changed."""
    if url.startswith("files:"):
        path = Path(url.removeprefix("files:///")) / "limpet.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    else:
        conn = await asyncpg.connect(url)
        later = f"{SCHEMA + 1}".encode()
        await conn.execute("UPDATE limpet.meta SET value = $1 WHERE name = 'schema'", later)
        await conn.close()
    with pytest.raises(errors.StoreNewer, match="upgrade limpet"):
        async with limpet.open(url):
            pass


async def test_an_earlier_format_is_announced_and_then_taken_over(tmp_path: Path) -> None:
    """The doctor says what writing will do; a writer writes it again before its first line."""
    with tarfile.open(HERE / "files-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    meta, url = tmp_path / "limpet.json", f"files:///{tmp_path}"
    async with limpet.open(f"{url}?mode=ro") as lp:
        checks = {check.name: check for check in (await lp.maintenance.doctor()).checks}
        assert checks["upgrade"].severity == "warning"
        assert f"format 1 → {FORMAT}" in checks["upgrade"].found
    assert json.loads(meta.read_text())["format"] == 1
    async with limpet.open(url) as lp:
        assert json.loads(meta.read_text())["format"] == FORMAT
        checks = {check.name: check for check in (await lp.maintenance.doctor()).checks}
        assert "upgrade" not in checks


@pytest.mark.parametrize("name", ["files-2.tar.xz", "files-2-compacted.tar.xz"])
async def test_a_takeover_that_fails_at_any_call_is_done_again(tmp_path: Path, name: str) -> None:
    """The directory is one of the earlier format until all of it is written again."""
    number, faults = 0, DiskFaults()
    while faults.struck or not number:
        number += 1
        path, faults = tmp_path / f"{number}", DiskFaults(number, lasting=True)
        with tarfile.open(HERE / name) as archive:
            archive.extractall(path, filter="data")
        with suppress(errors.StoreError):
            await (await FilesStore.open(path, disk=FaultyDisk(faults))).close()
        async with limpet.open(f"files:///{path}") as lp:
            assert (await lp.get(MAIN)).values == STATES[MAIN]
            assert (await lp.maintenance.verify()).findings == ()
            assert {each.suffix for each in (path / "log").iterdir()} == {".jsonl"}
    assert number > 10


async def test_a_backup_of_an_earlier_format_is_restored(tmp_path: Path) -> None:
    """As a store of this format, whole."""
    with tarfile.open(HERE / "files-2-compacted.tar.xz") as archive:
        archive.extractall(tmp_path / "then", filter="data")
    backup, url = tmp_path / "backup.tar", f"files:///{tmp_path}/store"
    with tarfile.open(backup, "w") as tar:
        for path in sorted((tmp_path / "then").rglob("*")):
            if path.is_file() and path.name != "lock":
                tar.add(path, str(path.relative_to(tmp_path / "then")))
    assert limpet.restore(backup, url).report.ok
    async with limpet.open(url) as lp:
        assert (await lp.get(MAIN)).values == STATES[MAIN]
        assert (await lp.maintenance.verify()).findings == ()
