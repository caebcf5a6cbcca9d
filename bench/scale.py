"""Beyond one primary: a model of capacity, and a simulation that checks what it predicts.

    .venv/bin/python -m bench.scale            # the table of docs/scale.md, and both checks

Families, the sessions of one user of an app, are spread over clusters by a hash of their name.
Some write far more than others (Zipf). The model predicts, from a few constants, how many clusters
a load needs, how uneven they are, and what failovers cost. The simulation draws families, places
them one by one, moves the heaviest ones and lets primaries fail; where the model and the simulation
differ by more than a fifth, the run ends with 1. `measured` checks against a real store what can be
measured on one machine: bytes, and the rate of a copy.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

import limpet

WITHIN: Final = 0.20
REBALANCED: Final = 1.1  # the busiest cluster over the mean, where families are moved


class Constants(msgspec.Struct, frozen=True):
    """Measured on this project's machine of two cores: docs/benchmarks.md names each row."""

    writes: float = 13_127.0  # a second, of one primary without a quorum (P2)
    quorum: float = 0.5  # what is left of that with one: the least that is accepted
    headroom: float = 0.6  # of its capacity a primary is planned to use, so that backlogs drain
    session_bytes: float = 1_500.0  # of a session without events: head, indexes, a snapshot
    event_bytes: float = 760.0  # of an event of about 500 bytes, with its indexes
    copied: float = 34_600.0  # events a second, in short sessions (M1)
    failover_seconds: float = 10.0  # until a standby is promoted; the store then needs < 2 s
    failovers_a_year: float = 12.0  # of one primary: losses and planned changes


CONSTANTS: Final = Constants()


class Capacity(msgspec.Struct, frozen=True):
    """What a number of sessions needs."""

    sessions: float
    writes: float  # a second
    clusters: int
    bytes: float  # of one copy; a cluster has R
    unavailable: float  # the part of a year that a session waits for a failover
    drain_seconds: float  # after a failover, until its backlog is written


def needed(
    sessions: float, *, writes_a_day: float, events: float, of: Constants = CONSTANTS
) -> Capacity:
    """The model: how many clusters, how many bytes, how long one waits."""
    rate = sessions * writes_a_day / 86_400
    one = of.writes * of.quorum
    clusters = max(1, math.ceil(rate / (one * of.headroom)))
    held = sessions * (of.session_bytes + events * of.event_bytes)
    year = 365 * 86_400
    drain = drained(of.failover_seconds, rate / clusters, one)
    return Capacity(
        sessions,
        rate,
        clusters,
        held,
        of.failovers_a_year * of.failover_seconds / year,
        drain,
    )


def drained(outage: float, rate: float, capacity: float) -> float:
    """How long after an outage its backlog is gone: what came meanwhile, at what is left over."""
    return outage * rate / (capacity - rate)


def unevenness(weights: list[float], clusters: int) -> float:
    """Predict the load of the busiest cluster over the mean, for families placed by a hash.

    A cluster's load has the variance Σw²·(1/K)(1−1/K); the greatest of K normal values lies about
    √(2 ln K) deviations up, less the usual correction. One family alone may be more than that: it
    is the least that the busiest one carries, beside its share of the others.
    """
    total, largest = sum(weights), max(weights)
    if clusters == 1:
        return 1.0
    heavy = [w for w in weights if w > total / clusters / 10]  # placed one by one, below
    rest = [w for w in weights if w <= total / clusters / 10]
    spread = math.sqrt(sum([w * w for w in rest]) / clusters * (1 - 1 / clusters))
    root = math.sqrt(2 * math.log(clusters))
    up = root - (math.log(math.log(clusters)) + math.log(4 * math.pi)) / (2 * root)
    mean_rest = sum(rest) / clusters
    chance = random.Random(0)
    found = 0.0
    for _ in range(200):  # the few heavy ones decide: average over where they may fall
        loads = [0.0] * clusters
        for w in heavy:
            loads[chance.randrange(clusters)] += w
        found += max(max(loads) + mean_rest, mean_rest + up * spread)
    return max(found / 200, largest) / (total / clusters)


class Simulated(msgspec.Struct, frozen=True):
    """What became of the families."""

    unevenness: float  # the busiest cluster over the mean, as placed
    rebalanced: float  # after moving
    moved: int  # families
    unavailable: float
    drain_seconds: float


def zipf(families: int, skew: float) -> list[float]:
    """Shares of the load, the first family's the largest; they sum to one."""
    found = [1 / (place + 1) ** skew for place in range(families)]
    total = sum(found)
    return [each / total for each in found]


def simulate(
    weights: list[float],
    clusters: int,
    *,
    rate: float,
    seed: int = 1,
    years: float = 20.0,
    of: Constants = CONSTANTS,
) -> Simulated:
    """Place, rebalance, and let primaries fail for some years."""
    chance = random.Random(seed)
    homes: list[list[float]] = [[] for _ in range(clusters)]
    for weight in weights:
        homes[chance.randrange(clusters)].append(weight)
    loads = [sum(each) for each in homes]
    mean = sum(loads) / clusters
    before = max(loads) / mean
    moved, after = rebalance(homes, target=REBALANCED)
    # Failures: each primary fails at random times; writes wait, and are written when it is back.
    outages, waited, drains = 0, 0.0, 0.0
    share = rate / clusters
    one = of.writes * of.quorum
    for _ in range(clusters):
        at = 0.0
        while True:
            at += chance.expovariate(of.failovers_a_year)
            if at > years:
                break
            outage = of.failover_seconds * chance.uniform(0.5, 1.5)
            backlog, seconds = outage * share, 0.0
            while backlog > 0.5:  # in steps: new writes come while the backlog is written
                step = backlog / one
                seconds += step
                backlog = step * share
            outages, waited, drains = outages + 1, waited + outage, drains + seconds
    unavailable = waited / clusters / (years * 365 * 86_400)
    return Simulated(before, after, moved, unavailable, drains / max(1, outages))


def rebalance(homes: list[list[float]], *, target: float) -> tuple[int, float]:
    """Move families from the busiest cluster to the idlest until it is below target × mean, the
    largest that fits first; how many were moved, and where that leaves the busiest."""
    loads = [sum(each) for each in homes]
    mean, moved = sum(loads) / len(loads), 0
    for each in homes:
        each.sort()
    while max(loads) > target * mean:
        busy, idle = loads.index(max(loads)), loads.index(min(loads))
        room = (loads[busy] - loads[idle]) / 2
        fitting = [place for place, weight in enumerate(homes[busy]) if weight <= room]
        if not fitting:  # one family is more than a cluster's share: it has to be divided
            break
        weight = homes[busy].pop(fitting[-1])
        bisect.insort(homes[idle], weight)
        loads[busy] -= weight
        loads[idle] += weight
        moved += 1
    return moved, max(loads) / mean


# --- what can be measured here -------------------------------------------------------------------


class Measured(msgspec.Struct, frozen=True):
    """A prediction from a small store, and what a store four times as large came to."""

    what: str
    predicted: float
    found: float

    @property
    def off(self) -> float:
        return abs(self.predicted - self.found) / self.found


_COPIES = 5


async def measured(sessions: int = 200, events: int = 10) -> list[Measured]:
    """Bytes and the processor time of a copy, of a store and of one four times as large."""
    small = await _one(sessions, events)
    large = await _one(4 * sessions, events)
    return [
        Measured("bytes on disk", 4 * small[0], large[0]),
        Measured("processor seconds of a copy", 4 * small[1], large[1]),
    ]


async def _one(sessions: int, events: int) -> tuple[float, float]:
    text = "x" * 400
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "one.db"
        async with limpet.open(f"sqlite:///{file}") as lp:
            for number in range(sessions):
                s = await lp.create("scale", f"user{number % 50}", f"{number}", state={"n": 0})
                for _ in range(events):
                    s.append_soon("agent.said", {"text": text}, actor="agent:a", inc={"n": 1})
            await lp.flush()
            # Of the process, and the least of several: others who use the machine do not count.
            seconds = min([await _copied(lp) for _ in range(_COPIES)])
        return float(file.stat().st_size), seconds


async def _copied(lp: limpet.Limpet) -> float:
    async with limpet.open("memory://") as other:
        began = time.process_time()
        await lp.copy(app="scale", to=other)
        return time.process_time() - began


# --- the table -----------------------------------------------------------------------------------


def report() -> bool:
    """Print the table, and the predictions beside the simulation. False if one is off."""
    say = sys.stdout.write
    say("sessions  writes/s  clusters  one copy   drained in  waiting\n")
    for power in range(5, 10):
        one = needed(10.0**power, writes_a_day=100, events=100)
        say(
            f"10^{power:<6} {one.writes:>9,.0f} {one.clusters:>9,} {one.bytes / 1e12:>7.2f} TB "
            f"{one.drain_seconds:>9.1f} s {one.unavailable:>9.1e}\n"
        )
    well = True
    for clusters, skew in ((4, 0.8), (16, 0.8), (64, 1.0), (295, 1.0)):
        for what, predicted, found in compare(clusters, skew):
            off = abs(predicted - found) / found
            well &= off <= WITHIN
            mark = "ok" if off <= WITHIN else "OFF"
            say(f"{mark:3} K={clusters:<4} skew={skew} {what}: {predicted:.4g}, {found:.4g}\n")
    return well


def compare(clusters: int, skew: float) -> list[tuple[str, float, float]]:
    """What the model predicts and the simulation finds, the mean of some seeds."""
    weights, of = zipf(20_000, skew), Constants()
    rate = clusters * of.writes * of.quorum * of.headroom
    runs = [simulate(weights, clusters, rate=rate, seed=seed) for seed in range(10)]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    outage = of.failovers_a_year * of.failover_seconds / (365 * 86_400)
    drain = drained(of.failover_seconds, rate / clusters, of.writes * of.quorum)
    return [
        ("unevenness", unevenness(weights, clusters), mean([each.unevenness for each in runs])),
        ("waiting", outage, mean([each.unavailable for each in runs])),
        ("drain seconds", drain, mean([each.drain_seconds for each in runs])),
    ]


def main() -> int:
    well = report()
    for each in asyncio.run(measured()):
        well &= each.off <= WITHIN
        sys.stdout.write(
            f"measured {each.what}: predicted {each.predicted:,.3g}, found {each.found:,.3g} "
            f"({each.off:.0%} off)\n"
        )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
