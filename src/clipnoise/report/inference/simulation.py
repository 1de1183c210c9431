"""Leagues in which the truth is known: how often the tests are wrong, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from clipnoise.report.inference.gains import (
    Components,
    best_in_population,
    gain,
    simultaneous_intervals,
)
from clipnoise.report.inference.over_tasks import MixedModel
from clipnoise.report.inference.sign_flips import (
    Floats,
    adjusted_best,
    best_p_values,
    pairs_apart,
)
from clipnoise.report.statistics import ALPHA
from clipnoise.studies.audits import holm

Place = tuple[int, int]  # task and budget
Settings = Mapping[Place, Components]
FALL = (0.1, 0.6)  # by how much a run collapses, at least and at most
BASELINE = 1  # the position of the method that gains are over; the one at 0 may lead


@dataclass(frozen=True, kw_only=True)
class League:
    """A league whose methods are equally good, but that the first one may lead.

    Results are accuracies. The standard deviation over searches differs between methods, from
    `spread` to `noisier` times as much; what a seed does to all methods has `shared`. A run
    collapses with probability `collapse`, by 10 to 60 points. The test set moves each method by an
    error with standard deviation `test_error`, the same at all budgets of a task.

    Attributes:
        methods, tasks, budgets, searches, seeds: how many there are, seeds of each search.
        lead: by how much the first method is better.
        first_collapses: with what probability a run of the first method collapses, where it is
            another one than that of the others. In all other runs it is ahead by as much as that
            costs it on average.
        interaction: the standard deviation of what a method gains or loses on a task.
    """

    methods: int = 13
    tasks: int = 18
    budgets: int = 3
    searches: int = 12
    seeds: int = 2
    spread: float = 0.006
    noisier: float = 4.0
    shared: float = 0.01
    collapse: float = 0.02
    test_error: float = 0.0
    lead: float = 0.0
    first_collapses: float | None = None
    interaction: float = 0.0

    def draw(self, rng: np.random.Generator) -> dict[Place, Components]:
        """Draw what is seen of each setting."""
        found = {}
        for task in range(self.tasks):
            moved = self.test_error * rng.normal(size=self.methods)
            moved[0] += self.lead + self.interaction * rng.normal()
            if self.interaction:
                moved[1:] += self.interaction * rng.normal(size=self.methods - 1)
            for budget in range(self.budgets):
                results = 0.8 + moved[:, None] + self._searches(rng)
                found[task, budget] = Components(
                    searches=results,
                    examples=1000,
                    of_searches=np.atleast_2d(np.cov(results)) / self.searches,
                    of_examples=self.test_error**2 * np.eye(self.methods),
                    of_both=np.zeros((self.methods, self.methods)),
                )
        return found

    def _searches(self, rng: np.random.Generator) -> Floats:
        """Return what searches and their seeds add, of shape (methods, searches)."""
        spread = self.spread * np.geomspace(1, self.noisier, self.methods)
        shape = (self.methods, self.searches, self.seeds)
        chance, ahead = np.full((self.methods, 1, 1), self.collapse), np.zeros((self.methods, 1))
        if self.first_collapses is not None:
            chance[0] = self.first_collapses
            ahead[0] = (self.first_collapses - self.collapse) * sum(FALL) / 2
        lost = (rng.random(shape) < chance) * rng.uniform(*FALL, shape)
        own = ahead + rng.permutation(spread)[:, None] * rng.normal(size=shape[:2])
        return np.asarray(own + self.shared * rng.normal(size=self.searches) - lost.mean(axis=2))


def beside_the_highest_mean(scores: Floats) -> Floats:
    """Return p-values of paired t-tests beside the highest mean, Holm-corrected.

    This is what reports must not do: it takes the method with the highest mean as given.
    """
    best = int(scores.mean(axis=1).argmax())
    others = [index for index in range(len(scores)) if index != best]
    raw = stats.ttest_1samp(scores[best] - scores[others], 0, axis=1).pvalue
    found = np.ones(len(scores))
    found[others] = holm(np.asarray(raw).tolist())
    return found


def _alone(test: Callable[[Floats], Floats]) -> Callable[[Settings, int], dict[Place, Floats]]:
    return lambda settings, draws: {key: test(one.searches) for key, one in settings.items()}


def _population(settings: Settings, draws: int) -> dict[Place, Floats]:
    return {key: best_in_population(one, draws=draws) for key, one in settings.items()}


T_TESTS = "t-tests beside the highest mean"
FLIPS, FLIPS_TOGETHER = "sign flips, a setting", "sign flips, all settings"
POPULATION, POPULATION_TOGETHER = "for all examples, a setting", "for all examples, all settings"


TESTS: dict[str, Callable[[Settings, int], dict[Place, Floats]]] = {
    T_TESTS: _alone(beside_the_highest_mean),
    FLIPS: _alone(best_p_values),
    POPULATION: _population,
}
TOGETHER = {FLIPS_TOGETHER: FLIPS, POPULATION_TOGETHER: POPULATION}  # adjusted for all settings


@dataclass(frozen=True)
class Rates:
    """What a test does.

    Attributes:
        wrong: how often it excludes a method that is as good as the best: in a setting, or in any
            setting where it is for all together.
        found: in how many settings it excludes the baseline, of those in which the first leads.
        families: how many settings, or leagues, `wrong` is a share of.
    """

    wrong: float
    found: float
    families: int

    @property
    def error(self) -> float:
        """Monte Carlo standard error of a rate of α."""
        return float(np.sqrt(ALPHA * (1 - ALPHA) / self.families))


def rates(league: League, test: str, trials: int, *, draws: int = 999, seed: int = 0) -> Rates:
    """Run a test of which methods can be the best on leagues that are drawn.

    Args:
        league: what is drawn.
        test: one of `TESTS` or of `TOGETHER`.
        trials: how many leagues are drawn.
        draws: of the test for all examples; many more than settings / α.
        seed: of the leagues.
    """
    rng = np.random.default_rng(seed)
    best = slice(0, 1) if league.lead else slice(None)
    wrong, found = [], []
    for _ in range(trials):
        p_values = TESTS[TOGETHER.get(test, test)](league.draw(rng), draws)
        if test in TOGETHER:
            p_values = adjusted_best(p_values)
        lost = [bool((one[best] <= ALPHA).any()) for one in p_values.values()]
        wrong += [any(lost)] if test in TOGETHER else lost
        found += [one[BASELINE] <= ALPHA for one in p_values.values()]
    return Rates(float(np.mean(wrong)), float(np.mean(found)), len(wrong))


def pairs_rate(league: League, trials: int, *, seed: int = 0) -> Rates:
    """Run `pairs_apart` over all settings; `wrong` counts pairs of equal methods."""
    rng = np.random.default_rng(seed)
    wrong, found = [], []
    for _ in range(trials):
        pairs = pairs_apart({key: one.searches for key, one in league.draw(rng).items()})
        told = [pair for one in pairs.values() for pair, p in one.items() if p <= ALPHA]
        wrong.append(any(0 not in pair for pair in told) if league.lead else bool(told))
        found.append(sum(pair == (0, BASELINE) for pair in told) / len(pairs))
    return Rates(float(np.mean(wrong)), float(np.mean(found)), trials)


def intervals_rate(league: League, trials: int, *, draws: int = 999, seed: int = 0) -> Rates:
    """Run `simultaneous_intervals` over all settings; `wrong` counts those without the truth."""
    rng = np.random.default_rng(seed)
    wrong, found = [], []
    for _ in range(trials):
        settings = league.draw(rng)
        lost = False
        for one in settings.values():
            intervals = simultaneous_intervals(one, BASELINE, settings=len(settings), draws=draws)
            lost |= any(
                not each.low <= (league.lead if index == 0 else 0.0) <= each.high
                for index, each in intervals.items()
            )
            found.append(intervals[0].low > 0)
        wrong.append(lost)
    return Rates(float(np.mean(wrong)), float(np.mean(found)), trials)


def mixed_model_rate(league: League, trials: int, *, seed: int = 0) -> Rates:
    """Run `MixedModel` on all gains over tasks, and take the simultaneous intervals.

    `wrong` counts leagues in which one is without the truth, `found` those in which the first
    method is ahead at the first budget.
    """
    rng = np.random.default_rng(seed)
    others = [index for index in range(league.methods) if index != BASELINE]
    every = [(budget, index) for budget in range(league.budgets) for index in others]
    wrong, found = [], []
    for _ in range(trials):
        settings, intervals = league.draw(rng), {}
        for budget, index in every:
            gains = [
                gain(one, index, BASELINE) for (_, at), one in settings.items() if at == budget
            ]
            means, errors = np.array([(one.mean, one.error) for one in gains]).T
            intervals[budget, index] = MixedModel(means, errors).together(len(every))
        wrong.append(
            any(
                not one.low <= (0.0 if index else league.lead) <= one.high
                for (_, index), one in intervals.items()
            )
        )
        found.append(intervals[0, 0].low > 0)
    return Rates(float(np.mean(wrong)), float(np.mean(found)), trials)
