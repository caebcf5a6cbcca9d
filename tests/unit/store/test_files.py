"""Sealed files: what is written comes back, and no block is changed, moved or missing unnoticed."""

from __future__ import annotations

import hashlib
import io
import struct
from pathlib import Path

import pytest

from limpet.errors import ArchiveDamaged, ArchiveSealed, SealUnavailable
from limpet.store.coding import files
from limpet.store.coding.files import FileSeal
from limpet.store.coding.seal import Sealer
from limpet.store.protocol import Place
from tests.support.seal import FixedKeySeal, KeylessSeal, at_once

OTHER = bytes(32)
TEXT = b"what Ada said, in four blocks of sixteen bytes, and a bit more."


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 16)


def sealed_as(name: str = "a/b", owner: str = "uid", key: bytes | None = None) -> FileSeal:
    """The seal of a file, with its keys."""
    seal = FixedKeySeal() if key is None else FixedKeySeal(key)
    made = FileSeal(Sealer(seal), "archive", owner, name)
    at_once(made.ready())
    return made


def parts(raw: bytes) -> tuple[bytes, list[bytes]]:
    """The header of a file, and its blocks with their frames."""
    header, rest = raw.split(b"\n", 1)
    found = []
    while rest:
        size = struct.calcsize("!BI") + struct.unpack("!BI", rest[:5])[1]
        found.append(rest[:size])
        rest = rest[size:]
    return header + b"\n", found


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 32, 33, 100])
def test_what_is_written_in_any_pieces_comes_back(size: int, tmp_path: Path) -> None:
    """The text is nowhere in the file, and the blocks are as long as they may be."""
    seal, text = sealed_as(), bytes(range(32, 32 + size))
    for step in (1, 7, 16, 1_000):
        file = io.BytesIO()
        blocks = seal.writing(file)
        for at in range(0, size, step):
            assert blocks.write(memoryview(text[at : at + step])) == len(text[at : at + step])
        blocks.finish()
        raw = file.getvalue()
        assert len(parts(raw)[1]) == max(1, -(-size // 16))
        assert seal.opened(raw) == text
        assert size < 8 or text[:8] not in raw
        (tmp_path / "file").write_bytes(raw)
        with seal.at(tmp_path / "file").open("rb") as read:
            assert b"".join(iter(lambda: read.read(5), b"")) == text
        assert files.is_sealed(tmp_path / "file")


def test_a_changed_byte_is_noticed_wherever_it_is() -> None:
    """In the header, in a frame or in sealed bytes: nothing of the file is taken for text."""
    seal = sealed_as()
    raw = seal.sealed(TEXT)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1
        if at < len(files._MARK):  # it says no more that it is sealed; whoever reads it sees that
            assert seal.opened(bytes(changed)) == changed
            continue
        with pytest.raises(ArchiveDamaged):
            seal.opened(bytes(changed))


def test_a_file_that_was_cut_is_noticed_wherever_it_ends() -> None:
    """Also between two blocks, and if what is left is said to be all."""
    seal = sealed_as()
    raw = seal.sealed(TEXT)
    for end in range(len(files._MARK), len(raw)):
        with pytest.raises(ArchiveDamaged):
            seal.opened(raw[:end])
    header, blocks = parts(raw)
    for end in range(1, len(blocks)):
        last = b"\x01" + blocks[end - 1][1:]
        with pytest.raises(ArchiveDamaged, match=f"block {end} does not open"):
            seal.opened(header + b"".join(blocks[: end - 1]) + last)


def test_blocks_that_were_swapped_doubled_left_out_or_added_are_noticed() -> None:
    """Each is bound to its number, and the last one to being the last."""
    seal = sealed_as()
    header, (a, b, c, d) = parts(seal.sealed(TEXT))
    wrong = [(b, a, c, d), (a, c, b, d), (a, a, b, c, d), (a, c, d), (b, c, d), (d,)]
    wrong += [(a, b, c, d, d), (a, b, c, b"\x00" + d[1:]), (a, b, c, d, b"\x00")]
    wrong += [(a, b, c, b"\x03" + d[1:]), (b"\x02" + a[1:], b, c, d)]
    for some in wrong:
        with pytest.raises(ArchiveDamaged):
            seal.opened(header + b"".join(some))
    assert seal.opened(header + a + b + c + d) == TEXT


def test_a_file_opens_as_itself_only() -> None:
    """Not under another name, for another session or as another kind; nor do its blocks in a file
    that was written under the same name at another time."""
    seal = sealed_as()
    raw = seal.sealed(TEXT)
    tier = FileSeal(Sealer(FixedKeySeal()), "checkpoint", "uid", "a/b")
    for other in (sealed_as("a/c"), sealed_as(owner="other"), tier):
        at_once(other.ready())
        with pytest.raises(ArchiveDamaged, match="names another file or another session"):
            other.opened(raw)
        header, _ = parts(other.sealed(TEXT))
        with pytest.raises(ArchiveDamaged):  # nor behind the header that is right there
            other.opened(header + b"".join(parts(raw)[1]))
    (_, first), (header, second) = parts(raw), parts(seal.sealed(TEXT))
    with pytest.raises(ArchiveDamaged, match="block 2 does not open"):
        seal.opened(header + second[0] + b"".join(first[1:]))


def test_another_key_or_a_destroyed_one_does_not_open_it() -> None:
    """The error says what may be the matter, and what to do."""
    seal = FixedKeySeal()
    file = FileSeal(Sealer(seal), "archive", "uid", "a/b")
    at_once(file.ready())
    raw = file.sealed(TEXT)
    with pytest.raises(ArchiveDamaged, match=r"another key.*Open the store with the keys"):
        sealed_as(key=OTHER).opened(raw)
    at_once(seal.forget("uid"))
    at_once(seal.ready(["uid"]))
    with pytest.raises(ArchiveDamaged, match="its key was destroyed"):
        file.opened(raw)


def test_without_a_seal_the_error_says_so() -> None:
    """A stable code, the owner of the keys, and the next step."""
    with pytest.raises(ArchiveSealed, match=r"keys of uid.*seal=") as caught:
        FileSeal(Sealer(None), "archive", "uid", "a/b").opened(sealed_as().sealed(TEXT))
    assert (caught.value.code, caught.value.owner) == ("archive.sealed", "uid")


@pytest.mark.parametrize("plain", [b"", b"{", TEXT, b'{"format":"limpet.session"}\n'], ids=len)
def test_a_file_without_a_seal_is_read_as_it_is(plain: bytes) -> None:
    """With a seal or without: it was written before there was one."""
    none = FileSeal(Sealer(None), "archive", "uid", "a/b")
    assert none.sealed(plain) == plain
    assert none.opened(plain) == sealed_as().opened(plain) == plain


def test_a_later_format_is_refused() -> None:
    """What it means is not known here."""
    header, blocks = parts(sealed_as().sealed(TEXT))
    later = header.replace(b'"version":1', b'"version":2')
    with pytest.raises(ArchiveDamaged, match="version 2, and this release reads 1"):
        sealed_as().opened(later + b"".join(blocks))


def test_a_block_that_claims_to_be_huge_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length is not trusted beyond what a block can have."""
    assert files.SEALED_BYTES_MAX == 4 * 2**20
    monkeypatch.setattr(files, "SEALED_BYTES_MAX", 64)
    seal = FileSeal(Sealer(KeylessSeal()), "archive", "uid", "a/b")
    header, _ = parts(seal.sealed(b""))
    assert seal.opened(header + struct.pack("!BI", 1, 64) + bytes(64)) == bytes(64)
    with pytest.raises(ArchiveDamaged, match="block 1 does not begin as a block does"):
        seal.opened(header + struct.pack("!BI", 1, 65) + bytes(65))


def test_a_block_is_sealed_for_the_place_that_is_specified() -> None:
    """What other releases seal opens here: the words are a part of the format."""
    places: list[Place] = []

    class Noting(KeylessSeal):
        def seal(self, plain: bytes, place: Place) -> bytes:
            places.append(place)
            return plain

    raw = FileSeal(Sealer(Noting()), "archive", "uid", "a/b").sealed(TEXT[:20])
    header = hashlib.sha256(parts(raw)[0]).hexdigest()
    assert places == [
        Place("file", "uid", f"{header}/1", "more"),
        Place("file", "uid", f"{header}/2", "last"),
    ]


def test_keys_that_are_gone_while_a_file_is_written_fail_the_writing() -> None:
    """As they do before a transaction: nothing counts that is not finished."""
    seal = FixedKeySeal()
    file = FileSeal(Sealer(seal), "archive", "uid", "a/b")
    at_once(file.ready())
    blocks = file.writing(io.BytesIO())
    blocks.write(TEXT[:8])
    at_once(seal.forget("uid"))
    with pytest.raises(SealUnavailable):
        blocks.finish()


def test_a_lack_of_memory_is_not_taken_for_damage() -> None:
    """Whoever reads must not go on as if the file were lost."""

    class Poor(KeylessSeal):
        def open(self, sealed: bytes, place: Place) -> bytes:
            raise MemoryError

    raw = FileSeal(Sealer(KeylessSeal()), "archive", "uid", "a/b").sealed(TEXT)
    with pytest.raises(MemoryError):
        FileSeal(Sealer(Poor()), "archive", "uid", "a/b").opened(raw)
