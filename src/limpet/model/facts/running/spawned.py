"""Spawned children: sessions that a program began for another one, outside of its turns.

There may be thousands of them, so the parent's head keeps a number, `spawned`: how many have not
ended. Which they are, its log says: one event for the beginning of each and one for its end, under
ids of their own, so that neither is counted twice. The sum that they were given is in
`budget.spawned`. The child's member `delegation` names its parent, as that of a delegated one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.budgets import Amount
from limpet.model.facts.running.children import created_id, named
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import Key
from limpet.model.limits import SPAWNED_MAX

CHILD_SPAWNED: Final = "session.child_spawned"
CHILD_DONE: Final = "session.child_done"


def child_spawned(child: Key, uid: str, task_hash: str, lent: Amount | None) -> Fact:
    """A child was begun for this session. The commit may raise BudgetReached."""
    data: dict[str, Any] = {**named(child, uid), "task_hash": task_hash}
    if lent is not None:
        data["lent"] = lent._asdict()
    return Fact(type=CHILD_SPAWNED, data=data, id=created_id(child.id))


def child_done(child: Key, uid: str, facts: Facts, end: Mapping[str, Any]) -> Fact:
    """A child with these facts has ended: how, with which output, and what it used."""
    account = budgets.account(facts)
    data: dict[str, Any] = {**named(child, uid), **end, "account": account}
    delegation = children.delegation(facts)
    if delegation is not None and "lent" in delegation:
        data["lent"] = dict(delegation["lent"])
    return Fact(type=CHILD_DONE, data=data, id=f"{child.id}/done")


def spawned_in(facts: Facts) -> int:
    """Return how many spawned children have not ended."""
    return int(facts.get("spawned", 0))


def is_spawned(facts: Facts) -> bool:
    """True if the session was spawned by another and has not ended for it."""
    delegation = children.delegation(facts)
    return delegation is not None and "task_hash" in delegation and not delegation.get("ended")


def children_open(facts: Facts) -> int:
    """Return how many children have not ended, delegated and spawned ones."""
    return len(children.children_in(facts)) + spawned_in(facts)


def fold_spawned(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes: Changes = {"spawned": spawned_in(facts) + 1}
    if "lent" in data:
        changes |= budgets.lend(facts, Amount(**data["lent"]))
    return changes


def fold_done(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes: Changes = {"spawned": max(0, spawned_in(facts) - 1) or None}
    lent = Amount(**data["lent"]) if "lent" in data else None
    return changes | budgets.take_back(facts, lent, data["account"])


def check_spawned(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if too many children would be open, BudgetReached if they were given
    more than is left."""
    if spawned_in(after) > SPAWNED_MAX:
        raise InvalidEvent(f"the session would have more than {SPAWNED_MAX:,} spawned children")
    if "lent" in data:
        budgets.check(before, after, data["lent"])
