"""A framework's agent in a worker that is killed in its second model call, and run again.

The child is a module that imports the framework. It is run as `python -m MODULE URL NOTES`, and has
to call `run_child` with a harness whose model calls `asked` and whose only tool calls `performed`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limpet
from tests.support import venvs


class Notes:
    """What was really done, in a file: it outlives the process."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def note(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{line}\n")

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def asked(self) -> None:
        """The model was asked. The first process dies in its second call."""
        self.note("model")
        if self.lines() == ["model", "tool", "model"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def performed(self) -> None:
        self.note("tool")


async def run_child(url: str, with_lp: Callable[[limpet.Limpet], Any]) -> None:
    """Run the worker of the child with the harness; its session is made by the first one."""
    async with limpet.open(url) as lp:
        session = await lp.get_or_create("support", "ada", "c1")
        if not await session.messages():
            await session.append("user.message", {"text": "Help!"}, actor="user:ada")
        worker = limpet.Worker(
            lp, with_lp(lp), app="support", lease_seconds=1, idle_exit=True, signals=False
        )
        while (await lp.get("support", "ada", "c1")).stop_reason != "end_turn":
            await worker.run()


def killed_and_run_again(tmp_path: Path, module: str) -> None:
    """Check that the second process repeats only the call that the first one died in."""
    url, notes = f"sqlite:///{tmp_path}/x.db", Notes(f"{tmp_path}/notes")
    command = ("-m", module, url, f"{tmp_path}/notes")
    code, said = venvs.run(Path(sys.executable), *command, timeout=120)
    assert code == -signal.SIGKILL, said
    code, said = venvs.run(Path(sys.executable), *command, timeout=120)
    assert code == 0, said
    assert notes.lines() == ["model", "tool", "model", "model"]
