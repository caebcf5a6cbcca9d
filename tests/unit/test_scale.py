"""The model of capacity: the simulation agrees with it, and moving families evens the load out."""

from __future__ import annotations

import pytest

from bench.scale import (
    CONSTANTS,
    WITHIN,
    compare,
    drained,
    measured,
    needed,
    rebalance,
    simulate,
    zipf,
)


@pytest.mark.parametrize(("clusters", "skew"), [(4, 0.8), (16, 0.8), (64, 1.0)])
def test_the_simulation_agrees_with_the_model(clusters: int, skew: float) -> None:
    for what, predicted, found in compare(clusters, skew):
        assert predicted == pytest.approx(found, rel=WITHIN), what


def test_rebalancing_evens_out_what_can_be_moved() -> None:
    found = simulate(zipf(5_000, 0.8), 16, rate=1.0)
    assert found.unevenness > found.rebalanced
    homes = [[1.0] * 30, [1.0] * 10, [1.0] * 20]
    assert rebalance(homes, target=1.0) == (10, 1.0)
    # One that is larger than a cluster's share stays: it would only be too much elsewhere.
    assert rebalance([[9.0], [1.0]], target=1.1) == (0, 1.8)


def test_more_sessions_need_more_clusters() -> None:
    found = [needed(10.0**power, writes_a_day=100, events=100) for power in range(5, 10)]
    assert [each.clusters for each in found] == [1, 1, 3, 30, 294]
    used = found[-1].writes / found[-1].clusters
    assert used <= CONSTANTS.writes * CONSTANTS.quorum * CONSTANTS.headroom
    assert drained(10, 50, 100) == 10


async def test_bytes_grow_as_the_model_says() -> None:
    found = {each.what: each for each in await measured(100, 10)}
    assert found["bytes on disk"].off <= WITHIN
    each = CONSTANTS.session_bytes + 10 * CONSTANTS.event_bytes
    assert found["bytes on disk"].found == pytest.approx(400 * each, rel=WITHIN)
