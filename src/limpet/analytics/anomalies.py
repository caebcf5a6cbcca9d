"""Anomalies: sessions whose metrics lie far from those before them.

Each metric of a session is compared with its rolling baseline (mean and standard deviation, or
median and MAD), and all of them together by their Mahalanobis distance. What was found anomalous
does not join the baseline, so that a shift keeps being found: one alert tells since when, and names
the sessions. Times, costs and counts are compared by their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet.analytics.metrics import MILLION, SessionFold
from limpet.analytics.statistics import (
    Baseline,
    baseline,
    beyond_chance,
    bound_for,
    distance_for,
    family_rate,
    mahalanobis,
    shrunk,
)
from limpet.model import Key, to_time

K: Final = 3.0
WARM_UP: Final = 30  # sessions before the first one is judged
WINDOW: Final = 200  # sessions that a baseline is made of, at most
SESSIONS: Final = 1_000  # newest sessions that are looked at
_SESSIONS_NAMED: Final = 20
Bound = Callable[[int], float]  # deviations that are allowed after so many sessions
ALL_METRICS: Final = "all"  # the metric of an alert about all of them together

# How each is read from a fold, if it is a logarithm, and the least spread that counts as one.
_METRICS: Final[Mapping[str, tuple[Callable[[SessionFold], float | None], bool, float]]] = {
    "mean_turn_latency": (
        lambda f: f.latency_us / f.turns / MILLION if f.turns else None,
        True,
        0.05,
    ),
    "time_to_first_response": (
        lambda f: (f.responded_us - f.created_us) / MILLION if f.responded_us else None,
        True,
        0.05,
    ),
    "error_rate": (lambda f: f.errors / max(f.attempts, 1), False, 0.02),
    "cost_usd": (lambda f: f.cost / MILLION, True, 0.01),
    "turns": (lambda f: float(f.turns), True, 0.05),
    "tool_invocations": (lambda f: float(f.tool_invocations), True, 0.05),
    "tokens": (lambda f: float(f.tokens_input + f.tokens_output), True, 0.05),
    "repair_cycles": (lambda f: float(f.repairs), True, 0.05),
}
METRICS: Final = tuple(_METRICS)


class Alert(msgspec.Struct, frozen=True):
    """A metric that exceeded its bounds: by how much, since when, and in which sessions."""

    metric: str
    value: float  # of the worst session; for all metrics together, the distance
    expected: float  # the middle of the baseline; for all together, the distance allowed
    deviations: float  # how many spreads away the worst lies; for all together, the distance
    since: datetime  # when the first of these sessions was created
    until: datetime  # when the last of them was last seen
    sessions: tuple[Key, ...]  # at most 20, the worst first
    count: int  # of all of them
    why: str  # in words


class Anomalies(msgspec.Struct, frozen=True):
    """The alerts, and the probability that one of them is false if all sessions are alike.

    `false_alarm_rate` is family-wise: the chance of at least one false alert in all `tests`,
    assuming that the metrics are normally distributed (log-normally, for those with logarithms).
    """

    alerts: tuple[Alert, ...]
    sessions: int
    tests: int
    k: float
    distance: float | None
    false_alarm_rate: float
    warm_up: int

    def __iter__(self) -> Iterator[Alert]:
        return iter(self.alerts)

    def __len__(self) -> int:
        return len(self.alerts)

    @property
    def plain(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def anomalies_in(
    folds: Sequence[SessionFold],
    *,
    metrics: Sequence[str] = METRICS,
    k: float = K,
    robust: bool = False,
    warm_up: int = WARM_UP,
    window: int = WINDOW,
    rate: float | None = None,
) -> Anomalies:
    """Return the alerts of sessions in this order. With a `rate`, the bounds are set so that the
    whole family raises a false alarm at most at that rate; else they are k spreads."""
    values = np.array([[_value(fold, name) for name in metrics] for fold in folds], dtype=float)
    values = values.reshape(len(folds), len(metrics))
    judged = max(0, len(folds) - warm_up)
    joint = len(metrics) > 1 and warm_up > len(metrics) + 1
    tests = judged * (len(metrics) + joint)
    chance = beyond_chance(k, warm_up)
    if rate is not None and tests:
        chance = rate / tests
        k = bound_for(chance, window)
    bound = (lambda n: k) if rate is None else (lambda n: bound_for(chance, n))
    alerts: list[Alert] = []
    for index, name in enumerate(metrics):
        off = _one(values[:, index], name, bound, warm_up, window, robust=robust)
        alerts += _alerts(folds, name, off)
    limit = None
    if joint and judged:
        limit = distance_for(chance, len(metrics), window)
        floors = np.array([_METRICS[name][2] for name in metrics])
        alerts += _joint_alerts(folds, metrics, values, floors, chance, warm_up, window)
    alerts.sort(key=lambda alert: -alert.deviations)
    return Anomalies(
        tuple(alerts), len(folds), tests, k, limit, family_rate(chance, tests), warm_up
    )


def _value(fold: SessionFold, name: str) -> float:
    read, is_log, _ = _METRICS[name]
    value = read(fold)
    if value is None:
        return math.nan
    return math.log(value + _unit(name)) if is_log else value


def _unit(name: str) -> float:
    """Return the offset added before a logarithm: a millisecond, a tenth of a cent, or one."""
    return 0.001 if name in ("mean_turn_latency", "time_to_first_response", "cost_usd") else 1.0


def _shown(name: str, value: float) -> float:
    """A value as people read it."""
    if not _METRICS[name][1]:
        return value
    plain, unit = math.exp(min(value, 700)) - _unit(name), _unit(name)
    return plain if plain > unit * 1e-9 else 0.0  # a logarithm does not give zero back


def _one(
    series: NDArray[np.float64], name: str, bound: Bound, warm_up: int, window: int, *, robust: bool
) -> list[tuple[int, float, Baseline]]:
    """Return index, deviations and baseline of each value that lies beyond k spreads."""
    calm: list[float] = []
    outliers = []
    for index, value in enumerate(series):
        if math.isnan(value):
            continue
        if index >= warm_up and len(calm) >= warm_up:
            before = np.array(calm[-window:])
            base = baseline(before, robust=robust, floor=_METRICS[name][2])
            off = (value - base.middle) / base.spread
            if abs(off) > bound(len(before)):
                outliers.append((index, float(off), base))
                continue
        calm.append(float(value))
    return outliers


def _alerts(
    folds: Sequence[SessionFold], name: str, outliers: list[tuple[int, float, Baseline]]
) -> list[Alert]:
    """Return one alert for what went off upwards, and one for downwards."""
    alerts = []
    for side in (1, -1):
        off = [each for each in outliers if each[1] * side > 0]
        if not off:
            continue
        worst = max(off, key=lambda each: abs(each[1]))
        index, deviations, base = worst
        expected, value = _shown(name, base.middle), _shown(name, _value(folds[index], name))
        order = sorted(off, key=lambda each: -abs(each[1]))
        why = (
            f"{name.replace('_', ' ')} was {value:,.3g} where {expected:,.3g} was expected, "
            f"{abs(deviations):.1f} deviations {'above' if side > 0 else 'below'}"
        )
        alerts.append(
            _alert(folds, name, value, expected, deviations, [each[0] for each in order], why)
        )
    return alerts


def _joint_alerts(
    folds: Sequence[SessionFold],
    metrics: Sequence[str],
    values: NDArray[np.float64],
    floors: NDArray[np.float64],
    chance: float,
    warm_up: int,
    window: int,
) -> list[Alert]:
    calm: list[int] = []
    outliers: list[tuple[int, float, float, str]] = []
    for index, value in enumerate(values):
        if np.isnan(value).any():
            continue
        if index >= warm_up and len(calm) >= warm_up:
            before = values[calm[-window:]]
            mean, covariance = shrunk(before, floors)
            far = mahalanobis(value, mean, covariance)
            limit = distance_for(chance, len(metrics), len(before))
            if far > limit:
                apart = np.abs(value - mean) / np.sqrt(np.diag(covariance))
                outliers.append((index, far, limit, metrics[int(np.argmax(apart))]))
                continue
        calm.append(index)
    if not outliers:
        return []
    order = sorted(outliers, key=lambda each: -each[1])
    _, far, limit, name = order[0]
    why = (
        f"the metrics together were {far:.1f} away where {limit:.1f} is allowed, most of all "
        f"{name.replace('_', ' ')}"
    )
    return [_alert(folds, ALL_METRICS, far, limit, far, [each[0] for each in order], why)]


def _alert(
    folds: Sequence[SessionFold],
    name: str,
    value: float,
    expected: float,
    deviations: float,
    order: list[int],
    why: str,
) -> Alert:
    off = [folds[index] for index in order]
    return Alert(
        metric=name,
        value=value,
        expected=expected,
        deviations=abs(deviations),
        since=to_time(min([fold.created_us for fold in off])),
        until=to_time(max([fold.updated_us for fold in off])),
        sessions=tuple([fold.key for fold in off[:_SESSIONS_NAMED]]),
        count=len(off),
        why=why,
    )
