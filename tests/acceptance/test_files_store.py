"""The log store as a user has it: its URL, its files for people, backups, copies, the commands."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import BackupRefused, InvalidURL, StoreBusy
from limpet.store.open import backup_store, files_path, restore_store
from limpet.store.protocol import Feed
from tests.acceptance.test_mirror import LAYOUT, worked
from tests.support.command import run

ADA = "user:ada"
PHOTO = b"a photograph"
KEY = limpet.Key("support", "ada", "c1")


def url(path: Path) -> str:
    return f"files:///{path}"


async def filled(path: Path) -> None:
    async with limpet.open(url(path)) as lp:
        s = await lp.create("support", "ada", "c1", state={"n": 0}, actor=ADA)
        for number in range(5):
            await s.append("a.b", {"n": number}, inc={"n": 1, "app:total": 1})
        await s.blobs.put(PHOTO, "image/png")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("files:///support", "support"),
        ("files:////var/lib/support/", "/var/lib/support"),
        ("files:///a%20b?mode=ro", "a b"),
    ],
)
def test_a_url_names_a_directory(given: str, path: str) -> None:
    """Three slashes are relative, four absolute."""
    assert files_path(given) == Path(path)


@pytest.mark.parametrize(
    "given",
    ["files://", "files:///", "files://support", "files:///a?mode=rx", "files:///a?compact_mb=0"],
)
async def test_a_url_that_names_none_is_refused(given: str) -> None:
    """With the reason."""
    with pytest.raises(InvalidURL):
        async with limpet.open(given):
            pass


async def test_compaction_writes_the_files_that_mirror_writes(tmp_path: Path) -> None:
    """Byte for byte, for every session that was written to since, and the relations."""
    async with limpet.open(url(tmp_path / "store")) as lp:
        s = await worked(lp)
        await lp.maintenance.compact()
        await lp.maintenance.mirror(tmp_path / "mirror")
        kept, mirrored = tmp_path / "store" / "sessions", tmp_path / "mirror"
        place = kept / "support" / "ada" / "order-7"
        assert sorted([str(p.relative_to(place)) for p in place.rglob("*")]) == LAYOUT
        files = [p.relative_to(mirrored) for p in mirrored.rglob("*") if p.is_file()]
        assert {p.relative_to(kept) for p in kept.rglob("*") if p.is_file()} == set(files)
        assert all((kept / p).read_bytes() == (mirrored / p).read_bytes() for p in files)
        await s.append("user.message", {"text": "more"}, actor=ADA)
        await lp.maintenance.compact()
        lines = (place / "events.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["data"] == {"text": "more"}
        await lp.delete(s.key)
        assert not place.exists()


async def test_the_log_is_compacted_by_size(tmp_path: Path) -> None:
    """Without anybody asking; what was there is read as before, and so is what follows."""
    async with limpet.open(f"{url(tmp_path / 'store')}?compact_mb=1&inline=off") as lp:
        s = await lp.create("support", "ada", "c1", actor=ADA)
        for number in range(30):
            await s.append("a.b", {"text": f"{number}" * 40_000}, set={"n": number})
        await lp.delete("support", "ada", "none")  # behind the compaction that is due
        assert list((tmp_path / "store" / "log").glob("*.zst"))
        assert [e.seq for e in await s.read(limit=100)] == list(range(1, 32))
    async with limpet.open(url(tmp_path / "store")) as lp:
        assert (await lp.get(KEY)).state["n"] == 29
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_backup_is_restored_as_it_was(tmp_path: Path) -> None:
    """Taken while the store is open, with its blobs; a watcher goes on over the restore."""
    path, copy = tmp_path / "store", tmp_path / "monday.tar"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.backup(copy)
        with pytest.raises(BackupRefused):
            await lp.maintenance.backup(copy)
        s = await lp.get(KEY, actor=ADA)
        await s.append("a.b", {"lost": True})
        store = lp._journal.store
        assert isinstance(store, Feed)
        seen = await store.position()
        with pytest.raises(StoreBusy):
            restore_store(copy, url(path), replace=True)
    with pytest.raises(BackupRefused):
        restore_store(copy, url(path), replace=False)
    done = restore_store(copy, url(path), replace=True)
    assert done.report.findings == ()
    async with limpet.open(url(path)) as lp:
        s = await lp.get(KEY, actor=ADA, tail=100)
        assert (s.version, s.state["n"], s.state["app:total"]) == (6, 5, 5)
        assert await s.blobs.get(sha256(PHOTO).hexdigest()) == PHOTO
        made = await s.append("a.b", {"new": True})
        async for entry in lp.watch(after=seen):
            assert entry.event.id == made.id
            break
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_backup_is_verified_and_others_are_refused(tmp_path: Path) -> None:
    """A damaged one is not put in place of a store; a file that is no backup is not either."""
    path, copy = tmp_path / "store", tmp_path / "monday.tar"
    await filled(path)
    report = await backup_store(url(path), copy, verify=True)
    assert report is not None
    assert report.findings == ()
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b'"n":3}', b'"n":4}'))
    with pytest.raises(limpet.LimpetError, match="damaged"):
        restore_store(copy, url(tmp_path / "other"), replace=False)
    assert not (tmp_path / "other").exists()
    (tmp_path / "no.tar").write_text("not a backup")
    with pytest.raises(BackupRefused, match="not a backup"):
        restore_store(tmp_path / "no.tar", url(tmp_path / "other"), replace=False)


async def test_sessions_are_copied_to_other_stores_and_back(tmp_path: Path) -> None:
    """With the same links: files to SQLite to files."""
    await filled(tmp_path / "store")
    middle = f"sqlite:///{tmp_path}/middle.db"
    seen: list[Any] = []
    for source, target in ((url(tmp_path / "store"), middle), (middle, url(tmp_path / "again"))):
        async with limpet.open(source) as one, limpet.open(target) as other:
            await one.copy(to=other)
            seen.append((await other.get(KEY, tail=100)).events)
    assert [e.link for e in seen[0]] == [e.link for e in seen[1]]


def test_the_command_line_takes_its_directory(tmp_path: Path) -> None:
    """As a path, where it is one; looking changes nothing, and works beside the writer."""
    asyncio.run(filled(tmp_path / "store"))
    with limpet.open_sync(url(tmp_path / "store")):
        listed = run(tmp_path, "list", "store")
        assert "support/ada/c1" in listed.stdout
        assert run(tmp_path, "verify", "store").returncode == 0
        assert run(tmp_path, "doctor", "store").returncode == 0
        refused = run(tmp_path, "compact", "store")
        assert refused.returncode != 0
        assert "one process at a time" in " ".join(refused.stderr.split())
