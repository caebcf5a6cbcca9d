"""Rows that are missing, changed or of the wrong kind: told, and never worse than they are."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import Key, Limpet, LimpetError, ops

HOLE = Key("a", "u", "hole")
CHAIN = Key("a", "u", "chain")
DEAD = Key("a", "u", "dead")


def url(path: Path) -> str:
    return f"sqlite:///{path}?sync=normal"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gaps") / "clean.db"
    asyncio.run(build(path))
    return path


@pytest.fixture
def path(tmp_path: Path, clean: Path) -> Path:
    """Two sessions, names of app and user, a tombstone and an erasure, closed cleanly."""
    return Path(shutil.copy(clean, tmp_path / "a.db"))


async def build(path: Path) -> None:
    async with limpet.open(url(path)) as lp:
        hole = await lp.create("a", "u", id="hole", actor="x", state={"n": 0, "log": []})
        for number in range(6):
            await hole.append(
                "x.y", inc={"n": 1}, add={"log": [number]}, trace=limpet.Trace(cause="before")
            )
        chain = await lp.create("a", "u", id="chain", actor="x", labels={"plan": "gold"})
        await chain.append("x.y", set={"cfg": {}, "app:a": 1})
        await chain.append("x.y", ops=[ops.Set(("cfg", "x"), 1)], set={"user:u": [1]})
        await chain.append("x.y", set={"last": 3, "app:a": 2})
        for id in ("dead", "gone"):
            await lp.create("a", "u", id=id, state={"app:b": id})
        await lp.delete(DEAD)
        await lp.erase(("a", "u", "gone"))
        assert (await lp.maintenance.verify()).findings == ()


def change(path: Path, sql: str) -> None:
    conn = apsw.Connection(str(path))
    conn.execute(sql)
    assert conn.changes(), "nothing was changed"
    conn.close()


def of(key: Key) -> str:
    return f"sid = (SELECT sid FROM sessions WHERE id = '{key.id}')"


# --- events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seqs", [(3,), (2, 3), (4, 6), (7,), (6, 7)], ids=str)
async def test_missing_events_are_told_and_none_counts_twice(
    path: Path, seqs: tuple[int, ...]
) -> None:
    """State is what the other events amount to, before and after an append."""
    change(path, f"DELETE FROM events WHERE {of(HOLE)} AND seq IN ({','.join(map(str, seqs))})")
    there = [seq - 2 for seq in range(2, 8) if seq not in seqs]
    for added in range(2):
        async with limpet.open(url(path)) as lp:
            session = await lp.get(HOLE, actor="x")
            assert session.history.damaged == seqs
            log = there + list(range(100, 100 + added))
            assert session.state == {"n": len(log), "log": log, "app:a": 2, "app:b": "gone"} | {
                "user:u": [1]
            }
            event = await session.append("x.y", inc={"n": 1}, add={"log": [100 + added]})
            assert event.seq == 8 + added
            assert (await session.refresh()).history.damaged == seqs
            assert session.state["n"] == len(log) + 1
            report = await lp.maintenance.verify(HOLE)
            assert not report.ok


async def test_what_depended_on_a_damaged_event_is_told_with_it(path: Path) -> None:
    """The session is readable, without the effect of either, and goes on."""
    change(path, f"UPDATE events SET crc = crc + 1 WHERE {of(CHAIN)} AND seq = 2")
    for version in (4, 5):
        async with limpet.open(url(path)) as lp:
            session = await lp.get(CHAIN, actor="x")
            assert session.history.damaged == (2, 3)
            assert (session.version, session.state["last"]) == (version, 3)
            assert "cfg" not in session.state
            assert (await session.append("x.y", set={"more": 1})).seq == version + 1
            assert session.state["more"] == 1
            assert not (await lp.maintenance.verify()).ok
            assert (await lp.get(HOLE)).history.damaged == ()


# --- columns of the wrong kind -------------------------------------------------------------------


async def answers(lp: Limpet, key: Key) -> list[Any]:
    """What every reading verb says; anything but a refusal of ours is raised."""
    found: list[Any] = []
    for ask in (
        lambda: lp.get(key),
        lambda: lp.session(key).read(),
        lambda: lp.list(app="a"),
        lambda: lp.list(app="a", labels={"plan": "gold"}),
        lambda: lp.list(),
        lambda: lp.maintenance.verify(key),
        lambda: lp.maintenance.verify(),
        lambda: lp.session(key, actor="x").append("x.y"),
    ):
        try:
            found.append(await ask())
        except LimpetError as error:
            found.append(error)
    return found


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("cause", "5"),
        ("cause", "1.5"),
        ("cause", "x'ff'"),
        ("invocation_id", "7"),
        ("correlation_id", "7"),
        ("wake_id", "x'00'"),
        ("id", "9"),
        ("type", "''"),
        ("flags", "255"),
        ("flags", "-1"),
        ("body", "x''"),
        ("actor", "x'ff'"),
        ("processed", "-1"),
        ("processed", "0"),
        ("processed", "3"),
        ("crc", "crc + 1"),
        ("pos", "pos + 1000"),
    ],
)
async def test_an_event_with_a_column_of_the_wrong_kind_is_told(
    path: Path, column: str, value: str
) -> None:
    """No reading verb stumbles, verify finds it, and the session goes on."""
    value = f"CAST({value} AS TEXT)" if column == "actor" else value
    change(path, f"UPDATE events SET {column} = {value} WHERE {of(HOLE)} AND seq = 4")
    async with limpet.open(url(path)) as lp:
        got, *_, whole, one, appended = await answers(lp, HOLE)
        assert not isinstance(got, LimpetError)
        assert (got.version, got.state["n"]) in ((7, 6), (7, 5))
        assert got.state["n"] == 6 or got.history.damaged == (4,)
        assert not whole.ok
        assert not one.ok
        assert appended.seq == 8


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("facts", "'[1]'"),
        ("facts", "'5'"),
        ("facts", "NULL"),
        ("facts", """'{"labels": 5}'"""),
        ("facts", """'{"labels": {"plan": 5}}'"""),
        ("facts", """'{"labels": {"plan": "gold"}, "timers": {"a": 1}}'"""),
        ("facts", """'{"labels": {"plan": "gold"}, "inputs": {"pending": 77}}'"""),
        ("facts", """'{"labels": {"plan": "gold"}, "priority": 1}'"""),
        ("slot", "slot + 1"),
        ("due_us", "5"),
        ("deadline_us", "5"),
        ("priority", "3"),
        ("active_us", "active_us + 1"),
        ("leased_us", "5"),
        ("floor", "2"),
        ("parent", "77"),
        ("uid", "5"),
        ("uid", "'other'"),
        ("link", "x''"),
        ("version", "-1"),
        ("app", "''"),
    ],
)
async def test_a_head_with_a_column_of_the_wrong_kind_is_told(
    path: Path, column: str, value: str
) -> None:
    """Every verb answers or refuses in our own words, verify finds it, and others are served."""
    change(path, f"UPDATE sessions SET {column} = {value} WHERE id = 'chain'")
    async with limpet.open(url(path)) as lp:
        assert not (
            await lp.maintenance.verify()
        ).ok  # before an append, which writes some of it again
        await answers(lp, CHAIN)
        hole = await lp.get(HOLE, actor="x")
        assert (hole.state["n"], hole.history.damaged) == (6, ())
        assert (await hole.append("x.y")).seq == 8


# --- what only verify can tell -------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE meta SET value = x'00' WHERE name = 'secret'",
        "UPDATE meta SET value = zeroblob(32) WHERE name = 'secret'",
        "UPDATE meta SET value = 7 WHERE name = 'secret_crc'",
        "DELETE FROM meta WHERE name = 'secret'",
        "UPDATE meta SET value = value - 1 WHERE name = 'feed'",
        "UPDATE meta SET value = value + 8 WHERE name = 'feed'",
        "DELETE FROM meta WHERE name = 'feed'",
        "DELETE FROM meta WHERE name = 'feed_crc'",
        "UPDATE erased SET key_hash = zeroblob(32)",
        "UPDATE erased SET version = version + 1",
        "UPDATE erased SET link = zeroblob(32)",
        "UPDATE erased SET erased_us = erased_us + 1",
        "UPDATE erased SET crc = crc + 1",
        "UPDATE erased SET forks_kept = forks_kept + 1",
        "UPDATE tombstones SET id = 'risen'",
        "UPDATE tombstones SET user = 'bob'",
        "UPDATE tombstones SET uid = 'other'",
        "UPDATE tombstones SET version = 9",
        "UPDATE tombstones SET link = zeroblob(32)",
        "UPDATE tombstones SET created_us = 1",
        "UPDATE tombstones SET updated_us = 1",
        "UPDATE tombstones SET active_us = 1",
        "UPDATE tombstones SET floor = 1",
        "UPDATE tombstones SET parent = 77",
        "UPDATE tombstones SET deleted_us = 1",
        "UPDATE tombstones SET ending = 'moved'",
        "UPDATE tombstones SET crc = crc + 1",
        "DELETE FROM tombstones",
        "INSERT INTO bases SELECT 77, flags, body, crc FROM events LIMIT 1",
        "DELETE FROM scopes WHERE name = 'app:a'",
        "DELETE FROM scopes WHERE name = 'app:a' AND version = 2",
        "DELETE FROM scopes WHERE name = 'app:a' AND version = 1",
        "DELETE FROM scopes WHERE name = 'user:u'",
        "UPDATE scopes SET uid = 'other' WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET seq = seq + 1 WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET base = 1 WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET form = 1 WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET form = 2 WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET user = 'bob' WHERE name = 'user:u'",
        "UPDATE scopes SET app = 'b' WHERE name = 'app:a'",
        "UPDATE scopes SET name = 'app:c' WHERE name = 'app:a'",
        "UPDATE scopes SET version = 3 WHERE name = 'app:a' AND version = 2",
        "UPDATE scopes SET flags = 1 WHERE name = 'app:a' AND version = 2",
        "INSERT INTO scopes SELECT NULL, app, user, name, 3, 3, form, flags, body, crc, uid, seq "
        "FROM scopes WHERE name = 'app:a' AND version = 2",
    ],
)
async def test_verify_finds_what_was_changed_beside_the_logs(path: Path, sql: str) -> None:
    """Secrets, erasures, tombstones, and every column of a version of a shared name."""
    change(path, sql)
    async with limpet.open(url(path)) as lp:
        assert not (await lp.maintenance.verify()).ok
        await answers(lp, HOLE)
