"""The mixed model over tasks and the share of gaps: closed forms, and coverage in simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from clipnoise.report.inference.over_tasks import (
    Gap,
    MixedModel,
    closed_shares,
    has_gap,
)
from clipnoise.report.inference.sign_flips import best_p_values


def test_with_equal_errors_the_mean_has_the_t_interval_over_tasks() -> None:
    gains = np.array([1.0, 3.0, 2.0, 6.0, 4.0])
    found = MixedModel(gains, np.full(5, 0.5))
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert (found.mean.mean, found.mean.low, found.mean.high) == pytest.approx((3.2, low, high))
    assert found.spread**2 == pytest.approx(gains.var(ddof=1) - 0.25)


def test_gains_that_differ_less_than_their_errors_are_weighed_and_may_still_have_a_spread() -> None:
    found = MixedModel(np.array([1.0, 1.2, 1.1]), np.array([1.0, 2.0, 4.0]))
    weights = np.array([1, 1 / 4, 1 / 16])
    assert found.spread == 0
    assert found.mean.mean == pytest.approx(weights @ [1.0, 1.2, 1.1] / weights.sum())
    assert found.mean.high - found.mean.mean > stats.norm.ppf(0.975) / math.sqrt(weights.sum())
    twenty = MixedModel(np.tile([1.0, 1.58], 10), np.full(20, 0.3))
    assert twenty.spread == 0
    known = stats.norm.ppf(0.975) * 0.3 / math.sqrt(20)
    assert twenty.new_task.high - twenty.new_task.mean > 2 * known


def test_intervals_that_hold_together_are_bonferroni_s() -> None:
    gains = np.array([1.0, 3.0, 2.0, 6.0, 4.0])
    found = MixedModel(gains, np.full(5, 0.5))
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(1 - 0.05 / 15)
    together = found.together(15)
    assert (together.mean, together.low, together.high) == pytest.approx((3.2, low, high))
    assert found.together(1) == found.mean


def test_without_errors_the_interval_for_a_new_task_is_that_for_one_more_normal_value() -> None:
    gains = np.array([1.0, 3.0, 2.0, 6.0, 4.0])
    found = MixedModel(gains, np.full(5, 1e-4)).new_task
    reach = stats.t.ppf(0.975, 4) * gains.std(ddof=1) * math.sqrt(1 + 1 / 5)
    assert (found.low, found.high) == pytest.approx((3.2 - reach, 3.2 + reach))


def test_one_task_gives_no_interval_and_two_give_those_of_one_degree_of_freedom() -> None:
    one, two = (MixedModel(np.arange(1.0, 1 + n), np.full(n, 1e-4)) for n in (1, 2))
    assert math.isnan(one.mean.low)
    assert math.isnan(one.new_task.high)
    assert math.isnan(one.spread)
    assert one.mean.mean == 1
    low, high = stats.ttest_1samp([1.0, 2.0], 0).confidence_interval(0.95)
    assert (two.mean.low, two.mean.high) == pytest.approx((low, high))


@pytest.mark.quick(spread=[0.5])
@pytest.mark.parametrize(("spread", "share"), [(0.0, 0.95), (0.5, 0.94), (2.0, 0.95)])
def test_both_intervals_hold_as_often_as_they_say(spread: float, share: float) -> None:
    rng = np.random.default_rng(1)
    trials, tasks, errors = 600, 12, np.linspace(0.3, 2.0, 12)
    mean = new = 0
    for _ in range(trials):
        gains = 1 + spread * rng.normal(size=tasks) + errors * rng.normal(size=tasks)
        found = MixedModel(gains, errors)
        mean += found.mean.low <= 1 <= found.mean.high
        new += found.new_task.low <= 1 + spread * rng.normal() <= found.new_task.high
    assert min(mean, new) / trials >= share - 3 * math.sqrt(share * (1 - share) / trials)


def test_a_method_that_is_best_on_every_task_is_the_only_one_that_can_be_best() -> None:
    means = np.random.default_rng(2).normal(size=(4, 15))
    means[1] += 6
    p = best_p_values(means)
    assert p[1] == 1
    assert np.delete(p, 1).max() < 0.001


# ---- Gaps


def gap(
    rng: np.random.Generator, levels: tuple[float, float, float], searches: int = 8, n: int = 300
) -> Gap:
    """Return a task with a baseline, a method and a ceiling of these accuracies."""
    hard = rng.normal(size=n)
    found = []
    for cut in stats.norm.ppf(levels) * math.sqrt(3 + 0.01):
        after_search = 0.1 * rng.normal(size=(searches, 1))
        latent = cut + hard + rng.normal(size=n) + after_search + rng.normal(size=(searches, n))
        found.append((latent > 0).astype(float))
    return Gap(np.stack(found[:2]), found[2])


def test_the_baseline_closes_nothing_and_the_ceiling_all() -> None:
    task = gap(np.random.default_rng(3), (0.7, 0.8, 0.9))
    own = closed_shares([task], 0, 0)
    assert (own.mean, own.low, own.high) == pytest.approx((0, 0, 0), abs=1e-6)
    whole = Gap(np.stack([task.private[0], task.ceiling]), task.ceiling)
    assert closed_shares([whole], 1, 0).mean == pytest.approx(1)


def test_between_nothing_and_everything_the_share_has_the_error_of_the_method() -> None:
    bits = gap(np.random.default_rng(8), (0.5, 0.7, 0.9), searches=30).private[1]
    found = closed_shares([Gap(np.stack([0 * bits, bits]), 0 * bits + 1)], 1, 0)
    error = math.hypot(stats.sem(bits.mean(axis=1)), stats.sem(bits.mean(axis=0)))
    assert found.mean == pytest.approx(bits.mean())
    for end in (found.mean - found.low, found.high - found.mean):
        assert end == pytest.approx(1.96 * error, rel=0.1)


def test_resamples_of_two_searches_vary_as_much_as_two_searches_do() -> None:
    """Drawn twice, one is drawn alone in half of the resamples; both are 0.1 from their mean."""
    method = np.repeat([[0.6], [0.8]], 50, axis=1)
    found = closed_shares([Gap(np.stack([0 * method, method]), 0 * method + 1)], 1, 0)
    reach = 0.1 * math.sqrt(2)
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, 0.7 - reach, 0.7 + reach))


def test_the_share_is_the_mean_over_tasks() -> None:
    rng = np.random.default_rng(4)
    tasks = [gap(rng, (0.6, 0.7, 0.9)), gap(rng, (0.7, 0.8, 0.9))]
    both, first, second = (closed_shares(one, 1, 0) for one in (tasks, tasks[:1], tasks[1:]))
    assert both.mean == pytest.approx((first.mean + second.mean) / 2)
    assert both.high - both.low < second.high - second.low


def test_a_share_without_any_error_is_that_of_every_resample() -> None:
    constant = np.ones((3, 20))
    closing = [Gap(np.stack([0 * constant, x * constant]), constant) for x in (0.25, 0.5, 0.75)]
    found = closed_shares(closing, 1, 0)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_gap_that_may_be_none_leaves_the_interval_without_ends() -> None:
    task = gap(np.random.default_rng(5), (0.8, 0.8, 0.805), searches=3, n=60)
    found = closed_shares([task], 1, 0)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_a_gap_counts_if_it_is_two_points_and_three_standard_errors() -> None:
    rng = np.random.default_rng(7)
    assert has_gap(gap(rng, (0.7, 0.8, 0.9), searches=12, n=2000), 0)
    assert not has_gap(gap(rng, (0.8, 0.8, 0.83), searches=3, n=60), 0)  # not sure
    unsure = gap(np.random.default_rng(12), (0.8, 0.8, 0.83), searches=3, n=60)
    assert not has_gap(unsure, 0, resamples=2)
    exact = np.repeat([[1.0] * 70 + [0.0] * 30], 4, axis=0)
    for more, large in ((1, False), (3, True)):  # points
        ceiling = exact.copy()
        ceiling[:, 70 : 70 + more] = 1.0
        assert has_gap(Gap(np.tile(exact, (2, 1, 50)), np.tile(ceiling, (1, 50))), 0) is large


def test_an_interval_of_shares_holds_as_often_as_it_says() -> None:
    """One over searches alone, with the gap as known, does not."""
    rng = np.random.default_rng(6)
    trials = 300
    held = known = 0
    for _ in range(trials):
        task = gap(rng, (0.70, 0.77, 0.84))
        found = closed_shares([task], 1, 0, resamples=400)
        held += found.low <= 0.5 <= found.high
        gains = task.private[1].mean(axis=1) - task.private[0].mean(axis=1)
        shares = gains / (task.ceiling.mean() - task.private[0].mean())
        low, high = stats.ttest_1samp(shares, 0).confidence_interval(0.95)
        known += low <= 0.5 <= high
    assert held / trials >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)
    assert known / trials < 0.9
