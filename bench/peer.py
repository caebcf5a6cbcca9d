"""The neighbour: openai-agents' SQLiteSession, in its own environment and its own process.

The environment is made on first use from a lock with hashes, beside `.venv`, so that nothing of
the neighbour is ever importable here. One process serves a whole run: it reads a job from stdin as
a line of JSON, answers with a line of JSON, and is idle in between.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.place import ROOT
from tests.support import venvs

_LOCK: Final = ROOT / "requirements" / "bench-peer.txt"
_HOME: Final = ROOT / ".venv-bench-peer"
_PYTHON: Final = _HOME / "bin" / "python"


class PeerFailed(Exception):
    """The neighbour could not be installed, or its process failed."""


class Peer:
    """A running neighbour."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.about: dict[str, Any] = self._answer()

    def run(self, job: str, **args: Any) -> dict[str, float]:
        """Do one job and give its numbers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, "args": args}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(text) if text else {"error": "its process ended"}
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer


@contextmanager
def running() -> Iterator[Peer]:
    """Install the neighbour if need be, start it, and end it afterwards."""
    _install()
    with _started([str(_PYTHON), "-m", "bench.peer_openai_agents"], None) as peer:
        yield peer


@contextmanager
def in_environment(lock: str, module: str) -> Iterator[Peer]:
    """The same with a framework that runs on our sources: its environment is made on first use
    from requirements/<lock>.txt."""
    command = [str(venvs.python_of(lock, install=True)), "-m", module]
    with _started(command, venvs.environment()) as peer:
        yield peer


@contextmanager
def _started(command: list[str], environment: dict[str, str] | None) -> Iterator[Peer]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Peer(process)
        assert process.stdin is not None
        process.stdin.close()


def _install() -> None:
    """Rebuild the environment whenever its lock has changed."""
    stamp = _HOME / "lock.sha256"
    digest = hashlib.sha256(_LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    print("installing the neighbour into its own environment (once) …", file=sys.stderr)
    venv.create(_HOME, clear=True, with_pip=True)
    (_HOME / ".gitignore").write_text("*\n")
    command = [str(_PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["install", "--quiet", "--require-hashes", "-r", str(_LOCK.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise PeerFailed(f"pip could not install it: {done.stderr.strip()[-500:]}")
    stamp.write_text(digest)
