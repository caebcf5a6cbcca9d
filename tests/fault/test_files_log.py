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
from limpet.errors import (
    SessionCorrupt,
    StoreBusy,
    StoreFailed,
    StoreForked,
    StoreReadOnly,
    StoreUnopened,
)
from limpet.model import Commit, encode
from limpet.model.events import Body, prepare_encoded
from limpet.session.writer import writer_of
from limpet.store import jobs
from limpet.store.files import journal as journal_module, writer as files_writer
from limpet.store.files.state import JournaledStore
from limpet.store.files.store import FilesStore
from limpet.store.protocol import Exchange
from tests.fault.test_kill import Ledger, check, write_and_kill
from tests.support.disks import handles, holds
from tests.support.processes import Child
from tests.support.seeds import seed

ADA = "user:ada"
APP, USER = "support", "ada"


def url(path: Path, options: str = "") -> str:
    return f"files:///{path}?{options}" if options else f"files:///{path}"


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


async def test_a_line_says_what_changed_of_shared_names(tmp_path: Path) -> None:
    """app: and user: names too, with the value that they had, whoever wrote it."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", state={"user:lang": "de", "n": 1})
        other = await lp.create(APP, USER, "two")
        await other.append("a.b", {}, actor=ADA, set={"user:lang": "en", "app:seen": [1]})
        async with lp.commit() as commit:
            commit.append(s, "a.b", {}, actor=ADA, add={"app:seen": [2, 3]}, inc={"n": 1})
            commit.append(s, "a.b", {}, actor=ADA, add={"app:seen": [4]}, delete=["user:lang"])
    shown = [
        (line["session"][2], line["seq"], *change.values())
        for line in lines_of(path)
        for change in line.get("changes", ())
    ]
    assert shown == [
        ("one", 1, "set", "n", None, 1),
        ("one", 1, "set", "user:lang", None, "de"),
        ("two", 2, "set", "user:lang", "de", "en"),
        ("two", 2, "set", "app:seen", None, [1]),
        ("one", 2, "inc", "n", 1, 2),
        ("one", 2, "add", "app:seen", 1, 3),
        ("one", 3, "add", "app:seen", 3, 4),
        ("one", 3, "del", "user:lang", "en", None),
    ]


async def test_a_plain_line_is_json_whatever_is_in_it(tmp_path: Path) -> None:
    """Names, ids, actors and values that JSON escapes are read back, by others and by the store."""
    path, odd = tmp_path / "store", 'q"\\\u2028é'
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, odd, odd, actor=ADA)
        await s.append("a.b", {"text": odd}, actor=f"agent:{odd}", set={odd: {"a": [odd]}}, id=odd)
        await s.append("a.b", {}, actor=ADA, set={odd: "x" * 900, "kept": "y" * 900})
        await s.append("a.b", {}, actor=ADA, set={odd: None, "kept": [1, {"b": "z" * 900}]})
    event, large, last = [line for line in lines_of(path) if line["op"] == "event"][1:]
    assert (event["session"], event["id"]) == ([APP, odd, odd], odd)
    assert (event["actor"], event["type"]) == (f"agent:{odd}", "a.b")
    assert event["changes"][0]["field"] == odd
    assert event["changes"][0]["value_after"] == {"a": [odd]}
    assert large["changes"][0]["value_before"] == {"a": [odd]}
    assert large["changes"][1]["value_after"] == "y" * 900
    assert last["changes"][0]["value_before"] == "x" * 900
    assert [line["n"] for line in lines_of(path)] == [1, 2, 3, 4, 5]
    async with limpet.open(url(path)) as lp:
        s = await lp.get(APP, odd, odd)
        assert dict(s.state) == {odd: None, "kept": [1, {"b": "z" * 900}]}
        assert (await s.read())[1].id == odd
        assert (await lp.maintenance.verify()).ok


async def test_an_id_that_a_client_made_is_escaped(tmp_path: Path) -> None:
    """Whether or not the client says that it chose it: no id adds members to its line."""
    path, odd = tmp_path / "store", 'x","row":1,"seq":9,"id":"y'
    raw = encode(Body({}, ()))
    async with limpet.open(url(path)) as lp:
        first = await lp.create(APP, "grace", "one", actor=ADA)
        s = await lp.create(APP, USER, "two", actor=ADA)
        names = (odd, "a.b", ADA, None, None, None, None)
        draft = prepare_encoded(names, raw, caller_chose_id=False, input=False)
        await writer_of(s).journal.store.commit([Commit(s.key, (draft,))])
        keys = (first.key, s.key)
    async with limpet.open(url(path)) as lp:
        versions = [(await lp.get(key.app, key.user, key.id)).version for key in keys]
        assert versions == [1, 2]
        s = await lp.get(APP, USER, "two")
        assert (await s.read())[-1].id == odd
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_session_that_took_a_key_is_named_by_it(tmp_path: Path) -> None:
    """Lines after it has another key have that one, also those of events like the ones before."""
    path, taken = tmp_path / "store", limpet.Key(APP, USER, "two")
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        await s.append("a.b", {}, actor=ADA)
        assert await writer_of(s).journal.store.exchange([Exchange(taken, None, s.key)])
        await (await lp.get(taken)).append("a.b", {}, actor=ADA)
    named = [line["session"][2] for line in lines_of(path) if line["op"] == "event"]
    assert named == ["one", "one", "two"]


async def test_a_snapshot_is_written_with_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one costs no sync of its own: it stands before the events of the next batch."""
    monkeypatch.setattr(jobs, "HERE_SECONDS_MAX", float("inf"))  # all commits are the loop's
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        for number in range(9):
            await s.append("a.b", {"text": "x" * 10_000}, set={"n": number})
    lines = lines_of(path)
    (at,) = [place for place, line in enumerate(lines) if line["op"] == "snapshot"]
    before, snapshot, after = lines[at - 1 : at + 2]
    assert (snapshot["seq"], snapshot["begins"]) == (before["seq"], True)
    assert after["seq"] == snapshot["seq"] + 1
    assert not after.get("begins", False)
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "one")).state["n"] == 8
        assert (await lp.maintenance.verify()).ok


async def test_a_snapshot_that_cannot_be_taken_fails_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit that it would be written with is recorded, and the log says what happened."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(files_writer, "snapshot_line", refuse)
    async with limpet.open(url(tmp_path / "store")) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        for number in range(9):
            await s.append("a.b", {"text": "x" * 10_000}, set={"n": number})
        assert (await lp.maintenance.verify()).ok
    assert s.state["n"] == 8
    assert "housekeeping failed" in caplog.text


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


async def test_a_commit_may_be_larger_than_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a segment of its own, and what follows is written behind it."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 4_096)
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        large = {"text": "x" * 3_000}
        await s.append_many([limpet.Draft(type="a.b", data=large) for _ in range(3)], actor=ADA)
        await s.append("a.b", {}, actor=ADA)
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "one")).version == 5
        assert (await lp.maintenance.verify()).findings == ()
    assert len(list((path / "log").iterdir())) == 3


async def test_a_group_without_its_end_was_never_written(tmp_path: Path) -> None:
    """Of a commit to two sessions, one line alone is nothing."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        a, b = [await lp.create(APP, USER, id, actor=ADA) for id in "ab"]
        async with lp.commit() as c:
            c.append(a, "x.y", {})
            c.append(b, "x.y", {})
    (path / "closed.json").unlink()  # the process was killed
    whole = segment(path).read_bytes().rstrip(b"\n")
    segment(path).write_bytes(whole[: whole.rfind(b"\n") + 1])
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "a")).version == 1
        assert (await lp.get(APP, USER, "b")).version == 1
        assert (await lp.maintenance.verify()).findings == ()


# --- damaged -------------------------------------------------------------------------------------


async def test_a_damaged_line_is_found_isolated_and_reported(tmp_path: Path) -> None:
    """One session misses one event and says so, and is not written to until somebody accepts that;
    the others are whole, and writing goes on."""
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
        with pytest.raises(SessionCorrupt, match="damage=accept"):
            await s.append("a.b", {"text": "on"})
        for name in ("s0", "s2"):
            other = await lp.get(APP, USER, name, actor=ADA)
            assert other.state["n"] == 5
            await other.append("a.b", {"text": "on"})
        await lp.maintenance.compact()
    assert [each.name for each in (path / "log").glob("*.damaged")] == ["00000001.jsonl.damaged"]
    async with limpet.open(url(path, "damage=accept")) as lp:
        s = await lp.get(APP, USER, "s1", actor=ADA)
        assert s.history.damaged == (4,)
        await s.append("a.b", {"text": "on"})
        with pytest.raises(SessionCorrupt):
            await s.update(lambda state: {"n": state["n"] + 1})
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "s1")).history.damaged == (4,)
        assert (await lp.get(APP, USER, "s2")).state["n"] == 5


@pytest.fixture
async def segmented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several segments."""
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 4_000)
    path = tmp_path / "store"
    await filled(path)
    assert segment(path, 3).exists()
    return path


@pytest.mark.parametrize("what", ["missing", "doubled", "swapped", "truncated", "flipped"])
async def test_a_wrong_segment_is_found_and_isolated(segmented: Path, what: str) -> None:
    """Verify and doctor name the file, what is elsewhere is read, and the store is written on once
    somebody has accepted the damage."""
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
    async with limpet.open(url(segmented, "damage=accept")) as lp:
        s = await lp.create(APP, USER, "new", actor=ADA)
        await s.append("a.b", {"text": "on"})
        last = await lp.find(APP, USER, "s2")
        assert last is None or last.version <= 6
    async with limpet.open(url(segmented)) as lp:
        assert (await lp.get(APP, USER, "new")).version == 2


@pytest.mark.parametrize("what", ["cut", "emptied", "missing", "without a directory"])
async def test_a_log_that_was_cut_off_is_found(tmp_path: Path, what: str) -> None:
    """Whole commits are gone from the end of a store that was closed: that is no torn end. It is
    reported, also by those who open it later, and the store is written on once somebody has
    accepted it."""
    path = tmp_path / "store"
    await filled(path)
    log = segment(path)
    if what == "cut":
        os.truncate(log, log.stat().st_size // 2)
    elif what == "emptied":
        os.truncate(log, 0)
    else:
        shutil.rmtree(log.parent) if what == "without a directory" else log.unlink()
    for number in range(2):
        async with limpet.open(url(path)) as lp:
            report = await lp.maintenance.verify()
            assert any(log.name in finding.problem for finding in report.findings), report
            assert not (await lp.maintenance.doctor()).ok
        async with limpet.open(url(path, "damage=accept")) as lp:
            await lp.create(APP, USER, f"new-{number}", actor=ADA)
    async with limpet.open(url(path, "mode=ro")) as lp:
        assert (await lp.get(APP, USER, "new-1")).version == 1
        assert not (await lp.maintenance.verify()).ok


async def test_the_last_segment_of_a_compacted_log_may_be_lost(tmp_path: Path) -> None:
    """What was compacted can be read, the loss is reported, and the store is written on once
    somebody has accepted it."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
        await lp.create(APP, USER, "lost", actor=ADA)
    segment(path, 2).unlink()
    for number in range(2):
        async with limpet.open(url(path)) as lp:
            report = await lp.maintenance.verify()
            assert "00000002.jsonl is missing" in str(report.findings)
            assert (await lp.get(APP, USER, "s1")).state["n"] == 5
        async with limpet.open(url(path, "damage=accept")) as lp:
            assert {f.key for f in (await lp.maintenance.verify()).findings} == {None}
            await lp.create(APP, USER, f"new-{number}", actor=ADA)


async def test_a_damaged_first_line_costs_nothing_else(tmp_path: Path) -> None:
    """The lines behind it say by themselves that they are of this log."""
    path = tmp_path / "store"
    await filled(path)
    data = bytearray(segment(path).read_bytes())
    data[10] ^= 1
    segment(path).write_bytes(data)
    for number in range(2):
        async with limpet.open(url(path)) as lp:
            report = await lp.maintenance.verify()
            assert "00000001.jsonl is damaged at byte 0" in str(report.findings)
            assert [(await lp.get(APP, USER, f"s{n}")).state["n"] for n in range(3)] == [5, 5, 5]
            await lp.create(APP, USER, f"new-{number}", actor=ADA)


async def test_damage_in_a_compacted_journal_costs_its_session_alone(tmp_path: Path) -> None:
    """A flipped byte in what was compacted: one session is named, the others are whole."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
    data = bytearray(segment(path).read_bytes())
    data[data.find(b"secret 0.1")] ^= 1
    segment(path).write_bytes(data)
    async with limpet.open(url(path)) as lp:
        report = await lp.maintenance.verify()
        assert {finding.key.id for finding in report.findings if finding.key} == {"s0"}
        s = await lp.get(APP, USER, "s2", actor=ADA)
        assert s.state["n"] == 5
        await s.append("a.b", {})


async def test_a_compacted_journal_that_is_cut_off_is_found(tmp_path: Path) -> None:
    """Whatever stood behind it is read, and nothing is written that could take a lost place."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
        await lp.create(APP, USER, "later", actor=ADA)
    os.truncate(segment(path), segment(path).stat().st_size // 2)
    for _ in range(2):
        async with limpet.open(url(path)) as lp:
            assert not (await lp.maintenance.verify()).ok
            assert (await lp.get(APP, USER, "later")).version == 1
            with pytest.raises(SessionCorrupt):
                await lp.create(APP, USER, "new", actor=ADA)
    async with limpet.open(url(path, "damage=accept")) as lp:
        await lp.create(APP, USER, "new", actor=ADA)


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_compaction_keeps_a_copy_of_what_it_cannot_read(
    tmp_path: Path, *, compacted: bool
) -> None:
    """An erasure removes the copies, because nobody can say what is in them."""
    path = tmp_path / "store"
    await filled(path)
    if compacted:
        async with limpet.open(url(path)) as lp:
            await lp.maintenance.compact()
    damaged = segment(path)
    data = bytearray(damaged.read_bytes())
    data[data.find(b"secret 0.1")] ^= 1
    damaged.write_bytes(data)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
        (copy,) = (path / "log").glob("*.damaged")
        assert copy.read_bytes().rstrip(b"\n") == bytes(data).rstrip(b"\n")
        await lp.erase(APP, USER, "s1")
        assert not copy.exists()
        assert holds(path, "secret 1.") == []


async def test_an_erasure_leaves_nothing_that_cannot_be_read(tmp_path: Path) -> None:
    """What is damaged may be of the session that is erased: it goes, too."""
    path = tmp_path / "store"
    await filled(path)
    data = bytearray(segment(path).read_bytes())
    data[data.find(b"secret 1.2") - 90] ^= 1
    segment(path).write_bytes(data)
    async with limpet.open(url(path)) as lp:
        await lp.erase(APP, USER, "s1")
        assert holds(path, "secret 1.") == []
        assert (await lp.get(APP, USER, "s2")).state["n"] == 5
    async with limpet.open(url(path)) as lp:
        assert (await lp.maintenance.verify()).findings == ()


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


async def test_what_ends_leaves_the_file_of_relations(tmp_path: Path) -> None:
    """Compaction writes relations of every kind there; a session that is erased or deleted goes."""
    path = tmp_path / "store"
    related = path / "sessions" / ".limpet-runtime" / "session-relations.json"
    async with limpet.open(url(path)) as lp:
        a, b, c = [await lp.create(APP, USER, id) for id in "abc"]
        await a.relate(b, "peer")
        await b.relate(c, "reference")
        await a.relate(c, "successor")
        await lp.maintenance.compact()
        assert [each["kind"] for each in json.loads(related.read_bytes())] == [
            "peer",
            "reference",
            "successor",
        ]
        await lp.erase(b.key)
        assert [each["kind"] for each in json.loads(related.read_bytes())] == ["successor"]
        await lp.delete(c.key)
        assert json.loads(related.read_bytes()) == []


async def test_an_erasure_leaves_the_line_behind_a_short_one(tmp_path: Path) -> None:
    """Lines that have few numbers alone are shorter than what stands in for an erased one."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        await s.append("a.b", {}, actor=ADA)
        store: Any = writer_of(s).journal.store
        await store.compact(s.key, upto=1)
        await lp.create(APP, USER, "two", state={"n": 5}, actor=ADA)
        await lp.erase(APP, USER, "one")
        assert (await lp.maintenance.verify()).findings == ()
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, USER, "two")).state["n"] == 5
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_user_who_was_erased_may_come_back(tmp_path: Path) -> None:
    """Nothing names them after erase_user; names that they write later survive the next opening."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        await lp.create(APP, "grace", "c1", state={"user:tone": "old"}, actor="user:grace")
        await lp.erase_user(APP, "grace")
        assert holds(path, "grace") == []
        await lp.create(APP, "grace", "c2", state={"user:tone": "new"}, actor="user:grace")
    async with limpet.open(url(path)) as lp:
        assert (await lp.get(APP, "grace", "c2")).state["user:tone"] == "new"
        assert (await lp.maintenance.verify()).findings == ()
        assert holds(path, "old") == []


async def test_an_erasure_that_was_cut_short_is_finished_by_the_next_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is durable first; whoever opens the store overwrites what it names."""
    path = tmp_path / "store"
    await filled(path)
    with monkeypatch.context() as patched:
        patched.setattr(JournaledStore, "finish_erasures", lambda _: None)
        async with limpet.open(url(path)) as lp:
            await lp.erase(APP, USER, "s1")
    assert holds(path, "secret 1.")
    async with limpet.open(url(path)) as lp:
        assert holds(path, "secret 1.") == []
        assert (await lp.maintenance.verify()).findings == ()


async def test_an_erasure_that_failed_is_finished_by_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes nothing again that was erased."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
        s = await lp.get(APP, USER, "s2", actor=ADA)
        await s.append("a.b", {"text": "more"})
        with monkeypatch.context() as patched:
            patched.setattr(journal_module.JournalFiles, "rewrite", _refused)
            with pytest.raises(StoreFailed):
                await lp.erase(APP, USER, "s1")
        await lp.maintenance.compact()
        assert holds(path / "log", "secret 1.") == []
    async with limpet.open(url(path)) as lp:
        assert holds(path / "log", "secret 1.") == []
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_copy_that_a_process_died_in_is_removed_by_the_next_open(tmp_path: Path) -> None:
    """Else what was erased since would stay in it."""
    path = tmp_path / "store"
    await filled(path)
    part = segment(path).with_name("00000001.jsonl.damaged.part")
    shutil.copy(segment(path), part)
    async with limpet.open(url(path)) as lp:
        assert not part.exists()
        await lp.erase(APP, USER, "s1")
    assert holds(path, "secret 1.") == []


async def test_an_erasure_that_failed_is_done_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by what is written next: nothing is left of it then."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp:
        await lp.maintenance.compact()
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(journal_module.JournalFiles, "rewrite", _refused)
                with pytest.raises(StoreFailed):
                    await lp.erase(APP, USER, "s1")
        await lp.erase(APP, USER, "s1")
        assert holds(path, "secret 1.") == []
        assert holds(path, "secret 2.")
        assert (await lp.maintenance.verify()).findings == ()


def _refused(*_: object) -> None:
    raise OSError(5, "Input/output error")


# --- one process writes --------------------------------------------------------------------------


async def test_another_opening_is_refused_and_may_read(tmp_path: Path) -> None:
    """Clearly, in this process and in another; with ?mode=ro what is appended is seen at once."""
    path = tmp_path / "store"
    async with limpet.open(url(path)) as lp:
        s = await lp.create(APP, USER, "one", actor=ADA)
        before = handles()
        for _ in range(3):
            with pytest.raises(StoreBusy, match="mode=ro"):
                async with limpet.open(url(path)):
                    pass
        assert handles() == before, "none is left open"
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


@pytest.mark.parametrize("what", ["events", "feed", "verify", "doctor", "backup", "open"])
async def test_a_reader_passes_over_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The writer compacts, and removes its segments, after the reader has read which there are:
    nothing is taken for damaged or left out."""
    path = tmp_path / "store"
    await filled(path)
    async with limpet.open(url(path)) as lp, limpet.open(url(path, "mode=ro")) as reader:
        await lp.session(APP, USER, "s0").append("a.b", {"text": "last"}, actor=ADA)
        writer = lp._services.journal.store
        assert isinstance(writer, FilesStore)
        name = "replay" if what == "open" else "refresh"
        before, left = getattr(JournaledStore, name), [None]

        def overtaken(store: JournaledStore) -> object:
            answer = before(store)
            if left and not store.write:
                left.pop()
                writer._write().compaction.run()
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(JournaledStore, name, overtaken)
            if what == "events":
                events = await reader.session(APP, USER, "s0").read(limit=10)
                assert [event.seq for event in events if event.damage is None] == [*range(1, 8)]
            elif what == "feed":
                store = reader._services.journal.store
                entries, _ = await store.changes("0", app=None, key=None, limit=50)
                assert len(entries) == 19
            elif what == "verify":
                assert (await reader.maintenance.verify()).findings == ()
            elif what == "doctor":
                assert (await reader.maintenance.doctor()).ok
            elif what == "backup":
                await reader.maintenance.backup(tmp_path / "b.tar")
            else:
                async with limpet.open(url(path, "mode=ro")) as third:
                    assert (await third.maintenance.verify()).findings == ()
        assert left == []
    if what == "backup":
        assert limpet.restore(tmp_path / "b.tar", url(tmp_path / "again")).report.sessions == 3


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
                lp._journal.store.look_now(lambda: None)  # type: ignore[attr-defined]
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


async def test_an_idle_session_takes_less_than_three_kilobytes(tmp_path: Path) -> None:
    """Of memory, in a store that was just opened; states are read when somebody asks."""
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
    assert taken / count < 3 * 1_024
