"""The doctor's checks of a server: durability, versions, space, replication, clocks, old locks.

Everything that verification does not read. One query gathers what a check needs; a pure function
beside it judges, so that every bad value can be tried without a server that has it. What the
user may not see is said, not guessed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from limpet.store.doctor import listed
from limpet.store.postgres.failures import UNOPENED, unopened
from limpet.store.postgres.server.cluster import (
    ClusterOptions,
    Member,
    cluster_of,
    standbys_awaited,
)
from limpet.store.postgres.server.pooler import connect_alone
from limpet.store.postgres.server.schema import SCHEMA, TIMELINE, outdated
from limpet.store.postgres.server.settings import (
    ENCODING,
    TABLES_SECONDS_MAX,
    UTF8_DATABASE,
    Connection,
    is_pooled,
    listening_url,
    where,
)
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Check, plural, size

OLDEST: Final = 14  # of the major versions that its makers still maintain
DEAD_ROWS_MIN: Final = 10_000
LAG_BYTES_MAX: Final = 256 * 2**20
TRANSACTION_SECONDS_MAX: Final = 30.0
AHEAD_SECONDS_MAX: Final = 60
CLOCK_SECONDS_MAX: Final = 1.0
_ROUNDS: Final = 5

_HIDDEN: Final = "not shown to this user"
_UNHEARD: Final = (
    "followers poll, and miss partial events of other processes, since the URL has no direct=…"
)
_SHOWING: Final = "To see it: GRANT pg_monitor to the user that the URL names."

Asked = Callable[[Connection], Awaitable[Check]]


async def examine(conn: Connection, each: int, url: str) -> tuple[Check, ...]:
    """All checks of the server and of our schema on it; `each` store takes so many connections."""
    rows = {row["name"]: row["setting"] for row in await conn.fetch(SQL["server_settings"])}
    checks = [*settings(rows)]
    # The others below answer wrongly, rather than not at all, to those who may not ask them.
    asked: list[Asked] = [_schema, _tables, _dead_rows, partial(_pooler, url=url)]
    if is_pooled(url) and (server := listening_url(url)):
        asked.append(partial(_direct, url=server))
    asked += [partial(_room, each=each), _clock, _ahead]
    for ask in asked:
        checks.append(await ask(conn))
    if (cluster := cluster_of(url)) is not None:
        members = await cluster.members()
        slots = await conn.fetchval(SQL["lost_slots"])
        checks += [
            quorum(cluster.options, [each.names for each in members if each is not None]),
            servers(cluster.options, members, slots),
        ]
    sees = await conn.fetchval(SQL["sees_monitoring"])
    for name, ask in _MONITORED:
        checks.append(await ask(conn) if sees else _hidden(name))
    return tuple(checks)


async def probe(conn: Connection) -> tuple[Check, ...]:
    """The checks that decide whether the database can be worked with."""
    return await _schema(conn), await _clock(conn)


def _hidden(name: str) -> Check:
    return Check(name, _HIDDEN, "skipped", _SHOWING)


# --- settings: values in, checks out -------------------------------------------------------------


def settings(values: Mapping[str, str]) -> tuple[Check, ...]:
    """The checks that need nothing but the server's settings."""
    return (
        _version(values["server_version"], int(values["server_version_num"]) // 10_000),
        _encoding(values["server_encoding"]),
        _writing(values["default_transaction_read_only"]),
        _switch("fsync", values["fsync"], "a power cut can destroy the whole database"),
        _committing(values["synchronous_commit"]),
        _switch(
            "full_page_writes",
            values["full_page_writes"],
            "a page that a power cut tears in two cannot be repaired",
        ),
        _wal_level(values["wal_level"]),
        _autovacuum(values["autovacuum"]),
    )


def _version(text: str, major: int) -> Check:
    if major >= OLDEST:
        return Check("server", f"PostgreSQL {text}")
    advice = f"Upgrade the server: versions before {OLDEST} are no longer maintained."
    return Check("server", f"PostgreSQL {text}", "warning", advice)


def _encoding(value: str) -> Check:
    if value == ENCODING:
        return Check("encoding", value)
    advice = f"Make another database ({UTF8_DATABASE}), and copy this one into it with pg_dump."
    text = f"{value}: keys and labels with letters that it lacks are refused"
    return Check("encoding", text, "problem", advice)


def _writing(value: str) -> Check:
    name = "default_transaction_read_only"
    if value == "off":
        return Check("writes", "allowed")
    advice = (
        "Turn it off where it was turned on: ALTER ROLE name (or ALTER DATABASE name, or ALTER "
        f"SYSTEM) SET {name} = off; or take it out of the URL."
    )
    return Check("writes", f"refused: {name} is {value}", "problem", advice)


def _switch(name: str, value: str, danger: str) -> Check:
    if value == "on":
        return Check(name, value)
    advice = f"Run: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf(). Then take a backup."
    return Check(name, f"{value}: {danger}", "problem", advice)


def _committing(value: str) -> Check:
    name = "synchronous_commit"
    if value != "off":
        return Check(name, value)
    advice = f"Only the URL can ask for that: take it out of the URL ({name}=off)."
    text = "off: acknowledged commits are lost if the server crashes"
    return Check(name, text, "problem", advice)


def _wal_level(value: str) -> Check:
    if value != "minimal":
        return Check("wal_level", value)
    advice = "Run: ALTER SYSTEM SET wal_level = replica, then restart the server."
    text = "minimal: neither replicas nor recovery to a point in time are possible"
    return Check("wal_level", text, "warning", advice)


def _autovacuum(value: str) -> Check:
    if value == "on":
        return Check("autovacuum", value)
    advice = "Run: ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()."
    return Check("autovacuum", f"{value}: dead rows pile up and slow every read", "warning", advice)


# --- our schema ----------------------------------------------------------------------------------


async def _schema(conn: Connection) -> Check:
    number = int(bytes(await conn.fetchval(SQL["schema_number"])))
    if number == SCHEMA:
        if await outdated(conn) != TIMELINE:
            return Check("schema", f"{number}, the one of this release")
        advice = (
            "Open the store once as a role with CREATE on the database: until then a watcher may "
            "miss as many new events as the server lost."
        )
        return Check("schema", "from before the server was put back in time", "warning", advice)
    advice = "A newer release migrated the database while this one was running. Upgrade limpet."
    return Check("schema", f"{number}, not {SCHEMA}", "problem", advice)


async def _tables(conn: Connection) -> Check:
    """Reads whole tables, as verification does, and so may take longer than a call may."""
    broken = [
        f"index {row['name']} is not valid" for row in await conn.fetch(SQL["invalid_indexes"])
    ]
    async with conn.transaction(readonly=True):
        await conn.execute(SQL["statement_timeout"], f"{TABLES_SECONDS_MAX}s")
        if labels := await conn.fetchval(SQL["label_differences"], timeout=TABLES_SECONDS_MAX):
            broken.append(f"{plural(labels, 'label')} not listed as the heads have them")
        if orphans := await conn.fetchval(SQL["orphan_rows"], timeout=TABLES_SECONDS_MAX):
            broken.append(f"{plural(orphans, 'row')} of no living session")
    if not broken:
        return Check("tables", "every index is valid, no row is left over")
    advice = (
        "Something else than Limpet wrote to the schema, or a DROP was cut short. REINDEX SCHEMA "
        "limpet repairs indexes; restore the rest from a backup."
    )
    return Check("tables", listed(broken), "problem", advice)


async def _dead_rows(conn: Connection) -> Check:
    tables = await conn.fetch(SQL["dead_rows"])
    return dead_rows({row["name"]: (row["dead"], row["live"]) for row in tables})


def dead_rows(tables: Mapping[str, tuple[int, int]]) -> Check:
    """Dead and living rows of each table: more dead than alive slows every read."""
    total = sum(dead for dead, _ in tables.values())
    bloated = [n for n, (dead, live) in tables.items() if dead >= max(DEAD_ROWS_MIN, live)]
    if not bloated:
        return Check("dead rows", f"{total:,} wait for vacuum")
    names = ", ".join(f"limpet.{name}" for name in bloated)
    advice = (
        f"Run: VACUUM (ANALYZE) {names}. If they come back, let autovacuum come sooner "
        "(autovacuum_vacuum_scale_factor) and look for old transactions below."
    )
    return Check("dead rows", f"{total:,}, most of them in {names}", "warning", advice)


# --- the server around it ------------------------------------------------------------------------


async def _pooler(conn: Connection, *, url: str) -> Check:
    direct = listening_url(url) is not None
    return pooler(met=await _is_met(conn), named=is_pooled(url), direct=direct)


async def _is_met(conn: Connection) -> bool:
    """A pooler gives its clients process numbers of its own, to be cancelled by."""
    return bool(conn.get_server_pid() != await conn.fetchval(SQL["server_process"]))


def pooler(*, met: bool, named: bool, direct: bool) -> Check:
    """Check whether a pooler is in the way, and whether the URL says so."""
    if met and named:
        text = "in the way, and used in transaction mode: "
        text += "notifications and partial events go past it" if direct else _UNHEARD
        return Check("pooler", text)
    if met:
        advice = "Add pooler=transaction to the URL, or name the server itself in it."
        text = "in the way, and not named in the URL: settings get lost, and durability with them"
        return Check("pooler", text, "problem", advice)
    if named:
        advice = "Take pooler=transaction out of the URL: calls cost fewer round trips then."
        return Check("pooler", "named in the URL, and not in the way", "warning", advice)
    return Check("pooler", "none in the way")


async def _direct(conn: Connection, *, url: str) -> Check:
    """A lock that is taken there is not free here, if it is the same database."""
    try:
        there = await connect_alone(url, {})  # a pooler would refuse settings
    except UNOPENED as error:
        return direct(failed=str(unopened(error, where(url))), met=False, same=True)
    try:
        number = secrets.randbits(62)
        async with there.transaction():
            await there.execute(SQL["take_lock"], number)
            same = not await conn.fetchval(SQL["try_lock"], number)
        return direct(failed="", met=await _is_met(there), same=same)
    finally:
        await there.close()


def direct(*, failed: str, met: bool, same: bool) -> Check:
    """Check that notifications and partial events can go past the pooler."""
    name = "direct"
    if failed:
        advice = f"{failed} Until then followers poll, and miss partial events of other processes."
        return Check(name, "the server cannot be reached past the pooler", "warning", advice)
    if not same:
        advice = "Name the database behind the pooler, on its primary: direct=… in the URL."
        return Check(name, "names another database, where nobody notifies", "warning", advice)
    if met:
        advice = "Name the server itself, or a pooler in session mode: direct=… in the URL."
        return Check(name, "another pooler is in the way there", "warning", advice)
    return Check(name, "the same database, past the pooler")


async def _room(conn: Connection, *, each: int) -> Check:
    return room(each=each, **dict(await conn.fetchrow(SQL["connection_room"])))


def room(most: int, used: int, ours: int, each: int) -> Check:
    """Check that one more process of ours would find connections."""
    text = f"{used} of {most} in use, {ours} by Limpet; a process takes up to {each}"
    if most - used >= each:
        return Check("connections", text)
    advice = (
        "Raise max_connections and restart the server, run fewer processes, or give each fewer: "
        "limpet.open(url, connections=…)."
    )
    return Check("connections", text, "warning", advice)


# --- a cluster -----------------------------------------------------------------------------------


def quorum(options: ClusterOptions, names: Sequence[str]) -> Check:
    """Check that every server, once it is the primary, waits for the quorum of the URL."""
    short = [each for each in names if standbys_awaited(each) < options.standbys]
    text = f"a commit is on {options.write_quorum} of {options.replicas} servers"
    if not short:
        return Check("quorum", f"{text} before it is acknowledged")
    advice = f"Run on each: ALTER SYSTEM SET {options.setting}; SELECT pg_reload_conf()."
    problem = f"{plural(len(short), 'server')} would acknowledge commits that fewer have"
    return Check("quorum", problem, "problem", advice)


def servers(
    options: ClusterOptions, members: Sequence[Member | None], lost_slots: int = 0
) -> Check:
    """Check that all servers of a cluster answer, and follow one primary on one timeline."""
    heard = [member for member in members if member is not None]
    newest = max([member.timeline for member in heard], default=0)
    old = [each for each in heard if not each.standby and each.timeline < newest]
    leading = [each for each in heard if not each.standby and each.timeline == newest]
    text = f"{len(heard)} of {plural(len(members), 'server')} answer, timeline {newest}"
    if old:
        where_ = ", ".join([f"host {each.place + 1}" for each in old])
        advice = "Stop it, run pg_rewind against the primary, and start it as a standby."
        problem = f"{text}; {where_} still takes itself for the primary, on an older timeline"
        return Check("cluster", problem, "problem", advice)
    if len(leading) != 1:
        advice = "Promote one standby, and have the others follow it (docs/cluster.md)."
        return Check("cluster", f"{text}, {len(leading)} of them primaries", "problem", advice)
    lag = max([leading[0].lsn - each.lsn for each in heard if each.standby], default=0)
    text += f", replicas {size(max(0, lag))} behind at most"
    if len(heard) < len(members):
        gone = [f"host {place + 1}" for place, each in enumerate(members) if each is None]
        back = f"Bring {', '.join(gone)} back"
        if options.replicas - len(gone) < options.write_quorum:
            problem = f"{text}: fewer than the quorum of {options.write_quorum}"
            return Check("cluster", problem, "problem", f"{back}: no commit is acknowledged.")
        return Check("cluster", text, "warning", f"{back}: one more loss may end the quorum.")
    if lost_slots:
        advice = "Make the replica again by pg_basebackup, and drop the slot it had."
        problem = f"{text}; {plural(lost_slots, 'slot')} lost the log that its replica needs"
        return Check("cluster", problem, "warning", advice)
    if lag > LAG_BYTES_MAX:
        advice = "Look at the replica's disk and network; reads from it wait that much longer."
        return Check("cluster", text, "warning", advice)
    return Check("cluster", text)


async def _replication(conn: Connection) -> Check:
    names = await conn.fetchval(SQL["synchronous_standbys"])
    return replication(names=names, **dict(await conn.fetchrow(SQL["replicas"])))


def replication(
    *, names: str, standby: bool, replicas: int, synchronous: int, lag_bytes: int, idle_slots: int
) -> Check:
    """Check that this is the server to write to, and that its replicas follow."""
    name = "replication"
    if standby:
        advice = "Name the primary in the URL, or add target_session_attrs=read-write to it."
        return Check(name, "this is a standby, which cannot be written", "problem", advice)
    text = f"{plural(replicas, 'replica')}, {synchronous} synchronous, "
    text += f"{size(lag_bytes)} behind at most"
    if names and not synchronous:
        advice = "Bring a standby of synchronous_standby_names back, or take it from the setting."
        return Check(name, f"{text}: commits wait for a standby", "problem", advice)
    if idle_slots:
        advice = "Reconnect its replica, or drop the slot: SELECT pg_drop_replication_slot(name)."
        return Check(
            name, f"{text}; WAL is kept for {plural(idle_slots, 'unused slot')}", "warning", advice
        )
    if lag_bytes > LAG_BYTES_MAX:
        advice = "Look at the replica's disk and network; reads from it are that much older."
        return Check(name, text, "warning", advice)
    return Check(name, text if replicas else "no replica")


async def _wal(conn: Connection) -> Check:
    return wal(**dict(await conn.fetchrow(SQL["wal_size"])))


def wal(held: int, most: int) -> Check:
    text = f"{size(held)} on disk, max_wal_size is {size(most)}"
    if held <= 2 * most:
        return Check("wal size", text)
    advice = (
        "Something keeps it: a replication slot nobody reads (pg_replication_slots) or an archive "
        "command that fails (pg_stat_archiver)."
    )
    return Check("wal size", text, "warning", advice)


async def _old_transactions(conn: Connection) -> Check:
    rows = [
        (row["who"], row["seconds"] or 0.0) for row in await conn.fetch(SQL["open_transactions"])
    ]
    return old_transactions(rows)


def old_transactions(open_ones: list[tuple[str, float]]) -> Check:
    """Transactions that hold the feed's horizon back, longest first."""
    old = [f"{who}, {age:,.0f} s" for who, age in open_ones if age >= TRANSACTION_SECONDS_MAX]
    if not old:
        return Check("old transactions", f"none holds the feed back, {len(open_ones)} open")
    advice = (
        "Followers see nothing newer until they end: SELECT pg_terminate_backend(process), or "
        "ROLLBACK PREPARED 'name'; idle_in_transaction_session_timeout prevents them."
    )
    return Check("old transactions", listed(old), "warning", advice)


async def _clock(conn: Connection) -> Check:
    """The server's clock against ours, read at the middle of the quickest of some round trips."""
    best = (float("inf"), 0.0)
    for _ in range(_ROUNDS):
        before = time.time()
        server = await conn.fetchval(SQL["server_time"])
        after = time.time()
        best = min(best, ((after - before) / 2, server - (before + after) / 2))
    return clock(skew_seconds=best[1], doubt_seconds=best[0])


def clock(*, skew_seconds: float, doubt_seconds: float) -> Check:
    """A skew counts only as far as it is certain."""
    away = abs(skew_seconds)
    text = f"the server is {away * 1_000:.1f} ms {'ahead' if skew_seconds > 0 else 'behind'} "
    text += f"(± {doubt_seconds * 1_000:.1f} ms)"
    if away - doubt_seconds <= CLOCK_SECONDS_MAX:
        return Check("clock", text)
    advice = (
        "Events are dated by the server, timers that programs set by their own clock: keep both "
        "machines in step with NTP (timedatectl tells; chrony, systemd-timesyncd)."
    )
    return Check("clock", text, "warning", advice)


async def _ahead(conn: Connection) -> Check:
    return ahead(await conn.fetchval(SQL["sessions_ahead"], AHEAD_SECONDS_MAX * 1_000_000))


def ahead(count: int) -> Check:
    """Sessions dated in the future: their input is due only then."""
    if not count:
        return Check("dates", "no session is ahead of the clock")
    advice = (
        "The server's clock was ahead and was set back. What came in since is due when the clock "
        "has caught up; claim such sessions by acquire_lock if that is too late."
    )
    return Check("dates", f"{plural(count, 'session')} ahead of the clock", "warning", advice)


_MONITORED: Final[tuple[tuple[str, Asked], ...]] = (
    ("replication", _replication),
    ("wal size", _wal),
    ("old transactions", _old_transactions),
)
