"""Exports that a receipt vouches for, whole or redacted, checked by a script without Limpet."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd

import limpet
from limpet.errors import BundleRefused
from limpet.security import receipt_check
from tests.support.keys import key_file

SECRET = "xq7canary"
SCRIPT = str(Path(receipt_check.__file__))


class World:
    """A sealed store, a receipt of a session in it, and its exports."""

    def __init__(self, here: Path, lp: limpet.SyncLimpet) -> None:
        self.here, self.lp = here, lp
        (here / "store.pem").write_text(lp.keys.public_key)

    def sign(self, s: limpet.SyncSession[Any]) -> None:
        (self.here / "receipt.json").write_bytes(msgspec.json.encode(s.receipt()))

    def lines(self, name: str) -> list[bytes]:
        return zstd.decompress((self.here / name).read_bytes()).splitlines(keepends=True)

    def check(self, lines: list[bytes], code: int = 0) -> str:
        """What the script says of these lines, read from a pipe."""
        asked = ("receipt.json", "--public-key", "store.pem", "--export", "-")
        command = [sys.executable, "-I", SCRIPT, *asked]
        done = subprocess.run(
            command, cwd=self.here, input=b"".join(lines), capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
        return (done.stdout + done.stderr).decode()


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path}/s.db?sync=normal"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_store_url")
    with limpet.open_sync(url, keys=key_file(tmp_path / "masters")) as lp:
        yield World(tmp_path, lp)


def talked(lp: limpet.SyncLimpet) -> limpet.SyncSession[Any]:
    s = lp.create("support", "ada", "c1", state={"n": 1.0, "é": "ü\u2028", "big": 1e300})
    for number in range(3):
        s.append("user.message", {"text": f'{SECRET} \\ " {number}'}, actor="user:ada")
        s.append("note.made", {"x": [1e16, 1.5e-7, -0.0, {"deep": None}]}, actor="ä", input=True)
    return s


def test_an_export_leads_to_its_receipt(world: World) -> None:
    """Whole, with what came after the receipt, and with blobs and checkpoints in it."""
    s = talked(world.lp)
    world.sign(s)
    s.blobs.put(b"large" * 1_000)
    s.checkpoint()
    s.append("user.message", {"text": "later"}, actor="user:ada")
    world.lp.export(s.key, world.here / "whole.limpet")
    assert "0 of them redacted" in world.check(world.lines("whole.limpet"))


def test_a_redacted_export_still_verifies(world: World) -> None:
    """What is left out is in no byte of it, and it cannot be imported."""
    s = talked(world.lp)
    world.sign(s)
    world.lp.export(s.key, world.here / "r.limpet", redact=["user.*", "session.created"])
    lines = world.lines("r.limpet")
    assert "7 events, 4 of them redacted" in world.check(lines)
    assert SECRET.encode() not in b"".join(lines)
    with limpet.open_sync("memory://") as other, pytest.raises(BundleRefused, match="redacted"):
        other.import_(world.here / "r.limpet")


def test_a_redacted_fork_hides_what_it_began_on(world: World) -> None:
    """Its chain goes on from its parent's link, which is there."""
    s = talked(world.lp)
    s.append("user.message", {"text": "x"}, actor="user:ada", set={"hidden": SECRET})
    fork = s.fork(id="fork")
    fork.append("note.made", {}, actor="user:ada")
    world.sign(fork)
    world.lp.export(fork.key, world.here / "whole.limpet")
    assert "redacted" in world.check(world.lines("whole.limpet"))
    world.lp.export(fork.key, world.here / "r.limpet", redact=["user.*"])
    lines = world.lines("r.limpet")
    assert "redacted" in world.check(lines)
    assert SECRET.encode() not in b"".join(lines)


def again(lines: list[bytes]) -> list[bytes]:
    """The same with a trailer that fits."""
    events = sum([line.startswith(b'{"seq"') for line in lines[:-1]])
    digest = sha256(b"".join(lines[:-1])).hexdigest()
    return [*lines[:-1], b'{"end":true,"events":%d,"sha256":"%s"}\n' % (events, digest.encode())]


def test_every_change_of_an_export_is_found(world: World) -> None:
    """A body, an actor, a time, the order, the end, another session: also with a trailer that was
    made anew."""
    s = talked(world.lp)
    world.sign(s)
    world.lp.export(s.key, world.here / "whole.limpet", redact=["nothing.here"])
    whole = world.lines("whole.limpet")
    assert "0 of them redacted" in world.check(whole)
    said = next(line for line in whole if b"xq7" in line)
    at = whole.index(said)
    forged = {
        "cut": whole[:-3],
        "shorter": again([*whole[:-2], whole[-1]]),
        "swapped": again([*whole[:3], whole[4], whole[3], *whole[5:]]),
        "body": again([*whole[:at], said.replace(b"xq7", b"xq8"), *whole[at + 1 :]]),
        "actor": again([*whole[:at], said.replace(b"user:ada", b"user:eve"), *whole[at + 1 :]]),
        "no trailer": whole[:-1],
        "old trailer": [*whole[:at], said.replace(b"xq7", b"xq8"), *whole[at + 1 :]],
        "spaces": again([*whole[:at], said.replace(b'","', b'", "'), *whole[at + 1 :]]),
        "another key": again([whole[0].replace(b'"c1"', b'"c2"'), *whole[1:]]),
        "nothing": [],
        "junk": [b"\xff\xfe\n"],
    }
    for name, lines in forged.items():
        assert "not valid" in world.check(lines, code=1), name
    time = json.loads(said)["at_us"]
    late = said.replace(b"%d" % time, b"%d" % (time + 1))
    assert "not valid" in world.check(again([*whole[:at], late, *whole[at + 1 :]]), code=1)


def test_the_command_redacts(tmp_path: Path) -> None:
    """By types and families."""
    url = f"sqlite:///{tmp_path}/s.db"
    with limpet.open_sync(url) as lp:
        talked(lp)
    asked = ("export", "s.db", "r.limpet", "--app", "support", "--user", "ada", "--id", "c1")
    command = [
        sys.executable,
        "-m",
        "limpet.cli",
        *asked,
        "--redact",
        "user.*",
        "--redact",
        "note.made",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    lines = zstd.decompress((tmp_path / "r.limpet").read_bytes()).splitlines()
    assert sum([b'"digest"' in line for line in lines]) == 6
