"""Files that decompress to far more than they hold, or are nested beyond all reading."""

from __future__ import annotations

import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd

import limpet
from limpet.session.move import bundle, import_export as proof
from tests.support.hostile import donors, put_together, taken_apart

MEGA = 2**20
DEPTHS = (200, 1_000, 20_000, 1_000_000)


def packed(*lines: bytes) -> bytes:
    """A bundle of these lines with a right trailer."""
    body = b"".join([line + b"\n" for line in lines])
    end = {"end": True, "events": len(lines) - 1, "sha256": sha256(body).hexdigest()}
    return bytes(zstd.compress(body + msgspec.json.encode(end) + b"\n"))


async def test_a_header_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    """A state of lists, or of blanks: a small file that would take gigabytes takes a few times what
    the longest header has."""
    path = tmp_path / "bomb.limpet"
    before = (
        b'{"format":"limpet.session","version":1,"key":["a","b","c"],"uid":"u","floor":1,"base":'
    )
    async with limpet.open("memory://") as lp:
        for filling in (b"[]," * (8 * MEGA), b" " * (80 * MEGA)):
            path.write_bytes(packed(before + b'{"fields":{"x":[' + filling + b"0]}}}"))
            assert path.stat().st_size < MEGA
            tracemalloc.start()
            with pytest.raises(limpet.errors.BundleDamaged):
                await lp.import_(path)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert most < 256 * MEGA
        assert (await lp.list()).items == ()


async def test_a_state_that_grows_from_a_small_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event fits by itself, and every one of them adds to the state."""
    monkeypatch.setattr(bundle, "_MEMORY_BYTES", 12 * MEGA)
    monkeypatch.setattr(proof, "_GROWN_BYTES", 2 * MEGA)
    async with limpet.open("memory://") as home:
        whole, *_ = await donors(home, tmp_path)
    lines = taken_apart(whole)
    last = lines[-1]
    for number in range(30):
        body = {"data": {}, "ops": [["set", [f"x{number}"], "y" * MEGA]]}
        seq, id = last["seq"] + 1 + number, f"made-up-{number}"
        lines.append({**last, "seq": seq, "id": id, "type": "audit.note", "body": body})
    put_together(lines, tmp_path / "bomb.limpet")
    async with limpet.open("memory://") as lp:
        with pytest.raises(limpet.errors.BundleDamaged, match="far more than a file of its size"):
            await lp.import_(tmp_path / "bomb.limpet")
        assert (await lp.list()).items == ()


@pytest.mark.parametrize("depth", DEPTHS)
async def test_nesting_beyond_all_reading_is_refused(tmp_path: Path, depth: int) -> None:
    """In the header, in a body and in a name, as BundleDamaged and never as RecursionError."""
    nested = b"[" * depth + b"]" * depth
    path = tmp_path / "deep.limpet"
    header = b'{"format":"limpet.session","version":1,"key":["a","b","c"],"uid":"u","floor":0'
    event = b'{"seq":1,"id":"u","type":"session.created","actor":"x","at_us":1,"salt":"00","link":"'
    event += b"0" * 64 + b'","body":{"data":{"app":"a","user":"b","id":"c","x":%b}}}' % nested
    files: list[tuple[Any, ...]] = [
        (header + b',"base":' + nested + b"}",),
        (header + b',"base":{"fields":{"x":' + nested + b"}}}",),
        (header + b"}", event),
        (header + b"}", b'{"memory":' + nested + b"}"),
        (header + b"}", b'{"checkpoint":' + event + b"}"),
        (nested,),
    ]
    async with limpet.open("memory://") as lp:
        for lines in files:
            path.write_bytes(packed(*lines))
            with pytest.raises(limpet.errors.BundleDamaged):
                await lp.import_(path)
        assert (await lp.list()).items == ()
