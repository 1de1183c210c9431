"""Intervals that contain search and test set: closed forms, and coverage where the truth is known.

Right answers are drawn from a probit model with crossed effects, for which the accuracy in the
population of searches and examples is known in closed form.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from clipnoise.report.inference.gains import (
    Components,
    ErrorDraws,
    best_in_population,
    components,
    gain,
    simultaneous_intervals,
)
from clipnoise.report.inference.sign_flips import sign_flips

OF_SEARCH, OF_EXAMPLE, OF_BOTH = 0.05, 1.0, 1.0  # standard deviations on the probit scale


def drawn(
    rng: np.random.Generator,
    level: np.ndarray,
    searches: int = 8,
    examples: int = 150,
    of_search: float = OF_SEARCH,
) -> np.ndarray:
    """Return which runs get which examples right, of shape (methods, searches, examples).

    Examples are harder or easier for all methods, and for each of them; searches are better or
    worse for each method. `level` is the methods' on the probit scale.
    """
    methods = len(level)
    shared = OF_EXAMPLE * rng.normal(size=examples)
    latent = (
        level[:, None, None]
        + of_search * rng.normal(size=(methods, searches, 1))
        + shared
        + OF_BOTH * rng.normal(size=(methods, 1, examples))
        + rng.normal(size=(methods, searches, examples))
    )
    return np.asarray((latent > 0).astype(float))


def accuracy(level: np.ndarray, of_search: float = OF_SEARCH) -> np.ndarray:
    """Return the accuracy of methods in the population."""
    spread = np.sqrt(1 + of_search**2 + OF_EXAMPLE**2 + OF_BOTH**2)
    return np.asarray(stats.norm.cdf(level / spread))


def test_without_test_variance_the_interval_is_the_paired_t_interval_over_searches() -> None:
    scores = np.random.default_rng(1).uniform(size=(2, 6))
    same = np.repeat(scores[:, :, None], 50, axis=2)  # each example is right to the same share
    found = gain(components(same), 0, 1)
    test = stats.ttest_1samp(scores[0] - scores[1], 0)
    low, high = test.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
    assert found.freedom == pytest.approx(5)
    assert found.test_error == pytest.approx(0, abs=1e-9)


def test_without_search_variance_the_error_is_that_of_the_paired_examples() -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2, size=(2, 1, 80)).astype(float)
    found = gain(components(np.repeat(bits, 4, axis=1)), 0, 1)
    assert found.search_error == pytest.approx(0, abs=1e-9)
    assert found.error == pytest.approx(stats.sem(bits[0, 0] - bits[1, 0]))


def test_the_variance_is_that_of_the_analysis_of_variance_of_the_differences() -> None:
    correct = drawn(np.random.default_rng(3), np.array([0.3, 0.6, 0.9]), 5, 40)
    d = correct[2] - correct[0]
    searches, examples = d.shape
    rest = d - d.mean(axis=1, keepdims=True) - d.mean(axis=0) + d.mean()
    both = np.square(rest).sum() / ((searches - 1) * (examples - 1)) / d.size
    a, b = d.mean(axis=1).var(ddof=1) / searches, d.mean(axis=0).var(ddof=1) / examples
    found = gain(components(correct), 2, 0)
    assert found.search_error**2 == pytest.approx(a)
    assert found.test_error**2 == pytest.approx(b)
    assert found.error**2 == pytest.approx(max(a + b - both, a, b))
    assert found.mean == pytest.approx(d.mean())
    parts = a**2 / (searches - 1) + b**2 / (examples - 1)
    freedom = found.error**4 / (parts + both**2 / ((searches - 1) * (examples - 1)))
    assert found.freedom == pytest.approx(freedom)
    assert freedom > searches - 1
    assert found.interval.mean == found.mean
    low, high = stats.t(freedom, found.mean, found.error).interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))


def test_a_gain_over_itself_is_nothing() -> None:
    found = gain(components(drawn(np.random.default_rng(4), np.zeros(2))), 1, 1)
    assert (found.mean, found.error) == (0, 0)
    assert (found.interval.low, found.interval.high) == (0, 0)


def test_methods_with_the_same_answers_cannot_be_told_apart() -> None:
    one = drawn(np.random.default_rng(5), np.zeros(1))
    assert best_in_population(components(np.repeat(one, 3, axis=0))).tolist() == [1, 1, 1]


def test_a_difference_without_any_error_is_sure() -> None:
    correct = np.stack([np.zeros((4, 9)), np.ones((4, 9))])
    assert best_in_population(components(correct), draws=99).tolist() == [1 / 100, 1]


def constants(levels: list[float], of_examples: float, of_both: float = 0.0) -> Components:
    """Return methods that do the same after every search, with independent errors of the test."""
    methods = len(levels)
    return Components(
        searches=np.repeat(np.array(levels)[:, None], 6, axis=1),
        examples=1000,
        of_searches=np.zeros((methods, methods)),
        of_examples=of_examples * np.eye(methods),
        of_both=of_both * np.eye(methods),
    )


@pytest.mark.parametrize(
    ("others", "settings", "reach"),
    [(1, 1, stats.norm.ppf(0.975)), (1, 5, stats.norm.ppf(0.995)), (2, 1, 2.212)],
)
def test_without_search_variance_the_reach_is_that_of_normal_errors_and_of_dunnett(
    others: int, settings: int, reach: float
) -> None:
    of = constants([0.5, *[0.6] * others], 0.0001)
    found = simultaneous_intervals(of, 0, settings=settings)
    error = np.sqrt(0.0002)
    for one in found.values():
        assert one.mean == pytest.approx(0.1)
        assert one.high - one.mean == pytest.approx(one.mean - one.low)
        assert one.high - one.mean == pytest.approx(reach * error, rel=0.03)


def test_what_is_counted_in_both_variances_is_drawn_once() -> None:
    of = constants([0.5, 0.6], 0.0001, of_both=0.00005)
    t = ErrorDraws.of(of, 20_000, seed=1).gains_over(0)[:, 1]
    assert np.quantile(np.abs(t), 0.95) == pytest.approx(1.96 * np.sqrt(1 / 2), rel=0.03)


def test_without_search_variance_the_p_value_of_two_is_that_of_a_two_sided_normal_test() -> None:
    p = best_in_population(constants([0.6, 0.6 - 2 * np.sqrt(0.0002)], 0.0001))
    assert p[0] == 1
    assert p[1] == pytest.approx(2 * stats.norm.sf(2), rel=0.1)


def test_without_test_variance_the_draws_are_the_t_of_all_sign_flips() -> None:
    scores = np.random.default_rng(11).normal(size=(2, 8))
    of = components(np.repeat(scores[:, :, None], 10, axis=2))
    rest = scores[1] - scores[0]
    flips = stats.ttest_1samp(sign_flips(8) * (rest - rest.mean()), 0, axis=1).statistic
    t = ErrorDraws.of(of, 20_000, seed=0).gains_over(0)[:, 1]
    farthest = np.quantile(np.abs(flips), 0.95, method="higher")
    assert np.quantile(np.abs(t), 0.95, method="higher") == pytest.approx(farthest, rel=0.01)


@pytest.mark.parametrize("settings", [1, 23])
def test_together_no_interval_is_shorter_than_alone_although_a_search_collapsed(
    settings: int,
) -> None:
    correct = drawn(np.random.default_rng(14), np.array([0.5, 0.6, 0.7]), 12)
    correct[0, 3] = 0.0  # no flip of signs has a large t
    of = components(correct)
    for index, one in simultaneous_intervals(of, 0, settings=settings).items():
        alone = gain(of, index, 0, level=1 - 0.05 / settings).interval
        assert (one.low, one.high) == pytest.approx((alone.low, alone.high))


def test_errors_are_drawn_with_the_variances_of_the_analysis() -> None:
    of = components(drawn(np.random.default_rng(12), np.zeros(3), 6, 50, of_search=0.5))
    made = ErrorDraws.of(of, 20_000, seed=1)
    for errors, covariance in ((made.moved, of.of_searches), (made.shifted, of.of_examples)):
        found = np.cov(errors.T)
        np.testing.assert_allclose(found, covariance, atol=0.05 * covariance.max())


def test_the_same_results_have_the_same_intervals_and_p_values() -> None:
    of = components(drawn(np.random.default_rng(13), np.zeros(3)))
    assert simultaneous_intervals(of, 0) == simultaneous_intervals(of, 0, seed=0)
    assert best_in_population(of).tolist() == best_in_population(of, seed=0).tolist()


def test_a_clear_lead_is_found() -> None:
    of = components(drawn(np.random.default_rng(6), np.array([0.0, 1.5, 0.1]), 12, 400))
    p = best_in_population(of)
    assert p[1] == 1
    assert max(p[0], p[2]) < 0.01
    assert simultaneous_intervals(of, 0)[1].low > 0


def test_more_settings_make_intervals_wider_and_one_method_gets_no_interval() -> None:
    of = components(drawn(np.random.default_rng(7), np.zeros(3)))
    one, many = (simultaneous_intervals(of, 0, settings=number) for number in (1, 20))
    assert one.keys() == {1, 2}
    assert all(many[index].high > one[index].high for index in one)
    assert simultaneous_intervals(components(drawn(np.random.default_rng(7), np.zeros(1))), 0) == {}


LEVEL = np.array([0.5, 0.6, 0.9, 0.5])


def covered(trials: int) -> tuple[float, float, float]:
    """Return how often intervals hold: each alone, without the test set, and all together."""
    rng = np.random.default_rng(8)
    truth = accuracy(LEVEL) - accuracy(LEVEL)[0]
    alone = searches_only = together = 0
    for _ in range(trials):
        of = components(drawn(rng, LEVEL))
        found = gain(of, 2, 0)
        alone += found.interval.low <= truth[2] <= found.interval.high
        reach = stats.t.ppf(0.975, 7) * found.search_error
        searches_only += abs(found.mean - truth[2]) <= reach
        intervals = simultaneous_intervals(of, 0, draws=999)
        together += all(one.low <= truth[i] <= one.high for i, one in intervals.items())
    return alone / trials, searches_only / trials, together / trials


def test_intervals_hold_as_often_as_they_say_and_those_without_the_test_set_do_not() -> None:
    trials = 300
    alone, searches_only, together = covered(trials)
    error = np.sqrt(0.05 * 0.95 / trials)
    assert min(alone, together) >= 0.95 - 3 * error
    assert searches_only < 0.85


@pytest.mark.long
def test_equal_methods_are_excluded_no_more_often_than_allowed_for_new_examples() -> None:
    rng = np.random.default_rng(9)
    trials = 300
    lost = sum(
        best_in_population(components(drawn(rng, np.zeros(4), 8, 80)), draws=499).min() <= 0.05
        for _ in range(trials)
    )
    assert lost / trials <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)


def test_components_do_not_depend_on_how_many_examples_are_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    correct = drawn(np.random.default_rng(10), np.zeros(2), 3, 70)
    whole: Components = components(correct)
    monkeypatch.setattr("clipnoise.report.inference.gains.BLOCK", 32)
    np.testing.assert_allclose(components(correct).of_both, whole.of_both)
