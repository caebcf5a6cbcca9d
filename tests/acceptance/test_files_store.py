"""The log store as a user has it: its URL, its files for people, backups, copies, the commands."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from limpet.store.files.log import RootLog

import limpet
from limpet.errors import BackupRefused, InvalidURL, StoreBusy, StoreUnopened
from limpet.store.files.compaction import Compaction
from limpet.store.files.store import FilesStore
from limpet.store.jobs import Pace
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
    [
        "files://",
        "files:///",
        "files://support",
        "files:///a?mode=rx",
        "files:///a?compact_mb=0",
        "files:///a?mode=ro&mode=ro",
    ],
)
async def test_a_url_that_names_none_is_refused(given: str) -> None:
    """With the reason."""
    with pytest.raises(InvalidURL):
        async with limpet.open(given):
            pass


async def test_a_file_is_not_taken_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "store"):
        with pytest.raises(StoreUnopened, match=r"notes\.txt is a file; name a directory"):
            async with limpet.open(url(path)):
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


async def test_compaction_writes_the_files_of_earlier_processes(tmp_path: Path) -> None:
    """Of sessions that a process wrote to which closed the store, with an index of its own."""
    path = tmp_path / "store"
    async with limpet.open(f"files:///{path}") as lp:
        s = await lp.create("support", "ada", "c1", actor="user:ada")
        for number in range(300):  # enough for an index at the end
            await s.append("a.b", {"text": f"{number} {'x' * 400}"})
    assert list(path.glob("index-*"))
    async with limpet.open(f"files:///{path}") as lp:
        other = await lp.create("support", "ada", "c2", actor="user:ada")
        report = await lp.maintenance.compact()
        assert report.log_bytes > 5 * report.compacted_bytes > 0
    for session in (s, other):
        events = path.joinpath("sessions", "support", "ada", session.key.id, "events.jsonl")
        assert len(events.read_bytes().splitlines()) == session.version


async def test_files_that_could_not_be_written_are_written_by_the_next_compaction(
    tmp_path: Path,
) -> None:
    """A compaction that fails to write them is not undone."""
    path = tmp_path / "store"
    async with limpet.open(f"files:///{path}") as lp:
        s = await lp.create("support", "ada", "c1", actor="user:ada")
        path.joinpath("sessions").touch()  # in the place of the directory
        with pytest.raises(limpet.InvalidInput, match="nothing can be mirrored"):
            await lp.maintenance.compact()
        path.joinpath("sessions").unlink()
        await lp.maintenance.compact()
        assert path.joinpath("sessions", "support", "ada", s.key.id, "events.jsonl").exists()


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


@pytest.mark.parametrize("why", ["size", "age"])
async def test_a_lone_writer_has_its_log_compacted_too(tmp_path: Path, why: str) -> None:
    """Its commits are made on the event loop, and the thread that compacts is woken when the log is
    large, or when the last compaction is long ago."""
    now_us, pace = [10**15], Pace(timer=lambda: 0.0)  # a disk that takes no time
    store = await FilesStore.open(tmp_path / "store", clock=lambda: now_us[0], pace=pace)
    store.state.compact_bytes = 2**20 if why == "size" else 2**30
    store.state.compact_seconds = 1e9 if why == "size" else 60.0
    async with limpet.Limpet("files://", store=store) as lp:
        s = await lp.create("support", "ada", "c1", actor=ADA)
        for number in range(30):
            await s.append("a.b", {"text": f"{number}" * 30_000})
            now_us[0] += 3_000_000
        assert pace.commits
        for _ in range(1_000):
            if store.state.compacted:
                break
            await s.append("a.b", {})
        assert store.state.compacted
        seqs = [e.seq for e in await s.read(limit=100)]
        assert seqs == list(range(1, 1 + min(100, s.version)))


async def test_the_age_of_a_compaction_outlives_the_process(tmp_path: Path) -> None:
    """Processes that each end before the log is old enough leave it to the next one."""
    now_us = [10**15]

    async def writes(appends: int) -> int:
        store = await FilesStore.open(tmp_path / "store", clock=lambda: now_us[0])
        store.state.compact_seconds = 60.0
        async with limpet.Limpet("files://", store=store) as lp:
            s = await lp.get_or_create("support", "ada", id="c1", actor=ADA)
            for number in range(appends):
                await s.append("a.b", {"text": f"{number}" * 30_000})
            if not store.state.compacted:
                await lp.maintenance.compact()
            await lp.delete("support", "ada", "none")  # behind what is due
            return store.state.compacted

    assert await writes(1) == 1
    now_us[0] += 40_000_000
    assert await writes(30) == 1
    now_us[0] += 40_000_000
    assert await writes(1) == 2


async def test_the_last_events_of_a_session_are_compressed_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of a store just opened unpacks them and no others."""
    async with limpet.open(url(tmp_path / "store")) as lp:
        s = await lp.create("support", "ada", "c1", actor=ADA)
        await s.append_many(
            [limpet.Draft(type="a.b", data={"text": "x" * 700}) for _ in range(207)]
        )
        await lp.maintenance.compact()
    unpacked: list[int] = []
    before = RootLog._unpacked

    def counted(log: RootLog, place: int) -> bytes:
        raw = before(log, place)
        unpacked.append(raw.count(b"\n"))
        return raw

    monkeypatch.setattr(RootLog, "_unpacked", counted)
    async with limpet.open(url(tmp_path / "store")) as lp:
        events = await lp.session("support", "ada", "c1").read(limit=20, reverse=True)
    assert [event.seq for event in events] == list(range(208, 188, -1))
    assert unpacked == [24]


async def test_a_compaction_that_fails_is_not_tried_at_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the whole log: a full disk must not make every commit wait for that."""
    tried = []

    def fails(_: Compaction) -> None:
        tried.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Compaction, "run", fails)
    now_us = [10**15]
    store = await FilesStore.open(tmp_path / "store", clock=lambda: now_us[0])
    store.state.compact_bytes = 1_000
    async with limpet.Limpet("files://", store=store) as lp:
        s = await lp.create("support", "ada", "c1", actor=ADA)
        for number in range(20):
            await s.append("a.b", {"text": f"{number}" * 1_000})
            await lp.delete("support", "ada", "none")  # behind what is due
        assert len(tried) == 1
        now_us[0] += 60_000_000
        for _ in range(3):
            await lp.delete("support", "ada", "none")
        assert len(tried) == 2


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
