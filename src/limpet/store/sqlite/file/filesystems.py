"""Which file system a path is on, as far as the operating system says, and how full it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from limpet.errors import StoreOnNetwork

NETWORK: Final = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "ocfs2", "smb2", "smb3", "smbfs"),
    *("fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
}
_ROOM_BYTES_MIN: Final = 65_536  # for the -shm file that every opening needs
_MOUNTS: Final = Path("/proc/self/mountinfo")


class Room(msgspec.Struct, frozen=True):
    """What is left of a disk for this user."""

    free_bytes: int
    total_bytes: int
    free_files: int | None  # how many more can be made; None where there is no such limit


def room(path: Path) -> Room:
    """What is left on the disk that holds `path`. Raises OSError."""
    found = os.statvfs(path)
    files = found.f_favail if found.f_files else None
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, files)


def is_full(path: Path) -> bool:
    """Whether not even the files that reading a database needs can be made beside it."""
    try:
        left = room(path.parent)
    except OSError:
        return False
    return left.free_bytes < _ROOM_BYTES_MIN or left.free_files == 0


def refuse_network(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise StoreOnNetwork where SQLite's locks cannot be trusted. Silent where we cannot tell."""
    kind = file_system(path, mounts)
    if kind in NETWORK:
        raise StoreOnNetwork(str(path), kind)


def file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system that holds `path`, or None if unknown."""
    try:
        table = mounts.read_text()
        place = os.path.realpath(path)
    except OSError:
        return None
    best, kind = -1, None
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        columns = left.split(" ", 5)
        if len(columns) < 5 or not right:
            continue
        mount = columns[4].replace("\\040", " ").replace("\\134", "\\").rstrip("/")
        inside = place == mount or place.startswith(mount + "/")
        if inside and len(mount) >= best:  # a later mount hides an earlier one
            best, kind = len(mount), right.split(" ", 1)[0]
    return kind
