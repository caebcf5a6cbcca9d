"""Budgets of a tree of sessions: nothing appears and nothing vanishes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

import limpet
from limpet.model import Fact, Key
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.budgets import Amount, Budget, Share
from limpet.model.head import Head, advance, blank, check_facts
from tests.support.examples import count

costs = st.integers(0, 3_000_000).map(lambda millionths: millionths / budgets.MILLION)
tokens = st.integers(0, 3_000)
given_budgets = st.one_of(
    st.none(),
    costs,
    st.builds(Budget, cost=costs, tokens=tokens),
    st.builds(Budget, tokens=tokens),
    st.builds(Share, st.floats(0.001, 1)),
)


class Node:
    """One session: its head, and whom it works for."""

    def __init__(self, id: str, parent: Node | None) -> None:
        self.head: Head = blank(Key("app", "ada", id), f"uid-{id}", 1)
        self.parent, self.kids, self.open = parent, 0, True
        self.held: list[str] = []

    def record(self, *facts: Fact) -> None:
        """All of them, or none: raises what refuses one."""
        head = self.head
        for fact in facts:
            after = advance(head, fact.type, dict(fact.data), 1, b"")
            check_facts(head.facts, after.facts, fact.type, fact.data)
            head = after
        self.head = structs.replace(head, version=1)

    def parts(self) -> list[Amount]:
        """What is spent, reserved and left."""
        facts = self.head.facts
        left = Amount(*budgets.remaining(facts))  # type: ignore[arg-type]  # it has both limits
        return [budgets.spent(facts), *budgets.reservations(facts).values(), left]


class Tree(RuleBasedStateMachine):
    """A root that has both limits, and sessions delegated from it, as deep as it comes."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("root", None)
        self.all = [self.root]
        self.granted = [0, 0]
        self._grant(self.root, Budget(cost=1.0, tokens=1_000))

    def _grant(self, node: Node, budget: Budget) -> None:
        node.record(budgets.granted(budget))
        of = budgets.amount(budget.cost, budget.tokens)
        self.granted = [one + more for one, more in zip(self.granted, of, strict=True)]

    @rule(target=nodes)
    def begin(self) -> Node:
        return self.root

    @rule(node=nodes, cost=costs, tokens=tokens)
    def grant(self, node: Node, cost: float, tokens: int) -> None:
        self._grant(node, Budget(cost=cost, tokens=tokens))

    @rule(node=nodes, cost=costs, input=tokens, output=tokens)
    def say(self, node: Node, cost: float, input: int, output: int) -> None:
        data = {"cost": cost, "usage": {"input": input, "output": output}}
        node.record(Fact(type="agent.message", data=data))

    @rule(node=nodes, cost=costs, tokens=tokens)
    def reserve(self, node: Node, cost: float, tokens: int) -> None:
        id, of = f"r{len(node.held)}", budgets.amount(cost, tokens)
        left = budgets.remaining(node.head.facts)
        fits = all(has >= want and has >= 0 for has, want in zip(left, of, strict=True))  # type: ignore[operator]  # it has both limits
        try:
            node.record(budgets.reserved(id, of))
        except limpet.BudgetReached:
            assert not fits
        else:
            assert fits
            node.held.append(id)

    @rule(node=nodes, cost=costs, tokens=tokens)
    def settle(self, node: Node, cost: float, tokens: int) -> None:
        for id in budgets.reservations(node.head.facts):
            node.record(budgets.settled(id, budgets.amount(cost, tokens)))
            break

    @rule(target=nodes, parent=nodes, given=given_budgets)
    def delegate(self, parent: Node, given: Any) -> Any:
        of = budgets.allotted(parent.head.facts, given)
        assert of is not None
        child = Node(f"{parent.head.key.id}.{parent.kids}", parent)
        key, uid = child.head.key, child.head.uid
        made = children.child_created(key, uid, 1, "", None)
        try:
            parent.record(made, budgets.lent(key, uid, budgets.amount(of.cost, of.tokens)))
        except (limpet.BudgetReached, limpet.errors.InvalidEvent):  # or too many
            return multiple()
        parent.kids += 1
        child.record(budgets.granted(of))
        self.all.append(child)
        return child

    @rule(child=consumes(nodes), released=st.booleans())
    def end(self, child: Node, released: bool) -> None:
        """Of a child that has no children at work: its account, and the news of it."""
        parent, head = child.parent, child.head
        if parent is None or not child.open or children.children_in(head.facts):
            return
        child.open = False
        account = budgets.returned(head.key, head.uid, head.facts)
        assert account is not None
        news = children.child_ended(head.key, head.uid, "end_turn", summary=None, output=None)
        if released:
            parent.record(children.child_released(head.key), account)
        else:
            parent.record(account, news)
        own = budgets.given_back(head.facts)
        assert own is not None
        child.record(own)
        for id in budgets.reservations(child.head.facts):
            child.record(budgets.settled(id, Amount(*budgets.reservations(child.head.facts)[id])))

    @invariant()
    def the_sum_over_the_tree_is_what_was_granted(self) -> None:
        parts = [part for node in self.all for part in node.parts()]
        assert [sum(one) for one in zip(*parts, strict=True)] == self.granted

    @invariant()
    def every_child_has_every_limit(self) -> None:
        for node in self.all:
            view = budgets.view(node.head.facts)
            assert view is not None
            assert None not in (view.limit.cost, view.limit.tokens)


@pytest.mark.deeper
def test_the_sum_over_a_tree_is_what_was_granted() -> None:
    """However much is granted, lent, reserved, said and given back, and to whom."""
    run_state_machine_as_test(Tree, settings=settings(max_examples=count(300)))
