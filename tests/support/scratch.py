"""Where the tests keep their files: in memory, if there is room.

Most tests wait for the disk at every commit, though no test can tell what reached it: a killed
process leaves what the kernel has, and power cuts are simulated. On a file system in memory the
same calls return at once. A TMPDIR that is set is left alone: `TMPDIR=/tmp make test` uses a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 2 << 30  # a run takes a few hundred megabytes


def prefer_memory() -> None:
    """Make temporary files in memory, in this process and in those that it starts."""
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # forget the place that was chosen before
