"""Tails, anomalies, regressions and comparisons: what is stated about chance holds over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from limpet.analytics.anomalies import METRICS, anomalies_in
from limpet.analytics.compare import regression_in, sessions_in_test
from limpet.analytics.histogram import value_of
from limpet.analytics.metrics import MILLION, SessionFold
from limpet.analytics.satisfaction import Sample, fit, sample_of, train
from limpet.analytics.statistics import (
    beyond_chance,
    bound_for,
    distance_for,
    f_tail,
    moments,
    newcombe,
    rolling,
    rolling_jointly,
    t_tail,
    welch,
)
from limpet.errors import TooLittleFeedback
from tests.support.examples import tries
from tests.support.histograms import histogram_of

SEEDS = tries(20, 400)


def sessions(seed: int, count: int = 130) -> list[SessionFold]:
    """Sessions that are alike: log-normal times, costs and tokens, and a steady error rate."""
    chance = np.random.default_rng(seed)
    folds = []
    for number in range(count):
        fold = SessionFold("app", "user", f"s{number}", f"uid{number:05}")
        fold.created_us = fold.updated_us = number * 60 * MILLION
        fold.turns = max(1, round(math.exp(chance.normal(3, 0.3))))
        fold.latency_us = round(fold.turns * math.exp(chance.normal(0, 0.3)) * MILLION)
        fold.responded_us = fold.created_us + round(math.exp(chance.normal(0, 0.3)) * MILLION)
        fold.cost = round(math.exp(chance.normal(-1, 0.4)) * MILLION)
        fold.tokens_input = round(math.exp(chance.normal(8, 0.3)))
        fold.tool_invocations = round(math.exp(chance.normal(4, 0.3)))
        fold.generations = fold.turns
        fold.errors = round(fold.attempts * min(0.9, max(0.0, chance.normal(0.1, 0.03))))
        folds.append(fold)
    return folds


def test_the_tails_are_those_of_the_tables() -> None:
    """Of Student's t and of F, at points that every table has."""
    assert t_tail(2.228, 10) == pytest.approx(0.05, abs=2e-5)
    assert t_tail(2.042, 30) == pytest.approx(0.05, abs=2e-4)
    assert f_tail(3.326, 5, 10) == pytest.approx(0.05, abs=2e-5)
    assert beyond_chance(bound_for(0.01, 30), 30) == pytest.approx(0.01)
    assert distance_for(0.0027, 3, 10_000) == pytest.approx(math.sqrt(14.16), abs=0.03)


@pytest.mark.parametrize("robust", [False, True])
def test_the_stated_rate_of_false_alarms_holds(robust: bool) -> None:
    """Over many fleets in which every session is alike, at most about as many families of tests
    raise an alert as was asked for."""
    alarms = sum(
        len(anomalies_in(sessions(seed), rate=0.05, metrics=METRICS[:-1], robust=robust)) > 0
        for seed in range(SEEDS)
    )
    # One more than twice the binomial deviation above 5 %.
    most = SEEDS * 0.05 + 3 * math.sqrt(SEEDS * 0.05 * 0.95)
    assert alarms <= most


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize(
    ("metric", "plant"),
    [
        ("mean_turn_latency", lambda f: setattr(f, "latency_us", f.latency_us * 16)),
        ("cost_usd", lambda f: setattr(f, "cost", f.cost * 30)),
        ("error_rate", lambda f: setattr(f, "errors", f.attempts // 2)),
    ],
)
def test_planted_anomalies_are_found(metric: str, plant: object, robust: bool) -> None:
    """With a power above 95 %: the alert names the metric, since when, and exactly the sessions."""
    found = 0
    for seed in range(SEEDS):
        folds = sessions(seed)
        for fold in folds[100:103]:
            plant(fold)  # type: ignore[operator]  # a function
        alerts = [a for a in anomalies_in(folds, robust=robust, rate=0.05) if a.metric == metric]
        if alerts and {fold.key for fold in folds[100:103]} <= {*alerts[0].sessions}:
            found += 1
            assert alerts[0].since.timestamp() <= 100 * 60
            assert alerts[0].deviations > 3
            assert metric.removesuffix("_usd").replace("_", " ") in alerts[0].why
    assert found >= 0.95 * SEEDS


def test_what_is_odd_only_together_is_found_together() -> None:
    """Cheap sessions with many tokens: neither is unusual, both at once are."""
    found = 0
    for seed in range(SEEDS):
        folds, chance = sessions(seed, 200), np.random.default_rng(seed + 10_000)
        for fold in folds:
            fold.cost = round(fold.tokens_input * 100 * math.exp(chance.normal(0, 0.02)))
        mean = float(np.mean([math.log(fold.tokens_input) for fold in folds]))
        odd = folds[150]
        odd.tokens_input = round(math.exp(mean + 0.45))
        odd.cost = round(math.exp(mean - 0.45) * 100)
        alerts = anomalies_in(folds, rate=0.05)
        joint = [a for a in alerts if a.metric == "all" and odd.key in a.sessions]
        found += bool(joint)
    assert found >= 0.9 * SEEDS


@pytest.mark.parametrize("n", [30, 200])
def test_a_median_of_deviations_has_bounds_of_its_own(n: int) -> None:
    """It knows the spread less well than a standard deviation: values lie beyond its bound as
    seldom as was asked for, and would lie beyond that of a standard deviation more often."""
    chance = np.random.default_rng(n)
    before, values = chance.standard_normal((100_000, n)), chance.standard_normal(100_000)
    middles = np.median(before, axis=1)
    spreads = 1.4826 * np.median(np.abs(before - middles[:, None]), axis=1)
    far = np.abs(values - middles) / spreads
    assert np.mean(far > bound_for(0.001, n, robust=True)) == pytest.approx(0.001, rel=0.35)
    assert np.mean(far > bound_for(0.001, n)) > 0.0012


def test_baselines_of_many_values_are_those_of_one() -> None:
    """What is found block by block is what numpy gives for each value by itself, where the window
    grows and where it moves."""
    values = np.random.default_rng(3).normal(40, 0.1, (260, 3))
    floors = np.array([0.01, 0.02, 0.5])
    for robust in (False, True):
        base = rolling(values[:30, 0], values[30:, 0], window=200, robust=robust, floor=0.01)
        for index, count in enumerate(base.counts):
            part = values[30 + index - count : 30 + index, 0]
            middle = np.median(part) if robust else np.mean(part)
            spread = 1.4826 * np.median(np.abs(part - middle)) if robust else np.std(part, ddof=1)
            assert base.middles[index] == pytest.approx(middle)
            assert base.spreads[index] == pytest.approx(spread)
    joint = rolling_jointly(values[:30], values[30:], window=200, floors=floors)
    for index, count in enumerate(joint.counts):
        part = values[30 + index - count : 30 + index]
        covariance = np.cov(part, rowvar=False) * count / (count + 3)
        covariance[range(3), range(3)] = np.maximum(np.var(part, axis=0, ddof=1), floors**2)
        assert joint.middles[index] == pytest.approx(part.mean(axis=0))
        assert joint.spreads[index] == pytest.approx(covariance, abs=1e-9)
    assert [min(200, 30 + index) for index in range(230)] == [*base.counts] == [*joint.counts]


def test_a_shift_keeps_being_found() -> None:
    """What is off does not join the baseline: every session after the shift is off, and those that
    are as before are not."""
    folds = sessions(2, 400)
    for fold in [*folds[100:250], *folds[300:400]]:
        fold.cost *= 1_000
    (alert,) = [each for each in anomalies_in(folds, rate=0.01) if each.metric == "cost_usd"]
    assert alert.count == 250
    assert alert.since.timestamp() == 100 * 60


def test_nothing_is_judged_before_the_warm_up() -> None:
    """Thirty sessions, if not asked otherwise."""
    folds = sessions(1, 30)
    folds[29].cost *= 10_000
    assert len(anomalies_in(folds)) == 0
    assert anomalies_in(folds).warm_up == 30
    assert 0 < anomalies_in(sessions(1)).false_alarm_rate <= 1


def predicted(seed: int, drop: float, at: int = 300) -> list[SessionFold]:
    chance = np.random.default_rng(seed)
    folds = sessions(seed, 500)
    for number, fold in enumerate(folds):
        mean = 0.8 - (drop if number >= at else 0)
        fold.satisfaction = round(min(1, max(0, chance.normal(mean, 0.1))) * MILLION)
    return folds


def test_a_fall_of_satisfaction_is_found_and_seldom_imagined() -> None:
    """The sequential test: at most 5 % false alarms however often one looks, and a fall by one
    deviation is found in more than 95 % of fleets, near where it began."""
    false = sum(regression_in(predicted(seed, 0.0), baseline=200).fell for seed in range(SEEDS))
    assert false <= SEEDS * 0.05 + 3 * math.sqrt(SEEDS * 0.05 * 0.95)
    falls = [regression_in(predicted(seed, 0.1), baseline=200) for seed in range(SEEDS)]
    assert sum(fall.fell for fall in falls) >= 0.95 * SEEDS
    began = [fall.since.timestamp() / 60 for fall in falls if fall.since is not None]
    assert np.median(np.abs(np.array(began) - 300)) < 30


def test_a_fall_began_with_its_first_session_not_with_the_oldest() -> None:
    """A session of long ago that was seen again last is no sign that the fall is as old."""
    folds = predicted(1, 0.2)
    before = regression_in(folds, baseline=200).since
    folds[-1].created_us = 0
    assert before is not None
    assert regression_in(folds, baseline=200).since == before


def test_a_fleet_that_is_asked_for_ever_raises_few_false_alarms() -> None:
    """Asked all along 2,000 sessions: in each test of 800 at most 5 %, as it says."""
    alarms, tests = 0, 0
    for seed in range(20):
        folds = [fold for part in range(4) for fold in predicted(seed * 4 + part, 0.0)]
        starts = set()
        for asked in range(201, len(folds), 7):
            tested = sessions_in_test(asked, baseline=200, limit=800)
            assert 200 < tested <= 800
            fell = regression_in(folds[asked - tested : asked], baseline=200).fell
            if fell and asked - tested not in starts:
                starts.add(asked - tested)
        alarms += len(starts)
        tests += 3
    assert alarms <= tests * 0.05 + 3 * math.sqrt(tests * 0.05 * 0.95)


def test_an_interval_holds_the_difference_as_often_as_it_says() -> None:
    """Welch's for means read from histograms, and Newcombe's for rates."""
    chance = np.random.default_rng(5)
    means = rates = 0
    for _ in range(300):
        a, b = chance.lognormal(13, 0.5, 80), chance.lognormal(13, 0.5, 120)
        parts = [moments(histogram_of(np.round(x).astype(int).tolist()), value_of) for x in (a, b)]
        interval = welch(parts[0], parts[1], 0.95)
        assert interval is not None
        means += interval.low <= 0 <= interval.high
        one, other = int(chance.binomial(60, 0.3)), int(chance.binomial(90, 0.3))
        between = newcombe((one, 60), (other, 90), 0.95)
        assert between is not None
        rates += between.low <= 0 <= between.high
    assert 0.91 <= means / 300 <= 0.99
    assert 0.91 <= rates / 300 <= 0.99


def test_weights_that_were_planted_are_learned() -> None:
    """The minimum that Newton's method finds has no slope left, and predicts what was planted."""
    chance = np.random.default_rng(3)
    x = chance.normal(size=(4_000, 8))
    weights = np.array([1.0, -0.5, 0.8, 0.0, 0.3, -1.2, 0.6, 0.1])
    p = 1 / (1 + np.exp(-(x @ weights - 0.4)))
    y = (chance.random(4_000) < p).astype(float)
    w, b = fit(x, y, ridge=1.0)
    slope = x.T @ (1 / (1 + np.exp(-(x @ w + b))) - y) + w
    assert np.max(np.abs(slope)) < 1e-5
    assert np.max(np.abs(w - weights)) < 0.2
    assert b == pytest.approx(-0.4, abs=0.15)


def samples(folds: list[SessionFold]) -> list[Sample]:
    return [sample_of(fold, folds[-1].created_us) for fold in folds]


def test_too_little_feedback_trains_nothing() -> None:
    """The number that was found and the number that is needed are in the error."""
    folds = sessions(1, 49)
    for fold in folds:
        fold.rating = MILLION
    with pytest.raises(TooLittleFeedback) as raised:
        train(samples(folds), minimum=50, now_us=0, version=1)
    assert (raised.value.found, raised.value.minimum) == (49, 50)
    with pytest.raises(TooLittleFeedback):
        train(samples(folds[:9]), minimum=1, now_us=0, version=1)


def test_a_model_is_calibrated_and_says_how_good_it_is() -> None:
    """Of sessions that it says are liked with a chance of p, about that part is."""
    chance = np.random.default_rng(8)
    folds = sessions(8, 1_500)
    for fold in folds:
        rate = fold.errors / max(fold.attempts, 1)
        liked = chance.random() < 1 / (1 + math.exp(-(3 - 30 * rate)))
        fold.rating, fold.rated_us = int(liked) * MILLION, fold.created_us
    model = train(samples(folds), minimum=50, now_us=folds[-1].created_us, version=1)
    assert model.held_out.log_loss < model.held_out.base_log_loss
    assert model.held_out.auc is not None
    assert model.held_out.auc > 0.6
    predicted = np.array([model.predict_fold(f, 0) / MILLION for f in folds])
    liked_ = np.array([f.rating / MILLION for f in folds])
    for low, high in ((0.2, 0.5), (0.5, 0.7), (0.7, 0.95)):
        part = (predicted >= low) & (predicted < high)
        if part.sum() > 50:
            assert abs(predicted[part].mean() - liked_[part].mean()) < 0.12
    assert model.since <= model.until
    assert model.sessions == 1_500


def thumbs(liked_below: float) -> list[Sample]:
    """Sixty thumbs that follow the error rate: 15 sessions each at 0, 0.2, 0.4 and 0.6."""
    rates = [0.0, 0.2, 0.4, 0.6] * 15
    return [
        Sample(f"s{n:02}", at_rate(rate), float(rate < liked_below), n)
        for n, rate in enumerate(rates)
    ]


def at_rate(error_rate: float) -> tuple[float, ...]:
    return (1.0, 0.7, 1.0, 1 - error_rate, 1.0, 0.0, 1.0, 0.0)


def test_clear_feedback_of_a_few_does_not_make_a_model_certain() -> None:
    """30 thumbs up and 30 down, told apart by the error rate: the chances of the calibration are
    31 in 32 and 1 in 32, so the slope between two rates ends, and what lies between stays open."""
    model = train(thumbs(0.3), minimum=50, now_us=0, version=1)
    said = [model.predict(at_rate(rate)) for rate in (0, 0.2, 0.3, 0.4, 0.6)]
    assert said == pytest.approx([0.999, 0.911, 0.5, 0.089, 0.001], abs=0.0005)
    assert (said[0] + said[1]) / 2 == pytest.approx(31 / 32, abs=0.02)
    assert model.slope == pytest.approx(6.56, abs=0.01)
    assert model.held_out.auc == 1
    assert model.held_out.log_loss == pytest.approx(0.0639, abs=0.0005)


@pytest.mark.parametrize(("liked_below", "chance"), [(1.0, 61 / 62), (0.0, 1 / 62)])
def test_sixty_thumbs_one_way_leave_a_chance_of_the_other(
    liked_below: float, chance: float
) -> None:
    """Nothing tells the sessions apart, and each is liked by 61 in 62, or by 1 in 62."""
    model = train(thumbs(liked_below), minimum=50, now_us=0, version=1)
    for rate in (0, 0.2, 0.4, 0.6):
        assert model.predict(at_rate(rate)) == pytest.approx(chance, abs=0.0002)


def test_feedback_that_says_nothing_about_sessions_gives_all_the_same_chance() -> None:
    """A slope below zero on what was held out means that nothing was learned: of 40 that were liked
    and 20 that were not, every session gets the mean of 41 in 42 and 1 in 22."""
    rated = [
        Sample(f"s{n:02}", at_rate(0.1 * (n // 5 % 6)), float(n % 3 > 0), n) for n in range(60)
    ]
    model = train(rated, minimum=50, now_us=0, version=1)
    assert model.slope == 0
    mean = (40 * 41 / 42 + 20 * 1 / 22) / 60
    for rate in (0, 0.2, 0.4):
        assert model.predict(at_rate(rate)) == pytest.approx(mean)
