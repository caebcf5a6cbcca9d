"""Session tokens: what one says, and the policy for requests that carry one.

A token is a JWT signed with Ed25519 (`signing_keys`). What happens to a request that carries one is
in `session/tokens.py`; what requests leave behind is in `request_limits`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput, TokenInvalid
from limpet.model import FrozenDict, Key, described, to_time, unfit
from limpet.security.access import SENSITIVE, Principal, Role

LIFETIME_MAX: Final = timedelta(minutes=15)
CHAIN_MAX: Final = timedelta(hours=12)  # from the first token to the end of the last rotated one
_MINUTE: Final = timedelta(minutes=1)
_MICROSECOND: Final = timedelta(microseconds=1)
GRACE: Final = timedelta(seconds=30)  # how long a token is good after it was rotated
LEEWAY_US: Final = 5_000_000  # how far ahead of the store's clock a token may be issued
_NAME_CHARS_MAX: Final = 128  # of an operation or a scope
_SCOPES_MAX: Final = 32
_READS: Final = frozenset({"read", "inspect", "audit"})

Rate: TypeAlias = int | tuple[int, timedelta]  # so many a minute, or in so long a time


# Operations of whoever holds a token, in any scope.
OF_HOLDERS: Final = frozenset({"rotate_token", "revoke_token"})


class TokenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for requests with tokens.

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
        """Return the limit as requests per microseconds; None without a limit."""
        rate = self.rate
        if isinstance(rate, Mapping):
            rate = rate.get(operation, rate.get("*"))
        return None if rate is None else _window(rate)

    def scope_for(self, operation: str) -> str | None:
        """The scope that a token needs for this operation; None: its holder needs none."""
        if operation in OF_HOLDERS and operation not in self.scopes:
            return None
        return self.scopes.get(operation, "read" if operation in _READS else "write")


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token whose request passed every check."""

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

    def __repr__(self) -> str:
        """Without the new token: what is logged must not let anybody in."""
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__[:-1]]
        return f"Claims({', '.join(shown)}, rotated={'None' if self.rotated is None else '…'})"


class TokenPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The signed payload. Times are seconds since 1970, as in any JWT, down to the microsecond."""

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
        """Return the claims for the caller of a check."""
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
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # of something else than IP, compared as it is
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _window(rate: Any) -> tuple[int, int]:
    count, per = rate if isinstance(rate, tuple) and len(rate) == 2 else (rate, _MINUTE)
    whole = isinstance(count, int) and not isinstance(count, bool) and count > 0
    if not whole or not isinstance(per, timedelta) or not timedelta(0) < per <= CHAIN_MAX:
        raise InvalidInput(
            f"a rate is a number of requests a minute, or (number, timedelta) up to 12 hours, not "
            f"{described(rate)}."
        )
    return count, per // _MICROSECOND


def encoded_payload(payload: TokenPayload) -> bytes:
    """A payload in the one form that is accepted."""
    return _ENCODER.encode(payload)


def decoded_payload(raw: bytes) -> TokenPayload:
    """Return the signed payload if it has our form. Raises TokenInvalid."""
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
