"""Connections: the pool, and the schema brought forward."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import asyncpg

from limpet.errors import (
    InvalidInput,
    StoreError,
    StoreForeign,
    StoreNewer,
    StoreOlder,
    StoreUnopened,
)
from limpet.model.values import described
from limpet.store.logs import POSTGRES
from limpet.store.postgres.address import check_url, options, where
from limpet.store.postgres.encoding import ENCODING, check_encoding
from limpet.store.postgres.failures import FAILURES, UNOPENED, translate, unopened
from limpet.store.postgres.lending import Pooled, reset

SCHEMA: Final = 4
FUNCTIONS: Final = 1  # raised with every release that changes functions.sql
VERSION_MIN: Final = 13  # of the server: the first with xid8, by which the feed is ordered
CONNECTIONS: Final = 15  # of one store, unless it is told otherwise
CONNECTIONS_MIN: Final = 5
CONNECTIONS_MAX: Final = 1_000
CONNECT_SECONDS_MAX: Final = 10.0
STATEMENT_SECONDS_MAX: Final = 30.0
TABLES_SECONDS_MAX: Final = 3_600  # for what reads whole tables: verification, the doctor
LOCK_SECONDS_MAX: Final = 10.0
LANE_LOCK_SECONDS_MAX: Final = 3.0  # others' commits wait behind a batch that waits
# A server that restarts is waited for, so long; asked again, so often.
LOST_SECONDS_MAX: Final = 30.0
LOST_PAUSE_SECONDS: Final = 0.05
TIMELINE: Final = {"timeline"}  # the least that can be behind
# One process at a time brings the schema forward; the number only has to be ours.
_MIGRATING: Final = 0x4C494D50

_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
_META: Final = (
    "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = 'limpet' AND c.relname = 'meta'"
)
# Told apart from every other server, also from one that a dump of this one was restored on, and
# from this one before it was put back to an earlier time or a standby took its place.
# (Of a standby that was just promoted the control file knows the old timeline for a while.)
_HOME: Final = (
    "SELECT system_identifier || '/' || CASE WHEN pg_is_in_recovery() THEN timeline_id ELSE "
    "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END "
    "FROM pg_control_system(), pg_control_checkpoint()"
)
_STORED: Final = "SELECT value FROM limpet.meta WHERE name = $1"
_KEEP: Final = "INSERT INTO limpet.meta VALUES ($1, $2) ON CONFLICT DO NOTHING"
_MARK: Final = (
    "INSERT INTO limpet.meta VALUES ($1, $2) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_OFFSET: Final = (
    "SELECT greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20, "
    "(SELECT xid::text::bigint + 1 FROM limpet.events ORDER BY xid DESC LIMIT 1)) "
    "- pg_current_xact_id()::text::bigint"
)
_EPOCH: Final = (
    "CREATE OR REPLACE FUNCTION limpet.epoch() RETURNS bigint "
    "LANGUAGE sql IMMUTABLE AS $$ SELECT {}::bigint $$"
)
_OCCUPIED: Final = (
    "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = 'limpet'"
)
_BEHIND: Final = (
    "its functions are of another release, or it was moved here from another server, and this "
    "command changes nothing; start your application with this release first"
)

# What a lane sends are look-ups by key: planned once, and never as a walk through a table, which
# looks cheap while the table is small and would be kept when it is not.
_LOOKING_UP: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

Pool = Any  # asyncpg is not typed
Connection = Any


class Line:
    """One connection of its own, made when it is needed and made again when it broke."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.place = where(url)
        self._conn: Connection = None

    async def connection(self) -> Connection:
        """The connection. Raises what asyncpg raises."""
        if self._conn is None or self._conn.is_closed():
            conn = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS_MAX,
                command_timeout=STATEMENT_SECONDS_MAX,
                server_settings=_settings(LANE_LOCK_SECONDS_MAX) | _LOOKING_UP,
            )
            try:
                await be_durable(conn, self._url)
                await notice_move(conn, self._url)
            except BaseException:
                conn.terminate()
                raise
            self._conn = conn
        return self._conn

    def drop(self) -> None:
        """Leave a connection that broke, or whose state is unknown."""
        if self._conn is not None:
            self._conn.terminate()
            self._conn = None

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()


def shares(connections: int) -> tuple[int, int]:
    """How many are for reading, and how many for what may wait for a row: claims, locks, deletions.

    Two more are the committer's lanes', one is for hints. Raises InvalidInput.
    """
    if type(connections) is not int or not CONNECTIONS_MIN <= connections <= CONNECTIONS_MAX:
        raise InvalidInput(
            f"a store has {CONNECTIONS_MIN} to {CONNECTIONS_MAX:,} connections, not "
            f"{described(connections)}. Leave connections out for {CONNECTIONS}."
        )
    rest = connections - 3
    waiting = max(1, rest // 3)
    return rest - waiting, waiting


async def connect(url: str, *, size: int, looking: bool = False) -> Pool:
    """A pool on a database whose schema is ours and current, or, `looking`, is left as it is.

    Raises StoreError.
    """
    pool = await open_pool(url, size=size)
    try:
        async with pool.acquire() as conn:
            _check_version(conn, where(url))
            if not looking:
                check_encoding(conn, where(url))
                await _catch_up(conn, url)
    except BaseException as error:
        await pool.close()
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise unopened(error, where(url)) from error
        if isinstance(error, FAILURES):
            raise translate(error, where(url), "change") from error
        raise
    return pool


async def notice_move(conn: Connection, url: str) -> None:
    """Raise the epoch if a standby took the server's place, or it was put back in time."""
    with suppress(StoreError):  # a newer release may have been here; that one sees to it
        if await behind(conn) == TIMELINE:
            await _catch_up(conn, url)


async def _catch_up(conn: Connection, url: str) -> None:
    """See that the database is what this release works on, here. Raises StoreError.

    A timeline alone may stay behind where this role or this server cannot write it: the doctor
    tells, and nobody is kept from working.
    """
    found = await behind(conn)
    if found:
        try:
            await _prepare(url)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError):
            if found != TIMELINE:
                raise


async def _prepare(url: str) -> None:
    """Bring the schema forward, for as long as that takes: no limit of time on this connection."""
    conn = await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX, server_settings=_settings(0))
    try:
        await conn.execute("SET statement_timeout = 0")
        await bring_forward(conn, where(url))
    finally:
        await conn.close()


async def open_pool(url: str, *, size: int) -> Pool:
    """Connections, one of them made now. Raises InvalidURL, StoreBusy, StoreUnopened."""
    check_url(url)
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=0,  # no floor: nobody has to knock on the door of a server that is away
            max_size=size,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=STATEMENT_SECONDS_MAX,
            connection_class=Pooled,
            init=lambda conn: be_durable(conn, url),
            reset=lambda conn: reset(conn, lambda: be_durable(conn, url)),
            server_settings=_settings(LOCK_SECONDS_MAX),
        )
        async with pool.acquire():
            return pool
    except UNOPENED as error:
        raise unopened(error, where(url)) from error


def _check_version(conn: Connection, place: str) -> None:
    """Raise StoreUnopened for a server that lacks what our SQL is written in."""
    found = conn.get_server_version()
    if found.major < VERSION_MIN:
        raise StoreUnopened(
            place,
            f"it is PostgreSQL {found.major}.{found.minor}, and Limpet needs {VERSION_MIN} or "
            "newer. Upgrade the server, or name another in the URL",
        )


def _settings(lock_seconds: float) -> dict[str, str]:
    return {
        "application_name": "limpet",
        "statement_timeout": str(int(STATEMENT_SECONDS_MAX * 1_000)),
        "lock_timeout": str(int(lock_seconds * 1_000)),
        "search_path": "pg_catalog",
        "client_encoding": ENCODING,  # whatever the URL says: others lack letters
        # Whatever the role or the database defaults to: after a lock the newest rows are seen.
        "default_transaction_isolation": "read committed",
    }


async def be_durable(conn: Connection, url: str) -> None:
    """Whatever the role or the database defaults to, what is acknowledged is on disk; unless the
    URL itself asks for less."""
    if "synchronous_commit" not in options(url):
        await conn.execute(_DURABLE)


async def refuse_empty(url: str, *, ready: bool = False) -> None:
    """Raise StoreError where opening would make or change the schema: for doors that only look.

    With `ready` also where it would do no more than bring functions of ours up to date.
    """
    check_url(url)
    try:
        conn = await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX)
        try:
            _check_version(conn, where(url))
            found = await _schema(conn)
            late = ready and found == SCHEMA and await behind(conn) not in (set(), TIMELINE)
        finally:
            await conn.close()
    except UNOPENED as error:
        raise unopened(error, where(url)) from error
    if found == 0:
        raise StoreUnopened(where(url), "the database has no schema limpet; check the URL")
    if 0 < found < SCHEMA:
        raise StoreOlder(where(url), found, SCHEMA)
    if late:
        raise StoreUnopened(where(url), _BEHIND)


async def bring_forward(conn: Connection, place: str) -> None:
    """Make the database what this release works on, under a lock that all processes share."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATING)
        found = await _schema(conn)
        if found > SCHEMA:
            raise StoreNewer(place, found, SCHEMA)
        if found < 0:
            raise StoreForeign(place)
        if not await behind(conn):
            return  # another process was faster, and may be using it already
        await conn.execute("CREATE SCHEMA IF NOT EXISTS limpet")
        for number in range(found + 1, SCHEMA + 1):
            await conn.execute(_sql(f"{number:04}.sql"))
        moved = await _move_house(conn)
        marks = _marks(await conn.fetchval(_HOME))
        if _newer(await conn.fetchval(_STORED, "functions")):
            del marks["functions"]
        else:
            await conn.execute(_sql("functions.sql"))
        for name, value in marks.items():
            await conn.execute(_MARK, name, value)
        await conn.execute(_KEEP, "secret", os.urandom(32))
        secret = await conn.fetchval(_STORED, "secret")
        await conn.execute(_KEEP, "secret_crc", secret_crc(secret))
        await conn.execute("SELECT limpet.begin_ledger()")
    _tell_forward(place, found, moved=moved)


def _tell_forward(place: str, found: int, *, moved: bool) -> None:
    """Only what was committed, and only once: other processes had nothing left to do."""
    if found == 0:
        POSTGRES.info("store created: store=%s schema=%d", place, SCHEMA)
    elif found < SCHEMA:
        POSTGRES.info("schema migrated: store=%s from=%d to=%d", place, found, SCHEMA)
    elif not moved:
        POSTGRES.info("functions replaced: store=%s release=%d", place, FUNCTIONS)
    if moved:
        POSTGRES.warning("store moved: store=%s", place)


async def behind(conn: Connection) -> set[str]:
    """What here is not of this release, or of another home; only its timeline, if no more."""
    if await _schema(conn) != SCHEMA:
        return {"schema"}
    here = _marks(await conn.fetchval(_HOME))
    rows = await conn.fetch(
        "SELECT name, value FROM limpet.meta WHERE name = ANY ($1::text[])", list(here)
    )
    found = {name: bytes(value) for name, value in rows}
    differ = {name for name in found | here if found.get(name) != here.get(name)}
    if _newer(found.get("functions")):
        differ -= {"functions"}  # they serve older releases too, and must not be put back
    if differ == {"home"} and _server(found.get("home", b"")) == _server(here["home"]):
        return TIMELINE
    return differ


def secret_crc(secret: bytes) -> bytes:
    """What is kept to see that the secret, by which erased keys are known, is the same."""
    return str(crc32(secret)).encode()


def _newer(functions: bytes | None) -> bool:
    """Whether stored functions are of a later release than this."""
    number = (functions or b"").partition(b" ")[0]
    return number.isdigit() and int(number) > FUNCTIONS


def _server(home: bytes) -> bytes:
    return home.partition(b"/")[0]


def _marks(home: str) -> dict[str, bytes]:
    digest = hashlib.sha256(_sql("functions.sql").encode()).hexdigest()
    found = {"schema": f"{SCHEMA}", "functions": f"{FUNCTIONS} {digest}", "home": home}
    return {name: text.encode() for name, text in found.items()}


async def _move_house(conn: Connection) -> bool:
    """Raise the epoch if transactions here begin at numbers that were given before.

    From then on their places in the feed begin at the clock's milliseconds, so that a backup that
    is put back twice does not give the same ones twice. Nobody may be writing meanwhile: what is
    under way has its place from before. True if it was raised.
    """
    home = await conn.fetchval(_STORED, "home")
    if home is None or bytes(home).decode() == await conn.fetchval(_HOME):
        return False
    await conn.execute("LOCK TABLE limpet.events IN SHARE MODE")
    await conn.execute(_EPOCH.format(await conn.fetchval(_OFFSET)))
    return True


async def _schema(conn: Connection) -> int:
    """The schema number, 0 where there is none, -1 where somebody else uses the name."""
    # Read from the catalogue's tables: to_regnamespace remembers, over the wait for a lock, that
    # a name was not there.
    if not await conn.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'limpet'"):
        return 0
    if not await conn.fetchval(_META):
        # Empty: somebody made it for us. Anything in it is somebody else's.
        return -1 if await conn.fetchval(_OCCUPIED) else 0
    try:
        found = await conn.fetchval(_STORED, "schema")
    except asyncpg.UndefinedColumnError:
        return -1
    number = b"" if found is None else bytes(found)
    return int(number) if number.isdigit() else -1


def _sql(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
