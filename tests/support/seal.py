"""A seal for tests: AES-256-GCM under a key for every owner, bound to the place of what it seals.

    sealed = format (1 byte) ‖ key number (4) ‖ nonce (12) ‖ ciphertext with its tag

The keys are derived from one fixed secret, so that another instance opens the same bytes. Which of
them are destroyed is known to one instance only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from limpet.store.coding.codec import Codec
from limpet.store.protocol import KeyOwner, Place

FORMAT: Final = 1
_HEAD: Final = struct.Struct("!BI")
_NONCE_BYTES: Final = 12
KEY: Final = bytes(range(32))


class KeylessSeal:
    """A seal that hides nothing, and whose owners are always ready: for tests of what is around."""

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        """There is nothing to fetch."""

    def seal(self, plain: bytes, place: Place) -> bytes:
        return plain

    def open(self, sealed: bytes, place: Place) -> bytes:
        return sealed

    async def forget(self, owner: KeyOwner) -> None:
        """There is nothing to destroy."""


class FixedKeySeal:
    """Refuses to seal or open for an owner that was not made ready."""

    def __init__(self, key: bytes = KEY) -> None:
        self._secret = key
        self._at_hand: dict[KeyOwner, int] = {}  # the number of the key that seals
        self._destroyed: dict[KeyOwner, int] = {}  # keys up to this number

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        for owner in owners:
            self._at_hand[owner] = self._destroyed.get(owner, 0) + 1

    def seal(self, plain: bytes, place: Place) -> bytes:
        number = self._at_hand[place.owner]
        head, nonce = _HEAD.pack(FORMAT, number), os.urandom(_NONCE_BYTES)
        return head + nonce + self._cipher(place.owner, number).encrypt(nonce, plain, place.aad())

    def open(self, sealed: bytes, place: Place) -> bytes:
        if place.owner not in self._at_hand:
            raise KeyError(f"keys of {place.owner} are not ready")
        form, number = _HEAD.unpack_from(sealed)
        if form != FORMAT or number <= self._destroyed.get(place.owner, 0):
            raise ValueError("its key is destroyed")
        nonce, rest = sealed[_HEAD.size :][:_NONCE_BYTES], sealed[_HEAD.size + _NONCE_BYTES :]
        return self._cipher(place.owner, number).decrypt(nonce, rest, place.aad())

    async def forget(self, owner: KeyOwner) -> None:
        last = self._at_hand.pop(owner, 1)
        self._destroyed[owner] = max(last, self._destroyed.get(owner, 0))

    def _cipher(self, owner: KeyOwner, number: int) -> AESGCM:
        named = f"{number}/{owner}".encode()
        return AESGCM(hmac.new(self._secret, named, hashlib.sha256).digest())


def at_once(awaited: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing, where there is no event loop."""
    try:
        awaited.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def codec(*owners: KeyOwner, key: bytes = KEY) -> Codec:
    """A sealing codec that has the keys of these owners."""
    found = Codec(FixedKeySeal(key))
    at_once(found.sealer.ready(owners))
    return found
