"""The neighbour: openai-agents' SQLiteSession, in its own environment and its own process.

The environment is made on first use from a lock with hashes, beside `.venv`, so that nothing of
the neighbour is ever importable here. One process serves a whole run: it reads a job from stdin as
a line of JSON, answers with a line of JSON, and is idle in between.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.place import ROOT
from tests.support import venvs


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
    command = [str(_python_of("bench-peer")), "-m", "bench.peer_openai_agents"]
    with _started(command, None) as peer:
        yield peer


@contextmanager
def in_environment(lock: str, module: str) -> Iterator[Peer]:
    """The same with a framework that runs on our sources: its environment is made on first use
    from requirements/<lock>.txt."""
    command = [str(_python_of(lock)), "-m", module]
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


def _python_of(lock: str) -> Path:
    """The interpreter of an environment, which is made again whenever its lock has changed."""
    try:
        return venvs.python_of(lock, install=True)
    except venvs.NotInstalled as error:
        raise PeerFailed(str(error)) from error
