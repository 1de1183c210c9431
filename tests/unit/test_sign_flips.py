"""Tests by sign flips: closed forms for few units, and their size for equal methods."""

from __future__ import annotations

import numpy as np
import pytest

from clipnoise.report.inference.sign_flips import (
    ALL_FLIPS,
    DRAWN_FLIPS,
    adjusted_best,
    apart_from,
    best_p_values,
    pairs_apart,
    sign_flips,
    units_needed,
)

ALPHA = 0.05


def results(methods: int, units: int, seed: int = 0, *, lead: float = 0.0) -> np.ndarray:
    """Return normal results of methods that share units; the first one leads."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(methods, units)) + rng.normal(size=units)
    scores[0] += lead
    return scores


def test_every_flip_of_few_units_is_taken_once_and_the_first_changes_nothing() -> None:
    signs = sign_flips(5)
    assert len({tuple(row) for row in signs}) == 2**5
    assert set(signs.ravel()) == {-1.0, 1.0}
    assert (signs[0] == 1).all()


def test_of_many_units_flips_are_drawn_and_the_same_each_time() -> None:
    signs = sign_flips(ALL_FLIPS + 1)
    assert signs.shape == (1 + DRAWN_FLIPS, ALL_FLIPS + 1)
    assert (signs[0] == 1).all()
    assert (signs == sign_flips(ALL_FLIPS + 1)).all()
    assert abs(signs.mean()) < 0.01


def test_a_method_that_is_worse_in_every_unit_has_the_least_p_value() -> None:
    p = best_p_values(np.array([[2.0, 3.0, 4.0, 2.0, 5.0], [1.0, 1.5, 2.0, 1.7, 1.0]]))
    assert p.tolist() == [1.0, 2 * 2.0**-5]


def test_a_p_value_of_two_methods_is_the_share_of_sums_that_reach_the_own_one() -> None:
    # Differences 3, 1, −1: sums of the flips are ±5, ±3, ±3, ±1; six of eight are as far as 3.
    p = best_p_values(np.array([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0]]))
    assert p.tolist() == [1.0, 6 / 8]


@pytest.mark.parametrize(("alpha", "units"), [(0.05, 6), (0.0625, 5), (0.05 / 54, 12)])
def test_units_needed_are_the_fewest_that_can_reject(alpha: float, units: int) -> None:
    assert units_needed(alpha) == units
    apart = np.array([np.full(units, 1.0), np.zeros(units)])
    assert best_p_values(apart)[1] <= alpha < best_p_values(apart[:, 1:])[1]


def test_two_methods_are_apart_as_they_are_among_all_pairs() -> None:
    scores = results(2, 8, lead=1.0)
    (p,) = apart_from(scores[0], scores[1:])
    assert p == pairs_apart({"only": scores})["only"][0, 1]


def test_a_method_is_seldom_apart_from_any_that_is_equal_to_it() -> None:
    wrong = sum(
        bool((apart_from(scores[0], scores[1:]) <= ALPHA).any())
        for scores in (results(6, 8, seed) for seed in range(400))
    )
    assert wrong <= 400 * ALPHA + 2 * (400 * ALPHA) ** 0.5


def test_a_worse_method_is_apart_whatever_the_others_are() -> None:
    scores = results(5, 10)
    scores[3] -= 20
    p = apart_from(scores[0], scores[1:])
    assert p[2] == 2.0**-9
    assert (np.delete(p, 2) > p[2]).all()


def test_equal_results_are_never_told_apart() -> None:
    same = np.repeat(results(1, 8), 3, axis=0) * (1 + 1e-16)
    assert (best_p_values(same) == 1).all()
    assert set(pairs_apart({"a": same})["a"].values()) == {1.0}


def test_p_values_do_not_depend_on_units_of_measurement_nor_on_what_a_unit_adds_to_all() -> None:
    scores = results(5, 9, lead=1.0)
    other = 100 * scores + np.linspace(0, 50, 9)
    np.testing.assert_allclose(best_p_values(other), best_p_values(scores))
    assert pairs_apart({0: other})[0] == pytest.approx(pairs_apart({0: scores})[0])


def test_methods_that_are_left_are_tested_among_themselves() -> None:
    """With two methods left, those far behind no longer count."""
    pair = np.array([[1.0, 2.0, 3.0, 1.5, 2.5, 0.5, -0.1, 2.2], np.zeros(8)])
    rest = np.random.default_rng(4).normal(size=(3, 8)) * 0.01 - 1000
    p = best_p_values(np.vstack([pair, rest]))
    assert p.tolist() == [1.0, 4 / 2**8, *[p[2]] * 3]
    assert p[2] == 2 / 2**8


def test_settings_share_one_level() -> None:
    p = best_p_values(results(4, 10, lead=1.0))
    adjusted = adjusted_best({"a": p, "b": p, "c": p})
    np.testing.assert_allclose(adjusted["b"], np.minimum(1, 3 * p))


def test_without_a_second_method_there_is_no_pair() -> None:
    assert pairs_apart({"a": results(1, 6), "b": results(2, 6)}).keys() == {"a", "b"}
    assert pairs_apart({"a": results(1, 6)}) == {"a": {}}


def test_pairs_that_are_left_are_tested_among_themselves() -> None:
    """A method far behind leaves, then two others are compared as if they were alone."""
    pair = np.array([[1.0, 2.0, 3.0, 1.5, 2.5, 0.5, -0.1, 2.2], np.zeros(8)])
    far = np.vstack([pair, pair[1] - 1000])
    alone = pairs_apart({0: pair})[0][0, 1]
    assert alone == 2 * 2 / 2**8
    found = pairs_apart({0: far})[0]
    assert found[0, 2] == found[1, 2] == 2 / 2**8
    assert found[0, 1] == alone


def test_a_setting_whose_pairs_are_all_rejected_no_longer_counts() -> None:
    sure = np.array([np.linspace(1, 2, 8), np.zeros(8)])
    other = np.array([np.linspace(-0.2, 2, 8), np.zeros(8)])
    found = pairs_apart({"sure": sure, "other": other})
    assert found["sure"][0, 1] == 2 * 2 / 2**8
    assert found["other"] == pairs_apart({"other": other})["other"]


def test_settings_need_no_order() -> None:
    scores = results(3, 8)
    found = pairs_apart({"digits": scores, ("digits", 1.0): scores})
    assert found["digits"] == found["digits", 1.0]


def wrong(methods: int, settings: int, *, trials: int) -> tuple[float, float]:
    """Return how often one of equal methods is excluded, and how often a pair is told apart."""
    rng = np.random.default_rng(methods)
    lost = apart = 0
    for _ in range(trials):
        # Correlated, with standard deviations from 1 to 5.
        data = {
            m: np.linspace(1, 5, methods)[:, None] * rng.normal(size=(methods, 9))
            + rng.normal(size=9)
            for m in range(settings)
        }
        best = adjusted_best({m: best_p_values(one) for m, one in data.items()})
        lost += any((one <= ALPHA).any() for one in best.values())
        apart += any(p <= ALPHA for one in pairs_apart(data).values() for p in one.values())
    return lost / trials, apart / trials


@pytest.mark.parametrize(("methods", "settings"), [(2, 1), (6, 1), (4, 3)])
def test_equal_methods_are_told_apart_no_more_often_than_allowed(
    methods: int, settings: int
) -> None:
    trials = 600
    allowed = ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / trials)
    assert max(wrong(methods, settings, trials=trials)) <= allowed


def test_the_size_of_one_setting_is_the_level_and_not_far_below() -> None:
    lost, apart = wrong(6, 1, trials=600)
    assert min(lost, apart) > 0.02
