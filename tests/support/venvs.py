"""Environments for packages that do not go together with ours, made from a lock.

Each has a file in requirements/ with hashes, and lies beside .venv. The package under test is not
installed there: it is imported from src. They are large, so `make frameworks` makes them (as
`make adapters` and .ci/run do), and `make test` runs their tests wherever they are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FRAMEWORKS: Final = (
    "adk",
    "agent-framework",
    "agent-libraries",
    "analytics",
    "claude-agent-sdk",
    "anthropic-0",
    "anthropic-1",
    "bench-dbos",
    "bench-peer",
    "browser",
    "docs",
    "langgraph",
    "mcp",
    "openai-agents",
    "providers",
    "pyright",
    "schemathesis",
)
_INSTALL_SECONDS_MAX: Final = 240
_AT_ONCE: Final = 4


class NotInstalled(Exception):
    """It was not asked for, or pip could not install the lock: no network, perhaps."""


def python_of(name: str, *, install: bool = False) -> Path:
    """The interpreter of the environment that requirements/<name>.txt describes.

    With `install`, it is made again whenever the lock is another one; several processes may ask at
    once. Raises NotInstalled.
    """
    lock, home = ROOT / "requirements" / f"{name}.txt", ROOT / f".venv-{name}"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    with (ROOT / f".venv-{name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        stamp = home / "lock.sha256"
        if not stamp.exists() or stamp.read_text() != digest:
            if not install:
                raise NotInstalled("`make frameworks` installs its packages, and did not yet")
            _install(home, lock)
            stamp.write_text(digest)
    return home / "bin" / "python"


def environment() -> dict[str, str]:
    """What a process has to be given so that it imports our sources."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def run(python: Path, *args: str, timeout: float, **variables: str) -> tuple[int, str]:
    """Run an interpreter on our sources: its exit code, and all that it said."""
    done = subprocess.run(
        [str(python), *args],
        cwd=ROOT,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout


def _install(home: Path, lock: Path) -> None:
    venv.create(home, clear=True)
    (home / ".gitignore").write_text("*\n")
    # With the pip of this interpreter: to put one into the environment takes seconds.
    command = [sys.executable, "-m", "pip", "--python", str(home), "--disable-pip-version-check"]
    command += ["--no-input", "install", "--quiet", "--no-compile", "--require-hashes"]
    command += ["-r", str(lock.relative_to(ROOT))]
    pip = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, problems = pip.communicate(timeout=_INSTALL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        # pip installs into another environment by a process of its own, which would go on.
        os.killpg(pip.pid, signal.SIGKILL)
        pip.communicate()
        raise NotInstalled(f"pip took too long to install {lock.name}") from None
    if pip.returncode:
        raise NotInstalled(f"pip could not install {lock.name}: {problems.strip()[-500:]}")


def _made(name: str) -> bool:
    try:
        python_of(name, install=True)
    except NotInstalled as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    return True


def main(names: list[str]) -> int:
    """Make the environments that are named, or all, a few at once.

    All at once they would share two cores for longer than each of them may take.
    """
    wanted = names or FRAMEWORKS
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return 0 if all(list(threads.map(_made, wanted))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
