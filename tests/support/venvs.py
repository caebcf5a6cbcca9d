"""Environments for packages that do not go together with ours, made from a lock.

Each has a file in requirements/ with hashes, and lies beside .venv. The package under test is not
installed there: it is imported from src. They are large: `make adapters` makes them and runs their
tests, and `make test` runs these wherever they are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ASKED: Final = "LIMPET_ADAPTERS"  # =1: install what is missing
_INSTALL_SECONDS_MAX: Final = 900


class NotInstalled(Exception):
    """It was not asked for, or pip could not install the lock: no network, perhaps."""


def python_of(name: str, *, install: bool = False) -> Path:
    """The interpreter of the environment that requirements/<name>.txt describes.

    If it is asked for (`install`, or LIMPET_ADAPTERS=1), made again whenever the lock is another
    one; several processes may ask at once. Raises NotInstalled.
    """
    lock, home = ROOT / "requirements" / f"{name}.txt", ROOT / f".venv-{name}"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    with (ROOT / f".venv-{name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        stamp = home / "lock.sha256"
        if not stamp.exists() or stamp.read_text() != digest:
            if not install and os.environ.get(ASKED) != "1":
                raise NotInstalled("`make adapters` installs its packages and runs these tests")
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
    venv.create(home, clear=True, with_pip=True)
    (home / ".gitignore").write_text("*\n")
    command = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    command += ["--no-input", "install", "--quiet", "--no-compile", "--require-hashes"]
    command += ["-r", str(lock.relative_to(ROOT))]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise NotInstalled(f"pip could not install {lock.name}: {done.stderr.strip()[-500:]}")
