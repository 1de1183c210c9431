"""Means, spreads and verdicts against values worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from reporting_data import run_row, write_table

from clipnoise.report.formats import ACCURACY
from clipnoise.report.records import read_runs
from clipnoise.report.statistics import Sample, judge, sample
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
    assert judge({"a": GOOD, "b": WORSE}, higher_is_better=False).leaders == {"b"}


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
    verdict = judge({"survivor": survivor, "worse": WORSE}, higher_is_better=True)
    assert verdict.leaders == {"worse"}
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
