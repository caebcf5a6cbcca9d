"""Two processes that write to one store at the same time.

The child is a module that imports a framework: `python -m MODULE NAME ARGUMENTS…`. It calls
`at_once` when it is ready to write, and ends by itself.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.support import venvs

NAMES: Final = ("one", "two")


def race(module: str, *arguments: str) -> None:
    """Run the module twice, side by side; both have to end well."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", module, name, *arguments],
            cwd=venvs.ROOT,
            env=venvs.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in NAMES
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:  # both before either is waited for
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _, said = child.communicate(timeout=120)
        assert child.returncode == 0, said[-4_000:]


def at_once() -> None:
    """Wait in the child until the other one is ready, too."""
    print("ready", flush=True)
    sys.stdin.readline()
