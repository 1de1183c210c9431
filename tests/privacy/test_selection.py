"""The privacy cost of choosing the best run, against the exact output of tiny mechanisms."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets import flat_budget
from mechanisms import mechanism
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.privacy.accountants.poisson import ORDERS, epsilon
from clipnoise.privacy.accountants.selection import (
    _between,
    _convex,
    composed_epsilon,
    selected_curve,
    selected_epsilon,
    selected_profile,
)
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate, read_calibration
from clipnoise.privacy.trials import DrawnTrials

Array = NDArray[np.float64]

RUN = (1.0, 0.05, 50)  # σ, q and T
DELTA = 1e-6
LAWS = [
    DrawnTrials(mean=5),
    DrawnTrials(mean=12, shape=0),
    DrawnTrials(mean=3, shape=-0.5),
    DrawnTrials(mean=8, shape=6),
    DrawnTrials(mean=4, law="poisson"),
    DrawnTrials(mean=20, law="poisson"),
    DrawnTrials(mean=1),
]
LEVELS = np.linspace(-8, 8, 801)
CELL = 0.03  # the logarithm of the ratio between the ends of a cell, and a little


def masses(trials: DrawnTrials) -> Array:
    """Return P[K = k] for k = 1, 2, …, from the law's own definition."""
    k = np.arange(1, 2000)
    if trials.mean == 1:
        return np.array([1.0])
    if trials.law == "poisson":
        logs = k * math.log(trials.rate) - np.cumsum(np.log(k))
    else:
        factors = (k[:-1] + trials.shape) / (k[:-1] + 1)  # those of l ≥ 1
        logs = -k * math.log1p(1 / trials.odds)
        logs = logs + np.concatenate([[0.0], np.cumsum(np.log(factors))])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def best_of(trials: DrawnTrials, outputs: Array) -> Array:
    """Return the distribution of the best output: the outputs are in the order of their scores."""
    law = masses(trials)
    powers = np.cumsum(outputs)[:, None] ** np.arange(1, len(law) + 1)
    best: Array = np.diff(powers @ law, prepend=0.0)
    return best


def hockey_stick(p: Array, q: Array, levels: Array) -> Array:
    """Return δ(ε) in the worse direction."""
    there, back = (
        np.maximum(a - np.exp(levels)[:, None] * b, 0).sum(axis=1) for a, b in ((p, q), (q, p))
    )
    return np.asarray(np.maximum(there, back))


def renyi(p: Array, q: Array, order: float) -> float:
    log_p, log_q = np.log(p), np.log(q)
    there, back = (
        logsumexp(order * a + (1 - order) * b) for a, b in ((log_p, log_q), (log_q, log_p))
    )
    return float(max(there, back)) / (order - 1)


def mechanisms() -> list[tuple[Array, Array]]:
    """Return the outputs of tiny mechanisms on two neighbouring datasets, all of them above 0."""
    draw, found = np.random.default_rng(0), []
    for size in (2, 2, 3, 3, 5, 8):
        p = draw.dirichlet(np.ones(size))
        q = p * np.exp(draw.uniform(-1, 1, size))
        found.append((p, q / q.sum()))
    places = np.arange(-6, 7)
    gaussian = [np.exp(-((places - shift) ** 2) / 8) for shift in (0, 1)]
    found.append((gaussian[0] / gaussian[0].sum(), gaussian[1] / gaussian[1].sum()))
    return found


def orders_of_scores(size: int) -> list[tuple[int, ...]]:
    """Return orders in which the outputs may be scored."""
    every = list(itertools.permutations(range(size))) if size < 4 else []
    return every or [tuple(range(size)), tuple(reversed(range(size)))]


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_no_profile_is_below_that_of_the_best_output_and_none_far_above(
    trials: DrawnTrials,
) -> None:
    asked, factors = np.linspace(0, 3, 13), []
    for p, q in mechanisms():
        weights, shifts = selected_profile(trials, LEVELS, hockey_stick(p, q, LEVELS))
        terms = [w * hockey_stick(p, q, asked + s) for w, s in zip(weights, shifts, strict=True)]
        bound = np.minimum(1.0, np.sum(terms, axis=0))
        worst = np.zeros_like(asked)
        for order in map(list, orders_of_scores(len(p))):
            exact = hockey_stick(best_of(trials, p[order]), best_of(trials, q[order]), asked)
            assert np.all(exact <= bound + 1e-12)
            worst = np.maximum(worst, exact)
        seen = worst > 1e-3
        factors += list(bound[seen] / worst[seen])
    assert np.median(factors) < 2 * trials.mean


@pytest.mark.parametrize("trials", [one for one in LAWS if one.law != "poisson"], ids=str)
def test_the_profile_is_not_above_the_published_one_of_a_single_term(trials: DrawnTrials) -> None:
    """E[K] δ₁(ε − (1 + η) log(e^ε₁ + δ₁(ε₁)(1 − γ)/γ)), whatever ε₁ ≥ 0 (Koskela et al. 2024)."""
    asked = np.linspace(0, 3, 13)
    for p, q in mechanisms():
        weights, shifts = selected_profile(trials, LEVELS, hockey_stick(p, q, LEVELS))
        terms = [w * hockey_stick(p, q, asked + s) for w, s in zip(weights, shifts, strict=True)]
        for level in np.linspace(0, 3, 31):
            change = math.exp(level) + trials.odds * hockey_stick(p, q, np.array([level]))[0]
            place = asked - (1 + trials.shape) * (math.log(change) + CELL)
            assert np.all(np.sum(terms, axis=0) <= trials.mean * hockey_stick(p, q, place) + 1e-9)


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_no_divergence_is_below_that_of_the_best_output_and_none_far_above(
    trials: DrawnTrials,
) -> None:
    orders = np.array([1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0])
    for p, q in mechanisms():
        single = np.array([renyi(p, q, order) for order in orders])
        bound = selected_curve(trials, single, orders)
        for order in map(list, orders_of_scores(len(p))):
            best = [best_of(trials, outputs[order]) for outputs in (p, q)]
            exact = np.array([renyi(*best, order) for order in orders])
            assert np.all(exact <= bound + 1e-9)
        assert np.all(bound[2:] < 12 * single.max() + 6)


@pytest.mark.quick(trials=[LAWS[0], LAWS[4]])
@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_trials_are_drawn_from_the_law_that_is_accounted_for(trials: DrawnTrials) -> None:
    law, draws = masses(trials), np.linspace(0, 1, 4000, endpoint=False)
    assert np.arange(1, len(law) + 1) @ law == pytest.approx(trials.mean, rel=1e-6)
    counts = Counter(map(trials.draw, draws.tolist()))
    assert min(counts) == 1
    for number in range(1, 12):
        chance = law[number - 1] if number <= len(law) else 0.0
        assert counts[number] / len(draws) == pytest.approx(chance, abs=5e-4)


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_the_slope_is_that_of_the_generating_function(trials: DrawnTrials) -> None:
    law, u = masses(trials), np.array([0.0, 0.01, 0.3, 1.0])
    k = np.arange(1, len(law) + 1)
    expected = (k * law) @ (1 - u) ** (k[:, None] - 1)
    assert trials.slope(u) == pytest.approx(expected, rel=1e-6)
    assert trials.slope(np.array([0, 1])).dtype == np.float64


def test_two_geometric_trials_have_the_slope_of_their_law() -> None:
    """Of P[K = k] = 2^−k the generating function is (1 − u)/(1 + u), and its slope 2/(1 + u)²."""
    u = np.array([0.0, 0.3, 1.0])
    assert DrawnTrials(mean=2).slope(u) == pytest.approx(2 / (1 + u) ** 2)


def test_a_tabulated_profile_is_linear_in_the_exponential_of_epsilon() -> None:
    """Left of the table nothing is known, and right of it no more than its last point."""
    grid, inside = np.linspace(-1, 1, 9), np.linspace(-1, 1, 50)
    deltas = np.array([0.9, 0.7, 0.6, 0.5, 0.45, 0.42, 0.4, 0.38, 0.37])
    expected = np.interp(np.exp(inside), np.exp(grid), deltas)
    assert _between(grid, deltas, inside) == pytest.approx(expected)
    outside = _between(grid, deltas, np.array([-1.01, 1.01, 50.0]))
    assert outside == pytest.approx([1.0, deltas[-1], deltas[-1]])


def test_divergences_of_the_best_of_geometric_trials_are_those_of_the_theorem() -> None:
    """Of ε(α) = ρα and m = 1/γ trials: ρα + log(m)/(α − 1) + 2 min over α̂ of the last term."""
    orders, rho, m = np.array(ORDERS), 0.01, 12.0
    spread = min((1 - 1 / a) * rho * a + math.log(m) / a for a in ORDERS)
    expected = [rho * a + math.log(m) / (a - 1) + 2 * spread for a in ORDERS]
    assert selected_curve(DrawnTrials(mean=m), rho * orders, orders) == pytest.approx(expected)


def test_the_greatest_convex_function_is_the_lowest_line_through_two_points() -> None:
    random = np.random.default_rng(0)
    x, y = np.sort(random.uniform(0.1, 3, 12)), random.uniform(0, 1, 12)
    points = [(0.0, 1.0), *zip(x, y, strict=True)]
    lowest = [
        min(
            np.interp(place, (x0, x1), (y0, y1))
            for (x0, y0), (x1, y1) in itertools.product(points, repeat=2)
            if x0 <= place <= x1
        )
        for place in x
    ]
    assert _convex(x, y) == pytest.approx(lowest)


def single(delta: float = DELTA, steps: int = RUN[2]) -> float:
    sigma, rate, _ = RUN
    return epsilon("pld", noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=delta)


def test_runs_that_differ_in_steps_alone_cost_what_all_their_steps_cost() -> None:
    found = composed_epsilon([(1.0, 0.05, 20), (1.0, 0.05, 0), (1.0, 0.05, 30)], delta=DELTA)
    expected = epsilon("rdp", noise_multiplier=1.0, sampling_rate=0.05, steps=50, delta=DELTA)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "trials", [DrawnTrials(mean=5), DrawnTrials(mean=4, law="poisson")], ids=str
)
def test_the_best_of_gaussian_releases_costs_no_less_than_the_largest_and_little_more(
    trials: DrawnTrials,
) -> None:
    """The largest of K normal numbers has the density of one times E[K P(none is larger)^(K−1)]."""
    sigma, delta = 2.0, 1e-5
    y = np.linspace(-9 * sigma, 1 + 9 * sigma, 100_001)
    width = y[1] - y[0]
    there, absent = (
        norm.pdf(y, shift, sigma) * width * trials.slope(norm.sf(y, shift, sigma))
        for shift in (1.0, 0.0)
    )

    def excess(value: float) -> float:
        return float(hockey_stick(there, absent, np.array([value]))[0]) - delta

    least = brentq(excess, 0.0, 20.0)
    assert least <= selected_epsilon(trials, (sigma, 1.0, 1), delta=delta) <= 1.35 * least


def test_no_output_is_more_than_certainly_worse_than_another() -> None:
    """The line of u is φ(u) r − φ(U(u)), with U(u) = e³u ≤ 1: the first above 0 is where U is 1."""
    trials = DrawnTrials(mean=5)
    weights, shifts = selected_profile(trials, np.array([3.0]), np.array([0.0]))
    at_one, before = trials.slope(np.array([1.0, math.exp(-3)]))
    assert shifts.min() == pytest.approx(math.log(at_one / before), abs=CELL)
    assert weights.sum() == pytest.approx(trials.mean)


def test_one_trial_costs_what_a_run_costs() -> None:
    one = DrawnTrials(mean=1)
    assert selected_epsilon(one, RUN, delta=DELTA) == pytest.approx(single(), rel=0.01)
    both = selected_epsilon(one, RUN, then=RUN, delta=DELTA)
    assert both == pytest.approx(single(steps=2 * RUN[2]), rel=0.01)
    assert both >= single(steps=2 * RUN[2])


@pytest.mark.quick(law=["poisson"])
@pytest.mark.parametrize("law", ["negative-binomial", "poisson"])
def test_more_trials_cost_more_but_far_less_than_publishing_all(law: Any) -> None:
    costs = [
        selected_epsilon(DrawnTrials(law=law, mean=mean), RUN, delta=DELTA) for mean in (1, 5, 50)
    ]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1] < 0.7 * single(steps=50 * RUN[2])


@pytest.mark.long
def test_a_run_after_the_search_costs_more_and_a_larger_delta_less() -> None:
    trials = DrawnTrials(mean=5)
    alone = selected_epsilon(trials, RUN, delta=DELTA)
    assert alone < selected_epsilon(trials, RUN, then=RUN, delta=DELTA) < alone + single()
    assert selected_epsilon(trials, RUN, delta=1e-4) < alone


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mean": 0.5}, "mean"),
        ({"mean": 3, "shape": -1}, "shape"),
        ({"mean": 3, "law": "poisson", "shape": 2}, "shape"),
        ({"mean": 3, "law": "geometric"}, "law"),
    ],
)
def test_a_law_that_is_none_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse(DrawnTrials, values)


@pytest.mark.parametrize(
    "numbers", [{"sampler": "full", "sampling_rate": 1}, {"affected_examples": 2}]
)
def test_a_choice_is_covered_only_for_poisson_batches_of_examples(numbers: dict[str, Any]) -> None:
    values: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "sampling_rate": 0.1, "steps": 9}
    flat_budget(**values | numbers)
    with pytest.raises(UserError, match="trials: what a choice costs is known for"):
        flat_budget(**values | numbers, trials=LAWS[0])


def test_a_choice_is_covered_where_examples_are_added_or_removed_and_not_replaced() -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-5, trials=LAWS[0])
    sizes = {"examples": 100, "expected_batch_size": 10, "steps": 9}
    budget = mechanism("poisson", **sizes).budget(privacy, None, at=[0, 3])
    assert (budget.trials, budget.evaluation_steps) == (LAWS[0], (0, 3))
    with pytest.raises(UserError, match="and the adjacency is 'replace'"):
        mechanism("fixed-size", accountant="rdp-replace", **sizes).budget(privacy, None)


def test_a_law_says_what_it_is() -> None:
    assert str(DrawnTrials(mean=8, shape=6)) == "negative-binomial of shape 6, 8 expected"
    assert str(DrawnTrials(mean=4, law="poisson")) == "poisson, 4 expected"


@pytest.mark.long
@pytest.mark.parametrize(
    ("trials", "target", "rate", "steps"), [(LAWS[0], 0.5, 0.1, 40), (LAWS[4], 2.0, 0.5, 9)]
)
def test_calibrated_noise_meets_the_target_with_the_choice_and_not_much_more(
    trials: DrawnTrials, target: float, rate: float, steps: int
) -> None:
    values: dict[str, Any] = {"epsilon": target, "delta": 1e-5, "sampling_rate": rate}
    asked = flat_budget(**values, steps=steps, accountant="pld", trials=trials)
    found = calibrate(asked)
    run = (found.noise_multiplier, rate, steps)
    assert 0.98 * target <= selected_epsilon(trials, run, then=run, delta=1e-5) <= target
    assert found.epsilon == asked.spent(found.noise_multiplier) < 0.9 * target
    found.verify()
    alone = calibrate(flat_budget(**values, steps=steps))
    assert alone.noise_multiplier < found.noise_multiplier
    too_little = replace(found, noise_multiplier=alone.noise_multiplier)
    too_little = replace(too_little, epsilon=asked.spent(alone.noise_multiplier))
    with pytest.raises(UserError, match="above the target"):
        too_little.verify()


@pytest.mark.long
def test_the_options_of_a_budget_with_a_choice_describe_it(tmp_path: Path) -> None:
    law = DrawnTrials(mean=3, shape=0)
    values: dict[str, Any] = {"delta": 1e-5, "sampling_rate": 0.5, "steps": 2, "trials": law}
    asked = flat_budget(noise_multiplier=4, **values)
    path = tmp_path / "calibration.json"
    assert main(["calibrate", *shlex.split(asked.options()), "--out", str(path)]) == 0
    assert read_calibration(path).budget == asked
    assert asked.key != replace(asked, trials=None).key
    assert flat_budget(noise_multiplier=1, **values).charged(1) == asked.charged(1)
