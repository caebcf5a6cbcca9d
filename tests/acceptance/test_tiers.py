"""Checkpoints that are kept in a directory besides the store."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import CheckpointPolicy
from limpet.errors import ArchiveFailed, StoreBusy
from limpet.model import Commit
from limpet.session.history.checkpoint_tiers import CheckpointFile
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.writer import writer_of
from tests.support.deadlines import passed

Made = limpet.Session[Any]
KEY = limpet.Key("shop", "ada", "1")


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
async def s(lp: limpet.Limpet, tier: Path) -> Made:
    """A session of an app whose checkpoints go to a directory, four of them full."""
    await lp.policies.checkpointing("shop", CheckpointPolicy(tier=f"file://{tier}", full_every=4))
    return await lp.create(*("shop", "ada", "1"), state={"n": 0, "f": 1.0}, actor="agent:main")


def files(tier: Path) -> list[Path]:
    return [path for path in tier.rglob("*") if path.is_file()]


async def grown(s: Made, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await s.append("agent.did", {"text": "x" * 300}, inc={"n": 1}, set={"long": "y" * 300})
        await s.checkpoint()


async def test_each_checkpoint_has_a_file_in_its_tier(s: Made, tier: Path) -> None:
    """A full one an envelope of its state, an incremental one the diff from the full one."""
    await grown(s, 3)
    full, *others = (await s.history.checkpoints()).items[::-1]
    assert {each.tier for each in (full, *others)} == {f"file://{tier}"}
    assert len(files(tier)) == 3
    assert full.place is not None
    envelope = limpet.envelope.decode((tier / full.place.file).read_bytes())
    assert (envelope.fields, envelope.state_version) == (await s.history.at(full.ref), full.seq)
    for each in others:
        assert each.place is not None
        assert each.place.base == full.place.file
        raw = (tier / each.place.file).read_bytes()
        assert limpet.Diff.from_bytes(raw).apply(envelope.fields) == await s.history.at(each.ref)


async def test_the_name_of_a_file_says_nothing_about_its_user(
    lp: limpet.Limpet, s: Made, tier: Path
) -> None:
    """Nor about the session. Both have letters here that no hexadecimal number has."""
    other = await lp.create("shop", "wilma", "trip", actor="agent:main")
    await other.checkpoint()
    (path,) = files(tier)
    assert not any(word in str(path.relative_to(tier)) for word in ("shop", "wilma", "trip"))


async def test_files_go_with_their_checkpoints(lp: limpet.Limpet, s: Made, tier: Path) -> None:
    """Let go by hand or by policy; a full one's file stays as long as another needs it."""
    await grown(s, 3)
    full, *others = [each.ref for each in (await s.history.checkpoints()).items[::-1]]
    await s.history.unpin(full)
    assert len(files(tier)) == 3
    for each in others:
        await s.history.unpin(each)
    assert files(tier) == []
    policy = CheckpointPolicy(events=("shop.grown",), tier=f"file://{tier}", full_every=2, keep=2)
    await lp.policies.checkpointing("shop", policy)
    for _ in range(5):
        await s.append("shop.grown", inc={"n": 1})
    assert len(files(tier)) == len((await s.history.checkpoints()).items) == 3


@pytest.mark.parametrize("end", ["delete", "erase", "forks", "user", "expire"])
async def test_files_go_with_their_session(
    lp: limpet.Limpet, s: Made, tier: Path, end: str
) -> None:
    """And with its user, from every tier that was ever named; those of others stay."""
    other = await lp.create("shop", "bob", "1", actor="agent:main")
    fork = await s.fork(user="carol")
    for each in (s, other, fork):
        await each.checkpoint()
    await lp.policies.checkpointing("shop", None)
    match end:
        case "delete":
            await lp.delete(s.key)
        case "erase":
            await lp.erase(s.key, forks="keep")
        case "forks":
            await lp.erase(s.key, forks="erase")
        case "user":
            await lp.erase_user("shop", "ada")
        case _:
            await s.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(microseconds=1)))
            await s.terminate()
            await passed(lp)
            assert (await lp.work.sweep()).deleted == 1
    assert len(files(tier)) == (1 if end == "forks" else 2)
    assert (await lp.get(other.key)).history.checkpoint_seq == 1


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_a_checkpoint_made_while_its_session_ends_leaves_no_file(
    lp: limpet.Limpet, s: Made, tier: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Nobody could remove it later but with the user."""
    store = writer_of(s).journal.store
    delete = store.delete
    other = await lp.get(s.key, actor="agent:main")

    async def late(key: limpet.Key, **how: Any) -> bool:
        if key == s.key:
            await other.checkpoint()
            assert len(files(tier)) == 1
        return await delete(key, **how)

    await s.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(microseconds=1)))
    await s.terminate()
    await passed(lp)
    monkeypatch.setattr(store, "delete", late)
    await (lp.delete(s.key) if end == "delete" else lp.work.sweep())
    assert files(tier) == []


async def test_what_cannot_be_written_there_is_no_checkpoint(
    lp: limpet.Limpet, s: Made, tier: Path
) -> None:
    """And what had to wait for it is not recorded."""
    tier.write_text("not a directory")
    with pytest.raises(ArchiveFailed):
        await s.checkpoint()
    assert ((await s.history.checkpoints()).items, s.history.checkpoint_seq) == ((), 0)
    policy = CheckpointPolicy(tier=f"file://{tier}", before=("agent.refund",))
    await lp.policies.checkpointing("shop", policy)
    with pytest.raises(ArchiveFailed):
        await s.append("agent.refund")
    assert (await s.refresh()).version == 1
    with pytest.raises(ArchiveFailed):
        await lp.delete(s.key)
    assert await lp.get(s.key)


async def test_a_checkpoint_that_is_not_recorded_leaves_no_file(
    s: Made, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is refused; where it may have been recorded the file stays, and is in nobody's way."""
    store = writer_of(s).journal.store
    commit = store.commit

    async def unsure(commits: list[Commit]) -> Any:
        await commit(commits)
        raise StoreBusy("the store")

    await grown(s, 1)
    monkeypatch.setattr(store, "commit", unsure)
    with pytest.raises(StoreBusy):
        await s.checkpoint()
    monkeypatch.undo()
    assert len(files(tier)) == len((await s.history.checkpoints()).items) == 2
    with pytest.raises(limpet.InvalidInput):
        await s.checkpoint("\ud800")
    assert len(files(tier)) == 2
    await grown(s, 1)
    assert [each.number for each in (await s.history.checkpoints()).items] == [3, 2, 1]


async def test_checkpoints_made_at_once_have_numbers_and_files_of_their_own(
    s: Made, tier: Path
) -> None:
    """While one of them writes its file, another is recorded."""
    await grown(s, 1)
    refs = await asyncio.gather(*[s.checkpoint(full=False) for _ in range(4)])
    assert sorted([ref.number for ref in refs]) == [2, 3, 4, 5]
    kept = (await s.history.checkpoints()).items
    assert sorted([each.ref for each in kept[:4]], key=lambda ref: ref.number) == sorted(
        refs, key=lambda ref: ref.number
    )
    places = {tier / each.place.file for each in kept if each.place is not None}
    assert (len(places), places) == (5, set(files(tier)))


async def test_an_event_is_recorded_whatever_becomes_of_the_checkpoint_after_it(
    lp: limpet.Limpet, s: Made, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there is no room for a temporary file: who appended must not append again."""
    policy = CheckpointPolicy(tier=f"file://{tier}", events=("agent.did",))
    await lp.policies.checkpointing("shop", policy)
    monkeypatch.setattr(tempfile, "tempdir", str(tier / "missing"))
    assert (await s.append("agent.did")).seq == 2
    with pytest.raises(ArchiveFailed):
        await s.checkpoint()
    assert (await s.history.checkpoints()).items == ()


@pytest.mark.parametrize("named", [False, True])
async def test_an_imported_session_reaches_no_files_of_others(
    s: Made, lp: limpet.Limpet, tier: Path, tmp_path: Path, named: bool
) -> None:
    """Its log names places. Only those are read and removed that a policy here has named too."""
    await s.append("agent.did", inc={"n": 1})
    ref = await s.checkpoint()
    await lp.export(s.key, tmp_path / "one.limpet")
    async with limpet.open("memory://") as other:
        if named:
            await other.policies.checkpointing("shop", CheckpointPolicy(tier=f"file://{tier}"))
        await other.import_(tmp_path / "one.limpet")
        copy = await other.get(s.key, actor="agent:main")
        tiers = store_checkpoints(writer_of(copy).journal).tiers
        (kept,) = (await copy.history.checkpoints()).items
        assert kept.place is not None
        elsewhere = CheckpointFile(kept.tier, f"{kept.place.file}/../../../other")
        with pytest.raises(ArchiveFailed):
            await tiers.fields((s.key, s.head.uid), elsewhere)
        with pytest.raises(ArchiveFailed) if not named else nullcontext():
            assert await tiers.fields((s.key, s.head.uid), kept.place) == copy.values
        await copy.history.unpin(ref)
    assert len(files(tier)) == (0 if named else 1)


@pytest.mark.parametrize("wrong", ["archive", "ftp://x/y", "file://relative", "", None, 7])
def test_a_tier_is_a_directory_or_a_bucket(wrong: Any) -> None:
    """Refused when the policy is made."""
    with pytest.raises(limpet.errors.InvalidURL):
        CheckpointPolicy(tier=wrong)
