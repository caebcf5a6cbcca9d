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
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet.analytics.metrics import MILLION, SessionFold
from limpet.analytics.statistics import (
    Baselines,
    JointBaselines,
    Vector,
    beyond_chance,
    bound_for,
    bounds_up_to,
    distance_for,
    distances,
    family_rate,
    rolling,
    rolling_jointly,
)
from limpet.model import Key, to_time

K: Final = 3.0
WARM_UP: Final = 30  # sessions before the first one is judged
WINDOW: Final = 200  # sessions that a baseline is made of, at most
SESSIONS: Final = 1_000  # newest sessions that are looked at
_SESSIONS_NAMED: Final = 20
_BLOCK, _BLOCK_MAX = 16, 256  # sessions that are looked at together
ALL_METRICS: Final = "all"  # the metric of an alert about all of them together

# For each metric: its reader, True for a logarithm, and the least spread that counts as one.
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
        """Return its JSON form."""
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
    single_tests, joint_tests = judged * len(metrics), judged * joint
    tests = single_tests + joint_tests
    single = beyond_chance(k, warm_up, robust=robust)
    together = beyond_chance(k, warm_up)
    if rate is not None and tests:
        single = together = rate / tests
        k = bound_for(single, window, robust=robust)
    alerts: list[Alert] = []
    limit = None
    if judged:
        bound = (lambda n: k) if rate is None else partial(bound_for, single, robust=robust)
        bounds = bounds_up_to(window, warm_up, bound)
        for index, name in enumerate(metrics):
            off = _one(values[:, index], name, bounds, warm_up, window, robust=robust)
            alerts += _alerts(folds, name, off)
    if joint_tests:
        limit = distance_for(together, len(metrics), window)
        bounds = bounds_up_to(window, warm_up, partial(distance_for, together, len(metrics)))
        alerts += _joint_alerts(folds, metrics, values, bounds, warm_up, window)
    alerts.sort(key=lambda alert: -alert.deviations)
    family = family_rate((single, single_tests), (together, joint_tests))
    return Anomalies(tuple(alerts), len(folds), tests, k, limit, family, warm_up)


def _value(fold: SessionFold, name: str) -> float:
    read, is_log, _ = _METRICS[name]
    value = read(fold)
    if value is None:
        return math.nan
    return math.log(value + _unit(name)) if is_log else value


def _unit(name: str) -> float:
    """Return the offset added before a logarithm: a millisecond, a tenth of a cent, or one."""
    return 0.001 if name in ("mean_turn_latency", "time_to_first_response", "cost_usd") else 1.0


def _words(name: str) -> str:
    return name.removesuffix("_usd").replace("_", " ")


def _shown(name: str, value: float) -> float:
    """A value as people read it."""
    if not _METRICS[name][1]:
        return value
    plain, unit = math.exp(min(value, 700)) - _unit(name), _unit(name)
    return plain if plain > unit * 1e-9 else 0.0  # a logarithm does not give zero back


class Outlier(NamedTuple):
    """A value beyond its bound: how far away, and what it was compared with."""

    place: int
    far: float
    middle: Vector
    spread: Vector
    bound: float


def _one(
    series: Vector, name: str, bounds: Vector, warm_up: int, window: int, *, robust: bool
) -> list[Outlier]:
    """Return the values that lie beyond their bound, and by how many spreads."""
    floor = _METRICS[name][2]

    def baselines(before: Vector, block: Vector) -> Baselines:
        return rolling(before, block, window=window, robust=robust, floor=floor)

    def far(values: Vector, middles: Vector, spreads: Vector) -> Vector:
        return (values - middles) / spreads

    known = np.flatnonzero(~np.isnan(series))
    return _outliers(series, known, bounds, warm_up, baselines, far)


def _outliers(
    values: Vector,
    known: NDArray[np.int64],
    bounds: Vector,
    warm_up: int,
    baselines: Callable[[Vector, Vector], Baselines | JointBaselines],
    far: Callable[[Vector, Vector, Vector], Vector],
) -> list[Outlier]:
    """Judge values in their order, those at `known`. What is off does not join the baseline: up to
    the first of them a block is judged by baselines that roll, and then by the one that stays."""
    at, size, off = warm_up, _BLOCK, []
    calm = values[known[:warm_up]]
    while at < len(known):
        block = values[known[at : at + size]]
        middles, spreads, counts = baselines(calm, block)
        limits = bounds[counts]
        beyond = np.abs(far(block, middles, spreads)) > limits
        steady = int(np.argmax(beyond)) if beyond.any() else len(block)
        calm = np.concatenate([calm, block[:steady]])[-(len(bounds) - 1) :]
        at, size = at + steady, min(2 * size, _BLOCK_MAX)
        if steady == len(block):
            continue
        middle, spread, limit = middles[steady], spreads[steady], float(limits[steady])
        for value in far(values[known[at : at + _BLOCK_MAX]], middle, spread):
            if abs(value) <= limit:
                break
            off.append(Outlier(int(known[at]), float(value), middle, spread, limit))
            at += 1
        size = _BLOCK
    return off


def _alerts(folds: Sequence[SessionFold], name: str, outliers: Sequence[Outlier]) -> list[Alert]:
    """Return one alert for what went off upwards, and one for downwards."""
    alerts = []
    for side in (1, -1):
        order = sorted(
            [each for each in outliers if each.far * side > 0], key=lambda each: -abs(each.far)
        )
        if not order:
            continue
        worst = order[0]
        expected = _shown(name, float(worst.middle))
        value = _shown(name, _value(folds[worst.place], name))
        words = _words(name)
        were = "were" if words.endswith("s") else "was"
        why = (
            f"{words} {were} {value:,.3g} where {expected:,.3g} {were} expected, "
            f"{abs(worst.far):.1f} deviations {'above' if side > 0 else 'below'}"
        )
        alerts.append(_alert(folds, name, value, expected, worst.far, order, why))
    return alerts


def _joint_alerts(
    folds: Sequence[SessionFold],
    metrics: Sequence[str],
    values: Vector,
    bounds: Vector,
    warm_up: int,
    window: int,
) -> list[Alert]:
    floors = np.array([_METRICS[name][2] for name in metrics])

    def baselines(before: Vector, block: Vector) -> JointBaselines:
        return rolling_jointly(before, block, window=window, floors=floors)

    known = np.flatnonzero(~np.isnan(values).any(axis=1))
    outliers = _outliers(values, known, bounds, warm_up, baselines, distances)
    if not outliers:
        return []
    order = sorted(outliers, key=lambda each: -each.far)
    worst = order[0]
    apart = np.abs(values[worst.place] - worst.middle) / np.sqrt(np.diag(worst.spread))
    why = (
        f"all metrics together were {worst.far:.1f} deviations off where {worst.bound:.1f} are "
        f"allowed, mostly because of {_words(metrics[int(np.argmax(apart))])}"
    )
    return [_alert(folds, ALL_METRICS, worst.far, worst.bound, worst.far, order, why)]


def _alert(
    folds: Sequence[SessionFold],
    name: str,
    value: float,
    expected: float,
    deviations: float,
    outliers: Sequence[Outlier],
    why: str,
) -> Alert:
    off = [folds[each.place] for each in outliers]
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
