"""Shares between sessions that are kept apart, and objects of several principals of one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import AccessDenied, Isolation, Key, Limpet, Principal
from limpet.errors import CrossSessionAccessDenied, InvalidInput, LimpetError, ShareNotFound
from limpet.model.facts.shares import ShareTerms, share_received, shared
from limpet.session.limpet import at_work, journal_of

WORKER = Principal("agent:main", role="agent", app="desk")
ADA = Principal("user:ada", role="owner", app="desk", user="ada")
SOURCE, TARGET = Key("desk", "ada", "source"), Key("desk", "ada", "target")


@pytest.fixture
async def lp() -> AsyncIterator[Limpet]:
    async with limpet.open("memory://") as opened:
        yield opened


async def pair(lp: Limpet, **source: Any) -> tuple[limpet.Session[Any], limpet.Session[Any]]:
    """A session with fields, kept apart from another one of the same user."""
    state = {"draft": "one", "pin": 7}
    made = await lp.create("desk", "ada", "source", state=state, actor="user:ada", **source)
    return made, await lp.create("desk", "ada", "target", actor="user:ada")


APART: dict[str, dict[str, Any]] = {
    "another task": {"isolation": Isolation("per_task", task="t1")},
    "another agent": {"agent": "billing"},
}


@pytest.fixture(params=APART)
async def apart(
    lp: Limpet, request: pytest.FixtureRequest
) -> tuple[limpet.Session[Any], limpet.Session[Any]]:
    await lp.agents.put("billing", {"model": "small"}, actor="user:ada")
    return await pair(lp, **APART[request.param])


async def worker_of(lp: Limpet, key: Key = TARGET) -> Limpet:
    return await at_work(lp.acting_as(WORKER), key)


@pytest.mark.parametrize("sync", ["live", "snapshot"])
async def test_what_a_session_shares_is_read_by_those_it_is_shared_with(
    lp: Limpet, apart: tuple[Any, Any], sync: Any
) -> None:
    """Also where its task or its agent keeps them from the rest of it."""
    source, target = apart
    share = await source.share(target, "draft", sync=sync)
    worker = await worker_of(lp)
    got = await worker.session(TARGET).read_shared(share.id)
    assert (dict(got.values), got.sync) == ({"draft": "one"}, sync)
    with pytest.raises(AccessDenied):
        await worker.get("desk", "ada", "source")
    with pytest.raises(AccessDenied):
        await worker.session(SOURCE).read()


async def test_a_live_share_is_followed(lp: Limpet, apart: tuple[Any, Any]) -> None:
    """Each change, also of a field that is deleted and comes back, until it ends."""
    source, target = apart
    share = await source.share(target, "draft", sync="live")
    reader = (await worker_of(lp)).session(TARGET)
    seen = []
    async with asyncio.timeout(60), aclosing(reader.follow_shared(share.id)) as values:
        async for each in values:
            seen.append(each.values.get("draft"))
            if len(seen) == 1:
                await source.append("agent.note", set={"draft": "two", "pin": 8})
            elif len(seen) == 2:
                await source.append("agent.note", delete=["draft"])
            elif len(seen) == 3:
                await source.append("agent.note", set={"draft": "three"})
            else:
                await source.unshare(share.id)
    assert seen == ["one", "two", None, "three"]
    with pytest.raises(ShareNotFound):
        await reader.read_shared(share.id)


async def test_a_child_shares_with_its_parent(lp: Limpet) -> None:
    """A spawned child works in a task of its own; the parent's worker reads what it shares."""
    parent = await lp.create("desk", "ada", "parent", state={"n": 1})
    child = await lp.spawn(parent.key, task="look into it", actor="user:ada")
    await child.append("agent.note", set={"found": "it"}, actor="agent:main")
    share = await child.share(parent, "found", sync="live")
    worker = await worker_of(lp, parent.key)
    got = await worker.session(parent.key).read_shared(share.id)
    assert dict(got.values) == {"found": "it"}


async def test_what_a_session_says_it_received_opens_nothing(
    lp: Limpet, apart: tuple[Any, Any]
) -> None:
    """A record in its own log that the source does not know, or has ended, is not believed."""
    source, target = apart
    share = await source.share(target, "draft", sync="live")
    await source.unshare(share.id)
    ended = ShareTerms(share.id, ("draft",), "read", "live", 1)
    wider = await source.share(target, "draft", sync="live")
    for terms in (
        ended,
        ShareTerms("never", ("draft",), "read", "live", 1),
        ShareTerms(wider.id, ("draft", "pin"), "read", "live", 1),
        ShareTerms(wider.id, ("draft",), "write", "live", 1),
    ):
        forged = share_received(terms, SOURCE, source.head.uid, None)
        await lp.session(TARGET).record(forged, actor="user:ada")
        worker = await worker_of(lp)
        with pytest.raises(ShareNotFound):
            await worker.session(TARGET).read_shared(terms.id)


@pytest.mark.parametrize("end", ["complete", "delete", "erase"])
async def test_nobody_ends_the_share_of_another_session(lp: Limpet, end: str) -> None:
    """A log may say that it shares what another one does: its end is not that one's."""
    source, target = await pair(lp)
    share = await source.share(target, "draft", sync="live")
    eve = Principal("user:eve", role="owner", app="desk", user="eve")
    forger = await lp.acting_as(eve).create("desk", "eve", "forger", state={"draft": 1})
    terms = ShareTerms(share.id, ("draft",), "read", "live", 1)
    await forger.record(shared(terms, TARGET, target.head.uid, None, {}))
    if end == "complete":
        await forger.complete()
    else:
        await getattr(lp.acting_as(eve), end)(forger.key)
    assert (await target.refresh()).shared.keys() == {share.id}
    assert (await target.read_shared(share.id)).values == {"draft": "one"}


async def test_policies_hold_for_what_is_shared(lp: Limpet, tmp_path: Path) -> None:
    """Of the user, and those of a field."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        '@id("closed") forbid(principal in Role::"agent", action == Action::"read", resource is '
        'Session) when { resource.id == "source" };\n'
    )
    async with limpet.open("memory://", policies=rules) as ruled:
        source, target = await pair(ruled, isolation=Isolation("per_task", task="t1"))
        share = await source.share(target, "draft", sync="live")
        worker = await worker_of(ruled)
        with pytest.raises(LimpetError) as denied:
            await worker.session(TARGET).read_shared(share.id)
        assert isinstance(denied.value, AccessDenied | ShareNotFound)
    only = {"agent:other": limpet.FieldAccess(owns=("draft", "pin"))}
    source, target = await pair(lp, isolation=Isolation("per_agent", task="t1", agents=only))
    share = await source.share(target, "draft", sync="live")
    got = await (await worker_of(lp)).session(TARGET).read_shared(share.id)
    assert dict(got.values) == {}


async def test_who_follows_a_share_is_kept_from_it_by_a_later_policy(tmp_path: Path) -> None:
    """From the next change on, as one who reads it is."""
    pytest.importorskip("cedarpy")
    rules = tmp_path / "rules.cedar"
    rules.write_text("permit(principal, action, resource);\n")
    async with limpet.open("memory://", policies=rules) as ruled:
        source, target = await pair(ruled, isolation=Isolation("per_task", task="t1"))
        share = await source.share(target, "draft", sync="live")
        worker = await worker_of(ruled)
        async with aclosing(worker.session(TARGET).follow_shared(share.id)) as shown:
            assert dict((await anext(shown)).values) == {"draft": "one"}
            rules.write_text(
                "permit(principal, action, resource);\n"
                'forbid(principal in Role::"agent", action == Action::"read", resource is '
                'Session) when { resource.id == "source" };\n'
            )
            await source.append("note.made", actor="user:ada", set={"draft": "canary"})
            with pytest.raises((AccessDenied, StopAsyncIteration)):
                await anext(shown)


async def test_objects_of_two_principals_of_one_store_are_of_one_store(lp: Limpet) -> None:
    """They are shared with, related and merged; each keeps to what its own principal sees."""
    source, _ = await pair(lp)
    fork = await source.fork(id="fork")
    one, other = lp.acting_as(ADA), lp.acting_as(ADA)
    x, y = await one.get("desk", "ada", "source"), await other.get("desk", "ada", "target")
    share = await x.share(y, "draft", ttl=timedelta(hours=1))
    assert share.id in y.shared
    assert dict((await y.read_shared(share.id)).values) == {"draft": "one"}
    await x.relate(y, "peer")
    assert {each.key for each in await y.relations()} == {SOURCE}
    await fork.append("agent.note", set={"pin": 9}, actor="user:ada")
    merged = await x.merge(await other.get("desk", "ada", "fork"))
    assert merged is not None
    assert x.state["pin"] == 9
    assert y.version == (await lp.get(TARGET)).version
    async with limpet.open("memory://") as elsewhere:
        away = await elsewhere.create("desk", "ada", "target")
        for call in (x.share(away, "draft"), x.relate(away, "peer")):
            with pytest.raises(InvalidInput, match="another store"):
                await call
    bob = lp.acting_as(Principal("user:bob", role="owner", app="desk", user="bob"))
    b = await bob.create("desk", "bob", "bobs")
    with pytest.raises((CrossSessionAccessDenied, AccessDenied)):
        await x.share(b, "draft")
    assert journal_of(one).root is journal_of(other).root is journal_of(lp)


async def test_a_share_through_another_object_shows_no_hidden_field(lp: Limpet) -> None:
    """An object of an agent that sees a part learns no more when an owner shares with it."""
    agents = {"agent:main": limpet.FieldAccess(owns=("mine",))}
    await pair(lp)
    await lp.create(
        "desk",
        "ada",
        "part",
        state={"mine": 1, "secret": "canary"},
        isolation=Isolation("per_agent", agents=agents),
    )
    agent = Principal("agent:main", role="agent", app="desk", user="ada")
    y = await lp.acting_as(agent).get("desk", "ada", "part")
    x = await lp.acting_as(ADA).get("desk", "ada", "source")
    await x.share(y, "draft")
    assert dict(y.values) == {"mine": 1}
    assert len(y.shared) == 1
