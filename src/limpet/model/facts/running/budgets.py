"""Budgets: what a session has used, and what it may use. Cost is in integer millionths.

`usage` counts what was used. `budget` has the limits, what is reserved for calls under way, and
what children were given. Nothing appears or vanishes: over a session and its children, what is
spent, reserved and left is what they were granted. What is spent counts, also beyond the limit: a
session that has nothing left begins no turn, and one that is overdrawn makes no call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from limpet import errors
from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.running import children
from limpet.model.facts.view import Changes, Facts, Moment, replaced
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict, FrozenList, described

GRANTED: Final = "budget.granted"
RESERVED: Final = "budget.reserved"
SETTLED: Final = "budget.settled"
LENT: Final = "budget.delegated"
RETURNED: Final = "budget.returned"
MILLION: Final = 1_000_000
AMOUNT_MAX: Final = 2**62  # of a sum: two of them still fit into what a store keeps
LIMITS: Final = ("cost", "tokens")
COMPUTE: Final = "compute_us"  # of a grant, of what is used, and of what is needed to go on
SECONDS_MAX: Final = 2**40
_COUNTED: Final = ("input", "output", "cache_read")


class Budget(msgspec.Struct, frozen=True):
    """The limits of a session: cost in your currency, tokens, and seconds in which workers run it.
    None means unlimited."""

    cost: float | None = None
    tokens: int | None = None
    compute_seconds: float | None = None


class Share(msgspec.Struct, frozen=True):
    """A fraction of the parent's remaining budget, above 0 and up to 1: for
    turn.delegate(budget=…)."""

    of: float


# A child's default part of each limit of its parent.
SHARE: Final = Share(0.25)


class Amount(NamedTuple):
    """Cost in millionths, and tokens."""

    cost: int = 0
    tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """The usage of a session so far."""

    turns: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cost: float = 0.0
    compute_seconds: float = 0.0  # for which workers held it: each wake from its claim to its end

    @property
    def tokens(self) -> int:
        """The tokens of input and output together."""
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
    _check_amount("cost", cost, (int, float), AMOUNT_MAX // MILLION)
    _check_amount("tokens", tokens, (int,))
    return Amount(round((cost or 0) * MILLION), tokens or 0)


def budget_of(given: Budget | float) -> Budget:
    """A number is a cost. Raises InvalidEvent."""
    budget = given if isinstance(given, Budget) else Budget(cost=given)
    _check_budget(budget)
    return budget


def _check_budget(budget: Budget) -> None:
    amount(budget.cost, budget.tokens)
    _check_amount("compute_seconds", budget.compute_seconds, (int, float), SECONDS_MAX)


def allotted(facts: Facts, given: Budget | Share | float | None) -> Budget | None:
    """The budget of a child of this session; None if neither has a limit. Raises InvalidEvent.

    A child has every limit that its parent has: where `given` names none, it is a quarter of what
    the parent has left. A share is a part of what is left of each limit, rounded down. Seconds are
    not divided: a child may run for as long as its parent still may.
    """
    if isinstance(given, Share):
        return _shared(facts, given)
    named = Budget() if given is None else budget_of(given)
    default = _part_left(facts, SHARE.of)
    cost = default.cost if named.cost is None else named.cost
    tokens = default.tokens if named.tokens is None else named.tokens
    seconds = default.compute_seconds if named.compute_seconds is None else named.compute_seconds
    return None if cost is tokens is seconds is None else Budget(cost, tokens, seconds)


def _shared(facts: Facts, share: Share) -> Budget:
    if type(share.of) not in (int, float) or not 0 < share.of <= 1:
        raise InvalidEvent(f"a share is a number above 0 and up to 1, not {described(share.of)}")
    if not has_limit(facts):
        raise InvalidEvent(
            "the session has no budget to share. Grant it one first: s.runs.grant(…)"
        )
    return _part_left(facts, share.of)


def _part_left(facts: Facts, of: float) -> Budget:
    """A part of what is left of each limit, rounded down; None where there is no limit."""
    part = [None if left is None else int(max(0, left) * of) for left in remaining(facts)]
    left_us = _compute_left(facts)
    return Budget(_money(part[0]), part[1], None if left_us is None else _money(max(0, left_us)))


def granted(budget: Budget) -> Fact:
    """The session may use this much more. Raises InvalidEvent."""
    _check_budget(budget)
    if budget.cost is budget.tokens is budget.compute_seconds is None:
        raise InvalidEvent("a budget has a cost, tokens or compute_seconds")
    data: dict[str, Any] = {}
    if budget.cost is not None:
        data["cost"] = round(budget.cost * MILLION)
    if budget.tokens is not None:
        data["tokens"] = budget.tokens
    if budget.compute_seconds is not None:
        data[COMPUTE] = round(budget.compute_seconds * MILLION)
    return Fact(type=GRANTED, data=data)


def reserved(id: str, of: Amount) -> Fact:
    """A call may use as much. The commit may raise BudgetReached."""
    return Fact(type=RESERVED, data={"reservation": id, **of._asdict()}, id=f"{id}/reserved")


def settled(id: str, of: Amount, *, cut: bool = False) -> Fact:
    """The call used this much, and its reservation ends. `cut`: its run ended before the call did,
    so that another run makes the call again."""
    data = {"reservation": id, **of._asdict()}
    return Fact(type=SETTLED, data=data | {"cut": True} if cut else data, id=f"{id}/settled")


def lent(child: Key, uid: str, of: Amount) -> Fact:
    """A child was given this much. The commit may raise BudgetReached."""
    data = {**children.named(child, uid), **of._asdict()}
    return Fact(type=LENT, data=data, id=f"{child.id}/lent")


def returned(child: Key, uid: str, facts: Facts) -> Fact | None:
    """The account of a child with these facts, for its parent: what it and its children have used,
    and the limits it had. None if it has used nothing and had none.

    The commit raises ChildNotFound unless the session has this child.
    """
    used, limit = used_up(facts), _limits(facts)
    if used == Amount() and not limit:
        return None
    data = {**children.named(child, uid), **used._asdict()}
    return Fact(type=RETURNED, data=data | {"limit": limit}, id=f"{child.id}/returned")


def given_back(facts: Facts) -> Fact | None:
    """Return the fact, for the child's own log, that its parent has back what was left. None if
    it had no limit."""
    if not has_limit(facts):
        return None
    return Fact(type=RETURNED, data={"own": True, **used_up(facts)._asdict()})


def account(facts: Facts) -> dict[str, Any]:
    """Return the usage of a spawned child and its descendants, with its limits, for the parent."""
    return {**used_up(facts)._asdict(), "limit": _limits(facts)}


def usage(facts: Facts) -> Usage:
    used = facts.get("usage", EMPTY)
    counts = {name: used.get(name, 0) for name in ("turns", *_COUNTED)}
    compute_seconds = used.get(COMPUTE, 0) / MILLION
    return Usage(**counts, cost=used.get("cost", 0) / MILLION, compute_seconds=compute_seconds)


def reservations(facts: Facts) -> dict[str, Amount]:
    """Return the sum that calls under way may still use."""
    reserved = facts.get("budget", EMPTY).get("reserved", EMPTY)
    return {id: Amount(*of) for id, of in reserved.items()}


def spent(facts: Facts) -> Amount:
    used = facts.get("usage", EMPTY)
    tokens = used.get("input", 0) + used.get("output", 0) + used.get("other", 0)
    return Amount(used.get("cost", 0), tokens)


def used_with_children(facts: Facts) -> Amount:
    """Return the sum spent here and by children, or still theirs."""
    return _plus(spent(facts), _lent(facts))


def used_up(facts: Facts) -> Amount:
    """Return the sum that is gone if all that is reserved is used: at the end of a child."""
    return _plus(used_with_children(facts), _sum(reservations(facts).values()))


def has_limit(facts: Facts) -> bool:
    return bool(_limits(facts))


def empty_limits(facts: Facts) -> dict[str, int]:
    """The limits of this session with nothing in them, in the form of a grant."""
    limits = dict.fromkeys(_limits(facts), 0)
    return {**limits, COMPUTE: 0} if has_compute_limit(facts) else limits


def view(facts: Facts) -> BudgetView | None:
    """Return the budget; None if the session has no limit: then nothing is refused."""
    limits, compute_us = _limits(facts), _part(facts, COMPUTE)
    if not limits and not has_compute_limit(facts):
        return None
    left = remaining(facts)
    limit = Budget(_money(limits.get("cost")), limits.get("tokens"))
    parts = {"spent": spent(facts), "delegated": _lent(facts)}
    parts["reserved"] = _sum(reservations(facts).values())
    shown = {name: Budget(of.cost / MILLION, of.tokens) for name, of in parts.items()}
    remains = Budget(_money(left[0]), left[1])
    if has_compute_limit(facts):
        limit = structs.replace(limit, compute_seconds=_money(compute_us))
        remains = structs.replace(remains, compute_seconds=_money(_compute_left(facts)))
        used = usage(facts).compute_seconds
        shown["spent"] = structs.replace(shown["spent"], compute_seconds=used)
    return BudgetView(limit=limit, remaining=remains, **shown)


def has_compute_limit(facts: Facts) -> bool:
    """True if it may be run for so many seconds only."""
    return COMPUTE in facts.get("budget", EMPTY)


def _compute_left(facts: Facts) -> int | None:
    """Return for how many microseconds it may still be run; None without that limit."""
    if not has_compute_limit(facts):
        return None
    return int(_part(facts, COMPUTE)) - int(facts.get("usage", EMPTY).get(COMPUTE, 0))


def remaining(facts: Facts) -> tuple[int | None, int | None]:
    """Return the sum neither spent, reserved nor with children; None where there is no limit."""
    left = _left(facts)
    return left.get("cost"), left.get("tokens")


def needed(name: str, asked: float) -> dict[str, int]:
    """Return the needs of the call that was refused with BudgetReached."""
    return {name: round(asked * MILLION) if name == "cost" else round(asked)}


def lacking(facts: Facts) -> dict[str, int]:
    """Return what has to be left of each limit that is used up, for a turn to go on: anything."""
    needs = {name: 1 for name, left in _left(facts).items() if left <= 0}
    left_us = _compute_left(facts)
    return needs if left_us is None or left_us > 0 else {**needs, COMPUTE: 1}


def is_enough(facts: Facts, of: Mapping[str, Any]) -> bool:
    """True if as much is left of the budget. What was not asked for may be overdrawn."""
    if COMPUTE in of and (left_us := _compute_left(facts)) is not None and left_us < of[COMPUTE]:
        return False
    return all([left >= of[name] for name, left in _left(facts).items() if name in of])


def check_left(facts: Facts) -> None:
    """Raise BudgetReached if nothing is left of a limit: then no turn begins."""
    _check_least(facts, 1)


def check_overdrawn(facts: Facts, running_us: int = 0) -> None:
    """Raise BudgetReached if more was spent than a limit allows, with a wake that has run for so
    long: then no call is made."""
    _check_least(facts, 0, running_us)


def _check_least(facts: Facts, least: int, running_us: int = 0) -> None:
    if "budget" not in facts:  # as most
        return
    for name, left in _left(facts).items():
        if left < least:
            raise errors.BudgetReached(name, None, left / MILLION if name == "cost" else left)
    left_us = _compute_left(facts)
    if left_us is not None and left_us <= running_us:
        raise errors.BudgetReached("compute_seconds", None, (left_us - running_us) / MILLION)


# --- folds ----------------------------------------------------------------------------------------


def fold_granted(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    more = {name: data[name] for name in LIMITS if name in data}
    held = _limits(facts)
    grown = {name: _clamp(held.get(name, 0) + by) for name, by in more.items()}
    if COMPUTE in data:
        grown[COMPUTE] = _clamp((_part(facts, COMPUTE) or 0) + data[COMPUTE])
    return _budget(facts, **grown)


def fold_reserved(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    held = {**_part(facts, "reserved"), data["reservation"]: _pair(data["cost"], data["tokens"])}
    return _budget(facts, reserved=FrozenDict(held))


def fold_settled(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    held = {id: of for id, of in _part(facts, "reserved").items() if id != data["reservation"]}
    changes = _budget(facts, reserved=FrozenDict(held) if held else None)
    return changes | _add_usage(facts, cost=data["cost"], other=data["tokens"])


def fold_lent(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    child = FrozenList([data["cost"], data["tokens"], children.kin(data)])
    return _budget(facts, lent=FrozenDict({**_part(facts, "lent"), data["child"]: child}))


def fold_returned(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """With the parent, what is unspent comes back, also of what the child was granted beside it.
    With the child, nothing is left."""
    limits = _limits(facts)
    if "own" in data:
        return _budget(facts, **{name: data[name] for name in limits})
    lent_out = _part(facts, "lent")
    given = _amount(lent_out.get(data["child"], (0, 0)))._asdict()
    had = data.get("limit", EMPTY)
    beside = {name: had[name] - given[name] for name in limits if name in had}
    rest = {id: of for id, of in lent_out.items() if id != data["child"]}
    gone = _plus(_gone(facts), Amount(data["cost"], data["tokens"]))
    grown = {name: _clamp(limits[name] + by) for name, by in beside.items()}
    return _budget(facts, lent=FrozenDict(rest) if rest else None, gone=_pair(*gone), **grown)


def lend(facts: Facts, of: Amount) -> Changes:
    """Return the parent's budget after a spawned child receives this much."""
    return _budget(facts, spawned=_pair(*_plus(_spawned(facts), of)))


def take_back(facts: Facts, lent: Amount | None, account: Mapping[str, Any]) -> Changes:
    """Return the parent's budget after a spawned child ends: what is unspent comes back, grants
    included."""
    given = (Amount() if lent is None else lent)._asdict()
    had, limits, out = account.get("limit", EMPTY), _limits(facts), _spawned(facts)._asdict()
    left = Amount(**{name: max(0, out[name] - given[name]) for name in LIMITS})
    gone = _plus(_gone(facts), Amount(account["cost"], account["tokens"]))
    if gone == Amount() and "budget" not in facts:
        return {}
    grown = {n: _clamp(limits[n] + had[n] - given[n]) for n in limits if n in had}
    spawned = None if left == Amount() else _pair(*left)
    return _budget(facts, spawned=spawned, gone=_pair(*gone), **grown)


def fold_message(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """A message of the agent says what it has cost."""
    counted, cost = data.get("usage"), data.get("cost", 0)
    if not counted and not cost:
        return {}
    usage = counted if isinstance(counted, Mapping) else EMPTY
    more = {name: usage.get(name) for name in _COUNTED}
    sums = {name: by for name, by in more.items() if type(by) is int and by > 0}
    return _add_usage(facts, cost=round(cost * MILLION) if _is_amount(cost) else 0, **sums)


def fold_compute(facts: Facts, data: Mapping[str, Any]) -> Changes:
    """A wake that is over says for how long it was run."""
    took_us = data.get(COMPUTE)
    return _add_usage(facts, **{COMPUTE: took_us}) if type(took_us) is int and took_us > 0 else {}


def fold_turn(facts: Facts) -> Changes:
    """One more turn is over."""
    return _add_usage(facts, turns=1)


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise BudgetReached if more would be reserved, or given away, than is left."""
    check_overdrawn(before)
    for name, left in _left(after).items():
        if left < 0:
            divisor = MILLION if name == "cost" else 1
            raise errors.BudgetReached(name, data[name] / divisor, (left + data[name]) / divisor)


def check_call(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise BudgetReached if the budget was overdrawn before this call."""
    check_overdrawn(before)


def check_returned(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise ChildNotFound if the account is of no child of this session."""
    if "own" in data:
        return
    of = _part(before, "lent").get(data["child"], ())
    if list(of[2:]) != [children.kin(data)]:
        children.check_known(before, data)


def _add_usage(facts: Facts, **more: int) -> Changes:
    used = dict(facts.get("usage", EMPTY))
    for name, by in more.items():
        if by:
            used[name] = _clamp(used.get(name, 0) + by)
    return {"usage": FrozenDict(used)} if used else {}


def _budget(facts: Facts, **changes: Any) -> Changes:
    return {"budget": replaced(facts.get("budget", EMPTY), changes)}


def _part(facts: Facts, name: str) -> Any:
    return facts.get("budget", EMPTY).get(name, EMPTY)


def _limits(facts: Facts) -> dict[str, int]:
    """Return the limits by name, in millionths and tokens; without those that it does not have."""
    budget = facts.get("budget", EMPTY)
    return {name: budget[name] for name in LIMITS if name in budget}


def _left(facts: Facts) -> dict[str, int]:
    """Return the rest of each limit; below zero if it is overdrawn."""
    limits = _limits(facts)
    gone = used_up(facts)._asdict() if limits else {}
    return {name: limit - gone[name] for name, limit in limits.items()}


def _lent(facts: Facts) -> Amount:
    """Return the sum that children have, or have used."""
    lent = [_amount(of) for of in _part(facts, "lent").values()]
    return _sum([_gone(facts), _spawned(facts), *lent])


def _spawned(facts: Facts) -> Amount:
    """Return the sum that spawned children were given, of those that have not ended."""
    return _amount(_part(facts, "spawned") or (0, 0))


def _gone(facts: Facts) -> Amount:
    """Return the sum that ended children have used."""
    return _amount(_part(facts, "gone") or (0, 0))


def _amount(of: Any) -> Amount:
    return Amount(of[0], of[1])


def _sum(amounts: Any) -> Amount:
    total = Amount()
    for each in amounts:
        total = _plus(total, each)
    return total


def _plus(one: Amount, other: Amount) -> Amount:
    return Amount(_clamp(one.cost + other.cost), _clamp(one.tokens + other.tokens))


def _money(cost: int | None) -> float | None:
    return None if cost is None else cost / MILLION


def _pair(cost: int, tokens: int) -> FrozenList:
    """As it is read back."""
    return FrozenList([_clamp(cost), _clamp(tokens)])


def _clamp(sum: int) -> int:
    """A sum of many large amounts stays a number that every store can keep."""
    return min(sum, AMOUNT_MAX)


def _check_amount(name: str, value: Any, kinds: tuple[type, ...], most: int = 2**53 - 1) -> None:
    if value is not None and not (type(value) in kinds and 0 <= value <= most):
        wanted = f"a number from 0 to {most:,}"
        raise InvalidEvent(f"the {name} of a budget is {wanted}, not {described(value)}")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**53
