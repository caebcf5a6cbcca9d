"""Checks receipts, proofs, exports and certificates of erasure of Limpet offline: the standard
library and `cryptography` only.

Copy this file anywhere and run it; it imports nothing of Limpet. `limpet keys public STORE` prints
the key, and `limpet receipt STORE SESSION [--prove SEQ]` a receipt, with a proof in the same file.

    python receipt_check.py receipt.json --public-key store.pem [--proof proof.json]
    python receipt_check.py receipt.json --public-key store.pem --export session.limpet
    python receipt_check.py certificate.json --public-key store.pem [--receipt receipt.json]

    key_hash  = SHA-256("limpet.key" 0 uid 0 JSON of [app, user, id])
    message   = "limpet.receipt.1" newline, then one line each: key_hash, uid, version, link, root
                (bytes as hex), at (microseconds since 1970), signer
    signature = Ed25519 of the message; signer = the first 32 hex digits of SHA-256(public key)
    link      = SHA-256(previous ‖ seq ‖ at in µs ‖ SHA-256(header) ‖ SHA-256(salt ‖ body))
    header    = JSON of id, type, actor, cause, invocation, correlation and wake id, and "input" if
                it was appended as one
    leaf      = SHA-256(0 ‖ link), node = SHA-256(1 ‖ left ‖ right), as in RFC 6962
    certificate: Ed25519 of "limpet.certificate.1" newline, then its JSON without the signature,
                with sorted names and no spaces

A leaf hides its event: the body's digest is salted with 16 random bytes, which only the proof of
this event shows.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812  # a class
from typing import IO, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

_numbers = Struct(">Qq").pack
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  # runs on older Pythons too


class NotValid(ValueError):
    """A receipt or a proof does not hold, and why."""


def message(
    key_hash: bytes, uid: str, version: int, link: bytes, root: bytes, at_us: int, signer: str
) -> bytes:
    """The bytes that are signed."""
    lines = (key_hash.hex(), uid, version, link.hex(), root.hex(), at_us, signer)
    return "\n".join(["limpet.receipt.1", *map(str, lines)]).encode()


def certificate_message(said: dict[str, Any]) -> bytes:
    """The bytes of a certificate of erasure that are signed: its JSON in one spelling."""
    rest = {name: value for name, value in said.items() if name != "signature"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return b"limpet.certificate.1\n" + text.encode()


def public_key_of(given: str | bytes) -> Ed25519PublicKey:
    """A public key from PEM, or from its 32 bytes, raw or as hex."""
    try:
        if isinstance(given, str) and "BEGIN" not in given:
            given = bytes.fromhex(given)
        raw = given.encode() if isinstance(given, str) else given
        if len(raw) == 32:
            return Ed25519PublicKey.from_public_bytes(raw)
        key = load_pem_public_key(raw)
    except ValueError as error:
        raise NotValid("the public key cannot be read") from error
    if not isinstance(key, Ed25519PublicKey):
        raise NotValid("the public key is not an Ed25519 key")
    return key


def signer_of(key: Ed25519PublicKey) -> str:
    """The name of a key in receipts."""
    return sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:32]


def check_signature(key: Ed25519PublicKey, signer: str, signature: bytes, signed: bytes) -> None:
    """Raise NotValid unless this key signed these bytes."""
    if signer != signer_of(key):
        raise NotValid(f"it was signed by {signer}, and this is the key of {signer_of(key)}")
    try:
        key.verify(signature, signed)
    except InvalidSignature as error:
        raise NotValid("its signature does not fit: it was changed or forged") from error


def leaf_of(link: bytes) -> bytes:
    return sha256(b"\x00" + link).digest()


def link_of(previous: bytes, seq: int, at_us: int, header: bytes, body: bytes) -> bytes:
    """The link of an event by the digests of its header and its body."""
    try:
        numbers = _numbers(seq, at_us)
    except StructError as error:
        raise NotValid("the place or the time of an event is not a whole number") from error
    return sha256(b"".join((previous, numbers, header, body))).digest()


def root_by_path(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that a leaf leads to. Raises NotValid if the path has another length."""
    node, last, left = leaf, size - 1, list(path)
    while last > 0:
        if index % 2 or index < last:
            if not left:
                raise NotValid("the proof is too short")
            beside = left.pop(0)
            pair = beside + node if index % 2 else node + beside
            node = sha256(b"\x01" + pair).digest()
        index, last = index // 2, last // 2
    if left:
        raise NotValid("the proof is too long")
    return node


def root_of(links: list[bytes]) -> bytes:
    """The root of the Merkle tree over the links of a log."""
    level = [leaf_of(link) for link in links]
    while len(level) > 1:
        pairs = range(0, len(level) - 1, 2)
        up = [sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in pairs]
        level = up + level[len(level) - len(level) % 2 :]
    if not level:
        raise NotValid("it covers no event")
    return level[0]


def check_export(lines: Iterable[bytes], receipt: dict[str, Any]) -> tuple[int, int]:
    """Raise NotValid unless the lines of an export lead to what a receipt signs, of which bytes are
    bytes. Returns how many events there are, and of how many the body was left out."""
    whole, source = sha256(), iter(lines)
    first = next(source, b"")
    whole.update(first)
    link, seq = _begin(_members(first), receipt)
    links: list[bytes] = []
    events = redacted = 0
    for line in source:
        said = _members(line)
        if "end" in said:
            if (json.loads(said["events"]), json.loads(said["sha256"])) != (
                events,
                whole.hexdigest(),
            ):
                raise NotValid("the export was cut, or its lines were changed")
            break
        whole.update(line)
        if "seq" not in said:  # a checkpoint, memory or a part of a blob
            continue
        events, seq = events + 1, seq + 1
        redacted += "digest" in said
        link = _follow(said, seq, link)
        if seq <= receipt["version"]:
            links.append(link)
        if seq == receipt["version"] and link != receipt["link"]:
            raise NotValid("the export has another history than the receipt signs")
    else:
        raise NotValid("the export has no end: it was cut")
    if next(source, None) is not None:
        raise NotValid("something follows the end of the export")
    if seq < receipt["version"]:
        raise NotValid(f"the export ends at {seq}, before version {receipt['version']}")
    if root_of(links) != receipt["root"]:
        raise NotValid("the export has other events than the receipt signs")
    return events, redacted


def _begin(header: dict[str, str], receipt: dict[str, Any]) -> tuple[bytes, int]:
    """The link that the session's own events follow, and the seq before them."""
    uid, key = json.loads(header["uid"]), json.loads(header["key"])
    if json.loads(header["format"]) != "limpet.session" or json.loads(header["version"]) != 1:
        raise NotValid("it is not an export of a session that this script reads")
    if not isinstance(uid, str):
        raise NotValid("the uid of the export is not a text")
    hashed = sha256(b"limpet.key\x00" + uid.encode() + b"\x00" + _canonical(key)).digest()
    if (uid, hashed) != (receipt["uid"], receipt["key_hash"]):
        raise NotValid("the export is of another session than the receipt")
    floor = json.loads(header["floor"])
    if floor:
        return bytes.fromhex(json.loads(header["base"])["link"]), floor
    return sha256(b"limpet\x00" + uid.encode()).digest(), 0


def _follow(said: dict[str, str], seq: int, previous: bytes) -> bytes:
    """The link of an event that follows another."""
    names = ("id", "type", "actor", "cause", "invocation_id", "correlation_id", "wake_id")
    values = [json.loads(said.get(name, "null")) for name in names]
    if "digest" in said:
        body = bytes.fromhex(json.loads(said["digest"]))
    else:
        body = sha256(bytes.fromhex(json.loads(said["salt"])) + said["body"].encode()).digest()
    stated, at_us = json.loads(said["link"]), json.loads(said["at_us"])
    for header in ([*values], [*values, "input"]):
        link = link_of(previous, seq, at_us, sha256(_canonical(header)).digest(), body)
        if json.loads(said["seq"]) == seq and link.hex() == stated:
            return link
    raise NotValid(f"event {seq} of the export does not follow from the events before it")


def _members(line: bytes) -> dict[str, str]:
    """The members of an object, each as it is written: what is hashed is the text of a body."""
    text, decoder, at = line.decode(), json.JSONDecoder(), 1
    members: dict[str, str] = {}
    if not text.startswith("{"):
        raise NotValid("a line of the export is not an object")
    while text[at] != "}":
        name, colon = decoder.raw_decode(text, at)
        _, end = decoder.raw_decode(text, colon + 1)
        if text[colon] != ":" or name in members or text[end] not in ",}":
            raise NotValid("a line of the export is not as Limpet writes it")
        members[name] = text[colon + 1 : end]
        at = end + (text[end] == ",")
    return members


def _canonical(value: list[Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def check_proof(proof: dict[str, Any], version: int, root: bytes) -> None:
    """Raise NotValid unless a proof leads from its event to the root of a receipt."""
    seq, floor, size = proof["seq"], proof["floor"], proof["size"]
    if size != version - floor or not floor < seq <= version:
        raise NotValid("the proof is of another version of the session")
    body = proof["digest"]
    if proof["body"] is not None:
        body = sha256(proof["salt"] + proof["body"]).digest()
    header = sha256(proof["header"]).digest()
    link = link_of(proof["previous"], seq, proof["at_us"], header, body)
    computed = root_by_path(leaf_of(link), seq - floor - 1, size, proof["path"])
    if computed != root:
        raise NotValid("the event is not among those that the receipt covers")


# --- zstd, for Pythons that do not have it (RFC 8878) ---------------------------------------------

_FRAME = 0xFD2FB528
_BLOCK_MAX = 1 << 17
_WINDOW_MAX = 1 << 27
# The codes of lengths and offsets: what each begins at, and how many bits are added to that.
_LITERALS = [
    *[(code, 0) for code in range(16)],
    *((16, 1), (18, 1), (20, 1), (22, 1), (24, 2), (28, 2), (32, 3), (40, 3), (48, 4), (64, 6)),
    *[(1 << bits, bits) for bits in range(7, 17)],
]
_MATCHES = [
    *[(code + 3, 0) for code in range(32)],
    *((35, 1), (37, 1), (39, 1), (41, 1), (43, 2), (47, 2), (51, 3), (59, 3), (67, 4), (83, 4)),
    *((99, 5), *[(3 + (1 << bits), bits) for bits in range(7, 17)]),
]
_OFFSETS = [(1 << code, code) for code in range(32)]
# For each of them, as they are coded in a block: the table of blocks that bring none, as the log of
# its size and how often each code occurs; and the largest size of one that a block brings.
_CODES = (
    (_LITERALS, (6, [4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, *[1] * 5, *[-1] * 4]), 9),
    (_OFFSETS, (5, [*[1] * 6, 2, 2, 2, *[1] * 15, *[-1] * 5]), 8),
    (_MATCHES, (6, [1, 4, 3, *[2] * 6, *[1] * 37, *[-1] * 7]), 9),
)


class _Backward:
    """Bits of a stream that is read from its end, where the highest bit that is set marks it."""

    def __init__(self, raw: bytes) -> None:
        self.bits = int.from_bytes(raw, "little")
        self.left = self.bits.bit_length() - 1
        if not raw or not raw[-1]:
            raise NotValid("a stream of its bits has no end")

    def peek(self, count: int) -> int:
        """The next bits; beyond the beginning of the stream they are 0."""
        at = self.left - count
        return (self.bits >> at if at >= 0 else self.bits << -at) & ((1 << count) - 1)

    def read(self, count: int) -> int:
        value = self.peek(count)
        self.left -= count
        return value


class _Codes:
    """A table of codes by their states: the code, and what the next state is made of."""

    def __init__(self, log: int, often: list[int]) -> None:
        size, self.log = 1 << log, log
        high, at, codes = size, 0, [0] * size
        for code, count in enumerate(often):
            if count == -1:
                high -= 1
                codes[high] = code
        for code, count in enumerate(often):
            for _ in range(count):
                codes[at] = code
                at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1)
                while at >= high:
                    at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1)
        following = [abs(count) for count in often]
        self.rows: list[tuple[int, int, int]] = []
        for code in codes:
            bits = log + 1 - following[code].bit_length()
            self.rows.append((code, bits, (following[code] << bits) - size))
            following[code] += 1

    @classmethod
    def read(cls, raw: bytes, log_max: int) -> tuple[_Codes, int]:
        """A table as a block brings it, and how many bytes it takes."""
        bits, at, often = int.from_bytes(raw[:512], "little"), 4, []
        log = (bits & 15) + 5
        left = 1 << log
        if log > log_max:
            raise NotValid("a table of its codes is too large")
        while left > 0:
            width = (left + 1).bit_length()
            low, value = (1 << (width - 1)) - 1, bits >> at & ((1 << width) - 1)
            short = (1 << width) - 2 - left  # so many values take one bit less
            if value & low < short:
                value, width = value & low, width - 1
            elif value > low:
                value -= short
            at += width
            often.append(value - 1)
            left -= abs(value - 1)
            zeros = 3 if value == 1 else 0
            while zeros == 3:
                zeros, at = bits >> at & 3, at + 2
                often += [0] * zeros
        if left or len(often) > 256 or at > 8 * len(raw):
            raise NotValid("a table of its codes is damaged")
        return cls(log, often), (at + 7) // 8


def _weights(raw: bytes) -> tuple[list[int], int]:
    """The weights of a Huffman code but the last, and how many bytes they take."""
    size = raw[0]
    if size >= 128:
        halves = [
            half for byte in raw[1 : 1 + (size - 126) // 2] for half in (byte >> 4, byte & 15)
        ]
        return halves[: size - 127], 1 + (size - 126) // 2
    codes, at = _Codes.read(raw[1 : 1 + size], 6)
    stream = _Backward(raw[1 + at : 1 + size])
    weights: list[int] = []
    states = [stream.read(codes.log), stream.read(codes.log)]
    while len(weights) < 256:
        code, bits, base = codes.rows[states[0]]
        weights.append(code)
        if bits > stream.left:  # the other state is the last
            return [*weights, codes.rows[states[1]][0]], 1 + size
        states = [states[1], base + stream.read(bits)]
    raise NotValid("a Huffman code has too many weights")


def _huffman(raw: bytes) -> tuple[list[tuple[int, int]], int]:
    """Return byte and length for each prefix of the longest length, and the bytes read."""
    weights, size = _weights(raw)
    total = sum([1 << weight >> 1 for weight in weights])
    left = (1 << total.bit_length()) - total
    if not total or left & (left - 1) or total.bit_length() > 11:
        raise NotValid("a Huffman code is not complete")
    weights.append(left.bit_length())
    longest = total.bit_length()
    rows: list[tuple[int, int]] = []
    for weight in range(1, longest + 1):
        for byte, of in enumerate(weights):
            rows += [(byte, longest + 1 - weight)] * (1 << weight >> 1 if of == weight else 0)
    return rows, size


class _Frame:
    """The state that the blocks of a frame leave to those after them."""

    def __init__(self) -> None:
        self.huffman: list[tuple[int, int]] = []
        self.codes: list[_Codes | None] = [None, None, None]
        self.offsets = [1, 4, 8]
        self.window = bytearray()

    def block(self, raw: bytes) -> bytes:
        """Return the content of a compressed block."""
        literals, at = self._literals(raw)
        count, at = _count(raw, at)
        begin, copied = len(self.window), 0
        if count:
            modes, at = raw[at], at + 1
            for number, (_, usual, log_max) in enumerate(_CODES):
                at += self._take(number, modes >> (6 - 2 * number) & 3, raw[at:], usual, log_max)
            for length, offset, match in self._sequences(raw[at:], count):
                self.window += literals[copied : copied + length]
                copied += length
                self._copy(offset, match)
                if len(self.window) - begin > _BLOCK_MAX:
                    raise NotValid("a block of it is too large")
        self.window += literals[copied:]
        return bytes(self.window[begin:])

    def _literals(self, raw: bytes) -> tuple[bytes, int]:
        kind, form = raw[0] & 3, raw[0] >> 2 & 3
        if kind < 2:  # as they are, or one byte again and again
            header = {1: 2, 3: 3}.get(form, 1)
            size = int.from_bytes(raw[:header], "little") >> (4 if form & 1 else 3)
            if kind == 1:
                return raw[header : header + 1] * size, header + 1
            return raw[header : header + size], header + size
        header, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        sizes = int.from_bytes(raw[:header], "little") >> 4
        size, packed = sizes & ((1 << bits) - 1), sizes >> bits
        taken, data = 0, raw[header : header + packed]
        if kind == 2:
            self.huffman, taken = _huffman(data)
        data = data[taken:]
        if form == 0:
            return self._decoded(data, size), header + packed
        ends = [0]
        for number in range(3):
            ends.append(ends[-1] + int.from_bytes(data[2 * number : 2 * number + 2], "little"))
        quarter, parts = (size + 3) // 4, data[6:]
        streams = [parts[ends[0] : ends[1]], parts[ends[1] : ends[2]], parts[ends[2] : ends[3]]]
        decoded = [self._decoded(each, quarter) for each in streams]
        last = self._decoded(parts[ends[3] :], size - 3 * quarter)
        return b"".join([*decoded, last]), header + packed

    def _decoded(self, raw: bytes, size: int) -> bytes:
        """Return so many decoded bytes of a Huffman stream."""
        stream, rows, decoded = _Backward(raw), self.huffman, bytearray()
        longest = len(rows).bit_length() - 1
        for _ in range(size):
            byte, bits = rows[stream.peek(longest)]
            decoded.append(byte)
            stream.left -= bits
        if stream.left:
            raise NotValid("a stream of its bits is damaged")
        return bytes(decoded)

    def _take(
        self, number: int, mode: int, raw: bytes, usual: tuple[int, list[int]], log_max: int
    ) -> int:
        """Use the table that a block names, and return the number of bytes that it takes."""
        if mode == 0:
            self.codes[number] = _Codes(*usual)
        elif mode == 1:
            self.codes[number] = _Codes(0, [*[0] * raw[0], 1])
            return 1
        elif mode == 2:
            self.codes[number], size = _Codes.read(raw, log_max)
            return size
        return 0

    def _sequences(self, raw: bytes, count: int) -> Iterable[tuple[int, int, int]]:
        """Yield for each sequence the literals to take, the distance back, the bytes to copy."""
        stream = _Backward(raw)
        tables = [table.rows for table in self.codes if table is not None]
        states = [stream.read(table.log) for table in self.codes if table is not None]
        for left in range(count, 0, -1):
            literal, offset, match = [rows[at] for rows, at in zip(tables, states)]  # noqa: B905
            base, bits = _OFFSETS[offset[0]]
            far = base + stream.read(bits)
            base, bits = _MATCHES[match[0]]
            size = base + stream.read(bits)
            base, bits = _LITERALS[literal[0]]
            length = base + stream.read(bits)
            if left > 1:
                for number, row in ((0, literal), (2, match), (1, offset)):
                    states[number] = row[2] + stream.read(row[1])
            yield length, self._far(far, length), size
        if stream.left:
            raise NotValid("a stream of its bits is damaged")

    def _far(self, value: int, length: int) -> int:
        """The offset that a value stands for: the first three are offsets from before."""
        known = self.offsets
        if value > 3:
            self.offsets = [value - 3, *known[:2]]
        elif (number := value - (length > 0)) == 3:
            self.offsets = [known[0] - 1, *known[:2]]
        elif number:
            self.offsets = [known[number], *known[:number], *known[number + 1 :]]
        return self.offsets[0]

    def _copy(self, offset: int, size: int) -> None:
        if not 0 < offset <= len(self.window):
            raise NotValid("it copies from before its beginning")
        while size > 0:  # what is copied may begin in what it writes
            start = len(self.window) - offset
            part = self.window[start : start + size]
            self.window += part
            size -= len(part)


def _count(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number of sequences of a block, and their place."""
    first = raw[at]
    if first < 128:
        return first, at + 1
    if first < 255:
        return ((first - 128) << 8) + raw[at + 1], at + 2
    return raw[at + 1] + (raw[at + 2] << 8) + 0x7F00, at + 3


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a file of zstd frames, block by block."""
    while magic := file.read(4):
        kind = int.from_bytes(magic, "little")
        if kind & ~15 == 0x184D2A50:  # to be passed over
            file.read(int.from_bytes(file.read(4), "little"))
            continue
        if kind != _FRAME:
            raise NotValid("it is not compressed with zstd")
        (flags,) = file.read(1)
        exponent = 0 if flags & 32 else file.read(1)[0]
        file.read((0, 1, 2, 4)[flags & 3])  # the id of a dictionary
        size = int.from_bytes(file.read((flags >> 5 & 1, 2, 4, 8)[flags >> 6]), "little")
        base = 1 << (10 + (exponent >> 3))
        window = min(size + 256 if flags & 32 else base + (base >> 3) * (exponent & 7), _WINDOW_MAX)
        frame, last = _Frame(), 0
        while not last:
            header = int.from_bytes(file.read(3).ljust(3, b"\x06"), "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if kind == 3 or size > _BLOCK_MAX:
                raise NotValid("it was cut, or is damaged")
            raw = file.read(1 if kind == 1 else size)
            if kind == 2:
                yield frame.block(raw)
            else:
                frame.window += raw * (size if kind == 1 else 1)
                yield raw * (size if kind == 1 else 1)
            del frame.window[: max(0, len(frame.window) - window)]
        file.read(4 if flags & 4 else 0)  # a checksum: what is read is compared by its links


def _split(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of what comes in blocks."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from [line + b"\n" for line in lines]
    if rest:
        yield rest


# --- the command ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Check files, print one line, and return 0 or 1."""
    parser = argparse.ArgumentParser(description="Check what a store of Limpet signed, offline.")
    parser.add_argument("file", type=Path, help="the JSON of a receipt, or of a certificate")
    parser.add_argument("--public-key", type=Path, required=True, help="lp.keys.public_key, PEM")
    parser.add_argument("--proof", type=Path, help="the JSON of s.prove(seq)")
    parser.add_argument("--export", help="what lp.export wrote, or its lines; - for stdin")
    parser.add_argument(
        "--receipt", type=Path, help="of a session that the certificate has to name"
    )
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(_checked(given) + "\n")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        sys.stderr.write(f"not valid: {error}\n")
        return 1
    return 0


def _checked(given: argparse.Namespace) -> str:
    key = public_key_of(given.public_key.read_text())
    said = json.loads(given.file.read_text())
    if "subject" in said:
        return _certificate(said, key, given.receipt)
    proof = said.get("proof")
    if given.proof is not None:
        proof = json.loads(given.proof.read_text())
    said = said.get("receipt", said)
    receipt = _receipt(said, key)
    words = f"valid: {receipt['uid']} at version {receipt['version']}, {said['at']}"
    if proof is not None:
        words += _proof(proof.get("proof", proof), receipt)
    if given.export is not None:
        with _lines(given.export) as lines:
            events, redacted = check_export(lines, receipt)
        words += f"; the export has {events} events, {redacted} of them redacted"
    return words


def _receipt(said: dict[str, Any], key: Ed25519PublicKey) -> dict[str, Any]:
    """A receipt with its bytes, once its signature was checked."""
    if "key_hash" not in said:
        raise NotValid("the file is neither a receipt nor a certificate")
    hashes = {name: base64.b64decode(said[name]) for name in ("key_hash", "link", "root")}
    at = datetime.fromisoformat(said["at"].replace("Z", "+00:00"))
    at_us = (at - _EPOCH) // timedelta(microseconds=1)
    names = (hashes["key_hash"], said["uid"], said["version"], hashes["link"], hashes["root"])
    signed = message(*names, at_us, said["signer"])
    check_signature(key, said["signer"], base64.b64decode(said["signature"]), signed)
    return {**said, **hashes}


def _proof(proof: dict[str, Any], receipt: dict[str, Any]) -> str:
    for name in ("header", "salt", "body", "digest", "previous"):
        proof[name] = None if proof[name] is None else base64.b64decode(proof[name])
    proof["path"] = [base64.b64decode(each) for each in proof["path"]]
    check_proof(proof, receipt["version"], receipt["root"])
    id, type_, actor = json.loads(proof["header"])[:3]
    return f"; has event {proof['seq']} {type_} by {actor} ({id})"


def _certificate(said: dict[str, Any], key: Ed25519PublicKey, receipt_file: Path | None) -> str:
    signature = base64.b64decode(said["signature"])
    check_signature(key, said["signer"], signature, certificate_message(said))
    if receipt_file is not None:
        receipt = json.loads(receipt_file.read_text())
        receipt = receipt.get("receipt", receipt)
        _receipt(receipt, key)
        named = {(each["uid"], each["key_hash"]) for each in said["sessions"]}
        if (receipt["uid"], receipt["key_hash"]) not in named:
            raise NotValid("the session of the receipt is not among those erased")
    figures = {"session": len(said["sessions"]), "event": said["events"], "name": said["names"]}
    counts = ", ".join([f"{n} {word}{'' if n == 1 else 's'}" for word, n in figures.items()])
    return f"valid: a {said['subject']} was erased at {said['at']} by {said['by']}: {counts}"


@contextmanager
def _lines(name: str) -> Iterator[Iterable[bytes]]:
    """The lines of an export. It is compressed with zstd, which Python knows from 3.14 on; before,
    it is decompressed here, at about a quarter of a megabyte a second."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        packed = file.read(4) == _FRAME.to_bytes(4, "little")
        file.seek(0)
        if not packed:
            yield file
            return
        for module in ("compression.zstd", "backports.zstd"):
            try:
                zstd = import_module(module)
            except ImportError:
                continue
            try:
                with zstd.open(file, "rb") as opened:
                    yield opened
            except (zstd.ZstdError, EOFError) as error:
                raise NotValid(f"it cannot be decompressed ({error})") from error
            return
        yield _split(_decompressed(file))


if __name__ == "__main__":
    sys.exit(main())
