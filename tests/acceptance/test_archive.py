"""The archive: a session's log in one verified file, its head in the store, and the way back."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import limpet
from limpet.model import Commit
from limpet.model.facts.phases import transition
from limpet.model.keys import ARCHIVE_DISCARDS, ARCHIVE_LOGS, ARCHIVE_STUBS
from limpet.model.limits import LABELS_MAX
from limpet.session.life import archive as archiving, archive as cold_files
from limpet.session.life.archive_storage import DirectoryArchive
from limpet.session.move.adopter import Adopter
from limpet.session.move.bundle import BundleWriter
from limpet.session.writer import writer_of
from limpet.store.protocol import Query
from tests.support.deadlines import passed

NOW = timedelta(microseconds=1)  # over when `passed` returns


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
async def lp(url: str, cold: Path) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url, archive=f"file://{cold}") as opened:
        yield opened


async def ended(lp: limpet.Limpet, **how: Any) -> limpet.Session:
    """A completed session with some history, labels and a blob."""
    s = await lp.create(
        "support", "ada", id="one", labels={"plan": "gold"}, actor="user:ada", **how
    )
    for n in range(5):
        await s.append("user.message", {"text": f"secret {n}"}, set={"n": n})
    await s.blobs.put(b"large" * 100, "text/plain")
    await s.complete({"done": True})
    return s


async def test_a_dead_letter_with_every_label_is_labeled_and_archived(lp: limpet.Limpet) -> None:
    """The mark by which dead letters are listed is none of the labels that a session may have."""
    labels = {f"label {n}": "x" for n in range(LABELS_MAX)}
    s = await lp.create("support", "ada", labels=labels, actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    assert (await lp.wake(s.key, lambda turn: 1 / 0, retries=0)).reason == "retries_exhausted"
    await s.refresh()
    await s.label({"label 0": "y"})
    await s.terminate()
    await s.lifecycle.set_timeouts(limpet.Timeouts(archive=NOW))
    await passed(lp)
    swept = await lp.work.sweep()
    assert (swept.archived, swept.failed) == (1, ())
    (listed,) = (await lp.list(app="support")).items
    assert listed.labels == {**labels, "label 0": "y"}
    assert (await lp.maintenance.verify()).ok


async def test_an_archived_session_is_listed_and_read_from_its_file(
    lp: limpet.Limpet, cold: Path
) -> None:
    """Its head stays in the store; its log is one file, and can be read there."""
    s = await ended(lp)
    before = await s.read(limit=100)
    t = await s.archive()
    assert (t.phase, len(list(cold.rglob("*.limpet")))) == ("archived", 1)
    (head,) = (await lp.list(app="support", labels={"plan": "gold"})).items
    assert (head.key, head.phase) == (s.key, "archived")
    with pytest.raises(limpet.errors.SessionArchived):
        await lp.get(s.key)
    with pytest.raises(limpet.SessionEnded):
        await lp.session(s.key, actor="user:ada").append("user.message", {"text": "x"})
    old = await lp.get(s.key, archived=True)
    assert (old.phase, old.values["n"]) == ("archived", 4)
    log = await old.read(limit=100)
    assert log[: len(before)] == before
    assert log[-1].type == "session.archived"
    for write in (
        old.append("user.message", {"text": "hi"}, actor="a"),
        old.lifecycle.set_timeouts(limpet.Timeouts()),
    ):
        with pytest.raises(limpet.errors.SessionArchived):  # it would be lost
            await write
    assert (await lp.maintenance.verify()).ok
    assert await lp.work.sweep() == limpet.Swept()


async def test_an_object_of_an_archived_session_says_that_it_is_archived(
    lp: limpet.Limpet,
) -> None:
    """Not that it was deleted, which would advise to take its key for another; nor of another."""
    s = await ended(lp)
    other = await lp.get(s.key)
    await s.archive()
    for each in (s, other):
        with pytest.raises(limpet.errors.SessionArchived):
            await each.refresh()
        each.append_soon("user.message", {"text": "x"}, actor="user:ada")
        with pytest.raises(limpet.errors.FlushFailed) as caught:
            await lp.flush()
        assert isinstance(caught.value.unrecorded[0].error, limpet.SessionEnded)
    back = await lp.unarchive(s.key)
    assert (back.name, back.before, back.phase) == ("unarchive", "archived", "completed")
    assert (back.side_effects, back.event and back.event.type) == (
        ("restore_from_archive",),
        "session.unarchived",
    )
    assert (await s.refresh()).values["n"] == 4
    await lp.delete(s.key)
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.refresh()
    await lp.create(s.app, s.user, s.id, reuse_deleted=True)
    newer = await lp.get(s.key)
    await newer.complete()
    await newer.archive()
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.refresh()


async def test_a_write_to_an_archived_session_never_reaches_another_under_its_key(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and created again between the look at what stands for it and the write."""
    s = await ended(lp)
    old = await lp.get(s.key)
    await s.archive()
    heads, looked = lp._journal.store.heads, False

    async def look_then_replace(query: Any, **how: Any) -> Any:
        nonlocal looked
        found, first = await heads(query, **how), not looked
        looked = True
        if first:
            await lp.delete(s.key)
            await lp.create("support", "ada", id="one", actor="user:bob", reuse_deleted=True)
        return found

    monkeypatch.setattr(lp._journal.store, "heads", look_then_replace)
    with pytest.raises(limpet.errors.SessionDeleted):
        await old.append("user.message", {"text": "x"}, actor="user:ada", set={"n": 9})
    new = await lp.get(s.key)
    assert looked
    assert (new.version, dict(new.values)) == (1, {})


async def test_the_hot_rows_are_gone(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Nothing of the log is left in the store: only the file has it."""
    s = await ended(lp)
    uid = s.head.uid
    await s.archive()
    store: Any = lp._journal.store
    records = await store.records(s.key, after=0, limit=100)
    assert [each.event.type for each in records] == ["session.created"]
    (head,) = (await lp.list(app="support")).items
    assert head.uid != uid
    assert head.facts["archive"]["uid"] == uid


async def test_unarchiving_brings_back_the_phase_before(lp: limpet.Limpet, cold: Path) -> None:
    """The same log with the same links, blobs too, and the file is removed."""
    s = await ended(lp)
    log = await s.read(limit=100)
    await s.archive()
    await lp.unarchive(s.key)
    back = await lp.get(s.key)
    assert (back.phase, back.values["n"]) == ("completed", 4)
    assert back.head.uid == s.head.uid
    assert (await back.read(limit=100))[: len(log)] == log
    assert back.labels == {"plan": "gold"}
    types = [event.type for event in back.events[-2:]]
    assert types == ["session.archived", "session.unarchived"]
    assert not list(cold.rglob("*.limpet"))
    assert (await lp.maintenance.verify()).ok
    await back.archive()
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).phase == "completed"


async def test_blobs_come_back_though_the_first_try_ended_before_them(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays until they are in the store: the log alone is not the session."""
    s = await ended(lp)
    big = await lp.create("support", "ada", id="two", actor="user:ada")
    blobs = [b"x" * (2**20 + n) for n in range(3)]
    refs = [await big.blobs.put(blob, "text/plain") for blob in blobs]
    await big.complete()
    for each in (s, big):
        await each.archive()
    put = Adopter.put_chunk
    left = 2

    async def stopped(self: Adopter, *given: Any) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError
        return await put(self, *given)

    monkeypatch.setattr(Adopter, "put_chunk", stopped)
    for each in (big, s):
        with pytest.raises(asyncio.CancelledError):
            await lp.unarchive(each.key)
    assert len(list(cold.rglob("*.limpet"))) == 2
    monkeypatch.setattr(Adopter, "put_chunk", put)
    await lp.unarchive(big.key)
    await lp.work.sweep()  # finishes what was left of the other
    back = await lp.get(big.key)
    assert [await back.blobs.get(ref) for ref in refs] == blobs
    assert (await lp.get(s.key)).phase == "completed"
    assert not list(cold.rglob("*.limpet"))
    assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("how", ["create", "commit"])
@pytest.mark.parametrize("way", ["archive", "unarchive"])
async def test_the_key_of_a_session_on_its_way_is_never_free(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch, way: str, how: str
) -> None:
    """The log or what stands for it has the key, before and after they are exchanged."""
    s = await ended(lp)
    if way == "unarchive":
        await s.archive()
    exchange, refused = lp._journal.store.exchange, list[limpet.Key]()

    async def begin() -> None:
        if how == "create":
            await lp.create("support", "ada", id="one", reuse_deleted=True)
        else:
            async with lp.commit() as c:
                c.create("support", "ada", "one", reuse_deleted=True)

    async def take() -> None:
        with pytest.raises(limpet.SessionExists) as error:
            await begin()
        refused.append(error.value.key)

    async def look(exchanges: Any) -> bool:
        await take()
        done = await exchange(exchanges)
        await take()
        return done

    monkeypatch.setattr(lp._journal.store, "exchange", look)
    await (s.archive() if way == "archive" else lp.unarchive(s.key))
    assert refused == [s.key, s.key]
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    assert (await lp.maintenance.verify()).ok


async def test_a_terminated_session_comes_back_terminated(lp: limpet.Limpet) -> None:
    """The phase before the archiving is kept with it."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.terminate()
    await s.archive()
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).phase == "terminated"


async def test_without_an_archive_the_log_stays(url: str) -> None:
    """The phase changes; the rows stay where they are."""
    async with limpet.open(url) as lp:
        s = await ended(lp)
        await s.archive()
        with pytest.raises(limpet.errors.SessionArchived):
            await lp.get(s.key)
        assert (await lp.get(s.key, archived=True)).values["n"] == 4
        await lp.unarchive(s.key)
        assert (await lp.get(s.key)).phase == "completed"


async def test_archiving_what_is_archived_is_no_transition(lp: limpet.Limpet) -> None:
    """The table has none but unarchive, whichever object asks; other writes are SessionEnded."""
    s = await ended(lp)
    await s.archive()
    for each in (s, lp.session(s.key, actor="user:ada")):
        for verb in ("activate", "suspend", "resume", "complete", "terminate", "archive"):
            with pytest.raises(limpet.errors.InvalidTransition) as caught:
                await getattr(each, verb)()
            assert caught.value.phase == "archived"
        with pytest.raises(limpet.SessionEnded):
            await each.append("user.message", {"text": "x"})
    with pytest.raises(limpet.errors.InvalidTransition):
        await lp.resume(s.key)
    with pytest.raises(limpet.errors.SessionArchived):
        async with lp.commit() as c:
            c.append(s, "user.message", {"text": "x"})
    assert (await lp.maintenance.verify()).ok


async def test_how_long_it_is_kept_is_decided_while_it_is_archived(lp: limpet.Limpet) -> None:
    """Through the object that archived it, too; unarchiving keeps the decision."""
    s = await ended(lp)
    await s.archive()
    for days in (40, 50):
        kept = limpet.Timeouts(expiry=timedelta(days=days))
        await (s if days == 40 else lp.session(s.key, actor="user:ada")).lifecycle.set_timeouts(
            kept
        )
        (head,) = (await lp.list(app="support")).items
        assert head.timeouts == kept
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).lifecycle.timeouts == kept


async def test_a_sweep_archives_what_ended_long_enough_ago(lp: limpet.Limpet, cold: Path) -> None:
    """By the session's own timeouts, or the app's; a later one deletes it with its file."""
    lp.policies.lifecycle(
        "support", timeouts=limpet.Timeouts(archive=NOW, expiry=timedelta(days=30))
    )
    s = await ended(lp)
    await passed(lp)
    swept = await lp.work.sweep()
    assert (swept.archived, swept.failed) == (1, ())
    assert "1 archived" in str(swept)
    assert len(list(cold.rglob("*.limpet"))) == 1
    old = await lp.get(s.key, archived=True)
    event = (await old.read(types=["session.archived"]))[0]
    assert (event.actor, event.data["reason"]) == ("system:sweep", "retention")
    assert await lp.work.sweep() == limpet.Swept()
    await lp.session(s.key, actor="user:ada").lifecycle.set_timeouts(limpet.Timeouts(expiry=NOW))
    await passed(lp)
    assert (await lp.work.sweep()).deleted == 1
    assert not list(cold.rglob("*.limpet"))


async def test_an_archive_out_of_reach_stops_no_other_work(url: str, cold: Path) -> None:
    """What could not be moved is reported and stays; the other sessions are swept."""
    async with limpet.Limpet(url, archive=Lossy(cold)) as lp:
        s = await ended(lp, timeouts=limpet.Timeouts(archive=NOW))
        await lp.create("other", "bob", timeouts=limpet.Timeouts(absolute=NOW))
        await passed(lp, 2)
        for terminated in (1, 0):
            swept = await lp.work.sweep()
            assert swept.terminated == terminated
            assert [each.key for each in swept.failed] == [s.key]
            assert "ArchiveFailed" in swept.failed[0].reason
    if url != "memory://":
        async with limpet.open(url) as lp:  # without an archive it is left to who has one
            assert await lp.work.sweep() == limpet.Swept()
        async with limpet.open(url, archive=f"file://{cold}") as lp:
            assert not (await lp.work.sweep()).failed
            assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_a_completed_session_is_cleaned_up_before_it_is_archived(lp: limpet.Limpet) -> None:
    """In the order of cleanup, with its record; nothing is compensated, and never twice."""
    ran: list[str] = []

    def step(name: str) -> Any:
        return lambda session: ran.append(name) or (["n"] if name == "scrub" else None)

    cleanup: Any = {name: step(name) for name in ("scrub", "flush")}
    lp.policies.lifecycle("support", compensate=[step("undo")], cleanup=cleanup)
    s = await ended(lp)
    t = await s.archive()
    assert ran == ["flush", "scrub"]
    assert t.side_effects[:2] == ("cleanup flush", "cleanup scrub")
    assert t.event is not None
    assert t.event.data["cleanup"] == [{"name": "flush"}, {"name": "scrub"}]
    assert (await lp.get(s.key, archived=True)).values == {}
    other = await lp.create("support", "ada", actor="user:ada")
    ran.clear()
    await other.terminate()
    await other.archive()
    assert ran == ["undo", "flush", "scrub"]


async def test_a_new_folder_is_as_durable_as_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take the folder from above the file: the rows are gone by then."""
    synced: list[str] = []
    fsync = os.fsync

    def spy(at: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{at}"))
        fsync(at)

    monkeypatch.setattr(os, "fsync", spy)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    root = tmp_path / "new" / "cold"
    await DirectoryArchive(root).put("user/file", source)
    wanted = {root / "user", root, tmp_path / "new", tmp_path}
    assert {str(each) for each in wanted} <= set(synced)
    synced.clear()
    await DirectoryArchive(root).put("user/other", source)
    assert {str(root / "user"), str(root)} <= set(synced)


async def test_expiry_deletes_the_file_too(lp: limpet.Limpet, cold: Path) -> None:
    """Past its expiry nothing is left of an archived session but its tombstone."""
    s = await ended(lp, timeouts=limpet.Timeouts(expiry=NOW))
    await s.archive()
    await passed(lp)
    assert (await lp.work.sweep()).deleted == 1
    assert not list(cold.rglob("*.limpet"))
    with pytest.raises(limpet.errors.SessionDeleted):
        await lp.get(s.key)


async def test_what_is_expired_is_deleted_once_its_file_can_be_removed(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: a file without a session could not be found any more."""
    s = await ended(lp, timeouts=limpet.Timeouts(expiry=NOW))
    await s.archive()
    remove = DirectoryArchive.remove

    async def refused(self: DirectoryArchive, name: str) -> None:
        raise limpet.errors.ArchiveFailed(self.url, "removed", "out of reach")

    monkeypatch.setattr(DirectoryArchive, "remove", refused)
    await passed(lp)
    swept = await lp.work.sweep()
    assert (swept.deleted, bool(swept.failed)) == (0, True)
    assert [head.key for head in (await lp.list(app="support")).items] == [s.key]
    monkeypatch.setattr(DirectoryArchive, "remove", remove)
    assert (await lp.work.sweep()).deleted == 1
    assert not list(cold.rglob("*.limpet"))
    assert await lp.work.sweep() == limpet.Swept()


async def test_erasing_a_user_erases_the_files(lp: limpet.Limpet, cold: Path) -> None:
    """What is forgotten has no copy in the archive."""
    s = await ended(lp)
    await s.archive()
    await lp.erase_user("support", "ada")
    assert not list(cold.rglob("*.limpet"))
    other = await lp.create("support", "bob", id="two", actor="user:bob")
    await other.complete()
    await other.archive()
    await lp.erase(other.key)
    assert not list(cold.rglob("*.limpet"))
    third = await lp.create("support", "bob", id="three", actor="user:bob")
    await third.complete()
    await third.archive()
    await lp.delete(third.key)
    assert not list(cold.rglob("*.limpet"))


async def test_a_file_that_a_race_left_behind_goes_with_its_session(
    lp: limpet.Limpet, cold: Path
) -> None:
    """All files of one key are in one place, and erasing it removes them all."""
    s = await ended(lp)
    await s.archive()
    (file,) = cold.rglob("*.limpet")
    (file.parent / "older.limpet").write_bytes(file.read_bytes())
    await lp.unarchive(s.key)
    assert len(list(cold.rglob("*.limpet"))) == 1
    await lp.erase(s.key)
    assert not list(cold.rglob("*.limpet"))


async def test_a_file_that_was_changed_is_refused(lp: limpet.Limpet, cold: Path) -> None:
    """What is in the archive is compared with what was put there, and nothing is adopted."""
    s = await ended(lp)
    await s.archive()
    (file,) = cold.rglob("*.limpet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(limpet.errors.ArchiveFailed):
        await lp.unarchive(s.key)
    with pytest.raises(limpet.errors.SessionArchived):
        await lp.get(s.key)
    file.write_bytes(whole)
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).values["n"] == 4


class Lossy(DirectoryArchive):
    """An archive that loses a byte of what it is given."""

    async def put(self, name: str, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])
        await super().put(name, path)

    async def fetch(self, name: str, path: Path) -> None:
        await super().fetch(name, path)
        path.write_bytes(path.read_bytes()[:-1])


async def test_rows_stay_if_the_file_cannot_be_read_back(url: str, cold: Path) -> None:
    """Hot rows go only after the archive has proved that it has them."""
    async with limpet.Limpet(url, archive=Lossy(cold)) as lp:
        s = await ended(lp)
        with pytest.raises(limpet.errors.ArchiveFailed):
            await s.archive()
        old = await lp.get(s.key, archived=True)
        assert len(await old.read(limit=100)) == old.version
    async with limpet.open(url, archive=f"file://{cold}") as lp:
        if url != "memory://":
            await lp.session(s.key).archive()
            assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_an_archive_is_named_by_a_url() -> None:
    """Other schemes are refused when the store is opened."""
    for wrong in ("dir", "ftp://x/y", "file://", "s3:///x"):
        with pytest.raises(limpet.errors.InvalidURL):
            limpet.open("memory://", archive=wrong)


# --- what is recorded while the rows are on their way --------------------------------------------


@pytest.mark.parametrize("late", ["timeouts", "checkpoint"])
@pytest.mark.parametrize("step", ["put", "exchange"])
async def test_nothing_is_lost_that_is_recorded_while_the_file_is_written(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch, late: str, step: str
) -> None:
    """The rows go only where they are what the file has: else a newer file is made."""
    s = await ended(lp)
    other = await lp.get(s.key, actor="user:ada")
    said: list[str] = []

    async def say() -> None:
        if not said:
            said.append(late)
            if late == "timeouts":
                await other.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(days=5)))
            else:
                await other.checkpoint("late")

    at: Any = DirectoryArchive if step == "put" else writer_of(s).journal.store
    does = getattr(at, step)

    async def do(*args: Any, **how: Any) -> Any:
        await say()
        return await does(*args, **how)

    monkeypatch.setattr(at, step, do)
    await s.archive()
    monkeypatch.undo()
    await lp.unarchive(s.key)
    back = await lp.get(s.key)
    if late == "timeouts":
        assert back.lifecycle.timeouts == limpet.Timeouts(expiry=timedelta(days=5))
    else:
        assert (await back.history.checkpoints()).items[0].trigger == "late"
    assert (await lp.maintenance.verify()).ok


async def test_one_that_is_late_does_not_put_the_stub_in_the_place_of_the_file(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked while the rows were there; when it exports them another has archived them."""
    s = await ended(lp)
    other = await lp.get(s.key, actor="user:ada")
    export = cold_files.export_session

    async def late(*given: Any) -> Any:
        monkeypatch.undo()
        await archiving.finish(other)
        return await export(*given)

    monkeypatch.setattr(cold_files, "export_session", late)
    await s.archive()
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    await lp.unarchive(s.key)
    assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("meanwhile", ["archived", "back", "archived again"])
async def test_a_file_that_another_needs_is_not_removed(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """One that comes late has put its file there while another has archived the session, or has
    brought it back too: it removes its own file and no other."""
    s = await ended(lp)
    other = await lp.get(s.key, actor="user:ada")
    put = DirectoryArchive.put

    async def late(self: DirectoryArchive, name: str, path: Path) -> None:
        monkeypatch.undo()
        await archiving.finish(other)
        if meanwhile != "archived":
            await lp.unarchive(s.key)
        if meanwhile == "archived again":
            await (await lp.get(s.key, actor="user:ada")).archive()
        await put(self, name, path)

    monkeypatch.setattr(DirectoryArchive, "put", late)
    await s.archive()
    assert len(list(cold.rglob("*.limpet"))) == (meanwhile != "back")
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    assert (await lp.work.sweep()).failed == ()
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    assert (await lp.maintenance.verify()).ok


async def test_a_session_that_is_back_stays_though_its_file_cannot_be_removed(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is named among those to remove in the transaction that brings the session back; a
    sweep says that it cannot, and a later one does."""
    s = await ended(lp)
    await s.archive()

    async def refused(self: DirectoryArchive, name: str) -> None:
        raise limpet.errors.ArchiveFailed(self.url, "removed", "out of reach")

    monkeypatch.setattr(DirectoryArchive, "remove", refused)
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).values["n"] == 4
    (failed,) = (await lp.work.sweep()).failed
    assert "ArchiveFailed" in failed.reason
    monkeypatch.undo()
    assert len(list(cold.rglob("*.limpet"))) == 1
    assert await lp.work.sweep() == limpet.Swept()
    assert not list(cold.rglob("*.limpet"))
    assert (await lp.get(s.key)).values["n"] == 4


@pytest.mark.parametrize("end", ["erase", "erase_user", "delete"])
async def test_what_is_ended_while_its_file_is_written_has_no_file(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It comes late to the archive, and goes again: nothing stands for it in the store."""
    s = await ended(lp)
    put = DirectoryArchive.put

    async def late(self: DirectoryArchive, name: str, path: Path) -> None:
        monkeypatch.undo()
        if end == "erase_user":
            await lp.erase_user("support", "ada")
        else:
            await getattr(lp, end)(s.key)
        await put(self, name, path)

    monkeypatch.setattr(DirectoryArchive, "put", late)
    with suppress(limpet.errors.SessionDeleted, limpet.errors.SessionErased):
        await s.archive()
    assert list(cold.rglob("*.limpet")) == []
    assert await lp.work.sweep() == limpet.Swept()
    assert (await lp.maintenance.verify()).ok


async def test_what_is_unarchived_while_its_file_is_written_stays_in_the_store(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are those of a completed session by then, and nobody asked to move them."""
    s = await ended(lp)
    put = DirectoryArchive.put

    async def late(self: DirectoryArchive, name: str, path: Path) -> None:
        monkeypatch.undo()
        await lp.unarchive(s.key)
        await put(self, name, path)

    monkeypatch.setattr(DirectoryArchive, "put", late)
    await s.archive()
    back = await lp.get(s.key)
    assert (back.phase, back.values["n"]) == ("completed", 4)
    assert list(cold.rglob("*.limpet")) == []
    assert await lp.work.sweep() == limpet.Swept()


async def test_what_is_said_while_it_comes_back_holds_on(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How it is kept was said to what stands for it in the store, which goes."""
    s = await ended(lp)
    await s.archive()
    await s.history.retention(events=50)
    exchange = lp._journal.store.exchange
    week = limpet.Timeouts(expiry=timedelta(days=7))

    async def late(exchanges: Any) -> bool:
        monkeypatch.undo()
        await s.lifecycle.set_timeouts(week)
        return await exchange(exchanges)

    monkeypatch.setattr(lp._journal.store, "exchange", late)
    await lp.unarchive(s.key)
    back = await lp.get(s.key)
    assert (back.lifecycle.timeouts, back.head.facts["retention"]) == (week, {"events": 50})


async def test_what_stands_for_an_archived_session_has_no_checkpoints(lp: limpet.Limpet) -> None:
    """It would be one of an empty state, and gone when the session comes back."""
    s = await ended(lp)
    await s.archive()
    with pytest.raises(limpet.errors.SessionArchived):
        await lp.session(s.key, actor="user:ada").checkpoint()


@pytest.mark.parametrize("lasting", [limpet.errors.SessionCorrupt, limpet.errors.ArchiveFailed])
async def test_a_move_that_cannot_be_finished_keeps_no_other_waiting(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch, lasting: type[Exception]
) -> None:
    """Three fail in every sweep, for reasons of their own or because the archive refuses them; the
    fourth is archived though a sweep finishes one only, and stops at the first refusal."""
    export = cold_files.export_session

    async def dies(*_: Any) -> None:
        raise RuntimeError("the process is killed here")

    async def refuses(journal: Any, key: limpet.Key, *how: Any) -> Any:
        if key.id < "d":
            args = (
                (key, "damaged")
                if lasting is limpet.errors.SessionCorrupt
                else ("x", "read", "lost")
            )
            raise lasting(*args)
        return await export(journal, key, *how)

    monkeypatch.setattr(cold_files, "export_session", dies)
    for id in "abcd":
        s = await lp.create("support", "ada", id=id, actor="user:ada")
        await s.complete()
        with pytest.raises(RuntimeError):
            await s.archive()
    monkeypatch.setattr(cold_files, "export_session", refuses)
    monkeypatch.setattr(archiving, "OUTAGES_MAX", 1)
    journal = writer_of(s).journal
    session_of = functools.partial(lp.session, actor="user:ada", untyped=True)
    for _ in range(300):  # one is enough where they fail by themselves; else it takes some luck
        failed = await archiving.finish_all(lp._services, session_of, limit=1)
        assert {(key.id < "d", type(error)) for key, error in failed} <= {(True, lasting)}
        assert lasting is limpet.errors.SessionCorrupt or len(failed) <= 1
        if s.key not in await archiving.sessions_in_transit(journal):
            break
    left = await archiving.sessions_in_transit(journal)
    assert s.key not in left
    assert limpet.Key("support", "ada", "a") in left


async def test_a_sweep_deals_with_deadlines_before_it_asks_the_archive(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that does not answer keeps nothing waiting whose time has come."""
    s = await ended(lp)
    silent, seen = functools.partial(DirectoryArchive.put, lp._services.archive), list[str]()

    async def broken(archive: Any, name: str, path: Path) -> None:
        raise limpet.errors.ArchiveFailed(archive.url, "written", "cut off")

    monkeypatch.setattr(DirectoryArchive, "put", broken)
    with pytest.raises(limpet.errors.ArchiveFailed):
        await s.archive()

    async def looks(archive: Any, name: str, path: Path) -> None:
        seen.append((await lp.get(late.key)).phase)
        await silent(name, path)

    monkeypatch.setattr(DirectoryArchive, "put", looks)
    late = await lp.create("other", "bob", timeouts=limpet.Timeouts(absolute=NOW))
    swept = await lp.work.sweep()
    assert (swept.terminated, seen, swept.failed) == (1, ["terminated"], ())


# --- what is archived is not empty ---------------------------------------------------------------


Verb = Callable[[limpet.Limpet, limpet.Session, Path], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "refresh": lambda lp, s, at: s.refresh(),
    "read": lambda lp, s, at: s.read(),
    "read backwards": lambda lp, s, at: s.read(reverse=True),
    "pending": lambda lp, s, at: s.pending(),
    "messages": lambda lp, s, at: s.messages(),
    "context": lambda lp, s, at: s.context(tokens=100),
    "state_at": lambda lp, s, at: s.history.at(1),
    "diff": lambda lp, s, at: s.history.diff(1, 1),
    "blame": lambda lp, s, at: s.history.blame("n"),
    "bisect": lambda lp, s, at: s.history.bisect(lambda state: True),
    "fork": lambda lp, s, at: s.fork(id="fork"),
    "rewind": lambda lp, s, at: s.rewind(1),
    "checkpoint": lambda lp, s, at: s.checkpoint(),
    "tree": lambda lp, s, at: s.runs.tree(),
    "lineage": lambda lp, s, at: s.history.lineage(),
    "activations": lambda lp, s, at: s.runs.activations(),
    "update": lambda lp, s, at: s.update(lambda v: {"n": 9}),
    "get_blob": lambda lp, s, at: s.blobs.get("0" * 64),
    "renew": lambda lp, s, at: s.lifecycle.renew(idle=timedelta(hours=1)),
    "export": lambda lp, s, at: lp.export(s.key, at / "out.limpet"),
    "get": lambda lp, s, at: lp.get(s.key),
}


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("verb", VERBS)
async def test_no_verb_answers_from_what_stands_for_an_archived_session(
    lp: limpet.Limpet, tmp_path: Path, verb: str, known: bool
) -> None:
    """Neither through an object that knew the session before, nor through one that knows nothing:
    it is archived, and not empty."""
    s = await ended(lp)
    old = await lp.get(s.key, actor="user:ada")
    await s.archive()
    through = old if known else lp.session(s.key, actor="user:ada")
    with pytest.raises(limpet.errors.SessionArchived):
        await VERBS[verb](lp, through, tmp_path)
    assert not (tmp_path / "out.limpet").exists()
    assert await lp.get_many([s.key]) == (None,)
    assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_a_copy_of_an_archived_session_is_refused(lp: limpet.Limpet) -> None:
    """What stands for it in the store is not the session."""
    s = await ended(lp)
    await s.archive()
    async with limpet.open("memory://") as other:
        with pytest.raises(limpet.errors.SessionArchived):
            await lp.copy(s.key, to=other)
        assert await other.find(s.key) is None


async def test_a_transition_is_never_recorded_on_what_stands_for_a_session(
    lp: limpet.Limpet,
) -> None:
    """Whoever decided on the log and commits to the key is refused by the planner itself."""
    s = await ended(lp)
    await s.archive()
    (head,) = (await lp.list(app="support")).items
    fact = transition("archived", "unarchive", to="completed")
    draft = lp._journal.prepare(fact, "user:ada")
    with pytest.raises(limpet.errors.SessionArchived):
        await lp._journal.commit((Commit(s.key, (draft,), uid=head.uid),))
    await lp.unarchive(s.key)
    assert (await lp.get(s.key)).phase == "completed"


@pytest.mark.parametrize("stage", ["completed", "archived", "stub"])
async def test_a_session_that_has_ended_takes_no_blob(
    lp: limpet.Limpet, cold: Path, stage: str
) -> None:
    """It would be in no file, and nobody could name it: it is refused, not acknowledged."""
    s = await ended(lp)
    old = await lp.get(s.key, actor="user:ada")
    if stage == "archived":
        services = lp._services
        lp._opened = structs.replace(services, archive=None)  # only the phase changes
        await (await lp.get(s.key, actor="user:ada")).archive()
        lp._opened = services
    elif stage == "stub":
        await s.archive()
    refused = limpet.errors.SessionArchived if stage == "stub" else limpet.SessionEnded
    for content in (b"late", iter([b"la", b"te"])):
        with pytest.raises((refused, limpet.SessionEnded)):
            await old.blobs.put(content)
    if stage == "stub":
        await lp.unarchive(s.key)
    blobs: Any = lp._journal.store
    assert len(await blobs.blobs.page(s.key, after="", limit=9)) == 1
    assert (await lp.maintenance.verify()).ok


async def test_shared_names_are_counted_once_when_their_session_comes_back(
    lp: limpet.Limpet,
) -> None:
    """Its rows stayed while it was archived, and its log speaks of them again; new ones too."""
    s = await lp.create("support", "ada", id="one", actor="user:ada")
    await s.append("user.message", {"text": "hi"}, set={"app:open": True, "user:lang": "en"})
    await s.complete()
    await s.archive()
    assert (await lp.maintenance.verify()).ok
    for _ in range(2):
        await lp.unarchive(s.key)
        assert (await lp.maintenance.verify()).ok
        assert (await lp.maintenance.doctor()).report.ok
        await (await lp.get(s.key, actor="user:ada")).archive()
    other = await lp.create("support", "ada", actor="user:ada")
    await other.append("user.message", {"text": "hi"}, set={"user:lang": "de"})
    assert (await lp.maintenance.verify()).ok
    assert dict(await lp.names("support", "ada")) == {"app:open": True, "user:lang": "de"}


async def test_a_fork_is_known_after_its_parent_was_archived(lp: limpet.Limpet) -> None:
    """Erasing the parent is refused for its sake, with the file untouched, archived or back."""
    s = await ended(lp)
    fork = await s.fork(id="fork")
    await s.archive()
    with pytest.raises(limpet.errors.SessionHasForks):
        await lp.erase(s.key)
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    await lp.unarchive(s.key)
    with pytest.raises(limpet.errors.SessionHasForks) as caught:
        await lp.erase(s.key)
    assert caught.value.forks == (fork.key,)
    assert (await fork.read(limit=2))[1].data == {"text": "secret 0"}


async def test_a_fence_counts_on_after_the_session_came_back(lp: limpet.Limpet) -> None:
    """A worker of its first life cannot write in the second, in the name of another's lease."""
    s = await ended(lp)
    store: Any = lp._journal.store
    old = await store.acquire(s.key, "first", 30)
    await lp.work.release(old)
    await s.archive()
    await lp.unarchive(s.key)
    new = await store.acquire(s.key, "second", 30)
    assert new.fence > old.fence


async def test_a_full_disk_is_said_by_the_archive_and_leaves_nothing(
    lp: limpet.Limpet, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the archive nor where the file is prepared; the session stays, and is archived by
    the next sweep."""
    s = await ended(lp)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    full = OSError(errno.ENOSPC, "No space left on device")

    def write(*_: Any) -> None:
        raise full

    for target in (
        "limpet.session.life.archive_storage.shutil.copyfileobj",
        f"{BundleWriter.__module__}",
    ):
        with monkeypatch.context() as patch:
            if target.endswith("copyfileobj"):
                patch.setattr(target, write)
            else:
                patch.setattr(BundleWriter, "finish", write)
            with pytest.raises(limpet.errors.ArchiveFailed, match="No space left"):
                await s.archive()
        assert not [each for each in (*cold.rglob("*"), *temporary.rglob("*")) if each.is_file()]
    assert (await lp.work.sweep()).failed == ()
    assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_a_part_that_a_killed_process_left_goes_with_its_file(
    lp: limpet.Limpet, cold: Path
) -> None:
    """It holds what its user said, and its name is that of the file it was to become."""
    s = await ended(lp)
    await s.archive()
    (file,) = cold.rglob("*.limpet")
    part = file.with_name(f"{file.name}.{2**22 + 1}-00ff00ff.part")
    part.write_bytes(b"half")
    lost = file.with_name(f"lost.limpet.{2**22 + 1}-00ff00ff.part")
    lost.write_bytes(b"half")
    await lp.unarchive(s.key)
    assert not part.exists()
    await lp.erase(s.key)
    assert not [each for each in cold.rglob("*") if each.is_file()]


async def test_what_an_archived_session_remembers_is_read_with_it(lp: limpet.Limpet) -> None:
    """Memory stays in the store while the log is in the archive, and can be put to by neither."""
    s = await lp.create("support", "ada", id="one", actor="user:ada")
    await s.memory.session.put("fact", {"paid": True})
    await s.memory.episodic.put("call", "long")
    await s.memory.semantic.put("vat", 19)
    await s.complete({"done": True})
    await s.archive()
    old = await lp.get(s.key, archived=True, actor="user:ada")
    assert await old.memory.session.get("fact") == {"paid": True}
    assert "call" in [each.name for each in await old.memory.episodic.list()]
    assert await old.memory.semantic.get("vat") == 19
    for layer in (old.memory.session, old.memory.episodic, old.memory.semantic):
        with pytest.raises(limpet.SessionEnded):
            await layer.put("more", 1)


async def refused(self: DirectoryArchive, name: str) -> None:
    raise limpet.errors.ArchiveFailed(self.url, "removed", "the archive is out of reach")


def racing(monkeypatch: pytest.MonkeyPatch, lp: limpet.Limpet, race: Callable[[], Any]) -> None:
    """Before the archive reads a file for the first time, another process does this."""
    archive, calls = lp._services.archive, [race]
    fetch = archive.fetch

    async def fetches(name: str, path: Path) -> None:
        if calls:
            await calls.pop()()
        await fetch(name, path)

    monkeypatch.setattr(archive, "fetch", fetches)


async def test_who_archives_second_is_told_that_it_is_archived(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch, cold: Path
) -> None:
    """The first has removed the file of the second as one that nobody needs: nothing has failed."""
    s = await ended(lp)
    racing(monkeypatch, lp, lp.session(s.key, actor="user:ada").archive)
    assert (await s.archive()).phase == "archived"
    assert len(list(cold.rglob("*.limpet"))) == 1
    assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_a_session_that_comes_back_while_its_file_is_read_is_read_in_the_store(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is gone, and its log is where it was before."""
    s = await ended(lp)
    await s.archive()
    racing(monkeypatch, lp, functools.partial(lp.unarchive, s.key))
    found = await lp.get(s.key, archived=True)
    assert (found.phase, found.values["n"]) == ("completed", 4)


async def test_unarchiving_returns_what_it_did_whatever_happens_next(lp: limpet.Limpet) -> None:
    """The session is archived again before the call returns."""

    async def again(session: limpet.Session) -> None:
        await session.archive()

    lp.policies.lifecycle("support", after={("archived", "completed"): again})
    s = await ended(lp)
    await s.archive()
    t = await lp.unarchive(s.key)
    assert (t.before, t.phase, t.name) == ("archived", "completed", "unarchive")
    assert t.event is not None
    assert t.event.type == "session.unarchived"


@pytest.mark.parametrize("whole", [True, False])
async def test_what_is_archived_while_it_is_read_is_not_damaged(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, whole: bool
) -> None:
    """An export and a copy say that it is archived, and advise no restore."""
    s = await ended(lp)
    store: Any = lp._journal.store
    records, waiting = store.records, [False, True]

    async def meets(key: limpet.Key, **how: Any) -> Any:
        if key == s.key and waiting and waiting.pop(0):
            await lp.session(s.key, actor="user:ada").archive()
        return await records(key, **how)

    monkeypatch.setattr(store, "records", meets)
    if whole:
        async with limpet.open("memory://") as other:
            (refused,) = (await lp.copy(app="support", to=other)).refused
            assert refused.code == "session.archived"
    else:
        with pytest.raises(limpet.errors.SessionArchived):
            await lp.export(s.key, tmp_path / "one.limpet")


async def test_a_sweep_does_not_report_what_another_has_dealt_with(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweeps meet the same entry: one of them finds it gone, and nothing has failed."""
    s = await ended(lp)
    await s.archive()
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryArchive, "remove", refused)
        await lp.unarchive(s.key)
    store: Any = lp._journal.store
    load, met = store.load, list[limpet.Key]()

    async def loads(key: limpet.Key, **how: Any) -> Any:
        if key.app == ARCHIVE_DISCARDS and met.append(key) is None:
            await store.delete(key, ending="moved")
        return await load(key, **how)

    monkeypatch.setattr(store, "load", loads)
    assert (await lp.work.sweep()).failed == ()
    assert len(met) == 1


async def test_a_copy_has_the_logs_of_archived_sessions_and_none_of_the_files(
    lp: limpet.Limpet, cold: Path
) -> None:
    """Each store owns its files: what is done to the copy takes nothing from the original. Copied
    again when it is archived, or is back, it goes on where it was."""
    s = await ended(lp)
    async with limpet.open("memory://", archive=f"file://{cold}") as other:
        for _ in range(2):
            assert (await lp.copy(to=other)).ok
            await s.archive()
            copied = await lp.copy(to=other)
            assert (copied.ok, copied.sessions, (await lp.copy(to=other)).sessions) == (True, 1, 0)
            there = await other.get(s.key, archived=True)
            original = await lp.get(s.key, archived=True)
            assert (there.phase, there.version) == ("archived", original.version)
            assert there.head.link == original.head.link
            await lp.unarchive(s.key)
            s = await lp.get(s.key, actor="user:ada")
        await s.archive()
        await other.delete(s.key)
        assert (await other.maintenance.verify()).ok
    assert (await lp.get(s.key, archived=True)).values["n"] == 4


async def test_the_feed_has_what_came_back_once(lp: limpet.Limpet) -> None:
    """Each event stands where it was recorded in this store last, on every store."""
    s = await ended(lp)
    await s.archive()
    await lp.unarchive(s.key)
    entries, _ = await lp._journal.store.changes(None, app="support", key=None, limit=100)
    seqs = [entry.event.seq for entry in entries]
    assert seqs == list(range(1, 1 + (await lp.get(s.key)).version))


async def test_a_name_never_leads_out_of_the_archive(tmp_path: Path) -> None:
    """What a document or a stub says of a file is not a path to follow."""
    archive, victim = DirectoryArchive(tmp_path / "cold"), tmp_path / "victim.limpet"
    victim.write_bytes(b"x")
    for name in ("../victim.limpet", "a/../../victim.limpet", f"{victim}", ""):
        for work in (archive.remove(name), archive.fetch(name, tmp_path / "got")):
            with pytest.raises(limpet.errors.ArchiveFailed):
                await work
    assert victim.exists()


@pytest.mark.parametrize("end", ["delete", "erase", "erase_user"])
async def test_forgetting_wins_over_a_process_that_dies_after_its_file_was_written(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It looked before the session was forgotten, writes after that, and cannot clean up."""
    s = await ended(lp)
    put = DirectoryArchive.put

    async def late(self: DirectoryArchive, name: str, path: Path) -> None:
        monkeypatch.undo()
        if end == "erase_user":
            await lp.erase_user("support", "ada")
        else:
            await getattr(lp, end)(s.key)
        await put(self, name, path)
        raise RuntimeError("the process is killed here")

    monkeypatch.setattr(DirectoryArchive, "put", late)
    with pytest.raises(RuntimeError):
        await s.archive()
    assert len(list(cold.rglob("*.limpet"))) == 1
    assert await lp.work.sweep() == limpet.Swept()
    assert list(cold.rglob("*.limpet")) == []
    page = await lp._journal.store.heads(Query(reserved=True), cursor=None, limit=100)
    assert [
        head.key for head in page.items if re.search(r"\bada\b", f"{head.key}{head.facts}")
    ] == []
    assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("end", ["delete", "erase", "erase_user"])
async def test_what_is_forgotten_while_it_is_archived_by_another_has_no_file(
    lp: limpet.Limpet, cold: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The stub takes its place after the look for a file, and before the rows go."""
    s = await ended(lp)
    store: Any = lp._journal.store
    name = "delete" if end == "delete" else end
    does = getattr(store, name)

    async def late(*given: Any, **how: Any) -> Any:
        if given[0] in (s.key, "support"):
            monkeypatch.undo()
            await s.archive()
        return await does(*given, **how)

    monkeypatch.setattr(store, name, late)
    if end == "erase_user":
        await lp.erase_user("support", "ada")
    else:
        await getattr(lp, end)(s.key)
    assert await lp.find(s.key) is None
    assert list(cold.rglob("*.limpet")) == []
    assert (await lp.list(app="support")).items == ()
    assert await lp.work.sweep() == limpet.Swept()


async def test_a_log_that_never_arrived_is_removed_with_time(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process died on the way back. Nobody meets a part of the log; the next attempt has its own,
    and the sweep removes the first one when its process must be dead."""
    s = await ended(lp)
    await s.archive()
    store: Any = lp._journal.store

    async def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("the process is killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Adopter, "put_chunk", dies)
        patch.setattr(archiving, "_drop_log", dies)
        with pytest.raises(RuntimeError):
            await lp.unarchive(s.key)
    with pytest.raises(limpet.errors.SessionArchived):
        await lp.get(s.key)
    left = Query(app=ARCHIVE_LOGS, order="key", reverse=False)
    assert len((await store.heads(left, cursor=None, limit=9)).items) == 2  # and its checkpoints
    assert (await lp.maintenance.verify()).ok
    assert (await lp.list()).items[0].key == s.key
    with monkeypatch.context() as patch:
        patch.setattr(archiving, "ATTEMPT_US", -1)
        await lp.work.sweep()
    assert (await store.heads(left, cursor=None, limit=9)).items == ()
    assert (await lp.get(s.key)).values["n"] == 4  # the sweep has finished it
    assert (await lp.maintenance.verify()).ok


async def test_an_erased_session_is_named_by_nothing_that_archiving_left(lp: limpet.Limpet) -> None:
    """Neither by what says where it was to go, nor by what is left of that."""
    s = await lp.create("support", "ada", id="telltale", actor="user:ada")
    await s.complete()
    for _ in range(2):
        await lp.session(s.key, actor="user:ada").archive()
        await lp.unarchive(s.key)
    await lp.erase(s.key)
    for deleted in (False, True):
        query = Query(reserved=True, deleted=deleted)
        page = await lp._journal.store.heads(query, cursor=None, limit=100)
        assert [head.key for head in page.items if "telltale" in f"{head.key}{head.facts}"] == []


async def test_who_brings_it_back_after_another_is_told_that_it_is_not_archived(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that its file is missing, wherever the other was faster."""
    s = await ended(lp)
    for step in ("fetch", "exchange", "commit"):
        await lp.session(s.key, actor="user:ada").archive()
        at: Any = DirectoryArchive if step == "fetch" else lp._journal.store
        does = getattr(at, step)

        async def late(*given: Any, does: Any = does, **how: Any) -> Any:
            monkeypatch.undo()
            await lp.unarchive(s.key)
            return await does(*given, **how)

        monkeypatch.setattr(at, step, late)
        with pytest.raises(limpet.errors.InvalidTransition):
            await lp.unarchive(s.key)
        assert (await lp.get(s.key)).values["n"] == 4
        assert (await lp.work.sweep()).failed == ()
    assert (await lp.maintenance.verify()).ok


async def test_what_archiving_prepares_is_not_copied(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is about this store: a copy that cleans up must not remove a file that is needed here."""
    s = await ended(lp)

    async def dies(*_: Any) -> None:
        raise RuntimeError("the process is killed here")

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryArchive, "put", dies)
        with pytest.raises(RuntimeError):
            await s.archive()
    prepared = Query(app=ARCHIVE_STUBS, order="key", reverse=False)
    assert (await lp._journal.store.heads(prepared, cursor=None, limit=9)).items
    async with limpet.open("memory://") as other:
        await lp.copy(to=other)
        found = await other._journal.store.heads(Query(reserved=True), cursor=None, limit=99)
        assert not [head.key for head in found.items if head.key.app.startswith("$$archive")]


async def test_who_knew_a_session_before_it_was_archived_writes_to_what_came_back(
    url: str, cold: Path
) -> None:
    """Its head is the same, and its rows are others: checkpoints and writes reach those."""
    if url == "memory://":  # one process has it
        return
    async with limpet.open(url, archive=f"file://{cold}") as lp, limpet.open(url) as other:
        s = await ended(lp)
        known = await other.get(s.key, actor="user:ada")
        await known.checkpoint("before")
        await lp.session(s.key, actor="user:ada").archive()
        await lp.unarchive(s.key)
        made = await known.checkpoint("after", full=True)
        await known.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(days=9)))
        assert (await lp.maintenance.verify()).ok
        back = await lp.get(s.key)
        assert back.lifecycle.timeouts == limpet.Timeouts(expiry=timedelta(days=9))
        assert made.number in [each.number for each in (await back.history.checkpoints()).items]
        await lp.session(s.key, actor="user:ada").archive()
        await lp.unarchive(s.key)
        assert (await lp.maintenance.verify()).ok


async def test_what_stands_for_an_archived_session_is_never_compacted(lp: limpet.Limpet) -> None:
    """How long it is kept may be said to it as often as anybody likes: it is read as it is."""
    s = await ended(lp)
    await s.archive()
    for days in range(1, 6):
        await s.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(days=days)))
    await s.history.retention(events=1)
    assert (await lp.maintenance.compact(s.key)).events == 0
    assert (await lp.get(s.key, archived=True)).values["n"] == 4
    assert (await lp.unarchive(s.key)).phase == "completed"
    assert (await lp.maintenance.verify()).ok
