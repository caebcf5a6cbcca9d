"""Stores that are opened with keys: what nobody can read, what is found, what is forgotten."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

import limpet
from limpet import Limpet, Session
from limpet.errors import (
    ArchiveDamaged,
    KeysInvalid,
    KeysMissing,
    SealUnavailable,
    SessionCorrupt,
    SessionDeleted,
    SessionNotFound,
)
from limpet.model import Key, chain
from limpet.security.keys import SCOPE_SECONDS, Anchor
from limpet.security.masters import new_master
from limpet.security.ring import FileRing
from limpet.store.files.lines import START, AnyLine, decode_any, finished, whose
from limpet.store.sqlite.rows import unpack_id
from tests.support.keys import key_file, rewrite
from tests.support.processes import exit_code

CANARY = "xq7canary"
STORES = ("memory", "sqlite", "postgresql")


@pytest.fixture(params=STORES[1:])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The stores that outlive a process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "masters")


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/support.db?sync=normal"


async def said(lp: Limpet, id: str = "c1", events: int = 5) -> Session[Any]:
    s = await lp.create("support", "ada", id, state={"text": CANARY, "user:u": CANARY, "app:a": 1})
    for number in range(events):
        await s.append("user.message", {"text": f"{CANARY} {number}"}, actor="user:ada")
    return s


async def change(url: str, sql: str, *values: Any) -> None:
    """What somebody does who can write the database and has no keys."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///").partition("?")[0]
        with sqlite3.connect(path) as conn:
            conn.execute(re.sub(r"\$\d", "?", sql.replace("limpet.", "")), values)
        conn.close()
        return
    conn = await asyncpg.connect(url)
    await conn.execute(sql, *values)
    await conn.close()


async def rows_of(url: str, sql: str) -> list[Any]:
    """The same, reading."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///").partition("?")[0]
        # The store's own library: the locks of a process are lost when another one closes the file.
        with closing(apsw.Connection(path)) as reading:
            return list(reading.execute(sql.replace("limpet.", "")))
    conn = await asyncpg.connect(url)
    found = [tuple(row) for row in await conn.fetch(sql)]
    await conn.close()
    return found


# --- opening ------------------------------------------------------------------------------------


async def test_what_was_written_is_read_with_the_keys(url: str, keys: str) -> None:
    """In another process too, and nothing is wrong with it."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    async with limpet.open(url, keys=keys) as lp:
        s = await lp.get("support", "ada", "c1")
        assert (s.values["text"], s.values["user:u"]) == (CANARY, CANARY)
        assert s.events[-1].data == {"text": f"{CANARY} 4"}
        assert (await lp.maintenance.verify()).ok
        assert (await lp.keys.status()).pending == 0


async def test_memory_has_keys_too(keys: str) -> None:
    """For receipts and for the files outside of it."""
    async with limpet.open("memory://", keys=keys) as lp:
        s = await said(lp)
        limpet.check_receipt(await s.receipt(), public_key=lp.keys.public_key)
        assert (await lp.maintenance.verify()).ok


async def test_other_masters_are_refused(url: str, keys: str, tmp_path: Path) -> None:
    """The store stays as it is."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    with pytest.raises(SealUnavailable, match="is not among those"):
        await limpet.open(url, keys=key_file(tmp_path / "others"))
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok


async def test_a_missing_ring_is_refused(database: str, keys: str, tmp_path: Path) -> None:
    """No new ring is made in its place: everything would be lost in it."""
    async with limpet.open(database, keys=keys) as lp:
        await said(lp)
    (tmp_path / "support.db-keys").rename(tmp_path / "elsewhere")
    with pytest.raises(SealUnavailable, match="is missing"):
        await limpet.open(database, keys=keys)
    assert not (tmp_path / "support.db-keys").exists()
    ring = f"sqlite:///{tmp_path}/elsewhere"
    async with limpet.open(database, keys=keys, keyring=ring) as lp:
        assert (await lp.get("support", "ada", "c1")).values["text"] == CANARY


async def test_a_foreign_ring_is_refused(url: str, keys: str, tmp_path: Path) -> None:
    """Also one that the same masters open."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    other = f"sqlite:///{tmp_path}/other.db"
    async with limpet.open(other, keys=keys) as lp:
        await said(lp)
    with pytest.raises(SealUnavailable, match="is sealed with the ring"):
        await limpet.open(url, keys=keys, keyring=f"{other}-keys")


async def test_a_store_whose_binding_was_removed_is_refused(url: str, keys: str) -> None:
    """Else everything in it could be replaced by plain text and be taken for old."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    await change(url, "DELETE FROM limpet.meta WHERE name = 'ring'")
    with pytest.raises(SealUnavailable, match="names no ring"):
        await limpet.open(url, keys=keys)


@pytest.mark.parametrize("both", [False, True])
async def test_a_ring_that_has_keys_is_not_bound_again(
    database: str, keys: str, tmp_path: Path, *, both: bool
) -> None:
    """Else who writes the ring has everything in the store taken for plain text from before."""
    async with limpet.open(database, keys=keys) as lp:
        await said(lp)
    ring = f"sqlite:///{tmp_path}/support.db-keys"
    await change(ring, "DELETE FROM ring WHERE kind = 'meta' AND owner = 'bound'")
    if both:
        await change(database, "DELETE FROM limpet.meta WHERE name = 'ring'")
    with pytest.raises(SealUnavailable, match="the mark that it was bound is gone"):
        await limpet.open(database, keys=keys)


async def test_without_keys_nothing_is_written(url: str, keys: str) -> None:
    """No verb of a sealed store that was opened without keys writes; its heads are listed."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
    async with limpet.open(url) as blind:
        s = await blind.get("support", "ada", "c1")
        assert len((await blind.list()).items) == 1
        assert len(s.history.damaged) == s.version
        writes: list[Callable[[], Any]] = [
            lambda: s.append("note.made", {}, actor="user:ada"),
            lambda: blind.create("support", "bob"),
            lambda: blind.delete("support", "ada", "c1"),
            lambda: blind.erase("support", "ada", "c1"),
            lambda: s.blobs.put(b"plain"),
            lambda: blind.work.claim("w"),
        ]
        for write in writes:
            with pytest.raises(SealUnavailable, match="opened without keys"):
                await write()
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok


async def test_plain_text_from_before_stays_readable(url: str, keys: str) -> None:
    """A store may get keys later; forks, names and events from before read as they did."""
    async with limpet.open(url) as lp:
        s = await said(lp)
        await s.fork(id="fork")
    async with limpet.open(url, keys=keys) as lp:
        for id in ("c1", "fork"):
            s = await lp.get("support", "ada", id)
            assert (s.values["text"], s.values["user:u"]) == (CANARY, CANARY)
            assert len(await s.read()) == s.version
            await s.append("user.message", {"text": "sealed"}, actor="user:ada")
        assert (await lp.maintenance.verify()).ok
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok
        assert (await lp.get("support", "ada", "c1")).events[-1].data == {"text": "sealed"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("not base64!", "is not base64"), ("c2hvcnQ=", "a master has 32"), ("", "holds no key")],
)
async def test_a_broken_key_file_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    """And repeats nothing of it."""
    keys = rewrite(tmp_path / "masters", [text])
    with pytest.raises(KeysInvalid, match=reason) as caught:
        await limpet.open("memory://", keys=keys)
    assert not text or text not in str(caught.value)


async def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, keys: str) -> None:
    """Its mode has to be 0600."""
    (tmp_path / "masters").chmod(0o640)
    with pytest.raises(KeysInvalid, match="chmod 600"):
        await limpet.open("memory://", keys=keys)


async def test_masters_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    """One or several, the newest last."""
    monkeypatch.setenv("SUPPORT_KEYS", new_master())
    async with limpet.open(database, keys="env:SUPPORT_KEYS") as lp:
        await said(lp)
    monkeypatch.setenv("SUPPORT_KEYS", f"{os.environ['SUPPORT_KEYS']} {new_master()}")
    async with limpet.open(database, keys="env:SUPPORT_KEYS") as lp:
        assert await lp.keys.rotate() > 0
    monkeypatch.delenv("SUPPORT_KEYS")
    with pytest.raises(KeysInvalid, match="not set"):
        await limpet.open(database, keys="env:SUPPORT_KEYS")


# --- rotation -----------------------------------------------------------------------------------


async def test_after_a_rotation_the_old_master_is_not_needed(
    url: str, keys: str, tmp_path: Path
) -> None:
    """No body is touched; the number of wrapped keys is returned, and then there is none left."""
    old, new = (tmp_path / "masters").read_text().strip(), new_master()
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
        receipt = await lp.session(("support", "ada", "c1")).receipt()
    rewrite(tmp_path / "masters", [old, new])
    async with limpet.open(url, keys=keys) as lp:
        before = await lp.keys.status()
        seen: list[tuple[int, int]] = []
        assert before.pending == await lp.keys.rotate(lambda *at: seen.append(at)) > 2
        assert await lp.keys.rotate() == 0
        assert seen[-1][0] == seen[-1][1]
        after = await lp.keys.status()
        assert after.pending == 0
        assert after.masters[before.newest] == before.pending + 1  # and that of the audit
        public_key = lp.keys.public_key
    rewrite(tmp_path / "masters", [new])
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.get("support", "ada", "c1")).values["text"] == CANARY
        assert (await lp.maintenance.verify()).ok
        limpet.check_receipt(receipt, public_key=public_key)
    rewrite(tmp_path / "masters", [old])
    with pytest.raises(SealUnavailable):
        await limpet.open(url, keys=keys)


async def test_a_rotation_that_is_cut_short_goes_on(
    database: str, keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both masters everything is read in between, with one of them not all."""
    old, new = (tmp_path / "masters").read_text().strip(), new_master()
    async with limpet.open(database, keys=keys) as lp:
        for number in range(6):
            await said(lp, f"c{number}", events=1)
    rewrite(tmp_path / "masters", [old, new])
    monkeypatch.setattr("limpet.security.ring.PAGE_ROWS", 3)
    swap, calls = FileRing.swap, 0

    async def dying(ring: FileRing, changes: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionAbortedError("killed")
        return await swap(ring, changes)

    async with limpet.open(database, keys=keys) as lp:
        pages = lp._journal.provenance.seal.ring.page  # type: ignore[union-attr]  # it has keys
        monkeypatch.setattr(
            lp._journal.provenance.seal.ring,  # type: ignore[union-attr]
            "page",
            lambda kind, after, limit=3: pages(kind, after, 3),
        )
        monkeypatch.setattr(FileRing, "swap", dying)
        with pytest.raises(ConnectionAbortedError):
            await lp.keys.rotate()
    monkeypatch.undo()
    async with limpet.open(database, keys=keys) as lp:
        status = await lp.keys.status()
        assert 0 < status.pending < sum(status.masters.values())
        for number in range(6):
            assert (await lp.get("support", "ada", f"c{number}")).values["text"] == CANARY
        assert await lp.keys.rotate() == status.pending
    rewrite(tmp_path / "masters", [new])
    async with limpet.open(database, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_rotation_survives_a_kill_at_every_write(
    database: str, keys: str, tmp_path: Path, moment: str
) -> None:
    """A process dies in its first write, another in its second, and so on until one ends. With both
    masters everything is read afterwards and the rotation goes on; then the old master can go."""
    old, new = (tmp_path / "masters").read_text().strip(), new_master()
    async with limpet.open(database, keys=keys) as lp:
        for number in range(4):
            await said(lp, f"c{number}", events=1)
        await lp.keys.rotate()  # from now on the audit has its log, too
        keys_there = sum((await lp.keys.status()).masters.values())
    ring = (tmp_path / "support.db-keys").read_bytes()
    for write in count(1):
        rewrite(tmp_path / "masters", [old, new])
        (tmp_path / "support.db-keys").write_bytes(ring)
        asked = (database, keys, 3, write, moment)
        if (ended := await exit_code("tests.support.rotator", *asked)) != -signal.SIGKILL:
            break
        async with limpet.open(database, keys=keys) as lp:
            pending = (await lp.keys.status()).pending
            assert pending == max(0, keys_there - 3 * (write - (moment == "before")))
            assert (await lp.maintenance.verify()).ok
            assert await lp.keys.rotate() == pending
        rewrite(tmp_path / "masters", [new])
        async with limpet.open(database, keys=keys) as lp:
            for number in range(4):
                assert (await lp.get("support", "ada", f"c{number}")).values["text"] == CANARY
    anchors = moment == "after"  # of the audit, when the store is closed
    assert (ended, write) == (0, -(-keys_there // 3) + 1 + anchors)


# --- renewal ------------------------------------------------------------------------------------


async def numbers_of(url: str) -> list[int]:
    """The numbers of the keys that the bodies of c1 are sealed with."""
    sql = f"SELECT body FROM limpet.events WHERE sid = {_SID} ORDER BY seq"
    return [int.from_bytes(body[1:5], "big") for (body,) in await rows_of(url, sql)]


async def test_a_data_key_is_renewed_going_forward(url: str, keys: str, tmp_path: Path) -> None:
    """Old bodies stay readable and untouched, new ones and the head have the new key; both keys are
    wrapped again by a rotation."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp, events=2)
        assert await lp.keys.renew(s.key) == 2
        await s.append("user.message", {"text": "new"}, actor="user:ada")
        assert await lp.keys.renew("support", "ada", "c1") == 3
        await s.blobs.put(b"large" * 100)
        await s.append("user.message", {"text": "newest"}, actor="user:ada")
        await s.checkpoint()
        assert (await lp.maintenance.verify()).ok
    assert await numbers_of(url) == [1, 1, 1, 2, 3]
    assert (await heads_of(url))[2][:4] == b"\0\0\0\3"
    rewrite(tmp_path / "masters", [(tmp_path / "masters").read_text().strip(), new_master()])
    async with limpet.open(url, keys=keys) as lp:
        assert await lp.keys.rotate() >= 5
        s = await lp.get("support", "ada", "c1", tail=20)
        assert [e.data.get("text") for e in s.events[1:]] == [
            f"{CANARY} 0",
            f"{CANARY} 1",
            "new",
            "newest",
        ]
        assert (await lp.maintenance.verify()).ok


async def test_processes_with_the_old_key_take_up_the_new_one(url: str, keys: str) -> None:
    """One that has the session in memory reads what another sealed with a key it has not seen, by
    load, read, verify and in a commit; and the other reads what it still sealed with the old."""
    async with limpet.open(url, keys=keys) as one, limpet.open(url, keys=keys) as two:
        s = await said(one, events=1)
        t = await two.get("support", "ada", "c1")
        await one.keys.renew(s.key)
        await t.append("note.made", {"by": "two"}, actor="user:ada")
        await s.append("note.made", {"by": "one"}, actor="user:ada")
        assert await numbers_of(url) == [1, 1, 1, 2]
        await t.append("note.made", {"by": "two"}, actor="user:ada")
        assert (await numbers_of(url))[-1] == 2
        for lp in (one, two):
            read = await lp.session(s.key).read(limit=20)
            assert [event.damage for event in read] == [None] * 5
            assert (await lp.maintenance.verify()).ok


async def test_an_archive_that_another_process_sealed_with_a_new_key_is_read(
    url: str, keys: str, tmp_path: Path
) -> None:
    """Nobody can wait for keys while a file is read, so they are asked for before."""
    archive = f"file://{tmp_path}/archive"
    async with (
        limpet.open(url, keys=keys, archive=archive) as one,
        limpet.open(url, keys=keys, archive=archive) as two,
    ):
        s = await said(one)
        await two.get("support", "ada", "c1")
        await one.keys.renew(s.key)
        await s.complete()
        await s.archive()
        found = await two.get("support", "ada", "c1", archived=True)
        assert found.values["text"] == CANARY


async def test_a_number_of_a_key_that_never_was_is_damage(url: str, keys: str) -> None:
    """Whoever writes it keeps nobody waiting: each number is looked for once."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    for seq in (3, 4):
        sql = f"SELECT body FROM limpet.events WHERE sid = {_SID} AND seq = {seq}"
        ((body,),) = await rows_of(url, sql)
        forged = body[:1] + bytes([9, 9, 9, seq]) + body[5:]
        put = f"UPDATE limpet.events SET body = $1 WHERE sid = {_SID} AND seq = {seq}"
        await change(url, put, forged)
    async with limpet.open(url, keys=keys) as lp:
        s = lp.session(("support", "ada", "c1"))
        assert [e.seq for e in await s.read(limit=20) if e.damage] == [3, 4]


async def test_erasing_destroys_every_key(database: str, keys: str, tmp_path: Path) -> None:
    """Renewed or not: nothing of a copy from before opens."""
    async with limpet.open(database, keys=keys) as lp:
        s = await said(lp)
        await lp.keys.renew(s.key)
        await s.append("user.message", {"text": CANARY}, actor="user:ada")
        await lp.maintenance.backup(tmp_path / "backup.db")
        await lp.erase(s.key)
        ring = lp._journal.provenance.seal.ring  # type: ignore[union-attr]
        assert await ring.get("key", [s.head.uid]) == []
    how = {"keys": keys, "keyring": f"sqlite:///{tmp_path}/support.db-keys"}
    async with limpet.open(f"sqlite:///{tmp_path}/backup.db", **how) as lp:
        events = await lp.session(("support", "ada", "c1")).read(limit=50)
        assert [event.data for event in events] == [None] * 7


async def test_what_is_not_there_is_not_renewed(url: str, keys: str) -> None:
    """A missing session, a deleted one, and a store without keys."""
    async with limpet.open(url, keys=keys) as lp:
        with pytest.raises(SessionNotFound):
            await lp.keys.renew("support", "ada", "c1")
        await said(lp)
        await lp.delete("support", "ada", "c1")
        with pytest.raises(SessionDeleted):
            await lp.keys.renew("support", "ada", "c1")
    async with limpet.open("memory://") as lp:
        with pytest.raises(KeysMissing):
            await lp.keys.renew("support", "ada", "c1")


# --- what is found ------------------------------------------------------------------------------

PLAIN = b'{"data":{"text":"forged"}}'
_SID = "(SELECT sid FROM limpet.sessions WHERE app = 'support' AND id = 'c1')"
TAMPERED = {
    "actor": f"UPDATE limpet.events SET actor = 'user:eve' WHERE seq = 3 AND sid = {_SID}",
    "time": f"UPDATE limpet.events SET at_us = at_us - 1 WHERE seq = 3 AND sid = {_SID}",
    "type": f"UPDATE limpet.events SET type = 'user.command' WHERE seq = 3 AND sid = {_SID}",
    "link": f"UPDATE limpet.events SET link = digest WHERE seq = 3 AND sid = {_SID}",
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_a_changed_column_is_damage_on_every_read(url: str, keys: str, what: str) -> None:
    """Each column of an event is bound to its body; a page of a plain read finds it too."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    await change(url, TAMPERED[what])
    async with limpet.open(url, keys=keys) as lp:
        s = await lp.get("support", "ada", "c1", tail=20)
        found = [event for event in await s.read(limit=20) if event.damage]
        assert found[0].seq == 3
        assert 3 in s.history.damaged
        assert not (await lp.maintenance.verify()).ok


async def test_a_body_in_plain_text_is_damage(url: str, keys: str) -> None:
    """Whoever writes the database cannot replace what was sealed by what was not, even with the
    right checksum: in events and in shared names."""
    import zlib

    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    crc = zlib.crc32(PLAIN)
    sql = (
        f"UPDATE limpet.events SET flags = 0, body = $1, crc = {{}} WHERE seq = 3 AND sid = {_SID}"
    )
    if url.startswith("sqlite"):
        await change(url, sql.format(f"(({crc} | pos) - ({crc} & pos))"), PLAIN)
    else:
        place = "(((xid::text::bigint & 4294967295) * 1000003 + pos) & 4294967295)"
        await change(url, sql.format(f"({crc} # {place})"), PLAIN)
    async with limpet.open(url, keys=keys) as lp:
        s = await lp.get("support", "ada", "c1", tail=20)
        (found,) = [event for event in await s.read(limit=20) if event.damage]
        assert (found.seq, found.data) == (3, None)
        assert "plain text" in (found.damage or "")
        assert 3 in s.history.damaged
        report = await lp.maintenance.verify()
        assert any("plain text" in finding.problem for finding in report.findings)
        assert await _forged_in(lp._journal.store, s.key) == []
    async with limpet.open(url, keys=keys, check="crc") as lp:
        assert await _forged_in(lp._journal.store, s.key) == []


async def _forged_in(store: Any, key: Key) -> list[str]:
    """The ways to read by which a forged body comes through."""
    loaded = await store.load(key, tail=50)
    entries, _ = await store.changes(None, app=None, key=None, limit=50)
    records = await store.records(key, after=0, limit=50)
    asked: dict[str, Any] = {"after": 0, "limit": 50, "types": None}
    pages = [await store.read(key, reverse=reverse, **asked) for reverse in (False, True)]
    found = {
        "read": [event.data for page in pages for event in page],
        "load": [event.data for event in loaded.events],
        "state": [loaded.fields.get("text")],
        "ids": [e.data for e in await store.read_ids(key, [e.id for e in loaded.events])],
        "pending": [e.data for e in await store.pending_inputs(key, limit=50)],
        "feed": [entry.event.data for entry in entries],
        "records": [record.raw for record in records],
        "many": [e.data for each in await store.load_many([key], tail=50) for e in each.events],
    }
    return [way for way, read in found.items() if "forged" in str(read)]


async def test_a_changed_anchor_is_found(database: str, keys: str, tmp_path: Path) -> None:
    """Whoever writes the ring and has no master cannot move an anchor back."""
    async with limpet.open(database, keys=keys) as lp:
        s = await said(lp)
        uid = s.head.uid
    with sqlite3.connect(tmp_path / "support.db-keys") as conn:
        sql = "SELECT value FROM ring WHERE kind = 'anchor' AND owner = ?"
        ((raw,),) = conn.execute(sql, (uid,))
        anchor = msgspec.structs.replace(msgspec.msgpack.decode(raw, type=Anchor), version=2)
        values = (msgspec.msgpack.encode(anchor), uid)
        conn.execute("UPDATE ring SET value = ? WHERE kind = 'anchor' AND owner = ?", values)
    conn.close()
    async with limpet.open(database, keys=keys) as lp:
        (finding,) = (await lp.maintenance.verify()).findings
        assert "that was changed" in finding.problem


async def relink(url: str, after: int) -> None:
    """Compute every link after an event again, as whoever knows the format would: digests are in
    plain text."""
    names = "id, type, actor, cause, invocation_id, correlation_id, wake_id"
    sql = f"SELECT seq, at_us, digest, link, {names} FROM limpet.events WHERE sid = {_SID}"
    link = b""
    for seq, at_us, digest, stored, *parts in sorted(await rows_of(url, sql)):
        if seq <= after:
            link = bytes(stored)
            continue
        header = chain.header_digest(tuple([part and unpack_id(part) for part in parts]))
        link = chain.link(link, seq, at_us, header, bytes(digest))
        put = f"UPDATE limpet.events SET link = $1 WHERE seq = {seq} AND sid = {_SID}"
        await change(url, put, link)
    await change(url, "UPDATE limpet.sessions SET link = $1 WHERE id = 'c1'", link)


@pytest.mark.parametrize("what", ["actor", "time", "swapped"])
async def test_a_forged_chain_is_found_without_an_anchor(url: str, keys: str, what: str) -> None:
    """Links that were computed again fit each other, and not the bodies they are bound to."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    if what == "swapped":
        for was, now in ((3, 103), (4, 3), (103, 4)):
            sql = f"UPDATE limpet.events SET seq = {now} WHERE seq = {was} AND sid = {_SID}"
            await change(url, sql)
    else:
        await change(url, TAMPERED[what])
    await relink(url, 2)
    async with limpet.open(url, keys=keys) as lp:
        s = lp.session(("support", "ada", "c1"))
        damaged = [event.seq for event in await s.read(limit=20) if event.damage]
        assert damaged == [3, 4, 5, 6]
        assert damaged == [event.seq for event in await s.read(after=2, limit=20) if event.damage]


async def test_swapped_events_are_found(url: str, keys: str) -> None:
    """Two whole rows that changed places."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    for was, now in ((3, 103), (4, 3), (103, 4)):
        await change(
            url, f"UPDATE limpet.events SET seq = {now} WHERE seq = {was} AND sid = {_SID}"
        )
    async with limpet.open(url, keys=keys) as lp:
        s = await lp.get("support", "ada", "c1", tail=20)
        assert {event.seq for event in await s.read(limit=20) if event.damage} >= {3, 4}
        assert not (await lp.maintenance.verify()).ok


async def cut_tail(url: str, upto: int) -> None:
    """Remove the last events and set the head back, as whoever knows the format would."""
    await change(url, f"DELETE FROM limpet.events WHERE seq > {upto} AND sid = {_SID}")
    await change(url, f"DELETE FROM limpet.snapshots WHERE seq > {upto} AND sid = {_SID}")
    at = f"(SELECT {{}} FROM limpet.events WHERE seq = {upto} AND sid = {_SID})"
    await change(
        url,
        f"UPDATE limpet.sessions SET version = {upto}, link = {at.format('link')}, "
        f"updated_us = {at.format('at_us')} WHERE id = 'c1'",
    )


async def test_a_cut_tail_is_found(url: str, keys: str) -> None:
    """The ring has where the session stood when the store was closed."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    await cut_tail(url, 4)
    async with limpet.open(url, keys=keys) as lp:
        report = await lp.maintenance.verify()
        assert any("cut off" in finding.problem for finding in report.findings)
        assert any(
            "cut off" in f.problem
            for f in (await lp.maintenance.verify("support", "ada", "c1")).findings
        )
        s = await lp.get("support", "ada", "c1")
        assert s.history.damaged == (4,)
        with pytest.raises(SessionCorrupt, match="do not vouch"):
            await s.append("note.made", {}, actor="user:ada")
        await lp.keys.anchor()
        report = await lp.maintenance.verify()
        assert not any("cut off" in finding.problem for finding in report.findings)
        assert not any("vouch" in finding.problem for finding in report.findings)
        await s.append("note.made", {}, actor="user:ada")


async def heads_of(url: str) -> tuple[Any, ...]:
    (row,) = await rows_of(
        url, f"SELECT version, link, mac FROM limpet.sessions WHERE sid = {_SID}"
    )
    return tuple(row)


async def test_a_cut_tail_is_found_without_an_anchor(url: str, keys: str) -> None:
    """Nobody without the keys can say that a session stands at an earlier version, even while the
    ring has no anchor: by load, by a page of states, by verify, and by the next writer."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    await cut_tail(url, 4)
    async with limpet.open(url, keys=keys) as lp:
        ring = lp._journal.provenance.seal.ring  # type: ignore[union-attr]
        await ring.drop("anchor", [row.owner for row in await ring.page("anchor", None)])
        found = (await lp.maintenance.verify()).findings
        assert any(f.where == "head" and "do not vouch" in f.problem for f in found)
        s = await lp.get("support", "ada", "c1")
        assert s.history.damaged == (4,)
        assert (await lp.list(state=True)).damaged == (s.key,)
        for to in (s, lp.session(s.key)):
            with pytest.raises(SessionCorrupt, match="do not vouch"):
                await to.append("note.made", {}, actor="user:ada")
        assert await lp.delete(s.key)


@pytest.mark.parametrize("mac", ["none", "short", "other key", "long", "of another session"])
async def test_a_head_under_another_mac_is_found(url: str, keys: str, mac: str) -> None:
    """Removed, cut, of a key that never was, or taken from another session."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
        await said(lp, "c2")
    _, _, kept = await heads_of(url)
    sql = "SELECT mac FROM limpet.sessions WHERE id = 'c2'"
    forged = {
        "none": None,
        "short": kept[:8],
        "other key": b"\xff\xff\xff\xff" + kept[4:],
        "long": kept + b"1",
        "of another session": (await rows_of(url, sql))[0][0],
    }[mac]
    await change(url, "UPDATE limpet.sessions SET mac = $1 WHERE id = 'c1'", forged)
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.get("support", "ada", "c1")).history.damaged == (6,)
        assert [f.where for f in (await lp.maintenance.verify()).findings] == ["head"]
        assert (await lp.get("support", "ada", "c2")).history.damaged == ()


APART = limpet.Isolation("per_agent", agents={"agent:critic": limpet.FieldAccess(reads=("text",))})
MAIN = limpet.Principal("agent:main", role="agent", app="support", user="ada", task="c1")
EVE = limpet.Principal("user:eve", role="owner", app="support", user="eve")
# What somebody puts into the facts of a head, and whom it would let in.
FORGED: dict[str, tuple[str, str, limpet.Principal]] = {
    "a label": ('"free"', '"paid"', MAIN),
    "the phase": ('"phase"', '"phasf"', MAIN),
    "its agents": ('"agent:critic"', '"agent:main"', MAIN),
    "its users": ('"per_agent"', '"global"', EVE),
}


async def labeled(lp: Limpet) -> Key:
    s = await lp.create("support", "ada", "c1", state={"text": CANARY}, isolation=APART)
    await s.label({"plan": "free"}, actor="user:ada")
    await s.suspend(actor="user:ada")
    return s.key


async def forge(url: str, before: str, after: str) -> None:
    """Change a text in the facts of the session."""
    (row,) = await rows_of(url, f"SELECT facts FROM limpet.sessions WHERE sid = {_SID}")
    assert before in row[0]
    cast = "" if url.startswith("sqlite") else "::jsonb"
    sql = f"UPDATE limpet.sessions SET facts = $1{cast} WHERE sid = {_SID}"
    await change(url, sql, row[0].replace(before, after))


async def refused(lp: Limpet, key: Key, principal: limpet.Principal) -> None:
    """Whoever reads the session is told, nobody writes to it, and no guard believes its facts."""
    s = await lp.get(key)
    assert s.history.damaged == (s.version,)
    for to in (s, lp.session(key)):
        with pytest.raises(SessionCorrupt, match="do not vouch"):
            await to.label({"plan": "none"}, actor="user:ada")
    acting = lp.acting_as(principal)
    for read in (acting.get(key), acting.session(key).read(), acting.session(key).history.at(1)):
        with pytest.raises((SessionCorrupt, limpet.AccessDenied)):
            await read
    store: Any = acting._journal.store
    entries, _ = await store.changes(None, app="support", key=None, limit=50)
    assert key not in {entry.key for entry in entries}


@pytest.mark.parametrize("what", FORGED)
async def test_changed_facts_of_a_head_are_found_by_every_load(
    url: str, keys: str, what: str
) -> None:
    """Labels, phases and isolation stand in plain text beside the session: nobody without its keys
    can change them unseen."""
    before, after, principal = FORGED[what]
    async with limpet.open(url, keys=keys) as lp:
        key = await labeled(lp)
    await forge(url, before, after)
    async with limpet.open(url, keys=keys) as lp:
        await refused(lp, key, principal)
        found = (await lp.maintenance.verify()).findings
        assert any(f.where == "head" and "do not vouch" in f.problem for f in found)


async def test_a_session_that_was_given_another_key_is_found(url: str, keys: str) -> None:
    """Nobody becomes the owner of a session by writing a name into its row."""
    async with limpet.open(url, keys=keys) as lp:
        await labeled(lp)
    owner = "user" if url.startswith("sqlite") else "owner"
    await change(url, f"UPDATE limpet.sessions SET {owner} = $1 WHERE sid = {_SID}", "eve")
    async with limpet.open(url, keys=keys) as lp:
        await refused(lp, Key("support", "eve", "c1"), EVE)


async def test_what_a_process_has_in_memory_is_not_changed_below_it(url: str, keys: str) -> None:
    """Facts that somebody changes in the database, with a lease, do not reach a session that this
    process has read."""
    async with limpet.open(url, keys=keys) as lp:
        key = await labeled(lp)
        await lp.get(key)
        await forge(url, '"agent:critic"', '"agent:main"')
        await change(url, f"UPDATE limpet.sessions SET fence = $1 WHERE sid = {_SID}", 7)
        with pytest.raises((SessionCorrupt, limpet.AccessDenied)):
            await lp.acting_as(MAIN).get(key)


async def test_an_archived_session_is_vouched_for_under_each_of_its_keys(
    url: str, keys: str, tmp_path: Path
) -> None:
    """A session whose key is given to its stub, and back, stays one that its keys vouch for."""
    where = f"file://{tmp_path}/archive"
    async with limpet.open(url, keys=keys, archive=where) as lp:
        s = await said(lp)
        await s.complete(actor="user:ada")
        await s.archive(actor="user:ada")
    async with limpet.open(url, keys=keys, archive=where) as lp:
        assert (await lp.maintenance.verify()).ok
        await lp.unarchive(s.key)
    async with limpet.open(url, keys=keys, archive=where) as lp:
        assert (await lp.get(s.key)).history.damaged == ()
        assert (await lp.maintenance.verify()).ok


def rewrite_log(directory: Path, before: bytes, after: bytes) -> None:
    """Change a text in the lines of a log, and what is derived from them, so that they fit."""

    def changed(lines: list[bytes]) -> list[bytes]:
        last = max(number for number, line in enumerate(lines) if before in line)
        return [*lines[:last], lines[last].replace(before, after), *lines[last + 1 :]]

    relay_log(directory, changed)


def relay_log(directory: Path, changed: Callable[[list[bytes]], list[bytes]]) -> None:
    """Write other lines into a log, with numbers, chains and checksums that fit."""
    (path,) = directory.glob("log/*.jsonl")
    lines, chain, made = path.read_bytes().splitlines(keepends=True), START, list[bytes]()
    for number, line in enumerate(changed(lines), 1):
        said = msgspec.json.decode(line)
        text = line[: line.rindex(b',"crc":"')] + b"}"
        for name, was, now in (("chain", said["chain"], chain), ("n", said["n"], number)):
            encoded = [msgspec.json.encode({name: value})[1:-1] for value in (was, now)]
            text = text.replace(*encoded, 1)
        whole, crc = finished(text[:-1])
        content: AnyLine = decode_any(whole)
        chain = f"{whose(content)}.{crc}"
        made.append(whole)
    path.write_bytes(b"".join(made))
    directory.joinpath("closed.json").unlink(missing_ok=True)  # it says how many there were


@pytest.mark.parametrize("what", FORGED)
async def test_changed_facts_in_a_log_of_files_are_found(
    keys: str, tmp_path: Path, what: str
) -> None:
    """There they stand in the line of the event that changed them."""
    url, (before, after, principal) = f"files:///{tmp_path}/support", FORGED[what]
    async with limpet.open(url, keys=keys) as lp:
        key = await labeled(lp)
    rewrite_log(tmp_path / "support", before.encode(), after.encode())
    async with limpet.open(url, keys=keys) as lp:
        await refused(lp, key, principal)


def _member(line: bytes, name: str) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(line)[name])


def _with_member(line: bytes, name: str, value: bytes) -> bytes:
    return line.replace(
        b'"%b":%b' % (name.encode(), _member(line, name)), b'"%b":%b' % (name.encode(), value), 1
    )


def _swapped(one: bytes, two: bytes, name: str) -> list[bytes]:
    return [
        _with_member(one, name, _member(two, name)),
        _with_member(two, name, _member(one, name)),
    ]


# What somebody does to two lines of events in a log, who writes all that is derived from them.
LINES: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "actor": lambda one, two: [_with_member(one, "actor", b'"user:eve"'), two],
    "type": lambda one, two: [_with_member(one, "type", b'"agent.message"'), two],
    "time": lambda one, two: [_with_member(one, "time", b"1"), two],
    "link": lambda one, two: _swapped(one, two, "link"),
    "body in plain text": lambda one, two: [
        _with_member(one, "packed", msgspec.json.encode(b'{"data":{"text":"forged"}}')),
        two,
    ],
    "bodies swapped": lambda one, two: _swapped(one, two, "packed"),
    "body of before": lambda one, two: [one, _with_member(two, "packed", _member(one, "packed"))],
    "lines swapped": lambda one, two: [two, one],
    "line left out": lambda one, two: [two],
}


@pytest.mark.parametrize("what", LINES)
async def test_changed_lines_of_a_sealed_log_are_found(
    keys: str, tmp_path: Path, what: str
) -> None:
    """By verify, and by everybody who reads what was changed."""
    url, directory = f"files:///{tmp_path}/support", tmp_path / "support"
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)

    def changed(lines: list[bytes]) -> list[bytes]:
        first = next(n for n, line in enumerate(lines) if b'"user.message"' in line)
        one, two = lines[first : first + 2]
        return [*lines[:first], *LINES[what](one, two), *lines[first + 2 :]]

    relay_log(directory, list)
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok
    relay_log(directory, changed)
    async with limpet.open(url, keys=keys) as lp:
        read = await lp.session(s.key).read(limit=50)
        whole = [event.seq for event in read if event.damage is None]
        assert set(whole) < set(range(1, s.version + 1))
        assert not (await lp.maintenance.verify()).ok


async def test_every_commit_renews_the_mac(url: str, keys: str) -> None:
    """Of one event, of several, of a new session, of a fork, and of a turn's end."""
    seen = set()
    async with limpet.open(url, keys=keys) as lp:
        s = await lp.create("support", "ada", "c1")
        seen.add(await heads_of(url))
        await s.append_many(
            [
                limpet.Draft(type="user.message", data={"text": "hi"}),
                limpet.Draft(type="note.made"),
            ],
            actor="user:ada",
        )
        seen.add(await heads_of(url))
        await s.label({"a": "b"}, actor="user:ada")
        seen.add(await heads_of(url))
        (lease,) = await lp.work.claim("w")
        async with lp.commit() as c:
            c.record(lp.session(s.key, actor="w", lease=lease), limpet.facts.processed([2]))
        await lp.work.release(lease)
        seen.add(await heads_of(url))
        await s.refresh()
        await s.fork(id="fork")
    assert len({mac for _, _, mac in seen}) == len(seen) == 4
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok
        assert (await lp.get("support", "ada", "fork")).history.damaged == ()


async def test_a_plain_store_has_no_macs(url: str) -> None:
    """It pays nothing for what sealed stores do."""
    async with limpet.open(url) as lp:
        await said(lp)
    assert (await heads_of(url))[2] is None


async def test_anchors_only_move_forward(url: str, keys: str) -> None:
    """Whoever closes last may have written first."""
    async with limpet.open(url, keys=keys) as one:
        s = await said(one)
        async with limpet.open(url, keys=keys) as two:
            await two.session(s.key).append("note.made", {}, actor="user:ada")
    await cut_tail(url, 6)
    async with limpet.open(url, keys=keys) as lp:
        report = await lp.maintenance.verify()
        assert any("cut off" in finding.problem for finding in report.findings)


async def test_an_honest_restore_with_keys_is_accepted(
    database: str, keys: str, tmp_path: Path
) -> None:
    """Sessions are back where the backup has them, and those made since are gone. Restored without
    keys, the store looks as if it were rolled back, until it is accepted."""
    backup = tmp_path / "backup.db"
    async with limpet.open(database, keys=keys) as lp:
        s = await said(lp)
        await said(lp, "erased")
        await lp.maintenance.backup(backup)
        await s.append("note.made", {}, actor="user:ada")
        await said(lp, "later")
        await lp.erase("support", "ada", "erased")
    limpet.restore(backup, database, replace=True)
    async with limpet.open(database, keys=keys) as lp:
        found = [f.problem for f in (await lp.maintenance.verify()).findings]
        assert any("rolled back" in each for each in found)
        assert any("is missing" in each for each in found)
    limpet.restore(backup, database, replace=True, keys=keys)
    async with limpet.open(database, keys=keys) as lp:
        damaged = {f.key for f in (await lp.maintenance.verify()).findings}
        assert damaged == {Key("support", "ada", "erased")}  # its keys do not come back
        await lp.erase("support", "ada", "erased")
        assert (await lp.maintenance.verify()).ok
        assert (await lp.get("support", "ada", "c1")).values["text"] == CANARY


async def test_another_history_in_its_place_is_found(url: str, keys: str) -> None:
    """Cut, and written on by whoever has the keys, past where it stood."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
    await cut_tail(url, 4)
    await change(url, "UPDATE limpet.sessions SET mac = $1 WHERE id = 'c1'", None)
    async with limpet.open(url, keys=keys) as lp:
        store = lp._journal.store
        await store.accept_head(Key("support", "ada", "c1"))  # type: ignore[attr-defined]
        s = await lp.get("support", "ada", "c1")
        for _ in range(5):
            await s.append("note.made", {}, actor="user:ada")
        findings = await lp._journal.provenance.findings(None)  # type: ignore[union-attr]
        assert any("another link" in finding.problem for finding in findings)


async def test_a_session_that_was_removed_is_found(url: str, keys: str) -> None:
    """The ring has an anchor of it, and no tombstone says that it was deleted."""
    async with limpet.open(url, keys=keys) as lp:
        await said(lp)
        await said(lp, "c2")
        await lp.delete("support", "ada", "c2")
    for table in ("events", "snapshots", "sessions"):
        await change(
            url,
            f"DELETE FROM limpet.{table} WHERE sid = {_SID}",
        )
    async with limpet.open(url, keys=keys) as lp:
        findings = await lp._journal.provenance.findings(None)  # type: ignore[union-attr]
        assert ["is missing" in finding.problem for finding in findings] == [True]


async def test_a_key_that_was_moved_to_another_session_does_not_unwrap(
    database: str, keys: str, tmp_path: Path
) -> None:
    """A wrapped key is bound to its owner, its number and its ring."""
    async with limpet.open(database, keys=keys) as lp:
        one, two = await said(lp, "c1"), await said(lp, "c2")
        uids = (one.head.uid, two.head.uid)
    with sqlite3.connect(tmp_path / "support.db-keys") as conn:
        taken = "(SELECT value FROM ring WHERE kind = 'key' AND owner = ?)"
        sql = f"UPDATE ring SET value = {taken} WHERE kind = 'key' AND owner = ?"
        conn.execute(sql, uids)
    conn.close()
    async with limpet.open(database, keys=keys) as lp:
        with pytest.raises(SealUnavailable, match="was changed, or moved"):
            await lp.get("support", "ada", "c2")
        assert (await lp.get("support", "ada", "c1")).values["text"] == CANARY


# --- what nobody can read -----------------------------------------------------------------------


def _readable(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if CANARY.encode() in path.read_bytes()]


async def test_no_byte_of_any_file_shows_a_text(database: str, keys: str, tmp_path: Path) -> None:
    """Database, log, sidecar, ring, backup, archive and tier: while it is open, and after."""
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(database, keys=keys, archive=archive) as lp:
        await lp.policies.checkpointing(
            "support", limpet.CheckpointPolicy(tier=f"file://{tmp_path}/tier")
        )
        s = await said(lp, events=30)
        await s.blobs.put(CANARY.encode() * 10_000, "text/plain")
        await s.checkpoint("kept")
        await lp.documents("notes").put("one", {"text": CANARY}, actor="user:ada")
        await lp.maintenance.backup(tmp_path / "backup.db")
        assert _readable(tmp_path) == []
        other = await said(lp, "archived")
        await other.complete({"text": CANARY})
        await other.archive()
        await lp.maintenance.compact()
        assert _readable(tmp_path) == []
    assert _readable(tmp_path) == []
    assert not (tmp_path / "backup.db-keys").exists()
    with sqlite3.connect(tmp_path / "support.db-keys") as ring:
        wrapped = [row[0] for row in ring.execute("SELECT value FROM ring WHERE kind = 'key'")]
    ring.close()
    copies = (tmp_path / "backup.db").read_bytes() + (tmp_path / "support.db").read_bytes()
    assert wrapped
    assert not any([each in copies for each in wrapped])


async def test_the_doctor_warns_of_a_ring_beside_the_data(
    database: str, keys: str, tmp_path: Path
) -> None:
    """And not of one that is elsewhere."""
    async with limpet.open(database, keys=keys) as lp:
        (check,) = [c for c in (await lp.maintenance.doctor()).checks if c.name == "keys"]
        assert check.severity == "warning"
    apart = tmp_path / "apart"
    apart.mkdir()
    other = f"sqlite:///{tmp_path}/other.db"
    async with limpet.open(other, keys=keys, keyring=f"sqlite:///{apart}/ring.db") as lp:
        (check,) = [c for c in (await lp.maintenance.doctor()).checks if c.name == "keys"]
        assert check.ok


# --- forgetting ---------------------------------------------------------------------------------


async def test_copies_from_before_cannot_be_read_after_an_erasure(
    database: str, keys: str, tmp_path: Path
) -> None:
    """A copy of the file, a backup and the archive of an erased session: no key opens them. What
    was not erased is readable there."""
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(database, keys=keys, archive=archive) as lp:
        erased = await said(lp, "erased")
        archived = await said(lp, "archived")
        await said(lp, "kept")
        await archived.complete()
        await archived.archive()
        await lp.maintenance.backup(tmp_path / "backup.db")
        shutil.copytree(tmp_path / "archive", tmp_path / "old-archive")
        uid = erased.head.uid
        assert await lp.erase("support", "ada", "erased") is not None
        assert await lp.erase("support", "ada", "archived") is not None
    with closing(apsw.Connection(str(tmp_path / "support.db-keys"))) as conn:
        assert list(conn.execute("SELECT kind FROM ring WHERE owner = ?", (uid,))) == []
    copy = f"sqlite:///{tmp_path}/backup.db"
    how = {"keys": keys, "keyring": f"sqlite:///{tmp_path}/support.db-keys"}
    old = f"file://{tmp_path}/old-archive"
    async with limpet.open(copy, archive=old, **how) as lp:
        s = await lp.get("support", "ada", "erased")
        assert s.values.get("text") is None
        assert all([event.data is None for event in await s.read(limit=50)])
        with pytest.raises(ArchiveDamaged):
            await lp.get("support", "ada", "archived", archived=True)
        assert (await lp.get("support", "ada", "kept")).values["text"] == CANARY


async def test_copies_from_before_cannot_be_read_after_a_user_was_erased(
    database: str, keys: str, tmp_path: Path
) -> None:
    """No session of the user and no user: name; those of others can."""
    async with limpet.open(database, keys=keys) as lp:
        await said(lp)
        await lp.create("support", "bob", "c2", state={"text": CANARY, "user:u": CANARY})
        await lp.maintenance.backup(tmp_path / "backup.db")
        await lp.erase_user("support", "ada")
    how = {"keys": keys, "keyring": f"sqlite:///{tmp_path}/support.db-keys"}
    async with limpet.open(f"sqlite:///{tmp_path}/backup.db", **how) as lp:
        ada, bob = await lp.get("support", "ada", "c1"), await lp.get("support", "bob", "c2")
        assert (ada.values.get("text"), ada.values.get("user:u")) == (None, None)
        assert (bob.values["text"], bob.values["user:u"]) == (CANARY, CANARY)


async def test_a_user_who_comes_back_has_one_key_in_all_processes(
    url: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that had the destroyed key notices, and writes nothing more with it."""
    now = time.monotonic()
    monkeypatch.setattr("limpet.security.keys.monotonic", lambda: now)
    async with limpet.open(url, keys=keys) as one, limpet.open(url, keys=keys) as two:
        await one.create("support", "ada", "c1", state={"user:u": "old"})
        await two.erase_user("support", "ada")
        await two.create("support", "ada", "c2", state={"user:v": "new"})
        now += SCOPE_SECONDS
        await one.create("support", "ada", "c3", state={"user:u": "again"})
        for lp in (one, two):
            s = await lp.get("support", "ada", "c2")
            assert s.values == {"user:u": "again", "user:v": "new"}


async def test_an_erased_session_leaves_nothing_in_the_ring(url: str, keys: str) -> None:
    """Its keys, its anchor and its receipt are gone, and verify finds nothing missing."""
    async with limpet.open(url, keys=keys) as lp:
        s = await said(lp)
        await s.complete()
        await lp.erase("support", "ada", "c1")
        assert (await lp.maintenance.verify()).ok
    async with limpet.open(url, keys=keys) as lp:
        assert (await lp.maintenance.verify()).ok
        seal = lp._journal.provenance.seal  # type: ignore[union-attr]
        for kind in ("key", "anchor", "receipt"):
            assert s.head.uid not in {row.owner for row in await seal.ring.page(kind, None)}


# --- the memory of keys -------------------------------------------------------------------------


async def test_without_keys_there_is_nothing_to_rotate() -> None:
    """The error says how to open the store."""
    async with limpet.open("memory://") as lp:
        with pytest.raises(KeysMissing, match="keys="):
            await lp.keys.rotate()
        s = await said(lp)
        with pytest.raises(KeysMissing):
            await s.receipt()
        with pytest.raises(KeysMissing):
            await s.prove(1)


def test_the_same_without_await(database: str, keys: str) -> None:
    """Keys, receipts and proofs in scripts."""
    with limpet.open_sync(database, keys=keys) as lp:
        s = lp.create("support", "ada", "c1", state={"n": 1})
        s.append("user.message", {"text": "hi"}, actor="user:ada")
        receipt, proof = s.receipt(), s.prove(2)
        limpet.check_receipt(receipt, proof, s.events[-1], public_key=lp.keys.public_key)
        assert lp.keys.rotate() == 0
        assert isinstance(lp.keys.status(), limpet.KeysStatus)
        assert msgspec.json.decode(msgspec.json.encode(receipt), type=limpet.Receipt) == receipt
