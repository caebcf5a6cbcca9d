"""Tokens: who may send requests for a session, and what each request has to pass.

A check goes through ten steps in one order: signature, expiry, revocation, session, user, address,
rate, anomaly, replay, rotation. The first that fails gives the answer, and the audit has it before
the caller does. Whether the token's scope covers the operation is decided between replay and
rotation: only a request that is authentic is authorized, and only one that is allowed rotates.

Revocations, nonces and counts are marks of the store: every process sees them in its next check,
and a restart keeps them until the tokens that they concern have expired.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from limpet.errors import (
    AccessDenied,
    InvalidInput,
    RequestSuspicious,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    TokenAddressMismatch,
    TokenError,
    TokenExpired,
    TokenInvalid,
    TokenReplayed,
    TokenRevoked,
    TokenSessionInvalid,
    TokenUserMismatch,
)
from limpet.model import Head, Key, described, to_time, unfit
from limpet.model.facts.moves import check_here, departure
from limpet.model.facts.phases import TERMINAL, archive_place, phase
from limpet.security.access import Principal, Resource
from limpet.security.request_limits import RateLimits, Recent, RequestHistory, digest
from limpet.security.tokens import (
    CHAIN_MAX,
    GRACE,
    LEEWAY_US,
    Claims,
    TokenPayload,
    TokenPolicy,
    check_address,
    check_lifetime,
    check_name,
    check_scope,
)
from limpet.session.arguments import AnyKey, key_of
from limpet.session.limpet import Limpet, journal_of
from limpet.store.marks import KeepsMarks
from limpet.store.protocol import SingleHeads

REVOKED: Final = "token.revoked"  # value: from when on, in microseconds; 0: revoked by hand
NONCES: Final = "token.nonce"
BOUND: Final = "token.bound"  # value: of the session's uid, of tokens that were not awaited
_LIFETIME: Final = timedelta(minutes=15)
_JTI_BYTES: Final = 32
_NONCE_CHARS_MAX: Final = 256
_MICROSECOND: Final = timedelta(microseconds=1)
# Marks outlive their token by this much: the clock that ends them may be ahead of ours.
_MARGIN_US: Final = 60_000_000
_READERS: Final = frozenset({"viewer", "auditor"})  # who may enter a session that has ended
_MINUTE_US: Final = 60_000_000
_NOWHERE: Final = Resource("store", "")  # of a request whose token cannot be believed


class Issued(str):
    """A token as `issue` returns it: a text at once, and awaited, a text that names the session.

    Without the await nothing was read, so it does not say yet which session has the key: the first
    check binds it to the one that is there, unless that was created later than the token.
    """

    __slots__ = ("_bind",)
    _bind: Callable[[], Coroutine[Any, Any, str]]

    def __new__(cls, text: str, bind: Callable[[], Coroutine[Any, Any, str]]) -> Issued:
        made = super().__new__(cls, text)
        made._bind = bind
        return made

    def __await__(self) -> Generator[Any, None, str]:
        return self._bind().__await__()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return (str, (str(self),))


class Tokens:
    """Issue, check, rotate and revoke the tokens of a store's sessions.

        tokens = limpet.Tokens(lp, signing="file:///etc/limpet/tokens.pem")
        token = await tokens.issue(key, principal)
        claims = await tokens.check(token, operation="read", address="192.0.2.7")

    `signing` names a PEM file of mode 0600 with Ed25519 keys, the newest last, or a directory of
    such files; `limpet tokens new-key FILE` makes one. All processes of a store use the same keys.
    """

    def __init__(self, lp: Limpet, *, signing: str, policy: TokenPolicy | None = None) -> None:
        if not isinstance(policy, TokenPolicy | None):
            raise InvalidInput(f"policy is a limpet.TokenPolicy, not {described(policy)}.")
        if not isinstance(lp, Limpet):
            raise InvalidInput(f"tokens are of an open limpet.Limpet, not of {described(lp)}.")
        self.policy = TokenPolicy() if policy is None else policy
        from limpet.security.signing_keys import SigningKeys  # needs the packages of an extra

        self._lp, self._keys = lp, SigningKeys(signing)
        store = journal_of(lp).store
        if not isinstance(store, KeepsMarks):
            raise InvalidInput("this store keeps no marks, which tokens need. Use another store.")
        self._marks = store.marks
        self._heads = store if isinstance(store, SingleHeads) else None
        self._rates, self._history = RateLimits(self._marks), RequestHistory(self._marks)
        self._bound = Recent[int]()

    def __repr__(self) -> str:
        return f"<limpet.Tokens of {self._lp!r}>"

    def issue(
        self,
        key: AnyKey,
        principal: Principal,
        *,
        scope: tuple[str, ...] = ("read", "write"),
        lifetime: timedelta = _LIFETIME,
        address: str | None = None,
    ) -> Issued:
        """Issue a token for a session and return it: `token = await tokens.issue(key, principal)`.

        It is valid for `lifetime`, at most 15 minutes, and only from `address` if one is given.
        Awaited, it is bound to the session that has this key now, or raises SessionNotFound,
        SessionDeleted, SessionErased or SessionMoved. Without await it can be used as it is, and
        its first check binds it. Every check decides who may use it. Raises InvalidInput.
        """
        if not isinstance(principal, Principal):
            raise InvalidInput(f"principal is a limpet.Principal, not {described(principal)}.")
        session, now_us = key_of(key), journal_of(self._lp).store.now_us()
        jti = secrets.token_urlsafe(_JTI_BYTES)
        payload = TokenPayload(
            jti=jti,
            iat=now_us / 1e6,
            exp=(now_us + check_lifetime(lifetime)) / 1e6,
            first=now_us / 1e6,
            chain=jti,
            app=session.app,
            user=session.user,
            session=session.id,
            after=journal_of(self._lp).new_id(),
            sub=principal.id,
            role=principal.role,
            principal_app=principal.app,
            principal_user=principal.user,
            task=principal.task,
            attributes=_plain(principal),
            scope=check_scope(scope),
            address=check_address(address),
        )
        return Issued(self._keys.sign(payload), partial(self._name_session, payload))

    async def check(
        self,
        token: str,
        *,
        operation: str,
        address: str | None = None,
        nonce: str | None = None,
        session_id: str | None = None,
    ) -> Claims:
        """Check a request; the audit has every refusal before the caller does.

        Raises, in this order, TokenInvalid, TokenExpired, TokenRevoked, TokenSessionInvalid,
        TokenUserMismatch, TokenAddressMismatch, RateLimited, RequestSuspicious, TokenReplayed; then
        AccessDenied if the operation needs another scope. `nonce` is a text that the client uses
        once. `session_id` is the session of the request: TokenUserMismatch if the token is for
        another one. A sensitive operation rotates the token: send `claims.rotated` back if it is
        set.
        """
        check_name("an operation", operation)
        nonce, address = _check_nonce(nonce), check_address(address)
        payload: TokenPayload | None = None
        try:
            payload = self._keys.opened(token)
            named = payload.key.id if session_id is None else session_id
            return await self._passed(payload, named, operation, address, nonce)
        except (TokenError, AccessDenied) as refusal:
            code = refusal.audit_code if isinstance(refusal, TokenError) else refusal.denial
            await self._record(payload, operation, address, allowed=False, code=code)
            raise

    async def rotate(self, token: str) -> str:
        """Replace a token; the old one stays valid for 30 seconds.

        The new one has the same lifetime and expires at most 12 hours after the first of its chain
        (TokenExpired afterwards). A token is replaced once: TokenRevoked if it was replaced before.
        Raises as the first four steps of `check` do.
        """
        payload: TokenPayload | None = None
        try:
            payload = self._keys.opened(token)
            now_us = self._check_time(payload)
            uid = uid_of(await self._live(payload, now_us))
            rotated = await self._rotated(payload, uid, now_us)
            if rotated is None:
                raise TokenRevoked
            return rotated
        except TokenError as refusal:
            await self._record(payload, "rotate", None, allowed=False, code=refusal.audit_code)
            raise

    async def revoke(self, token: str, *, chain: bool = False) -> None:
        """Refuse a token from now on, in every process. Repeating it is harmless.

        With chain=True, every other token rotated from the same first one is refused too. Raises
        TokenInvalid if the token does not belong to this store.
        """
        journal_of(self._lp).check_open()
        try:
            payload = self._keys.opened(token)
        except TokenInvalid as refusal:
            await self._record(None, "revoke", None, allowed=False, code=refusal.audit_code)
            raise
        await self._record(payload, "revoke", None, allowed=True, code=None)
        await self._marks.put(REVOKED, payload.jti, payload.expires_us + _MARGIN_US, 0)
        if chain:  # the first token looks for itself alone, the others for the chain too
            until_us = payload.first_us + CHAIN_MAX // _MICROSECOND + _MARGIN_US
            await self._marks.put(REVOKED, _chain(payload), until_us, 0)
            await self._marks.put(REVOKED, payload.chain, until_us, 0)

    # --- the steps -------------------------------------------------------------------------------

    async def _passed(
        self,
        payload: TokenPayload,
        named: str,
        operation: str,
        address: str | None,
        nonce: str | None,
    ) -> Claims:
        now_us = self._check_time(payload)
        head = await self._live(payload, now_us)
        _check_user(payload, head)
        if named != payload.key.id:
            raise TokenUserMismatch(payload.sub)
        if payload.address is not None and payload.address != address:
            raise TokenAddressMismatch
        uid = uid_of(head)
        signals = await self._usual(payload, uid, operation, address, now_us)
        await self._check_replay(payload, uid, nonce)
        needed = self.policy.scope_for(operation)
        if needed is not None and needed not in payload.scope:
            of = str(Resource.of(payload.key))
            raise AccessDenied("access_denied", operation, of, scope=needed)
        rotated = None
        if operation in self.policy.sensitive:
            rotated = await self._rotated(payload, uid, now_us)
        return payload.claims(uid, signals, rotated)

    def _check_time(self, payload: TokenPayload) -> int:
        """The time by the store's clock, which all processes share."""
        now_us = journal_of(self._lp).store.now_us()
        if payload.issued_us > now_us + LEEWAY_US:
            raise TokenInvalid("it was issued in the future")
        if payload.expires_us <= now_us:
            raise TokenExpired(to_time(payload.expires_us))
        return now_us

    async def _live(self, payload: TokenPayload, now_us: int) -> Head:
        """The session of a token that is not revoked."""
        if await self._is_revoked(payload, now_us):
            raise TokenRevoked
        try:
            head = await self._head(payload.key)
        except (SessionNotFound, SessionDeleted, SessionErased):
            raise TokenSessionInvalid("is not there any more") from None
        if not await self._is_bound(payload, head):
            raise TokenSessionInvalid("was replaced by another one")
        if departure(head.facts) is not None:
            raise TokenSessionInvalid("has moved to another node")
        if phase(head.facts) in TERMINAL and payload.role not in _READERS:
            raise TokenSessionInvalid(f"is {phase(head.facts)}")
        return head

    async def _is_revoked(self, payload: TokenPayload, now_us: int) -> bool:
        """True if the token was revoked, was rotated 30 seconds ago, or is of a revoked chain."""
        for name in (payload.jti, _chain(payload)):
            mark = await self._marks.get(REVOKED, name)
            if mark is not None and mark.value <= now_us:
                return True
            if payload.chain == payload.jti:
                break
        return False

    async def _is_bound(self, payload: TokenPayload, head: Head) -> bool:
        """True if the token means this session. One that names none is bound to it now."""
        uid = uid_of(head)
        if payload.uid is not None:
            return payload.uid == uid
        if (head.created_us, uid) > (payload.issued_us, payload.after or ""):
            return False
        value = int.from_bytes(sha256(uid.encode()).digest()[:7])
        known = self._bound.get(payload.jti)
        if known is None:
            until_us = payload.expires_us + _MARGIN_US
            known = value
            if not await self._marks.once(BOUND, payload.jti, until_us, value):
                mark = await self._marks.get(BOUND, payload.jti)
                known = -1 if mark is None else mark.value
            self._bound.put(payload.jti, known)
        return known == value

    async def _usual(
        self, payload: TokenPayload, uid: str, operation: str, address: str | None, now_us: int
    ) -> tuple[str, ...]:
        """Count the request; in which ways it is unlike the session's others."""
        limit, in_window = self.policy.limit(operation), 0
        if limit is not None:
            in_window = await self._rates.take(uid, operation, limit, now_us)
        per_us = _MINUTE_US if limit is None else limit[1]
        signals = await self._history.signals(
            uid, operation, address, in_window=in_window, per_us=per_us, now_us=now_us
        )
        if signals and self.policy.anomaly == "block":
            raise RequestSuspicious(signals)
        if signals:
            code = RequestSuspicious.audit_code
            await self._record(payload, operation, address, allowed=True, code=code)
        await self._history.note(uid, operation, address, now_us)
        return signals

    async def _check_replay(self, payload: TokenPayload, uid: str, nonce: str | None) -> None:
        """A request that was captured is of use as long as its token: so long its nonce is kept."""
        if nonce is None:
            if self.policy.nonces == "required":
                raise TokenReplayed("has no nonce")
            return
        name = digest(uid, payload.sub, nonce)
        if not await self._marks.once(NONCES, name, payload.expires_us + _MARGIN_US):
            raise TokenReplayed

    async def _rotated(self, payload: TokenPayload, uid: str, now_us: int) -> str | None:
        """The one token that replaces this one; None if another request has got it."""
        end_us = payload.first_us + CHAIN_MAX // _MICROSECOND
        if end_us <= now_us:
            raise TokenExpired(to_time(end_us))
        lifetime_us = payload.expires_us - payload.issued_us
        successor = replace(
            payload,
            jti=secrets.token_urlsafe(_JTI_BYTES),
            iat=now_us / 1e6,
            exp=min(now_us + lifetime_us, end_us) / 1e6,
            uid=uid,
            after=None,
        )
        text = self._keys.sign(successor)
        revoked_us = now_us + GRACE // _MICROSECOND
        until_us = payload.expires_us + _MARGIN_US
        return text if await self._marks.once(REVOKED, payload.jti, until_us, revoked_us) else None

    async def _name_session(self, payload: TokenPayload) -> str:
        """The token of a payload, with the session that has its key now."""
        head = await self._head(payload.key)
        check_here(head.key, head.facts)
        return self._keys.sign(replace(payload, uid=uid_of(head), after=None))

    # --- the store -------------------------------------------------------------------------------

    async def _head(self, key: Key) -> Head:
        if self._heads is not None:  # no state has to be read, nor opened with a key
            return await self._heads.head(key)
        return (await journal_of(self._lp).store.load(key, tail=0, scopes=False)).head

    async def _record(
        self,
        payload: TokenPayload | None,
        operation: str,
        address: str | None,
        *,
        allowed: bool,
        code: str | None,
    ) -> None:
        """Have the audit record it, durably. If that fails, its StoreError is the answer."""
        principal = None if payload is None else payload.principal
        resource = _NOWHERE if payload is None else Resource.of(payload.key)
        await journal_of(self._lp).audit.record(
            principal, operation, resource, allowed=allowed, code=code, address=address
        )


async def is_good(tokens: Tokens, token: str) -> bool:
    """True if a token that was let in before would still be: for what lasts longer than a request.
    Counts nothing, and the audit has no record of it."""
    try:
        payload = tokens._keys.opened(token)
        await tokens._live(payload, tokens._check_time(payload))
    except TokenError:
        return False
    return True


def uid_of(head: Head) -> str:
    """The uid of a session, also where only the stub of its archive file is left."""
    place = archive_place(head.facts)
    return head.uid if place is None else str(place["uid"])


def _chain(payload: TokenPayload) -> str:
    return f"chain:{payload.chain}"


def _check_user(payload: TokenPayload, head: Head) -> None:
    """The principal may enter the session: by its app, and as its user or one it is shared with."""
    key = head.key
    if payload.principal_app not in (None, key.app):
        raise TokenUserMismatch(payload.sub)
    isolation = head.isolation
    if isolation.model != "global" and (
        payload.principal_user not in (None, key.user, *isolation.users)
    ):
        raise TokenUserMismatch(payload.sub)


def _check_nonce(nonce: str | None) -> str | None:
    if nonce is not None and (reason := unfit(nonce, _NONCE_CHARS_MAX)):
        raise InvalidInput(f"a nonce {reason}. Pass a text that the client uses once.")
    return nonce


def _plain(principal: Principal) -> dict[str, Any]:
    """The attributes of a principal as they are written into a token. Raises InvalidInput."""
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(principal.attributes)), type=dict)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        reason = f"the attributes of a principal that gets a token are plain JSON: {error}."
        raise InvalidInput(reason) from None
