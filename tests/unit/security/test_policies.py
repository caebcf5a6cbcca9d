"""Policies by themselves: what is read, what is asked, and what each answer names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from limpet import Principal
from limpet.errors import InvalidInput, PolicyInvalid
from limpet.model import Key
from limpet.security import roles
from limpet.security.access import ACTIONS, ROLES, Action, Resource
from limpet.security.policies import CedarPolicies, check_schema, request_of, split_policies

pytest.importorskip("cedarpy")
ADA = Principal("user:ada", role="owner", app="support", user="ada")
ROOT = Principal("admin:root", role="admin")
C1 = Resource.of(Key("support", "ada", "c1"))
EVERYTHING = "permit(principal, action, resource);\n"


def policies(tmp_path: Path, text: str) -> CedarPolicies:
    file = tmp_path / "rules.cedar"
    file.write_text(text)
    return CedarPolicies(file)


def test_a_permit_is_needed_and_a_forbid_wins(tmp_path: Path) -> None:
    """As in Cedar; both answers name their policy."""
    rules = policies(
        tmp_path,
        """
        @id("owners") permit(principal in Role::"owner", action, resource);
        forbid(principal, action == Action::"erase", resource);
        """,
    )
    allowed = rules.decide(ADA, "read", C1)
    assert (allowed.allowed, allowed.denial, allowed.policy) == (True, None, "owners")
    forbidden = rules.decide(ADA, "erase", C1)
    assert not forbidden.allowed
    assert (forbidden.denial, forbidden.policy) == ("policy_denied", "rules.cedar:3")
    unmentioned = rules.decide(ROOT, "read", C1)
    assert (unmentioned.denial, unmentioned.policy) == ("policy_denied", "rules.cedar (no permit)")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('principal.role == "owner"', True),
        ('principal.user == resource.user && resource.app == "support"', True),
        ('resource.id == "c1"', True),
        ('resource in App::"support"', True),
        ('resource in App::"shop"', False),
        ('resource == Session::"support/ada/c1"', True),
        ('principal.department == "hr" && principal.level >= 3', True),
        ('principal.regions.contains("eu")', True),
        ('principal.manager.name == "eve"', True),
        ("principal has task", False),
        ("resource has phase", False),
    ],
)
def test_a_policy_sees_the_attributes_of_both(tmp_path: Path, condition: str, holds: bool) -> None:
    """Those of the principal with their types."""
    more = {"department": "hr", "level": 3, "regions": ["eu", "us"], "manager": {"name": "eve"}}
    who = Principal("user:ada", role="owner", app="support", user="ada", attributes=more)
    text = f"permit(principal, action, resource) when {{ {condition} }};"
    assert policies(tmp_path, text).decide(who, "read", C1).allowed is holds


def test_an_attribute_cannot_stand_in_for_what_the_principal_is(tmp_path: Path) -> None:
    """Nobody gives itself a role or a user; an escape of Cedar's JSON is no entity."""
    rules = policies(
        tmp_path, 'permit(principal, action, resource) when {principal.user == "ada"};'
    )
    claims: list[dict[str, Any]] = [
        {"user": "ada"},
        {"user": {"__entity": {"type": "User", "id": "x"}}},
        {"other": {"__extn": {"fn": "ip", "arg": "x"}}},
        {"other": object()},
        {"other": 1.5},
    ]
    for attributes in claims:
        who = Principal("key:1", role="owner", attributes=attributes)
        assert rules.decide(who, "read", C1).denial == "policy_denied"


def test_names_with_slashes_are_told_apart(tmp_path: Path) -> None:
    """ "a/b" and "c" are not "a" and "b/c"."""
    text = 'permit(principal, action, resource == Session::"a/b%2Fc/d");'
    rules = policies(tmp_path, text)
    assert rules.decide(ROOT, "read", Resource.of(Key("a", "b/c", "d"))).allowed
    assert not rules.decide(ROOT, "read", Resource.of(Key("a/b", "c", "d"))).allowed


def test_any_error_in_an_evaluation_denies_and_names_the_policy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if another policy permits."""
    rules = policies(
        tmp_path,
        EVERYTHING + '@id("typo") forbid(principal, action, resource) when {principal.rol == "x"};',
    )
    with caplog.at_level(logging.WARNING, "limpet.policies"):
        decision = rules.decide(ADA, "read", C1)
    assert (decision.denial, decision.policy) == ("policy_denied", "typo (error)")
    assert "policy evaluation failed" in caplog.text


def test_a_field_follows_its_session_until_a_policy_forbids_it(tmp_path: Path) -> None:
    """A permit for sessions is enough for their fields; reading and writing are told apart."""
    rules = policies(
        tmp_path,
        """
        permit(principal, action, resource is Session);
        @id("pay") forbid(principal, action == Action::"read", resource is Field)
        when { resource.name == "salary" } unless { principal.role == "admin" };
        """,
    )

    def field(name: str) -> Resource:
        return Resource("field", "support", "ada", "c1", name)

    assert rules.decide(ADA, "read", field("step")).allowed
    assert rules.decide(ADA, "read", field("salary")).policy == "pay"
    assert rules.decide(ADA, "write", field("salary")).allowed
    assert rules.decide(ROOT, "read", field("salary")).allowed


def test_a_tool_needs_a_permit(tmp_path: Path) -> None:
    """By its name, or by the session that it is used in."""
    rules = policies(
        tmp_path,
        """
        permit(principal, action == Action::"tool", resource is Tool)
        when { resource.name == "search" };
        permit(principal in Role::"admin", action == Action::"tool", resource)
        when { resource in App::"support" };
        """,
    )
    search, refund = [Resource("tool", "support", "ada", "c1", n) for n in ("search", "refund")]
    assert rules.decide(ADA, "tool", search).allowed
    assert rules.decide(ADA, "tool", refund).denial == "policy_denied"
    assert rules.decide(ROOT, "tool", refund).allowed


def test_a_changed_file_is_read_again_before_the_next_answer(tmp_path: Path) -> None:
    """Also one that has the same size, and one that is added to the directory or removed."""
    file = tmp_path / "rules.cedar"
    file.write_text('permit(principal, action == Action::"read", resource);')
    rules = CedarPolicies(tmp_path)
    before = rules.revision
    assert rules.decide(ADA, "read", C1).allowed
    file.write_text('permit(principal, action == Action::"move", resource);')
    assert not rules.decide(ADA, "read", C1).allowed
    assert rules.revision != before
    (tmp_path / "more.cedar").write_text(EVERYTHING)
    assert rules.decide(ADA, "read", C1).policy == "more.cedar:1"
    (tmp_path / "more.cedar").unlink()
    assert not rules.decide(ADA, "read", C1).allowed
    other = tmp_path / "new"
    other.write_text(EVERYTHING)
    other.replace(file)
    assert rules.decide(ADA, "read", C1).allowed
    assert rules.revision == rules.revision


def test_a_file_that_breaks_denies_everything_until_it_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so, with the line."""
    rules = policies(tmp_path, EVERYTHING)
    file = rules.path
    assert rules.decide(ADA, "read", C1).allowed
    with caplog.at_level(logging.ERROR, "limpet.policies"):
        file.write_text(EVERYTHING + "permit(principal action);")
        decision = rules.decide(ADA, "read", C1)
    assert decision.denial == "policy_denied"
    assert decision.policy == f"{file}:2 (broken)"
    assert "policies cannot be used" in caplog.text
    file.unlink()
    assert not rules.decide(ADA, "read", C1).allowed
    file.write_text(EVERYTHING)
    assert rules.decide(ADA, "read", C1).allowed


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("permit(principal, action, resource)", 1, "unexpected end"),
        (EVERYTHING + "\n// all right\npermit(principal, acton, resource);", 4, "acton"),
        (EVERYTHING + "permit(principal == ?principal, action, resource);", 2, "template"),
        ('@id("a") ' + EVERYTHING + '@id("a") ' + EVERYTHING, 2, "another policy"),
    ],
)
def test_policies_that_cannot_be_used_are_refused_when_they_are_opened(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    """With the file, the line and what is wrong."""
    with pytest.raises(PolicyInvalid, match=reason) as caught:
        policies(tmp_path, text)
    assert caught.value.where.endswith(f"rules.cedar:{line}")


def test_what_is_no_file_of_policies_is_refused(tmp_path: Path) -> None:
    """A missing one, an empty one, an empty directory, bytes that are not text."""
    (tmp_path / "empty.cedar").write_text("// nothing\n")
    (tmp_path / "bytes.cedar").write_bytes(b"\xff\xfe")
    (tmp_path / "none").mkdir()
    for name in ("missing.cedar", "empty.cedar", "bytes.cedar", "none"):
        with pytest.raises(PolicyInvalid):
            CedarPolicies(tmp_path / name)
    for wrong in (5, None, ""):
        with pytest.raises(InvalidInput):
            CedarPolicies(wrong)  # type: ignore[arg-type]  # on purpose


def test_policies_are_found_by_their_lines() -> None:
    """Comments and texts may hold what ends a policy."""
    text = '// one;\n@id("a;\\"b")\npermit(x); /\n\npermit(y) when { z == "//;" };  // w;\nrest'
    assert [line for line, _ in split_policies(text)] == [2, 3, 6]


def test_the_schema_finds_typos_and_accepts_a_copy_with_more_attributes(tmp_path: Path) -> None:
    """An attribute of one's own is declared beside the policies."""
    from limpet.security.policies import SCHEMA_FILE

    file = tmp_path / "rules.cedar"
    file.write_text(EVERYTHING)
    assert check_schema(file) == []
    file.write_text(
        EVERYTHING
        + 'forbid(principal, action == Action::"red", resource);\n'
        + 'permit(principal, action, resource) when { principal.department == "hr" };\n'
    )
    wrong = check_schema(file)
    assert {place for place, _ in wrong} == {f"{file}:2", f"{file}:3"}
    assert any("department" in reason for _, reason in wrong)
    file.write_text('permit(principal, action, resource) when { principal.department == "hr" };\n')
    own = SCHEMA_FILE.read_text().replace(
        "    role: String,", "    role: String, department: String,"
    )
    (tmp_path / "own.cedarschema").write_text(own)
    assert check_schema(file) == []


# --- the roles, in Cedar -------------------------------------------------------------------------


def _resources() -> list[Resource]:
    found = [Resource("store", "*"), Resource("store", "*", name="$$audit")]
    for app in ("a", "*"):
        for user in (None, "u"):
            found.append(Resource("app", app, user))
            found.append(Resource("app", app, user, name="$$audit"))
            found.append(Resource("document", app, user, name="$notes/x"))
        found.append(Resource("session", app, "u", "c"))
        found.append(Resource("field", app, "u", "c", "f"))
        found.append(Resource("tool", app, "u", "c", "t"))
        found.append(Resource("tool", app, name="t"))
    return found


def test_the_roles_in_cedar_are_the_roles_in_python() -> None:
    """For every role, place and action; so the text that people read is what is decided."""
    import cedarpy

    file = Path(roles.__file__).with_name("roles.cedar")
    assert check_schema(file) == []
    parsed = cedarpy.PolicySet.from_str(file.read_text())
    rules = roles.RoleRules()
    places = [(app, user) for app in (None, "a", "b") for user in (None, "u", "v")]
    asked: list[tuple[Principal, Action, Resource]] = [
        (Principal("p", role=role, app=app, user=user), action, resource)
        for role in ROLES
        for app, user in places
        for resource in _resources()
        for action in ACTIONS
    ]
    differ = []
    for principal, action, resource in asked:
        request, entities = request_of(principal, action, resource)
        answer = cedarpy.is_authorized(request, parsed, entities)
        assert not answer.diagnostics.errors
        if answer.allowed != rules.decide(principal, action, resource).allowed:
            differ.append((principal, action, resource, answer.allowed))
    assert differ == []
    assert len(asked) > 5_000
