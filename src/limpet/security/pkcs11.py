"""Masters in a hardware module, by PKCS#11: the module derives, and never shows the master.

    pkcs11:TOKEN/KEY?module=/usr/lib/softhsm/libsofthsm2.so
    pkcs11:TOKEN/OLD,NEW?module=…       several keys of the token, the newest last

Each key is a generic secret of 256 bits that may sign with SHA256_HMAC and does not leave the
module: `limpet keys new pkcs11:TOKEN/KEY?module=…` makes one. The key that wraps a data key is
HMAC-SHA256(master, owner and context), made in the module; AES-256-GCM is done here. The PIN is
read from LIMPET_PKCS11_PIN, the module from the URL or LIMPET_PKCS11_MODULE.
"""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from limpet.errors import ExtraMissing, KeysInvalid
from limpet.security.masters import KEY_BYTES, NONCE_BYTES, WrongMaster
from limpet.store.system import PROCESS, in_thread

_PIN: Final = "LIMPET_PKCS11_PIN"
_MODULE: Final = "LIMPET_PKCS11_MODULE"
_WHERE: Final = "pkcs11:…"


class KeyPlace(NamedTuple):
    """The place of keys: a module, a token in it, and their labels, the newest last."""

    module: str
    token: str
    labels: tuple[str, ...]

    @classmethod
    def of(cls, url: str) -> KeyPlace:
        """Parse a pkcs11: URL. Raises KeysInvalid."""
        parts = urlsplit(url)
        token, _, keys = parts.path.partition("/")
        labels = tuple([unquote(label) for label in keys.split(",") if label])
        module = parse_qs(parts.query).get("module", [os.environ.get(_MODULE, "")])[-1]
        if not token or not labels or not module:
            reason = f"write pkcs11:TOKEN/KEY?module=/path/of/module.so, or set {_MODULE}"
            raise KeysInvalid(_WHERE, reason)
        return cls(module, unquote(token), labels)


class HardwareMasters:
    """Keys of one token."""

    def __init__(self, url: str) -> None:
        self._place = KeyPlace.of(url)
        self.name = f"pkcs11:{self._place.token}"
        self._token = _opened(self._place)
        for label in self._place.labels:
            self._token.find(label)

    async def newest(self) -> str:
        return self._place.labels[-1]

    async def wrap(self, plain: bytes, owner: bytes, context: bytes) -> tuple[str, bytes]:
        newest, nonce = self._place.labels[-1], os.urandom(NONCE_BYTES)
        cipher = await self._cipher(newest, owner, context)
        return newest, nonce + cipher.encrypt(nonce, plain, context)

    async def unwrap(self, master: str, body: bytes, owner: bytes, context: bytes) -> bytes:
        if master not in self._place.labels:
            raise WrongMaster(f"the key {master} is not among those of {self.name}")
        cipher = await self._cipher(master, owner, context)
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], context)
        except InvalidTag:
            raise WrongMaster(f"a key that {master} wrapped was changed, or moved") from None

    async def _cipher(self, label: str, owner: bytes, context: bytes) -> AESGCM:
        said = b"limpet.wrap.1\x00" + sha256(owner).digest() + sha256(context).digest()
        return AESGCM(await in_thread(lambda: self._token.derive(label, said)))


class _HardwareToken:
    """A token that this process is logged in to. A module knows one login for all of a process, so
    every store that uses the token shares this, one thread at a time."""

    def __init__(self, module: str, token: str) -> None:
        self._module, self._token = module, token
        self._lock = threading.Lock()
        self._session: Any = None
        self._keys: dict[str, Any] = {}
        self._forks = PROCESS.forks

    def find(self, label: str) -> None:
        """Raise KeysInvalid unless there is such a key, which may sign."""
        pkcs11 = _package()
        with self._lock:
            try:
                key = self._key(label)
            except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:
                raise KeysInvalid(_WHERE, f"{label}: {error!r}") from error
        if not hasattr(key, "sign"):
            raise KeysInvalid(_WHERE, f"{label} may not sign; limpet keys new makes one that may")

    def derive(self, label: str, said: bytes) -> bytes:
        """HMAC-SHA256 by a key. A login that ended meanwhile is made again, once. Raises OSError
        if the module cannot be used."""
        pkcs11 = _package()
        with self._lock:
            for attempt in (1, 2):
                try:
                    return bytes(
                        self._key(label).sign(said, mechanism=pkcs11.Mechanism.SHA256_HMAC)
                    )
                except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:
                    self._leave()
                    if attempt == 2:
                        raise OSError(f"the module of pkcs11:{self._token}: {error!r}") from error
        raise AssertionError

    def create(self, label: str) -> None:
        """Make a key that stays in the token. Raises KeysInvalid."""
        pkcs11 = _package()
        with self._lock:
            try:
                self._enter(rw=True)
                try:
                    self._key(label)
                except pkcs11.exceptions.NoSuchKey:
                    self._session.generate_key(
                        pkcs11.KeyType.GENERIC_SECRET,
                        KEY_BYTES * 8,
                        label=label,
                        store=True,
                        capabilities=pkcs11.MechanismFlag.SIGN | pkcs11.MechanismFlag.VERIFY,
                        template={
                            pkcs11.Attribute.SENSITIVE: True,
                            pkcs11.Attribute.EXTRACTABLE: False,
                        },
                    )
                    return
            except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:
                raise KeysInvalid(_WHERE, f"{label}: {error!r}") from error
            finally:
                self._leave()
        raise KeysInvalid(_WHERE, f"the token has a key {label} already; name another")

    def _key(self, label: str) -> Any:
        if self._session is None or self._forks != PROCESS.forks:
            self._enter()
        if label not in self._keys:
            kind = _package().ObjectClass.SECRET_KEY
            self._keys[label] = self._session.get_key(object_class=kind, label=label)
        return self._keys[label]

    def _enter(self, *, rw: bool = False) -> None:
        library = _package().lib(self._module)
        if self._forks != PROCESS.forks:  # a module must be begun again in a child
            self._forks = PROCESS.forks
            library.reinitialize()
        self._leave()
        token = library.get_token(token_label=self._token)
        self._session = token.open(rw=rw, user_pin=os.environ.get(_PIN))

    def _leave(self) -> None:
        session, self._session, self._keys = self._session, None, {}
        if session is not None:
            try:
                session.close()
            except _package().exceptions.PKCS11Error:
                return  # it was lost: there is nothing to close


_TOKENS: Final[dict[tuple[str, str], _HardwareToken]] = {}
_OPENING: Final = threading.Lock()


def _opened(place: KeyPlace) -> _HardwareToken:
    _package()
    with _OPENING:
        return _TOKENS.setdefault(place[:2], _HardwareToken(*place[:2]))


def create_master(url: str) -> str:
    """Create the last key that a URL names, and return its label. Raises KeysInvalid."""
    place = KeyPlace.of(url)
    _opened(place).create(place.labels[-1])
    return place.labels[-1]


def _package() -> Any:
    try:
        import pkcs11
    except ImportError as error:
        raise ExtraMissing("python-pkcs11", "pkcs11") from error
    return pkcs11
