"""`limpet serve` in a process of its own, which a test may kill and start again on its port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support.venvs import ROOT, environment

# The tests of other packages run in their environment; the server runs in ours.
PYTHON = os.environ.get("LIMPET_SERVER_PYTHON", sys.executable)
HARNESS = "tests.support.managed_harness:converse"


class ServerProcess:
    """A server on a SQLite file."""

    def __init__(
        self, directory: Path, *, harness: bool = True, options: Sequence[str] = ()
    ) -> None:
        self._file, self._harness = directory / "managed.db", harness
        self._options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [PYTHON, "-m", "limpet.cli", "serve", str(self._file), "--dev"]
        command += ["--port", str(self.port), *self._options]
        if self._harness:
            command += ["--harness", HARNESS]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=log, stderr=log
            )
        until = time.monotonic() + 120  # other work may keep the machine busy
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}/v1/models", timeout=5)
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                assert self._process.poll() is None, self.said()
                time.sleep(0.05)
        raise AssertionError(self.said())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(timeout=30)

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]
