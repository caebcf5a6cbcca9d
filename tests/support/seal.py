"""A seal for tests: AES-256-GCM under one fixed key, bound to the place of what it seals."""

from __future__ import annotations

import os
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from limpet.store.protocol import Place

_NONCE_BYTES: Final = 12
KEY: Final = bytes(range(32))


class FixedKeySeal:
    """Nonce, then ciphertext with its tag."""

    def __init__(self, key: bytes = KEY) -> None:
        self._cipher = AESGCM(key)

    def seal(self, plain: bytes, place: Place) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, place.aad())

    def open(self, sealed: bytes, place: Place) -> bytes:
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        return self._cipher.decrypt(nonce, rest, place.aad())
