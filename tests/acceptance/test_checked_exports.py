"""Exports that a receipt vouches for, whole or redacted, checked by a script without Limpet."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from hypothesis import given, strategies as st

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


# Runs the script as a Python does that has no zstd: before 3.14, without other packages.
WITHOUT_ZSTD = (
    "import runpy, sys; sys.modules.update({'backports': None, 'compression': None}); "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)


def test_the_script_reads_what_export_wrote_with_the_standard_library_alone(world: World) -> None:
    """It decompresses the file itself where Python cannot."""
    s = talked(world.lp)
    for number in range(200):
        s.append("user.message", {"text": f"message {number} " * (number % 9)}, actor="user:ada")
    world.sign(s)
    world.lp.export(s.key, world.here / "e.limpet")
    asked = ("receipt.json", "--public-key", "store.pem", "--export", "e.limpet")
    for damage, code in ((b"", 0), (b"more", 1)):
        with (world.here / "e.limpet").open("ab") as file:
            file.write(damage)
        for way in ((SCRIPT,), ("-c", WITHOUT_ZSTD, SCRIPT)):
            command = [sys.executable, "-I", *way, *asked]
            done = subprocess.run(
                command, cwd=world.here, capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stderr
            assert done.stdout.endswith("207 events, 0 of them redacted\n") is not bool(code)
            assert done.stderr.startswith("not valid: ") is bool(code)


@given(data=st.data())
def test_it_decompresses_as_zstd_does(data: st.DataObject) -> None:
    """Frames of any level, in blocks of any kind, with and without a checksum."""
    words = data.draw(st.lists(st.binary(max_size=20), min_size=1, max_size=9))
    seed = data.draw(st.integers(0, 2**32))
    plain = b"".join(
        random.Random(seed).choices(words, k=data.draw(st.sampled_from([0, 9, 9_000])))
    )
    level = data.draw(st.sampled_from([-5, 1, 3, 9, 19]))
    set_ = zstd.CompressionParameter
    options = {set_.compression_level: level, set_.checksum_flag: int(data.draw(st.booleans()))}
    packed = zstd.compress(plain, options=options) + zstd.compress(b"more\n", options=options)
    blocks = [*receipt_check._decompressed(io.BytesIO(packed))]
    assert b"".join(blocks) == plain + b"more\n"
    assert b"".join(receipt_check._split(blocks)) == plain + b"more\n"


@given(data=st.data())
def test_what_does_not_decompress_is_an_error(data: st.DataObject) -> None:
    """Whatever was changed: one of the errors that the script answers, or other lines."""
    plain = b"".join([b'{"seq":%d,"text":"%d"}\n' % (n, n * n * 7919) for n in range(60)])
    packed = bytearray(zstd.compress(plain))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(receipt_check.NotValid, ValueError, LookupError, TypeError):
        found = b"".join(receipt_check._decompressed(io.BytesIO(bytes(packed))))
        assert len(found) <= 1 << 20


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
