"""Master keys: where they come from, and how they wrap data keys.

    env:NAME          an environment variable with base64 keys, separated by whitespace or commas
    file:///path      a file of mode 0600 with base64 keys, one a line
    memory:           a random key of this process, for tests
    vault://host/key  the transit engine of a Vault server: see `vault`
    pkcs11:token/key  a key in a hardware module: see `pkcs11`

The newest key is the last one. It wraps; the others only unwrap, until a rotation has replaced
them. A data key is wrapped with AES-256-GCM under HKDF-SHA256(master, salt=owner, info=context).
Master keys never leave this room: errors and status show their ids only.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from limpet.errors import ExtraMissing, KeysInvalid
from limpet.store.system import in_thread

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ExtraMissing("cryptography", "security") from error

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_FILE_BYTES_MAX: Final = 65_536
_WRAP: Final = b"limpet.wrap.1\x00"
_ID: Final = b"limpet.master.1"
_COMMITMENT: Final = b"limpet.commitment.1\x00"


class WrongMaster(Exception):  # no error of the tree: the seal says which keys cannot be had
    """No master at hand unwraps a data key. Says why, without any secret."""


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key as the ring keeps it."""

    master: str  # the id of the master that wrapped it
    body: bytes
    commitment: bytes  # to the data key: another key that also opens the bytes is refused


class Masters(Protocol):
    """The masters of one provider. Safe to call from several tasks; raises WrongMaster, OSError."""

    name: str  # the provider, for people

    async def newest(self) -> str:
        """The id of the master that wraps, as the provider has it now."""
        ...

    async def wrap(self, plain: bytes, owner: bytes, context: bytes) -> tuple[str, bytes]:
        """The id of the newest master, and the bytes that only `unwrap` with it opens."""
        ...

    async def unwrap(self, master: str, body: bytes, owner: bytes, context: bytes) -> bytes: ...


def local_masters(keys: str) -> LocalMasters | None:
    """The masters that this process reads itself, if `keys=` names such. Raises KeysInvalid."""
    scheme, _, rest = keys.partition(":")
    if scheme == "env" and rest:
        return LocalMasters(f"env:{rest}", lambda: _of_environment(rest))
    if scheme == "file" and rest.startswith("//"):
        path = Path(unquote(urlsplit(keys).path))
        return LocalMasters(f"file://{path}", lambda: _of_file(path))
    if keys in ("memory:", "memory://"):
        return LocalMasters("memory:", lambda: [_PROCESS_MASTER])
    return None


class LocalMasters:
    """Masters that this process reads itself. An id that is unknown is looked for once more: a
    key may have been added since."""

    def __init__(self, name: str, read: Callable[[], list[bytes]]) -> None:
        self.name, self._read = name, read
        self._masters = _by_id(read())

    async def newest(self) -> str:
        await self._reload()
        return list(self._masters)[-1]

    async def wrap(self, plain: bytes, owner: bytes, context: bytes) -> tuple[str, bytes]:
        master = list(self._masters)[-1]
        nonce = os.urandom(NONCE_BYTES)
        cipher = _wrapping(self._masters[master], owner, context)
        return master, nonce + cipher.encrypt(nonce, plain, context)

    async def unwrap(self, master: str, body: bytes, owner: bytes, context: bytes) -> bytes:
        if master not in self._masters:
            await self._reload()
        if master not in self._masters:
            raise WrongMaster(f"the master {master} is not among those of {self.name}")
        cipher = _wrapping(self._masters[master], owner, context)
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], context)
        except InvalidTag:
            raise WrongMaster(f"a key that {master} wrapped was changed, or moved") from None

    async def _reload(self) -> None:
        self._masters = _by_id(await in_thread(self._read))


def new_master() -> str:
    """A line for a key file."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def commitment_to(key: bytes, owner: bytes) -> bytes:
    """Return a key's commitment: stored beside its wrapped form, unique, reveals nothing."""
    return _derived(key, owner, _COMMITMENT)


def subkey(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, made of a data key."""
    return _derived(key, b"", purpose)


def _wrapping(master: bytes, owner: bytes, context: bytes) -> AESGCM:
    return AESGCM(_derived(master, owner, _WRAP + context))


def _derived(key: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt or None, info=info).derive(key)


def _by_id(masters: list[bytes]) -> dict[str, bytes]:
    """Return the masters in order, by id. An id is derived, so that it shows nothing of the key."""
    return {_derived(master, b"", _ID)[:8].hex(): master for master in masters}


_PROCESS_MASTER: Final = os.urandom(KEY_BYTES)


# --- reading them --------------------------------------------------------------------------------


def _of_environment(name: str) -> list[bytes]:
    text = os.environ.get(name)
    if not text:
        raise KeysInvalid(f"env:{name}", "this variable is not set; limpet keys new makes a key")
    return _decoded(f"env:{name}", text)


def _of_file(path: Path) -> list[bytes]:
    where = f"file://{path}"
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        reason = f"there is no such file; limpet keys new {path} makes one"
        raise KeysInvalid(where, reason) from None
    except OSError as error:
        raise KeysInvalid(where, f"{error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        reason = f"others may read the file (mode {stat.S_IMODE(mode):04o}); run chmod 600 {path}"
        raise KeysInvalid(where, reason)
    if len(raw) > _FILE_BYTES_MAX:
        raise KeysInvalid(where, f"it is larger than {_FILE_BYTES_MAX:,} bytes")
    return _decoded(where, raw.decode("ascii", errors="replace"))


def _decoded(where: str, text: str) -> list[bytes]:
    """The keys in a text. Errors name the number of a key, never a piece of it."""
    decoded: dict[bytes, None] = {}
    words = re.split(r"[\s,]+", text.strip())
    if words == [""]:
        raise KeysInvalid(where, "it holds no key; limpet keys new makes one")
    for number, word in enumerate(words, 1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise KeysInvalid(where, f"key {number} is not base64") from None
        if len(key) != KEY_BYTES:
            reason = f"key {number} has {len(key)} bytes; a master has {KEY_BYTES}"
            raise KeysInvalid(where, reason)
        decoded.pop(key, None)  # the last place counts
        decoded[key] = None
    return list(decoded)
