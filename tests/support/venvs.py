"""Environments for packages that do not go together with ours, made from a lock.

Each has a file in requirements/ with hashes, and lies beside .venv. The package under test is not
installed there: it is imported from src. They are large, so `make frameworks` makes them (as
`make adapters` and .ci/run do), and `make test` runs their tests wherever they are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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
    "browser",
    "langgraph",
    "mcp",
    "openai-agents",
    "providers",
    "schemathesis",
)
_INSTALL_SECONDS_MAX: Final = 240


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
    how = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=_INSTALL_SECONDS_MAX, check=False, **how)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took too long to install {lock.name}") from None
    if done.returncode:
        raise NotInstalled(f"pip could not install {lock.name}: {done.stderr.strip()[-500:]}")


def _made(name: str) -> bool:
    try:
        python_of(name, install=True)
    except NotInstalled as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    return True


def main() -> int:
    """Make the environment of every framework, all at once: they wait for the network."""
    with ThreadPoolExecutor(len(FRAMEWORKS)) as threads:
        return 0 if all(list(threads.map(_made, FRAMEWORKS))) else 1


if __name__ == "__main__":
    sys.exit(main())
