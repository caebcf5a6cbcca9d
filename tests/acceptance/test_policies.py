"""Policies on a store: roles, isolation and the user's own rules decide together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

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
