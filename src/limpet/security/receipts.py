"""Receipts: what a store signs of a session, and proofs that an event is among what it signed.

A receipt signs where a session stands: version, link, and the root of a Merkle tree over the links
of its own events. A proof leads from one event to that root in O(log n) hashes and shows no other
event. `receipt_check` checks both without Limpet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from limpet.errors import ReceiptInvalid
from limpet.model import Event, Key, canonical, to_us
from limpet.model.events import decode_body
from limpet.security import receipt_check as offline


class Receipt(msgspec.Struct, frozen=True):
    """A signed statement of where a session stood at this time."""

    key_hash: bytes  # of the session's key: see `hashed_key`
    uid: str
    version: int
    link: bytes
    root: bytes  # of the Merkle tree over the session's own events
    at: datetime
    signer: str
    signature: bytes

    @property
    def message(self) -> bytes:
        """The bytes that are signed."""
        names = (self.key_hash, self.uid, self.version, self.link, self.root)
        return offline.message(*names, to_us(self.at), self.signer)


class Proof(msgspec.Struct, frozen=True):
    """Proof that one event is covered by the receipt of this version."""

    seq: int
    at_us: int
    header: bytes  # JSON of id, type, actor, cause, invocation, correlation and wake id
    salt: bytes
    body: bytes | None  # JSON of its data and ops; None if it was removed: then `digest` counts
    digest: bytes
    previous: bytes  # the link before it
    floor: int  # the seq that the session's own events follow
    size: int  # how many of them the receipt covers
    path: tuple[bytes, ...]


def hashed_key(key: Key, uid: str) -> bytes:
    """The hash of a session's key in its receipts."""
    text = canonical((key.app, key.user, key.id))
    return sha256(b"limpet.key\x00" + uid.encode() + b"\x00" + text).digest()


def check_receipt(
    receipt: Receipt,
    proof: Proof | None = None,
    event: Event | None = None,
    *,
    public_key: str | bytes,
) -> None:
    """Check a receipt with the store's public key; with a proof, that its event is covered; with
    an event, that it is the one of the proof. Raises ReceiptInvalid; needs no store."""
    if event is not None and proof is None:
        raise ReceiptInvalid("an event is checked by its proof, and there is none")
    try:
        key = offline.public_key_of(public_key)
        offline.check_signature(key, receipt.signer, receipt.signature, receipt.message)
        if proof is not None:
            said = {name: getattr(proof, name) for name in proof.__struct_fields__}
            offline.check_proof(said, receipt.version, receipt.root)
            if event is not None:
                _check_event(proof, event)
    except (offline.NotValid, msgspec.MsgspecError, TypeError) as error:
        raise ReceiptInvalid(str(error)) from error


def _check_event(proof: Proof, event: Event) -> None:
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    said = msgspec.json.decode(proof.header)[:7]
    if said != [*names, event.correlation_id, event.wake_id]:
        raise offline.NotValid("the event has other names than the one that was proven")
    if (event.seq, event.at_us) != (proof.seq, proof.at_us):
        raise offline.NotValid("the event has another place or time than the one that was proven")
    content = None if proof.body is None else decode_body(proof.body)
    shown = (None, ()) if content is None else (content.data, content.ops)
    if canonical((event.data, event.ops)) != canonical(shown):
        raise offline.NotValid("the event has another content than the one that was proven")


class MerkleTree:
    """A tree over the leaves of a log, as in RFC 6962: a full tree on the left, the rest beside."""

    def __init__(self, links: Sequence[bytes]) -> None:
        self._levels = [[offline.leaf_of(link) for link in links]]
        while len(level := self._levels[-1]) > 1:
            pairs = range(0, len(level) - 1, 2)
            up = [sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in pairs]
            self._levels.append(up + level[len(level) - len(level) % 2 :])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def path(self, index: int) -> tuple[bytes, ...]:
        """The nodes beside the way from a leaf to the root."""
        path = []
        for level in self._levels[:-1]:
            beside = index ^ 1
            if beside < len(level):
                path.append(level[beside])
            index //= 2
        return tuple(path)
