"""Tiers: which kind of store a family of sessions belongs in, by what its loss would cost.

A tier is chosen in two steps. Criticality says how much durability is needed; among the tiers that
give it, the cheapest is taken. The cost of a session over its retention T is

    write · N_w  +  read · N_r  +  byte_second · S · T

with N_w writes, N_r reads and a state of S bytes. The same prices say how often a log is worth
compacting: between two compactions the log grows, and its bytes are paid for every second; each
compaction reads the log and writes the state once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.errors import InvalidInput
from limpet.model import described

Tier: TypeAlias = Literal["L0", "L1", "L2", "L3"]
Criticality: TypeAlias = Literal["ephemeral", "standard", "business", "cross_region"]

TIERS: Final[tuple[Tier, ...]] = get_args(Tier)  # each as durable as those before it, and more
URL_FORMS: Final[dict[Tier, str]] = {
    "L0": "memory://",
    "L1": "files:///directory",
    "L2": "postgresql://host/database",
    "L3": "postgresql://host1,host2,host3/database?write_quorum=2&replicas=3",
}
SURVIVES: Final[dict[Tier, str]] = {
    "L0": "nothing: it ends with the process",
    "L1": "the end of the process, and a power cut",
    "L2": "the loss of the machine that the process runs on",
    # Only that which tests/fault/test_postgres_cluster.py shows.
    "L3": "the loss of any one server with every acknowledged commit (tested with three servers on "
    "one machine; servers in different regions are not tested)",
}
REQUIRED: Final[dict[Criticality, Tier]] = {
    "ephemeral": "L0",
    "standard": "L1",
    "business": "L2",
    "cross_region": "L3",
}
_AMOUNT_MAX: Final = 1e30  # products of three stay finite
EVENT_BYTES: Final = 600  # on disk, of an event of about 500 bytes: W6 of docs/benchmarks.md


class Price(msgspec.Struct, frozen=True):
    """A tier's prices, in any currency: for one write, one read, and a byte for a second."""

    write: float
    read: float
    byte_second: float


_MONTH: Final = 30 * 86_400.0
_GB: Final = 1e9
# In US dollars: list prices of public clouds, rounded, as of 2026. They are meant to be replaced.
# A core-second costs 1.2e-5; a write takes about 30 µs of one on a file (W2), 100 µs on a server
# (P2), and three times that where three servers record it; a read about a third of a write.
# Storage a month: the memory of a process that runs anyway is not paid again, a local disk 0.08/GB,
# a replicated volume with backups 0.20/GB, three of them 0.60/GB.
PRICES: Final[dict[Tier, Price]] = {
    "L0": Price(write=6e-11, read=2e-11, byte_second=0.0),
    "L1": Price(write=3.6e-10, read=1.2e-10, byte_second=0.08 / _GB / _MONTH),
    "L2": Price(write=1.2e-9, read=4e-10, byte_second=0.20 / _GB / _MONTH),
    "L3": Price(write=3.6e-9, read=4e-10, byte_second=0.60 / _GB / _MONTH),
}


class TierCost(msgspec.Struct, frozen=True):
    """The cost of one tier, and whether it is durable enough."""

    tier: Tier
    cost: float
    durable: bool  # as durable as required, or more
    url_form: str
    survives: str


class Choice(msgspec.Struct, frozen=True):
    """The chosen tier, the form of its URL, its cost over the retention, and all tiers compared."""

    tier: Tier
    url_form: str
    cost: float
    considered: tuple[TierCost, ...]
    # The writes and the time between two compactions of a session's log that cost the least.
    compact_after_writes: int | None = None  # None: compacting never pays
    compact_every: timedelta | None = None

    def __str__(self) -> str:
        return f"{self.tier}: {self.url_form}, {self.cost:.3g} for a session over its retention"


def choose_tier(
    criticality: Criticality = "standard",
    *,
    writes: float,
    reads: float,
    state_bytes: float,
    retention: timedelta,
    prices: Mapping[str, Price] | None = None,
) -> Choice:
    """Return the cheapest tier that is durable enough for what would be lost.

    `writes` and `reads` are those of one session over its whole `retention`, `state_bytes` what it
    keeps. `prices` replaces the prices of the tiers that it names ("L0" to "L3"). Raises
    InvalidInput.
    """
    if not isinstance(criticality, str) or criticality not in REQUIRED:
        known = ", ".join(REQUIRED)
        raise InvalidInput(f"criticality is one of {known}, not {described(criticality)}.")
    amounts = {"writes": writes, "reads": reads, "state_bytes": state_bytes}
    for name, value in amounts.items():
        _check_amount(name, value)
    if not isinstance(retention, timedelta) or retention <= timedelta(0):
        raise InvalidInput(
            f"retention is a timedelta longer than zero, not {described(retention)}."
        )
    paid = {**PRICES, **_checked(prices)}
    seconds, required = retention.total_seconds(), TIERS.index(REQUIRED[criticality])
    considered = tuple(
        [
            TierCost(
                tier,
                cost_of(paid[tier], writes, reads, state_bytes, seconds),
                place >= required,
                URL_FORMS[tier],
                SURVIVES[tier],
            )
            for place, tier in enumerate(TIERS)
        ]
    )
    # Of two that cost the same, the plainer one.
    best = min([each for each in considered if each.durable], key=lambda each: each.cost)
    every = compaction_writes(paid[best.tier], writes, state_bytes, seconds)
    pause = None if every is None else timedelta(seconds=seconds * every / writes)
    return Choice(best.tier, best.url_form, best.cost, considered, every, pause)


def cost_of(price: Price, writes: float, reads: float, state_bytes: float, seconds: float) -> float:
    """The cost of one session over its retention."""
    held = price.byte_second * state_bytes * seconds
    return price.write * writes + price.read * reads + held


def compaction_writes(
    price: Price, writes: float, state_bytes: float, seconds: float
) -> int | None:
    """Return after how many writes compacting a log costs the least; None if it never pays.

    With n writes between two compactions the log holds n/2 events on average, and a second costs
    byte_second · EVENT_BYTES · n/2 for them, and (writes/seconds)/n · K for compactions, where K
    writes the state and reads it. That is least at n = √(2 · K · writes/seconds / (byte_second ·
    EVENT_BYTES)).
    """
    if not writes or not price.byte_second:
        return None
    one = (price.write + price.read) * max(1.0, state_bytes / EVENT_BYTES)
    best = math.sqrt(2 * one * writes / seconds / (price.byte_second * EVENT_BYTES))
    every = max(1, round(best))
    return every if every < writes else None


def _check_amount(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= _AMOUNT_MAX:  # type: ignore[operator]  # NaN is neither
        raise InvalidInput(
            f"{name} is a number from 0 to {_AMOUNT_MAX:.0e}, not {described(value)}."
        )


def _checked(prices: Mapping[str, Price] | None) -> Mapping[Tier, Price]:
    """Given prices, by tier. Raises InvalidInput."""
    checked: dict[Tier, Price] = {}
    given = {} if prices is None else prices
    for name, price in given.items() if isinstance(given, Mapping) else [("", given)]:
        if name not in TIERS or not isinstance(price, Price):
            raise InvalidInput(
                "prices maps L0, L1, L2 or L3 to limpet.Price(write=…, read=…, byte_second=…)."
            )
        for part in ("write", "read", "byte_second"):
            _check_amount(f"the {part} price of {name}", getattr(price, part))
        checked[name] = price
    return checked
