"""The keys that sign tokens: PEM files with Ed25519 keys, and what they sign and verify.

The header of a token is compared, byte by byte, with those that our own keys write, before anything
in it is decoded: another algorithm, `none`, a key that came with the token or a second `alg` never
reach a parser.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from limpet.errors import ExtraMissing, InvalidInput, KeysInvalid, TokenInvalid
from limpet.model import described
from limpet.security.tokens import TokenPayload, decoded_payload, encoded_payload

try:
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import OKPKey
except ImportError as error:
    raise ExtraMissing("joserfc", "security") from error

TOKEN_CHARS_MAX: Final = 4_096
_LOG: Final = logging.getLogger("limpet.keys")
_FILE_BYTES_MAX: Final = 65_536
_LOOK_SECONDS: Final = 1.0  # how often a file of keys is looked at
_OPENED_MAX: Final = 4_096  # tokens that are remembered once their signature was checked
_ALGORITHM: Final = "Ed25519"  # RFC 9864
_REGISTRY: Final = jws.JWSRegistry(algorithms=[_ALGORITHM])
_FORM: Final = re.compile(r"[\w-]{1,512}\.[\w-]{1,4000}\.[\w-]{86}", re.ASCII)
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class SigningKeys:
    """The Ed25519 keys of a PEM file, or of the *.pem files of a directory in the order of their
    names. The last one signs, all of them verify.

    To rotate, add a key at the end, and remove the first once the tokens that it signed have
    expired. A change is noticed within a second; a file that cannot be used any more is reported in
    the log and changes nothing.
    """

    def __init__(self, signing: str) -> None:
        parts = urlsplit(signing) if isinstance(signing, str) else None
        if parts is None or parts.scheme != "file" or parts.netloc or not parts.path:
            reason = "signing is the URL of a PEM file, as in file:///etc/limpet/tokens.pem"
            raise KeysInvalid(described(signing), reason)
        self._path = Path(unquote(parts.path))
        self._decoy = OKPKey.generate_key("Ed25519")
        self._looked = time.monotonic()
        self._seen = _seen(self._path)
        self._take(_read(self._path))

    def __repr__(self) -> str:
        return f"<limpet.SigningKeys file://{self._path}>"

    @property
    def kid(self) -> str:
        """The id of the key that signs."""
        return self._signer[0]

    def sign(self, payload: TokenPayload) -> str:
        """The token. Raises InvalidInput if it would be too long."""
        self._look()
        kid, key = self._signer
        text: str = jws.serialize_compact(
            {"alg": _ALGORITHM, "kid": kid, "typ": "JWT"},
            encoded_payload(payload),
            key,
            registry=_REGISTRY,
        )
        if len(text) > TOKEN_CHARS_MAX:
            raise InvalidInput(
                f"the token would have {len(text):,} characters, and {TOKEN_CHARS_MAX:,} are "
                "allowed. Give its principal fewer attributes."
            )
        return text

    def opened(self, token: str) -> TokenPayload:
        """Return the payload of a token that one of the keys signed. Raises TokenInvalid."""
        if not isinstance(token, str) or len(token) > TOKEN_CHARS_MAX:
            raise TokenInvalid(f"a token is a text of at most {TOKEN_CHARS_MAX:,} characters")
        if not _FORM.fullmatch(token):
            raise TokenInvalid("a token has three parts in base64url")
        self._look()
        digest = sha256(token.encode()).digest()  # of all of it: another signature is another token
        if (known := self._opened.get(digest)) is not None:
            return known
        header, body, signature = token.split(".")
        key = self._verifiers.get(header)
        try:  # an unknown header costs as much as a wrong signature
            verified = jws.deserialize_compact(
                token if key is not None else f"{self._decoy_header}.{body}.{signature}",
                self._decoy if key is None else key,
                registry=_REGISTRY,
            )
        except (JoseError, binascii.Error, ValueError, RecursionError):
            verified = None
        if key is None or verified is None:
            raise TokenInvalid("no key that is in use here has signed it")
        payload = decoded_payload(verified.payload)
        if len(self._opened) >= _OPENED_MAX:
            self._opened.clear()
        self._opened[digest] = payload
        return payload

    def _look(self) -> None:
        """Read the keys again if their files have changed, at most once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if (seen := _seen(self._path)) == self._seen:
            return
        self._seen = seen
        try:
            self._take(_read(self._path))
        except KeysInvalid as error:
            _LOG.warning("signing keys not read again: error=%s", error)

    def _take(self, keys: list[OKPKey]) -> None:
        # Tokens whose signature was checked with these keys: most come many times.
        self._opened: dict[bytes, TokenPayload] = {}
        named = {str(key.thumbprint()): key for key in keys}
        self._verifiers = {_header(kid): key for kid, key in named.items()}
        self._signer = list(named.items())[-1]
        self._decoy_header = _header(str(self._decoy.thumbprint()))


def new_signing_key() -> bytes:
    """A PEM block for a file of signing keys."""
    made: bytes = OKPKey.generate_key("Ed25519").as_pem(private=True)
    return made


def add_signing_key(path: Path) -> str:
    """Add a key at the end of a file of signing keys, or make the file; the id of the key.

    Other processes read the old file or the new one, never a part. Raises KeysInvalid.
    """
    where, before = f"file://{path}", b""
    if path.exists():
        _read(path)
        before = path.read_bytes().rstrip() + b"\n"
    made = new_signing_key()
    part = path.with_name(f"{path.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(before + made)
            file.flush()
            os.fsync(file.fileno())  # a token must not outlive the only copy of its key
        part.replace(path)
    except OSError as error:
        raise KeysInvalid(where, f"it cannot be written: {error.strerror}") from error
    return str(OKPKey.import_key(made).thumbprint())


def _header(kid: str) -> str:
    """The only header that a token of this key has."""
    return _b64(msgspec.json.encode({"alg": _ALGORITHM, "kid": kid, "typ": "JWT"}))


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# --- reading keys ---------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.pem")) if path.is_dir() else [path]


def _seen(path: Path) -> object:
    """Return a fingerprint of the key files; None if it cannot be told."""
    try:
        files = [(str(file), file.stat()) for file in _files(path)]
    except OSError:
        return None
    return [(name, at.st_mtime_ns, at.st_size, at.st_ino, at.st_mode) for name, at in files]


def _read(path: Path) -> list[OKPKey]:
    """The keys, the newest last. Raises KeysInvalid, which shows nothing of a key."""
    where = f"file://{path}"
    try:
        keys = [key for file in _files(path) for key in _keys_of(file)]
    except FileNotFoundError:
        reason = f"there is no such file; limpet tokens new-key {path} makes one"
        raise KeysInvalid(where, reason) from None
    except OSError as error:
        raise KeysInvalid(where, f"{error.strerror}") from error
    if not keys:
        reason = f"it holds no private key in PEM; limpet tokens new-key {path} adds one"
        raise KeysInvalid(where, reason)
    return keys


def _keys_of(path: Path) -> Iterator[OKPKey]:
    where = f"file://{path}"
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        raw = file.read(_FILE_BYTES_MAX + 1)
    mode = status.st_mode
    if status.st_uid not in (0, os.geteuid()):  # somebody may have put it into a shared directory
        raise KeysInvalid(where, "it belongs to another user of this machine")
    if stat.S_IMODE(mode) & 0o077:
        reason = f"others may read the file (mode {stat.S_IMODE(mode):04o}); run chmod 600 {path}"
        raise KeysInvalid(where, reason)
    if len(raw) > _FILE_BYTES_MAX:
        raise KeysInvalid(where, f"it is larger than {_FILE_BYTES_MAX:,} bytes")
    for number, block in enumerate(_PEM.finditer(raw), 1):
        try:
            key = OKPKey.import_key(block.group())
        except (JoseError, ValueError, TypeError):
            key = None
        if key is None or not key.is_private or key.curve_name != "Ed25519":
            raise KeysInvalid(where, f"key {number} is not a private Ed25519 key without password")
        yield key
