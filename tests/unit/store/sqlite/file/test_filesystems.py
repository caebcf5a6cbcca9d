"""Network file systems: refused where the mount table tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from limpet.errors import StoreOnNetwork
from limpet.store.sqlite.file import filesystems
from limpet.store.sqlite.file.filesystems import file_system, refuse_network

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /mnt/share rw,relatime - nfs4 server:/export rw
31 22 0:41 / /mnt/share/local rw - tmpfs tmpfs rw
32 22 0:42 / /mnt/with\\040space rw - cifs //server/x rw
33 22 0:43 / /home rw - fuse.sshfs host: rw
34 33 0:44 / /home rw - xfs /dev/sdb rw
a line that is none
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    return table


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/a.db", "ext4"),
        ("/mnt/share/a.db", "nfs4"),
        ("/mnt/share/sub/a.db", "nfs4"),
        ("/mnt/shared/a.db", "ext4"),
        ("/mnt/share/local/a.db", "tmpfs"),
        ("/mnt/with space/a.db", "cifs"),
        ("/home/ada/a.db", "xfs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(mounts: Path, path: str, kind: str) -> None:
    """A path is on the file system whose mount point is nearest above it."""
    assert file_system(Path(path), mounts) == kind


@pytest.mark.parametrize("name", [".", "a.db"])
def test_the_device_counts_before_the_path(tmp_path: Path, name: str) -> None:
    """Where something is mounted under several paths, its device tells what it is."""
    device = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    line = f"31 22 {os.major(device)}:{os.minor(device)} /x /elsewhere rw - cifs //server/x rw\n"
    table.write_text(TABLE + line)
    assert file_system(tmp_path / name, table) == "cifs"


def test_network_file_systems_are_refused_by_name(mounts: Path) -> None:
    """The error tells the path and what it is on."""
    with pytest.raises(StoreOnNetwork) as info:
        refuse_network(Path("/mnt/share/a.db"), mounts)
    assert (info.value.code, info.value.file_system) == ("store.network", "nfs4")
    refuse_network(Path("/var/lib/a.db"), mounts)


def test_a_disk_of_its_own_needs_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems have no block device that the system knows, though some have a number
    that looks like one; those that clusters share show in /sys."""
    system = tmp_path / "sys"
    (system / "dev/block").mkdir(parents=True)
    (system / "dev/block/8:1").touch()
    monkeypatch.setattr(filesystems, "_SYSTEM", str(system))
    monkeypatch.setattr(filesystems, "_device", lambda path: os.makedev(8, 1))
    assert not filesystems.is_own_disk(tmp_path)  # nothing is known of file systems
    (system / "fs").mkdir()
    assert filesystems.is_own_disk(tmp_path)
    (system / "fs/ocfs2").mkdir()
    assert not filesystems.is_own_disk(tmp_path)
    (system / "fs/ocfs2").rmdir()
    for made_up in ((0, 40), (2_903, 1_014)):
        monkeypatch.setattr(filesystems, "_device", lambda path, of=made_up: os.makedev(*of))
        assert not filesystems.is_own_disk(tmp_path)


def test_a_link_leads_to_where_its_file_will_be_made(tmp_path: Path) -> None:
    """Not to where the link is: that may be another disk."""
    if not (elsewhere := Path("/dev/shm")).is_dir():
        pytest.skip("no second file system")
    link = tmp_path / "a.db"
    link.symlink_to(elsewhere / "limpet-is-never-made.db")
    assert filesystems._device(link) == elsewhere.stat().st_dev


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path) -> None:
    """A system without a mount table is given the benefit of the doubt."""
    assert file_system(Path("/x"), tmp_path / "missing") is None
    refuse_network(Path("/x"), tmp_path / "missing")
