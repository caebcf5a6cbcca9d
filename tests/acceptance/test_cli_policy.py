"""The command line about access: policy check, policy test, audit."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

import limpet
from limpet import Principal
from limpet.errors import AccessDenied
from tests.support.command import run

pytest.importorskip("cedarpy")

RULES = """
@id("staff") permit(principal, action, resource);
@id("hr-only")
forbid(principal, action == Action::"write", resource is Field)
when { resource.name == "salary" }
unless { principal.role == "admin" };
@id("gold") forbid(principal, action == Action::"erase", resource is Session)
when { resource.hasTag("plan") && resource.getTag("plan") == "gold" };
"""
CASES = """\
principal, role,   app,     user, action, resource,               expect, policy,    label.plan
user:ada,  owner,  support, ada,  read,   support/ada/c1,         allow,  staff,
user:ada,  owner,  support, ada,  write,  support/ada/c1#salary,  deny,   hr-only,
user:ada,  owner,  support, ada,  read,   support/eve/c1,         deny,   role.owner,
user:ada,  owner,  support, ada,  erase,  support/ada/c1,         deny,   gold,      gold
# those of others
admin:1,   admin,  ,        ,     write,  support/ada/c1#salary,  allow,  ,
"""


def told(here: Path, *asked: str, code: int = 0) -> str:
    """What a command prints into a pipe of 80 columns."""
    with patch.dict(os.environ, COLUMNS="80"):
        done = run(here, *asked)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "rules.cedar").write_text(RULES)
    (tmp_path / "cases.csv").write_text(CASES)
    return tmp_path


def test_policies_are_checked(here: Path) -> None:
    """With the place of what is wrong: a parse error, and what the schema does not know."""
    assert "ok: 3 policies can be used" in told(here, "policy", "check", "rules.cedar")
    found = json.loads(told(here, "policy", "check", ".", "--json"))
    assert [each["id"] for each in found["policies"]] == ["staff", "hr-only", "gold"]
    (here / "typo.cedar").write_text('forbid(principal, action == Action::"red", resource);')
    assert 'typo.cedar:1: unrecognized action `Action::"red"`' in told(
        here, "policy", "check", "typo.cedar", code=1
    )
    (here / "torn.cedar").write_text("\npermit(principal, action")
    assert "torn.cedar:2: unexpected end of input" in told(
        here, "policy", "check", "torn.cedar", code=2
    )
    assert "missing.cedar" in told(here, "policy", "check", "missing.cedar", code=2)


def test_policies_are_tried_on_a_table_of_cases(here: Path) -> None:
    """By roles and policies; a wrong answer, or another policy than expected, is shown."""
    said = told(here, "policy", "test", "rules.cedar", "cases.csv")
    assert "ok: 5 cases as expected" in said
    lines = [
        {"principal": "user:ada", "role": "owner", "app": "support", "user": "ada"}
        | {"action": "write", "resource": "support/ada/c1#salary", "expect": "allow"},
        {"principal": "agent:a", "role": "agent", "action": "tool"}
        | {"resource": "support/ada/c1#refund", "expect": "allow", "policy": "nobody"},
        {"principal": "user:ada", "role": "viewer", "principal.team": ["x"]}
        | {"action": "write", "resource": "support/ada/c1", "expect": "deny"},
    ]
    (here / "cases.jsonl").write_text("\n".join([json.dumps(line) for line in lines]))
    said = told(here, "policy", "test", "rules.cedar", "cases.jsonl", code=1)
    assert "2 of 3 cases not as expected" in said
    assert "deny by hr-only; expected allow" in said
    assert "allow by staff; expected allow by nobody" in said
    found = json.loads(told(here, "policy", "test", "rules.cedar", "cases.jsonl", "--json", code=1))
    assert [each["ok"] for each in found["cases"]] == [False, False, True]
    assert found["cases"][2]["policy"] == "role.viewer"
    (here / "cases.json").write_text(json.dumps(lines, indent=2))
    asked = ("policy", "test", "rules.cedar", "cases.json", "--json")
    of_list = json.loads(told(here, *asked, code=1))
    assert [each["ok"] for each in of_list["cases"]] == [False, False, True]
    alone = told(here, "policy", "test", "rules.cedar", "cases.csv", "--alone", code=1)
    assert "1 of 5 cases not as expected" in alone


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("user:ada,owner,jump,support/ada/c1,allow", "an action is one of"),
        ("user:ada,king,read,support/ada/c1,allow", "a role is one of"),
        ("user:ada,owner,read,support//c1,allow", "a resource is app"),
        ("user:ada,owner,read,support/ada/c1,maybe", "expect is allow or deny"),
        ("user:ada,owner,read,,allow", "resource is missing"),
    ],
)
def test_a_case_that_cannot_be_read_is_named_by_its_line(
    here: Path, line: str, reason: str
) -> None:
    """With what is wrong."""
    from limpet.errors import PolicyInvalid
    from limpet.security.policy_cases import read_cases

    (here / "wrong.csv").write_text(f"principal,role,action,resource,expect\n{line}\n")
    with pytest.raises(PolicyInvalid, match=reason) as caught:
        read_cases(here / "wrong.csv")
    assert caught.value.where == "wrong.csv:2"


def test_a_case_names_the_time_and_the_address_of_its_request(here: Path) -> None:
    """The context of a policy, in a table, and in the check against the schema."""
    (here / "hours.cedar").write_text(
        "permit(principal, action, resource);\n"
        '@id("hours") forbid(principal, action, resource) when { context.hour < 8 };\n'
        '@id("inside") forbid(principal, action, resource)\n'
        'when { context has address && !context.address.isInRange(ip("10.0.0.0/8")) };\n'
    )
    assert "ok" in told(here, "policy", "check", "hours.cedar")
    (here / "when.csv").write_text(
        "principal,role,action,resource,expect,policy,at,address\n"
        "user:ada,owner,read,support/ada/c1,deny,hours,2026-11-17T07:59:59Z,\n"
        "user:ada,owner,read,support/ada/c1,allow,,2026-11-17T08:00:00Z,10.0.0.1\n"
        "user:ada,owner,read,support/ada/c1,deny,inside,2026-11-17 08:00:00,192.0.2.7\n"
    )
    assert "3 cases" in told(here, "policy", "test", "hours.cedar", "when.csv")
    (here / "wrong.csv").write_text(
        "principal,role,action,resource,expect,at\nuser:ada,owner,read,a/b/c,allow,noon\n"
    )
    assert "at is a time" in told(here, "policy", "test", "hours.cedar", "wrong.csv", code=2)
    (here / "no.cedar").write_text(
        "permit(principal, action, resource) when { context.minute > 1 };"
    )
    assert "minute" in told(here, "policy", "check", "no.cedar", code=1)


async def _deny(file: Path) -> None:
    ada = Principal("user:ada", role="owner", app="support", user="ada")
    async with limpet.open(f"sqlite:///{file}") as lp:
        await lp.create("support", "eve", "c1")
        for _ in range(3):
            with pytest.raises(AccessDenied):
                await lp.acting_as(ada).get("support", "eve", "c1")


def test_the_audit_is_shown_exported_and_checked(here: Path) -> None:
    """And a file that was changed, or a store that lost records, is found."""
    file = here / "s.db"
    asyncio.run(_deny(file))
    said = told(here, "audit", "s.db")
    assert "user:ada" in said
    assert "access_denied ×3" in said  # times
    (record,) = json.loads(told(here, "audit", "s.db", "--json", "--denied"))["records"]
    assert record["resource"] == "support/eve/c1"
    for asked in (
        ("--principal", "user:bob"),
        ("--session", "support/eve/c2"),
        ("--since", "2199-01-01"),
    ):
        assert "nothing was recorded" in told(here, "audit", "s.db", *asked)
    assert "user:ada" in told(here, "audit", "s.db", "--since", "1h")
    assert "is not a time" in told(here, "audit", "s.db", "--since", "soon", code=2)
    said = told(here, "audit", "s.db", "--export", "audit.jsonl")
    link = next(word for word in said.split() if word.startswith("support="))
    assert "are whole" in told(here, "audit", "--check", "audit.jsonl", "--link", link)
    assert "are whole" in told(here, "audit", "s.db", "--check", "audit.jsonl")
    other = here / "other"
    other.mkdir()
    asyncio.run(_deny(other / "s.db"))
    assert "has another event" in told(
        here, "audit", "other/s.db", "--check", "audit.jsonl", code=1
    )
    text = (here / "audit.jsonl").read_text()
    (here / "forged.jsonl").write_text(text.replace("user:ada", "user:eve"))
    assert "not a complete audit" in told(here, "audit", "--check", "forged.jsonl", code=2)
    (here / "cut.jsonl").write_text("".join(text.splitlines(keepends=True)[:-1]))
    assert "the end is missing" in told(here, "audit", "--check", "cut.jsonl", code=2)
    assert "takes a store" in told(here, "audit", code=2)
