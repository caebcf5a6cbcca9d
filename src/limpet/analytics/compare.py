"""Comparisons: two groups of sessions, metric by metric, with intervals; and a falling mean.

Both read what the roll-ups and the folds have; nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np

from limpet.analytics.histogram import value_of
from limpet.analytics.metrics import MILLION, SessionFold
from limpet.analytics.rollup import CellTally
from limpet.analytics.statistics import Interval, Moments, drop_evidence, moments, newcombe, welch
from limpet.model import Key, to_time

CONFIDENCE: Final = 0.95
FALSE_ALARM_RATE: Final = 0.05
_BASELINE_MIN: Final = 30
_SESSIONS_NAMED: Final = 20


class MetricDifference(msgspec.Struct, frozen=True):
    """One metric of two groups, and the confidence interval of b - a; None if there is too little
    data."""

    metric: str
    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        """True if the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Comparison(msgspec.Struct, frozen=True):
    """Two groups, metric by metric: `comparison["satisfaction"]`."""

    a: str
    b: str
    sessions_a: int
    sessions_b: int
    confidence: float
    metrics: tuple[MetricDifference, ...]

    def __iter__(self) -> Iterator[MetricDifference]:
        return iter(self.metrics)

    def __getitem__(self, metric: str) -> MetricDifference:
        for each in self.metrics:
            if each.metric == metric:
                return each
        raise KeyError(metric)

    @property
    def plain(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def compared(a: str, b: str, of_a: CellTally, of_b: CellTally, confidence: float) -> Comparison:
    """Return the differences of two groups. Means of satisfaction, latency and cost have Welch's
    interval, rates have Newcombe's."""
    rows = [
        _means("satisfaction", of_a, of_b, _satisfaction, confidence),
        _rates("completion_rate", of_a, of_b, "completed", ("ended",), confidence),
        _rates("error_rate", of_a, of_b, "errors", ("tool_invocations", "generations"), confidence),
        _rates("verification_pass_rate", of_a, of_b, "passes", ("evaluations",), confidence),
        _rates("hallucination_rate", of_a, of_b, "hallucinated", ("reports",), confidence),
        _means("turn_latency", of_a, of_b, _seconds, confidence),
        _means("cost", of_a, of_b, _seconds, confidence),
    ]
    return Comparison(a, b, of_a["sessions"], of_b["sessions"], confidence, tuple(rows))


def _satisfaction(bin: int) -> float:
    return (bin + 0.5) / 100 if bin < 100 else 1.0


def _seconds(bin: int) -> float:
    """Microseconds as seconds, or millionths as a cost."""
    return value_of(bin) / MILLION


def _means(
    name: str, a: CellTally, b: CellTally, value: Callable[[int], float], confidence: float
) -> MetricDifference:
    of_a, of_b = (moments(each.histogram(name), value) for each in (a, b))
    return _row(name, _mean(of_a), _mean(of_b), welch(of_a, of_b, confidence))


def _mean(of: Moments) -> float | None:
    return of.mean if of.n else None


def _rates(
    name: str, a: CellTally, b: CellTally, part: str, of: tuple[str, ...], confidence: float
) -> MetricDifference:
    pairs = [(each[part], sum([each[one] for one in of])) for each in (a, b)]
    rates = [of and part / of for part, of in pairs]
    shown = [rate if pair[1] else None for rate, pair in zip(rates, pairs, strict=True)]
    fits = all([0 <= part <= of for part, of in pairs])
    interval = newcombe(pairs[0], pairs[1], confidence) if fits else None
    return _row(name, shown[0], shown[1], interval)


def _row(
    name: str, a: float | None, b: float | None, interval: Interval | None
) -> MetricDifference:
    known = (None, None, None) if interval is None else tuple(interval)
    return MetricDifference(name, a, b, *known)


# --- regression -----------------------------------------------------------------------------------


class Regression(msgspec.Struct, frozen=True):
    """The satisfaction of sessions in their order, tested for a fall after each of them."""

    fell: bool
    evidence: float  # the highest likelihood ratio; it fell where this passes 1 / rate
    rate: float  # of false alarms in one test, however often it is looked at
    baseline: float | None  # the mean before
    mean: float | None  # since then, or of all later sessions if it did not fall
    since: datetime | None  # when the first session of the fall began
    sessions: tuple[Key, ...]  # the worst of them

    @property
    def plain(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def sessions_in_test(sessions: int, *, baseline: int, limit: int) -> int:
    """Return how many of the newest sessions one test is about.

    A test begins at a fixed session and ends `limit` sessions later, when the next one has its
    baseline. A window that moves with every session would be a new test each time, and sooner or
    later one of them is a false alarm.
    """
    if sessions <= baseline:
        return sessions
    return baseline + (sessions - baseline - 1) % (limit - baseline) + 1


def regression_in(
    folds: Sequence[SessionFold], *, baseline: int, rate: float = FALSE_ALARM_RATE
) -> Regression:
    """Test the sessions after the first `baseline` ones, in order. With too few, nothing fell."""
    known = [fold for fold in folds if fold.satisfaction >= 0]
    values = np.array([fold.satisfaction / MILLION for fold in known])
    if len(known) <= baseline or baseline < _BASELINE_MIN:
        return Regression(False, 0.0, rate, None, None, None, ())
    before, after = values[:baseline], values[baseline:]
    evidence = drop_evidence(before, after)
    mean = float(np.mean(before))
    if float(np.max(evidence)) < 1 / rate:
        return Regression(
            False, float(np.max(evidence)), rate, mean, float(np.mean(after)), None, ()
        )
    since = _change(mean, after)
    fallen = sorted(known[baseline + since :], key=lambda fold: fold.satisfaction)
    return Regression(
        fell=True,
        evidence=float(np.max(evidence)),
        rate=rate,
        baseline=mean,
        mean=float(np.mean(after[since:])),
        since=to_time(known[baseline + since].created_us),  # others may be old, and seen again
        sessions=tuple([fold.key for fold in fallen[:_SESSIONS_NAMED]]),
    )


def _change(mean: float, after: Any) -> int:
    """Return where the fall most likely began: the place that explains the rest best."""
    below = np.cumsum((mean - after)[::-1])[::-1]
    lengths = np.arange(len(after), 0, -1)
    return int(np.argmax(np.where(below > 0, below**2 / lengths, -math.inf)))
