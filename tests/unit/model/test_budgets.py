"""Budgets in the head: limits, what is used of them, and whose account is taken."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.errors import BudgetReached, InvalidEvent
from limpet.model import EMPTY, Fact, FrozenDict, Key
from limpet.model.facts.running import budgets, children, runs
from limpet.model.facts.running.budgets import Amount, Budget, Share, Usage
from limpet.model.head import advance, blank, check_facts

CHILD = Key("research", "ada", "c")
UID = "uid-c"


def folded(*facts: Fact, on: FrozenDict = EMPTY) -> FrozenDict:
    """What the head knows after these; each may be refused."""
    head = blank(Key("support", "ada", "p"), "uid-p", 1)
    if on:
        head = advance(head, "note.taken", {}, 1, b"")
        head = type(head)(head.key, head.uid, 1, b"", 1, 1, 1, on)
    for fact in facts:
        after = advance(head, fact.type, dict(fact.data), 1, b"", input=fact.type.endswith("ended"))
        check_facts(head.facts, after.facts, fact.type, fact.data)
        head = after
    return head.facts


def granted(cost: float | None = None, tokens: int | None = None) -> Fact:
    return budgets.granted(Budget(cost, tokens))


def said(cost: float = 0.0, **usage: int) -> Fact:
    return Fact(type="agent.message", data={"cost": cost, "usage": usage})


def lent(cost: int = 0, tokens: int = 0, *, key: Key = CHILD, uid: str = UID) -> Fact:
    return budgets.lent(key, uid, Amount(cost, tokens))


def account(*facts: Fact, key: Key = CHILD, uid: str = UID) -> Fact:
    """Of a child with these facts."""
    found = budgets.returned(key, uid, folded(*facts))
    assert found is not None
    return found


def remaining(facts: FrozenDict) -> tuple[int | None, int | None]:
    return budgets.remaining(facts)


def test_the_types_of_events_stay_as_they_are_stored() -> None:
    """A log of yesterday is folded by the code of tomorrow."""
    names = ("granted", "reserved", "settled", "delegated", "returned")
    types = (budgets.GRANTED, budgets.RESERVED, budgets.SETTLED, budgets.LENT, budgets.RETURNED)
    assert types == tuple(f"budget.{name}" for name in names)
    kin = ("child_created", "delegated", "child_released", "delegation_ended")
    known = (children.CHILD_CREATED, children.DELEGATED, children.CHILD_RELEASED)
    assert (*known, children.DELEGATION_ENDED) == tuple(f"session.{name}" for name in kin)


def test_the_data_of_budget_events_stays_as_it_is_stored() -> None:
    """Each with the id by which it is recorded once."""
    used = folded(granted(1.0, 9), said(0.25, input=3))
    named = {"child": "c", "app": "research", "user": "ada", "uid": UID}
    five = {"cost": 5, "tokens": 6}
    stored: list[tuple[Fact | None, dict[str, Any], str | None]] = [
        (granted(1.5), {"cost": 1_500_000}, None),
        (granted(tokens=7), {"tokens": 7}, None),
        (budgets.reserved("r", Amount(5, 6)), {"reservation": "r", **five}, "r/reserved"),
        (budgets.settled("r", Amount(5, 6)), {"reservation": "r", **five}, "r/settled"),
        (
            budgets.settled("r", Amount(5, 6), cut=True),
            {"reservation": "r", **five, "cut": True},
            "r/settled",
        ),
        (lent(5, 6), {**named, **five}, "c/lent"),
        (
            budgets.returned(CHILD, UID, used),
            {
                **named,
                "cost": 250_000,
                "tokens": 3,
                "limit": {"cost": 1_000_000, "tokens": 9},
            },
            "c/returned",
        ),
        (budgets.given_back(used), {"own": True, "cost": 250_000, "tokens": 3}, None),
    ]
    for fact, data, id in stored:
        assert fact is not None
        assert (fact.data, fact.id) == (data, id)


def test_a_grant_is_of_something() -> None:
    """A number from zero, of cost, tokens or both."""
    for wrong in (Budget(), Budget(cost=-1), Budget(tokens=-1)):
        with pytest.raises(limpet.errors.InvalidEvent):
            budgets.granted(wrong)


def test_what_is_known_of_a_budget_cannot_be_changed() -> None:
    """Neither what was given nor what is shown; without anything used, all is zero."""
    view = budgets.view(folded(granted(1.0)))
    for held, name in ((Budget(), "cost"), (Share(0.5), "of"), (Usage(), "cost"), (view, "spent")):
        with pytest.raises(AttributeError):
            setattr(held, name, 1)
    assert Usage() == budgets.usage(EMPTY) == Usage(0, 0, 0, 0, 0.0)
    assert Usage(input=3, output=4, cache_read=9).tokens == 7
    counted = folded(said(0.5, input=3, output=4, cache_read=9))
    assert budgets.usage(counted) == Usage(0, 3, 4, 9, 0.5)


@pytest.mark.parametrize(
    ("cost", "tokens", "wrong"),
    [
        ("x", None, "cost"),
        (-1, 5, "cost"),
        (1, 1.5, "tokens"),
        (1, -1, "tokens"),
        (1, True, "tokens"),
    ],
)
def test_an_amount_is_a_number_from_zero(cost: Any, tokens: Any, wrong: str) -> None:
    """Tokens are whole; the error names what is wrong."""
    with pytest.raises(
        limpet.errors.InvalidEvent, match=f"the {wrong} of a budget is a number from 0"
    ):
        budgets.amount(cost, tokens)
    assert budgets.amount(0.0000014, 3) == Amount(1, 3)
    assert budgets.amount(None, None) == Amount(0, 0)


# --- what is left --------------------------------------------------------------------------------


def test_what_is_spent_reserved_and_lent_is_not_left() -> None:
    """Of each limit on its own; other tokens than input and output count too."""
    facts = folded(
        granted(1.0, 1_000),
        said(0.1, input=20, output=30, cache_read=500),
        budgets.reserved("r", Amount(200_000, 100)),
        lent(300_000, 200),
    )
    assert remaining(facts) == (400_000, 650)
    facts = folded(budgets.settled("r", Amount(50_000, 7)), on=facts)
    assert remaining(facts) == (550_000, 743)
    view = budgets.view(facts)
    assert view is not None
    assert (view.limit, view.spent) == (Budget(1.0, 1_000), Budget(0.15, 57))
    assert (view.delegated, view.reserved) == (Budget(0.3, 200), Budget(0.0, 0))
    assert budgets.used_with_children(facts) == Amount(450_000, 257)


def test_a_reservation_ends_alone() -> None:
    """Those beside it stay; the last one leaves nothing behind."""
    both = folded(budgets.reserved("a", Amount(5, 6)), budgets.reserved("b", Amount(7, 8)))
    one = folded(budgets.settled("a", Amount(1, 2)), on=both)
    assert budgets.reservations(one) == {"b": Amount(7, 8)}
    none = folded(budgets.settled("b", Amount(7, 8)), on=one)
    assert (budgets.spent(none), "reserved" in none["budget"]) == (Amount(8, 10), False)


def test_a_session_without_a_limit_has_no_budget_to_show() -> None:
    """It may have used and reserved anything, and heard of its children: nothing is refused."""
    made = children.child_created(CHILD, UID, 1, "", None)
    use = (said(3.0), budgets.reserved("r", Amount(5, 5)), made, account(said(1.0, input=4)))
    facts = folded(*use)
    assert (budgets.view(facts), remaining(facts)) == (None, (None, None))
    assert budgets.view(folded()) is None
    assert not budgets.has_limit(facts)
    budgets.check_left(facts)
    budgets.check_overdrawn(facts)
    assert remaining(folded(granted(5.0), on=facts)) == (999_995, None)


def test_a_limit_of_one_thing_is_none_of_the_other() -> None:
    """Cost without tokens, and tokens without cost."""
    assert remaining(folded(granted(1.0), said(0.5, input=9))) == (500_000, None)
    assert remaining(folded(granted(tokens=10), said(0.5, input=9))) == (None, 1)
    assert remaining(folded(granted(1.0), granted(0.5, 10))) == (1_500_000, 10)


# --- what refuses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spent", "left", "overdrawn"),
    [
        (said(0.999999, input=9), True, False),
        (said(1.0, input=9), False, False),
        (said(0.5, input=10), False, False),
        (said(1.000001), False, True),
        (said(0.5, output=11), False, True),
    ],
)
def test_nothing_left_is_not_yet_overdrawn(spent: Fact, left: bool, overdrawn: bool) -> None:
    """The first keeps a turn from beginning, the second every call from being made."""
    facts = folded(granted(1.0, 10), spent)
    calls: list[tuple[Any, bool]] = [(budgets.check_left, left)]
    calls.append((budgets.check_overdrawn, not overdrawn))
    for check, passes in calls:
        if passes:
            check(facts)
        else:
            with pytest.raises(limpet.BudgetReached) as refused:
                check(facts)
            assert refused.value.amount is None
            assert refused.value.left <= 0
    intent = Fact(type="effect.intended", data={"name": "x"})
    for call in (intent, budgets.reserved("r", Amount()), lent()):
        if overdrawn:
            with pytest.raises(limpet.BudgetReached):
                folded(call, on=facts)
        else:
            folded(call, on=facts)


@pytest.mark.parametrize("what", ["reserved", "lent"])
def test_no_more_is_set_aside_than_is_left(what: str) -> None:
    """All of it may be; the error says what was asked for, and what there was."""
    facts = folded(granted(1.0, 10), said(0.5, input=4))

    def aside(cost: int, tokens: int) -> Fact:
        if what == "lent":
            return lent(cost, tokens)
        return budgets.reserved("r", Amount(cost, tokens))

    assert remaining(folded(aside(500_000, 6), on=facts)) == (0, 0)
    with pytest.raises(limpet.BudgetReached) as cost:
        folded(aside(500_001, 6), on=facts)
    assert (cost.value.name, cost.value.amount, cost.value.left) == ("cost", 0.500001, 0.5)
    with pytest.raises(limpet.BudgetReached) as tokens:
        folded(aside(500_000, 7), on=facts)
    assert (tokens.value.name, tokens.value.amount, tokens.value.left) == ("tokens", 7, 6)


def test_a_turn_waits_for_what_it_lacks() -> None:
    """For what its call asked for; or for anything of each limit that is used up."""
    facts = folded(granted(1.0, 10), said(1.5, input=10))
    assert budgets.lacking(facts) == {"cost": 1, "tokens": 1}
    assert budgets.lacking(folded(granted(1.0, 10), said(0.5, input=10))) == {"tokens": 1}
    assert budgets.lacking(folded(granted(1.0), said(input=10))) == {}
    assert budgets.lacking(folded(granted(1.0, 10), said(0.999999, input=9))) == {}
    assert budgets.is_enough(EMPTY, {"cost": 5, "tokens": 5})
    assert budgets.is_enough(folded(granted(1.0)), {"cost": 5, "tokens": 5})
    assert budgets.needed("cost", 0.7) == {"cost": 700_000}
    assert budgets.needed("tokens", 70) == {"tokens": 70}
    more = folded(granted(0.500001, 1), on=facts)
    assert not budgets.is_enough(facts, {"cost": 1})
    assert budgets.is_enough(more, {"cost": 1, "tokens": 1})
    assert not budgets.is_enough(more, {"cost": 2})


# --- children ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Budget(0.2, 25)),
        (0.3, Budget(0.3, 25)),
        (0, Budget(0, 25)),
        (Budget(), Budget(0.2, 25)),
        (Budget(tokens=7), Budget(0.2, 7)),
        (Budget(0.1, 0), Budget(0.1, 0)),
        (Share(0.5), Budget(0.4, 50)),
        (Share(1), Budget(0.8, 100)),
    ],
)
def test_a_child_has_each_limit_of_its_parent(given: Any, expected: Budget) -> None:
    """What is named, or else a quarter of what is left, rounded down."""
    facts = folded(granted(1.0, 123), said(0.2, input=23))
    assert budgets.allotted(facts, given) == expected


def test_a_child_has_no_limit_where_its_parent_has_none() -> None:
    """Unless one is named. A share is of a limit."""
    cost_only = folded(granted(1.0))
    assert budgets.allotted(cost_only, None) == Budget(0.25, None)
    assert budgets.allotted(cost_only, Budget(tokens=5)) == Budget(0.25, 5)
    assert budgets.allotted(cost_only, Share(0.5)) == Budget(0.5, None)
    assert budgets.allotted(EMPTY, None) is None
    assert budgets.allotted(EMPTY, Budget()) is None
    assert budgets.allotted(EMPTY, 0.5) == Budget(0.5, None)
    with pytest.raises(limpet.errors.InvalidEvent, match="no budget to share"):
        budgets.allotted(EMPTY, Share(0.5))


def test_what_is_overdrawn_is_shared_as_nothing() -> None:
    """A share of less than nothing would take from the child."""
    overdrawn = folded(granted(1.0), said(2.0))
    assert budgets.allotted(overdrawn, None) == Budget(0.0, None)
    assert budgets.allotted(overdrawn, Share(1.0)) == Budget(0.0, None)


def test_a_child_that_used_nothing_and_had_no_limit_has_no_account() -> None:
    """Every other has one; its own log says that its limits are used up, if it has any."""
    assert budgets.returned(CHILD, UID, EMPTY) is None
    assert budgets.given_back(EMPTY) is None
    assert budgets.given_back(folded(said(1.0))) is None
    assert account(said(0.1)).data["cost"] == 100_000
    assert account(granted(0)).data["limit"] == {"cost": 0}
    child = folded(granted(1.0), said(0.25, input=3), budgets.reserved("r", Amount(50_000, 1)))
    own = budgets.given_back(child)
    assert own is not None
    assert (own.data["cost"], own.data["tokens"]) == (300_000, 4)
    assert remaining(folded(own, on=child)) == (0, None)


def test_the_parent_has_back_what_its_child_has_not_used() -> None:
    """And what the child was granted beside it; what it overdrew is the parent's loss."""
    facts = folded(granted(1.0, 100), lent(400_000, 40))
    back = account(granted(0.4, 40), said(0.1, input=10))
    assert remaining(folded(back, on=facts)) == (900_000, 90)
    more = account(granted(0.4, 40), granted(2.0), said(0.1, input=10))
    assert remaining(folded(more, on=facts)) == (2_900_000, 90)
    over = account(granted(0.4, 40), said(3.0, input=10))
    assert remaining(folded(over, on=facts)) == (-2_000_000, 90)
    done = folded(back, on=facts)
    assert "lent" not in done["budget"]
    both = folded(lent(1, 1, key=Key("research", "ada", "d")), back, on=facts)
    assert list(both["budget"]["lent"]) == ["d"]


@pytest.mark.parametrize(
    ("key", "uid"),
    [
        (Key("research", "ada", "c"), "uid-other"),
        (Key("research", "eve", "c"), UID),
        (Key("other", "ada", "c"), UID),
        (Key("research", "ada", "x"), UID),
    ],
)
def test_an_account_is_taken_of_a_child_only(key: Key, uid: str) -> None:
    """Of one that was lent something, or is at work: by key and uid."""
    stranger = account(said(0.5), key=key, uid=uid)
    made = children.child_created(CHILD, UID, 1, "", None)
    for facts in (folded(granted(1.0), lent(5)), folded(granted(1.0), made), folded(granted(1.0))):
        with pytest.raises(limpet.errors.ChildNotFound) as refused:
            folded(stranger, on=facts)
        assert refused.value.id == key.id
    news = children.child_ended(key, uid, "end_turn", summary=None, output=None)
    for late in (news, children.child_released(key, uid)):
        with pytest.raises(limpet.errors.ChildNotFound):
            folded(late, on=folded(made))
    ended = children.child_ended(CHILD, UID, "end_turn", summary=None, output=None)
    assert "children" not in folded(ended, on=folded(made))
    assert "children" not in folded(children.child_released(CHILD, UID), on=folded(made))
    assert folded(children.child_released(key)) == EMPTY, "what a parent says itself may be late"


def test_empty_limits_are_those_of_the_session_with_nothing_in_them() -> None:
    """What a fork begins with."""
    assert budgets.empty_limits(folded(granted(1.0, 5))) == {"cost": 0, "tokens": 0}
    assert budgets.empty_limits(folded(granted(tokens=5))) == {"tokens": 0}
    assert budgets.empty_limits(folded(said(1.0))) == {}


@pytest.mark.parametrize("cost", [-1, True, "1", float("nan"), 2**53])
def test_a_message_counts_only_amounts(cost: Any) -> None:
    """Anything else that it says it has cost counts as nothing."""
    usage = {"input": -1, "output": True, "cache_read": 1.5}
    facts = folded(Fact(type="agent.message", data={"cost": cost, "usage": usage}))
    assert budgets.spent(facts) == Amount()
    facts = folded(Fact(type="agent.message", data={"cost": 1.5, "usage": "much"}))
    assert budgets.spent(facts) == Amount(1_500_000, 0)


def test_seconds_of_wakes_are_counted_and_limited() -> None:
    """Each wake that is over adds its own; with none left, nothing begins until more is granted."""
    facts = folded(budgets.granted(Budget(compute_seconds=2)))
    for took_us in (1_500_000, 0, -5):
        facts = folded(
            runs.wake_completed("w", "t", "success", fence=1, compute_us=took_us), on=facts
        )
    assert budgets.usage(facts) == Usage(compute_seconds=1.5)
    view = budgets.view(facts)
    assert view is not None
    seconds = [each.compute_seconds for each in (view.limit, view.spent, view.remaining)]
    assert seconds == [2.0, 1.5, 0.5]
    budgets.check_left(facts)
    budgets.check_overdrawn(facts, 499_999)
    with pytest.raises(BudgetReached, match="compute_seconds"):
        budgets.check_overdrawn(facts, 500_000)
    facts = folded(runs.wake_completed("w", "t", "error", fence=2, compute_us=700_000), on=facts)
    with pytest.raises(BudgetReached, match="compute_seconds"):
        budgets.check_left(facts)
    needs = budgets.lacking(facts)
    assert needs == {"compute_us": 1}
    assert not budgets.is_enough(facts, needs)
    facts = folded(budgets.granted(Budget(compute_seconds=1)), on=facts)
    assert budgets.is_enough(facts, needs)
    budgets.check_left(facts)


def test_a_child_may_run_for_as_long_as_its_parent_still_may() -> None:
    """Seconds are not divided; where it is given fewer, it has fewer."""
    facts = folded(budgets.granted(Budget(compute_seconds=8)))
    assert budgets.allotted(facts, None) == Budget(compute_seconds=8.0)
    assert budgets.allotted(facts, Budget(tokens=5)) == Budget(tokens=5, compute_seconds=8.0)
    assert budgets.allotted(facts, Budget(compute_seconds=3)) == Budget(compute_seconds=3)


@pytest.mark.parametrize("bad", [-1, "1", float("nan"), True])
def test_seconds_of_a_budget_are_a_number(bad: object) -> None:
    """Anything else is refused by its name."""
    with pytest.raises(InvalidEvent, match="compute_seconds of a budget"):
        budgets.granted(Budget(compute_seconds=bad))  # type: ignore[arg-type]
