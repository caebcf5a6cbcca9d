"""What a session runs with: documents in their versions, a fingerprint, and what has changed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import limpet
from limpet.model.facts.running.setup import attached

ADA = "user:ada"
REFERENCE = "env:STRIPE_KEY"


async def made(lp: limpet.Limpet, id: str) -> limpet.Session[Any]:
    """A session with an agent, an environment and everything that can be attached."""
    documents: list[tuple[Any, str, Any]] = [
        (lp.agents, "support", {"model": "small"}),
        (lp.environments, "default", {"image": "python"}),
        (lp.resources, "repo", {"mount": "/srv/repo", "access": "ro"}),
        (lp.resources, "docs", {"mount": "/srv/docs"}),
        (lp.vaults, "payments", {"stripe": REFERENCE}),
        (lp.permissions, "careful", {"tools": {"refund": "always_ask"}}),
    ]
    for collection, name, value in documents:
        if await collection.find(name) is None:
            await collection.put(name, value, actor=ADA)
    s = await lp.create("support", "ada", id, agent="support", environment="default")
    await s.setup.attach(resources=["repo", "docs"], vaults=["payments"], permissions="careful")
    return s


async def test_a_session_keeps_the_versions_it_was_set_up_with(lp: limpet.Limpet) -> None:
    """Newer documents change nothing for it, until they are attached."""
    s = await made(lp, "one")
    await lp.resources.put("repo", {"mount": "/elsewhere"}, actor=ADA)
    setup = (await lp.get(s.key)).setup.current
    assert (setup.agent, setup.environment) == ("support@1", "default@1")
    assert setup.permissions == "careful@1"
    assert (setup.resources, setup.vaults) == (("docs@1", "repo@1"), ("payments@1",))
    assert [d.value["mount"] for d in await s.setup.resources()] == ["/srv/docs", "/srv/repo"]
    await s.setup.attach(resources=["repo"])
    assert s.setup.current.resources == ("repo@2",)
    assert s.setup.current.vaults == ("payments@1",)


async def test_a_session_takes_the_resources_and_vaults_of_its_agent(lp: limpet.Limpet) -> None:
    """In the versions that the definition names, or the newest, in the commit that creates it."""
    await made(lp, "one")
    await lp.resources.put("repo", {"mount": "/elsewhere"}, actor=ADA)
    named = {"resources": ["repo@1", "docs"], "vaults": ["payments"]}
    await lp.agents.put("support", named, actor=ADA)
    s = await lp.create("support", "ada", "two", agent="support@2", actor=ADA)
    for each in (s, await lp.get(s.key)):
        setup = each.setup.current
        assert (setup.agent, setup.resources) == ("support@2", ("docs@1", "repo@1"))
        assert setup.vaults == ("payments@1",)
    assert [event.type for event in await s.read()] == ["session.created", "session.attached"]
    assert await s.setup.vaults() == {"payments@1": ("stripe",)}
    before = await lp.create("support", "ada", "three", agent="support@1", actor=ADA)
    assert (before.setup.current.resources, before.version) == ((), 1)
    for wrong, error in (
        ({"resources": "repo"}, limpet.InvalidInput),
        ({"vaults": [{"stripe": REFERENCE}]}, limpet.InvalidInput),
        ({"resources": ["missing"]}, limpet.errors.DocumentNotFound),
    ):
        await lp.agents.put("support", wrong, actor=ADA)
        with pytest.raises(error):
            await lp.create("support", "ada", "four", agent="support", actor=ADA)
    assert await lp.find("support", "ada", "four") is None


async def test_an_owner_creates_a_session_of_an_agent_with_its_resources() -> None:
    """Though to attach by hand takes more: the definition says what its sessions have."""
    async with limpet.open("memory://") as lp:
        await lp.resources.put("repo", {"mount": "/srv"}, actor=ADA)
        await lp.agents.put("support", {"resources": ["repo"]}, actor=ADA)
        own = lp.acting_as(limpet.Principal(ADA, role="owner", app="support", user="ada"))
        s = await own.create("support", "ada", "one", agent="support")
        assert s.setup.current.resources == ("repo@1",)


async def test_equal_setups_have_one_fingerprint(lp: limpet.Limpet) -> None:
    """In another session and another order it is the same; any change changes it."""
    one, two = await made(lp, "one"), await made(lp, "two")
    await two.setup.attach(resources=["docs", "repo", "docs"])
    assert one.setup.current.fingerprint == two.setup.current.fingerprint
    assert one.setup.current.compare(two.setup.current) == ()
    seen = {two.setup.current.fingerprint}
    await two.setup.attach(resources=["docs"])
    seen.add(two.setup.current.fingerprint)
    await two.tools.bind(limpet.ToolRegistry([limpet.Tool("refund", permission="always_ask")]))
    seen.add(two.setup.current.fingerprint)
    await lp.permissions.put("careful", {"tools": {"refund": "deny"}}, actor=ADA)
    await two.setup.attach(permissions="careful")
    seen.add(two.setup.current.fingerprint)
    assert len(seen) == 4


async def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is compared with those that were kept, so its form does not change."""
    setup = limpet.Setup(agent="support@1", tools={"a": {"version": "1.0.0"}}, resources=("r@1",))
    assert setup.fingerprint == ("8b119d6952155203721e2db70eaf3d0a2116219cc98371f70f3ab8af05595bc0")


async def test_a_comparison_names_what_changed(lp: limpet.Limpet) -> None:
    """Added, removed, and from which version to which; in words, too."""
    one, two = await made(lp, "one"), await made(lp, "two")
    await lp.permissions.put("careful", {"tools": {}}, actor=ADA)
    await two.setup.attach(resources=["docs"], permissions="careful")
    await two.tools.bind(limpet.ToolRegistry([limpet.Tool("refund")]))
    changes = one.setup.current.compare(two.setup.current)
    assert [(c.what, c.name) for c in changes] == [
        ("permissions", "careful"),
        ("resource", "repo"),
        ("tool", "refund"),
    ]
    assert [str(c) for c in changes] == [
        "permissions careful: careful@1 → careful@2",
        "resource repo was removed (repo@1)",
        "tool refund was added (version 1.0.0, always_allow)",
    ]
    assert await one.setup.compare(two.setup.current) == changes


async def test_a_setup_is_compared_with_the_newest_documents(lp: limpet.Limpet) -> None:
    """A newer version and a deleted document show, and nothing else."""
    s = await made(lp, "one")
    assert await s.setup.compare() == ()
    await lp.agents.put("support", {"model": "large"}, actor=ADA)
    await lp.resources.delete("repo", actor=ADA)
    shown = [str(change) for change in await s.setup.compare()]
    assert shown == ["agent support: support@1 → support@2", "resource repo was removed (repo@1)"]


async def test_what_is_not_there_cannot_be_attached(lp: limpet.Limpet) -> None:
    """Nothing is recorded then."""
    s = await lp.create("support", "ada", "one")
    for wrong in ({"resources": ["repo"]}, {"vaults": ["v"]}, {"permissions": "p"}):
        with pytest.raises(limpet.errors.DocumentNotFound):
            await s.setup.attach(**wrong)  # type: ignore[arg-type]  # one of them at a time
    for refused in ({}, {"resources": "repo"}, {"permissions": "p@x"}):
        with pytest.raises(limpet.InvalidInput):
            await s.setup.attach(**refused)  # type: ignore[arg-type]
    assert (await s.refresh()).version == 1


async def test_the_stricter_permission_counts(lp: limpet.Limpet) -> None:
    """Of the attached document and the bound tools; `*` is for every other tool. What is not bound
    is denied, whatever the document says of it."""
    s = await lp.create("support", "ada", "one")
    assert await s.setup.permissions() == {}
    assert await s.setup.check_permission("refund") == "always_allow"
    tools = {"search": "always_allow", "refund": "always_ask", "*": "deny"}
    await lp.permissions.put("p", {"tools": tools}, actor=ADA)
    await s.setup.attach(permissions="p")
    registry = limpet.ToolRegistry([limpet.Tool("search", permission="always_ask")])
    await s.tools.bind(registry)
    assert await s.setup.permissions() == {
        "*": "deny",
        "refund": "deny",
        "search": "always_ask",
    }
    await s.tools.bind(limpet.ToolRegistry([limpet.Tool("search"), limpet.Tool("refund")]))
    found = [await s.setup.check_permission(tool) for tool in ("search", "refund", "shell")]
    assert found == ["always_allow", "always_ask", "deny"]


@pytest.mark.parametrize("value", [{}, {"tools": {"a": "maybe"}}, {"tools": ["a"]}, 5])
async def test_permissions_are_checked_when_they_are_put(lp: limpet.Limpet, value: Any) -> None:
    """What nobody could follow is refused."""
    with pytest.raises(limpet.InvalidInput):
        await lp.permissions.put("p", value, actor=ADA)


async def test_the_permissions_of_a_session_hold_in_its_turns(lp: limpet.Limpet) -> None:
    """deny stops an effect, always_ask asks first; a worker's own permissions cannot loosen it."""
    done: list[str] = []

    async def act(turn: limpet.Turn) -> None:
        async def refund() -> None:
            done.append("refund")

        await turn.effect("refund", refund)

    s = await lp.create("support", "ada", "one")
    await lp.permissions.put("p", {"tools": {"refund": "always_ask"}}, actor=ADA)
    await s.setup.attach(permissions="p")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    loose = {"refund": "always_allow"}
    assert (await lp.wake(s.key, act, permissions=loose)).reason == "requires_action"
    assert done == []
    await s.refresh()
    await s.confirm(s.blocked_on[0].id, allow=True)
    await lp.wake(s.key, act)
    assert done == ["refund"]
    await lp.permissions.put("p", {"tools": {"*": "deny"}}, actor=ADA)
    await s.setup.attach(permissions="p")
    await s.append("user.message", {"text": "again"}, actor=ADA)
    woken = await lp.wake(s.key, act)
    assert isinstance(woken.error, limpet.ToolDenied)
    assert done == ["refund"]


WRONG: list[dict[str, Any]] = [
    {"permissions": {"refund": "denied"}},
    {"permissions": {"refund": None}},
    {"permissions": {"refund": ["deny"]}},
    {"permissions": {5: "deny"}},
    {"permissions": ["refund"]},
    {"permissions": []},
    {"permissions": "deny"},
    {"retries": -1},
    {"retries": "5"},
    {"retries": True},
    {"on_mismatch": "ignore"},
    {"on_mismatch": ["accept"]},
]


@pytest.mark.parametrize("how", WRONG, ids=str)
async def test_a_worker_and_a_wake_refuse_what_they_cannot_follow(
    lp: limpet.Limpet, how: dict[str, Any]
) -> None:
    """Before anything runs: a permission with a slip of the pen would allow what it forbids."""
    done: list[str] = []

    async def act(turn: limpet.Turn) -> None:
        await turn.effect("refund", lambda: done.append("refund"))

    s = await lp.create("support", "ada", "one")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    with pytest.raises(limpet.InvalidInput):
        await lp.wake(s.key, act, **how)
    with pytest.raises(limpet.InvalidInput):
        limpet.Worker(lp, act, app="support", **how)
    assert done == []
    assert (await s.refresh()).head.pending == 1


async def test_tools_workers_and_documents_say_deny(lp: limpet.Limpet) -> None:
    """They have the same three words; any other is refused, and the error lists them."""

    async def act(turn: limpet.Turn) -> None: ...

    s = await lp.create("support", "ada", "one")
    tools: Any = {"refund": "never_allow"}
    with pytest.raises(limpet.InvalidInput, match="Use one of always_allow, always_ask, deny"):
        limpet.Tool("refund", permission=tools["refund"])
    with pytest.raises(limpet.InvalidInput, match="Use one of always_allow, always_ask, deny"):
        await lp.wake(s.key, act, permissions=tools)
    with pytest.raises(limpet.InvalidInput, match="one of always_allow, always_ask, deny"):
        await lp.permissions.put("p", {"tools": tools}, actor=ADA)
    assert limpet.Tool("refund", permission="deny").permission == "deny"


async def test_what_is_not_a_permission_denies(lp: limpet.Limpet) -> None:
    """Where an unknown word is recorded, by newer code or by hand, nothing is performed."""
    done: list[str] = []

    async def act(turn: limpet.Turn) -> None:
        await turn.effect("refund", lambda: done.append("refund"))

    s = await lp.create("support", "ada", "one")
    await s.record(attached(limits={"refund": "on_mondays"}), actor=ADA)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    assert isinstance((await lp.wake(s.key, act)).error, limpet.ToolDenied)
    assert await s.setup.check_permission("refund") == "deny"
    assert done == []


# --- vaults -------------------------------------------------------------------------------------


async def test_a_vault_never_shows_its_references(
    lp: limpet.Limpet, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a repr, a text, a page, a history, a commit, a log line; its names it does show."""
    caplog.set_level(logging.DEBUG, logger="limpet")
    put = await lp.vaults.put("payments", {"stripe": REFERENCE}, actor=ADA)
    async with lp.commit() as c:
        c.put(lp.vaults, "more", {"github": REFERENCE}, actor=ADA)
    same = lp.documents("vaults")
    shown = [put, await same.get("payments"), await same.list(), await same.history("payments")]
    shown += [c.documents, str(put), f"{put}"]
    assert all("STRIPE_KEY" not in repr(each) for each in shown)
    assert all("stripe" in repr(each) for each in shown if each is not c.documents)
    assert put.value == {"stripe": REFERENCE}
    assert "STRIPE_KEY" not in caplog.text
    s = await lp.create("support", "ada", "one")
    await s.setup.attach(vaults=["payments"])
    assert await s.setup.vaults() == {"payments@1": ("stripe",)}


SECRET = "sk_live_51H8xyz"


@pytest.mark.parametrize(
    "value", [{}, {"stripe": SECRET}, {"stripe": {"key": SECRET}}, {"a": 5}, SECRET, {"": "env:A"}]
)
async def test_a_vault_takes_references_only(lp: limpet.Limpet, value: Any) -> None:
    """A pasted secret is refused through every door, and the error does not repeat it."""
    with pytest.raises(limpet.InvalidInput) as info:
        await lp.vaults.put("payments", value, actor=ADA)
    assert SECRET not in str(info.value)
    with pytest.raises(limpet.InvalidInput):
        await lp.documents("vaults").put("payments", value, actor=ADA)
    with pytest.raises(limpet.InvalidInput):
        async with lp.commit() as c:
            c.put(lp.vaults, "payments", value, actor=ADA)
    assert await lp.vaults.find("payments") is None


@pytest.mark.parametrize("value", [{"a": "vault://kv/x"}, {"a": ["env:A", "B_KEY"]}])
async def test_references_have_many_forms(lp: limpet.Limpet, value: Any) -> None:
    """A scheme with a place, a name of the environment, or several of them."""
    assert (await lp.vaults.put("v", value, actor=ADA)).value == value


async def test_a_deleted_vault_can_be_shown(lp: limpet.Limpet) -> None:
    """Its deletion is a version without names."""
    await lp.vaults.put("v", {"a": "env:A"}, actor=ADA)
    await lp.vaults.delete("v", actor=ADA)
    gone, first = await lp.vaults.history("v")
    assert isinstance(gone, limpet.VaultDocument)
    assert isinstance(first, limpet.VaultDocument)
    assert (gone.names, first.names) == ((), ("a",))
    assert "deleted" not in repr(first)
