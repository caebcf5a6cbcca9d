"""The choice of a tier: durable enough, then the cheapest; and the prices behind it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import InvalidInput
from limpet.store.tiers import EVENT_BYTES, PRICES, TIERS, compaction_writes, cost_of

MONTH = timedelta(days=30)
LOAD: dict[str, Any] = {"writes": 1_000, "reads": 3_000, "state_bytes": 5_000, "retention": MONTH}
FREE = limpet.Price(write=0.0, read=0.0, byte_second=0.0)


@pytest.mark.parametrize(
    ("criticality", "tier"),
    [("ephemeral", "L0"), ("standard", "L1"), ("business", "L2"), ("cross_region", "L3")],
)
@pytest.mark.parametrize("writes", [0, 1, 1e9])
@pytest.mark.parametrize("state_bytes", [0, 1e9])
def test_criticality_decides_at_the_stated_prices(
    criticality: Any, tier: str, writes: float, state_bytes: float
) -> None:
    load = LOAD | {"writes": writes, "state_bytes": state_bytes}
    choice = limpet.choose_tier(criticality, **(load | {"reads": 1}))
    assert choice.tier == tier
    assert [each.tier for each in choice.considered] == list(TIERS)
    assert choice.url_form.startswith(("memory://", "files:///", "postgresql://"))


def test_a_more_durable_tier_is_taken_where_it_is_cheaper() -> None:
    """Less durable ones never are, whatever they cost."""
    cheap = limpet.choose_tier("standard", **LOAD, prices={"L2": FREE, "L0": FREE})
    assert (cheap.tier, cheap.cost) == ("L2", 0.0)
    least = {each.tier: each.durable for each in cheap.considered}
    assert least == {"L0": False, "L1": True, "L2": True, "L3": True}


def test_a_tier_promises_only_what_was_tested() -> None:
    """The page of clusters says that nobody has tried servers in different regions."""
    page = (Path(__file__).parents[3] / "docs/cluster.md").read_text()
    _, _, untested = page.partition("Not tested: ")
    assert "in different regions" in untested.partition("\n\n")[0]
    survives = limpet.choose_tier("cross_region", **LOAD).considered[3].survives
    assert "servers in different regions are not tested" in survives
    assert "region" not in survives.partition("(")[0]


def test_the_cost_is_writes_reads_and_bytes_over_time() -> None:
    price = limpet.Price(write=2.0, read=3.0, byte_second=5.0)
    assert cost_of(price, 7, 11, 13, 17) == 2 * 7 + 3 * 11 + 5 * 13 * 17
    load = LOAD | {"retention": timedelta(seconds=17)}
    chosen = limpet.choose_tier("cross_region", **load, prices={"L3": price})
    assert chosen.cost == cost_of(price, 1_000, 3_000, 5_000, 17)


def test_compaction_costs_the_least_at_the_number_it_says() -> None:
    """Compared with what any other number would cost, by the definition of the cost."""
    price, writes, state, seconds = PRICES["L2"], 10_000.0, 3_000.0, MONTH.total_seconds()
    best = compaction_writes(price, writes, state, seconds)
    assert best is not None

    def costs(every: int) -> float:
        held = price.byte_second * EVENT_BYTES * every / 2 * seconds
        return held + writes / every * (price.write + price.read) * state / EVENT_BYTES

    assert min(range(1, 2_000), key=costs) == pytest.approx(best, abs=1)
    choice = limpet.choose_tier("business", **(LOAD | {"writes": writes, "state_bytes": state}))
    assert choice.compact_after_writes == best
    assert choice.compact_every is not None
    assert choice.compact_every.total_seconds() == pytest.approx(seconds * best / writes)


def test_where_bytes_cost_nothing_compacting_never_pays() -> None:
    assert limpet.choose_tier("ephemeral", **LOAD).compact_every is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"criticality": "vital"},
        {"criticality": []},
        {"writes": -1},
        {"writes": 10**400},
        {"writes": "7"},
        {"reads": float("nan")},
        {"state_bytes": True},
        {"retention": timedelta(0)},
        {"retention": 30},
        {"prices": {"L9": FREE}},
        {"prices": {"L1": 3}},
        {"prices": "L1"},
        {"prices": [FREE]},
        {"prices": {"L1": limpet.Price(write=-1.0, read=0.0, byte_second=0.0)}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        limpet.choose_tier(**({"criticality": "standard"} | LOAD | wrong))
