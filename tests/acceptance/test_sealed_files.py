"""Files that a store with a seal writes outside of it: archives, and checkpoints in their tiers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.life import archive as archiving
from limpet.session.life.archive_storage import DirectoryArchive
from limpet.session.writer import writer_of
from limpet.store.coding import files as sealed_files
from limpet.store.coding.files import FileSeal
from limpet.store.coding.seal import Sealer, scope_owner
from limpet.store.memory import MemoryStore
from limpet.testing.laws.sealed import unreachable
from limpet.testing.seals import WatchedSeal
from tests.support.seal import FixedKeySeal

SECRET = "the merger is on Friday"
LARGE = os.urandom(2_000)  # does not compress: the file has several blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_files, "BLOCK_BYTES", 512)


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def seal() -> WatchedSeal:
    return WatchedSeal(FixedKeySeal())


@pytest.fixture
async def lp(url: str, cold: Path, seal: WatchedSeal) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url, seal=seal, archive=f"file://{cold}/archive") as opened:
        policy = limpet.CheckpointPolicy(tier=f"file://{cold}/tier", full_every=2)
        await opened.policies.checkpointing("support", policy)
        yield opened


async def spoken(lp: limpet.Limpet, id: str = "one", **how: Any) -> limpet.Session:
    """A session with something to hide, a blob, and a full and an incremental checkpoint."""
    s = await lp.create("support", "ada", id=id, actor="user:ada", state={"said": SECRET}, **how)
    await s.checkpoint("first")
    await s.append("user.message", {"text": f"{SECRET} {id}"}, set={"more": SECRET * 10})
    await s.checkpoint("second", full=False)
    await s.blobs.put(LARGE + SECRET.encode(), "text/plain")
    return s


async def archived(lp: limpet.Limpet, id: str = "one") -> limpet.Session:
    s = await spoken(lp, id)
    await s.complete({"result": SECRET})
    await s.archive()
    return s


def files(cold: Path) -> list[Path]:
    return sorted(path for path in cold.rglob("*") if path.is_file())


def archive_file(cold: Path) -> Path:
    (found,) = (cold / "archive").rglob("*.limpet")
    return found


async def in_tier(s: limpet.Session) -> list[Any]:
    """The states that the files of its checkpoints hold, the newest first."""
    tiers = store_checkpoints(writer_of(s).journal).tiers
    kept = (await s.history.checkpoints()).items
    return [await tiers.fields((s.key, s.head.uid), each.place) for each in kept if each.place]


async def test_no_file_shows_what_was_said(
    lp: limpet.Limpet, cold: Path, seal: WatchedSeal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the archive, nor in a tier, nor in the temporary files on the way there and
    back; and keys are at hand before anything is sealed or opened."""
    seen: list[bytes] = []
    rmtree = tempfile.TemporaryDirectory.cleanup

    def look(folder: Any) -> None:
        seen.extend(path.read_bytes() for path in Path(folder.name).rglob("*") if path.is_file())
        rmtree(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", look)
    s = await spoken(lp)
    await in_tier(s)
    await s.complete()
    await s.archive()
    await lp.get(s.key, archived=True)
    shown = [path.read_bytes() for path in files(cold)]
    await lp.unarchive(s.key)
    assert (len(shown), len(seen) > 5) == (4, True)  # completing it made a checkpoint, too
    for raw in (*shown, *seen):
        assert raw.startswith(b'{"format":"limpet.sealed","version":1,')
        for hidden in (SECRET, "user.message", "user:ada"):
            assert hidden.encode() not in raw
        assert b"\x28\xb5\x2f\xfd" not in raw[:400]  # nor a compressed form of it
    assert seal.early == []


async def test_a_sealed_archive_brings_everything_back(lp: limpet.Limpet, cold: Path) -> None:
    """The same log with the same links, state, blobs and checkpoints."""
    s = await spoken(lp)
    before, states = await s.read(limit=100), await in_tier(s)
    await s.complete()
    await s.archive()
    old = await lp.get(s.key, archived=True)
    assert (await old.read(limit=100))[: len(before)] == before
    await lp.unarchive(s.key)
    back = await lp.get(s.key)
    assert (await back.read(limit=100))[: len(before)] == before
    assert (back.head.uid, back.values["said"]) == (s.head.uid, SECRET)
    assert (await in_tier(back))[1:] == states == [s.values, {"said": SECRET}]
    assert not list((cold / "archive").rglob("*.limpet"))
    assert (await lp.maintenance.verify()).ok


def changes(raw: bytes) -> dict[str, bytes]:
    """A file as somebody might leave it who can write where it is, and has no key."""
    header, rest = raw.split(b"\n", 1)
    size = 5 + int.from_bytes(rest[1:5])
    one, two, others = rest[:size], rest[size : 2 * size], rest[2 * size :]
    half = len(raw) // 2
    return {
        "flipped": raw[:half] + bytes([raw[half] ^ 1]) + raw[half + 1 :],
        "mark flipped": b"[" + raw[1:],
        "swapped": b"\n".join([header, two + one + others]),
        "cut": raw[: len(header) + 1 + size],
        "last byte": raw[:-1],
        "longer": raw + b"x",
        "empty": b"",
    }


async def test_a_changed_archive_is_noticed(lp: limpet.Limpet, cold: Path) -> None:
    """And changes nothing: with the right file in its place the session comes back."""
    s = await archived(lp)
    file = archive_file(cold)
    raw = file.read_bytes()
    for how, changed in changes(raw).items():
        file.write_bytes(changed)
        refused = (limpet.errors.ArchiveDamaged, limpet.errors.ArchiveFailed)
        assert await _failure(lp.get(s.key, archived=True)) in refused, how
        assert await _failure(lp.unarchive(s.key)) in refused, how
    file.write_bytes(raw)
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).values["said"] == SECRET


async def test_the_archive_of_another_session_is_noticed(lp: limpet.Limpet, cold: Path) -> None:
    """Moved there, or with its header in the other's place."""
    s, other = await archived(lp), await archived(lp, "two")
    one, two = sorted((cold / "archive").rglob("*.limpet"))
    moved = two.read_bytes()
    head = one.read_bytes().split(b"\n", 1)[0]
    for forged in (moved, b"\n".join([head, moved.split(b"\n", 1)[1]])):
        one.write_bytes(forged)
        found = [await _failure(lp.get(each.key, archived=True)) for each in (s, other)]
        assert found in ([None, limpet.errors.ArchiveDamaged], [limpet.errors.ArchiveDamaged, None])


async def _failure(call: Awaitable[object]) -> type[Exception] | None:
    """The class of the error that a call raises."""
    try:
        await call
    except limpet.LimpetError as error:
        return type(error)
    return None


async def test_a_changed_checkpoint_file_is_noticed(lp: limpet.Limpet, cold: Path) -> None:
    """Or one in the place of another of the same session."""
    s = await spoken(lp)
    newest, oldest = (await s.history.checkpoints()).items
    assert newest.place is not None
    assert oldest.place is not None
    file, other = (cold / "tier" / each.place.file for each in (newest, oldest))
    raw = file.read_bytes()
    wrong = {**changes(raw), "another": other.read_bytes()}
    del wrong["swapped"], wrong["cut"]  # it has one block
    for how, changed in wrong.items():
        file.write_bytes(changed)
        assert await _failure(in_tier(s)), how
    file.write_bytes(raw)
    assert len(await in_tier(s)) == 2


async def test_a_checkpoint_is_restored_from_its_sealed_file(
    lp: limpet.Limpet, seal: WatchedSeal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log is damaged. Keys that are out of reach are no damage: nothing older is taken
    instead; one that was changed is."""
    s = await spoken(lp)
    newest = (await s.history.checkpoints()).items[0]
    assert newest.place is not None

    async def damaged(*_: Any, **__: Any) -> Any:
        raise limpet.errors.SessionCorrupt(s.key, "damaged")

    monkeypatch.setattr(writer_of(s).journal.store, "fold_at", damaged)
    with monkeypatch.context() as unready:
        unready.setattr(FileSeal, "ready", _unreachable)
        with pytest.raises(limpet.errors.SealUnavailable):
            await s.history.restore(newest.ref, fallback=True)
    await s.append("note.made", set={"said": "nothing"})
    await s.history.restore(newest.ref)
    assert s.values["said"] == SECRET
    file = Path(newest.tier.removeprefix("file://")) / newest.place.file
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(limpet.errors.CheckpointIntegrity, match=r"archive\.damaged"):
        await s.history.restore(newest.ref)
    await s.history.restore(newest.ref, fallback=True)
    assert dict(s.values) == {"said": SECRET}


async def _unreachable(self: FileSeal) -> None:
    raise limpet.errors.SealUnavailable([self.owner], "down")


async def test_erasing_destroys_the_keys_of_every_copy(
    lp: limpet.Limpet, cold: Path, seal: WatchedSeal
) -> None:
    """A backup of the archive opens no more: also that of a user who was erased."""
    one = await archived(lp)
    two = await spoken(lp, "two")
    copies = {_named(raw): raw for raw in [file.read_bytes() for file in files(cold)]}
    assert {owner for owner, _ in copies} == {one.head.uid, two.head.uid}
    await lp.erase(one.key)
    assert one.head.uid in seal.forgotten
    await lp.erase_user("support", "ada")
    assert two.head.uid in seal.forgotten
    assert files(cold) == []
    for (owner, name), raw in copies.items():
        kind: Any = "archive" if name.endswith(".limpet") else "checkpoint"
        copy = FileSeal(Sealer(seal), kind, owner, name)
        await copy.ready()
        with pytest.raises(limpet.errors.ArchiveDamaged, match="does not open"):
            copy.opened(raw)


def _named(raw: bytes) -> tuple[str, str]:
    """Whose keys a file was sealed with, and its name, by its header."""
    found = json.loads(raw.split(b"\n", 1)[0])
    return found["owner"], found["name"]


async def test_files_from_before_the_seal_are_read(tmp_path: Path, cold: Path) -> None:
    """What is archived or kept from then on is sealed."""
    url, where = f"sqlite:///{tmp_path}/a.db?sync=normal", f"file://{cold}/archive"
    async with limpet.open(url, archive=where) as lp:
        policy = limpet.CheckpointPolicy(tier=f"file://{cold}/tier", full_every=2)
        await lp.policies.checkpointing("support", policy)
        s, two = await archived(lp), await spoken(lp, "two")
    assert not any(raw.read_bytes().startswith(b'{"format":"limpet.sealed"') for raw in files(cold))
    async with limpet.open(url, archive=where, seal=FixedKeySeal()) as lp:
        assert (await lp.get(s.key, archived=True)).values["said"] == SECRET
        assert len(await in_tier(await lp.get(two.key))) == 2
        await lp.unarchive(s.key)
        back = await lp.get(s.key)
        await back.archive(actor="user:ada")
        assert archive_file(cold).read_bytes().startswith(b'{"format":"limpet.sealed"')
        assert (await lp.get(s.key, archived=True)).values["said"] == SECRET


async def test_sealed_files_need_their_seal(tmp_path: Path, cold: Path) -> None:
    """Without it, or with other keys, the error says so; nothing is changed."""
    url, where = f"sqlite:///{tmp_path}/a.db?sync=normal", f"file://{cold}/archive"
    async with limpet.open(url, archive=where, seal=FixedKeySeal()) as lp:
        policy = limpet.CheckpointPolicy(tier=f"file://{cold}/tier", full_every=2)
        await lp.policies.checkpointing("support", policy)
        s, two = await archived(lp), await spoken(lp, "two")
        places = [each.place for each in (await two.history.checkpoints()).items]
    before = [file.read_bytes() for file in files(cold)]
    wrong = FixedKeySeal(bytes(32))
    for seal, error in ((None, limpet.errors.ArchiveSealed), (wrong, limpet.errors.ArchiveDamaged)):
        async with limpet.open(url, archive=where, seal=seal) as lp:
            journal = writer_of(lp.session(s.key)).journal
            with pytest.raises(error):
                await lp.get(s.key, archived=True)
            tiers = store_checkpoints(journal).tiers
            tiers._named["support"] = {f"file://{cold}/tier"}  # its policy is sealed, too
            for place in places:
                assert place is not None
                with pytest.raises(error):
                    await tiers.fields((two.key, two.head.uid), place)
    assert [file.read_bytes() for file in files(cold)] == before
    async with limpet.open(url, archive=where, seal=FixedKeySeal()) as lp:
        await lp.unarchive(s.key)
        assert (await lp.get(s.key)).values["said"] == SECRET


async def test_nothing_leaves_the_store_while_keys_are_out_of_reach(
    lp: limpet.Limpet, cold: Path, seal: WatchedSeal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archiving and checkpoints fail as a whole, and are done when the keys are back."""
    s = await spoken(lp)
    await s.complete()
    before = files(cold)
    with monkeypatch.context() as unready:
        unready.setattr(FileSeal, "ready", _unreachable)
        with pytest.raises(limpet.errors.SealUnavailable):
            await s.checkpoint("third")
        with pytest.raises(limpet.errors.SealUnavailable):
            await s.archive()
    assert files(cold) == before
    assert (await lp.get(s.key, archived=True)).values["said"] == SECRET
    await s.archive()
    assert (await lp.get(s.key, archived=True)).values["said"] == SECRET
    assert files(cold)[:1] == [archive_file(cold)]


@pytest.mark.parametrize("step", ["put", "exchange"])
async def test_a_session_that_two_archive_at_once_comes_back(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each seals the same log in a file of its own; one of them stays."""
    s = await spoken(lp)
    await s.complete()
    other = await lp.get(s.key, actor="user:ada")
    at: Any = DirectoryArchive if step == "put" else writer_of(s).journal.store
    does = getattr(at, step)

    async def do(*given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        await archiving.finish(other)
        return await does(*given, **how)

    monkeypatch.setattr(at, step, do)
    await s.archive()
    assert len(list(cold.rglob("*.limpet"))) == 1
    assert (await lp.get(s.key, archived=True)).values["said"] == SECRET
    await lp.unarchive(s.key)
    assert (await lp.maintenance.verify()).ok


async def test_a_process_without_the_seal_yet_takes_no_sealed_files_place(
    tmp_path: Path, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a seal is given to one process after the other, both may archive the same session."""
    how: Any = {"url": f"sqlite:///{tmp_path}/store.db", "archive": f"file://{cold}"}
    put = DirectoryArchive.put

    async with limpet.open(**how) as without, limpet.open(**how, seal=FixedKeySeal()) as lp:
        s = await spoken(without)
        await s.complete()
        other = await lp.get(s.key, actor="user:ada")

        async def late(self: DirectoryArchive, name: str, path: Path) -> None:
            monkeypatch.undo()
            await archiving.finish(other)
            await put(self, name, path)

        monkeypatch.setattr(DirectoryArchive, "put", late)
        await s.archive()
        await lp.unarchive(s.key)
        assert (await lp.get(s.key)).values["said"] == SECRET


async def test_a_seal_is_not_given_beside_a_store_that_is_open() -> None:
    """It would seal nothing there, and nobody would be told. The store's own seals its files."""
    with pytest.raises(limpet.InvalidInput, match="Pass the seal to it"):
        limpet.Limpet("memory://", store=MemoryStore(), seal=FixedKeySeal())


async def test_a_memory_store_forgets_keys_as_others_do(seal: WatchedSeal) -> None:
    """Those of what goes, before it goes: if they cannot be destroyed nothing is erased."""
    async with limpet.open("memory://", seal=seal) as lp:
        s = await lp.create("support", "ada", "one", state={"user:name": "Ada"})
        fork = await s.fork(id="two")
        usual, seal.before_forget = seal.before_forget, unreachable
        for erase in (lp.erase(s.key, forks="erase"), lp.erase_user("support", "ada")):
            with pytest.raises(limpet.errors.SealUnavailable):
                await erase
        assert (await lp.get(s.key)).values["user:name"] == "Ada"
        seal.before_forget = usual
        await lp.erase(s.key, forks="erase")
        assert {s.head.uid, fork.head.uid} == set(seal.forgotten)
        await lp.erase_user("support", "ada")
        assert scope_owner("support", "ada") in seal.forgotten
