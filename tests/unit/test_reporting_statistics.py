"""Means, spreads and verdicts against values worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from reporting_data import run_row, write_table
from scipy import stats

from clipnoise.errors import UserError
from clipnoise.report.formats import ACCURACY, LOSS
from clipnoise.report.records import read_runs
from clipnoise.report.statistics import (
    Interval,
    Sample,
    chance_above,
    exceeds_chance,
    judge,
    paired_differences,
    paired_interval,
    resolved,
    sample,
    sampling_error,
)
from clipnoise.studies.audits import holm
from clipnoise.studies.columns import RUN_COLUMNS


def seeds(*values: float, **lost: int) -> Sample:
    return Sample(values=dict(enumerate(values, start=1)), **lost)


def table(tmp_path, *rows) -> pd.DataFrame:
    return read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))


def test_mean_and_deviation_use_the_divisor_n_minus_1():
    one = seeds(1.0, 2.0, 3.0, 4.0)
    assert one.mean == 2.5
    assert one.deviation == pytest.approx(math.sqrt(5 / 3))
    assert seeds(1.0, 3.0).deviation == pytest.approx(math.sqrt(2))


def test_one_value_has_no_deviation_and_none_has_no_mean():
    assert math.isnan(seeds(0.5).deviation)
    assert math.isnan(seeds().mean)


def test_every_planned_run_is_counted(tmp_path):
    statuses = ["completed", "diverged", "missing", "corrupt", "completed"]
    runs = table(tmp_path, *(run_row(seed=i, status=s) for i, s in enumerate(statuses)))
    found = sample(runs, ACCURACY)
    assert (found.n, found.diverged, found.missing, found.corrupt) == (2, 1, 1, 1)
    assert found.planned == 5
    assert found.runs == "2/5"


@pytest.mark.parametrize("value", ["", math.nan, math.inf])
def test_a_completed_run_without_a_finite_value_counts_as_diverged(tmp_path, value):
    runs = table(tmp_path, run_row(seed=1), run_row(seed=2, test_accuracy=value))
    found = sample(runs, ACCURACY)
    assert (found.n, found.diverged) == (1, 1)


def test_a_diverged_run_counts_as_diverged_whatever_its_last_evaluation(tmp_path):
    lost = run_row(seed=2, status="diverged", test_accuracy="0.99")
    found = sample(table(tmp_path, run_row(seed=1), lost), ACCURACY)
    assert set(found.values) == {1}
    assert found.diverged == 1


def test_two_runs_of_one_seed_are_refused_with_their_labels(tmp_path):
    rows = [run_row(seed=1, label=label) for label in ("plain", "tuned")] + [run_row(seed=2)]
    with pytest.raises(UserError, match="two runs of 'plain', 'tuned' have seed 1 "):
        sample(table(tmp_path, *rows), ACCURACY)


def test_holm_multiplies_the_smallest_p_value_most_and_never_decreases():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_holm_does_not_depend_on_the_order_of_the_comparisons(order):
    p_values = [0.001, 0.02, 0.021, 0.4]
    adjusted = holm(p_values)
    assert holm([p_values[i] for i in order]) == pytest.approx([adjusted[i] for i in order])


GOOD = seeds(0.90, 0.91, 0.92, 0.91, 0.90, 0.92)
CLOSE = seeds(0.91, 0.90, 0.92, 0.90, 0.91, 0.91)
WORSE = seeds(0.80, 0.82, 0.81, 0.80, 0.81, 0.82)


def test_all_that_can_be_the_best_lead():
    verdict = judge({"good": GOOD, "close": CLOSE, "worse": WORSE}, higher_is_better=True)
    assert verdict.leaders == {"good", "close"}
    assert verdict.p_values["worse"] < 0.05 < verdict.p_values["close"]
    assert "good" not in verdict.p_values


def test_exact_ties_lead_together():
    assert judge({"a": GOOD, "b": GOOD}, higher_is_better=True).leaders == {"a", "b"}


def test_the_lowest_leads_where_low_is_good():
    verdict = judge({"a": GOOD, "b": WORSE}, higher_is_better=False)
    assert verdict.leaders == {"b"}
    assert verdict.p_values == {"a": 2 * 2.0**-6}


def test_a_method_must_be_worse_by_more_the_more_others_may_be_so_by_chance():
    rng = np.random.default_rng(1)
    level = 0.9 + 0.02 * rng.normal(size=(20, 10))
    ahead = {"good": seeds(*(level[0] + 0.02)), "worse": seeds(*level[1])}
    among = {**ahead, **{f"other {i}": seeds(*row) for i, row in enumerate(level[2:])}}
    alone, crowd = (judge(one, higher_is_better=True) for one in (ahead, among))
    assert alone.p_values["worse"] < crowd.p_values["worse"]


@pytest.mark.long
def test_one_of_equal_methods_is_called_worse_no_more_often_than_allowed():
    """A t-test of each beside the highest mean, Holm-corrected, does so in a quarter of cases."""
    rng, trials, methods = np.random.default_rng(2), 200, 36
    wrong = 0
    for results in rng.normal(size=(trials, methods, 10)):
        samples = {i: seeds(*row) for i, row in enumerate(results)}
        wrong += judge(samples, higher_is_better=True).leaders != samples.keys()
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(("count", "withheld"), [(2, "few seeds"), (5, "few seeds"), (6, "")])
def test_fewer_than_six_seeds_cannot_tell_which_is_best(count, withheld):
    far = {"a": seeds(*(0.9,) * count), "b": seeds(*(0.1,) * count)}
    verdict = judge(far, higher_is_better=True)
    assert verdict.withheld == withheld
    assert verdict.leaders == ({"a"} if not withheld else set())


def test_a_method_that_diverged_in_some_runs_cannot_lead_by_the_runs_that_survived():
    survivor = seeds(0.99, 0.98, 0.99, 0.98, diverged=2)
    samples = {"survivor": survivor, "good": GOOD, "worse": WORSE}
    verdict = judge(samples, higher_is_better=True)
    assert verdict.leaders == {"good"}
    assert "survivor" not in verdict.p_values


@pytest.mark.parametrize("lost", [{"missing": 1}, {"corrupt": 1}])
def test_no_method_leads_while_runs_are_missing_or_damaged(lost):
    verdict = judge({"a": GOOD, "b": seeds(0.5, **lost)}, higher_is_better=True)
    assert (verdict.leaders, verdict.withheld) == (frozenset(), "unfinished")


def test_no_method_leads_without_a_rival_with_few_seeds_or_when_all_failed():
    assert judge({"a": GOOD}, higher_is_better=True).withheld == "alone"
    assert judge({"a": seeds(0.9), "b": seeds(0.8)}, higher_is_better=True).withheld == "few seeds"
    failed = {"a": seeds(diverged=6), "b": seeds(0.9, diverged=5)}
    assert judge(failed, higher_is_better=True).withheld == "failed"
    only = {"a": WORSE, "b": seeds(*(0.9,) * 5, diverged=1)}
    assert judge(only, higher_is_better=True).withheld == "others failed"


# ---- Intervals


def test_the_error_of_a_share_is_that_of_a_binomial() -> None:
    assert sampling_error(0.9, 400) == pytest.approx(stats.binom(400, 0.9).std() / 400)
    assert math.isnan(sampling_error(0.9, 0))


def test_an_interval_is_shown_with_its_ends_where_it_has_some():
    assert Interval(0.5, 0.4, 0.6).show(ACCURACY) == "50.00 [40.00, 60.00]"
    assert Interval(0.5, math.nan, math.nan).show(ACCURACY) == "50.00"


def test_differences_are_positive_where_the_first_is_better() -> None:
    assert paired_differences({1: 3.0, 2: 1.0}, {2: 0.5, 3: 9.0}) == {2: 0.5}
    assert paired_differences({1: 3.0}, {1: 1.0}, higher_is_better=False) == {1: -2.0}


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    differences = dict(enumerate([0.02, 0.03, 0.01, 0.04]))
    found = paired_interval(differences)
    expected = stats.ttest_1samp(list(differences.values()), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.025)
    two = paired_interval({1: 0.0, 2: 2.0})
    assert (two.low, two.high) == pytest.approx(stats.t(1, 1.0, 1.0).interval(0.95))
    one, none = paired_interval({1: 0.9 - 0.8, 2: 0.8 - 0.7}), paired_interval({})
    assert one.mean == pytest.approx(0.1)
    assert np.isnan([one.low, one.high]).all()
    one = paired_interval({1: 0.02})
    assert one.mean == 0.02
    assert np.isnan([one.low, one.high, none.mean, none.low, none.high]).all()


def test_a_chance_to_resolve_is_that_of_drawn_intervals() -> None:
    generator = np.random.default_rng(0)
    for gap, spread, n in ((1.0, 1.0, 5), (0.5, 1.0, 20), (0.3, 0.1, 3)):
        values = gap + spread * generator.standard_normal((4000, n))
        reach = stats.t.ppf(0.975, n - 1) * values.std(axis=1, ddof=1) / np.sqrt(n)
        share = np.mean(values.mean(axis=1) - reach > 0)
        assert chance_above(gap, spread, n) == pytest.approx(share, abs=0.03)
    for n in (2, 5, 300):
        assert chance_above(resolved(2.0, n, 0.7), 2.0, n) == pytest.approx(0.7, abs=1e-6)
    assert chance_above(1.0, 1.0, 1) == 0
    assert [chance_above(gap, 0.0, 5) for gap in (-1.0, 0.0, 1.0)] == [0, 0, 1]


@pytest.mark.parametrize(("examples", "exceeds"), [(100, False), (100_000, True)])
def test_an_accuracy_must_exceed_chance_by_more_than_the_test_split_resolves(
    examples: int, exceeds: bool
) -> None:
    assert exceeds_chance(0.52, 0.5, ACCURACY, examples) is exceeds
    assert exceeds_chance(0.6, 0.69, LOSS, examples)
    assert not exceeds_chance(0.69, 0.69, LOSS, examples)
