"""Satisfaction: a logistic regression on eight features, learned from explicit feedback.

Newton's method with a ridge on the weights. Five folds are held out in turn: their predictions give
the score of the model, and the slope and offset that calibrate it. These become part of the
weights, so that the prediction stays sigmoid(w·f + b) on raw features. A model is a document of
the store: every version is kept, with the range of its data and its score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet.analytics.metrics import MILLION, SessionFold, features_of
from limpet.errors import TooLittleFeedback
from limpet.model import to_time

Vector = NDArray[np.float64]
FEATURES: Final = (
    "log_time_to_first_response",
    "log_turns",
    "task_completion",
    "no_error_rate",
    "verification_pass_rate",
    "minus_log_repairs",
    "completed_normally",
    "minus_log_cost",
)
MINIMUM: Final = 50  # rated sessions that a model is trained on, at least
RIDGE: Final = 1.0
_FOLDS: Final = 5
_NEWTON_STEPS: Final = 100
_FLOOR: Final = 10  # fewer sessions than this never make a model, whatever is asked for


class HeldOut(msgspec.Struct, frozen=True):
    """The quality of predictions for sessions that the model had not seen."""

    sessions: int
    log_loss: float
    brier: float
    auc: float | None  # None: all were rated alike
    base_log_loss: float  # of a model that always says the mean


class SatisfactionModel(msgspec.Struct, frozen=True):
    """Weights on raw features, and how they were trained."""

    version: int
    weights: tuple[float, ...]
    bias: float
    sessions: int
    since: datetime  # of the feedback that it was trained on
    until: datetime
    trained_at: datetime
    held_out: HeldOut
    slope: float  # of the calibration, which the weights include
    offset: float
    ridge: float = RIDGE
    features: tuple[str, ...] = FEATURES

    def predict(self, features: Sequence[float]) -> float:
        """Return the predicted satisfaction, from 0 to 1."""
        pairs = zip(self.weights, features, strict=True)
        return sigmoid(sum([weight * value for weight, value in pairs]) + self.bias)

    def predict_fold(self, fold: SessionFold, now_us: int) -> int:
        """Return the predicted satisfaction of a session in millionths."""
        return round(self.predict(features_of(fold, now_us)) * MILLION)

    @property
    def plain(self) -> dict[str, Any]:
        """Return its JSON form."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def fit(features: Vector, ratings: Vector, *, ridge: float = RIDGE) -> tuple[Vector, float]:
    """Return weights and bias that minimize log loss + ridge / 2 · |w|². Ratings are 0 to 1.

    The loss is convex: Newton's method with halved steps finds its one minimum.
    """
    n, m = features.shape
    design = np.hstack([features, np.ones((n, 1))])
    penalty = np.full(m + 1, ridge)
    penalty[m] = 1e-9  # the bias is free
    w = np.zeros(m + 1)
    loss = _loss(design, ratings, w, penalty)
    for _ in range(_NEWTON_STEPS):
        p = _sigmoids(design @ w)
        gradient = design.T @ (p - ratings) + penalty * w
        if np.max(np.abs(gradient)) < 1e-9 * max(1, n):
            break
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty + 1e-12)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-8 and (new := _loss(design, ratings, w - size * step, penalty)) > loss:
            size /= 2
        if size <= 1e-8:
            break
        w, loss = w - size * step, new
    return w[:m], float(w[m])


class Sample(NamedTuple):
    """The evidence of one rated session for a model."""

    uid: str
    features: tuple[float, ...]
    rating: float
    rated_us: int


def sample_of(fold: SessionFold, now_us: int) -> Sample:
    """Return what there is to learn from a session with a rating."""
    return Sample(fold.uid, features_of(fold, now_us), fold.rating / MILLION, fold.rated_us)


def train(
    samples: Sequence[Sample], *, minimum: int, now_us: int, version: int, ridge: float = RIDGE
) -> SatisfactionModel:
    """Return a model of rated sessions. Raises TooLittleFeedback."""
    if len(samples) < max(minimum, _FLOOR):
        raise TooLittleFeedback(len(samples), max(minimum, _FLOOR))
    samples = sorted(samples)
    x = np.array([sample.features for sample in samples])
    y = np.array([sample.rating for sample in samples])
    held = np.zeros(len(samples))
    for part in range(_FOLDS):
        out = np.arange(len(samples)) % _FOLDS == part
        w, b = fit(x[~out], y[~out], ridge=ridge)
        held[out] = x[out] @ w + b
    slope, offset = _calibration(held, y)
    w, b = fit(x, y, ridge=ridge)
    rated = [sample.rated_us for sample in samples]
    return SatisfactionModel(
        version=version,
        weights=tuple([float(each) for each in slope * w]),
        bias=slope * b + offset,
        sessions=len(samples),
        since=to_time(min(rated)),
        until=to_time(max(rated)),
        trained_at=to_time(now_us),
        held_out=_held_out(_sigmoids(slope * held + offset), y),
        slope=slope,
        offset=offset,
        ridge=ridge,
    )


def _calibration(scores: Vector, ratings: Vector) -> tuple[float, float]:
    """Return slope and offset that make the scores of held-out sessions chances (Platt).

    They are fitted to smoothed ratings: however clear the feedback is, a few sessions do not make a
    model certain. A slope near or below zero means that nothing was learned: then every session
    gets their mean.
    """
    targets = _smoothed(ratings)
    w, b = fit(scores[:, None], targets, ridge=1e-6)
    slope = float(w[0])
    if slope > 0.01:
        return slope, b
    mean = float(np.mean(targets))
    return 0.0, math.log(mean / (1 - mean))


def _smoothed(ratings: Vector) -> Vector:
    """Return the ratings as chances, as if two more sessions had been rated, one of each way: n
    that were liked have a chance of n + 1 in n + 2, and n that were not one of 1 in n + 2."""
    liked = float(np.sum(ratings))
    best, worst = (liked + 1) / (liked + 2), 1 / (len(ratings) - liked + 2)
    made: Vector = worst + (best - worst) * ratings
    return made


def _held_out(p: Vector, y: Vector) -> HeldOut:
    mean = np.full(len(y), float(np.mean(y)))
    return HeldOut(
        len(y), _log_loss(p, y), float(np.mean((p - y) ** 2)), auc(p, y), _log_loss(mean, y)
    )


def auc(p: Vector, y: Vector) -> float | None:
    """Return the chance that a liked session is predicted above a disliked one."""
    good, bad = p[y >= 0.5], p[y < 0.5]
    if not len(good) or not len(bad):
        return None
    order = np.argsort(np.concatenate([bad, good]), kind="stable")
    values = np.concatenate([bad, good])[order]
    ranks = np.empty(len(values))
    _, starts, counts = np.unique(values, return_index=True, return_counts=True)
    for start, count in zip(starts, counts, strict=True):
        ranks[order[start : start + count]] = start + (count + 1) / 2
    total = float(ranks[len(bad) :].sum())
    return (total - len(good) * (len(good) + 1) / 2) / (len(good) * len(bad))


def _log_loss(p: Vector, y: Vector) -> float:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _loss(design: Vector, y: Vector, w: Vector, penalty: Vector) -> float:
    z = design @ w
    return float(np.sum(np.logaddexp(0, z) - y * z) + np.sum(penalty * w * w) / 2)


def _sigmoids(z: Vector) -> Vector:
    made: Vector = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    return made
