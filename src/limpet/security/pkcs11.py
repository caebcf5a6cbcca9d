"""Masters in a hardware module, by PKCS#11: the module derives, and never shows the master.

    pkcs11:TOKEN/KEY?module=/usr/lib/softhsm/libsofthsm2.so
    pkcs11:TOKEN/OLD,NEW?module=…       several keys of the token, the newest last

Each key is a generic secret that may sign with SHA256_HMAC. The key that wraps a data key is
HMAC-SHA256(master, owner and context), made in the module; AES-256-GCM is done here. The PIN is
read from LIMPET_PKCS11_PIN, the module from the URL or LIMPET_PKCS11_MODULE.
"""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from limpet.errors import ExtraMissing, KeysInvalid
from limpet.security.masters import NONCE_BYTES, WrongMaster
from limpet.store.system import in_thread

_PIN: Final = "LIMPET_PKCS11_PIN"
_MODULE: Final = "LIMPET_PKCS11_MODULE"
_WHERE: Final = "pkcs11:…"


class HardwareMasters:
    """Keys of one token. One session with the module, used by one thread at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        token, _, keys = parts.path.partition("/")
        self._labels = [unquote(label) for label in keys.split(",") if label]
        self._token = unquote(token)
        module = parse_qs(parts.query).get("module", [os.environ.get(_MODULE, "")])[-1]
        if not self._token or not self._labels or not module:
            reason = f"write pkcs11:TOKEN/KEY?module=/path/of/module.so, or set {_MODULE}"
            raise KeysInvalid(_WHERE, reason)
        self.name = f"pkcs11:{self._token}"
        self._lock = threading.Lock()
        self._keys = self._opened(module)

    def _opened(self, module: str) -> dict[str, Any]:
        try:
            import pkcs11
        except ImportError as error:
            raise ExtraMissing("python-pkcs11", "pkcs11") from error
        try:
            token = pkcs11.lib(module).get_token(token_label=self._token)
            self._session = token.open(user_pin=os.environ.get(_PIN))
            self._mechanism = pkcs11.Mechanism.SHA256_HMAC
            kind = {"object_class": pkcs11.ObjectClass.SECRET_KEY}
            return {label: self._session.get_key(label=label, **kind) for label in self._labels}
        except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:
            raise KeysInvalid(_WHERE, repr(error)) from error

    async def newest(self) -> str:
        return self._labels[-1]

    async def wrap(self, plain: bytes, owner: bytes, context: bytes) -> tuple[str, bytes]:
        newest, nonce = self._labels[-1], os.urandom(NONCE_BYTES)
        cipher = await self._cipher(newest, owner, context)
        return newest, nonce + cipher.encrypt(nonce, plain, context)

    async def unwrap(self, master: str, body: bytes, owner: bytes, context: bytes) -> bytes:
        if master not in self._keys:
            raise WrongMaster(f"the key {master} is not among those of {self.name}")
        cipher = await self._cipher(master, owner, context)
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], context)
        except InvalidTag:
            raise WrongMaster(f"a key that {master} wrapped was changed, or moved") from None

    async def _cipher(self, label: str, owner: bytes, context: bytes) -> AESGCM:
        said = b"limpet.wrap.1\x00" + sha256(owner).digest() + sha256(context).digest()

        def derive() -> bytes:
            with self._lock:
                return bytes(self._keys[label].sign(said, mechanism=self._mechanism))

        return AESGCM(await in_thread(derive))
