"""The log store as a user has it: its URL, its files for people, backups, copies, the commands."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

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


async def test_the_files_beside_a_store_are_those_that_mirror_writes(tmp_path: Path) -> None:
    """Byte for byte, for every session, and the relations; `compact` waits for them."""
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
        first = sorted((tmp_path / "store" / "log").glob("*.jsonl"))[0]
        assert b'"compacted":true' in first.read_bytes()[:200]
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
    store.compact_bytes = 2**20 if why == "size" else 2**30
    store.compact_seconds = 1e9 if why == "size" else 60.0
    async with limpet.Limpet("files://", store=store) as lp:
        s = await lp.create("support", "ada", "c1", actor=ADA)
        for number in range(30):
            await s.append("a.b", {"text": f"{number}" * 30_000})
            now_us[0] += 3_000_000
        assert pace.commits
        for _ in range(1_000):
            if store.compacted_us:
                break
            await s.append("a.b", {})
        assert store.compacted_us
        seqs = [e.seq for e in await s.read(limit=100)]
        assert seqs == list(range(1, 1 + min(100, s.version)))


async def test_the_age_of_a_compaction_outlives_the_process(tmp_path: Path) -> None:
    """Processes that each end before the log is old enough leave it to the next one."""
    now_us = [10**15]

    async def writes(appends: int, due_us: int) -> int:
        """When the last compaction was."""
        store = await FilesStore.open(tmp_path / "store", clock=lambda: now_us[0])
        store.compact_seconds = 60.0
        async with limpet.Limpet("files://", store=store) as lp:
            s = await lp.get_or_create("support", "ada", id="c1", actor=ADA)
            for number in range(appends):
                await s.append("a.b", {"text": f"{number}" * 30_000})
            if not store.compacted_us:
                await lp.maintenance.compact()
            for _ in range(1_000):  # what is due is done when nobody waits
                if store.compacted_us == due_us:
                    break
                await lp.delete("support", "ada", "none")
            return store.compacted_us

    assert await writes(1, 10**15) == 10**15
    now_us[0] += 40_000_000
    assert await writes(30, 10**15) == 10**15
    now_us[0] += 40_000_000
    assert await writes(1, now_us[0]) == now_us[0]


async def test_a_compacted_journal_has_every_event_and_the_folds_at_its_end(tmp_path: Path) -> None:
    """In their order, without what they changed; superseded leases are gone, the last ones and
    revocations stay."""
    path, now = tmp_path / "store", 10**15
    store = await FilesStore.open(path, clock=lambda: now)
    async with limpet.Limpet(url(path), store=store) as lp:
        one, two = [await lp.create("support", "ada", id, state={"n": 0}) for id in ("one", "two")]
        for number in range(4):
            await one.append("a.b", {"n": number}, actor=ADA, set={"n": number})
            await two.append("user.message", {"text": "hi"}, actor=ADA)
            await lp.work.release(await store.acquire(two.key, "w", 60))
        await store.marks.put("tokens", "revoked", now + 10**12)
        await store.marks.put("tokens", "ended", now + 1)
        now += 10**6
        before = [line for line in lines_of(path) if line["op"] == "event"]
        report = await lp.maintenance.compact()
        assert report.log_bytes > report.compacted_bytes > 0
    lines = lines_of(path)
    events = [line for line in lines if line["op"] == "event" and line["n"] <= lines[-1]["n"]]
    assert [(e["session"], e["seq"], e["link"]) for e in events] == [
        (e["session"], e["seq"], e["link"]) for e in before
    ]
    assert not [event for event in events if "changes" in event]
    assert [line["fence"] for line in lines if line["op"] == "lease"] == [4]
    assert [line["name"] for line in lines if line["op"] == "mark"] == ["revoked"]
    kinds = [line["op"] for line in lines]
    assert kinds.index("snapshot") > max(at for at, kind in enumerate(kinds) if kind == "event")
    async with limpet.open(url(path)) as lp:
        assert (await lp.get("support", "ada", "one")).state["n"] == 3
        assert (await lp.maintenance.verify()).findings == ()


async def test_positions_of_the_feed_stay_over_erasure_compaction_and_reopening(
    tmp_path: Path,
) -> None:
    """Whoever has read up to one goes on behind it: nothing is met twice or passed over."""
    path = tmp_path / "store"

    async def entries() -> list[tuple[str, str]]:
        async with limpet.open(url(path)) as lp:
            store = lp._journal.store
            assert isinstance(store, Feed)
            read, _ = await store.changes(None, app="support", key=None, limit=100)
            end = await store.position()
            return [*[(entry.position, entry.event.id) for entry in read], (end, "")]

    async with limpet.open(url(path)) as lp:
        sessions = [await lp.create("support", "ada", id, actor=ADA) for id in ("a", "b", "c")]
        for number in range(3):
            for s in sessions:
                await s.append("a.b", {"n": number})
    before = await entries()
    async with limpet.open(url(path)) as lp:
        erased = {event.id for event in await lp.session("support", "ada", "b").read(limit=10)}
        await lp.erase("support", "ada", "b")
    kept = [each for each in before if each[1] not in erased]
    assert await entries() == kept
    for _ in range(2):
        async with limpet.open(url(path)) as lp:
            await lp.maintenance.compact()
        assert await entries() == kept


def lines_of(path: Path) -> list[dict[str, Any]]:
    texts = b"".join([each.read_bytes() for each in sorted((path / "log").glob("*.jsonl"))])
    return [json.loads(text) for text in texts.split(b"\n") if text]


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
    store.compact_bytes = 1_000
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
