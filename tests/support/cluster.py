"""Servers that replicate, for tests: one primary and standbys that stream from it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import Server

PROMOTE = "SELECT pg_promote(true, 30)"


class Primary(Server):
    """A server whose data are copied often: they are a third of what they come as, and segments of
    its log, with which a copy begins, are as short as they can be."""

    def _make(self) -> None:
        arguments = ("-U", "limpet", "-A", "trust", "-E", "UTF8", "-N", "--wal-segsize=1")
        self._run("initdb", "-D", self.data, *arguments)

    def drop_templates(self) -> None:
        """Drop the databases that nobody connects to. No standby is there to wait for."""
        statements = (
            "SET synchronous_commit = local",
            "UPDATE pg_database SET datistemplate = false",
            "DROP DATABASE template0",
            "DROP DATABASE template1",
        )
        arguments = [part for each in statements for part in ("-c", each)]
        self._run("psql", "-h", self.folder, "-U", "limpet", "-q", *arguments, "postgres")


class Standby(Server):
    """A server whose data are a copy of another's."""

    def _make(self) -> None:
        pass


class Cluster:
    """A primary and its standbys; every server can become the primary."""

    def __init__(self, many: int = 3, *, awaited: int = 1, **settings: object) -> None:
        names = f"ANY {awaited} (*)" if awaited else ""
        self.promoted = 0.0  # when a standby was promoted last and the others followed it
        self._settings = {"wal_level": "replica", "synchronous_standby_names": names}
        # A crash of the machine is not what these tests are about: servers are killed.
        self._settings |= {"fsync": "off", "hot_standby_feedback": "on", "wal_keep_size": "256MB"}
        # A standby whose primary was away comes back at once: PostgreSQL waits five seconds.
        self._settings |= {"wal_retrieve_retry_interval": "100ms"}
        self._settings |= {"max_connections": 60, "shared_buffers": "16MB", **settings}
        primary = Primary(**self._settings)
        self.primary: Server = primary
        self.servers = [self.primary]
        primary.start()
        primary.drop_templates()
        for _ in range(many - 1):
            self.servers.append(Standby(**self._settings))
            self.join(self.servers[-1])

    @property
    def standbys(self) -> list[Server]:
        return [each for each in self.servers if each is not self.primary]

    def url(self, options: str = "write_quorum=2") -> str:
        """The URL of all servers, in the order in which they were made."""
        folders = ",".join([str(each.folder) for each in self.servers])
        more = f"replicas={len(self.servers)}&{options}"
        return f"postgresql://limpet@/postgres?host={folders}&{more}"

    def join(self, server: Server) -> None:
        """Start a server as a standby of the primary, with a copy of its data."""
        shutil.rmtree(server.data, ignore_errors=True)
        source: Path = self.primary.folder
        arguments = ("-h", source, "-U", "limpet", "-X", "stream", "-c", "fast", "-N")
        server._run("pg_basebackup", "-D", server.data, *arguments)
        self.follow(server)

    def follow(self, server: Server, through: Path | None = None) -> None:
        """Start a server on its own data as a standby of the primary, perhaps through a relay."""
        (server.data / "standby.signal").touch()
        if server._as:
            os.chown(server.data / "standby.signal", server._as["user"], server._as["group"])
        source = f"host={through or self.primary.folder} user=limpet"
        source += f" application_name=s{id(server)}"
        server.start(primary_conninfo=source, recovery_target_timeline="latest")

    def sql(self, server: Server, statement: str) -> None:
        """Run a statement on one of the servers, past the store."""
        server._run("psql", "-h", server.folder, "-U", "limpet", "-qc", statement, "postgres")

    def kill(self, server: Server) -> None:
        server.stop(signal.SIGQUIT)

    def fail_over(self) -> Server:
        """Kill the primary and promote a standby, which the others follow; the old primary."""
        old = self.primary
        self.kill(old)
        self.promote()
        return old

    def promote(self) -> None:
        """Promote the standby that has received the most; the others follow it. The primary is left
        as it is."""
        running = [each for each in self.standbys if each._process is not None]
        self.primary = max(running, key=self.received)
        self.sql(self.primary, PROMOTE)
        for other in running:
            if other is not self.primary:
                other.stop()
                self.follow(other)
        self.promoted = time.perf_counter()

    def received(self, server: Server) -> int:
        """How far a standby has the log, on disk."""
        asked = "SELECT pg_wal_lsn_diff(coalesce(pg_last_wal_receive_lsn(), '0/0'), '0/0')"
        done = server._try("psql", "-h", server.folder, "-U", "limpet", "-Atc", asked, "postgres")
        return int(done.stdout or 0)

    def remove(self) -> None:
        for server in self.servers:
            server.stop(signal.SIGQUIT)
            server.remove()


@contextmanager
def replicating(many: int = 3, *, awaited: int = 1, **settings: object) -> Iterator[Cluster]:
    cluster = Cluster(many, awaited=awaited, **settings)
    try:
        yield cluster
    finally:
        cluster.remove()
