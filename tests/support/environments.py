"""Environments of their own for packages that we do not install beside ours.

Made on first use from a lock with hashes, in the root of the repository, and made again when the
lock changes. What cannot be installed is a reason to skip, not to fail: the machine may have no
index.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Unavailable(Exception):
    """The packages could not be installed here."""


def python_with(lock: str) -> Path:
    """The interpreter of an environment that has exactly the packages of `requirements/<lock>`."""
    path, home = ROOT / "requirements" / lock, ROOT / f".venv-{lock.removesuffix('.txt')}"
    stamp, python = home / "lock.sha256", home / "bin" / "python"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # Every worker of a run comes here; one installs, the others wait for it.
    with (ROOT / f"{home.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            _install(python, home, path)
            stamp.write_text(digest)
    return python


def _install(python: Path, home: Path, lock: Path) -> None:
    venv.create(home, clear=True, with_pip=True)
    (home / ".gitignore").write_text("*\n")
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    command += ["--quiet", "--require-hashes", "-r", str(lock)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(home)
        raise Unavailable(f"pip could not install {lock.name}: {done.stderr.strip()[-300:]}")
