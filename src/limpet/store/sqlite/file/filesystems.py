"""File systems: which one a path is on, as far as the operating system says, and its free space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from limpet.errors import StoreOnNetwork

NETWORK: Final = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "ocfs2", "smb2", "smb3", "smbfs"),
    *("fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
}
_FREE_BYTES_MIN: Final = 65_536  # for the -shm file that every opening needs
_SHARED_DISKS: Final = ("gfs2", "ocfs2")
_SYSTEM: Final = "/sys"  # in fs it has a directory of each of them once it is loaded
_MOUNTS: Final = Path("/proc/self/mountinfo")


_Mount: TypeAlias = tuple[list[bytes], bytes]  # the first columns of a line, and the type


class DiskSpace(msgspec.Struct, frozen=True):
    """Free space of a disk, for this user."""

    free_bytes: int
    total_bytes: int
    free_files: int | None  # how many more can be made; None where there is no such limit


def disk_space(path: Path) -> DiskSpace:
    """Return the free space of the disk that holds `path`. Raises OSError."""
    system = os.statvfs(path)
    files = system.f_favail if system.f_files else None
    return DiskSpace(system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize, files)


def is_full(path: Path) -> bool:
    """True if not even the files that reading a database needs can be made beside it."""
    try:
        left = disk_space(path.parent)
    except OSError:
        return False
    return left.free_bytes < _FREE_BYTES_MIN or left.free_files == 0


def refuse_network(path: Path, mounts: Path | None = None) -> None:
    """Raise StoreOnNetwork where SQLite's locks cannot be trusted. Silent where we cannot tell."""
    if mounts is None and is_own_disk(path):
        return
    kind = file_system(path, mounts or _MOUNTS)
    if kind in NETWORK:
        raise StoreOnNetwork(str(path), kind)


def is_own_disk(path: Path) -> bool:
    """True if a path is certainly on a disk of this machine: a block device, and no file system is
    loaded that clusters share. A tenth of the time that the table of mounts takes.

    The system has to know the device: Lustre makes up a number that looks like one.
    """
    try:
        device = _device(path)
    except OSError:
        return False
    exists, known = os.path.exists, f"{_SYSTEM}/dev/block/{os.major(device)}:{os.minor(device)}"
    if not (exists(known) and exists(f"{_SYSTEM}/fs")):
        return False
    return not any([exists(f"{_SYSTEM}/fs/{kind}") for kind in _SHARED_DISKS])


def file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system that holds `path`, or None if unknown.

    By its device. Some file systems give their files another one than the table of mounts has, and
    what is not there has none: then by the mount point that is nearest above it.
    """
    try:
        with mounts.open("rb", buffering=0) as file:
            table = [line.partition(b" - ") for line in file.read().split(b"\n")]
        lines = [(left.split(b" ", 5), right.split(b" ", 1)[0]) for left, _, right in table]
        lines = [(columns, kind) for columns, kind in lines if len(columns) > 4 and kind]
        return _by_device(path, lines) or _by_path(path, lines)
    except OSError:
        return None


def _by_device(path: Path, lines: list[_Mount]) -> str | None:
    try:
        device = _device(path)
    except OSError:
        return None
    wanted = b"%d:%d" % (os.major(device), os.minor(device))
    return next((kind.decode() for columns, kind in lines if columns[2] == wanted), None)


def _device(path: Path) -> int:
    try:
        return path.stat().st_dev
    except FileNotFoundError:  # it is to be made there, or where a link leads
        return path.resolve().parent.stat().st_dev


def _by_path(path: Path, lines: list[_Mount]) -> str | None:
    place, best, filesystem = os.fsencode(os.path.realpath(path)), -1, None
    for columns, kind in lines:
        mount = columns[4].replace(b"\\040", b" ").replace(b"\\134", b"\\").rstrip(b"/")
        inside = place == mount or place.startswith(mount + b"/")
        if inside and len(mount) >= best:  # a later mount hides an earlier one
            best, filesystem = len(mount), kind.decode()
    return filesystem
