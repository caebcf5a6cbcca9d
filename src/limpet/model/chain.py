"""The hash chain: each event's link covers the link before it, so any change to history shows.

    header = SHA-256(canonical [id, type, actor, cause, invocation_id, correlation_id, wake_id]),
             and "input" at the end if only its draft, not its type, made it an input
    body   = SHA-256(salt ‖ encoded body), before compression and sealing
    link   = SHA-256(previous link ‖ seq ‖ at in µs ‖ header ‖ body)

Numbers are 8 bytes, big-endian. A store can compute links in SQL. Headers verify without keys. A
body may be recompressed, resealed or erased without breaking the chain; the salt is erased with it,
so a short erased body cannot be guessed from its digest.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import Final

from limpet.model.values import canonical

SALT_BYTES: Final = 16
_numbers: Final = Struct(">Qq").pack  # the seq, and the time, which may lie before 1970


def genesis(uid: str) -> bytes:
    """The link before the first one. It depends on the session, so chains cannot be swapped."""
    return sha256(b"limpet\x00" + uid.encode()).digest()


def header_digest(names: tuple[str | None, ...], *, marked: bool = False) -> bytes:
    """id, type, actor, cause, invocation_id, correlation_id, wake_id, in this order.

    `marked`: it was appended as an input although its type is not one.
    """
    return sha256(canonical((*names, "input") if marked else names)).digest()


def header_tail(type: str, actor: str) -> bytes:
    """Return what the canonical names of an event go on with after its id, if it has no other
    ids."""
    return canonical(("", type, actor, None, None, None, None))[2:]


def header_of(id: str, tail: bytes) -> bytes:
    """The header digest of an event by its `header_tail`. The id needs no escape in JSON: ours."""
    return sha256(b'["' + id.encode() + tail).digest()


def body_digest(salt: bytes, raw: bytes) -> bytes:
    return sha256(salt + raw).digest()


def chained(
    previous: bytes, seq: int, at_us: int, header: bytes, salt: bytes, raw: bytes
) -> tuple[bytes, bytes]:
    """The `body_digest` of an event, and its `link`: one call on the hot path."""
    body = sha256(salt + raw).digest()
    return body, sha256(b"".join((previous, _numbers(seq, at_us), header, body))).digest()


def link(previous: bytes, seq: int, at_us: int, header: bytes, body: bytes) -> bytes:
    return sha256(b"".join((previous, _numbers(seq, at_us), header, body))).digest()
