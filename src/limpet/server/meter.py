"""The server's counters, shown in the text format of Prometheus.

Labels are routes, methods and statuses, which are few. No user, key or session is named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """A histogram of how long something took."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The lines of one series: each bucket has what is in the smaller ones too."""
        total = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._seconds:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


class Meter:
    """The counts of one server process."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._latencies: dict[tuple[str, str], Histogram] = {}
        self._calls: dict[tuple[str, bool], int] = {}
        self._call_latencies: dict[str, Histogram] = {}
        self.at_work = 0  # requests, streams among them
        self.refused = 0  # entries

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        histogram = self._latencies.get((method, route))
        if histogram is None:
            histogram = self._latencies[method, route] = Histogram()
        histogram.add(seconds)

    def call(self, method: str, *, ok: bool, seconds: float) -> None:
        """Count a call of the store protocol."""
        self._calls[method, ok] = self._calls.get((method, ok), 0) + 1
        histogram = self._call_latencies.get(method)
        if histogram is None:
            histogram = self._call_latencies[method] = Histogram()
        histogram.add(seconds)

    def lines(self) -> Iterator[str]:
        """Everything that was counted here."""
        yield from head("limpet_requests_total", "counter", "Requests answered.")
        for (method, route, status), count in self._requests.items():
            labels = f'{_labels(method, route)},status="{status}"'
            yield f"limpet_requests_total{{{labels}}} {count}"
        yield from head("limpet_request_seconds", "histogram", "Time until a request was answered.")
        for (method, route), histogram in self._latencies.items():
            yield from histogram.lines("limpet_request_seconds", _labels(method, route))
        yield from head("limpet_calls_total", "counter", "Calls of the store protocol.")
        for (name, ok), count in self._calls.items():
            outcome = "ok" if ok else "error"
            yield f'limpet_calls_total{{method="{name}",outcome="{outcome}"}} {count}'
        yield from head("limpet_call_seconds", "histogram", "Time until a call was answered.")
        for name, histogram in self._call_latencies.items():
            yield from histogram.lines("limpet_call_seconds", f'method="{name}"')
        yield from sample(
            "limpet_requests_at_work", "gauge", "Requests being answered.", self.at_work
        )
        yield from sample(
            "limpet_entries_refused_total",
            "counter",
            "Requests that were not let in.",
            self.refused,
        )


def head(name: str, kind: str, help: str) -> tuple[str, str]:
    """The two lines before the samples of a metric."""
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"


def sample(name: str, kind: str, help: str, value: float) -> Iterable[str]:
    """A metric with one sample."""
    return (*head(name, kind, help), f"{name} {value}")


def _labels(method: str, route: str) -> str:
    return f'method="{method}",route="{route}"'
