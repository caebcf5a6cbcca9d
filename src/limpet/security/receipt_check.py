"""Checks receipts, proofs, exports and certificates of erasure of Limpet offline: the standard
library and `cryptography` only.

Copy this file anywhere and run it; it imports nothing of Limpet. `limpet keys public STORE` prints
the key, and `limpet receipt STORE SESSION [--prove SEQ]` a receipt, with a proof in the same file.

    python receipt_check.py receipt.json --public-key store.pem [--proof proof.json]
    zstdcat session.limpet | python receipt_check.py receipt.json --public-key store.pem --export -
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
from collections.abc import Iterable
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
    found = root_by_path(leaf_of(link), seq - floor - 1, size, proof["path"])
    if found != root:
        raise NotValid("the event is not among those that the receipt covers")


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
    except (NotValid, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
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


def _lines(name: str) -> IO[bytes]:
    """The lines of an export. It is compressed with zstd, which Python knows from 3.14 on."""
    if name == "-":
        return sys.stdin.buffer
    with Path(name).open("rb") as file:
        packed = file.read(4) == b"\x28\xb5\x2f\xfd"
    if not packed:
        return Path(name).open("rb")
    for module in ("compression.zstd", "backports.zstd"):
        try:
            opened: IO[bytes] = import_module(module).open(name, "rb")
        except ImportError:
            continue
        return opened
    raise NotValid(f"this Python cannot decompress it. Run zstdcat {name}, and pass --export -")


if __name__ == "__main__":
    sys.exit(main())
