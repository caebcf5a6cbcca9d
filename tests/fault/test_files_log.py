"""A log store whose files are torn, damaged, doubled or swapped, and whose writer dies."""

from __future__ import annotations

import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import SessionCorrupt, StoreBusy, StoreForked, StoreReadOnly, StoreUnopened
from limpet.store.files import log as log_module
from limpet.store.files.store import FilesStore
from tests.fault.test_kill import Ledger, check, write_and_kill
from tests.support.disks import holds
from tests.support.processes import Child
from tests.support.seeds import seed

ADA = "user:ada"
APP, USER = "support", "ada"


def url(path: Path) -> str:
    return f"files:///{path}"


async def filled(path: Path, sessions: int = 3, events: int = 5) -> None:
    """Some sessions with some events each, told apart by their texts."""
    async with limpet.open(url(path)) as lp:
        for name in range(sessions):
            s = await lp.create(APP, USER, f"s{name}", state={"n": 0}, actor=ADA)
            for number in range(events):
                await s.append("a.b", {"text": f"secret {name}.{number}"}, inc={"n": 1})


def segment(path: Path, number: int = 1) -> Path:
    return path / "log" / f"{number:08d}.jsonl"


def lines_of(path: Path, number: int = 1) -> list[dict[str, Any]]:
    texts = segment(path, number).read_bytes().split(b"\n")
    return [json.loads(text) for text in texts if text]


# --- what a line says ----------------------------------------------------------------------------


async def test_a_line_says_what_changed_and_by_whom(tmp_path: Path) -> None:
    """seq, session, operation, field, value before and after, time and actor; add has lengths."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", state={"n": 1, "log": ["a"], "m": {"x": 1}})
        await s.append(
            "a.b",
            {},
            actor=ADA,
            set={"big": "x" * 5_000},
            inc={"n": 2},
            add={"log": ["b", "c"]},
            merge={"m": {"x": 2, "y": 3}},
        )
        await s.append("a.b", {}, actor=ADA, delete=["n"], set={"big": 1})
    events = [line for line in lines_of(path) if line["op"] == "event"]
    first, second = events[1:]
    assert (first["seq"], first["session"], first["actor"]) == (2, [APP, USER, "one"], ADA)
    assert first["time"] > 0
    changes = {each["field"]: each for each in first["changes"]}
    assert changes["n"] == {
        "operation": "inc",
        "field": "n",
        "value_before": 1,
        "value_after": 3,
    }
    assert (changes["log"]["value_before"], changes["log"]["value_after"]) == (1, 3)
    assert (changes["m"]["value_before"], changes["m"]["value_after"]) == (["x"], ["x", "y"])
    assert changes["big"]["value_after"]["length"] == 5_002
    gone = {each["field"]: each for each in second["changes"]}
    assert (gone["n"]["operation"], gone["n"]["value_before"]) == ("del", 3)
    assert set(gone["big"]["value_before"]) == {"length", "sha256"}


async def test_a_sealed_log_shows_headers_and_no_bodies(tmp_path: Path) -> None:
    """Who did what kind of thing when is readable; data, state and changes are not."""
    path = tmp_path / "store"
    async with limpet.open(url(path), keys="memory:") as lp:
        s = await lp.create(APP, USER, "one", state={"colour": "vermilion"}, actor=ADA)
        await s.append("a.b", {"text": "aubergine"}, set={"fruit": "quince"}, inc={"app:n": 1})
        await lp.maintenance.compact()
        assert s.state["fruit"] == "quince"
    for text in ("vermilion", "aubergine", "quince"):
        assert holds(path, text) == []
    assert not (path / "sessions").exists()
    assert holds(path, "a.b")


# --- torn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 40, 200])
async def test_a_torn_tail_is_repaired_and_written_on(tmp_path: Path, cut: int) -> None:
    """What nobody was told of is dropped; two appends later everything is there, in order."""
    path = tmp_path / "store"
    await filled(path, sessions=1)
    whole = segment(path).read_bytes()
    torn = whole.rstrip(b"\n") + b"\n" + whole.split(b"\n")[-2][:-cut] + b"\n\n" + whole[60:90]
    segment(path).write_bytes(torn)
    for number in (7, 8):
        async with limpet.open(url(path)) as lp:
            s = await lp.get(APP, USER, "s0", actor=ADA)
            assert s.version == number - 1
            await s.append("a.b", {"text": "after"}, inc={"n": 1})
    async with limpet.open(url(path)) as lp:
        s = await lp.get(APP, USER, "s0", tail=100)
        assert [event.seq for event in s.events] == list(range(1, 9))
        assert s.state["n"] == 7
        assert (await lp.maintenance.verify()).findings == ()
    assert all(json.loads(t) for t in segment(path).read_bytes().split(b"\n") if t)


async def test_a_group_without_its_end_was_never_written(tmp_path: Path) -> None:
    """Of a commit to two sessions, one line alone is nothing."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        a, b = [await lp.create(APP, USER, id, actor=ADA) for id in "ab"]
        async with lp.commit() as c:
            c.append(a, "x.y", {})
            c.append(b, "x.y", {})
    whole = segment(path).read_bytes().rstrip(b"\n")
    segment(path).write_bytes(whole[: whole.rfind(b"\n") + 1])
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "a")).version == 1
        assert (await lp.get(APP, USER, "b")).version == 1
        assert (await lp.maintenance.verify()).findings == ()


# --- damaged -------------------------------------------------------------------------------------


async def test_a_damaged_line_is_found_isolated_and_reported(tmp_path: Path) -> None:
    """One session misses one event and says so; the others are whole, and writing goes on."""
    path = tmp_path / "store"
    await filled(path)
    data = bytearray(segment(path).read_bytes())
    at = data.find(b"secret 1.2")
    data[at : at + 6] = b"SECRET"
    segment(path).write_bytes(data)
    async with limpet.open(url(path)) as lp:
        report = await lp.maintenance.verify()
        assert {finding.key.id for finding in report.findings if finding.key} == {"s1"}
        assert any("damaged at byte" in finding.problem for finding in report.findings)
        diagnosis = await lp.maintenance.doctor()
        assert not diagnosis.ok
        assert "is damaged" in str(diagnosis)
        s = await lp.get(APP, USER, "s1", actor=ADA, tail=10)
        assert s.history.damaged == (4,)
        await s.append("a.b", {"text": "on"})
        with pytest.raises(SessionCorrupt):
            await s.update(lambda state: {"n": state["n"] + 1})
        for name in ("s0", "s2"):
            assert (await lp.get(APP, USER, name)).state["n"] == 5
        await lp.maintenance.compact()
    assert [each.name for each in (path / "log").glob("*.damaged")] == ["00000001.jsonl.damaged"]
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "s1")).history.damaged == (4,)
        assert (await lp.get(APP, USER, "s2")).state["n"] == 5


@pytest.fixture
async def segmented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several segments."""
    monkeypatch.setattr(log_module, "SEGMENT_BYTES", 4_000)
    path = tmp_path / "store"
    await filled(path)
    assert segment(path, 3).exists()
    return path


@pytest.mark.parametrize("what", ["missing", "doubled", "swapped", "truncated", "flipped"])
async def test_a_wrong_segment_is_found_and_isolated(segmented: Path, what: str) -> None:
    """Verify and doctor name the file, what is elsewhere is read, and the store is written on."""
    one, two = segment(segmented, 1), segment(segmented, 2)
    named = "00000002.jsonl"
    if what == "missing":
        two.unlink()
    elif what == "doubled":
        shutil.copyfile(one, two)
    elif what == "swapped":
        one.rename(segmented / "aside")
        two.rename(one)
        (segmented / "aside").rename(two)
    elif what == "truncated":
        two.write_bytes(two.read_bytes()[: two.stat().st_size // 2])
    else:
        data = bytearray(two.read_bytes())
        data[len(data) // 2] ^= 1
        two.write_bytes(data)
    async with limpet.open(url(segmented)) as lp:
        report = await lp.maintenance.verify()
        assert any(named in finding.problem for finding in report.findings), report
        assert not (await lp.maintenance.doctor()).ok
        s = await lp.create(APP, USER, "new", actor=ADA)
        await s.append("a.b", {"text": "on"})
        last = await lp.find(APP, USER, "s2")
        assert last is None or last.version <= 6
    async with limpet.open(url(segmented)) as lp:
        assert (await lp.get(APP, USER, "new")).version == 2


async def test_a_damaged_frame_costs_its_session_alone(tmp_path: Path) -> None:
    """A flipped byte in a compacted file: one session is named, the others are whole."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
    (packed,) = (path / "log").glob("*.zst")
    data = bytearray(packed.read_bytes())
    data[40] ^= 1
    packed.write_bytes(data)
    async with limpet.open(url(path)) as lp:
        report = await lp.maintenance.verify()
        assert {finding.key.id for finding in report.findings if finding.key} == {"s0"}
        assert (await lp.get(APP, USER, "s2")).state["n"] == 5


# --- erased --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
async def test_nothing_of_an_erased_session_is_in_the_files(
    tmp_path: Path, *, compacted: bool
) -> None:
    """Before erase returns: not in segments, frames, the index or files for people; the rest is
    as it was."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        if compacted:
            await lp.maintenance.compact()
            assert (path / "sessions" / APP / USER / "s1" / "events.jsonl").exists()
        await lp.erase(APP, USER, "s1")
        assert holds(path, "secret 1.") == []
        assert holds(path, '"s1"') == []
        assert not (path / "sessions" / APP / USER / "s1").exists()
        assert (await lp.maintenance.verify()).findings == ()
    async with limpet.open(url(path)) as lp:
        assert (await lp.maintenance.verify()).findings == ()
        assert (await lp.get(APP, USER, "s2")).state["n"] == 5


async def test_an_erasure_that_was_cut_short_is_finished_by_the_next_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is durable first; whoever opens the store overwrites what it names."""
    path = tmp_path / "store"
    await filled(path)
    with monkeypatch.context() as patched:
        patched.setattr("limpet.store.files.state.FilesState.overwrite_erased", lambda _: None)
        async with limpet.open(url(path)) as lp:
            await lp.erase(APP, USER, "s1")
    assert holds(path, "secret 1.")
    async with limpet.open(url(path)) as lp:
        assert holds(path, "secret 1.") == []
        assert (await lp.maintenance.verify()).findings == ()


# --- one process writes --------------------------------------------------------------------------


async def test_another_opening_is_refused_and_may_read(tmp_path: Path) -> None:
    """Clearly, in this process and in another; with ?mode=ro what is appended is seen at once."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        with pytest.raises(StoreBusy, match="mode=ro"):
            async with limpet.open(url(path)):
                pass
        async with limpet.open(f"{url(path)}?mode=ro") as reader:
            for number in range(2, 5):
                await s.append("a.b", {"n": number}, set={"n": number}, inc={"app:n": 1})
                seen = await reader.get(s.key)
                assert (seen.version, seen.state["n"], seen.state["app:n"]) == (
                    number,
                    number,
                    number - 1,
                )
            await lp.maintenance.compact()
            await s.append("a.b", {}, set={"n": 9})
            assert (await reader.get(s.key)).state["n"] == 9
            await lp.delete(s.key)
            assert await reader.find(s.key) is None
            with pytest.raises(StoreReadOnly):
                await reader.create(APP, USER, "two", actor=ADA)


async def test_the_lock_is_another_processs(tmp_path: Path) -> None:
    """While it lives nobody else writes; when it is killed the next may at once."""
    path = tmp_path / "store"
    with Child("tests.support.writer", url(path), 1, "0") as child:
        assert child.line()
        with pytest.raises(StoreBusy, match="process"):
            await FilesStore.open(path)
        child.kill()
        store = await FilesStore.open(path)
        await store.close()


async def test_a_forked_child_neither_writes_nor_unlocks(tmp_path: Path) -> None:
    """The store belongs to the process that opened it."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        child = os.fork()
        if not child:
            try:
                lp._journal.store.read_now(lambda: None)  # type: ignore[attr-defined]
            except StoreForked:
                os._exit(7)
            os._exit(1)
        ended = os.waitpid(child, 0)[1]  # noqa: ASYNC222  # it ends at once
        assert os.waitstatus_to_exitcode(ended) == 7
        with Child("tests.support.writer", url(path), 1, "0") as other:
            assert other.ended() != 0
            assert "StoreBusy" in other.complaint()
        await s.append("a.b", {})


async def test_a_directory_of_other_files_is_left_alone(tmp_path: Path) -> None:
    """It is not a store, and none is made in it; one that is not there is not made to be read."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(limpet.LimpetError, match="other files"):
        await FilesStore.open(tmp_path / "mine")
    with pytest.raises(StoreUnopened):
        async with limpet.open(f"{url(tmp_path / 'none')}?mode=ro"):
            pass
    assert not (tmp_path / "none").exists()


async def test_leases_end_with_their_writer_and_fences_go_on(tmp_path: Path) -> None:
    """A dead writer's lease is void at the next open, and no fence is given twice."""
    path = tmp_path / "store"
    store = await FilesStore.open(path)
    lp = await limpet.Limpet(url(path), store=store).__aenter__()
    s = await lp.create(APP, USER, "one", actor=ADA)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    (lease,) = await lp.work.claim("w1", limit=1, lease_seconds=3_600)
    assert lease.fence == 1
    await lp.close()
    async with limpet.open(url(path)) as again:
        (next_,) = await again.work.claim("w2", limit=1, lease_seconds=3_600)
        assert next_.fence == 2


# --- kills ---------------------------------------------------------------------------------------


async def kill_loop(directory: Path, start: int, kills: int) -> None:
    chance, ledger = random.Random(start), Ledger(start)
    path = directory / "kill"
    where = f"{url(path)}?compact_mb=1"
    for number in range(kills):
        write_and_kill(where, ledger, chance)
        if (path / "limpet.json").exists():
            copy = directory / f"copy-{number}"
            shutil.copytree(path, copy)
            await check(url(copy), ledger)
            shutil.rmtree(copy)
    await check(url(path), ledger)
    assert sum(ledger.acknowledged) > kills


async def test_every_acknowledged_event_survives_every_kill(tmp_path: Path) -> None:
    """After each of some kills: acknowledged is present once, and folds agree with the log."""
    await kill_loop(tmp_path, seed("files kill"), 6)


@pytest.mark.torture
@pytest.mark.parametrize("round_", range(10))
async def test_many_kills_lose_nothing(tmp_path: Path, round_: int) -> None:
    """Two hundred kills in ten rounds."""
    await kill_loop(tmp_path, seed("files kill") + round_, 20)


# --- many sessions -------------------------------------------------------------------------------


async def test_an_idle_session_takes_less_than_a_kilobyte(tmp_path: Path) -> None:
    """Of memory, in a store that was just opened; heads are decoded when somebody asks."""
    path, count = tmp_path / "store", 2_000
    async with limpet.open(url(path)) as lp:
        for start in range(0, count, 500):
            async with lp.commit() as c:
                for number in range(start, start + 500):
                    c.create(APP, f"user-{number}", f"s{number}", state={"n": number})
    async with limpet.open(url(path)):
        pass  # what is imported to open one is not a session's
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with limpet.open(url(path)) as lp:
            taken = tracemalloc.get_traced_memory()[0] - before
            assert (await lp.get(APP, "user-7", "s7")).state["n"] == 7
    finally:
        tracemalloc.stop()
    assert taken / count < 1_024
