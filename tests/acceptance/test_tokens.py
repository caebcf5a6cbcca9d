"""Tokens: what a request has to pass, in which order, and that every process agrees."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import HealthCheck, given, settings, strategies as st

import limpet
from limpet import Isolation, Limpet, Principal, TokenPolicy, Tokens
from limpet.errors import (
    AccessDenied,
    InvalidInput,
    KeysInvalid,
    RateLimited,
    RequestSuspicious,
    SessionMoved,
    SessionNotFound,
    StoreClosed,
    StoreFull,
    TokenAddressMismatch,
    TokenError,
    TokenExpired,
    TokenInvalid,
    TokenReplayed,
    TokenRevoked,
    TokenSessionInvalid,
    TokenUserMismatch,
)
from limpet.model import Key
from limpet.security.request_limits import HISTORY, RATE, digest
from limpet.security.tokens import TokenPayload
from limpet.session.limpet import journal_of
from limpet.session.tokens import BOUND, NONCES
from limpet.store.memory.store import MemoryStore
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support.processes import Child

pytest.importorskip("joserfc")  # of the extra "security"
from limpet.security.signing_keys import SigningKeys, new_signing_key  # needs it

ADA = Principal("user:ada", role="owner", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
VIEWER = Principal("user:eve", role="viewer", app="support", user="ada")
KEY = Key("support", "ada", "c1")


def write_pem(path: Path, *blocks: bytes, mode: int = 0o600) -> str:
    """The URL of a file with these keys."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(b"".join(blocks or (new_signing_key(),)))
    return f"file://{path}"


@pytest.fixture
def signing(tmp_path: Path) -> str:
    return write_pem(tmp_path / "tokens.pem")


@pytest.fixture
def tokens(lp: Limpet, signing: str) -> Tokens:
    """On every store."""
    return Tokens(lp, signing=signing)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def still(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Any:
    """Limpet on a store whose clock stands still, with the session c1."""
    store: Any = MemoryStore(clock.clock())
    if request.param == "sqlite":
        store = await SQLiteStore.open(tmp_path / "s.db", sync="normal", clock=clock.clock())
    async with Limpet("memory://", store=store) as lp:
        await lp.create("support", "ada", "c1")
        yield lp


def parts(token: str) -> list[Any]:
    """Header and payload as dicts, and the signature."""
    header, payload, signature = token.split(".")
    return [*(json.loads(unb64(part)) for part in (header, payload)), signature]


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def signed(signing: str, header: bytes, payload: bytes) -> str:
    """Any header and payload, signed with the key of the store."""
    pem = Path(signing.removeprefix("file://")).read_bytes()
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    text = f"{b64(header)}.{b64(payload)}"
    return f"{text}.{b64(key.sign(text.encode()))}"


def changed(signing: str, token: str, **fields: Any) -> str:
    """A token with other claims, signed with the key of the store."""
    payload = msgspec.json.decode(unb64(token.split(".")[1]), type=TokenPayload)
    return SigningKeys(signing).sign(msgspec.structs.replace(payload, **fields))


async def refusal(tokens: Tokens, token: str, **request: Any) -> TokenError:
    """The error of a check."""
    with pytest.raises(TokenError) as raised:
        await tokens.check(token, **{"operation": "read", **request})
    return raised.value


# --- a token that is good -------------------------------------------------------------------------


async def test_a_token_says_who_may_do_what_in_which_session(lp: Limpet, tokens: Tokens) -> None:
    """Claims carry the principal as it was given, and the uid of the session."""
    principal = Principal(
        "user:ada", role="owner", app="support", user="ada", task="t1", attributes={"tier": [1]}
    )
    session = await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, principal, address="2001:db8::7")
    claims = await tokens.check(token, operation="read", address="2001:DB8:0::7", nonce="n1")
    assert (claims.key, claims.uid, claims.principal) == (KEY, session.head.uid, principal)
    assert claims.scope == ("read", "write")
    assert claims.expires - claims.issued == timedelta(minutes=15)
    assert (claims.rotated, claims.signals) == (None, ())
    header, payload, _ = parts(token)
    assert header["alg"] == "Ed25519"
    assert len(unb64(payload["jti"])) == 32


async def test_a_token_can_be_used_with_and_without_await(lp: Limpet, tokens: Tokens) -> None:
    """Without await it is bound to the session by its first check."""
    session = await lp.create("support", "ada", "c1")
    token = tokens.issue(KEY, ADA)
    assert isinstance(token, str)
    assert (await tokens.check(token, operation="write")).uid == session.head.uid
    awaited = await token
    assert type(awaited) is str
    assert parts(awaited)[1]["uid"] == session.head.uid
    assert type(copy.copy(token)) is str
    with pytest.raises(SessionNotFound):
        await tokens.issue(("support", "ada", "missing"), ADA)


async def test_a_lifetime_is_bounded(lp: Limpet, tokens: Tokens) -> None:
    """Fifteen minutes at most, and more than nothing."""
    for lifetime in (timedelta(minutes=15, microseconds=1), timedelta(0), timedelta(-1), 900, None):
        with pytest.raises(InvalidInput):
            tokens.issue(KEY, ADA, lifetime=lifetime)  # type: ignore[arg-type]


async def test_what_is_issued_wrongly_is_refused(lp: Limpet, tokens: Tokens, signing: str) -> None:
    """Each argument has an error that names it."""
    wrong: list[dict[str, Any]] = [
        {"scope": ()},
        {"scope": "read"},
        {"scope": ("",)},
        {"scope": (1,)},
        {"scope": tuple(map(str, range(33)))},
        {"address": ""},
        {"address": 7},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInput):
            tokens.issue(KEY, ADA, **arguments)
    with pytest.raises(InvalidInput):
        tokens.issue(KEY, "user:ada")  # type: ignore[arg-type]
    large = Principal("user:ada", role="owner", attributes={"a": "x" * 5_000})
    with pytest.raises(InvalidInput, match="fewer attributes"):
        tokens.issue(KEY, large)
    with pytest.raises(InvalidInput):
        tokens.issue(KEY, Principal("user:ada", role="owner", attributes={"a": object()}))
    for request in ({"operation": ""}, {"operation": "read", "nonce": ""}, {"operation": None}):
        with pytest.raises(InvalidInput):
            await tokens.check("x", **request)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Tokens(lp, signing=signing, policy={})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Tokens("memory://", signing=signing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rate": 0},
        {"rate": True},
        {"rate": (5, 5)},
        {"rate": (5, timedelta(0))},
        {"rate": {"read": None}},
        {"rate": "5/minute"},
        {"anomaly": "ignore"},
        {"nonces": True},
        {"sensitive": "erase"},
        {"sensitive": (1,)},
        {"scopes": {"read": ""}},
        {"scopes": "read"},
    ],
    ids=str,
)
def test_a_policy_is_checked_when_it_is_made(arguments: dict[str, Any]) -> None:
    """Each field has an error that names it."""
    with pytest.raises(InvalidInput):
        TokenPolicy(**arguments)


# --- forged ---------------------------------------------------------------------------------------


async def test_what_another_key_signed_is_refused(
    lp: Limpet, tokens: Tokens, tmp_path: Path
) -> None:
    """Also with the kid of ours, and with its own key in the header."""
    await lp.create("support", "ada", "c1")
    foreign = write_pem(tmp_path / "foreign.pem")
    token = await Tokens(lp, signing=foreign).issue(KEY, ADA)
    ours = await tokens.issue(KEY, ADA)
    header, body, signature = token.split(".")
    with_kid = f"{ours.split('.')[0]}.{body}.{signature}"
    jwk = json.dumps({**parts(ours)[0], "jwk": {"kty": "OKP"}}).encode()
    with_key = signed(foreign, jwk, unb64(body))
    for forged in (token, with_kid, with_key, f"{header}.{ours.split('.')[1]}.{signature}"):
        error = await refusal(tokens, forged)
        assert type(error) is TokenInvalid
        assert error.audit_code == "invalid_token_signature"


async def test_no_other_algorithm_is_accepted(lp: Limpet, tokens: Tokens, signing: str) -> None:
    """`none`, HS256 with the public key, EdDSA, duplicates: also if our key signed it."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    header, body = parts(token)[0], unb64(token.split(".")[1])
    headers = [{**header, "alg": alg} for alg in ("none", "HS256", "EdDSA", "Ed448", "ed25519", "")]
    headers += [{**header, "crit": ["b64"]}, {**header, "typ": "at+jwt"}, {"alg": "Ed25519"}]
    raw = [json.dumps(each, separators=(",", ":")).encode() for each in headers]
    raw += [b'{"alg":"none",' + unb64(token.split(".")[0])[1:], b"{}", b"[]", b"\xff", b"null"]
    raw += [json.dumps(header).encode()]  # ours, with spaces
    for each in raw:
        assert type(await refusal(tokens, signed(signing, each, body))) is TokenInvalid
    assert type(await refusal(tokens, f"{b64(raw[0])}.{b64(body)}.")) is TokenInvalid
    assert type(await refusal(tokens, f"{b64(raw[0])}.{b64(body)}")) is TokenInvalid


async def test_claims_are_those_that_we_write(lp: Limpet, tokens: Tokens, signing: str) -> None:
    """Signed with our key: claims twice, unknown, of another type, or beyond our bounds."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    head, body = unb64(token.split(".")[0]), unb64(token.split(".")[1])
    claims = json.loads(body)
    wrong = [
        b'{"jti":"x",' + body[1:],
        body[:-1] + b',"role":"admin"}',
        body[:-1] + b',"admin":true}',
        json.dumps(claims).encode(),
        json.dumps({**claims, "exp": claims["exp"] + 1}, separators=(",", ":")).encode(),
        json.dumps({**claims, "role": "root"}, separators=(",", ":")).encode(),
        json.dumps({**claims, "app": "$documents"}, separators=(",", ":")).encode()[:-1],
        b"",
        b"1",
        b"[" * 2_000,
    ]
    for raw in wrong:
        assert type(await refusal(tokens, signed(signing, head, raw))) is TokenInvalid
    late = claims["first"] - 12 * 3_600
    assert type(await refusal(tokens, changed(signing, token, first=late))) is TokenInvalid


@pytest.mark.parametrize(
    "text",
    [None, 7, b"a.b.c", "", "a.b.c", ".." * 9, "a" * 5_000, "é.b.c", "a.b.c.d", " a.b.c", "\0"],
    ids=repr,
)
async def test_what_is_no_token_is_refused(lp: Limpet, tokens: Tokens, text: Any) -> None:
    """Of any type and size."""
    assert type(await refusal(tokens, text)) is TokenInvalid
    with pytest.raises(TokenInvalid):
        await tokens.rotate(text)
    with pytest.raises(TokenInvalid):
        await tokens.revoke(text)


async def test_a_token_has_one_spelling(lp: Limpet, tokens: Tokens) -> None:
    """The unused bits of base64 are zero, nothing is around it and nothing in between."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    last = "AQgw".index(token[-1])  # 86 characters hold 516 bits, of which 512 count
    spellings = [token[:-1] + chr(ord("AQgw"[last]) + 1), token + "=", token + "\n", f" {token}"]
    spellings += [token.replace(".", ".="), token.replace(".", "..", 1), token[:-1]]
    for each in spellings:
        assert type(await refusal(tokens, each)) is TokenInvalid
    await tokens.check(token, operation="read")


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_a_changed_token_is_never_accepted(data: st.DataObject, tmp_path: Path) -> None:
    """Any character replaced, removed or added anywhere: TokenInvalid, and nothing else."""
    path = tmp_path / "tokens.pem"
    keys = SigningKeys(f"file://{path}" if path.exists() else write_pem(path))
    payload = TokenPayload(
        jti="j", iat=1.5, exp=2.5, first=1.5, chain="j", app="a", user="u", session="s", sub="p",
        role="owner", scope=("read",),
    )  # fmt: skip
    token = keys.sign(payload)
    assert keys.opened(token) == payload
    at = data.draw(st.integers(0, len(token)))
    letters = st.sampled_from("ABCXYZabcxyz019-_.=+/ é\0")
    text = data.draw(st.text(letters, max_size=3))
    end = data.draw(st.integers(at, min(len(token), at + 3)))
    mutant = token[:at] + text + token[end:]
    if mutant != token:
        with pytest.raises(TokenInvalid):
            keys.opened(mutant)


# --- the order of the steps -----------------------------------------------------------------------


async def _expired(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    payload = parts(token)[1]
    times = {name: payload[name] - 10_000 for name in ("iat", "exp", "first")}
    return changed(signing, token, **times)


async def _revoked(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    await tokens.revoke(token)
    return token


async def _ended(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    await lp.delete(KEY)
    return token


async def _foreign_user(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    return changed(signing, token, principal_user="bob")


async def _elsewhere(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    return changed(signing, token, address="192.0.2.9")


async def _too_many(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:
    store: Any = journal_of(lp).store
    uid = (await lp.get(KEY)).head.uid if await lp.find(KEY) else "none"

    await store.marks.add(RATE, digest(uid, "read"), store.now_us() + 10**9, 10**6)
    return token


async def _strange(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:

    store: Any = journal_of(lp).store
    uid = (await lp.get(KEY)).head.uid if await lp.find(KEY) else "none"
    await store.marks.add(HISTORY, digest(uid, ""), store.now_us() + 6 * 10**11, 1_000)
    return token


async def _replayed(lp: Limpet, tokens: Tokens, signing: str, token: str) -> str:

    store: Any = journal_of(lp).store
    uid = (await lp.get(KEY)).head.uid if await lp.find(KEY) else "none"
    await store.marks.once(NONCES, digest(uid, ADA.id, "n1"), store.now_us() + 10**9)
    return token


STEPS: list[tuple[Any, type[TokenError], str]] = [
    (_expired, TokenExpired, "expired_token"),
    (_revoked, TokenRevoked, "revoked_token"),
    (_ended, TokenSessionInvalid, "invalid_session"),
    (_foreign_user, TokenUserMismatch, "user_session_mismatch"),
    (_elsewhere, TokenAddressMismatch, "ip_mismatch"),
    (_too_many, RateLimited, "rate_limited"),
    (_strange, RequestSuspicious, "anomalous_request"),
    (_replayed, TokenReplayed, "replayed_request"),
]


@pytest.mark.parametrize("at", range(len(STEPS)), ids=[each[2] for each in STEPS])
async def test_the_first_step_that_fails_gives_the_answer(
    lp: Limpet, signing: str, at: int
) -> None:
    """A request that is wrong in this way and in all later ones, and out of scope, gets this
    error; with a wrong signature as well, that of the signature."""
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing, policy=TokenPolicy(anomaly="block"))
    token: str = await tokens.issue(KEY, ADA, scope=("nothing",))
    for spoil, _, _ in reversed(STEPS[at:]):
        token = await spoil(lp, tokens, signing, token)
    error = await refusal(tokens, token, nonce="n1", address="192.0.2.1")
    assert (type(error), error.audit_code) == STEPS[at][1:]
    (record,) = (await lp.audit(denied=True)).items
    found = (record.code, record.principal, record.action, record.address, record.resource)
    assert found == (error.audit_code, "user:ada", "read", "192.0.2.1", str(KEY))
    header, body, signature = token.split(".")
    other = ("A" if signature[0] != "A" else "B") + signature[1:]
    error = await refusal(tokens, f"{header}.{body}.{other}", nonce="n1", address="192.0.2.1")
    assert type(error) is TokenInvalid
    record = (await lp.audit(denied=True)).items[0]
    assert (record.code, record.address) == ("invalid_token_signature", "192.0.2.1")
    assert "ada" not in record.principal + record.resource  # nothing of it can be believed


async def test_a_wrong_scope_is_denied_after_everything_else(lp: Limpet, tokens: Tokens) -> None:
    """AccessDenied, and the token is not rotated."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA, scope=("read",))
    assert (await tokens.check(token, operation="inspect")).rotated is None
    for operation in ("write", "erase", "anything"):
        with pytest.raises(AccessDenied) as raised:
            await tokens.check(token, operation=operation)
        assert raised.value.action == operation
    assert await tokens.rotate(token)  # not rotated by the erase that was denied
    denied = (await lp.audit(denied=True)).items
    assert {(each.action, each.code) for each in denied} == {
        (operation, "access_denied") for operation in ("write", "erase", "anything")
    }


async def test_a_refusal_that_cannot_be_recorded_is_no_answer(
    lp: Limpet, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit comes first: without it the caller gets the error of the store, and no entry."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    await tokens.revoke(token)
    audit = journal_of(lp).audit

    async def full(*_: Any, **__: Any) -> None:
        raise StoreFull("here")

    monkeypatch.setattr(audit, "record", full)
    for each in (token, "x.y.z"):
        with pytest.raises(StoreFull):
            await tokens.check(each, operation="read")


async def test_what_is_flagged_and_revoked_is_recorded(lp: Limpet, tokens: Tokens) -> None:
    """As allowed, with the code of the anomaly."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    for _ in range(25):
        await tokens.check(token, operation="read")
    assert (await lp.audit()).items == ()  # a request that passes is not recorded
    await tokens.check(token, operation="erase", address="192.0.2.1")
    await tokens.revoke(token)
    found = [(each.action, each.allowed, each.code) for each in (await lp.audit()).items]
    assert found == [("revoke", True, None), ("erase", True, "anomalous_request")]
    with pytest.raises(TokenRevoked):
        await tokens.rotate(token)
    newest = (await lp.audit()).items[0]
    assert (newest.action, newest.code) == ("rotate", "revoked_token")


async def test_scopes_are_named_by_the_policy(lp: Limpet, signing: str) -> None:
    """An operation needs the scope that the policy gives it."""
    await lp.create("support", "ada", "c1")
    policy = TokenPolicy(scopes={"refund": "money"}, sensitive=("refund",))
    tokens = Tokens(lp, signing=signing, policy=policy)
    with pytest.raises(AccessDenied):
        await tokens.check(await tokens.issue(KEY, ADA), operation="refund")
    rich = await tokens.issue(KEY, ADA, scope=("money",))
    assert (await tokens.check(rich, operation="refund")).rotated is not None


# --- time -----------------------------------------------------------------------------------------


async def test_a_token_expires_by_the_clock_of_the_store(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    """At its end and not before; a token from the future is refused beyond five seconds."""
    tokens = Tokens(still, signing=signing)
    token = await tokens.issue(KEY, ADA, lifetime=timedelta(minutes=1))
    clock.advance(timedelta(minutes=1, microseconds=-1))
    await tokens.check(token, operation="read")
    clock.advance(timedelta(microseconds=1))
    error = await refusal(tokens, token)
    assert isinstance(error, TokenExpired)
    assert error.at == datetime(2030, 1, 1, 0, 1, tzinfo=UTC)
    ahead = await tokens.issue(KEY, ADA)
    clock.leap(timedelta(seconds=-5))
    await tokens.check(ahead, operation="read")
    clock.leap(timedelta(microseconds=-1))
    assert type(await refusal(tokens, ahead)) is TokenInvalid


async def test_a_rotated_token_is_good_for_thirty_seconds(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    """Then it is revoked until it expires, and does not work again (C12)."""
    tokens = Tokens(still, signing=signing)
    old = await tokens.issue(KEY, ADA)
    new = await tokens.rotate(old)
    clock.advance(timedelta(seconds=30, microseconds=-1))
    for token in (old, new):
        await tokens.check(token, operation="read")
    clock.advance(timedelta(microseconds=1))
    for _ in range(14):
        assert type(await refusal(tokens, old)) is TokenRevoked
        clock.advance(timedelta(minutes=1))
    assert type(await refusal(tokens, old)) is TokenRevoked
    await tokens.check(new, operation="read")
    clock.advance(timedelta(minutes=1))
    assert type(await refusal(tokens, old)) is TokenExpired
    assert type(await refusal(tokens, new)) is TokenExpired


async def test_a_chain_of_rotations_ends_after_twelve_hours(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    """From the first token on, whatever is rotated in between."""
    tokens = Tokens(still, signing=signing)
    token: str = await tokens.issue(KEY, ADA)
    start = clock.now_us
    for _ in range(12 * 6 - 1):
        clock.advance(timedelta(minutes=10))
        token = await tokens.rotate(token)
        await tokens.check(token, operation="read")
    claims = await tokens.check(token, operation="erase")
    assert claims.first_issued == datetime(2030, 1, 1, tzinfo=UTC)
    assert claims.expires == datetime(2030, 1, 1, 12, tzinfo=UTC)
    last = claims.rotated or ""
    clock.advance(timedelta(minutes=10, microseconds=-1))
    await tokens.check(last, operation="read")
    clock.advance(timedelta(microseconds=1))
    assert clock.now_us - start == 12 * 3_600 * 1_000_000
    assert type(await refusal(tokens, last)) is TokenExpired
    with pytest.raises(TokenExpired):
        await tokens.rotate(last)


async def test_a_clock_that_is_set_back_unrevokes_nothing(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    tokens = Tokens(still, signing=signing)
    token = await tokens.issue(KEY, ADA)
    clock.advance(timedelta(seconds=10))
    await tokens.revoke(token)
    clock.leap(timedelta(seconds=-10))
    assert type(await refusal(tokens, token)) is TokenRevoked


# --- rotation and revocation ----------------------------------------------------------------------


async def test_a_sensitive_operation_rotates_the_token(lp: Limpet, tokens: Tokens) -> None:
    """The claims carry the new one; it says the same, with another id."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA, address="192.0.2.1", scope=("read", "write", "more"))
    claims = await tokens.check(token, operation="erase", address="192.0.2.1")
    assert claims.rotated is not None
    assert claims.rotated not in repr(claims)
    new = await tokens.check(claims.rotated, operation="read", address="::ffff:192.0.2.1")
    same = ("uid", "principal", "scope", "address", "first_issued", "key")
    assert [getattr(new, name) for name in same] == [getattr(claims, name) for name in same]
    assert new.id != claims.id
    assert type(await refusal(tokens, claims.rotated)) is TokenAddressMismatch
    # The old one is in its grace, and has its one successor already.
    assert (await tokens.check(token, operation="erase", address="192.0.2.1")).rotated is None
    with pytest.raises(TokenRevoked):
        await tokens.rotate(token)


async def test_a_rotated_token_names_its_session(lp: Limpet, tokens: Tokens) -> None:
    """Also if the first one was not awaited."""
    session = await lp.create("support", "ada", "c1")
    new = await tokens.rotate(tokens.issue(KEY, ADA))
    payload = parts(new)[1]
    assert payload["uid"] == session.head.uid
    assert "after" not in payload


async def test_of_many_rotations_of_one_token_one_succeeds(lp: Limpet, tokens: Tokens) -> None:
    """A stolen token cannot be multiplied."""
    await lp.create("support", "ada", "c1")
    token = await tokens.issue(KEY, ADA)
    found = await asyncio.gather(*[tokens.rotate(token) for _ in range(8)], return_exceptions=True)
    assert sorted(type(each).__name__ for each in found) == ["TokenRevoked"] * 7 + ["str"]


async def test_a_revoked_token_is_refused_everywhere(
    url: str, lp: Limpet, tokens: Tokens, signing: str
) -> None:
    """By another object on the same store at its next check, and after a restart."""
    await lp.create("support", "ada", "c1")
    token, other = await tokens.issue(KEY, ADA), await tokens.issue(KEY, ADA)
    second = Tokens(lp, signing=signing)
    await second.check(token, operation="read")
    await tokens.revoke(token)
    await tokens.revoke(token)
    assert type(await refusal(second, token)) is TokenRevoked
    with pytest.raises(TokenRevoked):
        await second.rotate(token)
    await second.check(other, operation="read")
    if not url.startswith("memory"):
        async with limpet.open(url) as later:
            assert type(await refusal(Tokens(later, signing=signing), token)) is TokenRevoked


async def test_a_chain_is_revoked_as_a_whole(lp: Limpet, tokens: Tokens) -> None:
    """By any of its tokens: those before it and after it are refused."""
    await lp.create("support", "ada", "c1")
    first = await tokens.issue(KEY, ADA)
    second = await tokens.rotate(first)
    third = await tokens.rotate(second)
    stranger = await tokens.issue(KEY, ADA)
    await tokens.revoke(second)
    assert type(await refusal(tokens, second)) is TokenRevoked
    for token in (first, third):
        await tokens.check(token, operation="read")
    await tokens.revoke(second, chain=True)
    for token in (first, second, third):
        assert type(await refusal(tokens, token)) is TokenRevoked
    await tokens.check(stranger, operation="read")


# --- the session and its user ---------------------------------------------------------------------


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_token_does_not_pass_to_another_session_under_its_key(
    lp: Limpet, tokens: Tokens, awaited: bool
) -> None:
    """Deleted and created again: the new session has another uid."""
    await lp.create("support", "ada", "c1")
    issued = tokens.issue(KEY, ADA)
    token: str = await issued if awaited else issued
    unused = tokens.issue(KEY, ADA)
    await tokens.check(token, operation="read")
    await lp.delete(KEY)
    assert type(await refusal(tokens, token)) is TokenSessionInvalid
    await lp.create("support", "ada", "c1", reuse_deleted=True)
    for each in (token, unused):
        assert type(await refusal(tokens, each)) is TokenSessionInvalid
        with pytest.raises(TokenSessionInvalid):
            await tokens.rotate(each)
    await tokens.check(await tokens.issue(KEY, ADA), operation="read")


async def test_an_unused_token_is_not_of_a_session_that_is_created_at_the_same_instant(
    still: Limpet, signing: str
) -> None:
    """The clock stands still; ids do not."""
    tokens = Tokens(still, signing=signing)
    await tokens.check(tokens.issue(KEY, ADA), operation="read")
    token = tokens.issue(KEY, ADA)
    await still.delete(KEY)
    await still.create("support", "ada", "c1", reuse_deleted=True)
    assert type(await refusal(tokens, token)) is TokenSessionInvalid


async def test_a_token_that_was_bound_by_its_first_check_stays_bound(
    lp: Limpet, tokens: Tokens, signing: str
) -> None:
    """For every other object on the store, too."""
    await lp.create("support", "ada", "c1")
    token = tokens.issue(KEY, ADA)
    await tokens.check(token, operation="read")

    store: Any = journal_of(lp).store
    jti = parts(token)[1]["jti"]
    await store.marks.put(BOUND, jti, store.now_us() + 10**9, 7)  # to some other session
    assert type(await refusal(Tokens(lp, signing=signing), token)) is TokenSessionInvalid


async def test_a_token_is_for_a_principal_who_may_enter(lp: Limpet, tokens: Tokens) -> None:
    """Of the session's user and app, or of all of them; decided at every check."""
    await lp.create("support", "ada", "c1")
    wrong = [
        BOB,
        Principal("user:ada", role="owner", app="sales", user="ada"),
        Principal("admin:x", role="admin", app="sales"),
    ]
    for principal in wrong:
        error = await refusal(tokens, await tokens.issue(KEY, principal))
        assert isinstance(error, TokenUserMismatch)
        assert error.principal == principal.id
    right = [
        ADA,
        VIEWER,
        Principal("admin:x", role="admin", app="support"),
        Principal("auditor:y", role="auditor"),
        Principal("agent:z", role="agent", app="support", user="ada"),
    ]
    for principal in right:
        claims = await tokens.check(await tokens.issue(KEY, principal), operation="read")
        assert claims.principal == principal


async def test_users_of_the_isolation_may_enter(lp: Limpet, tokens: Tokens) -> None:
    """Those that a session is shared with, and everybody of the app where it is global."""
    shared, everybody = Key("support", "ada", "shared"), Key("support", "ada", "everybody")
    await lp.create("support", "ada", "shared", isolation=Isolation(users=("bob",)))
    await lp.create("support", "ada", "everybody", isolation=Isolation("global"))
    eve = Principal("user:eve", role="viewer", app="support", user="eve")
    for key, principal in ((shared, BOB), (everybody, BOB), (everybody, eve)):
        await tokens.check(await tokens.issue(key, principal), operation="read")
    assert type(await refusal(tokens, await tokens.issue(shared, eve))) is TokenUserMismatch
    other = Principal("user:bob", role="owner", app="sales", user="bob")
    assert type(await refusal(tokens, await tokens.issue(everybody, other))) is TokenUserMismatch


async def test_readers_may_enter_a_session_that_has_ended(lp: Limpet, tokens: Tokens) -> None:
    """Viewers and auditors, not those who write (C11). A suspended session is open to all."""
    session = await lp.create("support", "ada", "c1")
    owner = await tokens.issue(KEY, ADA)
    await session.suspend()
    await tokens.check(owner, operation="write")
    await session.resume()
    await session.complete()
    error = await refusal(tokens, owner)
    assert isinstance(error, TokenSessionInvalid)
    assert error.reason == "is completed"
    for role in ("viewer", "auditor"):
        reader = Principal("user:ada", role=role, app="support", user="ada")  # type: ignore[arg-type]
        await tokens.check(await tokens.issue(KEY, reader), operation="read")


async def test_readers_may_enter_an_archived_session(tmp_path: Path, signing: str) -> None:
    """Its stub has the uid."""
    archive = f"file://{tmp_path}/archive"
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", archive=archive) as lp:
        session = await lp.create("support", "ada", "c1")
        tokens = Tokens(lp, signing=signing)
        viewer, owner = await tokens.issue(KEY, VIEWER), await tokens.issue(KEY, ADA)
        await session.complete()
        await session.archive()
        await tokens.check(viewer, operation="read")
        assert type(await refusal(tokens, owner)) is TokenSessionInvalid


async def test_an_address_is_compared_as_an_address(lp: Limpet, tokens: Tokens) -> None:
    """A token without one is good from anywhere; one with one needs it."""
    await lp.create("support", "ada", "c1")
    free = await tokens.issue(KEY, ADA)
    bound = await tokens.issue(KEY, ADA, address="192.0.2.1")
    unix = await tokens.issue(KEY, ADA, address="unix:7")
    for address in (None, "192.0.2.1", "198.51.100.7"):
        await tokens.check(free, operation="read", address=address)
    for address in ("192.0.2.1", "::ffff:192.0.2.1"):
        await tokens.check(bound, operation="read", address=address)
    await tokens.check(unix, operation="read", address="unix:7")
    for address in (None, "192.0.2.2", "192.0.2.1.", "unix:7"):
        assert type(await refusal(tokens, bound, address=address)) is TokenAddressMismatch


# --- replay, rate, anomaly ------------------------------------------------------------------------


async def test_a_nonce_is_good_once(lp: Limpet, tokens: Tokens, signing: str) -> None:
    """Also with a rotated token, also at another object; for another session it is free."""
    other = Key("support", "ada", "c2")
    await lp.create("support", "ada", "c1")
    await lp.create("support", "ada", "c2")
    token = await tokens.issue(KEY, ADA)
    await tokens.check(token, operation="read", nonce="n1")
    again = await refusal(Tokens(lp, signing=signing), token, nonce="n1")
    assert (type(again), again.status) == (TokenReplayed, 409)
    assert type(await refusal(tokens, await tokens.rotate(token), nonce="n1")) is TokenReplayed
    await tokens.check(token, operation="read", nonce="n2")
    await tokens.check(await tokens.issue(other, ADA), operation="read", nonce="n1")


async def test_a_request_without_nonce_is_refused_where_one_is_required(
    lp: Limpet, signing: str
) -> None:
    """Else a captured request could be sent again without it."""
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing, policy=TokenPolicy(nonces="required"))
    token = await tokens.issue(KEY, ADA)
    assert type(await refusal(tokens, token)) is TokenReplayed
    await tokens.check(token, operation="read", nonce="n1")


@pytest.mark.parametrize("limit", [1, 5, 40, 100])
async def test_a_rate_lets_exactly_so_many_through(lp: Limpet, signing: str, limit: int) -> None:
    """By session and operation; what is refused says when to come back."""
    other = Key("support", "ada", "c2")
    await lp.create("support", "ada", "c1")
    await lp.create("support", "ada", "c2")
    tokens = Tokens(lp, signing=signing, policy=TokenPolicy(rate=limit))
    token = await tokens.issue(KEY, ADA)
    found = await asyncio.gather(
        *[tokens.check(token, operation="read") for _ in range(limit + 5)], return_exceptions=True
    )
    errors = [each for each in found if isinstance(each, BaseException)]
    assert [type(each) for each in errors] == [RateLimited] * 5
    error = await refusal(tokens, token)
    assert isinstance(error, RateLimited)
    assert (error.limit, error.operation, error.status) == (limit, "read", 429)
    assert error.retryable
    assert 0 < error.retry_after_seconds <= 60
    assert type(await refusal(tokens, await tokens.rotate(token))) is RateLimited
    await tokens.check(token, operation="write")
    await tokens.check(await tokens.issue(other, ADA), operation="read")


async def test_a_window_ends_and_the_next_begins(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    """By the clock of the store, from its first request on."""
    rates: dict[str, Any] = {"read": (3, timedelta(seconds=10)), "*": 1}
    tokens = Tokens(still, signing=signing, policy=TokenPolicy(rate=rates))
    token = await tokens.issue(KEY, ADA)
    for _ in range(3):
        for _ in range(3):
            await tokens.check(token, operation="read")
            clock.advance(timedelta(seconds=1))
        error = await refusal(tokens, token)
        assert isinstance(error, RateLimited)
        assert error.retry_after_seconds == 7
        clock.advance(timedelta(seconds=7))
    await tokens.check(token, operation="write")
    assert type(await refusal(tokens, token, operation="write")) is RateLimited


async def test_two_objects_never_let_more_through_than_the_limit(lp: Limpet, signing: str) -> None:
    """Each takes several at a time of a large limit; together they stay within it."""
    await lp.create("support", "ada", "c1")
    policy = TokenPolicy(rate=160)
    both = [Tokens(lp, signing=signing, policy=policy) for _ in range(2)]
    token = await both[0].issue(KEY, ADA)
    passed = 0
    for number in range(200):
        try:
            await both[number % 2].check(token, operation="read")
            passed += 1
        except RateLimited:
            pass
    assert 150 <= passed <= 160


async def test_a_window_that_another_process_began_ends_with_it(
    still: Limpet, clock: FakeClock, signing: str
) -> None:
    """Whoever joins it late knows its end, and what is refused writes nothing."""
    policy = TokenPolicy(rate=(2, timedelta(seconds=10)))
    one, two = [Tokens(still, signing=signing, policy=policy) for _ in range(2)]
    token = await one.issue(KEY, ADA)
    for _ in range(2):
        await one.check(token, operation="read")
    clock.advance(timedelta(seconds=4))
    store: Any = journal_of(still).store
    name = digest((await still.get(KEY)).head.uid, "read")
    for tokens in (two, two, one, two):
        error = await refusal(tokens, token)
        assert isinstance(error, RateLimited)
        assert error.retry_after_seconds == 6
        assert (await store.marks.get(RATE, name)).value == 3  # the first refusal asked the store
    clock.advance(timedelta(seconds=6))
    for tokens in (two, one):
        await tokens.check(token, operation="read")
    assert type(await refusal(two, token)) is RateLimited


async def test_a_session_with_many_addresses_keeps_a_bounded_history(
    lp: Limpet, signing: str
) -> None:
    """Of 64; any further one stays a stranger."""
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing)
    token = await tokens.issue(KEY, ADA)
    for number in range(70):
        await tokens.check(token, operation="read", address=f"192.0.2.{number}")
    store: Any = journal_of(lp).store
    uid = (await lp.get(KEY)).head.uid
    marks = [
        await store.marks.get(HISTORY, digest(uid, f"a:192.0.2.{number}")) for number in range(70)
    ]
    assert [mark is not None for mark in marks] == [True] * 64 + [False] * 6
    claims = await tokens.check(token, operation="read", address="192.0.2.69")
    assert claims.signals == ("address",)


async def test_a_request_from_a_new_address_is_flagged(lp: Limpet, signing: str) -> None:
    """Once the session has a history; then the address is known."""
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing)
    token = await tokens.issue(KEY, ADA)
    for _ in range(40):
        claims = await tokens.check(token, operation="read", address="192.0.2.1")
        assert claims.signals == ()
    later = Tokens(lp, signing=signing)  # another process has most of the history
    claims = await later.check(token, operation="read", address="198.51.100.7")
    assert claims.signals == ("address",)
    assert (await later.check(token, operation="read", address="198.51.100.7")).signals == ()


async def test_a_request_from_a_new_address_is_blocked(lp: Limpet, signing: str) -> None:
    """And stays blocked: what was refused is not learned."""
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing, policy=TokenPolicy(anomaly="block"))
    token = await tokens.issue(KEY, ADA)
    for _ in range(12):
        await tokens.check(token, operation="read", address="192.0.2.1")
    for _ in range(2):
        error = await refusal(tokens, token, address="198.51.100.7")
        assert isinstance(error, RequestSuspicious)
        assert error.signals == ("address",)
    await tokens.check(token, operation="read", address="192.0.2.1")


async def test_an_operation_that_the_session_never_used_is_a_signal(
    lp: Limpet, signing: str
) -> None:
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing)
    token = await tokens.issue(KEY, ADA)
    for _ in range(25):
        await tokens.check(token, operation="read")
    claims = await tokens.check(token, operation="erase")
    assert claims.signals == ("operations",)
    assert claims.rotated is not None


async def test_a_surge_is_a_signal(still: Limpet, clock: FakeClock, signing: str) -> None:
    """Eight times what the session's other minutes had, and more than twenty."""
    tokens = Tokens(still, signing=signing)
    token = await tokens.issue(KEY, ADA)
    for _ in range(10):
        await tokens.check(token, operation="read")
        clock.advance(timedelta(minutes=1))
    found = [(await tokens.check(token, operation="read")).signals for _ in range(30)]
    assert found[:20] == [()] * 20
    assert found[20:] == [("rate",)] * 10


# --- several processes ----------------------------------------------------------------------------


def ask(child: Child, **request: str) -> None:
    child.tell(json.dumps(request))


async def test_processes_share_nonces_rates_and_revocations(
    url: str, lp: Limpet, tmp_path: Path, signing: str
) -> None:
    """Of two that race with one nonce, or to rotate one token, exactly one wins."""
    if url.startswith("memory"):
        pytest.skip("a store in memory has one process")
    await lp.create("support", "ada", "c1")
    tokens = Tokens(lp, signing=signing)
    pem = signing.removeprefix("file://")
    start = [Child("tests.support.token_checker", url, pem, 20) for _ in range(2)]
    with start[0] as one, start[1] as two:
        for child in (one, two):
            child.expect("ready")
        token = await tokens.issue(KEY, ADA)
        for number in range(8):
            for child in (one, two):
                ask(child, verb="check", token=token, operation="write", nonce=f"n{number}")
            assert sorted([str(one.line()), str(two.line())]) == ["TokenReplayed", "passed"]
        for child in (one, two):
            ask(child, verb="rotate", token=token)
        found = [str(child.line()) for child in (one, two)]
        assert found.count("TokenRevoked") == 1
        await tokens.check(max(found, key=len), operation="read")
        fresh = await tokens.issue(KEY, ADA)
        answers = []
        for _ in range(15):
            for child in (one, two):
                ask(child, verb="check", token=fresh, operation="count")
                answers.append(child.line())
        assert answers == ["passed"] * 20 + ["RateLimited"] * 10
        ask(one, verb="revoke", token=fresh)
        one.expect("revoked")
        ask(two, verb="check", token=fresh, operation="read")
        two.expect("TokenRevoked")
        assert type(await refusal(tokens, fresh)) is TokenRevoked


async def test_what_has_expired_is_swept(still: Limpet, clock: FakeClock, signing: str) -> None:
    """Nonces and revocations of a busy session do not pile up."""
    tokens = Tokens(still, signing=signing, policy=TokenPolicy(rate=None))
    for number in range(40):
        token = await tokens.issue(KEY, ADA, lifetime=timedelta(minutes=1))
        await tokens.check(token, operation="read", nonce=f"n{number}")
        await tokens.revoke(token)
        clock.advance(timedelta(minutes=3))
    store: Any = journal_of(still).store
    assert await store.marks.sweep(1_000) <= 2


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_are_rotated_with_overlap(lp: Limpet, tmp_path: Path) -> None:
    """The last key of the file signs, all of them verify; a removed one does not any more."""
    await lp.create("support", "ada", "c1")
    old, new = new_signing_key(), new_signing_key()
    first = Tokens(lp, signing=write_pem(tmp_path / "a.pem", old))
    before = await first.issue(KEY, ADA)
    both = Tokens(lp, signing=write_pem(tmp_path / "b.pem", old, new))
    after = await both.issue(KEY, ADA)
    assert parts(before)[0]["kid"] != parts(after)[0]["kid"]
    for token in (before, after):
        await both.check(token, operation="read")
    assert type(await refusal(first, after)) is TokenInvalid
    last = Tokens(lp, signing=write_pem(tmp_path / "c.pem", new))
    await last.check(after, operation="read")
    assert type(await refusal(last, before)) is TokenInvalid


async def test_a_directory_holds_one_key_a_file(lp: Limpet, tmp_path: Path) -> None:
    """In the order of their names; other files are left alone."""
    await lp.create("support", "ada", "c1")
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("2026-01.pem", "2026-02.pem"):
        write_pem(folder / name)
    (folder / "README").write_text("not a key")
    tokens = Tokens(lp, signing=f"file://{folder}")
    token = await tokens.issue(KEY, ADA)
    newest = Tokens(lp, signing=f"file://{folder}/2026-02.pem")
    await newest.check(token, operation="read")


async def test_a_key_that_is_added_is_used_without_a_restart(
    lp: Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a second; a file that cannot be read is reported, and the old keys stay."""
    await lp.create("support", "ada", "c1")
    seconds = [1_000.0]
    monkeypatch.setattr("limpet.security.signing_keys.time.monotonic", lambda: seconds[0])
    old, new = new_signing_key(), new_signing_key()
    path = tmp_path / "tokens.pem"
    tokens = Tokens(lp, signing=write_pem(path, old))
    before = await tokens.issue(KEY, ADA)
    write_pem(path, old, new)
    other = Tokens(lp, signing=f"file://{path}")
    token = await other.issue(KEY, ADA)
    assert type(await refusal(tokens, token)) is TokenInvalid
    seconds[0] += 1
    await tokens.check(token, operation="read")
    path.write_bytes(b"broken")
    seconds[0] += 1
    await tokens.check(token, operation="read")
    assert "signing keys not read again" in caplog.text
    write_pem(path, new)
    seconds[0] += 1
    await tokens.check(token, operation="read")
    assert type(await refusal(tokens, before)) is TokenInvalid


def _x25519() -> bytes:
    key = x25519.X25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_file_of_keys_is_checked(tmp_path: Path) -> None:
    """Mode, size, form and kind; no error shows anything of a key."""
    path = tmp_path / "tokens.pem"
    secret = new_signing_key()
    body = secret.decode().splitlines()[1]
    for mode in (0o640, 0o604, 0o644):
        write_pem(path, secret)
        path.chmod(mode)
        with pytest.raises(KeysInvalid, match="chmod 600") as raised:
            SigningKeys(f"file://{path}")
        assert body not in str(raised.value)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12_345, -1)
        with pytest.raises(KeysInvalid, match="belongs to another user"):
            SigningKeys(f"file://{path}")
        os.chown(path, 0, -1)
    broken = secret.replace(b"MC4C", b"MC4D")
    for raw, reason in [
        (b"", "no private key"),
        (b"x" * 70_000, "larger than"),
        (broken, "key 1 is not a private Ed25519 key"),
        (secret + _x25519(), "key 2 is not"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(KeysInvalid, match=reason) as raised:
            SigningKeys(f"file://{path}")
        assert body not in str(raised.value)
    with pytest.raises(KeysInvalid, match="limpet tokens new-key"):
        SigningKeys(f"file://{tmp_path}/missing.pem")
    for wrong in ("", "tokens.pem", "file://", "http://x/y", "file://host/x.pem", None, 7):
        with pytest.raises(KeysInvalid):
            SigningKeys(wrong)  # type: ignore[arg-type]


async def test_a_request_goes_on_as_its_principal(lp: Limpet, tokens: Tokens) -> None:
    """A token says who asks; the guard decides what that principal may do."""
    await lp.create("support", "ada", "c1")
    await lp.create("support", "bob", "c2")
    claims = await tokens.check(await tokens.issue(KEY, VIEWER), operation="read")
    acting = lp.acting_as(claims.principal)
    assert (await acting.get(claims.key)).head.uid == claims.uid
    with pytest.raises(AccessDenied):
        await acting.get("support", "bob", "c2")
    with pytest.raises(AccessDenied):
        await acting.session(claims.key).append("user.message", {"text": "x"})


async def test_closed_is_closed(url: str, signing: str) -> None:
    """Every verb says so."""
    async with limpet.open(url) as lp:
        await lp.create("support", "ada", "c1")
        tokens = Tokens(lp, signing=signing)
        token = await tokens.issue(KEY, ADA)
    for call in (
        lambda: tokens.check(token, operation="read"),
        lambda: tokens.rotate(token),
        lambda: tokens.revoke(token),
    ):
        with pytest.raises(StoreClosed):
            await call()
    with pytest.raises(StoreClosed):
        tokens.issue(KEY, ADA)
    with pytest.raises(StoreClosed):
        Tokens(lp, signing=signing)


# --- without await --------------------------------------------------------------------------------


def test_tokens_without_await(tmp_path: Path, signing: str) -> None:
    """The same verbs, on the loop of the store."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db?sync=normal") as lp:
        session = lp.create("support", "ada", "c1")
        tokens = limpet.SyncTokens(lp, signing=signing)
        token = tokens.issue(KEY, ADA)
        assert tokens.check(token, operation="read").uid == session.head.uid
        new = tokens.rotate(token)
        tokens.revoke(new)
        with pytest.raises(TokenRevoked):
            tokens.check(new, operation="read")
        with pytest.raises(InvalidInput):
            limpet.SyncTokens("x", signing=signing)  # type: ignore[arg-type]


async def test_a_token_that_was_checked_is_refused_once_its_key_is_gone(
    lp: Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of a signature goes with the keys that it was checked with."""
    from limpet.security import signing_keys

    monkeypatch.setattr(signing_keys, "_LOOK_SECONDS", 0.0)
    file = tmp_path / "some.pem"
    signing_keys.add_signing_key(file)
    session = await lp.create("support", "ada", "remembered")
    tokens = limpet.Tokens(lp, signing=f"file://{file}")
    token = await tokens.issue(session.key, ADA)
    for _ in range(2):
        await tokens.check(token, operation="read")
    swapped = token[:-1] + ("A" if token[-1] != "A" else "B")
    with pytest.raises(TokenInvalid):
        await tokens.check(swapped, operation="read")
    file.unlink()
    signing_keys.add_signing_key(file)
    with pytest.raises(TokenInvalid):
        await tokens.check(token, operation="read")


async def test_a_session_that_has_moved_away_has_no_tokens(lp: Limpet, signing: str) -> None:
    """Its tokens are refused and not rotated, none is issued, and one that was not bound yet is
    not; once the session is back they are good again."""
    tokens = Tokens(lp, signing=signing)
    s = await lp.create("support", "ada", "c1")
    token, unbound = await tokens.issue(s.key, ADA), str(tokens.issue(s.key, ADA))
    await tokens.check(token, operation="read")
    async with limpet.open("memory://", node="elsewhere") as other:
        assert (await lp.move(s.key, other)).success
        for each in (token, unbound):
            refused = await refusal(tokens, each)
            assert (type(refused), "moved" in str(refused)) == (TokenSessionInvalid, True)
            with pytest.raises(TokenSessionInvalid):
                await tokens.rotate(each)
        with pytest.raises(SessionMoved):
            await tokens.issue(s.key, ADA)
        assert (await other.move(s.key, lp)).success
    await tokens.check(token, operation="read")
    await tokens.check(await tokens.rotate(token), operation="read")
