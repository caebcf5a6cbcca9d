"""Rounds: contestants take turns, so that a noisy minute of the machine hits all of them.

A contestant is a function from an empty directory to named numbers. Every round starts with
another contestant; what counts is the median over the rounds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from bench.peer import Peer
from bench.place import Place
from tests.support.postgres import Server

Numbers: TypeAlias = dict[str, float]
Contestant: TypeAlias = Callable[[Path], Numbers]


WARM_CALLS: Final = 10  # before the clock counts: statements get prepared, pages cached


async def milliseconds(call: Callable[[], Awaitable[Any]], calls: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(WARM_CALLS + calls):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)
    return median(times[WARM_CALLS:]) * 1e3


def milliseconds_plain(call: Callable[[], Any], calls: int) -> float:
    """The same without a loop."""
    times = []
    for _ in range(WARM_CALLS + calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times[WARM_CALLS:]) * 1e3


@dataclass
class Readings:
    """Every number of every round: contestant → name → one value a round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, contestant: str, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self.values.setdefault(contestant, {}).setdefault(name, []).append(value)

    def of(self, contestant: str, name: str) -> list[float]:
        return self.values.get(contestant, {}).get(name, [])

    def median(self, contestant: str, name: str) -> float | None:
        found = self.of(contestant, name)
        return median(found) if found else None


@dataclass(frozen=True)
class Run:
    """What a workload is given: where to write, whom to compare with, how long it may take."""

    place: Place
    peer: Peer | None
    quick: bool
    rounds: int
    say: Callable[[str], None]
    server: Server | None = None

    @property
    def postgres(self) -> Server:
        """The server of this run, for the workloads that need one."""
        assert self.server is not None
        return self.server

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def alternate(self, contestants: Mapping[str, Contestant]) -> Readings:
        """Let the contestants take turns, each time in an empty directory."""
        readings = Readings()
        order = list(contestants)
        for number in range(self.rounds):
            self.say(f"round {number + 1} of {self.rounds}")
            for name in order:
                gc.collect()
                with self.place.empty() as path:
                    readings.add(name, contestants[name](path))
            order.append(order.pop(0))
        return readings

    def alternate_in(self, path: Path, contestants: Mapping[str, Contestant]) -> Readings:
        """The same for contestants that only read what was built in `path` before."""
        readings = Readings()
        order = list(contestants)
        for number in range(self.rounds):
            self.say(f"round {number + 1} of {self.rounds}")
            for name in order:
                gc.collect()
                readings.add(name, contestants[name](path))
            order.append(order.pop(0))
        return readings

    def with_peer(self, contestants: dict[str, Contestant], job: str, **args: Any) -> None:
        """Add the neighbour, if it could be installed, running `job` in its own process."""
        peer = self.peer
        if peer is not None:
            contestants["peer"] = lambda path: peer.run(job, path=str(path), **args)
