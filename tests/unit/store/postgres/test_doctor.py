"""The doctor of servers: each value is judged without a server that has it."""

from __future__ import annotations

import pytest

from limpet import Check
from limpet.store.postgres import doctor

SOUND = {
    "server_version": "16.2",
    "server_version_num": "160002",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "autovacuum": "on",
    "server_encoding": "UTF8",
    "default_transaction_read_only": "off",
}
PRIMARY = {
    "names": "",
    "standby": False,
    "replicas": 1,
    "synchronous": 1,
    "lag_bytes": 0,
    "idle_slots": 0,
}


def test_sound_settings_are_well() -> None:
    """No check of them gives advice."""
    assert all(check.ok and not check.advice for check in doctor.settings(SOUND))


@pytest.mark.parametrize(
    ("change", "name", "severity"),
    [
        ({"server_version_num": "130011"}, "server", "warning"),
        ({"fsync": "off"}, "fsync", "problem"),
        ({"synchronous_commit": "off"}, "synchronous_commit", "problem"),
        ({"full_page_writes": "off"}, "full_page_writes", "problem"),
        ({"wal_level": "minimal"}, "wal_level", "warning"),
        ({"autovacuum": "off"}, "autovacuum", "warning"),
        ({"server_encoding": "LATIN1"}, "encoding", "problem"),
        ({"default_transaction_read_only": "on"}, "writes", "problem"),
    ],
)
def test_a_bad_setting_is_found_alone(change: dict[str, str], name: str, severity: str) -> None:
    """Each by its name and with its advice."""
    (bad,) = [check for check in doctor.settings(SOUND | change) if not check.ok]
    assert (bad.name, bad.severity) == (name, severity)
    assert bad.advice


@pytest.mark.parametrize("value", ["on", "local", "remote_write", "remote_apply"])
def test_every_way_to_wait_for_the_disk_will_do(value: str) -> None:
    """Only `off` answers before the commit is on the server's disk."""
    assert all(c.ok for c in doctor.settings(SOUND | {"synchronous_commit": value}))


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({}, "ok"),
        ({"replicas": 0, "synchronous": 0}, "ok"),
        ({"standby": True}, "problem"),
        ({"names": "ANY 1 (b, c)"}, "ok"),
        ({"names": "ANY 1 (b, c)", "synchronous": 0}, "problem"),
        ({"idle_slots": 1}, "warning"),
        ({"lag_bytes": 2**40}, "warning"),
    ],
)
def test_replication_is_judged(change: dict[str, object], severity: str) -> None:
    """The wrong server, a missing standby, a forgotten slot, a slow replica."""
    check = doctor.replication(**{**PRIMARY, **change})  # type: ignore[arg-type]  # a row's values
    assert check.severity == severity
    assert bool(check.advice) is not check.ok


@pytest.mark.parametrize(
    ("check", "severity"),
    [
        (doctor.room(97, 97 - 15, 3, 15), "ok"),
        (doctor.room(97, 98 - 15, 3, 15), "warning"),
        (doctor.wal(2**30, 2**30), "ok"),
        (doctor.wal(3 * 2**30, 2**30), "warning"),
        (doctor.dead_rows({"events": (9_999, 0), "sessions": (20_000, 30_000)}), "ok"),
        (doctor.dead_rows({"events": (50_000, 20_000)}), "warning"),
        (doctor.old_transactions([("process 7 of ada", 1.0)]), "ok"),
        (doctor.old_transactions([("process 7 of ada", 3_600.0)]), "warning"),
        (doctor.pooler(met=False, named=False, direct=True), "ok"),
        (doctor.pooler(met=True, named=True, direct=False), "ok"),
        (doctor.pooler(met=True, named=True, direct=True), "ok"),
        (doctor.pooler(met=False, named=True, direct=False), "warning"),
        (doctor.pooler(met=True, named=False, direct=True), "problem"),
        (doctor.direct(failed="", met=False, same=True), "ok"),
        (doctor.direct(failed="", met=True, same=True), "warning"),
        (doctor.direct(failed="", met=False, same=False), "warning"),
        (doctor.direct(failed="The server does not answer.", met=False, same=True), "warning"),
        (doctor.clock(skew_seconds=0.5, doubt_seconds=0.001), "ok"),
        (doctor.clock(skew_seconds=-2.0, doubt_seconds=0.001), "warning"),
        (doctor.clock(skew_seconds=2.0, doubt_seconds=1.5), "ok"),
    ],
)
def test_each_value_is_judged(check: Check, severity: str) -> None:
    """On both sides of its bound."""
    assert check.severity == severity
    assert bool(check.advice) is not check.ok
