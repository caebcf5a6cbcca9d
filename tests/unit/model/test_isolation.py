"""Isolation as a fact: what may be said of it, and how it is folded and read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet.errors import InvalidEvent, InvalidInput
from limpet.model import EMPTY, Fact, Fold, Key, blank, prepare, record
from limpet.model.facts.creation import created, forked, inherited
from limpet.model.facts.isolation import (
    TASK,
    FieldAccess,
    Isolation,
    child_isolation,
    field_policies_in,
    isolation_in,
)
from limpet.model.facts.labels import labeled
from limpet.model.facts.schema import migrated
from limpet.model.head import stub

KEY = Key("support", "ada", "one")
CRITIC = FieldAccess(owns=("review",), reads=("draft",))
EACH = [
    Isolation(),
    Isolation(users=("bob", "eve")),
    Isolation("per_task", task="invoice-7"),
    Isolation("per_agent", ("bob",), "t", {"agent:critic": CRITIC, "agent:idle": FieldAccess()}),
    Isolation("global"),
]


def folded(*facts: Fact, begun: Fold | None = None) -> Fold:
    fold = begun or Fold(blank(KEY, "u", 1))
    for number, fact in enumerate(facts, start=fold.head.version):
        fold, _ = record(fold, prepare(fact, id=f"e{number}", actor="user:ada"), 1, b"s")
    return fold


@pytest.mark.parametrize("isolation", EACH, ids=lambda each: each.model)
def test_what_was_said_is_read_back(isolation: Isolation) -> None:
    """The head has the very isolation that the creation names."""
    head = folded(created(KEY, isolation=isolation)).head
    assert head.isolation == isolation
    assert ("isolation" in head.facts) is (isolation != Isolation())


def test_the_usual_isolation_is_not_stored() -> None:
    """A plain session has an empty document of facts, as before."""
    assert folded(created(KEY, isolation=Isolation())).head.facts == EMPTY
    assert folded(created(KEY)).head.isolation == Isolation("per_user")


def test_per_task_without_a_task_is_a_task_of_its_own() -> None:
    """No session without a task could be told from another."""
    assert folded(created(KEY, isolation=Isolation("per_task"))).head.isolation.task == KEY.id


def test_the_task_is_a_label_that_nobody_sees_or_sets() -> None:
    """It is indexed beside the user's own, and a fact that names it is refused."""
    fact = created(KEY, labels={"plan": "gold"}, isolation=Isolation(task="t"))
    fold = folded(fact)
    assert fold.head.labels == {"plan": "gold"}
    assert fold.head.indexed_labels == {"plan": "gold", TASK: "t"}
    after = folded(labeled({"plan": None}), begun=fold)
    assert after.head.indexed_labels == {TASK: "t"}
    for labels in ({TASK: "other"}, {TASK: None}):
        with pytest.raises(InvalidEvent, match="reserved"):
            labeled(labels)
        forged = Fact(type="session.labeled", data={"labels": labels})
        with pytest.raises(InvalidEvent, match="reserved"):
            folded(forged, begun=fold)


@pytest.mark.parametrize("isolation", EACH, ids=lambda each: each.model)
def test_forks_children_and_stubs_have_it(isolation: Isolation) -> None:
    """A fork has the same, a child the same with a task of its own, a stub the same."""
    head = folded(created(KEY, isolation=isolation, field_policies={"n": {"read": ["owner"]}})).head
    told = forked(KEY, KEY, uid="u", floor=1, checksum=b"x" * 32, inherits=inherited(head.facts))
    fork = folded(told).head
    assert fork.isolation == isolation
    assert fork.indexed_labels == head.indexed_labels
    assert field_policies_in(fork.facts) == {"n": {"read": ["owner"]}}
    key = Key("support", "ada", "child-1")
    child = folded(created(key, isolation=child_isolation(head.facts, key))).head
    assert child.isolation == msgspec.structs.replace(isolation, task="child-1")
    kept = folded(stub(head, "place", 1, "sum")).head
    assert (kept.isolation, kept.indexed_labels) == (isolation, head.indexed_labels)
    assert field_policies_in(kept.facts) == {"n": {"read": ["owner"]}}


def test_a_migration_brings_the_policies_of_its_class() -> None:
    """Or leaves them, if it was made without one."""
    fold = folded(created(KEY, schema_version="1.0.0", field_policies={"n": {"write": ["agent"]}}))
    left = folded(migrated("1.0.0", "1.1.0"), begun=fold)
    assert field_policies_in(left.head.facts) == {"n": {"write": ["agent"]}}
    other = folded(migrated("1.0.0", "2.0.0", field_policies={"m": {"read": []}}), begun=fold)
    assert field_policies_in(other.head.facts) == {"m": {"read": []}}
    none = folded(migrated("1.0.0", "2.0.0", field_policies={}), begun=fold)
    assert "field_policies" not in none.head.facts


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "per_planet"},
        {"model": None},
        {"users": "bob"},
        {"users": (5,)},
        {"users": ("",)},
        {"users": {"bob": 1}},
        {"users": tuple(f"u{n}" for n in range(65))},
        {"task": ""},
        {"task": 5},
        {"task": "t" * 300},
        {"model": "per_agent", "agents": ["agent:critic"]},
        {"model": "per_agent", "agents": {"agent:critic": {"owns": ["x"]}}},
        {"model": "per_agent", "agents": {"": CRITIC}},
        {"model": "per_agent", "agents": {f"a{n}": CRITIC for n in range(65)}},
        {"model": "per_task", "agents": {"agent:critic": CRITIC}},
    ],
    ids=str,
)
def test_a_wrong_isolation_is_refused(wrong: dict[str, Any]) -> None:
    """Where it is made, with what to write instead."""
    with pytest.raises(InvalidInput):
        Isolation(**wrong)


@pytest.mark.parametrize(
    "wrong", ["review", 5, ("",), (5,), ("temp:x",), tuple(f"f{n}" for n in range(300))], ids=str
)
def test_wrong_fields_of_an_agent_are_refused(wrong: Any) -> None:
    """Names of state, as a tuple."""
    with pytest.raises(InvalidInput):
        FieldAccess(owns=wrong)
    with pytest.raises(InvalidInput):
        FieldAccess(reads=wrong)


@pytest.mark.parametrize(
    "data",
    [
        {"model": "nobody"},
        {"users": ["\x00"]},
        {"task": 5},
        {"agents": {"agent:critic": {"owns": "review"}}},
        {"agents": {"agent:critic": {"owns": ["review"]}}},
    ],
    ids=str,
)
def test_a_creation_that_could_not_be_read_back_is_refused(data: dict[str, Any]) -> None:
    """Recorded elsewhere or made by hand."""
    fact = Fact(type="session.created", data={"isolation": data})
    with pytest.raises(InvalidInput):
        folded(fact)


def test_facts_without_it_read_as_the_usual_isolation() -> None:
    """As every session of an earlier release."""
    assert isolation_in(EMPTY) == Isolation()
    assert field_policies_in(EMPTY) == {}
