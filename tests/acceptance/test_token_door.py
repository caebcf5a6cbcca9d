"""Session tokens at the door of a server: what a request has to pass, and rotation by header."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Principal, TokenPolicy, Tokens
from limpet.server import ids
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from limpet.store.memory.store import MemoryStore
from limpet.testing.clock import FakeClock
from tests.support.http_door import HttpDoor, Reply, frames

pytest.importorskip("joserfc")
from limpet.security.signing_keys import add_signing_key  # needs it

ADA = Principal("user:ada", role="owner", app="shop", user="ada")
SESSION = ids.session_id("c1")
ONE = f"/limpet/v1/sessions/{SESSION}"


class Place:
    """A served store, its tokens, and requests with one of them."""

    def __init__(self, lp: limpet.Limpet, tokens: Tokens, url: str) -> None:
        self.lp, self.tokens, self.url = lp, tokens, url

    async def issue(self, **options: Any) -> str:
        return await self.tokens.issue(("shop", "ada", "c1"), ADA, **options)

    def door(self, token: str, **headers: str) -> HttpDoor:
        return HttpDoor(self.url, authorization=f"Bearer {token}", **headers)

    async def denials(self) -> list[str | None]:
        """The codes of refusals in the audit, the newest first."""
        found = await self.lp.audit(denied=True)
        return [each.code for each in found.items]


async def places(tmp_path: Path, policy: TokenPolicy) -> AsyncIterator[Place]:
    pem = tmp_path / "tokens.pem"
    add_signing_key(pem)
    async with limpet.open("memory://") as lp:
        for user, id in (("ada", "c1"), ("ada", "c2"), ("bob", "c1")):
            await lp.create("shop", user, id)
        tokens = Tokens(lp, signing=f"file://{pem}", policy=policy)
        async with serving(lp, tokens=tokens) as url:
            yield Place(lp, tokens, url)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    policy = TokenPolicy(rate={"inspect": 1, "*": 600})
    async for each in places(tmp_path, policy):
        yield each


def refusal(reply: Reply) -> tuple[int, str]:
    """Status and audit code."""
    return reply.status, reply.body["error"]["details"]["audit_code"]


async def test_a_token_opens_its_session_and_nothing_else(place: Place) -> None:
    """Reads and writes there; another session is 403, and so is what belongs to no session."""
    door = place.door(await place.issue())
    shown = await door.get(ONE)
    assert (shown.status, shown.body["session"]["user"]) == (200, "ada")
    message = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "hi"}]}]}
    sent = await door.post(f"/v1/sessions/{SESSION}/events", message)
    assert sent.status == 200
    other = await door.get(f"/limpet/v1/sessions/{ids.session_id('c2')}")
    assert refusal(other) == (403, "user_session_mismatch")
    missing = await door.get(f"/limpet/v1/sessions/{ids.session_id('none')}")
    assert refusal(missing) == (403, "user_session_mismatch")
    for path in ("/v1/sessions", "/v1/agents", "/limpet/v1/sessions", "/limpet/v1/inbox"):
        assert (await door.get(path)).status == 403, path
    assert (await door.get("/metrics")).status == 403
    reader = place.door(await place.issue(scope=("read",)))
    refused = await reader.post("/limpet/v1/sessions", {"user": "ada"})
    assert refused.status == 403
    assert "scope" not in refused.body["error"]["details"], "no scope opens it"
    # A header that names another user does not lead to that user's session of the same id.
    assert (await door.get(ONE, limpet_user="bob", limpet_app="shop")).status == 404
    assert (await door.get(ONE, limpet_user="ada", limpet_app="shop")).status == 200
    assert set(await place.denials()) == {"access_denied", "user_session_mismatch"}


async def test_a_token_reaches_no_other_session_by_way_of_its_own(place: Place) -> None:
    """A merge would read another session of the same user, a relation write to it, a fork begin
    one that outlives the token."""
    one = place.lp.session("shop", "ada", "c1", actor="user:ada")
    fork = await one.fork(id="c3")
    await fork.append("note.made", set={"secret": "of c3"}, actor="user:ada")
    door = place.door(await place.issue())
    named = {"session_id": ids.session_id("c3")}
    assert (await door.post(f"{ONE}/merge", {**named, "policy": "theirs"})).status == 404
    assert (await door.post(f"{ONE}/relations", {**named, "kind": "peer"})).status == 404
    assert (await door.post(f"{ONE}/fork", {})).status == 403
    assert (await one.refresh()).values == {}
    assert [head.key.id for head in (await place.lp.list(user="ada", app="shop")).items] == [
        "c3",
        "c2",
        "c1",
    ]
    assert (await place.lp.get(fork.key)).version == 3
    for part in ("graph", "lineage", "tree"):
        shown = await door.get(f"{ONE}/{part}")
        assert (shown.status, "c3" in str(shown.body)) == (200, False), part


async def test_a_policy_about_addresses_holds_for_tokens_too(tmp_path: Path) -> None:
    """The guard is told where a request with a token comes from, as of one with a key."""
    (tmp_path / "rules.cedar").write_text(
        "permit(principal, action, resource);\n"
        'forbid(principal, action == Action::"read", resource is Session)\n'
        "when { context has address && context.address.isLoopback() };\n"
    )
    add_signing_key(tmp_path / "tokens.pem")
    async with limpet.open("memory://", policies=tmp_path / "rules.cedar") as lp:
        key = (await lp.create("shop", "ada", "c1")).key
        tokens = Tokens(lp, signing=f"file://{tmp_path}/tokens.pem")
        async with serving(lp, tokens=tokens) as url:
            door = HttpDoor(url, authorization=f"Bearer {await tokens.issue(key, ADA)}")
            assert (await door.get(ONE)).status == 404
        denied = (await lp.audit(denied=True)).items[0]
        assert (denied.code, denied.address) == ("policy_denied", "127.0.0.1")


async def test_the_store_itself_is_not_opened_by_a_token(place: Place) -> None:
    """It would open all sessions of the principal, not one."""
    with pytest.raises(limpet.LimpetError):
        async with limpet.open(place.url, token=await place.issue()):
            pass


async def test_every_refusal_has_its_status_and_its_code(place: Place) -> None:
    """In the order of the steps; the audit has each of them."""
    token = await place.issue()
    door = place.door(token)
    assert refusal(await place.door(token[:-4] + "AAAA").get(ONE)) == (
        401,
        "invalid_token_signature",
    )
    revoked = await place.issue()
    await place.tokens.revoke(revoked)
    assert refusal(await place.door(revoked).get(ONE)) == (401, "revoked_token")
    elsewhere = await place.issue(address="192.0.2.7")
    assert refusal(await place.door(elsewhere).get(ONE)) == (403, "ip_mismatch")
    assert (await place.door(await place.issue(address="127.0.0.1")).get(ONE)).status == 200
    assert (await door.get(ONE, limpet_nonce="n1")).status == 200
    replayed = await door.get(ONE, limpet_nonce="n1")
    assert refusal(replayed) == (409, "replayed_request")
    assert replayed.headers["x-should-retry"] == "false"
    reader = place.door(await place.issue(scope=("read",)))
    assert (await reader.get(ONE)).status == 200
    assert (await reader.post(f"{ONE}/interrupt")).status == 403
    bob = Principal("user:bob", role="owner", app="shop", user="bob")
    foreign = await place.tokens.issue(("shop", "ada", "c1"), bob)
    assert refusal(await place.door(foreign).get(ONE)) == (403, "user_session_mismatch")
    await place.lp.session("shop", "ada", "c1").complete(actor="user:ada")
    assert refusal(await door.get(ONE)) == (401, "invalid_session")
    assert [code for code in reversed(await place.denials()) if code] == [
        "invalid_token_signature",
        "revoked_token",
        "ip_mismatch",
        "replayed_request",
        "access_denied",
        "user_session_mismatch",
        "invalid_session",
    ]


async def test_a_rate_is_429_with_the_time_to_wait(tmp_path: Path) -> None:
    """And nothing is stored."""
    async for place in places(tmp_path, TokenPolicy(rate={"write": 2, "*": 600})):
        door = place.door(await place.issue())
        for _ in range(2):
            assert (await door.post(f"{ONE}/labels", {"labels": {"a": "b"}})).status == 200
        version = (await door.get(ONE)).body["version"]
        refused = await door.post(f"{ONE}/labels", {"labels": {"a": "c"}})
        assert refusal(refused) == (429, "rate_limited")
        assert refused.headers["x-should-retry"] == "true"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await door.get(ONE)).body["version"] == version


async def test_a_request_unlike_the_others_is_blocked_if_asked(tmp_path: Path) -> None:
    """With the code of the audit."""
    async for place in places(tmp_path, TokenPolicy(anomaly="block", rate=None)):
        door = place.door(await place.issue())
        for _ in range(70):  # more than one step of the history
            assert (await door.get(ONE)).status == 200
        refused = await door.post(f"{ONE}/interrupt")
        assert refusal(refused) == (403, "anomalous_request")


async def test_a_sensitive_operation_answers_with_a_new_token(place: Place) -> None:
    """Once; the new one is good, also if the request failed; the old one for 30 seconds."""
    token = await place.issue()
    suspended = await place.door(token).post(f"{ONE}/suspend", {"reason": "lunch"})
    assert suspended.status == 200
    new = suspended.headers["x-new-session-token"]
    assert new not in (None, token)
    again = await place.door(token).post(f"{ONE}/resume")
    assert (again.status, again.headers["x-new-session-token"]) == (200, None)
    failed = await place.door(new).post(f"{ONE}/resume")
    assert failed.status == 400
    newer = failed.headers["x-new-session-token"]
    read = await place.door(newer).get(ONE)
    assert (read.status, read.headers["x-new-session-token"]) == (200, None)


async def test_tokens_expire_and_old_ones_end_after_their_grace(tmp_path: Path) -> None:
    """By the store's clock."""
    pem = tmp_path / "tokens.pem"
    add_signing_key(pem)
    clock = FakeClock()
    async with limpet.Limpet("clocked", store=MemoryStore(clock=clock.clock())) as lp:
        await lp.create("shop", "ada", "c1")
        tokens = Tokens(lp, signing=f"file://{pem}")
        async with serving(lp, tokens=tokens) as url:
            place = Place(lp, tokens, url)
            token = await place.issue(lifetime=timedelta(minutes=10))
            reply = await place.door(token).post(f"{ONE}/suspend")
            new = reply.headers["x-new-session-token"]
            clock.advance(timedelta(seconds=31))
            assert refusal(await place.door(token).get(ONE)) == (401, "revoked_token")
            assert (await place.door(new).get(ONE)).status == 200
            clock.advance(timedelta(seconds=600))
            assert refusal(await place.door(new).get(ONE)) == (401, "expired_token")


async def test_tokens_are_issued_rotated_and_revoked_by_routes(place: Place) -> None:
    """With a key, never with a token; by whoever may read the session."""
    keys = AccessKeys(journal_of(place.lp))
    _, key = await keys.create(role="owner", app="shop", user="ada")
    owner = HttpDoor(place.url, x_api_key=key)
    made = await owner.post(f"{ONE}/tokens", {"scope": ["read"], "lifetime_seconds": 60})
    assert made.status == 200, made.body
    door = place.door(made.body["token"])
    assert (await door.get(ONE)).status == 200
    assert (await door.post(f"{ONE}/tokens")).status == 403
    full = place.door((await owner.post(f"{ONE}/tokens")).body["token"])
    assert (await full.post(f"{ONE}/tokens")).status == 400
    rotated = await full.post(f"{ONE}/tokens/rotate")
    newer = place.door(rotated.body["token"])
    assert (await newer.get(ONE)).status == 200
    assert (await newer.post(f"{ONE}/tokens/revoke", {"chain": True})).status == 200
    assert refusal(await newer.get(ONE)) == (401, "revoked_token")
    assert refusal(await full.get(ONE)) == (401, "revoked_token")
    for wrong in (901, 0, -1, 1e300):
        assert (await owner.post(f"{ONE}/tokens", {"lifetime_seconds": wrong})).status == 400
    _, other = await keys.create(role="owner", app="shop", user="bob")
    elsewhere = f"/limpet/v1/sessions/{ids.session_id('c2')}/tokens"
    assert (await HttpDoor(place.url, x_api_key=other).post(elsewhere)).status == 404


@pytest.mark.parametrize("scope", ["read", "write", "money"])
async def test_a_token_of_any_scope_is_rotated_and_revoked(place: Place, scope: str) -> None:
    """By whoever holds it; what its scope does not cover is refused, and the scope is named."""
    door = place.door(await place.issue(scope=(scope,)))
    rotated = await door.post(f"{ONE}/tokens/rotate")
    assert rotated.status == 200, rotated.body
    newer = place.door(rotated.body["token"])
    for needed, reply in (
        ("read", await newer.get(ONE)),
        ("write", await newer.post(f"{ONE}/labels", {"labels": {"plan": "gold"}})),
    ):
        if needed == scope:
            assert reply.status == 200, reply.body
        else:
            assert reply.status == 403
            assert repr(needed) in reply.body["error"]["message"]
            assert reply.body["error"]["details"]["scope"] == needed
    assert (await newer.post(f"{ONE}/tokens/revoke")).status == 200
    assert refusal(await newer.get(ONE)) == (401, "revoked_token")


async def test_a_stream_ends_when_its_token_is_revoked(place: Place) -> None:
    """As it does when a key is."""
    token = await place.issue()
    await place.lp.session("shop", "ada", "c1").append(
        "user.message", {"text": "hi"}, actor="user:ada"
    )
    loop, seen = asyncio.get_running_loop(), asyncio.Event()
    path = f"/v1/sessions/{SESSION}/events/stream?after=0"
    following = asyncio.ensure_future(
        frames(
            place.url,
            path,
            1_000,
            lambda _: loop.call_soon_threadsafe(seen.set),
            authorization=f"Bearer {token}",
        )
    )
    await seen.wait()
    await place.tokens.revoke(token)
    assert len(await asyncio.wait_for(following, 30)) == 1


async def test_without_a_signing_key_there_are_no_tokens(place: Place) -> None:
    """A token is refused as any other wrong key, and none can be made."""
    async with serving(place.lp, dev=True) as url:
        reply = await HttpDoor(url, limpet_app="shop", limpet_user="ada").post(f"{ONE}/tokens")
        assert reply.status == 400
    async with serving(place.lp) as url:
        token = await place.issue()
        reply = await HttpDoor(url, authorization=f"Bearer {token}").get(ONE)
        assert reply.status == 401
