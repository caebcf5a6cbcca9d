"""A slower disk than the machine has: every sync takes at least a given time, for everybody.

How far ahead a store is depends on the disk as much as on the store. Where a sync is quick, the
work in Python shows; where it is slow, only the number of syncs counts. So the same workloads can
be measured on disks that differ in nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("disk.c")
_SYNC_US: Final = "BENCH_SYNC_US"


class NoCompiler(Exception):
    """The shim cannot be made on this machine."""


def sync_ms() -> float | None:
    """How long a sync takes at least in this process, if it was slowed."""
    text = os.environ.get(_SYNC_US)
    return None if text is None else int(text) / 1_000


def slowed(milliseconds: float, directory: Path) -> dict[str, str]:
    """The environment of a process, and of all it starts, on such a disk. Raises NoCompiler."""
    return {
        **os.environ,
        _SYNC_US: str(round(milliseconds * 1_000)),
        "LD_PRELOAD": str(_compiled(directory)),
    }


def _compiled(directory: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise NoCompiler("--sync-ms needs Linux and a C compiler (cc) to slow the disk down")
    shim = directory / "disk.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", shim, _SOURCE, "-ldl"], check=True)
    return shim
