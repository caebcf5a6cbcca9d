"""Session tokens: what one says, how it is signed, and which keys sign.

A token is a JWT signed with Ed25519. Its header is compared, byte by byte, with those that our own
keys write, before anything in it is decoded: another algorithm, `none`, a key that came with the
token or a second `alg` never reach a parser. What happens to a request that carries a token is in
`session/tokens.py`; what requests leave behind is in `request_limits`.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from limpet.errors import ExtraMissing, InvalidInput, KeysInvalid, TokenInvalid
from limpet.model import FrozenDict, Key, described, to_time, unfit
from limpet.security.access import SENSITIVE, Principal, Role

try:
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import OKPKey
except ImportError as error:
    raise ExtraMissing("joserfc", "security") from error

_LOG: Final = logging.getLogger("limpet.keys")
LIFETIME_MAX: Final = timedelta(minutes=15)
CHAIN_MAX: Final = timedelta(hours=12)  # from the first token to the end of the last rotated one
_MINUTE: Final = timedelta(minutes=1)
_MICROSECOND: Final = timedelta(microseconds=1)
GRACE: Final = timedelta(seconds=30)  # how long a token is good after it was rotated
LEEWAY_US: Final = 5_000_000  # how far ahead of the store's clock a token may be issued
TOKEN_CHARS_MAX: Final = 4_096
_NAME_CHARS_MAX: Final = 128  # of an operation or a scope
_SCOPES_MAX: Final = 32
_FILE_BYTES_MAX: Final = 65_536
_LOOK_SECONDS: Final = 1.0  # how often a file of keys is looked at
_ALGORITHM: Final = "Ed25519"  # RFC 9864
_REGISTRY: Final = jws.JWSRegistry(algorithms=[_ALGORITHM])
_FORM: Final = re.compile(r"[\w-]{1,512}\.[\w-]{1,4000}\.[\w-]{86}", re.ASCII)
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)
_READS: Final = frozenset({"read", "inspect", "audit"})

Rate: TypeAlias = int | tuple[int, timedelta]  # so many a minute, or in so long a time


class TokenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How requests with tokens are treated.

    `rate` bounds the requests of a session by operation: 600 a minute each, or (count, timedelta),
    or a mapping from operations to either, in which "*" stands for all others; None is no bound.
    `anomaly` says whether a request unlike the session's others is flagged or blocked. Operations
    in `sensitive` rotate the token. `scopes` names the scope that an operation needs: without an
    entry it is "read" for read, inspect and audit, and "write" for all others. With
    nonces="required" a request without a nonce is refused.
    """

    rate: Rate | Mapping[str, Rate] | None = 600
    anomaly: Literal["flag", "block"] = "flag"
    sensitive: tuple[str, ...] = tuple(sorted(SENSITIVE))
    scopes: Mapping[str, str] = FrozenDict()
    nonces: Literal["optional", "required"] = "optional"

    def __post_init__(self) -> None:
        if self.anomaly not in ("flag", "block"):
            raise InvalidInput(f"anomaly is 'flag' or 'block', not {described(self.anomaly)}.")
        if self.nonces not in ("optional", "required"):
            reason = f"nonces are 'optional' or 'required', not {described(self.nonces)}."
            raise InvalidInput(reason)
        rates = self.rate if isinstance(self.rate, Mapping) else {"*": self.rate}
        for operation, rate in rates.items():
            check_name("an operation", operation)
            if rate is not None or isinstance(self.rate, Mapping):
                _window(rate)
        if isinstance(self.sensitive, str):
            raise InvalidInput("sensitive is a tuple of operations, as in ('erase', 'share').")
        for name in self.sensitive:
            check_name("a sensitive operation", name)
        if not isinstance(self.scopes, Mapping):
            raise InvalidInput("scopes are a mapping from operations to scopes.")
        for operation, scope in self.scopes.items():
            check_name("an operation", operation)
            check_name("a scope", scope)

    def limit(self, operation: str) -> tuple[int, int] | None:
        """How many requests in how many microseconds; None without a bound."""
        rate = self.rate
        if isinstance(rate, Mapping):
            rate = rate.get(operation, rate.get("*"))
        return None if rate is None else _window(rate)

    def scope_for(self, operation: str) -> str:
        """The scope that a token needs for this operation."""
        return self.scopes.get(operation, "read" if operation in _READS else "write")


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says about the request that carried it, after every check was passed."""

    id: str
    key: Key
    uid: str  # of the session that the token is bound to
    principal: Principal
    scope: tuple[str, ...]
    issued: datetime
    expires: datetime
    first_issued: datetime  # of the token that this one was rotated from, and so on
    address: str | None = None  # that the token is bound to
    signals: tuple[str, ...] = ()  # "rate", "address", "operations": unlike the session's others
    rotated: str | None = None  # the token to use from now on; this one is good for 30 s


class TokenPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is signed. Times are seconds since 1970, as in any JWT, down to the microsecond."""

    jti: str  # 256 random bits
    iat: float
    exp: float
    first: float  # when the first token of the chain was issued
    chain: str  # its jti
    app: str
    user: str
    session: str
    uid: str | None = None  # None: bound to the session at its first use, see `after`
    after: str | None = None  # an id as old as the token: a session with a newer uid is not meant
    sub: str  # the principal
    role: Role
    principal_app: str | None = None
    principal_user: str | None = None
    task: str | None = None
    attributes: dict[str, Any] = {}
    scope: tuple[str, ...]
    address: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.app, self.user, self.session)

    @property
    def principal(self) -> Principal:
        return Principal(
            self.sub,
            role=self.role,
            app=self.principal_app,
            user=self.principal_user,
            task=self.task,
            attributes=self.attributes,
        )

    @property
    def issued_us(self) -> int:
        return round(self.iat * 1e6)

    @property
    def expires_us(self) -> int:
        return round(self.exp * 1e6)

    @property
    def first_us(self) -> int:
        return round(self.first * 1e6)

    def claims(self, uid: str, signals: tuple[str, ...] = (), rotated: str | None = None) -> Claims:
        """What the caller of a check is told."""
        return Claims(
            id=self.jti,
            key=self.key,
            uid=uid,
            principal=self.principal,
            scope=self.scope,
            issued=to_time(self.issued_us),
            expires=to_time(self.expires_us),
            first_issued=to_time(self.first_us),
            address=self.address,
            signals=signals,
            rotated=rotated,
        )


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(TokenPayload)


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
        text = jws.serialize_compact(
            {"alg": _ALGORITHM, "kid": kid, "typ": "JWT"},
            _ENCODER.encode(payload),
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
        """What a token says, if one of the keys signed it. Raises TokenInvalid."""
        if not isinstance(token, str) or len(token) > TOKEN_CHARS_MAX:
            raise TokenInvalid(f"a token is a text of at most {TOKEN_CHARS_MAX:,} characters")
        if not _FORM.fullmatch(token):
            raise TokenInvalid("a token has three parts in base64url")
        self._look()
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
        if (_b64(verified.payload), _b64(_unb64(signature))) != (body, signature):
            raise TokenInvalid("its base64url is not in the shortest form")
        return _decoded(verified.payload)

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
        named = {str(key.thumbprint()): key for key in keys}
        self._verifiers = {_header(kid): key for kid, key in named.items()}
        self._signer = list(named.items())[-1]
        self._decoy_header = _header(str(self._decoy.thumbprint()))


def new_signing_key() -> bytes:
    """A PEM block for a file of signing keys."""
    return OKPKey.generate_key("Ed25519").as_pem(private=True)


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


def check_name(what: str, name: str) -> str:
    """The name of an operation or a scope. Raises InvalidInput."""
    if reason := unfit(name, _NAME_CHARS_MAX):
        raise InvalidInput(f"{what} {reason}. Pass a name, as in 'read'.")
    return name


def check_scope(scope: tuple[str, ...]) -> tuple[str, ...]:
    """The scopes of a token. Raises InvalidInput."""
    if isinstance(scope, str) or not isinstance(scope, tuple | list | set | frozenset):
        raise InvalidInput("scope is a tuple of names, as in ('read', 'write').")
    if not 0 < len(scope) <= _SCOPES_MAX:
        raise InvalidInput(f"a token has 1 to {_SCOPES_MAX} scopes, not {len(scope)}.")
    return tuple(sorted({check_name("a scope", name) for name in scope}))


def check_lifetime(lifetime: timedelta) -> int:
    """The lifetime of a token in microseconds. Raises InvalidInput."""
    if not isinstance(lifetime, timedelta):
        raise InvalidInput(f"lifetime is a timedelta, not {described(lifetime)}.")
    if not timedelta(0) < lifetime <= LIFETIME_MAX:
        raise InvalidInput(
            f"a token lives for 15 minutes at most, not for {lifetime}. Issue a shorter one and "
            "rotate it."
        )
    return lifetime // _MICROSECOND


def check_address(address: str | None) -> str | None:
    """The address of a client in one form: IPv6 in short, and IPv4 as such. Raises InvalidInput."""
    if address is None:
        return None
    if reason := unfit(address, _NAME_CHARS_MAX):
        raise InvalidInput(f"an address {reason}. Pass that of the client, as in '192.0.2.7'.")
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # of something else than IP, compared as it is
    return str(getattr(found, "ipv4_mapped", None) or found)


def _window(rate: Any) -> tuple[int, int]:
    count, per = rate if isinstance(rate, tuple) and len(rate) == 2 else (rate, _MINUTE)
    whole = isinstance(count, int) and not isinstance(count, bool) and count > 0
    if not whole or not isinstance(per, timedelta) or not timedelta(0) < per <= CHAIN_MAX:
        raise InvalidInput(
            f"a rate is a number of requests a minute, or (number, timedelta) up to 12 hours, not "
            f"{described(rate)}."
        )
    return count, per // _MICROSECOND


def _decoded(raw: bytes) -> TokenPayload:
    try:
        payload = _DECODER.decode(raw)
        if _ENCODER.encode(payload) != raw:  # a claim twice, an unknown one, another order
            raise TokenInvalid("its claims are not written as ours are")
        _ = payload.key, payload.principal
    except (msgspec.MsgspecError, UnicodeError, InvalidInput, RecursionError):
        raise TokenInvalid("its claims are not those of a session token") from None
    lifetime = payload.expires_us - payload.issued_us
    chain = payload.expires_us - payload.first_us
    bounds = LIFETIME_MAX // _MICROSECOND, CHAIN_MAX // _MICROSECOND
    if not 0 < lifetime <= bounds[0] + 1 or not lifetime <= chain <= bounds[1] + 1:
        raise TokenInvalid("it would live for longer than a token may")
    return payload


def _header(kid: str) -> str:
    """The only header that a token of this key has."""
    return _b64(msgspec.json.encode({"alg": _ALGORITHM, "kid": kid, "typ": "JWT"}))


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# --- reading keys ---------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.pem")) if path.is_dir() else [path]


def _seen(path: Path) -> object:
    """What shows that the keys have changed. None: nothing can be seen."""
    try:
        found = [(str(file), file.stat()) for file in _files(path)]
    except OSError:
        return None
    return [(name, at.st_mtime_ns, at.st_size, at.st_ino, at.st_mode) for name, at in found]


def _read(path: Path) -> list[OKPKey]:
    """The keys, the newest last. Raises KeysInvalid, which shows nothing of a key."""
    where = f"file://{path}"
    try:
        found = [key for file in _files(path) for key in _keys_of(file)]
    except FileNotFoundError:
        reason = f"there is no such file; limpet tokens new-key {path} makes one"
        raise KeysInvalid(where, reason) from None
    except OSError as error:
        raise KeysInvalid(where, f"{error.strerror}") from error
    if not found:
        reason = f"it holds no private key in PEM; limpet tokens new-key {path} adds one"
        raise KeysInvalid(where, reason)
    return found


def _keys_of(path: Path) -> Iterator[OKPKey]:
    where = f"file://{path}"
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        raw = file.read(_FILE_BYTES_MAX + 1)
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
