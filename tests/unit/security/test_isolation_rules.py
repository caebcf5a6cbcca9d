"""The rules of isolation: every model, role and code, and which fields each principal has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec import structs

from limpet.errors import AccessDenied, Denial
from limpet.model import Fact, Fold, FrozenDict, Head, Key, blank, prepare, record
from limpet.model.facts.creation import created
from limpet.model.facts.isolation import ISOLATION_MODELS, FieldAccess, Isolation
from limpet.security.access import ACTIONS, ROLES, Action, Principal, Resource, Role
from limpet.security.isolation import IsolationRules, narrowed_to, view_of

KEY = Key("support", "ada", "one")
RULES = IsolationRules()
AGENTS = {
    "agent:critic": FieldAccess(owns=("review",), reads=("draft",)),
    "agent:idle": FieldAccess(),
}
READING: tuple[Action, ...] = ("read", "inspect")


def head(isolation: Isolation | None = None, policies: dict[str, Any] | None = None) -> Head:
    fact: Fact = created(KEY, isolation=isolation, field_policies=policies or {})
    draft = prepare(fact, id="u", actor="user:ada")
    return record(Fold(blank(KEY, "u", 1)), draft, 1, b"s")[0].head


def who(role: Role = "owner", id: str = "user:ada", **of: Any) -> Principal:
    return Principal(id, role=role, **{"app": "support", "user": "ada", **of})


def denial(
    principal: Principal, action: Action, of: Head, field: str | None = None
) -> Denial | None:
    resource = Resource.of(KEY, of)
    if field is not None:
        resource = Resource("field", KEY.app, KEY.user, KEY.id, field, of)
    decision = RULES.decide(principal, action, resource)
    if decision.allowed:
        return None
    with pytest.raises(AccessDenied) as denied:
        decision.check(action, resource)
    assert denied.value.denial == decision.denial
    assert decision.policy is not None
    return decision.denial


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_plain_session_has_no_rules_of_its_own(role: Role, action: Action) -> None:
    """Roles decide there, and the answer is remembered for all such sessions."""
    plain = head()
    assert denial(who(role), action, plain) is None
    assert denial(who(role), action, plain, "any") is None
    assert view_of(who(role), plain) is None
    assert RULES.depends_on(action, Resource.of(KEY, plain)) is not None
    other = head(Isolation("global"))
    assert RULES.depends_on(action, Resource.of(KEY, other)) != RULES.depends_on(
        action, Resource.of(KEY, plain)
    )


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["owner", "agent", "viewer"])
def test_per_task_lets_in_the_task_and_no_other(role: Role, action: Action) -> None:
    """Whoever it is: one without a task is in none. An agent may claim, then it is in the task."""
    of = head(Isolation("per_task", task="t1"))
    assert denial(who(role, task="t1"), action, of) is None
    assert denial(who(role, task="t2"), action, of) == "cross_task_access_denied"
    claims = action == "claim" and role == "agent"
    assert denial(who(role), action, of) == (None if claims else "cross_task_access_denied")


@pytest.mark.parametrize("model", ["per_user", "global"])
def test_a_task_alone_keeps_nobody_out(model: Any) -> None:
    """It is a name to find sessions by, unless the model says otherwise."""
    assert denial(who(task="t2"), "write", head(Isolation(model, task="t1"))) is None


@pytest.mark.parametrize("action", ACTIONS)
def test_per_agent_lets_in_the_agents_that_it_names(action: Action) -> None:
    """Others are told that they may not read, or not write; people are no agents."""
    of = head(Isolation("per_agent", agents=AGENTS))
    unknown = "agent_read_denied" if action in READING else "agent_write_denied"
    assert denial(who("agent", "agent:other"), action, of) == unknown
    assert denial(who("agent", "agent:critic"), action, of) is None
    assert denial(who("owner"), action, of) is None
    assert denial(who("viewer"), action, of) is None


@pytest.mark.parametrize(
    ("field", "read", "write"),
    [
        ("review", None, None),
        ("draft", None, "agent_write_denied"),
        ("notes", "agent_read_denied", "agent_write_denied"),
        ("app:shared", "agent_read_denied", "agent_write_denied"),
    ],
)
def test_an_agent_writes_what_it_owns_and_reads_what_is_readable(
    field: str, read: Denial | None, write: Denial | None
) -> None:
    """Everything that is not reading counts as writing: to delete, too."""
    of = head(Isolation("per_agent", agents=AGENTS))
    critic = who("agent", "agent:critic")
    for action in ACTIONS:
        assert denial(critic, action, of, field) == (read if action in READING else write)
    view = view_of(critic, of)
    assert view is not None
    assert view.sees(field) is (read is None)
    assert view_of(who("agent", "agent:idle"), of) is not None
    assert view_of(who("owner"), of) is None
    listed = who("viewer", "agent:critic")  # whoever has the name, in whichever role
    assert denial(listed, "read", of, "notes") == "agent_read_denied"


def test_per_agent_keeps_to_its_task_too() -> None:
    """The inner model contains the rules of the outer ones."""
    of = head(Isolation("per_agent", task="t1", agents=AGENTS))
    critic = who("agent", "agent:critic")
    assert denial(critic, "read", of) == "cross_task_access_denied"
    assert denial(who("agent", "agent:critic", task="t1"), "read", of) is None


@pytest.mark.parametrize("model", ISOLATION_MODELS)
@pytest.mark.parametrize("action", ACTIONS)
def test_another_user_is_denied_by_one_code_alone(model: Any, action: Action) -> None:
    """Never by that of a task or an agent; one whom the session names reads and appends."""
    agents = AGENTS if model == "per_agent" else {}
    for users, task in itertools.product([(), ("bob",)], [None, "t1"]):
        of = head(Isolation(model, users=users, task=task, agents=agents))
        bob = who("owner", "user:bob", user="bob", task=of.isolation.task)
        may = action in ("read", "inspect", "write") and (bool(users) or model == "global")
        assert RULES.admits(bob, action, of) is may
        assert denial(bob, action, of) == (None if may else "access_denied") or (
            model == "per_user" and of.isolation == Isolation()
        )
        elsewhere = who("owner", "user:bob", user="bob", task="other", app="support")
        if of.isolation.task is not None and model in ("per_task", "per_agent"):
            assert denial(elsewhere, action, of) == "access_denied"
        other_app = who("owner", "user:bob", user="bob", app="shop", task=of.isolation.task)
        assert not RULES.admits(other_app, action, of)
        eve = who("owner", "user:eve", user="eve", task=of.isolation.task)
        if model != "global":
            assert not RULES.admits(eve, action, of)


@pytest.mark.parametrize("role", ["admin", "auditor"])
@pytest.mark.parametrize("model", ISOLATION_MODELS)
def test_admins_and_auditors_have_no_task_and_are_no_agents(role: Role, model: Any) -> None:
    """Their role decides: lifecycle and moves of every user, heads without bodies."""
    agents = AGENTS if model == "per_agent" else {}
    of = head(Isolation(model, task="t1", agents=agents))
    for action in ACTIONS:
        assert denial(Principal("ops", role=role, app="support"), action, of) is None


def test_policies_of_fields_go_by_the_role() -> None:
    """Of whoever asks, admins too; a field that is not named is everybody's."""
    policies = {
        "notes": {"read": ["agent"], "write": ["agent"]},
        "total": {"write": ["owner", "admin"]},
        "sealed": {"read": [], "write": []},
    }
    of = head(None, policies)
    expected: dict[str, tuple[str, set[str]]] = {
        "read": ("notes", {"agent"}),
        "write": ("total", {"owner", "admin"}),
    }
    for role in ROLES:
        principal = who(role)
        for action, (field, roles) in expected.items():
            code = None if role in roles else "field_access_denied"
            assert denial(principal, action, of, field) == code  # type: ignore[arg-type]
        assert denial(principal, "erase", of, "notes") == denial(principal, "write", of, "notes")
        assert denial(principal, "read", of, "sealed") == "field_access_denied"
        assert denial(principal, "write", of, "other") is None
        assert denial(principal, "read", of) is None
        view = view_of(principal, of)
        assert view is not None
        assert view.sees("notes") is (role == "agent")
        assert view.sees("total")
        assert not view.sees("sealed")


def test_a_role_that_reads_everything_has_no_view() -> None:
    """Only then may it take a session as a whole."""
    of = head(None, {"notes": {"read": ["agent"]}, "total": {"write": ["admin"]}})
    assert view_of(who("agent"), of) is None
    assert view_of(who("owner"), of) is not None


def test_who_owns_other_sessions_does_not_own_this_one() -> None:
    """A user whom a session names is a reader where a policy asks for its owner."""
    of = head(Isolation(users=("bob",)), {"notes": {"read": ["owner"], "write": ["owner"]}})
    bob = who("owner", "user:bob", user="bob")
    assert denial(bob, "read", of) is None
    assert denial(bob, "read", of, "notes") == "field_access_denied"
    assert denial(bob, "write", of, "notes") == "field_access_denied"


@pytest.mark.parametrize(
    ("inner", "outer"),
    [("per_agent", "per_task"), ("per_task", "per_user"), ("per_user", "global")],
)
def test_each_model_lets_in_fewer_than_the_one_outside_it(inner: Any, outer: Any) -> None:
    """per_agent ⊂ per_task ⊂ per_user ⊂ global, for every principal, action and field."""
    of = {
        model: head(Isolation(model, task="t1", agents=AGENTS if model == "per_agent" else {}))
        for model in (inner, outer)
    }
    let_in = {inner: set[Any](), outer: set[Any]()}
    ids = ("user:ada", "agent:critic", "agent:other")
    for model, role, id, task, user, action, field in itertools.product(
        of, ROLES, ids, (None, "t1", "t2"), ("ada", "bob", None), ACTIONS, (None, "draft", "x")
    ):
        principal = who(role, id, task=task, user=user)
        foreign = user == "bob" and not RULES.admits(principal, action, of[model])
        if not foreign and denial(principal, action, of[model], field) is None:
            let_in[model].add((principal, action, field))
    assert let_in[inner] < let_in[outer]


def test_a_worker_is_narrowed_to_the_session_it_works_in() -> None:
    """To its user and its task, and never away from the task that it has."""
    worker = Principal("agent:main", role="agent", app="support")
    of = head(Isolation("per_task", task="t1"))
    assert narrowed_to(worker, of) == who("agent", "agent:main", task="t1")
    assert narrowed_to(worker, head()) == who("agent", "agent:main")
    busy = Principal("agent:main", role="agent", task="t2")
    assert narrowed_to(busy, of).task == "t2"
    mine = who("agent", "agent:main", task="t1")
    assert narrowed_to(mine, of) is mine


def test_a_tool_is_used_by_those_who_may_enter_the_session() -> None:
    """It is asked about by name, as a field is, and is none."""
    of = head(Isolation("per_agent", task="t1", agents=AGENTS))
    tool = Resource("tool", KEY.app, KEY.user, KEY.id, "notes", of)
    critic = who("agent", "agent:critic", task="t1")
    assert RULES.decide(critic, "tool", tool).allowed
    assert RULES.decide(who("agent", "agent:critic"), "tool", tool).denial == (
        "cross_task_access_denied"
    )
    document = Resource("document", KEY.app, KEY.user, name="notes", head=of)
    assert RULES.decide(who("agent", "agent:other"), "read", document).allowed


def test_the_outer_reason_is_told_first() -> None:
    """One who works on another task learns nothing of agents and fields."""
    policies = {"notes": {"read": []}}
    of = head(Isolation("per_agent", task="t1", agents=AGENTS), policies)
    for action in ("read", "write"):
        for field in (None, "notes", "draft", "other"):
            elsewhere = who("agent", "agent:critic", task="t2")
            assert denial(elsewhere, action, of, field) == "cross_task_access_denied"
    unknown = who("agent", "agent:other", task="t1")
    assert denial(unknown, "read", of, "notes") == "agent_read_denied"
    assert denial(who("viewer", task="t1"), "read", of, "notes") == "field_access_denied"


def test_an_answer_is_remembered_for_one_session_field_and_version() -> None:
    """Never for another session under the key, another field, or a newer class."""
    of = head(Isolation("per_agent", agents=AGENTS), {"notes": {"read": []}})
    newer = structs.replace(of, facts=FrozenDict({**of.facts, "schema_version": "2.0.0"}))
    known = [
        RULES.depends_on("read", resource)
        for resource in (
            Resource.of(KEY, of),
            Resource.of(KEY, structs.replace(of, uid="another")),
            Resource.of(KEY, newer),
            Resource("field", KEY.app, KEY.user, KEY.id, "notes", of),
            Resource("field", KEY.app, KEY.user, KEY.id, "draft", of),
            Resource("tool", KEY.app, KEY.user, KEY.id, "draft", of),
        )
    ]
    assert len(set(known)) == len(known)
    assert None not in known


def test_what_a_user_keeps_beside_a_session_is_not_shared_with_it() -> None:
    """`user:` names are of another user: neither read nor written by one who is let in."""
    of, bob = head(Isolation(users=("bob",))), who("owner", "user:bob", user="bob")
    for action in ("read", "write"):
        assert denial(bob, action, of, "user:diary") == "access_denied"
        assert denial(bob, action, of, "app:rate") is None
        assert denial(who("owner"), action, of, "user:diary") is None


def test_agents_of_a_user_who_is_let_in_are_those_that_the_session_names() -> None:
    """An agent that it does not name is let in by nobody's name."""
    of = head(Isolation("per_agent", users=("bob",), agents=AGENTS))
    for action in ("read", "write"):
        for agent, code in (("agent:nobody", "access_denied"), (next(iter(AGENTS)), None)):
            task = of.isolation.task
            assert denial(who("agent", agent, user="bob", task=task), action, of) == code
