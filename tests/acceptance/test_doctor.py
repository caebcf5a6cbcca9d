"""The doctor on a real server: sound ones are well, each bad setting is found with its advice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

import limpet
from limpet import Check, Diagnosis
from limpet.store.postgres import doctor
from tests.support.postgres import Server, binaries, unprivileged


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    server.start(max_prepared_transactions=2)
    yield server
    server.remove()


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside ours, and a fresh store with one session."""
    conn = await asyncpg.connect(server.url)
    await conn.execute("DROP SCHEMA IF EXISTS limpet CASCADE")
    async with limpet.open(server.url) as lp:
        s = await lp.create("shop", "ada", id="1", labels={"plan": "gold"})
        await s.append("user.message", {"text": "a marker"}, actor="user:ada", set={"n": 1})
    yield conn
    await conn.close()


async def diagnose(url: str) -> Diagnosis:
    async with limpet.open(url) as lp:
        return await lp.maintenance.doctor()


def of(diagnosis: Diagnosis, name: str) -> Check:
    (check,) = [check for check in diagnosis.checks if check.name == name]
    return check


def unwell(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.severity for check in diagnosis.checks if not check.ok}


@pytest.mark.usefixtures("admin")
async def test_a_sound_server_is_well(server: Server) -> None:
    """Every check is ok, and progress is told to the end."""
    steps: list[tuple[int, int]] = []
    async with limpet.open(server.url) as lp:
        diagnosis = await lp.maintenance.doctor(
            progress=lambda done, total: steps.append((done, total))
        )
    assert unwell(diagnosis) == {}
    assert diagnosis.ok
    assert steps == [(1, 1)]
    assert of(diagnosis, "server").found.startswith("PostgreSQL ")
    assert "±" in of(diagnosis, "clock").found


async def test_bad_settings_are_found_with_their_advice(server: Server) -> None:
    """A server that was started for speed is told what each setting risks."""
    bad = {"fsync": "off", "full_page_writes": "off"}
    kept = dict(server.settings)
    server.stop()
    server.start(**bad, wal_level="minimal", max_wal_senders=0, max_connections=11)
    try:
        diagnosis = await diagnose(server.url)
    finally:
        server.settings = kept
        server.restart()
    assert unwell(diagnosis) == {
        **dict.fromkeys(bad, "problem"),
        "wal_level": "warning",
        "connections": "warning",
    }
    assert not diagnosis.ok
    for name in bad:
        assert f"ALTER SYSTEM SET {name} = on" in of(diagnosis, name).advice


async def test_what_our_connections_have_counts(server: Server, admin: asyncpg.Connection) -> None:
    """Not what a role defaults to, which they do not follow; but what the URL asks for."""
    await admin.execute("ALTER ROLE limpet SET synchronous_commit = off")
    try:
        assert unwell(await diagnose(server.url)) == {}
        asked = await diagnose(f"{server.url}&synchronous_commit=off")
        assert unwell(asked) == {"synchronous_commit": "problem"}
        assert "take it out of the URL" in of(asked, "synchronous_commit").advice
    finally:
        await admin.execute("ALTER ROLE limpet RESET synchronous_commit")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("UPDATE limpet.events SET body = overlay(body PLACING 'K' FROM 9) WHERE seq = 2", "log"),
        ("UPDATE limpet.events SET seq = 7 WHERE seq = 2", "log"),
        ("UPDATE limpet.sessions SET due_us = 5", "folds"),
        ("DELETE FROM limpet.labels", "tables"),
        ("DELETE FROM limpet.sessions", "tables"),
    ],
)
async def test_damage_is_a_problem(
    server: Server, admin: asyncpg.Connection, damage: str, name: str
) -> None:
    """A changed body, a hole in the seqs, a wrong head, a lost index row, a lost session."""
    await admin.execute(damage)
    diagnosis = await diagnose(server.url)
    assert of(diagnosis, name).severity == "problem"
    assert of(diagnosis, name).advice


async def test_a_transaction_that_holds_the_feed_back_is_named(
    server: Server, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its process, so that the advice can be followed."""
    monkeypatch.setattr(doctor, "TRANSACTION_SECONDS_MAX", 0.0)
    async with admin.transaction():
        await admin.fetchval("SELECT pg_current_xact_id()")
        pid = await admin.fetchval("SELECT pg_backend_pid()")
        check = of(await diagnose(server.url), "old transactions")
    assert check.severity == "warning"
    assert f"process {pid} of limpet" in check.found
    assert of(await diagnose(server.url), "old transactions").ok


async def test_a_forgotten_prepared_transaction_is_named(
    server: Server, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the feed back without any process."""
    monkeypatch.setattr(doctor, "TRANSACTION_SECONDS_MAX", 0.0)
    await admin.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
    check = of(await diagnose(server.url), "old transactions")
    await admin.execute("ROLLBACK PREPARED 'forgotten'")
    assert "prepared transaction forgotten" in check.found


async def test_a_forgotten_replication_slot_is_a_warning(
    server: Server, admin: asyncpg.Connection
) -> None:
    """It keeps WAL for a replica that does not come."""
    await admin.execute("SELECT pg_create_physical_replication_slot('gone', true)")
    diagnosis = await diagnose(server.url)
    await admin.execute("SELECT pg_drop_replication_slot('gone')")
    assert unwell(diagnosis) == {"replication": "warning"}


async def test_dead_rows_are_counted_and_vacuum_ends_them(
    server: Server, admin: asyncpg.Connection
) -> None:
    """The advice names the table, and following it leaves the store well."""
    other = await asyncpg.connect(server.url)
    await other.execute("ALTER TABLE limpet.meta SET (autovacuum_enabled = off)")
    await other.execute(
        "INSERT INTO limpet.meta SELECT 'x' || n, '' FROM generate_series(1, 20000) n"
    )
    await other.execute("DELETE FROM limpet.meta WHERE name LIKE 'x%'")
    await other.close()  # what it did is counted when it leaves
    check = of(await diagnose(server.url), "dead rows")
    assert check.severity == "warning"
    await admin.execute(check.advice.split(".")[0].removeprefix("Run: ") + ".meta")
    assert of(await diagnose(server.url), "dead rows").ok


@pytest.fixture
def standby(server: Server) -> Iterator[str]:
    """The URL of a replica that streams from the server."""
    home, who = server.folder / "standby", unprivileged()
    home.mkdir()
    if who:
        os.chown(home, who["user"], who["group"])
    copy = [
        "-D",
        home / "data",
        "-R",
        "-X",
        "stream",
        "-c",
        "fast",
        "-h",
        server.folder,
        "-U",
        "limpet",
    ]
    subprocess.run([binaries() / "pg_basebackup", *copy], check=True, cwd=home, **who)
    options = [f"unix_socket_directories={home}", "listen_addresses=", "max_connections=200"]
    options.append("max_prepared_transactions=2")
    process = subprocess.Popen(
        [binaries() / "postgres", "-D", home / "data", *(f"--{option}" for option in options)],
        cwd=home,
        stderr=subprocess.DEVNULL,
        **who,
    )
    yield server.url_as("limpet", folder=home)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    shutil.rmtree(home)


async def test_a_standby_is_told_from_its_primary(
    server: Server, admin: asyncpg.Connection, standby: str
) -> None:
    """The one cannot be written; the other sees its replica."""
    deadline = time.monotonic() + 60
    while not await admin.fetchval("SELECT count(*) FROM pg_stat_replication"):
        assert time.monotonic() < deadline, "the replica does not come"
    assert unwell(await diagnose(standby)) == {"replication": "problem"}
    check = of(await diagnose(server.url), "replication")
    assert check.ok
    assert check.found.startswith("1 replica, 0 synchronous")


async def test_what_a_user_may_not_see_is_said(server: Server, admin: asyncpg.Connection) -> None:
    """No guess is made, and nobody is alarmed, for want of a privilege."""
    await admin.execute("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    await admin.execute("GRANT USAGE ON SCHEMA limpet TO plain")
    await admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA limpet TO plain")
    diagnosis = await diagnose(server.url_as("plain"))
    hidden = ("replication", "wal size", "old transactions")
    assert unwell(diagnosis) == dict.fromkeys(hidden, "skipped")
    assert diagnosis.ok
    for name in hidden:
        assert "GRANT pg_monitor" in of(diagnosis, name).advice


async def test_memory_says_what_it_is() -> None:
    """Well, by its own measure, with a word of warning."""
    diagnosis = await diagnose("memory://")
    assert diagnosis.ok
    assert unwell(diagnosis) == {"durability": "warning"}
