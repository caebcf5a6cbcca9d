"""Checks receipts and proofs of Limpet offline: the standard library and `cryptography` only.

Copy this file anywhere and run it; it imports nothing of Limpet.

    python receipt_check.py receipt.json --public-key store.pem [--proof proof.json]

    key_hash  = SHA-256("limpet.key" 0 uid 0 JSON of [app, user, id])
    message   = "limpet.receipt.1" newline, then one line each: key_hash, uid, version, link, root
                (bytes as hex), at (microseconds since 1970), signer
    signature = Ed25519 of the message; signer = the first 32 hex digits of SHA-256(public key)
    link      = SHA-256(previous ‖ seq ‖ at in µs ‖ SHA-256(header) ‖ SHA-256(salt ‖ body))
    leaf      = SHA-256(0 ‖ link), node = SHA-256(1 ‖ left ‖ right), as in RFC 6962

A leaf hides its event: the body's digest is salted with 16 random bytes, which only the proof of
this event shows.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Any

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


def public_key_of(given: str | bytes) -> Ed25519PublicKey:
    """A public key from PEM, or from its 32 bytes, raw or as hex."""
    try:
        if isinstance(given, str) and "BEGIN" not in given:
            given = bytes.fromhex(given)
        raw = given.encode() if isinstance(given, str) else given
        if len(raw) == 32:
            return Ed25519PublicKey.from_public_bytes(raw)
        found = load_pem_public_key(raw)
    except ValueError as error:
        raise NotValid("the public key cannot be read") from error
    if not isinstance(found, Ed25519PublicKey):
        raise NotValid("the public key is not an Ed25519 key")
    return found


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
    return sha256(b"".join((previous, _numbers(seq, at_us), header, body))).digest()


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
    parser = argparse.ArgumentParser(description="Check a receipt of Limpet, offline.")
    parser.add_argument("receipt", type=Path, help="the JSON of s.receipt()")
    parser.add_argument("--public-key", type=Path, required=True, help="lp.keys.public_key, PEM")
    parser.add_argument("--proof", type=Path, help="the JSON of s.prove(seq)")
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(_checked(given.receipt, given.public_key, given.proof) + "\n")
    except (NotValid, OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"not valid: {error}\n")
        return 1
    return 0


def _checked(receipt_file: Path, key_file: Path, proof_file: Path | None) -> str:
    receipt = json.loads(receipt_file.read_text())
    key = public_key_of(key_file.read_text())
    link, root = (base64.b64decode(receipt[name]) for name in ("link", "root"))
    at = datetime.fromisoformat(receipt["at"].replace("Z", "+00:00"))
    at_us = (at - _EPOCH) // timedelta(microseconds=1)
    names = (base64.b64decode(receipt["key_hash"]), receipt["uid"], receipt["version"])
    signed = message(*names, link, root, at_us, receipt["signer"])
    check_signature(key, receipt["signer"], base64.b64decode(receipt["signature"]), signed)
    said = f"valid: {receipt['uid']} at version {receipt['version']}, {receipt['at']}"
    if proof_file is None:
        return said
    proof = json.loads(proof_file.read_text())
    for name in ("header", "salt", "body", "digest", "previous"):
        proof[name] = None if proof[name] is None else base64.b64decode(proof[name])
    proof["path"] = [base64.b64decode(each) for each in proof["path"]]
    check_proof(proof, receipt["version"], root)
    id, type_, actor = json.loads(proof["header"])[:3]
    return f"{said}; has event {proof['seq']} {type_} by {actor} ({id})"


if __name__ == "__main__":
    sys.exit(main())
