"""Budgets: what a session has used, and what it may use. Cost is in integer millionths.

`usage` counts what was used. `budget` has the limits, what is reserved for calls under way, and
what children were given. Nothing appears or vanishes: over a session and its children, what is
spent, reserved and left is what the first of them was granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from limpet import errors
from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment, replaced
from limpet.model.limits import INT_MAX
from limpet.model.values import EMPTY, FrozenDict, FrozenList, described

GRANTED: Final = "budget.granted"
RESERVED: Final = "budget.reserved"
SETTLED: Final = "budget.settled"
LENT: Final = "budget.delegated"
RETURNED: Final = "budget.returned"
MILLION: Final = 1_000_000
_COUNTED: Final = ("input", "output", "cache_read")


class Budget(msgspec.Struct, frozen=True):
    """What may be used: cost in your currency, tokens, or both. None: no limit."""

    cost: float | None = None
    tokens: int | None = None


class Share(msgspec.Struct, frozen=True):
    """A part of what the parent has left, above 0 and up to 1: for turn.delegate(budget=…)."""

    of: float


class Amount(NamedTuple):
    """Cost in millionths, and tokens."""

    cost: int = 0
    tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """What a session has used so far."""

    turns: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input + self.output


class BudgetView(msgspec.Struct, frozen=True):
    """A budget as it stands. `delegated` is what children have, or have used."""

    limit: Budget
    spent: Budget
    reserved: Budget
    delegated: Budget
    remaining: Budget


def amount(cost: float | None, tokens: int | None) -> Amount:
    """Checked amounts. Raises InvalidEvent."""
    _check_amount("cost", cost, (int, float))
    _check_amount("tokens", tokens, (int,))
    return Amount(round((cost or 0) * MILLION), tokens or 0)


def budget_of(given: Budget | float) -> Budget:
    """A number is a cost. Raises InvalidEvent."""
    budget = given if isinstance(given, Budget) else Budget(cost=given)
    amount(budget.cost, budget.tokens)
    return budget


def share_of(facts: Facts, share: Share) -> Budget:
    """What a share of the session's remaining budget comes to, rounded down. Raises InvalidEvent.

    What the session has no limit on, the share has none on either.
    """
    if type(share.of) not in (int, float) or not 0 < share.of <= 1:
        raise InvalidEvent(f"a share is a number above 0 and up to 1, not {described(share.of)}")
    cost, tokens = remaining(facts)
    if cost is tokens is None:
        raise InvalidEvent("the session has no budget to share. Grant it one first: s.grant(…)")
    part = [None if left is None else int(max(0, left) * share.of) for left in (cost, tokens)]
    return Budget(_money(part[0]), part[1])


def granted(budget: Budget) -> Fact:
    """The session may use this much more. Raises InvalidEvent."""
    amount(budget.cost, budget.tokens)
    if budget.cost is budget.tokens is None:
        raise InvalidEvent("a budget has a cost, tokens, or both")
    data: dict[str, Any] = {}
    if budget.cost is not None:
        data["cost"] = round(budget.cost * MILLION)
    if budget.tokens is not None:
        data["tokens"] = budget.tokens
    return Fact(type=GRANTED, data=data)


def reserved(id: str, of: Amount) -> Fact:
    """A call may use as much. The commit may raise BudgetReached."""
    return Fact(type=RESERVED, data={"reservation": id, **of._asdict()}, id=f"{id}/reserved")


def settled(id: str, of: Amount, *, cut: bool = False) -> Fact:
    """The call used this much, and its reservation ends. `cut`: its run ended before the call did,
    so that another run makes the call again."""
    data = {"reservation": id, **of._asdict()}
    return Fact(type=SETTLED, data=data | {"cut": True} if cut else data, id=f"{id}/settled")


def lent(child: str, of: Amount) -> Fact:
    """A child was given this much. The commit may raise BudgetReached."""
    return Fact(type=LENT, data={"child": child, **of._asdict()}, id=f"{child}/lent")


def returned(child: str, used: Amount) -> Fact:
    """Of what the child was given, it (and its children) used this much. Recorded with both."""
    return Fact(type=RETURNED, data={"child": child, **used._asdict()}, id=f"{child}/returned")


def usage(facts: Facts) -> Usage:
    used = facts.get("usage", EMPTY)
    counts = {name: used.get(name, 0) for name in ("turns", *_COUNTED)}
    return Usage(**counts, cost=used.get("cost", 0) / MILLION)


def reservations(facts: Facts) -> dict[str, Amount]:
    """What calls under way may still use."""
    found = facts.get("budget", EMPTY).get("reserved", EMPTY)
    return {id: Amount(*of) for id, of in found.items()}


def spent(facts: Facts) -> Amount:
    used = facts.get("usage", EMPTY)
    tokens = used.get("input", 0) + used.get("output", 0) + used.get("other", 0)
    return Amount(used.get("cost", 0), tokens)


def used_with_children(facts: Facts) -> Amount:
    """What is spent here and by children, or still theirs."""
    return _plus(spent(facts), _lent(facts))


def used_up(facts: Facts) -> Amount:
    """What is gone if everything that is reserved is used: at the end of a child."""
    return _plus(used_with_children(facts), _sum(reservations(facts).values()))


def view(facts: Facts) -> BudgetView | None:
    """None if the session has no budget: then nothing is refused."""
    budget = facts.get("budget")
    if budget is None:
        return None
    left = remaining(facts)
    limit = Budget(_money(budget.get("cost")), budget.get("tokens"))
    parts = {"spent": spent(facts), "delegated": _lent(facts)}
    parts["reserved"] = _sum(reservations(facts).values())
    shown = {name: Budget(of.cost / MILLION, of.tokens) for name, of in parts.items()}
    return BudgetView(limit=limit, remaining=Budget(_money(left[0]), left[1]), **shown)


def remaining(facts: Facts) -> tuple[int | None, int | None]:
    """What is neither spent nor reserved nor with children; None where there is no limit."""
    budget = facts.get("budget", EMPTY)
    gone = _plus(used_with_children(facts), _sum(reservations(facts).values()))
    cost, tokens = budget.get("cost"), budget.get("tokens")
    cost = None if cost is None else cost - gone.cost
    return cost, None if tokens is None else tokens - gone.tokens


def needed(name: str, asked: float) -> dict[str, int]:
    """What a call asked for that was refused with BudgetReached."""
    return {name: round(asked * MILLION) if name == "cost" else round(asked)}


def is_enough(facts: Facts, of: Mapping[str, Any]) -> bool:
    """Whether as much is left of the budget. What was not asked for may be overdrawn."""
    left = zip(("cost", "tokens"), remaining(facts), strict=True)
    return all([has is None or name not in of or has >= of[name] for name, has in left])


# --- folds ----------------------------------------------------------------------------------------


def fold_granted(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    budget = dict(facts.get("budget", EMPTY))
    for name in ("cost", "tokens"):
        if name in data:
            budget[name] = _bounded(budget.get(name, 0) + data[name])
    return {"budget": FrozenDict(budget)}


def fold_reserved(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    held = {**_part(facts, "reserved"), data["reservation"]: _pair(data["cost"], data["tokens"])}
    return _budget(facts, reserved=FrozenDict(held))


def fold_settled(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    held = {id: of for id, of in _part(facts, "reserved").items() if id != data["reservation"]}
    changes = _budget(facts, reserved=FrozenDict(held) if held else None)
    return changes | _used(facts, cost=data["cost"], other=data["tokens"])


def fold_lent(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    given = {**_part(facts, "lent"), data["child"]: _pair(data["cost"], data["tokens"])}
    return _budget(facts, lent=FrozenDict(given))


def fold_returned(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """With the parent, what is unspent comes back. With the child, nothing is left."""
    lent_out = _part(facts, "lent")
    if data["child"] in lent_out:
        rest = {id: of for id, of in lent_out.items() if id != data["child"]}
        gone = Amount(*_part(facts, "gone")) if _part(facts, "gone") else Amount()
        after = _plus(gone, Amount(data["cost"], data["tokens"]))
        return _budget(facts, lent=FrozenDict(rest) if rest else None, gone=_pair(*after))
    budget = facts.get("budget", EMPTY)
    return _budget(facts, **{n: data[n] for n in ("cost", "tokens") if n in budget})


def fold_message(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """A message of the agent says what it has cost."""
    counted, cost = data.get("usage"), data.get("cost", 0)
    if not counted and not cost:
        return {}
    found = counted if isinstance(counted, Mapping) else EMPTY
    more = {name: found.get(name) for name in _COUNTED}
    sums = {name: by for name, by in more.items() if type(by) is int and by > 0}
    return _used(facts, cost=round(cost * MILLION) if _is_amount(cost) else 0, **sums)


def fold_turn(facts: Facts) -> Changes:
    """One more turn is over."""
    return _used(facts, turns=1)


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise BudgetReached if more would be reserved, or given away, than is left."""
    for name, left in zip(("cost", "tokens"), remaining(after), strict=True):
        if left is not None and left < 0 and data[name]:
            had = left + data[name]
            divisor = MILLION if name == "cost" else 1
            raise errors.BudgetReached(name, data[name] / divisor, max(0, had) / divisor)


def _used(facts: Facts, **more: int) -> Changes:
    used = dict(facts.get("usage", EMPTY))
    for name, by in more.items():
        if by:
            used[name] = _bounded(used.get(name, 0) + by)
    return {"usage": FrozenDict(used)} if used else {}


def _budget(facts: Facts, **changes: Any) -> Changes:
    return {"budget": replaced(facts.get("budget", EMPTY), changes)}


def _part(facts: Facts, name: str) -> Any:
    return facts.get("budget", EMPTY).get(name, EMPTY)


def _lent(facts: Facts) -> Amount:
    gone = _part(facts, "gone")
    out = [Amount(*of) for of in _part(facts, "lent").values()]
    return _sum([*out, Amount(*gone)] if gone else out)


def _sum(amounts: Any) -> Amount:
    total = Amount()
    for each in amounts:
        total = _plus(total, each)
    return total


def _plus(one: Amount, other: Amount) -> Amount:
    return Amount(one.cost + other.cost, one.tokens + other.tokens)


def _money(cost: int | None) -> float | None:
    return None if cost is None else cost / MILLION


def _pair(cost: int, tokens: int) -> FrozenList:
    """As it is read back."""
    return FrozenList([_bounded(cost), _bounded(tokens)])


def _bounded(sum: int) -> int:
    """A sum of many large amounts stays a number that every store can keep."""
    return min(sum, INT_MAX)


def _check_amount(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if value is not None and not (type(value) in kinds and _is_amount(value)):
        raise InvalidEvent(f"the {name} of a budget is a number from 0, not {described(value)}")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**53
