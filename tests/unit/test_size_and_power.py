"""Where the truth is known, tests of the league are wrong no more often than they may be.

`python benchmarks/league_inference.py` does the same with many more leagues.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from clipnoise.report.inference import simulation
from clipnoise.report.inference.simulation import (
    BASELINE,
    FLIPS,
    FLIPS_TOGETHER,
    POPULATION,
    POPULATION_TOGETHER,
    T_TESTS,
    TESTS,
    TOGETHER,
    League,
    Rates,
    intervals_rate,
    mixed_model_rate,
    pairs_rate,
    rates,
)
from clipnoise.report.statistics import ALPHA

UNEVEN = {"noisier": 4.0, "collapse": 0.03}
ALIKE = {"noisier": 1.0, "collapse": 0.0}


def within(rate: Rates) -> bool:
    """Return whether a rate is at most α, with three Monte Carlo standard errors."""
    return rate.wrong <= ALPHA + 3 * rate.error


@pytest.mark.quick(test=[FLIPS])
@pytest.mark.parametrize("runs", [UNEVEN, ALIKE], ids=["uneven", "alike"])
@pytest.mark.parametrize("methods", [5, 13])
@pytest.mark.parametrize("test", [FLIPS, POPULATION])
def test_equal_methods_of_a_setting_are_rarely_excluded(
    test: str, methods: int, runs: dict[str, float]
) -> None:
    league = League(
        methods=methods,
        tasks=1,
        budgets=1,
        searches=10,
        test_error=0.005 if test == POPULATION else 0.0,
        **runs,
    )
    assert within(rates(league, test, 100, draws=299))


@pytest.mark.parametrize("test", TOGETHER)
def test_equal_methods_of_all_settings_are_rarely_excluded(test: str) -> None:
    error = 0.005 if test == POPULATION_TOGETHER else 0.0
    league = League(methods=5, tasks=2, budgets=2, searches=10, test_error=error, collapse=0.03)
    assert within(rates(league, test, 100, draws=499))


def test_the_error_of_a_rate_is_that_of_a_binomial_share() -> None:
    assert Rates(0.0, 0.0, 400).error == pytest.approx(stats.binom(400, ALPHA).std() / 400)


def test_a_worse_method_does_not_exclude_the_best_one_too_often() -> None:
    for lead in (0.002, 0.01):
        league = League(methods=6, tasks=1, budgets=1, searches=10, lead=lead)
        assert within(rates(league, FLIPS, 200))


def test_tests_beside_the_highest_mean_are_wrong_too_often() -> None:
    league = League(methods=36, tasks=1, budgets=1, searches=10, **ALIKE)
    assert rates(league, T_TESTS, 300).wrong > 0.15


@pytest.mark.long
def test_pairs_intervals_and_the_mixed_model_are_rarely_wrong() -> None:
    league = League(methods=5, tasks=6, budgets=1, searches=10)
    assert within(pairs_rate(league, 100))
    assert within(mixed_model_rate(League(methods=2, tasks=8, budgets=1, interaction=0.01), 300))
    assert within(mixed_model_rate(League(methods=6, tasks=6, budgets=3, interaction=0.01), 100))
    moved = League(methods=4, tasks=2, budgets=2, searches=10, test_error=0.005)
    assert within(intervals_rate(moved, 60, draws=999))


CLEAR = {"methods": 3, "tasks": 2, "budgets": 2, "collapse": 0.0, "spread": 0.001}


@pytest.mark.parametrize(
    ("league", "wrong"),
    [
        (League(lead=0.3, **CLEAR), 0.0),
        (League(lead=0.3, test_error=0.1, **CLEAR), 1.0),  # the others differ, too
        (League(interaction=0.3, **CLEAR), 1.0),  # where none should
    ],
)
def test_pairs_of_equal_methods_are_wrong_and_that_of_the_leader_is_found(
    league: League, wrong: float
) -> None:
    assert pairs_rate(league, 3) == Rates(wrong, 1.0, 3)


def test_intervals_are_wrong_without_the_lead_and_find_it_above_nothing() -> None:
    assert intervals_rate(League(lead=0.3, **CLEAR), 3, draws=299, seed=1) == Rates(0.0, 1.0, 3)
    missed = intervals_rate(League(interaction=0.3, **CLEAR), 3, draws=299)
    assert missed.wrong == 1.0


def test_an_interval_whose_ends_are_both_the_truth_holds_it() -> None:
    exact = League(methods=3, tasks=1, budgets=1, spread=0.0, shared=0.0, collapse=0.0)
    assert intervals_rate(exact, 1, draws=99) == Rates(0.0, 0.0, 1)


def test_methods_are_told_apart_at_p_values_up_to_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(level: float) -> tuple[Rates, Rates]:
        monkeypatch.setitem(TESTS, FLIPS, lambda settings, _: {0: np.full(3, level)})
        monkeypatch.setattr(simulation, "pairs_apart", lambda settings: {0: {(0, BASELINE): level}})
        return rates(League(), FLIPS, 1), pairs_rate(League(), 1)

    assert at(ALPHA) == (Rates(1.0, 1.0, 1), Rates(1.0, 1.0, 1))
    assert at(1.01 * ALPHA) == (Rates(0.0, 0.0, 1), Rates(0.0, 0.0, 1))


def test_no_method_is_excluded_by_fewer_draws_than_a_p_value_of_alpha_needs() -> None:
    """With the data themselves as one, 18 draws make no p-value below 1/19."""
    few, enough = (rates(League(lead=0.3, **CLEAR), POPULATION, 1, draws=n) for n in (18, 19))
    assert (few.found, enough.found) == (0.0, 1.0)


def test_the_mixed_model_holds_the_lead_and_finds_it_above_nothing() -> None:
    league = League(methods=2, tasks=8, budgets=2, lead=0.3, interaction=0.01)
    assert mixed_model_rate(league, 3) == Rates(0.0, 1.0, 3)
    nothing = League(methods=2, tasks=8, budgets=1, interaction=0.01)
    assert mixed_model_rate(nothing, 40).found < 0.15


def test_a_lead_is_found_the_more_often_the_larger_it_is() -> None:
    found = [
        rates(League(methods=4, tasks=1, budgets=1, lead=lead), FLIPS, 80).found
        for lead in (0.0, 0.01, 0.04)
    ]
    assert found[0] < 0.1 < found[1] < found[2]


def test_seven_searches_tell_nothing_apart_in_twelve_settings_and_twelve_do() -> None:
    """A p-value of 2⁻⁶ times twelve is above α."""
    few, enough = (
        rates(
            League(methods=3, tasks=12, budgets=1, searches=s, lead=0.3, collapse=0.0),
            FLIPS_TOGETHER,
            2,
        ).found
        for s in (7, 12)
    )
    assert (few, enough) == (0.0, 1.0)


def test_a_league_is_what_it_says() -> None:
    league = League(methods=4, tasks=2, budgets=2, searches=4000, lead=0.05, collapse=0.1)
    settings = league.draw(np.random.default_rng(1))
    assert settings.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    one = settings[0, 0].searches
    lost = 0.1 * 0.35
    np.testing.assert_allclose(one.mean(axis=1), [0.85 - lost, *[0.8 - lost] * 3], atol=0.01)


def test_the_spread_over_searches_goes_from_the_smallest_to_as_many_times_as_much() -> None:
    league = League(
        methods=3, tasks=1, budgets=1, searches=4000, collapse=0.0, shared=0.0, test_error=0.02
    )
    (one,) = league.draw(np.random.default_rng(2)).values()
    spread = np.sqrt(4000 * np.diag(one.of_searches))
    np.testing.assert_allclose(np.sort(spread), [0.006, 0.012, 0.024], rtol=0.05)
    np.testing.assert_allclose(one.searches.std(axis=1, ddof=1), spread)
    np.testing.assert_array_equal(one.of_examples, 0.0004 * np.eye(3))
    assert not one.of_both.any()


def test_a_method_that_collapses_more_often_is_as_good_on_average() -> None:
    unequal = League(methods=3, tasks=1, budgets=1, searches=20_000, first_collapses=0.1)
    (one,) = unequal.draw(np.random.default_rng(0)).values()
    np.testing.assert_allclose(one.searches.mean(axis=1), 0.8 - 0.02 * 0.35, atol=0.003)
    assert np.median(one.searches[0]) > np.median(one.searches[1:]) + 0.02


def test_the_protocol_quotes_the_numbers_that_were_simulated() -> None:
    root = Path(__file__).parents[2]
    found = json.loads((root / "benchmarks" / "results" / "league_inference.json").read_text())
    page = (root / "docs" / "league.md").read_text(encoding="utf-8")
    number = r"([\d.]+)%"
    (said,) = re.findall(
        f"are excluded in {number} of settings, and in {number} by Holm-corrected paired t-tests",
        page,
    )
    size = [found["size"][name]["wrong"][-1] for name in (FLIPS, f"{T_TESTS}, alike")]
    assert [float(one) for one in said] == pytest.approx([100 * one for one in size], abs=0.06)
    shown = re.findall(rf"\n\| .* \| {number} \| {number} \| {number} \|", page)
    tests = (FLIPS, FLIPS_TOGETHER, POPULATION, f"{FLIPS}, none collapse")
    for said, test in zip(shown, tests, strict=True):
        power = [found["power"][test][found["leads"].index(lead)] for lead in (1, 2, 5)]
        assert [float(one) for one in said] == pytest.approx([100 * one for one in power], abs=0.06)
    (unequal,) = re.findall(rf"the others never do, an equal one is excluded in {number} of", page)
    assert float(unequal) == pytest.approx(100 * found["unequal"], abs=0.06)
    assert f"of {found['settings']} for each point" in page
    assert f"of {found['leagues']} leagues" in page
    led = (found["settings"] // 4, found["settings"] // 100 * 54)
    assert "of {} for each point or of {} for “all 54 settings together”".format(*led) in page
    (over_tasks,) = re.findall(
        f"{number} have an interval without the true gain over 6 tasks, and {number} over 18. "
        f"A lead of 1 point, the same on all tasks, is found in {number} of them over 6 tasks, "
        f"and in {number} over 18",
        page,
    )
    rates_of = found["over_tasks"]
    numbers = [*rates_of["wrong"].values(), *rates_of["found"].values()]
    assert max(rates_of["wrong"].values()) <= ALPHA
    assert [float(one) for one in over_tasks] == pytest.approx([100 * n for n in numbers], abs=0.06)
    assert f"of {found['settings']} leagues with six methods" in page
    assert all(
        max(one["wrong"]) <= ALPHA + 3 * one["error"]
        for name, one in found["size"].items()
        if not name.startswith(T_TESTS)
    )
