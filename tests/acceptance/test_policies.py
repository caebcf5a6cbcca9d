"""Policies on a store: roles, isolation and the user's own rules decide together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, Principal
from limpet.errors import AccessDenied, InvalidInput, PolicyInvalid

pytest.importorskip("cedarpy")
ADA = Principal("user:ada", role="owner", app="support", user="ada")
EVE = Principal(
    "user:eve", role="owner", app="support", user="eve", attributes={"department": "hr"}
)
VIEWER = Principal("user:ada", role="viewer", app="support", user="ada")
AUDITOR = Principal("auditor:1", role="auditor", app="support")
EVERYTHING = "permit(principal, action, resource);\n"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    directory = tmp_path / "policies"
    directory.mkdir()
    (directory / "rules.cedar").write_text(EVERYTHING)
    return directory


@pytest.fixture
async def lp(url: str, rules: Path) -> AsyncIterator[Limpet]:
    async with limpet.open(url, policies=rules) as opened:
        await opened.create("support", "ada", "c1", state={"step": 1, "salary": 9})
        await opened.create("support", "eve", "c2")
        yield opened


async def test_a_policy_takes_away_what_a_role_gives_and_is_named(lp: Limpet, rules: Path) -> None:
    """In the error and in the audit, with the code of policies."""
    s = await lp.acting_as(ADA).get("support", "ada", "c1")
    await s.append("note.made", {})
    (rules / "more.cedar").write_text(
        '@id("hr-only") forbid(principal, action == Action::"write", resource)\n'
        'unless { principal has department && principal.department == "hr" };'
    )
    with pytest.raises(AccessDenied) as caught:
        await s.append("note.made", {})
    error = caught.value
    assert (error.denial, error.action, error.policy) == ("policy_denied", "write", "hr-only")
    await (await lp.acting_as(EVE).get("support", "eve", "c2")).append("note.made", {})
    (record,) = (await lp.audit(denied=True)).items
    assert (record.principal, record.code, record.policy) == (
        "user:ada",
        "policy_denied",
        "hr-only",
    )
    assert record.resource == "support/ada/c1"


async def test_who_may_not_end_a_session_sets_no_time_at_which_it_ends(
    lp: Limpet, rules: Path
) -> None:
    """Timeouts are lifecycle; one that deletes the session is an erasure, too."""
    s, hour = await lp.acting_as(ADA).get("support", "ada", "c1"), timedelta(hours=1)
    for action, timeouts in (
        ("lifecycle", limpet.Timeouts(absolute=hour)),
        ("erase", limpet.Timeouts(expiry=hour)),
    ):
        (rules / "more.cedar").write_text(
            f'@id("kept") forbid(principal, action == Action::"{action}", resource);'
        )
        with pytest.raises(AccessDenied) as caught:
            await s.lifecycle.set_timeouts(timeouts)
        assert (caught.value.action, caught.value.policy) == (action, "kept")
        await s.append("note.made", {})
    assert s.lifecycle.timeouts is None


async def test_who_may_write_and_not_read_is_shown_no_event_of_before(
    lp: Limpet, rules: Path
) -> None:
    """The id of an event that is recorded already is answered without its body."""
    s = await lp.get("support", "ada", "c1")
    await s.append("user.message", {"text": "secret"}, actor="user:ada", id="said")
    acting = lp.acting_as(ADA).session(s.key)
    (rules / "more.cedar").write_text(
        '@id("blind") forbid(principal, action == Action::"read", resource);'
    )
    for _ in range(2):
        event = await acting.append("user.message", {"text": "guess"}, id="said")
        assert event.repeated
        assert event.data == {}


async def test_a_policy_gives_nothing_that_a_role_does_not(lp: Limpet) -> None:
    """A permit for everything lets nobody into another user's session, nor a viewer write."""
    with pytest.raises(AccessDenied) as caught:
        await lp.acting_as(ADA).get("support", "eve", "c2")
    assert caught.value.denial == "access_denied"
    s = await lp.acting_as(VIEWER).get("support", "ada", "c1")
    with pytest.raises(AccessDenied) as caught:
        await s.append("note.made", {})
    assert caught.value.denial == "access_denied"


async def test_without_a_permit_nothing_is_allowed(lp: Limpet, rules: Path) -> None:
    """Lists show nothing, and creating is asked, too."""
    (rules / "rules.cedar").write_text(
        'permit(principal, action == Action::"read", resource) when { resource has phase };'
    )
    acting = lp.acting_as(ADA)
    await acting.get("support", "ada", "c1")
    with pytest.raises(AccessDenied) as caught:
        await acting.create("support", "ada", "c9")
    assert caught.value.denial == "policy_denied"
    (rules / "rules.cedar").write_text(
        'permit(principal, action == Action::"create", resource);'
        'permit(principal, action == Action::"inspect", resource is App);'
    )
    await acting.create("support", "ada", "c9")
    assert not (await acting.list(app="support")).items


async def test_a_policy_that_breaks_denies_until_it_is_repaired(lp: Limpet, rules: Path) -> None:
    """It never lets anybody in."""
    acting = lp.acting_as(ADA)
    await acting.get("support", "ada", "c1")
    (rules / "rules.cedar").write_text("permit(principal, action")
    with pytest.raises(AccessDenied) as caught:
        await acting.get("support", "ada", "c1")
    assert caught.value.denial == "policy_denied"
    assert "broken" in str(caught.value.policy)
    (rules / "rules.cedar").write_text(EVERYTHING)
    await acting.get("support", "ada", "c1")


async def test_policies_that_cannot_be_used_are_refused_at_the_door(tmp_path: Path) -> None:
    """Before the store is opened or made."""
    file = tmp_path / "support.db"
    (tmp_path / "broken.cedar").write_text("permit(principal")
    with pytest.raises(PolicyInvalid, match=r"broken\.cedar:1"):
        await limpet.open(f"sqlite:///{file}", policies=tmp_path / "broken.cedar")
    for wrong in (5, b"x", ""):
        with pytest.raises(InvalidInput):
            await limpet.open("memory://", policies=wrong)  # type: ignore[arg-type]  # on purpose
    assert not file.exists()
    (tmp_path / "fine.cedar").write_text(EVERYTHING)
    with limpet.open_sync("memory://", policies=str(tmp_path / "fine.cedar")) as lp:
        lp.create("support", "ada", "c1")


async def test_only_auditors_and_admins_read_the_audit_each_of_its_app(lp: Limpet) -> None:
    """Who may not, and that it was tried, is in the audit."""
    with pytest.raises(AccessDenied):
        await lp.acting_as(ADA).get("support", "eve", "c2")
    shop = Principal("user:zoe", role="owner", app="shop", user="zoe")
    with pytest.raises(AccessDenied):
        await lp.acting_as(shop).get("shop", "ada", "c1")
    seen = (await lp.acting_as(AUDITOR).audit()).items
    assert [r.resource for r in seen] == ["support/eve/c2"]
    with pytest.raises(AccessDenied):
        await lp.acting_as(AUDITOR).audit(app="shop")
    admin = Principal("admin:1", role="admin")
    assert {r.principal for r in (await lp.acting_as(admin).audit()).items} >= {
        "user:ada",
        "user:zoe",
    }
    for who in (ADA, VIEWER, Principal("agent:a", role="agent", app="support")):
        with pytest.raises(AccessDenied):
            await lp.acting_as(who).audit()
    denied = (await lp.audit(denied=True)).items
    assert {r.principal for r in denied if r.action == "audit"} == {
        "user:ada",
        "agent:a",
        "auditor:1",
    }


# --- fields, labels, tools ------------------------------------------------------------------------

PAY = """
permit(principal, action, resource);
@id("pay") forbid(principal, action in [Action::"read", Action::"write"], resource is Field)
when { resource.name == "salary" } unless { principal.role == "admin" };
"""


async def test_a_field_that_a_policy_hides_is_absent_and_not_to_be_written(
    lp: Limpet, rules: Path
) -> None:
    """For whom it forbids it; others see and change everything, and may take it as a whole."""
    (rules / "rules.cedar").write_text(PAY)
    s = await lp.acting_as(ADA).get("support", "ada", "c1")
    assert s.state == {"step": 1}
    for event in await s.read():
        assert "salary" not in str(event)
    await s.append("note.made", {}, set={"step": 2})
    for change in ({"set": {"salary": 10}}, {"delete": ["salary"]}):
        with pytest.raises(AccessDenied) as caught:
            await s.append("note.made", {}, **change)
        assert (caught.value.policy, caught.value.resource) == ("pay", "support/ada/c1#salary")
    with pytest.raises(AccessDenied):
        await lp.acting_as(ADA).create("support", "ada", "c3", state={"salary": 1})
    with pytest.raises(AccessDenied):
        await s.fork()
    admin = lp.acting_as(Principal("admin:1", role="admin", app="support"))
    whole = await admin.get("support", "ada", "c1")
    assert whole.state == {"step": 2, "salary": 9}
    await whole.append("note.made", {}, set={"salary": 11})
    await whole.fork(id="c4")


async def test_a_policy_that_matches_names_hides_them_one_by_one(lp: Limpet, rules: Path) -> None:
    """Together with what isolation hides."""
    (rules / "rules.cedar").write_text(
        EVERYTHING + 'forbid(principal, action == Action::"read", resource is Field)\n'
        'when { resource.name like "sal*" };'
    )
    agents = {"agent:a": limpet.FieldAccess(owns=("step", "salary"))}
    isolation = limpet.Isolation("per_agent", agents=agents)
    state = {"step": 1, "salary": 2, "note": 3}
    await lp.create("support", "ada", "c5", state=state, isolation=isolation)
    agent = Principal("agent:a", role="agent", app="support", user="ada", task="c5")
    s = await lp.acting_as(agent).get("support", "ada", "c5")
    assert s.state == {"step": 1}


async def test_a_rule_about_labels_leaves_the_rules_about_documents_as_they_are(
    lp: Limpet, rules: Path
) -> None:
    """What has no head is decided although another rule asks for heads."""
    (rules / "more.cedar").write_text(
        '@id("held") forbid(principal, action == Action::"write", resource is Session)\n'
        'when { resource.hasTag("hold") };\n'
        '@id("notes") forbid(principal, action, resource is Document);\n'
        '@id("lists") forbid(principal, action == Action::"inspect", resource is App);\n'
    )
    acting = lp.acting_as(ADA)
    notes = acting.documents("notes", owner=("support", "ada"))
    for call in (notes.put("n1", 1), notes.find("n1"), acting.list()):
        with pytest.raises(AccessDenied) as caught:
            await call
        assert caught.value.policy in ("notes", "lists")


async def test_a_policy_about_labels_and_phases_is_decided_on_the_newest_head(
    lp: Limpet, rules: Path
) -> None:
    """Also if another changed them since the session was loaded."""
    (rules / "rules.cedar").write_text(
        EVERYTHING + '@id("held") forbid(principal, action == Action::"write", resource is Session)'
        'when { resource.hasTag("hold") };'
        '@id("ended") forbid(principal, action == Action::"inspect", resource is Session)'
        'when { resource has phase && resource.phase == "suspended" };'
    )
    s = await lp.acting_as(ADA).get("support", "ada", "c1")
    await s.append("note.made", {})
    other = await lp.get("support", "ada", "c1", actor="admin:1")
    await other.label({"hold": "legal"})
    with pytest.raises(AccessDenied) as caught:
        await s.append("note.made", {})
    assert caught.value.policy == "held"
    await other.label({"hold": None})
    await s.append("note.made", {})
    assert (await lp.acting_as(ADA).list(app="support")).items
    await (await lp.get("support", "ada", "c1", actor="admin:1")).suspend()
    assert not (await lp.acting_as(ADA).list(app="support")).items


async def test_a_tool_that_a_policy_forbids_is_denied_in_a_turn(lp: Limpet, rules: Path) -> None:
    """An effect is a tool by its name; the denial is in the audit before the turn goes on."""
    (rules / "rules.cedar").write_text(
        EVERYTHING
        + '@id("no-refunds") forbid(principal, action == Action::"tool", resource is Tool)\n'
        'when { resource.name == "refund" };'
    )
    said: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        said.append(await turn.effect("look", lambda: "looked"))
        try:
            await turn.effect("refund", lambda: "refunded")
        except limpet.errors.ToolDenied as error:
            said.append(str(error.note))

    s = await lp.get("support", "ada", "c1", actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    worker = lp.acting_as(Principal("agent:worker", role="agent", app="support"))
    woken = await worker.wake(s.key, harness)
    assert woken.error is None
    assert said == ["looked", "policy_denied by no-refunds"]
    (record,) = (await lp.audit(denied=True)).items
    assert (record.action, record.resource, record.policy) == (
        "tool",
        "support/ada/c1#refund",
        "no-refunds",
    )


# --- the context ---------------------------------------------------------------------------------

WEEK = 1_794_787_200  # Monday, 2026-11-16, 00:00 UTC


async def test_a_policy_asks_when_a_request_is_made(tmp_path: Path) -> None:
    """What was allowed is refused once the hour has passed: nothing remembered outlives it."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        '@id("office-hours") forbid(principal, action == Action::"write", resource)\n'
        "unless { context.hour >= 8 && context.hour < 18 && context.weekday <= 5 };\n"
        '@id("closed") forbid(principal, action, resource)\n'
        'when { context.at >= datetime("2026-12-01T00:00:00Z") };\n'
    )
    async with limpet.open("memory://", policies=rules) as lp:
        policies: Any = lp._journal.policies
        now = WEEK + 9 * 3_600
        policies.now_us = lambda: now * 1_000_000
        s = await lp.acting_as(ADA).create("support", "ada", "c1")
        for _ in range(3):  # until it is remembered
            await s.append("note.made", set={"n": 1})
        for later in (WEEK + 18 * 3_600, WEEK + 5 * 86_400 + 9 * 3_600):
            now = later
            assert (await refused(s.append("note.made", set={"n": 2}))) == "office-hours"
            await lp.acting_as(ADA).get("support", "ada", "c1")
        now = WEEK + 86_400 + 9 * 3_600
        await s.append("note.made", set={"n": 3})
        now = 1_796_083_200 - 1  # the last second of November
        await s.read()
        now += 1
        assert "closed" in str(await refused(s.read()))


async def test_a_policy_asks_where_a_request_comes_from(tmp_path: Path) -> None:
    """One principal from two addresses; and one that says none has none."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        '@id("inside") forbid(principal, action == Action::"read", resource is Session)\n'
        'unless { context has address && context.address.isInRange(ip("10.0.0.0/8")) };\n'
    )
    async with limpet.open("memory://", policies=rules) as lp:
        await lp.create("support", "ada", "c1")
        inside = lp.acting_as(ADA, address="10.1.2.3")
        await inside.get("support", "ada", "c1")
        for address in ("192.0.2.7", None, "a socket", "10.1.2.3%eth0", "::1"):
            other = lp.acting_as(ADA, address=address)
            assert (await refused(other.get("support", "ada", "c1"))) == "inside"
        await inside.acting_as(ADA).get("support", "ada", "c1")
        records = (await lp.audit(denied=True)).items
        assert {record.address for record in records} >= {"192.0.2.7", None}
        with pytest.raises(AccessDenied):
            lp.acting_as(ADA, address="192.0.2.7").acting_as(ADA, address="10.1.2.3")
        await lp.acting_as(ADA).acting_as(ADA, address="10.1.2.3").get("support", "ada", "c1")


async def test_a_context_that_is_taken_as_a_whole_is_decided_every_second(tmp_path: Path) -> None:
    rules = tmp_path / "rules.cedar"
    rules.write_text("permit(principal, action, resource) when { context != {hour: 1} };")
    async with limpet.open("memory://", policies=rules) as lp:
        policies: Any = lp._journal.policies
        assert policies.asks("at")
        assert policies.asks("address")
        await lp.acting_as(ADA).create("support", "ada", "c1")


async def refused(call: Any) -> str | None:
    with pytest.raises(AccessDenied) as caught:
        await call
    return caught.value.policy
