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
    best_in_population,
    components,
    gain,
    simultaneous_intervals,
)

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


def test_a_gain_over_itself_is_nothing() -> None:
    found = gain(components(drawn(np.random.default_rng(4), np.zeros(2))), 1, 1)
    assert (found.mean, found.error) == (0, 0)
    assert (found.interval.low, found.interval.high) == (0, 0)


def test_methods_with_the_same_answers_cannot_be_told_apart() -> None:
    one = drawn(np.random.default_rng(5), np.zeros(1))
    assert best_in_population(components(np.repeat(one, 3, axis=0))).tolist() == [1, 1, 1]


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
